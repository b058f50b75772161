//! The network card as the loop sees it: what carries frames, and lets the machine sleep until there is one.

use crate::{devices::AnyTransport, sys::rings::DoorbellPort};
use alloc::{format, string::String};
use core::time::Duration;
use kayvee_platform::FrameDevice;
use kayvee_virtio::net::NetDevice;
use kayvee_xdp::XdpDevice;

/// A card.
pub trait Card: FrameDevice {
    /// What it has done wrong, after which it neither receives nor sends.
    fn error(&self) -> Option<String>;
    /// Whether it holds frames that are not sent yet.
    fn is_sending(&mut self) -> bool;
    /// Lets the next frame end a sleep. To be followed by a look for frames that came before.
    fn enable_interrupts(&mut self);
    /// Goes back to polling.
    fn disable_interrupts(&mut self);
    /// Has the frames of this turn sent by the machine's own thread, which then rests for so long, where there is a choice.
    fn set_rest(&mut self, _rest: Option<Duration>) {}
}

impl Card for NetDevice<AnyTransport> {
    fn error(&self) -> Option<String> {
        NetDevice::error(self).map(|error| format!("{error}"))
    }

    fn is_sending(&mut self) -> bool {
        NetDevice::is_sending(self)
    }

    fn enable_interrupts(&mut self) {
        NetDevice::enable_interrupts(self);
    }

    fn disable_interrupts(&mut self) {
        NetDevice::disable_interrupts(self);
    }
}

impl Card for XdpDevice<DoorbellPort> {
    fn error(&self) -> Option<String> {
        XdpDevice::error(self).map(|error| format!("{error}"))
    }

    fn is_sending(&mut self) -> bool {
        XdpDevice::is_sending(self)
    }

    /// The machine sleeps on the socket itself. What the kernel had no memory for is to be sent before that.
    fn enable_interrupts(&mut self) {
        self.send_again();
    }

    fn set_rest(&mut self, rest: Option<Duration>) {
        self.doorbell().set_rest(rest);
    }

    fn disable_interrupts(&mut self) {}
}
