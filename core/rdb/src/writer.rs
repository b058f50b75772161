//! Writing values; see [`Reader`](crate::Reader) for the form of lengths and strings.

use crate::{Dialect, Error, checksum, digits, lzf};
use alloc::vec::Vec;
use kayvee_platform::Decimal;

/// Strings longer than this are compressed, as in Redis.
const COMPRESSED_FROM: usize = 20;

/// A payload that is being written. From the first part that finds no memory on it takes no more, and
/// [`finish`](Self::finish) says so.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    failed: bool,
    compression: Compression,
    compressor: lzf::Compressor,
}

/// Whether long strings are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compression {
    On,
    #[default]
    Off,
}

/// Whether a file has a checksum, and whether that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Checksum {
    On,
    Off,
}

impl Writer {
    /// Nothing yet.
    pub fn new(compression: Compression) -> Writer {
        Writer { compression, ..Writer::default() }
    }

    /// Begins a value of this [`kind`](crate::kind).
    pub fn kind(&mut self, kind: u8) {
        self.bytes(&[kind]);
    }

    /// Bytes so far.
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    /// What was written since the last [`clear`](Self::clear).
    pub fn so_far(&self) -> Result<&[u8], Error> {
        if self.failed { Err(Error::OutOfMemory) } else { Ok(&self.bytes) }
    }

    /// Takes everything back. What was reserved for it stays for what comes, unless that was far more than usual.
    pub fn clear(&mut self) {
        const KEPT_BYTES: usize = 1 << 20;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.failed = false;
    }

    /// Puts what `write` writes between what stands before `at` and what has been written since: the number of parts,
    /// say, that only their writing has shown.
    pub fn insert(&mut self, at: usize, write: impl FnOnce(&mut Writer)) {
        let end = self.bytes.len();
        write(self);
        let more = self.bytes.len() - end;
        if !self.failed {
            self.bytes[at..].rotate_right(more);
        }
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.failed = self.failed || self.bytes.try_reserve(bytes.len()).is_err();
        if !self.failed {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// A length.
    #[allow(clippy::len_without_is_empty, reason = "it is not the writer's own")]
    pub fn len(&mut self, len: u64) {
        match len {
            0..0x40 => self.bytes(&[len as u8]),
            0x40..0x4000 => self.bytes(&[0x40 | (len >> 8) as u8, len as u8]),
            _ => match u32::try_from(len) {
                Ok(len) => {
                    self.bytes(&[0x80]);
                    self.bytes(&len.to_be_bytes());
                }
                Err(_) => {
                    self.bytes(&[0x81]);
                    self.bytes(&len.to_be_bytes());
                }
            },
        }
    }

    /// A string, as short as it can be.
    pub fn text(&mut self, text: &[u8]) {
        /// A longer one does not fit 32 bits.
        const INTEGER_LIMIT: usize = 11;
        if let Some(number) = digits::parse(text).filter(|_| text.len() <= INTEGER_LIMIT)
            && self.short_integer(number)
        {
            return;
        }
        if self.compression == Compression::On && text.len() > COMPRESSED_FROM {
            match self.compressor.compress(text) {
                Ok(Some(compressed)) => {
                    self.bytes(&[0xc3]);
                    self.len(compressed.len() as u64);
                    self.len(text.len() as u64);
                    return self.bytes(&compressed);
                }
                Ok(None) => {}
                Err(_) => self.failed = true,
            }
        }
        self.len(text.len() as u64);
        self.bytes(text);
    }

    /// A string that is a number.
    pub fn integer(&mut self, number: i64) {
        if !self.short_integer(number) {
            let digits = Decimal::new(number);
            self.len(digits.as_bytes().len() as u64);
            self.bytes(digits.as_bytes());
        }
    }

    fn short_integer(&mut self, number: i64) -> bool {
        let bytes = number.to_le_bytes();
        match number {
            -0x80..0x80 => self.bytes(&[0xc0, bytes[0]]),
            -0x8000..0x8000 => self.bytes(&[0xc1, bytes[0], bytes[1]]),
            -0x8000_0000..0x8000_0000 => self.bytes(&[0xc2, bytes[0], bytes[1], bytes[2], bytes[3]]),
            _ => return false,
        }
        true
    }

    /// A floating-point number.
    pub fn double(&mut self, number: f64) {
        self.bytes(&number.to_bits().to_le_bytes());
    }

    /// The bytes.
    pub fn into_bytes(self) -> Result<Vec<u8>, Error> {
        if self.failed { Err(Error::OutOfMemory) } else { Ok(self.bytes) }
    }

    /// The payload with its version and checksum.
    pub fn finish(mut self, dialect: Dialect) -> Result<Vec<u8>, Error> {
        self.bytes(&dialect.version().to_le_bytes());
        let sum = checksum(&self.bytes);
        self.bytes(&sum.to_le_bytes());
        if self.failed { Err(Error::OutOfMemory) } else { Ok(self.bytes) }
    }
}
