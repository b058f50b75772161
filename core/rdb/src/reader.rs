//! Lengths, numbers and strings.
//!
//! ```text
//! 00llllll             length of 6 bits
//! 01llllll llllllll    length of 14 bits
//! 10000000             length of 32 bits follows, big-endian
//! 10000001             length of 64 bits follows, big-endian
//! 110000ee             a string that is an integer of 8, 16 or 32 bits (little-endian), or compressed: two lengths, bytes
//! ```

use crate::{Error, lzf};
use alloc::vec::Vec;
use kayvee_platform::Decimal;

const INT8: u8 = 0xc0;
const INT16: u8 = 0xc1;
const INT32: u8 = 0xc2;
const COMPRESSED: u8 = 0xc3;
const LEN_32: u8 = 0x80;
const LEN_64: u8 = 0x81;

/// A string that was read.
#[derive(Debug)]
pub enum Text<'a> {
    /// Part of the bytes.
    Borrowed(&'a [u8]),
    /// One that was compressed.
    Owned(Vec<u8>),
    /// One that was stored as an integer.
    Integer(Decimal),
}

impl Text<'_> {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Text::Borrowed(bytes) => bytes,
            Text::Owned(bytes) => bytes,
            Text::Integer(digits) => digits.as_bytes(),
        }
    }
}

/// Reads from the front of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next bytes, as they are.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let short = Error::Short { missing: len.saturating_sub(self.rest.len()) as u64 };
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// So many bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.bytes(N).map(|bytes| bytes.try_into().expect("so many were read"))
    }

    /// What a copy of this has read since.
    pub(crate) fn until(&self, later: &Reader<'_>) -> &'a [u8] {
        &self.rest[..self.rest.len() - later.rest.len()]
    }

    /// Passes a string by.
    pub(crate) fn skip_text(&mut self) -> Result<(), Error> {
        let len = match self.byte()? {
            INT8 => 1,
            INT16 => 2,
            INT32 => 4,
            COMPRESSED => {
                let (compressed, _) = (self.size()?, self.size()?);
                compressed
            }
            head => usize::try_from(self.len_behind(head)?).map_err(|_| Error::Corrupt)?,
        };
        self.bytes(len).map(|_| ())
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(|[byte]| byte)
    }

    /// A number of 64 bits, little-endian.
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length.
    #[allow(clippy::len_without_is_empty, reason = "it is not the reader's own")]
    pub fn len(&mut self) -> Result<u64, Error> {
        let head = self.byte()?;
        self.len_behind(head)
    }

    fn len_behind(&mut self, head: u8) -> Result<u64, Error> {
        match head {
            0..0x40 => Ok(head.into()),
            0x40..0x80 => Ok(u64::from(head & 0x3f) << 8 | u64::from(self.byte()?)),
            LEN_32 => self.array().map(|bytes| u32::from_be_bytes(bytes).into()),
            LEN_64 => self.array().map(u64::from_be_bytes),
            _ => Err(Error::Corrupt),
        }
    }

    /// A string.
    pub fn text(&mut self) -> Result<Text<'a>, Error> {
        let integer = |number: i64| Ok(Text::Integer(Decimal::new(number)));
        match self.byte()? {
            INT8 => integer(i8::from_le_bytes(self.array()?).into()),
            INT16 => integer(i16::from_le_bytes(self.array()?).into()),
            INT32 => integer(i32::from_le_bytes(self.array()?).into()),
            COMPRESSED => {
                let (compressed, len) = (self.size()?, self.size()?);
                lzf::expand(self.bytes(compressed)?, len).map(Text::Owned)
            }
            head => {
                let len = self.len_behind(head)?;
                let len = usize::try_from(len).map_err(|_| Error::Corrupt)?;
                self.bytes(len).map(Text::Borrowed)
            }
        }
    }

    fn size(&mut self) -> Result<usize, Error> {
        usize::try_from(self.len()?).map_err(|_| Error::Corrupt)
    }
}
