//! Changing a collection in place: it is taken out of its record, changed, and put back in the form that fits it now.

use crate::{
    Db, Expiry, Found, Kind, OutOfMemory, Packed, Records,
    record::{Form, Stored, copied},
    value::Data,
};
use alloc::vec::Vec;

/// A value that has members.
pub trait Collection: Default {
    /// What `TYPE` calls it.
    const KIND: Kind;

    /// One in its packed form.
    fn from_packed(packed: Packed) -> Self;

    /// One in another form, which is of this kind.
    fn from_data(data: Data) -> Self;

    /// To be put back: [`Data::Bytes`] for the packed form.
    fn into_data(self) -> Data;

    /// Whether it has no member. Such a key does not exist.
    fn is_empty(&self) -> bool;
}

/// Up to which size a collection is packed, by the `*-max-listpack-*` options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLimits {
    /// Most entries (pairs, for those that have pairs).
    pub entries: usize,
    /// Longest entry in bytes.
    pub entry_bytes: usize,
}

/// What a change led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit<R> {
    /// What the change returned.
    pub result: R,
    /// Whether the last member went, and the key with it.
    pub is_gone: bool,
}

/// A collection whose data was taken out of its record.
pub(crate) fn taken<C: Collection>(data: Data) -> C {
    match data {
        Data::Bytes(bytes) => C::from_packed(Packed::from_vec(bytes)),
        data => C::from_data(data),
    }
}

impl Db {
    /// Changes the collection at `key`, which is of this kind, or makes one where nothing was `found`. A key that is left
    /// without members is removed. If there is no memory for what came of a small collection, it stays as it was; a large
    /// one keeps what was done until then.
    pub fn edit<C: Collection, R>(
        &mut self,
        key: &[u8],
        found: Option<Found>,
        now_ms: u64,
        change: impl FnOnce(&mut C, &mut Records) -> Result<R, OutOfMemory>,
    ) -> Result<Edit<R>, OutOfMemory> {
        let Some(found) = found else {
            let mut collection = C::default();
            let result = self.change(&mut collection, change)?;
            let is_gone = collection.is_empty();
            if !is_gone {
                self.put(key, collection, Expiry::Never, now_ms)?;
            }
            return Ok(Edit { result, is_gone });
        };
        let record = found.record;
        assert_eq!(self.records.kind(record), C::KIND);
        if let Some(place) = self.records.data_mut(record) {
            let mut collection: C = taken(core::mem::replace(place, Data::Bytes(Vec::new())));
            let result = change(&mut collection, &mut self.records);
            let is_gone = collection.is_empty();
            *self.records.data_mut(record).expect("its place was kept") = collection.into_data();
            if C::KIND == Kind::Hash {
                self.track_fields(found.hash, record);
            }
            if is_gone {
                self.remove(found);
            }
            return Ok(Edit { result: result?, is_gone });
        }
        let Stored::Bytes(bytes) = self.records.stored(record) else { unreachable!("a collection is no integer") };
        let mut collection = C::from_packed(Packed::from_vec(copied(bytes)?));
        let result = self.change(&mut collection, change)?;
        if collection.is_empty() {
            self.remove(found);
            return Ok(Edit { result, is_gone: true });
        }
        match collection.into_data() {
            Data::Bytes(bytes) if self.records.overwrite_bytes(record, &bytes) => {}
            data => {
                let (expires_ms, used) = (self.records.expires_ms(record), self.records.use_field(record));
                let new = self.create(key, C::KIND, data, expires_ms, used)?;
                self.install(found.hash, Some(record), new)?;
            }
        }
        Ok(Edit { result, is_gone: false })
    }

    /// Changes a collection that is in no record; it is freed if that fails.
    fn change<C: Collection, R>(
        &mut self,
        collection: &mut C,
        change: impl FnOnce(&mut C, &mut Records) -> Result<R, OutOfMemory>,
    ) -> Result<R, OutOfMemory> {
        change(collection, &mut self.records).inspect_err(|_| self.discard(core::mem::take(collection).into_data()))
    }

    /// Gives a key a collection, which has members, whatever it had before.
    pub fn put<C: Collection>(
        &mut self,
        key: &[u8],
        collection: C,
        expiry: Expiry,
        now_ms: u64,
    ) -> Result<(), OutOfMemory> {
        assert!(!collection.is_empty());
        let (hash, mut old) = self.lookup(key);
        let expires_ms = self.new_expiry(hash, &mut old, expiry, now_ms);
        let used = self.new_use(old, now_ms);
        let new = self.create(key, C::KIND, collection.into_data(), expires_ms, used)?;
        self.install(hash, old, new)
    }

    /// Makes a collection outside of any key, for [`put`](Self::put). It is freed if that fails.
    pub fn build<C: Collection>(
        &mut self,
        fill: impl FnOnce(&mut C, &mut Records) -> Result<(), OutOfMemory>,
    ) -> Result<C, OutOfMemory> {
        let mut collection = C::default();
        self.change(&mut collection, fill)?;
        Ok(collection)
    }

    /// The records, for looking into a collection that no key has.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Frees a collection that no key has.
    pub fn drop_built<C: Collection>(&mut self, collection: C) {
        self.discard(collection.into_data());
    }

    /// Makes a record of a collection, or frees it.
    pub(crate) fn create(
        &mut self,
        key: &[u8],
        kind: Kind,
        data: Data,
        expires_ms: Option<u64>,
        used: u32,
    ) -> Result<crate::slab::Ref, OutOfMemory> {
        if let Data::Bytes(bytes) = &data
            && crate::record::fits(key, bytes.len())
        {
            return self.records.create_bytes(key, kind, bytes, expires_ms, used);
        }
        let created = self.records.create_object(key, Form { kind, is_edited: false }, data, expires_ms, used);
        created.map_err(|(error, data)| {
            self.discard(data);
            error
        })
    }
}
