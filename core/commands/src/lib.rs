//! The command table as data, and one file per command family.
//!
//! A command is a row of the [`table`] and a function from a [`Context`] and a request to a reply or an [`Error`]. The
//! functions know the data, the options and the sessions of all clients; they know nothing of connections, sockets or
//! clocks.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod acl;
mod ahead;
mod args;
mod arguments;
mod blocking;
mod context;
pub mod documentation;
mod durable;
mod effects;
mod error;
mod events;
mod eviction;
mod execute;
mod expiry;
pub mod options;
mod output;
mod per_key;
mod persistence;
mod plain;
mod session;
mod store;
pub mod table;

pub use blocking::{OnTimeout, Patience, timeout_ms, timeout_ns};
pub use client::ClientType;
pub use context::{Context, Origin};
pub use durable::LogError;
pub use error::{Error, Outcome};
pub use events::EventClass;
pub use glob::matches as glob_matches;
pub use kayvee_log::Sequence;
pub use output::Output;
pub use persistence::{CutOff, Expired, Input, Loaded, Progress, Saves};
use replication::History;
pub use replication::{Dial, ShowsExpired};
pub use session::{ClientRef, Close, Pending, ReplyMode, Session};
pub use store::{Environment, Host, NoHost, Pause, Stats, Store};
pub use text::Text;
pub use web::{Metrics, Published};

mod bitmaps;
mod client;
mod cluster;
mod command_command;
mod connection;
mod debug;
mod digest;
mod double;
mod dump;
mod generic;
mod geo;
mod glob;
mod handover;
#[cfg(test)]
mod harness;
mod hashes;
mod hyperloglog;
mod info;
mod latency;
mod lists;
mod memory;
mod migrate;
mod modules;
mod observe;
mod order;
mod pubsub;
mod random;
mod replication;
mod scripting;
mod server;
mod sets;
mod shutdown;
mod slowlog;
mod sort;
mod streams;
mod strings;
mod text;
mod tracking;
mod transactions;
mod web;
mod zset;
