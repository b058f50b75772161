//! Carries the connections to this host's port on to a guest that the kernel reaches, all in one thread.

use crate::{
    carry::{CHUNK_BYTES, Direction, SocketSide, Turn, carry_both},
    listen::Listeners,
};
use mio::{Events, Interest, Poll, Token, event::Event, net::TcpStream};
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
    time::Duration,
};

const EVENTS_PER_TURN: usize = 1024;

/// What a proxy does, whichever way it reaches the guest.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the guest listens.
    pub guest: SocketAddr,
    /// The only interface by which it may be reached, if one is meant for it: while that is down, routes to other networks lead to
    /// its address, too.
    pub interface: Option<String>,
    /// Its web server, if it has one.
    pub web: Option<WebPort>,
    /// Most connections at a time; more wait in the listeners' queues until one ends.
    pub max_connections: usize,
    /// How long a client may be silent before it is probed; `None` for ever.
    pub keepalive: Option<Duration>,
}

/// A second port, whose listeners come behind those of the first one.
#[derive(Clone, Copy, Debug)]
pub struct WebPort {
    /// The number of its first listener.
    pub first_listener: usize,
    /// The guest's port.
    pub port: u16,
}

impl Settings {
    /// Where in the guest a listener's connections go.
    pub fn guest_of(&self, listener: usize) -> SocketAddr {
        let web = self.web.filter(|web| listener >= web.first_listener);
        web.map_or(self.guest, |web| SocketAddr::new(self.guest.ip(), web.port))
    }

    /// Begins to connect there, by way of the kernel.
    fn connect(&self, listener: usize) -> io::Result<TcpStream> {
        let guest = self.guest_of(listener);
        let Some(interface) = &self.interface else { return TcpStream::connect(guest) };
        let socket = Socket::new(Domain::for_address(guest), Type::STREAM.nonblocking(), None)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        match socket.connect(&guest.into()) {
            Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        Ok(TcpStream::from_std(socket.into()))
    }
}

/// The listeners and the connections.
pub struct Proxy {
    poll: Poll,
    settings: Settings,
    listeners: Listeners,
    /// Indexed by number; the entries in `free` are empty.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that may have more to carry although no event will say so.
    unfinished: Vec<usize>,
    chunk: Box<[u8]>,
}

struct Connection {
    client: SocketSide,
    guest: SocketSide,
    upstream: Direction,
    downstream: Direction,
}

impl Proxy {
    /// Takes listening sockets over.
    pub fn new(listeners: Vec<TcpListener>, settings: Settings) -> io::Result<Proxy> {
        let poll = Poll::new()?;
        let listeners = Listeners::new(listeners, settings.keepalive, poll.registry())?;
        let chunk = vec![0; CHUNK_BYTES].into();
        let (connections, free, unfinished) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Proxy { poll, settings, listeners, connections, free, unfinished, chunk })
    }

    /// Carries connections until the system fails it.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        loop {
            let timeout = (!self.unfinished.is_empty()).then_some(Duration::ZERO);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            let unfinished = std::mem::take(&mut self.unfinished);
            for event in &events {
                match event.token().0.checked_sub(self.listeners.tokens()) {
                    None => self.listeners.note(event.token().0),
                    Some(socket) => self.note(socket, event),
                }
            }
            for number in unfinished {
                self.carry(number);
            }
            while self.connections.len() - self.free.len() < self.settings.max_connections
                && let Some((client, listener)) = self.listeners.accept()
            {
                // A connection that cannot be set up is dropped, which its client sees; the others go on.
                drop(self.connect(client, listener));
            }
        }
    }

    fn connect(&mut self, client: TcpStream, listener: usize) -> io::Result<()> {
        let guest = self.settings.connect(listener)?;
        guest.set_nodelay(true)?;
        let number = self.free.last().copied().unwrap_or(self.connections.len());
        let mut connection = Connection {
            client: SocketSide::new(client),
            guest: SocketSide::new(guest),
            upstream: Direction::default(),
            downstream: Direction::default(),
        };
        for (side, offset) in [(&mut connection.client, 0), (&mut connection.guest, 1)] {
            let token = Token(self.listeners.tokens() + 2 * number + offset);
            self.poll.registry().register(&mut side.socket, token, Interest::READABLE | Interest::WRITABLE)?;
        }
        if self.free.pop().is_none() {
            self.connections.push(None);
        }
        self.connections[number] = Some(connection);
        Ok(())
    }

    /// Notes what an event says of socket `number`: the client's of connection `number / 2`, or the guest's.
    fn note(&mut self, number: usize, event: &Event) {
        // An event of a connection that ended earlier in this turn finds nothing, or its successor, to whom a false
        // report of readiness does no harm.
        let Some(Some(connection)) = self.connections.get_mut(number / 2) else { return };
        let side = if number.is_multiple_of(2) { &mut connection.client } else { &mut connection.guest };
        side.note(event);
        self.carry(number / 2);
    }

    /// Carries what it can on one connection.
    fn carry(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let Connection { client, guest, upstream, downstream } = connection;
        match carry_both(client, guest, upstream, downstream, &mut self.chunk) {
            Ok(Turn::Waiting) => return,
            Ok(Turn::MoreToDo) => return self.unfinished.push(number),
            Ok(Turn::Ended) => {}
            Err(_) => {
                client.break_off();
                guest.break_off();
            }
        }
        self.connections[number] = None;
        self.free.push(number);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use socket2::SockRef;
    use std::{
        io::{Read, Write},
        net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream},
        thread,
    };

    /// Starts a proxy in front of `guest` and returns its address.
    fn proxy(guest: SocketAddr, max_connections: usize) -> SocketAddr {
        proxy_by(None, guest, max_connections)
    }

    /// One that may reach the guest by this interface alone.
    fn proxy_by(interface: Option<&str>, guest: SocketAddr, max_connections: usize) -> SocketAddr {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (interface, keepalive) = (interface.map(String::from), Some(Duration::from_secs(300)));
        let settings = Settings { guest, interface, web: None, max_connections, keepalive };
        let proxy = Proxy::new(vec![listener], settings).unwrap();
        thread::spawn(move || proxy.run());
        address
    }

    fn guest() -> (StdListener, SocketAddr) {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// A guest that sends back what it receives, and ends when its client does.
    fn echo() -> SocketAddr {
        let (listener, address) = guest();
        thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.unwrap();
                thread::spawn(move || {
                    let mut reader = client.try_clone().unwrap();
                    let _ = io::copy(&mut reader, &mut client);
                    let _ = client.shutdown(Shutdown::Write);
                });
            }
        });
        address
    }

    /// Bytes whose order shows.
    pub(crate) fn pattern(len: usize) -> Vec<u8> {
        (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Sends all, then the end, and reads meanwhile: the same has to come back, and the end.
    pub(crate) fn comes_back(mut client: StdStream, sent: Vec<u8>) {
        let (mut writer, bytes) = (client.try_clone().unwrap(), sent.clone());
        let writing = thread::spawn(move || {
            writer.write_all(&bytes).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == sent, "{} of {} bytes came back", received.len(), sent.len());
    }

    #[test]
    fn carries_much_more_than_it_keeps_and_then_the_end() {
        comes_back(StdStream::connect(proxy(echo(), 8)).unwrap(), pattern(20 << 20));
    }

    #[test]
    fn a_guest_is_reached_by_its_own_interface_alone() {
        comes_back(StdStream::connect(proxy_by(Some("lo"), echo(), 8)).unwrap(), pattern(1 << 20));
        let mut client = StdStream::connect(proxy_by(Some("not-there"), echo(), 8)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_half_that_ends_leaves_the_other_open() {
        let (listener, address) = guest();
        let mut client = StdStream::connect(proxy(address, 8)).unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        let mut question = String::new();
        served.read_to_string(&mut question).unwrap();
        assert_eq!(question, "question");
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn a_reset_is_passed_on_both_ways() {
        let (listener, address) = guest();
        let front = proxy(address, 8);
        let reset = |stream: &StdStream| SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
        let refused =
            |stream: &mut StdStream| stream.read(&mut [0; 8]).unwrap_err().kind() == ErrorKind::ConnectionReset;

        let mut client = StdStream::connect(front).unwrap();
        let (served, _) = listener.accept().unwrap();
        reset(&served);
        drop(served);
        assert!(refused(&mut client));

        let client = StdStream::connect(front).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        reset(&client);
        drop(client);
        assert!(refused(&mut served));
    }

    #[test]
    fn a_guest_that_refuses_is_seen_as_a_reset() {
        let (listener, address) = guest();
        drop(listener);
        let mut client = StdStream::connect(proxy(address, 8)).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_client_that_does_not_read_stops_only_itself() {
        let front = proxy(echo(), 8);
        let mut stuck = StdStream::connect(front).unwrap();
        stuck.set_nonblocking(true).unwrap();
        let mut filled = 0;
        let chunk = pattern(CHUNK_BYTES);
        // Until every buffer on the way and back is full for a while.
        loop {
            match stuck.write(&chunk[filled % CHUNK_BYTES..]) {
                Ok(len) => filled += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut other = StdStream::connect(front).unwrap();
                    other.write_all(b"still served").unwrap();
                    let mut reply = [0; 12];
                    other.read_exact(&mut reply).unwrap();
                    assert_eq!(&reply, b"still served");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        // It gets everything, in order, once it reads.
        stuck.set_nonblocking(false).unwrap();
        stuck.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stuck.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), filled);
        assert!(received.chunks(CHUNK_BYTES).all(|part| part == &chunk[..part.len()]));
    }

    #[test]
    fn connections_beyond_the_limit_wait_their_turn() {
        let front = proxy(echo(), 2);
        let mut first: Vec<_> = (0..2).map(|_| StdStream::connect(front).unwrap()).collect();
        let mut third = StdStream::connect(front).unwrap();
        third.write_all(b"x").unwrap();
        for client in &mut first {
            client.write_all(b"y").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
        third.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(third.read(&mut [0]).is_err(), "the third was served beside the first two");
        drop(first.pop());
        third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        third.read_exact(&mut [0]).unwrap();
    }
}
