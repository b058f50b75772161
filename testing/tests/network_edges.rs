//! The TCP/IP stack where things run out, fall silent or are hostile.

use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Limits, Stack, Take};
use kayvee_platform::{FrameDevice, FrameTx};
use kayvee_testing::{
    network::{
        frames::{Segment, arp_reply, arp_request, datagram, echo_request, syn_ack_sequence, tcp_of},
        fuzz::correct_checksums,
        wire::{Faults, Wire},
        world::{CLIENT, Client, Family, KEEPALIVE_S, PORT, SECOND_NS, SERVER, Traffic, World},
    },
    random::Random,
};
use smoltcp::{
    phy::ChecksumCapabilities,
    socket::tcp::State,
    wire::{
        EthernetAddress, EthernetFrame, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Ipv4Packet, TcpControl,
        TcpPacket, TcpSeqNumber, UdpPacket,
    },
};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};

fn world(connections: usize) -> World {
    let limits = Limits { connections, buffer_bytes: connections * (8 << 10) };
    World::new(Faults::NONE, Traffic::BothWaysAtOnce, limits, 1)
}

/// Opens connections and lets their handshakes finish. Nothing is sent on them.
fn connect(world: &mut World, count: usize) -> Vec<Client> {
    let clients: Vec<Client> = (0..count).map(|_| Client::open(world, Vec::new())).collect();
    let end_ns = world.now_ns + SECOND_NS;
    world.run_until(end_ns);
    clients
}

fn states(world: &mut World, clients: &[Client]) -> Vec<State> {
    clients.iter().map(|client| world.peer.socket(client.handle).state()).collect()
}

#[test]
fn a_port_without_a_listener_resets() {
    let mut world = world(4);
    let handle = world.peer.connect(SERVER.into(), PORT + 1, 4096);
    world.run_until(SECOND_NS);
    assert_eq!(world.peer.socket(handle).state(), State::Closed);
    assert_eq!(world.stack.connections(), 0);
}

#[test]
fn a_connection_too_many_is_reset_and_the_others_stay() {
    let mut world = world(4);
    let first = connect(&mut world, 4);
    let late = connect(&mut world, 2);
    assert_eq!(states(&mut world, &first), [State::Established; 4]);
    assert_eq!(states(&mut world, &late), [State::Closed; 2]);
    assert_eq!(world.accepted, 4);
    // When one goes, its place is free again.
    world.peer.socket(first[0].handle).close();
    connect(&mut world, 0);
    let next = connect(&mut world, 1);
    assert_eq!(states(&mut world, &next), [State::Established]);
}

#[test]
fn connections_in_time_wait_make_room() {
    let mut world = world(4);
    for _ in 0..50 {
        let clients = connect(&mut world, 4);
        assert_eq!(states(&mut world, &clients), [State::Established; 4]);
        // The side that closes first waits, and this time that is the server.
        for &connection in world.pending.keys() {
            world.stack.close(connection, world.now_ns);
        }
        world.pending.clear();
        for client in &clients {
            world.peer.socket(client.handle).close();
        }
        connect(&mut world, 0);
        assert_eq!(world.stack.connections(), 4);
    }
    assert_eq!(world.accepted, 200);
}

/// Who is refused in good order need not end its side: the next one is refused in the same way, not reset.
#[test]
fn connections_that_the_server_has_ended_make_room() {
    let mut world = world(4);
    let served = connect(&mut world, 3);
    let known: Vec<ConnectionId> = world.pending.keys().copied().collect();
    for _ in 0..10 {
        let refused = connect(&mut world, 1);
        world.pending.retain(|connection, _| known.contains(connection));
        world.stack.send(ConnectionId(3), b"no room");
        world.stack.close(ConnectionId(3), world.now_ns);
        connect(&mut world, 0);
        assert_eq!(states(&mut world, &refused), [State::CloseWait]);
        world.peer.socket(refused[0].handle).recv(|bytes| (bytes.len(), assert_eq!(bytes, b"no room"))).unwrap();
    }
    assert_eq!(states(&mut world, &served), [State::Established; 3]);
}

#[test]
fn a_flood_of_syns_hurts_only_itself() {
    let mut world = world(16);
    let before = connect(&mut world, 4);
    for port in 0..10_000 {
        world.wire.server.inject(segment(1 + port, TcpControl::Syn, None));
        if port % 32 == 0 {
            world.step();
        }
    }
    assert_eq!(states(&mut world, &before), [State::Established; 4]);
    assert!(world.stack.connections() <= 16);
    let after = connect(&mut world, 4);
    assert_eq!(states(&mut world, &after), [State::Established; 4]);
    // Handshakes that were never finished are given up.
    let end_ns = world.now_ns + 30 * SECOND_NS;
    world.run_until(end_ns);
    assert_eq!(world.stack.connections(), 8);
}

/// Whoever floods with SYNs, garbage, half-open handshakes and connections that read nothing, others get their bytes as soon
/// as without (RFC 4987).
#[test]
fn a_flood_delays_nobody() {
    let exchange = |flooded: bool| {
        let mut world = world(64);
        let mut rng = Random::new(7);
        let mut port = 1;
        let deaf = connect(&mut world, if flooded { 8 } else { 0 });
        if flooded {
            for &connection in world.pending.keys() {
                // Nobody reads this, and it fills what there is for it.
                while world.stack.send(connection, &[1; 1000]) == 1000 {}
            }
        }
        let start_ns = world.now_ns;
        let mut took_ns = Vec::new();
        for _ in 0..20 {
            let since_ns = world.now_ns;
            let mut client = Client::open(&mut world, rng.bytes(3000));
            loop {
                for _ in 0..if flooded { 60 } else { 0 } {
                    port = port % 30_000 + 1;
                    let junk = 1 + rng.below(60);
                    let from = 10 + rng.below(200) as u8;
                    for frame in [
                        segment(port, TcpControl::Syn, None),
                        segment(port, TcpControl::None, Some(TcpSeqNumber(port.into()))),
                    ] {
                        world.wire.server.inject(spoofed(frame, from));
                    }
                    world.wire.server.inject(rng.bytes(junk));
                }
                if client.step(&mut world) {
                    break;
                }
                world.step();
            }
            assert_eq!(client.received, 3000);
            took_ns.push(world.now_ns - since_ns);
        }
        drop(deaf);
        (start_ns, took_ns, world.stack.figures())
    };
    let (_, alone_ns, figures) = exchange(false);
    assert_eq!(figures.cookies_sent, 0);
    let (_, flooded_ns, figures) = exchange(true);
    assert!(figures.cookies_sent > 5_000 && figures.cookies_accepted >= 20, "{figures:?}");
    assert!(figures.half_open <= 16 && figures.connections <= 64, "{figures:?}");
    let longest = |times: &[u64]| times.iter().copied().max().unwrap();
    assert!(longest(&flooded_ns) <= 2 * longest(&alone_ns), "{alone_ns:?} {flooded_ns:?}");
}

/// Who always has more to send than the card takes at a time does not keep it from the others.
#[test]
fn connections_take_turns_at_the_card() {
    let limits = Limits { connections: 4, buffer_bytes: 8 << 20 };
    let mut world = World::new(Faults::NONE, Traffic::BothWaysAtOnce, limits, 1);
    let much = Client::with_buffers(1 << 20, &mut world, Vec::new());
    world.run_until(SECOND_NS);
    let &greedy = world.pending.keys().next().unwrap();
    connect(&mut world, 1);
    let &modest = world.pending.keys().find(|connection| **connection != greedy).unwrap();
    // Its congestion window grows.
    let mut sent_bytes = 0;
    while sent_bytes < 16 << 20 || world.stack.buffer_bytes() > 0 {
        if sent_bytes < 16 << 20 {
            sent_bytes += world.stack.send(greedy, &[7; 100_000]);
        }
        world.step();
        let socket = world.peer.socket(much.handle);
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), ())).unwrap();
        }
    }
    while world.stack.send(greedy, &[7; 10_000]) > 0 {}
    world.stack.send(modest, b"a little");
    let mut turn = || {
        world.stack.flush(&mut world.wire.server, world.now_ns);
        world.wire.server.drain_sent().collect::<Vec<_>>()
    };
    assert!(turn().iter().all(|frame| frame.len() > 1000), "the card is full of the one's");
    assert!(turn().iter().any(|frame| frame.ends_with(b"a little")), "and then the other is first");
}

/// Clients that read nothing have all memory: they end for the others, and who reads at all does not.
#[test]
fn slow_readers_make_way_when_they_have_all_memory() {
    let limits = Limits { connections: 64, buffer_bytes: 128 << 10 };
    let mut world = World::new(Faults::NONE, Traffic::BothWaysAtOnce, limits, 1);
    let open = |world: &mut World| {
        let client = Client::with_buffers(512, world, Vec::new());
        world.run_until(world.now_ns + SECOND_NS / 100);
        client
    };
    let [modest, slow] = [(); 2].map(|()| open(&mut world));
    let readers: Vec<ConnectionId> = world.pending.keys().copied().collect();
    let hogs: Vec<Client> = (0..58).map(|_| open(&mut world)).collect();
    for &connection in world.pending.keys().filter(|connection| !readers.contains(connection)) {
        world.stack.send(connection, &[7; 100_000]);
    }
    assert!(readers.iter().all(|&reader| world.stack.send(reader, b"a little") == 0), "there is nothing left");
    let begin_ns = world.now_ns;
    let mut taken = [0; 2];
    while world.now_ns < begin_ns + 5 * SECOND_NS {
        for &reader in &readers {
            world.stack.send(reader, &[7; 2000]);
        }
        world.step();
        let passed = (world.now_ns - begin_ns) as usize;
        for (client, (taken, per_s)) in [&modest, &slow].into_iter().zip(taken.iter_mut().zip([1 << 20, 4 << 10])) {
            let most = passed / 1000 * per_s / 1_000_000;
            let socket = world.peer.socket(client.handle);
            while socket.can_recv() && *taken < most {
                *taken +=
                    socket.recv(|bytes| (bytes.len().min(most - *taken), bytes.len().min(most - *taken))).unwrap();
            }
        }
    }
    let figures = world.stack.figures();
    assert!(figures.slow_readers_reset > 0, "nobody had to go");
    assert_eq!(figures.slow_readers_reset as usize, world.closed);
    let ended = states(&mut world, &hogs).into_iter().filter(|state| *state == State::Closed).count();
    assert_eq!(ended, world.closed, "each is told of its end");
    assert!(readers.iter().all(|reader| world.pending.contains_key(reader)), "who reads does not");
    assert!(taken[0] > 100 << 10, "{taken:?}");
}

/// A station whose segments are made by hand, at the other end of a stack that reads all it can.
struct Hand {
    wire: Wire,
    stack: Stack,
    now_ns: u64,
    /// How much was read of whom.
    read: BTreeMap<ConnectionId, usize>,
}

impl Hand {
    fn new(limits: Limits) -> Hand {
        let mut wire = Wire::new(Faults::NONE, 1);
        let mut stack = Stack::new(Config { limits, ..config(SERVER, None) }, &mut wire.server, 0).unwrap();
        stack.listen(PORT);
        let mut hand = Hand { wire, stack, now_ns: 0, read: BTreeMap::new() };
        hand.give(vec![arp_request(SERVER)]);
        hand
    }

    /// Gives frames, and returns what is sent.
    fn give(&mut self, frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        frames.into_iter().for_each(|frame| self.wire.server.inject(frame));
        self.now_ns += SECOND_NS / 1000;
        self.stack.poll(&mut self.wire.server, self.now_ns);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Accepted { connection, .. } => _ = self.read.insert(connection, 0),
                Event::Readable(connection) => {
                    while let Some(len) = Some(self.stack.readable(connection).len()).filter(|len| *len > 0) {
                        self.stack.consume(connection, len);
                        *self.read.get_mut(&connection).unwrap() += len;
                    }
                }
                _ => {}
            }
        }
        self.stack.flush(&mut self.wire.server, self.now_ns);
        self.wire.server.drain_sent().collect()
    }

    /// Opens a connection from a port, and returns what acknowledges its beginning.
    fn open(&mut self, port: u16) -> TcpSeqNumber {
        let answers = self.give(vec![segment(port, TcpControl::Syn, None)]);
        let acknowledged = answers.iter().find_map(|frame| syn_ack_sequence(frame)).expect("a SYN is accepted") + 1;
        self.give(vec![part(port, acknowledged, 0, b"")]);
        acknowledged
    }
}

/// A part of what is sent on a connection that [`segment`] has opened.
fn part(from_port: u16, acknowledged: TcpSeqNumber, at: usize, payload: &[u8]) -> Vec<u8> {
    let sequence = TcpSeqNumber(1001) + at;
    let acknowledged = Some(acknowledged);
    Segment { to: SERVER, from_port, control: TcpControl::None, sequence, acknowledged, payload }.frame()
}

/// Peers that send a byte here and there, behind a hole that they never fill, had all memory for ever. Others are served, and what
/// comes out of order arrives while memory is short, too.
#[test]
fn what_lies_behind_holes_makes_way() {
    const PART_BYTES: usize = 1000;
    const PARTS: usize = 100;
    let mut hand = Hand::new(Limits { connections: 160, buffer_bytes: 512 << 10 });
    let honest = hand.open(1);
    let connection = *hand.read.keys().next().unwrap();
    let hoarders: Vec<(u16, TcpSeqNumber)> = (100..240).map(|port| (port, hand.open(port))).collect();
    let hoard = |hand: &mut Hand| {
        for &(port, acknowledged) in &hoarders {
            hand.give((0..32).map(|n| part(port, acknowledged, 1 + 2048 * n, b"x")).collect());
        }
    };
    hoard(&mut hand);
    let figures = hand.stack.figures();
    assert!(figures.buffer_bytes > figures.buffer_limit_bytes / 2, "they had all that they could have: {figures:?}");
    assert_eq!(hand.stack.send(connection, &[7; 4000]), 4000);
    hand.give(vec![]);
    assert!(hand.open(2) != honest, "another one is served");
    // Each of its windows of 4 KiB arrives with its end first.
    let mut rounds = 0;
    while hand.read[&connection] < PARTS * PART_BYTES {
        let next = hand.read[&connection] / PART_BYTES;
        for n in (next..PARTS.min(next + 4)).rev() {
            hand.give(vec![part(1, honest, n * PART_BYTES, &[7; PART_BYTES])]);
        }
        if rounds % 10 == 0 {
            hoard(&mut hand);
        }
        rounds += 1;
    }
    assert!(rounds <= PARTS, "{rounds} rounds: at least what was in order arrived in each");
    let figures = hand.stack.figures();
    assert!(figures.dropped_memory > 0 && figures.slow_readers_reset == 0, "{figures:?}");
    assert_eq!(figures.connections, 142, "nobody had to go");
}

/// Two stations that both cannot send would else wait for each other.
#[test]
fn what_arrives_is_taken_though_nothing_can_be_sent() {
    let mut world = world(4);
    let clients = connect(&mut world, 1);
    while world.wire.server.split().1.ready() {
        world.wire.server.send(vec![0; 60]);
    }
    world.peer.socket(clients[0].handle).send_slice(b"something").unwrap();
    world.peer.poll(&mut world.wire.client, world.now_ns);
    let frames: Vec<Vec<u8>> = world.wire.client.drain_sent().collect();
    frames.into_iter().for_each(|frame| world.wire.server.inject(frame));
    world.stack.poll(&mut world.wire.server, world.now_ns);
    assert_eq!(world.stack.next_event(), None, "there may be room in a moment");
    world.stack.poll(&mut world.wire.server, world.now_ns + SECOND_NS / 100);
    assert!(matches!(world.stack.next_event(), Some(Event::Readable(_))));
}

/// On a link with large frames peers are told to send such as fit into the memory that there is, many times.
#[test]
fn segments_are_small_where_memory_is() {
    let link_bytes = 14 + 61_426;
    for (buffer_bytes, most) in [(16 << 20, 61_426 - 40), (1 << 20, (16 << 10) - 14 - 40), (64 << 10, 1460)] {
        let limits = Limits { connections: 4, buffer_bytes };
        let wire = Wire::of_frames([link_bytes; 2], Faults::NONE, 1);
        let mut world = World::over(wire, Family::V4, Traffic::BothWaysAtOnce, limits, 1);
        world.wire.server.inject(arp_request(SERVER));
        world.wire.server.inject(segment(1, TcpControl::Syn, None));
        world.stack.poll(&mut world.wire.server, 0);
        world.stack.flush(&mut world.wire.server, 0);
        let sent: Vec<Vec<u8>> = world.wire.server.drain_sent().collect();
        let ip =
            Ipv4Packet::new_checked(EthernetFrame::new_checked(&sent[sent.len() - 1][..]).unwrap().payload()).unwrap();
        let told = TcpPacket::new_checked(ip.payload()).unwrap().options().to_vec();
        assert_eq!(told[..4], [&[2, 4][..], &u16::to_be_bytes(most)].concat(), "of {buffer_bytes} bytes: {told:?}");
    }
}

/// What peers are told to send fits through a link whose packets are smaller than Ethernet's.
#[test]
fn segments_fit_the_link() {
    for (mtu, told) in [(1500, 1460), (1400, 1360), (576, 536)] {
        let mut wire = Wire::of_frames([14 + mtu; 2], Faults::NONE, 1);
        let mut stack = Stack::new(config(SERVER, None), &mut wire.server, 0).unwrap();
        stack.listen(PORT);
        wire.server.inject(arp_request(SERVER));
        wire.server.inject(segment(1, TcpControl::Syn, None));
        stack.poll(&mut wire.server, 0);
        stack.flush(&mut wire.server, 0);
        let sent: Vec<Vec<u8>> = wire.server.drain_sent().collect();
        let options = tcp_of(&sent[sent.len() - 1]).unwrap().options().to_vec();
        assert_eq!(options[..4], [&[2, 4][..], &u16::to_be_bytes(told)].concat(), "of {mtu} bytes: {options:?}");
    }
}

/// On a link with large frames, what is asked for in one is not answered, and that is told.
#[test]
fn echo_requests_that_are_too_large_are_counted() {
    let mut wire = Wire::of_frames([61_440; 2], Faults::NONE, 1);
    let mut stack = Stack::new(config(SERVER, None), &mut wire.server, 0).unwrap();
    wire.server.inject(arp_request(SERVER));
    for (padding, answers, dropped) in [(1514 - 46, 1, 0), (1515 - 46, 0, 1)] {
        let mut request = echo_request(SERVER);
        request.resize(request.len() + padding, 0);
        let bytes = (request.len() - 14) as u16;
        let mut ip = Ipv4Packet::new_unchecked(&mut request[14..]);
        ip.set_total_len(bytes);
        ip.fill_checksum();
        Icmpv4Packet::new_unchecked(&mut request[34..]).fill_checksum();
        stack.poll(&mut wire.server, 0);
        stack.flush(&mut wire.server, 0);
        wire.server.drain_sent().for_each(drop);
        wire.server.inject(request);
        stack.poll(&mut wire.server, 0);
        stack.flush(&mut wire.server, 0);
        assert_eq!((wire.server.drain_sent().count(), stack.figures().dropped_malformed), (answers, dropped));
    }
}

/// More stations than there were entries for once, all of which are asked for before one has answered, and each once.
#[test]
fn a_thousand_stations_are_served() {
    const STATIONS: u16 = 1000;
    let mut wire = Wire::new(Faults::NONE, 1);
    let addressing = Addressing::Static { address: SERVER, prefix_bits: 16, gateway: None };
    let limits = Limits { connections: 2000, buffer_bytes: 16 << 20 };
    let mut stack = Stack::new(Config { addressing, limits, ..config(SERVER, None) }, &mut wire.server, 0).unwrap();
    stack.listen(PORT);
    for number in 0..STATIONS {
        wire.server.inject(of_station(number, 1000, None));
    }
    let (mut open, mut questions, mut asked, mut greeted, mut now_ns) = (Vec::new(), Vec::new(), 0, 0, 0);
    for greeting in [&b"hello"[..], b"again"] {
        open.iter().for_each(|&connection| assert_eq!(stack.send(connection, greeting), greeting.len()));
        loop {
            now_ns += 10_000;
            stack.poll(&mut wire.server, now_ns);
            while let Some(event) = stack.next_event() {
                if let Event::Accepted { connection, .. } = event {
                    assert_eq!(stack.send(connection, greeting), greeting.len());
                    open.push(connection);
                }
            }
            stack.flush(&mut wire.server, now_ns);
            let sent: Vec<Vec<u8>> = wire.server.drain_sent().collect();
            if sent.is_empty() && questions.is_empty() {
                break;
            }
            if sent.is_empty() {
                asked += questions.len();
                questions.drain(..).for_each(|reply| wire.server.inject(reply));
            }
            for frame in sent {
                let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]).wrapping_sub(FIRST_STATION);
                if frame[12..14] == [8, 6] {
                    // Nobody asks for the own address but to tell of it.
                    let address = Ipv4Addr::new(frame[38], frame[39], frame[40], frame[41]);
                    let reply = arp_reply(hardware_of(number(40)), address, SERVER);
                    questions.extend(Some(reply).filter(|_| address != SERVER));
                } else if let Some(sequence) = syn_ack_sequence(&frame) {
                    wire.server.inject(of_station(number(32), 1001, Some(sequence + 1)));
                } else {
                    assert_eq!(frame[..6], hardware_of(number(32)).0);
                    greeted += usize::from(frame.ends_with(greeting));
                }
            }
        }
    }
    assert_eq!((open.len(), asked, greeted), (STATIONS.into(), STATIONS.into(), 2 * usize::from(STATIONS)));
}

/// The last two octets of the first of many stations' addresses.
const FIRST_STATION: u16 = 0x1000;

fn hardware_of(station: u16) -> EthernetAddress {
    let [high, low] = station.to_be_bytes();
    EthernetAddress([2, 1, 0, 0, high, low])
}

/// A SYN of one of many stations, or an acknowledgment.
fn of_station(number: u16, sequence: i32, acknowledged: Option<TcpSeqNumber>) -> Vec<u8> {
    let control = if acknowledged.is_none() { TcpControl::Syn } else { TcpControl::None };
    let sequence = TcpSeqNumber(sequence);
    let mut frame = Segment { to: SERVER, from_port: 1, control, sequence, acknowledged, payload: &[] }.frame();
    frame[6..12].copy_from_slice(&hardware_of(number).0);
    frame[28..30].copy_from_slice(&(FIRST_STATION + number).to_be_bytes());
    correct_checksums(&mut frame);
    frame
}

/// A frame of the client as if another station of its network had sent it.
fn spoofed(mut frame: Vec<u8>, from: u8) -> Vec<u8> {
    const LAST_OCTET_OF_SOURCE: usize = 29;
    frame[LAST_OCTET_OF_SOURCE] = from;
    correct_checksums(&mut frame);
    frame
}

#[test]
fn a_silent_peer_with_unacknowledged_data_counts_as_dead() {
    let mut world = world(4);
    let clients = connect(&mut world, 1);
    world.wire.set_faults(Faults { loss_per_mille: 1000, ..Faults::NONE });
    let &connection = world.pending.keys().next().unwrap();
    assert_eq!(world.stack.send(connection, b"is anybody there?"), 17);
    let cut_ns = world.now_ns;
    world.run_until(cut_ns + 100 * SECOND_NS);
    assert_eq!(world.closed, 0, "R2 is at least 100 seconds (RFC 9293 §3.8.3)");
    world.run_until(cut_ns + 130 * SECOND_NS);
    assert_eq!((world.closed, world.stack.connections()), (1, 0));
    assert_eq!(states(&mut world, &clients), [State::Established], "the peer knows nothing of it");
}

/// A station that was stopped, or whose host has slept, finds more than it takes in a turn waiting before it.
fn stand_still(world: &mut World) {
    const WAITING: u64 = 300;
    (0..WAITING).for_each(|_| world.wire.server.inject(vec![0; 60]));
    // What has left arrives, and the client answers, before anything else happens.
    for _ in 0..100 {
        world.now_ns += SECOND_NS / 1000;
        world.wire.run(world.now_ns);
        world.peer.poll(&mut world.wire.client, world.now_ns);
    }
    world.now_ns += 1000 * SECOND_NS;
    let before = world.stack.frames_received();
    world.stack.poll(&mut world.wire.server, world.now_ns);
    assert!(world.stack.frames_received() >= before + WAITING, "peers are heard first");
    pass(world, 5);
}

fn pass(world: &mut World, seconds: u64) {
    let end_ns = world.now_ns + seconds * SECOND_NS;
    world.run_until(end_ns);
}

#[test]
fn a_standstill_ends_no_connection() {
    let cut = Faults { loss_per_mille: 1000, ..Faults::NONE };
    // Whether the answer has arrived, and whether the application had closed.
    for (is_answered, is_closed) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut world = world(4);
        let clients = connect(&mut world, 1);
        let &connection = world.pending.keys().next().unwrap();
        let say = |world: &mut World, faults| {
            world.wire.set_faults(faults);
            assert_eq!(world.stack.send(connection, b"hello"), 5);
            if is_closed {
                world.pending.clear();
                world.stack.close(connection, world.now_ns);
            }
            world.stack.flush(&mut world.wire.server, world.now_ns);
            world.wire.run(world.now_ns);
        };
        say(&mut world, if is_answered { Faults::NONE } else { cut });
        world.wire.set_faults(Faults::NONE);
        stand_still(&mut world);
        let mut heard = [0; 100];
        let state = if is_closed { State::CloseWait } else { State::Established };
        assert_eq!(states(&mut world, &clients), [state], "{is_answered} {is_closed}");
        assert_eq!(world.peer.socket(clients[0].handle).recv_slice(&mut heard), Ok(5));
        assert_eq!((world.closed, world.stack.connections()), (0, 1));
        if !is_closed {
            // Nor does it seem that the peer takes long to answer.
            say(&mut world, cut);
            world.wire.set_faults(Faults::NONE);
            pass(&mut world, 1);
            assert_eq!(world.peer.socket(clients[0].handle).recv_slice(&mut heard), Ok(5));
            // And who is dead is found to be dead all the same.
            say(&mut world, cut);
            pass(&mut world, 130);
            assert_eq!((world.closed, world.stack.connections()), (1, 0));
        }
    }
}

/// The same in the middle of a handshake.
#[test]
fn a_standstill_ends_no_handshake() {
    let mut world = world(4);
    let client = Client::open(&mut world, vec![]);
    while world.stack.connections() == 0 {
        world.step();
    }
    stand_still(&mut world);
    assert_eq!((world.accepted, world.closed), (1, 0));
    assert_eq!(states(&mut world, &[client]), [State::Established]);
}

#[test]
fn an_idle_peer_is_probed_and_dropped_only_if_it_is_dead() {
    let mut world = world(4);
    connect(&mut world, 1);
    let interval_ns = u64::from(KEEPALIVE_S) * SECOND_NS;
    world.run_until(10 * interval_ns);
    assert_eq!((world.closed, world.stack.connections()), (0, 1), "a living peer answers probes");
    world.wire.set_faults(Faults { loss_per_mille: 1000, ..Faults::NONE });
    let cut_ns = world.now_ns;
    // It was heard of last up to an interval ago, so that the first probe is lost within the next one.
    world.run_until(cut_ns + interval_ns + SECOND_NS);
    assert_eq!(world.closed, 0, "one lost probe is no proof");
    world.run_until(cut_ns + 4 * interval_ns);
    assert_eq!((world.closed, world.stack.connections()), (1, 0));
}

#[test]
fn what_is_not_read_waits_at_the_sender() {
    let mut world = world(4);
    let mut clients = connect(&mut world, 1);
    let client = &mut clients[0];
    client.data = (0..100_000u32).map(|n| n as u8).collect();
    let &connection = world.pending.keys().next().unwrap();
    world.pending.get_mut(&connection).unwrap().paused = true;
    let pause_end_ns = world.now_ns + 100 * SECOND_NS;
    while world.now_ns < pause_end_ns {
        world.step();
        assert!(!client.step(&mut world));
    }
    assert!(client.sent < 20_000, "{} bytes have gone somewhere", client.sent);
    assert_eq!(client.received, 0);
    world.pending.get_mut(&connection).unwrap().paused = false;
    world.read(connection);
    while !client.step(&mut world) {
        world.step();
    }
    assert_eq!(client.received, client.data.len());
}

#[test]
fn a_closed_connection_ends_even_if_the_peer_goes_on() {
    let mut world = world(4);
    let clients = connect(&mut world, 1);
    let &connection = world.pending.keys().next().unwrap();
    world.pending.clear();
    world.stack.close(connection, world.now_ns);
    let closed_ns = world.now_ns;
    while world.stack.connections() > 0 {
        world.peer.socket(clients[0].handle).send_slice(b"and another thing").unwrap_or(0);
        let next_ns = world.now_ns + SECOND_NS / 10;
        world.run_until(next_ns);
        assert!(world.now_ns < closed_ns + 70 * SECOND_NS, "it lingers");
    }
    assert_eq!(world.stack.buffer_bytes(), 0);
}

#[test]
fn an_aborted_connection_is_reset() {
    let mut world = world(4);
    let clients = connect(&mut world, 1);
    let &connection = world.pending.keys().next().unwrap();
    world.pending.clear();
    world.stack.abort(connection);
    let end_ns = world.now_ns + SECOND_NS;
    world.run_until(end_ns);
    assert_eq!(states(&mut world, &clients), [State::Closed]);
    assert_eq!(world.stack.connections(), 0);
    // Its id means nothing any more.
    assert_eq!(world.stack.send(connection, b"x"), 0);
    assert_eq!(world.stack.readable(connection), b"");
}

#[test]
fn an_idle_stack_wants_no_turn() {
    let mut world = world(4);
    assert!(world.stack.next_event().is_some(), "its address");
    world.run_until(SECOND_NS);
    assert_eq!(world.stack.next_deadline_ns(), None);
    connect(&mut world, 1);
    world.run_until(20 * SECOND_NS);
    let deadline_ns = world.stack.next_deadline_ns().unwrap();
    assert!(deadline_ns > world.now_ns + SECOND_NS, "no sooner than the keepalive");
}

/// Of a stack for one client.
fn config(address: Ipv4Addr, gateway: Option<Ipv4Addr>) -> Config {
    Config {
        addressing: Addressing::Static { address, prefix_bits: 24, gateway },
        addressing6: Addressing6::Off,
        limits: Limits::for_memory(1 << 20, 1),
        keepalive_s: 0,
        seed: 1,
    }
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    let mut wire = Wire::new(Faults::NONE, 1);
    for (address, gateway) in [
        (Ipv4Addr::UNSPECIFIED, None),
        (Ipv4Addr::BROADCAST, None),
        (Ipv4Addr::new(224, 0, 0, 1), None),
        (SERVER, Some(Ipv4Addr::new(239, 1, 2, 3))),
    ] {
        assert!(Stack::new(config(address, gateway), &mut wire.server, 0).is_err(), "{address} {gateway:?}");
    }
}

/// Sends each datagram back with its port before it.
struct EchoPort;

impl Take for EchoPort {
    fn take(&mut self, _: ConnectionId, _: &[u8]) -> usize {
        0
    }

    fn datagram(&mut self, port: u16, remote: SocketAddr, bytes: &[u8], reply: &mut [u8]) -> Option<usize> {
        assert_eq!(remote.ip(), CLIENT);
        reply[..2].copy_from_slice(&port.to_be_bytes());
        reply.get_mut(2..2 + bytes.len())?.copy_from_slice(bytes);
        Some(2 + bytes.len())
    }
}

/// RFC 768.
#[test]
fn datagrams_for_a_service_are_answered_to_where_they_came_from() {
    let mut wire = Wire::new(Faults::NONE, 1);
    let mut stack = Stack::new(config(SERVER, None), &mut wire.server, 0).unwrap();
    stack.serve_datagrams(7);
    let mut answers = |frame: Vec<u8>| {
        wire.server.inject(frame);
        stack.poll_with(&mut wire.server, &mut EchoPort, 0);
        stack.flush(&mut wire.server, 0);
        let udp = |frame: &Vec<u8>| frame[23] == 17;
        (wire.server.drain_sent().filter(udp).collect::<Vec<_>>(), stack.figures())
    };
    for len in [0, 1, 2, 1000, 1470] {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let (sent, _) = answers(datagram(SERVER, 5000, 7, &data));
        let expected = [&[0, 7], &data[..]].concat();
        let ip = Ipv4Packet::new_checked(&sent[0][14..]).unwrap();
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        assert!(ip.verify_checksum() && udp.verify_checksum(&SERVER.into(), &CLIENT.into()));
        assert_eq!((ip.dst_addr(), udp.src_port(), udp.dst_port()), (CLIENT, 7, 5000));
        assert_eq!((udp.payload(), sent.len()), (&expected[..], 1));
    }
    assert!(answers(datagram(SERVER, 5000, 7, &[0; 1471])).0.is_empty(), "the answer has no room");
    assert!(answers(datagram(SERVER, 5000, 8, b"x")).0.is_empty(), "there is no such service");
    let mut damaged = datagram(SERVER, 5000, 7, b"damaged");
    damaged[44] ^= 1;
    let (sent, figures) = answers(damaged);
    assert_eq!((sent.len(), figures.dropped_checksum), (0, 1));
    let mut without_checksum = datagram(SERVER, 5000, 7, b"none");
    without_checksum[40..42].fill(0);
    assert_eq!(answers(without_checksum).0.len(), 1);
    for len in [0u16, 7, 13, 2000] {
        let mut lying = datagram(SERVER, 5000, 7, b"data");
        lying[38..40].copy_from_slice(&len.to_be_bytes());
        assert!(answers(lying).0.is_empty(), "a length of {len}");
    }
}

/// RFC 1122 §3.2.2.1, RFC 1812 §4.3.2.8.
#[test]
fn whoever_asks_for_what_nobody_serves_is_told_so_up_to_a_limit() {
    let mut wire = Wire::new(Faults::NONE, 1);
    let mut stack = Stack::new(config(SERVER, None), &mut wire.server, 0).unwrap();
    let mut answers = |frame: Vec<u8>, now_ns| {
        wire.server.inject(frame);
        stack.poll(&mut wire.server, now_ns);
        let icmp = |frame: &Vec<u8>| frame[23] == 1;
        (wire.server.drain_sent().filter(icmp).collect::<Vec<_>>(), stack.figures().dropped_rate_limit)
    };
    let closed = datagram(SERVER, 5000, 8, &[7; 1000]);
    // Nothing here speaks what a GRE packet carries.
    let mut unserved = closed.clone();
    unserved[23] = 47;
    correct_checksums(&mut unserved);
    for (frame, expected) in
        [(&closed, Icmpv4DstUnreachable::PortUnreachable), (&unserved, Icmpv4DstUnreachable::ProtoUnreachable)]
    {
        let (sent, _) = answers(frame.clone(), 0);
        assert_eq!((sent.len(), sent[0].len()), (1, 14 + 576));
        let ip = Ipv4Packet::new_checked(&sent[0][14..]).unwrap();
        assert!(ip.verify_checksum());
        assert_eq!((ip.src_addr(), ip.dst_addr()), (SERVER, CLIENT));
        let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
        assert!(icmp.verify_checksum());
        assert_eq!((Icmpv4DstUnreachable::from(icmp.msg_code()), icmp.data()), (expected, &frame[14..][..576 - 28]));
    }
    // A broadcast is not answered with an error, whatever address is in it (RFC 1122 §3.2.2), nor is one's own packet.
    let mut broadcast = closed.clone();
    broadcast[..6].fill(0xff);
    let mut reflected = closed.clone();
    reflected.copy_within(30..34, 26);
    correct_checksums(&mut reflected);
    for frame in [broadcast, reflected, datagram(SERVER, 67, 68, b"no DHCP here")] {
        assert!(answers(frame, 0).0.is_empty());
    }
    let mut flood = |now_ns| (0..5000).filter(|_| !answers(closed.clone(), now_ns).0.is_empty()).count();
    assert_eq!((flood(0), flood(SECOND_NS / 10)), (998, 100));
    assert_eq!(answers(unserved, SECOND_NS / 10), (Vec::new(), 5000 - 998 + 5000 - 100 + 1));
}

#[test]
fn echo_requests_are_answered_and_nothing_else_is() {
    let mut wire = Wire::new(Faults::NONE, 1);
    let mut stack = Stack::new(config(SERVER, None), &mut wire.server, 0).unwrap();
    let mut replies = |frame: Vec<u8>| {
        wire.server.inject(frame);
        stack.poll(&mut wire.server, 0);
        assert_eq!(stack.next_event().filter(|event| !matches!(event, Event::AddressAcquired(_))), None);
        stack.flush(&mut wire.server, 0);
        wire.server.drain_sent().collect::<Vec<_>>()
    };
    // RFC 5227 §2.3: a new address is announced.
    assert_eq!(replies(Vec::new()).len(), 1);
    assert_eq!(replies(arp_request(SERVER)).len(), 1, "who has SERVER?");
    let reply = &replies(echo_request(SERVER))[0];
    let ip = Ipv4Packet::new_checked(EthernetFrame::new_checked(reply).unwrap().payload()).unwrap();
    assert_eq!((ip.src_addr(), ip.dst_addr()), (SERVER, CLIENT));
    let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
    let repr = Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()).unwrap();
    assert_eq!(repr, Icmpv4Repr::EchoReply { ident: 7, seq_no: 9, data: b"ping" });
    assert!(replies(echo_request(Ipv4Addr::new(192, 0, 2, 99))).is_empty(), "another host's");
    // A reset must never be answered with a reset (RFC 9293 §3.5.2).
    assert!(replies(segment(1, TcpControl::Rst, None)).is_empty());
    let reset = &replies(segment(1, TcpControl::None, Some(TcpSeqNumber(77))))[0];
    let ip = Ipv4Packet::new_checked(EthernetFrame::new_checked(reset).unwrap().payload()).unwrap();
    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
    assert!(tcp.rst() && tcp.seq_number() == TcpSeqNumber(77));
}

fn segment(from_port: u16, control: TcpControl, acknowledged: Option<TcpSeqNumber>) -> Vec<u8> {
    let (sequence, payload) = (TcpSeqNumber(1000), &[][..]);
    Segment { to: SERVER, from_port, control, sequence, acknowledged, payload }.frame()
}
