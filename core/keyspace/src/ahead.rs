//! Looking ahead: of many keys, or members of one collection, hardly one lies in the processor's caches. Several that are looked
//! at one independently of the other are fetched from memory all at a time, and who then asks for one after the other need not
//! wait for each.

use crate::{Db, index::Index, record::Records, slab::Ref, value::Data};

/// Of an index with fewer buckets than these, a quarter of a mebibyte, a processor mostly has in its caches what is asked for.
const BUCKETS_IN_CACHES: usize = 4096;

impl Index {
    #[inline]
    fn is_beyond_caches(&self) -> bool {
        self.buckets() >= BUCKETS_IN_CACHES
    }
}

impl Records {
    /// Fetches the places of the next [`Db::FETCHED_AT_A_TIME`] names in an index of these records.
    fn fetch_named<'a>(&self, index: &Index, names: &mut impl Iterator<Item = &'a [u8]>) -> usize {
        let (mut hashes, mut records) = ([0; Db::FETCHED_AT_A_TIME], [Ref(0); Db::FETCHED_AT_A_TIME]);
        let len = hashes.iter_mut().zip(names).map(|(hash, name)| *hash = self.hash(name)).count();
        index.fetch(&hashes[..len]);
        let likely = hashes[..len].iter().filter_map(|&hash| index.likely(hash));
        let found = records.iter_mut().zip(likely).map(|(place, record)| *place = record).count();
        self.fetch(&records[..found]);
        len
    }
}

impl Db {
    /// So many names are worth fetching together: about as many as the processor waits for at a time.
    pub const FETCHED_AT_A_TIME: usize = 16;

    /// Whether there are so many keys that the processor mostly has to wait for one's place in memory.
    #[inline]
    pub fn is_beyond_caches(&self) -> bool {
        self.index.is_beyond_caches()
    }

    /// Has the processor fetch the next [`FETCHED_AT_A_TIME`](Self::FETCHED_AT_A_TIME) of these keys. Returns how many that are.
    pub fn fetch<'a>(&self, keys: &mut impl Iterator<Item = &'a [u8]>) -> usize {
        self.records.fetch_named(&self.index, keys)
    }

    /// The members of a set or a sorted set or the fields of a hash, if it is large, to be fetched.
    pub fn members(&self, key: &[u8]) -> Option<Members<'_>> {
        let table = self.lookup(key).1.and_then(|record| match self.records.data(record)? {
            Data::Set(table) | Data::Hash(table) => Some(&**table),
            Data::SortedSet(table) | Data::Expiring(table) => Some(&table.table),
            Data::Bytes(_) | Data::List(_) | Data::Stream(_) => None,
        });
        let large = table.filter(|table| table.index.is_beyond_caches())?;
        Some(Members { records: &self.records, index: &large.index })
    }
}

/// Members of a large collection.
pub struct Members<'d> {
    records: &'d Records,
    index: &'d Index,
}

impl Members<'_> {
    /// As [`Db::fetch`] for keys.
    pub fn fetch<'a>(&self, names: &mut impl Iterator<Item = &'a [u8]>) -> usize {
        self.records.fetch_named(self.index, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hash, HashKey, OutOfMemory, PackedLimits};
    use alloc::{format, string::String, vec::Vec};

    const LIMITS: PackedLimits = PackedLimits { entries: 128, entry_bytes: 64 };

    fn db_with_hash(fields: usize) -> Db {
        let mut db = Db::new(HashKey(1, 2));
        for field in 0..fields {
            let found = db.find(b"hash", 0);
            let set = |hash: &mut Hash, records: &mut Records| -> Result<bool, OutOfMemory> {
                hash.set(records, format!("{field}").as_bytes(), b"value", LIMITS)
            };
            db.edit(b"hash", found, 0, set).unwrap();
        }
        db
    }

    #[test]
    fn only_large_collections_are_looked_ahead_at() {
        let names: Vec<String> = (0..40).map(|name| format!("{name}")).collect();
        for (fields, expected) in [(100, [0, 0, 0, 0]), (1000, [0, 0, 0, 0]), (50_000, [16, 16, 8, 0])] {
            let db = db_with_hash(fields);
            let mut members = names.iter().map(String::as_bytes);
            let large = db.members(b"hash");
            let fetched = [0; 4].map(|_: usize| large.as_ref().map_or(0, |large| large.fetch(&mut members)));
            assert_eq!(fetched, expected, "{fields} fields");
            assert!(db.members(b"none").is_none());
            assert!(!db.is_beyond_caches(), "there is one key");
        }
    }
}
