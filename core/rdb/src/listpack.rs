//! Listpacks: short strings and integers one behind the other.
//!
//! ```text
//! listpack = bytes of all (4) | number of entries (2; 65,535: unknown) | entry … | 0xff
//! entry    = encoding and data | length of both (7 bits a byte, the high ones first; all but the first have the top bit)
//! 0xxxxxxx                     a number of 7 bits
//! 10llllll                     a string
//! 110xxxxx xxxxxxxx            a number of 13 bits
//! 1110llll llllllll            a string
//! 0xf0 llll                    a string (length of 4 bytes)
//! 0xf1 … 0xf4                  a number of 2, 3, 4, 8 bytes
//! ```

use crate::{Error, digits};
use alloc::vec::Vec;
use kayvee_platform::Decimal;

const HEADER: usize = 6;
const UNKNOWN: u16 = u16::MAX;
const END: u8 = 0xff;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A string.
    Text(&'a [u8]),
    /// A number.
    Integer(i64),
}

impl Entry<'_> {
    /// Lends its text.
    pub fn with_text<R>(self, use_it: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Entry::Text(text) => use_it(text),
            Entry::Integer(number) => use_it(Decimal::new(number).as_bytes()),
        }
    }
}

/// Reads the entry that bytes begin with, and how long it is with all that belongs to it.
fn entry(bytes: &[u8]) -> Result<(Entry<'_>, usize), Error> {
    let number = |len: usize| -> Result<(Entry<'_>, usize), Error> {
        let data = bytes.get(1..1 + len).ok_or(Error::Corrupt)?;
        let mut wide = [0; 8];
        wide[..len].copy_from_slice(data);
        let unused = 64 - 8 * len as u32;
        Ok((Entry::Integer(i64::from_le_bytes(wide) << unused >> unused), 1 + len))
    };
    let text = |head: usize, len: usize| -> Result<(Entry<'_>, usize), Error> {
        let end = head.checked_add(len).ok_or(Error::Corrupt)?;
        Ok((Entry::Text(bytes.get(head..end).ok_or(Error::Corrupt)?), end))
    };
    let at = |at: usize| bytes.get(at).copied().map(usize::from).ok_or(Error::Corrupt);
    let (entry, body) = match at(0)? {
        head @ 0..0x80 => (Entry::Integer(head as i64), 1),
        head @ 0x80..0xc0 => text(1, head & 0x3f)?,
        head @ 0xc0..0xe0 => {
            let number = ((head & 0x1f) << 8 | at(1)?) as i64;
            (Entry::Integer(number << 51 >> 51), 2)
        }
        head @ 0xe0..0xf0 => text(2, (head & 0xf) << 8 | at(1)?)?,
        0xf0 => text(5, at(1)? | at(2)? << 8 | at(3)? << 16 | at(4)? << 24)?,
        0xf1 => number(2)?,
        0xf2 => number(3)?,
        0xf3 => number(4)?,
        0xf4 => number(8)?,
        _ => return Err(Error::Corrupt),
    };
    let (tail, tail_len) = tail(body);
    let end = body + tail_len;
    if bytes.get(body..end) != Some(&tail[..tail_len]) {
        return Err(Error::Corrupt);
    }
    Ok((entry, end))
}

/// The length of an entry, as it stands behind it.
fn tail(len: usize) -> ([u8; 5], usize) {
    let tail_len = match len {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    };
    let mut tail = [0; 5];
    for (at, byte) in tail[..tail_len].iter_mut().enumerate() {
        *byte = (len >> (7 * (tail_len - 1 - at))) as u8 & 0x7f | if at > 0 { 0x80 } else { 0 };
    }
    (tail, tail_len)
}

/// Reads entries one by one.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    rest: &'a [u8],
    /// How many there should be, if that is known.
    count: Option<usize>,
    passed: usize,
}

impl<'a> Cursor<'a> {
    /// At the first entry of a listpack, whose head and end are right.
    pub fn new(bytes: &'a [u8]) -> Result<Cursor<'a>, Error> {
        let (header, _) = bytes.split_first_chunk::<HEADER>().ok_or(Error::Corrupt)?;
        let [a, b, c, d, low, high] = *header;
        let (len, count) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([low, high]));
        if len as usize != bytes.len() || bytes.len() == HEADER || bytes.last() != Some(&END) {
            return Err(Error::Corrupt);
        }
        let count = (count != UNKNOWN).then_some(usize::from(count));
        let cursor = Cursor { rest: &bytes[HEADER..bytes.len() - 1], count, passed: 0 };
        cursor.check_end()?;
        Ok(cursor)
    }

    fn check_end(&self) -> Result<(), Error> {
        let is_wrong = self.rest.is_empty() && self.count.is_some_and(|count| count != self.passed);
        if is_wrong { Err(Error::Corrupt) } else { Ok(()) }
    }

    /// Whether there is no further entry.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of entries that were read.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// The next entry.
    pub fn next(&mut self) -> Result<Entry<'a>, Error> {
        let (entry, len) = entry(self.rest)?;
        self.rest = &self.rest[len..];
        self.passed += 1;
        self.check_end()?;
        Ok(entry)
    }

    /// The next entry, which is a number.
    pub fn number(&mut self) -> Result<i64, Error> {
        match self.next()? {
            Entry::Integer(number) => Ok(number),
            Entry::Text(_) => Err(Error::Corrupt),
        }
    }

    /// The next entry, which is a number of others.
    pub fn size(&mut self) -> Result<usize, Error> {
        usize::try_from(self.number()?).map_err(|_| Error::Corrupt)
    }
}

/// Visits the entries of a listpack, which must be right in every byte.
pub fn for_each<E: From<Error>>(bytes: &[u8], mut visit: impl FnMut(Entry<'_>) -> Result<(), E>) -> Result<(), E> {
    let mut cursor = Cursor::new(bytes)?;
    while !cursor.is_at_end() {
        visit(cursor.next()?)?;
    }
    Ok(())
}

/// A listpack that is being written. From the first entry that finds no memory on it takes no more, and
/// [`finish`](Self::finish) says so.
#[derive(Debug, Default)]
pub struct Listpack {
    bytes: Vec<u8>,
    count: usize,
    failed: bool,
}

impl Listpack {
    /// Without entries.
    pub fn new() -> Listpack {
        Listpack::default()
    }

    /// Number of entries.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes so far, with head and end.
    pub fn len(&self) -> usize {
        self.bytes.len().max(HEADER) + 1
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a string, as a number if it is one.
    pub fn push(&mut self, text: &[u8]) {
        match digits::parse(text) {
            Some(number) => self.push_integer(number),
            None => {
                let len = text.len();
                match len {
                    0..0x40 => self.add(&[0x80 | len as u8], text),
                    0x40..0x1000 => self.add(&[0xe0 | (len >> 8) as u8, len as u8], text),
                    _ => {
                        let [a, b, c, d] = (len as u32).to_le_bytes();
                        self.add(&[0xf0, a, b, c, d], text);
                    }
                }
            }
        }
    }

    /// Adds a number.
    pub fn push_integer(&mut self, number: i64) {
        let bytes = number.to_le_bytes();
        match number {
            0..0x80 => self.add(&[number as u8], &[]),
            -0x1000..0x1000 => self.add(&[0xc0 | (number >> 8) as u8 & 0x1f, number as u8], &[]),
            -0x8000..0x8000 => self.add(&[0xf1], &bytes[..2]),
            -0x80_0000..0x80_0000 => self.add(&[0xf2], &bytes[..3]),
            -0x8000_0000..0x8000_0000 => self.add(&[0xf3], &bytes[..4]),
            _ => self.add(&[0xf4], &bytes),
        }
    }

    fn add(&mut self, head: &[u8], data: &[u8]) {
        let (tail, tail_len) = tail(head.len() + data.len());
        let more = HEADER + head.len() + data.len() + tail_len + 1;
        self.failed = self.failed || self.bytes.try_reserve(more).is_err();
        if self.failed {
            return;
        }
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; HEADER]);
        }
        [head, data, &tail[..tail_len]].iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.count += 1;
    }

    /// Adds all entries of another one.
    pub fn append(&mut self, other: Listpack) {
        let entries = other.bytes.get(HEADER..).unwrap_or_default();
        self.failed = self.failed || other.failed || self.bytes.try_reserve(HEADER + entries.len() + 1).is_err();
        if !self.failed && !entries.is_empty() {
            if self.bytes.is_empty() {
                self.bytes.extend_from_slice(&[0; HEADER]);
            }
            self.bytes.extend_from_slice(entries);
            self.count += other.count;
        }
    }

    /// The bytes.
    pub fn finish(mut self) -> Result<Vec<u8>, Error> {
        self.failed = self.failed || self.bytes.try_reserve(HEADER + 1).is_err();
        if self.failed {
            return Err(Error::OutOfMemory);
        }
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; HEADER]);
        }
        self.bytes.push(END);
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_le_bytes());
        let count = u16::try_from(self.count).unwrap_or(UNKNOWN);
        self.bytes[4..HEADER].copy_from_slice(&count.to_le_bytes());
        Ok(self.bytes)
    }
}
