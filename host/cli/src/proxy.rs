//! Carries the connections to this host's port on to the guest, all in one thread.
//!
//! Bytes are written on in the same turn in which they are read; only what the other side does not take is kept, at
//! most [`CHUNK_BYTES`] a direction, and nothing more is read meanwhile. A side that ends its half of a connection has
//! that half ended on the other side, behind all its bytes; a side that breaks off has the other side broken off.

use mio::{
    Events, Interest, Poll, Token,
    event::Event,
    net::{TcpListener, TcpStream},
};
use socket2::{SockRef, TcpKeepalive};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

/// Bytes that one turn of one direction reads at once, and the most that one direction keeps.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that one direction carries before the other connections have their turn.
const CHUNKS_PER_TURN: usize = 16;
const EVENTS_PER_TURN: usize = 1024;
const _: () = assert!(EVENTS_PER_TURN > 0 && CHUNKS_PER_TURN > 0);

/// What a proxy does.
pub struct Settings {
    /// Where the guest listens.
    pub guest: SocketAddr,
    /// Most connections at a time; more wait in the listeners' queues until one ends.
    pub max_connections: usize,
    /// How long a client may be silent before it is probed; `None` for ever.
    pub keepalive: Option<Duration>,
}

/// The listeners and the connections.
pub struct Proxy {
    poll: Poll,
    settings: Settings,
    listeners: Vec<Listener>,
    /// Indexed by number; the entries in `free` are empty.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections that may have more to carry although no event will say so.
    unfinished: Vec<usize>,
    chunk: Box<[u8; CHUNK_BYTES]>,
}

struct Listener {
    socket: TcpListener,
    /// Whether it may have connections to accept: readiness is reported once, when it begins.
    ready: bool,
}

struct Connection {
    client: Side,
    guest: Side,
    upstream: Direction,
    downstream: Direction,
}

/// One socket, and what is known of its readiness.
struct Side {
    socket: TcpStream,
    readable: bool,
    writable: bool,
    /// Whether the peer's end of stream has been reported, so that a short read does not mean an empty socket.
    ended: bool,
}

/// What is on its way from one side to the other.
#[derive(Default)]
struct Direction {
    kept: Vec<u8>,
    kept_from: usize,
    state: State,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The source has ended; what is kept goes first.
    Ending,
    /// The destination knows.
    Ended,
}

/// Whether a turn left something that no event will announce.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Waiting,
    MoreToDo,
}

impl Proxy {
    /// Takes listening sockets over.
    pub fn new(listeners: Vec<std::net::TcpListener>, settings: Settings) -> io::Result<Proxy> {
        let poll = Poll::new()?;
        let mut registered = Vec::with_capacity(listeners.len());
        for (number, socket) in listeners.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let mut socket = TcpListener::from_std(socket);
            poll.registry().register(&mut socket, Token(number), Interest::READABLE)?;
            registered.push(Listener { socket, ready: false });
        }
        Ok(Proxy {
            poll,
            settings,
            listeners: registered,
            connections: Vec::new(),
            free: Vec::new(),
            unfinished: Vec::new(),
            chunk: Box::new([0; CHUNK_BYTES]),
        })
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
                match event.token().0.checked_sub(self.listeners.len()) {
                    None => self.listeners[event.token().0].ready = true,
                    Some(socket) => self.note(socket, event),
                }
            }
            for number in unfinished {
                self.carry(number);
            }
            self.accept();
        }
    }

    /// Takes waiting connections in, as many as there is room for.
    fn accept(&mut self) {
        for at in 0..self.listeners.len() {
            while self.listeners[at].ready && self.connections.len() - self.free.len() < self.settings.max_connections {
                match self.listeners[at].socket.accept() {
                    // A connection that cannot be set up is dropped, which its client sees; the others go on.
                    Ok((client, _)) => drop(self.connect(client)),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    // Also when descriptors run out: the next connection's event tries again.
                    Err(_) => self.listeners[at].ready = false,
                }
            }
        }
    }

    fn connect(&mut self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        if let Some(idle) = self.settings.keepalive {
            SockRef::from(&client).set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))?;
        }
        let guest = TcpStream::connect(self.settings.guest)?;
        guest.set_nodelay(true)?;
        let number = self.free.last().copied().unwrap_or(self.connections.len());
        let mut connection = Connection {
            client: Side::new(client),
            guest: Side::new(guest),
            upstream: Direction::default(),
            downstream: Direction::default(),
        };
        for (side, offset) in [(&mut connection.client, 0), (&mut connection.guest, 1)] {
            let token = Token(self.listeners.len() + 2 * number + offset);
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
        side.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        side.writable |= event.is_writable() || event.is_error();
        side.ended |= event.is_read_closed() || event.is_error();
        self.carry(number / 2);
    }

    /// Carries what it can on one connection.
    fn carry(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        match connection.carry(&mut self.chunk[..]) {
            Ok(_) if connection.ended() => {}
            Ok(Turn::Waiting) => return,
            Ok(Turn::MoreToDo) => return self.unfinished.push(number),
            Err(_) => connection.break_off(),
        }
        self.connections[number] = None;
        self.free.push(number);
    }
}

impl Connection {
    fn carry(&mut self, chunk: &mut [u8]) -> io::Result<Turn> {
        let upstream = self.upstream.carry(&mut self.client, &mut self.guest, chunk)?;
        let downstream = self.downstream.carry(&mut self.guest, &mut self.client, chunk)?;
        Ok(if [upstream, downstream].contains(&Turn::MoreToDo) { Turn::MoreToDo } else { Turn::Waiting })
    }

    fn ended(&self) -> bool {
        self.upstream.state == State::Ended && self.downstream.state == State::Ended
    }

    /// Has both sides see a reset instead of an orderly end.
    fn break_off(&self) {
        for side in [&self.client, &self.guest] {
            // A socket that is gone already needs no reset.
            let _ = SockRef::from(&side.socket).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Side {
    fn new(socket: TcpStream) -> Side {
        Side { socket, readable: false, writable: false, ended: false }
    }

    /// Reads once, or returns `None` where that has to wait.
    fn read(&mut self, chunk: &mut [u8]) -> io::Result<Option<usize>> {
        let outcome = once(|| self.socket.read(chunk))?;
        // An edge-triggered socket that gave less than was asked for is empty until its next event; see epoll(7).
        self.readable = outcome.is_some_and(|len| len == chunk.len() || self.ended);
        Ok(outcome)
    }

    /// Writes once, or returns `None` where that has to wait.
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let outcome = once(|| self.socket.write(bytes))?;
        self.writable = outcome.is_some();
        Ok(outcome)
    }
}

fn once(mut operation: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match operation() {
            Ok(len) => return Ok(Some(len)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl Direction {
    fn carry(&mut self, from: &mut Side, to: &mut Side, chunk: &mut [u8]) -> io::Result<Turn> {
        for _ in 0..CHUNKS_PER_TURN {
            if !self.flush(to)? {
                return Ok(Turn::Waiting);
            }
            match self.state {
                State::Open => {}
                State::Ending if to.writable => {
                    to.socket.shutdown(Shutdown::Write)?;
                    self.state = State::Ended;
                    return Ok(Turn::Waiting);
                }
                State::Ending | State::Ended => return Ok(Turn::Waiting),
            }
            // Before the destination is connected nothing is read: its client's bytes wait where they are.
            if !from.readable || !to.writable {
                return Ok(Turn::Waiting);
            }
            match from.read(chunk)? {
                None => return Ok(Turn::Waiting),
                Some(0) => self.state = State::Ending,
                Some(len) => {
                    let written = to.write(&chunk[..len])?.unwrap_or(0);
                    self.kept.extend_from_slice(&chunk[written..len]);
                }
            }
        }
        Ok(Turn::MoreToDo)
    }

    /// Writes what is kept, and tells whether nothing is left of it.
    fn flush(&mut self, to: &mut Side) -> io::Result<bool> {
        while self.kept_from < self.kept.len() && to.writable {
            self.kept_from += to.write(&self.kept[self.kept_from..])?.unwrap_or(0);
        }
        let empty = self.kept_from == self.kept.len();
        if empty && self.kept_from > 0 {
            // The buffer goes as well: most connections never need one.
            *self = Direction { state: self.state, ..Direction::default() };
        }
        Ok(empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener as StdListener, TcpStream as StdStream},
        thread,
    };

    /// Starts a proxy in front of `guest` and returns its address.
    fn proxy(guest: SocketAddr, max_connections: usize) -> SocketAddr {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings { guest, max_connections, keepalive: Some(Duration::from_secs(300)) };
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
    fn pattern(len: usize) -> Vec<u8> {
        (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn carries_much_more_than_it_keeps_and_then_the_end() {
        let mut client = StdStream::connect(proxy(echo(), 8)).unwrap();
        let sent = pattern(20 << 20);
        let mut writer = client.try_clone().unwrap();
        let bytes = sent.clone();
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
