//! Getting, keeping and losing an address, against a small DHCP server of this test.

use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Lease, Limits, Stack, checksum};
use kayvee_platform::Checksums;
use kayvee_testing::network::{
    frames::{self, Segment},
    wire::{Faults, Wire},
    world::PORT,
};
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
        IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpSeqNumber, UdpPacket, UdpRepr,
    },
};
use std::net::Ipv4Addr;

const SECOND_NS: u64 = 1_000_000_000;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 1);
const OFFERED: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 77);
const SERVER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
const LEASE_S: u32 = 600;

/// A DHCP server that has one address to give.
struct DhcpServer {
    address: Ipv4Addr,
    lease_s: u32,
    gateway: Ipv4Addr,
    /// What it does with requests.
    mood: Mood,
    requests: usize,
    /// Its datagrams have the sum of the pseudo-header where their checksum belongs.
    leaves_checksums: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Generous,
    Silent,
    Refusing,
}

impl DhcpServer {
    /// Answers a client's frame if it is for a DHCP server.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let ip = Ipv4Packet::new_checked(ethernet.payload()).ok().filter(|ip| ip.next_header() == IpProtocol::Udp)?;
        let udp = UdpPacket::new_checked(ip.payload()).ok().filter(|udp| udp.dst_port() == 67)?;
        let packet = DhcpPacket::new_checked(udp.payload()).expect("clients send what the standard says");
        let request = DhcpRepr::parse(&packet).expect("clients send what the standard says");
        self.requests += 1;
        let message_type = match (self.mood, request.message_type) {
            (Mood::Silent, _) => return None,
            (_, DhcpMessageType::Discover) => DhcpMessageType::Offer,
            (Mood::Generous, DhcpMessageType::Request) => DhcpMessageType::Ack,
            (Mood::Refusing, DhcpMessageType::Request) => DhcpMessageType::Nak,
            (_, other) => panic!("a client does not send {other:?}"),
        };
        let repr = DhcpRepr {
            message_type,
            your_ip: self.address,
            server_ip: SERVER,
            client_ip: Ipv4Addr::UNSPECIFIED,
            router: Some(self.gateway),
            subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            server_identifier: Some(SERVER),
            lease_duration: Some(self.lease_s),
            requested_ip: None,
            client_identifier: None,
            parameter_request_list: None,
            max_size: None,
            ..request
        };
        let mut frame = dhcp_frame(&repr, ethernet.src_addr());
        if self.leaves_checksums {
            let udp = &mut frame[14 + 20..];
            let len = udp.len() as u16;
            let pseudo = [
                SERVER.octets(),
                Ipv4Addr::BROADCAST.octets(),
                [[0, 17], len.to_be_bytes()].concat().try_into().unwrap(),
            ];
            let undone = !u16::from_be_bytes(checksum::finish(checksum::sum(&pseudo.concat())));
            UdpPacket::new_unchecked(udp).set_checksum(undone);
        }
        Some(frame)
    }
}

fn dhcp_frame(repr: &DhcpRepr<'_>, to: EthernetAddress) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let udp = UdpRepr { src_port: 67, dst_port: 68 };
    let udp_len = udp.header_len() + repr.buffer_len();
    let ip = Ipv4Repr {
        src_addr: SERVER,
        dst_addr: Ipv4Addr::BROADCAST,
        next_header: IpProtocol::Udp,
        payload_len: udp_len,
        hop_limit: 64,
    };
    let mut bytes = vec![0; 14 + 20 + udp_len];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    EthernetRepr { src_addr: SERVER_MAC, dst_addr: to, ethertype: EthernetProtocol::Ipv4 }.emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &checksums);
    let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
    let (from, to) = (SERVER.into(), Ipv4Addr::BROADCAST.into());
    let fill = |payload: &mut [u8]| repr.emit(&mut DhcpPacket::new_unchecked(payload)).expect("the options fit");
    udp.emit(&mut datagram, &from, &to, repr.buffer_len(), fill, &checksums);
    bytes
}

struct World {
    now_ns: u64,
    wire: Wire,
    stack: Stack,
    server: DhcpServer,
    events: Vec<Event>,
    /// Frames for others than the DHCP server.
    others: Vec<Vec<u8>>,
}

impl World {
    fn new(faults: Faults, seed: u64) -> World {
        World::on(Wire::new(faults, seed), seed)
    }

    fn on(mut wire: Wire, seed: u64) -> World {
        let limits = Limits::for_memory(1 << 20, 1);
        let config =
            Config { addressing: Addressing::Dhcp, addressing6: Addressing6::Off, limits, keepalive_s: 0, seed };
        let stack = Stack::new(config, &mut wire.server, 0).unwrap();
        let server = DhcpServer {
            address: OFFERED,
            lease_s: LEASE_S,
            gateway: SERVER,
            mood: Mood::Generous,
            requests: 0,
            leaves_checksums: false,
        };
        World { now_ns: 0, wire, stack, server, events: Vec::new(), others: Vec::new() }
    }

    /// Runs until `now_ns`, turn by turn, each when the stack or the wire asks for it.
    fn run_until(&mut self, now_ns: u64) {
        while self.now_ns < now_ns {
            self.wire.run(self.now_ns);
            self.stack.poll(&mut self.wire.server, self.now_ns);
            self.events.extend(std::iter::from_fn(|| self.stack.next_event()));
            self.stack.flush(&mut self.wire.server, self.now_ns);
            self.wire.run(self.now_ns);
            let received = std::iter::from_fn(|| self.wire.client.receive()).collect::<Vec<_>>();
            for frame in received {
                match self.server.answer(&frame) {
                    Some(reply) => self.wire.client.send(reply),
                    None => self.others.push(frame),
                }
            }
            self.wire.run(self.now_ns);
            let next = [self.wire.next_arrival_ns(), self.stack.next_deadline_ns()].into_iter().flatten().min();
            self.now_ns = next.unwrap_or(u64::MAX).clamp(self.now_ns + 1000, now_ns);
        }
    }
}

fn lease(gateway: Option<Ipv4Addr>) -> Lease {
    Lease { address: OFFERED, prefix_bits: 24, gateway }
}

#[test]
fn an_address_is_acquired_at_once() {
    let mut world = World::new(Faults::NONE, 1);
    world.run_until(SECOND_NS / 100);
    assert_eq!(world.events, [Event::AddressAcquired(lease(Some(SERVER)))]);
    assert_eq!(world.stack.lease(), Some(lease(Some(SERVER))));
    assert_eq!(world.server.requests, 2, "one discover, one request");
}

/// A server on this machine leaves the checksums of what it sends to a card that is not there.
#[test]
fn an_address_is_acquired_from_a_server_that_leaves_checksums_undone() {
    for (checksums, events) in [(Checksums::Partial, 1), (Checksums::Complete, 0)] {
        let mut wire = Wire::new(Faults::NONE, 1);
        wire.server.set_checksums(checksums);
        let mut world = World::on(wire, 1);
        world.server.leaves_checksums = true;
        world.run_until(SECOND_NS);
        assert_eq!(world.events.len(), events, "{checksums:?}: {:?}", world.events);
    }
}

#[test]
fn lost_and_damaged_messages_are_sent_again() {
    for seed in 1..=20 {
        let mut world = World::new(Faults { loss_per_mille: 300, ..Faults::SEVERE }, seed);
        world.run_until(60 * SECOND_NS);
        assert_eq!(world.events, [Event::AddressAcquired(lease(Some(SERVER)))], "seed {seed}");
    }
}

#[test]
fn a_lease_is_renewed_in_silence() {
    let mut world = World::new(Faults::NONE, 1);
    world.run_until(10 * u64::from(LEASE_S) * SECOND_NS);
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
    assert!(world.server.requests >= 2 + 10);
}

#[test]
fn a_lease_that_is_not_renewed_is_lost_and_found_again() {
    let mut world = World::new(Faults::NONE, 1);
    world.run_until(SECOND_NS);
    world.server.mood = Mood::Silent;
    world.run_until(u64::from(LEASE_S - 1) * SECOND_NS);
    assert_eq!(world.events.len(), 1, "it holds as long as it was given for");
    world.run_until(u64::from(LEASE_S + 60) * SECOND_NS);
    assert_eq!(world.events[1..], [Event::AddressLost]);
    assert_eq!(world.stack.lease(), None);
    world.server.mood = Mood::Generous;
    world.run_until(u64::from(LEASE_S + 120) * SECOND_NS);
    assert_eq!(world.events[2..], [Event::AddressAcquired(lease(Some(SERVER)))]);
}

/// One with an address and a connection to it.
fn connected() -> (World, ConnectionId) {
    let mut world = World::new(Faults::NONE, 1);
    world.stack.listen(PORT);
    world.run_until(SECOND_NS);
    let send = |world: &mut World, control, sequence, acknowledged| {
        let segment = Segment { to: OFFERED, from_port: 4000, control, sequence, acknowledged, payload: &[] };
        world.wire.client.send(segment.frame());
        let soon_ns = world.now_ns + 2 * SECOND_NS;
        world.run_until(soon_ns);
    };
    // The gateway's hardware address is learned from its answer to a query that the SYN-ACK waits for.
    send(&mut world, TcpControl::Syn, TcpSeqNumber(1000), None);
    world.wire.client.send(frames::arp_reply(SERVER_MAC, SERVER, OFFERED));
    let soon_ns = world.now_ns + SECOND_NS;
    world.run_until(soon_ns);
    let server_sequence = world.others.iter().find_map(|frame| frames::syn_ack_sequence(frame)).expect("a SYN-ACK");
    send(&mut world, TcpControl::None, TcpSeqNumber(1001), Some(server_sequence + 1));
    let Event::Accepted { connection, .. } = world.events[1] else { panic!("{:?}", world.events) };
    (world, connection)
}

/// The other end's address is not on the link of the leased one, so the way to it is the gateway.
#[test]
fn connections_end_with_the_address() {
    let (mut world, connection) = connected();
    world.server.mood = Mood::Silent;
    world.run_until(u64::from(LEASE_S + 10) * SECOND_NS);
    assert_eq!(world.events[2..], [Event::AddressLost, Event::Closed(connection)]);
    assert_eq!((world.stack.connections(), world.stack.buffer_bytes()), (0, 0));
}

/// A renewal may give another address than there was (RFC 2131 §4.3.2 forbids it to the server, not to its faults).
#[test]
fn connections_end_where_a_renewal_changes_the_address() {
    let (mut world, connection) = connected();
    world.server.address = Ipv4Addr::new(10, 1, 2, 78);
    world.run_until(u64::from(LEASE_S) * SECOND_NS);
    let other = Lease { address: world.server.address, ..lease(Some(SERVER)) };
    assert_eq!(world.events[2..], [Event::AddressAcquired(other), Event::Closed(connection)]);
    assert_eq!((world.stack.connections(), world.stack.buffer_bytes()), (0, 0));
    assert_eq!(world.stack.lease(), Some(other));
}

/// A lease of no time, or of next to none, has nobody ask without end, nor has one that never ends.
#[test]
fn leases_of_any_length_are_asked_for_in_peace() {
    for lease_s in [0, 1, 2, 3, u32::MAX - 1, u32::MAX] {
        let mut world = World::new(Faults::NONE, 1);
        world.server.lease_s = lease_s;
        world.run_until(100 * SECOND_NS);
        assert!(world.server.requests <= 400, "{lease_s} s: {} requests in 100 s", world.server.requests);
        world.server.lease_s = LEASE_S;
        world.run_until(200 * SECOND_NS);
        assert_eq!(world.stack.lease(), Some(lease(Some(SERVER))), "{lease_s} s");
    }
}

/// A server that refuses each time what it has just offered is asked ever less often (RFC 2131 §4.1).
#[test]
fn a_server_that_refuses_what_it_offers_is_asked_in_peace() {
    let mut world = World::new(Faults::NONE, 1);
    world.server.mood = Mood::Refusing;
    world.run_until(300 * SECOND_NS);
    assert_eq!(world.server.requests, 2 * 10, "at 0, 1, 3, 7, 15, 31, 63, 127, 191 and 255 s");
    world.server.mood = Mood::Generous;
    world.run_until(330 * SECOND_NS);
    assert_eq!(world.stack.lease(), Some(lease(Some(SERVER))));
}

/// An address is given up at once, however soon after it was asked for.
#[test]
fn an_address_is_lost_while_the_client_rests() {
    let mut world = World::new(Faults::NONE, 1);
    world.server.lease_s = 1;
    world.run_until(SECOND_NS / 100);
    assert_eq!(world.stack.lease(), Some(lease(Some(SERVER))));
    world.server.mood = Mood::Refusing;
    // The renewal, which is due after half of the time, waits for where the server is.
    world.run_until(SECOND_NS * 6 / 10);
    world.wire.client.send(frames::arp_reply(SERVER_MAC, SERVER, OFFERED));
    world.run_until(SECOND_NS * 7 / 10);
    assert_eq!((world.stack.lease(), world.server.requests), (None, 3));
    world.run_until(SECOND_NS * 11 / 10);
    assert_eq!(world.server.requests, 5);
}

#[test]
fn a_refused_renewal_loses_the_address() {
    let mut world = World::new(Faults::NONE, 1);
    world.run_until(SECOND_NS);
    world.server.mood = Mood::Refusing;
    // This server answers no address queries, so what it hears is the broadcast after 7/8 of the time.
    world.run_until(u64::from(LEASE_S) * 7 / 8 * SECOND_NS + SECOND_NS / 10);
    assert_eq!(world.events[1], Event::AddressLost);
}

#[test]
fn a_gateway_that_is_no_host_is_left_out() {
    for gateway in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 5)] {
        let mut world = World::new(Faults::NONE, 1);
        world.server.gateway = gateway;
        world.run_until(SECOND_NS);
        assert_eq!(world.events, [Event::AddressAcquired(lease(None))], "{gateway}");
    }
}
