//! Links between this host and a store that has a network address of its own: which subnet is free, how an interface gets
//! its address, pairs of virtual Ethernet devices, connections that are redirected to the store, and what passes on them.
#![deny(unsafe_code)]

mod netlink;
mod redirect;
mod setup;
mod subnet;
#[allow(unsafe_code)]
mod sys;
mod veth;
mod watch;

pub use redirect::{Redirect, Rule};
pub use setup::set_up;
pub use subnet::{Link, Link6, PREFIX_BITS};
pub use sys::{bring_up, hardware_address, hear_groups, interface_request, is_bridge, mtu, set_queue_len, switch_on};
pub use veth::{Namespace, VethPair, create_port};
pub use watch::{Seen, Unfinished, Watch};
