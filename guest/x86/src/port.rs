//! Port input and output. Ring 3 reaches every port below `PORTS_END`, by the task state's permission bitmap.

use core::arch::asm;

/// Ring 3 has no ports from here on.
pub(crate) const PORTS_END: u16 = 0x1000;

macro_rules! port_access {
    ($read:ident, $write:ident, $type:ty, $register:tt, $bits:literal) => {
        #[doc = concat!("Reads ", $bits, " bits from a port.")]
        ///
        /// # Safety
        /// Reading the port must have no effect on memory that anyone relies on.
        pub unsafe fn $read(port: u16) -> $type {
            let value: $type;
            // SAFETY: the caller vouches for the device's behaviour; the instruction touches no memory.
            unsafe { asm!(concat!("in ", $register, ", dx"), out($register) value, in("dx") port, options(nomem, nostack, preserves_flags)) };
            value
        }

        #[doc = concat!("Writes ", $bits, " bits to a port.")]
        ///
        /// # Safety
        /// Writing the value must have no effect on memory that anyone relies on.
        pub unsafe fn $write(port: u16, value: $type) {
            // SAFETY: as above.
            unsafe { asm!(concat!("out dx, ", $register), in($register) value, in("dx") port, options(nomem, nostack, preserves_flags)) };
        }
    };
}

port_access!(read_u8, write_u8, u8, "al", "8");
port_access!(read_u16, write_u16, u16, "ax", "16");
port_access!(read_u32, write_u32, u32, "eax", "32");
