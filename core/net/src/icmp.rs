//! Messages of ICMP (RFC 792) and ICMPv6 (RFC 4443 §2.1) as they are sent.

use crate::{
    checksum,
    ends::Ends,
    frame::{ETHERNET_BYTES, HOP_LIMIT, PROTOCOL_ICMP, Route, emit_headers},
    ipv6::{MIN_MTU, PROTOCOL_ICMPV6},
};
use kayvee_platform::FrameTx;

/// The number of the extension header.
const HOP_BY_HOP: u8 = 0;

/// What of a station cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The port of UDP.
    Port,
    /// What the packet is to be given to. Only IPv4 says so here: what a header of IPv6 does not know is dropped.
    Protocol,
}

/// Sends a message whose checksum is zero so far. Returns whether the device had room for it.
pub(crate) fn send(tx: &mut impl FrameTx, route: &Route<'_>, hop_limit: u8, parts: [&[u8]; 2]) -> bool {
    send_behind(&[], tx, route, hop_limit, parts)
}

/// The same behind an extension header of IPv6 for routers (RFC 8200 §4.3), unless that is empty.
#[inline(never)]
pub(crate) fn send_behind(
    extension: &[u8],
    tx: &mut impl FrameTx,
    route: &Route<'_>,
    hop_limit: u8,
    parts: [&[u8]; 2],
) -> bool {
    let len = parts[0].len() + parts[1].len();
    let (protocol, pseudo) = match route.ends {
        Ends::V4 { .. } => (PROTOCOL_ICMP, 0),
        Ends::V6 { .. } => (PROTOCOL_ICMPV6, route.ends.pseudo_header(PROTOCOL_ICMPV6, len)),
    };
    let first = if extension.is_empty() { protocol } else { HOP_BY_HOP };
    let payload_bytes = extension.len() + len;
    let sent = tx.transmit(ETHERNET_BYTES + route.ends.header_bytes() + payload_bytes, |frame| {
        let payload = emit_headers(frame, route, first, hop_limit, payload_bytes);
        let (before, message) = payload.split_at_mut(extension.len());
        before.copy_from_slice(extension);
        let (head, rest) = message.split_at_mut(parts[0].len());
        head.copy_from_slice(parts[0]);
        rest.copy_from_slice(parts[1]);
        let sum = checksum::finish(pseudo + checksum::sum(message));
        message[2..4].copy_from_slice(&sum);
    });
    sent.is_some()
}

/// Tells who sent `packet` that nobody takes it (RFC 1122 §3.2.2.1, RFC 4443 §3.1), with as much of it as there is in a packet
/// that goes everywhere (RFC 1812 §4.3.2.3, RFC 4443 §2.4 (c)). There is to be a limit to how often.
pub(crate) fn send_unreachable(tx: &mut impl FrameTx, route: &Route<'_>, what: Unreachable, packet: &[u8]) {
    /// RFC 791 §3.1.
    const IPV4_BYTES: usize = 576;
    let (kind, code, packet_bytes) = match (*route.ends, what) {
        (Ends::V4 { .. }, Unreachable::Protocol) => (3, 2, IPV4_BYTES),
        (Ends::V4 { .. }, Unreachable::Port) => (3, 3, IPV4_BYTES),
        (Ends::V6 { .. }, _) => (1, 4, usize::from(MIN_MTU)),
    };
    let head = [kind, code, 0, 0, 0, 0, 0, 0];
    let quoted = packet_bytes - route.ends.header_bytes() - head.len();
    send(tx, route, HOP_LIMIT, [&head, &packet[..packet.len().min(quoted)]]);
}
