//! Packet by packet: what comes over the link, and what the standards say that comes back. `smoltcp` makes and reads them.

mod addresses;
mod groups;
mod neighbors;
mod packets;
mod routers;

use super::*;

use crate::{Addressing, Config, Event, Limits, Stack, Take, checksum, frame::emit_headers, stack::ConnectionId};
use core::net::SocketAddr;
use kayvee_platform::{FrameDevice, FrameRx, MAX_FRAME_BYTES, Received};
use smoltcp::{
    phy::ChecksumCapabilities,
    time::Duration,
    wire::{
        EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr, IpAddress,
        IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscPrefixInfoFlags, NdiscPrefixInformation, NdiscRepr,
        NdiscRouterFlags, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
    },
};
extern crate std;
use std::{collections::VecDeque, vec, vec::Vec};

const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
const OWN: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99);
const PORT: u16 = 6379;
const FIXED: Addressing6 = Addressing6::Static { address: OWN, prefix_bits: 64, gateway: None };

/// A card that keeps what it is given.
#[derive(Default)]
struct Card(Rx, Tx);

#[derive(Default)]
struct Rx(VecDeque<Vec<u8>>);

#[derive(Default)]
struct Tx(Vec<Vec<u8>>);

impl FrameRx for Rx {
    fn ready(&mut self) -> bool {
        !self.0.is_empty()
    }
    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        self.0.pop_front().map(|frame| consume(frame.as_slice().into()))
    }
}

impl FrameTx for Tx {
    fn ready(&mut self) -> bool {
        true
    }
    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        assert!(len <= MAX_FRAME_BYTES);
        self.0.push(vec![0xa5; len]);
        self.0.last_mut().map(|frame| fill(frame))
    }
    fn flush(&mut self) {}
}

impl FrameDevice for Card {
    type Rx<'a> = &'a mut Rx;
    type Tx<'a> = &'a mut Tx;
    fn mac(&self) -> [u8; 6] {
        MAC.0
    }
    fn split(&mut self) -> (Self::Rx<'_>, Self::Tx<'_>) {
        (&mut self.0, &mut self.1)
    }
}

/// Sends datagrams back.
struct EchoPort;

impl Take for EchoPort {
    fn take(&mut self, _: ConnectionId, _: &[u8]) -> usize {
        0
    }
    fn datagram(&mut self, _: u16, _: SocketAddr, bytes: &[u8], reply: &mut [u8]) -> Option<usize> {
        reply.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(bytes.len())
    }
}

/// A packet that was sent, with its checksum looked at.
#[derive(Debug)]
struct Sent {
    to: EthernetAddress,
    ip: Ipv6Repr,
    payload: Vec<u8>,
}

impl Sent {
    fn icmp(&self) -> Icmpv6Repr<'_> {
        let packet = Icmpv6Packet::new_checked(&self.payload[..]).unwrap();
        let (from, to) = (self.ip.src_addr, self.ip.dst_addr);
        Icmpv6Repr::parse(&from, &to, &packet, &ChecksumCapabilities::default()).unwrap()
    }

    fn tcp(&self) -> TcpRepr<'_> {
        let packet = TcpPacket::new_checked(&self.payload[..]).unwrap();
        let (from, to) = (self.ip.src_addr.into(), self.ip.dst_addr.into());
        TcpRepr::parse(&packet, &from, &to, &ChecksumCapabilities::default()).unwrap()
    }
}

/// A stack, its card, and the time.
struct Link {
    stack: Stack,
    card: Card,
    now_ns: u64,
}

impl Link {
    fn new(addressing6: Addressing6) -> Link {
        Link::with_buffers(addressing6, 1 << 20)
    }

    fn with_buffers(addressing6: Addressing6, buffer_bytes: usize) -> Link {
        let mut card = Card::default();
        let limits = Limits { connections: 8, buffer_bytes };
        let config = Config { addressing: Addressing::Dhcp, addressing6, limits, keepalive_s: 0, seed: 1 };
        let mut stack = Stack::new(config, &mut card, 0).unwrap();
        stack.listen(PORT);
        stack.serve_datagrams(7);
        Link { stack, card, now_ns: 0 }
    }

    /// One whose addresses nobody has objected to, and who knows the peer.
    fn ready() -> Link {
        let mut link = Link::new(FIXED);
        link.turn();
        link.pass(1);
        link.answers(solicitation(PEER, OWN));
        link
    }

    fn turn(&mut self) {
        self.stack.poll_with(&mut self.card, &mut EchoPort, self.now_ns);
        self.stack.flush(&mut self.card, self.now_ns);
    }

    fn pass(&mut self, seconds: u64) {
        self.now_ns += seconds * SECOND_NS;
        self.turn();
    }

    /// IPv6 packets sent since the last call.
    fn sent(&mut self) -> Vec<Sent> {
        // Reports of groups are another matter.
        let is_ipv6 = |frame: &Vec<u8>| frame[12..14] == [0x86, 0xdd] && frame[20] != 0;
        let parse = |frame: Vec<u8>| {
            let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
            assert_eq!(ethernet.src_addr(), MAC);
            let packet = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            let ip = Ipv6Repr::parse(&packet).unwrap();
            Sent { to: ethernet.dst_addr(), ip, payload: packet.payload().to_vec() }
        };
        self.card.1.0.drain(..).filter(is_ipv6).map(parse).collect()
    }

    /// The reports of groups that were sent: from whom, to whom, and the message.
    fn reports(&mut self) -> Vec<(Ipv6Addr, Ipv6Addr, Vec<u8>)> {
        let is_report = |frame: &Vec<u8>| frame[12..14] == [0x86, 0xdd] && frame[20] == 0;
        let parse = |frame: Vec<u8>| {
            let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
            let packet = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            let (from, to) = (packet.src_addr(), packet.dst_addr());
            assert_eq!(ethernet.dst_addr(), message::hardware_of(to));
            assert_eq!(packet.hop_limit(), 1, "RFC 3810 §5");
            let (header, message) = packet.payload().split_at(8);
            assert_eq!(header, [58, 0, 5, 2, 0, 0, 1, 0], "RFC 2711 §2.1");
            let pseudo = Ends::V6 { own: from, remote: to }.pseudo_header(PROTOCOL_ICMPV6, message.len());
            assert_eq!(checksum::finish(pseudo + checksum::sum(message)), [0, 0]);
            (from, to, message.to_vec())
        };
        self.card.1.0.drain(..).filter(is_report).map(parse).collect()
    }

    /// What comes back for a frame.
    fn answers(&mut self, frame: Vec<u8>) -> Vec<Sent> {
        self.card.0.0.push_back(frame);
        self.turn();
        self.sent()
    }

    fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.stack.next_event()).collect()
    }

    fn acquired(&mut self) -> Vec<Ipv6Addr> {
        let address = |event| match event {
            Event::Address6Acquired { address, .. } => Some(address),
            _ => None,
        };
        self.events().into_iter().filter_map(address).collect()
    }
}

/// A packet from the peer's Ethernet address.
fn packet(from: Ipv6Addr, to: Ipv6Addr, protocol: IpProtocol, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let ip = Ipv6Repr { src_addr: from, dst_addr: to, next_header: protocol, payload_len: payload.len(), hop_limit };
    let mut bytes = vec![0; 14 + 40 + payload.len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    let dst_addr = if to.is_multicast() { message::hardware_of(to) } else { MAC };
    EthernetRepr { src_addr: PEER_MAC, dst_addr, ethertype: EthernetProtocol::Ipv6 }.emit(&mut frame);
    let mut packet = Ipv6Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet);
    packet.payload_mut().copy_from_slice(payload);
    bytes
}

fn icmp(from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, message: Icmpv6Repr<'_>) -> Vec<u8> {
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&from, &to, &mut Icmpv6Packet::new_unchecked(&mut payload[..]), &ChecksumCapabilities::default());
    packet(from, to, IpProtocol::Icmpv6, hop_limit, &payload)
}

fn neighbor(from: Ipv6Addr, to: Ipv6Addr, message: NdiscRepr<'_>) -> Vec<u8> {
    icmp(from, to, 255, Icmpv6Repr::Ndisc(message))
}

fn solicitation(from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let lladdr = (!from.is_unspecified()).then(|| PEER_MAC.into());
    neighbor(from, solicited_node(target), NdiscRepr::NeighborSolicit { target_addr: target, lladdr })
}

fn advertisement(target: Ipv6Addr, to: Ipv6Addr, flags: NdiscNeighborFlags, mac: EthernetAddress) -> Vec<u8> {
    let message = NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr: Some(mac.into()) };
    neighbor(target, to, message)
}

/// A router's announcement of one prefix.
fn announcement(hop_limit: u8, lifetime_s: u64, prefix_lifetime_s: u64, mtu: Option<u32>) -> Vec<u8> {
    let bytes = announcement_by(ROUTER, PEER_MAC, lifetime_s, (7, prefix_lifetime_s), mtu);
    if hop_limit == 255 { bytes } else { [&bytes[..21], &[hop_limit], &bytes[22..]].concat() }
}

/// That of a subnet by any router.
fn announcement_by(
    router: Ipv6Addr,
    mac: EthernetAddress,
    lifetime_s: u64,
    (subnet, prefix_lifetime_s): (u16, u64),
    mtu: Option<u32>,
) -> Vec<u8> {
    let prefix = NdiscPrefixInformation {
        prefix_len: 64,
        flags: NdiscPrefixInfoFlags::ON_LINK | NdiscPrefixInfoFlags::ADDRCONF,
        valid_lifetime: Duration::from_secs(prefix_lifetime_s),
        preferred_lifetime: Duration::from_secs(prefix_lifetime_s),
        prefix: Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, 0),
    };
    let message = NdiscRepr::RouterAdvert {
        hop_limit: 64,
        flags: NdiscRouterFlags::empty(),
        router_lifetime: Duration::from_secs(lifetime_s),
        reachable_time: Duration::ZERO,
        retrans_time: Duration::ZERO,
        lladdr: Some(mac.into()),
        mtu,
        prefix_info: Some(prefix),
    };
    neighbor(router, ALL_NODES, message)
}

fn tcp(from: Ipv6Addr, control: TcpControl, ack: Option<TcpSeqNumber>, payload: &[u8]) -> Vec<u8> {
    tcp_to(OWN, from, control, ack, payload)
}

fn tcp_to(own: Ipv6Addr, from: Ipv6Addr, control: TcpControl, ack: Option<TcpSeqNumber>, payload: &[u8]) -> Vec<u8> {
    let segment = TcpRepr {
        src_port: 40_000,
        dst_port: PORT,
        control,
        seq_number: TcpSeqNumber(if control == TcpControl::Syn { 999 } else { 1000 }),
        ack_number: ack,
        window_len: 60_000,
        window_scale: None,
        max_seg_size: (control == TcpControl::Syn).then_some(1440),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    };
    let mut bytes = vec![0; segment.buffer_len()];
    let (source, own): (IpAddress, IpAddress) = (from.into(), own.into());
    segment.emit(&mut TcpPacket::new_unchecked(&mut bytes[..]), &source, &own, &ChecksumCapabilities::default());
    bytes
}

fn datagram_of(from: Ipv6Addr, to: Ipv6Addr, dst_port: u16, data: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: 5000, dst_port };
    let mut bytes = vec![0; udp.header_len() + data.len()];
    let fill = |payload: &mut [u8]| payload.copy_from_slice(data);
    let caps = ChecksumCapabilities::default();
    udp.emit(&mut UdpPacket::new_unchecked(&mut bytes[..]), &from.into(), &to.into(), data.len(), fill, &caps);
    bytes
}

fn syn() -> Vec<u8> {
    tcp(PEER, TcpControl::Syn, None, &[])
}
