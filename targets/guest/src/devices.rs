//! Finds the machine's devices: those that the hypervisor names on the command line, those in QEMU's virtio-mmio slots,
//! and those on PCI.

use crate::sys::{
    registers::{self, Pci},
    rings::{self, DoorbellPort},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use kayvee_platform::Entropy;
use kayvee_virtio::{
    DeviceError,
    blk::BlkDevice,
    mmio::{MmioTransport, Place, REGISTER_BYTES},
    net::NetDevice,
    pci::{self, PciTransport},
    queue::Addresses,
    rng::RngDevice,
    transport::{DeviceKind, Notifier, QueueInterrupt, Transport},
};
use kayvee_x86::{
    cpu::{CpuEntropy, Hypervisor},
    machine::Setup,
};
use kayvee_xdp::XdpDevice;

/// QEMU's `microvm` has its virtio-mmio slots here, used or not.
const QEMU_SLOTS: u64 = 0xfeb0_0000;
const QEMU_SLOT_COUNT: u64 = 24;

/// Buffers of the network card in each direction, for machines with and without memory to spare.
const QUEUE_SIZE: u16 = 256;
const SMALL_QUEUE_SIZE: u16 = 64;
const SMALL_MEMORY_BYTES: u64 = 64 << 20;

/// Either transport.
pub enum AnyTransport {
    /// Memory-mapped registers.
    Mmio(MmioTransport),
    /// PCI.
    Pci(PciTransport),
}

macro_rules! either {
    ($self:ident, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Mmio($transport) => $call,
            AnyTransport::Pci($transport) => $call,
        }
    };
}

impl Transport for AnyTransport {
    fn status(&self) -> u8 {
        either!(self, transport => transport.status())
    }

    fn set_status(&mut self, status: u8) {
        either!(self, transport => transport.set_status(status));
    }

    fn device_features(&mut self) -> u64 {
        either!(self, transport => transport.device_features())
    }

    fn set_driver_features(&mut self, features: u64) {
        either!(self, transport => transport.set_driver_features(features));
    }

    fn queue_size_max(&mut self, index: u16) -> u16 {
        either!(self, transport => transport.queue_size_max(index))
    }

    fn enable_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: Addresses,
        interrupt: QueueInterrupt,
    ) -> Result<Notifier, DeviceError> {
        either!(self, transport => transport.enable_queue(index, size, addresses, interrupt))
    }

    fn config_u8(&self, offset: usize) -> Result<u8, DeviceError> {
        either!(self, transport => transport.config_u8(offset))
    }

    fn config_u32(&self, offset: usize) -> Result<u32, DeviceError> {
        either!(self, transport => transport.config_u32(offset))
    }

    fn set_config_u8(&mut self, offset: usize, value: u8) -> Result<(), DeviceError> {
        either!(self, transport => transport.set_config_u8(offset, value))
    }

    fn config_generation(&self) -> u32 {
        either!(self, transport => transport.config_generation())
    }

    fn acknowledge_interrupt(&mut self) {
        either!(self, transport => transport.acknowledge_interrupt());
    }
}

/// The machine's network card.
pub enum Card {
    /// A virtio device.
    Virtio(Box<NetDevice<AnyTransport>>),
    /// A socket of the host's whose rings are here.
    Xdp(Box<XdpDevice<DoorbellPort>>),
}

/// What the machine has.
pub struct Devices {
    /// The network card: the first, if there are several.
    pub card: Card,
    /// The disk, if there is one.
    pub disk: Option<BlkDevice<AnyTransport>>,
    /// A secret from the processor's or the hypervisor's entropy.
    pub seed: [u8; 48],
}

type Found = Vec<(DeviceKind, AnyTransport)>;

/// Finds and starts the devices that the store needs, or says what is missing.
pub fn find(setup: &mut Setup, named: &[String], xdp: Option<u64>) -> Result<Devices, String> {
    let mut found = Vec::new();
    if named.is_empty() {
        find_in_slots(setup, &mut found)?;
        find_on_pci(setup, &mut found)?;
    } else {
        find_named(setup, named, &mut found)?;
    }
    let mut take = |kind| {
        let at = found.iter().position(|(found, _)| *found == kind)?;
        Some(found.swap_remove(at).1)
    };
    let seed = seed(take(DeviceKind::Rng))?;
    let card = match xdp {
        Some(address) => Card::Xdp(Box::new(rings::open(setup, address)?)),
        None => Card::Virtio(Box::new(net(setup, take(DeviceKind::Net))?)),
    };
    let disk = take(DeviceKind::Block).map(BlkDevice::new).transpose().map_err(|error| format!("disk: {error}"))?;
    if take(DeviceKind::Block).is_some() {
        // Which of them holds the log cannot be told from their places, which change with the monitor's arguments.
        return Err("there are several disks: leave only the one for the log".into());
    }
    Ok(Devices { card, disk, seed })
}

fn net(setup: &Setup, device: Option<AnyTransport>) -> Result<NetDevice<AnyTransport>, String> {
    let transport = device.ok_or("there is no virtio network card: add -device virtio-net-device")?;
    let queue_size = if setup.machine().memory_bytes() < SMALL_MEMORY_BYTES { SMALL_QUEUE_SIZE } else { QUEUE_SIZE };
    NetDevice::new(transport, queue_size).map_err(|error| format!("network card: {error}"))
}

fn find_named(setup: &mut Setup, named: &[String], found: &mut Found) -> Result<(), String> {
    for word in named {
        let place = Place::parse(word).ok_or_else(|| format!("boot argument 'virtio_mmio.device={word}' is wrong"))?;
        if let Some(device) = probe(setup, place.address, place.bytes as usize)? {
            setup.enable_interrupt_line(Some(place.line));
            found.push(device);
        }
    }
    Ok(())
}

fn find_in_slots(setup: &mut Setup, found: &mut Found) -> Result<(), String> {
    // Other machines have no memory there, or another device's.
    if !matches!(setup.machine().hypervisor(), Hypervisor::Kvm | Hypervisor::Tcg) {
        return Ok(());
    }
    for slot in 0..QEMU_SLOT_COUNT {
        found.extend(probe(setup, QEMU_SLOTS + slot * REGISTER_BYTES as u64, REGISTER_BYTES)?);
    }
    if !found.is_empty() {
        setup.enable_interrupt_line(None);
    }
    Ok(())
}

fn probe(setup: &mut Setup, address: u64, bytes: usize) -> Result<Option<(DeviceKind, AnyTransport)>, String> {
    let error = |error| format!("device at {address:#x}: {error}");
    let registers = registers::map(setup, address, bytes).map_err(error)?;
    let device = MmioTransport::probe(registers).map_err(error)?;
    Ok(device.map(|(kind, transport)| (kind, AnyTransport::Mmio(transport))))
}

fn find_on_pci(setup: &mut Setup, found: &mut Found) -> Result<(), String> {
    let mut bus = Pci(setup);
    for (kind, function) in pci::scan(&mut bus) {
        let transport = PciTransport::new(&mut bus, function)
            .map_err(|error| format!("PCI device {:02x}.{}: {error}", function.device, function.function))?;
        found.push((kind, AnyTransport::Pci(transport)));
    }
    Ok(())
}

fn seed(device: Option<AnyTransport>) -> Result<[u8; 48], String> {
    let mut seed = [0; 48];
    if let Some(mut cpu) = CpuEntropy::new() {
        cpu.fill(&mut seed);
        return Ok(seed);
    }
    let transport =
        device.ok_or("there is no entropy: give the machine a processor with RDRAND, or -device virtio-rng-device")?;
    let mut device = RngDevice::new(transport).map_err(|error| format!("entropy device: {error}"))?;
    device.fill(&mut seed).map_err(|_| "the entropy device does not deliver")?;
    Ok(seed)
}
