use crate::NetworkFigures;

/// The largest Ethernet frame that a device carries without segmentation offload: header and a 1,500-byte payload.
pub const MAX_FRAME_BYTES: usize = 14 + 1500;

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
    /// The receiving half.
    type Rx: FrameRx;
    /// The sending half.
    type Tx: FrameTx;

    /// The station's Ethernet address.
    fn mac(&self) -> [u8; 6];
    /// What the checksums of received frames are worth.
    fn checksums(&self) -> Checksums {
        Checksums::Complete
    }
    /// Borrows both halves at once.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);
    /// Fills in what it knows of itself: nothing, where it counts nothing.
    fn put_figures(&self, _figures: &mut NetworkFigures) {}
}

/// The receiving half of a [`FrameDevice`].
pub trait FrameRx {
    /// Whether [`receive`](Self::receive) has a frame to give.
    fn ready(&mut self) -> bool;
    /// Lends the oldest frame to `consume` and gives its buffer back to the device afterwards. The bytes stand in
    /// memory that the device shares: they are to be read once and checked as they are read.
    ///
    /// Returns `None`, without calling `consume`, when nothing has arrived.
    fn receive<R>(&mut self, consume: impl FnOnce(&[u8]) -> R) -> Option<R>;
}

/// The sending half of a [`FrameDevice`].
pub trait FrameTx {
    /// Whether [`transmit`](Self::transmit) has a free buffer.
    fn ready(&mut self) -> bool;
    /// Lends a buffer of `len` bytes (at most [`MAX_FRAME_BYTES`]) to `fill` and queues what it wrote.
    ///
    /// Returns `None`, without calling `fill`, when every buffer is in flight or `len` is too large.
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R>;
    /// Tells the device of all frames queued since the last call, with at most one notification.
    fn flush(&mut self);
}
