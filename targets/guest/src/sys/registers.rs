//! Device registers, mapped by the machine for the drivers.

use kayvee_virtio::{
    DeviceError,
    pci::{Function, PciBus},
    registers::Registers,
};
use kayvee_x86::{machine::Setup, pci};

/// Maps the registers of a device.
pub fn map(setup: &mut Setup, address: u64, bytes: usize) -> Result<Registers, DeviceError> {
    setup.map_device(address, bytes as u64).map_err(|_| DeviceError::Malformed("register address"))?;
    // SAFETY: the range is mapped as a device's and stays so. Main memory cannot be mapped like this.
    Ok(unsafe { Registers::new(address, bytes) })
}

/// The machine's PCI bus.
pub struct Pci<'a>(pub &'a mut Setup);

impl PciBus for Pci<'_> {
    fn read(&mut self, function: Function, offset: u8) -> u32 {
        pci::read(function.device, function.function, offset)
    }

    fn write(&mut self, function: Function, offset: u8, value: u32) {
        // SAFETY: the driver writes only the command register, which lets the device reach the memory that its queues
        // name, and the switch for messages; it moves no device.
        unsafe { pci::write(function.device, function.function, offset, value) };
    }

    fn map(&mut self, address: u64, bytes: usize) -> Result<Registers, DeviceError> {
        map(self.0, address, bytes)
    }

    fn interrupt_message(&self) -> (u64, u32) {
        self.0.interrupt_message()
    }
}
