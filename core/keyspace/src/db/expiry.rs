//! Keys whose time comes.

use super::{Db, Expiry, Found};
use crate::{OutOfMemory, slab::Ref};
use alloc::vec::Vec;

/// What one slice of active expiry did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Keys with an expiry that were looked at.
    pub examined: usize,
    /// Those among them that had expired and were removed.
    pub expired: usize,
}

impl Db {
    /// Removes a key whose time has come.
    pub(super) fn remove_expired(&mut self, found: Found) {
        self.expired_names.add(self.records.key(found.record));
        self.remove(found);
    }

    /// Whether a key is there whose time has come.
    pub fn is_expired_key(&self, key: &[u8], now_ms: u64) -> bool {
        self.lookup(key).1.is_some_and(|record| self.is_expired(record, now_ms))
    }

    pub(super) fn is_expired(&self, record: Ref, now_ms: u64) -> bool {
        self.records.expires_ms(record).is_some_and(|at| at < now_ms) && !self.shows_expired
    }

    /// How many keys [`find`](Self::find) has removed since the last call.
    pub fn take_lazily_expired(&mut self) -> u64 {
        core::mem::take(&mut self.lazily_expired)
    }

    /// When a key expires, in milliseconds since 1970.
    pub fn expires_ms(&self, found: Found) -> Option<u64> {
        self.records.expires_ms(found.record)
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

    /// The expiry of a key that is given a new value. An old one whose time has come goes first, unless such keys stay.
    pub(crate) fn new_expiry(&mut self, hash: u64, old: &mut Option<Ref>, expiry: Expiry, now_ms: u64) -> Option<u64> {
        let mut old_ms = old.and_then(|old| self.records.expires_ms(old));
        if old_ms.is_some_and(|at| at < now_ms && !self.shows_expired) {
            old_ms = None;
            self.lazily_expired += 1;
            if let Some(record) = old.take_if(|_| !self.keeps_expired) {
                self.remove_expired(Found { record, hash });
            }
        }
        match expiry {
            Expiry::Never => None,
            Expiry::At(at) => Some(at),
            // One that has passed went with the old value.
            Expiry::Keep => old_ms,
        }
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
