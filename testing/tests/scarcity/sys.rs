//! An allocator that runs out on command: the one place of these tests with `unsafe` in it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// What may always be had: the guest's heap keeps a reserve for allocations up to this size.
pub const SMALL_BYTES: usize = 2048;

thread_local! {
    /// How many larger allocations still succeed on this thread.
    static LARGE_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The system's allocator, but for what is taken away.
pub struct ScarceHeap;

/// Runs `body` in a thread where only so many allocations of more than [`SMALL_BYTES`] succeed.
pub fn with_large_allocations<R>(count: usize, body: impl FnOnce() -> R) -> R {
    LARGE_LEFT.set(count);
    let result = body();
    LARGE_LEFT.set(usize::MAX);
    result
}

fn is_refused(bytes: usize) -> bool {
    bytes > SMALL_BYTES
        && LARGE_LEFT
            .try_with(|left| match left.get() {
                usize::MAX => false,
                0 => true,
                count => {
                    left.set(count - 1);
                    false
                }
            })
            .unwrap_or(false)
}

// SAFETY: every method returns null, which is allowed at any time, or what the system's allocator returns for the same
// arguments.
unsafe impl GlobalAlloc for ScarceHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        if is_refused(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: what was allocated here came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() && is_refused(new_size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
