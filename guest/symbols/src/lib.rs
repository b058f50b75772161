//! A compact, sorted table from code addresses to function names, for a program that prints its own backtraces.
//!
//! The host writes it into the image ([`encode`]), the guest reads it while it crashes ([`SymbolTable`]): so reading
//! allocates nothing, trusts nothing in the bytes and never panics.
//!
//! ```text
//! offset  0        4           8       12            268
//!        +--------+-----------+-------+-------------+---------------------------+-----------------+---------+
//!        | "KVSY" | functions | names | 128 × pair  | functions × (start, name) | groups × offset | names   |
//!        +--------+-----------+-------+-------------+---------------------------+-----------------+---------+
//!          4        4           4       1, 1          3, 2                        4                 bytes
//! ```
//!
//! All numbers are little-endian. `start` is a function's first address and `name` the number of its name. Names stand in
//! the order of the alphabet, each without what it has in common with the one before: how many bytes that is (1 byte), how
//! many follow (1 byte), and these. Each group of 16 begins with a whole name; its offset is from the table's beginning.
//!
//! Names are ASCII. A byte from 128 on among those that follow stands for the pair of that number, whose bytes may stand for
//! pairs before it: the pairs that are most frequent one after the other, which halves the table (Gage 1994, "A New
//! Algorithm for Data Compression").
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{collections::BTreeSet, string::String, vec::Vec};

const MAGIC: [u8; 4] = *b"KVSY";
const PAIRS_AT: usize = 12;
/// The first byte that stands for a pair.
const FIRST_PAIR: u8 = 128;
const PAIRS: usize = 128;
const HEADER_BYTES: usize = PAIRS_AT + 2 * PAIRS;
const START_BYTES: usize = 3;
const ENTRY_BYTES: usize = START_BYTES + 2;
const OFFSET_BYTES: usize = 4;
/// Names of which the first stands whole: more of them take less room and more time to find one.
const GROUP: usize = 16;

/// Longest name that is kept, in bytes; longer ones are cut. What is not ASCII becomes `?`.
pub const MAX_NAME_BYTES: usize = 160;

const _: () = assert!(MAX_NAME_BYTES <= u8::MAX as usize, "a name's length is one byte");

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its first address. Those from 16 MiB on are left out: the image ends below.
    pub start: u32,
    /// Its name, as people read it.
    pub name: String,
}

/// Writes a table of `symbols`, in any order. Of several names for one address the first in the alphabet is kept.
pub fn encode(mut symbols: Vec<Symbol>) -> Vec<u8> {
    symbols.retain(|symbol| symbol.start >> (8 * START_BYTES) == 0);
    symbols.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    symbols.dedup_by_key(|symbol| symbol.start);
    for symbol in &mut symbols {
        let ascii = symbol.name.chars().map(|character| if character.is_ascii() { character } else { '?' });
        symbol.name = ascii.take(MAX_NAME_BYTES).collect();
    }
    let names: BTreeSet<&str> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let mut before = "";
    let mut endings = Vec::new();
    for (number, &name) in names.iter().enumerate() {
        if number % GROUP == 0 {
            before = "";
        }
        let shared = before.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        endings.push((shared, name.as_bytes()[shared..].to_vec()));
        before = name;
    }
    let pairs = replace_pairs(&mut endings);

    let texts_at = HEADER_BYTES + symbols.len() * ENTRY_BYTES + names.len().div_ceil(GROUP) * OFFSET_BYTES;
    let (mut offsets, mut texts) = (Vec::new(), Vec::new());
    for (number, (shared, ending)) in endings.iter().enumerate() {
        if number % GROUP == 0 {
            offsets.push(texts_at + texts.len());
        }
        texts.extend([*shared as u8, ending.len() as u8]);
        texts.extend_from_slice(ending);
    }
    let mut table = MAGIC.to_vec();
    for count in [symbols.len(), names.len()] {
        table.extend_from_slice(&(count as u32).to_le_bytes());
    }
    table.extend(pairs.into_iter().flatten());
    for symbol in &symbols {
        let number = names.binary_search(&symbol.name.as_str()).unwrap_or_default();
        table.extend_from_slice(&symbol.start.to_le_bytes()[..START_BYTES]);
        // Too many of them share the first, which is wrong then, but not dangerous.
        table.extend_from_slice(&u16::try_from(number).unwrap_or_default().to_le_bytes());
    }
    offsets.iter().for_each(|&offset| table.extend_from_slice(&(offset as u32).to_le_bytes()));
    table.extend_from_slice(&texts);
    table
}

/// Replaces the pairs that are the most frequent in all texts by one byte each, round by round, so that pairs of pairs are
/// found as well. Returns what the bytes stand for.
fn replace_pairs(texts: &mut [(usize, Vec<u8>)]) -> [[u8; 2]; PAIRS] {
    /// Pairs replaced in a round. One would do a little better, and takes many times as long.
    const AT_ONCE: usize = 8;
    let number_of = |two: &[u8]| usize::from(two[0]) << 8 | usize::from(two[1]);
    let mut pairs = [[0; 2]; PAIRS];
    for first in (0..PAIRS).step_by(AT_ONCE) {
        let mut counts = alloc::vec![0_u32; 1 << 16];
        let neighbors = texts.iter().flat_map(|(_, text)| text.windows(2));
        neighbors.for_each(|two| counts[number_of(two)] += 1);
        let mut frequent: Vec<usize> = (0..counts.len()).filter(|&pair| counts[pair] > 1).collect();
        frequent.sort_by_key(|&pair| core::cmp::Reverse(counts[pair]));
        let mut byte_of = alloc::vec![None; 1 << 16];
        for (at, &pair) in (first..PAIRS).zip(frequent.iter().take(AT_ONCE)) {
            pairs[at] = [(pair >> 8) as u8, pair as u8];
            byte_of[pair] = Some(FIRST_PAIR + at as u8);
        }
        for (_, text) in texts.iter_mut() {
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
    pairs
}

/// A function's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; MAX_NAME_BYTES],
    len: usize,
}

impl core::fmt::Display for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("?"))
    }
}

/// A table, read in place.
#[derive(Clone, Copy, Debug)]
pub struct SymbolTable<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> SymbolTable<'a> {
    /// Reads a table's header. An empty slice, or anything else that is no table, is a table without symbols.
    pub fn new(bytes: &'a [u8]) -> SymbolTable<'a> {
        let declared = if bytes.starts_with(&MAGIC) { number(bytes, MAGIC.len(), 4).unwrap_or(0) } else { 0 };
        SymbolTable { bytes, count: if declared <= bytes.len() / ENTRY_BYTES { declared } else { 0 } }
    }

    /// The function that `address` lies in, as far as the table can tell: the last one that starts at or before it,
    /// with the distance from its start.
    pub fn lookup(&self, address: u64) -> Option<(Name, u64)> {
        let address = usize::try_from(address).ok().filter(|address| address >> 32 == 0)?;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? <= address {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let index = low.checked_sub(1)?;
        let name = self.name(number(self.bytes, HEADER_BYTES + index * ENTRY_BYTES + START_BYTES, 2)?)?;
        Some((name, (address - self.start(index)?) as u64))
    }

    /// A name by its number: the first of its group, and what the others change of it.
    fn name(&self, wanted: usize) -> Option<Name> {
        let offset_at = HEADER_BYTES + self.count * ENTRY_BYTES + wanted / GROUP * OFFSET_BYTES;
        let mut at = number(self.bytes, offset_at, OFFSET_BYTES)?;
        let mut name = Name { bytes: [0; MAX_NAME_BYTES], len: 0 };
        for _ in 0..=wanted % GROUP {
            let (shared, more) = (number(self.bytes, at, 1)?, number(self.bytes, at + 1, 1)?);
            name.len = shared;
            for &byte in self.bytes.get(at + 2..at + 2 + more)? {
                self.expand(byte, &mut name)?;
            }
            at += 2 + more;
        }
        Some(name)
    }

    /// Writes what a byte stands for behind a name.
    fn expand(&self, byte: u8, name: &mut Name) -> Option<()> {
        // The second halves of pairs whose first half is being written: each is of a later pair than what is in it.
        let mut stack = [byte; PAIRS + 1];
        let mut depth = 1_usize;
        while let Some(above) = depth.checked_sub(1) {
            depth = above;
            let byte = stack[depth];
            if byte < FIRST_PAIR {
                *name.bytes.get_mut(name.len)? = byte;
                name.len += 1;
                continue;
            }
            let pair_at = PAIRS_AT + 2 * usize::from(byte - FIRST_PAIR);
            let &[first, second] = self.bytes.get(pair_at..pair_at + 2)?.first_chunk()?;
            if first >= byte || second >= byte {
                return None;
            }
            *stack.get_mut(depth)? = second;
            *stack.get_mut(depth + 1)? = first;
            depth += 2;
        }
        Some(())
    }

    fn start(&self, index: usize) -> Option<usize> {
        number(self.bytes, HEADER_BYTES + index * ENTRY_BYTES, START_BYTES)
    }
}

/// The number of so many bytes, at most four, at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + len)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec};

    fn symbol(start: u32, name: &str) -> Symbol {
        Symbol { start, name: name.into() }
    }

    fn shown(table: &SymbolTable<'_>, address: u64) -> Option<(String, u64)> {
        table.lookup(address).map(|(name, distance)| (name.to_string(), distance))
    }

    fn found(name: &str, distance: u64) -> Option<(String, u64)> {
        Some((name.into(), distance))
    }

    #[test]
    fn finds_the_function_around_an_address() {
        let names = [(0x300, "c"), (0x100, "a::b"), (0x200, "zz"), (0x200, "z"), (0x400, "a::c::d"), (0x500, "a::e")];
        let table = encode(names.map(|(start, name)| symbol(start, name)).to_vec());
        let table = SymbolTable::new(&table);
        assert_eq!(shown(&table, 0xff), None);
        assert_eq!(shown(&table, 0x100), found("a::b", 0));
        assert_eq!(shown(&table, 0x1ff), found("a::b", 0xff));
        assert_eq!(shown(&table, 0x200), found("z", 0));
        assert_eq!(shown(&table, 0x3ff), found("c", 0xff));
        assert_eq!(shown(&table, 0x404), found("a::c::d", 4));
        assert_eq!(shown(&table, 0xffff_ffff), found("a::e", 0xffff_faff));
        assert_eq!(shown(&table, 1 << 32), None);
    }

    #[test]
    fn keeps_every_name_of_many_groups() {
        let names: Vec<String> =
            (0..1000).map(|n| alloc::format!("module{}::function{}", n % 7, n * 31 % 500)).collect();
        let symbols = names.iter().zip(0..).map(|(name, at)| symbol(0x10_0000 + at * 16, name)).collect();
        let table = encode(symbols);
        assert!(table.len() < 1000 * (ENTRY_BYTES + 8), "{}", table.len());
        for (name, at) in names.iter().zip(0..) {
            assert_eq!(shown(&SymbolTable::new(&table), 0x10_0000 + at * 16 + 5), found(name, 5));
        }
    }

    #[test]
    fn cuts_long_names_and_shows_other_characters_than_ascii_as_question_marks() {
        let long = "é".repeat(MAX_NAME_BYTES + 1);
        let table = encode(vec![symbol(1, &long), symbol(2, "nèxt")]);
        let table = SymbolTable::new(&table);
        assert_eq!(shown(&table, 1), found(&"?".repeat(MAX_NAME_BYTES), 0));
        assert_eq!(shown(&table, 2), found("n?xt", 0));
    }

    #[test]
    fn damaged_tables_find_nothing_and_never_panic() {
        assert_eq!(SymbolTable::new(&[]).lookup(1), None);
        let good = encode(vec![symbol(0x100, "a"), symbol(0x200, "p::b")]);
        for len in 0..good.len() {
            let _ = SymbolTable::new(&good[..len]).lookup(0x180);
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                for address in [0, 0x100, 0x180, 0x200, 0xffff_ffff] {
                    let _ = SymbolTable::new(&bad).lookup(address);
                }
            }
        }
    }
}
