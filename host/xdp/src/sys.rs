//! System calls for AF_XDP. All `unsafe` of this crate is in this file.

use kayvee_xdp::{RingLayout, SharedMemory};
use nix::{errno::Errno, libc};
use std::{
    io,
    mem::{size_of, size_of_val, zeroed},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
};

/// Frames that the kernel sends in one call, where it lets that be set (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Pages of huge size begin at multiples of this.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A mapping, taken away with this value.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Whether the kernel counts the users of each of its pages, without which KVM does not map them (`EFAULT` when the guest
    /// touches one). Before Linux 6.3 the pages of AF_XDP's rings are not counted one by one.
    fn has_counted_pages(&self) -> bool {
        // Of all that has no such pages it says EINVAL, madvise(2).
        // SAFETY: the range is this value's mapping, and this changes none of its contents.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_POPULATE_READ) == 0 }
    }
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

// SAFETY: as above; what it points to is not read or written through it.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's. Whoever goes on using its address has kept the value for ever, as
        // `FrameMemory::share` and `RingMapping::share` do. It cannot fail with what mmap has returned.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn map(len: usize, flags: libc::c_int, fd: RawFd, offset: u64) -> io::Result<Mapping> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, offset as libc::off_t) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Mapping { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
}

/// Memory for frames, at the start of a huge page.
#[derive(Debug)]
pub struct FrameMemory {
    mapping: Mapping,
    len: usize,
}

impl FrameMemory {
    /// Allocates so many bytes, zeroed.
    pub fn allocate(len: usize) -> io::Result<FrameMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = map(len + HUGE_PAGE_BYTES, flags, -1, 0)?;
        let memory = FrameMemory { mapping, len };
        // SAFETY: advice on memory that is this value's; where it is not taken, pages are small.
        unsafe { libc::madvise(memory.start().as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(memory)
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        let skipped = self.mapping.start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: the mapping is a huge page longer than the memory, so its first multiple of that lies in it.
        unsafe { self.mapping.start.add(skipped) }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives it to a card, for ever.
    pub fn share(self) -> SharedMemory {
        let (start, len) = (self.start(), self.len);
        std::mem::forget(self);
        // SAFETY: 1. the memory is mapped and never taken away. 2. This value was the only way to it.
        unsafe { SharedMemory::new(start, len) }
    }
}

/// The memory of one ring.
#[derive(Debug)]
pub struct RingMapping {
    mapping: Mapping,
    /// Where its parts are.
    pub layout: RingLayout,
}

impl RingMapping {
    /// Where it begins, at the start of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.mapping.len == 0
    }

    /// Whether KVM lets a guest have it.
    pub fn suits_guests(&self) -> bool {
        self.mapping.has_counted_pages()
    }

    /// Gives it to a card, for ever.
    pub fn share(self) -> SharedMemory {
        let (start, len) = (self.mapping.start, self.mapping.len);
        std::mem::forget(self);
        // SAFETY: 1. the ring is mapped and never taken away. 2. This value was the only way to it but for the kernel, which
        // is the other side.
        unsafe { SharedMemory::new(start, len) }
    }
}

/// One of the four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    Fill,
    Completion,
    Rx,
    Tx,
}

impl RingKind {
    fn option(self) -> libc::c_int {
        match self {
            RingKind::Fill => libc::XDP_UMEM_FILL_RING,
            RingKind::Completion => libc::XDP_UMEM_COMPLETION_RING,
            RingKind::Rx => libc::XDP_RX_RING,
            RingKind::Tx => libc::XDP_TX_RING,
        }
    }

    fn page_offset(self) -> u64 {
        match self {
            RingKind::Fill => libc::XDP_UMEM_PGOFF_FILL_RING,
            RingKind::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING,
            RingKind::Rx => libc::XDP_PGOFF_RX_RING as u64,
            RingKind::Tx => libc::XDP_PGOFF_TX_RING as u64,
        }
    }

    fn entry_bytes(self) -> usize {
        match self {
            RingKind::Fill | RingKind::Completion => size_of::<u64>(),
            RingKind::Rx | RingKind::Tx => size_of::<libc::xdp_desc>(),
        }
    }
}

/// Opens an AF_XDP socket.
pub fn open_socket() -> io::Result<OwnedFd> {
    // SAFETY: the call touches no memory.
    let fd = Errno::result(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_option<T>(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`, which has so many.
    Errno::result(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(value).cast(), len) })?;
    Ok(())
}

fn get_option<T: Copy>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    // SAFETY: the types that this is called with are plain data, for which all zeros is a value.
    let mut value: T = unsafe { zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes into `value`, which has so many.
    Errno::result(unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, to, &mut len) })?;
    if len as usize == size_of::<T>() {
        Ok(value)
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel knows AF_XDP in an older form"))
    }
}

/// Registers the memory of the frames.
///
/// The kernel writes into it from now on wherever the fill ring says, as long as the socket is open: it is
/// memory that only frames are in. Before what is sent there are so many bytes of metadata, if any.
pub fn register_frames(
    socket: BorrowedFd<'_>,
    frames: &FrameMemory,
    frame_bytes: u32,
    tx_metadata_bytes: u32,
) -> io::Result<()> {
    const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;
    let registration = libc::xdp_umem_reg {
        addr: frames.start().as_ptr() as u64,
        len: frames.len() as u64,
        chunk_size: frame_bytes,
        headroom: 0,
        flags: if tx_metadata_bytes > 0 { XDP_UMEM_TX_METADATA_LEN } else { 0 },
        tx_metadata_len: tx_metadata_bytes,
    };
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Makes a ring with so many entries and maps it.
pub fn make_ring(socket: BorrowedFd<'_>, kind: RingKind, entries: u32) -> io::Result<RingMapping> {
    set_option(socket, libc::SOL_XDP, kind.option(), &entries)?;
    let offsets: libc::xdp_mmap_offsets = get_option(socket, libc::XDP_MMAP_OFFSETS)?;
    let ring = match kind {
        RingKind::Fill => offsets.fr,
        RingKind::Completion => offsets.cr,
        RingKind::Rx => offsets.rx,
        RingKind::Tx => offsets.tx,
    };
    let layout = RingLayout {
        producer: ring.producer as u32,
        consumer: ring.consumer as u32,
        flags: ring.flags as u32,
        entries_at: ring.desc as u32,
        entries,
    };
    // In whole pages, as the kernel has allocated it.
    let len = (ring.desc as usize + entries as usize * kind.entry_bytes()).next_multiple_of(4096);
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    Ok(RingMapping { mapping: map(len, flags, socket.as_raw_fd(), kind.page_offset())?, layout })
}

/// Lets frames wait in the kernel as long as there is room in the rings, and as many leave in a call.
pub fn widen(socket: BorrowedFd<'_>, frames: u32, bytes: u32) {
    // Without the first, frames leave in several calls; without the second, with pauses when very many wait. Both work.
    let _ = set_option(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &frames);
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
}

/// Binds to a queue of an interface, without copying where the card can, and waking the kernel only when it asks.
pub fn bind(socket: BorrowedFd<'_>, interface: u32, queue: u32, frames: Frames) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | if frames == Frames::Large { libc::XDP_USE_SG } else { 0 },
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`, which has so many.
    Errno::result(unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) })?;
    Ok(())
}

/// Whether the card takes frames from the memory, and puts them there, by itself.
pub fn is_zero_copy(socket: BorrowedFd<'_>) -> io::Result<bool> {
    const XDP_OPTIONS_ZEROCOPY: u32 = 1;
    let options: libc::xdp_options = get_option(socket, libc::XDP_OPTIONS)?;
    Ok(options.flags & XDP_OPTIONS_ZEROCOPY != 0)
}

/// Has the kernel send what is in the tx ring.
pub fn send(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no byte is read from the null pointer, as the length is 0.
    let sent = unsafe { libc::sendto(socket.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    Errno::result(sent)?;
    Ok(())
}

/// Whether a frame may be larger than its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// None is.
    Plain,
    /// It lies in several then.
    Large,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, mem::ManuallyDrop};

    #[test]
    fn memory_that_kvm_does_not_map_is_known() {
        assert!(map(4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).unwrap().has_counted_pages());
        // Most kernels map what they show of their clocks in the way in which old ones map rings: proc(5), `pf`.
        let mut start = 0;
        for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            let (first, _) = line.split_once('-').unwrap_or_default();
            start = usize::from_str_radix(first, 16).unwrap_or(start);
            if line.starts_with("VmFlags:") && line.contains(" pf") {
                let mapping = Mapping { start: NonNull::new(start as *mut u8).unwrap(), len: 4096 };
                assert!(!ManuallyDrop::new(mapping).has_counted_pages(), "{start:#x}");
            }
        }
    }
}
