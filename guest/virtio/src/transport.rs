//! What the two transports have in common: the initialisation of a device (virtio 1.2 §3.1.1) and its notifications.

use crate::{DeviceError, queue::Addresses, registers::Registers};
use alloc::boxed::Box;

/// Device status bits, §2.1.
mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const FAILED: u8 = 128;
}

/// The device is modern, §6.
pub const F_VERSION_1: u64 = 1 << 32;

/// Looks at a device that is being reset.
const RESET_POLLS_MAX: u32 = 1_000_000;

/// What a device is, §5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A network card.
    Net = 1,
    /// A disk.
    Block = 2,
    /// A source of entropy.
    Rng = 4,
}

impl DeviceKind {
    /// The kind with this device ID, if there is a driver for it.
    pub fn from_id(id: u32) -> Option<DeviceKind> {
        [DeviceKind::Net, DeviceKind::Block, DeviceKind::Rng].into_iter().find(|kind| *kind as u32 == id)
    }
}

/// Whether a queue's used buffers may interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueInterrupt {
    /// Never.
    None,
    /// By the device's line or its first message.
    Device,
}

/// Tells the device that a queue has new buffers.
#[derive(Debug)]
pub enum Notifier {
    /// A 32-bit register that takes the queue's index.
    Wide(Registers, u32),
    /// A 16-bit one.
    Narrow(Registers, u16),
}

impl Notifier {
    /// Notifies.
    #[inline]
    pub fn notify(&self) {
        match self {
            Notifier::Wide(register, index) => register.write_u32(0, *index),
            Notifier::Narrow(register, index) => register.write_u16(0, *index),
        }
    }
}

/// How a device is configured.
pub trait Transport {
    /// Reads the device status.
    fn status(&self) -> u8;
    /// Writes the device status; 0 resets the device.
    fn set_status(&mut self, status: u8);
    /// The features that the device offers.
    fn device_features(&mut self) -> u64;
    /// The features that the driver takes.
    fn set_driver_features(&mut self, features: u64);
    /// The largest size of a queue; 0 if there is no such queue.
    fn queue_size_max(&mut self, index: u16) -> u16;
    /// Hands a queue to the device.
    fn enable_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: Addresses,
        interrupt: QueueInterrupt,
    ) -> Result<Notifier, DeviceError>;
    /// Reads a byte of the device's own configuration.
    fn config_u8(&self, offset: usize) -> Result<u8, DeviceError>;
    /// Reads 32 bits of it, at a multiple of 4.
    fn config_u32(&self, offset: usize) -> Result<u32, DeviceError>;
    /// Writes a byte of it.
    fn set_config_u8(&mut self, offset: usize, value: u8) -> Result<(), DeviceError>;
    /// A number that changes with the device's own configuration.
    fn config_generation(&self) -> u32;
    /// Takes the device's interrupt line back, where it has one.
    fn acknowledge_interrupt(&mut self);
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn status(&self) -> u8 {
        (**self).status()
    }

    fn set_status(&mut self, status: u8) {
        (**self).set_status(status);
    }

    fn device_features(&mut self) -> u64 {
        (**self).device_features()
    }

    fn set_driver_features(&mut self, features: u64) {
        (**self).set_driver_features(features);
    }

    fn queue_size_max(&mut self, index: u16) -> u16 {
        (**self).queue_size_max(index)
    }

    fn enable_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: Addresses,
        interrupt: QueueInterrupt,
    ) -> Result<Notifier, DeviceError> {
        (**self).enable_queue(index, size, addresses, interrupt)
    }

    fn config_u8(&self, offset: usize) -> Result<u8, DeviceError> {
        (**self).config_u8(offset)
    }

    fn config_u32(&self, offset: usize) -> Result<u32, DeviceError> {
        (**self).config_u32(offset)
    }

    fn set_config_u8(&mut self, offset: usize, value: u8) -> Result<(), DeviceError> {
        (**self).set_config_u8(offset, value)
    }

    fn config_generation(&self) -> u32 {
        (**self).config_generation()
    }

    fn acknowledge_interrupt(&mut self) {
        (**self).acknowledge_interrupt();
    }
}

/// Resets a device and agrees on features: all of `required` and what the device offers of `wanted`. Returns what was
/// agreed on; the queues come next, and then [`start`].
// Once for each device, at the start: one copy is enough for all drivers.
#[inline(never)]
pub fn negotiate(transport: &mut impl Transport, required: u64, wanted: u64) -> Result<u64, DeviceError> {
    transport.set_status(0);
    if !(0..RESET_POLLS_MAX).any(|_| transport.status() == 0) {
        return Err(DeviceError::Stuck);
    }
    transport.set_status(status::ACKNOWLEDGE | status::DRIVER);
    let offered = transport.device_features();
    let required = required | F_VERSION_1;
    let result = if offered & F_VERSION_1 == 0 {
        Err(DeviceError::Legacy)
    } else if offered & required != required {
        Err(DeviceError::Features)
    } else {
        let agreed = required | offered & wanted;
        transport.set_driver_features(agreed);
        transport.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
        if transport.status() & status::FEATURES_OK != 0 { Ok(agreed) } else { Err(DeviceError::Features) }
    };
    if result.is_err() {
        transport.set_status(status::FAILED);
    }
    result
}

/// Lets a device work, once its queues are enabled.
#[inline(never)]
pub fn start(transport: &mut impl Transport) {
    transport.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK);
}
