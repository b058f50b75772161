//! The network card as the loop sees it: what carries frames, and lets the machine sleep until there is one.

use crate::{devices::AnyTransport, sys::rings::DoorbellPort};
use alloc::{boxed::Box, format, string::String};
use core::time::Duration;
use kayvee_platform::{Checksums, Completion, FrameDevice, FrameRx, FrameTx, NetworkFigures, Offloads, Received};
use kayvee_virtio::net::{NetDevice, NetRx, NetTx};
use kayvee_x86::clock::CLOCK;
use kayvee_xdp::{XdpDevice, XdpRx, XdpTx};

/// The machine's network card. One type for all kinds, so that the image has the loop and the network stack once: a
/// frame costs a branch for that, always the same one.
pub enum Card {
    /// A virtio device.
    Virtio(Box<NetDevice<AnyTransport>>),
    /// A socket of the host's whose rings are here.
    Xdp(Box<XdpDevice<DoorbellPort>>),
}

/// The receiving half of a [`Card`].
pub enum Rx<'a> {
    /// Of a virtio device.
    Virtio(&'a mut NetRx),
    /// Of a socket.
    Xdp(&'a mut XdpRx),
}

/// The sending half of a [`Card`].
pub enum Tx<'a> {
    /// Of a virtio device.
    Virtio(&'a mut NetTx),
    /// Of a socket.
    Xdp(&'a mut XdpTx<DoorbellPort>),
}

/// Does the same with either of [`Card`]'s, [`Rx`]'s or [`Tx`]'s.
macro_rules! either {
    ($kind:ident, $self:ident, $either:ident => $call:expr) => {
        match $self {
            $kind::Virtio($either) => $call,
            $kind::Xdp($either) => $call,
        }
    };
}

impl Card {
    /// What it has done wrong, after which it neither receives nor sends.
    pub fn error(&self) -> Option<String> {
        either!(Card, self, card => card.error().map(|error| format!("{error}")))
    }

    /// Whether it holds frames that are not sent yet.
    pub fn is_sending(&mut self) -> bool {
        either!(Card, self, card => card.is_sending())
    }

    /// Whether a thread of the host's carries its frames, which needs a processor for that.
    pub fn is_carried(&self) -> bool {
        matches!(self, Card::Virtio(_))
    }

    /// Lets the next frame end a sleep. To be followed by a look for frames that came before.
    pub fn enable_interrupts(&mut self) {
        match self {
            Card::Virtio(card) => card.enable_interrupts(),
            // The machine sleeps on the socket itself. What the kernel had no memory for is to be sent before that.
            Card::Xdp(card) => card.send_again(),
        }
    }

    /// Goes back to polling.
    pub fn disable_interrupts(&mut self) {
        if let Card::Virtio(card) = self {
            card.disable_interrupts();
        }
    }

    /// Has the frames of this turn sent by the machine's own thread, which then rests for so long, where there is a choice.
    pub fn set_rest(&mut self, rest: Option<Duration>) {
        if let Card::Xdp(card) = self {
            card.doorbell().set_rest(rest);
        }
    }
}

impl FrameDevice for Card {
    type Rx<'a>
        = Rx<'a>
    where
        Self: 'a;
    type Tx<'a>
        = Tx<'a>
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        either!(Card, self, card => card.mac())
    }

    fn checksums(&self) -> Checksums {
        either!(Card, self, card => card.checksums())
    }

    fn max_frame_bytes(&self) -> usize {
        either!(Card, self, card => card.max_frame_bytes())
    }

    #[inline]
    fn split(&mut self) -> (Rx<'_>, Tx<'_>) {
        match self {
            Card::Virtio(card) => {
                let (rx, tx) = card.split();
                (Rx::Virtio(rx), Tx::Virtio(tx))
            }
            Card::Xdp(card) => {
                let (rx, tx) = card.split();
                (Rx::Xdp(rx), Tx::Xdp(tx))
            }
        }
    }

    fn put_figures(&self, figures: &mut NetworkFigures) {
        (figures.notifying_ns, figures.cycles_hz) = (CLOCK.notifying_ns(), CLOCK.cycles_hz());
        either!(Card, self, card => card.put_figures(figures));
    }
}

impl FrameRx for Rx<'_> {
    #[inline]
    fn ready(&mut self) -> bool {
        either!(Rx, self, rx => rx.ready())
    }

    #[inline]
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        either!(Rx, self, rx => rx.receive(consume))
    }
}

impl FrameTx for Tx<'_> {
    #[inline]
    fn ready(&mut self) -> bool {
        either!(Tx, self, tx => tx.ready())
    }

    #[inline]
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        either!(Tx, self, tx => tx.transmit(len, fill))
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        either!(Tx, self, tx => tx.offloads())
    }

    #[inline]
    fn room_bytes(&mut self) -> usize {
        either!(Tx, self, tx => tx.room_bytes())
    }

    #[inline]
    fn transmit_offloaded(&mut self, len: usize, task: Completion, fill: impl FnMut(usize, &mut [u8])) -> bool {
        either!(Tx, self, tx => tx.transmit_offloaded(len, task, fill))
    }

    #[inline]
    fn flush(&mut self) {
        match self {
            // What it takes beyond the notification is next to nothing.
            Tx::Virtio(tx) if tx.is_behind() => CLOCK.count_notification(|| tx.flush()),
            Tx::Virtio(_) => {}
            Tx::Xdp(tx) => tx.flush(),
        }
    }
}
