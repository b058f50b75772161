//! Drivers for virtio devices (OASIS virtio 1.2): queue × transport × device.
//!
//! - [`queue`]: split virtqueues, over plain memory;
//! - [`transport`]: how a device is configured and notified, by memory-mapped registers ([`mmio`]) or PCI ([`pci`]);
//! - [`net`], [`blk`] and [`rng`]: the devices.
//!
//! Modern devices only (`VIRTIO_F_VERSION_1`). The guest is identity-mapped, so a pointer is the address that a device
//! is given. A device is not trusted: what it writes is checked against what the driver remembers by itself, and a
//! device that breaks the rules is reported as broken, not followed. Nothing here waits for an interrupt or a device,
//! but for the answer to a reset.
//!
//! This crate knows no processor: mapping registers, PCI configuration and interrupt messages are arguments.
#![no_std]

extern crate alloc;

pub mod blk;
pub mod mmio;
pub mod net;
pub mod pci;
pub mod queue;
pub mod registers;
pub mod rng;
pub mod transport;

#[cfg(test)]
mod fake;

/// Why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// It does not offer `VIRTIO_F_VERSION_1`.
    Legacy,
    /// It refuses the features that the driver needs.
    Features,
    /// It lacks a queue or a configuration structure, or gives it an impossible place or size.
    Malformed(&'static str),
    /// It does not finish its reset.
    Stuck,
    /// There is no memory for its queues.
    OutOfMemory,
}

impl core::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DeviceError::Legacy => {
                write!(f, "the device is a legacy one; QEMU's virtio-mmio needs -global virtio-mmio.force-legacy=false")
            }
            DeviceError::Features => write!(f, "the device refuses the features that the driver needs"),
            DeviceError::Malformed(what) => write!(f, "the device's {what} is missing or impossible"),
            DeviceError::Stuck => write!(f, "the device does not finish its reset"),
            DeviceError::OutOfMemory => write!(f, "there is no memory for the device's queues"),
        }
    }
}

impl core::error::Error for DeviceError {}
