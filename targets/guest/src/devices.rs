//! Finds the machine's devices: those that the hypervisor names on the command line, those in QEMU's virtio-mmio slots,
//! and those on PCI.

use crate::{
    card::Card,
    sys::{
        monitor,
        registers::{self, Pci},
        rings,
    },
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use kayvee_platform::Entropy;
use kayvee_server::boot::BootArgs;
use kayvee_virtio::{
    blk::BlkDevice,
    mmio::{MmioTransport, Place, REGISTER_BYTES},
    net::NetDevice,
    pci::{self, PciTransport},
    rng::RngDevice,
    transport::{DeviceKind, Transport},
};
use kayvee_x86::{
    cpu::{CpuEntropy, Hypervisor},
    machine::Setup,
};

/// QEMU's `microvm` has its virtio-mmio slots here, used or not.
const QEMU_SLOTS: u64 = 0xfeb0_0000;
const QEMU_SLOT_COUNT: u64 = 24;

/// Buffers of the network card in each direction, for machines with and without memory to spare.
const QUEUE_SIZE: u16 = 256;
const SMALL_QUEUE_SIZE: u16 = 64;
const SMALL_MEMORY_BYTES: u64 = 64 << 20;

/// Any transport. Devices are configured once, at start: code for each kind would be the larger part of the drivers.
pub type AnyTransport = Box<dyn Transport>;

/// What the machine has.
pub struct Devices {
    /// The network card: the first, if there are several.
    pub card: Card,
    /// The disk of the log, if there is one.
    pub disk: Option<BlkDevice<AnyTransport>>,
    /// The disk of the site, if there is one.
    pub site_disk: Option<BlkDevice<AnyTransport>>,
    /// A secret from the processor's or the hypervisor's entropy.
    pub seed: [u8; 48],
}

type Found = Vec<(DeviceKind, AnyTransport)>;

/// Finds and starts the devices that the store needs, or says what is missing.
pub fn find(setup: &mut Setup, args: &BootArgs) -> Result<Devices, String> {
    let mut found = Vec::new();
    if let Some(page) = args.monitor {
        monitor::open(setup, page)?;
    }
    if args.virtio_mmio.is_empty() {
        find_in_slots(setup, &mut found)?;
        find_on_pci(setup, &mut found)?;
    } else {
        find_named(setup, &args.virtio_mmio, &mut found)?;
    }
    let mut take = |kind| {
        let at = found.iter().position(|(found, _)| *found == kind)?;
        Some(found.swap_remove(at).1)
    };
    let seed = seed(take(DeviceKind::Rng))?;
    let card = match args.xdp {
        Some(address) => Card::Xdp(Box::new(rings::open(setup, address)?)),
        None => Card::Virtio(Box::new(net(setup, take(DeviceKind::Net))?)),
    };
    let (mut disk, mut site_disk) = (None, None);
    while let Some(transport) = take(DeviceKind::Block) {
        let device = BlkDevice::new(transport).map_err(|error| format!("disk: {error}"))?;
        // Which is which cannot be told from their places, which change with the monitor's arguments.
        let place = if device.geometry().is_read_only { &mut site_disk } else { &mut disk };
        if place.replace(device).is_some() {
            return Err("there are several disks: leave one for the log, and one that is read-only for the site".into());
        }
    }
    Ok(Devices { card, disk, site_disk, seed })
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
    Ok(device.map(|(kind, transport)| (kind, Box::new(transport) as AnyTransport)))
}

fn find_on_pci(setup: &mut Setup, found: &mut Found) -> Result<(), String> {
    let mut bus = Pci(setup);
    for (kind, function) in pci::scan(&mut bus) {
        let transport = PciTransport::new(&mut bus, function)
            .map_err(|error| format!("PCI device {:02x}.{}: {error}", function.device, function.function))?;
        found.push((kind, Box::new(transport) as AnyTransport));
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
