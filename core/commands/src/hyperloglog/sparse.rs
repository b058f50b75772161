//! The sparse form: runs of registers that have the same value.
//!
//! ```text
//! 00llllll            l + 1 registers are 0
//! 01llllll llllllll   l + 1 registers are 0
//! 1vvvvvll            l + 1 registers are v + 1
//! ```

use super::registers::{Corrupt, Encoding, HEADER, REGISTERS, forget_count, header};
use crate::Error;
use alloc::vec::Vec;
use kayvee_keyspace::OutOfMemory;

/// Longest runs of each kind, and the highest value.
const SHORT_ZEROS_LIMIT: usize = 1 << 6;
const VALUES_LIMIT: usize = 1 << 2;
const VALUE_LIMIT: u8 = 1 << 5;

const LONG_ZEROS: u8 = 0b0100_0000;
const VALUE: u8 = 0b1000_0000;

/// Registers in a row that have the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub value: u8,
    pub len: usize,
    /// Bytes that it takes.
    pub bytes: usize,
}

impl Run {
    fn read(bytes: &[u8]) -> Option<Run> {
        let &first = bytes.first()?;
        if first & VALUE != 0 {
            return Some(Run { value: (first >> 2 & 0x1f) + 1, len: usize::from(first & 3) + 1, bytes: 1 });
        }
        if first & LONG_ZEROS == 0 {
            return Some(Run { value: 0, len: usize::from(first) + 1, bytes: 1 });
        }
        let second = *bytes.get(1)?;
        Some(Run { value: 0, len: (usize::from(first & 0x3f) << 8 | usize::from(second)) + 1, bytes: 2 })
    }

    /// Whether it is a run of zeros in two bytes.
    pub fn is_long(self) -> bool {
        self.bytes == 2
    }
}

/// What stands there as runs, whether they cover all registers or not. The second byte of the last one may be missing: it is
/// then zero, as Redis reads the end of a string.
pub fn written(bytes: &[u8]) -> impl Iterator<Item = Run> {
    let mut rest = &bytes[HEADER..];
    core::iter::from_fn(move || {
        let run = Run::read(rest).or_else(|| Run::read(&[*rest.first()?, 0]))?;
        rest = rest.get(run.bytes..).unwrap_or_default();
        Some(run)
    })
}

/// The runs of a HyperLogLog, which cover all registers or end with an error.
pub struct Runs<'a> {
    rest: &'a [u8],
    left: usize,
    failed: bool,
}

impl<'a> Runs<'a> {
    pub fn of(bytes: &'a [u8]) -> Runs<'a> {
        Runs { rest: &bytes[HEADER..], left: REGISTERS, failed: false }
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<Run, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || (self.rest.is_empty() && self.left == 0) {
            return None;
        }
        match Run::read(self.rest).filter(|run| run.len <= self.left) {
            Some(run) => {
                self.rest = &self.rest[run.bytes..];
                self.left -= run.len;
                Some(Ok(run))
            }
            None => {
                self.failed = true;
                Some(Err(Corrupt))
            }
        }
    }
}

/// A HyperLogLog that has seen nothing.
pub fn empty() -> Vec<u8> {
    let mut bytes = Vec::from(header(Encoding::Sparse));
    let mut runs = Sequence::default();
    runs.zeros(REGISTERS);
    bytes.extend_from_slice(runs.bytes());
    bytes
}

/// Runs that take the place of one.
#[derive(Default)]
struct Sequence {
    bytes: [u8; 5],
    len: usize,
}

impl Sequence {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn zeros(&mut self, len: usize) {
        match len {
            0 => {}
            1..=SHORT_ZEROS_LIMIT => self.push((len - 1) as u8),
            _ => {
                self.push(LONG_ZEROS | ((len - 1) >> 8) as u8);
                self.push((len - 1) as u8);
            }
        }
    }

    fn run(&mut self, value: u8, len: usize) {
        match (value, len) {
            (_, 0) => {}
            (0, _) => self.zeros(len),
            _ => self.push(value_run(value, len)),
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn value_run(value: u8, len: usize) -> u8 {
    VALUE | (value - 1) << 2 | (len - 1) as u8
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    Unchanged,
    Changed,
    /// The sparse form would be too long, or cannot hold the value.
    Unfit,
}

/// Raises a register to a value, if it is lower and the result is not too long.
pub fn raise(bytes: &mut Vec<u8>, index: usize, value: u8, limit: usize) -> Result<Raised, Error> {
    if value > VALUE_LIMIT {
        return Ok(Raised::Unfit);
    }
    let (mut at, mut first) = (HEADER, 0);
    let mut previous = None;
    let run = loop {
        let run = Run::read(&bytes[at..]).ok_or(Corrupt)?;
        if index < first + run.len {
            break run;
        }
        previous = Some(at);
        at += run.bytes;
        first += run.len;
    };
    // As in Redis, a run that goes on too far is found out by those who read all.
    if run.value >= value {
        return Ok(Raised::Unchanged);
    }
    let mut sequence = Sequence::default();
    sequence.run(run.value, index - first);
    sequence.run(value, 1);
    sequence.run(run.value, first + run.len - index - 1);
    let new = sequence.bytes();
    let growth = new.len().saturating_sub(run.bytes);
    if growth > 0 && bytes.len() + growth > limit {
        return Ok(Raised::Unfit);
    }
    bytes.try_reserve(growth).map_err(|_| OutOfMemory)?;
    bytes.splice(at..at + run.bytes, new.iter().copied());
    join_values(bytes, previous.unwrap_or(HEADER));
    forget_count(bytes);
    Ok(Raised::Changed)
}

/// Joins runs of the same value around a change, as far as Redis looks for them.
fn join_values(bytes: &mut Vec<u8>, from: usize) {
    const SCANNED_RUNS: usize = 5;
    let mut at = from;
    for _ in 0..SCANNED_RUNS {
        let Some(run) = bytes.get(at..).and_then(Run::read) else { return };
        let next = bytes.get(at + run.bytes..).and_then(Run::read);
        match next {
            Some(next) if run.value > 0 && next.value == run.value && run.len + next.len <= VALUES_LIMIT => {
                bytes[at + 1] = value_run(run.value, run.len + next.len);
                bytes.remove(at);
            }
            _ => at += run.bytes,
        }
    }
}
