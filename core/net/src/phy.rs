//! Frames between a [`FrameDevice`](kayvee_platform::FrameDevice) and `smoltcp`, one at a time.

use kayvee_platform::{FrameTx, MAX_FRAME_BYTES};
use smoltcp::{
    phy::{self, Checksum, Device, DeviceCapabilities, Medium},
    time::Instant,
};

/// `smoltcp`'s device for the handling of one received frame, or of none, with replies going straight to the device.
pub(crate) struct FrameIo<'a, T> {
    pub received: Option<&'a [u8]>,
    pub tx: &'a mut T,
}

impl<T: FrameTx> Device for FrameIo<'_, T> {
    type RxToken<'b>
        = RxToken<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = TxToken<'b, T>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_, T>)> {
        let frame = self.received.take()?;
        Some((RxToken(frame), TxToken(self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_, T>> {
        self.tx.ready().then_some(TxToken(self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// What `smoltcp` has to know of every device here.
pub(crate) fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ethernet;
    capabilities.max_transmission_unit = MAX_FRAME_BYTES;
    // Of what arrives it has been looked at, as a sender may have left it to a card.
    capabilities.checksum.udp = Checksum::Tx;
    capabilities
}

pub(crate) struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(crate) struct TxToken<'a, T>(&'a mut T);

impl<T: FrameTx> phy::TxToken for TxToken<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut fill = Some(f);
        let sent = self.0.transmit(len, |buffer| fill.take().map(|f| f(buffer)));
        match (sent.flatten(), fill) {
            (Some(result), _) => result,
            // The device was ready and yet took nothing. A network may lose frames, so this one is lost.
            (None, Some(f)) => f(&mut [0; MAX_FRAME_BYTES][..len]),
            (None, None) => unreachable!("the device called `fill` and returned nothing"),
        }
    }
}
