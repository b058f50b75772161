//! Memory that another side reads and writes at the same time.

use alloc::vec::Vec;
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

    /// Appends a copy of bytes that the other side may be writing.
    pub(crate) fn copy_to(&self, offset: usize, bytes: usize, to: &mut Vec<u8>) {
        let pointer = self.pointer(offset, bytes);
        // SAFETY: each byte lies within those that were looked up. Volatile, because the other side may write.
        to.extend((0..bytes).map(|at| unsafe { pointer.add(at).read_volatile() }));
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

    /// The bytes from `offset` on.
    ///
    /// # Safety
    /// As of [`bytes_mut`](Self::bytes_mut), but there may be other slices that are only read.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(&self, offset: usize, bytes: usize) -> &'a [u8] {
        // SAFETY: that many bytes lie there for ever, and nobody writes to them, as the caller has promised.
        unsafe { core::slice::from_raw_parts(self.pointer(offset, bytes), bytes) }
    }

    /// The bytes from `offset` on, to be written.
    ///
    /// # Safety
    /// The rings must have them be this side's for as long as the slice is used, and there must be no other one of them.
    #[inline]
    pub(crate) unsafe fn bytes_mut<'a>(&self, offset: usize, bytes: usize) -> &'a mut [u8] {
        // SAFETY: that many bytes lie there for ever, and they are nobody else's, as the caller has promised.
        unsafe { core::slice::from_raw_parts_mut(self.pointer(offset, bytes), bytes) }
    }
}
