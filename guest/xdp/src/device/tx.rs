//! What is sent.

use super::{Doorbell, Frames, METADATA_BYTES, table};
use crate::ring::{CONTINUES, HAS_METADATA, Ring, Violation};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use kayvee_platform::{Completion, FrameTx, MAX_FRAME_BYTES, NetworkFigures, Offloads};

/// The flag that has the checksum completed (`XDP_TXMD_FLAGS_CHECKSUM`).
const COMPLETES_CHECKSUM: u64 = 1 << 1;

/// The kernel sends at least so many pieces at a time (`TX_BATCH_SIZE`), if it can send any.
const SENT_AT_ONCE: u32 = 32;

/// Frames that are still in the ring are rung for again after so many flushes without new ones.
pub(super) const PATIENCE_FLUSHES: u32 = 64;

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
    /// Frames that were queued, and how often the kernel was rung for.
    queued: u64,
    rings: u64,
    /// The largest frame, and the places that it takes.
    pub(super) max_frame_bytes: usize,
    max_pieces: usize,
    error: Option<Violation>,
    doorbell: B,
}

impl<B: Doorbell> XdpTx<B> {
    /// With all places free, if there is memory. The largest frame has so many bytes and takes so many places.
    pub(super) fn new(
        tx: Ring,
        completion: Ring,
        frames: Frames,
        (max_frame_bytes, max_pieces): (usize, usize),
        doorbell: B,
    ) -> Option<XdpTx<B>> {
        let mut free = table(frames.count, 0)?;
        free.iter_mut().zip((0..frames.count).rev()).for_each(|(free, place)| *free = place);
        let is_lent = table(frames.count, false)?;
        Some(XdpTx {
            tx,
            completion,
            frames,
            free,
            is_lent,
            untold_bytes: 0,
            quiet_flushes: 0,
            queued: 0,
            rings: 0,
            max_frame_bytes,
            max_pieces,
            error: None,
            doorbell,
        })
    }

    /// What the other side has done wrong, after which nothing is sent.
    pub fn error(&self) -> Option<Violation> {
        self.error
    }

    /// Whether the kernel holds frames that are not sent yet.
    pub fn is_sending(&mut self) -> bool {
        self.reclaim();
        self.error.is_none() && self.free.len() < self.frames.count as usize
    }

    /// Puts what it counts where it is shown.
    pub fn put_figures(&self, figures: &mut NetworkFigures) {
        (figures.frames_sent, figures.notifications) = (self.queued, self.rings);
        figures.offload_checksum = u64::from(self.has_offloads());
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
        self.queued += u64::from(options & CONTINUES == 0);
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
            if !is_wanted {
                return;
            }
            self.rings += 1;
            if !self.doorbell.ring(bytes) {
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
