//! System calls for AF_XDP and XDP programs. All `unsafe` of this crate is in this file.

use crate::program::Instruction;
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

/// The commands of bpf(2) that are used here, and their arguments: those of `union bpf_attr`.
mod bpf {
    pub const MAP_CREATE: i32 = 0;
    pub const MAP_UPDATE_ELEM: i32 = 2;
    pub const PROG_LOAD: i32 = 5;
    #[cfg(test)]
    pub const PROG_TEST_RUN: i32 = 10;
    pub const LINK_CREATE: i32 = 28;

    pub const MAP_TYPE_XSKMAP: u32 = 17;
    pub const PROG_TYPE_XDP: u32 = 6;
    pub const F_XDP_HAS_FRAGS: u32 = 1 << 5;
    pub const ATTACH_TYPE_XDP: u32 = 37;

    pub const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
    pub const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

    #[repr(C)]
    pub struct MapCreate {
        pub map_type: u32,
        pub key_size: u32,
        pub value_size: u32,
        pub max_entries: u32,
    }

    #[repr(C)]
    pub struct MapUpdate {
        pub map_fd: u32,
        pub padding: u32,
        pub key: u64,
        pub value: u64,
        pub flags: u64,
    }

    #[repr(C)]
    pub struct ProgLoad {
        pub prog_type: u32,
        pub insn_cnt: u32,
        pub insns: u64,
        pub license: u64,
        pub log_level: u32,
        pub log_size: u32,
        pub log_buf: u64,
        pub kern_version: u32,
        pub prog_flags: u32,
    }

    #[repr(C)]
    pub struct LinkCreate {
        pub prog_fd: u32,
        pub target_ifindex: u32,
        pub attach_type: u32,
        pub flags: u32,
    }

    #[cfg(test)]
    #[repr(C)]
    pub struct TestRun {
        pub prog_fd: u32,
        pub retval: u32,
        pub data_size_in: u32,
        pub data_size_out: u32,
        pub data_in: u64,
        pub data_out: u64,
        pub repeat: u32,
        /// Written by the kernel, whatever the size of the structure that it is told.
        pub duration_ns: u32,
    }
}

/// Calls bpf(2).
///
/// # Safety
///
/// `attributes` are those of `command`, and the addresses in them are of what the command reads or writes.
unsafe fn call_bpf<T>(command: i32, attributes: &mut T) -> io::Result<RawFd> {
    let size = size_of::<T>();
    // SAFETY: the kernel reads and writes `size` bytes of `attributes`; the rest the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size) };
    Ok(Errno::result(result)? as RawFd)
}

fn own(fd: io::Result<RawFd>) -> io::Result<OwnedFd> {
    // SAFETY: the call that has just returned the descriptor gave it to this process, and nothing else owns it.
    fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a map from the numbers of queues to sockets.
pub fn create_socket_map(queues: u32) -> io::Result<OwnedFd> {
    let mut attributes =
        bpf::MapCreate { map_type: bpf::MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues };
    // SAFETY: these are the command's attributes, without addresses.
    own(unsafe { call_bpf(bpf::MAP_CREATE, &mut attributes) })
}

/// Enters a socket into such a map.
pub fn enter_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u32;
    let mut attributes = bpf::MapUpdate {
        map_fd: map.as_raw_fd() as u32,
        padding: 0,
        key: ptr::from_ref(&queue) as u64,
        value: ptr::from_ref(&value) as u64,
        flags: 0,
    };
    // SAFETY: these are the command's attributes, with the addresses of a key and a value of four bytes each.
    unsafe { call_bpf(bpf::MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Whether a frame may be larger than its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// None is.
    Plain,
    /// It lies in several then.
    Large,
}

/// Loads an XDP program.
pub fn load_program(instructions: &[Instruction], frames: Frames) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut attributes = bpf::ProgLoad {
        prog_type: bpf::PROG_TYPE_XDP,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: if frames == Frames::Large { bpf::F_XDP_HAS_FRAGS } else { 0 },
    };
    // SAFETY: these are the command's attributes, with the addresses of so many instructions and of a string.
    own(unsafe { call_bpf(bpf::PROG_LOAD, &mut attributes) })
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the card's driver, before the kernel has made a packet of the frame.
    Driver,
    /// By the kernel, for cards whose drivers cannot.
    Generic,
}

/// Attaches a program to an interface, as long as the descriptor is open.
pub fn attach(program: BorrowedFd<'_>, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let flags = match mode {
        Mode::Driver => bpf::XDP_FLAGS_DRV_MODE,
        Mode::Generic => bpf::XDP_FLAGS_SKB_MODE,
    };
    let mut attributes = bpf::LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: interface,
        attach_type: bpf::ATTACH_TYPE_XDP,
        flags,
    };
    // SAFETY: these are the command's attributes, without addresses.
    own(unsafe { call_bpf(bpf::LINK_CREATE, &mut attributes) })
}

/// Runs a program on a frame and returns its verdict.
#[cfg(test)]
pub fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut attributes = bpf::TestRun {
        prog_fd: program.as_raw_fd() as u32,
        retval: 0,
        data_size_in: frame.len() as u32,
        data_size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat: 0,
        duration_ns: 0,
    };
    // SAFETY: these are the command's attributes, with the addresses of so many bytes to read and to write.
    unsafe { call_bpf(bpf::PROG_TEST_RUN, &mut attributes)? };
    Ok(attributes.retval)
}
