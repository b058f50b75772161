//! TCP/IP over any [`FrameDevice`](kayvee_platform::FrameDevice).
//!
//! A [`Stack`] answers ARP, neighbor discovery and ICMP echo, gets its addresses by DHCP, from routers' announcements or
//! from its operator, serves TCP connections to the ports that it listens on, and opens others, over IPv4 and IPv6. It
//! never blocks, reads a clock or allocates without bound: time is an argument, and [`Limits`] say how many connections
//! there may be and what their buffers may take.
//!
//! TCP is an engine of its own (`tcp`): one connection is a state machine that does no I/O, found by its addresses in a
//! keyed hash table, with its deadline on a timing wheel and its buffers in blocks of a bounded pool. The work of a turn
//! grows with the frames that arrived, not with the connections that are open, and a connection without bytes in its
//! buffers costs a few hundred. `smoltcp` answers ARP and IPv4 echoes and does DHCP; IPv6 (`ipv6`) is our own. Nothing of
//! `smoltcp` shows in the interface.
//!
//! # Driving it
//!
//! Each turn of the event loop takes what has arrived, lets the application act on it, and sends what came of that:
//!
//! ```
//! # use kayvee_net::{Event, Stack};
//! # use kayvee_platform::FrameDevice;
//! /// Sends every byte back where it came from.
//! fn echo_turn(stack: &mut Stack, device: &mut impl FrameDevice, now_ns: u64) {
//!     stack.poll(device, now_ns);
//!     while let Some(event) = stack.next_event() {
//!         match event {
//!             Event::AddressAcquired(lease) => log::info!("address {}/{}", lease.address, lease.prefix_bits),
//!             Event::Address6Acquired { address, prefix_bits } => log::info!("address {address}/{prefix_bits}"),
//!             Event::Address6Lost(address) => log::warn!("{address} is lost"),
//!             Event::AddressLost => log::warn!("the address is lost"),
//!             // Here a store asks its engine: `connect` gives a client, or a refusal to `send` before `close`.
//!             Event::Accepted { connection, remote, .. } => log::debug!("{connection:?} from {remote}"),
//!             Event::Readable(connection) => loop {
//!                 // Borrowed from the receive buffer: one run of bytes at a time, more where they lie apart.
//!                 let bytes = stack.readable(connection).to_vec();
//!                 if bytes.is_empty() {
//!                     break;
//!                 }
//!                 // A short count means a full send buffer: `Writable` follows when there is room again.
//!                 let sent = stack.send(connection, &bytes);
//!                 stack.consume(connection, sent);
//!                 if sent < bytes.len() {
//!                     break;
//!                 }
//!             },
//!             Event::Writable(_connection) => { /* send what did not fit before */ }
//!             // The peer will send no more, and everything that it sent has been read. Replies can still leave.
//!             Event::EndOfStream(connection) => stack.close(connection, now_ns),
//!             // Reset or timed out: the connection is forgotten and its id may be given out again.
//!             Event::Closed(_connection) => {}
//!         }
//!     }
//!     stack.flush(device, now_ns);
//!     // Now sleep until a frame arrives or `stack.next_deadline_ns()`, whichever comes first.
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod checksum;
mod complete;
mod control;
mod cookies;
mod ends;
mod flows;
mod frame;
mod icmp;
mod ipv6;
mod limits;
mod neighbors;
mod phy;
mod pool;
mod rate;
mod secrets;
mod slab;
mod stack;
mod tcp;
mod wheel;

pub use complete::complete_checksum;
pub use kayvee_platform::{Addressing, Addressing6, NetworkFigures};
pub use limits::Limits;
pub use stack::{Config, ConfigError, ConnectionId, Event, Lease, Stack, Take};
