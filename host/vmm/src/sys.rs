//! System calls that no crate here wraps safely: all `unsafe` of this crate.
#![allow(unsafe_code)]

use anyhow::Result;
use kayvee_xdp::{Relay, Ring, SharedMemory, Side};
use kayvee_xdp_socket::{FrameMemory, RingMapping, Socket};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{VcpuFd, VmFd};
use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll, ppoll},
    sys::{
        eventfd::EventFd,
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        time::TimeSpec,
    },
    unistd::{Pid, getpid, gettid},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, RawFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
    time::Duration,
};
use vm_memory::{GuestMemoryRegion, GuestRegionMmap, VolatileSlice};

/// Descriptors that one wait may watch besides its own.
const OTHERS_MAX: usize = 3;
/// Pieces of memory in one transfer; the kernel takes 1,024.
pub const PIECES_MAX: usize = 256;

/// Lets the guest reach memory that others reach too.
///
/// # Safety
///
/// 1. `len` bytes from `start` on, whole pages, stay mapped for reading and writing as long as the process lives: the guest
///    writes there whenever it likes.
/// 2. This program makes no reference to them; it reads and writes them as memory that may change at any time, or not at
///    all.
unsafe fn share_memory(vm: &VmFd, slot: u32, address: u64, start: *mut u8, len: u64) -> Result<()> {
    let slot = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr: address,
        memory_size: len,
        userspace_addr: start as u64,
    };
    // SAFETY: the caller promises what KVM's crate asks for: the memory is there for as long as the guest can use it.
    Ok(unsafe { vm.set_user_memory_region(slot) }?)
}

/// Makes a region the guest's own memory, at the region's address.
pub fn share_region(vm: &VmFd, slot: u32, region: &'static GuestRegionMmap<()>) -> Result<()> {
    let start = region.as_ptr();
    // Fewer and larger pages: the guest's first touch of memory is dear. The kernel may have none.
    // SAFETY: the range is a whole mapping of this process, and the advice changes none of its contents.
    unsafe { libc::madvise(start.cast(), region.len() as usize, libc::MADV_HUGEPAGE) };
    // SAFETY: 1. the region is the mapping's owner, and is never dropped. 2. `vm-memory` reaches it by volatile accesses and
    // system calls alone.
    unsafe { share_memory(vm, slot, region.start_addr().0, start, region.len()) }
}

/// Lets the guest reach the frames of a socket.
pub fn share_frames(vm: &VmFd, slot: u32, address: u64, frames: &'static FrameMemory) -> Result<()> {
    // SAFETY: 1. the value is the mapping's owner, and is never dropped. 2. Only `FrameMemory::share` makes it accessible,
    // which takes the value away from its owner, so that it cannot be borrowed for ever.
    unsafe { share_memory(vm, slot, address, frames.start().as_ptr(), frames.len() as u64) }
}

/// Lets the guest reach a ring of a socket.
pub fn share_ring(vm: &VmFd, slot: u32, address: u64, ring: &'static RingMapping) -> Result<()> {
    // SAFETY: as in `share_frames`, with `RingMapping::share`. The mapping is as long as the ring's pages.
    unsafe { share_memory(vm, slot, address, ring.start().as_ptr(), ring.len() as u64) }
}

/// Hands on what stands in a guest's rx and tx ring to the socket's own and back. The guest has been given these regions as its
/// rings.
pub fn relay(
    socket: &'static Socket,
    frames: &'static FrameMemory,
    [rx, tx]: [&'static GuestRegionMmap<()>; 2],
) -> Result<Relay> {
    let share = |start: *mut u8, len| {
        let start = NonNull::new(start).expect("no mapping begins at null");
        // SAFETY: 1. the values that own these mappings are never dropped. 2. The kernel and the guest are the other sides; this
        // program otherwise leaves them alone, see `share_region` and `share_frames`. A relay makes no reference to them.
        unsafe { SharedMemory::new(start, len) }
    };
    let [_, _, kernel_rx, kernel_tx] = &socket.rings;
    let side = |rx: SharedMemory, tx: SharedMemory| -> Result<Side> {
        let rx = Ring::of_descriptors(rx, kernel_rx.layout)?;
        Ok(Side { rx, tx: Ring::of_descriptors(tx, kernel_tx.layout)? })
    };
    let [rx, tx] = [rx, tx].map(|region| share(region.as_ptr(), region.len() as usize));
    let guest = side(rx, tx)?;
    let [rx, tx] = [kernel_rx, kernel_tx].map(|ring| share(ring.start().as_ptr(), ring.len()));
    let kernel = side(rx, tx)?;
    let frames = share(frames.start().as_ptr(), frames.len());
    Ok(Relay::new(frames, socket.frame_bytes, socket.checksums, guest, kernel))
}

/// An event in the form in which KVM's crate takes it.
pub fn for_kvm(event: &EventFd) -> io::Result<vmm_sys_util::eventfd::EventFd> {
    let owned = event.as_fd().try_clone_to_owned()?.into_raw_fd();
    // SAFETY: the descriptor is an eventfd, and nothing else owns it.
    Ok(unsafe { vmm_sys_util::eventfd::EventFd::from_raw_fd(owned) })
}

/// The signal by which the processor's thread is told to leave the guest.
pub const KICK: Signal = Signal::SIGUSR1;

/// The byte by which KVM is told not to enter the guest; null until there is a processor.
static IMMEDIATE_EXIT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Takes effect also where the signal comes just before the guest is entered.
extern "C" fn leave_guest(_: libc::c_int) {
    let byte = IMMEDIATE_EXIT.load(Ordering::Relaxed);
    if !byte.is_null() {
        // SAFETY: the byte lies in a mapping that is never taken away. Volatile, because the kernel reads it, and the thread
        // that this interrupts may be about to write it.
        unsafe { byte.write_volatile(1) };
    }
}

/// The thread that runs the guest.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorThread {
    process: Pid,
    thread: Pid,
}

impl ProcessorThread {
    /// Makes the calling thread the one that runs this processor, and answers [`KICK`].
    pub fn enter(vcpu: &'static mut VcpuFd) -> Result<(&'static mut VcpuFd, ProcessorThread)> {
        IMMEDIATE_EXIT.store(&raw mut vcpu.get_kvm_run().immediate_exit, Ordering::Relaxed);
        let action = SigAction::new(SigHandler::Handler(leave_guest), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing but read an atomic and write a byte, which is safe at any time.
        unsafe { sigaction(KICK, &action) }?;
        Ok((vcpu, ProcessorThread { process: getpid(), thread: gettid() }))
    }

    /// Has it leave the guest, or the system call that it waits in.
    pub fn kick(&self) {
        let (process, thread) = (self.process.as_raw(), self.thread.as_raw());
        // One that has ended does not run the guest any more either.
        // SAFETY: the call takes integers, and touches no memory; the signal has a handler.
        let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, KICK as libc::c_int) };
    }
}

// What libc's crate leaves out of fcntl(2): who is signalled, a thread in this case, and by which signal.
/// `F_SETOWN_EX`
pub const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;
/// `F_SETSIG`
pub const F_SETSIG: libc::c_int = 10;

/// Has the calling thread be sent [`KICK`] when the descriptor gets something to read.
pub fn signal_when_readable(fd: &impl AsRawFd) -> io::Result<()> {
    let (fd, thread) = (fd.as_raw_fd(), gettid().as_raw());
    #[repr(C)]
    struct Owner {
        kind: libc::c_int,
        id: libc::pid_t,
    }
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    // SAFETY: the operation reads one structure, which this is.
    Errno::result(unsafe { libc::fcntl(fd, F_SETOWN_EX, &raw const owner) })?;
    // SAFETY: the operation takes an integer, and touches no memory; the signal has a handler.
    Errno::result(unsafe { libc::fcntl(fd, F_SETSIG, KICK as libc::c_int) })?;
    // SAFETY: the operation touches no memory.
    let flags = Errno::result(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: the operation takes an integer, and touches no memory.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC) })?;
    Ok(())
}

/// Waits until the time is over.
pub fn rest(time: Duration) -> io::Result<()> {
    match ppoll(&mut [], Some(TimeSpec::from(time)), None) {
        Err(Errno::EINTR) | Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of the descriptors has something to read, or the time is over.
pub fn wait_any(first: BorrowedFd<'_>, others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    assert!(others.len() <= OTHERS_MAX, "no descriptor is left out");
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = [const { None }; OTHERS_MAX + 1].map(|_: Option<()>| readable(first));
    for (place, fd) in fds[1..].iter_mut().zip(others) {
        *place = readable(*fd);
    }
    match ppoll(&mut fds[..=others.len()], timeout.map(TimeSpec::from), None) {
        Err(Errno::EINTR) | Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether writing would not block.
pub fn is_writable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Pieces of memory for one system call.
pub struct Pieces {
    vectors: [libc::iovec; PIECES_MAX],
    len: usize,
}

impl Pieces {
    const EMPTY: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
}

/// Guest memory, piece by piece, for a transfer. The memory outlives it.
pub struct Transfer<'a> {
    pieces: &'a mut Pieces,
    bytes: usize,
    memory: std::marker::PhantomData<VolatileSlice<'a>>,
}

// SAFETY: the vectors are addresses only while a `Transfer` borrows them; none is kept between two of these.
unsafe impl Send for Pieces {}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces { vectors: [Pieces::EMPTY; PIECES_MAX], len: 0 }
    }
}

impl Pieces {
    /// Begins a transfer of nothing.
    pub fn begin(&mut self) -> Transfer<'_> {
        self.len = 0;
        Transfer { pieces: self, bytes: 0, memory: std::marker::PhantomData }
    }
}

impl<'a> Transfer<'a> {
    /// Adds a piece; `false` if there are too many.
    pub fn push(&mut self, slice: &VolatileSlice<'a>) -> bool {
        if self.pieces.len == PIECES_MAX {
            return false;
        }
        let base = slice.ptr_guard_mut().as_ptr();
        self.pieces.vectors[self.pieces.len] = libc::iovec { iov_base: base.cast(), iov_len: slice.len() };
        self.pieces.len += 1;
        self.bytes += slice.len();
        true
    }

    /// Bytes in all pieces.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies these bytes into it, as far as there is room; returns how many.
    pub fn fill(&mut self, parts: &[&[u8]]) -> usize {
        let mut bytes = parts.iter().copied().flatten();
        let mut count = 0;
        for vector in &self.pieces.vectors[..self.pieces.len] {
            for (at, byte) in (0..vector.iov_len).zip(bytes.by_ref()) {
                // SAFETY: the byte lies in the vector, which is memory that lives as long as `'a` and may change at any
                // time.
                unsafe { vector.iov_base.cast::<u8>().add(at).write_volatile(*byte) };
                count += 1;
            }
        }
        count
    }

    /// Appends its bytes from `skip` on, so many at most.
    pub fn copy_to(&self, mut skip: usize, mut most: usize, bytes: &mut Vec<u8>) {
        for vector in &self.pieces.vectors[..self.pieces.len] {
            let start = skip.min(vector.iov_len);
            let end = start + most.min(vector.iov_len - start);
            (skip, most) = (skip - start, most - (end - start));
            // SAFETY: as in `fill`.
            bytes.extend((start..end).map(|at| unsafe { vector.iov_base.cast::<u8>().add(at).read_volatile() }));
        }
    }

    fn vectors(&self) -> (*const libc::iovec, libc::c_int) {
        (self.pieces.vectors.as_ptr(), self.pieces.len as libc::c_int)
    }

    /// Reads into it.
    pub fn read(&mut self, fd: &impl AsRawFd) -> io::Result<usize> {
        let (vectors, count) = self.vectors();
        // SAFETY: every vector is memory that lives as long as `'a` and may change at any time.
        count_or_error(unsafe { libc::readv(fd.as_raw_fd(), vectors, count) })
    }

    /// Writes it.
    pub fn write(&mut self, fd: &impl AsRawFd) -> io::Result<usize> {
        let (vectors, count) = self.vectors();
        // SAFETY: as in `read`.
        count_or_error(unsafe { libc::writev(fd.as_raw_fd(), vectors, count) })
    }

    /// Reads from a place in a file until all is read.
    pub fn read_all_at(mut self, fd: &impl AsRawFd, offset: u64) -> io::Result<()> {
        self.all_at(offset, |vectors, count, at| {
            // SAFETY: as in `read`.
            unsafe { libc::preadv(fd.as_raw_fd(), vectors, count, at) }
        })
    }

    /// Writes to a place in a file until all is written, with these `RWF_` flags.
    pub fn write_all_at(mut self, fd: &impl AsRawFd, offset: u64, flags: libc::c_int) -> io::Result<()> {
        self.all_at(offset, |vectors, count, at| {
            // SAFETY: as in `read`.
            unsafe { libc::pwritev2(fd.as_raw_fd(), vectors, count, at, flags) }
        })
    }

    fn all_at(
        &mut self,
        mut offset: u64,
        call: impl Fn(*const libc::iovec, libc::c_int, libc::off_t) -> isize,
    ) -> io::Result<()> {
        let mut vectors = &mut self.pieces.vectors[..self.pieces.len];
        while let Some(first) = vectors.first_mut() {
            if first.iov_len == 0 {
                vectors = &mut vectors[1..];
                continue;
            }
            let at = libc::off_t::try_from(offset).map_err(|_| Errno::EFBIG)?;
            let mut done = match count_or_error(call(vectors.as_ptr(), vectors.len() as libc::c_int, at)) {
                // The end of the file: it has been made shorter by somebody else.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(done) => done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            offset += done as u64;
            while let Some(first) = vectors.first_mut().filter(|_| done > 0) {
                let part = done.min(first.iov_len);
                // SAFETY: the result is inside of the vector or at its end.
                first.iov_base = unsafe { first.iov_base.cast::<u8>().add(part) }.cast();
                first.iov_len -= part;
                done -= part;
                if first.iov_len == 0 {
                    vectors = &mut vectors[1..];
                }
            }
        }
        Ok(())
    }
}

fn count_or_error(result: isize) -> io::Result<usize> {
    Ok(Errno::result(result)? as usize)
}

/// Has a tap device put a header of this length before each frame.
pub fn set_tap_header(fd: RawFd, header_bytes: libc::c_int) -> io::Result<()> {
    // SAFETY: the operation reads one integer.
    Errno::result(unsafe { libc::ioctl(fd, libc::TUNSETVNETHDRSZ as _, &header_bytes) })?;
    set_tap_offloads(fd, TapOffloads::default())
}

/// What a tap device may give.
#[derive(Clone, Copy, Debug, Default)]
pub struct TapOffloads {
    /// Frames whose checksum is not complete.
    pub completes: bool,
    /// Merged segments of TCP over IPv4.
    pub merges4: bool,
    /// The same over IPv6.
    pub merges6: bool,
}

/// Says what a tap device may give.
pub fn set_tap_offloads(fd: RawFd, offloads: TapOffloads) -> io::Result<()> {
    let TapOffloads { completes, merges4, merges6 } = offloads;
    let flag = |is_on: bool, flag| if is_on { flag } else { 0 };
    let flags = flag(completes, libc::TUN_F_CSUM) | flag(merges4, libc::TUN_F_TSO4) | flag(merges6, libc::TUN_F_TSO6);
    // SAFETY: the operation takes an integer, and touches no memory.
    Errno::result(unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD as _, libc::c_ulong::from(flags)) })?;
    Ok(())
}

/// Has reading and writing end at once where they would have to wait.
pub fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Gives up every capability of this process, for good.
pub fn drop_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// `_LINUX_CAPABILITY_VERSION_3`
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    // Effective, permitted and inheritable, in two halves each.
    let none = [0u32; 6];
    // SAFETY: the call reads a header and, for this version, six words.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &header, none.as_ptr()) })?;
    // SAFETY: the call takes integers, and touches no memory.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    Ok(())
}
