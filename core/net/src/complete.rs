//! Checksums that the sender of a frame has left to a card, for who shows the frame to others.

use crate::{
    checksum,
    ends::Ends,
    frame::{CHECKSUM_AT, ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_BYTES, PROTOCOL_TCP, PROTOCOL_UDP},
    ipv6::{self, address_at},
};
use core::{net::Ipv4Addr, ops::Range};

/// Where UDP's checksum is (RFC 768).
const UDP_CHECKSUM_AT: usize = 6;

/// Completes the checksum of TCP or UDP in a frame whose field holds the sum of the pseudo-header alone, as a card would. One
/// that is right, and one that is wrong in another way, stays as it is.
pub fn complete_checksum(frame: &mut [u8]) {
    let Some((ends, protocol, carried)) = find_carried(frame) else { return };
    let at = match protocol {
        PROTOCOL_TCP => CHECKSUM_AT,
        PROTOCOL_UDP => UDP_CHECKSUM_AT,
        _ => return,
    };
    let Some(bytes) = frame.get_mut(carried).filter(|bytes| bytes.len() >= at + 2) else { return };
    let undone = checksum::finish(ends.pseudo_header(protocol, bytes.len())).map(|byte| !byte);
    if bytes[at..at + 2] == undone {
        // With what the field holds, this is the sum of all that the checksum covers.
        let complete = checksum::finish(checksum::sum(bytes));
        // UDP's zero would say that there is none; all ones is the same number.
        bytes[at..at + 2].copy_from_slice(if complete == [0, 0] { &[0xff, 0xff] } else { &complete });
    }
}

/// What a packet that is no fragment carries behind its header, and between whom.
fn find_carried(frame: &[u8]) -> Option<(Ends, u8, Range<usize>)> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
    match [ethernet[12], ethernet[13]] {
        ETHERTYPE_IPV4 => {
            let ip = packet.first_chunk::<IPV4_BYTES>()?;
            let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
            let [remote, own] = [12, 16].map(|at| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]));
            let start = ETHERNET_BYTES + usize::from(ip[0] & 0xf) * 4;
            let is_whole = word(6) & 0x3fff == 0;
            is_whole.then(|| (Ends::V4 { own, remote }, ip[9], start..ETHERNET_BYTES + usize::from(word(2))))
        }
        ETHERTYPE_IPV6 => {
            let ip = packet.first_chunk::<{ ipv6::HEADER_BYTES }>()?;
            let start = ETHERNET_BYTES + ipv6::HEADER_BYTES;
            let end = start + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            Some((Ends::V6 { own: address_at(ip, 24), remote: address_at(ip, 8) }, ip[6], start..end))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HOP_LIMIT, Route, emit_headers};
    use core::net::Ipv6Addr;
    use smoltcp::wire::EthernetAddress;
    extern crate std;
    use std::{vec, vec::Vec};

    const LEN: usize = 200;

    /// A frame with random data, behind which there are so many bytes of padding, and where its checksum is.
    fn frame(random: &mut fastrand::Rng, protocol: u8, len: usize, padding: usize) -> (Vec<u8>, usize, Ends) {
        let ends = if random.bool() {
            Ends::V4 { own: Ipv4Addr::from_bits(random.u32(..)), remote: Ipv4Addr::from_bits(random.u32(..)) }
        } else {
            Ends::V6 { own: Ipv6Addr::from_bits(random.u128(..)), remote: Ipv6Addr::from_bits(random.u128(..)) }
        };
        let start = ETHERNET_BYTES + ends.header_bytes();
        let mut frame = vec![0; start + len + padding];
        let station = EthernetAddress([2; 6]);
        let route = Route { mac: station, hardware: station, ends: &ends };
        emit_headers(&mut frame[..start + len], &route, protocol, HOP_LIMIT, len);
        random.fill(&mut frame[start..]);
        (frame, start, ends)
    }

    #[test]
    fn an_undone_checksum_becomes_right_and_nothing_else_changes() {
        let mut random = fastrand::Rng::with_seed(7);
        for (protocol, at) in [(PROTOCOL_TCP, 16), (PROTOCOL_UDP, 6)].into_iter().cycle().take(2000) {
            let (len, padding) = (random.usize(20..LEN), random.usize(..3));
            let (mut frame, start, ends) = frame(&mut random, protocol, len, padding);
            let pseudo = ends.pseudo_header(protocol, len);
            let undone = checksum::finish(pseudo).map(|byte| !byte);
            let mut other = frame.clone();
            frame[start + at..][..2].copy_from_slice(&undone);
            let before = frame.clone();
            complete_checksum(&mut frame);
            assert_eq!(checksum::finish(pseudo + checksum::sum(&frame[start..start + len])), [0, 0]);
            let completed = frame.clone();
            complete_checksum(&mut frame);
            assert_eq!(frame, completed, "what is right stays");
            frame[start + at..][..2].copy_from_slice(&undone);
            assert_eq!(frame, before);
            // One that is wrong is not made right.
            other[start + at..][..2].copy_from_slice(&[undone[0] ^ 1, undone[1]]);
            let wrong = other.clone();
            complete_checksum(&mut other);
            assert_eq!(other, wrong);
        }
    }

    #[test]
    fn fragments_and_other_protocols_stay_as_they_are() {
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..500 {
            let protocol = [PROTOCOL_TCP, 58][random.usize(..2)];
            let (mut frame, start, ends) = frame(&mut random, protocol, LEN, 0);
            let undone = checksum::finish(ends.pseudo_header(protocol, LEN)).map(|byte| !byte);
            frame[start + 16..][..2].copy_from_slice(&undone);
            if protocol == PROTOCOL_TCP {
                match ends {
                    Ends::V4 { .. } => frame[ETHERNET_BYTES + 6] |= [0x20, 1][random.usize(..2)],
                    Ends::V6 { .. } => frame[ETHERNET_BYTES + 6] = 44,
                }
            }
            let before = frame.clone();
            complete_checksum(&mut frame);
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn whatever_the_headers_say_it_lies_in_the_frame() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..20_000 {
            let (mut frame, start, _) = frame(&mut random, PROTOCOL_TCP, 40, 0);
            frame[random.usize(12..start)] = random.u8(..);
            frame.truncate(random.usize(..=start + 40));
            complete_checksum(&mut frame);
        }
    }
}
