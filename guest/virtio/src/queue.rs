//! Split virtqueues (virtio 1.2 §2.7).
//!
//! ```text
//! descriptors  size × { address: u64, len: u32, flags: u16, next: u16 }
//! available    flags: u16, index: u16, size × head: u16
//! used         flags: u16, index: u16, size × { head: u32, len: u32 }
//! ```
//!
//! The driver writes the first two, the device the third. The driver never reads back what it wrote: which descriptors
//! are free, how they are chained and how much a device may write stands in memory of its own, because the device can
//! reach all of the above. Indices run freely through 16 bits and wrap.

use crate::{
    DeviceError,
    transport::{Notifier, QueueInterrupt, Transport},
};
use alloc::{
    alloc::{Layout, alloc_zeroed},
    vec::Vec,
};
use core::{
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

/// The largest size that the specification allows.
const SIZE_MAX: u16 = 1 << 15;

const DESCRIPTOR_BYTES: usize = 16;
const USED_ELEMENT_BYTES: usize = 8;
/// Offset of the elements in the available and the used ring.
const RING_OFFSET: usize = 4;

const F_NEXT: u16 = 1;
const F_WRITE: u16 = 2;

const AVAIL_F_NO_INTERRUPT: u16 = 1;
const USED_F_NO_NOTIFY: u16 = 1;

/// Both sides say from which index on they want to be told, instead of whether at all, §2.7.10.
pub const F_EVENT_IDX: u64 = 1 << 29;

/// Where the device finds the three parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// Who writes a segment of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads what the driver has written.
    DeviceReads,
    /// The device writes what the driver will read.
    DeviceWrites,
}

/// A piece of memory for the device.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Who writes it.
    pub access: Access,
}

/// A buffer that the device has given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The number that [`Queue::add`] returned.
    pub head: u16,
    /// Bytes that the device says it has written: never more than it was allowed to.
    pub written: u32,
}

/// The device has broken the rules, and its queue cannot be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// It gave back a buffer that it did not have.
    UnknownBuffer,
    /// It gave back more buffers than it had.
    IndexJump,
    /// It says that it wrote more than it was given room for.
    Overrun,
}

impl core::fmt::Display for QueueError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            QueueError::UnknownBuffer => "the device returned a buffer that it did not have",
            QueueError::IndexJump => "the device returned more buffers than it had",
            QueueError::Overrun => "the device wrote beyond a buffer",
        })
    }
}

impl core::error::Error for QueueError {}

/// What the driver remembers of a descriptor.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    /// The next one of its chain or of the free list; `NONE` at the end.
    next: u16,
    /// For the head of a chain that the device has: bytes that the device may write.
    writable: Option<u32>,
}

const NONE: u16 = u16::MAX;

/// A queue of buffers to a device and back.
#[derive(Debug)]
pub struct Queue {
    size: u16,
    memory: *mut u8,
    available_at: usize,
    used_at: usize,
    shadow: Vec<Shadow>,
    free_head: u16,
    free: u16,
    /// Buffers that the device has, published or not.
    in_flight: u16,
    /// Index of the next available element.
    available: u16,
    /// What the device has been told of it.
    published: u16,
    /// Index of the next used element to look at.
    taken: u16,
    notifier: Option<Notifier>,
    /// How often the device was notified.
    notifications: u64,
    /// Whether [`F_EVENT_IDX`] was agreed on.
    has_events: bool,
}

impl Queue {
    /// Makes a queue of at most `size_max` descriptors and hands it to the device as number `index`. It starts with
    /// interrupts off.
    #[inline(never)]
    pub fn new(
        transport: &mut impl Transport,
        index: u16,
        size_max: u16,
        interrupt: QueueInterrupt,
    ) -> Result<Queue, DeviceError> {
        let offered = transport.queue_size_max(index).min(SIZE_MAX).min(size_max);
        if offered == 0 {
            return Err(DeviceError::Malformed("queue"));
        }
        // A split queue's size is a power of two.
        let size = 1 << offered.ilog2();
        let mut queue = Queue::allocate(size)?;
        queue.set_interrupts(Interrupts::Off);
        queue.notifier = Some(transport.enable_queue(index, size, queue.addresses(), interrupt)?);
        Ok(queue)
    }

    /// Goes by [`F_EVENT_IDX`], if that was `agreed` on. To be called before the device is started.
    pub fn agree(&mut self, agreed: u64) {
        self.has_events = agreed & F_EVENT_IDX != 0;
        if self.has_events {
            // The flag means nothing then, and is to be zero (§2.7.7.1).
            self.store(self.available_at, 0u16);
            self.set_interrupts(Interrupts::Off);
        }
    }

    /// The queue's memory, zeroed, for ever: a device may write to it whenever it likes.
    fn allocate(size: u16) -> Result<Queue, DeviceError> {
        assert!(size.is_power_of_two() && size <= SIZE_MAX, "{size} is no size of a split queue");
        let entries = usize::from(size);
        let available_at = entries * DESCRIPTOR_BYTES;
        // With room for `used_event` and `avail_event`; the used ring is aligned to 4 (§2.7).
        let used_at = (available_at + RING_OFFSET + entries * 2 + 2).next_multiple_of(4);
        let bytes = used_at + RING_OFFSET + entries * USED_ELEMENT_BYTES + 2;
        let layout = Layout::from_size_align(bytes, 64).map_err(|_| DeviceError::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let mut shadow = Vec::new();
        if memory.is_null() || shadow.try_reserve_exact(entries).is_err() {
            return Err(DeviceError::OutOfMemory);
        }
        shadow.extend((1..=size).map(|next| Shadow { next: if next == size { NONE } else { next }, writable: None }));
        Ok(Queue {
            size,
            memory,
            available_at,
            used_at,
            shadow,
            free_head: 0,
            free: size,
            in_flight: 0,
            available: 0,
            published: 0,
            taken: 0,
            notifier: None,
            notifications: 0,
            has_events: false,
        })
    }

    /// Where the device finds it.
    pub fn addresses(&self) -> Addresses {
        let base = self.memory as u64;
        Addresses { descriptors: base, available: base + self.available_at as u64, used: base + self.used_at as u64 }
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Descriptors that are not in use.
    pub fn free(&self) -> u16 {
        self.free
    }

    /// The number that the next buffer will have.
    pub fn next_free(&self) -> Option<u16> {
        (self.free > 0).then_some(self.free_head)
    }

    /// The descriptor behind a free one: what a chain that [`add`](Self::add) makes goes on with.
    pub fn next_free_behind(&self, index: u16) -> Option<u16> {
        Some(self.shadow[usize::from(index)].next).filter(|next| *next != NONE)
    }

    fn store<T>(&mut self, at: usize, value: T) {
        // SAFETY: every caller stays inside of the queue's memory, at a place aligned for the type. Volatile, because
        // the device reads it at the same time.
        unsafe { write_volatile(self.memory.add(at).cast(), value) };
    }

    #[inline]
    fn load<T: Copy>(&self, at: usize) -> T {
        // SAFETY: as in `store`; every bit pattern is a value of the types used here.
        unsafe { read_volatile(self.memory.add(at).cast()) }
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// Gives the device a buffer of these segments, readable ones first (§2.7.4.2), and returns its number, or `None` if
    /// there are not enough descriptors. The device learns of it with [`publish`](Self::publish).
    ///
    /// # Safety
    /// The segments' memory must stay valid, and must not be touched if the device writes it, until
    /// [`take_used`](Self::take_used) has returned that number.
    #[inline]
    pub unsafe fn add(&mut self, segments: &[Segment]) -> Option<u16> {
        if segments.is_empty() || segments.len() > usize::from(self.free) {
            return None;
        }
        let head = self.free_head;
        let mut index = head;
        let mut writable = 0u32;
        for (position, segment) in segments.iter().enumerate() {
            let next = self.shadow[usize::from(index)].next;
            let last = position + 1 == segments.len();
            let mut flags = if last { 0 } else { F_NEXT };
            if segment.access == Access::DeviceWrites {
                flags |= F_WRITE;
                writable += segment.len;
            }
            let at = usize::from(index) * DESCRIPTOR_BYTES;
            self.store(at, segment.address);
            self.store(at + 8, segment.len);
            self.store(at + 12, flags);
            self.store(at + 14, if last { 0 } else { next });
            if last {
                self.shadow[usize::from(index)].next = NONE;
                self.free_head = next;
            } else {
                index = next;
            }
        }
        self.free -= segments.len() as u16;
        self.in_flight += 1;
        self.shadow[usize::from(head)].writable = Some(writable);
        self.store(self.available_at + RING_OFFSET + self.slot(self.available) * 2, head);
        self.available = self.available.wrapping_add(1);
        Some(head)
    }

    /// Number of buffers added since the last [`publish`](Self::publish).
    pub fn unpublished(&self) -> u16 {
        self.available.wrapping_sub(self.published)
    }

    /// How often the device was notified.
    pub fn notifications(&self) -> u64 {
        self.notifications
    }

    /// Makes all buffers added so far available, and notifies the device if it wants that.
    #[inline]
    pub fn publish(&mut self) {
        if self.unpublished() == 0 {
            return;
        }
        // The elements must be there before the index that covers them (§2.7.13.3).
        fence(Ordering::Release);
        let before = self.published;
        self.store(self.available_at + 2, self.available);
        self.published = self.available;
        // The device says what it wants and then looks at the index; we write the index and then look at what it wants.
        // Without a full fence in between both may miss the other's write (§2.7.13.4).
        fence(Ordering::SeqCst);
        if self.wants_notification(before)
            && let Some(notifier) = &self.notifier
        {
            notifier.notify();
            self.notifications += 1;
        }
    }

    /// Whether the device wants to know of what has become available since `before`.
    #[inline]
    fn wants_notification(&self, before: u16) -> bool {
        if !self.has_events {
            return self.load::<u16>(self.used_at) & USED_F_NO_NOTIFY == 0;
        }
        // §2.7.10: whether the index that it waits for is among the new ones. Whatever it writes there, at worst it waits.
        let event: u16 = self.load(self.used_at + RING_OFFSET + usize::from(self.size) * USED_ELEMENT_BYTES);
        self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(before)
    }

    /// Whether the device has given something back.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.load::<u16>(self.used_at + 2) != self.taken
    }

    /// Takes the next buffer that the device has given back.
    #[inline]
    pub fn take_used(&mut self) -> Result<Option<Used>, QueueError> {
        let returned = self.load::<u16>(self.used_at + 2).wrapping_sub(self.taken);
        if returned == 0 {
            return Ok(None);
        }
        if returned > self.in_flight {
            return Err(QueueError::IndexJump);
        }
        // The element is read after the index that covers it.
        fence(Ordering::Acquire);
        let at = self.used_at + RING_OFFSET + self.slot(self.taken) * USED_ELEMENT_BYTES;
        let (head, written) = (self.load::<u32>(at), self.load::<u32>(at + 4));
        let head = u16::try_from(head).map_err(|_| QueueError::UnknownBuffer)?;
        let shadow = self.shadow.get_mut(usize::from(head)).ok_or(QueueError::UnknownBuffer)?;
        let writable = shadow.writable.take().ok_or(QueueError::UnknownBuffer)?;
        self.taken = self.taken.wrapping_add(1);
        self.in_flight -= 1;
        self.release_chain(head);
        if written > writable {
            return Err(QueueError::Overrun);
        }
        Ok(Some(Used { head, written }))
    }

    fn release_chain(&mut self, head: u16) {
        let mut last = head;
        let mut count = 1;
        while self.shadow[usize::from(last)].next != NONE {
            last = self.shadow[usize::from(last)].next;
            count += 1;
        }
        self.shadow[usize::from(last)].next = self.free_head;
        self.free_head = head;
        self.free += count;
    }

    /// Asks the device to interrupt, or not to, when it gives a buffer back. After switching interrupts on, look once
    /// more for used buffers: one that came before does not interrupt.
    pub fn set_interrupts(&mut self, interrupts: Interrupts) {
        if self.has_events {
            // The next used element, or the one that is farthest away: then a spurious interrupt ends a sleep at most once
            // in 65,536 elements.
            let event = match interrupts {
                Interrupts::On => self.taken,
                Interrupts::Off => self.taken.wrapping_sub(1),
            };
            self.store(self.available_at + RING_OFFSET + usize::from(self.size) * 2, event);
        } else {
            let flags = match interrupts {
                Interrupts::On => 0,
                Interrupts::Off => AVAIL_F_NO_INTERRUPT,
            };
            self.store(self.available_at, flags);
        }
        if interrupts == Interrupts::On {
            // The device writes its index and then looks at the flag; the caller will look at the index.
            fence(Ordering::SeqCst);
        }
    }
}

/// Whether a device is to interrupt when it gives a buffer back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// It is.
    On,
    /// It is not.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeQueue;
    extern crate std;
    use std::{collections::VecDeque, vec, vec::Vec};

    fn queue(size: u16) -> (Queue, FakeQueue) {
        let queue = Queue::allocate(size).unwrap();
        let fake = FakeQueue::new(size, queue.addresses());
        (queue, fake)
    }

    fn add(queue: &mut Queue, segments: &[(u64, u32, Access)]) -> Option<u16> {
        let segments: Vec<_> =
            segments.iter().map(|&(address, len, access)| Segment { address, len, access }).collect();
        // SAFETY: the fake does not follow these addresses.
        unsafe { queue.add(&segments) }
    }

    const READ: Access = Access::DeviceReads;
    const WRITE: Access = Access::DeviceWrites;

    #[test]
    fn buffers_go_to_the_device_and_back_past_every_wrap() {
        let (mut queue, mut fake) = queue(8);
        let mut seed = fastrand::Rng::with_seed(1);
        let mut sent = VecDeque::new();
        let mut number = 0u64;
        // Three times around the 16-bit indices.
        while number < 3 * 65_536 {
            for _ in 0..seed.u16(0..=8) {
                if let Some(head) = add(&mut queue, &[(number * 16, 16, WRITE)]) {
                    sent.push_back((head, number));
                    number += 1;
                }
            }
            queue.publish();
            for _ in 0..seed.u16(0..=8) {
                let Some(chain) = fake.pop_available() else { break };
                fake.push_used(u32::from(chain.head), (chain.segments[0].0 / 16 % 17) as u32);
            }
            while let Some(used) = queue.take_used().unwrap() {
                let (head, number) = sent.pop_front().expect("nothing is returned twice");
                assert_eq!(used, Used { head, written: (number % 17) as u32 });
            }
            assert_eq!(usize::from(queue.size() - queue.free()), sent.len());
        }
    }

    #[test]
    fn buffers_may_come_back_in_any_order() {
        let (mut queue, mut fake) = queue(16);
        let mut seed = fastrand::Rng::with_seed(2);
        for _ in 0..10_000 {
            let count = seed.usize(1..=3);
            let _ = add(&mut queue, &vec![(1, 1, READ); count]);
            queue.publish();
            if seed.bool() {
                fake.take_available();
                fake.return_one_at_random(&mut seed);
            }
            let _ = queue.take_used().unwrap();
        }
        fake.take_available();
        while fake.return_one_at_random(&mut seed) {}
        while queue.take_used().unwrap().is_some() {}
        assert_eq!(queue.free(), 16);
    }

    #[test]
    fn chains_keep_their_order_and_direction() {
        let (mut queue, mut fake) = queue(4);
        let head = add(&mut queue, &[(0x1000, 16, READ), (0x2000, 512, WRITE), (0x3000, 1, WRITE)]).unwrap();
        assert_eq!(add(&mut queue, &[(1, 1, READ), (2, 1, READ)]), None, "one descriptor is left");
        assert_eq!(add(&mut queue, &[]), None);
        assert!(fake.pop_available().is_none(), "nothing is available before it is published");
        queue.publish();
        let chain = fake.pop_available().unwrap();
        assert_eq!(chain.segments, [(0x1000, 16, READ), (0x2000, 512, WRITE), (0x3000, 1, WRITE)]);
        fake.push_used(u32::from(head), 513);
        assert_eq!(queue.take_used(), Ok(Some(Used { head, written: 513 })));
        assert_eq!(queue.free(), 4);
    }

    #[test]
    fn a_device_that_breaks_the_rules_is_found_out() {
        type Attack = fn(&mut FakeQueue);
        let attacks: [(Attack, QueueError); 6] = [
            (|fake| fake.push_used(3, 0), QueueError::UnknownBuffer),
            (|fake| fake.push_used(4, 0), QueueError::UnknownBuffer),
            (|fake| fake.push_used(0x1_0000, 0), QueueError::UnknownBuffer),
            (|fake| fake.push_used(u32::MAX, 0), QueueError::UnknownBuffer),
            (|fake| fake.push_used(0, 17), QueueError::Overrun),
            (|fake| fake.set_used_index(2), QueueError::IndexJump),
        ];
        for (attack, error) in attacks {
            let (mut queue, mut fake) = queue(4);
            assert_eq!(add(&mut queue, &[(0x1000, 16, WRITE)]), Some(0));
            queue.publish();
            attack(&mut fake);
            assert_eq!(queue.take_used(), Err(error));
        }
        let (mut queue, mut fake) = queue(4);
        for _ in 0..2 {
            add(&mut queue, &[(0x1000, 16, WRITE)]);
        }
        queue.publish();
        fake.push_used(0, 16);
        fake.push_used(0, 16);
        assert!(queue.take_used().is_ok());
        assert_eq!(queue.take_used(), Err(QueueError::UnknownBuffer), "the same buffer twice");
    }

    #[test]
    fn a_device_that_rewrites_descriptors_changes_nothing() {
        let (mut queue, mut fake) = queue(4);
        let head = add(&mut queue, &[(0x1000, 16, READ), (0x2000, 16, WRITE)]).unwrap();
        queue.publish();
        fake.scribble_over_descriptors();
        fake.push_used(u32::from(head), 16);
        assert_eq!(queue.take_used(), Ok(Some(Used { head, written: 16 })));
        assert_eq!(queue.free(), 4);
        for _ in 0..4 {
            assert!(add(&mut queue, &[(1, 1, READ)]).is_some());
        }
    }

    #[test]
    fn interrupts_are_switched_by_the_flag() {
        let (mut queue, fake) = queue(4);
        queue.set_interrupts(Interrupts::Off);
        assert!(!fake.wants_interrupt());
        queue.set_interrupts(Interrupts::On);
        assert!(fake.wants_interrupt());
    }
}
