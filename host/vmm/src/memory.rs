//! The guest's memory.

use crate::sys;
use anyhow::{Context, Result};
use kvm_ioctls::VmFd;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// All memory of the guest.
pub type Memory = GuestMemoryMmap<()>;

/// Addresses from here to 4 GiB belong to devices.
const DEVICES_START: u64 = 3 << 30;
const DEVICES_END: u64 = 4 << 30;

/// The ranges of main memory: below the devices, and what is left above 4 GiB.
pub fn ranges(bytes: u64) -> Vec<(u64, u64)> {
    let low = bytes.min(DEVICES_START);
    let high = bytes - low;
    [(0, low), (DEVICES_END, high)].into_iter().filter(|(_, len)| *len > 0).collect()
}

/// Takes memory from the host, without touching it, and gives it to the guest.
pub fn create(vm: &VmFd, bytes: u64) -> Result<Memory> {
    let ranges: Vec<_> = ranges(bytes).into_iter().map(|(start, len)| (GuestAddress(start), len as usize)).collect();
    let memory = Memory::from_ranges(&ranges).context("taking the guest's memory from this host")?;
    for (slot, region) in keep(&memory).iter().enumerate() {
        sys::share_region(vm, slot as u32, region).context("giving the guest its memory")?;
        log::debug!("memory {:#x}, {} bytes", region.start_addr().0, region.len());
    }
    Ok(memory)
}

/// Keeps memory for ever, as the guest reaches it for as long as this process lives.
pub fn keep(memory: &Memory) -> &'static Memory {
    Box::leak(Box::new(memory.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_leaves_room_for_devices() {
        assert_eq!(ranges(16 << 20), [(0, 16 << 20)]);
        assert_eq!(ranges(3 << 30), [(0, 3 << 30)]);
        assert_eq!(ranges(5 << 30), [(0, 3 << 30), (4 << 30, 2 << 30)]);
    }
}
