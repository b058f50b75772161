use crate::{
    Decimal, OutOfMemory,
    index::Index,
    record::{PAGE_COST, Records},
    slab::Ref,
    table::Copying,
    usage::{Usage, UsePolicy},
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

/// What one slice of active expiry did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Keys with an expiry that were looked at.
    pub examined: usize,
    /// Those among them that had expired and were removed.
    pub expired: usize,
}

/// The names of keys that something has happened to, noted while somebody wants to know them.
#[derive(Debug)]
pub struct Names(Option<Vec<Vec<u8>>>);

impl Names {
    /// Notes names from now on, for [`take`](Self::take).
    pub fn note(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Whether there are names for [`take`](Self::take).
    #[inline]
    pub fn has_any(&self) -> bool {
        self.0.as_ref().is_some_and(|names| !names.is_empty())
    }

    /// The names since the last call. From now on none are noted.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.0.take().unwrap_or_default()
    }

    /// Notes a name if somebody wants to know it and there is memory for it.
    #[inline]
    fn add(&mut self, key: &[u8]) {
        if let Some(names) = &mut self.0
            && let Ok(name) = crate::record::copied(key)
            && names.try_reserve(1).is_ok()
        {
            names.push(name);
        }
    }
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

/// Members of a value that are freed at once, as it is removed. The rest of a larger one waits for
/// [`Db::free_slice`].
const FREED_AT_ONCE: usize = 64;

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
            expired_names: Names(None),
            new_names: Names(None),
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

    /// Removes a key whose time has come.
    fn remove_expired(&mut self, found: Found) {
        self.expired_names.add(self.records.key(found.record));
        self.remove(found);
    }

    /// Whether a key is there whose time has not come.
    pub fn has(&self, key: &[u8], now_ms: u64) -> bool {
        self.lookup(key).1.is_some_and(|record| !self.is_expired(record, now_ms))
    }

    /// Whether a key is there whose time has come.
    pub fn is_expired_key(&self, key: &[u8], now_ms: u64) -> bool {
        self.lookup(key).1.is_some_and(|record| self.is_expired(record, now_ms))
    }

    fn is_expired(&self, record: Ref, now_ms: u64) -> bool {
        self.records.expires_ms(record).is_some_and(|at| at < now_ms) && !self.shows_expired
    }

    /// How many keys [`find`](Self::find) has removed since the last call.
    pub fn take_lazily_expired(&mut self) -> u64 {
        core::mem::take(&mut self.lazily_expired)
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

    /// When a key expires, in milliseconds since 1970.
    pub fn expires_ms(&self, found: Found) -> Option<u64> {
        self.records.expires_ms(found.record)
    }

    /// Where a key's record lies, as a number that tells records apart.
    pub fn place_of(&self, found: Found) -> u32 {
        found.record.0
    }

    /// Bytes of memory that a key takes, with its share of the index.
    pub fn bytes_of(&self, found: Found) -> usize {
        self.records.bytes(found.record) + self.index.bytes() / self.index.len().max(1)
    }

    /// Notes that a key was used now.
    pub fn touch(&mut self, found: Found, now_ms: u64) {
        let used = self.usage.after_use(|| self.records.use_field(found.record), now_ms);
        self.records.set_use_field(found.record, used);
    }

    /// Says when a key was used last, where that is what is remembered.
    pub fn set_last_use(&mut self, found: Found, last_ms: u64) {
        let field = self.usage.of_last_use(last_ms);
        field.into_iter().for_each(|field| self.records.set_use_field(found.record, field));
    }

    /// Says how often a key is used, where that is what is remembered.
    pub fn set_frequency(&mut self, found: Found, counter: u8, now_ms: u64) {
        let field = self.usage.of_frequency(counter, now_ms);
        field.into_iter().for_each(|field| self.records.set_use_field(found.record, field));
    }

    /// Seconds since a key was last used.
    pub fn idle_s(&self, found: Found, now_ms: u64) -> u32 {
        Usage::idle_s(self.records.use_field(found.record), now_ms)
    }

    /// How often a key is used, on Redis' logarithmic scale, if that is what is remembered.
    pub fn frequency(&self, found: Found, now_ms: u64) -> u8 {
        self.usage.frequency(self.records.use_field(found.record), now_ms)
    }

    /// Changes what is remembered of the use of keys. What was remembered until then is read in the new way.
    pub fn set_use_policy(&mut self, policy: UsePolicy) {
        self.usage.set_policy(policy);
    }

    /// What a key that is given a new value remembers of its use: this one, and what it was before.
    pub(crate) fn new_use(&mut self, old: Option<Ref>, now_ms: u64) -> u32 {
        match old {
            Some(old) => self.usage.after_use(|| self.records.use_field(old), now_ms),
            None => self.usage.of_new(now_ms),
        }
    }

    /// Gives a key a value, whatever it had before.
    pub fn set(&mut self, key: &[u8], value: Owned, expiry: Expiry, now_ms: u64) -> Result<(), OutOfMemory> {
        let (hash, old) = self.lookup(key);
        let expires_ms = self.new_expiry(old, expiry, now_ms);
        let used = self.new_use(old, now_ms);
        if let Some(old) = old
            && self.records.overwrite(old, &value, expires_ms, used)
        {
            return Ok(());
        }
        let new = self.records.create(key, value, expires_ms, used)?;
        self.install(hash, old, new)
    }

    /// The expiry of a key that is given a new value.
    pub(crate) fn new_expiry(&mut self, old: Option<Ref>, expiry: Expiry, now_ms: u64) -> Option<u64> {
        let old_ms = old.and_then(|old| self.records.expires_ms(old));
        let is_over = |at: u64| at < now_ms && !self.shows_expired;
        self.lazily_expired += u64::from(old_ms.is_some_and(is_over));
        match expiry {
            Expiry::Never => None,
            Expiry::At(at) => Some(at),
            // One that has passed went with the old value.
            Expiry::Keep => old_ms.filter(|&at| !is_over(at)),
        }
    }

    /// Frees a record with all that it refers to, at once or soon.
    fn free(&mut self, record: Ref) {
        if let Some(data) = self.records.dissolve(record) {
            self.discard(data);
        }
    }

    /// Frees a value, at once if it is small and otherwise soon.
    pub(crate) fn discard(&mut self, mut data: Data) {
        if data.free(&mut self.records, FREED_AT_ONCE).is_none() {
            match self.garbage.try_reserve(1) {
                Ok(()) => self.garbage.push(data),
                Err(_) => _ = data.free(&mut self.records, usize::MAX),
            }
        }
    }

    /// Frees about `limit` members of large values that were removed. Returns whether there is more to do.
    pub fn free_slice(&mut self, limit: usize) -> bool {
        let mut budget = limit;
        while budget > 0
            && let Some(mut data) = self.garbage.pop()
        {
            match data.free(&mut self.records, budget) {
                // One unit for the value itself, so that many small ones take their time, too.
                Some(left) => {
                    budget = left.saturating_sub(1);
                    self.freed_in_slices += 1;
                }
                None => {
                    self.garbage.push(data);
                    break;
                }
            }
        }
        !self.garbage.is_empty()
    }

    /// Takes down a database that nobody uses any more, in steps of about the time that freeing `limit` members takes.
    /// Returns whether there is more to do.
    pub fn dismantle(&mut self, limit: usize) -> bool {
        let mut budget = limit;
        while budget > 0 {
            if !self.garbage.is_empty() {
                self.free_slice(budget);
                return true;
            }
            let cost = if self.dismantled_places < self.records.object_places() {
                // Members have records and objects of their own, so collections go while those are there.
                let large = self.records.take_large(self.dismantled_places);
                self.dismantled_places += 1;
                large.map_or(1, |large| {
                    self.discard(large);
                    FREED_AT_ONCE
                })
            } else if self.records.drop_object() {
                self.dismantled_places -= 1;
                1
            } else if self.records.drop_page()
                || [&mut self.index, &mut self.volatile, &mut self.expiring].into_iter().any(Index::drop_segment)
            {
                PAGE_COST
            } else {
                return false;
            };
            budget = budget.saturating_sub(cost);
        }
        true
    }

    /// Whether it never had a key, or nothing of any is left.
    pub fn is_unused(&self) -> bool {
        self.overhead_bytes() == 0
    }

    /// Bytes of memory for records that no record takes: other records will.
    pub fn free_bytes(&self) -> usize {
        self.records.free_bytes()
    }

    /// How many large values have been freed in slices so far.
    pub fn freed_in_slices(&self) -> u64 {
        self.freed_in_slices
    }

    /// Number of large values that were removed and not freed yet.
    pub fn garbage_len(&self) -> usize {
        self.garbage.len()
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

    /// Changes when a key expires.
    pub fn set_expires_ms(&mut self, found: Found, expires_ms: Option<u64>) -> Result<(), OutOfMemory> {
        match (self.records.expires_ms(found.record), expires_ms) {
            (None, None) => Ok(()),
            (Some(_), Some(at)) => {
                self.records.set_expires_ms(found.record, at);
                Ok(())
            }
            _ => {
                let new = self.records.move_with_expiry(found.record, expires_ms)?;
                self.install_moved(found, new)
            }
        }
    }

    /// Installs a record that has taken over another one's object.
    fn install_moved(&mut self, found: Found, new: Ref) -> Result<(), OutOfMemory> {
        let Db { records, index, volatile, .. } = self;
        records.inherit_mark(found.record, new);
        if records.expires_ms(new).is_some() {
            if let Err(error) = volatile.insert(found.hash, new, records) {
                records.free_shell(new);
                return Err(error);
            }
        } else {
            volatile.remove(found.hash, found.record, records);
        }
        index.replace(found.hash, found.record, new);
        self.untrack_fields(found.hash, found.record);
        self.track_fields(found.hash, new);
        self.records.free_shell(found.record);
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

    /// Gives another key, in place of whatever has its name, a copy of a key's value and expiry.
    pub fn copy(&mut self, from: Found, to: &[u8], now_ms: u64) -> Result<(), OutOfMemory> {
        let Db { records, .. } = self;
        let data = match records.data_mut(from.record) {
            Some(place) => {
                let data = core::mem::replace(place, Data::Bytes(Vec::new()));
                let copy = data.copy(&mut Copying::Within(records));
                *records.data_mut(from.record).expect("its place was kept") = data;
                Some(copy?)
            }
            None => None,
        };
        let new = match data {
            None => self.copy_inline(from.record, to)?,
            Some(data) => self.create_like(from.record, to, data)?,
        };
        let (hash, old) = self.lookup(to);
        self.new_expiry(old, Expiry::Never, now_ms);
        self.install(hash, old, new)
    }

    /// The same in another database.
    pub fn copy_to(&self, from: Found, other: &mut Db, to: &[u8], now_ms: u64) -> Result<(), OutOfMemory> {
        let form = self.records.form(from.record);
        let (expires_ms, used) = (self.records.expires_ms(from.record), self.records.use_field(from.record));
        let new = match self.records.data(from.record) {
            Some(data) => {
                let copy = data.copy(&mut Copying::Across(&self.records, &mut other.records))?;
                other.records.create_object(to, form, copy, expires_ms, used).map_err(|(error, data)| {
                    other.discard(data);
                    error
                })?
            }
            None => other.records.copy_as(to, &self.records, from.record)?,
        };
        let (hash, old) = other.lookup(to);
        other.new_expiry(old, Expiry::Never, now_ms);
        other.install(hash, old, new)
    }

    /// A record with another key and the value, in place, of this one.
    fn copy_inline(&mut self, record: Ref, key: &[u8]) -> Result<Ref, OutOfMemory> {
        self.records.copy_within(key, record)
    }

    /// A record with another key and value, but otherwise like this one.
    fn create_like(&mut self, record: Ref, key: &[u8], data: Data) -> Result<Ref, OutOfMemory> {
        let records = &mut self.records;
        let (form, expires_ms, used) = (records.form(record), records.expires_ms(record), records.use_field(record));
        records.create_object(key, form, data, expires_ms, used).map_err(|(error, data)| {
            self.discard(data);
            error
        })
    }

    /// Gives a key another name, which must differ, in place of whatever has that name.
    pub fn rename(&mut self, from: Found, to: &[u8], now_ms: u64) -> Result<(), OutOfMemory> {
        let has_object = self.records.data(from.record).is_some();
        let new = if has_object {
            self.create_like(from.record, to, Data::Bytes(Vec::new()))?
        } else {
            self.copy_inline(from.record, to)?
        };
        let (hash, old) = self.lookup(to);
        self.new_expiry(old, Expiry::Never, now_ms);
        self.install(hash, old, new)?;
        if has_object {
            let place = self.records.data_mut(from.record).expect("it has an object");
            let data = core::mem::replace(place, Data::Bytes(Vec::new()));
            *self.records.data_mut(new).expect("it was made with an object") = data;
            self.track_fields(hash, new);
        }
        self.remove(from);
        Ok(())
    }

    /// Moves a key to another database, in place of whatever has its name there.
    pub fn move_to(&mut self, from: Found, other: &mut Db, now_ms: u64) -> Result<(), OutOfMemory> {
        self.copy_to(from, other, self.records.key(from.record), now_ms)?;
        self.remove(from);
        Ok(())
    }

    /// Visits one bucket of keys at `cursor` (0 to begin) and returns the cursor that continues; 0 is the end. A key
    /// that is there from the beginning to the end is visited at least once.
    pub fn scan(&self, cursor: u64, now_ms: u64, mut visit: impl FnMut(&[u8], Kind)) -> u64 {
        self.index.scan(cursor, &mut |record| {
            if !self.is_expired(record, now_ms) {
                visit(self.records.key(record), self.records.kind(record));
            }
        })
    }

    /// Visits keys as [`scan`](Self::scan) does, for a look at all of them.
    pub fn visit(&self, cursor: u64, now_ms: u64, mut visit: impl FnMut(Found)) -> u64 {
        self.index.scan(cursor, &mut |record| {
            if !self.is_expired(record, now_ms) {
                visit(Found { record, hash: self.records.hash_of(record) });
            }
        })
    }

    /// Removes the keys whose time has come from the bucket at `cursor`, as a scan that only reads leaves them.
    pub fn expire_at_cursor(&mut self, cursor: u64, now_ms: u64) -> Result<(), OutOfMemory> {
        if self.volatile_len() == 0 {
            return Ok(());
        }
        let mut due: Vec<Ref> = Vec::new();
        let mut result = Ok(());
        self.index.scan(cursor, &mut |record| {
            if self.is_expired(record, now_ms) {
                match due.try_reserve(1) {
                    Ok(()) => due.push(record),
                    Err(error) => result = Err(error.into()),
                }
            }
        });
        self.lazily_expired += due.len() as u64;
        for record in due {
            let hash = self.records.hash_of(record);
            self.remove_expired(Found { record, hash });
        }
        result
    }

    /// A random key that has not expired. Gives up after so many expired ones that there can hardly be another.
    pub fn random(&mut self, rng: &mut fastrand::Rng, now_ms: u64) -> Option<Found> {
        const ATTEMPTS: usize = 100;
        for _ in 0..ATTEMPTS {
            let record = self.index.random(rng)?;
            let found = Found { record, hash: self.records.hash_of(record) };
            if !self.is_expired(record, now_ms) {
                return Some(found);
            }
            self.remove_expired(found);
            self.lazily_expired += 1;
        }
        None
    }

    /// Looks at keys that have an expiry, about `limit` of them, and removes those whose time has come.
    #[inline(never)]
    pub fn expire_slice(&mut self, now_ms: u64, limit: usize) -> Slice {
        let mut slice = Slice::default();
        let mut due = Vec::new();
        while slice.examined < limit && self.volatile.len() > 0 {
            self.expire_cursor = self.volatile.scan(self.expire_cursor, &mut |record| {
                slice.examined += 1;
                if self.records.expires_ms(record).is_some_and(|at| at < now_ms) {
                    due.push(record);
                }
            });
            slice.expired += due.len();
            for record in due.drain(..) {
                let hash = self.records.hash_of(record);
                self.remove_expired(Found { record, hash });
            }
            if self.expire_cursor == 0 {
                break;
            }
        }
        slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hash, PackedLimits};
    use alloc::{collections::BTreeMap, string::ToString, vec};

    fn shown(db: &Db, found: Found) -> Vec<u8> {
        match db.value(found) {
            Value::Integer(number) => number.to_string().into_bytes(),
            Value::Bytes(bytes) => bytes.to_vec(),
        }
    }

    fn random_value(rng: &mut fastrand::Rng) -> Vec<u8> {
        let len = match rng.u8(..10) {
            0 => return rng.i64(..).to_string().into_bytes(),
            1 => rng.usize(900..1100),
            2 => rng.usize(..5000),
            _ => rng.usize(..80),
        };
        (0..len).map(|_| rng.u8(..)).collect()
    }

    /// Every operation against an ordered map that does the same.
    #[test]
    fn behaves_like_a_map_with_expiry() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut db = Db::new(HashKey(seed, 7));
            let mut model: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)> = BTreeMap::new();
            let mut now = 1_000_000;
            for step in 0..4000 {
                now += rng.u64(..3);
                let number = rng.u32(..300);
                let key =
                    if number.is_multiple_of(10) { vec![number as u8; 600] } else { number.to_string().into_bytes() };
                let context = (seed, step, number);
                model.retain(|_, (_, at)| at.is_none_or(|at| at >= now));
                match rng.u8(..9) {
                    0..3 => {
                        let value = random_value(&mut rng);
                        let at = now + rng.u64(1..500);
                        let (expiry, expected) = match rng.u8(..3) {
                            0 => (Expiry::Never, None),
                            1 => (Expiry::At(at), Some(at)),
                            _ => (Expiry::Keep, model.get(&key).and_then(|(_, at)| *at)),
                        };
                        db.set(&key, Owned::Text(&value), expiry, now).unwrap();
                        model.insert(key.clone(), (value, expected));
                    }
                    3 => {
                        let found = db.find(&key, now);
                        assert_eq!(found.is_some(), model.remove(&key).is_some(), "{context:?}");
                        found.into_iter().for_each(|found| db.remove(found));
                    }
                    4 => {
                        let at = if rng.bool() { Some(now + rng.u64(1..500)) } else { None };
                        if let Some(found) = db.find(&key, now) {
                            db.set_expires_ms(found, at).unwrap();
                            model.get_mut(&key).unwrap().1 = at;
                        }
                    }
                    5 => {
                        let len = rng.usize(..2000);
                        let fill = rng.u8(..);
                        let value = &mut model.entry(key.clone()).or_default().0;
                        value.resize(len, 0);
                        let bytes = db.resize(&key, len, rng.usize(..100), now).unwrap();
                        if let (Some(a), Some(b)) = (bytes.last_mut(), value.last_mut()) {
                            (*a, *b) = (fill, fill);
                        }
                    }
                    6 => _ = db.expire_slice(now, 50),
                    7 => {
                        let to = rng.u32(300..310).to_string().into_bytes();
                        if let Some(found) = db.find(&key, now) {
                            db.rename(found, &to, now).unwrap();
                            let moved = model.remove(&key).unwrap();
                            model.insert(to, moved);
                        }
                    }
                    _ => {}
                }
                match (db.find(&key, now), model.get(&key)) {
                    (Some(found), Some((value, at))) => {
                        assert_eq!((&shown(&db, found), db.expires_ms(found)), (value, *at), "{context:?}");
                        assert_eq!(db.key(found), key);
                    }
                    (None, None) => {}
                    (found, expected) => panic!("{context:?}: {found:?} {expected:?}"),
                }
            }
            let expected: Vec<&Vec<u8>> =
                model.iter().filter(|(_, v)| v.1.is_none_or(|at| at >= now)).map(|(k, _)| k).collect();
            let mut keys = Vec::new();
            let mut cursor = 0;
            loop {
                cursor = db.scan(cursor, now, |key, _| keys.push(key.to_vec()));
                if cursor == 0 {
                    break;
                }
            }
            keys.sort();
            assert_eq!(keys.iter().collect::<Vec<_>>(), expected, "seed {seed}");
            while db.volatile_len() > 0 {
                db.expire_slice(u64::MAX, 100);
            }
            assert_eq!(db.len(), model.values().filter(|v| v.1.is_none()).count());
        }
    }

    #[test]
    fn encodings_are_those_of_redis() {
        let mut db = Db::new(HashKey(0, 0));
        for (value, encoding) in
            [(&b"12"[..], "int"), (b"012", "embstr"), (&[b'x'; 44], "embstr"), (&[b'x'; 45], "raw")]
        {
            db.set(b"k", Owned::Text(value), Expiry::Never, 0).unwrap();
            let found = db.find(b"k", 0).unwrap();
            assert_eq!(db.encoding(found).name(), encoding);
        }
        db.set(b"k", Owned::Text(b"a"), Expiry::Never, 0).unwrap();
        db.resize(b"k", 2, 0, 0).unwrap();
        let found = db.find(b"k", 0).unwrap();
        assert_eq!(db.encoding(found).name(), "raw");
        // A number lies elsewhere beside a long key, and comes from there to a short one.
        let long = [b'k'; 2000];
        for (text, encoding) in [(b"-12", "int"), (b"012", "embstr")] {
            db.set(&long, Owned::Text(text), Expiry::Never, 0).unwrap();
            let found = db.find(&long, 0).unwrap();
            assert_eq!(db.encoding(found).name(), encoding);
            db.rename(found, b"k", 0).unwrap();
            let found = db.find(b"k", 0).unwrap();
            assert_eq!((db.encoding(found).name(), shown(&db, found)), (encoding, text.to_vec()));
        }
        db.set(&long, Owned::Integer(1), Expiry::Never, 0).unwrap();
        db.resize(&long, 1, 0, 0).unwrap()[0] = b'2';
        let found = db.find(&long, 0).unwrap();
        assert_eq!(db.encoding(found).name(), "raw", "it was edited");
    }

    /// However large a database is, each step of taking it down is small, and all of them together free everything.
    #[test]
    fn a_long_string_is_overwritten_in_its_vector() {
        for key in [b"k".to_vec(), vec![b'k'; 2000]] {
            let mut db = Db::new(HashKey(1, 2));
            let mut set = |text: &[u8], expiry| {
                db.set(&key, Owned::Text(text), expiry, 5).unwrap();
                let found = db.find(&key, 5).unwrap();
                (shown(&db, found), db.expires_ms(found), db.encoding(found), db.records.bytes(found.record))
            };
            let long = [b'a'; 4000];
            let (value, expires_ms, encoding, most) = set(&long, Expiry::At(9));
            assert_eq!((value, expires_ms, encoding), (long.to_vec(), Some(9), Encoding::Raw));
            let (value, expires_ms, _, bytes) = set(&long[..2000], Expiry::At(8));
            assert_eq!((value, expires_ms, bytes), (long[..2000].to_vec(), Some(8), most), "the vector stays");
            let (value, expires_ms, _, bytes) = set(&long[..1500], Expiry::Keep);
            assert_eq!((value, expires_ms), (long[..1500].to_vec(), Some(8)));
            assert!(bytes < most - 2000, "of {most} bytes {bytes} are left");
            assert_eq!(set(b"short", Expiry::Never).0, b"short");
            assert_eq!(
                (set(b"8 bytes.", Expiry::Keep).0, set(b"12345678", Expiry::Keep).0),
                (b"8 bytes.".into(), b"12345678".into())
            );
            assert_eq!(set(&long, Expiry::Keep).0, long);
        }
    }

    #[test]
    fn is_taken_down_in_steps() {
        const LIMIT: usize = 256;
        let mut db = Db::new(HashKey(0, 0));
        for number in 0..30_000u32 {
            let expiry = if number % 3 == 0 { Expiry::At(1 << 40) } else { Expiry::Never };
            let text = vec![b'x'; if number % 5 == 0 { 2000 } else { 20 }];
            db.set(&number.to_le_bytes(), Owned::Text(&text), expiry, 0).unwrap();
            let key = [b's', number as u8 % 10];
            let found = db.find(&key, 0);
            let limits = PackedLimits { entries: 100, entry_bytes: 100 };
            let edit = db.edit(&key, found, 0, |hash: &mut Hash, records| {
                hash.set(records, &number.to_le_bytes(), &text, limits)
            });
            edit.unwrap();
        }
        let mut steps = 0;
        while db.dismantle(LIMIT) {
            steps += 1;
        }
        assert!(steps > 100, "{steps}");
        assert_eq!((db.overhead_bytes(), db.garbage_len()), (0, 0));
    }

    #[test]
    fn random_gives_up_on_a_database_of_expired_keys() {
        let mut db = Db::new(HashKey(0, 0));
        for i in 0..50u32 {
            db.set(&i.to_le_bytes(), Owned::Text(b"v"), Expiry::At(10), 0).unwrap();
        }
        assert!(db.random(&mut fastrand::Rng::with_seed(1), 11).is_none());
    }
}
