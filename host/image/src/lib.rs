//! Packs the linked guest into the image that boots.
//!
//! The linker leaves an ELF file full of debugging information. What boots needs the loaded segments and the PVH entry
//! note; what a crash report needs are the functions' names. So [`pack`] writes a new file:
//!
//! ```text
//! ELF header │ program headers │ text │ rodata, note │ page tables, data │ symbol table
//! ```
//!
//! The page tables are mostly zeros, which the file leaves out: what lies between them are segments of their own.
//!
//! The symbol table (`kayvee-symbols`) is a segment behind the image's end. Two words in the image's constants say
//! where, and its pages are made read-only in the image's own page tables.
#![forbid(unsafe_code)]

mod elf;
mod names;

use elf::{Linked, Segment};
use kayvee_symbols::Symbol;

/// Largest image that the page tables of `kayvee-x86` have room for: its window.
const WINDOW_BYTES: u64 = 8 << 20;
const PAGE_BYTES: u64 = 4096;
/// The tables of the window come behind the root, the first directory and the two below it.
const WINDOW_TABLES_AT: u64 = 4 * PAGE_BYTES;
const ENTRY_BYTES: u64 = 8;
const ENTRY_WRITABLE: u64 = 1 << 1;

/// Why a file could not be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// It is not a static x86-64 ELF program.
    NotAProgram(String),
    /// It is a program, but not Kayvee's image as the linker leaves it: something is missing.
    NotAnImage(String),
    /// It is larger than the memory that its page tables map.
    TooLarge,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::NotAProgram(why) => write!(f, "not a static x86-64 program: {why}"),
            Error::NotAnImage(what) => write!(f, "not an unpacked Kayvee image: {what} is missing"),
            Error::TooLarge => write!(f, "the image is larger than the 8 MiB that its page tables map"),
        }
    }
}

impl std::error::Error for Error {}

/// Turns the linked guest into the image that boots: small, with its functions' names.
pub fn pack(linked_elf: &[u8]) -> Result<Vec<u8>, Error> {
    let mut linked = Linked::parse(linked_elf)?;
    let (image_start, text_end) = (linked.symbol("image_start")?, linked.symbol("text_end")?);
    let start = linked.symbol("image_end")?.next_multiple_of(PAGE_BYTES);
    let functions = linked.symbols.iter().filter(|(_, at)| (image_start..text_end).contains(at));
    let symbols = functions
        .map(|(name, at)| {
            let name = names::shorten(&format!("{:#}", rustc_demangle::demangle(name)));
            Symbol { start: *at as u32, name }
        })
        .collect();
    let table = kayvee_symbols::encode(symbols);
    let end = start + table.len() as u64;
    if end > WINDOW_BYTES {
        return Err(Error::TooLarge);
    }

    let location = linked.symbol("kayvee_symbol_table")?;
    linked.write_u64(location, start)?;
    linked.write_u64(location + 8, end)?;
    let page_tables = linked.symbol("page_tables")?;
    for page in start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
        let entry = page_tables + WINDOW_TABLES_AT + page * ENTRY_BYTES;
        let value = linked.read_u64(entry)?;
        linked.write_u64(entry, value & !ENTRY_WRITABLE)?;
    }
    linked.segments.push(Segment::read_only(start, table));
    Ok(linked.write())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kayvee_symbols::SymbolTable;

    const TEXT: u64 = 0x10_0000;
    const RODATA: u64 = 0x10_1000;
    const DATA: u64 = 0x10_2000;
    const IMAGE_END: u64 = 0x10_a010;

    /// An image as the linker would leave it: code, constants with a note, page tables for the window, and symbols.
    fn linked() -> Linked {
        let mut tables = vec![0; (WINDOW_TABLES_AT + WINDOW_BYTES / PAGE_BYTES * ENTRY_BYTES) as usize];
        for (page, entry) in tables[WINDOW_TABLES_AT as usize..].chunks_exact_mut(8).enumerate() {
            entry.copy_from_slice(&((page as u64 * PAGE_BYTES) | 7).to_le_bytes());
        }
        let symbols = [
            ("image_start", TEXT),
            ("_ZN6kayvee5serve17h0123456789abcdefE", TEXT + 0x10),
            ("memcpy", TEXT + 0x80),
            ("text_end", RODATA),
            ("kayvee_symbol_table", RODATA + 0x20),
            ("page_tables", DATA),
            ("image_end", IMAGE_END),
        ];
        Linked {
            entry: TEXT,
            segments: vec![
                Segment { address: TEXT, flags: 5, bytes: vec![0xc3; 0x100], memory_bytes: 0x100 },
                Segment { address: RODATA, flags: 4, bytes: vec![0; 0x40], memory_bytes: 0x40 },
                Segment { address: DATA, flags: 6, bytes: tables, memory_bytes: IMAGE_END - DATA },
            ],
            note: (RODATA, 0x18),
            symbols: symbols.map(|(name, at)| (name.to_string(), at)).to_vec(),
        }
    }

    fn pack_linked(linked: &Linked) -> Result<Vec<u8>, Error> {
        pack(&linked.write_with_symbols())
    }

    #[test]
    fn the_packed_image_holds_the_same_memory_and_the_names() {
        let packed = pack_linked(&linked()).unwrap();
        let image = Linked::parse_segments(&packed).unwrap();
        assert_eq!((image.entry, image.note), (TEXT, (RODATA, 0x18)));
        let before = linked();
        assert_eq!(image.segments[0], before.segments[0]);
        let names = image.segments.last().unwrap();
        assert_eq!((names.address, names.flags), (0x10_b000, 4));
        let words: Vec<u64> = (0..2).map(|word| image.read_u64(RODATA + 0x20 + word * 8).unwrap()).collect();
        assert_eq!(words, [names.address, names.address + names.bytes.len() as u64]);
        let table = SymbolTable::new(&names.bytes);
        let shown = |address| table.lookup(address).map(|(name, distance)| (name.to_string(), distance));
        assert_eq!(shown(TEXT + 0x14), Some(("kayvee::serve".into(), 4)));
        assert_eq!(shown(TEXT + 0x80), Some(("memcpy".into(), 0)));
    }

    #[test]
    fn long_runs_of_zeros_are_in_memory_and_not_in_the_file() {
        let memory = |linked: &Linked| {
            let mut memory = vec![0; (IMAGE_END - TEXT) as usize];
            let mut end = TEXT;
            for segment in &linked.segments {
                assert!(segment.address >= end && segment.memory_bytes >= segment.bytes.len() as u64);
                end = segment.address + segment.memory_bytes;
                memory[(segment.address - TEXT) as usize..][..segment.bytes.len()].copy_from_slice(&segment.bytes);
            }
            assert_eq!(end, IMAGE_END);
            memory
        };
        let mut before = linked();
        before.segments[2].bytes[..0x2fff].fill(0xaa);
        before.segments[2].bytes[0x3010..0x7000].fill(0);
        before.segments[2].bytes[0x7000] = 0xbb;
        let file = before.write();
        assert!(file.len() < 0x4400, "{:#x}", file.len());
        let after = Linked::parse_segments(&file).unwrap();
        assert_eq!(after.segments.len(), 4);
        assert!(memory(&after) == memory(&before));
    }

    #[test]
    fn the_symbol_table_is_read_only_in_the_page_tables() {
        let image = Linked::parse_segments(&pack_linked(&linked()).unwrap()).unwrap();
        let entry = |at: u64| image.read_u64(DATA + WINDOW_TABLES_AT + at / PAGE_BYTES * 8).unwrap();
        assert_eq!(entry(0x10_a000), 0x10_a000 | 7);
        assert_eq!(entry(0x10_b000), 0x10_b000 | 5);
        assert_eq!(entry(0x10_c000), 0x10_c000 | 7);
    }

    #[test]
    fn packs_the_same_way_every_time() {
        assert_eq!(pack_linked(&linked()), pack_linked(&linked()));
    }

    #[test]
    fn refuses_what_is_no_unpacked_image() {
        assert!(matches!(pack(b"#!/bin/sh\n"), Err(Error::NotAProgram(_))));
        let packed = pack_linked(&linked()).unwrap();
        assert!(matches!(pack(&packed), Err(Error::NotAnImage(_))), "packing twice");
        for name in ["image_start", "text_end", "kayvee_symbol_table", "page_tables", "image_end"] {
            let mut linked = linked();
            linked.symbols.retain(|(symbol, _)| symbol != name);
            assert_eq!(pack_linked(&linked), Err(Error::NotAnImage(format!("the symbol {name}"))));
        }
        let mut large = linked();
        large.symbols.iter_mut().find(|(name, _)| name == "image_end").unwrap().1 = WINDOW_BYTES;
        assert_eq!(pack_linked(&large), Err(Error::TooLarge));
    }

    #[test]
    fn damaged_files_are_refused_and_never_panic() {
        let good = linked().write_with_symbols();
        for len in (0..good.len()).step_by(7) {
            let _ = pack(&good[..len]);
        }
        // Headers, and the symbols at the file's end.
        for at in (0..0x200).chain(good.len() - 0x400..good.len()) {
            for value in [0, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = pack(&bad);
            }
        }
    }
}
