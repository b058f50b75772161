//! The heap: one allocator over all free memory. Exhaustion is a null pointer, which the store answers with an error.

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::{Cell, UnsafeCell},
};
use kayvee_platform::Heap;
use talc::{DefaultBinning, base::Talc, source::Manual};

/// Part of the heap that is kept from the store, so that the small allocations which it cannot refuse still succeed
/// when it has reached its limit.
const RESERVE_FRACTION: u64 = 64;
const RESERVE_BYTES_MIN: u64 = 192 << 10;
const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// Allocations up to this size may use the reserve.
const SMALL_BYTES: usize = 2048;

/// Part of the heap that is used when all else is in use, or in pieces that are too small, and at the most so much.
const ASIDE_FRACTION: u64 = 16;
const ASIDE_BYTES_MAX: u64 = 16 << 20;
/// For each byte in use of what is set aside, so many count that are free elsewhere: in such pieces.
const ASIDE_WEIGHT: u64 = 3;

/// One piece of memory, or several.
struct Arena(UnsafeCell<Talc<Manual, DefaultBinning>>);

impl Arena {
    const fn new() -> Arena {
        Arena(UnsafeCell::new(Talc::new(Manual)))
    }

    #[expect(clippy::mut_from_ref, reason = "each method of the heap takes it once and drops it before it returns")]
    fn talc(&self) -> &mut Talc<Manual, DefaultBinning> {
        // SAFETY: nothing runs at the same time (see `Sync`), and no method holds this while it calls another.
        unsafe { &mut *self.0.get() }
    }

    fn total_bytes(&self) -> u64 {
        self.talc().counters().claimed_bytes as u64
    }

    fn used_bytes(&self) -> u64 {
        let counters = self.talc().counters();
        (counters.claimed_bytes - counters.available_bytes) as u64
    }
}

/// The global allocator of an image.
///
/// Many blocks of all sizes leave memory between them that is free but of no use for a larger one, so that a limit on what is
/// used does not keep room for those. What is set aside does: what serves clients, and a start that has to lay out the same data
/// anew, finds large blocks when data have taken all others.
pub struct GuestHeap {
    main: Arena,
    /// A block of `main` of its own.
    aside: Arena,
    /// Where that is.
    aside_start: Cell<usize>,
    aside_bytes: Cell<usize>,
}

// SAFETY: one core runs the image, interrupt handlers are a few instructions of assembly that never allocate, and no
// call below gives a reference away or calls back.
unsafe impl Sync for GuestHeap {}

impl GuestHeap {
    /// A heap without memory.
    #[expect(clippy::new_without_default, reason = "a global allocator is a constant")]
    pub const fn new() -> GuestHeap {
        GuestHeap { main: Arena::new(), aside: Arena::new(), aside_start: Cell::new(0), aside_bytes: Cell::new(0) }
    }

    /// Gives `start..end` to the heap.
    ///
    /// # Safety
    /// The range must be mapped memory for reading and writing that nothing else uses, for ever.
    pub unsafe fn add(&self, start: u64, end: u64) {
        // SAFETY: passed on to the caller. A range too small to be of use is refused, which loses nothing.
        let _ = unsafe { self.main.talc().claim(start as *mut u8, (end - start) as usize) };
    }

    /// Sets a part aside: once, when most of the heap has been given and hardly any of it is used.
    pub fn set_aside(&self) {
        let bytes = (self.total_bytes() / ASIDE_FRACTION).min(ASIDE_BYTES_MAX) as usize;
        let Ok(layout) = Layout::from_size_align(bytes, align_of::<u64>()) else { return };
        // SAFETY: a heap that has been given anything has more than 16 bytes, so the size is not 0.
        let Some(block) = (unsafe { self.main.talc().allocate(layout) }) else { return };
        // SAFETY: the block is this arena's for ever.
        let _ = unsafe { self.aside.talc().claim(block.as_ptr(), bytes) };
        self.aside_start.set(block.as_ptr() as usize);
        self.aside_bytes.set(bytes);
    }

    /// Allocates what is found nowhere else, or gives null.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::alloc`].
    #[cold]
    #[inline(never)]
    unsafe fn allocate_aside(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller.
        unsafe { self.aside.talc().allocate(layout) }.map_or(core::ptr::null_mut(), |block| block.as_ptr())
    }

    /// The arena that a block is of.
    #[inline]
    fn arena_of(&self, block: *mut u8) -> &Arena {
        let is_aside = (block as usize).wrapping_sub(self.aside_start.get()) < self.aside_bytes.get();
        if is_aside { &self.aside } else { &self.main }
    }

    /// Bytes given to the heap.
    pub fn total_bytes(&self) -> u64 {
        self.main.total_bytes()
    }

    fn limit(&self) -> u64 {
        let total = self.total_bytes();
        total.saturating_sub((total / RESERVE_FRACTION).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX))
    }

    fn admits(&self, more_bytes: usize) -> bool {
        more_bytes <= SMALL_BYTES || self.used_bytes().saturating_add(more_bytes as u64) <= self.limit()
    }
}

impl Heap for GuestHeap {
    fn used_bytes(&self) -> u64 {
        self.main.used_bytes() - self.aside_bytes.get() as u64 + self.aside.used_bytes()
    }

    fn charged_bytes(&self) -> u64 {
        self.used_bytes() + ASIDE_WEIGHT * self.aside.used_bytes()
    }

    fn limit_bytes(&self) -> Option<u64> {
        Some(self.limit())
    }

    fn resident_bytes(&self) -> u64 {
        self.used_bytes()
    }

    fn allocator(&self) -> &'static str {
        "talc"
    }
}

// SAFETY: memory comes from talc, which fulfils the contract; `realloc` keeps the old block when it fails.
unsafe impl GlobalAlloc for GuestHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.admits(layout.size()) {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller does not ask for zero bytes.
        match unsafe { self.main.talc().allocate(layout) } {
            Some(block) => block.as_ptr(),
            // SAFETY: as above.
            None => unsafe { self.allocate_aside(layout) },
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { self.arena_of(block).talc().deallocate(block, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() && !self.admits(new_size - layout.size()) {
            return core::ptr::null_mut();
        }
        // SAFETY: passed on to the caller.
        if unsafe { self.arena_of(block).talc().try_realloc_in_place(block, layout, new_size) } {
            return block;
        }
        // SAFETY: the caller keeps `new_size` within what a layout allows.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both blocks are as long as copied, and different.
            unsafe {
                core::ptr::copy_nonoverlapping(block, new, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{vec, vec::Vec};

    fn heap(bytes: usize) -> GuestHeap {
        let heap = GuestHeap::new();
        let memory = vec![0u8; bytes].leak().as_mut_ptr() as u64;
        // SAFETY: leaked memory is used by nothing else.
        unsafe { heap.add(memory, memory + bytes as u64) };
        heap
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 8).unwrap()
    }

    #[test]
    fn an_empty_heap_answers_with_null() {
        let heap = GuestHeap::new();
        // SAFETY: the size is not 0.
        assert!(unsafe { heap.alloc(layout(8)) }.is_null());
    }

    #[test]
    fn large_blocks_leave_the_reserve_to_small_ones() {
        let heap = heap(8 << 20);
        let mut blocks = Vec::new();
        loop {
            // SAFETY: the size is not 0.
            let block = unsafe { heap.alloc(layout(64 << 10)) };
            if block.is_null() {
                break;
            }
            blocks.push(block);
        }
        assert!(heap.used_bytes() <= heap.limit_bytes().unwrap());
        assert!(heap.total_bytes() - heap.used_bytes() >= RESERVE_BYTES_MIN);
        for _ in 0..(RESERVE_BYTES_MIN / 2) / SMALL_BYTES as u64 {
            // SAFETY: the size is not 0.
            assert!(!unsafe { heap.alloc(layout(SMALL_BYTES)) }.is_null());
        }
        // SAFETY: the block is live, and a failed growth keeps it so.
        assert!(unsafe { heap.realloc(blocks[0], layout(64 << 10), 128 << 10) }.is_null());
    }

    #[test]
    fn used_bytes_return_to_where_they_were() {
        let heap = heap(4 << 20);
        let before = heap.used_bytes();
        // SAFETY: sizes are not 0, and each block is freed once with its own layout.
        unsafe {
            let block = heap.alloc(layout(10_000));
            assert!(heap.used_bytes() >= before + 10_000);
            let block = heap.realloc(block, layout(10_000), 200_000);
            assert!(heap.used_bytes() >= before + 200_000);
            heap.dealloc(block, layout(200_000));
        }
        assert_eq!(heap.used_bytes(), before);
    }

    #[test]
    fn a_large_block_is_found_beside_small_ones_and_what_is_free_between_them() {
        const SMALL: usize = 1 << 10;
        const LARGE: usize = 128 << 10;
        let heap = heap(8 << 20);
        heap.set_aside();
        let empty_bytes = heap.used_bytes();
        let mut blocks = Vec::new();
        while heap.aside.used_bytes() < LARGE as u64 {
            // SAFETY: the size is not 0.
            blocks.push(unsafe { heap.alloc(layout(SMALL)) });
        }
        let full_bytes = heap.used_bytes();
        assert!(full_bytes > heap.limit() / 16 * 15, "what is set aside is used last: {full_bytes}");
        blocks.iter().step_by(2).for_each(|&block| {
            // SAFETY: the block is live, and freed once.
            unsafe { heap.dealloc(block, layout(SMALL)) }
        });
        assert!(heap.used_bytes() < full_bytes / 2 + LARGE as u64);
        let before = (heap.used_bytes(), heap.charged_bytes());
        // SAFETY: the size is not 0, and the block is freed once.
        unsafe {
            let block = heap.alloc(layout(LARGE));
            assert!(!block.is_null());
            assert!(heap.charged_bytes() - before.1 >= 4 * LARGE as u64, "it tells of the pieces");
            heap.dealloc(block, layout(LARGE));
        }
        assert_eq!((heap.used_bytes(), heap.charged_bytes()), before);
        blocks.iter().skip(1).step_by(2).for_each(|&block| {
            // SAFETY: the block is live, and freed once.
            unsafe { heap.dealloc(block, layout(SMALL)) }
        });
        assert_eq!(heap.used_bytes(), empty_bytes);
    }
}
