//! Hashes: fields with values.

use crate::{
    Collection, Db, Encoding, Found, Kind, OutOfMemory, Owned, Packed, PackedLimits, PackedRef, Records, Value,
    record::Stored,
    slab::Ref,
    table::{Table, member},
    value::Data,
    zset::ScoreTable,
};
use alloc::boxed::Box;

/// A hash to change.
pub enum Hash {
    /// Fields and values in turn, in the order of insertion.
    Packed(Packed),
    /// Fields as members, with their values.
    Table(Box<Table>),
    /// The same, of which some expire.
    Expiring(Box<ScoreTable>),
}

/// A hash to read.
#[derive(Clone, Copy)]
pub enum HashView<'a> {
    #[allow(missing_docs)]
    Packed(PackedRef<'a>),
    #[allow(missing_docs)]
    Table(&'a Table, &'a Records, Hidden),
}

/// What is not shown of a hash: so many fields, whose time is before this. Where that is 0 all are shown.
#[derive(Clone, Copy, Default)]
pub struct Hidden {
    pub(crate) before_ms: u64,
    pub(crate) count: usize,
}

impl Hidden {
    /// Whether a field is hidden.
    #[inline]
    fn hides(self, records: &Records, record: Ref) -> bool {
        self.before_ms > 0 && records.expires_ms(record).is_some_and(|at| at < self.before_ms)
    }
}

impl Default for Hash {
    fn default() -> Hash {
        Hash::Packed(Packed::new())
    }
}

impl Collection for Hash {
    const KIND: Kind = Kind::Hash;

    fn from_packed(packed: Packed) -> Hash {
        Hash::Packed(packed)
    }

    fn from_data(data: Data) -> Hash {
        match data {
            Data::Hash(table) => Hash::Table(table),
            Data::Expiring(table) => Hash::Expiring(table),
            _ => unreachable!("the record says that it is a hash"),
        }
    }

    // For HSET.
    #[inline(always)]
    fn into_data(self) -> Data {
        match self {
            Hash::Packed(packed) => Data::Bytes(packed.into_vec()),
            Hash::Table(table) => Data::Hash(table),
            Hash::Expiring(table) => table.into_hash_data(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Hash::Packed(packed) => packed.is_empty(),
            Hash::Table(table) => table.len() == 0,
            Hash::Expiring(table) => table.table.len() == 0,
        }
    }
}

impl Hash {
    /// To read it, with all its fields.
    pub fn view<'a>(&'a self, records: &'a Records) -> HashView<'a> {
        match self {
            Hash::Packed(packed) => HashView::Packed(packed.as_ref()),
            Hash::Table(table) => HashView::Table(table, records, Hidden::default()),
            Hash::Expiring(table) => HashView::Table(&table.table, records, Hidden::default()),
        }
    }

    /// Gives a field a value; it does not expire any more. Returns whether the field is new.
    pub fn set(
        &mut self,
        records: &mut Records,
        field: &[u8],
        value: &[u8],
        limits: PackedLimits,
    ) -> Result<bool, OutOfMemory> {
        if let Hash::Packed(packed) = self {
            let at = packed.as_ref().find(field, 2);
            let is_small = field.len().max(value.len()) <= limits.entry_bytes;
            let len = packed.len() / 2 + usize::from(at.is_none());
            if is_small && len <= limits.entries {
                match at.and_then(|at| packed.as_ref().entry(at)) {
                    Some((_, at)) => packed.replace(at, value)?,
                    None => packed.splice(packed.as_ref().end(), 0, &[field, value])?,
                }
                return Ok(at.is_none());
            }
            self.unpack(records)?;
        }
        match self {
            Hash::Table(table) => Ok(table.set(records, field, Owned::Text(value))?.1),
            Hash::Expiring(table) => table.set_field(records, field, value),
            Hash::Packed(_) => unreachable!("it was unpacked"),
        }
    }

    /// Removes a field. Returns whether it was there.
    pub fn remove(&mut self, records: &mut Records, field: &[u8]) -> bool {
        match self {
            Hash::Packed(packed) => {
                let at = packed.as_ref().find(field, 2);
                at.into_iter().for_each(|at| packed.remove(at, 2));
                at.is_some()
            }
            Hash::Table(table) => table.remove(records, field),
            Hash::Expiring(table) => table.remove_field(records, field),
        }
    }

    pub(crate) fn unpack(&mut self, records: &mut Records) -> Result<(), OutOfMemory> {
        let Hash::Packed(packed) = self else { return Ok(()) };
        let mut table = Table::new();
        let mut entries = packed.as_ref().iter();
        while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
            if let Err(error) = table.set(records, field, Owned::Text(value)) {
                table.free(records, usize::MAX);
                return Err(error);
            }
        }
        *self = Hash::Table(Box::new(table));
        Ok(())
    }
}

/// Receives a field, its value, and when it expires, if it does.
pub type VisitField<'v, 'a> = &'v mut dyn FnMut(&'a [u8], Value<'a>, Option<u64>);

impl<'a> HashView<'a> {
    /// Number of fields.
    pub fn len(self) -> usize {
        match self {
            HashView::Packed(packed) => packed.len() / 2,
            HashView::Table(table, _, hidden) => table.len() - hidden.count,
        }
    }

    /// Whether there is none: all of them are hidden.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// A field's value.
    pub fn get(self, field: &[u8]) -> Option<Value<'a>> {
        match self {
            HashView::Packed(packed) => {
                let (_, value) = packed.entry(packed.find(field, 2)?)?;
                packed.get(value).map(Value::Bytes)
            }
            HashView::Table(table, records, hidden) => {
                let record = table.find(records, field).filter(|&record| !hidden.hides(records, record));
                record.map(|record| records.value(record))
            }
        }
    }

    /// Whether there is such a field.
    pub fn contains(self, field: &[u8]) -> bool {
        self.expiry(field).is_some()
    }

    /// When a field expires, in milliseconds since 1970, if there is such a field.
    pub fn expiry(self, field: &[u8]) -> Option<Option<u64>> {
        match self {
            HashView::Packed(packed) => packed.find(field, 2).map(|_| None),
            HashView::Table(table, records, hidden) => {
                let record = table.find(records, field).filter(|&record| !hidden.hides(records, record));
                record.map(|record| records.expires_ms(record))
            }
        }
    }

    /// A random field with its value, each as likely as any other.
    pub fn random(self, rng: &mut fastrand::Rng) -> Option<(&'a [u8], Value<'a>)> {
        match self {
            HashView::Packed(packed) if packed.is_empty() => None,
            HashView::Packed(packed) => {
                let (field, at) = packed.entry(packed.offset_of(2 * rng.usize(..self.len()))?)?;
                Some((field, Value::Bytes(packed.get(at)?)))
            }
            HashView::Table(table, records, hidden) => {
                let record = table.random(rng)?;
                if !hidden.hides(records, record) {
                    return Some(member(records, record));
                }
                let mut shown = None;
                // Without memory for a choice there is none.
                let _ = self.sample(rng, 1, &mut |field, value| shown = Some((field, value)));
                shown
            }
        }
    }

    /// Calls `visit` with `count` different random fields, or with all if there are not so many; each such choice is as
    /// likely as any other one.
    pub fn sample(
        self,
        rng: &mut fastrand::Rng,
        count: usize,
        visit: &mut dyn FnMut(&'a [u8], Value<'a>),
    ) -> Result<(), OutOfMemory> {
        match self {
            HashView::Packed(_) => {
                let mut left = self.len();
                let mut wanted = count.min(left);
                self.for_each(&mut |field, value, _| {
                    if rng.usize(..left) < wanted {
                        visit(field, value);
                        wanted -= 1;
                    }
                    left -= 1;
                });
            }
            HashView::Table(table, records, hidden) => {
                let mut drawn = count;
                let mut chosen = loop {
                    let mut chosen = table.sample(rng, drawn)?;
                    chosen.retain(|&record| !hidden.hides(records, record));
                    if chosen.len() >= count || drawn >= table.len() {
                        break chosen;
                    }
                    // Some are hidden.
                    drawn = drawn.saturating_mul(2);
                };
                chosen.truncate(count);
                for record in chosen {
                    let (field, value) = member(records, record);
                    visit(field, value);
                }
            }
        }
        Ok(())
    }

    /// Visits some fields from `cursor` (0 to begin) on and returns the cursor that continues; 0 is the end. A field that is
    /// there from the beginning to the end is visited at least once.
    pub fn scan(self, cursor: u64, visit: VisitField<'_, 'a>) -> u64 {
        match self {
            HashView::Packed(_) => {
                self.for_each(visit);
                0
            }
            HashView::Table(table, records, hidden) => {
                table.scan(cursor, &mut |record| visit_field(records, record, hidden, visit))
            }
        }
    }

    /// Calls `visit` with each field, its value, and when it expires, if it does.
    pub fn for_each(self, visit: VisitField<'_, 'a>) {
        match self {
            HashView::Packed(packed) => {
                let mut entries = packed.iter();
                while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
                    visit(field, Value::Bytes(value), None);
                }
            }
            HashView::Table(table, records, hidden) => {
                for record in table.iter() {
                    visit_field(records, record, hidden, visit);
                }
            }
        }
    }

    /// How it is stored.
    pub fn encoding(self) -> Encoding {
        match self {
            HashView::Packed(_) => Encoding::Listpack,
            HashView::Table(..) => Encoding::Hashtable,
        }
    }
}

/// Shows a field, unless its time has come.
fn visit_field<'a>(records: &'a Records, record: Ref, hidden: Hidden, visit: VisitField<'_, 'a>) {
    if !hidden.hides(records, record) {
        let (field, value) = member(records, record);
        visit(field, value, records.expires_ms(record));
    }
}

impl Db {
    /// The hash at a key that has one, without the fields whose time has come.
    pub fn hash(&self, found: Found, now_ms: u64) -> HashView<'_> {
        assert_eq!(self.kind(found), Kind::Hash);
        match self.records.stored(found.record) {
            Stored::Bytes(bytes) => HashView::Packed(PackedRef::new(bytes)),
            Stored::Data(Data::Hash(table)) => HashView::Table(table, &self.records, Hidden::default()),
            Stored::Data(Data::Expiring(table)) => {
                let hidden = if self.shows_expired { Hidden::default() } else { table.hidden(now_ms) };
                HashView::Table(&table.table, &self.records, hidden)
            }
            _ => unreachable!("the record says that it is a hash"),
        }
    }

    /// The hash at a key that has one, with all its fields.
    pub fn hash_as_stored(&self, found: Found) -> HashView<'_> {
        self.hash(found, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expiry, HashKey};
    use alloc::{
        collections::{BTreeMap, BTreeSet},
        string::ToString,
        vec::Vec,
    };

    fn shown(value: Value<'_>) -> Vec<u8> {
        match value {
            Value::Integer(number) => number.to_string().into_bytes(),
            Value::Bytes(bytes) => bytes.to_vec(),
        }
    }

    fn pairs(view: HashView<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = BTreeMap::new();
        view.for_each(&mut |field, value, _| assert!(all.insert(field.to_vec(), shown(value)).is_none()));
        all
    }

    /// Every operation against an ordered map that does the same, with hashes that grow out of every form.
    #[test]
    fn behaves_like_a_map() {
        for seed in 0..30 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut db = Db::new(HashKey(seed, 1));
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let limits = PackedLimits { entries: rng.usize(..60), entry_bytes: 20 };
            for step in 0..1500u32 {
                let context = (seed, step);
                let growth = 1 + (step / 300) % 2 * 3;
                let field = rng.u32(..120).to_string().into_bytes();
                let value = match rng.u8(..40) {
                    0 => alloc::vec![b'x'; rng.usize(..3000)],
                    1..20 => rng.i64(..).to_string().into_bytes(),
                    _ => (0..rng.usize(..18)).map(|_| rng.u8(..)).collect(),
                };
                let found = db.find(b"h", 0);
                if rng.u32(..5) < growth {
                    let edit =
                        db.edit(b"h", found, 0, |hash: &mut Hash, records| hash.set(records, &field, &value, limits));
                    assert_eq!(edit.unwrap().result, model.insert(field.clone(), value).is_none(), "{context:?}");
                } else if found.is_some() {
                    let edit = db.edit(b"h", found, 0, |hash: &mut Hash, records| Ok(hash.remove(records, &field)));
                    let edit = edit.unwrap();
                    assert_eq!(edit.result, model.remove(&field).is_some(), "{context:?}");
                    assert_eq!(edit.is_gone, model.is_empty(), "{context:?}");
                }
                let Some(found) = db.find(b"h", 0) else {
                    assert!(model.is_empty(), "{context:?}");
                    continue;
                };
                let view = db.hash(found, 0);
                assert_eq!(view.len(), model.len(), "{context:?}");
                assert_eq!(view.get(&field).map(shown), model.get(&field).cloned(), "{context:?}");
                assert_eq!(view.contains(&field), model.contains_key(&field), "{context:?}");
                if step % 50 == 0 {
                    assert_eq!(pairs(view), model, "{context:?}");
                    let (mut scanned, mut cursor) = (BTreeSet::new(), 0);
                    loop {
                        cursor = view.scan(cursor, &mut |field, _, _| _ = scanned.insert(field.to_vec()));
                        if cursor == 0 {
                            break;
                        }
                    }
                    assert!(scanned.iter().eq(model.keys()), "{context:?}");
                    let (count, mut sampled) = (rng.usize(1..100), BTreeSet::new());
                    view.sample(&mut rng, count, &mut |field, value| {
                        assert_eq!(model[field], shown(value));
                        assert!(sampled.insert(field.to_vec()));
                    })
                    .unwrap();
                    assert_eq!(sampled.len(), count.min(model.len()), "{context:?}");
                    db.copy(found, b"copy", 0).unwrap();
                    let copy = db.find(b"copy", 0).unwrap();
                    assert_eq!(pairs(db.hash(copy, 0)), model, "{context:?}");
                }
            }
        }
    }

    #[test]
    fn every_field_is_drawn_about_as_often() {
        for fields in [7, 100] {
            let mut db = Db::new(HashKey(5, 5));
            let limits = PackedLimits { entries: 10, entry_bytes: 10 };
            for number in 0..fields {
                let found = db.find(b"h", 0);
                let name = number.to_string();
                db.edit(b"h", found, 0, |hash: &mut Hash, records| hash.set(records, name.as_bytes(), b"", limits))
                    .unwrap();
            }
            let found = db.find(b"h", 0).unwrap();
            let mut rng = fastrand::Rng::with_seed(1);
            let mut drawn: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            for _ in 0..fields * 1000 {
                *drawn.entry(db.hash(found, 0).random(&mut rng).unwrap().0.to_vec()).or_default() += 1;
            }
            assert!(drawn.len() == fields && drawn.values().all(|times| (800..1200).contains(times)), "{drawn:?}");
            db.set(b"h", Owned::Text(b""), Expiry::Never, 0).unwrap();
        }
    }
}
