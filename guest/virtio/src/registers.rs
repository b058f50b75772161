//! Memory-mapped device registers.

use core::ptr::{read_volatile, write_volatile};

/// A range of registers. Accesses outside of it are refused by a panic: offsets are the driver's own.
#[derive(Debug)]
pub struct Registers {
    base: usize,
    bytes: usize,
}

macro_rules! access {
    ($read:ident, $write:ident, $type:ty) => {
        #[doc = concat!("Reads a `", stringify!($type), "`.")]
        pub fn $read(&self, offset: usize) -> $type {
            let at = self.check(offset, size_of::<$type>());
            // SAFETY: `new` vouches for the range, `check` for the place in it.
            <$type>::from_le(unsafe { read_volatile(at as *const $type) })
        }

        #[doc = concat!("Writes a `", stringify!($type), "`.")]
        pub fn $write(&self, offset: usize, value: $type) {
            let at = self.check(offset, size_of::<$type>());
            // SAFETY: as above.
            unsafe { write_volatile(at as *mut $type, value.to_le()) };
        }
    };
}

impl Registers {
    /// The registers at an address.
    ///
    /// # Safety
    /// The range must be mapped for reading and writing, for ever, and belong to the device alone.
    pub unsafe fn new(base: u64, bytes: usize) -> Registers {
        Registers { base: base as usize, bytes }
    }

    /// A part of these registers, if it lies inside.
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Registers> {
        let inside = offset.checked_add(bytes)? <= self.bytes;
        inside.then(|| Registers { base: self.base + offset, bytes })
    }

    fn check(&self, offset: usize, bytes: usize) -> usize {
        assert!(offset + bytes <= self.bytes, "register {offset:#x} lies outside of the device");
        let at = self.base + offset;
        assert!(at.is_multiple_of(bytes), "register {offset:#x} is misaligned");
        at
    }

    access!(read_u8, write_u8, u8);
    access!(read_u16, write_u16, u16);
    access!(read_u32, write_u32, u32);
}
