//! Connections that the stack opens itself, against another instance of it that serves, in simulated time.

use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Limits, Stack, Take};
use kayvee_testing::{
    network::{
        SeedReport, seeds,
        wire::{End, Faults, Offload, Wire},
    },
    random::Random,
};
use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 6379;
const SECOND_NS: u64 = 1_000_000_000;
/// Handshakes are over so soon where nothing is lost: a wire that loses much might leave one without an answer for the
/// twenty seconds that it has.
const HANDSHAKES_NS: u64 = 160_000;

fn stack(address: Ipv4Addr, device: &mut End, connections: usize, seed: u64) -> Stack {
    let addressing = Addressing::Static { address, prefix_bits: 24, gateway: None };
    let limits = Limits { connections, buffer_bytes: connections * (8 << 10) };
    Stack::new(Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 0, seed }, device, 0).unwrap()
}

/// What one connection is to send, and what it has received.
#[derive(Default)]
struct Exchange {
    outgoing: Vec<u8>,
    received: Vec<u8>,
    peer_ended: bool,
    finished: bool,
}

/// A stack with its connections.
struct Host {
    stack: Stack,
    exchanges: HashMap<ConnectionId, Exchange>,
    closed: usize,
}

/// Takes what it likes of data where it arrives.
struct TakeSome<'a>(&'a mut HashMap<ConnectionId, Exchange>);

impl Take for TakeSome<'_> {
    fn take(&mut self, connection: ConnectionId, bytes: &[u8]) -> usize {
        let Some(exchange) = self.0.get_mut(&connection) else { return 0 };
        // All of it, a part, or nothing, by what it is.
        let taken = bytes.len() * usize::from(bytes[0] % 5).min(4) / 4;
        exchange.received.extend_from_slice(&bytes[..taken]);
        taken
    }
}

impl Host {
    fn new(stack: Stack) -> Host {
        Host { stack, exchanges: HashMap::new(), closed: 0 }
    }

    /// One turn; `act` does with an exchange what its application does, and tells when it may finish.
    fn turn(&mut self, device: &mut End, now_ns: u64, act: impl Fn(&mut Exchange) -> bool) {
        self.stack.poll_with(device, &mut TakeSome(&mut self.exchanges), now_ns);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Accepted { connection, .. } => {
                    assert!(self.exchanges.insert(connection, Exchange::default()).is_none())
                }
                Event::Readable(connection) => {
                    let exchange = self.exchanges.get_mut(&connection).unwrap();
                    while let Some(len) = Some(self.stack.readable(connection).len()).filter(|&len| len > 0) {
                        exchange.received.extend_from_slice(self.stack.readable(connection));
                        self.stack.consume(connection, len);
                    }
                }
                Event::EndOfStream(connection) => self.exchanges.get_mut(&connection).unwrap().peer_ended = true,
                Event::Closed(connection) => {
                    assert!(self.exchanges.remove(&connection).is_some());
                    self.closed += 1;
                }
                Event::Writable(_) | Event::AddressAcquired(_) | Event::Address6Acquired { .. } => {}
                Event::AddressLost | Event::Address6Lost(_) => unreachable!("addresses are fixed"),
            }
        }
        for (&connection, exchange) in &mut self.exchanges {
            let may_finish = act(exchange);
            let sent = self.stack.send(connection, &exchange.outgoing);
            exchange.outgoing.drain(..sent);
            if may_finish && exchange.outgoing.is_empty() && !exchange.finished {
                exchange.finished = true;
                self.stack.finish(connection);
            }
        }
        self.stack.flush(device, now_ns);
    }
}

/// Every client sends, ends its half at once, and reads what the server sends back behind that.
fn exchange(faults: Faults, clients: usize, max_bytes: usize, seed: u64) {
    let _report = SeedReport(seed);
    let mut rng = Random::new(seed);
    let mut wire = Wire::new(Faults::NONE, seed);
    let offload = [Offload::None, Offload::Divide, Offload::Merge][rng.below(3)];
    wire.server.set_offload(offload);
    wire.client.set_offload(offload);
    let mut server = Host::new(stack(SERVER, &mut wire.server, clients, seed));
    let mut client = Host::new(stack(CLIENT, &mut wire.client, clients, !seed));
    server.stack.listen(PORT);
    let mut sent = HashMap::new();
    for _ in 0..clients {
        let connection = client.stack.connect(SocketAddr::new(SERVER.into(), PORT), 0).expect("there is room");
        let len = 1 + rng.below(max_bytes);
        let bytes = rng.bytes(len);
        client.exchanges.insert(connection, Exchange { outgoing: bytes.clone(), ..Exchange::default() });
        assert!(sent.insert(connection, bytes).is_none());
    }
    assert_eq!(client.stack.connect(SocketAddr::new(SERVER.into(), PORT), 0), None, "a connection beyond the limit");

    let mut now_ns = 0;
    while !client.exchanges.values().all(|exchange| exchange.peer_ended) {
        assert!(now_ns < 3600 * SECOND_NS, "the clients are not done after an hour");
        wire.run(now_ns);
        // The server answers when it has everything, which it only has behind the client's end.
        server.turn(&mut wire.server, now_ns, |exchange| {
            if exchange.peer_ended {
                exchange.outgoing.append(&mut exchange.received);
            }
            exchange.peer_ended
        });
        client.turn(&mut wire.client, now_ns, |_| true);
        wire.run(now_ns);
        let deadlines = [wire.next_arrival_ns(), server.stack.next_deadline_ns(), client.stack.next_deadline_ns()];
        now_ns = deadlines.into_iter().flatten().min().unwrap_or(now_ns + SECOND_NS).max(now_ns + 1000);
        if now_ns > HANDSHAKES_NS {
            wire.set_faults(faults);
        }
    }
    assert_eq!((client.closed, client.exchanges.len()), (0, clients));
    for (connection, exchange) in std::mem::take(&mut client.exchanges) {
        assert!(exchange.received == sent[&connection], "bytes came back changed");
        client.stack.close(connection, now_ns);
    }
    for connection in std::mem::take(&mut server.exchanges).into_keys() {
        server.stack.close(connection, now_ns);
    }
    // What is left is TIME-WAIT, and ends on either side of a wire that has gone.
    let end_ns = now_ns + 200 * SECOND_NS;
    while server.stack.connections() + client.stack.connections() > 0 {
        assert!(now_ns < end_ns, "connections never end");
        server.turn(&mut wire.server, now_ns, |_| false);
        client.turn(&mut wire.client, now_ns, |_| false);
        wire.run(now_ns);
        now_ns += SECOND_NS / 10;
    }
    assert_eq!((server.stack.buffer_bytes(), client.stack.buffer_bytes()), (0, 0), "buffers leak");
}

#[test]
fn what_is_sent_comes_back_behind_the_end() {
    for seed in seeds(5) {
        exchange(Faults::NONE, 20, 100_000, seed);
    }
}

#[test]
fn what_is_sent_comes_back_over_a_bad_wire() {
    for seed in seeds(5) {
        exchange(Faults::SEVERE, 10, 20_000, seed);
    }
}

/// One frame in five is lost, and the windows are of one segment.
#[test]
fn what_is_sent_comes_back_over_a_terrible_wire() {
    let terrible = Faults { loss_per_mille: 200, max_delay_ns: 50_000_000, ..Faults::SEVERE };
    for seed in seeds(5) {
        exchange(terrible, 4, 100_000, seed);
        exchange(terrible, 40, 5_000, seed);
    }
}

/// The canary: a fault that no checksum shows has to be found.
#[test]
#[should_panic(expected = "bytes came back changed")]
fn a_forged_byte_is_found() {
    exchange(Faults { forgery_per_mille: 100, ..Faults::NONE }, 5, 50_000, 1);
}

/// Turns both hosts until `done`, or for so long that every timeout has passed.
fn run(wire: &mut Wire, client: &mut Host, mut server: Option<&mut Host>, done: impl Fn(&Host) -> bool) {
    let mut now_ns = 0;
    while !done(client) {
        assert!(now_ns < 3600 * SECOND_NS, "it did not happen within an hour");
        wire.run(now_ns);
        if let Some(server) = server.as_mut() {
            server.turn(&mut wire.server, now_ns, |_| false);
        }
        client.turn(&mut wire.client, now_ns, |_| false);
        let deadlines = [wire.next_arrival_ns(), client.stack.next_deadline_ns()];
        now_ns = deadlines.into_iter().flatten().min().unwrap_or(now_ns).max(now_ns + 1000);
    }
}

#[test]
fn a_connection_that_is_refused_or_not_answered_is_closed() {
    for server_is_there in [true, false] {
        let mut wire = Wire::new(Faults::NONE, 1);
        let mut server = Host::new(stack(SERVER, &mut wire.server, 4, 1));
        let mut client = Host::new(stack(CLIENT, &mut wire.client, 4, 2));
        let connection = client.stack.connect(SocketAddr::new(SERVER.into(), PORT), 0).unwrap();
        client.exchanges.insert(connection, Exchange { outgoing: b"x".to_vec(), ..Exchange::default() });
        // Nobody listens on the port.
        run(&mut wire, &mut client, server_is_there.then_some(&mut server), |client| client.closed == 1);
        assert_eq!(client.stack.connections(), 0, "server there: {server_is_there}");
    }
}

#[test]
fn what_is_no_host_is_not_connected_to() {
    let mut wire = Wire::new(Faults::NONE, 1);
    let mut stack = stack(CLIENT, &mut wire.client, 4, 1);
    for (address, port) in [(Ipv4Addr::UNSPECIFIED, PORT), (Ipv4Addr::BROADCAST, PORT), (SERVER, 0)] {
        assert_eq!(stack.connect(SocketAddr::new(address.into(), port), 0), None);
    }
}
