//! Values in the format of Redis' dump files, as `DUMP` and `RESTORE` carry them.
//!
//! ```text
//! payload = type (1 byte) | value | version (2 bytes, little-endian) | CRC-64 of all before (8 bytes, little-endian)
//! ```
//!
//! Pure functions over bytes: no I/O, and no knowledge of how a store keeps its values. What is read is a stranger's: every
//! length, offset and count is an allegation, nothing is allocated because of one alone, and what is wrong is [`Corrupt`].
//!
//! [`Corrupt`]: Error::Corrupt
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod digits;
pub mod file;
mod intset;
mod listpack;
mod lzf;
mod object;
mod reader;
pub mod stream;
mod writer;
mod ziplist;

pub use listpack::{Entry, Listpack};
pub use object::{Elements, Object, Score, Scored, read, read_as};
pub use reader::{Reader, Text};
pub use writer::{Checksum, Compression, Writer};

use crc::{CRC_64_REDIS, Crc, Table};

/// The newest version of the format that is read: that of Redis 7.4.
pub const VERSION: u16 = 12;
/// Whose forms of values are written. What is older is read by every newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// Version 10 of the format, which has no packed sets, and of streams' consumers not when they were last active.
    Redis70,
    /// Version 11, which has no hashes of whose fields some expire.
    Redis72,
    /// Version 12.
    Redis74,
}

impl Dialect {
    /// The version of the format.
    pub fn version(self) -> u16 {
        match self {
            Dialect::Redis70 => 10,
            Dialect::Redis72 => 11,
            Dialect::Redis74 => VERSION,
        }
    }
}

/// Bytes behind the value.
pub const FOOTER: usize = 10;

/// What a value's first byte says it is.
#[allow(missing_docs)]
pub mod kind {
    pub const STRING: u8 = 0;
    pub const LIST: u8 = 1;
    pub const SET: u8 = 2;
    pub const ZSET: u8 = 3;
    pub const HASH: u8 = 4;
    pub const ZSET_2: u8 = 5;
    /// A module's, in a form that only the module can pass by.
    pub const MODULE: u8 = 6;
    pub const MODULE_2: u8 = 7;
    pub const HASH_ZIPMAP: u8 = 9;
    pub const LIST_ZIPLIST: u8 = 10;
    pub const SET_INTSET: u8 = 11;
    pub const ZSET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    pub const LIST_QUICKLIST: u8 = 14;
    pub const STREAM_LISTPACKS: u8 = 15;
    pub const HASH_LISTPACK: u8 = 16;
    pub const ZSET_LISTPACK: u8 = 17;
    pub const LIST_QUICKLIST_2: u8 = 18;
    pub const STREAM_LISTPACKS_2: u8 = 19;
    pub const SET_LISTPACK: u8 = 20;
    pub const STREAM_LISTPACKS_3: u8 = 21;
    /// A hash of whose fields some expire.
    pub const HASH_EXPIRING: u8 = 24;
    pub const HASH_EXPIRING_LISTPACK: u8 = 25;
}

/// Why a value could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not what they claim to be.
    Corrupt,
    /// They end before what they claim to be does.
    Short {
        /// How many more there have to be, at least.
        missing: u64,
    },
    /// There was no memory for what they hold.
    OutOfMemory,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Error::Corrupt => "the bytes are not a value of the format",
            Error::Short { .. } => "the bytes end too early",
            Error::OutOfMemory => "out of memory",
        })
    }
}

impl core::error::Error for Error {}

impl From<alloc::collections::TryReserveError> for Error {
    fn from(_: alloc::collections::TryReserveError) -> Error {
        Error::OutOfMemory
    }
}

static CRC: Crc<u64, Table<1>> = Crc::<u64, Table<1>>::new(&CRC_64_REDIS);

/// The checksum of bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    CRC.checksum(bytes)
}

/// The type and value in a payload whose version and checksum are right, the latter if it is looked at.
pub fn open(payload: &[u8], check: Checksum) -> Option<&[u8]> {
    let (value, footer) = payload.split_last_chunk::<FOOTER>()?;
    let [low, high, sum @ ..] = *footer;
    let checked = &payload[..value.len() + 2];
    let is_right = || check == Checksum::Off || u64::from_le_bytes(sum) == checksum(checked);
    (u16::from_le_bytes([low, high]) <= VERSION && is_right()).then_some(value)
}

#[cfg(test)]
mod tests;
