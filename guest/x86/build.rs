//! Lays out at build time what the processor reads at boot: the page tables of the image's window and the interrupt
//! descriptors. Both are written as linker-script data, because only the linker knows the addresses in them.
//!
//! A target that links an image finds the results through `DEP_KAYVEE_BOOT_DIR` in its own build script.

use std::{env, fmt::Write, fs, path::PathBuf};

/// The image's window: physical addresses below this are mapped by these tables, page by page, once for all.
const WINDOW_BYTES: u64 = 8 << 20;
/// Memory below this belongs to the hypervisor's boot data and to legacy devices' firmware.
const LOW_MEMORY_END: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// Where the page at physical address 0 can be read, in which firmware may leave boot data: in place of display memory
/// that nobody looks at. Keep it in step with `layout.rs`.
const FIRST_PAGE_ALIAS: u64 = 0xa_0000;

// Page table entry bits, Intel SDM volume 3 §4.5.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const CACHE_DISABLE: u64 = 1 << 4;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;

/// 2 MiB pages that hold the device registers at fixed places of the PC: QEMU's virtio-mmio slots and the I/O APICs,
/// and the local APIC.
const DEVICE_PAGES: [u64; 3] = [0xfea0_0000, 0xfec0_0000, 0xfee0_0000];

/// Interrupt vectors: 32 of the processor, then `boot.S`'s own.
const VECTORS: u64 = 64;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    for name in ["image.ld", "boot.S", "memory.S"] {
        println!("cargo::rerun-if-changed={name}");
        fs::copy(source.join(name), out.join(name)).expect("copying into OUT_DIR");
    }
    // For the tests, under names that do not replace the host's own.
    let memory = fs::read_to_string(source.join("memory.S")).expect("reading memory.S");
    let renamed = ["memcpy", "memmove", "memset", "memcmp", "bcmp"]
        .iter()
        .fold(memory, |text, name| text.replace(name, &format!("tested_{name}")));
    fs::write(out.join("memory-tested.S"), renamed).expect("writing into OUT_DIR");
    fs::write(out.join("page-tables.ld"), page_tables()).expect("writing into OUT_DIR");
    fs::write(out.join("interrupts.ld"), interrupts()).expect("writing into OUT_DIR");
    println!("cargo::metadata=dir={}", out.display());
}

/// Root, one directory for each of the first and the fourth GiB, and the tables of the window.
fn page_tables() -> String {
    let table = PRESENT | WRITABLE | USER;
    let mut script = String::new();
    let mut quad = |value: String| writeln!(script, "QUAD({value})").expect("a String takes all");

    // Root: one entry for the first 512 GiB.
    quad(format!("page_tables + {:#x}", PAGE_BYTES | table));
    (1..512).for_each(|_| quad("0".into()));
    // The first 512 GiB: directories for the GiB of the image and for the GiB of the devices.
    for gib in 0..512 {
        quad(match gib {
            0 => format!("page_tables + {:#x}", (2 * PAGE_BYTES) | table),
            3 => format!("page_tables + {:#x}", (3 * PAGE_BYTES) | table),
            _ => "0".into(),
        });
    }
    let window_tables = WINDOW_BYTES / (512 * PAGE_BYTES);
    for entry in 0..512 {
        quad(if entry < window_tables {
            format!("page_tables + {:#x}", ((4 + entry) * PAGE_BYTES) | table)
        } else {
            "0".into()
        });
    }
    for entry in 0..512 {
        let address = (3 << 30) + entry * (2 << 20);
        quad(if DEVICE_PAGES.contains(&address) {
            let flags = PRESENT | WRITABLE | USER | WRITE_THROUGH | CACHE_DISABLE | LARGE | NO_EXECUTE;
            format!("{:#x}", address | flags)
        } else {
            "0".into()
        });
    }
    for page in 0..WINDOW_BYTES / PAGE_BYTES {
        quad(window_entry(page * PAGE_BYTES));
    }
    script
}

/// The expression for one page of the window. What lies where is for the linker to say.
fn window_entry(at: u64) -> String {
    if at == 0 {
        return "0".into(); // A null pointer faults.
    }
    let shown = if at == FIRST_PAGE_ALIAS { 0 } else { at };
    let read_only = shown | PRESENT | USER | NO_EXECUTE;
    if at < LOW_MEMORY_END {
        return format!("{read_only:#x}");
    }
    let code = at | PRESENT | USER;
    let data = at | PRESENT | WRITABLE | USER | NO_EXECUTE;
    format!(
        "{at:#x} < text_end ? {code:#x} : {at:#x} < rodata_end ? {read_only:#x} : {at:#x} < data_end ? {data:#x} : \
         {at:#x} < ring3_stack_bottom ? 0 : {at:#x} < ring3_stack_top ? {data:#x} : \
         {at:#x} < ring0_stack_bottom ? 0 : {at:#x} < ring0_stack_top ? {data:#x} : \
         {at:#x} < fault_stack_bottom ? 0 : {data:#x}"
    )
}

/// Interrupt gates (Intel SDM volume 3 §6.14.1): present, for ring 0, interrupts off on entry.
fn interrupts() -> String {
    let mut script = String::new();
    for vector in 0..VECTORS {
        let target = match vector {
            13 => "general_protection".into(),
            0..32 => format!("(exception_stubs + {})", vector * 16),
            _ if vector == VECTORS - 1 => "spurious_interrupt".into(),
            _ => "wake_interrupt".into(),
        };
        // A double fault may come from a broken stack, so it gets one of its own.
        let stack = if vector == 8 { 1 } else { 0 };
        writeln!(
            script,
            "SHORT({target} & 0xffff) SHORT(0x8) BYTE({stack}) BYTE(0x8e) SHORT(({target} >> 16) & 0xffff) LONG(0) LONG(0)"
        )
        .expect("a String takes all");
    }
    script
}
