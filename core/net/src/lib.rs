//! To be written.
#![no_std]
#![forbid(unsafe_code)]
