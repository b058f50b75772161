//! Processor exceptions: always the end of the program, but never without a word.

use crate::{crash, layout::Layout};

/// What `boot.S` saves of the interrupted code.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    /// CR2: the address that a page fault was about.
    fault_address: u64,
    /// r15 down to r8, rdi, rsi, rbp, rbx, rdx, rcx, rax.
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

const RBP: usize = 10;

impl Frame {
    /// The cause, in words.
    fn describe(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        const NAMES: [&str; 22] = [
            "division by zero",
            "debug trap",
            "non-maskable interrupt",
            "breakpoint",
            "overflow",
            "bound exceeded",
            "invalid instruction",
            "no FPU",
            "double fault",
            "FPU overrun",
            "invalid task state",
            "segment not present",
            "stack segment",
            "general protection",
            "page fault",
            "reserved",
            "FPU error",
            "misaligned access",
            "machine check",
            "SIMD error",
            "virtualization",
            "control protection",
        ];
        let name = NAMES.get(self.vector as usize).unwrap_or(&"reserved");
        if self.vector != 14 {
            return write!(out, "{name}, error code {:#x}", self.error);
        }
        // Intel SDM volume 3 §4.7: bit 0 protection, 1 write, 4 instruction fetch.
        let access = match self.error & 0x12 {
            0x10 => "executing",
            0x02 => "writing",
            _ => "reading",
        };
        let why = if self.error & 1 != 0 { "not allowed there" } else { "nothing is mapped there" };
        write!(out, "{name} {access} {:#x}: {why}", self.fault_address)
    }
}

/// Reports an exception and ends the machine. `boot.S` comes here, in ring 3.
pub extern "C" fn exception(frame: &Frame, layout: &Layout) -> ! {
    let stack = layout.stack_guarding(frame.fault_address).filter(|_| matches!(frame.vector, 8 | 14));
    // A jump to where there is no code has left only the address to return to.
    let in_text = (layout.image_start..layout.text_end).contains(&frame.rip);
    let place = if in_text || !layout.is_on_a_stack(frame.rsp) {
        frame.rip
    } else {
        // SAFETY: `is_on_a_stack` has admitted the address, and all stacks are mapped.
        unsafe { (frame.rsp as *const u64).read().wrapping_sub(1) }
    };
    crash::report(layout, (place, frame.registers[RBP]), |out| {
        write!(out, "exception: ")?;
        if let Some(name) = stack {
            write!(out, "{name} stack overflow, ")?;
        }
        frame.describe(out)?;
        write!(out, " (ring {}, rip {:#x}, rsp {:#x})", frame.cs & 3, frame.rip, frame.rsp)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::String;

    #[test]
    fn describes_page_faults_by_their_error_code() {
        let mut frame = Frame {
            fault_address: 0x1000,
            registers: [0; 15],
            vector: 14,
            error: 7,
            rip: 0,
            cs: 0x1b,
            rflags: 2,
            rsp: 0,
            ss: 0x23,
        };
        let mut describe = |vector, error| {
            (frame.vector, frame.error) = (vector, error);
            let mut text = String::new();
            frame.describe(&mut text).unwrap();
            text
        };
        assert_eq!(describe(14, 7), "page fault writing 0x1000: not allowed there");
        assert_eq!(describe(14, 4), "page fault reading 0x1000: nothing is mapped there");
        assert_eq!(describe(14, 0x15), "page fault executing 0x1000: not allowed there");
        assert_eq!(describe(6, 0), "invalid instruction, error code 0x0");
        assert_eq!(describe(31, 0), "reserved, error code 0x0");
    }
}
