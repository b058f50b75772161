//! Frames: to whom those that arrive belong, and those that leave.

use crate::{
    checksum,
    ends::{Ends, FlowKey, is_host},
    ipv6::{Addresses, classify_ipv6},
    tcp::{segment::Segment, seq::Seq},
};
use core::net::{Ipv4Addr, Ipv6Addr};
use kayvee_platform::{Checksums, Completion, FrameTx, Internet, MAX_FRAME_BYTES, MIN_FRAME_BYTES, Received};
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr};

/// Tells the link that `address` is at `mac` now, for those that remember another station at it (RFC 5227 §2.3).
/// Returns whether the device had room for that.
pub(crate) fn announce(tx: &mut impl FrameTx, mac: EthernetAddress, address: Ipv4Addr) -> bool {
    ask(tx, mac, address, address)
}

/// Asks the link who has an address (RFC 826). Returns whether the device had room for that.
pub(crate) fn ask(tx: &mut impl FrameTx, mac: EthernetAddress, own: Ipv4Addr, wanted: Ipv4Addr) -> bool {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: own,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: wanted,
    };
    let ethernet =
        EthernetRepr { src_addr: mac, dst_addr: EthernetAddress::BROADCAST, ethertype: EthernetProtocol::Arp };
    let sent = tx.transmit(ethernet.buffer_len() + arp.buffer_len(), |buffer| {
        let mut frame = EthernetFrame::new_unchecked(buffer);
        ethernet.emit(&mut frame);
        arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    });
    sent.is_some()
}

pub(crate) const ETHERNET_BYTES: usize = 14;
pub(crate) const IPV4_BYTES: usize = 20;
pub(crate) const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub(crate) const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
/// From a server's port to a client's (RFC 2131 §4.1).
const DHCP_PORTS: [u8; 4] = [0, 67, 0, 68];
/// How far what is sent may go, but for what must not leave the link.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Whom a received frame concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class<'a> {
    /// A TCP segment to the station's own address.
    Tcp(Packet<'a>),
    /// ARP.
    Arp(&'a [u8]),
    /// An ICMP message to the station's own address.
    Icmp(Ipv4Addr, &'a [u8]),
    /// An ICMPv6 message to an address of the station, or to a group that it is in.
    Icmpv6(Icmpv6<'a>),
    /// A UDP datagram to the station's own address.
    Udp(Packet<'a>),
    /// A packet to the station's own address with a protocol that nothing here speaks.
    Unserved(Packet<'a>),
    /// A datagram from a DHCP server, to whatever address.
    Dhcp(Packet<'a>),
    /// Nothing for this station.
    Ignored,
    /// Headers that make no sense, or that are of no use here.
    Malformed,
    /// A wrong checksum.
    Damaged,
}

/// An ICMPv6 message, whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Icmpv6<'a> {
    /// The station on the link that it came from.
    pub hardware: EthernetAddress,
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub hop_limit: u8,
    pub message: &'a [u8],
}

impl Icmpv6<'_> {
    /// Whether it is looked at however many come: it was sent by a neighbor (RFC 4861 §11.2), and no echo, or it says that
    /// something was too large, which counts only from whom has seen that.
    pub fn is_unlimited(&self) -> bool {
        match self.message.first() {
            Some(2) => true,
            Some(133..=137) => self.hop_limit == 255,
            _ => false,
        }
    }
}

/// What a packet carries, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    /// The station on the link that it came from.
    pub hardware: EthernetAddress,
    pub ends: Ends,
    pub payload: &'a [u8],
    /// Bytes of the packet behind these, in the pieces that follow.
    pub rest_bytes: usize,
}

/// Sorts a frame by its headers. The checksum of IPv4 is looked at, that of what it carries is not, but for ICMPv6.
#[inline]
pub(crate) fn classify<'a>(
    frame: &Received<'a>,
    mac: EthernetAddress,
    own_address: Option<Ipv4Addr>,
    own_addresses: &Addresses,
) -> Class<'a> {
    let Some((header, payload)) = frame.head.split_first_chunk::<ETHERNET_BYTES>() else { return Class::Malformed };
    match [header[12], header[13]] {
        ETHERTYPE_IPV4 => {
            let rest_bytes = frame.rest.iter().map(|piece| piece.len()).sum();
            classify_ipv4(header, payload, rest_bytes, mac, own_address)
        }
        ETHERTYPE_IPV6 => classify_ipv6(frame, header, payload, mac, own_addresses),
        ETHERTYPE_ARP => Class::Arp(payload),
        _ => Class::Ignored,
    }
}

#[inline]
fn classify_ipv4<'a>(
    ethernet: &[u8; ETHERNET_BYTES],
    packet: &'a [u8],
    rest_bytes: usize,
    mac: EthernetAddress,
    own_address: Option<Ipv4Addr>,
) -> Class<'a> {
    let Some(ip) = packet.first_chunk::<IPV4_BYTES>() else { return Class::Malformed };
    let header_bytes = usize::from(ip[0] & 0xf) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    if ip[0] >> 4 != 4
        || header_bytes < IPV4_BYTES
        || total_bytes < header_bytes
        || total_bytes > packet.len() + rest_bytes
    {
        return Class::Malformed;
    }
    // Of the merged frame's first piece the headers are a small part.
    if header_bytes > packet.len() {
        return Class::Malformed;
    }
    let mut sum = checksum::sum(ip);
    if header_bytes > IPV4_BYTES {
        sum += checksum::sum(&packet[IPV4_BYTES..header_bytes]);
    }
    if checksum::finish(sum) != [0, 0] {
        return Class::Damaged;
    }
    // A fragment has no use on its own, and none of the senders here needs them: TCP sends what fits.
    if u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0 {
        return Class::Malformed;
    }
    // RFC 1122 §3.2.1.3: nothing is ever answered to an address that names no single host.
    let source = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
    if !is_host(source) {
        return Class::Malformed;
    }
    let own = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
    let is_own = Some(own) == own_address && ethernet[..6] == mac.0;
    let payload = &packet[header_bytes..total_bytes.min(packet.len())];
    let rest_bytes = total_bytes.saturating_sub(packet.len());
    let ends = Ends::V4 { own, remote: source };
    let packet_of = || Packet { hardware: source_of(ethernet), ends, payload, rest_bytes };
    match ip[9] {
        PROTOCOL_TCP if is_own && source != own => Class::Tcp(packet_of()),
        PROTOCOL_TCP => Class::Ignored,
        // Nothing else is merged.
        _ if rest_bytes > 0 => Class::Malformed,
        PROTOCOL_UDP if payload.starts_with(&DHCP_PORTS) => Class::Dhcp(packet_of()),
        PROTOCOL_UDP if is_own && source != own => Class::Udp(packet_of()),
        PROTOCOL_ICMP if is_own => Class::Icmp(own, payload),
        _ if is_own && source != own => Class::Unserved(packet_of()),
        _ => Class::Ignored,
    }
}

/// The station on the link that sent a frame.
#[inline]
pub(crate) fn source_of(ethernet: &[u8; ETHERNET_BYTES]) -> EthernetAddress {
    let [_, _, _, _, _, _, a, b, c, d, e, f, _, _] = *ethernet;
    EthernetAddress([a, b, c, d, e, f])
}

/// A route changed for a packet that was too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge {
    pub flow: FlowKey,
    /// The number of the first byte of what was too large.
    pub seq: Seq,
    /// The size that would do.
    pub packet_bytes: u16,
}

/// Reads the beginning of a segment of ours that comes back.
pub(crate) fn quoted_flow(ends: Ends, tcp: &[u8]) -> Option<(FlowKey, Seq)> {
    let tcp = tcp.first_chunk::<8>()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let seq = Seq(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]));
    Some((FlowKey { ends, remote_port: port(2), local_port: port(0) }, seq))
}

/// Whether an ICMP message says that a packet was too large (RFC 1191 §4), and for what.
pub(crate) fn parse_too_large(icmp: &[u8], own_address: Ipv4Addr) -> Option<TooLarge> {
    const UNREACHABLE: u8 = 3;
    const FRAGMENTATION_NEEDED: u8 = 4;
    let (header, quoted) = icmp.split_first_chunk::<8>()?;
    if [header[0], header[1]] != [UNREACHABLE, FRAGMENTATION_NEEDED] {
        return None;
    }
    if checksum::finish(checksum::sum(icmp)) != [0, 0] {
        return None;
    }
    let ip = quoted.first_chunk::<IPV4_BYTES>()?;
    let (own, remote) = (Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]), Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]));
    if ip[9] != PROTOCOL_TCP || own != own_address {
        return None;
    }
    let (flow, seq) = quoted_flow(Ends::V4 { own, remote }, quoted.get(usize::from(ip[0] & 0xf) * 4..)?)?;
    Some(TooLarge { flow, seq, packet_bytes: u16::from_be_bytes([header[6], header[7]]) })
}

/// Why a segment was not taken from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Damaged,
    Malformed,
}

/// Reads the segment of a packet into one that is empty, and returns its data in the first piece.
#[inline]
pub(crate) fn parse_segment<'a>(
    packet: &Packet<'a>,
    frame: &Received<'_>,
    checksums: Checksums,
    segment: &mut Segment,
) -> Result<&'a [u8], Unusable> {
    let bytes = packet.payload;
    // Whoever merges segments has looked at their checksums, and says so.
    if !frame.is_checked {
        let pseudo = packet.ends.pseudo_header(PROTOCOL_TCP, bytes.len());
        if packet.rest_bytes > 0 || !is_intact(bytes, CHECKSUM_AT, pseudo, checksums) {
            return Err(Unusable::Damaged);
        }
    }
    segment.read(bytes).ok_or(Unusable::Malformed)
}

/// Whether the checksum at `at` is that of these bytes, with the sum of their pseudo-header.
#[inline]
fn is_intact(bytes: &[u8], at: usize, pseudo: u64, checksums: Checksums) -> bool {
    // What a card adds the data to is the sum itself, where a checksum is its complement.
    let undone = checksum::finish(pseudo).map(|byte| !byte);
    let is_undone = checksums == Checksums::Partial && bytes.get(at..at + 2) == Some(&undone);
    is_undone || checksum::finish(pseudo + checksum::sum(bytes)) == [0, 0]
}

/// Who sends something to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    pub mac: EthernetAddress,
    pub hardware: EthernetAddress,
    pub ends: &'a Ends,
}

/// The largest packet on a link whose frames have so many bytes at the most.
pub(crate) fn mtu(max_frame_bytes: usize) -> u16 {
    u16::try_from(max_frame_bytes.max(MIN_FRAME_BYTES) - ETHERNET_BYTES).unwrap_or(u16::MAX)
}

/// Where TCP's checksum is.
pub(crate) const CHECKSUM_AT: usize = 16;

/// Bytes of data that the device takes in one frame now, for segments like `segment` that carry `segment_bytes` of it at
/// most: as much as one has, or more where the device divides what is longer.
#[inline]
pub(crate) fn room_for_data(tx: &mut impl FrameTx, ends: &Ends, segment_bytes: u32) -> u32 {
    /// Options take what they like (RFC 9293 §3.1).
    const MAX_TCP_BYTES: usize = 60;
    let max_header_bytes = ETHERNET_BYTES + ends.header_bytes() + MAX_TCP_BYTES;
    let segments = (tx.room_bytes().saturating_sub(max_header_bytes) as u32) / segment_bytes.max(1);
    if tx.offloads().large_frame_bytes == 0 { segment_bytes } else { segments.max(1) * segment_bytes }
}

/// Sends a segment with so many bytes of data, which `fill` writes: from which one on, and where to. The device divides
/// it into such with `segment_bytes` if it is longer. Returns whether the device had room for it.
#[inline]
pub(crate) fn send_segment(
    tx: &mut impl FrameTx,
    route: &Route<'_>,
    segment: &Segment,
    (payload_bytes, segment_bytes): (usize, u32),
    mut fill: impl FnMut(usize, &mut [u8]),
) -> bool {
    let header_bytes = segment.header_bytes();
    let tcp_bytes = header_bytes + payload_bytes;
    let pseudo = route.ends.pseudo_header(PROTOCOL_TCP, tcp_bytes);
    let tcp_at = ETHERNET_BYTES + route.ends.header_bytes();
    let put_headers = |bytes: &mut [u8]| segment.emit(emit_headers(bytes, route, PROTOCOL_TCP, HOP_LIMIT, tcp_bytes));
    if !tx.offloads().checksum {
        let sent = tx.transmit(tcp_at + tcp_bytes, |frame| {
            put_headers(frame);
            let tcp = &mut frame[tcp_at..];
            fill(0, &mut tcp[header_bytes..]);
            let sum = checksum::finish(pseudo + checksum::sum(tcp));
            tcp[CHECKSUM_AT..][..2].copy_from_slice(&sum);
        });
        return sent.is_some();
    }
    let headers = tcp_at + header_bytes;
    let internet = match route.ends {
        Ends::V4 { .. } => Internet::V4,
        Ends::V6 { .. } => Internet::V6,
    };
    let task = Completion {
        internet,
        checksum_start: tcp_at as u16,
        checksum_offset: CHECKSUM_AT as u16,
        header_bytes: headers as u16,
        segment_bytes: if payload_bytes > segment_bytes as usize { segment_bytes as u16 } else { 0 },
    };
    tx.transmit_offloaded(tcp_at + tcp_bytes, task, |at, piece| {
        if at > 0 {
            return fill(at - headers, piece);
        }
        put_headers(piece);
        let [a, b] = checksum::finish(pseudo);
        piece[tcp_at + CHECKSUM_AT..][..2].copy_from_slice(&[!a, !b]);
        fill(0, &mut piece[headers..]);
    })
}

/// Bytes of the header of a datagram (RFC 768): ports, length, checksum.
const UDP_HEADER_BYTES: usize = 8;
/// Most data in a datagram that is sent, by IPv4: what needs no fragments.
pub(crate) const MAX_DATAGRAM_BYTES: usize = MAX_FRAME_BYTES - ETHERNET_BYTES - IPV4_BYTES - UDP_HEADER_BYTES;

/// Bytes of data that a datagram between these two may have in a packet of so many bytes.
pub(crate) fn room_for_datagram(ends: &Ends, packet_bytes: u16) -> usize {
    usize::from(packet_bytes).min(MAX_FRAME_BYTES - ETHERNET_BYTES) - ends.header_bytes() - UDP_HEADER_BYTES
}

/// A datagram's ports and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub source_port: u16,
    pub destination_port: u16,
    pub data: &'a [u8],
}

/// Reads a datagram (RFC 768).
pub(crate) fn parse_datagram<'a>(
    packet: &Packet<'a>,
    frame: &Received<'_>,
    checksums: Checksums,
) -> Result<Datagram<'a>, Unusable> {
    let header = packet.payload.first_chunk::<UDP_HEADER_BYTES>().ok_or(Unusable::Malformed)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let len = usize::from(word(4));
    let bytes = packet.payload.get(..len).filter(|_| len >= UDP_HEADER_BYTES).ok_or(Unusable::Malformed)?;
    let pseudo = packet.ends.pseudo_header(PROTOCOL_UDP, len);
    // Zero says that there is none, which IPv6 does not allow (RFC 8200 §8.1).
    let is_without = word(6) == 0 && matches!(packet.ends, Ends::V4 { .. });
    if !frame.is_checked && !is_without && !is_intact(bytes, 6, pseudo, checksums) {
        return Err(Unusable::Damaged);
    }
    Ok(Datagram { source_port: word(0), destination_port: word(2), data: &bytes[UDP_HEADER_BYTES..] })
}

/// Sends a datagram that fits a frame. Returns whether the device had room for it.
pub(crate) fn send_datagram(tx: &mut impl FrameTx, route: &Route<'_>, datagram: &Datagram<'_>) -> bool {
    let len = UDP_HEADER_BYTES + datagram.data.len();
    let sent = tx.transmit(ETHERNET_BYTES + route.ends.header_bytes() + len, |frame| {
        let udp = emit_headers(frame, route, PROTOCOL_UDP, HOP_LIMIT, len);
        udp[..2].copy_from_slice(&datagram.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&datagram.destination_port.to_be_bytes());
        udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        udp[6..8].fill(0);
        udp[UDP_HEADER_BYTES..].copy_from_slice(datagram.data);
        let sum = checksum::finish(route.ends.pseudo_header(PROTOCOL_UDP, len) + checksum::sum(udp));
        // Zero would say that there is none; all ones is the same number.
        udp[6..8].copy_from_slice(if sum == [0, 0] { &[0xff, 0xff] } else { &sum });
    });
    sent.is_some()
}

/// Writes the headers of a packet, and returns what is behind them.
#[inline]
pub(crate) fn emit_headers<'a>(
    frame: &'a mut [u8],
    route: &Route<'_>,
    protocol: u8,
    hop_limit: u8,
    payload_bytes: usize,
) -> &'a mut [u8] {
    let (ethernet, packet) = frame.split_at_mut(ETHERNET_BYTES);
    ethernet[..6].copy_from_slice(&route.hardware.0);
    ethernet[6..12].copy_from_slice(&route.mac.0);
    let (ip, payload) = packet.split_at_mut(route.ends.header_bytes());
    match *route.ends {
        // RFC 791 §3.1. With "don't fragment" (RFC 1191 §3), and so without identification (RFC 6864 §4.1).
        Ends::V4 { own, remote } => {
            ethernet[12..].copy_from_slice(&ETHERTYPE_IPV4);
            let [a, b] = ((IPV4_BYTES + payload_bytes) as u16).to_be_bytes();
            ip[..12].copy_from_slice(&[0x45, 0, a, b, 0, 0, 0x40, 0, hop_limit, protocol, 0, 0]);
            ip[12..16].copy_from_slice(&own.octets());
            ip[16..20].copy_from_slice(&remote.octets());
            let sum = checksum::finish(checksum::sum(ip));
            ip[10..12].copy_from_slice(&sum);
        }
        // RFC 8200 §3, without a flow label (RFC 6437 §2).
        Ends::V6 { own, remote } => {
            ethernet[12..].copy_from_slice(&ETHERTYPE_IPV6);
            let [a, b] = (payload_bytes as u16).to_be_bytes();
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, a, b, protocol, hop_limit]);
            ip[8..24].copy_from_slice(&own.octets());
            ip[24..40].copy_from_slice(&remote.octets());
        }
    }
    payload
}
