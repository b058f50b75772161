//! Virtio over PCI (virtio 1.2 §4.1), modern: everything is in the structures that vendor capabilities point to.
//! Interrupts come as messages (MSI-X), which need no acknowledgement.

use crate::{
    DeviceError,
    queue::Addresses,
    registers::Registers,
    transport::{DeviceKind, Notifier, QueueInterrupt, Transport},
};
use alloc::vec::Vec;

/// Devices of a bus, and functions of a device.
const DEVICES: u8 = 32;
const FUNCTIONS: u8 = 8;
/// Capabilities that a function can have in its 256 bytes; a list that is longer is a circle.
const CAPABILITIES_MAX: u32 = 48;

const VENDOR_VIRTIO: u16 = 0x1af4;
/// Modern device IDs start here, §4.1.2.1.
const MODERN_BASE: u16 = 0x1040;
/// Transitional ones, which are modern, too, unless their capabilities are missing.
const TRANSITIONAL: [(u16, DeviceKind); 3] =
    [(0x1000, DeviceKind::Net), (0x1001, DeviceKind::Block), (0x1005, DeviceKind::Rng)];

// PCI Local Bus 3.0 §6.1.
const COMMAND: u8 = 0x04;
const HEADER_TYPE: u8 = 0x0c;
const BARS: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;
const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_BUS_MASTER: u32 = 1 << 2;
const STATUS_CAPABILITIES: u32 = 1 << 20;
const MULTIFUNCTION: u32 = 1 << 23;
const BAR_IS_PORT: u32 = 1;
const BAR_IS_64_BIT: u32 = 1 << 2;

const CAPABILITY_VENDOR: u8 = 0x09;
const CAPABILITY_MSIX: u8 = 0x11;

// Structure types, §4.1.4.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;

// Offsets in the common structure, §4.1.4.3.
const DEVICE_FEATURE_SELECT: usize = 0x00;
const DEVICE_FEATURE: usize = 0x04;
const DRIVER_FEATURE_SELECT: usize = 0x08;
const DRIVER_FEATURE: usize = 0x0c;
const CONFIG_MSIX_VECTOR: usize = 0x10;
const DEVICE_STATUS: usize = 0x14;
const CONFIG_GENERATION: usize = 0x15;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_MSIX_VECTOR: usize = 0x1a;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_NOTIFY_OFF: usize = 0x1e;
const QUEUE_DESC: usize = 0x20;
const QUEUE_DRIVER: usize = 0x28;
const QUEUE_DEVICE: usize = 0x30;
const COMMON_BYTES: usize = 0x38;

const NO_VECTOR: u16 = 0xffff;
const FIRST_VECTOR: u16 = 0;

// MSI-X, PCI Local Bus 3.0 §6.8.2.
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_FUNCTION_MASK: u32 = 1 << 30;
const MSIX_ENTRY_BYTES: usize = 16;

/// A function's place on the first bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// PCI configuration space, and the memory that it gives devices.
pub trait PciBus {
    /// Reads 32 bits of a function's configuration at a multiple of 4.
    fn read(&mut self, function: Function, offset: u8) -> u32;
    /// Writes them.
    fn write(&mut self, function: Function, offset: u8, value: u32);
    /// Makes device memory reachable.
    fn map(&mut self, address: u64, bytes: usize) -> Result<Registers, DeviceError>;
    /// The address and data of a message that ends a sleep.
    fn interrupt_message(&self) -> (u64, u32);
}

/// Lists the virtio devices on the first bus that a driver here knows.
pub fn scan(bus: &mut impl PciBus) -> Vec<(DeviceKind, Function)> {
    let mut found = Vec::new();
    for device in 0..DEVICES {
        for function in 0..FUNCTIONS {
            let function = Function { device, function };
            // Each access can cost two exits to the monitor, so none is made for what cannot be there.
            let id = bus.read(function, 0);
            if let Some(kind) = device_kind(id as u16, (id >> 16) as u16) {
                found.push((kind, function));
            }
            if function.function == 0 && (id == u32::MAX || bus.read(function, HEADER_TYPE) & MULTIFUNCTION == 0) {
                break;
            }
        }
    }
    found
}

fn device_kind(vendor: u16, device: u16) -> Option<DeviceKind> {
    if vendor != VENDOR_VIRTIO {
        return None;
    }
    let transitional = TRANSITIONAL.iter().find(|(id, _)| *id == device).map(|(_, kind)| *kind);
    transitional.or_else(|| DeviceKind::from_id(u32::from(device.checked_sub(MODERN_BASE)?)))
}

/// A device on PCI.
#[derive(Debug)]
pub struct PciTransport {
    common: Registers,
    notify: Registers,
    notify_multiplier: usize,
    device: Registers,
}

impl PciTransport {
    /// Opens a device that [`scan`] has found.
    pub fn new(bus: &mut impl PciBus, function: Function) -> Result<PciTransport, DeviceError> {
        let command = bus.read(function, COMMAND);
        if command & STATUS_CAPABILITIES == 0 {
            return Err(DeviceError::Legacy);
        }
        bus.write(function, COMMAND, command & 0xffff | COMMAND_MEMORY | COMMAND_BUS_MASTER);
        let (mut common, mut notify, mut device, mut messages) = (None, None, None, None);
        let mut at = bus.read(function, CAPABILITIES) as u8 & !3;
        for _ in 0..CAPABILITIES_MAX {
            if at == 0 {
                break;
            }
            let header = bus.read(function, at);
            match (header as u8, (header >> 24) as u8) {
                (CAPABILITY_MSIX, _) => messages = messages.or(Some(at)),
                (CAPABILITY_VENDOR, COMMON) => common = common.or(Some(at)),
                (CAPABILITY_VENDOR, NOTIFY) => notify = notify.or(Some(at)),
                (CAPABILITY_VENDOR, DEVICE) => device = device.or(Some(at)),
                _ => {}
            }
            at = (header >> 8) as u8 & !3;
        }
        let notify_at = notify.ok_or(DeviceError::Legacy)?;
        let transport = PciTransport {
            common: structure(bus, function, common.ok_or(DeviceError::Legacy)?)?,
            notify: structure(bus, function, notify_at)?,
            notify_multiplier: bus.read(function, capability_field(notify_at, 16)?) as usize,
            device: structure(bus, function, device.ok_or(DeviceError::Legacy)?)?,
        };
        if transport.common.part(0, COMMON_BYTES).is_none() {
            return Err(DeviceError::Malformed("common configuration"));
        }
        enable_messages(bus, function, messages.ok_or(DeviceError::Malformed("MSI-X capability"))?)?;
        Ok(transport)
    }

    fn write_address(&self, offset: usize, address: u64) {
        self.common.write_u32(offset, address as u32);
        self.common.write_u32(offset + 4, (address >> 32) as u32);
    }
}

/// A field of a capability, as an offset into the configuration.
fn capability_field(at: u8, offset: u8) -> Result<u8, DeviceError> {
    at.checked_add(offset).ok_or(DeviceError::Malformed("capability"))
}

/// Maps the structure that a vendor capability describes, §4.1.4: BAR at 4, offset at 8, length at 12.
fn structure(bus: &mut impl PciBus, function: Function, at: u8) -> Result<Registers, DeviceError> {
    let bar = bus.read(function, capability_field(at, 4)?) as u8;
    let offset = bus.read(function, capability_field(at, 8)?);
    let len = bus.read(function, capability_field(at, 12)?);
    map(bus, function, bar, offset, len as usize)
}

fn map(
    bus: &mut impl PciBus,
    function: Function,
    bar: u8,
    offset: u32,
    bytes: usize,
) -> Result<Registers, DeviceError> {
    const BAR_COUNT: u8 = 6;
    /// No structure of a device that is driven here is larger.
    const BYTES_MAX: usize = 1 << 20;
    let malformed = DeviceError::Malformed("PCI memory");
    if bar >= BAR_COUNT || bytes == 0 || !offset.is_multiple_of(4) {
        return Err(malformed);
    }
    let low = bus.read(function, BARS + bar * 4);
    if low & BAR_IS_PORT != 0 {
        return Err(malformed);
    }
    let high = if low & BAR_IS_64_BIT != 0 && bar + 1 < BAR_COUNT { bus.read(function, BARS + bar * 4 + 4) } else { 0 };
    let base = u64::from(high) << 32 | u64::from(low & !0xf);
    if base == 0 {
        return Err(malformed); // The firmware has not given it a place.
    }
    let address = base.checked_add(u64::from(offset)).ok_or(malformed)?;
    bus.map(address, bytes.min(BYTES_MAX))
}

/// Points the first message at this core and lets the function send messages.
fn enable_messages(bus: &mut impl PciBus, function: Function, at: u8) -> Result<(), DeviceError> {
    let table = bus.read(function, capability_field(at, 4)?);
    let entry = map(bus, function, table as u8 & 7, table & !7, MSIX_ENTRY_BYTES)?;
    let (address, data) = bus.interrupt_message();
    entry.write_u32(0, address as u32);
    entry.write_u32(4, (address >> 32) as u32);
    entry.write_u32(8, data);
    entry.write_u32(12, 0); // Not masked.
    let control = bus.read(function, at);
    bus.write(function, at, control & !MSIX_FUNCTION_MASK | MSIX_ENABLE);
    Ok(())
}

impl Transport for PciTransport {
    fn status(&self) -> u8 {
        self.common.read_u8(DEVICE_STATUS)
    }

    fn set_status(&mut self, status: u8) {
        self.common.write_u8(DEVICE_STATUS, status);
    }

    fn device_features(&mut self) -> u64 {
        let half = |select| {
            self.common.write_u32(DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read_u32(DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    fn set_driver_features(&mut self, features: u64) {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.common.write_u32(DRIVER_FEATURE_SELECT, select);
            self.common.write_u32(DRIVER_FEATURE, half);
        }
    }

    fn queue_size_max(&mut self, index: u16) -> u16 {
        self.common.write_u16(QUEUE_SELECT, index);
        self.common.read_u16(QUEUE_SIZE)
    }

    fn enable_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: Addresses,
        interrupt: QueueInterrupt,
    ) -> Result<Notifier, DeviceError> {
        self.common.write_u16(CONFIG_MSIX_VECTOR, NO_VECTOR);
        self.common.write_u16(QUEUE_SELECT, index);
        self.common.write_u16(QUEUE_SIZE, size);
        let vector = match interrupt {
            QueueInterrupt::None => NO_VECTOR,
            QueueInterrupt::Device => FIRST_VECTOR,
        };
        self.common.write_u16(QUEUE_MSIX_VECTOR, vector);
        if self.common.read_u16(QUEUE_MSIX_VECTOR) != vector {
            return Err(DeviceError::Malformed("interrupt vector"));
        }
        self.write_address(QUEUE_DESC, addresses.descriptors);
        self.write_address(QUEUE_DRIVER, addresses.available);
        self.write_address(QUEUE_DEVICE, addresses.used);
        let offset = usize::from(self.common.read_u16(QUEUE_NOTIFY_OFF)) * self.notify_multiplier;
        let register = self.notify.part(offset, 2).filter(|_| offset.is_multiple_of(2));
        let register = register.ok_or(DeviceError::Malformed("notification register"))?;
        self.common.write_u16(QUEUE_ENABLE, 1);
        Ok(Notifier::Narrow(register, index))
    }

    fn config_u8(&self, offset: usize) -> Result<u8, DeviceError> {
        let byte = self.device.part(offset, 1).ok_or(DeviceError::Malformed("configuration"))?;
        Ok(byte.read_u8(0))
    }

    fn config_u32(&self, offset: usize) -> Result<u32, DeviceError> {
        let word = self.device.part(offset, 4).ok_or(DeviceError::Malformed("configuration"))?;
        Ok(word.read_u32(0))
    }

    fn set_config_u8(&mut self, offset: usize, value: u8) -> Result<(), DeviceError> {
        let byte = self.device.part(offset, 1).ok_or(DeviceError::Malformed("configuration"))?;
        byte.write_u8(0, value);
        Ok(())
    }

    fn config_generation(&self) -> u32 {
        self.common.read_u8(CONFIG_GENERATION).into()
    }

    fn acknowledge_interrupt(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec;

    /// One function at 00:03.0 with a configuration in memory; device memory is leaked.
    struct FakeBus {
        config: [u32; 64],
        memory: &'static mut [u32],
        mapped: Vec<(u64, usize)>,
    }

    const PLACE: Function = Function { device: 3, function: 0 };
    const BASE: u64 = 0x8_0000_0000;

    impl FakeBus {
        fn card() -> FakeBus {
            let mut config = [0; 64];
            config[0] = 0x1041_1af4;
            config[1] = STATUS_CAPABILITIES;
            config[0x10 / 4 + 4] = BASE as u32 | BAR_IS_64_BIT | 8;
            config[0x10 / 4 + 5] = (BASE >> 32) as u32;
            config[0x34 / 4] = 0x40;
            let mut capability = |at: usize, next: u32, kind: u8, offset: u32, len: u32| {
                config[at / 4] = u32::from(CAPABILITY_VENDOR) | next << 8 | 20 << 16 | u32::from(kind) << 24;
                config[at / 4 + 1] = 4;
                config[at / 4 + 2] = offset;
                config[at / 4 + 3] = len;
            };
            capability(0x40, 0x50, COMMON, 0x000, 0x40);
            capability(0x50, 0x60, DEVICE, 0x100, 0x40);
            capability(0x60, 0x80, NOTIFY, 0x200, 0x40);
            config[0x70 / 4] = 4;
            config[0x80 / 4] = u32::from(CAPABILITY_MSIX);
            config[0x84 / 4] = 0x300 | 4;
            FakeBus { config, memory: vec![0; 0x400 / 4].leak(), mapped: Vec::new() }
        }
    }

    impl PciBus for FakeBus {
        fn read(&mut self, function: Function, offset: u8) -> u32 {
            assert!(offset.is_multiple_of(4));
            if function == PLACE { self.config[usize::from(offset / 4)] } else { u32::MAX }
        }
        fn write(&mut self, function: Function, offset: u8, value: u32) {
            assert_eq!(function, PLACE);
            self.config[usize::from(offset / 4)] = value;
        }
        fn map(&mut self, address: u64, bytes: usize) -> Result<Registers, DeviceError> {
            self.mapped.push((address, bytes));
            let offset = address.checked_sub(BASE).ok_or(DeviceError::Malformed("PCI memory"))?;
            // SAFETY: the memory is leaked; `part` keeps to its bounds.
            let all = unsafe { Registers::new(self.memory.as_ptr() as u64, size_of_val(self.memory)) };
            all.part(offset as usize, bytes).ok_or(DeviceError::Malformed("PCI memory"))
        }
        fn interrupt_message(&self) -> (u64, u32) {
            (0xfee0_1000, 0x30)
        }
    }

    #[test]
    fn finds_known_devices_only() {
        let mut bus = FakeBus::card();
        assert_eq!(scan(&mut bus), [(DeviceKind::Net, PLACE)]);
        for (id, kind) in [
            (0x1000_1af4, Some(DeviceKind::Net)),
            (0x1044_1af4, Some(DeviceKind::Rng)),
            (0x1042_1af4, Some(DeviceKind::Block)),
            (0x1001_1af4, Some(DeviceKind::Block)),
            (0x1043_1af4, None),
            (0x0001_1af4, None),
            (0x1041_8086, None),
        ] {
            bus.config[0] = id;
            assert_eq!(scan(&mut bus).first().map(|(kind, _)| *kind), kind, "{id:#x}");
        }
    }

    #[test]
    fn opens_a_modern_card() {
        let mut bus = FakeBus::card();
        let mut transport = PciTransport::new(&mut bus, PLACE).unwrap();
        assert_eq!(bus.config[1] & 6, 6, "memory and bus master are on");
        assert_eq!(bus.memory[0x300 / 4..][..4], [0xfee0_1000, 0, 0x30, 0]);
        assert_eq!(bus.config[0x80 / 4] & MSIX_ENABLE, MSIX_ENABLE);
        bus.memory[(QUEUE_NOTIFY_OFF - 2) / 4] = 3 << 16;
        let addresses = Addresses { descriptors: 0x1_0000_1000, available: 0x2000, used: 0x3000 };
        let notifier = transport.enable_queue(1, 8, addresses, QueueInterrupt::Device).unwrap();
        assert_eq!(bus.memory[QUEUE_DESC / 4..][..6], [0x1000, 1, 0x2000, 0, 0x3000, 0]);
        notifier.notify();
        assert_eq!(bus.memory[(0x200 + 3 * 4) / 4], 1);
    }

    #[test]
    fn broken_configurations_are_refused_and_never_panic() {
        let good = FakeBus::card().config;
        for at in 1..64 {
            for value in [0, 1, 0x40, 0xff, 0xffff_ff00, u32::MAX] {
                let mut bus = FakeBus::card();
                bus.config = good;
                bus.config[at] = value;
                if let Ok(mut transport) = PciTransport::new(&mut bus, PLACE) {
                    let addresses = Addresses { descriptors: 0, available: 0, used: 0 };
                    let _ = transport.enable_queue(0, 8, addresses, QueueInterrupt::None);
                    let _ = transport.config_u8(5);
                }
            }
        }
    }
}
