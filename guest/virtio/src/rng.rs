//! The entropy device (virtio 1.2 §5.4).

use crate::{
    DeviceError,
    queue::{Access, Queue, Segment},
    transport::{self, QueueInterrupt, Transport},
};
use alloc::boxed::Box;

/// Bytes asked for at a time.
const REQUEST_BYTES: usize = 64;
/// Looks for an answer; the host's own generator may have to wait for entropy.
const POLLS_MAX: u64 = 2_000_000_000;

/// A source of entropy.
#[derive(Debug)]
pub struct RngDevice {
    queue: Queue,
    buffer: &'static mut [u8; REQUEST_BYTES],
}

/// The device does not deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEntropy;

impl RngDevice {
    /// Starts the device.
    pub fn new(mut transport: impl Transport) -> Result<RngDevice, DeviceError> {
        transport::negotiate(&mut transport, 0, 0)?;
        let queue = Queue::new(&mut transport, 0, 1, QueueInterrupt::None)?;
        transport::start(&mut transport);
        // For ever, because the device may write to it whenever it likes.
        Ok(RngDevice { queue, buffer: Box::leak(Box::new([0; REQUEST_BYTES])) })
    }

    /// Fills `bytes`, waiting for the device.
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoEntropy> {
        let mut filled = 0;
        while filled < bytes.len() {
            let address = (&raw mut *self.buffer) as u64;
            let segment = Segment { address, len: REQUEST_BYTES as u32, access: Access::DeviceWrites };
            // SAFETY: the buffer lives for ever and is read only after the device has returned it.
            unsafe { self.queue.add(&[segment]) }.ok_or(NoEntropy)?;
            self.queue.publish();
            if !(0..POLLS_MAX).any(|_| self.queue.has_used()) {
                return Err(NoEntropy);
            }
            let used = self.queue.take_used().map_err(|_| NoEntropy)?.ok_or(NoEntropy)?;
            let len = (used.written as usize).min(bytes.len() - filled);
            if len == 0 {
                return Err(NoEntropy);
            }
            // SAFETY: the buffer is this long, and the device has returned it. Volatile, because the device wrote it.
            let random = unsafe { (&raw const *self.buffer).read_volatile() };
            bytes[filled..filled + len].copy_from_slice(&random[..len]);
            filled += len;
        }
        Ok(())
    }
}
