//! Virtio over memory-mapped registers (virtio 1.2 §4.2), from the device's side.

use crate::memory::Memory;
use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Address, Bytes, GuestAddress};

/// Bytes of a device's registers.
pub const REGISTER_BYTES: u64 = 0x200;

const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"KYVE");
/// Offset of the register that says which queue has new buffers.
pub const QUEUE_NOTIFY: u64 = 0x50;
/// Offset of the register that takes an interrupt back, of which there are none.
pub const INTERRUPT_ACK: u64 = 0x64;
const CONFIG: u64 = 0x100;

/// The device is modern, §6.
const F_VERSION_1: u64 = 1 << 32;

/// Device status bits, §2.1.
mod status {
    pub const DRIVER_OK: u32 = 4;
    pub const FEATURES_OK: u32 = 8;
    pub const NEEDS_RESET: u32 = 64;
    /// What a driver may set.
    pub const DRIVERS: u32 = 1 | 2 | DRIVER_OK | FEATURES_OK | 128;
}

/// `VIRTQ_AVAIL_F_NO_INTERRUPT`
const NO_INTERRUPT: u16 = 1;

/// What the driver has done cannot be made sense of. The device stops until it is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Broken {
        Broken("a ring that is not in memory, or an index that jumps")
    }
}

/// What a kind of device adds to the registers that all have.
pub trait Model: Send {
    /// Its number, §5.
    const ID: u32;
    /// Sizes of its queues at most.
    const QUEUE_SIZES: &'static [u16];

    /// What it can do, besides being modern.
    fn features(&self) -> u64;
    /// A byte of its own configuration.
    fn config(&self, offset: usize) -> u8;
    /// Writes a byte of it.
    fn set_config(&mut self, _offset: usize, _value: u8) {}
    /// The driver has reset it, or is about to use it with these features.
    fn restart(&mut self, features: u64);
}

/// A device: registers, queues and the model.
pub struct Device<M> {
    model: M,
    queues: Vec<Queue>,
    status: u32,
    device_features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queue_select: u32,
    memory: Arc<Memory>,
}

impl<M: Model> Device<M> {
    /// A device that nobody drives yet.
    pub fn new(model: M, memory: Arc<Memory>) -> Device<M> {
        let queue = |size: &u16| Queue::new(*size).expect("the sizes are powers of two");
        let queues = M::QUEUE_SIZES.iter().map(queue).collect();
        Device {
            model,
            queues,
            status: 0,
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            memory,
        }
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, to be changed.
    pub fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// Whether the driver uses it.
    pub fn is_running(&self) -> bool {
        self.status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK
    }

    /// Lets the model work on its queues, if the driver uses it.
    pub fn work<R>(&mut self, work: impl FnOnce(&mut M, &mut [Queue], &Memory) -> Result<R, Broken>) -> Option<R> {
        if !self.is_running() {
            return None;
        }
        match work(&mut self.model, &mut self.queues, &self.memory) {
            Ok(result) => Some(result),
            Err(Broken(why)) => {
                log::warn!("device {}: the guest's driver broke the rules: {why}", M::ID);
                self.status |= status::NEEDS_RESET;
                None
            }
        }
    }

    /// Reads registers. Those that all devices have are 32 bits wide; the device's own may be read in any way.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        if offset >= CONFIG {
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = self.model.config((offset - CONFIG) as usize + at);
            }
        } else if let Ok(word) = <&mut [u8; 4]>::try_from(bytes) {
            *word = self.register(offset).to_le_bytes();
        }
    }

    fn register(&self, offset: u64) -> u32 {
        let queue = self.queues.get(self.queue_select as usize);
        match offset {
            0x00 => MAGIC,
            0x04 => VERSION,
            0x08 => M::ID,
            0x0c => VENDOR,
            0x10 => {
                let features = self.model.features() | F_VERSION_1;
                features.checked_shr(self.device_features_select.saturating_mul(32)).unwrap_or(0) as u32
            }
            0x34 => queue.map_or(0, |queue| u32::from(queue.max_size())),
            0x44 => queue.map_or(0, |queue| u32::from(queue.ready())),
            0x70 => self.status,
            // The configuration never changes by itself, and there are no interrupts to tell of.
            _ => 0,
        }
    }

    /// Writes registers.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if offset >= CONFIG {
            for (at, byte) in bytes.iter().enumerate() {
                self.model.set_config((offset - CONFIG) as usize + at, *byte);
            }
        } else if let Ok(word) = <[u8; 4]>::try_from(bytes) {
            self.set_register(offset, u32::from_le_bytes(word));
        }
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        match offset {
            0x14 => self.device_features_select = value,
            0x20 if self.status & status::FEATURES_OK == 0 => self.select_features(value),
            0x24 => self.driver_features_select = value,
            0x30 => self.queue_select = value,
            0x70 => self.set_status(value),
            // Queues are set up before the device works (§3.1.1).
            _ if self.status & status::DRIVER_OK == 0 => self.set_queue(offset, value),
            _ => {}
        }
    }

    fn select_features(&mut self, value: u32) {
        match self.driver_features_select {
            0 => self.driver_features = self.driver_features & !0xffff_ffff | u64::from(value),
            1 => self.driver_features = self.driver_features & 0xffff_ffff | u64::from(value) << 32,
            _ => {}
        }
    }

    fn set_queue(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.queues.get_mut(self.queue_select as usize) else { return };
        match offset {
            // What does not fit is left as it was, and shows when the queue is used.
            0x38 => queue.set_size(u16::try_from(value).unwrap_or(0)),
            0x44 => queue.set_ready(value == 1),
            0x80 => queue.set_desc_table_address(Some(value), None),
            0x84 => queue.set_desc_table_address(None, Some(value)),
            0x90 => queue.set_avail_ring_address(Some(value), None),
            0x94 => queue.set_avail_ring_address(None, Some(value)),
            0xa0 => queue.set_used_ring_address(Some(value), None),
            0xa4 => queue.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            self.queues.iter_mut().for_each(Queue::reset);
            (self.status, self.driver_features, self.queue_select) = (0, 0, 0);
            self.model.restart(0);
            return;
        }
        let mut next = self.status & status::NEEDS_RESET | value & status::DRIVERS;
        let offered = self.model.features() | F_VERSION_1;
        let acceptable = self.driver_features & !offered == 0 && self.driver_features & F_VERSION_1 != 0;
        if !acceptable {
            next &= !(status::FEATURES_OK | status::DRIVER_OK);
        }
        let starts = next & !self.status & status::DRIVER_OK != 0;
        if starts {
            if !self.queues.iter().all(|queue| !queue.ready() || queue.is_valid(&*self.memory)) {
                next |= status::NEEDS_RESET;
            }
            self.model.restart(self.driver_features);
        }
        self.status = next;
    }
}

/// Whether the driver wants to be told of what has been given back since it looked last.
pub fn wants_wake(queue: &Queue, memory: &Memory) -> Result<bool, Broken> {
    // The driver clears its flag and then looks at the used index, which has been written before this (§2.7.7.2).
    fence(Ordering::SeqCst);
    let flags: u16 = memory
        .load(GuestAddress(queue.avail_ring()), Ordering::Relaxed)
        .map_err(|_| Broken("the available ring is not in memory"))?;
    Ok(u16::from_le(flags) & NO_INTERRUPT == 0)
}

/// Gives several buffers back at once: the driver sees all of them or none.
pub fn add_used_together(queue: &mut Queue, memory: &Memory, buffers: &[(u16, u32)]) -> Result<(), Broken> {
    const ELEMENTS_OFFSET: u64 = 4;
    const ELEMENT_BYTES: u64 = 8;
    let Some(((last, len), before)) = buffers.split_last() else { return Ok(()) };
    for (head, len) in before {
        let at = u64::from(queue.next_used() % queue.size()) * ELEMENT_BYTES + ELEMENTS_OFFSET;
        let at = GuestAddress(queue.used_ring().saturating_add(at));
        let element = [u32::from(*head).to_le(), len.to_le()];
        memory.write_obj(element, at).map_err(|_| Broken("the used ring is not in memory"))?;
        queue.set_next_used(queue.next_used().wrapping_add(1));
    }
    // This one publishes the index.
    Ok(queue.add_used(memory, *last, *len)?)
}

/// The pieces of memory that a descriptor names.
pub fn slices<'a>(
    memory: &'a Memory,
    address: GuestAddress,
    bytes: u32,
    mut take: impl FnMut(vm_memory::VolatileSlice<'a>) -> Result<(), Broken>,
) -> Result<(), Broken> {
    use vm_memory::GuestMemoryBackend;
    if bytes == 0 {
        return Ok(());
    }
    if address.checked_add(u64::from(bytes)).is_none() {
        return Err(Broken("a buffer beyond the end of addresses"));
    }
    for slice in memory.get_slices(address, bytes as usize) {
        take(slice.map_err(|_| Broken("a buffer that is not in memory"))?)?;
    }
    Ok(())
}
