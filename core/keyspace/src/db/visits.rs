//! Keys that nobody names: all of them, and random ones.

use super::{Db, Found};
use crate::value::Kind;

impl Db {
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
}
