//! The numbers of the format.

use super::{SiteError, u32_at, u64_at};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub const MAGIC: &[u8; 8] = b"KVSITE\x1a\n";
pub const VERSION: u32 = 2;
/// What the header takes, zeroes behind it included: a disk's largest block, so that all parts begin with a block.
pub const HEADER_BYTES: usize = 4096;
/// What of it says something; the last 8 bytes are the hash of the others.
pub const HEADER_USED_BYTES: usize = 64;
/// Bodies are checked, and read from a disk, in pieces of so much.
pub const CHUNK_BYTES: usize = 64 << 10;
pub const SUM_BYTES: usize = 8;
pub const ENTRY_BYTES: usize = 96;
pub const HOST_BYTES: usize = 8;
/// The index, and the image's end, lie at multiples of it.
pub const ALIGNMENT: u64 = HEADER_BYTES as u64;
/// The offset of a variant that is not there.
pub const ABSENT: u64 = u64::MAX;
/// Bytes of a path: more than any request line has.
pub const MAX_PATH_BYTES: usize = 8 << 10;
/// Bytes of an index: room for ten million pages.
const MAX_INDEX_BYTES: u64 = 2 << 30;

/// The hash by which entries are ordered.
pub fn path_hash(root: u16, path: &[u8]) -> u64 {
    xxh3_64_with_seed(path, u64::from(root))
}

/// A checked header: where everything is. Offsets beside `index_at` count from the index's beginning.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub(crate) entries: u32,
    pub(crate) hosts: u32,
    pub(crate) index_at: u64,
    pub(crate) image_bytes: u64,
    pub(crate) index_sum: u64,
    pub(crate) entries_at: usize,
    pub(crate) hosts_at: usize,
    pub(crate) strings_at: usize,
    /// The end of the strings. Zeroes follow to the image's end.
    pub(crate) index_end: usize,
}

impl Layout {
    /// Reads an image's first bytes.
    pub fn read(image: &[u8]) -> Result<Layout, SiteError> {
        let header = image.get(..HEADER_USED_BYTES).ok_or(SiteError::NotASite)?;
        if &header[..8] != MAGIC {
            return Err(SiteError::NotASite);
        }
        let version = u32_at(header, 8);
        if version != VERSION {
            return Err(SiteError::Version(version));
        }
        if xxh3_64(&header[..56]) != u64_at(header, 56) {
            return Err(SiteError::Checksum);
        }
        let (entries, hosts, strings_bytes) = (u32_at(header, 12), u32_at(header, 16), u32_at(header, 20));
        let (image_bytes, index_sum, index_at) = (u64_at(header, 24), u64_at(header, 32), u64_at(header, 40));
        let wrong = Err(SiteError::Malformed("header"));
        if index_at < HEADER_BYTES as u64 || !index_at.is_multiple_of(ALIGNMENT) || image_bytes < index_at {
            return wrong;
        }
        // None of these sums leaves 64 bits: 2^64 bytes have 2^48 chunks, and there are 2^32 records of less than 2^7.
        let entries_at = (index_at - HEADER_BYTES as u64).div_ceil(CHUNK_BYTES as u64) * SUM_BYTES as u64;
        let hosts_at = entries_at + u64::from(entries) * ENTRY_BYTES as u64;
        let strings_at = hosts_at + u64::from(hosts) * HOST_BYTES as u64;
        let index_end = strings_at + u64::from(strings_bytes);
        if index_end > MAX_INDEX_BYTES
            || index_at.checked_add(index_end.next_multiple_of(ALIGNMENT)) != Some(image_bytes)
        {
            return wrong;
        }
        let [entries_at, hosts_at, strings_at, index_end] =
            [entries_at, hosts_at, strings_at, index_end].map(|at| at as usize);
        Ok(Layout { entries, hosts, index_at, image_bytes, index_sum, entries_at, hosts_at, strings_at, index_end })
    }

    /// Bytes of the whole image.
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Where the index begins.
    pub fn index_at(&self) -> u64 {
        self.index_at
    }

    /// Bytes of the index, with the zeroes behind it.
    pub fn index_bytes(&self) -> usize {
        (self.image_bytes - self.index_at) as usize
    }

    /// Bytes of all bodies, with the zeroes behind them.
    pub fn bodies_bytes(&self) -> u64 {
        self.index_at - HEADER_BYTES as u64
    }
}
