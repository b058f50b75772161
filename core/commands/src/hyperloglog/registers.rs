//! The registers and the bytes that hold them.
//!
//! ```text
//! "HYLL" | encoding (0 dense, 1 sparse) | 3 zeros | kept count (8 bytes; top bit: there is none) | registers
//! dense  = 16,384 registers of 6 bits, the first in the lowest bits of the first byte
//! sparse = see sparse.rs
//! ```

use super::sparse::{self, Runs};
use crate::Error;
use alloc::vec::Vec;
use kayvee_keyspace::OutOfMemory;

/// Bits of an element's hash that choose its register.
const INDEX_BITS: u32 = 14;
/// Number of registers.
pub const REGISTERS: usize = 1 << INDEX_BITS;
/// The rest of the hash, in which zeros are counted.
pub const COUNTED_BITS: u32 = 64 - INDEX_BITS;
const REGISTER_BITS: usize = 6;
const REGISTER_MASK: u16 = (1 << REGISTER_BITS) - 1;
/// Values that a register may have.
pub const VALUES: usize = 1 << REGISTER_BITS;

const MAGIC: &[u8; 4] = b"HYLL";
/// Bytes before the registers.
pub const HEADER: usize = 16;
const DENSE_BYTES: usize = HEADER + REGISTERS * REGISTER_BITS / 8;
const COUNT_AT: usize = 8;
const NO_COUNT: u8 = 1 << 7;
const HASH_SEED: u64 = 0xadc8_3b19;

/// Bytes that look like a HyperLogLog at first and are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Dense,
    Sparse,
}

/// How these bytes hold their registers, if they are a HyperLogLog by their head.
pub fn encoding(bytes: &[u8]) -> Option<Encoding> {
    if bytes.len() < HEADER || !bytes.starts_with(MAGIC) {
        return None;
    }
    match bytes[4] {
        0 if bytes.len() == DENSE_BYTES => Some(Encoding::Dense),
        1 => Some(Encoding::Sparse),
        _ => None,
    }
}

/// The head of a HyperLogLog, with 0 as its count.
pub fn header(encoding: Encoding) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(MAGIC);
    header[4] = match encoding {
        Encoding::Dense => 0,
        Encoding::Sparse => 1,
    };
    header
}

/// The count that is kept, if it still holds.
pub fn kept_count(bytes: &[u8]) -> Option<u64> {
    let count = u64::from_le_bytes(bytes[COUNT_AT..HEADER].try_into().expect("eight bytes"));
    (bytes[HEADER - 1] & NO_COUNT == 0).then_some(count)
}

pub fn keep_count(bytes: &mut [u8], count: u64) {
    bytes[COUNT_AT..HEADER].copy_from_slice(&count.to_le_bytes());
}

pub fn forget_count(bytes: &mut [u8]) {
    bytes[HEADER - 1] |= NO_COUNT;
}

/// An element's register, and the value that it gives it.
pub fn register_of(element: &[u8]) -> (usize, u8) {
    let hash = murmur64a(element, HASH_SEED);
    let rest = hash >> INDEX_BITS | 1 << COUNTED_BITS;
    (hash as usize & (REGISTERS - 1), rest.trailing_zeros() as u8 + 1)
}

/// MurmurHash64A, which everyone who shares registers has to use.
fn murmur64a(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    for word in words {
        let mut word = u64::from_le_bytes(word.try_into().expect("eight bytes")).wrapping_mul(M);
        word ^= word >> R;
        hash = (hash ^ word.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> R).wrapping_mul(M);
    hash ^ hash >> R
}

fn dense_at(index: usize) -> (usize, usize) {
    let bit = index * REGISTER_BITS;
    (HEADER + bit / 8, bit % 8)
}

/// A register of a dense HyperLogLog.
pub fn dense(bytes: &[u8], index: usize) -> u8 {
    let (at, shift) = dense_at(index);
    let next = bytes.get(at + 1).copied().unwrap_or(0);
    (u16::from_le_bytes([bytes[at], next]) >> shift & REGISTER_MASK) as u8
}

/// Gives a register of a dense HyperLogLog a value.
pub fn set_dense(bytes: &mut [u8], index: usize, value: u8) {
    let (at, shift) = dense_at(index);
    let [mask, value] = [REGISTER_MASK, u16::from(value)].map(|bits| (bits << shift).to_le_bytes());
    for (byte, (mask, value)) in bytes[at..].iter_mut().zip(mask.into_iter().zip(value)) {
        *byte = *byte & !mask | value;
    }
}

/// Raises a register of a dense HyperLogLog to a value. Returns whether it was lower; the count does not hold then.
pub fn raise_dense(bytes: &mut [u8], index: usize, value: u8) -> bool {
    let is_lower = dense(bytes, index) < value;
    if is_lower {
        set_dense(bytes, index, value);
        forget_count(bytes);
    }
    is_lower
}

/// Raises a register of any HyperLogLog, which becomes dense if that is shorter. Returns whether it was lower.
pub fn raise(bytes: &mut Vec<u8>, index: usize, value: u8, sparse_limit: usize) -> Result<bool, Error> {
    if encoding(bytes) == Some(Encoding::Dense) {
        return Ok(raise_dense(bytes, index, value));
    }
    match sparse::raise(bytes, index, value, sparse_limit)? {
        sparse::Raised::Unchanged => Ok(false),
        sparse::Raised::Changed => Ok(true),
        sparse::Raised::Unfit => {
            make_dense(bytes)?;
            Ok(raise_dense(bytes, index, value))
        }
    }
}

/// Makes a HyperLogLog dense, if it is not.
pub fn make_dense(bytes: &mut Vec<u8>) -> Result<(), Error> {
    if encoding(bytes) == Some(Encoding::Dense) {
        return Ok(());
    }
    let mut result = Vec::new();
    result.try_reserve_exact(DENSE_BYTES).map_err(|_| OutOfMemory)?;
    result.extend_from_slice(&header(Encoding::Dense));
    result.resize(DENSE_BYTES, 0);
    result[COUNT_AT..HEADER].copy_from_slice(&bytes[COUNT_AT..HEADER]);
    let mut index = 0;
    for run in Runs::of(bytes) {
        let run = run?;
        if run.value > 0 {
            (index..index + run.len).for_each(|index| set_dense(&mut result, index, run.value));
        }
        index += run.len;
    }
    *bytes = result;
    Ok(())
}

/// Raises registers to those of a HyperLogLog.
pub fn merge(bytes: &[u8], highest: &mut [u8]) -> Result<(), Corrupt> {
    if encoding(bytes) == Some(Encoding::Dense) {
        for (index, register) in highest.iter_mut().enumerate() {
            *register = dense(bytes, index).max(*register);
        }
        return Ok(());
    }
    let mut index = 0;
    for run in Runs::of(bytes) {
        let run = run?;
        highest[index..index + run.len].iter_mut().for_each(|register| *register = run.value.max(*register));
        index += run.len;
    }
    Ok(())
}

/// How many registers have each value, from runs of registers.
pub fn histogram(runs: impl Iterator<Item = (usize, u8)>) -> [usize; VALUES] {
    let mut histogram = [0; VALUES];
    runs.for_each(|(len, value)| histogram[usize::from(value)] += len);
    histogram
}
