//! The network card (virtio 1.2 §5.1).
//!
//! One buffer for each descriptor, allocated once. Received frames are lent out of the device's buffers and these given
//! back in batches; frames to be sent are written into the device's buffers, and one notification covers a whole batch.
//! Interrupts are off but while the machine sleeps.

use crate::{
    DeviceError,
    queue::{Access, Interrupts, Queue, QueueError, Segment},
    transport::{self, QueueInterrupt, Transport},
};
use alloc::alloc::{Layout, alloc_zeroed};
use kayvee_platform::{FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES, NetworkFigures};

/// The device has an address of its own.
const F_MAC: u64 = 1 << 5;

const RX_QUEUE: u16 = 0;
const TX_QUEUE: u16 = 1;

/// `struct virtio_net_hdr` before each frame, §5.1.6: all zero here, as no offload is negotiated.
const HEADER_BYTES: usize = 12;
/// What a buffer takes, in whole cache lines.
const BUFFER_BYTES: usize = (HEADER_BYTES + MAX_FRAME_BYTES).next_multiple_of(64);

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

/// The receiving half.
#[derive(Debug)]
pub struct NetRx {
    queue: Queue,
    buffers: Buffers,
    error: Option<QueueError>,
}

impl NetRx {
    /// Takes the next buffer that holds a header and a frame; the others go straight back.
    #[inline]
    fn next_frame(&mut self) -> Option<(u16, usize)> {
        while self.error.is_none() {
            match self.queue.take_used() {
                Ok(Some(used)) if used.written as usize > HEADER_BYTES => {
                    return Some((used.head, used.written as usize));
                }
                Ok(Some(used)) => self.give(used.head),
                Ok(None) => {
                    self.queue.publish();
                    return None;
                }
                Err(error) => {
                    log::error!("network receive queue: {error}");
                    self.error = Some(error);
                }
            }
        }
        None
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
    fn receive<R>(&mut self, consume: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let (index, len) = self.next_frame()?;
        let frame = self.buffers.pointer(index);
        // SAFETY: the queue has checked that the length is within the buffer, `next_frame` that there is a header, and
        // the buffer is the driver's until it is given back below.
        let result = consume(unsafe { core::slice::from_raw_parts(frame.add(HEADER_BYTES), len - HEADER_BYTES) });
        self.give(index);
        Some(result)
    }
}

/// The sending half.
#[derive(Debug)]
pub struct NetTx {
    queue: Queue,
    buffers: Buffers,
    /// Frames sent.
    frames: u64,
    error: Option<QueueError>,
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
                    self.error = Some(error);
                }
            }
        }
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
        let buffer = self.buffers.pointer(index);
        // SAFETY: the descriptor is free, so the buffer is the driver's, and it holds a header and a largest frame. The
        // header before the frame was zeroed at the start and is never written.
        let result = fill(unsafe { core::slice::from_raw_parts_mut(buffer.add(HEADER_BYTES), len) });
        let segment = self.buffers.segment(index, HEADER_BYTES + len, Access::DeviceReads);
        // SAFETY: the buffer lives for ever.
        let head = unsafe { self.queue.add(&[segment]) };
        assert_eq!(head, Some(index), "a buffer goes with the descriptor of its number");
        self.frames += 1;
        Some(result)
    }

    #[inline]
    fn flush(&mut self) {
        self.queue.publish();
    }
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
        transport::negotiate(&mut transport, F_MAC, 0)?;
        let mut mac = [0; 6];
        for (offset, byte) in mac.iter_mut().enumerate() {
            *byte = transport.config_u8(offset)?;
        }
        let queue = Queue::new(&mut transport, RX_QUEUE, queue_size_max, QueueInterrupt::Device)?;
        let buffers = Buffers::allocate(queue.size())?;
        let mut rx = NetRx { queue, buffers, error: None };
        let queue = Queue::new(&mut transport, TX_QUEUE, queue_size_max, QueueInterrupt::None)?;
        let buffers = Buffers::allocate(queue.size())?;
        let tx = NetTx { queue, buffers, frames: 0, error: None };
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
    pub fn error(&self) -> Option<QueueError> {
        self.rx.error.or(self.tx.error)
    }

    /// Whether the device holds frames that are not sent yet.
    pub fn is_sending(&mut self) -> bool {
        self.tx.reclaim();
        self.tx.queue.free() < self.tx.queue.size()
    }
}

impl<T: Transport> FrameDevice for NetDevice<T> {
    type Rx = NetRx;
    type Tx = NetTx;

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(&mut self) -> (&mut NetRx, &mut NetTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn put_figures(&self, figures: &mut NetworkFigures) {
        figures.notifications = self.rx.queue.notifications() + self.tx.queue.notifications();
        figures.frames_sent = self.tx.frames;
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
        FakeTransport::new(F_VERSION_1 | F_MAC | 0xffff, &[8, 4], &MAC)
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
            assert_eq!(rx.receive(<[u8]>::to_vec), Some(number.to_le_bytes().to_vec()));
            if number % 3 == 0 {
                assert_eq!(rx.receive(<[u8]>::to_vec), None);
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
                assert_eq!(rx.receive(<[u8]>::to_vec), Some(vec![round, number]));
            }
            assert_eq!(rx.receive(<[u8]>::to_vec), None);
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
        assert_eq!(rx.receive(<[u8]>::to_vec), None);
        assert_eq!(device.error(), None);
        let chain = rx_queue.pop_available().unwrap();
        rx_queue.push_used(u32::from(chain.head), BUFFER_BYTES as u32 + 1);
        let (rx, _) = device.split();
        assert_eq!(rx.receive(<[u8]>::to_vec), None);
        assert_eq!(device.error(), Some(QueueError::Overrun));
        let (rx, _) = device.split();
        send_frame(&mut rx_queue, b"more");
        assert!(!rx.ready());
        assert_eq!(rx.receive(<[u8]>::to_vec), None);
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
