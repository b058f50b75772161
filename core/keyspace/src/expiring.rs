//! Hashes of whose fields some expire: a table of all fields, with those that expire in the order of their times. Only these
//! carry a time, in their record's header, as keys do.

use crate::{
    Db, Found, Hash, Kind, OutOfMemory, Owned, PackedLimits, Records,
    hash::Hidden,
    ordered::Tree,
    record::Stored,
    slab::Ref,
    table::{Copying, Table},
    value::Data,
    zset::{Entry, ScoreTable, link, unlink},
};
use alloc::{boxed::Box, vec::Vec};

/// The latest time at which a field may expire, in milliseconds since 1970, as in Redis.
pub const FIELD_EXPIRY_LIMIT_MS: u64 = (1 << 46) - 1;

/// Names that [`Db::due_fields`] gives at most.
const NAMES_AT_ONCE: usize = 32;

fn entry(record: Ref, at_ms: u64) -> Entry {
    // Times are below 2^53, so nothing is lost.
    Entry { score: at_ms as f64, record: record.0 }
}

impl ScoreTable {
    /// A hash's fields, none of which expires yet.
    pub(crate) fn of_fields(table: Table) -> ScoreTable {
        ScoreTable { table, tree: Tree::new() }
    }

    /// When the first field expires.
    pub(crate) fn first_ms(&self) -> Option<u64> {
        self.tree.get(0).map(|entry| entry.score as u64)
    }

    /// What is not shown of it at this time: mostly nothing.
    #[inline(never)]
    pub(crate) fn hidden(&self, now_ms: u64) -> Hidden {
        match self.first_ms() {
            Some(first_ms) if first_ms < now_ms => {
                let now = now_ms as f64;
                Hidden { before_ms: now_ms, count: self.tree.rank(|entry| entry.score < now) }
            }
            _ => Hidden::default(),
        }
    }

    /// Takes a field out of the order. Its record may be gone already.
    fn forget(&mut self, records: &Records, record: Ref, at_ms: u64, name: &[u8]) {
        unlink(&mut self.tree, records, entry(record, at_ms), name);
    }

    /// Gives a field a value; it does not expire any more. Returns whether it is new.
    pub(crate) fn set_field(&mut self, records: &mut Records, name: &[u8], value: &[u8]) -> Result<bool, OutOfMemory> {
        let old = self.table.find(records, name).and_then(|record| Some((record, records.expires_ms(record)?)));
        let (_, is_new) = self.table.set(records, name, Owned::Text(value))?;
        if let Some((record, at_ms)) = old {
            self.forget(records, record, at_ms, name);
        }
        Ok(is_new)
    }

    /// Removes a field. Returns whether it was there.
    pub(crate) fn remove_field(&mut self, records: &mut Records, name: &[u8]) -> bool {
        let Some(record) = self.table.take(records, name) else { return false };
        if let Some(at_ms) = records.expires_ms(record) {
            self.forget(records, record, at_ms, name);
        }
        records.free(record);
        true
    }

    /// Changes when a field expires, if there is such a field.
    fn expire_field(&mut self, records: &mut Records, name: &[u8], at_ms: Option<u64>) -> Result<(), OutOfMemory> {
        let Some(record) = self.table.find(records, name) else { return Ok(()) };
        let old_ms = records.expires_ms(record);
        if old_ms == at_ms {
            return Ok(());
        }
        let keeps_form = old_ms.is_some() && at_ms.is_some();
        let new = if keeps_form { record } else { records.move_with_expiry(record, at_ms)? };
        if let Some(at_ms) = at_ms
            && let Err(error) = link(&mut self.tree, records, entry(new, at_ms), name)
        {
            if !keeps_form {
                records.free_shell(new);
            }
            return Err(error);
        }
        if let Some(old_ms) = old_ms {
            self.forget(records, record, old_ms, name);
        }
        match at_ms {
            Some(at_ms) if keeps_form => records.set_expires_ms(record, at_ms),
            _ => {
                self.table.replace(records, record, new);
                records.free_shell(record);
            }
        }
        Ok(())
    }

    /// A copy with copies of all fields.
    pub(crate) fn copy_fields(&self, copying: &mut Copying<'_>) -> Result<ScoreTable, OutOfMemory> {
        let mut copy = ScoreTable::of_fields(self.table.copy(copying)?);
        let records = copying.to();
        let mut linked = Ok(());
        for record in copy.table.iter() {
            if let (Some(at_ms), Ok(())) = (records.expires_ms(record), linked) {
                linked = link(&mut copy.tree, records, entry(record, at_ms), records.key(record));
            }
        }
        if linked.is_err() {
            copy.free(records, usize::MAX);
        }
        linked.map(|()| copy)
    }

    /// To be put back: as a hash like others if no field expires any more.
    #[cold]
    #[inline(never)]
    pub(crate) fn into_hash_data(self: Box<ScoreTable>) -> Data {
        match self.first_ms() {
            Some(_) => Data::Expiring(self),
            None => Data::Hash(Box::new(self.table)),
        }
    }
}

impl Hash {
    /// Changes when a field expires, in milliseconds since 1970, if there is such a field.
    pub fn expire(&mut self, records: &mut Records, field: &[u8], at_ms: Option<u64>) -> Result<(), OutOfMemory> {
        if at_ms.is_some() {
            self.unpack(records)?;
            if let Hash::Table(table) = self {
                let table = core::mem::replace(&mut **table, Table::new());
                *self = Hash::Expiring(Box::new(ScoreTable::of_fields(table)));
            }
        }
        match self {
            Hash::Expiring(table) => table.expire_field(records, field, at_ms),
            Hash::Packed(_) | Hash::Table(_) => Ok(()),
        }
    }

    /// Gives a field a value, which expires when the one before would have. Returns when that is.
    pub fn update(
        &mut self,
        records: &mut Records,
        field: &[u8],
        value: &[u8],
        limits: PackedLimits,
    ) -> Result<Option<u64>, OutOfMemory> {
        let at_ms = match self {
            Hash::Expiring(_) => self.view(records).expiry(field).flatten(),
            Hash::Packed(_) | Hash::Table(_) => None,
        };
        self.set(records, field, value, limits)?;
        self.expire(records, field, at_ms)?;
        Ok(at_ms)
    }
}

impl Records {
    /// Whether a record has a hash of whose fields some expire.
    #[inline]
    pub(crate) fn has_expiring_fields(&self, record: Ref) -> bool {
        self.kind(record) == Kind::Hash && matches!(self.stored(record), Stored::Data(Data::Expiring(_)))
    }
}

impl Db {
    /// Number of hashes of whose fields some expire.
    pub fn expiring_hashes(&self) -> usize {
        self.expiring.len()
    }

    /// When the first field of a key's hash expires, if any does.
    pub fn first_field_expiry_ms(&self, found: Found) -> Option<u64> {
        match self.records.stored(found.record) {
            Stored::Data(Data::Expiring(table)) => table.first_ms(),
            _ => None,
        }
    }

    /// Notes whether a key's hash has fields that expire, after a change.
    #[inline]
    pub(crate) fn track_fields(&mut self, hash: u64, record: Ref) {
        let expires = self.records.has_expiring_fields(record);
        if expires || self.expiring.len() > 0 {
            self.set_tracked(hash, record, expires);
        }
    }

    fn set_tracked(&mut self, hash: u64, record: Ref, expires: bool) {
        let Db { records, expiring, .. } = self;
        if !expires {
            expiring.remove(hash, record, records);
        } else if !expiring.has(hash, record) {
            // Where there is no memory for that, fields whose time has come stay hidden until the hash changes again.
            let _ = expiring.insert(hash, record, records);
        }
    }

    /// Notes that a record is gone, or that its hash is another record's.
    #[inline]
    pub(crate) fn untrack_fields(&mut self, hash: u64, record: Ref) {
        if self.expiring.len() > 0 {
            self.set_tracked(hash, record, false);
        }
    }

    /// Looks at about `limit` hashes with fields that expire for one that has fields whose time has come. Returns how many
    /// were looked at, too; the next call goes on from there.
    pub fn due_hash(&mut self, now_ms: u64, limit: usize) -> (usize, Option<Found>) {
        let (mut examined, mut due) = (0, None);
        while examined < limit && due.is_none() && self.expiring.len() > 0 {
            let next = self.expiring.scan(self.expiring_cursor, &mut |record| {
                examined += 1;
                let found = Found { record, hash: 0 };
                if self.first_field_expiry_ms(found).is_some_and(|at| at < now_ms) {
                    due = Some(record);
                }
            });
            if due.is_none() {
                self.expiring_cursor = next;
                if next == 0 {
                    break;
                }
            }
        }
        (examined, due.map(|record| Found { record, hash: self.records.hash_of(record) }))
    }

    /// The names of some fields of a key's hash whose time has come, the first first.
    pub fn due_fields(&self, found: Found, now_ms: u64) -> Result<Vec<Vec<u8>>, OutOfMemory> {
        let mut names = Vec::new();
        if let Stored::Data(Data::Expiring(table)) = self.records.stored(found.record) {
            while let Some(entry) = table.tree.get(names.len())
                && (entry.score as u64) < now_ms
                && names.len() < NAMES_AT_ONCE
            {
                names.try_reserve(1)?;
                names.push(crate::record::copied(self.records.key(Ref(entry.record)))?);
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoding, Expiry, HashKey, Value};
    use alloc::{collections::BTreeMap, string::ToString, vec};

    type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

    const LIMITS: PackedLimits = PackedLimits { entries: 20, entry_bytes: 20 };

    fn shown(value: Value<'_>) -> Vec<u8> {
        match value {
            Value::Integer(number) => number.to_string().into_bytes(),
            Value::Bytes(bytes) => bytes.to_vec(),
        }
    }

    fn fields(db: &Db, key: &[u8], now_ms: u64) -> Model {
        let mut all = Model::new();
        if let Some(found) = db.find_any(key) {
            db.hash(found, now_ms).for_each(&mut |field, value, at| _ = all.insert(field.to_vec(), (shown(value), at)));
            assert_eq!(db.hash(found, now_ms).len(), all.len());
        }
        all
    }

    fn change(db: &mut Db, change: impl FnOnce(&mut Hash, &mut Records) -> Result<(), OutOfMemory>) {
        let found = db.find_any(b"h");
        db.edit(b"h", found, 0, change).unwrap();
    }

    /// Every operation against an ordered map that does the same; and nothing is left when all fields are gone.
    #[test]
    fn behaves_like_a_map_whose_entries_expire() {
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut db = Db::new(HashKey(seed, 1));
            let mut model = Model::new();
            let mut now_ms = 1000;
            for step in 0..1500 {
                let context = (seed, step);
                let name = rng.u32(..150).to_string().into_bytes();
                let value = match rng.bool() {
                    true => rng.i64(..).to_string().into_bytes(),
                    false => vec![b'x'; rng.usize(..60)],
                };
                match rng.u8(..10) {
                    0..3 => {
                        change(&mut db, |hash, records| hash.set(records, &name, &value, LIMITS).map(drop));
                        model.insert(name.clone(), (value, None));
                    }
                    3 => {
                        let at_ms = model.get(&name).and_then(|(_, at)| *at);
                        change(&mut db, |hash, records| {
                            assert_eq!(hash.update(records, &name, &value, LIMITS)?, at_ms, "{context:?}");
                            Ok(())
                        });
                        model.insert(name.clone(), (value, at_ms));
                    }
                    4..7 => {
                        let at_ms = (rng.u8(..5) > 0).then(|| now_ms + rng.u64(..200));
                        if let Some(entry) = model.get_mut(&name) {
                            change(&mut db, |hash, records| hash.expire(records, &name, at_ms));
                            entry.1 = at_ms;
                        }
                    }
                    7 if model.contains_key(&name) => {
                        change(&mut db, |hash, records| {
                            assert!(hash.remove(records, &name));
                            Ok(())
                        });
                        model.remove(&name);
                    }
                    8 => now_ms += rng.u64(..30),
                    _ => {
                        while let (_, Some(found)) = db.due_hash(now_ms, 10) {
                            let due = db.due_fields(found, now_ms).unwrap();
                            assert!(due.iter().all(|name| model[name].1.is_some_and(|at| at < now_ms)), "{context:?}");
                            assert!(!due.is_empty(), "{context:?}");
                            change(&mut db, |hash, records| {
                                due.iter().for_each(|name| assert!(hash.remove(records, name)));
                                Ok(())
                            });
                        }
                        model.retain(|_, (_, at)| at.is_none_or(|at| at >= now_ms));
                    }
                }
                assert_eq!(fields(&db, b"h", 0), model, "{context:?}");
                let expiring = model.values().any(|(_, at)| at.is_some());
                assert_eq!(db.expiring_hashes(), usize::from(expiring), "{context:?}");
                if step % 40 == 0 {
                    check_views(&mut db, &model, &mut rng, now_ms);
                }
            }
            model.keys().for_each(|name| change(&mut db, |hash, records| Ok(_ = hash.remove(records, name))));
            while db.free_slice(1000) {}
            assert_eq!((db.len(), db.expiring_hashes(), db.garbage_len()), (0, 0, 0));
        }
    }

    /// What is hidden is so in every way of looking; copies and keys of other names are like the hash.
    fn check_views(db: &mut Db, model: &Model, rng: &mut fastrand::Rng, now_ms: u64) {
        let mut visible = model.clone();
        visible.retain(|_, (_, at)| at.is_none_or(|at| at >= now_ms));
        assert_eq!(fields(db, b"h", now_ms), visible);
        let Some(found) = db.find_any(b"h") else { return };
        let view = db.hash(found, now_ms);
        for (name, (_, at)) in model {
            assert_eq!(view.expiry(name), visible.contains_key(name).then_some(*at));
            assert_eq!(view.get(name).is_some(), view.contains(name));
        }
        let count = rng.usize(..40);
        let mut sampled = Model::new();
        view.sample(rng, count, &mut |field, value| _ = sampled.insert(field.to_vec(), (shown(value), None))).unwrap();
        assert_eq!(sampled.len(), count.min(visible.len()));
        assert!(sampled.keys().all(|name| visible.contains_key(name)));
        assert_eq!(view.random(rng).is_some_and(|(name, _)| visible.contains_key(name)), !visible.is_empty());

        let mut other = Db::new(HashKey(9, 9));
        db.copy(found, b"copy", 0).unwrap();
        db.copy_to(found, &mut other, b"h", 0).unwrap();
        assert_eq!((&fields(db, b"copy", 0), &fields(&other, b"h", 0)), (model, model));
        let expiring = usize::from(model.values().any(|(_, at)| at.is_some()));
        assert_eq!((db.expiring_hashes(), other.expiring_hashes()), (2 * expiring, expiring));
        db.set_expires_ms(found, Some(1 << 40)).unwrap();
        let found = db.find_any(b"h").unwrap();
        db.rename(found, b"other", 0).unwrap();
        let found = db.find_any(b"other").unwrap();
        db.set_expires_ms(found, None).unwrap();
        let found = db.find_any(b"other").unwrap();
        db.rename(found, b"h", 0).unwrap();
        assert_eq!(&fields(db, b"h", 0), model);
        db.set(b"copy", Owned::Text(b"no hash"), Expiry::Never, 0).unwrap();
        assert_eq!(db.expiring_hashes(), expiring);
        while other.dismantle(10) {}
        assert_eq!(other.overhead_bytes(), 0);
        let found = db.find_any(b"copy").unwrap();
        db.remove(found);
    }

    #[test]
    fn a_hash_without_expiring_fields_is_stored_as_before() {
        let mut db = Db::new(HashKey(3, 3));
        change(&mut db, |hash, records| hash.set(records, b"f", b"v", LIMITS).map(drop));
        let bytes = db.bytes_of(db.find_any(b"h").unwrap());
        change(&mut db, |hash, records| hash.expire(records, b"f", None));
        let found = db.find_any(b"h").unwrap();
        assert_eq!((db.bytes_of(found), db.encoding(found)), (bytes, Encoding::Listpack));
        change(&mut db, |hash, records| hash.expire(records, b"f", Some(5)));
        let found = db.find_any(b"h").unwrap();
        assert_eq!((db.first_field_expiry_ms(found), db.encoding(found)), (Some(5), Encoding::Hashtable));
        assert!(db.bytes_of(found) > bytes);
    }
}
