//! Connections by their numbers, in pieces that are allocated as more connections come.

use alloc::vec::Vec;

/// Entries that are allocated together.
const CHUNK: usize = 32;

/// A table whose entries keep their numbers, the lowest free ones of which are given out again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    len: usize,
    limit: usize,
}

impl<T> Slab<T> {
    /// A table for at most `limit` entries.
    pub fn new(limit: usize) -> Slab<T> {
        Slab { chunks: Vec::new(), free: Vec::new(), len: 0, limit }
    }

    pub fn is_full(&self) -> bool {
        self.len == self.limit
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Numbers that may be in use: those below this.
    pub fn end(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.chunks.get(number as usize / CHUNK)?[number as usize % CHUNK].as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.chunks.get_mut(number as usize / CHUNK)?[number as usize % CHUNK].as_mut()
    }

    /// The number of a new entry, or `None` if there are too many or there is no memory.
    pub fn insert(&mut self, entry: T) -> Option<u32> {
        if self.is_full() || self.free.is_empty() && !self.grow() {
            return None;
        }
        let number = self.free.pop()?;
        self.chunks[number as usize / CHUNK][number as usize % CHUNK] = Some(entry);
        self.len += 1;
        Some(number)
    }

    fn grow(&mut self) -> bool {
        let mut chunk = Vec::new();
        if chunk.try_reserve_exact(CHUNK).is_err() || self.chunks.try_reserve(1).is_err() {
            return false;
        }
        // Room for all numbers at once: giving one back must not need memory.
        let first = self.end();
        if self.free.try_reserve(first as usize + CHUNK).is_err() {
            return false;
        }
        chunk.resize_with(CHUNK, || None);
        self.chunks.push(chunk);
        self.free.extend((first..first + CHUNK as u32).rev());
        true
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let entry = self.chunks.get_mut(number as usize / CHUNK)?[number as usize % CHUNK].take()?;
        self.free.push(number);
        self.len -= 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_out_again() {
        let mut slab = Slab::new(70);
        let numbers: Vec<u32> = core::iter::from_fn(|| slab.insert('a')).collect();
        assert!(numbers.iter().copied().eq(0..70));
        assert_eq!(slab.remove(33), Some('a'));
        assert_eq!((slab.remove(33), slab.get(33), slab.get(1000)), (None, None, None));
        assert_eq!(slab.insert('b'), Some(33));
        assert_eq!((slab.insert('c'), slab.get(33), slab.len()), (None, Some(&'b'), 70));
    }
}
