//! The forms of old versions: ziplists and zipmaps.
//!
//! ```text
//! ziplist = bytes of all (4) | offset of the last entry (4) | number of entries (2; 65,535: unknown) | entry … | 0xff
//! entry   = length of the entry before (1 byte, or 0xfe and 4 bytes) | encoding | data
//! 00llllll                 a string
//! 01llllll llllllll        a string (length of 14 bits, big-endian)
//! 10______ llll            a string (length of 4 bytes, big-endian)
//! 0xc0 0xd0 0xe0 0xf0 0xfe a number of 2, 4, 8, 3, 1 bytes
//! 1111xxxx                 a number: x - 1
//!
//! zipmap  = number of pairs (1; 254 and more: unknown) | pair … | 0xff
//! pair    = length (1 byte, or 0xfe and 4 bytes) | key | length | free bytes (1) | value | free bytes
//! ```

use crate::{Error, Reader, listpack::Entry};

const HEADER: usize = 10;
const END: u8 = 0xff;
const LONG: u8 = 0xfe;
const UNKNOWN: u16 = u16::MAX;

/// Visits the entries of a ziplist, which must be right in every byte.
pub fn for_each<E: From<Error>>(bytes: &[u8], mut visit: impl FnMut(Entry<'_>) -> Result<(), E>) -> Result<(), E> {
    let corrupt = || E::from(Error::Corrupt);
    let (header, _) = bytes.split_first_chunk::<HEADER>().ok_or_else(corrupt)?;
    let [a, b, c, d, e, f, g, h, low, high] = *header;
    let (len, last) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
    let count = u16::from_le_bytes([low, high]);
    if len != bytes.len() || bytes.len() == HEADER || bytes.last() != Some(&END) {
        return Err(corrupt());
    }
    let end = bytes.len() - 1;
    let (mut at, mut before, mut seen) = (HEADER, 0, 0);
    let mut last_seen = HEADER;
    while at < end {
        let (entry, entry_len, claimed) = entry(&bytes[at..end])?;
        if claimed != before {
            return Err(corrupt());
        }
        visit(entry)?;
        (last_seen, at, before, seen) = (at, at + entry_len, entry_len, seen + 1);
    }
    if last != last_seen || (count != UNKNOWN && usize::from(count) != seen) { Err(corrupt()) } else { Ok(()) }
}

/// Reads the entry that bytes begin with, its length, and how long it says that the one before is.
fn entry(bytes: &[u8]) -> Result<(Entry<'_>, usize, usize), Error> {
    let mut reader = Reader::new(bytes);
    let long =
        |reader: &mut Reader<'_>| -> Result<[u8; 4], Error> { reader.bytes(4)?.try_into().map_err(|_| Error::Corrupt) };
    let before = match reader.byte()? {
        LONG => u32::from_le_bytes(long(&mut reader)?) as usize,
        END => return Err(Error::Corrupt),
        len => usize::from(len),
    };
    let head = reader.byte()?;
    let text_len = match head {
        0..0x40 => Some(usize::from(head)),
        0x40..0x80 => Some(usize::from(head & 0x3f) << 8 | usize::from(reader.byte()?)),
        0x80 => Some(u32::from_be_bytes(long(&mut reader)?) as usize),
        _ => None,
    };
    let entry = match text_len {
        Some(len) => Entry::Text(reader.bytes(len)?),
        None => {
            let number_len = match head {
                0xc0 => 2,
                0xd0 => 4,
                0xe0 => 8,
                0xf0 => 3,
                0xfe => 1,
                0xf1..=0xfd => 0,
                _ => return Err(Error::Corrupt),
            };
            let mut wide = [0; 8];
            wide[..number_len].copy_from_slice(reader.bytes(number_len)?);
            let unused = 64 - 8 * number_len as u32;
            Entry::Integer(match number_len {
                0 => i64::from(head & 0xf) - 1,
                _ => i64::from_le_bytes(wide) << unused >> unused,
            })
        }
    };
    Ok((entry, bytes.len() - reader.left(), before))
}

/// Visits the keys and values of a zipmap in turn.
pub fn for_each_in_map<E: From<Error>>(
    bytes: &[u8],
    mut visit: impl FnMut(Entry<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut reader = Reader::new(bytes);
    let count = reader.byte()?;
    let len = |head: u8, reader: &mut Reader<'_>| -> Result<usize, Error> {
        match head {
            LONG => Ok(u32::from_le_bytes(reader.bytes(4)?.try_into().map_err(|_| Error::Corrupt)?) as usize),
            END => Err(Error::Corrupt),
            len => Ok(len.into()),
        }
    };
    let mut seen = 0u64;
    loop {
        let head = reader.byte()?;
        if head == END {
            break;
        }
        let key = len(head, &mut reader)?;
        visit(Entry::Text(reader.bytes(key)?))?;
        let head = reader.byte()?;
        let value = len(head, &mut reader)?;
        let free = reader.byte()?;
        visit(Entry::Text(reader.bytes(value)?))?;
        reader.bytes(free.into())?;
        seen += 1;
    }
    if reader.left() > 0 || (count < LONG && u64::from(count) != seen) { Err(Error::Corrupt.into()) } else { Ok(()) }
}
