//! A compact, sorted table from code addresses to function names, for a program that prints its own backtraces.
//!
//! The host writes it into the image ([`encode`]), the guest reads it while it crashes ([`SymbolTable`]): so reading
//! allocates nothing, trusts nothing in the bytes and never panics.
//!
//! ```text
//! offset  0        4           8       12
//!        +--------+-----------+-------+----------------------------+--------------+-------+
//!        | "KVSY" | functions | paths | functions × (start, name)  | paths × path | texts |
//!        +--------+-----------+-------+----------------------------+--------------+-------+
//! ```
//!
//! All these numbers are 32-bit little-endian. `start` is a function's first address; `name` and `path` are offsets from
//! the table's beginning to a text. A path is what many names begin with, up to their last `::`, and is kept once.
//!
//! ```text
//! path: length (1 byte), UTF-8          name: number of its path (2 bytes), length of the rest (1 byte), UTF-8
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::{collections::BTreeMap, string::String, vec::Vec};

const MAGIC: [u8; 4] = *b"KVSY";
const HEADER_BYTES: usize = 12;
const ENTRY_BYTES: usize = 8;
const PATH_BYTES: usize = 4;

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
    let mut paths: BTreeMap<&str, u16> = BTreeMap::new();
    // Starts and offsets; paths' offsets; texts. Offsets are from the beginning of the texts at first.
    let (mut entries, mut path_offsets, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for symbol in &symbols {
        let name = &symbol.name[..symbol.name.floor_char_boundary(MAX_NAME_BYTES)];
        let (path, rest) = name.split_at(name.rfind("::").unwrap_or(0));
        let next = u16::try_from(paths.len());
        // Too many of them share the first, which is wrong then, but not dangerous.
        let number = *paths.entry(path).or_insert_with(|| {
            path_offsets.push(texts.len());
            put(&mut texts, path);
            next.unwrap_or(0)
        });
        entries.push((symbol.start, texts.len()));
        texts.extend_from_slice(&number.to_le_bytes());
        put(&mut texts, rest);
    }
    let texts_at = HEADER_BYTES + entries.len() * ENTRY_BYTES + path_offsets.len() * PATH_BYTES;
    let mut table = MAGIC.to_vec();
    let mut word = |number: usize| table.extend_from_slice(&(number as u32).to_le_bytes());
    word(entries.len());
    word(path_offsets.len());
    for (start, name) in entries {
        word(start as usize);
        word(texts_at + name);
    }
    path_offsets.iter().for_each(|path| word(texts_at + path));
    table.extend_from_slice(&texts);
    table
}

/// Writes a text behind its length.
fn put(texts: &mut Vec<u8>, text: &str) {
    texts.push(text.len() as u8);
    texts.extend_from_slice(text.as_bytes());
}

/// A function's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    path: &'a str,
    rest: &'a str,
}

impl core::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.path)?;
        f.write_str(self.rest)
    }
}

/// A table, read in place.
#[derive(Clone, Copy, Debug)]
pub struct SymbolTable<'a> {
    bytes: &'a [u8],
    count: usize,
    paths: usize,
}

impl<'a> SymbolTable<'a> {
    /// Reads a table's header. An empty slice, or anything else that is no table, is a table without symbols.
    pub fn new(bytes: &'a [u8]) -> SymbolTable<'a> {
        let declared = |at: usize| if bytes.starts_with(&MAGIC) { word(bytes, at).unwrap_or(0) as usize } else { 0 };
        let (functions, paths) = (declared(MAGIC.len()), declared(MAGIC.len() + 4));
        let is_possible = functions <= bytes.len() / ENTRY_BYTES && paths <= bytes.len() / PATH_BYTES;
        if is_possible {
            SymbolTable { bytes, count: functions, paths }
        } else {
            SymbolTable { bytes, count: 0, paths: 0 }
        }
    }

    /// The function that `address` lies in, as far as the table can tell: the last one that starts at or before it,
    /// with the distance from its start.
    pub fn lookup(&self, address: u64) -> Option<(Name<'a>, u64)> {
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
        let number = self.bytes.get(name_at..name_at.checked_add(2)?)?;
        let number = usize::from(u16::from_le_bytes(number.try_into().ok()?));
        if number >= self.paths {
            return None;
        }
        let path_at = word(self.bytes, HEADER_BYTES + self.count * ENTRY_BYTES + number * PATH_BYTES)? as usize;
        let name = Name { path: self.text(path_at)?, rest: self.text(name_at + 2)? };
        Some((name, u64::from(address - self.start(index)?)))
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        let len = usize::from(*self.bytes.get(at)?);
        core::str::from_utf8(self.bytes.get(at + 1..at + 1 + len)?).ok()
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
        let names = [(0x300, "c"), (0x100, "a::b"), (0x200, "é"), (0x200, "z"), (0x400, "a::c::d"), (0x500, "a::e")];
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
    fn cuts_long_names_between_characters() {
        let long: String = core::iter::repeat_n('é', 100).collect();
        let table = encode(vec![symbol(1, &long), symbol(2, "next")]);
        let table = SymbolTable::new(&table);
        assert_eq!(shown(&table, 1), found(&long[..MAX_NAME_BYTES], 0));
        assert_eq!(shown(&table, 2), found("next", 0));
    }

    #[test]
    fn damaged_tables_find_nothing_and_never_panic() {
        assert_eq!(SymbolTable::new(&[]).lookup(1), None);
        let good = encode(vec![symbol(0x100, "a"), symbol(0x200, "p::b")]);
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
