//! The local APIC (Intel SDM volume 3 §11) and the I/O APICs (82093AA data sheet). Interrupts do nothing but end a
//! sleep, so every device line goes to one vector and nothing is dispatched.

use crate::port;
use core::ptr::{read_volatile, write_volatile};

// `build.rs` maps the registers of both.
const LOCAL_APIC: u64 = 0xfee0_0000;
const IO_APICS: [u64; 2] = [0xfec0_0000, 0xfec1_0000];

/// The mask registers of the two 8259 controllers.
const LEGACY_MASKS: [u16; 2] = [0x21, 0xa1];

const ID: u64 = 0x20;
const TASK_PRIORITY: u64 = 0x80;
const SPURIOUS: u64 = 0xf0;
const TIMER: u64 = 0x320;
const LOCAL_LINES: [u64; 2] = [0x350, 0x360];
const INITIAL_COUNT: u64 = 0x380;
const CURRENT_COUNT: u64 = 0x390;
const DIVIDE: u64 = 0x3e0;

const APIC_ENABLED: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const DIVIDE_BY_16: u32 = 3;
/// What [`DIVIDE_BY_16`] divides by.
pub(crate) const TIMER_DIVISOR: u64 = 16;

// `boot.S` and `build.rs` know these.
const TIMER_VECTOR: u32 = 0x20;
const DEVICE_VECTOR: u32 = 0x30;
const SPURIOUS_VECTOR: u32 = 0x3f;

/// First line that a virtio device may have; those below belong to legacy devices.
const FIRST_DEVICE_LINE: u32 = 5;
/// The CMOS clock's line, which may tick.
const CLOCK_LINE: u32 = 8;

fn read(register: u64) -> u32 {
    // SAFETY: the page is mapped, and the registers used here have no effect on memory.
    unsafe { read_volatile((LOCAL_APIC + register) as *const u32) }
}

fn write(register: u64, value: u32) {
    // SAFETY: as in `read`; an interrupt that this leads to runs `wake_interrupt` and nothing else.
    unsafe { write_volatile((LOCAL_APIC + register) as *mut u32, value) }
}

/// Enables the local APIC with all its own sources masked, and starts the timer counting down from its top.
pub(crate) fn init() {
    // Firmware may have left the PC's timer ticking through the legacy controllers. A tick that waits already would come
    // with the first sleep, so they are silenced first, and the APIC looks anew at what waits when it is enabled.
    for mask in LEGACY_MASKS {
        // SAFETY: the ports are the 8259 controllers', which know no memory.
        unsafe { port::write_u8(mask, u8::MAX) };
    }
    for line in LOCAL_LINES {
        write(line, MASKED);
    }
    write(SPURIOUS, APIC_ENABLED | SPURIOUS_VECTOR);
    write(TASK_PRIORITY, 0);
    write(TIMER, MASKED | TIMER_VECTOR);
    write(DIVIDE, DIVIDE_BY_16);
    write(INITIAL_COUNT, u32::MAX);
}

/// Timer ticks left to count.
pub(crate) fn timer_count() -> u32 {
    read(CURRENT_COUNT)
}

/// Asks for one interrupt in `ticks`; 0 for none.
pub(crate) fn arm_timer(ticks: u32) {
    write(TIMER, TIMER_VECTOR);
    write(INITIAL_COUNT, ticks);
}

/// The address and data of a message that interrupts this core (Intel SDM volume 3 §11.11).
pub(crate) fn message() -> (u64, u32) {
    const DESTINATION_SHIFT: u32 = 12;
    (LOCAL_APIC | u64::from(read(ID) >> 24) << DESTINATION_SHIFT, DEVICE_VECTOR)
}

struct IoApic(u64);

impl IoApic {
    const VERSION: u32 = 1;
    const REDIRECTION: u32 = 0x10;

    fn read(&self, index: u32) -> u32 {
        // SAFETY: the page is mapped, and the registers have no effect on memory.
        unsafe {
            write_volatile(self.0 as *mut u32, index);
            read_volatile((self.0 + 0x10) as *const u32)
        }
    }

    fn write(&self, index: u32, value: u32) {
        // SAFETY: as in `read`; an interrupt that this leads to runs `wake_interrupt` and nothing else.
        unsafe {
            write_volatile(self.0 as *mut u32, index);
            write_volatile((self.0 + 0x10) as *mut u32, value);
        }
    }

    fn lines(&self) -> u32 {
        match self.read(Self::VERSION) {
            0 | u32::MAX => 0,
            version => (version >> 16 & 0xff) + 1,
        }
    }

    /// Edge-triggered, active high: a level would have to be taken back before each end of interrupt.
    fn enable(&self, line: u32) {
        self.write(Self::REDIRECTION + 2 * line + 1, read(ID) & 0xff00_0000);
        self.write(Self::REDIRECTION + 2 * line, DEVICE_VECTOR);
    }
}

/// Lets a line end a sleep. Lines are numbered through all I/O APICs.
pub(crate) fn enable_line(line: u32) {
    let mut first = 0;
    for apic in IO_APICS.map(IoApic) {
        let lines = apic.lines();
        if (first..first + lines).contains(&line) {
            return apic.enable(line - first);
        }
        first += lines;
    }
}

/// Lets every line that may be a device's end a sleep, for devices whose line nobody has named.
pub(crate) fn enable_all_device_lines() {
    let lines: u32 = IO_APICS.map(|apic| IoApic(apic).lines()).iter().sum();
    (FIRST_DEVICE_LINE..lines).filter(|line| *line != CLOCK_LINE).for_each(enable_line);
}
