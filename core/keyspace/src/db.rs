//! One database: its keys, by name.

mod copies;
mod expiry;
mod freeing;
mod names;
#[cfg(test)]
mod tests;
mod uses;
mod visits;

pub use expiry::Slice;
pub use names::Names;

use crate::{
    Decimal, OutOfMemory,
    index::Index,
    record::Records,
    slab::Ref,
    usage::Usage,
    value::{Data, Encoding, Kind, Owned, Value},
};
use alloc::vec::Vec;
use siphasher::sip::SipHasher13;

/// The secret key of the hash, drawn at start: without it nobody can choose keys that collide.
#[derive(Clone, Copy, Debug)]
pub struct HashKey(pub u64, pub u64);

impl HashKey {
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        SipHasher13::new_with_keys(self.0, self.1).hash(key)
    }
}

/// A key that was found. It is good until the next change to the database.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub(crate) record: Ref,
    pub(crate) hash: u64,
}

/// What a new value does to a key's expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The key no longer expires.
    Never,
    /// The expiry stays as it is.
    Keep,
    /// The key expires at this time, in milliseconds since 1970.
    At(u64),
}

/// One database.
pub struct Db {
    pub(crate) records: Records,
    pub(crate) index: Index,
    /// The records that have an expiry.
    pub(crate) volatile: Index,
    pub(crate) usage: Usage,
    /// The records of hashes of whose fields some expire, and where the search for fields whose time has come goes on.
    pub(crate) expiring: Index,
    pub(crate) expiring_cursor: u64,
    /// Where the next slice of active expiry goes on.
    expire_cursor: u64,
    /// Keys that were found expired when they were looked up, since [`Db::take_lazily_expired`].
    lazily_expired: u64,
    /// Whether keys whose time has come stay, though nobody finds them.
    pub keeps_expired: bool,
    /// Whether keys whose time has come are there like others.
    pub shows_expired: bool,
    /// The keys that were found expired.
    pub expired_names: Names,
    /// The keys that are new.
    pub new_names: Names,
    /// What is left of large values that were removed. It is freed in slices.
    garbage: Vec<Data>,
    /// How many of them have been freed.
    freed_in_slices: u64,
    /// How many places of objects have no members any more, as the database is taken down.
    dismantled_places: usize,
    /// Where a walk over all keys goes on.
    pub(crate) walk_cursor: Option<u64>,
}

impl Db {
    /// An empty database. It takes no memory until the first key comes.
    pub const fn new(hash_key: HashKey) -> Db {
        Db {
            records: Records::new(hash_key),
            index: Index::new(),
            volatile: Index::new(),
            usage: Usage::new(hash_key),
            expiring: Index::new(),
            expiring_cursor: 0,
            expire_cursor: 0,
            lazily_expired: 0,
            keeps_expired: false,
            shows_expired: false,
            expired_names: Names::new(),
            new_names: Names::new(),
            garbage: Vec::new(),
            freed_in_slices: 0,
            dismantled_places: 0,
            walk_cursor: None,
        }
    }

    /// Number of keys, including those that expired unseen.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys with an expiry.
    pub fn volatile_len(&self) -> usize {
        self.volatile.len()
    }

    /// Number of buckets of the index and of the index of keys with an expiry.
    pub fn buckets(&self) -> (usize, usize) {
        (self.index.buckets(), self.volatile.buckets())
    }

    /// Bytes that are not the values' own: pages' free room is counted, long values are not.
    pub fn overhead_bytes(&self) -> usize {
        self.records.overhead_bytes() + self.index.bytes() + self.volatile.bytes() + self.expiring.bytes()
    }

    #[inline]
    pub(crate) fn lookup(&self, key: &[u8]) -> (u64, Option<Ref>) {
        let hash = self.records.hash(key);
        (hash, self.index.find(hash, |record| self.records.key(record) == key))
    }

    /// Finds a key. One whose time has come is removed and not found.
    pub fn find(&mut self, key: &[u8], now_ms: u64) -> Option<Found> {
        let (hash, record) = self.lookup(key);
        let found = Found { record: record?, hash };
        if self.is_expired(found.record, now_ms) {
            if self.keeps_expired {
                return None;
            }
            self.remove_expired(found);
            self.lazily_expired += 1;
            return None;
        }
        Some(found)
    }

    /// Whether a key is there whose time has not come.
    pub fn has(&self, key: &[u8], now_ms: u64) -> bool {
        self.lookup(key).1.is_some_and(|record| !self.is_expired(record, now_ms))
    }

    /// A key's name.
    pub fn key(&self, found: Found) -> &[u8] {
        self.records.key(found.record)
    }

    /// What kind of value a key has.
    pub fn kind(&self, found: Found) -> Kind {
        self.records.kind(found.record)
    }

    /// The string at a key that has one.
    pub fn value(&self, found: Found) -> Value<'_> {
        self.records.value(found.record)
    }

    /// How a key's value is stored.
    pub fn encoding(&self, found: Found) -> Encoding {
        match self.kind(found) {
            Kind::String => self.records.string_encoding(found.record),
            Kind::Hash => self.hash_as_stored(found).encoding(),
            Kind::List => self.list(found).encoding(),
            Kind::Set => self.set_at(found).encoding(),
            Kind::SortedSet => self.sorted_set(found).encoding(),
            Kind::Stream => Encoding::Stream,
        }
    }

    /// Where a key's record lies, as a number that tells records apart.
    pub fn place_of(&self, found: Found) -> u32 {
        found.record.0
    }

    /// Bytes of memory that a key takes, with its share of the index.
    pub fn bytes_of(&self, found: Found) -> usize {
        self.records.bytes(found.record) + self.index.bytes() / self.index.len().max(1)
    }

    /// Gives a key a value, whatever it had before.
    pub fn set(&mut self, key: &[u8], value: Owned, expiry: Expiry, now_ms: u64) -> Result<(), OutOfMemory> {
        let (hash, mut old) = self.lookup(key);
        let expires_ms = self.new_expiry(hash, &mut old, expiry, now_ms);
        let used = self.new_use(old, now_ms);
        if let Some(old) = old
            && self.records.overwrite(old, &value, expires_ms, used)
        {
            return Ok(());
        }
        let new = self.records.create(key, value, expires_ms, used)?;
        self.install(hash, old, new)
    }

    /// Brings the bytes of a string that was set [without them](Owned::ToFill).
    pub fn fill(&mut self, key: &[u8], bytes: Vec<u8>) {
        let (_, record) = self.lookup(key);
        let place = record.and_then(|record| self.records.data_mut(record));
        match place {
            Some(Data::Bytes(empty)) if empty.is_empty() => *empty = bytes,
            _ => debug_assert!(false, "nothing comes between setting a string and its bytes"),
        }
    }

    /// Puts a new record in place of an old one or of none, and frees the old one; or frees the new one if there is no
    /// memory for that.
    pub(crate) fn install(&mut self, hash: u64, old: Option<Ref>, new: Ref) -> Result<(), OutOfMemory> {
        let Db { records, index, volatile, .. } = self;
        if let Some(old) = old {
            records.inherit_mark(old, new);
        }
        let was_volatile = old.filter(|&old| records.expires_ms(old).is_some());
        let is_volatile = records.expires_ms(new).is_some();
        let result = if is_volatile && was_volatile.is_none() { volatile.insert(hash, new, records) } else { Ok(()) };
        let result = result.and_then(|()| match old {
            Some(old) => {
                index.replace(hash, old, new);
                Ok(())
            }
            None => index.insert(hash, new, records).inspect_err(|_| {
                volatile.remove(hash, new, records);
            }),
        });
        if let Err(error) = result {
            self.free(new);
            return Err(error);
        }
        match was_volatile {
            Some(old) if is_volatile => volatile.replace(hash, old, new),
            Some(old) => _ = volatile.remove(hash, old, records),
            None => {}
        }
        if let Some(old) = old {
            self.untrack_fields(hash, old);
        }
        self.track_fields(hash, new);
        match old {
            Some(old) => self.free(old),
            None => self.new_names.add(self.records.key(new)),
        }
        Ok(())
    }

    /// Makes the string at `key` exactly `len` bytes long, zero-filled where it grows and starting empty where there is
    /// no key, and lends its bytes for editing. The expiry stays. A long string that has to move for it gets room for
    /// `spare` bytes more, so that repeated appends are cheap, if there is memory for that.
    pub fn resize(&mut self, key: &[u8], len: usize, spare: usize, now_ms: u64) -> Result<&mut [u8], OutOfMemory> {
        let found = self.find(key, now_ms);
        if let Some(found) = found {
            self.touch(found, now_ms);
            let same_length = matches!(self.value(found), Value::Bytes(bytes) if bytes.len() == len);
            if !same_length && let Some(blob) = self.records.blob_mut(found.record) {
                let more = len.saturating_sub(blob.len());
                if blob.capacity() < len {
                    blob.try_reserve_exact(more + spare).or_else(|_| blob.try_reserve_exact(more))?;
                }
                blob.resize(len, 0);
                return Ok(self.records.bytes_mut(found.record));
            }
            if same_length {
                return Ok(self.records.bytes_mut(found.record));
            }
        }
        let decimal;
        let old = match found.map(|found| self.value(found)) {
            Some(Value::Bytes(bytes)) => bytes,
            Some(Value::Integer(number)) => {
                decimal = Decimal::new(number);
                decimal.as_bytes()
            }
            None => &[],
        };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        bytes.extend_from_slice(&old[..old.len().min(len)]);
        bytes.resize(len, 0);
        self.set(key, Owned::Raw(bytes), Expiry::Keep, now_ms)?;
        let (_, record) = self.lookup(key);
        Ok(self.records.bytes_mut(record.expect("it was just set")))
    }

    /// Removes a key.
    pub fn remove(&mut self, found: Found) {
        let Db { records, index, volatile, .. } = self;
        if records.expires_ms(found.record).is_some() {
            volatile.remove(found.hash, found.record, records);
        }
        index.remove(found.hash, found.record, records);
        self.untrack_fields(found.hash, found.record);
        self.free(found.record);
    }
}
