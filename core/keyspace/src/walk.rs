//! A walk over all keys while they change: to write each of them down once.
//!
//! A key is marked once it is written. Keys that are made during the walk are born with the mark, so the walk leaves them
//! out. A key that gets another value keeps its mark or its lack of one: whoever changes a key without a mark has to write
//! it down first, and then to mark it.

use crate::{Db, Found, OutOfMemory, Owned, Value, record::Epoch};
use alloc::vec::Vec;

impl Db {
    /// The epoch of the last walk.
    pub fn epoch(&self) -> Epoch {
        self.records.epoch()
    }

    /// Begins a walk: until it has come to its end, the keys that it has not been at have no mark.
    pub fn begin_walk(&mut self, epoch: Epoch) {
        self.records.set_epoch(epoch);
        self.walk_cursor = (!self.is_empty()).then_some(0);
    }

    /// Where the walk goes on, if it has not come to its end.
    pub fn walk_cursor(&self) -> Option<u64> {
        self.walk_cursor
    }

    /// Notes how far the walk has come: what [`unmarked_at`](Self::unmarked_at) has given until then is marked.
    pub fn continue_walk_at(&mut self, cursor: u64) {
        self.walk_cursor = (cursor != 0).then_some(cursor);
    }

    /// Gives up a walk that has not come to its end.
    pub fn abandon_walk(&mut self) {
        self.walk_cursor = None;
    }

    /// Appends the keys without a mark of the bucket at `cursor` to `keys`, and returns the cursor that continues, which
    /// is 0 at the end.
    pub fn unmarked_at(&self, cursor: u64, keys: &mut Vec<Found>) -> Result<u64, OutOfMemory> {
        self.records.fetch_bucket(&self.index, cursor);
        let mut result = Ok(());
        let next = self.index.scan(cursor, &mut |record| {
            if self.records.is_marked(record) || result.is_err() {
                return;
            }
            result = keys.try_reserve(1);
            if result.is_ok() {
                keys.push(Found { record, hash: self.records.hash_of(record) });
            }
        });
        result?;
        Ok(next)
    }

    /// Whether a key has the mark of the present walk. Outside of walks all keys have.
    #[inline]
    pub fn is_marked(&self, found: Found) -> bool {
        self.walk_cursor.is_none() || self.records.is_marked(found.record)
    }

    /// Marks a key.
    #[inline]
    pub fn mark(&mut self, found: Found) {
        self.records.mark(found.record);
    }

    /// Notes that a part of a key's collection is written down, until [`mark`](Self::mark) says that all of it is. What
    /// takes the place of its value inherits that; a key that is made anew does not.
    pub fn mark_partial(&mut self, found: Found) {
        self.records.mark_partial(found.record);
    }

    /// Whether a part of a key's collection is written down, by this walk or by one that was given up.
    #[inline]
    pub fn is_partial(&self, found: Found) -> bool {
        self.records.is_partial(found.record)
    }

    /// Finds a key, whether its time has come or not, and leaves it as it is.
    pub fn find_any(&self, key: &[u8]) -> Option<Found> {
        let (hash, record) = self.lookup(key);
        record.map(|record| Found { record, hash })
    }

    /// What a key remembers of its use, as [`load_strings`](Self::load_strings) takes it.
    pub fn use_field(&self, found: Found) -> u32 {
        self.records.use_field(found.record)
    }

    /// Lets a key remember this of its use.
    pub fn set_use_field(&mut self, found: Found, used: u32) {
        self.records.set_use_field(found.record, used);
    }

    /// Gets ready for so many keys, if there is none yet and memory allows.
    pub fn expect(&mut self, keys: usize) {
        if self.is_empty() {
            // Without that the index grows as they come.
            let _ = self.index.reserve(keys);
        }
    }

    /// Gives keys their strings, as they were written down: a few at a time, so that the places where they will stand are
    /// fetched from memory together.
    pub fn load_strings(&mut self, strings: &[WrittenString<'_>]) -> Result<(), OutOfMemory> {
        let mut hashes = [0; Db::FETCHED_AT_A_TIME];
        for strings in strings.chunks(hashes.len()) {
            for (hash, string) in hashes.iter_mut().zip(strings) {
                *hash = self.records.hash(string.key);
            }
            self.index.fetch(&hashes[..strings.len()]);
            for (&hash, string) in hashes.iter().zip(strings) {
                let old = self.index.find(hash, |record| self.records.key(record) == string.key);
                let value = match string.value {
                    Value::Integer(number) => Owned::Integer(number),
                    Value::Bytes(text) => Owned::Text(text),
                };
                let new = self.records.create(string.key, value, string.expires_ms, string.used)?;
                self.install(hash, old, new)?;
            }
        }
        Ok(())
    }
}

/// A key with its string, as a walk gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenString<'a> {
    /// The key's name.
    pub key: &'a [u8],
    /// What it has.
    pub value: Value<'a>,
    /// When it expires.
    pub expires_ms: Option<u64>,
    /// What is remembered of its use.
    pub used: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expiry, HashKey};
    use alloc::collections::BTreeSet;

    /// A walk gives each key once that was there at its beginning and has not been overwritten or removed before the walk
    /// came to it, however the database grows and shrinks meanwhile.
    #[test]
    fn walks_give_each_old_key_once() {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut db = Db::new(HashKey(seed, 1));
            let mut epoch = Epoch::default();
            for _ in 0..4 {
                for _ in 0..rng.u32(..2000) {
                    let key = rng.u32(..3000).to_le_bytes();
                    let value = alloc::vec![b'x'; rng.usize(..1500)];
                    db.set(&key, Owned::Text(&value), Expiry::Never, 0).unwrap();
                }
                epoch = epoch.next();
                let mut old: BTreeSet<Vec<u8>> = BTreeSet::new();
                (0..3000u32).filter(|key| db.find_any(&key.to_le_bytes()).is_some()).for_each(|key| {
                    old.insert(key.to_le_bytes().to_vec());
                });
                db.begin_walk(epoch);
                let mut given = Vec::new();
                while let Some(cursor) = db.walk_cursor() {
                    given.clear();
                    let next = db.unmarked_at(cursor, &mut given).unwrap();
                    for &found in &given {
                        assert!(!db.is_marked(found));
                        let key = db.key(found).to_vec();
                        assert!(old.remove(&key), "seed {seed}: {key:?} came twice or is new");
                        db.mark(found);
                    }
                    db.continue_walk_at(next);
                    for _ in 0..rng.u32(..40) {
                        let key = rng.u32(..3000).to_le_bytes();
                        match (rng.u8(..3), db.find_any(&key)) {
                            (0, Some(found)) => {
                                db.remove(found);
                                old.remove(&key[..]);
                            }
                            (1, Some(found)) => {
                                // Whoever changes a key has written it down before.
                                old.remove(&key[..]);
                                db.mark(found);
                                db.set_expires_ms(found, Some(1 << 40)).unwrap();
                            }
                            (1, None) => {}
                            (2, Some(found)) if rng.bool() => {
                                db.mark(found);
                                old.remove(&key[..]);
                            }
                            // What is only overwritten without that is still given.
                            _ => db.set(&key, Owned::Integer(rng.i64(..)), Expiry::Never, 0).unwrap(),
                        }
                    }
                }
                assert!(old.is_empty(), "seed {seed}: not visited: {old:?}");
            }
        }
    }
}
