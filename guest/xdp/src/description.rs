//! The page by which a monitor tells a guest where the rings and frames are: numbers in little-endian order.
//!
//! ```text
//!   0  magic "KVXDP\0\0" and version, 8 bytes
//!   8  Ethernet address, 6 bytes     14  checksums: 0 complete, 1 partial, 2 bytes
//!  16  frames: guest-physical address, 8 bytes     24  length, 4 bytes     28  bytes of each, 4 bytes
//!  32  rings in the order fill, completion, rx, tx, 32 bytes each:
//!        0  guest-physical address, 8 bytes      8  length, 4 bytes
//!       12  offsets of producer, consumer, flags and first entry, 4 bytes each     28  entries, 4 bytes
//! 160  doorbell: port, 2 bytes       162  send: port, 2 bytes       164  bytes of the largest frame, 4 bytes
//! ```

use crate::RingLayout;
use core::fmt;
use kayvee_platform::Checksums;

/// What a description takes.
pub const DESCRIPTION_BYTES: usize = 168;

const MAGIC: [u8; 8] = *b"KVXDP\0\0\x03";
const RINGS_AT: usize = 32;
const RING_BYTES: usize = 32;

/// Where a ring is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// Guest-physical address of its memory, at the start of a page.
    pub address: u64,
    /// Bytes of its memory.
    pub len: u32,
    /// Where its parts are in that.
    pub layout: RingLayout,
}

/// What a guest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The guest's Ethernet address.
    pub mac: [u8; 6],
    /// Whether who sends to it may leave checksums undone.
    pub checksums: Checksums,
    /// Guest-physical address of the frames.
    pub frames_address: u64,
    /// Bytes of all frames ...
    pub frames_len: u32,
    /// ... and of each.
    pub frame_bytes: u32,
    /// Bytes of the largest frame that is sent or received, as [`Parts`](crate::Parts) has it.
    pub max_frame_bytes: u32,
    /// Fill, completion, rx and tx ring.
    pub rings: [RingPlace; 4],
    /// Writing any byte to this port has the frames in the tx ring sent.
    pub doorbell_port: u16,
    /// Writing 32 bits to this port does the same before the write has ended, and then rests for so many microseconds.
    pub send_port: u16,
}

/// There is no description that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptionError;

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the description of the network's rings is of another version of the monitor")
    }
}

fn number<const N: usize>(bytes: &[u8; DESCRIPTION_BYTES], at: usize) -> [u8; N] {
    core::array::from_fn(|index| bytes[at + index])
}

impl Description {
    /// Writes it down.
    pub fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        let mut bytes = [0; DESCRIPTION_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &self.mac);
        put(14, &[u8::from(self.checksums == Checksums::Partial), 0]);
        put(16, &self.frames_address.to_le_bytes());
        put(24, &self.frames_len.to_le_bytes());
        put(28, &self.frame_bytes.to_le_bytes());
        for (index, ring) in self.rings.iter().enumerate() {
            let at = RINGS_AT + index * RING_BYTES;
            let RingLayout { producer, consumer, flags, entries_at, entries } = ring.layout;
            put(at, &ring.address.to_le_bytes());
            for (number, value) in [ring.len, producer, consumer, flags, entries_at, entries].iter().enumerate() {
                put(at + 8 + 4 * number, &value.to_le_bytes());
            }
        }
        put(160, &self.doorbell_port.to_le_bytes());
        put(162, &self.send_port.to_le_bytes());
        put(164, &self.max_frame_bytes.to_le_bytes());
        bytes
    }

    /// Reads it. What it says of the rings is checked where they are taken into use.
    pub fn decode(bytes: &[u8; DESCRIPTION_BYTES]) -> Result<Description, DescriptionError> {
        let u32_at = |at| u32::from_le_bytes(number(bytes, at));
        let checksums = match bytes[14] {
            0 => Checksums::Complete,
            1 => Checksums::Partial,
            _ => return Err(DescriptionError),
        };
        if bytes[..8] != MAGIC {
            return Err(DescriptionError);
        }
        let rings = core::array::from_fn(|index| {
            let at = RINGS_AT + index * RING_BYTES;
            let [len, producer, consumer, flags, entries_at, entries] =
                core::array::from_fn(|number| u32_at(at + 8 + 4 * number));
            let layout = RingLayout { producer, consumer, flags, entries_at, entries };
            RingPlace { address: u64::from_le_bytes(number(bytes, at)), len, layout }
        });
        Ok(Description {
            mac: number(bytes, 8),
            checksums,
            frames_address: u64::from_le_bytes(number(bytes, 16)),
            frames_len: u32_at(24),
            frame_bytes: u32_at(28),
            rings,
            doorbell_port: u16::from_le_bytes(number(bytes, 160)),
            send_port: u16::from_le_bytes(number(bytes, 162)),
            max_frame_bytes: u32_at(164),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_and_decoding_are_inverse() {
        let ring = |n: u32| RingPlace {
            address: 0xd040_0000 + u64::from(n) * 0x20_0000,
            len: 0x1000 * n,
            layout: RingLayout { producer: n, consumer: 64 + n, flags: 128 + n, entries_at: 192 + n, entries: 1 << n },
        };
        let description = Description {
            mac: [2, 1, 2, 3, 4, 5],
            checksums: Checksums::Partial,
            frames_address: 0xd020_0000,
            frames_len: 8 << 20,
            frame_bytes: 2048,
            max_frame_bytes: 16_384,
            rings: [ring(1), ring(2), ring(3), ring(4)],
            doorbell_port: 0x510,
            send_port: 0x514,
        };
        let bytes = description.encode();
        assert_eq!(Description::decode(&bytes), Ok(description));
        for at in 0..8 {
            let mut broken = bytes;
            broken[at] ^= 1;
            assert_eq!(Description::decode(&broken), Err(DescriptionError));
        }
        let mut broken = bytes;
        broken[14] = 2;
        assert_eq!(Description::decode(&broken), Err(DescriptionError));
    }
}
