//! What is remembered of the use of keys.

use super::{Db, Found};
use crate::{
    slab::Ref,
    usage::{Usage, UsePolicy},
};

impl Db {
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
}
