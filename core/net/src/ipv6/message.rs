//! Messages of ICMPv6 (RFC 4443 §2.1) and of neighbor discovery (RFC 4861 §4) on the wire.
//!
//! ```text
//! 0: type   1: code   2: checksum   4: flags or unused   8: target   24: options
//! ```
//!
//! `smoltcp` has these formats, together with an IPv6 host of its own that an image would have twice.

use super::header::address_at;
use crate::{ends::Ends, frame::Route, icmp};
use core::net::Ipv6Addr;
use kayvee_platform::FrameTx;
use smoltcp::wire::EthernetAddress;

pub(super) const PACKET_TOO_BIG: u8 = 2;
pub(super) const ECHO_REQUEST: u8 = 128;
pub(super) const ECHO_REPLY: u8 = 129;
pub(super) const ROUTER_SOLICITATION: u8 = 133;
pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOR_ADVERTISEMENT: u8 = 136;

/// Flags of an advertisement.
pub(super) const SOLICITED: u8 = 0x40;
pub(super) const OVERRIDE: u8 = 0x20;

/// Options.
pub(super) const SOURCE_LINK_ADDRESS: u8 = 1;
pub(super) const TARGET_LINK_ADDRESS: u8 = 2;
pub(super) const PREFIX: u8 = 3;
pub(super) const MTU: u8 = 5;

/// The hop limit of what never crosses a router, so that nobody beyond one can have sent it (RFC 4861 §11.2).
pub(super) const ON_LINK_HOP_LIMIT: u8 = 255;

pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub(super) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// The group that whoever has an address listens to (RFC 4291 §2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The Ethernet address of a group (RFC 2464 §7).
pub(super) fn hardware_of(group: Ipv6Addr) -> EthernetAddress {
    let [.., a, b, c, d] = group.octets();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

/// Sends a message to a group of this link.
#[inline(never)]
pub(super) fn send_to_group(
    tx: &mut impl FrameTx,
    mac: EthernetAddress,
    own: Ipv6Addr,
    group: Ipv6Addr,
    parts: [&[u8]; 2],
) -> bool {
    let ends = Ends::V6 { own, remote: group };
    let route = Route { mac, hardware: hardware_of(group), ends: &ends };
    icmp::send(tx, &route, ON_LINK_HOP_LIMIT, parts)
}

/// An option that says where a station is (RFC 4861 §4.6.1).
pub(super) fn link_address_option(kind: u8, EthernetAddress([a, b, c, d, e, f]): EthernetAddress) -> [u8; 8] {
    [kind, 1, a, b, c, d, e, f]
}

/// A solicitation or an advertisement without options (RFC 4861 §4.3 and §4.4).
pub(super) fn about(kind: u8, flags: u8, target: Ipv6Addr) -> [u8; 24] {
    let mut message = [0; 24];
    (message[0], message[4]) = (kind, flags);
    message[8..].copy_from_slice(&target.octets());
    message
}

/// Asks where a station is (RFC 4861 §4.3). Returns whether the device had room for that.
pub(crate) fn solicit(tx: &mut impl FrameTx, mac: EthernetAddress, own: Ipv6Addr, wanted: Ipv6Addr) -> bool {
    let question = about(NEIGHBOR_SOLICITATION, 0, wanted);
    let option = link_address_option(SOURCE_LINK_ADDRESS, mac);
    send_to_group(tx, mac, own, solicited_node(wanted), [&question, &option])
}

/// The target of a solicitation or an advertisement.
pub(super) fn target_of(message: &[u8]) -> Ipv6Addr {
    address_at(message, 8)
}

/// Options of a message, each with its kind and length before it; none of a length that is none (RFC 4861 §4.6).
#[derive(Clone, Copy)]
pub(super) struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Those behind the first `at` bytes of a message, unless one is malformed: then the message is (RFC 4861 §6.1, §7.1).
    pub fn behind(message: &'a [u8], at: usize) -> Option<Options<'a>> {
        let options = Options(message.get(at..)?);
        let bytes: usize = options.map(|option| option.len()).sum();
        (bytes == options.0.len()).then_some(options)
    }

    /// The station's Ethernet address that one of them names.
    pub fn link_address(mut self, kind: u8) -> Option<EthernetAddress> {
        let option = self.find(|option| option[0] == kind)?;
        let [_, 1, a, b, c, d, e, f] = *option else { return None };
        Some(EthernetAddress([a, b, c, d, e, f])).filter(EthernetAddress::is_unicast)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = 8 * usize::from(*self.0.get(1)?);
        let (option, rest) = self.0.split_at_checked(len).filter(|_| len > 0)?;
        self.0 = rest;
        Some(option)
    }
}
