//! A compact, sorted table from code addresses to function names, for a program that prints its own backtraces.
//!
//! The host writes it into the image ([`encode`]), the guest reads it while it crashes ([`SymbolTable`]): so reading
//! allocates nothing, trusts nothing in the bytes and never panics.
//!
//! ```text
//! offset  0        4        8                   8 + 8 × count
//!        +--------+--------+----------------------+------------------------------------+
//!        | "KVSY" | count  | count × (start, name) | names, each: length (1 byte), UTF-8|
//!        +--------+--------+----------------------+------------------------------------+
//! ```
//!
//! All numbers are 32-bit little-endian. `start` is a function's first address; the names follow in the same order, and
//! the entry's second word is the offset of its name from the table's beginning.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{string::String, vec::Vec};

const MAGIC: [u8; 4] = *b"KVSY";
const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 8;

/// Longest name that is kept, in bytes; longer ones are cut.
pub const MAX_NAME_BYTES: usize = 160;

const _: () = assert!(MAX_NAME_BYTES <= u8::MAX as usize, "a name's length is one byte");

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its first address.
    pub start: u32,
    /// Its name, as people read it.
    pub name: String,
}

/// Writes a table of `symbols`, in any order. Of several names for one address the first in the alphabet is kept.
pub fn encode(mut symbols: Vec<Symbol>) -> Vec<u8> {
    symbols.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    symbols.dedup_by_key(|symbol| symbol.start);
    let mut entries = Vec::with_capacity(symbols.len() * ENTRY_BYTES);
    let mut names = Vec::new();
    let names_at = HEADER_BYTES + symbols.len() * ENTRY_BYTES;
    for symbol in &symbols {
        let mut len = symbol.name.len().min(MAX_NAME_BYTES);
        while !symbol.name.is_char_boundary(len) {
            len -= 1;
        }
        entries.extend_from_slice(&symbol.start.to_le_bytes());
        entries.extend_from_slice(&((names_at + names.len()) as u32).to_le_bytes());
        names.push(len as u8);
        names.extend_from_slice(&symbol.name.as_bytes()[..len]);
    }
    [&MAGIC[..], &(symbols.len() as u32).to_le_bytes(), &entries, &names].concat()
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
        let declared = if bytes.starts_with(&MAGIC) { word(bytes, MAGIC.len()).unwrap_or(0) as usize } else { 0 };
        let count = if declared <= bytes.len() / ENTRY_BYTES { declared } else { 0 };
        SymbolTable { bytes, count }
    }

    /// The function that `address` lies in, as far as the table can tell: the last one that starts at or before it,
    /// with the distance from its start.
    pub fn lookup(&self, address: u64) -> Option<(&'a str, u64)> {
        let address = u32::try_from(address).ok()?;
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
        let name_at = word(self.bytes, HEADER_BYTES + index * ENTRY_BYTES + 4)? as usize;
        let len = *self.bytes.get(name_at)? as usize;
        let name = self.bytes.get(name_at + 1..name_at + 1 + len)?;
        Some((core::str::from_utf8(name).ok()?, u64::from(address - self.start(index)?)))
    }

    fn start(&self, index: usize) -> Option<u32> {
        word(self.bytes, HEADER_BYTES + index * ENTRY_BYTES)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn symbol(start: u32, name: &str) -> Symbol {
        Symbol { start, name: name.into() }
    }

    #[test]
    fn finds_the_function_around_an_address() {
        let table = encode(vec![symbol(0x300, "c"), symbol(0x100, "a::b"), symbol(0x200, "é"), symbol(0x200, "z")]);
        let table = SymbolTable::new(&table);
        assert_eq!(table.lookup(0xff), None);
        assert_eq!(table.lookup(0x100), Some(("a::b", 0)));
        assert_eq!(table.lookup(0x1ff), Some(("a::b", 0xff)));
        assert_eq!(table.lookup(0x200), Some(("z", 0)));
        assert_eq!(table.lookup(0xffff_ffff), Some(("c", 0xffff_fcff)));
        assert_eq!(table.lookup(1 << 32), None);
    }

    #[test]
    fn cuts_long_names_between_characters() {
        let long: String = core::iter::repeat_n('é', 100).collect();
        let table = encode(vec![symbol(1, &long), symbol(2, "next")]);
        let table = SymbolTable::new(&table);
        assert_eq!(table.lookup(1).unwrap().0, &long[..MAX_NAME_BYTES]);
        assert_eq!(table.lookup(2), Some(("next", 0)));
    }

    #[test]
    fn damaged_tables_find_nothing_and_never_panic() {
        assert_eq!(SymbolTable::new(&[]).lookup(1), None);
        let good = encode(vec![symbol(0x100, "a"), symbol(0x200, "b")]);
        for len in 0..good.len() {
            let _ = SymbolTable::new(&good[..len]).lookup(0x180);
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                for address in [0, 0x100, 0x180, 0x200, 0xffff_ffff] {
                    let _ = SymbolTable::new(&bad).lookup(address);
                }
            }
        }
    }
}
