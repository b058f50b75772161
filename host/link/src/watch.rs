//! What passes on an interface, seen from beside it: frames in both directions, as they are in this machine's memory.

use crate::sys;
use anyhow::{Context, Result};
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, recvmsg},
        time::TimeSpec,
    },
};
use socket2::Socket;
use std::{
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

/// What nobody has read yet, before frames are missed.
const WAITING_BYTES_MAX: i32 = 32 << 20;
/// The kernel's `struct virtio_net_hdr` before each frame, and the flag in its first byte that says that a checksum is left
/// to the card.
const HEADER_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
/// The largest frame that the kernel has on an interface.
const FRAME_BYTES_MAX: usize = 14 + 65_535;

/// A packet socket on an interface.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    bytes: Vec<u8>,
    /// Room for the time that comes with a frame.
    control: Vec<u8>,
}

/// A frame that has passed.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The frame.
    pub frame: &'a mut [u8],
    /// When, since 1970.
    pub at: Duration,
    /// The checksum that its sender has left to the card, if there is one.
    pub unfinished: Option<Unfinished>,
}

/// A checksum of which the field holds only what the pseudo-header gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Where what it covers begins, up to the frame's end.
    pub start: usize,
    /// Where the field is.
    pub field: usize,
}

impl Watch {
    /// Watches an interface from now on.
    pub fn open(interface: &str) -> Result<Watch> {
        let socket = sys::packet_socket(interface, WAITING_BYTES_MAX);
        let socket = socket.with_context(|| format!("a packet socket on {interface}"))?;
        let bytes = vec![0; HEADER_BYTES + FRAME_BYTES_MAX];
        Ok(Watch { socket, bytes, control: cmsg_space!(TimeSpec) })
    }

    /// The next frame, if one has passed that was not taken yet.
    pub fn take(&mut self) -> io::Result<Option<Seen<'_>>> {
        let mut pieces = [IoSliceMut::new(&mut self.bytes)];
        let (socket, control) = (self.socket.as_raw_fd(), Some(&mut self.control[..]));
        let (len, at) = match recvmsg::<()>(socket, &mut pieces, control, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            result => {
                let message = result?;
                let time = message.cmsgs()?.find_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                    _ => None,
                });
                (message.bytes, time.unwrap_or_default())
            }
        };
        Ok(Some(see(&mut self.bytes[..len], at)))
    }

    /// How many frames have passed, since the last time this was asked, that will never be taken.
    pub fn missed(&self) -> io::Result<u32> {
        sys::missed_packets(&self.socket)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A frame behind its header. The checksum that this speaks of lies in the frame.
fn see(bytes: &mut [u8], at: Duration) -> Seen<'_> {
    let (header, frame) = bytes.split_at_mut(HEADER_BYTES.min(bytes.len()));
    let unfinished = parse(header).filter(|unfinished| unfinished.field + 2 <= frame.len());
    Seen { frame, at, unfinished }
}

/// What the header before a frame says of its checksum.
fn parse(header: &[u8]) -> Option<Unfinished> {
    //  0        1         2        4         6             8               10
    //  | flags  | gso_type | hdr_len | gso_size | csum_start  | csum_offset  |
    let header: &[u8; HEADER_BYTES] = header.try_into().ok()?;
    let number = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (start, offset) = (number(6), number(8));
    (header[0] & NEEDS_CHECKSUM != 0).then_some(Unfinished { start, field: start + offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, VethPair};
    use kayvee_testing::{
        network::{SeedReport, seeds},
        random::Random,
    };
    use std::net::UdpSocket;

    #[test]
    fn a_header_says_which_checksum_is_left() {
        let header = |flags: u8, start: u16, offset: u16| {
            let [start, offset] = [start, offset].map(u16::to_ne_bytes);
            [&[flags, 1, 54, 0, 0, 4][..], &start, &offset].concat()
        };
        assert_eq!(parse(&header(1, 34, 16)), Some(Unfinished { start: 34, field: 50 }));
        assert_eq!(parse(&header(1, u16::MAX, u16::MAX)), Some(Unfinished { start: 65_535, field: 131_070 }));
        assert_eq!(parse(&header(2, 34, 16)), None);
        assert_eq!(parse(&[1; HEADER_BYTES - 1]), None);
    }

    #[test]
    fn whatever_a_header_says_a_checksum_lies_in_its_frame() {
        for seed in seeds(50) {
            let _report = SeedReport(seed);
            let mut random = Random::new(seed);
            let mut bytes = random.bytes(HEADER_BYTES + 100);
            // Numbers about as large as the frame.
            (bytes[0], bytes[7], bytes[9]) = (NEEDS_CHECKSUM, 0, random.below(2) as u8);
            for len in 0..=bytes.len() {
                let Seen { frame, unfinished, .. } = see(&mut bytes[..len], Duration::ZERO);
                assert_eq!(frame.len(), len.saturating_sub(HEADER_BYTES));
                let lies_within = |Unfinished { start, field }| start <= field && field + 2 <= frame.len();
                assert!(unfinished.is_none_or(lies_within), "{unfinished:?} of {len} bytes");
            }
        }
    }

    #[test]
    #[ignore = "needs root: ./kayvee test"]
    fn what_is_not_taken_is_missed_and_counted() {
        const DATAGRAM_BYTES: usize = 50_000;
        const SENT: usize = 2000;
        let inside = || {
            let pair = VethPair::create(60_000)?;
            let mut watch = Watch::open(&pair.host_name)?;
            let socket = UdpSocket::bind((pair.link.host, 0))?;
            let mut datagram = vec![7; DATAGRAM_BYTES];
            for number in 0..SENT {
                datagram[0] = number as u8;
                socket.send_to(&datagram, (pair.link.guest, 9))?;
            }
            let mut taken = Vec::new();
            while let Some(seen) = watch.take()? {
                if seen.frame.len() > DATAGRAM_BYTES {
                    assert_eq!(seen.frame.len(), 14 + 20 + 8 + DATAGRAM_BYTES);
                    // The host leaves UDP's checksum to the card.
                    assert_eq!(seen.unfinished, Some(Unfinished { start: 34, field: 40 }));
                    taken.push(seen.frame[42]);
                }
            }
            // The first ones, in order, and none of the others.
            assert!(taken.iter().enumerate().all(|(number, first)| *first == number as u8));
            assert!((100..SENT).contains(&taken.len()), "{} of {SENT} datagrams", taken.len());
            // The host's own reports of groups, now and then, besides.
            assert!((SENT..SENT + 4).contains(&(taken.len() + watch.missed()? as usize)));
            assert_eq!(watch.missed()?, 0, "they are said once");
            Ok(())
        };
        Namespace::create().unwrap().enter(inside).unwrap();
    }
}
