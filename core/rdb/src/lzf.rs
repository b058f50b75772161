//! LZF, the compression of long strings.
//!
//! ```text
//! 000lllll            l + 1 literal bytes follow
//! lllooooo oooooooo   l + 2 bytes from o + 1 bytes back; if l is 7, a byte in between adds to it
//! ```

use crate::Error;
use alloc::vec::Vec;

const LITERALS_LIMIT: usize = 1 << 5;
const OFFSET_LIMIT: usize = 1 << 13;
const MATCH_LIMIT: usize = (1 << 8) + (1 << 3);
const SHORTEST_MATCH: usize = 3;
const HASH_BITS: u32 = 16;

/// Most bytes that a compressed byte can stand for: a match of 264 takes three.
pub const MOST_PER_BYTE: usize = MATCH_LIMIT / 3;

/// Expands compressed bytes, which must give exactly `len` bytes.
pub fn expand(compressed: &[u8], len: usize) -> Result<Vec<u8>, Error> {
    if len / MOST_PER_BYTE > compressed.len() {
        return Err(Error::Corrupt);
    }
    let mut out = Vec::new();
    out.try_reserve_exact(len)?;
    let mut rest = compressed;
    while let Some((&head, after)) = rest.split_first() {
        let head = usize::from(head);
        if head < LITERALS_LIMIT {
            let (literals, after) = after.split_at_checked(head + 1).ok_or(Error::Corrupt)?;
            if out.len() + literals.len() > len {
                return Err(Error::Corrupt);
            }
            out.extend_from_slice(literals);
            rest = after;
            continue;
        }
        let (mut count, mut after) = (head >> 5, after);
        if count == 7 {
            let (&more, behind) = after.split_first().ok_or(Error::Corrupt)?;
            (count, after) = (count + usize::from(more), behind);
        }
        let (&low, after) = after.split_first().ok_or(Error::Corrupt)?;
        let (count, offset) = (count + 2, ((head & 0x1f) << 8 | usize::from(low)) + 1);
        if offset > out.len() || out.len() + count > len {
            return Err(Error::Corrupt);
        }
        // What is copied may overlap what is written.
        let start = out.len() - offset;
        (start..start + count).for_each(|at| out.push(out[at]));
        rest = after;
    }
    if out.len() == len { Ok(out) } else { Err(Error::Corrupt) }
}

/// Compresses strings one after the other.
#[derive(Debug, Default)]
pub struct Compressor {
    /// Places of three bytes by their hash, counted over all strings so far, so that none needs an empty table.
    places: Vec<u32>,
    /// Where the next string begins in that count. Its first place, like no place at all, is never referred to.
    start: u32,
}

impl Compressor {
    /// Where the three bytes at a place were last, in its string; the place takes its stead.
    fn swap(&mut self, bytes: &[u8], at: usize) -> Option<usize> {
        let three = u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
        // The same hash as Redis', so that the same strings give the same bytes.
        let hash = (three >> (24 - HASH_BITS)).wrapping_sub(three.wrapping_mul(5)) & ((1 << HASH_BITS) - 1);
        let before = core::mem::replace(&mut self.places[hash as usize], self.start + at as u32);
        let place = before.checked_sub(self.start)? as usize;
        (place > 0 && bytes[place..place + SHORTEST_MATCH] == bytes[at..at + SHORTEST_MATCH]).then_some(place)
    }

    fn begin(&mut self, len: u32) -> Result<(), Error> {
        if self.places.is_empty() {
            self.places.try_reserve_exact(1 << HASH_BITS)?;
            self.places.resize(1 << HASH_BITS, 0);
            self.start = 1;
        } else if self.start.checked_add(len).is_none() {
            self.places.fill(0);
            self.start = 1;
        }
        Ok(())
    }

    /// Compresses bytes, if that makes them at least four shorter.
    pub fn compress(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        const SHORTER_BY: usize = 4;
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len < u32::MAX / 2);
        let (Some(len), Some(limit)) = (len, bytes.len().checked_sub(SHORTER_BY)) else { return Ok(None) };
        self.begin(len)?;
        let compressed = self.compress_to(bytes, limit);
        self.start += len;
        compressed
    }

    fn compress_to(&mut self, bytes: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Error> {
        /// Bytes that a match may take, and the head of the literals behind it.
        const MATCH_ROOM: usize = 4;
        let mut out = Output::new(limit)?;
        let mut at = 0;
        while at + SHORTEST_MATCH <= bytes.len() {
            let place = self.swap(bytes, at).filter(|place| at - place <= OFFSET_LIMIT);
            let Some(place) = place else {
                if out.len() >= limit {
                    return Ok(None);
                }
                out.literal(bytes[at]);
                at += 1;
                continue;
            };
            if out.len() - usize::from(out.literals == 0) + MATCH_ROOM >= limit {
                return Ok(None);
            }
            let count = match_len(bytes, place, at);
            out.reference(at - place - 1, count - 2);
            at += count;
            if at + SHORTEST_MATCH > bytes.len() {
                break;
            }
            self.swap(bytes, at - 2);
            self.swap(bytes, at - 1);
        }
        if out.len() + SHORTEST_MATCH > limit {
            return Ok(None);
        }
        bytes[at..].iter().for_each(|byte| out.literal(*byte));
        Ok(Some(out.finish()))
    }
}

/// How many bytes at two places are the same, as far as Redis looks: some of the last bytes it leaves alone.
fn match_len(bytes: &[u8], place: usize, at: usize) -> usize {
    const UNROLLED: usize = 16;
    let most = (bytes.len() - at - 2).min(MATCH_LIMIT);
    let is_same = |len: usize| bytes[place + len] == bytes[at + len];
    let mut len = SHORTEST_MATCH;
    if most > UNROLLED {
        let unrolled = SHORTEST_MATCH..SHORTEST_MATCH + UNROLLED;
        match unrolled.clone().find(|len| !is_same(*len)) {
            Some(len) => return len,
            None => len = unrolled.end,
        }
    }
    while len < most && is_same(len) {
        len += 1;
    }
    len
}

/// Compressed bytes, with the head of the literals that come last still to be written.
struct Output {
    bytes: Vec<u8>,
    literals: usize,
}

impl Output {
    fn new(limit: usize) -> Result<Output, Error> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(limit + 2 * SHORTEST_MATCH)?;
        bytes.push(0);
        Ok(Output { bytes, literals: 0 })
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn literal(&mut self, byte: u8) {
        self.bytes.push(byte);
        self.literals += 1;
        if self.literals == LITERALS_LIMIT {
            self.end_literals();
            self.bytes.push(0);
        }
    }

    fn end_literals(&mut self) {
        let head = self.bytes.len() - self.literals - 1;
        match self.literals {
            0 => _ = self.bytes.pop(),
            literals => self.bytes[head] = (literals - 1) as u8,
        }
        self.literals = 0;
    }

    fn reference(&mut self, offset: usize, count: usize) {
        self.end_literals();
        let high = (offset >> 8) as u8;
        match count {
            0..7 => self.bytes.push((count << 5) as u8 | high),
            _ => self.bytes.extend_from_slice(&[7 << 5 | high, (count - 7) as u8]),
        }
        self.bytes.extend_from_slice(&[offset as u8, 0]);
    }

    fn finish(mut self) -> Vec<u8> {
        self.end_literals();
        self.bytes
    }
}
