//! RESP2 and RESP3: an incremental parser of requests and a writer of replies.
//!
//! Pure functions over bytes; no I/O, no clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod parser;
mod words;
mod writer;

pub use parser::{INLINE_LIMIT_BYTES, Limits, Parser, Places, Progress, ProtocolError, Request, first_arguments};
pub use words::{UnbalancedQuotes, quoted, split_words};
pub use writer::{Protocol, Writer, bulk_strings, encode};
