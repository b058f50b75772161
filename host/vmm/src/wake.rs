//! What ends the guest's sleep.

use crate::sys;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};
use vm_superio::Trigger;

/// The one event of all devices. It stays raised until a sleep has ended by it, so a guest that asks a device to tell it,
/// looks once more and then sleeps misses nothing.
#[derive(Clone)]
pub struct Wake(Arc<EventFd>);

impl Wake {
    /// One that is not raised.
    pub fn new() -> io::Result<Wake> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Wake(Arc::new(event)))
    }

    /// Ends the guest's sleep, or the next one.
    pub fn raise(&self) {
        // A counter that is full is raised already.
        let _ = self.0.write(1);
    }

    /// Blocks until it is raised, `others` has something to read, or the time is over.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
        sys::wait_any(self.0.as_fd(), others, timeout)?;
        // Not raised: it was another descriptor, or the time.
        let _ = self.0.read();
        Ok(())
    }
}

impl Trigger for Wake {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.raise();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_sleep_ends_by_the_event_or_by_time_and_an_early_event_is_kept() {
        let wake = Wake::new().unwrap();
        let start = Instant::now();
        wake.wait(&[], Some(Duration::from_millis(20))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
        wake.raise();
        wake.raise();
        wake.wait(&[], None).unwrap();
        let other = wake.clone();
        let thread = std::thread::spawn(move || other.raise());
        wake.wait(&[], None).unwrap();
        thread.join().unwrap();
    }
}
