//! The numbers of the format.

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub const MAGIC: &[u8; 8] = b"KVSITE\x1a\n";
pub const VERSION: u32 = 1;
pub const HEADER_BYTES: usize = 64;
pub const ENTRY_BYTES: usize = 96;
pub const HOST_BYTES: usize = 8;
/// Bodies begin at a multiple of it.
pub const BODIES_ALIGNMENT: u64 = 64;
/// The offset of a variant that is not there.
pub const ABSENT: u64 = u64::MAX;
/// Bytes of a path: more than any request line has.
pub const MAX_PATH_BYTES: usize = 8 << 10;

/// The hash by which entries are ordered.
pub fn path_hash(root: u16, path: &[u8]) -> u64 {
    xxh3_64_with_seed(path, u64::from(root))
}
