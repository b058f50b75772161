//! Virtio over memory-mapped registers (virtio 1.2 §4.2).

use crate::{
    DeviceError,
    queue::Addresses,
    registers::Registers,
    transport::{DeviceKind, Notifier, QueueInterrupt, Transport},
};

// Register offsets, §4.2.2.
const MAGIC_VALUE: usize = 0x000;
const VERSION: usize = 0x004;
const DEVICE_ID: usize = 0x008;
const DEVICE_FEATURES: usize = 0x010;
const DEVICE_FEATURES_SEL: usize = 0x014;
const DRIVER_FEATURES: usize = 0x020;
const DRIVER_FEATURES_SEL: usize = 0x024;
const QUEUE_SEL: usize = 0x030;
const QUEUE_NUM_MAX: usize = 0x034;
const QUEUE_NUM: usize = 0x038;
const QUEUE_READY: usize = 0x044;
const QUEUE_NOTIFY: usize = 0x050;
const INTERRUPT_ACK: usize = 0x064;
const STATUS: usize = 0x070;
const QUEUE_DESC: usize = 0x080;
const QUEUE_DRIVER: usize = 0x090;
const QUEUE_DEVICE: usize = 0x0a0;
const CONFIG_GENERATION: usize = 0x0fc;
const CONFIG: usize = 0x100;

const MAGIC: u32 = 0x7472_6976;
const MODERN: u32 = 2;
/// Used buffer notification and configuration change.
const ALL_INTERRUPTS: u32 = 3;

/// Bytes of a device's registers where nobody says; QEMU and Firecracker give at least so many.
pub const REGISTER_BYTES: usize = 0x200;

/// A device that the hypervisor has named on the boot command line: `SIZE@ADDRESS:LINE[:ID]`, as the Linux kernel takes
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes of its registers.
    pub bytes: u64,
    /// Their address.
    pub address: u64,
    /// Its interrupt line.
    pub line: u32,
}

impl Place {
    /// Reads such a word.
    pub fn parse(word: &str) -> Option<Place> {
        let (size, rest) = word.split_once('@')?;
        let mut rest = rest.split(':');
        let (address, line) = (rest.next()?, rest.next()?);
        let (digits, unit) = match size.as_bytes().last()? {
            b'k' | b'K' => (&size[..size.len() - 1], 1 << 10),
            b'm' | b'M' => (&size[..size.len() - 1], 1 << 20),
            _ => (size, 1),
        };
        let place =
            Place { bytes: number(digits)?.checked_mul(unit)?, address: number(address)?, line: line.parse().ok()? };
        place.address.checked_add(place.bytes)?;
        (place.bytes >= REGISTER_BYTES as u64 && place.address.is_multiple_of(4)).then_some(place)
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A device behind memory-mapped registers.
#[derive(Debug)]
pub struct MmioTransport {
    registers: Registers,
}

impl MmioTransport {
    /// Looks what is at `registers`: `None` if there is no device that a driver here knows.
    pub fn probe(registers: Registers) -> Result<Option<(DeviceKind, MmioTransport)>, DeviceError> {
        if registers.read_u32(MAGIC_VALUE) != MAGIC {
            return Ok(None);
        }
        let Some(kind) = DeviceKind::from_id(registers.read_u32(DEVICE_ID)) else { return Ok(None) };
        if registers.read_u32(VERSION) != MODERN {
            return Err(DeviceError::Legacy);
        }
        Ok(Some((kind, MmioTransport { registers })))
    }

    fn write_address(&self, offset: usize, address: u64) {
        self.registers.write_u32(offset, address as u32);
        self.registers.write_u32(offset + 4, (address >> 32) as u32);
    }
}

impl Transport for MmioTransport {
    fn status(&self) -> u8 {
        self.registers.read_u32(STATUS) as u8
    }

    fn set_status(&mut self, status: u8) {
        self.registers.write_u32(STATUS, u32::from(status));
    }

    fn device_features(&mut self) -> u64 {
        let half = |select| {
            self.registers.write_u32(DEVICE_FEATURES_SEL, select);
            u64::from(self.registers.read_u32(DEVICE_FEATURES))
        };
        half(0) | half(1) << 32
    }

    fn set_driver_features(&mut self, features: u64) {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.registers.write_u32(DRIVER_FEATURES_SEL, select);
            self.registers.write_u32(DRIVER_FEATURES, half);
        }
    }

    fn queue_size_max(&mut self, index: u16) -> u16 {
        self.registers.write_u32(QUEUE_SEL, u32::from(index));
        u16::try_from(self.registers.read_u32(QUEUE_NUM_MAX)).unwrap_or(1 << 15)
    }

    fn enable_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: Addresses,
        _interrupt: QueueInterrupt,
    ) -> Result<Notifier, DeviceError> {
        self.registers.write_u32(QUEUE_SEL, u32::from(index));
        self.registers.write_u32(QUEUE_NUM, u32::from(size));
        self.write_address(QUEUE_DESC, addresses.descriptors);
        self.write_address(QUEUE_DRIVER, addresses.available);
        self.write_address(QUEUE_DEVICE, addresses.used);
        self.registers.write_u32(QUEUE_READY, 1);
        let register = self.registers.part(QUEUE_NOTIFY, 4).ok_or(DeviceError::Malformed("notification register"))?;
        Ok(Notifier::Wide(register, u32::from(index)))
    }

    fn config_u8(&self, offset: usize) -> Result<u8, DeviceError> {
        let byte = self.registers.part(CONFIG + offset, 1).ok_or(DeviceError::Malformed("configuration"))?;
        Ok(byte.read_u8(0))
    }

    fn config_u32(&self, offset: usize) -> Result<u32, DeviceError> {
        let word = self.registers.part(CONFIG + offset, 4).ok_or(DeviceError::Malformed("configuration"))?;
        Ok(word.read_u32(0))
    }

    fn set_config_u8(&mut self, offset: usize, value: u8) -> Result<(), DeviceError> {
        let byte = self.registers.part(CONFIG + offset, 1).ok_or(DeviceError::Malformed("configuration"))?;
        byte.write_u8(0, value);
        Ok(())
    }

    fn config_generation(&self) -> u32 {
        self.registers.read_u32(CONFIG_GENERATION)
    }

    fn acknowledge_interrupt(&mut self) {
        self.registers.write_u32(INTERRUPT_ACK, ALL_INTERRUPTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_places_as_the_linux_kernel_does() {
        let place = |bytes, address, line| Some(Place { bytes, address, line });
        assert_eq!(Place::parse("512@0xfeb00e00:12"), place(512, 0xfeb0_0e00, 12));
        assert_eq!(Place::parse("4K@0xd0000000:5"), place(4096, 0xd000_0000, 5));
        assert_eq!(Place::parse("0x200@4273999360:12:0"), place(512, 0xfec0_0e00, 12));
        for bad in [
            "",
            "@",
            "512",
            "512@",
            "512@1",
            "512@0x10:",
            "4@0x10:1",
            "9Q@0x10:1",
            "K@0x10:1",
            "512@0x11:1",
            "512@0xffffffffffffff00:1",
            "99999999999999999999M@0x10:1",
            "512@-1:1",
            "512@0x10:-1",
            "18014398509481984K@0x10:1",
        ] {
            assert_eq!(Place::parse(bad), None, "{bad}");
        }
    }
}
