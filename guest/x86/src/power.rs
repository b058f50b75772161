//! The end of the machine, and what status its monitor ends with.

use crate::{
    acpi::PowerOff,
    layout::Layout,
    port::{self, PORTS_END},
    ring0,
};

/// How the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As asked for, and well.
    Clean,
    /// It could not start with what it was given.
    Refused,
    /// A panic or an exception.
    Crashed,
    /// As asked for, with a failing status.
    Failed,
}

/// QEMU's `isa-debug-exit`: it ends with twice the value written, plus one.
const DEBUG_EXIT: u16 = 0xf4;
/// The keyboard controller's command port and its command to reset the processor: all that Firecracker offers.
const KEYBOARD_CONTROLLER: u16 = 0x64;
const RESET_PROCESSOR: u8 = 0xfe;

impl Status {
    /// QEMU's exit status.
    pub fn exit_status(self) -> u8 {
        match self {
            Status::Clean => 0,
            Status::Refused => 3,
            Status::Crashed => 5,
            Status::Failed => 7,
        }
    }
}

/// Switches off through ACPI. Returns where that does nothing.
pub(crate) fn switch_off(by: PowerOff) {
    // SAFETY: the firmware's tables name these registers for this purpose, and the program ends here.
    unsafe {
        match by {
            PowerOff::Port16(register, value) if register < PORTS_END => port::write_u16(register, value),
            PowerOff::Port8(register, value) if register < PORTS_END => port::write_u8(register, value),
            PowerOff::Memory8(register, value) => (register as *mut u8).write_volatile(value),
            PowerOff::Port16(..) | PowerOff::Port8(..) => {}
        }
    }
}

/// Ends the machine without switching it off properly: by QEMU's debug device if the status is a failing one, and
/// otherwise, or where that is not there, by a reset, which a monitor that was told not to reboot takes for the end.
pub fn end(layout: &Layout, status: Status) -> ! {
    // SAFETY: these ports belong to devices that end the machine and know no memory.
    unsafe {
        if status != Status::Clean {
            port::write_u32(DEBUG_EXIT, u32::from(status.exit_status() >> 1));
        }
        port::write_u8(KEYBOARD_CONTROLLER, RESET_PROCESSOR);
    }
    ring0::reset(layout)
}
