//! RESP2 and RESP3: an incremental parser of requests and a writer of replies.
//!
//! Pure functions over bytes; no I/O, no clock, no dependency.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod words;

pub use words::{UnbalancedQuotes, split_words};
