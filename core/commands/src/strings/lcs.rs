//! `LCS`: the longest common subsequence of two strings.
//!
//! Row `i` of the table, for the first `i` bytes of `a`, is a string of bits over `b`: bit `j - 1` is clear where the
//! longest common subsequence of `a[..i]` and `b[..j]` is by one longer than that of `a[..i]` and `b[..j - 1]`. A row
//! follows from the one before it 64 bits at a time (H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004),
//! and one bit is also all that is needed to find the way back.

use super::with_text;
use crate::{Context, Error, Outcome, args};
use alloc::vec::Vec;
use kayvee_keyspace::{Kind, OutOfMemory, Value};
use kayvee_resp::Request;

const WORD_BITS: usize = u64::BITS as usize;
/// Bytes that Redis' table takes for each pair of positions; its limit, which holds here too, is in such bytes.
const REDIS_CELL_BYTES: u64 = 4;

const TOO_LONG: Error = Error::text("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len");
const NO_MEMORY: Error = Error::text("ERR Insufficient memory, failed allocating transient memory for LCS");

#[derive(Default)]
struct Options {
    idx: bool,
    len: bool,
    with_match_len: bool,
    min_match_len: i64,
}

impl Options {
    fn parse(request: Request<'_>) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut words = request.from(3);
        while let Some(word) = words.next() {
            match () {
                () if args::is(word, "idx") => options.idx = true,
                () if args::is(word, "len") => options.len = true,
                () if args::is(word, "withmatchlen") => options.with_match_len = true,
                () if args::is(word, "minmatchlen") => {
                    options.min_match_len = args::integer(words.next().ok_or(Error::SYNTAX)?)?;
                }
                () => return Err(Error::SYNTAX),
            }
        }
        if options.idx && options.len {
            return Err(Error::text("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(options)
    }
}

pub fn lcs(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let not_strings = |_| Error::text("ERR The specified keys must contain string values");
    let a = context.read(&request[1], Kind::String).map_err(not_strings)?;
    let b = context.read(&request[2], Kind::String).map_err(not_strings)?;
    let options = Options::parse(request)?;
    let limit_bytes = context.store.options.bulk_limit_bytes();
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let [a, b] = [a, b].map(|found| found.map_or(Value::Bytes(&[]), |found| store.dbs[index].value(found)));
    with_text(a, |a| {
        with_text(b, |b| {
            let cells = (a.len() as u64 + 1).checked_mul(b.len() as u64 + 1);
            if cells.and_then(|cells| cells.checked_mul(REDIS_CELL_BYTES)).is_none_or(|bytes| bytes > limit_bytes) {
                return Err(TOO_LONG);
            }
            if options.len {
                let rows = Rows::compute(a, b, Keep::Last).map_err(|_| NO_MEMORY)?;
                reply.integer(rows.lcs_len() as i64);
                return Ok(());
            }
            let rows = Rows::compute(a, b, Keep::All).map_err(|_| NO_MEMORY)?;
            if !options.idx {
                reply.bulk(&rows.subsequence(a, b).map_err(|_| NO_MEMORY)?);
                return Ok(());
            }
            let is_long = |range: &Range| range.len as i64 >= options.min_match_len;
            let ranges = rows.ranges(a, b).map_err(|_| NO_MEMORY)?;
            reply.map(2);
            reply.bulk(b"matches");
            reply.array(ranges.iter().filter(|range| is_long(range)).count());
            for range in ranges.iter().filter(|range| is_long(range)) {
                reply.array(2 + usize::from(options.with_match_len));
                for start in [range.a_start, range.b_start] {
                    reply.array(2);
                    reply.integer(start as i64);
                    reply.integer((start + range.len) as i64 - 1);
                }
                if options.with_match_len {
                    reply.integer(range.len as i64);
                }
            }
            reply.bulk(b"len");
            reply.integer(rows.lcs_len() as i64);
            Ok(())
        })
    })
}

/// Which rows of the table are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    All,
    Last,
}

/// A run of common bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    a_start: usize,
    b_start: usize,
    len: usize,
}

/// The table, or its last row.
struct Rows {
    words: Vec<u64>,
    words_per_row: usize,
    b_len: usize,
}

impl Rows {
    fn compute(a: &[u8], b: &[u8], keep: Keep) -> Result<Rows, OutOfMemory> {
        let words_per_row = b.len().div_ceil(WORD_BITS);
        let rows = match keep {
            Keep::All => a.len() + 1,
            Keep::Last => 1,
        };
        let mut words = Vec::new();
        words.try_reserve_exact(rows * words_per_row)?;
        // The row of the empty prefix: nothing is common, no bit is clear.
        words.resize(words_per_row, u64::MAX);
        for &byte in a {
            let from = match keep {
                Keep::All => {
                    let last = words.len() - words_per_row;
                    words.extend_from_within(last..);
                    words.len() - words_per_row
                }
                Keep::Last => 0,
            };
            advance_row(&mut words[from..], byte, b);
        }
        Ok(Rows { words, words_per_row, b_len: b.len() })
    }

    /// Length of the longest common subsequence of the whole strings.
    fn lcs_len(&self) -> usize {
        let row = &self.words[self.words.len() - self.words_per_row..];
        // Bits beyond the end of `b` match nothing and stay set.
        row.iter().map(|word| word.count_zeros() as usize).sum()
    }

    /// Whether `b[j - 1]` makes the subsequence of `a[..i]` and `b[..j]` longer.
    fn counts(&self, i: usize, j: usize) -> bool {
        let at = j - 1;
        self.words[i * self.words_per_row + at / WORD_BITS] >> (at % WORD_BITS) & 1 == 0
    }

    /// Calls `visit` with the positions of each common byte, from the last one to the first.
    fn walk_back(&self, a: &[u8], b: &[u8], mut visit: impl FnMut(usize, usize)) {
        let (mut i, mut j) = (a.len(), self.b_len);
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                visit(i, j);
            } else if self.counts(i, j) {
                // Without a[i - 1] it is as long, without b[j - 1] it is shorter. In a tie, Redis drops the latter.
                i -= 1;
            } else {
                j -= 1;
            }
        }
    }

    fn subsequence(&self, a: &[u8], b: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
        let mut common = Vec::new();
        common.try_reserve_exact(self.lcs_len())?;
        self.walk_back(a, b, |i, _| common.push(a[i]));
        common.reverse();
        Ok(common)
    }

    /// The runs of common bytes, the last one first.
    fn ranges(&self, a: &[u8], b: &[u8]) -> Result<Vec<Range>, OutOfMemory> {
        let mut ranges: Vec<Range> = Vec::new();
        let mut result = Ok(());
        self.walk_back(a, b, |i, j| match ranges.last_mut() {
            Some(last) if (last.a_start, last.b_start) == (i + 1, j + 1) => {
                *last = Range { a_start: i, b_start: j, len: last.len + 1 };
            }
            _ => match ranges.try_reserve(1) {
                Ok(()) => ranges.push(Range { a_start: i, b_start: j, len: 1 }),
                Err(error) => result = Err(error.into()),
            },
        });
        result.map(|()| ranges)
    }
}

/// Turns the row of a prefix into that of the prefix with `byte` behind it.
fn advance_row(row: &mut [u64], byte: u8, b: &[u8]) {
    let mut carry = false;
    for (word, part) in row.iter_mut().zip(b.chunks(WORD_BITS)) {
        let mut matches = 0;
        for (at, &other) in part.iter().enumerate() {
            matches |= u64::from(other == byte) << at;
        }
        let (sum, carry_a) = word.overflowing_add(*word & matches);
        let (sum, carry_b) = sum.overflowing_add(carry.into());
        carry = carry_a || carry_b;
        *word = sum | (*word & !matches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Redis' table and its way back through it, one number for each pair of positions.
    fn by_table(a: &[u8], b: &[u8]) -> (usize, Vec<Range>) {
        let width = b.len() + 1;
        let mut table = alloc::vec![0usize; (a.len() + 1) * width];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i * width + j] = if a[i - 1] == b[j - 1] {
                    table[(i - 1) * width + j - 1] + 1
                } else {
                    table[(i - 1) * width + j].max(table[i * width + j - 1])
                };
            }
        }
        let mut ranges: Vec<Range> = Vec::new();
        let (mut i, mut j) = (a.len(), b.len());
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                match ranges.last_mut() {
                    Some(last) if (last.a_start, last.b_start) == (i + 1, j + 1) => {
                        *last = Range { a_start: i, b_start: j, len: last.len + 1 };
                    }
                    _ => ranges.push(Range { a_start: i, b_start: j, len: 1 }),
                }
            } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        (table[table.len() - 1], ranges)
    }

    #[test]
    fn gives_what_a_table_gives() {
        let mut rng = fastrand::Rng::with_seed(11);
        for case in 0..3000 {
            let letters = rng.u8(1..6);
            let mut word = || -> Vec<u8> { (0..rng.usize(..220)).map(|_| rng.u8(..letters)).collect() };
            let (a, b) = (word(), word());
            let (len, ranges) = by_table(&a, &b);
            let rows = Rows::compute(&a, &b, Keep::All).unwrap();
            assert_eq!(rows.lcs_len(), len, "case {case}");
            assert_eq!(Rows::compute(&a, &b, Keep::Last).unwrap().lcs_len(), len, "case {case}");
            assert_eq!(rows.ranges(&a, &b).unwrap(), ranges, "case {case}");
            assert_eq!(rows.subsequence(&a, &b).unwrap().len(), len, "case {case}");
        }
    }
}
