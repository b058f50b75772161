//! Links between this host and a store that has a network address of its own: which subnet is free, how an interface gets
//! its address, and pairs of virtual Ethernet devices.
#![deny(unsafe_code)]

mod netlink;
mod setup;
mod subnet;
#[allow(unsafe_code)]
mod sys;
mod veth;

pub use setup::set_up;
pub use subnet::{Link, Link6, PREFIX_BITS};
pub use sys::{bring_up, hardware_address, interface_request, mtu, set_queue_len, switch_on};
pub use veth::{Namespace, VethPair};
