//! The card: frames that are received and sent in memory that the kernel shares.
//!
//! Each place for a frame is used in one direction only, and who has it is written down here: a place that the kernel
//! hands over must be one that it was given. Frames are read and written where they lie: as in any system call, the kernel is
//! trusted to leave alone what it has handed over. (It can reach all memory of a process, and of a guest, as it is.)

use crate::{
    SharedMemory,
    ring::{CONTINUES, HAS_METADATA, LayoutError, Ring, Rings, Violation},
};
use alloc::vec::Vec;
use core::{
    sync::atomic::{Ordering, fence},
    time::Duration,
};
use kayvee_platform::{
    Checksums, Completion, FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES, NetworkFigures, Offloads, Received,
};

/// What the kernel keeps free before a frame that it receives (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: usize = 256;
/// Pieces of the largest frame to be sent: the kernel's `MAX_SKB_FRAGS`, less one for the headers' page.
pub const MAX_PIECES: usize = 16;

/// What the kernel is to do with a frame stands so many bytes before it, on links with large frames (`struct
/// xsk_tx_metadata`, Linux 6.8, in `Documentation/networking/xsk-tx-metadata.rst`).
///
/// ```text
/// 0: flags, 8 bytes     8: where the checksum begins, 2 bytes     10: where it goes, counted from there, 2 bytes
/// ```
pub const METADATA_BYTES: u32 = 32;
/// The flag that has the checksum completed (`XDP_TXMD_FLAGS_CHECKSUM`).
const COMPLETES_CHECKSUM: u64 = 1 << 1;

/// One place of so many is for sending: what is sent leaves at once, what arrives may have to wait.
const TX_SHARE: usize = 4;

/// So many received frames are given back together, if there are more of them.
const GIVE_BACK_FRAMES: u32 = 64;

/// The kernel sends at least so many pieces at a time (`TX_BATCH_SIZE`), if it can send any.
const SENT_AT_ONCE: u32 = 32;

/// Frames that are still in the ring are rung for again after so many flushes without new ones.
const PATIENCE_FLUSHES: u32 = 64;

/// A [rest](Doorbell::rest) while there is no place for a frame: in it the kernel empties all of them many times, if it can.
pub const REST: Duration = Duration::from_micros(200);

/// Tells the kernel that there is something to send.
pub trait Doorbell {
    /// Rings once for all frames in the ring: so many bytes are new, or `usize::MAX` where those wait that were rung for before.
    /// Returns whether the kernel has been at work meanwhile, so that frames which are still there are worth another ring.
    fn ring(&mut self, bytes: usize) -> bool;

    /// Lets others have the processor for a [moment](REST): without a place for a frame nothing goes on here, and it may be them that
    /// the places wait for.
    fn rest(&mut self);
}

/// What a card is made of.
#[derive(Debug)]
pub struct Parts {
    /// The station's Ethernet address.
    pub mac: [u8; 6],
    /// Whether who sends to it may leave checksums undone.
    pub checksums: Checksums,
    /// The memory of the frames ...
    pub frames: SharedMemory,
    /// ... and how much of it each has: a power of two.
    pub frame_bytes: u32,
    /// The largest frame of the link. Where that is more than [`MAX_FRAME_BYTES`], the kernel takes and gives frames in
    /// pieces, and completes checksums as [`METADATA_BYTES`] before them say.
    pub max_frame_bytes: u32,
    /// The rings.
    pub rings: Rings,
}

/// The receiving half.
#[derive(Debug)]
pub struct XdpRx {
    fill: Ring,
    rx: Ring,
    frames: Frames,
    /// By place: whether the kernel has it.
    is_lent: Vec<bool>,
    /// A copy of a frame that lies in several places. It grows with what comes: where memory is short peers are told to send
    /// less than the link carries.
    frame: Vec<u8>,
    max_frame_bytes: usize,
    unreturned: u32,
    error: Option<Violation>,
}

/// The sending half.
#[derive(Debug)]
pub struct XdpTx<B> {
    tx: Ring,
    completion: Ring,
    frames: Frames,
    /// Places that are free; the one used last, which is still in the cache, comes next.
    free: Vec<u32>,
    /// By place: whether the kernel has it.
    is_lent: Vec<bool>,
    /// Bytes of frames that the kernel has not been told of.
    untold_bytes: usize,
    /// Flushes since the kernel was rung for.
    quiet_flushes: u32,
    /// The largest frame, and the places that it takes.
    max_frame_bytes: usize,
    max_pieces: usize,
    error: Option<Violation>,
    doorbell: B,
}

/// An AF_XDP socket's network card.
#[derive(Debug)]
pub struct XdpDevice<B> {
    mac: [u8; 6],
    checksums: Checksums,
    rx: XdpRx,
    tx: XdpTx<B>,
}

/// A frame that was received, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    place: u32,
    /// Where it lies in the memory.
    at: usize,
    len: usize,
    options: u32,
}

/// Some of the places, which the frames of one direction have.
#[derive(Debug)]
struct Frames {
    memory: SharedMemory,
    /// Where the first one's address is.
    first: u64,
    bytes_log2: u32,
    count: u32,
}

impl Frames {
    #[inline]
    fn address(&self, place: u32) -> u64 {
        self.first + (u64::from(place) << self.bytes_log2)
    }

    /// Where a place begins in the memory of these.
    #[inline]
    fn offset(&self, place: u32) -> usize {
        (place as usize) << self.bytes_log2
    }

    /// Where an address lies: the place, and how far from its start.
    #[inline]
    fn find(&self, address: u64) -> Option<(u32, usize)> {
        let from_first = address.checked_sub(self.first)?;
        let place = u32::try_from(from_first >> self.bytes_log2).ok().filter(|place| *place < self.count)?;
        Some((place, (from_first & ((1 << self.bytes_log2) - 1)) as usize))
    }
}

/// `count` copies of a value, if there is memory for them.
fn table<T: Clone>(count: u32, value: T) -> Option<Vec<T>> {
    let mut table = Vec::new();
    table.try_reserve_exact(count as usize).ok()?;
    table.resize(count as usize, value);
    Some(table)
}

impl<B: Doorbell> XdpDevice<B> {
    /// Takes a socket into use whose rings nobody has used yet: gives the kernel places for frames to arrive.
    pub fn new(parts: Parts, doorbell: B) -> Result<XdpDevice<B>, LayoutError> {
        let Parts { mac, checksums, frames, frame_bytes, max_frame_bytes, rings } = parts;
        let Rings { fill, completion, rx, tx } = rings;
        let (bytes, max_frame_bytes) = (frame_bytes as usize, max_frame_bytes as usize);
        if !bytes.is_power_of_two() || bytes < HEADROOM_BYTES + MAX_FRAME_BYTES {
            return Err(LayoutError);
        }
        // The headroom is more than the metadata takes.
        let max_pieces = max_frame_bytes.div_ceil(bytes - HEADROOM_BYTES);
        if max_frame_bytes < MAX_FRAME_BYTES || max_pieces > MAX_PIECES {
            return Err(LayoutError);
        }
        let places = frames.len() / bytes;
        // No more places than entries: then a ring always has room for what is put into it.
        let tx_count = (places / TX_SHARE).min(tx.entries().min(completion.entries()) as usize) as u32;
        let rx_count = (places - tx_count as usize).min(fill.entries().min(rx.entries()) as usize) as u32;
        if (tx_count.min(rx_count) as usize) < max_pieces {
            return Err(LayoutError);
        }
        let (rx_memory, tx_memory) = frames.split_at(rx_count as usize * bytes);
        let bytes_log2 = frame_bytes.trailing_zeros();
        let rx_frames = Frames { memory: rx_memory, first: 0, bytes_log2, count: rx_count };
        let first = u64::from(rx_count) << bytes_log2;
        let tx_frames = Frames { memory: tx_memory, first, bytes_log2, count: tx_count };
        let mut rx = XdpRx {
            fill,
            rx,
            frames: rx_frames,
            is_lent: table(rx_count, false).ok_or(LayoutError)?,
            frame: Vec::new(),
            max_frame_bytes,
            unreturned: 0,
            error: None,
        };
        (0..rx_count).for_each(|place| rx.give(place));
        rx.give_back();
        let mut free = table(tx_count, 0).ok_or(LayoutError)?;
        free.iter_mut().zip((0..tx_count).rev()).for_each(|(free, place)| *free = place);
        let is_lent = table(tx_count, false).ok_or(LayoutError)?;
        let tx = XdpTx {
            tx,
            completion,
            frames: tx_frames,
            free,
            is_lent,
            untold_bytes: 0,
            quiet_flushes: 0,
            max_frame_bytes,
            max_pieces,
            error: None,
            doorbell,
        };
        Ok(XdpDevice { mac, checksums, rx, tx })
    }

    /// Its two halves.
    pub fn into_halves(self) -> (XdpRx, XdpTx<B>) {
        (self.rx, self.tx)
    }

    /// What the other side has done wrong, after which nothing is received nor sent.
    pub fn error(&self) -> Option<Violation> {
        self.rx.error.or(self.tx.error)
    }

    /// As [`XdpTx::doorbell`].
    pub fn doorbell(&mut self) -> &mut B {
        self.tx.doorbell()
    }

    /// As [`XdpTx::is_sending`].
    pub fn is_sending(&mut self) -> bool {
        self.tx.is_sending()
    }

    /// As [`XdpTx::send_again`].
    pub fn send_again(&mut self) {
        self.tx.send_again();
    }
}

impl XdpRx {
    /// What the other side has done wrong, after which nothing is received.
    pub fn error(&self) -> Option<Violation> {
        self.error
    }

    /// Writes down that the kernel may use a place.
    #[inline]
    fn give(&mut self, place: u32) {
        self.is_lent[place as usize] = true;
        self.fill.put_address(self.frames.address(place));
        self.unreturned += 1;
        if self.unreturned >= GIVE_BACK_FRAMES {
            self.give_back();
        }
    }

    /// Tells the kernel of the places that are its own again.
    fn give_back(&mut self) {
        if self.fill.publish() {
            self.rx.release();
            self.unreturned = 0;
        }
    }

    /// Takes the next frame, or the next piece of one.
    #[inline]
    fn next_piece(&mut self) -> Result<Option<Piece>, Violation> {
        if self.rx.waiting()? == 0 {
            self.give_back();
            return Ok(None);
        }
        let (address, len, options) = self.rx.take_descriptor();
        let (place, offset) = self.frames.find(address).ok_or(Violation::Frame(address))?;
        if !core::mem::replace(&mut self.is_lent[place as usize], false) {
            return Err(Violation::Frame(address));
        }
        if len as usize > (1 << self.frames.bytes_log2) - offset {
            return Err(Violation::Length(len));
        }
        let at = self.frames.offset(place) + offset;
        Ok(Some(Piece { place, at, len: len as usize, options }))
    }

    /// Copies a frame that lies in several pieces, of which this is the first. One that is larger than the link's largest, or than
    /// there is memory for, is cut off, which its headers tell.
    #[inline(never)]
    fn gather(&mut self, first: Piece) -> Result<(), Violation> {
        let (mut piece, mut room) = (first, self.max_frame_bytes);
        self.frame.clear();
        for _ in 0..self.frames.count {
            let len = piece.len.min(room);
            if self.frame.try_reserve(len).is_ok() {
                // SAFETY: the kernel has handed the place over, and gets it back below.
                self.frame.extend_from_slice(unsafe { self.frames.memory.bytes(piece.at, len) });
                room -= len;
            } else {
                room = 0;
            }
            self.give(piece.place);
            if piece.options & CONTINUES == 0 {
                return Ok(());
            }
            // The kernel hands all pieces over together.
            piece = self.next_piece()?.ok_or(Violation::Pieces)?;
        }
        Err(Violation::Pieces)
    }

    fn fail(&mut self, violation: Violation) {
        log::error!("the socket's receiving rings: {violation}");
        self.error = Some(violation);
    }
}

impl FrameRx for XdpRx {
    #[inline]
    fn ready(&mut self) -> bool {
        if self.error.is_some() {
            return false;
        }
        match self.rx.waiting() {
            Ok(waiting) => waiting > 0,
            Err(violation) => {
                self.fail(violation);
                false
            }
        }
    }

    #[inline]
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        if self.error.is_some() {
            return None;
        }
        let piece = match self.next_piece() {
            Ok(piece) => piece?,
            Err(violation) => {
                self.fail(violation);
                return None;
            }
        };
        if piece.options & CONTINUES != 0 {
            return match self.gather(piece) {
                Ok(()) => Some(consume(self.frame.as_slice().into())),
                Err(violation) => {
                    self.fail(violation);
                    None
                }
            };
        }
        // SAFETY: the kernel has handed the place over, and gets it back below.
        let frame = unsafe { self.frames.memory.bytes(piece.at, piece.len) };
        let result = consume(frame.into());
        self.give(piece.place);
        Some(result)
    }
}

impl<B: Doorbell> XdpTx<B> {
    /// What the other side has done wrong, after which nothing is sent.
    pub fn error(&self) -> Option<Violation> {
        self.error
    }

    /// Whether the kernel holds frames that are not sent yet.
    pub fn is_sending(&mut self) -> bool {
        self.reclaim();
        self.error.is_none() && self.free.len() < self.frames.count as usize
    }

    /// What is rung.
    pub fn doorbell(&mut self) -> &mut B {
        &mut self.doorbell
    }

    /// Rings again where the kernel has left frames in the ring, as it does where it has no memory for them.
    pub fn send_again(&mut self) {
        self.ring();
    }

    /// Takes back the places of what was sent.
    fn reclaim(&mut self) {
        if self.error.is_some() {
            return;
        }
        if let Err(violation) = self.take_completions() {
            log::error!("the socket's sending rings: {violation}");
            self.error = Some(violation);
        }
    }

    fn take_completions(&mut self) -> Result<(), Violation> {
        let waiting = self.completion.waiting()?;
        for _ in 0..waiting {
            let address = self.completion.take_address();
            let place = self.frames.find(address).ok_or(Violation::Frame(address))?.0;
            if !core::mem::replace(&mut self.is_lent[place as usize], false) {
                return Err(Violation::Frame(address));
            }
            self.free.push(place);
        }
        if waiting > 0 {
            self.completion.release();
        }
        Ok(())
    }

    /// Whether there is no room for the largest frame.
    #[inline]
    fn is_full(&self) -> bool {
        self.free.len() < self.max_pieces
    }

    /// Whether frames larger than [`MAX_FRAME_BYTES`] are sent, and checksums left to the kernel.
    #[inline]
    fn has_offloads(&self) -> bool {
        self.max_frame_bytes > MAX_FRAME_BYTES
    }

    /// Where frames begin in their places.
    #[inline]
    fn start(&self) -> usize {
        if self.has_offloads() { METADATA_BYTES as usize } else { 0 }
    }

    /// Has `fill` write a frame of `len` bytes, or a piece of one, in a free place and queues it.
    #[inline]
    fn put<R>(&mut self, len: usize, options: u32, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let place = self.free.pop().expect("the caller has seen that there is room");
        let start = self.start();
        // SAFETY: the place is free, so it is the driver's until its descriptor is published, and nobody else's slice.
        let result = fill(unsafe { self.frames.memory.bytes_mut(self.frames.offset(place) + start, len) });
        self.is_lent[place as usize] = true;
        self.untold_bytes += len;
        self.tx.put_descriptor(self.frames.address(place) + start as u64, len as u32, options);
        result
    }

    /// Writes down what is to be done with the frame that comes next.
    fn put_metadata(&mut self, task: Completion) {
        let place = *self.free.last().expect("the caller has seen that there is room");
        // SAFETY: as in `put`.
        let metadata = unsafe { self.frames.memory.bytes_mut(self.frames.offset(place), 12) };
        metadata[..8].copy_from_slice(&COMPLETES_CHECKSUM.to_ne_bytes());
        metadata[8..10].copy_from_slice(&task.checksum_start.to_ne_bytes());
        metadata[10..].copy_from_slice(&task.checksum_offset.to_ne_bytes());
    }

    fn ring(&mut self) {
        let bytes = match core::mem::take(&mut self.untold_bytes) {
            untold_bytes if untold_bytes > 0 && !self.is_full() => untold_bytes,
            _ => usize::MAX,
        };
        self.quiet_flushes = 0;
        // Between publishing the entries and reading the flag, which the kernel sets before it looks at the ring for the
        // last time.
        fence(Ordering::SeqCst);
        for _ in 0..self.frames.count.div_ceil(SENT_AT_ONCE) {
            let is_wanted = self.tx.needs_wakeup() && self.tx.is_pending();
            if !is_wanted || !self.doorbell.ring(bytes) {
                return;
            }
        }
    }
}

impl<B: Doorbell> FrameTx for XdpTx<B> {
    #[inline]
    fn ready(&mut self) -> bool {
        if self.is_full() {
            self.reclaim();
        }
        !self.is_full() && self.error.is_none()
    }

    #[inline]
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if len > MAX_FRAME_BYTES || !self.ready() {
            return None;
        }
        Some(self.put(len, 0, fill))
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        // A large frame is one packet on its link: nothing is divided.
        Offloads { checksum: self.has_offloads(), large_frame_bytes: 0 }
    }

    #[inline]
    fn room_bytes(&mut self) -> usize {
        if self.ready() { self.max_frame_bytes } else { 0 }
    }

    #[inline]
    fn transmit_offloaded(&mut self, len: usize, task: Completion, mut fill: impl FnMut(usize, &mut [u8])) -> bool {
        if !self.has_offloads() || len > self.room_bytes() {
            return false;
        }
        assert_eq!(task.segment_bytes, 0, "nothing is divided here");
        self.put_metadata(task);
        let most = (1 << self.frames.bytes_log2) - METADATA_BYTES as usize;
        let (mut filled, mut options) = (0, HAS_METADATA);
        while filled < len {
            let piece = (len - filled).min(most);
            options |= if filled + piece < len { CONTINUES } else { 0 };
            self.put(piece, options, |bytes| fill(filled, bytes));
            (filled, options) = (filled + piece, 0);
        }
        true
    }

    #[inline]
    fn flush(&mut self) {
        self.quiet_flushes += 1;
        // The kernel may have left frames in the ring, or who rings for it have been kept from that, and no new ones need come
        // that would ring for them: without room nothing is received either.
        if self.tx.publish() | self.is_full() || self.quiet_flushes >= PATIENCE_FLUSHES {
            self.ring();
            // What has left by now: its place is still in the cache.
            self.reclaim();
            if self.is_full() {
                self.doorbell.rest();
            }
        }
    }
}

impl<B: Doorbell> FrameDevice for XdpDevice<B> {
    type Rx<'a>
        = &'a mut XdpRx
    where
        Self: 'a;
    type Tx<'a>
        = &'a mut XdpTx<B>
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn checksums(&self) -> Checksums {
        self.checksums
    }

    fn max_frame_bytes(&self) -> usize {
        self.tx.max_frame_bytes
    }

    fn split(&mut self) -> (&mut XdpRx, &mut XdpTx<B>) {
        (&mut self.rx, &mut self.tx)
    }

    fn put_figures(&self, figures: &mut NetworkFigures) {
        figures.offload_checksum = u64::from(self.tx.has_offloads());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake::{Bell, FRAME_BYTES, FakeKernel},
        ring::RingLayout,
    };
    use alloc::{rc::Rc, vec, vec::Vec};
    use core::{
        cell::{Cell, RefCell},
        sync::atomic::Ordering::Relaxed,
    };
    use kayvee_platform::Internet;

    const PLACES: u32 = 16;
    const RX_PLACES: u32 = 12;

    fn card() -> (XdpDevice<Bell>, FakeKernel) {
        let kernel = FakeKernel::new(PLACES, 16);
        let (parts, bell) = kernel.parts();
        (XdpDevice::new(parts, bell).unwrap(), kernel)
    }

    fn receive(card: &mut XdpDevice<Bell>) -> Option<Vec<u8>> {
        card.split().0.receive(|frame| frame.head.to_vec())
    }

    fn send(card: &mut XdpDevice<Bell>, frame: &[u8]) -> bool {
        card.split().1.transmit(frame.len(), |to| to.copy_from_slice(frame)).is_some()
    }

    #[test]
    fn frames_of_every_size_arrive_in_order_for_ever() {
        let (mut card, kernel) = card();
        let sizes = if cfg!(miri) { (14..=MAX_FRAME_BYTES).step_by(97) } else { (14..=MAX_FRAME_BYTES).step_by(1) };
        for size in sizes {
            let frame: Vec<u8> = (0..size).map(|n| (n * 7 + size) as u8).collect();
            assert!(kernel.deliver(&frame) && kernel.deliver(&frame[1..]));
            assert!(card.split().0.ready());
            assert_eq!(receive(&mut card).as_deref(), Some(&frame[..]));
            assert_eq!(receive(&mut card).as_deref(), Some(&frame[1..]));
            assert_eq!(receive(&mut card), None);
        }
        assert_eq!(card.error(), None);
    }

    #[test]
    fn all_places_can_be_filled_before_the_driver_looks() {
        let (mut card, kernel) = card();
        for _ in 0..20 {
            for n in 0..RX_PLACES {
                assert!(kernel.deliver(&[n as u8; 60]));
            }
            assert!(!kernel.deliver(&[0; 60]), "a frame for which there is no place is lost");
            for n in 0..RX_PLACES {
                assert_eq!(receive(&mut card), Some(vec![n as u8; 60]));
            }
            assert_eq!(receive(&mut card), None);
        }
    }

    #[test]
    fn frames_leave_in_batches_with_one_ring() {
        let (mut card, kernel) = card();
        for round in 1..50u32 {
            assert!(send(&mut card, &[1; 60]) && send(&mut card, &[2; 1514]) && send(&mut card, &[3; 14]));
            assert!(kernel.send_all().is_empty(), "nothing leaves before the end of the turn");
            card.split().1.flush();
            card.split().1.flush();
            assert_eq!((kernel.rings.get(), kernel.rung_bytes.get()), (round, 60 + 1514 + 14));
            assert!(card.tx.is_sending());
            assert_eq!(kernel.send_all(), [vec![1; 60], vec![2; 1514], vec![3; 14]]);
            assert!(!card.tx.is_sending());
        }
    }

    const LARGE: usize = 5000;

    fn large_card() -> (XdpDevice<Bell>, FakeKernel) {
        let kernel = FakeKernel::new(PLACES, 16);
        let (parts, bell) = kernel.parts_with(LARGE as u32);
        (XdpDevice::new(parts, bell).unwrap(), kernel)
    }

    #[test]
    fn large_frames_arrive_in_pieces_for_ever() {
        let (mut card, kernel) = large_card();
        for size in (14..=LARGE).step_by(if cfg!(miri) { 499 } else { 7 }) {
            let frame: Vec<u8> = (0..size).map(|n| (n * 7 + size) as u8).collect();
            kernel.deliver_pieces(&frame);
            kernel.deliver_pieces(&frame[1..]);
            for sent in [&frame[..], &frame[1..]] {
                let got = receive(&mut card);
                assert_eq!(got.as_deref(), Some(sent));
            }
            assert_eq!(receive(&mut card), None);
        }
        assert_eq!(card.error(), None);
    }

    /// The checksum of a TCP segment without options.
    const TASK: Completion = Completion {
        internet: Internet::V4,
        checksum_start: 34,
        checksum_offset: 16,
        header_bytes: 54,
        segment_bytes: 0,
    };

    #[test]
    fn large_frames_leave_in_pieces_with_what_is_to_be_done() {
        let (mut card, kernel) = large_card();
        assert_eq!(card.max_frame_bytes(), LARGE);
        for size in (54..=LARGE).step_by(if cfg!(miri) { 499 } else { 31 }) {
            let frame: Vec<u8> = (0..size).map(|n| (n * 3 + size) as u8).collect();
            let tx = card.split().1;
            let fill = |at: usize, bytes: &mut [u8]| bytes.copy_from_slice(&frame[at..at + bytes.len()]);
            assert_eq!(tx.room_bytes(), LARGE);
            assert!(tx.transmit_offloaded(size, TASK, fill));
            tx.flush();
            let metadata = [2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 16, 0];
            assert_eq!(kernel.send_large(), [(Some(metadata), frame)]);
            assert!(send(&mut card, &[5; 60]));
            card.split().1.flush();
            assert_eq!(kernel.send_large(), [(None, vec![5; 60])], "the same memory, without anything to be done");
        }
        let tx = card.split().1;
        assert!(!tx.transmit_offloaded(LARGE + 1, TASK, |_, _| panic!("too long")));
        // Of four places a largest frame takes three.
        assert!(tx.transmit_offloaded(LARGE, TASK, |_, bytes| bytes.fill(1)));
        assert!(!tx.ready() && tx.room_bytes() == 0);
        assert!(!tx.transmit_offloaded(60, TASK, |_, _| panic!("no room")));
    }

    #[test]
    fn a_copy_takes_no_more_memory_than_what_comes() {
        let (mut card, kernel) = large_card();
        kernel.deliver_pieces(&[1; 60]);
        receive(&mut card);
        assert_eq!(card.rx.frame.capacity(), 0, "it lies in one place");
        kernel.deliver_pieces(&[1; FRAME_BYTES as usize]);
        receive(&mut card);
        assert!((FRAME_BYTES as usize..LARGE).contains(&card.rx.frame.capacity()));
    }

    #[test]
    fn frames_larger_than_the_link_are_cut_off() {
        let (mut card, kernel) = large_card();
        for _ in 0..10 {
            kernel.deliver_pieces(&[7; LARGE + 1]);
            kernel.deliver_pieces(&[8; 3 * FRAME_BYTES as usize]);
            kernel.deliver_pieces(&[9; 60]);
            assert_eq!(receive(&mut card), Some(vec![7; LARGE]));
            assert_eq!(receive(&mut card), Some(vec![8; LARGE]));
            assert_eq!(receive(&mut card), Some(vec![9; 60]));
            assert_eq!(receive(&mut card), None, "and with that all places are given back");
        }
    }

    #[test]
    fn frames_without_an_end_are_noticed() {
        let (mut card, kernel) = large_card();
        kernel.rx.put(256, 1 << 32 | 100);
        assert_eq!(receive(&mut card), None);
        assert_eq!(card.error(), Some(Violation::Pieces));
    }

    #[test]
    fn a_kernel_that_needs_no_ring_gets_none() {
        let (mut card, kernel) = card();
        kernel.tx.u32(kernel.tx.layout.flags).store(0, Relaxed);
        assert!(send(&mut card, &[1; 60]));
        card.split().1.flush();
        assert_eq!((kernel.rings.get(), kernel.send_all().len()), (0, 1));
    }

    #[test]
    fn what_is_left_is_rung_for_again() {
        let (mut card, kernel) = card();
        assert!(send(&mut card, &[1; 60]));
        card.split().1.flush();
        card.tx.send_again();
        assert_eq!(kernel.rings.get(), 2);
        kernel.send_all();
        card.tx.send_again();
        assert_eq!(kernel.rings.get(), 2);
    }

    #[test]
    fn what_is_left_is_rung_for_again_though_nothing_new_comes() {
        let (mut card, kernel) = card();
        assert!(send(&mut card, &[1; 60]));
        for _ in 0..=PATIENCE_FLUSHES {
            assert!(kernel.rung_bytes.get() != usize::MAX);
            card.split().1.flush();
        }
        assert_eq!((kernel.rings.get(), kernel.rung_bytes.get()), (2, usize::MAX));
        kernel.send_all();
        (0..3 * PATIENCE_FLUSHES).for_each(|_| card.split().1.flush());
        assert_eq!((kernel.rings.get(), kernel.rests.get()), (2, 0));
    }

    #[test]
    fn without_a_place_each_turn_rings_and_lets_others_have_the_processor() {
        let (mut card, kernel) = card();
        while send(&mut card, &[1; 60]) {}
        for round in 1..4 {
            card.split().1.flush();
            assert_eq!((kernel.rings.get(), kernel.rests.get(), kernel.rung_bytes.get()), (round, round, usize::MAX));
        }
        // The kernel has taken all and is done with none: there is nothing to ring for.
        let taken: Vec<u64> = core::iter::from_fn(|| Some(kernel.tx.take()?.0)).collect();
        card.split().1.flush();
        assert_eq!((kernel.rings.get(), kernel.rests.get()), (3, 4));
        kernel.completion.put(taken[0], 0);
        card.split().1.flush();
        assert_eq!((kernel.rings.get(), kernel.rests.get()), (3, 4), "there is a place");
    }

    /// A kernel that refuses, loses, sends some and is done with what it has sent when it likes, but with all in a rest.
    struct Moody {
        kernel: Rc<FakeKernel>,
        random: fastrand::Rng,
        sent: Rc<RefCell<Vec<u64>>>,
        left: Rc<Cell<u32>>,
    }

    impl Moody {
        fn take(&mut self, most: u32) {
            for _ in 0..most {
                let Some((address, _)) = self.kernel.tx.take() else { break };
                self.left.set(self.left.get() + 1);
                self.sent.borrow_mut().push(address);
            }
        }

        fn complete(&mut self, most: usize) {
            let mut sent = self.sent.borrow_mut();
            let most = most.min(sent.len());
            sent.drain(..most).for_each(|address| self.kernel.completion.put(address, 0));
        }
    }

    impl Doorbell for Moody {
        fn ring(&mut self, _: usize) -> bool {
            let (mood, some) = (self.random.u8(..6), self.random.u32(..5));
            match mood {
                // ENOBUFS, ENETDOWN, or a thread that has yet to run; EBUSY; EAGAIN, having sent some or none.
                0 | 1 => {}
                2 => self.take(1),
                3 | 4 => self.take(some),
                _ => self.take(u32::MAX),
            }
            let most = self.random.usize(..5);
            self.complete(most);
            (2..5).contains(&mood)
        }

        fn rest(&mut self) {
            self.complete(usize::MAX);
        }
    }

    #[test]
    fn whatever_the_kernel_refuses_all_frames_leave() {
        for seed in 0..if cfg!(miri) { 5 } else { 200 } {
            let kernel = Rc::new(FakeKernel::new(PLACES, 16));
            let (sent, left) = (Rc::<RefCell<Vec<u64>>>::default(), Rc::<Cell<u32>>::default());
            let random = fastrand::Rng::with_seed(seed);
            let bell = Moody { kernel: kernel.clone(), random, sent: sent.clone(), left: left.clone() };
            let mut card = XdpDevice::new(kernel.parts().0, bell).unwrap();
            let mut made = 0;
            for _ in 0..20_000 {
                let tx = card.split().1;
                while made < 200 && tx.ready() {
                    tx.transmit(60, |frame| frame.fill(1)).unwrap();
                    made += 1;
                }
                // No turn ends here without a place unless there was a rest for it.
                tx.flush();
                tx.flush();
            }
            assert_eq!((made, left.get()), (200, 200), "seed {seed}");
            sent.borrow_mut().drain(..).for_each(|address| kernel.completion.put(address, 0));
            assert!(!card.is_sending() && card.error().is_none(), "seed {seed}");
        }
    }

    #[test]
    fn nothing_is_sent_without_a_place() {
        let (mut card, kernel) = card();
        for _ in 0..3 {
            for n in 0..PLACES - RX_PLACES {
                assert!(send(&mut card, &[n as u8; 60]));
            }
            assert!(!card.split().1.ready() && !send(&mut card, &[9; 60]));
            card.split().1.flush();
            assert_eq!(kernel.send_all().len(), (PLACES - RX_PLACES) as usize);
        }
        assert!(!send(&mut card, &[0; MAX_FRAME_BYTES + 1]));
        assert!(send(&mut card, &[0; MAX_FRAME_BYTES]));
    }

    #[test]
    fn a_kernel_that_breaks_the_rules_is_cut_off_and_harms_nothing() {
        let place = |n: u32| u64::from(n * FRAME_BYTES) + 256;
        let frames = [
            (place(PLACES), 60, "behind all places"),
            (place(RX_PLACES), 60, "a place for sending"),
            (u64::MAX, 60, "nowhere"),
            (place(0), 2048, "longer than its place"),
            (place(0), u64::from(u32::MAX), "far longer"),
        ];
        for (address, len, what) in frames {
            let (mut card, kernel) = card();
            kernel.rx.put(address, len);
            assert_eq!(receive(&mut card), None, "{what}");
            assert!(card.error().is_some(), "{what}");
            kernel.deliver(&[1; 60]);
            assert!(!card.split().0.ready() && receive(&mut card).is_none());
        }
    }

    #[test]
    fn a_frame_is_handed_over_once() {
        let (mut card, kernel) = card();
        kernel.rx.put(256, 60);
        kernel.rx.put(256, 60);
        let rx = card.split().0;
        let first = rx.next_piece();
        assert!(first.is_ok_and(|frame| frame.is_some()));
        assert_eq!(rx.next_piece(), Err(Violation::Frame(256)));
    }

    #[test]
    fn impossible_indices_are_noticed() {
        for index in [17, u32::MAX, 1 << 31] {
            let (mut card, kernel) = card();
            kernel.rx.u32(kernel.rx.layout.producer).store(index, Relaxed);
            assert!(!card.split().0.ready());
            assert_eq!(card.error(), Some(Violation::Index));
            let (mut card, kernel) = self::card();
            kernel.completion.u32(kernel.completion.layout.producer).store(index, Relaxed);
            card.tx.is_sending();
            assert_eq!(card.error(), Some(Violation::Index));
            assert!(!send(&mut card, &[1; 60]));
        }
    }

    #[test]
    fn completions_of_what_was_not_sent_are_noticed() {
        let first = u64::from(RX_PLACES * FRAME_BYTES);
        for address in [first, 0, u64::MAX] {
            let (mut card, kernel) = card();
            kernel.completion.put(address, 0);
            assert!(!card.tx.is_sending());
            assert_eq!(card.error(), Some(Violation::Frame(address)));
        }
    }

    #[test]
    fn layouts_that_do_not_fit_are_refused() {
        let kernel = FakeKernel::new(PLACES, 16);
        let good = kernel.rx.layout;
        let bad = [
            RingLayout { producer: 1, ..good },
            RingLayout { consumer: u32::MAX, ..good },
            RingLayout { flags: 192 + 256, ..good },
            RingLayout { entries: 32, ..good },
            RingLayout { entries: 15, ..good },
            RingLayout { entries: 0, ..good },
            RingLayout { entries_at: 196, ..good },
            RingLayout { entries_at: u32::MAX - 7, ..good },
        ];
        for layout in bad {
            assert!(Ring::of_descriptors(kernel.rx.shared(), layout).is_err(), "{layout:?}");
        }
        assert!(Ring::of_descriptors(kernel.rx.shared(), good).is_ok());
        for frame_bytes in [0, 1024, 2000, 3000] {
            let (parts, bell) = kernel.parts();
            assert!(XdpDevice::new(Parts { frame_bytes, ..parts }, bell).is_err());
        }
        let kernel = FakeKernel::new(3, 16);
        let (parts, bell) = kernel.parts();
        assert!(XdpDevice::new(parts, bell).is_err(), "a place for each direction is the least");
    }

    /// Whatever the kernel writes, nothing panics and no more than the shared memory is touched (which Miri sees).
    #[test]
    fn noise_in_the_rings_is_harmless() {
        let seed = 1;
        let mut random = fastrand::Rng::with_seed(seed);
        for run in 0..if cfg!(miri) { 20 } else { 2000 } {
            let (mut card, kernel) = card();
            for _ in 0..40 {
                let address = if random.bool() { random.u64(..) } else { random.u64(..2 * 16 * 2048) };
                match random.u8(..8) {
                    0 => kernel.rx.put(address, random.u64(..2) << 32 | random.u64(..2200)),
                    1 => kernel.completion.put(address, 0),
                    2 => kernel.rx.u32(kernel.rx.layout.producer).store(random.u32(..), Relaxed),
                    3 => kernel.tx.u32(kernel.tx.layout.consumer).store(random.u32(..), Relaxed),
                    4 => drop(kernel.deliver(&[run as u8; 60])),
                    5 => drop(receive(&mut card)),
                    6 => drop(send(&mut card, &[3; 100])),
                    _ => card.split().1.flush(),
                }
            }
        }
    }
}
