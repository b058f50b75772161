//! A tap device of one guest's own: a link of two addresses between this host and the guest.

use crate::sys::{self, Frames};
use anyhow::{Context, Result};
use kayvee_link::Link;
use std::{fs::File, io};

/// `%d` becomes the first number that no other interface of this name has, so it also numbers the subnets without a lock.
const NAME: &str = "kayvee%d";

/// Packets that wait for the guest at most. With the kernel's 1,000, thousands of clients that send at once lose packets
/// before the guest has seen them, and wait seconds for their retransmission.
const QUEUE_PACKETS: u16 = 8192;

/// A tap device, which disappears when its last open end is closed: here and in QEMU.
pub struct Tap {
    /// The open end, for QEMU.
    pub end: File,
    /// The addresses.
    pub link: Link,
    /// Its name.
    pub name: String,
    /// The guest's Ethernet address.
    pub guest_mac: [u8; 6],
}

/// Why there is no tap.
pub enum TapError {
    /// This process may not make one.
    NotAllowed(io::Error),
    /// It may, but it went wrong.
    Failed(anyhow::Error),
}

impl Tap {
    /// Makes a tap and switches it on.
    pub fn create(frames: Frames) -> Result<Tap, TapError> {
        let (end, name) = sys::create_tap(NAME, frames).map_err(TapError::NotAllowed)?;
        let (link, guest_mac) =
            configure(&name).with_context(|| format!("setting up {name}")).map_err(TapError::Failed)?;
        Ok(Tap { end, link, name, guest_mac })
    }
}

fn configure(name: &str) -> Result<(Link, [u8; 6])> {
    let number: u32 = name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse()?;
    // QEMU's own prefix, locally administered.
    let [.., high, low] = number.to_be_bytes();
    let guest_mac = [0x52, 0x54, 0, 0x6b, high, low];
    kayvee_link::set_queue_len(name, QUEUE_PACKETS)?;
    Ok((kayvee_link::set_up(name, number, guest_mac)?, guest_mac))
}
