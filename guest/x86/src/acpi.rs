//! Just enough of ACPI (specification 6.5) to switch the machine off: the sleep register and the value for state S5.

use crate::pvh::PhysicalMemory;

/// Where to write what to switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerOff {
    /// A 16-bit port, PM1a_CNT (§4.8.3.2.1).
    Port16(u16, u16),
    /// An 8-bit port, the sleep control register of hardware-reduced ACPI (§4.8.3.7).
    Port8(u16, u8),
    /// The same register in memory.
    Memory8(u64, u8),
}

/// Tables that the root table may list; one lists a handful.
const TABLES_MAX: u64 = 64;
/// Bytes of a description block that are searched; QEMU's has 8 KiB.
const DSDT_BYTES_MAX: u64 = 256 << 10;
const HEADER_BYTES: u64 = 36;

// FADT, §5.2.9.
const FADT_DSDT: u64 = 40;
const FADT_PM1A_CONTROL: u64 = 64;
const FADT_FLAGS: u64 = 112;
const FADT_X_DSDT: u64 = 140;
const FADT_SLEEP_CONTROL: u64 = 244;
const HARDWARE_REDUCED: u64 = 1 << 20;

const SPACE_MEMORY: u64 = 0;
const SPACE_PORT: u64 = 1;

/// Finds the way to switch off, from the RSDP on.
pub fn find_power_off(memory: &mut impl PhysicalMemory, rsdp: u64) -> Option<PowerOff> {
    let mut signature = [0; 8];
    memory.read(rsdp, &mut signature)?;
    if &signature != b"RSD PTR " {
        return None;
    }
    let extended = memory.number::<1>(rsdp.checked_add(15)?)? >= 2;
    let fadt = if extended {
        let root = memory.number::<8>(rsdp.checked_add(24)?)?;
        find_table::<8>(memory, root)?
    } else {
        let root = memory.number::<4>(rsdp.checked_add(16)?)?;
        find_table::<4>(memory, root)?
    };
    let fadt_bytes = memory.number::<4>(fadt.checked_add(4)?)?;
    let dsdt = match memory.number::<8>(fadt.checked_add(FADT_X_DSDT)?) {
        Some(address) if fadt_bytes >= FADT_X_DSDT + 8 && address != 0 => address,
        _ => memory.number::<4>(fadt.checked_add(FADT_DSDT)?)?,
    };
    let sleep_type = find_s5(memory, dsdt)?;
    if memory.number::<4>(fadt.checked_add(FADT_FLAGS)?)? & HARDWARE_REDUCED != 0 {
        const SLEEP_ENABLE: u8 = 1 << 5;
        let value = (sleep_type & 7) << 2 | SLEEP_ENABLE;
        let register = fadt.checked_add(FADT_SLEEP_CONTROL)?;
        let address = memory.number::<8>(register.checked_add(4)?)?;
        return match memory.number::<1>(register)? {
            SPACE_MEMORY => Some(PowerOff::Memory8(address, value)),
            SPACE_PORT => Some(PowerOff::Port8(u16::try_from(address).ok()?, value)),
            _ => None,
        };
    }
    const SLEEP_ENABLE: u16 = 1 << 13;
    let port = memory.number::<4>(fadt.checked_add(FADT_PM1A_CONTROL)?)?;
    let value = u16::from(sleep_type & 7) << 10 | SLEEP_ENABLE;
    u16::try_from(port).ok().filter(|port| *port != 0).map(|port| PowerOff::Port16(port, value))
}

/// Finds the FADT in the RSDT or XSDT, whose pointers have `N` bytes.
fn find_table<const N: usize>(memory: &mut impl PhysicalMemory, root: u64) -> Option<u64> {
    let bytes = memory.number::<4>(root.checked_add(4)?)?;
    let pointers = bytes.checked_sub(HEADER_BYTES)? / N as u64;
    for index in 0..pointers.min(TABLES_MAX) {
        let table = memory.number::<N>(root.checked_add(HEADER_BYTES + index * N as u64)?)?;
        let mut signature = [0; 4];
        memory.read(table, &mut signature)?;
        if &signature == b"FACP" {
            return Some(table);
        }
    }
    None
}

/// Finds the first element of the package `_S5_` in a description block (§7.4.2 and §20.2): a name, the package's
/// operator, its length, its number of elements, a constant.
fn find_s5(memory: &mut impl PhysicalMemory, dsdt: u64) -> Option<u8> {
    const PACKAGE: u8 = 0x12;
    const BYTE_PREFIX: u8 = 0x0a;
    let bytes = memory.number::<4>(dsdt.checked_add(4)?)?.min(DSDT_BYTES_MAX);
    for offset in HEADER_BYTES..bytes.saturating_sub(4) {
        let mut code = [0; 12];
        let readable = (bytes - offset).min(code.len() as u64) as usize;
        memory.read(dsdt.checked_add(offset)?, &mut code[..readable])?;
        if !code.starts_with(b"_S5_") || code[4] != PACKAGE {
            continue;
        }
        // The length's first byte says in its top two bits how many more there are.
        let element = 5 + 1 + usize::from(code[5] >> 6) + 1;
        return match (code.get(element)?, code.get(element + 1)) {
            (&BYTE_PREFIX, Some(value)) => Some(*value),
            (value @ (0 | 1), _) => Some(*value),
            _ => None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pvh::tests::Bytes;
    extern crate std;
    use std::{vec, vec::Vec};

    const RSDP: u64 = 0x10;
    const ROOT: u64 = 0x100;
    const FADT: u64 = 0x200;
    const DSDT: u64 = 0x400;

    fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
        memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn tables(revision: u8, s5: &[u8]) -> Vec<u8> {
        let mut memory = vec![0; 0x600];
        put(&mut memory, RSDP, b"RSD PTR ");
        put(&mut memory, RSDP + 15, &[revision]);
        put(&mut memory, RSDP + 16, &(ROOT as u32).to_le_bytes());
        put(&mut memory, RSDP + 24, &ROOT.to_le_bytes());
        put(&mut memory, ROOT, b"RSDT");
        put(&mut memory, ROOT + 4, &(HEADER_BYTES as u32 + 8).to_le_bytes());
        put(&mut memory, ROOT + HEADER_BYTES, &FADT.to_le_bytes());
        put(&mut memory, FADT, b"FACP");
        put(&mut memory, FADT + 4, &268u32.to_le_bytes());
        put(&mut memory, FADT + FADT_DSDT, &(DSDT as u32).to_le_bytes());
        put(&mut memory, FADT + FADT_PM1A_CONTROL, &0x604u32.to_le_bytes());
        put(&mut memory, DSDT, b"DSDT");
        put(&mut memory, DSDT + 4, &0x100u32.to_le_bytes());
        put(&mut memory, DSDT + 0x80, s5);
        memory
    }

    const S5_OF_5: &[u8] = b"_S5_\x12\x06\x04\x0a\x05\x0a\x05\x00\x00";

    #[test]
    fn finds_the_port_of_full_acpi() {
        for revision in [0, 2] {
            let found = find_power_off(&mut Bytes(tables(revision, S5_OF_5)), RSDP);
            assert_eq!(found, Some(PowerOff::Port16(0x604, 5 << 10 | 1 << 13)));
            let found = find_power_off(&mut Bytes(tables(revision, b"_S5_\x12\x06\x04\x00\x00\x00\x00")), RSDP);
            assert_eq!(found, Some(PowerOff::Port16(0x604, 1 << 13)));
        }
    }

    #[test]
    fn finds_the_register_of_reduced_acpi() {
        for (space, expected) in [
            (0, Some(PowerOff::Memory8(0xfea0_0200, 5 << 2 | 1 << 5))),
            (1, Some(PowerOff::Port8(0x600, 5 << 2 | 1 << 5))),
            (2, None),
        ] {
            let mut memory = tables(2, S5_OF_5);
            put(&mut memory, FADT + FADT_FLAGS, &(HARDWARE_REDUCED as u32).to_le_bytes());
            let address: u64 = if space == 1 { 0x600 } else { 0xfea0_0200 };
            put(&mut memory, FADT + FADT_SLEEP_CONTROL, &[space, 8, 0, 1]);
            put(&mut memory, FADT + FADT_SLEEP_CONTROL + 4, &address.to_le_bytes());
            assert_eq!(find_power_off(&mut Bytes(memory), RSDP), expected);
        }
    }

    #[test]
    fn broken_tables_find_nothing_and_never_panic() {
        let good = tables(2, S5_OF_5);
        assert_eq!(find_power_off(&mut Bytes(tables(2, b"")), RSDP), None);
        assert_eq!(find_power_off(&mut Bytes(good.clone()), u64::MAX), None);
        for at in 0..good.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = find_power_off(&mut Bytes(bad), RSDP);
            }
        }
    }
}
