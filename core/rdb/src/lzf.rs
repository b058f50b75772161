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
const HASH_BITS: u32 = 14;

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

fn hash(bytes: &[u8]) -> usize {
    let three = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    (three.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Compresses bytes, if that makes them at least four shorter, which is what the longer head takes.
pub fn compress(bytes: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    const HEAD: usize = 4;
    let Some(limit) = bytes.len().checked_sub(HEAD).filter(|limit| *limit > HEAD) else { return Ok(None) };
    // Places of three bytes by their hash, one higher; 0 is none.
    let mut places: Vec<u32> = Vec::new();
    places.try_reserve_exact(1 << HASH_BITS)?;
    places.resize(1 << HASH_BITS, 0);
    let mut out = Vec::new();
    out.try_reserve_exact(limit + 2 * LITERALS_LIMIT)?;
    let (mut at, mut literals) = (0, 0);
    while at + SHORTEST_MATCH <= bytes.len() && out.len() + (at - literals) <= limit {
        let place = core::mem::replace(&mut places[hash(&bytes[at..])], at as u32 + 1) as usize;
        let from = place.wrapping_sub(1);
        let is_near = place > 0 && at - from <= OFFSET_LIMIT;
        if !is_near || bytes[from..from + SHORTEST_MATCH] != bytes[at..at + SHORTEST_MATCH] {
            at += 1;
            continue;
        }
        let pairs = bytes[from..].iter().zip(&bytes[at..]).take(MATCH_LIMIT);
        let count = pairs.take_while(|(a, b)| a == b).count();
        push_literals(&mut out, &bytes[literals..at])?;
        push_match(&mut out, at - from - 1, count - 2);
        let next = at + count;
        // The last places within a match are where the next one begins most often.
        for inner in next - 2..next.min(bytes.len() - 2) {
            places[hash(&bytes[inner..])] = inner as u32 + 1;
        }
        (at, literals) = (next, next);
    }
    if out.len() + (bytes.len() - literals) > limit {
        return Ok(None);
    }
    push_literals(&mut out, &bytes[literals..])?;
    Ok(Some(out).filter(|out| out.len() <= limit))
}

fn push_literals(out: &mut Vec<u8>, literals: &[u8]) -> Result<(), Error> {
    for part in literals.chunks(LITERALS_LIMIT) {
        out.try_reserve(part.len() + LITERALS_LIMIT)?;
        out.push((part.len() - 1) as u8);
        out.extend_from_slice(part);
    }
    out.try_reserve(3)?;
    Ok(())
}

fn push_match(out: &mut Vec<u8>, offset: usize, count: usize) {
    let high = (offset >> 8) as u8;
    if count < 7 {
        out.push((count << 5) as u8 | high);
    } else {
        out.extend_from_slice(&[7 << 5 | high, (count - 7) as u8]);
    }
    out.push(offset as u8);
}
