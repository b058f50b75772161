//! The persistent log: what was recorded and is durable is there again after a loss of power at any instant.
//!
//! It lies on a [`BlockDevice`](kayvee_platform::BlockDevice) with no file system between. A record is built in place, in
//! the buffer that the device reads. The log is a state machine: it never waits for the device but at opening and closing;
//! [`Log::drive`] hands over what is due and takes what has finished.
//!
//! It knows nothing of commands: a record is bytes with a [`Kind`]. It depends on `kayvee-platform` alone.
//! `docs/log-format.md` says what lies on the disk and what recovery decides.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod append;
mod compaction;
mod drive;
mod error;
mod format;
mod open;
mod reader;
mod recovery;
mod space;

pub use append::{Log, RecordWriter, Sequence};
pub use compaction::CompactionStage;
pub use drive::{Counters, FlushPolicy};
pub use error::{FormatError, LogError, OpenError, RecordError, Work};
pub use format::{BLOCK_BYTES, FORMAT_VERSION, Kind, RECORD_HEADER_BYTES, SEGMENTS_AT};
pub use open::{Opened, minimum_bytes};
pub use reader::READ_AHEAD_BYTES;
pub use recovery::{Contents, Progress, Visit, check, identify};
