use crate::NetworkFigures;

/// The largest Ethernet frame that a device carries without segmentation offload: header and a 1,500-byte payload.
pub const MAX_FRAME_BYTES: usize = 14 + 1500;

/// The smallest that a link's largest frame may be: header and a packet that every host takes (RFC 791 §3.1).
pub const MIN_FRAME_BYTES: usize = 14 + 576;

/// How far the senders on a link have computed TCP's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// All the way: frames come over a wire.
    Complete,
    /// Perhaps not: frames come out of this machine's memory, and a kernel leaves the work to the card, which is none
    /// here. The field then holds the sum of the pseudo-header alone.
    Partial,
}

/// An Ethernet device: two independent rings of frame buffers.
///
/// The two halves can be borrowed together, because a stack answers a frame while it still reads it. The trait suits a
/// device with interrupts (virtio) as well as rings that the guest polls with one blocking call to the host (AF_XDP):
/// notification happens once a turn in [`FrameTx::flush`], and sleeping is the platform's business, not the device's.
pub trait FrameDevice {
    /// The receiving half, borrowed.
    type Rx<'a>: FrameRx
    where
        Self: 'a;
    /// The sending half, borrowed.
    type Tx<'a>: FrameTx
    where
        Self: 'a;

    /// The station's Ethernet address.
    fn mac(&self) -> [u8; 6];
    /// What the checksums of received frames are worth.
    fn checksums(&self) -> Checksums {
        Checksums::Complete
    }
    /// The largest frame that leaves and arrives as it is: more than [`MAX_FRAME_BYTES`] on a link whose other end is known
    /// to take that, less on one whose packets are smaller, and [`MIN_FRAME_BYTES`] at least.
    fn max_frame_bytes(&self) -> usize {
        MAX_FRAME_BYTES
    }
    /// Borrows both halves at once.
    fn split(&mut self) -> (Self::Rx<'_>, Self::Tx<'_>);
    /// Fills in what it knows of itself: nothing, where it counts nothing.
    fn put_figures(&self, _figures: &mut NetworkFigures) {}
}

/// The largest frame with segmentation offload: what an IPv4 packet has room for (RFC 791 §3.1), and its header.
pub const MAX_LARGE_FRAME_BYTES: usize = 14 + 65_535;

/// A frame that has arrived. It stands in memory that the device shares: its bytes are to be read once and checked as they
/// are read.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The frame, or its beginning, with all of its headers.
    pub head: &'a [u8],
    /// The rest of a frame that the device has merged of several segments.
    pub rest: &'a [&'a [u8]],
    /// Whether the device vouches for the checksum of what the packet carries.
    pub is_checked: bool,
}

impl<'a> From<&'a [u8]> for Received<'a> {
    /// A frame as it came from the link.
    fn from(head: &'a [u8]) -> Received<'a> {
        Received { head, rest: &[], is_checked: false }
    }
}

/// What a device does by itself with what it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// It completes checksums.
    pub checksum: bool,
    /// The largest frame that it divides into segments, with headers; 0 if it divides none.
    pub large_frame_bytes: usize,
}

/// The internet protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Internet {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What a device is to do with a frame before it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the frame carries.
    pub internet: Internet,
    /// Where the bytes begin that the checksum covers.
    pub checksum_start: u16,
    /// Where it goes, counted from there. The sum of the pseudo-header stands there already.
    pub checksum_offset: u16,
    /// Length of all headers, which each segment gets.
    pub header_bytes: u16,
    /// Bytes of data in each segment; 0 if the frame is to leave as it is.
    pub segment_bytes: u16,
}

/// The receiving half of a [`FrameDevice`].
pub trait FrameRx {
    /// Whether [`receive`](Self::receive) has a frame to give.
    fn ready(&mut self) -> bool;
    /// Lends the oldest frame to `consume` and gives its buffers back to the device afterwards.
    ///
    /// Returns `None`, without calling `consume`, when nothing has arrived.
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R>;
}

impl<T: FrameRx> FrameRx for &mut T {
    #[inline]
    fn ready(&mut self) -> bool {
        T::ready(self)
    }

    #[inline]
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        T::receive(self, consume)
    }
}

/// The sending half of a [`FrameDevice`].
pub trait FrameTx {
    /// Whether there is room for the largest frame.
    fn ready(&mut self) -> bool;
    /// Lends a buffer of `len` bytes (at most [`MAX_FRAME_BYTES`]) to `fill` and queues what it wrote.
    ///
    /// Returns `None`, without calling `fill`, when every buffer is in flight or `len` is too large.
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R>;
    /// What it does by itself.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    /// Bytes of the largest frame that [`transmit_offloaded`](Self::transmit_offloaded) takes now; 0 if it takes none.
    fn room_bytes(&mut self) -> usize {
        if self.ready() { MAX_FRAME_BYTES } else { 0 }
    }
    /// Like [`transmit`](Self::transmit), for a frame that the device completes as its [`offloads`](Self::offloads)
    /// promise. The frame may lie in several pieces: `fill` is called for each, with its place in the frame; all headers
    /// are in the first one. Returns whether there was room for it.
    fn transmit_offloaded(&mut self, _len: usize, _task: Completion, _fill: impl FnMut(usize, &mut [u8])) -> bool {
        false
    }
    /// Tells the device of all frames queued since the last call, with at most one notification.
    fn flush(&mut self);
}

impl<T: FrameTx> FrameTx for &mut T {
    #[inline]
    fn ready(&mut self) -> bool {
        T::ready(self)
    }

    #[inline]
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        T::transmit(self, len, fill)
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        T::offloads(self)
    }

    #[inline]
    fn room_bytes(&mut self) -> usize {
        T::room_bytes(self)
    }

    #[inline]
    fn transmit_offloaded(&mut self, len: usize, task: Completion, fill: impl FnMut(usize, &mut [u8])) -> bool {
        T::transmit_offloaded(self, len, task, fill)
    }

    #[inline]
    fn flush(&mut self) {
        T::flush(self);
    }
}
