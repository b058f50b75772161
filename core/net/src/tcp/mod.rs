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
mod rack;
mod receive;
mod rtt;
mod scoreboard;
pub(crate) mod segment;
pub(crate) mod seq;
#[cfg(test)]
mod tests;

pub(crate) use connection::{Change, Connection, NEVER_NS, Origin, Owner, Resources, Setup, State};
pub(crate) use input::Verdict;

/// Data in an Ethernet frame: the largest segment of most peers, on links with larger frames as well. By it is counted what
/// is to be acknowledged, and how far a window opens.
pub(crate) const ETHERNET_SEGMENT_BYTES: u32 = 1460;
