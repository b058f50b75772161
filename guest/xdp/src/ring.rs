//! One ring: a producer's and a consumer's index, and the entries between them (Linux, `Documentation/networking/
//! af_xdp.rst`). Indices run through all 32 bits and are masked where an entry is looked up.

use crate::SharedMemory;
use core::{
    fmt,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

/// The kernel asks to be told of new entries (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// Bytes of an entry that is an address: fill and completion ring.
pub(crate) const ADDRESS_BYTES: usize = 8;
/// Bytes of an entry that is a `struct xdp_desc`: receive and transmit ring.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// Options of a descriptor: the frame goes on with the next one (`XDP_PKT_CONTD`) ...
pub(crate) const CONTINUES: u32 = 1 << 0;
/// ... and what the kernel is to do with it stands before it (`XDP_TX_METADATA`).
pub(crate) const HAS_METADATA: u32 = 1 << 1;

/// The most entries of a ring that is accepted.
pub(crate) const MAX_ENTRIES: u32 = 1 << 16;

/// Where the parts of a ring lie in its memory, in bytes, as `XDP_MMAP_OFFSETS` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingLayout {
    /// The producer's index.
    pub producer: u32,
    /// The consumer's index.
    pub consumer: u32,
    /// The flags.
    pub flags: u32,
    /// The first entry.
    pub entries_at: u32,
    /// How many entries there are: a power of two.
    pub entries: u32,
}

/// A ring does not lie in its memory as it was said to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutError;

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a ring or the frames do not fit into their memory")
    }
}

impl core::error::Error for LayoutError {}

/// What the other side has done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An index says that there is more in a ring than fits.
    Index,
    /// A frame was handed over that the other side has not had, or that lies nowhere.
    Frame(u64),
    /// A frame is longer than its place.
    Length(u32),
    /// A frame has no end, or more pieces than the largest has.
    Pieces,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Index => f.write_str("a ring's index is out of bounds"),
            Violation::Frame(address) => write!(f, "the frame at {address:#x} is not the kernel's to give"),
            Violation::Length(len) => write!(f, "a frame of {len} bytes is larger than its place"),
            Violation::Pieces => f.write_str("a frame has no end"),
        }
    }
}

/// A ring in memory.
#[derive(Debug)]
pub struct Ring {
    memory: SharedMemory,
    layout: RingLayout,
    /// This side's index, which may be ahead of what the other side has been told.
    own: u32,
    /// The other side's index as it was last read.
    other: u32,
}

/// The four rings of a socket.
#[derive(Debug)]
pub struct Rings {
    /// Frames that may be written: to the kernel.
    pub fill: Ring,
    /// Frames that were sent: from the kernel.
    pub completion: Ring,
    /// Frames that have arrived: from the kernel.
    pub rx: Ring,
    /// Frames to send: to the kernel.
    pub tx: Ring,
}

impl Ring {
    /// A ring of addresses: fill or completion.
    pub fn of_addresses(memory: SharedMemory, layout: RingLayout) -> Result<Ring, LayoutError> {
        Ring::new(memory, layout, ADDRESS_BYTES)
    }

    /// A ring of descriptors: receive or transmit.
    pub fn of_descriptors(memory: SharedMemory, layout: RingLayout) -> Result<Ring, LayoutError> {
        Ring::new(memory, layout, DESCRIPTOR_BYTES)
    }

    fn new(memory: SharedMemory, layout: RingLayout, entry_bytes: usize) -> Result<Ring, LayoutError> {
        let RingLayout { producer, consumer, flags, entries_at, entries } = layout;
        let has_fields = [producer, consumer, flags].iter().all(|&at| memory.has_field(at as usize, 4));
        let has_entries = entries.is_power_of_two()
            && entries <= MAX_ENTRIES
            && memory.has_field(entries_at as usize, 8)
            && entries_at as usize + entries as usize * entry_bytes <= memory.len();
        if has_fields && has_entries { Ok(Ring { memory, layout, own: 0, other: 0 }) } else { Err(LayoutError) }
    }

    /// How many entries it has.
    pub(crate) fn entries(&self) -> u32 {
        self.layout.entries
    }

    #[inline]
    fn entry_at(&self, index: u32, entry_bytes: usize) -> usize {
        self.layout.entries_at as usize + (index & (self.layout.entries - 1)) as usize * entry_bytes
    }

    /// For a ring that this side consumes: how many entries wait. The index is read again only when all that were known
    /// of are taken.
    #[inline]
    pub(crate) fn waiting(&mut self) -> Result<u32, Violation> {
        if self.other == self.own {
            self.other = self.memory.u32(self.layout.producer as usize).load(Acquire);
        }
        let waiting = self.other.wrapping_sub(self.own);
        if waiting > self.layout.entries {
            // Read anew the next time, if there is one.
            self.other = self.own;
            return Err(Violation::Index);
        }
        Ok(waiting)
    }

    /// Takes an address that waits.
    #[inline]
    pub(crate) fn take_address(&mut self) -> u64 {
        let address = self.memory.u64(self.entry_at(self.own, ADDRESS_BYTES)).load(Relaxed);
        self.own = self.own.wrapping_add(1);
        address
    }

    /// Takes a descriptor that waits: address, length and options.
    #[inline]
    pub(crate) fn take_descriptor(&mut self) -> (u64, u32, u32) {
        let at = self.entry_at(self.own, DESCRIPTOR_BYTES);
        let (address, rest) = (self.memory.u64(at).load(Relaxed), self.memory.u64(at + 8).load(Relaxed));
        self.own = self.own.wrapping_add(1);
        // Length, then options, in the machine's byte order, which is little-endian.
        (address, rest as u32, (rest >> 32) as u32)
    }

    /// Lets the other side use the places of the entries that were taken.
    #[inline]
    pub(crate) fn release(&self) {
        self.memory.u32(self.layout.consumer as usize).store(self.own, Release);
    }

    /// Adds an address. That there is room the caller knows: it has no more frames than the ring has entries.
    #[inline]
    pub(crate) fn put_address(&mut self, address: u64) {
        self.memory.u64(self.entry_at(self.own, ADDRESS_BYTES)).store(address, Relaxed);
        self.own = self.own.wrapping_add(1);
    }

    /// Adds a descriptor, for which there is room as in [`put_address`](Self::put_address).
    #[inline]
    pub(crate) fn put_descriptor(&mut self, address: u64, len: u32, options: u32) {
        let at = self.entry_at(self.own, DESCRIPTOR_BYTES);
        self.memory.u64(at).store(address, Relaxed);
        self.memory.u64(at + 8).store(u64::from(options) << 32 | u64::from(len), Relaxed);
        self.own = self.own.wrapping_add(1);
    }

    /// Tells the other side of the entries that were added. Returns whether there are any that it did not know.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.other == self.own {
            return false;
        }
        self.memory.u32(self.layout.producer as usize).store(self.own, Release);
        // For a ring that this side fills, what it has told.
        self.other = self.own;
        true
    }

    /// The other side's index: what it has taken of the entries that were added.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.memory.u32(self.layout.consumer as usize).load(Acquire)
    }

    /// How many entries may be added.
    pub(crate) fn room(&self) -> u32 {
        self.layout.entries.saturating_sub(self.own.wrapping_sub(self.taken()))
    }

    /// Lets the other side use the places of the entries before this index, instead of [all](Self::release) that were taken.
    pub(crate) fn release_before(&self, index: u32) {
        self.memory.u32(self.layout.consumer as usize).store(index, Release);
    }

    /// Asks the other side to tell of each entry that it adds.
    pub(crate) fn ask_for_wakeups(&self) {
        self.memory.u32(self.layout.flags as usize).store(NEED_WAKEUP, Relaxed);
    }

    /// Whether the kernel has not taken all entries yet.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.taken() != self.other
    }

    /// Whether the kernel wants to be told of new entries.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.memory.u32(self.layout.flags as usize).load(Relaxed) & NEED_WAKEUP != 0
    }
}
