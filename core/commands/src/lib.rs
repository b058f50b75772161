//! The command table as data, and one file per command family.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod options;
