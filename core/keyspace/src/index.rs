//! A hash index by linear hashing: it grows and shrinks by one bucket at a time, so no operation ever waits for a
//! resize.
//!
//! ```text
//! buckets = 2^k + split.  A hash belongs to bucket  hash mod 2^(k+1)  if  hash mod 2^k < split,  else to  hash mod 2^k.
//! bucket (one cache line) = 12 tags of 8 bits | 12 references of 32 bits | link to an overflow bucket
//! ```
//!
//! The scan order is that of bit-reversed hashes (as in Redis' `dictScan`): a bucket covers one interval of it, and
//! splitting or merging buckets only refines or coarsens the intervals. A cursor is a position in that order, so what
//! is there during a whole scan is always visited, whatever happens to the index in between.

use crate::{OutOfMemory, segmented::Segmented, slab::Ref};
use alloc::vec::Vec;

const SLOTS: usize = 12;
/// Mean entries per bucket above which the index grows. Unsplit buckets hold up to twice as many as split ones.
const GROW_ABOVE: usize = 8;
/// Mean entries per bucket below which it shrinks.
const SHRINK_BELOW: usize = 3;
const INITIAL_BUCKETS: usize = 4;
/// Tag of an empty slot. Real tags have the top bit set.
const EMPTY: u8 = 0;
const NO_LINK: u32 = u32::MAX;

#[repr(C, align(64))]
#[derive(Clone)]
struct Bucket {
    tags: [u8; SLOTS],
    refs: [u32; SLOTS],
    /// Overflow bucket that continues this one.
    link: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    const VACANT: Bucket = Bucket { tags: [EMPTY; SLOTS], refs: [0; SLOTS], link: NO_LINK };

    /// The slots whose tags may be this one: bit `8 * slot + 7` is set for each that is, and perhaps for one behind such a
    /// slot whose tag differs in the lowest bit only. All tags are compared at once, as bytes of one number.
    #[inline]
    fn candidates(&self, tag: u8) -> u128 {
        const ONES: u128 = (u128::MAX / 0xff) >> (8 * (16 - SLOTS));
        let mut bytes = [0; 16];
        bytes[..SLOTS].copy_from_slice(&self.tags);
        let differences = u128::from_le_bytes(bytes) ^ (ONES * u128::from(tag));
        // The lowest zero byte, and none below it, borrows into its top bit.
        differences.wrapping_sub(ONES) & !differences & (ONES << 7)
    }
}

/// A set of record references, found by hash.
pub struct Index {
    buckets: Segmented<Bucket>,
    overflow: Segmented<Bucket>,
    /// Overflow buckets that are free, chained by their links.
    free_overflow: u32,
    /// `buckets.len()` is `2^level + split`.
    level: u32,
    split: usize,
    len: usize,
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8 | 0x80
}

/// Where one bucket or overflow bucket lies.
#[derive(Clone, Copy)]
enum Place {
    Main(usize),
    Overflow(u32),
}

/// What the references of an index lead to.
pub trait Entries {
    /// The hash of an entry.
    fn hash_of(&self, record: Ref) -> u64;

    /// Has the processor fetch entries from memory, all at a time.
    fn fetch(&self, records: &[Ref]);
}

impl Index {
    pub const fn new() -> Index {
        Index {
            buckets: Segmented::new(),
            overflow: Segmented::new(),
            free_overflow: NO_LINK,
            level: INITIAL_BUCKETS.ilog2(),
            split: 0,
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Bytes of all buckets.
    pub fn bytes(&self) -> usize {
        (self.buckets.len() + self.overflow.len()) * size_of::<Bucket>()
    }

    #[inline]
    fn bucket_of(&self, hash: u64) -> usize {
        let low = hash as usize & ((1 << self.level) - 1);
        if low < self.split { hash as usize & ((2 << self.level) - 1) } else { low }
    }

    #[inline]
    fn bucket(&self, place: Place) -> &Bucket {
        match place {
            Place::Main(at) => &self.buckets[at],
            Place::Overflow(at) => &self.overflow[at as usize],
        }
    }

    fn bucket_mut(&mut self, place: Place) -> &mut Bucket {
        match place {
            Place::Main(at) => &mut self.buckets[at],
            Place::Overflow(at) => &mut self.overflow[at as usize],
        }
    }

    /// Finds the entry of this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl FnMut(Ref) -> bool) -> Option<Ref> {
        self.locate(hash, is_it).map(|(place, slot)| Ref(self.bucket(place).refs[slot]))
    }

    #[inline]
    fn locate(&self, hash: u64, mut is_it: impl FnMut(Ref) -> bool) -> Option<(Place, usize)> {
        if self.len == 0 {
            return None;
        }
        let tag = tag_of(hash);
        let mut place = Place::Main(self.bucket_of(hash));
        loop {
            let bucket = self.bucket(place);
            let mut candidates = bucket.candidates(tag);
            while candidates != 0 {
                let slot = candidates.trailing_zeros() as usize / 8;
                if is_it(Ref(bucket.refs[slot])) {
                    return Some((place, slot));
                }
                candidates &= candidates - 1;
            }
            if bucket.link == NO_LINK {
                return None;
            }
            place = Place::Overflow(bucket.link);
        }
    }

    /// Where this entry is.
    #[inline(never)]
    fn locate_record(&self, hash: u64, record: Ref) -> Option<(Place, usize)> {
        self.locate(hash, |other| other == record)
    }

    /// Whether there is this entry.
    pub fn has(&self, hash: u64, record: Ref) -> bool {
        self.locate_record(hash, record).is_some()
    }

    /// Adds an entry that is not in the index yet. `entries` has the hash of any entry.
    #[inline(never)]
    pub fn insert(&mut self, hash: u64, record: Ref, entries: &dyn Entries) -> Result<(), OutOfMemory> {
        while self.buckets.len() < INITIAL_BUCKETS {
            self.buckets.push(Bucket::VACANT)?;
        }
        self.add(hash, record)?;
        self.len += 1;
        if self.len > self.buckets.len() * GROW_ABOVE {
            // Without memory for another bucket the chains grow instead; that is slower, not wrong.
            let _ = self.split_one(entries);
        }
        Ok(())
    }

    fn add(&mut self, hash: u64, record: Ref) -> Result<(), OutOfMemory> {
        let mut place = Place::Main(self.bucket_of(hash));
        loop {
            let bucket = self.bucket_mut(place);
            if let Some(slot) = bucket.tags.iter().position(|&tag| tag == EMPTY) {
                bucket.tags[slot] = tag_of(hash);
                bucket.refs[slot] = record.0;
                return Ok(());
            }
            if bucket.link == NO_LINK {
                let link = self.take_overflow()?;
                self.bucket_mut(place).link = link;
                place = Place::Overflow(link);
            } else {
                place = Place::Overflow(bucket.link);
            }
        }
    }

    fn take_overflow(&mut self) -> Result<u32, OutOfMemory> {
        if self.free_overflow != NO_LINK {
            let at = self.free_overflow;
            self.free_overflow = core::mem::replace(&mut self.overflow[at as usize].link, NO_LINK);
            return Ok(at);
        }
        self.overflow.push(Bucket::VACANT)?;
        Ok(self.overflow.len() as u32 - 1)
    }

    /// Makes the buckets that so many entries need, while there are no entries yet.
    pub fn reserve(&mut self, entries: usize) -> Result<(), OutOfMemory> {
        assert!(self.len == 0, "buckets with entries are split one by one");
        while self.buckets.len() < INITIAL_BUCKETS.max(entries.div_ceil(GROW_ABOVE)) {
            self.buckets.push(Bucket::VACANT)?;
            self.level = self.buckets.len().ilog2();
            self.split = self.buckets.len() - (1 << self.level);
        }
        Ok(())
    }

    /// Looks at the buckets of some hashes, one independently of the other, so that the processor fetches them all at a
    /// time; who then uses them one by one need not wait for each.
    pub fn fetch(&self, hashes: &[u64]) {
        if !self.buckets.is_empty() {
            let seen = hashes.iter().fold(0, |seen, &hash| seen ^ self.buckets[self.bucket_of(hash)].tags[0]);
            core::hint::black_box(seen);
        }
    }

    /// The first entry that may be of this hash, as far as its bucket alone tells.
    pub fn likely(&self, hash: u64) -> Option<Ref> {
        let bucket = (!self.buckets.is_empty()).then(|| &self.buckets[self.bucket_of(hash)])?;
        let candidates = bucket.candidates(tag_of(hash));
        (candidates != 0).then(|| Ref(bucket.refs[candidates.trailing_zeros() as usize / 8]))
    }

    /// Puts `new` in the place of `old`, which has the same hash.
    pub fn replace(&mut self, hash: u64, old: Ref, new: Ref) {
        let (place, slot) = self.locate_record(hash, old).expect("only present entries are replaced");
        self.bucket_mut(place).refs[slot] = new.0;
    }

    /// Removes an entry. `entries` has the hash of any other entry.
    #[inline(never)]
    pub fn remove(&mut self, hash: u64, record: Ref, entries: &dyn Entries) -> bool {
        let Some((place, slot)) = self.locate_record(hash, record) else { return false };
        self.bucket_mut(place).tags[slot] = EMPTY;
        self.len -= 1;
        if self.len < self.buckets.len() * SHRINK_BELOW && self.buckets.len() > INITIAL_BUCKETS {
            // Merging may need an overflow bucket; without memory for it the index stays as it is.
            let _ = self.merge_one(entries);
        }
        true
    }

    /// Splits the bucket at `split` into itself and a new last one.
    fn split_one(&mut self, entries: &dyn Entries) -> Result<(), OutOfMemory> {
        let old = self.split;
        let records = self.records_in(old)?;
        entries.fetch(&records);
        self.buckets.push(Bucket::VACANT)?;
        self.clear_chain(old);
        self.split += 1;
        if self.split == 1 << self.level {
            (self.level, self.split) = (self.level + 1, 0);
        }
        for record in records {
            // The chain that was just cleared gave back every overflow bucket that this could need.
            self.add(entries.hash_of(record), record).expect("both halves fit where the whole did");
        }
        Ok(())
    }

    /// Merges the last bucket into the one that it was split from.
    fn merge_one(&mut self, entries: &dyn Entries) -> Result<(), OutOfMemory> {
        let last = self.buckets.len() - 1;
        let records = self.records_in(last)?;
        entries.fetch(&records);
        // Room for all of them in the buddy's chain must be there before anything is changed.
        let mut spare = NO_LINK;
        for _ in 0..records.len().div_ceil(SLOTS) {
            match self.take_overflow() {
                Ok(at) => {
                    self.overflow[at as usize].link = spare;
                    spare = at;
                }
                Err(error) => {
                    self.release_overflow(spare);
                    return Err(error);
                }
            }
        }
        self.release_overflow(spare);
        self.clear_chain(last);
        self.buckets.pop();
        if self.split == 0 {
            self.level -= 1;
            self.split = 1 << self.level;
        }
        self.split -= 1;
        for record in records {
            self.add(entries.hash_of(record), record).expect("overflow buckets were set aside");
        }
        Ok(())
    }

    /// Empties a bucket and frees its overflow buckets.
    fn clear_chain(&mut self, bucket: usize) {
        let link = self.buckets[bucket].link;
        self.buckets[bucket] = Bucket::VACANT;
        self.release_overflow(link);
    }

    fn release_overflow(&mut self, mut link: u32) {
        while link != NO_LINK {
            let next = core::mem::replace(&mut self.overflow[link as usize], Bucket::VACANT).link;
            self.overflow[link as usize].link = self.free_overflow;
            self.free_overflow = link;
            link = next;
        }
    }

    fn records_in(&self, bucket: usize) -> Result<Vec<Ref>, OutOfMemory> {
        let mut count = 0;
        self.for_each_in(bucket, &mut |_| count += 1);
        let mut records = Vec::new();
        records.try_reserve_exact(count)?;
        self.for_each_in(bucket, &mut |record| records.push(record));
        Ok(records)
    }

    fn for_each_in(&self, bucket: usize, visit: &mut dyn FnMut(Ref)) {
        let mut place = Place::Main(bucket);
        loop {
            let bucket = self.bucket(place);
            for (_, record) in bucket.tags.iter().zip(bucket.refs).filter(|(tag, _)| **tag != EMPTY) {
                visit(Ref(record));
            }
            match bucket.link {
                NO_LINK => return,
                link => place = Place::Overflow(link),
            }
        }
    }

    /// Visits one bucket at `cursor` and returns the cursor that continues, which is 0 at the end.
    #[inline(never)]
    pub fn scan(&self, cursor: u64, visit: &mut dyn FnMut(Ref)) -> u64 {
        if self.len == 0 {
            return 0;
        }
        let is_split = (cursor as usize & ((1 << self.level) - 1)) < self.split;
        let mask = (1u64 << (self.level + u32::from(is_split))) - 1;
        self.for_each_in((cursor & mask) as usize, visit);
        // Count up in bit-reversed order; bits above the mask are set first, so that the carry passes them.
        (cursor | !mask).reverse_bits().wrapping_add(1).reverse_bits()
    }

    /// A random entry, each as likely as any other.
    pub fn random(&self, rng: &mut fastrand::Rng) -> Option<Ref> {
        /// More entries than a bucket and its overflow ever have, but for a hash that fails.
        const PLACES: usize = 4 * SLOTS;
        if self.len == 0 {
            return None;
        }
        loop {
            // A random place of a random bucket: a full bucket is hit as often as an empty one, and its entries are as
            // likely as those of any other one.
            let bucket = rng.usize(..self.buckets.len());
            let mut count = 0;
            self.for_each_in(bucket, &mut |_| count += 1);
            let mut place = rng.usize(..PLACES.max(count));
            if place < count {
                let mut chosen = None;
                self.for_each_in(bucket, &mut |record| {
                    if place == 0 {
                        chosen = Some(record);
                    }
                    place = place.wrapping_sub(1);
                });
                return chosen;
            }
        }
    }

    /// Visits about `count` entries of neighbouring buckets, from a random one on: quicker than as many random ones, and
    /// as good to judge all entries by. Gives up where there are only empty buckets.
    pub fn sample(&self, count: usize, rng: &mut fastrand::Rng, mut visit: impl FnMut(Ref)) {
        const BUCKETS_PER_ENTRY: usize = 10;
        if self.len == 0 {
            return;
        }
        let first = rng.usize(..self.buckets.len());
        let mut visited = 0;
        for at in 0..self.buckets.len().min(count.saturating_mul(BUCKETS_PER_ENTRY)) {
            // Whole buckets: the last entry of a full one must not be harder to find than the others.
            self.for_each_in((first + at) % self.buckets.len(), &mut |record| {
                visit(record);
                visited += 1;
            });
            if visited >= count {
                return;
            }
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Ref> {
        (0..self.buckets.len()).flat_map(move |bucket| {
            let mut next = Some(Place::Main(bucket));
            let chain = core::iter::from_fn(move || {
                let bucket = self.bucket(next?);
                next = (bucket.link != NO_LINK).then_some(Place::Overflow(bucket.link));
                Some(bucket)
            });
            chain.flat_map(|bucket| {
                bucket.tags.iter().zip(bucket.refs).filter(|(tag, _)| **tag != EMPTY).map(|(_, record)| Ref(record))
            })
        })
    }

    /// Drops many buckets, without a look at their entries, which must need no freeing. Like
    /// [`drop_bucket`](Self::drop_bucket), it is the beginning of the end. Returns whether there were any.
    pub fn drop_segment(&mut self) -> bool {
        self.len = 0;
        self.buckets.drop_segment() || self.overflow.drop_segment()
    }

    /// Removes the last bucket with all its entries, without a thought for the others: an index that is being taken down
    /// can do nothing else any more. Returns whether there was one.
    pub fn drop_bucket(&mut self, visit: &mut dyn FnMut(Ref)) -> bool {
        let Some(last) = self.buckets.len().checked_sub(1) else { return false };
        self.for_each_in(last, visit);
        self.buckets.pop();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};

    impl<F: Fn(Ref) -> u64> Entries for F {
        fn hash_of(&self, record: Ref) -> u64 {
            self(record)
        }

        fn fetch(&self, _: &[Ref]) {}
    }

    /// A hash that is easy to invert, so that references alone make a test's records.
    fn hash_of(record: Ref) -> u64 {
        (u64::from(record.0) + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    fn find(index: &Index, record: u32) -> bool {
        index.find(hash_of(Ref(record)), |r| r.0 == record).is_some()
    }

    #[test]
    fn behaves_like_a_set_while_it_grows_and_shrinks() {
        let mut index = Index::new();
        let mut model = BTreeSet::new();
        let mut rng = fastrand::Rng::with_seed(2);
        for step in 0..300_000u32 {
            let record = rng.u32(..40_000);
            let growing = (step / 50_000) % 2 == 0;
            if rng.u8(..) < if growing { 200 } else { 50 } {
                if model.insert(record) {
                    index.insert(hash_of(Ref(record)), Ref(record), &hash_of).unwrap();
                }
            } else {
                assert_eq!(model.remove(&record), index.remove(hash_of(Ref(record)), Ref(record), &hash_of));
            }
            assert_eq!(index.len(), model.len());
        }
        assert!((0..40_000).all(|r| find(&index, r) == model.contains(&r)));
        for record in model {
            assert!(index.remove(hash_of(Ref(record)), Ref(record), &hash_of));
        }
        assert_eq!((index.len(), index.buckets()), (0, INITIAL_BUCKETS));
    }

    #[test]
    fn candidates_are_found_and_never_empty() {
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..100_000 {
            let mut bucket = Bucket::VACANT;
            for tag in &mut bucket.tags {
                *tag = if rng.bool() { 0x80 | rng.u8(..4) } else { EMPTY };
            }
            let tag = 0x80 | rng.u8(..4);
            let candidates = bucket.candidates(tag);
            assert_eq!(candidates >> (8 * SLOTS), 0);
            for (slot, &other) in bucket.tags.iter().enumerate() {
                match candidates >> (8 * slot) & 0xff {
                    0 => assert_ne!(other, tag),
                    0x80 => assert!(other == tag || other == tag ^ 1),
                    bits => panic!("{bits:x}"),
                }
            }
        }
    }

    #[test]
    fn an_index_that_was_reserved_is_like_one_that_has_grown() {
        for entries in [0, 1, 31, 33, 1000, 40_000] {
            let (mut reserved, mut grown) = (Index::new(), Index::new());
            reserved.reserve(entries as usize).unwrap();
            let buckets = reserved.buckets();
            for record in 0..entries {
                reserved.fetch(&[hash_of(Ref(record))]);
                reserved.insert(hash_of(Ref(record)), Ref(record), &hash_of).unwrap();
                grown.insert(hash_of(Ref(record)), Ref(record), &hash_of).unwrap();
            }
            assert_eq!(reserved.buckets(), buckets, "no bucket was split");
            assert_eq!((reserved.level, reserved.split), (reserved.buckets().ilog2(), buckets - (1 << reserved.level)));
            assert!(
                grown.buckets().max(INITIAL_BUCKETS) <= buckets && buckets <= grown.buckets().max(INITIAL_BUCKETS) + 1
            );
            assert!((0..entries).all(|record| find(&reserved, record)));
            let likely = |record: &u32| reserved.likely(hash_of(Ref(*record))) == Some(Ref(*record));
            assert!((0..entries).filter(likely).count() >= entries as usize / 2);
            assert!((0..entries).all(|record| reserved.remove(hash_of(Ref(record)), Ref(record), &hash_of)));
            assert_eq!(reserved.buckets(), INITIAL_BUCKETS);
        }
    }

    #[test]
    fn equal_hashes_chain() {
        let mut index = Index::new();
        for record in 0..500 {
            index.insert(42, Ref(record), &|_: Ref| 42).unwrap();
        }
        assert!((0..500).all(|record| index.find(42, |r| r.0 == record).is_some()));
        assert!((0..500).all(|record| index.remove(42, Ref(record), &|_: Ref| 42)));
        assert_eq!(index.len(), 0);
    }

    /// Whatever is in the index during the whole scan is visited, although other entries come and go meanwhile.
    #[test]
    fn scan_visits_all_that_stays() {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut index = Index::new();
            let stays = rng.u32(1..3000);
            for record in 0..stays {
                index.insert(hash_of(Ref(record)), Ref(record), &hash_of).unwrap();
            }
            let mut passing: Vec<u32> = Vec::new();
            let mut fresh = 1_000_000;
            let mut visits: BTreeMap<u32, u32> = BTreeMap::new();
            let mut cursor = 0;
            let mut tendency = 128;
            loop {
                cursor = index.scan(cursor, &mut |r| *visits.entry(r.0).or_default() += 1);
                if cursor == 0 {
                    break;
                }
                if rng.u8(..) < 8 {
                    tendency = rng.u8(..);
                }
                for _ in 0..rng.u32(..60) {
                    if rng.u8(..) < tendency {
                        index.insert(hash_of(Ref(fresh)), Ref(fresh), &hash_of).unwrap();
                        passing.push(fresh);
                        fresh += 1;
                    } else if !passing.is_empty() {
                        let record = passing.swap_remove(rng.usize(..passing.len()));
                        assert!(index.remove(hash_of(Ref(record)), Ref(record), &hash_of));
                    }
                }
                if passing.len() > 20_000 {
                    tendency = 0;
                }
            }
            assert!((0..stays).all(|record| visits.contains_key(&record)), "seed {seed}");
        }
    }

    #[test]
    fn random_reaches_every_entry() {
        let mut index = Index::new();
        for record in 0..100 {
            index.insert(hash_of(Ref(record)), Ref(record), &hash_of).unwrap();
        }
        let mut rng = fastrand::Rng::with_seed(3);
        let seen: BTreeSet<u32> = (0..20_000).map(|_| index.random(&mut rng).unwrap().0).collect();
        assert_eq!(seen.len(), 100);
    }
}
