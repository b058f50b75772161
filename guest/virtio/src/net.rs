//! The network card (virtio 1.2 §5.1).
//!
//! One buffer for each descriptor, allocated once. Received frames are lent out of the device's buffers and these given
//! back in batches; frames to be sent are written into the device's buffers, and one notification covers a whole batch.
//! Interrupts are off but while the machine sleeps.
//!
//! Checksums are left to the device both ways, and so is the division of large frames into segments; what it has merged
//! of several segments lies in several buffers.

use crate::{
    DeviceError,
    queue::{Access, F_EVENT_IDX, Interrupts, Queue, QueueError, Segment},
    transport::{self, QueueInterrupt, Transport},
};
use alloc::alloc::{Layout, alloc_zeroed};
use core::mem::MaybeUninit;
use kayvee_platform::{
    Completion, FrameDevice, FrameRx, FrameTx, Internet, MAX_FRAME_BYTES, MAX_LARGE_FRAME_BYTES, NetworkFigures,
    Offloads, Received,
};

/// Feature bits, §5.1.3. The device completes checksums of what is sent ...
const F_CSUM: u64 = 1 << 0;
/// ... and may leave them incomplete in what it gives.
const F_GUEST_CSUM: u64 = 1 << 1;
/// The device has an address of its own.
const F_MAC: u64 = 1 << 5;
/// It may give several segments of TCP, over IPv4 or IPv6, merged into one frame.
const F_GUEST_TSO: u64 = 1 << 7 | 1 << 8;
/// It divides large frames of TCP over IPv4 and IPv6. A device that does one and not the other is not asked to.
const F_HOST_TSO: u64 = 1 << 11 | 1 << 12;
/// A frame may lie in several receive buffers.
const F_MRG_RXBUF: u64 = 1 << 15;

const RX_QUEUE: u16 = 0;
const TX_QUEUE: u16 = 1;

/// `struct virtio_net_hdr` before each frame, §5.1.6.
///
/// ```text
/// 0: flags       1: segmentation   2: bytes of all headers   4: bytes in a segment
/// 6: where the checksum begins     8: where it goes, counted from there
/// 10: number of buffers
/// ```
const HEADER_BYTES: usize = 12;
/// What a buffer takes, in whole cache lines.
const BUFFER_BYTES: usize = (HEADER_BYTES + MAX_FRAME_BYTES).next_multiple_of(64);
/// Buffers of the largest frame.
const MAX_PIECES: usize = (HEADER_BYTES + MAX_LARGE_FRAME_BYTES).div_ceil(BUFFER_BYTES);

/// The flags: the checksum is to be completed, or was found right.
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_VALID: u8 = 2;
/// TCP over IPv4, or over IPv6, is to be divided.
const DIVIDE_TCP4: u8 = 1;
const DIVIDE_TCP6: u8 = 4;

/// A frame to be sent may take this share of the queue, so that there are some on their way.
const LARGE_FRAME_DIVISOR: u16 = 4;

/// Used receive buffers are given back when there are this many of them, as a share of the queue, or when there is
/// nothing else to do.
const REFILL_DIVISOR: u16 = 4;

/// Buffers of one direction, each belonging to the descriptor of the same number.
#[derive(Debug)]
struct Buffers {
    memory: *mut u8,
    count: u16,
}

impl Buffers {
    /// Memory for ever: the device may reach it whenever it likes.
    fn allocate(count: u16) -> Result<Buffers, DeviceError> {
        let layout =
            Layout::from_size_align(usize::from(count) * BUFFER_BYTES, 64).map_err(|_| DeviceError::OutOfMemory)?;
        // SAFETY: the layout is not empty, as a queue has descriptors.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() { Err(DeviceError::OutOfMemory) } else { Ok(Buffers { memory, count }) }
    }

    fn pointer(&self, index: u16) -> *mut u8 {
        assert!(index < self.count, "a descriptor's number is below the queue's size");
        // SAFETY: the result lies inside of the memory.
        unsafe { self.memory.add(usize::from(index) * BUFFER_BYTES) }
    }

    fn segment(&self, index: u16, len: usize, access: Access) -> Segment {
        Segment { address: self.pointer(index) as u64, len: len as u32, access }
    }
}

/// What a device says before a received frame.
#[derive(Clone, Copy, Debug)]
struct Header {
    flags: u8,
    buffers: u16,
}

/// The receiving half.
#[derive(Debug)]
pub struct NetRx {
    queue: Queue,
    buffers: Buffers,
    /// What was agreed on.
    features: u64,
    /// The numbers and lengths of the buffers of the frame that is being received.
    pieces: [(u16, usize); MAX_PIECES],
    error: Option<NetError>,
}

/// What the device has done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetError {
    /// With a queue.
    Queue(QueueError),
    /// It says that a frame lies in a number of buffers that it has not given back, or in more than there can be.
    Pieces(u16),
}

impl core::fmt::Display for NetError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NetError::Queue(error) => error.fmt(f),
            NetError::Pieces(count) => write!(f, "the device says that a frame is in {count} buffers"),
        }
    }
}

impl core::error::Error for NetError {}

impl NetRx {
    /// Takes the next buffer that the device has given back.
    #[inline]
    fn take(&mut self) -> Option<(u16, usize)> {
        match self.queue.take_used() {
            Ok(used) => used.map(|used| (used.head, used.written as usize)),
            Err(error) => self.fail(NetError::Queue(error)),
        }
    }

    fn fail<T>(&mut self, error: NetError) -> Option<T> {
        log::error!("network receive queue: {error}");
        self.error = Some(error);
        None
    }

    /// Takes the next buffer that holds a header and a frame, or the beginning of one; the others go straight back.
    #[inline]
    fn next_frame(&mut self) -> Option<(u16, usize)> {
        while self.error.is_none() {
            match self.take() {
                Some((index, len)) if len > HEADER_BYTES => return Some((index, len)),
                Some((index, _)) => self.give(index),
                None => {
                    self.queue.publish();
                    return None;
                }
            }
        }
        None
    }

    /// The header before a frame.
    #[inline]
    fn header(&self, index: u16) -> Header {
        // SAFETY: the buffer is the driver's until it is given back, and holds a header.
        let bytes = unsafe { self.buffers.pointer(index).cast::<[u8; HEADER_BYTES]>().read_volatile() };
        let merges = self.features & F_MRG_RXBUF != 0;
        Header { flags: bytes[0], buffers: if merges { u16::from_le_bytes([bytes[10], bytes[11]]) } else { 1 } }
    }

    /// The bytes of a buffer that the device has given back.
    ///
    /// # Safety
    /// The buffer must not be given back as long as the slice is there, and `range` must lie in what the queue has
    /// checked that the device was allowed to write.
    #[inline]
    unsafe fn bytes<'a>(&self, index: u16, range: core::ops::Range<usize>) -> &'a [u8] {
        // SAFETY: the caller's obligation; the memory lives for ever.
        unsafe { core::slice::from_raw_parts(self.buffers.pointer(index).add(range.start), range.len()) }
    }

    /// Takes the rest of a frame of so many buffers, whose first one is taken. The device has given them back together
    /// (§5.1.6.4). They stand in `pieces`.
    fn take_rest(&mut self, first: (u16, usize), count: u16) -> Option<()> {
        if count == 0 || usize::from(count) > MAX_PIECES {
            return self.fail(NetError::Pieces(count));
        }
        self.pieces[0] = first;
        for number in 1..usize::from(count) {
            self.pieces[number] = match self.take() {
                Some(piece) => piece,
                None if self.error.is_some() => return None,
                None => return self.fail(NetError::Pieces(count)),
            };
        }
        Some(())
    }

    /// Lends a frame that lies in several buffers.
    fn receive_merged<R>(
        &mut self,
        first: (u16, usize),
        header: Header,
        consume: impl FnOnce(Received<'_>) -> R,
    ) -> Option<R> {
        self.take_rest(first, header.buffers)?;
        let count = usize::from(header.buffers);
        let mut rest: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
        for (bytes, (index, len)) in rest.iter_mut().zip(&self.pieces[1..count]) {
            // SAFETY: these buffers are given back below, after their last use.
            *bytes = unsafe { self.bytes(*index, 0..*len) };
        }
        // SAFETY: as above; `next_frame` has seen that there is a header.
        let head = unsafe { self.bytes(first.0, HEADER_BYTES..first.1) };
        let is_checked = self.is_checked(header);
        let result = consume(Received { head, rest: &rest[..count - 1], is_checked });
        // The last that was taken is the first to go back: see `give`.
        for number in (0..count).rev() {
            self.give(self.pieces[number].0);
        }
        Some(result)
    }

    #[inline]
    fn is_checked(&self, header: Header) -> bool {
        self.features & F_GUEST_CSUM != 0 && header.flags & (NEEDS_CHECKSUM | CHECKSUM_IS_VALID) != 0
    }

    /// Gives buffer `index` back to the device, which learns of it when enough have come together.
    fn give(&mut self, index: u16) {
        let segment = self.buffers.segment(index, BUFFER_BYTES, Access::DeviceWrites);
        // SAFETY: the buffer lives for ever, and is not touched again until the device has returned it.
        let head = unsafe { self.queue.add(&[segment]) };
        // Descriptors are taken last in, first out, and exactly this one has just become free.
        assert_eq!(head, Some(index), "a buffer goes with the descriptor of its number");
        if self.queue.unpublished() >= self.queue.size() / REFILL_DIVISOR {
            self.queue.publish();
        }
    }
}

impl FrameRx for NetRx {
    #[inline]
    fn ready(&mut self) -> bool {
        self.error.is_none() && self.queue.has_used()
    }

    #[inline]
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        let (index, len) = self.next_frame()?;
        let header = self.header(index);
        if header.buffers != 1 {
            return self.receive_merged((index, len), header, consume);
        }
        // SAFETY: the queue has checked that the length is within the buffer, `next_frame` that there is a header, and
        // the buffer is given back below.
        let head = unsafe { self.bytes(index, HEADER_BYTES..len) };
        let result = consume(Received { head, rest: &[], is_checked: self.is_checked(header) });
        self.give(index);
        Some(result)
    }
}

/// The sending half.
#[derive(Debug)]
pub struct NetTx {
    queue: Queue,
    buffers: Buffers,
    /// What was agreed on.
    features: u64,
    /// Frames sent.
    frames: u64,
    error: Option<NetError>,
}

impl NetTx {
    /// Takes back what the device has sent.
    fn reclaim(&mut self) {
        while self.error.is_none() {
            match self.queue.take_used() {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    log::error!("network transmit queue: {error}");
                    self.error = Some(NetError::Queue(error));
                }
            }
        }
    }

    /// Whether there are frames that [`flush`](FrameTx::flush) has yet to tell the device of.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.queue.unpublished() > 0
    }

    /// The largest frame that is taken to be divided.
    fn large_frame_bytes(&self) -> usize {
        let pieces = usize::from(self.queue.size() / LARGE_FRAME_DIVISOR);
        (pieces * BUFFER_BYTES).saturating_sub(HEADER_BYTES).min(MAX_LARGE_FRAME_BYTES)
    }

    fn put_header(&mut self, index: u16, header: [u8; HEADER_BYTES]) {
        // SAFETY: callers name a free descriptor, whose buffer is the driver's, and it holds a header.
        unsafe { self.buffers.pointer(index).cast::<[u8; HEADER_BYTES]>().write(header) };
    }

    /// A place in a buffer.
    ///
    /// # Safety
    /// The buffer must be the driver's, the place must lie within it, and there must be no other slice of it.
    unsafe fn bytes_mut<'a>(&mut self, index: u16, start: usize, len: usize) -> &'a mut [u8] {
        // SAFETY: the caller's obligation; the memory lives for ever.
        unsafe { core::slice::from_raw_parts_mut(self.buffers.pointer(index).add(start), len) }
    }

    /// Queues buffers that go with the next free descriptors.
    #[inline]
    fn send(&mut self, segments: &[Segment]) {
        // SAFETY: the buffers live for ever, and are not touched again before they are free.
        let head = unsafe { self.queue.add(segments) };
        assert!(head.is_some(), "there are as many descriptors as were found free");
        self.frames += 1;
    }

    /// The number that the next buffer will have, if one is free.
    fn next_free(&mut self) -> Option<u16> {
        if self.queue.free() == 0 {
            self.reclaim();
        }
        if self.error.is_some() { None } else { self.queue.next_free() }
    }
}

impl FrameTx for NetTx {
    #[inline]
    fn ready(&mut self) -> bool {
        self.next_free().is_some()
    }

    #[inline]
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if len > MAX_FRAME_BYTES {
            return None;
        }
        let index = self.next_free()?;
        self.put_header(index, [0; HEADER_BYTES]);
        // SAFETY: the descriptor is free, so the buffer is the driver's, and it holds a header and a largest frame.
        let result = fill(unsafe { self.bytes_mut(index, HEADER_BYTES, len) });
        self.send(&[self.buffers.segment(index, HEADER_BYTES + len, Access::DeviceReads)]);
        Some(result)
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            checksum: self.features & F_CSUM != 0,
            large_frame_bytes: if self.features & F_HOST_TSO == F_HOST_TSO { self.large_frame_bytes() } else { 0 },
        }
    }

    #[inline]
    fn room_bytes(&mut self) -> usize {
        let most = self.offloads().large_frame_bytes.max(MAX_FRAME_BYTES);
        if usize::from(self.queue.free()) * BUFFER_BYTES < HEADER_BYTES + most {
            self.reclaim();
        }
        if self.error.is_some() {
            return 0;
        }
        (usize::from(self.queue.free()) * BUFFER_BYTES).saturating_sub(HEADER_BYTES).min(most)
    }

    #[inline]
    fn transmit_offloaded(&mut self, len: usize, task: Completion, mut fill: impl FnMut(usize, &mut [u8])) -> bool {
        if len > self.room_bytes() {
            return false;
        }
        let mut segments = [const { MaybeUninit::uninit() }; MAX_PIECES];
        let mut count = 0;
        let mut next = self.queue.next_free();
        let mut filled = 0;
        while let Some(index) = next.filter(|_| filled < len) {
            let start = if count == 0 { HEADER_BYTES } else { 0 };
            let piece = (len - filled).min(BUFFER_BYTES - start);
            if count == 0 {
                self.put_header(index, header_of(task));
            }
            // SAFETY: the descriptor is free, so the buffer is the driver's, and the piece lies within it.
            fill(filled, unsafe { self.bytes_mut(index, start, piece) });
            filled += piece;
            segments[count] = MaybeUninit::new(self.buffers.segment(index, start + piece, Access::DeviceReads));
            count += 1;
            next = self.queue.next_free_behind(index);
        }
        assert_eq!(filled, len, "there are as many descriptors as were found free");
        // SAFETY: the first `count` were written.
        self.send(unsafe { core::slice::from_raw_parts(segments.as_ptr().cast(), count) });
        true
    }

    #[inline]
    fn flush(&mut self) {
        self.queue.publish();
    }
}

/// What the device is told of a frame that it completes.
fn header_of(task: Completion) -> [u8; HEADER_BYTES] {
    let Completion { internet, checksum_start, checksum_offset, header_bytes, segment_bytes } = task;
    let mut header = [0; HEADER_BYTES];
    header[0] = NEEDS_CHECKSUM;
    if segment_bytes > 0 {
        header[1] = match internet {
            Internet::V4 => DIVIDE_TCP4,
            Internet::V6 => DIVIDE_TCP6,
        };
        header[2..4].copy_from_slice(&header_bytes.to_le_bytes());
        header[4..6].copy_from_slice(&segment_bytes.to_le_bytes());
    }
    header[6..8].copy_from_slice(&checksum_start.to_le_bytes());
    header[8..10].copy_from_slice(&checksum_offset.to_le_bytes());
    header
}

/// A network card.
#[derive(Debug)]
pub struct NetDevice<T> {
    transport: T,
    mac: [u8; 6],
    rx: NetRx,
    tx: NetTx,
}

impl<T: Transport> NetDevice<T> {
    /// Starts the card, with at most `queue_size_max` buffers in each direction.
    pub fn new(mut transport: T, queue_size_max: u16) -> Result<NetDevice<T>, DeviceError> {
        let mut wanted = F_CSUM | F_GUEST_CSUM | F_HOST_TSO | F_MRG_RXBUF | F_EVENT_IDX;
        // Merged segments have no room in one buffer.
        if transport.device_features() & F_MRG_RXBUF != 0 {
            wanted |= F_GUEST_TSO;
        }
        let features = transport::negotiate(&mut transport, F_MAC, wanted)?;
        let mut mac = [0; 6];
        for (offset, byte) in mac.iter_mut().enumerate() {
            *byte = transport.config_u8(offset)?;
        }
        let mut queue = Queue::new(&mut transport, RX_QUEUE, queue_size_max, QueueInterrupt::Device)?;
        queue.agree(features);
        let buffers = Buffers::allocate(queue.size())?;
        let mut rx = NetRx { queue, buffers, features, pieces: [(0, 0); MAX_PIECES], error: None };
        let mut queue = Queue::new(&mut transport, TX_QUEUE, queue_size_max, QueueInterrupt::None)?;
        queue.agree(features);
        let buffers = Buffers::allocate(queue.size())?;
        let tx = NetTx { queue, buffers, features, frames: 0, error: None };
        // A device must not be notified before it works (§3.1.1).
        transport::start(&mut transport);
        (0..rx.queue.size()).for_each(|index| rx.give(index));
        rx.queue.publish();
        Ok(NetDevice { transport, mac, rx, tx })
    }

    /// Lets the next frame end a sleep. To be followed by a look for frames that came before, then by the sleep, and
    /// that by [`disable_interrupts`](Self::disable_interrupts).
    pub fn enable_interrupts(&mut self) {
        // Before the flag, so that no interrupt is taken back that comes after it.
        self.transport.acknowledge_interrupt();
        self.rx.queue.publish();
        self.rx.queue.set_interrupts(Interrupts::On);
    }

    /// Goes back to polling.
    pub fn disable_interrupts(&mut self) {
        self.rx.queue.set_interrupts(Interrupts::Off);
    }

    /// What the device has done wrong, after which it neither receives nor sends.
    pub fn error(&self) -> Option<NetError> {
        self.rx.error.or(self.tx.error)
    }

    /// Whether the device holds frames that are not sent yet.
    pub fn is_sending(&mut self) -> bool {
        self.tx.reclaim();
        self.tx.queue.free() < self.tx.queue.size()
    }
}

impl<T: Transport> FrameDevice for NetDevice<T> {
    type Rx<'a>
        = &'a mut NetRx
    where
        Self: 'a;
    type Tx<'a>
        = &'a mut NetTx
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(&mut self) -> (&mut NetRx, &mut NetTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn put_figures(&self, figures: &mut NetworkFigures) {
        figures.notifications = self.rx.queue.notifications() + self.tx.queue.notifications();
        figures.frames_sent = self.tx.frames;
        let offloads = self.tx.offloads();
        figures.offload_checksum = u64::from(offloads.checksum);
        figures.offload_segmentation = offloads.large_frame_bytes as u64;
        figures.offload_merging = u64::from(self.rx.features & F_GUEST_TSO != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake::{FakeQueue, FakeTransport},
        transport::F_VERSION_1,
    };
    extern crate std;
    use std::vec;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn transport() -> FakeTransport {
        FakeTransport::new(F_VERSION_1 | F_MAC, &[8, 4], &MAC)
    }

    fn card() -> (NetDevice<FakeTransport>, FakeQueue, FakeQueue) {
        let device = NetDevice::new(transport(), 256).unwrap();
        assert_eq!(device.transport.status, 15);
        assert_eq!(device.transport.agreed, F_VERSION_1 | F_MAC);
        let (rx, tx) = (device.transport.queue(0), device.transport.queue(1));
        (device, rx, tx)
    }

    fn send_frame(rx: &mut FakeQueue, frame: &[u8]) {
        let chain = rx.pop_available().expect("the driver has left a buffer");
        let bytes = [&[0; HEADER_BYTES], frame].concat();
        FakeQueue::write_segment(chain.segments[0], &bytes);
        rx.push_used(u32::from(chain.head), bytes.len() as u32);
    }

    #[test]
    fn frames_arrive_in_order_for_ever() {
        let (mut device, mut rx_queue, _) = card();
        let (rx, _) = device.split();
        for number in 0..200_000u32 {
            assert!(!rx.ready());
            send_frame(&mut rx_queue, &number.to_le_bytes());
            assert!(rx.ready());
            assert_eq!(rx.receive(|frame| frame.head.to_vec()), Some(number.to_le_bytes().to_vec()));
            if number % 3 == 0 {
                assert_eq!(rx.receive(|frame| frame.head.to_vec()), None);
            }
        }
    }

    #[test]
    fn all_buffers_can_be_filled_before_the_driver_looks() {
        let (mut device, mut rx_queue, _) = card();
        for round in 0..5u8 {
            for number in 0..8 {
                send_frame(&mut rx_queue, &[round, number]);
            }
            assert!(rx_queue.pop_available().is_none());
            let (rx, _) = device.split();
            for number in 0..8 {
                assert_eq!(rx.receive(|frame| frame.head.to_vec()), Some(vec![round, number]));
            }
            assert_eq!(rx.receive(|frame| frame.head.to_vec()), None);
        }
    }

    #[test]
    fn frames_leave_in_batches_with_one_notification() {
        let (mut device, _, mut tx_queue) = card();
        for round in 0..100u8 {
            let (_, tx) = device.split();
            for number in 0..4 {
                assert!(tx.ready());
                assert_eq!(tx.transmit(60, |frame| frame.fill(number ^ round)), Some(()));
            }
            assert!(!tx.ready());
            assert_eq!(tx.transmit(60, |_| panic!("there is no buffer")), None);
            assert!(tx_queue.pop_available().is_none(), "nothing leaves before it is flushed");
            device.transport.notified[1] = u32::MAX;
            let (_, tx) = device.split();
            tx.flush();
            assert_eq!(device.transport.notified[1], 1);
            assert!(device.is_sending());
            for number in 0..4 {
                let chain = tx_queue.pop_available().unwrap();
                let sent = FakeQueue::read_segment(chain.segments[0]);
                assert_eq!(sent, [&[0; HEADER_BYTES][..], &[number ^ round; 60]].concat());
                tx_queue.push_used(u32::from(chain.head), 0);
            }
            assert!(!device.is_sending());
        }
    }

    #[test]
    fn frames_of_impossible_length_are_not_taken() {
        let (mut device, _, _) = card();
        let (_, tx) = device.split();
        assert_eq!(tx.transmit(MAX_FRAME_BYTES + 1, |_| panic!("too long")), None);
        assert_eq!(tx.transmit(MAX_FRAME_BYTES, |frame| frame.len()), Some(MAX_FRAME_BYTES));
    }

    #[test]
    fn a_hostile_device_is_cut_off_and_harms_nothing() {
        let (mut device, mut rx_queue, _) = card();
        // Frames without a header are dropped.
        for len in [0, 5, HEADER_BYTES as u32] {
            let chain = rx_queue.pop_available().unwrap();
            rx_queue.push_used(u32::from(chain.head), len);
        }
        let (rx, _) = device.split();
        assert_eq!(rx.receive(|frame| frame.head.to_vec()), None);
        assert_eq!(device.error(), None);
        let chain = rx_queue.pop_available().unwrap();
        rx_queue.push_used(u32::from(chain.head), BUFFER_BYTES as u32 + 1);
        let (rx, _) = device.split();
        assert_eq!(rx.receive(|frame| frame.head.to_vec()), None);
        assert_eq!(device.error(), Some(NetError::Queue(QueueError::Overrun)));
        let (rx, _) = device.split();
        send_frame(&mut rx_queue, b"more");
        assert!(!rx.ready());
        assert_eq!(rx.receive(|frame| frame.head.to_vec()), None);
    }

    const ALL: u64 = F_CSUM | F_GUEST_CSUM | F_GUEST_TSO | F_HOST_TSO | F_MRG_RXBUF;

    fn offloading_card(more: u64) -> (NetDevice<FakeTransport>, FakeQueue, FakeQueue) {
        let transport = FakeTransport::new(F_VERSION_1 | F_MAC | ALL | more | 1 << 22, &[64, 32], &MAC);
        let device = NetDevice::new(transport, 256).unwrap();
        assert_eq!(device.transport.agreed, F_VERSION_1 | F_MAC | ALL | more);
        let (rx, tx) = (device.transport.queue(0), device.transport.queue(1));
        (device, rx, tx)
    }

    /// Gives a frame in so many buffers, of which the header names `named`.
    fn send_merged(rx: &mut FakeQueue, frame: &[u8], buffers: usize, named: u16, flags: u8) {
        let mut header = [0; HEADER_BYTES];
        header[0] = flags;
        header[10..].copy_from_slice(&named.to_le_bytes());
        let bytes = [&header, frame].concat();
        for piece in bytes.chunks(bytes.len().div_ceil(buffers)) {
            let chain = rx.pop_available().expect("the driver has left a buffer");
            FakeQueue::write_segment(chain.segments[0], piece);
            rx.push_used(u32::from(chain.head), piece.len() as u32);
        }
    }

    fn received(frame: Received<'_>) -> (std::vec::Vec<u8>, usize, bool) {
        ([&[frame.head], frame.rest].concat().concat(), 1 + frame.rest.len(), frame.is_checked)
    }

    #[test]
    fn merged_frames_lie_in_several_buffers_and_give_all_of_them_back() {
        let (mut device, mut rx_queue, _) = offloading_card(0);
        for round in 0..1000usize {
            let count = 1 + round % MAX_PIECES;
            let frame: std::vec::Vec<u8> = (0..count * 1000).map(|n| (n * 7 + round) as u8).collect();
            let flags = [0, NEEDS_CHECKSUM, CHECKSUM_IS_VALID][round % 3];
            send_merged(&mut rx_queue, &frame, count, count as u16, flags);
            let (rx, _) = device.split();
            assert_eq!(rx.receive(received), Some((frame, count, flags != 0)));
            assert_eq!(rx.receive(received), None);
        }
        assert_eq!(device.error(), None);
    }

    #[test]
    fn a_frame_in_more_buffers_than_were_given_back_is_an_error() {
        for (buffers, named) in [(1, 0), (1, 2), (3, 4), (1, MAX_PIECES as u16 + 1), (2, u16::MAX)] {
            let (mut device, mut rx_queue, _) = offloading_card(0);
            send_merged(&mut rx_queue, &[1; 100], buffers, named, 0);
            let (rx, _) = device.split();
            assert_eq!(rx.receive(|_| panic!("it was lent")), None::<()>);
            assert_eq!(device.error(), Some(NetError::Pieces(named)), "{buffers} buffers, {named} named");
        }
    }

    #[test]
    fn without_room_for_merged_frames_none_are_asked_for() {
        let transport = FakeTransport::new(F_VERSION_1 | F_MAC | (ALL & !F_MRG_RXBUF), &[8, 4], &MAC);
        let device = NetDevice::new(transport, 256).unwrap();
        assert_eq!(device.transport.agreed, F_VERSION_1 | F_MAC | F_CSUM | F_GUEST_CSUM | F_HOST_TSO);
    }

    #[test]
    fn large_frames_leave_in_a_chain_of_buffers() {
        let (mut device, _, mut tx_queue) = offloading_card(0);
        let task = Completion {
            internet: Internet::V4,
            checksum_start: 34,
            checksum_offset: 16,
            header_bytes: 66,
            segment_bytes: 1448,
        };
        let most = device.split().1.offloads().large_frame_bytes;
        assert_eq!(most, 8 * BUFFER_BYTES - HEADER_BYTES);
        for len in [100, BUFFER_BYTES - HEADER_BYTES, BUFFER_BYTES - HEADER_BYTES + 1, 5000, most] {
            let frame: std::vec::Vec<u8> = (0..len).map(|n| (n * 13) as u8).collect();
            let (_, tx) = device.split();
            assert!(tx.transmit_offloaded(len, task, |at, piece| piece.copy_from_slice(&frame[at..][..piece.len()])));
            tx.flush();
            let chain = tx_queue.pop_available().unwrap();
            let sent: std::vec::Vec<u8> = chain.segments.into_iter().flat_map(FakeQueue::read_segment).collect();
            assert_eq!(sent[..HEADER_BYTES], [1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0]);
            assert_eq!(sent[HEADER_BYTES..], frame);
            tx_queue.push_used(u32::from(chain.head), 0);
        }
        let (_, tx) = device.split();
        assert!(!tx.transmit_offloaded(most + 1, task, |_, _| panic!("too long")));
        // Four such frames fill the queue, and then there is no room for the smallest.
        (0..4).for_each(|_| assert!(tx.transmit_offloaded(most, task, |_, _| {})));
        assert_eq!((tx.room_bytes(), tx.ready()), (0, false));
    }

    #[test]
    fn a_checksum_alone_is_asked_for_without_division() {
        let task = Completion {
            internet: Internet::V4,
            checksum_start: 34,
            checksum_offset: 16,
            header_bytes: 54,
            segment_bytes: 0,
        };
        assert_eq!(header_of(task), [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]);
    }

    /// Virtio 1.2 §2.7.7 and §2.7.10.
    #[test]
    fn with_event_indices_each_side_says_when_it_wants_to_know() {
        let (mut device, mut rx_queue, tx_queue) = offloading_card(F_EVENT_IDX);
        let send = |device: &mut NetDevice<FakeTransport>| {
            device.transport.notified[1] = u32::MAX;
            let (_, tx) = device.split();
            tx.transmit(60, |_| {});
            tx.transmit(60, |_| {});
            tx.flush();
            device.transport.notified[1] == 1
        };
        // Its index stays where the device has left it: only what passes that is told.
        for (event, told) in [(0, true), (0, false), (5, true), (5, false), (8, true), (u16::MAX, false)] {
            tx_queue.set_event(event);
            assert_eq!(send(&mut device), told, "{event}");
        }
        assert_eq!(rx_queue.wanted_event(), u16::MAX);
        for number in 0..5 {
            send_merged(&mut rx_queue, &[number; 60], 1, 1, 0);
            device.split().0.receive(|_| {});
        }
        device.enable_interrupts();
        assert_eq!(rx_queue.wanted_event(), 5);
        device.disable_interrupts();
        assert_eq!(rx_queue.wanted_event(), 4);
    }

    #[test]
    fn interrupts_are_on_only_while_asked_for() {
        let (mut device, rx_queue, tx_queue) = card();
        assert!(!rx_queue.wants_interrupt() && !tx_queue.wants_interrupt());
        device.enable_interrupts();
        assert!(rx_queue.wants_interrupt() && !tx_queue.wants_interrupt());
        assert_eq!(device.transport.acknowledged, 1);
        device.disable_interrupts();
        assert!(!rx_queue.wants_interrupt());
    }

    #[test]
    fn cards_that_cannot_work_are_refused() {
        let refuse = |change: &dyn Fn(&mut FakeTransport)| {
            let mut transport = transport();
            change(&mut transport);
            NetDevice::new(transport, 256).unwrap_err()
        };
        assert_eq!(refuse(&|t| t.offered = F_MAC), DeviceError::Legacy);
        assert_eq!(refuse(&|t| t.offered = F_VERSION_1), DeviceError::Features);
        assert_eq!(refuse(&|t| t.sizes = vec![8, 0]), DeviceError::Malformed("queue"));
    }
}
