//! TCP (RFC 9293): one connection as a state machine that does no I/O.
//!
//! [`Connection::on_segment`] takes what arrives, [`Connection::on_timers`] what time brings, and
//! [`Connection::next_segment`] says what to send, one segment at a time. Time is an argument, buffers come from a
//! [`Pool`](crate::pool::Pool) that all connections share.

mod congestion;
mod connection;
mod input;
mod output;
mod probe;
mod receive;
mod rtt;
mod scoreboard;
pub(crate) mod segment;
pub(crate) mod seq;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Change, Connection, NEVER_NS, Origin, Owner, Resources, Setup, State};
pub(crate) use input::Verdict;

/// The largest segment that a peer sends: what an Ethernet frame has room for (RFC 6691 §2).
pub(crate) const OWN_SEGMENT_BYTES: u16 = 1460;
