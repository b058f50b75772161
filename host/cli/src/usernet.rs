//! Carries the connections to this host's port on to a guest without any rights: the other end of the guest's wire is a
//! TCP/IP stack in this process, and every connection to the port becomes one of that stack's to the guest.
//!
//! QEMU's own network stack is no substitute. Its forwarder listens with a queue of one connection, so of fifty that come
//! at once most have their handshakes dropped and wait for retransmissions, for many seconds.

use crate::{
    carry::{CHUNK_BYTES, Direction, Readiness, Side, SocketSide, Turn, carry_both},
    listen::Listeners,
    proxy::Settings,
    wire::Wire,
};
use anyhow::{Context, Result, bail};
use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Limits, Stack};
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    io::{self, ErrorKind},
    net::{Ipv4Addr, TcpListener},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// The ends of the wire. Nobody else is on it, so it does not matter where else these addresses are in use.
pub const HOST: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
/// The guest's end.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 2);
/// Length of their common prefix.
pub const PREFIX_BITS: u8 = 30;
/// The guest's Ethernet address.
pub const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x6b, 0, 0];
const HOST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x6b, 0xff, 0xff];

const EVENTS_PER_TURN: usize = 1024;
/// Most bytes in the buffers of all connections to the guest.
const BUFFER_BYTES: usize = 256 << 20;

/// The host's half of the network.
pub struct Usernet {
    poll: Poll,
    settings: Settings,
    wire: Wire,
    stack: Stack,
    listeners: Listeners,
    /// By the numbers that their connections have in the stack.
    clients: Vec<Option<Client>>,
    open: usize,
    /// Clients that may have something to carry.
    active: Vec<usize>,
    chunk: Box<[u8]>,
    started: Instant,
}

struct Client {
    socket: SocketSide,
    /// What is known of the connection to the guest.
    guest: Readiness,
    upstream: Direction,
    downstream: Direction,
}

/// The guest's side of a connection.
struct GuestSide<'a> {
    stack: &'a mut Stack,
    connection: ConnectionId,
    readiness: &'a mut Readiness,
}

impl Usernet {
    /// Takes listening sockets over; returns QEMU's end of the wire as well.
    pub fn new(listeners: Vec<TcpListener>, settings: Settings) -> Result<(Usernet, UnixStream)> {
        if !settings.guest.is_ipv4() {
            bail!("a guest has an IPv4 address");
        }
        let poll = Poll::new()?;
        let (mut wire, qemu) = Wire::new(HOST_MAC).context("making the guest's wire")?;
        let listeners = Listeners::new(listeners, settings.keepalive, poll.registry())?;
        let token = Token(listeners.tokens());
        poll.registry().register(wire.socket(), token, Interest::READABLE | Interest::WRITABLE)?;
        let config = Config {
            addressing: Addressing::Static { address: HOST, prefix_bits: PREFIX_BITS, gateway: None },
            addressing6: Addressing6::Off,
            // As many again may be on their way out, when their clients have gone already.
            limits: Limits { connections: 2 * settings.max_connections, buffer_bytes: BUFFER_BYTES },
            // The host's end is alive as long as this process is.
            keepalive_s: 0,
            seed: RandomState::new().hash_one(0),
        };
        let stack = Stack::new(config, &mut wire, 0)?;
        let usernet = Usernet {
            poll,
            settings,
            wire,
            stack,
            listeners,
            clients: Vec::new(),
            open: 0,
            active: Vec::new(),
            chunk: vec![0; CHUNK_BYTES].into(),
            started: Instant::now(),
        };
        Ok((usernet, qemu))
    }

    /// Carries connections until the system fails it.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            self.turn(&events);
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// How long to wait for events.
    fn timeout(&mut self) -> Option<Duration> {
        if !self.active.is_empty() || self.wire.has_frames() {
            Some(Duration::ZERO)
        } else if self.wire.is_full() {
            // Nothing else can be done for the stack before QEMU has read.
            None
        } else {
            let due_ns = self.stack.next_deadline_ns()?;
            Some(Duration::from_nanos(due_ns.saturating_sub(self.now_ns())))
        }
    }

    fn turn(&mut self, events: &Events) {
        let wire = self.listeners.tokens();
        for event in events {
            match event.token().0 {
                listener if listener < wire => self.listeners.note(listener),
                token if token == wire => self.wire.note(event.is_readable(), event.is_writable()),
                token => {
                    let number = token - wire - 1;
                    if let Some(Some(client)) = self.clients.get_mut(number) {
                        client.socket.note(event);
                        self.active.push(number);
                    }
                }
            }
        }
        let now_ns = self.now_ns();
        self.stack.poll(&mut self.wire, now_ns);
        while let Some(event) = self.stack.next_event() {
            self.note(event);
        }
        for number in std::mem::take(&mut self.active) {
            self.carry(number, now_ns);
        }
        while self.open < self.settings.max_connections
            && let Some((client, listener)) = self.listeners.accept()
        {
            self.connect(client, listener, now_ns);
        }
        self.stack.flush(&mut self.wire, now_ns);
    }

    /// Notes what the stack says of a connection to the guest.
    fn note(&mut self, event: Event) {
        let (Event::Readable(connection)
        | Event::Writable(connection)
        | Event::EndOfStream(connection)
        | Event::Closed(connection)) = event
        else {
            return;
        };
        let number = connection.0 as usize;
        let Some(Some(client)) = self.clients.get_mut(number) else { return };
        match event {
            Event::Writable(_) => client.guest.writable = true,
            Event::EndOfStream(_) => (client.guest.readable, client.guest.ended) = (true, true),
            Event::Closed(_) => {
                client.socket.break_off();
                return self.forget(number);
            }
            _ => client.guest.readable = true,
        }
        self.active.push(number);
    }

    fn connect(&mut self, mut client: TcpStream, listener: usize, now_ns: u64) {
        let guest = self.settings.guest_of(listener);
        let Some(connection) = self.stack.connect(guest, now_ns) else {
            // No room for it.
            return SocketSide::new(client).break_off();
        };
        let number = connection.0 as usize;
        let token = Token(self.listeners.tokens() + 1 + number);
        if self.poll.registry().register(&mut client, token, Interest::READABLE | Interest::WRITABLE).is_err() {
            return self.stack.abort(connection);
        }
        if self.clients.len() <= number {
            self.clients.resize_with(number + 1, || None);
        }
        // The first bytes are offered at once; the stack says when it can take them.
        let guest = Readiness { readable: false, writable: true, ended: false };
        let (upstream, downstream) = (Direction::default(), Direction::default());
        self.clients[number] = Some(Client { socket: SocketSide::new(client), guest, upstream, downstream });
        self.open += 1;
    }

    /// Carries what it can on one connection.
    fn carry(&mut self, number: usize, now_ns: u64) {
        let Some(Some(client)) = self.clients.get_mut(number) else { return };
        let connection = ConnectionId(number as u32);
        let mut guest = GuestSide { stack: &mut self.stack, connection, readiness: &mut client.guest };
        let Client { socket, upstream, downstream, .. } = client;
        match carry_both(socket, &mut guest, upstream, downstream, &mut self.chunk) {
            Ok(Turn::Waiting) => return,
            Ok(Turn::MoreToDo) => return self.active.push(number),
            Ok(Turn::Ended) => self.stack.close(connection, now_ns),
            Err(_) => {
                socket.break_off();
                self.stack.abort(connection);
            }
        }
        self.forget(number);
    }

    fn forget(&mut self, number: usize) {
        self.clients[number] = None;
        self.open -= 1;
    }
}

impl Side for GuestSide<'_> {
    fn readiness(&self) -> Readiness {
        *self.readiness
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<Option<usize>> {
        let bytes = self.stack.readable(self.connection);
        let len = bytes.len().min(chunk.len());
        chunk[..len].copy_from_slice(&bytes[..len]);
        if len == 0 {
            self.readiness.readable = false;
            return Ok(self.readiness.ended.then_some(0));
        }
        self.stack.consume(self.connection, len);
        Ok(Some(len))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let sent = self.stack.send(self.connection, bytes);
        // A short count means that the stack says when there is room again.
        self.readiness.writable = sent == bytes.len();
        Ok(Some(sent).filter(|&sent| sent > 0))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stack.finish(self.connection);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proxy::tests::{comes_back, pattern},
        wire::Wire,
    };
    use std::net::SocketAddr;
    use std::{
        io::{Read, Write},
        net::{Shutdown, TcpStream as StdStream},
        thread,
    };

    const PORT: u16 = 6379;
    const MANY_CLIENTS: usize = 250;

    /// Starts a host and a guest that sends back what it receives; returns the host's address.
    fn host_and_guest(max_connections: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings {
            guest: SocketAddr::new(GUEST.into(), PORT),
            interface: None,
            web: None,
            max_connections,
            keepalive: None,
        };
        let (usernet, guest) = Usernet::new(vec![listener], settings).unwrap();
        thread::spawn(move || usernet.run());
        thread::spawn(move || echo(Wire::over(GUEST_MAC, guest).unwrap()));
        address
    }

    /// A guest whose store is an echo, which resets the connection of whoever says so.
    fn echo(mut wire: Wire) {
        let addressing = Addressing::Static { address: GUEST, prefix_bits: PREFIX_BITS, gateway: Some(HOST) };
        let limits = Limits { connections: 2 * MANY_CLIENTS, buffer_bytes: 64 << 20 };
        let mut stack = Stack::new(
            Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 0, seed: 1 },
            &mut wire,
            0,
        )
        .unwrap();
        stack.listen(PORT);
        let mut poll = Poll::new().unwrap();
        poll.registry().register(wire.socket(), Token(0), Interest::READABLE | Interest::WRITABLE).unwrap();
        let (mut events, started) = (Events::with_capacity(8), Instant::now());
        let mut ended = std::collections::HashSet::new();
        loop {
            let now_ns = started.elapsed().as_nanos() as u64;
            let due = stack.next_deadline_ns().map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)));
            poll.poll(&mut events, if wire.has_frames() { Some(Duration::ZERO) } else { due }).unwrap();
            for event in &events {
                wire.note(event.is_readable(), event.is_writable());
            }
            stack.poll(&mut wire, now_ns);
            while let Some(event) = stack.next_event() {
                let connection = match event {
                    Event::Readable(connection) | Event::Writable(connection) => connection,
                    Event::EndOfStream(connection) => {
                        ended.insert(connection);
                        connection
                    }
                    _ => continue,
                };
                loop {
                    let bytes = stack.readable(connection).to_vec();
                    if bytes.starts_with(b"reset") {
                        stack.abort(connection);
                    }
                    let sent = stack.send(connection, &bytes);
                    stack.consume(connection, sent);
                    if sent == 0 {
                        break;
                    }
                }
                if ended.contains(&connection) && stack.readable(connection).is_empty() {
                    ended.remove(&connection);
                    stack.close(connection, now_ns);
                }
            }
            stack.flush(&mut wire, now_ns);
        }
    }

    #[test]
    fn carries_much_and_then_the_end() {
        comes_back(StdStream::connect(host_and_guest(8)).unwrap(), pattern(20 << 20));
    }

    #[test]
    fn many_clients_are_served_at_once_and_again() {
        let address = host_and_guest(MANY_CLIENTS);
        for round in 0..3u8 {
            let mut clients: Vec<_> = (0..MANY_CLIENTS).map(|_| StdStream::connect(address).unwrap()).collect();
            for client in &mut clients {
                client.write_all(&[round; 100]).unwrap();
            }
            for client in &mut clients {
                let mut reply = [0xff; 100];
                client.read_exact(&mut reply).unwrap();
                assert_eq!(reply, [round; 100]);
            }
        }
    }

    #[test]
    fn a_reset_by_the_guest_is_passed_on_and_its_number_used_again() {
        let address = host_and_guest(8);
        for _ in 0..20 {
            let mut client = StdStream::connect(address).unwrap();
            client.write_all(b"reset").unwrap();
            assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            let mut client = StdStream::connect(address).unwrap();
            client.write_all(b"still there").unwrap();
            let mut reply = [0; 11];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"still there");
        }
    }

    /// Most of these have ended before the guest has answered.
    #[test]
    fn clients_that_end_at_once_are_carried_to_their_ends() {
        let address = host_and_guest(8);
        for _ in 0..100 {
            drop(StdStream::connect(address).unwrap());
            let mut client = StdStream::connect(address).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        }
        comes_back(StdStream::connect(address).unwrap(), pattern(1000));
    }

    #[test]
    fn a_client_that_does_not_read_stops_only_itself() {
        let address = host_and_guest(8);
        let mut stuck = StdStream::connect(address).unwrap();
        stuck.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut filled = 0;
        // Until every buffer on the way and back is full for a while.
        while let Ok(len) = stuck.write(&[7; CHUNK_BYTES]) {
            filled += len;
        }
        let mut other = StdStream::connect(address).unwrap();
        other.write_all(b"still served").unwrap();
        other.read_exact(&mut [0; 12]).unwrap();
        // It gets everything once it reads.
        stuck.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stuck.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), filled);
    }
}
