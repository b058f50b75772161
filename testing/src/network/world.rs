//! A stack whose application echoes, a wire, and a host of clients.

use super::{
    peer::Peer,
    wire::{Faults, Wire},
};
use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Limits, Stack};
use smoltcp::{iface::SocketHandle, socket::tcp::State};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The address of the stack.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address of the clients' host.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The same of IPv6.
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// The same of IPv6.
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
/// The port that the stack listens on.
pub const PORT: u16 = 6379;
/// A second of simulated time.
pub const SECOND_NS: u64 = 1_000_000_000;
/// Seconds of silence after which the stack probes.
pub const KEEPALIVE_S: u32 = 300;
/// A run that takes more turns than this spins.
const MAX_STEPS: u64 = 1_000_000;
/// Requests of the clients that wait for each answer: they fit one segment.
const REQUEST_BYTES: usize = 100;

/// How data goes to and fro.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// The server sends back what it gets as it gets it, while the client sends on.
    BothWaysAtOnce,
    /// The server sends everything back after the client has sent everything.
    OneWayThenBack,
    /// The client waits for each request to come back.
    RequestAndReply,
}

/// Which addresses are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The address of the stack.
    pub fn server(self) -> IpAddr {
        match self {
            Family::V4 => SERVER.into(),
            Family::V6 => SERVER6.into(),
        }
    }

    fn client(self) -> (IpAddr, u8) {
        match self {
            Family::V4 => (CLIENT.into(), 24),
            Family::V6 => (CLIENT6.into(), 64),
        }
    }
}

/// Everything there is.
pub struct World {
    /// The time.
    pub now_ns: u64,
    /// The wire between the two.
    pub wire: Wire,
    /// The stack under test.
    pub stack: Stack,
    /// The clients' host.
    pub peer: Peer,
    /// What each connection has read and not sent back.
    pub pending: HashMap<ConnectionId, Echo>,
    /// Connections that were accepted.
    pub accepted: usize,
    /// Connections that were reset or timed out.
    pub closed: usize,
    traffic: Traffic,
    family: Family,
    steps: u64,
}

/// What the application keeps of a connection.
#[derive(Default)]
pub struct Echo {
    /// Bytes to send back.
    pub bytes: Vec<u8>,
    /// The client will send no more.
    pub ended: bool,
    /// Nothing is read for the time being.
    pub paused: bool,
}

impl World {
    /// A world of IPv4 whose faults and data depend on `seed` alone.
    pub fn new(faults: Faults, traffic: Traffic, limits: Limits, seed: u64) -> World {
        World::of(Family::V4, faults, traffic, limits, seed)
    }

    /// The same of either family.
    pub fn of(family: Family, faults: Faults, traffic: Traffic, limits: Limits, seed: u64) -> World {
        World::over(Wire::new(faults, seed), family, traffic, limits, seed)
    }

    /// The same over a wire of the caller's.
    pub fn over(mut wire: Wire, family: Family, traffic: Traffic, limits: Limits, seed: u64) -> World {
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let addressing6 = match family {
            Family::V4 => Addressing6::Off,
            Family::V6 => Addressing6::Static { address: SERVER6, prefix_bits: 64, gateway: None },
        };
        let config = Config { addressing, addressing6, limits, keepalive_s: KEEPALIVE_S, seed };
        let now_ns = if family == Family::V6 { SECOND_NS } else { 0 };
        let mut stack = Stack::new(config, &mut wire.server, 0).unwrap();
        stack.listen(PORT);
        if family == Family::V6 {
            // Nobody objects to its addresses.
            stack.poll(&mut wire.server, 0);
            stack.poll(&mut wire.server, now_ns);
        }
        let (client, prefix_bits) = family.client();
        let peer = Peer::new(&mut wire.client, client, prefix_bits, seed ^ 0xffff);
        let (pending, accepted, closed, steps) = (HashMap::new(), 0, 0, 0);
        World { now_ns, wire, stack, peer, pending, accepted, closed, traffic, family, steps }
    }

    /// Runs the server's turn, the client's, and the wire, and moves on to when something happens next.
    pub fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "not done after {MAX_STEPS} turns");
        self.wire.run(self.now_ns);
        self.serve();
        self.peer.poll(&mut self.wire.client, self.now_ns);
        self.wire.run(self.now_ns);
        let next =
            [self.wire.next_arrival_ns(), self.stack.next_deadline_ns(), self.peer.next_deadline_ns(self.now_ns)];
        let next_ns = next.into_iter().flatten().min().unwrap_or(self.now_ns + SECOND_NS / 10);
        self.now_ns = next_ns.max(self.now_ns + 1000);
    }

    /// Runs until `now_ns`.
    pub fn run_until(&mut self, now_ns: u64) {
        while self.now_ns < now_ns {
            self.step();
        }
    }

    fn serve(&mut self) {
        self.stack.poll(&mut self.wire.server, self.now_ns);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Accepted { connection, remote, local } => {
                    assert_eq!(remote.ip(), self.family.client().0);
                    assert_eq!((local.ip(), local.port()), (self.family.server(), PORT));
                    let previous = self.pending.insert(connection, Echo::default());
                    assert!(previous.is_none(), "{connection:?} is in use");
                    self.accepted += 1;
                }
                Event::Readable(connection) => self.read(connection),
                Event::Writable(_) => {}
                Event::EndOfStream(connection) => self.pending.get_mut(&connection).unwrap().ended = true,
                Event::Closed(connection) => {
                    assert!(self.pending.remove(&connection).is_some());
                    self.closed += 1;
                }
                Event::AddressAcquired(lease) => assert_eq!(lease.address, SERVER),
                Event::Address6Acquired { .. } => {}
                Event::AddressLost | Event::Address6Lost(_) => unreachable!("addresses are fixed"),
            }
        }
        let (now_ns, waits) = (self.now_ns, self.traffic == Traffic::OneWayThenBack);
        self.pending.retain(|&connection, echo| {
            if waits && !echo.ended {
                return true;
            }
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

    /// Reads all there is from a connection, unless that is paused.
    pub fn read(&mut self, connection: ConnectionId) {
        let echo = self.pending.get_mut(&connection).expect("events name connections that are open");
        while !echo.paused {
            let bytes = self.stack.readable(connection);
            let len = bytes.len();
            if len == 0 {
                break;
            }
            echo.bytes.extend_from_slice(bytes);
            self.stack.consume(connection, len);
        }
    }
}

/// One client: sends `data`, wants it back, and closes.
pub struct Client {
    /// Its socket at the peer.
    pub handle: SocketHandle,
    /// What it sends and wants back.
    pub data: Vec<u8>,
    /// How much it has sent.
    pub sent: usize,
    /// How much it has got back.
    pub received: usize,
}

impl Client {
    /// Begins to connect.
    pub fn open(world: &mut World, data: Vec<u8>) -> Client {
        Client::with_buffers(4096, world, data)
    }

    /// The same with buffers of so many bytes for each direction.
    pub fn with_buffers(bytes: usize, world: &mut World, data: Vec<u8>) -> Client {
        Client { handle: world.peer.connect(world.family.server(), PORT, bytes), data, sent: 0, received: 0 }
    }

    /// Sends and receives what it can, and returns whether its connection has ended.
    pub fn step(&mut self, world: &mut World) -> bool {
        let may_send_to = match world.traffic {
            Traffic::RequestAndReply if self.received == self.sent => self.sent + REQUEST_BYTES,
            Traffic::RequestAndReply => self.sent,
            _ => self.data.len(),
        };
        let may_send_to = may_send_to.min(self.data.len());
        let socket = world.peer.socket(self.handle);
        if socket.may_send() && self.sent < may_send_to {
            self.sent += socket.send_slice(&self.data[self.sent..may_send_to]).unwrap();
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
