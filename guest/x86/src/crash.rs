//! The end of a program that has failed: its cause and a backtrace on the console, then a failing status.

use crate::{
    layout::Layout,
    power::{self, Status},
    serial,
};
use core::{
    fmt::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

/// Frames of a backtrace, at most.
const FRAMES_MAX: usize = 32;

/// Set by the first crash, so that a crash while reporting one ends at once.
static CRASHING: AtomicBool = AtomicBool::new(false);

/// Prints what `cause` writes and the backtrace from `(rip, rbp)` on, and ends the machine.
pub fn report(layout: &Layout, at: (u64, u64), cause: impl FnOnce(&mut dyn Write) -> fmt::Result) -> ! {
    let mut out = serial::Writer::new();
    if CRASHING.swap(true, Ordering::Relaxed) {
        let _ = out.write_str("exception: another one while reporting\n");
        out.flush();
        power::end(layout, Status::Crashed);
    }
    // A serial writer never fails; a failing `Display` of a panic message costs only its own line.
    let _ = cause(&mut out);
    let _ = out.write_str("\n");
    // SAFETY: `is_on_a_stack` has admitted the address, and all stacks are mapped.
    let read = |address: u64| unsafe { (address as *const u64).read_volatile() };
    let _ = backtrace(&mut out, layout, at, read);
    out.flush();
    drop(out);
    power::end(layout, Status::Crashed)
}

/// Reports a panic, called from the panic handler itself.
#[inline(always)]
pub fn panic(layout: &Layout, info: &core::panic::PanicInfo<'_>) -> ! {
    let rbp: u64;
    // SAFETY: copies a register.
    unsafe { core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    // The handler itself says nothing, so the trace starts with its caller.
    report(layout, (0, rbp), |out| {
        write!(out, "panic: {}", info.message())?;
        info.location().map_or(Ok(()), |place| write!(out, ", at {place}"))
    })
}

/// Follows saved frame pointers: each frame holds its caller's `rbp`, then the address to return to.
fn backtrace(
    out: &mut dyn Write,
    layout: &Layout,
    (rip, mut rbp): (u64, u64),
    read: impl Fn(u64) -> u64,
) -> fmt::Result {
    let symbols = layout.symbol_table();
    let mut line = |address: u64| match symbols.lookup(address) {
        Some((name, offset)) => writeln!(out, "  at {name}+{offset:#x}"),
        None => writeln!(out, "  at {address:#x}"),
    };
    let in_text = |address| (layout.image_start..layout.text_end).contains(&address);
    if in_text(rip) {
        line(rip)?;
    }
    for _ in 0..FRAMES_MAX {
        if !rbp.is_multiple_of(8) || !layout.is_on_a_stack(rbp) {
            break;
        }
        let (caller, return_address) = (read(rbp), read(rbp + 8));
        if !in_text(return_address) {
            break;
        }
        // The call is the instruction before; at a function's end the address behind it is another function's.
        line(return_address - 1)?;
        if caller <= rbp {
            break;
        }
        rbp = caller;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::{collections::HashMap, string::String};

    extern "C" fn no_ring0(_: u64, _: u64, _: u64, _: u64) -> u64 {
        0
    }

    fn layout() -> Layout {
        Layout {
            image_start: 0x10_0000,
            text_end: 0x11_0000,
            data: [0x12_0000, 0x13_0000],
            image_end: 0x20_0000,
            ring3_stack: [0x14_0000, 0x15_0000],
            ring0_stack: [0x15_1000, 0x15_2000],
            fault_stack: [0x15_3000, 0x15_4000],
            root_table: 0,
            ring0_call: no_ring0,
            symbols: [0, 0],
        }
    }

    fn trace(stack: &[(u64, u64)], rip: u64, rbp: u64) -> String {
        let words: HashMap<u64, u64> = stack.iter().copied().collect();
        let mut out = String::new();
        backtrace(&mut out, &layout(), (rip, rbp), |at| *words.get(&at).expect("reads only saved frames")).unwrap();
        out
    }

    #[test]
    fn follows_frames_to_the_last_one() {
        let stack = [(0x14_0100, 0x14_0200), (0x14_0108, 0x10_0020), (0x14_0200, 0), (0x14_0208, 0x10_0030)];
        assert_eq!(trace(&stack, 0x10_0010, 0x14_0100), "  at 0x100010\n  at 0x10001f\n  at 0x10002f\n");
    }

    #[test]
    fn wild_frame_pointers_end_the_trace() {
        assert_eq!(trace(&[], 0xdead_0000, 0), "");
        assert_eq!(trace(&[], 0x10_0010, 0x14_0101), "  at 0x100010\n");
        assert_eq!(trace(&[], 0x10_0010, 0x14_fff8), "  at 0x100010\n");
        let circle = [(0x14_0100, 0x14_0100), (0x14_0108, 0x10_0020)];
        assert_eq!(trace(&circle, 0x10_0010, 0x14_0100), "  at 0x100010\n  at 0x10001f\n");
    }

    #[test]
    fn names_the_stack_that_overflowed() {
        assert_eq!(layout().stack_guarding(0x13_fff8), Some("ring 3"));
        assert_eq!(layout().stack_guarding(0x15_0000), Some("ring 0"));
        assert_eq!(layout().stack_guarding(0x14_0000), None);
    }
}
