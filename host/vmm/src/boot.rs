//! PVH boot: the image, and the start information that it is entered with (Xen's
//! `public/arch-x86/hvm/start_info.h`).

use crate::memory::{Memory, ranges};
use anyhow::{Context, Result, bail};
use linux_loader::loader::{
    KernelLoader,
    elf::{Elf, PvhBootCapability},
};
use std::{fs::File, io::Seek};
use vm_memory::{Bytes, GuestAddress};

const MAGIC: u32 = 0x336e_c578;
/// The version of the structure with a memory map.
const VERSION: u32 = 1;
const TYPE_RAM: u64 = 1;

// All of it below 1 MiB, where the image is not.
const START_INFO: u64 = 0x6000;
const MODULES: u64 = 0x6080;
const MEMORY_MAP: u64 = 0x6100;
const COMMAND_LINE: u64 = 0x7000;
/// The image takes so much, and a zero behind it.
const COMMAND_LINE_BYTES_MAX: usize = 4096;
/// Where legacy devices and firmware would be, in the first MiB.
const LOW_MEMORY_END: u64 = 0xa_0000;
const HIGH_MEMORY_START: u64 = 0x10_0000;
/// The image makes its page tables behind itself: 4 KiB for each GiB of memory, and some for devices.
const TABLES_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

/// Where the processor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The first instruction.
    pub address: u64,
    /// What `%ebx` says.
    pub start_info: u64,
}

/// Puts the image, its module if it has one, and what it is told into memory of `bytes` bytes.
pub fn load(memory: &Memory, bytes: u64, image: &mut File, module: Option<File>, command_line: &str) -> Result<Entry> {
    let loaded = Elf::load(memory, None, image, None).context("loading the image")?;
    let PvhBootCapability::PvhEntryPresent(entry) = loaded.pvh_boot_cap else {
        bail!("the image has no PVH entry");
    };
    if command_line.len() >= COMMAND_LINE_BYTES_MAX || command_line.contains('\0') {
        bail!("the boot line is longer than {} bytes, or has a zero in it", COMMAND_LINE_BYTES_MAX - 1);
    }
    let map = memory_map(bytes);
    let image_end = loaded.kernel_end;
    let module = module.map(|module| load_module(memory, bytes, image_end, module)).transpose()?;
    // magic, version, flags, modules; module list, command line, ACPI root, memory map; its entries, reserved.
    let counts = [MAGIC, VERSION, 0, u32::from(module.is_some())];
    let addresses = [MODULES, COMMAND_LINE, 0, MEMORY_MAP];
    let entries = [map.len() as u32, 0];
    let start_info =
        counts.iter().flat_map(|word| word.to_le_bytes()).chain(addresses.iter().flat_map(|a| a.to_le_bytes()));
    let start_info: Vec<u8> = start_info.chain(entries.iter().flat_map(|word| word.to_le_bytes())).collect();
    // start, length, kind and a reserved word.
    let map: Vec<u8> =
        map.iter().flat_map(|(start, len)| [*start, *len, TYPE_RAM]).flat_map(u64::to_le_bytes).collect();
    let command_line = [command_line.as_bytes(), &[0]].concat();
    // start, length, command line and a reserved word.
    let (start, len) = module.unwrap_or_default();
    let modules: Vec<u8> = [start, len, 0, 0].into_iter().flat_map(u64::to_le_bytes).collect();
    for (at, bytes) in [(START_INFO, start_info), (MODULES, modules), (MEMORY_MAP, map), (COMMAND_LINE, command_line)] {
        memory.write_slice(&bytes, GuestAddress(at)).context("too little memory for an image")?;
    }
    Ok(Entry { address: entry.0, start_info: START_INFO })
}

/// Puts a module at the end of main memory, and says where it begins and how long it is.
fn load_module(memory: &Memory, bytes: u64, image_end: u64, mut module: File) -> Result<(u64, u64)> {
    let len = module.metadata()?.len();
    let start =
        module_start(bytes, image_end, len).context("the site is larger than the guest's memory: give it more")?;
    module.rewind()?;
    memory.read_exact_volatile_from(GuestAddress(start), &mut module, len as usize).context("loading the site")?;
    Ok((start, len))
}

/// The last page from which there is room for so many bytes, behind the image and its tables.
fn module_start(bytes: u64, image_end: u64, len: u64) -> Option<u64> {
    let tables_end = image_end.saturating_add(TABLES_BYTES);
    let ranges = ranges(bytes).into_iter().map(|(start, len)| (start.max(tables_end), start + len));
    let mut starts = ranges.filter_map(|(from, end)| Some((from, end.checked_sub(len)? & !(PAGE_BYTES - 1))));
    starts.find(|(from, start)| start >= from).map(|(_, start)| start)
}

/// Main memory as the guest is told of it.
fn memory_map(bytes: u64) -> Vec<(u64, u64)> {
    let mut map = vec![(0, LOW_MEMORY_END)];
    for (start, len) in ranges(bytes) {
        let from = start.max(HIGH_MEMORY_START);
        map.extend((start + len > from).then(|| (from, start + len - from)));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_lists_all_memory_but_the_hole_below_1_mib_and_a_module_is_in_it() {
        assert_eq!(memory_map(16 << 20), [(0, 0xa_0000), (1 << 20, 15 << 20)]);
        assert_eq!(module_start(16 << 20, 7 << 20, 8 << 20), Some(8 << 20));
        assert_eq!(module_start(16 << 20, 3 << 20, 5000), Some((16 << 20) - 8192));
        assert_eq!(module_start(16 << 20, 7 << 20, (8 << 20) + 1), None);
        assert_eq!(module_start(4 << 20, 3 << 20, 1), None);
        assert_eq!(module_start(8 << 30, 3 << 20, 4 << 30), Some(5 << 30));
        let large = memory_map(4 << 30);
        assert_eq!(large, [(0, 0xa_0000), (1 << 20, (3 << 30) - (1 << 20)), (4 << 30, 1 << 30)]);
    }
}
