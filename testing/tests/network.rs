//! The TCP/IP stack against another one, over wires with every fault there is, in simulated time.

use kayvee_net::{Addressing, Config, ConnectionId, Event, Limits, Stack};
use kayvee_testing::{
    network::{
        SeedReport,
        peer::Peer,
        seeds,
        wire::{Faults, Wire},
    },
    random::Random,
};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use std::{collections::HashMap, net::Ipv4Addr};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 6379;
/// A run that takes more turns than this spins.
const MAX_STEPS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A stack whose application echoes, a wire, and a host of clients.
struct World {
    now_ns: u64,
    wire: Wire,
    stack: Stack,
    peer: Peer,
    /// What each connection has read and not sent back.
    pending: HashMap<ConnectionId, Echo>,
    accepted: usize,
    steps: u64,
}

#[derive(Default)]
struct Echo {
    bytes: Vec<u8>,
    ended: bool,
}

impl World {
    fn new(faults: Faults, limits: Limits, seed: u64) -> World {
        let mut wire = Wire::new(faults, seed);
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let config = Config { addressing, limits, keepalive_s: 300, seed };
        let mut stack = Stack::new(config, &mut wire.server, 0).unwrap();
        stack.listen(PORT);
        let peer = Peer::new(&mut wire.client, CLIENT, 24, seed ^ 0xffff);
        World { now_ns: 0, wire, stack, peer, pending: HashMap::new(), accepted: 0, steps: 0 }
    }

    /// Runs the server's turn, the client's, and the wire, and moves on to when something happens next.
    fn step(&mut self) {
        self.steps += 1;
        self.wire.run(self.now_ns);
        self.serve();
        self.peer.poll(&mut self.wire.client, self.now_ns);
        self.wire.run(self.now_ns);
        let next =
            [self.wire.next_arrival_ns(), self.stack.next_deadline_ns(), self.peer.next_deadline_ns(self.now_ns)];
        let next_ns = next.into_iter().flatten().min().unwrap_or(self.now_ns);
        self.now_ns = next_ns.max(self.now_ns + 1000);
    }

    fn serve(&mut self) {
        self.stack.poll(&mut self.wire.server, self.now_ns);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Accepted { connection, remote, local } => {
                    assert_eq!((*remote.ip(), local.port()), (CLIENT, PORT));
                    let previous = self.pending.insert(connection, Echo::default());
                    assert!(previous.is_none(), "{connection:?} is in use");
                    self.accepted += 1;
                }
                Event::Readable(connection) => loop {
                    let bytes = self.stack.readable(connection);
                    let len = bytes.len();
                    if len == 0 {
                        break;
                    }
                    self.pending.get_mut(&connection).unwrap().bytes.extend_from_slice(bytes);
                    self.stack.consume(connection, len);
                },
                Event::Writable(_) => {}
                Event::EndOfStream(connection) => self.pending.get_mut(&connection).unwrap().ended = true,
                Event::Closed(connection) => assert!(self.pending.remove(&connection).is_some()),
                Event::AddressAcquired(lease) => assert_eq!(lease.address, SERVER),
                Event::AddressLost => unreachable!("the address is fixed"),
            }
        }
        let now_ns = self.now_ns;
        self.pending.retain(|&connection, echo| {
            let sent = self.stack.send(connection, &echo.bytes);
            echo.bytes.drain(..sent);
            let done = echo.ended && echo.bytes.is_empty();
            if done {
                self.stack.close(connection, now_ns);
            }
            !done
        });
        self.stack.flush(&mut self.wire.server, self.now_ns);
    }
}

/// One client: sends `data`, wants it back, and closes.
struct Client {
    handle: SocketHandle,
    data: Vec<u8>,
    sent: usize,
    received: usize,
}

impl Client {
    fn open(world: &mut World, data: Vec<u8>) -> Client {
        Client { handle: world.peer.connect(SERVER, PORT, 4096), data, sent: 0, received: 0 }
    }

    /// Returns whether it has got everything back and its connection has ended.
    fn step(&mut self, world: &mut World) -> bool {
        let socket = world.peer.socket(self.handle);
        if socket.may_send() && self.sent < self.data.len() {
            self.sent += socket.send_slice(&self.data[self.sent..]).unwrap();
            if self.sent == self.data.len() {
                socket.close();
            }
        }
        while socket.can_recv() {
            let received = self.received;
            let len = socket
                .recv(|bytes| {
                    assert_eq!(bytes, &self.data[received..received + bytes.len()], "bytes came back changed");
                    (bytes.len(), bytes.len())
                })
                .unwrap();
            self.received += len;
        }
        matches!(socket.state(), State::Closed | State::TimeWait)
    }
}

fn exchange(faults: Faults, clients: usize, max_bytes: usize, seed: u64) {
    let _report = SeedReport(seed);
    let mut rng = Random::new(seed);
    let mut world = World::new(faults, Limits { connections: clients, buffer_bytes: clients * (8 << 10) }, seed);
    let mut open: Vec<Client> = (0..clients)
        .map(|_| {
            let len = 1 + rng.below(max_bytes);
            Client::open(&mut world, rng.bytes(len))
        })
        .collect();
    while !open.is_empty() {
        assert!(world.now_ns < 3600 * SECOND_NS, "{} clients are not done after an hour", open.len());
        world.step();
        assert!(world.steps < MAX_STEPS, "{} clients are not done after {MAX_STEPS} turns", open.len());
        open.retain_mut(|client| {
            let over = client.step(&mut world);
            if over {
                assert_eq!(client.received, client.data.len(), "the connection ended early");
            }
            !over
        });
    }
    assert_eq!(world.accepted, clients);
    let end_ns = world.now_ns + 300 * SECOND_NS;
    while world.stack.connections() > 0 {
        assert!(world.now_ns < end_ns, "{} connections never end", world.stack.connections());
        world.step();
    }
    assert!(world.pending.is_empty());
}

#[test]
fn every_byte_arrives_over_a_good_wire() {
    for seed in seeds(3) {
        exchange(Faults::NONE, 20, 100_000, seed);
    }
}
