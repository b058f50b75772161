//! The card: frames that are received and sent in memory that the kernel shares.
//!
//! Each place for a frame is used in one direction only, and who has it is written down here: a place that the kernel
//! hands over must be one that it was given. Frames are read and written where they lie: as in any system call, the kernel is
//! trusted to leave alone what it has handed over. (It can reach all memory of a process, and of a guest, as it is.)

use crate::{
    SharedMemory,
    ring::{LayoutError, Rings, Violation},
};
use alloc::vec::Vec;
use core::time::Duration;
use kayvee_platform::{Checksums, FrameDevice, MAX_FRAME_BYTES, MIN_FRAME_BYTES, NetworkFigures};

mod rx;
#[cfg(test)]
mod tests;
mod tx;

pub use rx::XdpRx;
pub use tx::XdpTx;

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

/// One place of so many is for sending: what is sent leaves at once, what arrives may have to wait.
const TX_SHARE: usize = 4;

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

/// An AF_XDP socket's network card.
#[derive(Debug)]
pub struct XdpDevice<B> {
    mac: [u8; 6],
    checksums: Checksums,
    rx: XdpRx,
    tx: XdpTx<B>,
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
        if max_frame_bytes < MIN_FRAME_BYTES || max_pieces > MAX_PIECES {
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
        let rx = XdpRx::new(fill, rx, rx_frames, max_frame_bytes).ok_or(LayoutError)?;
        let tx = XdpTx::new(tx, completion, tx_frames, (max_frame_bytes, max_pieces), doorbell).ok_or(LayoutError)?;
        Ok(XdpDevice { mac, checksums, rx, tx })
    }

    /// Its two halves.
    pub fn into_halves(self) -> (XdpRx, XdpTx<B>) {
        (self.rx, self.tx)
    }

    /// What the other side has done wrong, after which nothing is received nor sent.
    pub fn error(&self) -> Option<Violation> {
        self.rx.error().or(self.tx.error())
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
        self.tx.put_figures(figures);
    }
}
