//! Adds mappings to the page tables that the linker has laid out. All mappings are identities: a virtual address is its
//! physical address. Pure logic over [`TableMemory`], so that the host tests it.

use crate::layout::WINDOW_BYTES;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
/// What the processor itself sets: accessed and dirty.
const BY_PROCESSOR: u64 = 1 << 5 | 1 << 6;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Bytes of a page one level up from the smallest.
pub const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// What one table of large pages maps.
const GIB: u64 = 1 << 30;
/// End of the lower half of the 48-bit address space.
pub const ADDRESS_END: u64 = 1 << 47;

/// What a range of memory is for. No kind can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Main memory, for reading and writing.
    Memory,
    /// Device registers: uncached.
    Device,
}

impl Kind {
    fn flags(self) -> u64 {
        match self {
            Kind::Memory => PRESENT | WRITABLE | USER | NO_EXECUTE,
            Kind::Device => PRESENT | WRITABLE | USER | WRITE_THROUGH | CACHE_DISABLE | NO_EXECUTE,
        }
    }
}

/// Why a range could not be mapped, wholly or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// It is empty, leaves the address space or touches the image's window.
    OutOfBounds,
    /// A part of it is mapped as another kind.
    Conflict,
    /// No page is left for one more table.
    NoTables,
}

/// Memory that holds page tables.
pub trait TableMemory {
    /// Reads the entry at a physical address.
    fn read(&self, at: u64) -> u64;
    /// Writes the entry at a physical address.
    fn write(&mut self, at: u64, entry: u64);
    /// Takes a zeroed page.
    fn allocate(&mut self) -> Option<u64>;
}

/// Maps the 2 MiB pages that `start..end` touches onto themselves. Mapping again what is mapped alike changes nothing.
///
/// There are no 1 GiB pages: a processor may claim to have them where its hypervisor does not understand them.
pub fn map(memory: &mut impl TableMemory, root: u64, (start, end): (u64, u64), kind: Kind) -> Result<(), MapError> {
    if start >= end || start < WINDOW_BYTES || end > ADDRESS_END {
        return Err(MapError::OutOfBounds);
    }
    let mut at = start & !(LARGE_PAGE_BYTES - 1);
    while at < end {
        let upper = table_below(memory, root + (at >> 39 & 511) * 8)?;
        let lower = table_below(memory, upper + (at >> 30 & 511) * 8)?;
        let gib_end = (at | (GIB - 1)) + 1;
        while at < end.min(gib_end) {
            set(memory, lower + (at >> 21 & 511) * 8, at | kind.flags() | LARGE)?;
            at += LARGE_PAGE_BYTES;
        }
    }
    Ok(())
}

fn set(memory: &mut impl TableMemory, at: u64, entry: u64) -> Result<(), MapError> {
    match memory.read(at) & !BY_PROCESSOR {
        0 => memory.write(at, entry),
        present if present == entry => {}
        _ => return Err(MapError::Conflict),
    }
    Ok(())
}

fn table_below(memory: &mut impl TableMemory, entry_at: u64) -> Result<u64, MapError> {
    let entry = memory.read(entry_at);
    if entry & PRESENT != 0 {
        return Ok(entry & ADDRESS);
    }
    let table = memory.allocate().ok_or(MapError::NoTables)?;
    memory.write(entry_at, table | PRESENT | WRITABLE | USER);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::collections::HashMap;

    /// Tables in a map, with a bounded number of pages; root at 0x1000.
    struct Fake {
        entries: HashMap<u64, u64>,
        next: u64,
        end: u64,
    }

    const ROOT: u64 = 0x1000;

    impl Fake {
        fn new(spare: u64) -> Fake {
            Fake { entries: HashMap::new(), next: 0x2000, end: 0x2000 + spare * 4096 }
        }

        /// The entry that the processor finds for `address`.
        fn translate(&self, address: u64) -> Option<u64> {
            let mut table = ROOT;
            for (shift, size) in [(39, 1 << 39), (30, GIB), (21, LARGE_PAGE_BYTES)] {
                let entry = self.read(table + (address >> shift & 511) * 8);
                if entry & PRESENT == 0 {
                    return None;
                }
                if entry & LARGE != 0 {
                    assert_eq!(entry & ADDRESS & (size - 1), 0, "a page must be aligned to its size");
                    assert_eq!(entry & ADDRESS, address & !(size - 1), "an identity");
                    return Some(entry);
                }
                table = entry & ADDRESS;
            }
            panic!("a walk of the fake ends in a large page");
        }
    }

    impl TableMemory for Fake {
        fn read(&self, at: u64) -> u64 {
            assert!(at >= ROOT && at < self.next && at.is_multiple_of(8), "read outside the tables: {at:#x}");
            self.entries.get(&at).copied().unwrap_or(0)
        }
        fn write(&mut self, at: u64, entry: u64) {
            assert!(at >= ROOT && at < self.next && at.is_multiple_of(8), "write outside the tables: {at:#x}");
            self.entries.insert(at, entry);
        }
        fn allocate(&mut self) -> Option<u64> {
            (self.next < self.end).then(|| {
                self.next += 4096;
                self.next - 4096
            })
        }
    }

    #[test]
    fn maps_all_of_a_range_and_nothing_else() {
        for (start, end) in [
            (WINDOW_BYTES, 16 << 20),
            (WINDOW_BYTES, (16 << 20) - 5),
            (4 * GIB, 6 * GIB),
            (3 * GIB + 7, 5 * GIB + 4097),
            (511 * GIB, 513 * GIB),
        ] {
            let mut fake = Fake::new(16);
            map(&mut fake, ROOT, (start, end), Kind::Memory).unwrap();
            for at in [start, start + (end - start) / 2, end - 1] {
                assert_eq!(fake.translate(at).unwrap() & !ADDRESS, Kind::Memory.flags() | LARGE, "{at:#x}");
            }
            assert_eq!(fake.translate((start & !(LARGE_PAGE_BYTES - 1)) - 1), None);
            assert_eq!(fake.translate(((end - 1) | (LARGE_PAGE_BYTES - 1)) + 1), None);
        }
    }

    #[test]
    fn mapping_again_is_fine_unless_the_kind_differs() {
        let mut fake = Fake::new(16);
        let range = (0xfeb0_0000, 0xfeb0_1000);
        map(&mut fake, ROOT, range, Kind::Device).unwrap();
        map(&mut fake, ROOT, range, Kind::Device).unwrap();
        assert_eq!(map(&mut fake, ROOT, range, Kind::Memory), Err(MapError::Conflict));
        map(&mut fake, ROOT, (8 << 30, 9 << 30), Kind::Memory).unwrap();
        map(&mut fake, ROOT, (8 << 30, (8 << 30) + 5), Kind::Memory).unwrap();
        assert_eq!(map(&mut fake, ROOT, (8 << 30, (8 << 30) + 5), Kind::Device), Err(MapError::Conflict));
    }

    #[test]
    fn refuses_the_window_and_running_out_of_tables() {
        let mut fake = Fake::new(2);
        for range in [(0, 4096), (WINDOW_BYTES - 1, WINDOW_BYTES + 1), (1 << 47, 1 << 48), (9 << 20, 9 << 20)] {
            assert_eq!(map(&mut fake, ROOT, range, Kind::Memory), Err(MapError::OutOfBounds));
        }
        map(&mut fake, ROOT, (1 << 30, 2 << 30), Kind::Memory).unwrap();
        assert_eq!(map(&mut fake, ROOT, (2 << 30, 3 << 30), Kind::Memory), Err(MapError::NoTables));
    }
}
