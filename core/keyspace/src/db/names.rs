//! The names of keys that something has happened to.

use crate::record::copied;
use alloc::vec::Vec;

/// The names of keys that something has happened to, noted while somebody wants to know them.
#[derive(Debug)]
pub struct Names(Option<Vec<Vec<u8>>>);

impl Names {
    /// None are noted yet.
    pub(super) const fn new() -> Names {
        Names(None)
    }

    /// Notes names from now on, for [`take`](Self::take).
    pub fn note(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Whether there are names for [`take`](Self::take).
    #[inline]
    pub fn has_any(&self) -> bool {
        self.0.as_ref().is_some_and(|names| !names.is_empty())
    }

    /// The names since the last call. From now on none are noted.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.0.take().unwrap_or_default()
    }

    /// Notes a name if somebody wants to know it and there is memory for it.
    #[inline]
    pub(super) fn add(&mut self, key: &[u8]) {
        if let Some(names) = &mut self.0
            && let Ok(name) = copied(key)
            && names.try_reserve(1).is_ok()
        {
            names.push(name);
        }
    }
}
