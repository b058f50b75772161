//! What the store notes about keys, whether they are there or not: who watches them, who waits for them.

use crate::{Error, args};
use alloc::{collections::BTreeMap, vec::Vec};

/// Notes by database and key.
pub struct PerKey<T> {
    dbs: BTreeMap<usize, BTreeMap<Vec<u8>, T>>,
}

impl<T> Default for PerKey<T> {
    fn default() -> PerKey<T> {
        PerKey { dbs: BTreeMap::new() }
    }
}

impl<T: Default> PerKey<T> {
    /// Whether there is no note at all.
    pub fn is_empty(&self) -> bool {
        self.dbs.is_empty()
    }

    /// Number of keys that there is a note about.
    pub fn len(&self) -> usize {
        self.dbs.values().map(BTreeMap::len).sum()
    }

    /// The note about a key.
    pub fn get(&self, db: usize, key: &[u8]) -> Option<&T> {
        self.dbs.get(&db)?.get(key)
    }

    #[allow(missing_docs)]
    pub fn get_mut(&mut self, db: usize, key: &[u8]) -> Option<&mut T> {
        self.dbs.get_mut(&db)?.get_mut(key)
    }

    /// The note about a key, made if there is none.
    pub fn of(&mut self, db: usize, key: &[u8]) -> Result<&mut T, Error> {
        let notes = self.dbs.entry(db).or_default();
        if !notes.contains_key(key) {
            notes.insert(args::copied(key)?, T::default());
        }
        Ok(notes.get_mut(key).expect("it was just made"))
    }

    /// Forgets the note about a key.
    pub fn remove(&mut self, db: usize, key: &[u8]) {
        if let Some(notes) = self.dbs.get_mut(&db) {
            notes.remove(key);
            if notes.is_empty() {
                self.dbs.remove(&db);
            }
        }
    }

    /// The notes about keys of one database.
    pub fn in_db(&self, db: usize) -> impl Iterator<Item = (&Vec<u8>, &T)> {
        self.dbs.get(&db).into_iter().flatten()
    }
}
