//! A vector that grows without ever moving what it holds.

use crate::OutOfMemory;
use alloc::vec::Vec;

/// Elements in one segment.
const SEGMENT: usize = 1024;
/// Elements for which room is made at once.
const LEAST_STEP: usize = 16;
const MOST_STEP: usize = SEGMENT / 8;

/// A growable array in segments, so that neither growth nor shrinking copies more than one of them.
pub struct Segmented<T> {
    segments: Vec<Vec<T>>,
    len: usize,
}

impl<T> Segmented<T> {
    pub const fn new() -> Segmented<T> {
        Segmented { segments: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends one element.
    pub fn push(&mut self, element: T) -> Result<(), OutOfMemory> {
        if self.len == self.segments.len() * SEGMENT {
            self.segments.try_reserve(1)?;
            self.segments.push(Vec::new());
        }
        let last = &mut self.segments[self.len / SEGMENT];
        if last.len() == last.capacity() {
            // A small database must stay small, and one that grows must not need much at once.
            last.try_reserve_exact(last.len().clamp(LEAST_STEP, MOST_STEP))?;
        }
        last.push(element);
        self.len += 1;
        Ok(())
    }

    /// Removes the last element.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.segments.last_mut()?;
        let element = last.pop()?;
        if last.is_empty() {
            self.segments.pop();
        }
        self.len -= 1;
        Some(element)
    }

    /// Drops the last elements, as many as one step of memory holds. Returns whether there were any.
    pub fn drop_segment(&mut self) -> bool {
        let dropped = self.segments.pop();
        self.len -= dropped.as_ref().map_or(0, Vec::len);
        dropped.is_some()
    }
}

impl<T> core::ops::Index<usize> for Segmented<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.segments[at / SEGMENT][at % SEGMENT]
    }
}

impl<T> core::ops::IndexMut<usize> for Segmented<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.segments[at / SEGMENT][at % SEGMENT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_over_segment_borders() {
        let mut array = Segmented::new();
        for i in 0..5000 {
            array.push(i).unwrap();
        }
        assert!((0..5000).all(|i| array[i] == i));
        for i in (0..5000).rev() {
            assert_eq!(array.pop(), Some(i));
        }
        assert_eq!((array.pop(), array.len()), (None, 0));
        array.push(7).unwrap();
        assert_eq!(array[0], 7);
    }
}
