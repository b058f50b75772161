//! A set of records of its own within a database: the members of a large set, the fields of a large hash.
//!
//! A member is a record like a key's, in the same slab: its key is the member or field, its value the field's value.

use crate::{
    OutOfMemory,
    index::Index,
    record::{PAGE_COST, Records},
    slab::Ref,
    value::{Owned, Value},
};
use alloc::vec::Vec;

/// Members, found by name.
pub struct Table {
    pub(crate) index: Index,
}

/// Where the records that a copy is made of come from, and where they go.
pub enum Copying<'a> {
    /// Within one database.
    Within(&'a mut Records),
    /// From one database to another one.
    Across(&'a Records, &'a mut Records),
}

impl Copying<'_> {
    pub fn to(&mut self) -> &mut Records {
        match self {
            Copying::Within(records) => records,
            Copying::Across(_, to) => to,
        }
    }

    /// Copies one record.
    pub fn record(&mut self, record: Ref) -> Result<Ref, OutOfMemory> {
        match self {
            Copying::Within(records) => records.copy(record),
            Copying::Across(from, to) => to.copy_from(from, record),
        }
    }
}

impl Table {
    pub const fn new() -> Table {
        Table { index: Index::new() }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn find(&self, records: &Records, name: &[u8]) -> Option<Ref> {
        self.find_hashed(records, records.hash(name), name)
    }

    /// The same for a name whose hash is known.
    pub fn find_hashed(&self, records: &Records, hash: u64, name: &[u8]) -> Option<Ref> {
        self.index.find(hash, |record| records.key(record) == name)
    }

    /// Adds a record that the caller has made of a member that is not there yet.
    pub fn add(&mut self, records: &Records, hash: u64, record: Ref) -> Result<(), OutOfMemory> {
        self.index.insert(hash, record, records)
    }

    /// Gives a member a value. Returns its record and whether it is new.
    pub fn set(&mut self, records: &mut Records, name: &[u8], value: Owned) -> Result<(Ref, bool), OutOfMemory> {
        let hash = records.hash(name);
        let old = self.index.find(hash, |record| records.key(record) == name);
        if let Some(old) = old
            && records.overwrite(old, &value, None, 0)
        {
            return Ok((old, false));
        }
        let new = records.create(name, value, None, 0)?;
        match old {
            Some(old) => {
                self.index.replace(hash, old, new);
                records.free(old);
            }
            None => {
                let inserted = self.index.insert(hash, new, records);
                inserted.inspect_err(|_| records.free(new))?;
            }
        }
        Ok((new, old.is_none()))
    }

    /// Puts a member's new record, of the same name, in place of its old one, which is the caller's to free.
    pub fn replace(&mut self, records: &Records, old: Ref, new: Ref) {
        self.index.replace(records.hash_of(old), old, new);
    }

    /// Adds a member without a value. Returns whether it is new.
    pub fn insert(&mut self, records: &mut Records, name: &[u8]) -> Result<bool, OutOfMemory> {
        let hash = records.hash(name);
        if self.index.find(hash, |record| records.key(record) == name).is_some() {
            return Ok(false);
        }
        let new = records.create(name, Owned::Text(b""), None, 0)?;
        let inserted = self.index.insert(hash, new, records);
        inserted.inspect_err(|_| records.free(new))?;
        Ok(true)
    }

    /// Removes a member that is there.
    pub fn remove_record(&mut self, records: &mut Records, record: Ref) {
        self.index.remove(records.hash_of(record), record, records);
        records.free(record);
    }

    /// Takes a member out. Its record is the caller's to free.
    pub fn take(&mut self, records: &Records, name: &[u8]) -> Option<Ref> {
        let hash = records.hash(name);
        let record = self.index.find(hash, |record| records.key(record) == name)?;
        self.index.remove(hash, record, records);
        Some(record)
    }

    /// Removes a member. Returns whether it was there.
    pub fn remove(&mut self, records: &mut Records, name: &[u8]) -> bool {
        let record = self.take(records, name);
        if let Some(record) = record {
            records.free(record);
        }
        record.is_some()
    }

    /// Visits one bucket at `cursor` and returns the cursor that continues, as [`Index::scan`] does.
    pub fn scan(&self, cursor: u64, visit: &mut dyn FnMut(Ref)) -> u64 {
        self.index.scan(cursor, visit)
    }

    /// A random member, each as likely as any other.
    pub fn random(&self, rng: &mut fastrand::Rng) -> Option<Ref> {
        self.index.random(rng)
    }

    /// So many different random members, or all if there are not so many; each such choice is as likely as any other one.
    pub fn sample(&self, rng: &mut fastrand::Rng, count: usize) -> Result<Vec<Ref>, OutOfMemory> {
        /// From such a part of all members on, taking some away from all is quicker than drawing until enough differ.
        const PART: usize = 3;
        let count = count.min(self.len());
        let mut chosen = Vec::new();
        if count * PART >= self.len() {
            chosen.try_reserve_exact(self.len())?;
            chosen.extend(self.iter());
            for at in 0..count {
                let other = rng.usize(at..chosen.len());
                chosen.swap(at, other);
            }
            chosen.truncate(count);
            return Ok(chosen);
        }
        chosen.try_reserve_exact(count)?;
        while chosen.len() < count {
            let missing = count - chosen.len();
            chosen.extend((0..missing).filter_map(|_| self.random(rng)));
            chosen.sort_unstable();
            chosen.dedup();
        }
        // The order of their places is no order to show.
        rng.shuffle(&mut chosen);
        Ok(chosen)
    }

    /// All members, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Ref> {
        self.index.iter()
    }

    /// Bytes of the index and of all members.
    pub fn bytes(&self, records: &Records) -> usize {
        self.index.bytes() + self.iter().map(|record| records.bytes(record)).sum::<usize>()
    }

    /// A copy with copies of all members.
    pub fn copy(&self, copying: &mut Copying<'_>) -> Result<Table, OutOfMemory> {
        let mut copy = Table::new();
        for record in self.iter() {
            let copied = copying.record(record).and_then(|new| {
                let records = copying.to();
                let hash = records.hash_of(new);
                copy.index.insert(hash, new, records).inspect_err(|_| records.free(new))
            });
            if let Err(error) = copied {
                copy.free(copying.to(), usize::MAX);
                return Err(error);
            }
        }
        Ok(copy)
    }

    /// Frees about `limit` members. Returns what is left of that number, if no member is left. A table of which some are
    /// freed is good for nothing else.
    pub fn free(&mut self, records: &mut Records, limit: usize) -> Option<usize> {
        let mut budget = limit;
        while budget > 0 {
            let (mut freed, pages) = (0, records.pages());
            let dropped = self.index.drop_bucket(&mut |record| {
                records.free(record);
                freed += 1;
            });
            if !dropped {
                // What is left of the index.
                if !self.index.drop_segment() {
                    return Some(budget);
                }
                freed = PAGE_COST;
            }
            // Members lie anywhere, so most pages become empty with the last of them.
            freed += (pages - records.pages()) * PAGE_COST;
            budget = budget.saturating_sub(freed + 1);
        }
        None
    }
}

/// A member's name and value.
pub fn member(records: &Records, record: Ref) -> (&[u8], Value<'_>) {
    (records.key(record), records.value(record))
}
