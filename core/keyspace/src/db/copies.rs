//! Keys under other names and in other databases.

use super::{Db, Expiry, Found};
use crate::{OutOfMemory, slab::Ref, table::Copying, value::Data};
use alloc::vec::Vec;

impl Db {
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
        let (hash, mut old) = self.lookup(to);
        self.new_expiry(hash, &mut old, Expiry::Never, now_ms);
        self.install_anew(hash, old, new)
    }

    /// Installs a key that is a new one also where another makes way for it.
    fn install_anew(&mut self, hash: u64, old: Option<Ref>, new: Ref) -> Result<(), OutOfMemory> {
        self.install(hash, old, new)?;
        if old.is_some() {
            self.new_names.add(self.records.key(new));
        }
        Ok(())
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
        let (hash, mut old) = other.lookup(to);
        other.new_expiry(hash, &mut old, Expiry::Never, now_ms);
        other.install_anew(hash, old, new)
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
        let (hash, mut old) = self.lookup(to);
        self.new_expiry(hash, &mut old, Expiry::Never, now_ms);
        self.install_anew(hash, old, new)?;
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
}
