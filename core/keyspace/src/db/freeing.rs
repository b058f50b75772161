//! Freeing what was removed, and whole databases, in slices.

use super::Db;
use crate::{index::Index, record::PAGE_COST, slab::Ref, value::Data};

/// Members of a value that are freed at once, as it is removed. The rest of a larger one waits for
/// [`Db::free_slice`].
const FREED_AT_ONCE: usize = 64;

impl Db {
    /// Frees a record with all that it refers to, at once or soon.
    pub(super) fn free(&mut self, record: Ref) {
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
}
