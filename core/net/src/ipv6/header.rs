//! IPv6 headers (RFC 8200).
//!
//! Of extension headers, hop-by-hop and destination options are skipped if they ask for nothing: a few of them, of few
//! bytes. A packet with any other is dropped, fragments and source routes above all. TCP here needs none, and each is
//! something to hide behind (RFC 7045 §2, RFC 9288).

use super::Addresses;
use crate::{
    checksum,
    ends::{Ends, is_host6},
    frame::{Class, ETHERNET_BYTES, Icmpv6, PROTOCOL_TCP, PROTOCOL_UDP, Packet, source_of},
};
use core::net::Ipv6Addr;
use kayvee_platform::Received;
use smoltcp::wire::EthernetAddress;

pub(crate) const HEADER_BYTES: usize = 40;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const DESTINATION_OPTIONS: u8 = 60;
const NO_NEXT_HEADER: u8 = 59;
/// Extension headers of a packet, and their bytes together, at the most.
const MAX_EXTENSIONS: usize = 4;
const MAX_EXTENSION_BYTES: usize = 256;

/// Sorts an IPv6 packet by its headers. Only the checksum of ICMPv6 is looked at.
#[inline(never)]
pub(crate) fn classify_ipv6<'a>(
    frame: &Received<'a>,
    ethernet: &[u8; ETHERNET_BYTES],
    packet: &'a [u8],
    mac: EthernetAddress,
    addresses: &Addresses,
) -> Class<'a> {
    let Some(ip) = packet.first_chunk::<HEADER_BYTES>() else { return Class::Malformed };
    let in_pieces: usize = frame.rest.iter().map(|piece| piece.len()).sum();
    let total_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    if ip[0] >> 4 != 6 || total_bytes > packet.len() + in_pieces {
        return Class::Malformed;
    }
    let (source, own) = (address_at(ip, 8), address_at(ip, 24));
    let is_own = addresses.contains(own) && ethernet[..6] == mac.0;
    if !is_own && !addresses.is_group(own) {
        return Class::Ignored;
    }
    let packet_end = total_bytes.min(packet.len());
    let Some((protocol, payload)) = skip_extensions(ip[6], &packet[HEADER_BYTES..packet_end]) else {
        return Class::Malformed;
    };
    let rest_bytes = total_bytes.saturating_sub(packet.len());
    let (hardware, ends) = (source_of(ethernet), Ends::V6 { own, remote: source });
    let is_from_another = is_host6(source) && source != own;
    match protocol {
        PROTOCOL_TCP if is_own && is_from_another => Class::Tcp(Packet { hardware, ends, payload, rest_bytes }),
        PROTOCOL_TCP | PROTOCOL_UDP if !is_own => Class::Ignored,
        // Nothing else is merged.
        _ if rest_bytes > 0 => Class::Malformed,
        PROTOCOL_UDP if is_from_another => Class::Udp(Packet { hardware, ends, payload, rest_bytes }),
        // Who has no address yet asks whether it may have one (RFC 4862 §5.4.2).
        PROTOCOL_ICMPV6 if is_from_another || source.is_unspecified() => {
            let sum = ends.pseudo_header(PROTOCOL_ICMPV6, payload.len()) + checksum::sum(payload);
            if !frame.is_checked && checksum::finish(sum) != [0, 0] {
                return Class::Damaged;
            }
            Class::Icmpv6(Icmpv6 { hardware, source, destination: own, hop_limit: ip[7], message: payload })
        }
        NO_NEXT_HEADER => Class::Ignored,
        _ => Class::Malformed,
    }
}

pub(crate) fn address_at(bytes: &[u8], at: usize) -> Ipv6Addr {
    let octets = bytes.get(at..).and_then(|rest| rest.first_chunk::<16>());
    Ipv6Addr::from(*octets.unwrap_or(&[0; 16]))
}

/// What is behind the extension headers, and its protocol.
#[inline]
fn skip_extensions(mut protocol: u8, mut bytes: &[u8]) -> Option<(u8, &[u8])> {
    let mut skipped_bytes = 0;
    for number in 0..=MAX_EXTENSIONS {
        // RFC 8200 §4.1: what each hop looks at is the first one.
        if !(protocol == DESTINATION_OPTIONS || protocol == HOP_BY_HOP && number == 0) {
            return Some((protocol, bytes));
        }
        let len = 8 * (1 + usize::from(*bytes.get(1)?));
        skipped_bytes += len;
        let (extension, rest) = bytes.split_at_checked(len).filter(|_| skipped_bytes <= MAX_EXTENSION_BYTES)?;
        if !asks_for_nothing(&extension[2..]) {
            return None;
        }
        (protocol, bytes) = (extension[0], rest);
    }
    None
}

/// Whether a packet with these options may be taken by who does not know them (RFC 8200 §4.2).
fn asks_for_nothing(mut options: &[u8]) -> bool {
    const PAD1: u8 = 0;
    const ACTION: u8 = 0xc0;
    while let [kind, rest @ ..] = options {
        if *kind == PAD1 {
            options = rest;
            continue;
        }
        let after = rest.split_first().and_then(|(len, rest)| rest.get(usize::from(*len)..));
        match after {
            Some(after) if kind & ACTION == 0 => options = after,
            _ => return false,
        }
    }
    true
}
