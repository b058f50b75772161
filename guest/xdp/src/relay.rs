//! Rings between a driver and the kernel, for whoever is to see what passes: a driver that works the kernel's own rings asks
//! nobody. What stands in its rings is handed on, entry by entry.
//!
//! ```text
//! driver's tx ring ──► seen ──► kernel's tx ring        kernel's rx ring ──► seen ──► driver's rx ring
//! ```
//!
//! The frames stay where they are, and fill and completion ring are the driver's own. A frame is seen before the other side
//! learns of it. Neither side is believed: a driver's entries go to the kernel as they are, which checks them, and what it
//! refuses is not seen. A driver that changes a frame after it was seen, or sends one in more pieces than the kernel takes, sends
//! something else than is seen.

use crate::{
    MAX_PIECES, SharedMemory,
    ring::{CONTINUES, HAS_METADATA, Ring, Violation},
};
use alloc::vec::Vec;
use kayvee_platform::Checksums;

/// Both rings of descriptors of one side.
#[derive(Debug)]
pub struct Side {
    /// Frames that have arrived.
    pub rx: Ring,
    /// Frames to send.
    pub tx: Ring,
}

/// A frame on its way: a copy.
#[derive(Debug)]
pub struct Passing<'a> {
    /// Its bytes.
    pub frame: &'a mut [u8],
    /// Whether its sender may have left a checksum to the card.
    pub may_lack_checksum: bool,
}

/// Who has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The driver: something has arrived.
    pub has_arrived: bool,
    /// The kernel: something is to be sent.
    pub is_to_send: bool,
}

/// What hands the entries on.
#[derive(Debug)]
pub struct Relay {
    frames: SharedMemory,
    frame_bytes: usize,
    checksums: Checksums,
    driver: Side,
    kernel: Side,
    received: Gathered,
    sent: Gathered,
}

/// The pieces of a frame so far.
#[derive(Debug, Default)]
struct Gathered {
    frame: Vec<u8>,
    goes_on: bool,
    has_metadata: bool,
}

impl Gathered {
    /// Adds what a descriptor names, and returns whether that was the last piece.
    fn add(&mut self, frames: &SharedMemory, place_bytes: usize, descriptor: (u64, u32, u32)) -> bool {
        let (address, len, options) = descriptor;
        if !self.goes_on {
            self.frame.clear();
            self.has_metadata = options & HAS_METADATA != 0;
        }
        let len = len as usize;
        let is_known = len > 0 && options & !(CONTINUES | HAS_METADATA) == 0;
        match usize::try_from(address) {
            // In one place, as the kernel wants it.
            Ok(at)
                if is_known
                    && at < frames.len()
                    && len <= place_bytes - at % place_bytes
                    && len <= frames.len() - at =>
            {
                // One with more pieces than the kernel takes is cut off.
                frames.copy_to(at, len.min(MAX_PIECES * place_bytes - self.frame.len()), &mut self.frame);
                self.goes_on = options & CONTINUES != 0;
                !self.goes_on
            }
            // It forgets what came before of the frame, and begins anew.
            _ => {
                self.goes_on = false;
                false
            }
        }
    }
}

impl Relay {
    /// Begins between rings that nobody has used yet, over frames of a socket with places of so many bytes, a power of two.
    pub fn new(frames: SharedMemory, frame_bytes: u32, checksums: Checksums, driver: Side, kernel: Side) -> Relay {
        // Nothing leaves by itself.
        driver.tx.ask_for_wakeups();
        let (received, sent) = Default::default();
        Relay { frames, frame_bytes: frame_bytes as usize, checksums, driver, kernel, received, sent }
    }

    /// Has seen what has arrived, which [`publish`](Self::publish) hands on.
    pub fn receive(&mut self, mut see: impl FnMut(Passing<'_>)) -> Result<(), Violation> {
        for _ in 0..self.kernel.rx.waiting()? {
            let descriptor = self.kernel.rx.take_descriptor();
            if self.received.add(&self.frames, self.frame_bytes, descriptor) {
                let may_lack_checksum = self.checksums == Checksums::Partial;
                see(Passing { frame: &mut self.received.frame, may_lack_checksum });
            }
            let (address, len, options) = descriptor;
            // Who has given each of its places once has room for all of them.
            self.driver.rx.put_descriptor(address, len, options);
        }
        self.kernel.rx.release();
        Ok(())
    }

    /// Has seen what is to be sent, as far as the kernel has room.
    pub fn send(&mut self, mut see: impl FnMut(Passing<'_>)) {
        // Where the driver's index makes no sense, there is nothing.
        let waiting = self.driver.tx.waiting().unwrap_or(0);
        for _ in 0..waiting.min(self.kernel.tx.room()) {
            let descriptor = self.driver.tx.take_descriptor();
            if self.sent.add(&self.frames, self.frame_bytes, descriptor) {
                see(Passing { frame: &mut self.sent.frame, may_lack_checksum: self.sent.has_metadata });
            }
            let (address, len, options) = descriptor;
            self.kernel.tx.put_descriptor(address, len, options);
        }
    }

    /// Hands on what was seen: tells the driver of what has arrived and the kernel of what is to be sent. Returns whether either
    /// has something to do.
    pub fn publish(&mut self) -> Work {
        let has_arrived = self.driver.rx.publish();
        self.kernel.tx.publish();
        Work { has_arrived, is_to_send: self.kernel.tx.is_pending() }
    }

    /// Tells the driver what the kernel has taken to be sent: the indices of both rings are the same.
    pub fn settle(&self) {
        self.driver.tx.release_before(self.kernel.tx.taken());
    }
}

#[cfg(test)]
mod tests;
