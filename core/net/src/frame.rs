//! Frames: one at a time between a [`FrameDevice`](kayvee_platform::FrameDevice) and `smoltcp`, to whom they belong, and
//! those that carry TCP.

use crate::{
    checksum,
    tcp::segment::{HEADER_BYTES as TCP_HEADER_BYTES, Segment},
};
use core::net::Ipv4Addr;
use kayvee_platform::{Checksums, Completion, FrameTx, MAX_FRAME_BYTES, Received};
use smoltcp::{
    phy::{self, Device, DeviceCapabilities, Medium},
    time::Instant,
    wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr},
};

/// `smoltcp`'s device for the handling of one received frame, or of none, with replies going straight to the device.
pub(crate) struct FrameIo<'a, T> {
    pub received: Option<&'a [u8]>,
    pub tx: &'a mut T,
}

impl<T: FrameTx> Device for FrameIo<'_, T> {
    type RxToken<'b>
        = RxToken<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = TxToken<'b, T>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_, T>)> {
        let frame = self.received.take()?;
        Some((RxToken(frame), TxToken(self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_, T>> {
        self.tx.ready().then_some(TxToken(self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// What `smoltcp` has to know of every device here.
pub(crate) fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ethernet;
    capabilities.max_transmission_unit = MAX_FRAME_BYTES;
    capabilities
}

pub(crate) struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(crate) struct TxToken<'a, T>(&'a mut T);

impl<T: FrameTx> phy::TxToken for TxToken<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut fill = Some(f);
        let sent = self.0.transmit(len, |buffer| fill.take().map(|f| f(buffer)));
        match (sent.flatten(), fill) {
            (Some(result), _) => result,
            // The device was ready and yet took nothing. A network may lose frames, so this one is lost.
            (None, Some(f)) => f(&mut [0; MAX_FRAME_BYTES][..len]),
            (None, None) => unreachable!("the device called `fill` and returned nothing"),
        }
    }
}

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

/// Whether an address can be that of a single host.
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
}

/// The addresses that tell one connection from another: remote address and port, local port. The local address is
/// always the station's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey(u64);

impl FlowKey {
    #[inline]
    pub fn new(remote: Ipv4Addr, remote_port: u16, local_port: u16) -> FlowKey {
        FlowKey(u64::from(u32::from(remote)) << 32 | u64::from(remote_port) << 16 | u64::from(local_port))
    }

    /// The peer's address.
    #[inline]
    pub fn remote(self) -> Ipv4Addr {
        Ipv4Addr::from_bits((self.0 >> 32) as u32)
    }

    /// The peer's port.
    #[inline]
    pub fn remote_port(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The port of this station.
    #[inline]
    pub fn local_port(self) -> u16 {
        self.0 as u16
    }

    /// All of it.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }
}

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// Whom a received frame concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class<'a> {
    /// A TCP segment to the station's own address.
    Tcp(Packet<'a>),
    /// ARP.
    Arp(&'a [u8]),
    /// An ICMP message to the station's own address.
    Icmp(&'a [u8]),
    /// A UDP datagram to the station's own address.
    Udp(Packet<'a>),
    /// Anything else that `smoltcp` should see: DHCP.
    Other,
    /// Nothing for this station.
    Ignored,
    /// Headers that make no sense, or that are of no use here.
    Malformed,
    /// A wrong checksum.
    Damaged,
}

/// What an IPv4 packet carries, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    /// The station on the link that it came from.
    pub hardware: EthernetAddress,
    pub source: Ipv4Addr,
    pub payload: &'a [u8],
    /// Bytes of the packet behind these, in the pieces that follow.
    pub rest_bytes: usize,
}

/// Sorts a frame by its headers. The checksum of IPv4 is looked at, that of what it carries is not.
#[inline]
pub(crate) fn classify<'a>(frame: &Received<'a>, mac: EthernetAddress, own_address: Option<Ipv4Addr>) -> Class<'a> {
    let Some((header, payload)) = frame.head.split_first_chunk::<ETHERNET_BYTES>() else { return Class::Malformed };
    match [header[12], header[13]] {
        ETHERTYPE_IPV4 => {
            let rest_bytes = frame.rest.iter().map(|piece| piece.len()).sum();
            classify_ipv4(header, payload, rest_bytes, mac, own_address)
        }
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
    if checksum::finish(checksum::sum(&packet[..header_bytes])) != [0, 0] {
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
    let is_own = Some(Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19])) == own_address && ethernet[..6] == mac.0;
    let payload = &packet[header_bytes..total_bytes.min(packet.len())];
    let rest_bytes = total_bytes.saturating_sub(packet.len());
    let packet_of = || {
        let [_, _, _, _, _, _, a, b, c, d, e, f, _, _] = *ethernet;
        Packet { hardware: EthernetAddress([a, b, c, d, e, f]), source, payload, rest_bytes }
    };
    match ip[9] {
        PROTOCOL_TCP if is_own && Some(source) != own_address => Class::Tcp(packet_of()),
        PROTOCOL_TCP => Class::Ignored,
        // Nothing else is merged.
        _ if rest_bytes > 0 => Class::Malformed,
        PROTOCOL_UDP if is_own && Some(source) != own_address => Class::Udp(packet_of()),
        PROTOCOL_ICMP if is_own => Class::Icmp(payload),
        PROTOCOL_ICMP => Class::Ignored,
        _ => Class::Other,
    }
}

/// A route changed for a packet that was too large (RFC 1191 §4): the flow that it belongs to, the number of its first
/// byte, and the size that would do.
pub(crate) fn parse_too_large(icmp: &[u8], own_address: Ipv4Addr) -> Option<(FlowKey, u32, u16)> {
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
    let tcp = quoted.get(usize::from(ip[0] & 0xf) * 4..)?.first_chunk::<8>()?;
    let (source, remote) =
        (Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]), Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]));
    if ip[9] != PROTOCOL_TCP || source != own_address {
        return None;
    }
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    Some((FlowKey::new(remote, port(2), port(0)), seq, u16::from_be_bytes([header[6], header[7]])))
}

/// Why a segment was not taken from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Damaged,
    Malformed,
}

/// Reads the segment of a packet for `own`, and returns it with its data in the first piece.
#[inline]
pub(crate) fn parse_segment<'a>(
    packet: &Packet<'a>,
    own: Ipv4Addr,
    frame: &Received<'_>,
    checksums: Checksums,
) -> Result<(Segment, &'a [u8]), Unusable> {
    let bytes = packet.payload;
    let pseudo = checksum::pseudo_header(packet.source.octets(), own.octets(), PROTOCOL_TCP, bytes.len() as u16);
    // Whoever merges segments has looked at their checksums, and says so.
    if !frame.is_checked && (packet.rest_bytes > 0 || !is_intact(bytes, CHECKSUM_AT, pseudo, checksums)) {
        return Err(Unusable::Damaged);
    }
    let (segment, header_bytes) = Segment::parse(bytes).ok_or(Unusable::Malformed)?;
    Ok((segment, &bytes[header_bytes..]))
}

/// Whether the checksum at `at` is that of these bytes, with the sum of their pseudo-header.
#[inline]
fn is_intact(bytes: &[u8], at: usize, pseudo: u64, checksums: Checksums) -> bool {
    // What a card adds the data to is the sum itself, where a checksum is its complement.
    let undone = checksum::finish(pseudo).map(|byte| !byte);
    let is_undone = checksums == Checksums::Partial && bytes.get(at..at + 2) == Some(&undone);
    is_undone || checksum::finish(pseudo + checksum::sum(bytes)) == [0, 0]
}

/// Who sends a segment to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub mac: EthernetAddress,
    pub own: Ipv4Addr,
    pub hardware: EthernetAddress,
    pub remote: Ipv4Addr,
}

/// Headers of a segment in its frame, but for TCP's.
const HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES;
/// Where TCP's checksum is.
const CHECKSUM_AT: usize = 16;

/// Bytes of data that the device takes in one frame now, for segments like `segment` that carry `segment_bytes` of it at
/// most: as much as one has, or more where the device divides what is longer.
#[inline]
pub(crate) fn room_for_data(tx: &mut impl FrameTx, segment_bytes: u32) -> u32 {
    /// Options take what they like (RFC 9293 §3.1).
    const MAX_HEADER_BYTES: usize = HEADER_BYTES + 60;
    let segments = (tx.room_bytes().saturating_sub(MAX_HEADER_BYTES) as u32) / segment_bytes.max(1);
    if tx.offloads().large_frame_bytes == 0 { segment_bytes } else { segments.max(1) * segment_bytes }
}

/// Sends a segment with so many bytes of data, which `fill` writes: from which one on, and where to. The device divides
/// it into such with `segment_bytes` if it is longer. Returns whether the device had room for it.
#[inline]
pub(crate) fn send_segment(
    tx: &mut impl FrameTx,
    route: &Route,
    segment: &Segment,
    (payload_bytes, segment_bytes): (usize, u32),
    mut fill: impl FnMut(usize, &mut [u8]),
) -> bool {
    let header_bytes = segment.header_bytes();
    let tcp_bytes = header_bytes + payload_bytes;
    let pseudo = checksum::pseudo_header(route.own.octets(), route.remote.octets(), PROTOCOL_TCP, tcp_bytes as u16);
    let put_headers = |bytes: &mut [u8]| segment.emit(emit_headers(bytes, route, PROTOCOL_TCP, tcp_bytes));
    if !tx.offloads().checksum {
        let sent = tx.transmit(HEADER_BYTES + tcp_bytes, |frame| {
            put_headers(frame);
            let tcp = &mut frame[HEADER_BYTES..];
            fill(0, &mut tcp[header_bytes..]);
            let sum = checksum::finish(pseudo + checksum::sum(tcp));
            tcp[CHECKSUM_AT..][..2].copy_from_slice(&sum);
        });
        return sent.is_some();
    }
    let headers = HEADER_BYTES + header_bytes;
    let task = Completion {
        checksum_start: HEADER_BYTES as u16,
        checksum_offset: CHECKSUM_AT as u16,
        header_bytes: headers as u16,
        segment_bytes: if payload_bytes > segment_bytes as usize { segment_bytes as u16 } else { 0 },
    };
    tx.transmit_offloaded(HEADER_BYTES + tcp_bytes, task, |at, piece| {
        if at > 0 {
            return fill(at - headers, piece);
        }
        put_headers(piece);
        let [a, b] = checksum::finish(pseudo);
        piece[HEADER_BYTES + CHECKSUM_AT..][..2].copy_from_slice(&[!a, !b]);
        fill(0, &mut piece[headers..]);
    })
}

/// Bytes of the header of a datagram (RFC 768): ports, length, checksum.
const UDP_HEADER_BYTES: usize = 8;
/// Most data in a datagram that is sent: what needs no fragments.
pub(crate) const MAX_DATAGRAM_BYTES: usize = MAX_FRAME_BYTES - HEADER_BYTES - UDP_HEADER_BYTES;

/// A datagram's ports and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub source_port: u16,
    pub destination_port: u16,
    pub data: &'a [u8],
}

/// Reads a datagram for `own` (RFC 768).
pub(crate) fn parse_datagram<'a>(
    packet: &Packet<'a>,
    own: Ipv4Addr,
    frame: &Received<'_>,
    checksums: Checksums,
) -> Result<Datagram<'a>, Unusable> {
    let header = packet.payload.first_chunk::<UDP_HEADER_BYTES>().ok_or(Unusable::Malformed)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let len = usize::from(word(4));
    let bytes = packet.payload.get(..len).filter(|_| len >= UDP_HEADER_BYTES).ok_or(Unusable::Malformed)?;
    let pseudo = checksum::pseudo_header(packet.source.octets(), own.octets(), PROTOCOL_UDP, len as u16);
    // Zero says that there is none.
    if !frame.is_checked && word(6) != 0 && !is_intact(bytes, 6, pseudo, checksums) {
        return Err(Unusable::Damaged);
    }
    Ok(Datagram { source_port: word(0), destination_port: word(2), data: &bytes[UDP_HEADER_BYTES..] })
}

/// Sends a datagram of at most [`MAX_DATAGRAM_BYTES`]. Returns whether the device had room for it.
pub(crate) fn send_datagram(tx: &mut impl FrameTx, route: &Route, datagram: &Datagram<'_>) -> bool {
    let len = UDP_HEADER_BYTES + datagram.data.len();
    let sent = tx.transmit(HEADER_BYTES + len, |frame| {
        let udp = emit_headers(frame, route, PROTOCOL_UDP, len);
        udp[..2].copy_from_slice(&datagram.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&datagram.destination_port.to_be_bytes());
        udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        udp[6..8].fill(0);
        udp[UDP_HEADER_BYTES..].copy_from_slice(datagram.data);
        let pseudo = checksum::pseudo_header(route.own.octets(), route.remote.octets(), PROTOCOL_UDP, len as u16);
        let sum = checksum::finish(pseudo + checksum::sum(udp));
        // Zero would say that there is none; all ones is the same number.
        udp[6..8].copy_from_slice(if sum == [0, 0] { &[0xff, 0xff] } else { &sum });
    });
    sent.is_some()
}

/// Writes the headers of a packet, and returns what is behind them.
#[inline]
fn emit_headers<'a>(frame: &'a mut [u8], route: &Route, protocol: u8, payload_bytes: usize) -> &'a mut [u8] {
    let (ethernet, packet) = frame.split_at_mut(ETHERNET_BYTES);
    ethernet[..6].copy_from_slice(&route.hardware.0);
    ethernet[6..12].copy_from_slice(&route.mac.0);
    ethernet[12..].copy_from_slice(&ETHERTYPE_IPV4);
    let (ip, payload) = packet.split_at_mut(IPV4_BYTES);
    emit_ipv4(ip, route, protocol, payload_bytes);
    payload
}

/// RFC 791 §3.1. With "don't fragment" (RFC 1191 §3), and so without identification (RFC 6864 §4.1).
#[inline]
fn emit_ipv4(ip: &mut [u8], route: &Route, protocol: u8, payload_bytes: usize) {
    const TIME_TO_LIVE: u8 = 64;
    let [a, b] = ((IPV4_BYTES + payload_bytes) as u16).to_be_bytes();
    ip[..12].copy_from_slice(&[0x45, 0, a, b, 0, 0, 0x40, 0, TIME_TO_LIVE, protocol, 0, 0]);
    ip[12..16].copy_from_slice(&route.own.octets());
    ip[16..20].copy_from_slice(&route.remote.octets());
    let sum = checksum::finish(checksum::sum(ip));
    ip[10..12].copy_from_slice(&sum);
}

// The smallest frames that are sent.
const _: () = assert!(ETHERNET_BYTES + IPV4_BYTES + TCP_HEADER_BYTES < MAX_FRAME_BYTES);
