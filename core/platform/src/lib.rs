//! The contract between Kayvee's core and whatever it runs on.
//!
//! The core never reads a clock, draws a random number or touches a device by itself: each of them is an argument, so
//! that a whole server runs in a test under a simulated clock, wire and disk. This crate holds those arguments' types,
//! and the decimal form of integers and the calendar, which every layer needs; it depends on no other crate.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod block;
mod calendar;
mod decimal;
mod figures;
mod file;
mod frame;
mod heap;
mod monitor;
mod network;
mod time;
mod trouble;

pub use address::{Addressing, Addressing6};
pub use block::{
    BlockBuffer, BlockDevice, BlockError, Finished, Geometry, Operation, Transfer, transfer_alone, wait_for_transfer,
};
pub use calendar::{Civil, DAY_SECONDS, LAST_SECOND, civil};
pub use decimal::{DECIMAL_BYTES, Decimal, put_decimal};
pub use figures::FigureKind;
pub use file::{Finishing, LogFile, ReadFile, WriteFile};
pub use frame::{
    Checksums, Completion, FrameDevice, FrameRx, FrameTx, Internet, MAX_FRAME_BYTES, MAX_LARGE_FRAME_BYTES,
    MIN_FRAME_BYTES, Offloads, Received,
};
pub use heap::Heap;
pub use monitor::{MONITOR_PAGE_MAGIC, MonitorFigures};
pub use network::NetworkFigures;
pub use time::{Clock, Now, ProcessorTime, earliest};
pub use trouble::Trouble;

/// A source of random bytes that an outsider cannot predict.
pub trait Entropy {
    /// Fills `bytes` with random data.
    fn fill(&mut self, bytes: &mut [u8]);
}
