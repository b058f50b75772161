//! The sans-IO engine of the store: bytes in, bytes out, next deadline.
//!
//! A target owns the sockets, the clock and the devices. It drives one [`Engine`] in turns:
//!
//! ```text
//! wait until a socket is readable or writable, or engine.next_deadline_ns()
//! engine.begin_turn(clock.now())
//! for each new connection:     engine.connect(peer)            -> ClientId, or a refusal to send
//! for each readable client:    engine.receive(client, bytes)
//! for each connection that is gone: engine.disconnect(client)
//! engine.end_turn()            -> a slice of background work
//! while let Some(dial) = engine.next_dial(): connect, and say engine.dialed(&dial, peer) or engine.dial_failed(&dial, why)
//! engine.drive_log(device)     -> if there is a disk; its wake-ups begin a turn as well
//! while let Some(client) = engine.next_ready():
//!     send engine.output(client) and report engine.sent(client, n) until there is no more or no room for it,
//!     then obey engine.fate(client)
//! ```
//!
//! Replies leave only after `end_turn` and, with `appendfsync always`, when what they tell is on stable storage. The engine never blocks and
//! never knows what carries its bytes. It depends on the command families and the keyspace, never on `kayvee-net`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod boot;
mod datagrams;
mod engine;
mod files;
mod held;
mod web;

pub use engine::{ClientId, Dial, Engine, Fate, Peer, Refusal, Shutdown};
pub use files::Dialect;
pub use kayvee_commands::options::{OptionError, Options, REDIS_SAVE_POINTS, ShutdownOn};
pub use kayvee_commands::{CutOff, Environment, Error, Host, Loaded, LogError, NoHost, Progress, Store};
pub use web::Web;
