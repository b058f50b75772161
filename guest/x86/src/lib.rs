//! The machine under the image: entry, rings, paging, exceptions, time, interrupts, heap, console, and its end.
//!
//! Ring 0 is a page of assembly in `boot.S`; everything else runs in ring 3, with interrupts off. One core runs the image; nothing here is meant for several. The page tables of the image, the
//! descriptors and the stacks are laid out by the linker (`image.ld`, `build.rs`).
//!
//! This crate knows no network and no store. What is logic rather than machine (memory map, page tables, clocks, ACPI,
//! backtraces) takes the machine as an argument, and is tested on the host.
#![no_std]

pub mod acpi;
pub mod clock;
pub mod console;
pub mod cpu;
pub mod crash;
pub mod exception;
pub mod heap;
pub mod machine;
pub mod paging;
pub mod pci;
pub mod port;
pub mod power;
pub mod pvh;
pub mod rtc;
pub mod serial;

mod interrupts;
mod kvmclock;
mod layout;
#[cfg(test)]
mod memory_tests;
mod monitor;
mod pit;
mod ring0;

pub use layout::Layout;
