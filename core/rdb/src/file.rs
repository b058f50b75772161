//! Whole dump files.
//!
//! ```text
//! file     = "REDIS" | version (4 digits) | part … | 0xff | CRC-64 of all before (8 bytes, little-endian; since version 5)
//! 0xfa     name, text                              about the file
//! 0xfe     number                                  the database of the entries that follow
//! 0xfb     number, number                          how many keys it has, and how many of them expire
//! 0xf4     number, number, number                  a slot of a cluster, its keys, and how many of them expire (Redis 7.4)
//! 0xf5     text                                    a library of functions
//! 0xf7     module, number, number, module's data   what a module keeps beside the keys
//! entry    = [0xfc milliseconds (8) | 0xfd seconds (4)] [0xf8 idle seconds | 0xf9 frequency (1)] type (1), key, value
//! ```
//!
//! Times are since 1970 and little-endian, the rest are lengths and strings as [`Reader`] has them. Nothing here does I/O:
//! [`FileReader`] is given bytes and says how many more it needs, and [`FileWriter`] gives bytes away as they come.
//!
//! [`Reader`]: crate::Reader

mod read;
mod write;

pub use read::{Entry, Fault, FileReader, Item, Step, is_dump, module_name};
pub use write::FileWriter;

const MAGIC: &[u8; 5] = b"REDIS";
/// Bytes of the magic and the version.
const HEAD: usize = 9;
const CHECKSUM_SINCE: u16 = 5;

const SLOT_SIZES: u8 = 0xf4;
const FUNCTION: u8 = 0xf5;
const OLD_FUNCTION: u8 = 0xf6;
const MODULE_AUX: u8 = 0xf7;
const IDLE: u8 = 0xf8;
const FREQUENCY: u8 = 0xf9;
const AUX: u8 = 0xfa;
const SIZES: u8 = 0xfb;
const EXPIRY_MS: u8 = 0xfc;
const EXPIRY_S: u8 = 0xfd;
const DATABASE: u8 = 0xfe;
const END: u8 = 0xff;

/// How much a key was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// Nothing is said of it.
    #[default]
    Unknown,
    /// It was not used for so many seconds.
    IdleSeconds(u64),
    /// How often it is used, on Redis' logarithmic scale.
    Frequency(u8),
}
