//! The heap, counted, and datagrams sent together: the one place of this program with `unsafe` in it.

use kayvee_platform::Heap;
use nix::libc;
use socket2::SockAddr;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs, io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap { used_bytes: AtomicU64::new(0) };

/// The heap of this process.
pub fn heap() -> &'static dyn Heap {
    &HEAP
}

thread_local! {
    /// Whether what this thread allocates and frees is not counted.
    static IS_UNCOUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Does work whose memory is not the store's: no key has to go for what it allocates. That is to be freed by such work, too.
pub fn uncounted<R>(work: impl FnOnce() -> R) -> R {
    count_as(true, work)
}

/// Does work within [such](uncounted) that allocates what whoever works for the store frees.
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    count_as(false, work)
}

fn count_as<R>(uncounted: bool, work: impl FnOnce() -> R) -> R {
    let before = IS_UNCOUNTED.replace(uncounted);
    let result = work();
    IS_UNCOUNTED.set(before);
    result
}

/// Freed memory that is kept at the end of the heap, and the largest block that is taken from there. The C library gives back
/// what exceeds 128 KiB: replies of 100 KiB to some clients then cost a page fault for every 4 KiB of them, which takes
/// longer than all else.
#[cfg(target_env = "gnu")]
const KEPT_FREE_BYTES: i32 = 32 << 20;
#[cfg(target_env = "gnu")]
const LARGEST_HEAP_BLOCK_BYTES: i32 = 16 << 20;

/// Has the allocator keep some of what is freed for the next buffers, before anything large is allocated.
#[cfg(target_env = "gnu")]
pub fn keep_freed_memory() {
    for (parameter, value) in
        [(libc::M_TRIM_THRESHOLD, KEPT_FREE_BYTES), (libc::M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES)]
    {
        // SAFETY: no pointer is involved, and no other thread runs yet.
        // An allocator in the place of the C library's, as a sanitizer has it, refuses and does as it likes.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Other C libraries have no such thing.
#[cfg(not(target_env = "gnu"))]
pub fn keep_freed_memory() {}

/// Sends datagrams with one system call, without waiting for room. Returns how many of them were sent; an error is the first
/// one's (sendmmsg(2)).
pub fn send_datagrams(socket: BorrowedFd<'_>, datagrams: &[(&SockAddr, &[u8])]) -> io::Result<usize> {
    let slice = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut slices: Vec<_> = datagrams.iter().map(|(_, bytes)| slice(bytes)).collect();
    let header = |((to, _), slice): (&(&SockAddr, &[u8]), &mut libc::iovec)| {
        // SAFETY: numbers and pointers, which may be null.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = to.len();
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (slice, 1);
        header
    };
    let mut headers: Vec<_> = datagrams.iter().zip(&mut slices).map(header).collect();
    let count = headers.len() as libc::c_uint;
    // SAFETY: as many headers lie there, and what they point to is borrowed. The kernel reads addresses and bytes and writes
    // the headers' lengths.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// The C library's allocator with a count of what it has given out.
struct CountedHeap {
    used_bytes: AtomicU64,
}

impl CountedHeap {
    /// Adds to the count, unless it is [of no account](uncounted), without the locked instruction of an atomic addition. One thread does all the work here; were
    /// there others, the count would be a little wrong, and nothing else.
    fn count(&self, change_bytes: u64) {
        if IS_UNCOUNTED.get() {
            return;
        }
        self.used_bytes.store(self.used_bytes.load(Relaxed).wrapping_add(change_bytes), Relaxed);
    }
}

/// What the allocator takes for `size` bytes: a header of 8, in steps of 16, at least 32.
fn chunk_bytes(size: usize) -> u64 {
    ((size as u64 + 8).next_multiple_of(16)).max(32)
}

// SAFETY: every method passes its arguments on to the system's allocator and returns what that returns, so its
// guarantees hold here too; counting touches neither the memory nor the layout.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise on `layout` is passed on.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            self.count(chunk_bytes(layout.size()));
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise on `layout` is passed on.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.count(chunk_bytes(layout.size()));
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` by one of these methods with this `layout`, as the caller promises.
        unsafe { System.dealloc(pointer, layout) };
        self.count(chunk_bytes(layout.size()).wrapping_neg());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `pointer` came from `System` with this `layout`, and `new_size` is not 0, as the caller promises.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            self.count(chunk_bytes(new_size).wrapping_sub(chunk_bytes(layout.size())));
        }
        moved
    }
}

impl Heap for CountedHeap {
    fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    fn limit_bytes(&self) -> Option<u64> {
        None
    }

    fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    }

    fn allocator(&self) -> &'static str {
        "libc"
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::Mutex;

    /// For tests that allocate much, or count what is allocated.
    pub static MUCH_MEMORY: Mutex<()> = Mutex::new(());

    #[test]
    fn what_is_allocated_is_counted() {
        let _alone = MUCH_MEMORY.lock().unwrap();
        let before = heap().used_bytes();
        let block = vec![1u8; 10 << 20];
        let held = heap().used_bytes() - before;
        drop(block);
        // The threads of all other tests allocate and free meanwhile, but far less.
        assert!(held.abs_diff(10 << 20) < 1 << 20, "{held}");
        assert!(heap().resident_bytes() > 100 << 10);
    }

    #[test]
    fn what_is_not_the_stores_is_not_counted() {
        let _alone = MUCH_MEMORY.lock().unwrap();
        let before = heap().used_bytes();
        let held = || heap().used_bytes().wrapping_sub(before) as i64 >> 20;
        let (others, own) = uncounted(|| (vec![1u8; 10 << 20], counted(|| vec![1u8; 20 << 20])));
        assert!((19..=20).contains(&held()), "{}", held());
        drop(own);
        uncounted(|| drop(others));
        assert!((-1..=0).contains(&held()), "{}", held());
    }
}
