//! A compact, sorted table from code addresses to function names, for a program that prints its own backtraces.
//!
//! The host writes it into the image ([`encode`]), the guest reads it while it crashes ([`SymbolTable`]): so reading
//! allocates nothing, trusts nothing in the bytes and never panics.
//!
//! ```text
//! offset  0        4           8             264
//!        +--------+-----------+-------------+-------------------+-------+
//!        | "KVSY" | functions | 128 × pair  | functions × start | names |
//!        +--------+-----------+-------------+-------------------+-------+
//!          4        4           1, 1          3                   bytes
//! ```
//!
//! All numbers are little-endian. Functions stand in the order of their names in the alphabet. `start` is a function's first
//! address, and its highest bit says that the name is that of the function before. Each name stands once, without what it has
//! in common with the one before: how many bytes that is (1 byte), and those that follow, up to a zero. So a name is found by
//! reading all names before it, which a program that crashes has the time for.
//!
//! Names are ASCII. Those bytes of theirs that follow are packed into pairs (`kayvee-pairs`), which halves the names.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{string::String, vec::Vec};

const MAGIC: [u8; 4] = *b"KVSY";
const PAIRS_AT: usize = 8;
const STARTS_AT: usize = PAIRS_AT + kayvee_pairs::PAIRS_BYTES;
const START_BYTES: usize = 3;
/// In a function's start: it has the name of the one before.
const SAME_NAME: usize = 1 << (8 * START_BYTES - 1);
/// Ends a name.
const END: u8 = 0;

/// Longest name that is kept, in bytes; longer ones are cut. What is not ASCII becomes `?`.
pub const MAX_NAME_BYTES: usize = 160;

const _: () = assert!(MAX_NAME_BYTES <= u8::MAX as usize, "a name's length is one byte");

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its first address. Those from 8 MiB on are left out: the image ends below.
    pub start: u32,
    /// Its name, as people read it.
    pub name: String,
}

/// Writes a table of `symbols`, in any order. Of several names for one address the first in the alphabet is kept, and of
/// functions with one name that stand behind each other the first.
pub fn encode(mut symbols: Vec<Symbol>) -> Vec<u8> {
    symbols.retain(|symbol| (symbol.start as usize) < SAME_NAME);
    for symbol in &mut symbols {
        let shown = |character: char| if character.is_ascii() && !character.is_control() { character } else { '?' };
        symbol.name = symbol.name.chars().map(shown).take(MAX_NAME_BYTES).collect();
    }
    symbols.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    symbols.dedup_by_key(|symbol| symbol.start);
    symbols.dedup_by(|next, first| next.name == first.name);
    symbols.sort_by(|a, b| (&a.name, a.start).cmp(&(&b.name, b.start)));

    let (mut starts, mut shared, mut endings) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = "";
    for (number, symbol) in symbols.iter().enumerate() {
        let is_same = number > 0 && symbol.name == before;
        let start = symbol.start as usize | if is_same { SAME_NAME } else { 0 };
        starts.extend_from_slice(&start.to_le_bytes()[..START_BYTES]);
        if !is_same {
            let common = before.bytes().zip(symbol.name.bytes()).take_while(|(a, b)| a == b).count();
            shared.push(common as u8);
            endings.push([&symbol.name.as_bytes()[common..], &[END]].concat());
        }
        before = &symbol.name;
    }
    let pairs = kayvee_pairs::pack(&mut endings);

    let mut table = MAGIC.to_vec();
    table.extend_from_slice(&(symbols.len() as u32).to_le_bytes());
    table.extend_from_slice(&pairs);
    table.extend_from_slice(&starts);
    for (shared, ending) in shared.iter().zip(&endings) {
        table.push(*shared);
        table.extend_from_slice(ending);
    }
    table
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
    pairs: &'a [u8],
    starts: &'a [u8],
    names: &'a [u8],
}

impl<'a> SymbolTable<'a> {
    /// Reads a table's header. An empty slice, or anything else that is no table, is a table without symbols.
    pub fn new(bytes: &'a [u8]) -> SymbolTable<'a> {
        let parts = || {
            let (header, rest) = bytes.strip_prefix(&MAGIC)?.split_at_checked(STARTS_AT - MAGIC.len())?;
            let (functions, pairs) = header.split_first_chunk()?;
            let starts_bytes = (u32::from_le_bytes(*functions) as usize).checked_mul(START_BYTES)?;
            let (starts, names) = rest.split_at_checked(starts_bytes)?;
            Some(SymbolTable { pairs, starts, names })
        };
        parts().unwrap_or(SymbolTable { pairs: &[], starts: &[], names: &[] })
    }

    /// The function that `address` lies in, as far as the table can tell: the last one that starts at or before it,
    /// with the distance from its start.
    pub fn lookup(&self, address: u64) -> Option<(Name, u64)> {
        let mut names = 0;
        let mut found: Option<(u64, usize)> = None;
        for entry in self.starts.chunks_exact(START_BYTES) {
            let entry = entry.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte));
            names += usize::from(entry & SAME_NAME == 0);
            let start = (entry & !SAME_NAME) as u64;
            if start <= address && found.is_none_or(|(before, _)| before < start) {
                found = Some((start, names));
            }
        }
        let (start, names) = found?;
        Some((self.last_of(names)?, address - start))
    }

    /// The last of so many names: each is what it has of the one before, and what follows.
    fn last_of(&self, names: usize) -> Option<Name> {
        let mut bytes = self.names.iter();
        let mut name = Name { bytes: [0; MAX_NAME_BYTES], len: 0 };
        for _ in 0..names {
            name.len = name.len.min(usize::from(*bytes.next()?));
            let mut is_whole = false;
            while !is_whole {
                kayvee_pairs::unpack(self.pairs, *bytes.next()?, &mut |byte| match name.bytes.get_mut(name.len) {
                    Some(place) if byte != END => {
                        *place = byte;
                        name.len += 1;
                    }
                    _ => is_whole = true,
                })?;
            }
        }
        Some(name)
    }
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
        let names = [(0x300, "c"), (0x100, "a::b"), (0x200, "zz"), (0x200, "z"), (0x400, "a::c::d"), (0x500, "a::b")];
        let names = [&names[..], &[(0x600, "a::b")]].concat();
        let table = encode(names.into_iter().map(|(start, name)| symbol(start, name)).collect());
        let table = SymbolTable::new(&table);
        assert_eq!(shown(&table, 0xff), None);
        assert_eq!(shown(&table, 0x100), found("a::b", 0));
        assert_eq!(shown(&table, 0x1ff), found("a::b", 0xff));
        assert_eq!(shown(&table, 0x200), found("z", 0));
        assert_eq!(shown(&table, 0x3ff), found("c", 0xff));
        assert_eq!(shown(&table, 0x404), found("a::c::d", 4));
        assert_eq!(shown(&table, 0xffff_ffff), found("a::b", 0xffff_faff));
    }

    #[test]
    fn keeps_every_name_of_many() {
        let names: Vec<String> =
            (0..1000).map(|n| alloc::format!("module{}::function{}", n % 7, n * 31 % 500)).collect();
        let symbols = names.iter().zip(0..).map(|(name, at)| symbol(0x10_0000 + at * 16, name)).collect();
        let table = encode(symbols);
        assert!(table.len() < 1000 * (START_BYTES + 8), "{}", table.len());
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
