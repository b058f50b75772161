//! The PVH start information that the hypervisor leaves in memory (Xen's `public/arch-x86/hvm/start_info.h`).
//!
//! Everything in it is the hypervisor's word: addresses and counts are checked before they are followed.

use crate::layout::PAGE_BYTES;

/// The image and a heap that serves some fifty clients.
const MEMORY_BYTES_MIN: u64 = 5 << 20;
const MAGIC: u32 = 0x336e_c578;
const START_INFO_BYTES: u64 = 56;
const MEMMAP_ENTRY_BYTES: u64 = 24;
/// The first version of the structure that has a memory map.
const VERSION_WITH_MEMMAP: u32 = 1;
const TYPE_RAM: u32 = 1;
/// Bytes of an entry of the list of modules.
const MODULE_ENTRY_BYTES: u64 = 32;

/// Memory ranges that are kept; a hypervisor lists a handful.
pub const RANGES_MAX: usize = 32;
/// Entries of the memory map that are looked at.
const MEMMAP_ENTRIES_MAX: u32 = 256;
/// Longest boot command line, in bytes.
pub const COMMAND_LINE_BYTES_MAX: usize = 4096;
/// The page at address 0 is no memory, and what is below 1 MiB stays with the firmware.
const LOW_MEMORY_END: u64 = 1 << 20;

/// Physical memory, read with care.
pub trait PhysicalMemory {
    /// Copies from `address` on, or says that nothing can be there.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Option<()>;

    /// Reads a little-endian number of `N` bytes, at most 8.
    fn number<const N: usize>(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes[..N])?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// Why there is nothing to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartInfoError {
    /// The structure is not where it should be, or not one.
    Missing,
    /// It is too old to have a memory map.
    NoMemoryMap,
    /// The command line is longer than [`COMMAND_LINE_BYTES_MAX`].
    CommandLineTooLong,
    /// There is too little main memory for the image and its heap.
    TooLittleMemory,
    /// The boot module is not within main memory behind the image.
    ModuleOutside,
}

impl core::fmt::Display for StartInfoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            StartInfoError::Missing => "the hypervisor gave no PVH start information",
            StartInfoError::NoMemoryMap => "the hypervisor's PVH start information has no memory map (version 0)",
            StartInfoError::CommandLineTooLong => "the boot command line is longer than 4096 bytes",
            StartInfoError::ModuleOutside => "the boot module is not within main memory: give the machine more memory",
            StartInfoError::TooLittleMemory => "too little memory: give the machine at least 5 MiB",
        })
    }
}

/// What the hypervisor has told.
#[derive(Debug)]
pub struct StartInfo {
    command_line: [u8; COMMAND_LINE_BYTES_MAX],
    command_line_len: usize,
    ranges: [(u64, u64); RANGES_MAX],
    ranges_len: usize,
    /// Where the first boot module is, and how many bytes it has.
    module: Option<(u64, u64)>,
    /// Where the ACPI tables start (the RSDP), if there are any.
    pub acpi_root: Option<u64>,
}

impl StartInfo {
    /// Nothing yet.
    pub const EMPTY: StartInfo = StartInfo {
        command_line: [0; COMMAND_LINE_BYTES_MAX],
        command_line_len: 0,
        ranges: [(0, 0); RANGES_MAX],
        ranges_len: 0,
        module: None,
        acpi_root: None,
    };

    /// Reads all of it, so that nothing of it is needed in memory afterwards.
    pub fn read(&mut self, memory: &mut impl PhysicalMemory, at: u64) -> Result<(), StartInfoError> {
        let missing = || StartInfoError::Missing;
        at.checked_add(START_INFO_BYTES).ok_or_else(missing)?;
        if memory.number::<4>(at).ok_or_else(missing)? != u64::from(MAGIC) {
            return Err(StartInfoError::Missing);
        }
        if memory.number::<4>(at + 4).ok_or_else(missing)? < u64::from(VERSION_WITH_MEMMAP) {
            return Err(StartInfoError::NoMemoryMap);
        }
        let command_line_at = memory.number::<8>(at + 24).ok_or_else(missing)?;
        self.acpi_root = memory.number::<8>(at + 32).filter(|address| *address != 0);
        let memmap_at = memory.number::<8>(at + 40).ok_or_else(missing)?;
        let entries = memory.number::<4>(at + 48).ok_or_else(missing)? as u32;
        self.read_command_line(memory, command_line_at)?;
        self.read_ranges(memory, memmap_at, entries)?;
        let modules = memory.number::<4>(at + 12).ok_or_else(missing)?;
        let list_at = memory.number::<8>(at + 16).ok_or_else(missing)?;
        if modules > 0 { self.read_module(memory, list_at) } else { Ok(()) }
    }

    /// Reads the first entry of the list of modules; the image has a use for one.
    fn read_module(&mut self, memory: &mut impl PhysicalMemory, list_at: u64) -> Result<(), StartInfoError> {
        list_at.checked_add(MODULE_ENTRY_BYTES).ok_or(StartInfoError::ModuleOutside)?;
        let (Some(start), Some(len)) = (memory.number::<8>(list_at), memory.number::<8>(list_at + 8)) else {
            return Err(StartInfoError::ModuleOutside);
        };
        let end = start.checked_add(len).ok_or(StartInfoError::ModuleOutside)?;
        let is_within = self.memory().iter().any(|range| range.0 <= start && end <= range.1);
        if len == 0 || !is_within {
            return Err(StartInfoError::ModuleOutside);
        }
        self.module = Some((start, len));
        Ok(())
    }

    /// Where the boot module is, and how many bytes it has: wholly within one range of main memory.
    pub fn module(&self) -> Option<(u64, u64)> {
        self.module
    }

    fn read_command_line(&mut self, memory: &mut impl PhysicalMemory, at: u64) -> Result<(), StartInfoError> {
        self.command_line_len = 0;
        if at == 0 {
            return Ok(());
        }
        for offset in 0..COMMAND_LINE_BYTES_MAX {
            let byte = at.checked_add(offset as u64).and_then(|at| memory.number::<1>(at));
            match byte.ok_or(StartInfoError::Missing)? {
                0 => return Ok(()),
                byte => self.command_line[offset] = byte as u8,
            }
            self.command_line_len = offset + 1;
        }
        Err(StartInfoError::CommandLineTooLong)
    }

    fn read_ranges(
        &mut self,
        memory: &mut impl PhysicalMemory,
        memmap_at: u64,
        entries: u32,
    ) -> Result<(), StartInfoError> {
        self.ranges_len = 0;
        for index in 0..u64::from(entries.min(MEMMAP_ENTRIES_MAX)) {
            let at = memmap_at.checked_add(index * MEMMAP_ENTRY_BYTES).ok_or(StartInfoError::NoMemoryMap)?;
            let mut field = |offset| memory.number::<8>(at.checked_add(offset)?);
            let (Some(start), Some(len), Some(kind)) = (field(0), field(8), field(16)) else {
                return Err(StartInfoError::NoMemoryMap);
            };
            let start_page = start.max(LOW_MEMORY_END).checked_next_multiple_of(PAGE_BYTES);
            let end_page = start.saturating_add(len).min(crate::paging::ADDRESS_END) & !(PAGE_BYTES - 1);
            if kind as u32 != TYPE_RAM || self.ranges_len == RANGES_MAX {
                continue;
            }
            let Some(start_page) = start_page.filter(|start| *start < end_page) else { continue };
            // Overlapping entries would hand out the same memory twice.
            if self.memory().iter().any(|(s, e)| start_page < *e && *s < end_page) {
                continue;
            }
            self.ranges[self.ranges_len] = (start_page, end_page);
            self.ranges_len += 1;
        }
        let has_room = |(start, end): &(u64, u64)| *start <= LOW_MEMORY_END && *end >= MEMORY_BYTES_MIN;
        if self.memory().iter().any(has_room) { Ok(()) } else { Err(StartInfoError::TooLittleMemory) }
    }

    /// The boot command line.
    pub fn command_line(&self) -> &[u8] {
        &self.command_line[..self.command_line_len]
    }

    /// The ranges of main memory from 1 MiB on, in whole pages, none overlapping another.
    pub fn memory(&self) -> &[(u64, u64)] {
        &self.ranges[..self.ranges_len]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    extern crate std;
    use std::{boxed::Box, vec, vec::Vec};

    /// Memory that begins at address 0.
    pub(crate) struct Bytes(pub Vec<u8>);

    impl PhysicalMemory for Bytes {
        fn read(&mut self, address: u64, bytes: &mut [u8]) -> Option<()> {
            let start = usize::try_from(address).ok()?;
            bytes.copy_from_slice(self.0.get(start..start.checked_add(bytes.len())?)?);
            Some(())
        }
    }

    const INFO_AT: u64 = 0x100;
    const MAP_AT: u64 = 0x200;
    const LINE_AT: u64 = 0x1000;

    const MODULES_AT: u64 = 0x80;

    /// A machine whose hypervisor has loaded a module there.
    fn with_module(start: u64, len: u64) -> Bytes {
        let mut memory = machine(1, b"", &[RAM]);
        for (at, bytes) in [
            (INFO_AT + 12, &1u32.to_le_bytes()[..]),
            (INFO_AT + 16, &MODULES_AT.to_le_bytes()),
            (MODULES_AT, &start.to_le_bytes()),
            (MODULES_AT + 8, &len.to_le_bytes()),
        ] {
            memory.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        memory
    }

    #[test]
    fn a_module_lies_within_main_memory() {
        let module = |start, len| read(&mut with_module(start, len), INFO_AT).map(|info| info.module());
        assert_eq!(module(0xe0_0000, 0x1234), Ok(Some((0xe0_0000, 0x1234))));
        assert_eq!(module(0xe0_0000, 0x20_0000), Ok(Some((0xe0_0000, 0x20_0000))));
        for (start, len) in [(0xe0_0000, 0), (0xe0_0000, 0x20_0001), (0xf_ffff, 9), (u64::MAX, 2), (1 << 40, 1)] {
            assert_eq!(module(start, len), Err(StartInfoError::ModuleOutside), "{start:#x} {len:#x}");
        }
        assert_eq!(read(&mut machine(1, b"", &[RAM]), INFO_AT).unwrap().module(), None);
    }

    fn machine(version: u32, line: &[u8], map: &[(u64, u64, u32)]) -> Bytes {
        let mut memory = vec![0; 0x4000];
        let mut put = |at: u64, bytes: &[u8]| memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(INFO_AT, &MAGIC.to_le_bytes());
        put(INFO_AT + 4, &version.to_le_bytes());
        put(INFO_AT + 24, &LINE_AT.to_le_bytes());
        put(INFO_AT + 32, &0xf_0000u64.to_le_bytes());
        put(INFO_AT + 40, &MAP_AT.to_le_bytes());
        put(INFO_AT + 48, &(map.len() as u32).to_le_bytes());
        for (index, (start, len, kind)) in map.iter().enumerate() {
            let at = MAP_AT + index as u64 * MEMMAP_ENTRY_BYTES;
            put(at, &start.to_le_bytes());
            put(at + 8, &len.to_le_bytes());
            put(at + 16, &kind.to_le_bytes());
        }
        put(LINE_AT, line);
        Bytes(memory)
    }

    fn read(memory: &mut Bytes, at: u64) -> Result<Box<StartInfo>, StartInfoError> {
        let mut info = Box::new(StartInfo::EMPTY);
        info.read(memory, at).map(|()| info)
    }

    const RAM: (u64, u64, u32) = (0x10_0000, 0xf0_0000, 1);

    #[test]
    fn keeps_the_line_and_whole_pages_of_main_memory() {
        let map = [
            (0, 0x9_fc00, 1),
            (0xf_0000, 0x1_0000, 2),
            (0x10_0000, 0x7ff0_0123, 1),
            (0x8000_0000, 1 << 20, 2),
            (0x1_0000_0001, 1 << 30, 1),
        ];
        let info = read(&mut machine(1, b"ip=dhcp -- --port 7\0", &map), INFO_AT).unwrap();
        assert_eq!(info.command_line(), b"ip=dhcp -- --port 7");
        assert_eq!(info.memory(), [(0x10_0000, 0x8000_0000), (0x1_0000_1000, 0x1_4000_0000)]);
        assert_eq!(info.acpi_root, Some(0xf_0000));
    }

    #[test]
    fn refuses_what_it_cannot_start_from() {
        let refuse = |memory: &mut Bytes, at| read(memory, at).unwrap_err();
        assert_eq!(refuse(&mut machine(1, b"", &[RAM]), 0), StartInfoError::Missing);
        assert_eq!(refuse(&mut machine(1, b"", &[RAM]), u64::MAX - 3), StartInfoError::Missing);
        assert_eq!(refuse(&mut machine(1, b"", &[RAM]), 1 << 40), StartInfoError::Missing);
        assert_eq!(refuse(&mut machine(0, b"", &[RAM]), INFO_AT), StartInfoError::NoMemoryMap);
        assert_eq!(refuse(&mut machine(1, &[b'x'; 5000], &[RAM]), INFO_AT), StartInfoError::CommandLineTooLong);
        assert_eq!(refuse(&mut machine(1, b"", &[]), INFO_AT), StartInfoError::TooLittleMemory);
        let small = (0x10_0000, MEMORY_BYTES_MIN - 0x10_0001, 1);
        assert_eq!(refuse(&mut machine(1, b"", &[small]), INFO_AT), StartInfoError::TooLittleMemory);
    }

    #[test]
    fn hostile_maps_are_bounded_and_never_overlap() {
        let mut map = vec![RAM; 100];
        map.push((u64::MAX - 5, u64::MAX, 1));
        map.push((0x20_0000, u64::MAX, 1));
        map.push((1 << 40, u64::MAX, 1));
        let info = read(&mut machine(1, b"", &map), INFO_AT).unwrap();
        assert_eq!(info.memory(), [(0x10_0000, 0x100_0000), (1 << 40, 1 << 47)]);
        let many: Vec<_> = core::iter::once(RAM).chain((1..100).map(|n| (n << 32, 1 << 20, 1))).collect();
        assert_eq!(read(&mut machine(1, b"", &many), INFO_AT).unwrap().memory().len(), RANGES_MAX);
        let mut endless = machine(1, b"", &[RAM]);
        endless.0[(INFO_AT + 48) as usize..][..4].fill(0xff);
        assert!(read(&mut endless, INFO_AT).is_ok());
    }
}
