//! The heap, counted, datagrams sent together, and memory that is sent from where it lies: the one place of this program with
//! `unsafe` in it.

use kayvee_platform::Heap;
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::sendfile::sendfile,
};
use socket2::SockAddr;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap { used_bytes: AtomicU64::new(0) };

/// The heap of this process.
pub fn heap() -> &'static dyn Heap {
    &HEAP
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

/// A file in memory that nobody can change any more, as bytes, which the kernel can send without a copy.
pub struct SealedMemory {
    file: fs::File,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are never written while it lives, and mapped until it is dropped; nothing belongs to one thread.
unsafe impl Send for SealedMemory {}
// SAFETY: as before.
unsafe impl Sync for SealedMemory {}

impl SealedMemory {
    /// Seals a file of memfd_create(2) as it is now.
    pub fn seal(file: fs::File) -> io::Result<SealedMemory> {
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len.max(1), protection, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(SealedMemory { file, start: start.cast(), len }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// Where a part of these bytes lies among them; none if it is of other memory.
    pub fn place_of(&self, part: &[u8]) -> Option<usize> {
        let at = part.as_ptr().addr().checked_sub(self.start.addr().get())?;
        (at + part.len() <= self.len).then_some(at)
    }

    /// Sends some of these bytes, as far as there is room.
    pub fn send(&self, socket: impl AsFd, at: usize, len: usize) -> io::Result<usize> {
        let mut at = libc::off_t::try_from(at).map_err(io::Error::other)?;
        Ok(sendfile(socket, &self.file, Some(&mut at), len)?)
    }
}

impl AsRef<[u8]> for SealedMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY:
        // 1. So many bytes are mapped until it is dropped, and the file cannot shrink below them: it is sealed.
        // 2. Nobody writes them: the mapping is read-only, and the seal forbids all other ways.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SealedMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing is borrowed from it any more.
        let is_unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len.max(1)) } == 0;
        debug_assert!(is_unmapped, "what was mapped can be unmapped");
    }
}

/// The C library's allocator with a count of what it has given out.
struct CountedHeap {
    used_bytes: AtomicU64,
}

impl CountedHeap {
    /// Adds to the count without the locked instruction of an atomic addition. One thread does all the work here; were
    /// there others, the count would be a little wrong, and nothing else.
    fn count(&self, change_bytes: u64) {
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
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    fn memory(bytes: &[u8]) -> io::Result<(SealedMemory, fs::File)> {
        let mut file = fs::File::from(memfd_create("test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        file.write_all(bytes)?;
        let other = file.try_clone()?;
        Ok((SealedMemory::seal(file)?, other))
    }

    #[test]
    fn sealed_memory_stays_as_it_is_and_is_sent_by_its_places() -> io::Result<()> {
        let (sealed, mut other) = memory(b"0123456789")?;
        let bytes = sealed.as_ref();
        assert_eq!(bytes, b"0123456789");
        assert!(other.write_all(b"x").is_err() && other.set_len(0).is_err());
        assert_eq!(sealed.place_of(bytes), Some(0));
        assert_eq!(sealed.place_of(&bytes[4..]), Some(4));
        let (second, _) = memory(b"0123456789")?;
        assert_eq!(sealed.place_of(second.as_ref()), None);
        assert_eq!(second.place_of(bytes), None);
        let (to, mut from) = UnixStream::pair()?;
        assert_eq!(sealed.send(&to, 4, 3)?, 3);
        drop(to);
        let mut sent = Vec::new();
        from.read_to_end(&mut sent)?;
        assert_eq!(sent, b"456");
        assert_eq!(memory(b"")?.0.as_ref(), b"");
        Ok(())
    }

    #[test]
    fn what_is_allocated_is_counted() {
        let before = heap().used_bytes();
        let block = vec![1u8; 10 << 20];
        let held = heap().used_bytes() - before;
        drop(block);
        // Other tests' threads allocate and free meanwhile, but far less.
        assert!(held.abs_diff(10 << 20) < 1 << 20, "{held}");
        assert!(heap().resident_bytes() > 100 << 10);
    }
}
