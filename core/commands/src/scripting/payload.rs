//! Libraries as `FUNCTION DUMP` returns them, in the format of Redis' RDB files.
//!
//! ```text
//! ┌ for each library ───────────┐
//! │ 245 │ length │ text         │ version (2 bytes, little endian) │ CRC-64 of all before (8 bytes, little endian)
//! └─────────────────────────────┘
//! ```
//!
//! A length is written in 1 byte (00xxxxxx), 2 bytes (01xxxxxx x…) or 5 bytes (10000000, 32 bits, big endian). Redis
//! compresses texts with LZF (11000011), which is read here but not written.

use crate::Error;
use alloc::{collections::TryReserveError, vec::Vec};

/// Marks a library.
const LIBRARY: u8 = 245;
const VERSION: u16 = 10;
/// The newest version that is read: that of Redis 7.2.
const LATEST_VERSION: u16 = 11;
const FOOTER_BYTES: usize = 10;
/// Longest text of a library.
const TEXT_LIMIT_BYTES: usize = 64 << 20;

/// Writes the texts of libraries.
pub fn write<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Result<Vec<u8>, TryReserveError> {
    let mut out = Vec::new();
    for text in texts {
        out.try_reserve(text.len() + 16)?;
        out.push(LIBRARY);
        match text.len() {
            len @ ..64 => out.push(len as u8),
            len @ 64..16384 => out.extend_from_slice(&(len as u16 | 0x4000).to_be_bytes()),
            len => {
                out.push(0x80);
                out.extend_from_slice(&(len as u32).to_be_bytes());
            }
        }
        out.extend_from_slice(text);
    }
    out.try_reserve(FOOTER_BYTES)?;
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&crc64(&out).to_le_bytes());
    Ok(out)
}

/// Copies of texts.
pub fn texts<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Vec<Vec<u8>> {
    texts.map(<[u8]>::to_vec).collect()
}

/// Reads the texts of libraries.
pub fn read(payload: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let wrong = || Error::text("ERR DUMP payload version or checksum are wrong");
    let broken = || Error::text("ERR failed loading functions payload");
    let end = payload.len().checked_sub(FOOTER_BYTES).ok_or_else(wrong)?;
    let (body, footer) = payload.split_at(end);
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    let checksum = footer[2..].try_into().map(u64::from_le_bytes).map_err(|_| wrong())?;
    if version > LATEST_VERSION || checksum != crc64(&payload[..end + 2]) {
        return Err(wrong());
    }
    let mut reader = Reader { bytes: body };
    let mut texts = Vec::new();
    while let Some(kind) = reader.byte() {
        if kind != LIBRARY {
            return Err(Error::text("ERR given type is not a function"));
        }
        texts.push(reader.text().ok_or_else(broken)?);
    }
    Ok(texts)
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn len(&mut self, first: u8) -> Option<usize> {
        match first >> 6 {
            0 => Some((first & 63).into()),
            1 => Some(usize::from(first & 63) << 8 | usize::from(self.byte()?)),
            2 if first == 0x80 => Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?) as usize),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        const COMPRESSED: u8 = 0xc3;
        let first = self.byte()?;
        if first != COMPRESSED {
            let len = self.len(first)?;
            return self.take(len).map(<[u8]>::to_vec);
        }
        let first = self.byte()?;
        let compressed_len = self.len(first)?;
        let first = self.byte()?;
        let len = self.len(first).filter(|len| *len <= TEXT_LIMIT_BYTES)?;
        let compressed = self.take(compressed_len)?;
        expand(compressed, len)
    }
}

/// Expands LZF: runs of literal bytes (000xxxxx: x + 1 of them), and copies of what came before (xxxyyyyy: x + 2 bytes
/// from y… + 1 back; x = 7 adds a byte of length).
fn expand(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut reader = Reader { bytes };
    let mut out = Vec::new();
    out.try_reserve_exact(len).ok()?;
    while let Some(control) = reader.byte() {
        let control = usize::from(control);
        if control < 32 {
            out.extend_from_slice(reader.take(control + 1)?);
        } else {
            let mut count = control >> 5;
            if count == 7 {
                count += usize::from(reader.byte()?);
            }
            let back = (control & 31) << 8 | usize::from(reader.byte()?);
            let from = out.len().checked_sub(back + 1)?;
            if out.len() + count + 2 > len {
                return None;
            }
            for at in from..from + count + 2 {
                out.push(out[at]);
            }
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

/// CRC-64 as Redis computes it: the Jones polynomial, reflected, from 0.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_redis_own() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn libraries_come_back() {
        let libraries = [b"short".to_vec(), b"x".repeat(100), b"y".repeat(20_000)];
        let payload = write(libraries.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(read(&payload).unwrap(), libraries);
        for at in 0..payload.len() {
            let mut broken = payload.clone();
            broken[at] ^= 1;
            assert!(read(&broken).is_err(), "byte {at}");
        }
    }

    #[test]
    fn compressed_texts_are_read() {
        assert_eq!(expand(&[2, b'a', b'b', b'c', 0x80, 2], 9).unwrap(), b"abcabcabc");
        assert_eq!(expand(&[0, b'z', 0xe0, 3, 0], 13).unwrap(), b"z".repeat(13));
        assert_eq!(expand(&[0, b'z', 0x20, 9], 4), None);
        assert_eq!(expand(&[5, b'z'], 6), None);
        assert_eq!(expand(&[0, b'z', 0xe0, 255, 0], 9), None);
    }
}
