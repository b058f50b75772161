//! What wakes the loop from other threads. mio has a waker for that, but only one for each loop.

use mio::{Interest, Registry, Token, unix::SourceFd};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{io, os::fd::AsRawFd};

/// Wakes a loop that waits, or is about to.
pub struct Bell(EventFd);

impl Bell {
    /// A bell that the loop hears under this token. Several may have the same one.
    pub fn new(registry: &Registry, token: Token) -> io::Result<Bell> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        registry.register(&mut SourceFd(&event.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Bell(event))
    }

    /// Wakes the loop.
    pub fn ring(&self) {
        // Nobody reads the counter behind it: each change to it is heard, and it is never full.
        let _ = self.0.write(1);
    }
}
