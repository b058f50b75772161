//! Connections by their addresses.

use crate::ends::FlowKey;
use core::hash::Hasher;
use hashbrown::{HashTable, hash_table::Entry};
use siphasher::sip::SipHasher13;

/// A hash table under a secret key: whoever chooses ports cannot choose where they collide.
#[derive(Debug)]
pub(crate) struct Flows {
    table: HashTable<(FlowKey, u32)>,
    key: (u64, u64),
}

impl Flows {
    pub fn new(key: (u64, u64)) -> Flows {
        Flows { table: HashTable::new(), key }
    }

    #[inline]
    pub fn get(&self, flow: &FlowKey) -> Option<u32> {
        self.table.find(hash(self.key, flow), |entry| entry.0 == *flow).map(|entry| entry.1)
    }

    /// Adds a connection whose addresses are not there. Returns whether there was memory for it.
    pub fn insert(&mut self, flow: FlowKey, number: u32) -> bool {
        let key = self.key;
        if self.table.try_reserve(1, |entry| hash(key, &entry.0)).is_err() {
            return false;
        }
        self.table.insert_unique(hash(key, &flow), (flow, number), |entry| hash(key, &entry.0));
        true
    }

    pub fn remove(&mut self, flow: FlowKey) {
        let key = self.key;
        let entry = self.table.entry(hash(key, &flow), |entry| entry.0 == flow, |entry| hash(key, &entry.0));
        if let Entry::Occupied(entry) = entry {
            entry.remove();
        }
    }
}

#[inline]
fn hash(key: (u64, u64), flow: &FlowKey) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    flow.hash(&mut hasher);
    hasher.finish()
}
