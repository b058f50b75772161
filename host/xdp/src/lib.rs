//! AF_XDP sockets: frames between a network interface and memory of this process (or of its guest), past the kernel's TCP/IP.
//!
//! [`Socket::open`] takes an interface, memory for the frames and, on an interface that the host uses too, the one address
//! whose frames are to come here; the host's own traffic goes on as before. Everything is tied to descriptors, the XDP
//! program too, so nothing is left behind by a process that is killed.
//!
//! The program is a few instructions, which [`program`] writes itself. The socket's system calls are in [`sys`].
#![deny(unsafe_code)]

mod attachment;
mod program;
mod socket;
#[allow(unsafe_code)]
mod sys;

pub use attachment::{Attachment, Place, USAGE};
pub use program::Steering;
pub use socket::{FRAMES_BYTES, RingMapping, Sender, Socket, link_mtu, need_ring_for_guests, probe};
pub use sys::FrameMemory;

/// Whether an error is that this process has no right to what it tried.
pub fn is_not_allowed(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        io.or_else(|| cause.downcast_ref::<nix::errno::Errno>().map(|errno| std::io::Error::from(*errno).kind()))
    });
    kinds.last() == Some(std::io::ErrorKind::PermissionDenied)
}
