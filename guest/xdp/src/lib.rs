//! An AF_XDP socket as a network card: four rings and the memory of the frames, all shared with the kernel.
//!
//! A guest finds them at the addresses that a [`Description`] names, a process where it has mapped them; what works
//! them is the same ([`XdpDevice`]). It makes no system call: frames arrive without one, and for those to be sent a
//! [`Doorbell`] is rung, once for all that a turn has queued, if the kernel asks for it.
//!
//! The other side may write into the shared memory whenever it likes. Every index and address is checked against what
//! this side knows, and who breaks the rules is not listened to any more ([`Violation`]).
#![no_std]

extern crate alloc;

mod description;
mod device;
#[cfg(test)]
mod fake;
mod memory;
mod relay;
mod ring;

pub use description::{DESCRIPTION_BYTES, Description, DescriptionError, RingPlace};
pub use device::{Doorbell, MAX_PIECES, METADATA_BYTES, Parts, REST, XdpDevice, XdpRx, XdpTx};
pub use memory::SharedMemory;
pub use relay::{Passing, Relay, Side, Work};
pub use ring::{LayoutError, Ring, RingLayout, Rings, Violation};
