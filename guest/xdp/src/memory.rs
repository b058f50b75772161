//! Memory that another side reads and writes at the same time.

use core::{
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

    /// The bytes of a frame that is this side's.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: 1. the bytes lie within the memory. 2. The caller knows that the frame is this side's, so the other
        // leaves it alone; should it not, then it changes bytes that are read as those of a stranger anyway.
        unsafe { core::slice::from_raw_parts(self.pointer(offset, len), len) }
    }

    /// The bytes of a frame that is this side's, to be written.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; that nothing else of this side uses them, the exclusive borrow says.
        unsafe { core::slice::from_raw_parts_mut(self.pointer(offset, len), len) }
    }
}
