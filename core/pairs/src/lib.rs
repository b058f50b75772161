//! Texts in half their bytes, for what an image carries and seldom shows.
//!
//! In a text of ASCII each byte from 128 on stands for the pair of that number, whose bytes may stand for pairs before it: the
//! pairs that are most frequent one after the other (Gage 1994, "A New Algorithm for Data Compression"). So a text can be
//! read from any byte on, and the program that reads it needs no memory but for what it reads.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{collections::TryReserveError, vec::Vec};

/// The first byte that stands for a pair.
pub const FIRST_PAIR: u8 = 128;
const PAIRS: usize = 128;
/// What the pairs take, each two bytes, in the order of their numbers.
pub const PAIRS_BYTES: usize = 2 * PAIRS;

/// Replaces the pairs that are the most frequent in all texts, which are ASCII, by one byte each, round by round, so that
/// pairs of pairs are found as well. Returns what the bytes stand for.
pub fn pack(texts: &mut [Vec<u8>]) -> Vec<u8> {
    /// Pairs replaced in a round. One would do a little better, and takes many times as long.
    const AT_ONCE: usize = 8;
    let number_of = |two: &[u8]| usize::from(two[0]) << 8 | usize::from(two[1]);
    let mut pairs = [[0; 2]; PAIRS];
    for first in (0..PAIRS).step_by(AT_ONCE) {
        let mut counts = alloc::vec![0_u32; 1 << 16];
        let neighbors = texts.iter().flat_map(|text| text.windows(2));
        neighbors.for_each(|two| counts[number_of(two)] += 1);
        let mut frequent: Vec<usize> = (0..counts.len()).filter(|&pair| counts[pair] > 1).collect();
        frequent.sort_by_key(|&pair| core::cmp::Reverse(counts[pair]));
        let mut byte_of = alloc::vec![None; 1 << 16];
        for (at, &pair) in (first..PAIRS).zip(frequent.iter().take(AT_ONCE)) {
            pairs[at] = [(pair >> 8) as u8, pair as u8];
            byte_of[pair] = Some(FIRST_PAIR + at as u8);
        }
        for text in texts.iter_mut() {
            let (mut kept, mut at) = (0, 0);
            while at < text.len() {
                let byte = text.get(at..at + 2).and_then(|two| byte_of[number_of(two)]);
                text[kept] = byte.unwrap_or(text[at]);
                kept += 1;
                at += 1 + usize::from(byte.is_some());
            }
            text.truncate(kept);
        }
    }
    pairs.concat()
}

/// Gives `take` the bytes that a byte of a text stands for. `None`, where `pairs` are none that [`pack`] has returned.
pub fn unpack(pairs: &[u8], byte: u8, take: &mut dyn FnMut(u8)) -> Option<()> {
    // The second halves of pairs whose first half is being taken: each is of a later pair than what is in it.
    let mut stack = [byte; PAIRS + 1];
    let mut depth = 1_usize;
    while let Some(above) = depth.checked_sub(1) {
        depth = above;
        let byte = stack[depth];
        if byte < FIRST_PAIR {
            take(byte);
            continue;
        }
        let pair_at = 2 * usize::from(byte - FIRST_PAIR);
        let &[first, second] = pairs.get(pair_at..pair_at + 2)?.first_chunk()?;
        if first >= byte || second >= byte {
            return None;
        }
        *stack.get_mut(depth)? = second;
        *stack.get_mut(depth + 1)? = first;
        depth += 2;
    }
    Some(())
}

/// Packs one text, and puts it behind its pairs.
pub fn pack_text(text: Vec<u8>) -> Vec<u8> {
    let mut texts = [text];
    let mut packed = pack(&mut texts);
    packed.extend_from_slice(&texts[0]);
    packed
}

/// The text that [`pack_text`] has packed.
pub fn unpack_text(packed: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let (pairs, packed) = packed.split_at(PAIRS_BYTES.min(packed.len()));
    let each = |take: &mut dyn FnMut(u8)| packed.iter().try_for_each(|&byte| unpack(pairs, byte, take));
    let (mut text, mut len) = (Vec::new(), 0);
    each(&mut |_| len += 1);
    text.try_reserve_exact(len)?;
    each(&mut |byte| text.push(byte));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    fn unpacked(pairs: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        text.iter().try_for_each(|&byte| unpack(pairs, byte, &mut |byte| bytes.push(byte)))?;
        Some(bytes)
    }

    #[test]
    fn texts_are_smaller_and_come_back() {
        let line = |n: usize| format!("Returns the length of value {n}, or 0 where there is none.").into_bytes();
        let texts: Vec<Vec<u8>> = (0..100).map(line).collect();
        let mut packed = texts.clone();
        let pairs = pack(&mut packed);
        assert!(packed.concat().len() < texts.concat().len() / 4, "{}", packed.concat().len());
        assert!(packed.iter().zip(&texts).all(|(packed, text)| unpacked(&pairs, packed).as_ref() == Some(text)));
    }

    #[test]
    fn what_has_no_pairs_stays() {
        let mut texts = vec![Vec::new(), b"a".to_vec(), b"bcd".to_vec()];
        pack(&mut texts);
        assert_eq!(texts, [&b""[..], b"a", b"bcd"]);
    }

    #[test]
    fn damaged_pairs_end_and_never_panic() {
        let mut texts = vec![b"abababababcdcdcdabcdabcdabcd".to_vec()];
        let good = pack(&mut texts);
        for at in 0..good.len() {
            for value in [0, 0x7f, 0x80, 0x81, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = unpacked(&bad, &texts[0]);
            }
        }
        assert_eq!(unpacked(&[], &[FIRST_PAIR]), None);
        assert_eq!(unpacked(&[FIRST_PAIR, b'a'], &[FIRST_PAIR]), None);
    }
}
