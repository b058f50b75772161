//! Connections by their addresses.

use crate::ends::FlowKey;
use core::hash::Hasher;
use hashbrown::HashTable;
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
        // `entry` would make room for one more first, and end a guest that has no memory for a larger table.
        if let Ok(entry) = self.table.find_entry(hash(self.key, &flow), |entry| entry.0 == flow) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Ends;
    use core::net::Ipv4Addr;

    /// Where a guest has no memory left, connections have to end all the same.
    #[test]
    fn a_full_table_does_not_grow_for_what_leaves_it() {
        let ends = Ends::V4 { own: Ipv4Addr::new(192, 0, 2, 1), remote: Ipv4Addr::new(192, 0, 2, 2) };
        let flow = |remote_port| FlowKey { ends, remote_port, local_port: 6379 };
        let mut flows = Flows::new((1, 2));
        let mut count = 0;
        while count < 448 || flows.table.len() < flows.table.capacity() {
            assert!(flows.insert(flow(count), count.into()));
            count += 1;
        }
        let capacity = flows.table.capacity();
        flows.remove(flow(7));
        assert!(flows.table.capacity() <= capacity);
        assert_eq!((flows.get(&flow(7)), flows.get(&flow(8))), (None, Some(8)));
    }
}
