//! Sorted sets: members with scores, ordered by score and then by name.

use crate::{
    Collection, Db, Encoding, Found, Kind, OutOfMemory, Packed, PackedLimits, PackedRef, Records, Value,
    ordered::{Direction, Item, Tree},
    packed::Offset,
    record::Stored,
    slab::Ref,
    table::{Copying, Table},
    value::Data,
};
use alloc::boxed::Box;
use core::{
    cmp::Ordering,
    ops::{Bound, ControlFlow, Range},
};

/// A sorted set to change.
pub enum SortedSet {
    /// Members and scores in turn, in order.
    Packed(Packed),
    #[allow(missing_docs)]
    Table(Box<ScoreTable>),
}

/// A sorted set to read.
#[derive(Clone, Copy)]
pub enum SortedSetView<'a> {
    #[allow(missing_docs)]
    Packed(PackedRef<'a>),
    #[allow(missing_docs)]
    Table(&'a ScoreTable, &'a Records),
}

/// Members by name, and in the order of a number: those of a large sorted set, each with its score, or the fields of a hash,
/// of which only those are in order that expire, by when they do.
pub struct ScoreTable {
    pub(crate) table: Table,
    pub(crate) tree: Tree<Entry>,
}

/// A member in order, in 12 bytes.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(crate) struct Entry {
    pub score: f64,
    pub record: u32,
}

impl Item for Entry {
    type Key = Entry;
    fn key(&self) -> Entry {
        *self
    }
}

/// One end of a range of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// Before every name.
    Least,
    /// Behind every name.
    Greatest,
    #[allow(missing_docs)]
    Included(&'a [u8]),
    #[allow(missing_docs)]
    Excluded(&'a [u8]),
}

/// What [`SortedSet::update`] has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The member's score before.
    pub old: Option<f64>,
    /// The score that was decided on.
    pub new: Option<f64>,
}

const SCORE_BYTES: usize = size_of::<f64>();

/// A score in as few bytes as hold it: integers in 1, 2 or 4. Zero has no sign then, as in Redis' listpacks.
fn score_text(score: f64, text: &mut [u8; SCORE_BYTES]) -> &[u8] {
    let integer = score as i32;
    if f64::from(integer) != score {
        *text = score.to_le_bytes();
        return text;
    }
    text[..4].copy_from_slice(&integer.to_le_bytes());
    match integer {
        -0x80..=0x7f => &text[..1],
        -0x8000..=0x7fff => &text[..2],
        _ => &text[..4],
    }
}

fn read_score(text: &[u8]) -> f64 {
    match *text {
        [a] => f64::from(a as i8),
        [a, b] => f64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => f64::from(i32::from_le_bytes([a, b, c, d])),
        _ => f64::from_le_bytes(text.try_into().expect("a score has no other length")),
    }
}

fn compare_scores(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).expect("no score is not a number")
}

/// How the member at `entry` compares to one with this score, name and record.
fn compare(records: &Records, entry: Entry, score: f64, member: &[u8], record: Ref) -> Ordering {
    compare_scores(entry.score, score).then_with(|| match entry.record == record.0 {
        true => Ordering::Equal,
        false => records.key(Ref(entry.record)).cmp(member),
    })
}

/// Puts a member in its order.
#[inline(never)]
pub(crate) fn link(tree: &mut Tree<Entry>, records: &Records, new: Entry, member: &[u8]) -> Result<(), OutOfMemory> {
    tree.insert(new, |entry| compare(records, entry, new.score, member, Ref(new.record)))
}

/// Takes a member, whose record may be gone, out of its order.
#[inline(never)]
pub(crate) fn unlink(tree: &mut Tree<Entry>, records: &Records, old: Entry, member: &[u8]) {
    tree.remove(|entry| compare(records, entry, old.score, member, Ref(old.record)));
}

fn score_of(records: &Records, record: Ref) -> f64 {
    match records.value(record) {
        Value::Bytes(bytes) => f64::from_le_bytes(bytes.try_into().expect("a score has 8 bytes")),
        Value::Integer(_) => unreachable!("scores are stored as bytes"),
    }
}

/// The pair at a place of a packed sorted set, and where the next one begins.
fn pair(packed: PackedRef<'_>, at: Offset) -> Option<(&[u8], f64, Offset)> {
    let (member, score) = packed.entry(at)?;
    let (score, next) = packed.entry(score)?;
    Some((member, read_score(score), next))
}

/// Where a member lies in a packed sorted set, and its score.
fn find_pair(packed: PackedRef<'_>, member: &[u8]) -> Option<(Offset, f64)> {
    let at = packed.find(member, 2)?;
    pair(packed, at).map(|(_, score, _)| (at, score))
}

/// Where a member with this score belongs in a packed sorted set.
fn place_of(packed: PackedRef<'_>, member: &[u8], score: f64) -> Offset {
    let mut at = packed.start();
    while let Some((other, other_score, next)) = pair(packed, at)
        && compare_scores(other_score, score).then_with(|| other.cmp(member)) == Ordering::Less
    {
        at = next;
    }
    at
}

impl Default for SortedSet {
    fn default() -> SortedSet {
        SortedSet::Packed(Packed::new())
    }
}

impl Collection for SortedSet {
    const KIND: Kind = Kind::SortedSet;

    fn from_packed(packed: Packed) -> SortedSet {
        SortedSet::Packed(packed)
    }

    fn from_data(data: Data) -> SortedSet {
        match data {
            Data::SortedSet(table) => SortedSet::Table(table),
            _ => unreachable!("the record says that it is a sorted set"),
        }
    }

    fn into_data(self) -> Data {
        match self {
            SortedSet::Packed(packed) => Data::Bytes(packed.into_vec()),
            SortedSet::Table(table) => Data::SortedSet(table),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            SortedSet::Packed(packed) => packed.is_empty(),
            SortedSet::Table(table) => table.tree.len() == 0,
        }
    }
}

impl SortedSet {
    /// To read it.
    pub fn view<'a>(&'a self, records: &'a Records) -> SortedSetView<'a> {
        match self {
            SortedSet::Packed(packed) => SortedSetView::Packed(packed.as_ref()),
            SortedSet::Table(table) => SortedSetView::Table(table, records),
        }
    }

    /// Gives a member the score that `decide` makes of the one that it has, if any; without one it stays as it is.
    pub fn update(
        &mut self,
        records: &mut Records,
        member: &[u8],
        limits: PackedLimits,
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> Result<Update, OutOfMemory> {
        if let SortedSet::Packed(packed) = self {
            let found = find_pair(packed.as_ref(), member);
            let old = found.map(|(_, score)| score);
            let new = decide(old);
            let Some(score) = new.filter(|&new| old != Some(new)) else { return Ok(Update { old, new }) };
            if old.is_some() || packed.len() / 2 < limits.entries && member.len() <= limits.entry_bytes {
                insert_packed(packed, member, score, old)?;
            } else {
                self.unpack(records)?.insert(records, records.hash(member), member, score)?;
            }
            return Ok(Update { old, new });
        }
        match self {
            SortedSet::Table(table) => table.update(records, member, decide),
            SortedSet::Packed(_) => unreachable!("it was handled"),
        }
    }

    /// Gives a member a score.
    pub fn set(
        &mut self,
        records: &mut Records,
        member: &[u8],
        score: f64,
        limits: PackedLimits,
    ) -> Result<(), OutOfMemory> {
        self.update(records, member, limits, |_| Some(score)).map(|_| ())
    }

    /// Removes a member. Returns whether it was there.
    pub fn remove(&mut self, records: &mut Records, member: &[u8]) -> bool {
        match self {
            SortedSet::Packed(packed) => {
                let at = packed.as_ref().find(member, 2);
                at.into_iter().for_each(|at| packed.remove(at, 2));
                at.is_some()
            }
            SortedSet::Table(table) => table.remove(records, member),
        }
    }

    /// Removes the members of these ranks.
    pub fn remove_range(&mut self, records: &mut Records, range: Range<usize>) {
        match self {
            SortedSet::Packed(packed) => {
                let at = packed.as_ref().offset_of(range.start * 2);
                at.into_iter().for_each(|at| packed.remove(at, range.len() * 2));
            }
            SortedSet::Table(table) => {
                for _ in range.clone() {
                    let Some(&entry) = table.tree.get(range.start) else { return };
                    table.remove_entry(records, entry);
                }
            }
        }
    }

    /// Puts it in the form of a large one.
    /// Gives up the compact form.
    pub fn make_large(&mut self, records: &mut Records) -> Result<(), OutOfMemory> {
        self.unpack(records).map(|_| ())
    }

    fn unpack(&mut self, records: &mut Records) -> Result<&mut ScoreTable, OutOfMemory> {
        if let SortedSet::Packed(packed) = self {
            let mut table = ScoreTable { table: Table::new(), tree: Tree::new() };
            let mut at = packed.as_ref().start();
            while let Some((member, score, next)) = pair(packed.as_ref(), at) {
                if let Err(error) = table.insert(records, records.hash(member), member, score) {
                    table.free(records, usize::MAX);
                    return Err(error);
                }
                at = next;
            }
            *self = SortedSet::Table(Box::new(table));
        }
        match self {
            SortedSet::Table(table) => Ok(table),
            SortedSet::Packed(_) => unreachable!("it was unpacked"),
        }
    }
}

/// Gives a member of a packed sorted set a score that differs from its old one.
fn insert_packed(packed: &mut Packed, member: &[u8], score: f64, old: Option<f64>) -> Result<(), OutOfMemory> {
    let mut text = [0; SCORE_BYTES];
    let text = score_text(score, &mut text);
    // The old one goes when the new one is there, so that nothing is lost for want of memory.
    packed.splice(place_of(packed.as_ref(), member, score), 0, &[member, text])?;
    if let Some(old) = old {
        let mut at = packed.as_ref().start();
        while let Some((other, other_score, next)) = pair(packed.as_ref(), at) {
            if other == member && other_score == old {
                packed.remove(at, 2);
                break;
            }
            at = next;
        }
    }
    Ok(())
}

impl ScoreTable {
    fn update(
        &mut self,
        records: &mut Records,
        member: &[u8],
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> Result<Update, OutOfMemory> {
        let hash = records.hash(member);
        let Some(record) = self.table.find_hashed(records, hash, member) else {
            let new = decide(None);
            if let Some(score) = new {
                self.insert(records, hash, member, score)?;
            }
            return Ok(Update { old: None, new });
        };
        let old = score_of(records, record);
        let new = decide(Some(old));
        if let Some(score) = new.filter(|&new| new != old) {
            let entry = |score| Entry { score, record: record.0 };
            link(&mut self.tree, records, entry(score), member)?;
            unlink(&mut self.tree, records, entry(old), member);
            records.bytes_mut(record).copy_from_slice(&score.to_le_bytes());
        }
        Ok(Update { old: Some(old), new })
    }

    /// Adds a member that is not there yet.
    fn insert(&mut self, records: &mut Records, hash: u64, member: &[u8], score: f64) -> Result<(), OutOfMemory> {
        let record = records.create_bytes(member, Kind::String, &score.to_le_bytes(), None, 0)?;
        let entry = Entry { score, record: record.0 };
        let inserted = self.table.add(records, hash, record).and_then(|()| {
            let inserted = link(&mut self.tree, records, entry, member);
            inserted.inspect_err(|_| _ = self.table.take(records, member))
        });
        inserted.inspect_err(|_| records.free(record))
    }

    fn remove(&mut self, records: &mut Records, member: &[u8]) -> bool {
        let Some(record) = self.table.take(records, member) else { return false };
        let entry = Entry { score: score_of(records, record), record: record.0 };
        unlink(&mut self.tree, records, entry, member);
        records.free(record);
        true
    }

    fn remove_entry(&mut self, records: &mut Records, entry: Entry) {
        let record = Ref(entry.record);
        let member = records.key(record);
        unlink(&mut self.tree, records, entry, member);
        self.table.take(records, member);
        records.free(record);
    }

    /// Bytes of the order, of the index and of all members.
    pub fn bytes(&self, records: &Records) -> usize {
        size_of::<ScoreTable>() + self.tree.bytes() + self.table.bytes(records)
    }

    /// Frees about `limit` members, as [`Table::free`] does.
    pub fn free(&mut self, records: &mut Records, limit: usize) -> Option<usize> {
        let left = self.tree.drain(limit, |_| ())?;
        self.table.free(records, left)
    }

    /// A copy with copies of all members.
    pub fn copy(&self, copying: &mut Copying<'_>) -> Result<ScoreTable, OutOfMemory> {
        let mut copy = ScoreTable { table: Table::new(), tree: Tree::new() };
        let mut result = Ok(());
        self.tree.visit(0, Direction::Forward, |entry| {
            result = copy.push_copy(copying, entry);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if result.is_err() {
            copy.free(copying.to(), usize::MAX);
        }
        result.map(|()| copy)
    }

    fn push_copy(&mut self, copying: &mut Copying<'_>, entry: &Entry) -> Result<(), OutOfMemory> {
        let record = copying.record(Ref(entry.record))?;
        let records = copying.to();
        let hash = records.hash_of(record);
        self.table.add(records, hash, record).inspect_err(|_| records.free(record))?;
        self.tree.push_back(Entry { score: entry.score, record: record.0 })
    }
}

/// A member's name, which is looked up only where it matters.
enum Name<'a> {
    Text(&'a [u8]),
    Record(&'a Records, u32),
}

impl<'a> Name<'a> {
    fn get(self) -> &'a [u8] {
        match self {
            Name::Text(text) => text,
            Name::Record(records, record) => records.key(Ref(record)),
        }
    }
}

impl<'a> SortedSetView<'a> {
    /// Number of members.
    pub fn len(self) -> usize {
        match self {
            SortedSetView::Packed(packed) => packed.len() / 2,
            SortedSetView::Table(table, _) => table.table.len(),
        }
    }

    /// Whether there is none, which no key's sorted set ever is.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// A member's score.
    pub fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            SortedSetView::Packed(packed) => find_pair(packed, member).map(|(_, score)| score),
            SortedSetView::Table(table, records) => {
                table.table.find(records, member).map(|record| score_of(records, record))
            }
        }
    }

    /// How many members come before this one, and its score.
    pub fn rank(self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            SortedSetView::Packed(packed) => {
                let mut at = packed.start();
                let mut rank = 0;
                while let Some((other, score, next)) = pair(packed, at) {
                    if other == member {
                        return Some((rank, score));
                    }
                    (rank, at) = (rank + 1, next);
                }
                None
            }
            SortedSetView::Table(table, records) => {
                let record = table.table.find(records, member)?;
                let score = score_of(records, record);
                let is_before = |entry| compare(records, entry, score, member, record) == Ordering::Less;
                Some((table.tree.rank(is_before), score))
            }
        }
    }

    /// The member that has `rank` others before it.
    pub fn get(self, rank: usize) -> Option<(&'a [u8], f64)> {
        let mut found = None;
        self.for_each(rank..rank.saturating_add(1), Direction::Forward, |member, score| found = Some((member, score)));
        found
    }

    /// Number of members before a place.
    fn count_before(self, is_before: impl Fn(f64, Name<'a>) -> bool) -> usize {
        match self {
            SortedSetView::Packed(packed) => {
                let mut at = packed.start();
                let mut count = 0;
                while let Some((member, score, next)) = pair(packed, at)
                    && is_before(score, Name::Text(member))
                {
                    (count, at) = (count + 1, next);
                }
                count
            }
            SortedSetView::Table(table, records) => {
                table.tree.rank(|entry| is_before(entry.score, Name::Record(records, entry.record)))
            }
        }
    }

    /// The ranks of the members with scores in a range.
    pub fn score_range(self, min: Bound<f64>, max: Bound<f64>) -> Range<usize> {
        let start = self.count_before(|score, _| match min {
            Bound::Included(min) => score < min,
            Bound::Excluded(min) => score <= min,
            Bound::Unbounded => false,
        });
        let end = self.count_before(|score, _| match max {
            Bound::Included(max) => score <= max,
            Bound::Excluded(max) => score < max,
            Bound::Unbounded => true,
        });
        start..end.max(start)
    }

    /// Whether all members have the same score.
    pub fn has_one_score(self) -> bool {
        let score = |rank| self.get(rank).map(|(_, score)| score);
        score(0) == score(self.len().saturating_sub(1))
    }

    /// The ranks of the members with names in a range, if all have the same score. Otherwise it depends on the members alone,
    /// and not on how they are stored, so that a copy finds the same.
    pub fn lex_range(self, min: LexBound<'_>, max: LexBound<'_>) -> Range<usize> {
        let has_one_score = self.has_one_score();
        let rank = |is_before: &dyn Fn(Name<'a>) -> bool| match has_one_score {
            true => self.count_before(|_, name| is_before(name)),
            false => self.search(is_before),
        };
        let start = rank(&|name| match min {
            LexBound::Least => false,
            LexBound::Greatest => true,
            LexBound::Included(min) => name.get() < min,
            LexBound::Excluded(min) => name.get() <= min,
        });
        let end = rank(&|name| match max {
            LexBound::Least => false,
            LexBound::Greatest => true,
            LexBound::Included(max) => name.get() <= max,
            LexBound::Excluded(max) => name.get() < max,
        });
        start..end.max(start)
    }

    /// What a binary search finds among members that may be in another order.
    #[cold]
    fn search(self, is_before: &dyn Fn(Name<'a>) -> bool) -> usize {
        let (mut start, mut end) = (0, self.len());
        while start < end {
            let middle = start.midpoint(end);
            match self.get(middle) {
                Some((member, _)) if is_before(Name::Text(member)) => start = middle + 1,
                _ => end = middle,
            }
        }
        start
    }

    /// Calls `visit` with the members of these ranks, from the lowest or from the highest one on.
    pub fn for_each(self, ranks: Range<usize>, direction: Direction, mut visit: impl FnMut(&'a [u8], f64)) {
        self.try_for_each(ranks, direction, |member, score| {
            visit(member, score);
            ControlFlow::Continue(())
        });
    }

    /// The same until `visit` breaks.
    pub fn try_for_each(
        self,
        ranks: Range<usize>,
        direction: Direction,
        mut visit: impl FnMut(&'a [u8], f64) -> ControlFlow<()>,
    ) {
        let ranks = ranks.start..ranks.end.min(self.len());
        if ranks.is_empty() {
            return;
        }
        match (self, direction) {
            (SortedSetView::Packed(packed), Direction::Forward) => {
                let mut at = packed.offset_of(ranks.start * 2);
                for _ in ranks {
                    let Some((member, score, next)) = at.and_then(|at| pair(packed, at)) else { return };
                    if visit(member, score).is_break() {
                        return;
                    }
                    at = Some(next);
                }
            }
            (SortedSetView::Packed(packed), Direction::Backward) => {
                let mut at = packed.offset_of(ranks.end * 2).unwrap_or(packed.end());
                for _ in ranks {
                    let before = packed.before(at).and_then(|score| packed.before(score));
                    let Some((member, score, _)) = before.and_then(|at| pair(packed, at)) else { return };
                    if visit(member, score).is_break() {
                        return;
                    }
                    at = before.expect("it was there");
                }
            }
            (SortedSetView::Table(table, records), direction) => {
                let skipped = match direction {
                    Direction::Forward => ranks.start,
                    Direction::Backward => self.len() - ranks.end,
                };
                let mut left = ranks.len();
                table.tree.visit(skipped, direction, |entry| {
                    left -= 1;
                    let flow = visit(records.key(Ref(entry.record)), entry.score);
                    if left > 0 { flow } else { ControlFlow::Break(()) }
                });
            }
        }
    }

    /// Calls `visit` with all members in order.
    pub fn for_all(self, visit: impl FnMut(&'a [u8], f64)) {
        self.for_each(0..self.len(), Direction::Forward, visit);
    }

    /// Visits some members at `cursor` (0 to begin) and returns the cursor that continues; 0 is the end. A member that is
    /// there from the beginning to the end is visited at least once.
    pub fn scan(self, cursor: u64, mut visit: impl FnMut(&'a [u8], f64)) -> u64 {
        match self {
            SortedSetView::Packed(_) => {
                self.for_all(visit);
                0
            }
            SortedSetView::Table(table, records) => {
                table.table.scan(cursor, &mut |record| visit(records.key(record), score_of(records, record)))
            }
        }
    }

    /// How it is stored.
    pub fn encoding(self) -> Encoding {
        match self {
            SortedSetView::Packed(_) => Encoding::Listpack,
            SortedSetView::Table(..) => Encoding::Skiplist,
        }
    }
}

impl Db {
    /// The sorted set at a key that has one.
    pub fn sorted_set(&self, found: Found) -> SortedSetView<'_> {
        assert_eq!(self.kind(found), Kind::SortedSet);
        match self.records.stored(found.record) {
            Stored::Bytes(bytes) => SortedSetView::Packed(PackedRef::new(bytes)),
            Stored::Data(Data::SortedSet(table)) => SortedSetView::Table(table, &self.records),
            _ => unreachable!("the record says that it is a sorted set"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expiry, HashKey};
    use alloc::{collections::BTreeMap, format, vec, vec::Vec};

    type Model = BTreeMap<Vec<u8>, f64>;

    fn in_order(model: &Model) -> Vec<(Vec<u8>, f64)> {
        let mut pairs: Vec<_> = model.iter().map(|(member, &score)| (member.clone(), score)).collect();
        pairs.sort_by(|a, b| compare_scores(a.1, b.1).then_with(|| a.0.cmp(&b.0)));
        pairs
    }

    fn random_score(rng: &mut fastrand::Rng) -> f64 {
        match rng.u8(..6) {
            0 => *rng.choice(&[f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e300, 0.1, 5e-324]).unwrap(),
            1 => f64::from(rng.i32(-100_000..100_000)),
            2 => rng.f64() * 1000.0,
            _ => f64::from(rng.i8(-5..5)),
        }
    }

    fn check(db: &Db, model: &Model, rng: &mut fastrand::Rng, context: (u64, u32)) {
        let found = Found { record: db.lookup(b"k").1.unwrap(), hash: db.lookup(b"k").0 };
        let view = db.sorted_set(found);
        let expected = in_order(model);
        let collect = |range: Range<usize>, direction| {
            let mut seen: Vec<(Vec<u8>, f64)> = Vec::new();
            view.for_each(range, direction, |member, score| seen.push((member.to_vec(), score)));
            seen
        };
        assert_eq!(collect(0..view.len(), Direction::Forward), expected, "{context:?}");
        let (a, b) = (rng.usize(..=expected.len()), rng.usize(..=expected.len()));
        let range = a.min(b)..a.max(b);
        let backward: Vec<_> = expected[range.clone()].iter().rev().cloned().collect();
        assert_eq!(collect(range, Direction::Backward), backward, "{context:?}");
        let (min, max) = (random_score(rng), random_score(rng));
        let is_in = |score: f64| score >= min && score < max;
        let range = view.score_range(Bound::Included(min), Bound::Excluded(max));
        assert_eq!(range.len(), expected.iter().filter(|pair| is_in(pair.1)).count(), "{context:?}");
        assert!(expected[range].iter().all(|pair| is_in(pair.1)), "{context:?}");
        for (rank, (member, score)) in expected.iter().enumerate().step_by(7) {
            assert_eq!(view.rank(member), Some((rank, *score)), "{context:?}");
            assert_eq!(view.get(rank), Some((&member[..], *score)), "{context:?}");
        }
        let mut scanned = Vec::new();
        let mut cursor = 0;
        loop {
            cursor = view.scan(cursor, |member, score| scanned.push((member.to_vec(), score)));
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(in_order(&scanned.into_iter().collect()), expected, "{context:?}");
    }

    #[test]
    fn behaves_like_a_sorted_map() {
        for seed in 0..30 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut db = Db::new(HashKey(seed, 1));
            let mut model = Model::new();
            let limits = PackedLimits { entries: *rng.choice(&[0, 16, 10_000]).unwrap(), entry_bytes: 64 };
            let names = rng.u32(5..600);
            for step in 0..1500 {
                let context = (seed, step);
                let mut member = format!("member:{}", rng.u32(..names)).into_bytes();
                if rng.u8(..100) == 0 {
                    // Too long for a record.
                    member = vec![member[7]; 600];
                }
                let score = random_score(&mut rng);
                let found = db.find(b"k", 0);
                let shrinking = step % 500 > 350;
                let edit = db.edit(b"k", found, 0, |zset: &mut SortedSet, records| {
                    match rng.u8(..8) {
                        0 => {
                            let old = model.get(&member).copied();
                            let decide =
                                |seen: Option<f64>| seen.map_or(Some(1.0), |old| (old < 3.0).then_some(old + 1.0));
                            let update = zset.update(records, &member, limits, decide)?;
                            assert_eq!((update.old, update.new), (old, decide(old)), "{context:?}");
                            if let Some(new) = update.new {
                                model.insert(member, new);
                            }
                        }
                        1 if !model.is_empty() => {
                            let start = rng.usize(..model.len());
                            let end = (start + rng.usize(..4)).min(model.len());
                            in_order(&model)[start..end].iter().for_each(|pair| _ = model.remove(&pair.0));
                            zset.remove_range(records, start..end);
                        }
                        2..6 if shrinking => {
                            assert_eq!(zset.remove(records, &member), model.remove(&member).is_some(), "{context:?}");
                        }
                        _ => {
                            zset.set(records, &member, score, limits)?;
                            let old = model.get(&member).copied();
                            // A score that compares as equal is left alone.
                            model.insert(member, old.filter(|&old| old == score).unwrap_or(score));
                        }
                    }
                    Ok(())
                });
                assert_eq!(edit.unwrap().is_gone, model.is_empty(), "{context:?}");
                if step % 50 == 0 && !model.is_empty() {
                    check(&db, &model, &mut rng, context);
                    let found = db.find(b"k", 0).unwrap();
                    db.copy(found, b"copy", 0).unwrap();
                    let copy = db.find(b"copy", 0).unwrap();
                    assert_eq!(db.sorted_set(copy).len(), model.len());
                    db.rename(copy, b"k", 0).unwrap();
                    check(&db, &model, &mut rng, context);
                }
            }
            if let Some(found) = db.find(b"k", 0) {
                db.remove(found);
            }
            while db.free_slice(10) {}
            let mut empty = Db::new(HashKey(seed, 1));
            empty.set(b"a", crate::Owned::Text(b"b"), Expiry::Never, 0).unwrap();
            assert!(db.is_empty());
        }
    }

    #[test]
    fn names_in_a_range() {
        let mut db = Db::new(HashKey(1, 2));
        for entries in [128, 2] {
            let limits = PackedLimits { entries, entry_bytes: 64 };
            let zset = db.build(|zset: &mut SortedSet, records| {
                [&b"a"[..], b"b", b"c", b"d"].iter().try_for_each(|name| zset.set(records, name, 0.0, limits))
            });
            db.put(b"k", zset.unwrap(), Expiry::Never, 0).unwrap();
            let found = db.find(b"k", 0).unwrap();
            let range = |min, max| db.sorted_set(found).lex_range(min, max);
            assert_eq!(range(LexBound::Least, LexBound::Greatest), 0..4);
            assert_eq!(range(LexBound::Excluded(b"a"), LexBound::Included(b"c")), 1..3);
            assert_eq!(range(LexBound::Included(b"bb"), LexBound::Excluded(b"d")), 2..3);
            assert!(range(LexBound::Greatest, LexBound::Least).is_empty());
            assert!(range(LexBound::Included(b"c"), LexBound::Included(b"b")).is_empty());
        }
    }

    #[test]
    fn scores_come_back() {
        for score in
            [0.0, -0.0, 1.0, -128.0, 127.0, 128.0, -32768.0, 32768.0, 2147483647.0, 2147483648.0, 0.5, f64::INFINITY]
        {
            let mut text = [0; SCORE_BYTES];
            assert_eq!(read_score(score_text(score, &mut text)), score);
        }
    }

    /// What a large one takes beyond the members' own bytes and their records' headers: order and index.
    #[test]
    fn order_takes_little_memory() {
        const MEMBERS: u32 = 100_000;
        let mut db = Db::new(HashKey(1, 2));
        let limits = PackedLimits { entries: 128, entry_bytes: 64 };
        let mut rng = fastrand::Rng::with_seed(1);
        let zset = db.build(|zset: &mut SortedSet, records| {
            (0..MEMBERS).try_for_each(|_| zset.set(records, &rng.u64(..).to_le_bytes(), rng.f64(), limits))
        });
        match zset.unwrap() {
            SortedSet::Table(table) => assert!(table.tree.bytes() < MEMBERS as usize * 24, "{}", table.tree.bytes()),
            SortedSet::Packed(_) => panic!("it is large"),
        }
    }
}
