//! Packet by packet: what comes over the link, and what the standards say that comes back. `smoltcp` makes and reads them.

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

/// RFC 4862 §5.4.2 and §5.4.3: what nobody objects to in a second is the station's, and not before.
#[test]
fn addresses_are_asked_for_before_they_are_used() {
    let mut link = Link::new(FIXED);
    link.turn();
    let sent = link.sent();
    assert_eq!(sent.len(), 2, "one question for each: {sent:?}");
    for (question, target_addr) in sent.iter().zip([LINK_LOCAL, OWN]) {
        assert_eq!((question.ip.src_addr, question.ip.dst_addr), (Ipv6Addr::UNSPECIFIED, solicited_node(target_addr)));
        assert_eq!((question.ip.hop_limit, question.to.0[..3].to_vec()), (255, vec![0x33, 0x33, 0xff]));
        let message = NdiscRepr::NeighborSolicit { target_addr, lladdr: None };
        assert_eq!(question.icmp(), Icmpv6Repr::Ndisc(message));
    }
    assert!(link.answers(solicitation(PEER, OWN)).is_empty());
    assert!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn())).is_empty());
    assert_eq!((link.acquired(), link.stack.next_deadline_ns().is_some()), (vec![], true));
    link.pass(1);
    assert_eq!(link.acquired(), [LINK_LOCAL, OWN]);
    assert!(link.sent().iter().all(|sent| sent.ip.dst_addr == ALL_NODES), "RFC 4861 §7.2.6");
    link.answers(solicitation(PEER, OWN));
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()))[0].tcp().control, TcpControl::Syn);
}

/// RFC 4862 §5.1.
#[test]
fn addresses_that_nobody_else_can_have_are_used_at_once() {
    let mut link = Link::new(FIXED);
    link.stack.ask_nobody();
    // One a turn.
    link.turn();
    link.turn();
    assert!(link.sent().iter().all(|sent| !sent.ip.src_addr.is_unspecified()), "nobody is asked");
    assert_eq!(link.answers(solicitation(PEER, OWN)).len(), 1);
}

/// RFC 4862 §5.4.3, §5.4.4 and §5.4.5.
#[test]
fn an_address_that_somebody_has_or_wants_as_well_is_given_up() {
    for objection in [
        advertisement(OWN, ALL_NODES, NdiscNeighborFlags::OVERRIDE, PEER_MAC),
        solicitation(Ipv6Addr::UNSPECIFIED, OWN),
    ] {
        let mut link = Link::new(FIXED);
        link.turn();
        link.answers(objection);
        link.pass(2);
        assert_eq!(link.acquired(), [LINK_LOCAL]);
    }
    // With the address of its link it does without IPv6.
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(advertisement(LINK_LOCAL, ALL_NODES, NdiscNeighborFlags::OVERRIDE, PEER_MAC));
    link.pass(2);
    link.answers(announcement(255, 1800, 3600, None));
    link.pass(2);
    assert!(link.acquired().is_empty());
    // What is assigned is defended, and kept.
    let mut link = Link::ready();
    let answer = &link.answers(solicitation(Ipv6Addr::UNSPECIFIED, OWN))[0];
    assert_eq!((answer.ip.dst_addr, answer.ip.hop_limit), (ALL_NODES, 255));
    link.answers(advertisement(OWN, ALL_NODES, NdiscNeighborFlags::OVERRIDE, PEER_MAC));
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn())).len(), 1);
}

/// RFC 4861 §6.3.7 and RFC 4862 §5.5.3.
#[test]
fn routers_say_what_the_addresses_are() {
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    let is_question = |sent: &&Sent| matches!(sent.icmp(), Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { .. }));
    let sent = link.sent();
    let question = sent.iter().find(is_question).unwrap();
    assert_eq!((question.ip.src_addr, question.ip.dst_addr), (Ipv6Addr::UNSPECIFIED, ALL_ROUTERS));
    (0..30).for_each(|_| link.pass(1));
    let sent = link.sent();
    let asked: Vec<_> = sent.iter().filter(is_question).map(|question| question.ip.src_addr).collect();
    assert_eq!(asked, [LINK_LOCAL; 2], "three times in all");
    link.answers(announcement(255, 1800, 3 * 3600, None));
    link.pass(1);
    let address: Ipv6Addr = "2001:db8:0:7:0:ff:fe00:1".parse().unwrap();
    assert_eq!(link.acquired(), [LINK_LOCAL, address], "RFC 4291, appendix A");
    // RFC 4862 §5.5.3 (e): two hours are left at least, whatever one announcement says.
    link.answers(announcement(255, 1800, 1, None));
    link.pass(7100);
    assert_eq!(link.events(), []);
    link.pass(200);
    assert_eq!(link.events(), [Event::Address6Lost(address)]);
}

/// A connection lives as long as its address, whatever becomes of its router and of the prefix on the link (RFC 4862 §5.5.4,
/// RFC 4861 §6.3.5), and its neighbor may move.
#[test]
fn connections_outlive_routers_and_prefixes_but_not_addresses() {
    let address: Ipv6Addr = "2001:db8:0:7:0:ff:fe00:1".parse().unwrap();
    let peer: Ipv6Addr = "2001:db8:0:7::9".parse().unwrap();
    let mover = EthernetAddress([2, 0, 0, 0, 0, 0x55]);
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(announcement(255, 1800, 3600, None));
    link.pass(1);
    link.answers(solicitation(peer, address));
    link.events();
    let segment = |control, ack| packet(peer, address, IpProtocol::Tcp, 64, &tcp_to(address, peer, control, ack, &[]));
    let synack = link.answers(segment(TcpControl::Syn, None));
    let ack = synack[0].tcp().seq_number + 1;
    link.answers(segment(TcpControl::None, Some(ack)));
    let [Event::Accepted { connection, .. }] = link.events()[..] else { panic!("{synack:?}") };
    // A neighbor that has moved says so.
    link.answers(advertisement(peer, ALL_NODES, NdiscNeighborFlags::OVERRIDE, mover));
    assert_eq!(link.stack.send(connection, b"moved"), 5);
    link.turn();
    assert_eq!(link.sent()[0].to, mover);
    link.answers(segment(TcpControl::None, Some(ack + 5)));
    // The router goes, and says that nothing is on the link and that the address is over.
    link.answers(announcement(255, 0, 0, None));
    link.pass(3600 - 10);
    assert_eq!(link.events(), [], "an address is not taken by one announcement");
    link.pass(20);
    assert_eq!(link.events(), [Event::Address6Lost(address), Event::Closed(connection)]);
    link.turn();
    assert_eq!((link.stack.connections(), link.stack.buffer_bytes()), (0, 0));
    // It comes back with the router.
    link.answers(announcement(255, 1800, 3600, None));
    link.pass(1);
    assert_eq!(link.acquired(), [address]);
}

/// RFC 4861 §6.1.2, §7.1 and §11.2: what comes from beyond a router, or makes no sense, is not believed.
#[test]
fn what_no_neighbor_says_is_not_believed() {
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.pass(1);
    link.acquired();
    link.answers(announcement(254, 1800, 3600, None));
    let mut from_elsewhere = announcement(255, 1800, 3600, None);
    from_elsewhere[22..38].copy_from_slice(&PEER.octets());
    link.answers(from_elsewhere);
    let mut without_length = announcement(255, 1800, 3600, None);
    without_length[14 + 40 + 16 + 1] = 0;
    link.answers(without_length);
    link.pass(2);
    assert!(link.acquired().is_empty());

    let mut link = Link::ready();
    let mut far = solicitation(PEER, OWN);
    far[21] = 254;
    assert!(link.answers(far).is_empty());
    assert!(link.answers(solicitation(PEER, PEER)).is_empty(), "another station's");
    let mut to_one = solicitation(Ipv6Addr::UNSPECIFIED, OWN);
    to_one[38..54].copy_from_slice(&OWN.octets());
    assert!(link.answers(to_one).is_empty(), "RFC 4861 §7.1.1");
}

/// RFC 4861 §7.2.3, §7.2.4 and §7.2.5.
#[test]
fn neighbors_find_the_station_and_are_found() {
    let mut link = Link::ready();
    let answer = &link.answers(solicitation(PEER, OWN))[0];
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    let message = NdiscRepr::NeighborAdvert { flags, target_addr: OWN, lladdr: Some(MAC.into()) };
    assert_eq!((answer.icmp(), answer.to), (Icmpv6Repr::Ndisc(message), PEER_MAC));
    assert_eq!((answer.ip.src_addr, answer.ip.dst_addr, answer.ip.hop_limit), (OWN, PEER, 255));

    // It asks itself, for who has not spoken yet; who was not asked is not listened to.
    let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77);
    let flags = NdiscNeighborFlags::SOLICITED;
    link.answers(advertisement(other, OWN, flags, PEER_MAC));
    link.stack.connect(SocketAddr::new(other.into(), 1), link.now_ns).unwrap();
    link.turn();
    let question = &link.sent()[0];
    let message = NdiscRepr::NeighborSolicit { target_addr: other, lladdr: Some(MAC.into()) };
    assert_eq!((question.icmp(), question.ip.dst_addr), (Icmpv6Repr::Ndisc(message), solicited_node(other)));
    assert!(link.answers(advertisement(other, ALL_NODES, flags, PEER_MAC)).is_empty(), "§7.1.2: solicited by nobody");
    let sent = link.answers(advertisement(other, OWN, flags, PEER_MAC));
    assert_eq!((sent[0].to, sent[0].tcp().control), (PEER_MAC, TcpControl::Syn));
    // Another Ethernet address counts only if it is meant to.
    let mover = EthernetAddress([2, 0, 0, 0, 0, 0x55]);
    for (flags, hardware) in [(flags, PEER_MAC), (flags | NdiscNeighborFlags::OVERRIDE, mover)] {
        link.answers(advertisement(other, OWN, flags, mover));
        link.pass(1);
        let sent = link.sent();
        let again = sent.iter().find(|sent| sent.ip.next_header == IpProtocol::Tcp);
        assert!(again.is_none_or(|again| again.to == hardware), "{again:?}");
    }
}

/// RFC 4861 §5.2 and RFC 5942: who is not on the link is reached by a router, or not at all.
#[test]
fn the_way_out_leads_through_a_router() {
    let far: Ipv6Addr = "2001:db8:1::1".parse().unwrap();
    for gateway in [None, Some(ROUTER)] {
        let mut link = Link::new(Addressing6::Static { address: OWN, prefix_bits: 64, gateway });
        link.turn();
        link.pass(1);
        link.sent();
        link.stack.connect(SocketAddr::new(far.into(), 1), link.now_ns).unwrap();
        link.turn();
        let asked: Vec<_> = link.sent().iter().map(|question| question.ip.dst_addr).collect();
        assert_eq!(asked, gateway.map(solicited_node).into_iter().collect::<Vec<_>>());
    }
}

/// RFC 4861 §6.3.5 and §6.3.6: where a router is silent or withdraws itself, there is another one.
#[test]
fn another_router_takes_the_place_of_one_that_is_gone() {
    const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x98);
    const OTHER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 0x98]);
    let far = SocketAddr::new("2001:db8:1::1".parse().unwrap(), 1);
    let first = announcement(255, 1800, 3600, None);
    let other = |lifetime_s| announcement_by(OTHER, OTHER_MAC, lifetime_s, (8, 3600), None);
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    for frame in [&first, &other(1800)] {
        link.answers(frame.clone());
    }
    link.pass(1);
    link.sent();
    // To whom the next of a connection's segments goes, within so many seconds.
    let hop = |link: &mut Link| {
        let is_tcp = |sent: &&Sent| sent.ip.next_header == IpProtocol::Tcp;
        (0..20).find_map(|_| {
            link.pass(1);
            link.sent().iter().find(is_tcp).map(|sent| sent.to)
        })
    };
    link.stack.connect(far, link.now_ns).unwrap();
    let hops: Vec<_> = (0..4).filter_map(|_| hop(&mut link)).collect();
    assert_eq!(hops, [PEER_MAC, PEER_MAC, PEER_MAC, OTHER_MAC], "the first router has not answered");
    // It has only been slow.
    link.answers(first);
    link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    assert_eq!(link.sent().last().map(|sent| sent.to), Some(PEER_MAC));
    // One that says that it is a router no more is none, at once.
    let connection = link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    link.sent();
    link.answers(announcement(255, 0, 3600, None));
    link.stack.abort(connection);
    link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    assert!(link.sent().iter().all(|sent| sent.to == OTHER_MAC));
    link.answers(other(0));
    link.stack.connect(far, link.now_ns).unwrap();
    link.turn();
    assert!(link.sent().is_empty(), "there is no way out");
}

/// What one router makes up takes no room from another, and all of them have no more than there is.
#[test]
fn what_routers_announce_is_bounded() {
    let router = |number: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number);
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    for subnet in 100..200 {
        link.answers(announcement_by(router(1), PEER_MAC, 9000, (subnet, 3600), None));
    }
    link.answers(announcement(255, 1800, 7200, None));
    link.pass(1);
    let acquired = link.acquired();
    let address: Ipv6Addr = "2001:db8:0:7:0:ff:fe00:1".parse().unwrap();
    assert!(acquired.len() == 1 + MAX_OF_ROUTER + 1 && acquired.contains(&address), "{acquired:?}");
    // Nor has the other's prefix become its own, to end or to be forgotten.
    link.answers(announcement_by(router(1), PEER_MAC, 9000, (7, 7200), None));
    assert_eq!(link.stack.ipv6().prefixes.iter().filter(|prefix| prefix.router == Some(ROUTER)).count(), 1);
    // What it has announced counts for so long, and its place is another's then.
    link.answers(announcement_by(router(1), PEER_MAC, 9000, (300, 3600), None));
    link.pass(1);
    assert!(link.acquired().is_empty());
    link.pass(3600);
    link.answers(announcement_by(router(1), PEER_MAC, 9000, (300, 3600), None));
    link.pass(1);
    assert_eq!(link.acquired().len(), 1);
    for number in 2..100 {
        for subnet in 0..10 {
            link.answers(announcement_by(router(number), PEER_MAC, 9000, (1000 + 10 * number + subnet, 3600), None));
        }
    }
    link.pass(1);
    let ipv6 = &link.stack.ipv6();
    assert_eq!((ipv6.routers.len(), ipv6.prefixes.len(), ipv6.addresses.0.len()), (MAX_ROUTERS, 9, 1 + 9));
}

/// RFC 4443 §4.2.
#[test]
fn echo_requests_are_answered() {
    let mut link = Link::ready();
    let request = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: b"odd" };
    let answer = &link.answers(icmp(PEER, OWN, 64, request))[0];
    assert_eq!(answer.icmp(), Icmpv6Repr::EchoReply { ident: 7, seq_no: 9, data: b"odd" });
    assert_eq!((answer.ip.src_addr, answer.ip.dst_addr, answer.to), (OWN, PEER, PEER_MAC));
    let mut damaged = icmp(PEER, OWN, 64, request);
    *damaged.last_mut().unwrap() ^= 1;
    assert!(link.answers(damaged).is_empty());
    assert!(link.answers(icmp(PEER, ALL_NODES, 64, request)).is_empty(), "a group answers nobody");
    assert!(link.answers(icmp(PEER, PEER, 64, request)).is_empty(), "another station's");
    // RFC 4443 §2.4 (f).
    let answered = (0..5000).filter(|_| !link.answers(icmp(PEER, OWN, 64, request)).is_empty()).count();
    assert!(answered < 1000, "{answered}");
}

/// RFC 768, RFC 4443 §3.1 and §2.4 (c).
#[test]
fn datagrams_are_answered_or_refused() {
    let mut link = Link::ready();
    let datagram = |dst_port: u16, data: &[u8]| datagram_of(PEER, OWN, dst_port, data);
    let echo = &link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &datagram(7, b"hello")))[0];
    let udp = UdpPacket::new_checked(&echo.payload[..]).unwrap();
    assert!(udp.verify_checksum(&OWN.into(), &PEER.into()));
    assert_eq!((udp.payload(), udp.dst_port()), (&b"hello"[..], 5000));
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &datagram(7, &[1; 1452]))).len(), 1);
    let mut without_checksum = datagram(7, b"hello");
    without_checksum[6..8].fill(0);
    assert!(link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &without_checksum)).is_empty(), "RFC 8200 §8.1");
    let refusal = &link.answers(packet(PEER, OWN, IpProtocol::Udp, 64, &datagram(9, &[1; 1400])))[0];
    assert!(refusal.payload.len() + 40 <= 1280);
    let Icmpv6Repr::DstUnreachable { reason, header, .. } = refusal.icmp() else { panic!("{refusal:?}") };
    assert_eq!((reason, header.src_addr), (Icmpv6DstUnreachable::PortUnreachable, PEER));
    // RFC 4861 §6.3.4: no answer is larger than what the link carries.
    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(announcement(255, 1800, 3600, Some(1280)));
    link.pass(1);
    link.sent();
    for (len, answers) in [(1232, 1), (1233, 0)] {
        let datagram = datagram_of(ROUTER, LINK_LOCAL, 7, &vec![1; len]);
        assert_eq!(link.answers(packet(ROUTER, LINK_LOCAL, IpProtocol::Udp, 64, &datagram)).len(), answers, "{len}");
    }
}

/// RFC 8200 §4: options that ask for nothing are skipped; fragments, source routes and more are not taken.
#[test]
fn extension_headers() {
    const PADDED: [u8; 8] = [6, 0, 1, 4, 0, 0, 0, 0];
    let chain = |first: u8, headers: &[&[u8]]| {
        let payload = [&headers.concat(), &syn()[..]].concat();
        packet(PEER, OWN, IpProtocol::from(first), 64, &payload)
    };
    let behind = |next: u8| [&[next], &PADDED[1..]].concat();
    let [to_skip, to_refuse] = [0x1e, 0x9e].map(|kind| [6, 0, kind, 4, 0, 0, 0, 0]);
    let (options_next, hop_by_hop_next) = (behind(60), behind(0));
    let long: Vec<u8> = [&[6, 32][..], &[0; 262]].concat();
    let cases: [(&str, u8, Vec<&[u8]>, bool); 10] = [
        ("none", 6, vec![], true),
        ("hop-by-hop options", 0, vec![&PADDED], true),
        ("both", 0, vec![&options_next, &PADDED], true),
        ("an option to be skipped", 60, vec![&to_skip], true),
        ("an option to be refused", 60, vec![&to_refuse], false),
        ("hop-by-hop options behind others", 60, vec![&hop_by_hop_next, &PADDED], false),
        ("too many", 60, vec![&options_next, &options_next, &options_next, &options_next, &PADDED], false),
        ("too long", 60, vec![&long], false),
        ("a source route", 43, vec![&[6, 0, 0, 0, 0, 0, 0, 0]], false),
        ("a fragment", 44, vec![&[6, 0, 0, 0, 0, 0, 0, 1]], false),
    ];
    for (what, first, headers, is_taken) in cases {
        let mut link = Link::ready();
        assert_eq!(link.answers(chain(first, &headers)).len(), usize::from(is_taken), "{what}");
        let whole = chain(first, &headers);
        for len in 14..whole.len() {
            let mut cut = whole[..len].to_vec();
            if let Some(place) = cut.get_mut(18..20) {
                place.copy_from_slice(&(len.saturating_sub(54) as u16).to_be_bytes());
            }
            link.answers(cut);
        }
        assert!(link.stack.connections() <= 1);
    }
}

/// RFC 4291 §2.5.2, §2.5.5 and §2.7: nobody has these addresses.
#[test]
fn sources_that_are_no_host_are_not_taken() {
    let mut link = Link::ready();
    for from in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, ALL_NODES, "::ffff:192.0.2.1".parse().unwrap(), OWN] {
        let segment = tcp(from, TcpControl::Syn, None, &[]);
        assert!(link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &segment)).is_empty(), "{from}");
    }
}

/// RFC 9293 §3.7.1, RFC 4861 §6.3.4, and RFC 8201 §4 and §5.2.
#[test]
fn segments_fit_the_link_and_the_path() {
    let mut link = Link::ready();
    let answer = link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()));
    let answer = answer[0].tcp();
    assert_eq!((answer.control, answer.max_seg_size), (TcpControl::Syn, Some(1440)));
    let first = answer.seq_number + 1;
    link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &tcp(PEER, TcpControl::None, Some(first), b"hi")));
    let events = link.events();
    let accepted = events.iter().find_map(|event| match event {
        Event::Accepted { connection, remote, local } => Some((*connection, *remote, *local)),
        _ => None,
    });
    let (connection, remote, local) = accepted.unwrap();
    assert_eq!((remote, local), (SocketAddr::new(PEER.into(), 40_000), SocketAddr::new(OWN.into(), PORT)));
    assert_eq!(link.stack.send(connection, &[7; 3000]), 3000);
    link.turn();
    let sizes = |sent: Vec<Sent>| -> Vec<usize> { sent.iter().map(|sent| sent.tcp().payload.len()).collect() };
    let sent = link.sent();
    let quoted = sent[0].payload[..8].to_vec();
    assert_eq!(sizes(sent), [1440, 1440, 120]);
    let too_big = |mtu: u32, sequence: &[u8]| {
        let header =
            Ipv6Repr { src_addr: OWN, dst_addr: PEER, next_header: IpProtocol::Tcp, payload_len: 1460, hop_limit: 60 };
        let data = [&quoted[..4], sequence].concat();
        icmp(ROUTER, OWN, 64, Icmpv6Repr::PktTooBig { mtu, header, data: &data })
    };
    assert_eq!(sizes(link.answers(too_big(1279, &quoted[4..]))), [0; 0], "no link carries less");
    assert_eq!(sizes(link.answers(too_big(1300, &[1, 2, 3, 4]))), [0; 0], "RFC 5927 §7.2: it was never sent");
    // Others cannot use up what is looked at.
    let echo = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: b"odd" };
    (0..2000).for_each(|_| drop(link.answers(icmp(PEER, OWN, 64, echo))));
    let sent = link.answers(too_big(1300, &quoted[4..]));
    assert_eq!(sizes(sent), [1240, 1240, 520]);

    let mut link = Link::new(Addressing6::Auto);
    link.turn();
    link.answers(announcement(255, 1800, 3600, Some(1280)));
    link.answers(announcement(255, 1800, 3600, Some(600)));
    link.pass(1);
    link.sent();
    link.stack.connect(SocketAddr::new(ROUTER.into(), 1), link.now_ns).unwrap();
    link.turn();
    assert_eq!(link.sent()[0].tcp().max_seg_size, Some(1220), "600 is less than any link's");
}

/// RFC 4987 §3.6.
#[test]
fn a_flood_of_syns_is_answered_by_cookies() {
    let mut link = Link::ready();
    let from = |number: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 1, 0, number);
    for number in 0..100 {
        let segment = tcp(from(number), TcpControl::Syn, None, &[]);
        link.answers(packet(from(number), OWN, IpProtocol::Tcp, 64, &segment));
    }
    let answer = link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()));
    let first = answer[0].tcp().seq_number + 1;
    assert!(link.stack.figures().cookies_sent > 50 && link.stack.connections() <= 8);
    link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &tcp(PEER, TcpControl::None, Some(first), b"hi")));
    assert_eq!(link.stack.figures().cookies_accepted, 1);
    let remote = SocketAddr::new(PEER.into(), 40_000);
    assert!(link.events().iter().any(|event| matches!(event, Event::Accepted { remote: from, .. } if *from == remote)));
}

/// A made-up station on the link.
fn stranger(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, number)
}

/// A stranger opens and resets connections from addresses that no neighbor has: what waits for those neighbors ends with
/// its connection.
#[test]
fn connections_that_end_wait_for_no_neighbor() {
    let mut link = Link::ready();
    for number in 0..1000 {
        let from = stranger(number);
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Syn, None, &[])));
        assert_eq!(link.stack.waiting(), 1);
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Rst, None, &[])));
        assert_eq!((link.stack.connections(), link.stack.waiting()), (0, 0), "{number}");
    }
}

/// The same for those that wait for memory, of which another one has all.
#[test]
fn connections_that_end_wait_for_no_memory() {
    let mut link = Link::with_buffers(FIXED, 2 * crate::pool::BLOCK_BYTES);
    link.turn();
    link.pass(1);
    link.sent();
    link.events();
    let open = |link: &mut Link, from: Ipv6Addr| {
        link.answers(solicitation(from, OWN));
        let answer = link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Syn, None, &[])));
        let ack = Some(TcpSeqNumber(answer[0].tcp().seq_number.0.wrapping_add(1)));
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::None, ack, &[])));
        let accepted = link.events().into_iter().find_map(|event| match event {
            Event::Accepted { connection, .. } => Some(connection),
            _ => None,
        });
        (accepted.unwrap(), ack)
    };
    let (hog, _) = open(&mut link, PEER);
    link.stack.send(hog, &[0; 10_000]);
    link.turn();
    for number in 0..100 {
        let from = stranger(number);
        let (connection, ack) = open(&mut link, from);
        assert_eq!(link.stack.send(connection, b"x"), 0);
        link.turn();
        assert_eq!(link.stack.waiting(), 2);
        link.answers(packet(from, OWN, IpProtocol::Tcp, 64, &tcp(from, TcpControl::Rst, ack, &[])));
        assert_eq!(link.events(), [Event::Closed(connection)]);
        link.turn();
        assert_eq!((link.stack.connections(), link.stack.waiting()), (1, 1), "{number}");
    }
}

/// Stations that only say that they are there, however many, displace none that is spoken with or looked for.
#[test]
fn a_flood_of_solicitations_displaces_no_neighbor() {
    let mut link = Link::ready();
    for number in 0..2000 {
        assert_eq!(link.answers(solicitation(stranger(number), OWN)).len(), 1, "it is answered");
    }
    assert_eq!(link.answers(packet(PEER, OWN, IpProtocol::Tcp, 64, &syn()))[0].tcp().control, TcpControl::Syn);
    let other = stranger(5000);
    link.answers(packet(other, OWN, IpProtocol::Tcp, 64, &tcp(other, TcpControl::Syn, None, &[])));
    link.answers(solicitation(stranger(5001), OWN));
    let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
    assert_eq!(link.answers(advertisement(other, OWN, flags, PEER_MAC)).len(), 1, "it was looked for");
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    for address in [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, ALL_NODES, "::ffff:192.0.2.1".parse().unwrap()] {
        let addressing6 = Addressing6::Static { address, prefix_bits: 64, gateway: None };
        let limits = Limits { connections: 8, buffer_bytes: 1 << 20 };
        let config = Config { addressing: Addressing::Dhcp, addressing6, limits, keepalive_s: 0, seed: 1 };
        assert!(Stack::new(config, &mut Card::default(), 0).is_err(), "{address}");
    }
}

/// Without IPv6 nothing is sent, and nothing is answered.
#[test]
fn a_station_without_ipv6_is_silent() {
    let mut link = Link::new(Addressing6::Off);
    link.turn();
    link.pass(2);
    assert!(link.sent().is_empty());
    for frame in [solicitation(PEER, LINK_LOCAL), announcement(255, 1800, 3600, None)] {
        assert!(link.answers(frame).is_empty());
    }
}

/// The groups of a report of version 2, each with its type.
fn records(message: &[u8]) -> Vec<(u8, Ipv6Addr)> {
    assert_eq!((message[0], message.len()), (143, 8 + 20 * usize::from(message[7])));
    let record = |bytes: &[u8]| {
        assert_eq!(bytes[1..4], [0; 3], "no sources, and nothing else");
        (bytes[0], header::address_at(bytes, 4))
    };
    message[8..].chunks(20).map(record).collect()
}

/// A query of so many bytes, about a group or all.
fn query(bytes: usize, code: u16, group: Ipv6Addr, from: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    let mut message = vec![0; bytes];
    message[0] = 130;
    message[4..6].copy_from_slice(&code.to_be_bytes());
    message[8..24].copy_from_slice(&group.octets());
    let to = if group.is_unspecified() { message::ALL_NODES } else { group };
    let ends = Ends::V6 { own: from, remote: to };
    let sum = checksum::finish(ends.pseudo_header(PROTOCOL_ICMPV6, bytes) + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum);
    let payload = [&[58, 0, 5, 2, 0, 0, 1, 0], &message[..]].concat();
    let mut frame = vec![0; 14 + 40 + payload.len()];
    let route = Route { mac: PEER_MAC, hardware: message::hardware_of(to), ends };
    emit_headers(&mut frame, &route, 0, hop_limit, payload.len()).copy_from_slice(&payload);
    frame
}

/// RFC 3810 §6.1, RFC 3590 §4: a group is told of before its address is asked for, and again from an address.
#[test]
fn groups_are_joined() {
    let mut link = Link::new(FIXED);
    link.turn();
    let nobody = Ipv6Addr::UNSPECIFIED;
    let listeners = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let both = [LINK_LOCAL, OWN].map(|address| vec![(4, message::solicited_node(address))]);
    let reports = link.reports();
    assert!(reports.iter().all(|(from, to, _)| (*from, *to) == (nobody, listeners)));
    assert_eq!(reports.iter().map(|(_, _, message)| records(message)).collect::<Vec<_>>(), both);
    link.pass(1);
    let reports = link.reports();
    assert!(reports.iter().all(|(from, _, _)| *from == LINK_LOCAL), "{reports:?}");
    assert_eq!(reports.iter().map(|(_, _, message)| records(message)).collect::<Vec<_>>(), both);
}

/// RFC 3810 §6.2 and §8.2.1.
#[test]
fn who_asks_for_groups_is_told() {
    let mut link = Link::ready();
    let (all, own) = (Ipv6Addr::UNSPECIFIED, message::solicited_node(OWN));
    let is_in = |address| (2, message::solicited_node(address));
    let mut ask = |frame: Vec<u8>| {
        link.reports();
        link.card.0.0.push_back(frame);
        link.turn();
        // The longest delay among these questions: 0x8000 stands for 32,768 ms (§5.1.3).
        link.pass(33);
        link.reports()
    };
    for (group, code) in [(all, 0), (all, 10_000), (own, 1000), (all, 0x8000)] {
        let reports = ask(query(28, code, group, ROUTER, 1));
        let [(LINK_LOCAL, _, message)] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!(records(message), [is_in(LINK_LOCAL), is_in(OWN)]);
    }
    let reports = ask(query(24, 100, all, ROUTER, 1));
    assert!(reports.iter().all(|(from, to, message)| *from == LINK_LOCAL && header::address_at(message, 8) == *to));
    assert_eq!(
        reports.iter().map(|(_, to, _)| *to).collect::<Vec<_>>(),
        [LINK_LOCAL, OWN].map(message::solicited_node)
    );
    assert!(reports.iter().all(|(_, _, message)| message[0] == 131 && message.len() == 24));
    let elsewhere = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff01, 0x203);
    for frame in [
        query(28, 0, elsewhere, ROUTER, 1),
        query(28, 0, all, ROUTER, 64),
        query(28, 0, all, PEER, 1),
        query(26, 0, all, ROUTER, 1),
        query(16 + 8, 0, all, PEER, 1),
    ] {
        assert_eq!(ask(frame), []);
    }
}

/// RFC 3810 §6.2: after some time, each station after another, and not later than the first who asks wants it.
#[test]
fn who_asks_for_groups_waits() {
    let mut link = Link::ready();
    let all = Ipv6Addr::UNSPECIFIED;
    link.reports();
    let asked_ns = link.now_ns;
    for code in [10_000, u16::MAX] {
        link.card.0.0.push_back(query(28, code, all, ROUTER, 1));
        link.turn();
        assert_eq!(link.reports(), []);
    }
    while link.reports().is_empty() {
        link.now_ns += SECOND_NS / 10;
        link.turn();
        assert!(link.now_ns <= asked_ns + 10 * SECOND_NS);
    }
    assert!(link.now_ns > asked_ns);
    link.pass(9_000);
    assert_eq!(link.reports(), [], "both were answered");
}
