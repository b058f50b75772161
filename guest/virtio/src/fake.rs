//! The device's side of a transport and of a split virtqueue, which find a driver's misuse.

extern crate std;
use crate::{
    DeviceError,
    queue::{Access, Addresses},
    registers::Registers,
    transport::{Notifier, QueueInterrupt, Transport},
};
use std::{boxed::Box, cell::Cell, collections::BTreeSet, vec::Vec};

/// A device's registers.
#[derive(Debug)]
pub struct FakeTransport {
    pub status: u8,
    pub offered: u64,
    pub agreed: u64,
    pub sizes: Vec<u16>,
    pub queues: Vec<(u16, Addresses)>,
    /// What was last written to each queue's notification register.
    pub notified: &'static mut [u32; 2],
    pub acknowledged: u32,
    pub config: Vec<u8>,
    /// How often the configuration still changes while it is read.
    pub changes: Cell<u32>,
}

impl FakeTransport {
    pub fn new(offered: u64, sizes: &[u16], config: &[u8]) -> FakeTransport {
        FakeTransport {
            status: 0x55,
            offered,
            agreed: 0,
            sizes: sizes.into(),
            queues: Vec::new(),
            notified: Box::leak(Box::new([u32::MAX; 2])),
            acknowledged: 0,
            config: config.into(),
            changes: Cell::new(0),
        }
    }

    /// The device's end of a queue that the driver has handed over.
    pub fn queue(&self, index: usize) -> FakeQueue {
        let (size, addresses) = self.queues[index];
        FakeQueue::new(size, addresses)
    }
}

impl Transport for FakeTransport {
    fn status(&self) -> u8 {
        self.status
    }
    fn set_status(&mut self, status: u8) {
        assert!(status == 0 || status == 128 || status & self.status == self.status, "status bits are only added");
        self.status = status;
    }
    fn device_features(&mut self) -> u64 {
        self.offered
    }
    fn set_driver_features(&mut self, features: u64) {
        assert_eq!(self.status, 3, "features come after DRIVER and before FEATURES_OK");
        assert_eq!(features & !self.offered, 0, "features that were not offered");
        self.agreed = features;
    }
    fn queue_size_max(&mut self, index: u16) -> u16 {
        self.sizes.get(usize::from(index)).copied().unwrap_or(0)
    }
    fn enable_queue(
        &mut self,
        index: u16,
        size: u16,
        addresses: Addresses,
        _interrupt: QueueInterrupt,
    ) -> Result<Notifier, DeviceError> {
        assert_eq!(self.status, 11, "queues come between FEATURES_OK and DRIVER_OK");
        self.queues.push((size, addresses));
        // SAFETY: the register is leaked memory.
        let register = unsafe { Registers::new(&raw mut self.notified[usize::from(index)] as u64, 4) };
        Ok(Notifier::Wide(register, u32::from(index)))
    }
    fn config_u8(&self, offset: usize) -> Result<u8, DeviceError> {
        self.config.get(offset).copied().ok_or(DeviceError::Malformed("configuration"))
    }
    fn config_u32(&self, offset: usize) -> Result<u32, DeviceError> {
        assert!(offset.is_multiple_of(4), "a misaligned field");
        let bytes = self.config.get(offset..offset + 4).ok_or(DeviceError::Malformed("configuration"))?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }
    fn set_config_u8(&mut self, offset: usize, value: u8) -> Result<(), DeviceError> {
        *self.config.get_mut(offset).ok_or(DeviceError::Malformed("configuration"))? = value;
        Ok(())
    }
    fn config_generation(&self) -> u32 {
        self.changes.set(self.changes.get().saturating_sub(1));
        self.changes.get()
    }
    fn acknowledge_interrupt(&mut self) {
        self.acknowledged += 1;
    }
}

/// A buffer as the device sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    pub head: u16,
    pub segments: Vec<(u64, u32, Access)>,
}

/// A device's view of one queue.
pub struct FakeQueue {
    size: u16,
    addresses: Addresses,
    seen: u16,
    used: u16,
    /// Heads that the device has.
    held: BTreeSet<u16>,
}

impl FakeQueue {
    pub fn new(size: u16, addresses: Addresses) -> FakeQueue {
        assert!(addresses.descriptors.is_multiple_of(16), "descriptors are aligned to 16");
        assert!(addresses.available.is_multiple_of(2), "the available ring is aligned to 2");
        assert!(addresses.used.is_multiple_of(4), "the used ring is aligned to 4");
        FakeQueue { size, addresses, seen: 0, used: 0, held: BTreeSet::new() }
    }

    fn read<T: Copy>(at: u64) -> T {
        // SAFETY: the driver's queue is alive in every test that asks its fake.
        unsafe { (at as *const T).read_volatile() }
    }

    fn write<T>(at: u64, value: T) {
        // SAFETY: as in `read`; the tests run driver and device in turns.
        unsafe { (at as *mut T).write_volatile(value) }
    }

    fn slot(&self, index: u16) -> u64 {
        u64::from(index % self.size)
    }

    /// Takes the next available buffer, and checks everything about it.
    pub fn pop_available(&mut self) -> Option<Chain> {
        let pending = Self::read::<u16>(self.addresses.available + 2).wrapping_sub(self.seen);
        assert!(pending <= self.size, "the driver makes more buffers available than the queue holds");
        if pending == 0 {
            return None;
        }
        let head: u16 = Self::read(self.addresses.available + 4 + self.slot(self.seen) * 2);
        self.seen = self.seen.wrapping_add(1);
        assert!(head < self.size, "head {head} is no descriptor");
        assert!(self.held.insert(head), "descriptor {head} is made available although the device has it");
        let mut segments = Vec::new();
        let mut index = head;
        loop {
            let at = self.addresses.descriptors + u64::from(index) * 16;
            let (address, len) = (Self::read::<u64>(at), Self::read::<u32>(at + 8));
            let (flags, next) = (Self::read::<u16>(at + 12), Self::read::<u16>(at + 14));
            let access = if flags & 2 != 0 { Access::DeviceWrites } else { Access::DeviceReads };
            assert_eq!(flags & !3, 0, "flags of features that were not negotiated");
            let after_writable = segments.last().is_some_and(|(_, _, last)| *last == Access::DeviceWrites);
            assert!(!(after_writable && access == Access::DeviceReads), "a readable segment behind a writable one");
            segments.push((address, len, access));
            assert!(segments.len() <= usize::from(self.size), "a chain that does not end");
            if flags & 1 == 0 {
                return Some(Chain { head, segments });
            }
            index = next;
        }
    }

    /// Takes all that is available.
    pub fn take_available(&mut self) {
        while self.pop_available().is_some() {}
    }

    /// Gives a buffer back, or pretends to.
    pub fn push_used(&mut self, head: u32, written: u32) {
        let at = self.addresses.used + 4 + self.slot(self.used) * 8;
        Self::write(at, head);
        Self::write(at + 4, written);
        self.set_used_index(self.used.wrapping_add(1));
        if let Ok(head) = u16::try_from(head) {
            self.held.remove(&head);
        }
    }

    /// Gives back one of the buffers that the device has; `false` if it has none.
    pub fn return_one_at_random(&mut self, seed: &mut fastrand::Rng) -> bool {
        let held: Vec<u16> = self.held.iter().copied().collect();
        let Some(head) = seed.choice(&held) else { return false };
        self.push_used(u32::from(*head), 0);
        true
    }

    pub fn set_used_index(&mut self, index: u16) {
        self.used = index;
        Self::write(self.addresses.used + 2, index);
    }

    pub fn scribble_over_descriptors(&mut self) {
        for word in 0..u64::from(self.size) * 2 {
            Self::write(self.addresses.descriptors + word * 8, u64::MAX);
        }
    }

    /// The index of the used element that the driver wants to be told of.
    pub fn wanted_event(&self) -> u16 {
        Self::read(self.addresses.available + 4 + u64::from(self.size) * 2)
    }

    /// Has the driver tell of the available element with this index.
    pub fn set_event(&self, index: u16) {
        Self::write(self.addresses.used + 4 + u64::from(self.size) * 8, index);
    }

    pub fn wants_interrupt(&self) -> bool {
        Self::read::<u16>(self.addresses.available) & 1 == 0
    }

    /// Copies the driver's bytes out of a readable segment.
    pub fn read_segment((address, len, access): (u64, u32, Access)) -> Vec<u8> {
        assert_eq!(access, Access::DeviceReads);
        (0..u64::from(len)).map(|offset| Self::read(address + offset)).collect()
    }

    /// Copies bytes into a writable segment.
    pub fn write_segment((address, len, access): (u64, u32, Access), bytes: &[u8]) {
        assert_eq!(access, Access::DeviceWrites);
        assert!(bytes.len() <= len as usize, "the test writes beyond the buffer");
        bytes.iter().zip(0u64..).for_each(|(byte, offset)| Self::write(address + offset, *byte));
    }
}
