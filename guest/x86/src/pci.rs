//! PCI configuration by the PC's two ports (PCI Local Bus 3.0 §3.2.2.3.2).

use crate::port;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

fn select(device: u8, function: u8, offset: u8) {
    let address = ENABLE | u32::from(device) << 11 | u32::from(function) << 8 | u32::from(offset & !3);
    // SAFETY: choosing a register has no effect by itself.
    unsafe { port::write_u32(ADDRESS, address) };
}

/// Reads 32 bits of a function's configuration on the first bus; all ones where there is none.
pub fn read(device: u8, function: u8, offset: u8) -> u32 {
    select(device, function, offset);
    // SAFETY: reading PCI configuration has no effect.
    unsafe { port::read_u32(DATA) }
}

/// Writes 32 bits of a function's configuration on the first bus.
///
/// # Safety
/// The value must not make the device reach, or be reached in, memory that others use.
pub unsafe fn write(device: u8, function: u8, offset: u8, value: u32) {
    select(device, function, offset);
    // SAFETY: passed on to the caller.
    unsafe { port::write_u32(DATA, value) };
}
