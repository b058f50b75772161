//! The way into ring 0, and what there is to be had; `boot.S` holds the other side.

use crate::layout::Layout;

/// Sleeps until an interrupt.
const CALL_SLEEP: u64 = 0;
/// Takes page tables and descriptors away from ring 3; start and end of the tables behind the image.
const CALL_SEAL: u64 = 1;
/// Writes a model-specific register: number, value.
const CALL_WRITE_MSR: u64 = 2;
/// Resets the processor.
const CALL_RESET: u64 = 3;

/// Registers by which KVM is told where to write the time.
pub(crate) const MSR_KVM_WALL_CLOCK: u64 = 0x4b56_4d00;
pub(crate) const MSR_KVM_SYSTEM_TIME: u64 = 0x4b56_4d01;

/// Ring 0, seen from ring 3.
#[derive(Clone, Copy)]
pub(crate) struct Ring0(&'static Layout);

impl Ring0 {
    pub(crate) fn new(layout: &'static Layout) -> Ring0 {
        Ring0(layout)
    }

    pub(crate) fn layout(self) -> &'static Layout {
        self.0
    }

    pub(crate) fn sleep(self) {
        (self.0.ring0_call)(CALL_SLEEP, 0, 0, 0);
    }

    /// Ends the time in which page tables can be changed.
    pub(crate) fn seal(self, tables_start: u64, tables_end: u64) {
        (self.0.ring0_call)(CALL_SEAL, tables_start, tables_end, 0);
    }

    /// Writes one of KVM's clock registers; `false` if ring 0 refuses.
    pub(crate) fn write_msr(self, number: u64, value: u64) -> bool {
        (self.0.ring0_call)(CALL_WRITE_MSR, number, value, 0) == 0
    }
}

/// Resets the processor.
pub(crate) fn reset(layout: &Layout) -> ! {
    (layout.ring0_call)(CALL_RESET, 0, 0, 0);
    unreachable!("a reset does not return")
}
