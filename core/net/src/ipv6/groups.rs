//! Multicast listener discovery (RFC 3810, and RFC 2710 for routers that know only that): says which groups the station is in, to
//! routers and to the switches that listen in. Such a switch carries neighbors' questions only to where it has heard of
//! their group, so a station that is silent can soon not be found any more.
//!
//! ```text
//! query   0: 130   1: 0   2: checksum   4: longest delay   6: unused   8: group, or none   24: more of version 2
//! report  0: 143   1: 0   2: checksum   4: unused   6: records   8: each with type, 0, sources (2 bytes) and group
//! report of version 1   0: 131   1: 0   2: checksum   4: unused   8: group
//! ```

use super::{
    header::address_at,
    message::{hardware_of, solicited_node},
};
use crate::{
    ends::Ends,
    frame::{Icmpv6, Route},
    icmp,
    ipv6::PROTOCOL_ICMPV6,
};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use kayvee_platform::FrameTx;
use smoltcp::wire::EthernetAddress;

pub(super) const QUERY: u8 = 130;
const REPORT_1: u8 = 131;
const REPORT: u8 = 143;

/// Bytes of a query of version 1, and of the least of version 2 (RFC 3810 §8.1).
const QUERY_1_BYTES: usize = 24;
const QUERY_BYTES: usize = 28;

/// Where reports go (RFC 3810 §5.2.14).
const ALL_LISTENERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// The hop limit of all these messages (RFC 3810 §5).
const HOP_LIMIT: u8 = 1;
/// The extension header that all of them have: routers are to look at the packet (RFC 2711 §2.1), and a pad.
const ROUTER_ALERT: [u8; 8] = [PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// What a record says: sources are never chosen (RFC 3810 §5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The station is in the group, whoever sends to it (`MODE_IS_EXCLUDE`).
    IsIn = 2,
    /// It is from now on (`CHANGE_TO_EXCLUDE_MODE`).
    Joins = 4,
}

/// Which version who asks speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A question that is to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub version: Version,
    pub at_ns: u64,
}

impl Asked {
    /// Reads a query (RFC 3810 §5.1 and §6.2): when it is to be answered, which stations spread by their Ethernet addresses.
    pub fn read(packet: &Icmpv6<'_>, mac: EthernetAddress, now_ns: u64) -> Option<Asked> {
        let version = match packet.message.len() {
            QUERY_1_BYTES => Version::One,
            QUERY_BYTES.. => Version::Two,
            _ => return None,
        };
        if packet.hop_limit != HOP_LIMIT || !packet.source.is_unicast_link_local() {
            return None;
        }
        let code = u16::from_be_bytes([packet.message[4], packet.message[5]]);
        let longest_ms = match (version, code) {
            // RFC 3810 §5.1.3: a number with an exponent.
            (Version::Two, 0x8000..) => u64::from(code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
            _ => u64::from(code),
        };
        let [a, b, c, d, e, f] = mac.0;
        let spread = u64::from_be_bytes([a, b, c, d, e, f, 0, 0]).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let delay_ms = (longest_ms * spread) >> 32;
        Some(Asked { version, at_ns: now_ns.saturating_add(delay_ms * 1_000_000) })
    }
}

/// The group that a query is about, unless it is about all.
pub(super) fn group_of(packet: &Icmpv6<'_>) -> Option<Ipv6Addr> {
    Some(address_at(packet.message, 8)).filter(|group| !group.is_unspecified())
}

/// Tells of the groups of these addresses. Returns whether the device had room for all of it.
#[inline(never)]
pub(super) fn report(
    tx: &mut impl FrameTx,
    mac: EthernetAddress,
    own: Ipv6Addr,
    (version, record): (Version, Record),
    addresses: impl ExactSizeIterator<Item = Ipv6Addr>,
) -> bool {
    let mut send = |group, head: [u8; 8], rest: &[u8]| {
        let ends = Ends::V6 { own, remote: group };
        let route = Route { mac, hardware: hardware_of(group), ends: &ends };
        icmp::send_behind(&ROUTER_ALERT, tx, &route, HOP_LIMIT, [&head, rest])
    };
    let mut groups = addresses.map(solicited_node);
    if version == Version::One {
        return groups.all(|group| send(group, [REPORT_1, 0, 0, 0, 0, 0, 0, 0], &group.octets()));
    }
    let [a, b] = (groups.len() as u16).to_be_bytes();
    let mut records = Vec::new();
    for group in groups {
        records.extend([record as u8, 0, 0, 0]);
        records.extend(group.octets());
    }
    send(ALL_LISTENERS, [REPORT, 0, 0, 0, 0, 0, a, b], &records)
}
