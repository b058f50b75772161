//! Memory that another side reads and writes at the same time.

use core::{
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64},
};

/// A piece of memory that is shared with the kernel, for as long as the program runs.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: whoever made it has promised that nothing else in this program uses the memory, whichever thread it is in.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Takes memory into use.
    ///
    /// # Safety
    ///
    /// 1. `len` bytes from `start` on can be read and written for as long as the program runs.
    /// 2. Nothing else in this program reads or writes them but as the other side of the rings.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> SharedMemory {
        SharedMemory { start, len }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing of it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of its first bytes.
    pub fn read<const N: usize>(&self) -> [u8; N] {
        let pointer = self.pointer(0, N);
        // SAFETY: that many bytes lie there, and every pattern is a value. Volatile, because the other side may write.
        unsafe { pointer.cast::<[u8; N]>().read_volatile() }
    }

    /// Cuts it in two.
    pub(crate) fn split_at(self, at: usize) -> (SharedMemory, SharedMemory) {
        let second = self.pointer(at, self.len - at);
        let second = NonNull::new(second).expect("no place within memory is null");
        (SharedMemory { start: self.start, len: at }, SharedMemory { start: second, len: self.len - at })
    }

    /// Whether a field of `bytes` bytes at `offset` lies in it, aligned to its size.
    pub(crate) fn has_field(&self, offset: usize, bytes: usize) -> bool {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len);
        is_inside && (self.start.as_ptr() as usize).wrapping_add(offset).is_multiple_of(bytes)
    }

    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset <= self.len && bytes <= self.len - offset, "within the memory");
        // SAFETY: the sum lies within the memory, as has just been checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The 32 bits at `offset`, which [`has_field`](Self::has_field) has been asked about.
    #[inline]
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        let pointer = self.pointer(offset, 4);
        debug_assert!(pointer.cast::<u32>().is_aligned());
        // SAFETY: 1. four bytes lie there, for ever. 2. The layout was checked to be aligned. 3. Both sides use atomic
        // accesses there.
        unsafe { AtomicU32::from_ptr(pointer.cast()) }
    }

    /// The 64 bits at `offset`, which [`has_field`](Self::has_field) has been asked about.
    #[inline]
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        let pointer = self.pointer(offset, 8);
        debug_assert!(pointer.cast::<u64>().is_aligned());
        // SAFETY: as in `u32`, with eight bytes.
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
    }

    /// Copies the bytes from `offset` on, whatever the other side does to them meanwhile.
    #[inline(never)]
    pub(crate) fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let from = self.pointer(offset, to.len());
        let (words, rest) = word_parts(from, to.len());
        let (head, to) = to.split_at_mut(words.start);
        let (middle, tail) = to.split_at_mut(words.len());
        // SAFETY: each place lies within the memory, as has just been checked, and those of words are aligned. Volatile,
        // and no reference, because the other side may write.
        let byte = |at: usize| unsafe { from.add(at).read_volatile() };
        head.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
        for (at, to) in words.clone().step_by(WORD_BYTES).zip(middle.chunks_exact_mut(WORD_BYTES)) {
            // SAFETY: as above.
            to.copy_from_slice(&unsafe { from.add(at).cast::<u64>().read_volatile() }.to_ne_bytes());
        }
        rest.zip(tail).for_each(|(at, to)| *to = byte(at));
    }

    /// Writes bytes from `offset` on.
    #[inline(never)]
    pub(crate) fn copy_from(&mut self, offset: usize, from: &[u8]) {
        let to = self.pointer(offset, from.len());
        let (words, rest) = word_parts(to, from.len());
        let (head, from) = from.split_at(words.start);
        let (middle, tail) = from.split_at(words.len());
        // SAFETY: as in `copy_to`.
        let put = |at: usize, byte: u8| unsafe { to.add(at).write_volatile(byte) };
        head.iter().enumerate().for_each(|(at, byte)| put(at, *byte));
        for (at, word) in words.clone().step_by(WORD_BYTES).zip(middle.chunks_exact(WORD_BYTES)) {
            let word = u64::from_ne_bytes(word.try_into().expect("chunks of a word"));
            // SAFETY: as in `copy_to`.
            unsafe { to.add(at).cast::<u64>().write_volatile(word) };
        }
        rest.zip(tail).for_each(|(at, byte)| put(at, *byte));
    }
}

const WORD_BYTES: usize = size_of::<u64>();

/// Of so many bytes at `pointer`, those that are whole aligned words, and those behind them.
#[inline]
fn word_parts(pointer: *const u8, len: usize) -> (Range<usize>, Range<usize>) {
    let start = (pointer as usize).wrapping_neg() % WORD_BYTES;
    let start = start.min(len);
    let end = start + (len - start) / WORD_BYTES * WORD_BYTES;
    (start..end, end..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{boxed::Box, vec, vec::Vec};

    #[test]
    fn every_length_at_every_place_is_copied_and_nothing_beside_it() {
        const BYTES: usize = 48;
        let start = NonNull::from(Box::leak(vec![0u64; BYTES / 8].into_boxed_slice())).cast();
        // SAFETY: the memory is leaked, and used by nothing else.
        let mut memory = unsafe { SharedMemory::new(start, BYTES) };
        let pattern: Vec<u8> = (1..=BYTES as u8).collect();
        for at in 0..10 {
            for len in 0..BYTES - at {
                memory.copy_from(0, &[0; BYTES]);
                memory.copy_from(at, &pattern[..len]);
                let mut all = [0; BYTES];
                memory.copy_to(0, &mut all);
                assert_eq!(all[at..at + len], pattern[..len]);
                assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0), "{len} bytes at {at}");
                let mut part = vec![0; len];
                memory.copy_to(at, &mut part);
                assert_eq!(part, pattern[..len]);
            }
        }
    }
}
