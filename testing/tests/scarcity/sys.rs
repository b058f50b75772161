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
    /// How many bytes they may still take, all together.
    static BYTES_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
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

/// Runs `body` in a thread where the allocations of more than [`SMALL_BYTES`] that it makes have only so many bytes at a time.
pub fn with_room<R>(bytes: usize, body: impl FnOnce() -> R) -> R {
    BYTES_LEFT.set(bytes);
    let result = body();
    BYTES_LEFT.set(usize::MAX);
    result
}

/// Counts what is taken, or given back.
fn count(bytes: usize, change: impl FnOnce(usize, usize) -> usize) {
    if bytes > SMALL_BYTES {
        // A thread that ends counts nothing any more.
        let _ = BYTES_LEFT.try_with(|left| match left.get() {
            usize::MAX => {}
            known => left.set(change(known, bytes)),
        });
    }
}

fn is_refused(bytes: usize) -> bool {
    let has_room = BYTES_LEFT.try_with(|left| bytes <= left.get()).unwrap_or(true);
    bytes > SMALL_BYTES && (!has_room || is_one_too_many())
}

fn is_one_too_many() -> bool {
    let count = |left: &Cell<usize>| match left.get() {
        usize::MAX => false,
        0 => true,
        count => {
            left.set(count - 1);
            false
        }
    };
    LARGE_LEFT.try_with(count).unwrap_or(false)
}

// SAFETY: every method returns null, which is allowed at any time, or what the system's allocator returns for the same
// arguments.
unsafe impl GlobalAlloc for ScarceHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size(), usize::saturating_sub);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), usize::saturating_add);
        // SAFETY: what was allocated here came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() && is_refused(new_size) {
            return std::ptr::null_mut();
        }
        // Both are there for a while, as in the guest.
        count(new_size, usize::saturating_sub);
        count(layout.size(), usize::saturating_add);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Small enough for Miri.
#[test]
fn what_succeeds_is_of_the_system_and_what_fails_is_as_before() {
    let mut bytes = Vec::with_capacity(SMALL_BYTES);
    bytes.resize(SMALL_BYTES, 1_u8);
    let (mut other, mut small) = (Vec::<u8>::new(), Vec::<u8>::new());
    // What fails in there finds no memory for telling it.
    let results = with_large_allocations(2, || {
        let first = bytes.try_reserve_exact(1).is_ok();
        let second = other.try_reserve_exact(2 * SMALL_BYTES).is_ok();
        let third = bytes.try_reserve_exact(bytes.capacity()).is_ok();
        [first, second, third, small.try_reserve_exact(SMALL_BYTES).is_ok()]
    });
    assert_eq!(results, [true, true, false, true], "two large ones, and as many small ones as may be");
    bytes.push(2);
    other.resize(2 * SMALL_BYTES, 3);
    small.resize(SMALL_BYTES, 4);
    assert!(bytes[..SMALL_BYTES].iter().all(|byte| *byte == 1) && bytes[SMALL_BYTES..] == [2]);
    let room = 3 * SMALL_BYTES;
    let results = with_room(room, || {
        let mut taken = Vec::<u8>::new();
        let all = taken.try_reserve_exact(room).is_ok();
        let more = [small.try_reserve_exact(2 * SMALL_BYTES).is_ok(), taken.try_reserve_exact(room + 1).is_ok()];
        drop(taken);
        (all, more, Vec::<u8>::new().try_reserve_exact(room).is_ok())
    });
    assert_eq!(results, (true, [false, false], true), "what is given back can be taken again");
    bytes.truncate(5);
    bytes.shrink_to_fit();
    assert_eq!((bytes.as_slice(), other[9], small[9]), (&[1; 5][..], 3, 4));
}
