//! A sans-I/O HTTP/1.1 origin server (RFC 9110, 9111, 9112) for a site that was packed ahead.
//!
//! It is driven in turns, as the store's engine is:
//!
//! ```text
//! wait until a socket is readable or writable, or server.next_deadline_ns()
//! server.begin_turn(now, pages)
//! for each new connection:     server.connect(remote, local)  -> ConnectionId, or a refusal to send
//! for each readable connection: server.receive(id, bytes, pages)
//! for each connection that is gone: server.disconnect(id)
//! server.end_turn()
//! while let Some(id) = server.next_ready():
//!     send server.output(id), report server.sent(id, n, pages), then obey server.fate(id)
//! ```
//!
//! Bodies are lent from the [`Site`]'s memory; a connection holds a few KiB at most however large they are. Those of a site
//! on a disk are read piece by piece ([`Server::take_from_disk`], [`Server::read_from_disk`]). What is not in the site
//! comes from [`Pages`], which whoever drives the server implements. The crate knows no socket, no file and
//! no store.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod body;
mod conditions;
mod date;
mod disk;
mod encoding;
mod heads;
mod log_line;
mod output;
mod pages;
mod path;
mod range;
mod request;
mod respond;
mod server;
pub mod site;
mod status;

pub use disk::{OpenError, open as open_site_disk};
pub use pages::{Delivery, NoPages, Page, PageRequest, Pages, Stable};
pub use server::{AccessLog, ConnectionId, Fate, Limits, Refusal, Server, Stats};
pub use site::{Site, SiteError};

/// Bytes that are shared: a site's image, or a page made for one request.
pub type Bytes = alloc::sync::Arc<dyn AsRef<[u8]> + Send + Sync>;
