//! Carrying a connection's bytes from one side to the other, whatever the sides are made of.
//!
//! Bytes are written on in the same turn in which they are read; only what the other side does not take is kept, at
//! most [`CHUNK_BYTES`] a direction, and nothing more is read meanwhile. A side that ends its half of a connection has
//! that half ended on the other side, behind all its bytes; a side that breaks off has the other side broken off.

use mio::{event::Event, net::TcpStream};
use socket2::SockRef;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    time::Duration,
};

/// Bytes that are read at once, and the most that one direction keeps.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that one direction carries before the other connections have their turn.
const CHUNKS_PER_TURN: usize = 16;

/// One end of a connection.
pub trait Side {
    /// What is known of its readiness.
    fn readiness(&self) -> Readiness;
    /// Reads once, or returns `None` where that has to wait. 0 is the end.
    fn read(&mut self, chunk: &mut [u8]) -> io::Result<Option<usize>>;
    /// Writes once, or returns `None` where that has to wait.
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>>;
    /// Ends the half that is written to.
    fn finish(&mut self) -> io::Result<()>;
}

/// What a side can do, as far as is known: reported once when it begins, and over when a call says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readiness {
    /// There may be something to read, or the end.
    pub readable: bool,
    /// There may be room to write.
    pub writable: bool,
    /// The peer's end is among what there is to read, so less than was asked for does not mean nothing more.
    pub ended: bool,
}

/// A side that is a socket of the kernel's.
pub struct SocketSide {
    /// The socket.
    pub socket: TcpStream,
    readiness: Readiness,
}

/// What is on its way from one side to the other.
#[derive(Default)]
pub struct Direction {
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
pub enum Turn {
    /// Everything waits for an event.
    Waiting,
    /// There is more to carry.
    MoreToDo,
    /// Both directions have ended.
    Ended,
}

/// Carries what it can on one connection.
pub fn carry_both(
    client: &mut impl Side,
    guest: &mut impl Side,
    upstream: &mut Direction,
    downstream: &mut Direction,
    chunk: &mut [u8],
) -> io::Result<Turn> {
    let turns = [upstream.carry(client, guest, chunk)?, downstream.carry(guest, client, chunk)?];
    Ok(match turns {
        [Turn::Ended, Turn::Ended] => Turn::Ended,
        _ if turns.contains(&Turn::MoreToDo) => Turn::MoreToDo,
        _ => Turn::Waiting,
    })
}

impl Direction {
    fn carry(&mut self, from: &mut impl Side, to: &mut impl Side, chunk: &mut [u8]) -> io::Result<Turn> {
        for _ in 0..CHUNKS_PER_TURN {
            if !self.flush(to)? {
                return Ok(Turn::Waiting);
            }
            match self.state {
                State::Open => {}
                State::Ending if to.readiness().writable => {
                    to.finish()?;
                    self.state = State::Ended;
                    return Ok(Turn::Ended);
                }
                State::Ending => return Ok(Turn::Waiting),
                State::Ended => return Ok(Turn::Ended),
            }
            // Before the destination is connected nothing is read: its client's bytes wait where they are.
            if !from.readiness().readable || !to.readiness().writable {
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
    fn flush(&mut self, to: &mut impl Side) -> io::Result<bool> {
        while self.kept_from < self.kept.len() && to.readiness().writable {
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

impl SocketSide {
    /// A socket of which nothing is known yet.
    pub fn new(socket: TcpStream) -> SocketSide {
        SocketSide { socket, readiness: Readiness::default() }
    }

    /// Notes what an event says.
    pub fn note(&mut self, event: &Event) {
        self.readiness.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.readiness.writable |= event.is_writable() || event.is_error();
        self.readiness.ended |= event.is_read_closed() || event.is_error();
    }

    /// Has the peer see a reset instead of an orderly end when the socket is dropped.
    pub fn break_off(&self) {
        // A socket that is gone already needs no reset.
        let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }
}

impl Side for SocketSide {
    fn readiness(&self) -> Readiness {
        self.readiness
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<Option<usize>> {
        let outcome = once(|| self.socket.read(chunk))?;
        // An edge-triggered socket that gave less than was asked for is empty until its next event; see epoll(7).
        self.readiness.readable = outcome.is_some_and(|len| len == chunk.len() || self.readiness.ended);
        Ok(outcome)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let outcome = once(|| self.socket.write(bytes))?;
        self.readiness.writable = outcome.is_some();
        Ok(outcome)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
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
