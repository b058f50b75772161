//! All connections: bytes in, bytes out, next deadline.

mod connection;

use self::connection::{Connection, MADE_BYTES_PER_TURN, Named, OWN_PART, Phase, Progress, Shared, State};
use crate::{
    Bytes, date,
    disk::{Chunks, Lookup, OpenError},
    output::{Maker, Output},
    pages::{Pages, Stable},
    respond::{Awaits, Scratch},
    site::Site,
};
use alloc::{
    boxed::Box,
    collections::{TryReserveError, VecDeque},
    sync::{Arc, Weak},
    vec::Vec,
};
use core::net::SocketAddr;
use kayvee_platform::{BlockDevice, Now};

const SECOND_NS: u64 = 1_000_000_000;
/// Bytes that a listener to a stream may have unsent; it misses what is published meanwhile.
const MAX_STREAM_BYTES: usize = 64 << 10;

const FULL: Refusal =
    Refusal(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n");

/// A connection: a dense index, reused after [`Server::disconnect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// Why a connection was not accepted: bytes to send before closing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub &'static [u8]);

/// What a target does with a connection after it has sent what it could of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays, and its bytes are wanted.
    Open,
    /// It stays, but nothing should be read from it until the server names it ready again.
    Paused,
    /// The same until the disk has been read, what the output tells of is stable, the next turn has begun, or a pause is over:
    /// where there is no output nothing is to be sent now.
    Waiting,
    /// Say that nothing more will be sent once all its output is, and go on reading: closing at once could destroy the
    /// reply before the client has read it (RFC 9112 §9.6).
    EndAfterOutput,
    /// Close it now and drop its output.
    CloseNow,
}

/// How many connections there can be, and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes that all of them together may hold of requests and responses. Whoever needs more then is disconnected. While
    /// pages that were made for them take as much again, no more are sent. For the server's own there is an eighth more of both.
    pub buffer_bytes: usize,
    /// From the first byte of a head to its end, and the same for a body.
    pub request_ns: u64,
    /// Between two requests.
    pub idle_ns: u64,
    /// Without a byte that the client takes.
    pub send_ns: u64,
    /// From the end of the output to the client's end of the connection.
    pub linger_ns: u64,
}

impl Limits {
    /// The usual times, for so many connections with so many bytes of buffers.
    pub const fn new(connections: usize, buffer_bytes: usize) -> Limits {
        Limits {
            connections,
            buffer_bytes,
            request_ns: 10 * SECOND_NS,
            idle_ns: 60 * SECOND_NS,
            send_ns: 30 * SECOND_NS,
            linger_ns: 2 * SECOND_NS,
        }
    }
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Stats {
    pub connections: u64,
    pub connections_received: u64,
    pub connections_rejected: u64,
    /// Responses by the first digit of their status, from 1.
    pub responses: [u64; 5],
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Connections that were ended because they took too long.
    pub timeouts: u64,
    /// Connections that were ended because all together held too much.
    pub buffers_refused: u64,
    /// Lines that the access log had no room for.
    pub log_lines_lost: u64,
    /// Reads of the site's disk that have failed.
    pub disk_failures: u64,
}

/// Whether requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// They are not.
    Off,
    /// They are, for [`Server::take_access_log`].
    Common,
}

/// The web server and its connections.
pub struct Server {
    connections: Vec<Option<Box<Connection>>>,
    free_slots: Vec<u32>,
    ready: VecDeque<ConnectionId>,
    /// Those that wait for the disk, for what is to be stable, for the next turn or for the end of a pause, in their order, and
    /// which slots are among them.
    waiting: VecDeque<ConnectionId>,
    is_waiting: Vec<bool>,
    /// What the buffers of all connections take.
    buffered_bytes: usize,
    /// The images that were served before, the latest first, of which responses are still made.
    former: VecDeque<Weak<dyn AsRef<[u8]> + Send + Sync>>,
    listeners: usize,
    next_sweep_ns: u64,
    last_sweep_ns: u64,
    shared: Shared,
}

impl Server {
    /// A server without a site.
    pub fn new(limits: Limits, access_log: AccessLog, now: Now) -> Server {
        let shared = Shared {
            limits,
            makes_bytes: [MADE_BYTES_PER_TURN; 2],
            made_bytes: [0; 2],
            site: None,
            chunks: None,
            now,
            date: date::format(now.unix_us / 1_000_000),
            stats: Stats::default(),
            access_log,
            log: Vec::new(),
            scratch: Scratch::default(),
            spare: Vec::new(),
        };
        Server {
            connections: Vec::new(),
            free_slots: Vec::new(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            is_waiting: Vec::new(),
            buffered_bytes: 0,
            former: VecDeque::new(),
            listeners: 0,
            next_sweep_ns: u64::MAX,
            last_sweep_ns: now.monotonic_ns,
            shared,
        }
    }

    /// Serves this site from now on. Responses that are on their way are finished from the one before.
    pub fn set_site(&mut self, site: Site) {
        self.shared.site = Some(site);
        self.shared.scratch.heads.clear();
    }

    /// Serves this site from now on in the place of another one in memory. Responses that are on their way are finished from
    /// the one that they began with as long as those are no more than the last one, or have no more than so many bytes
    /// together; beyond that they are cut off.
    pub fn replace_site(&mut self, site: Site, former_bytes: usize) {
        if let Some(before) = &self.shared.site {
            self.former.push_front(Arc::downgrade(before.lend(0..0).0));
        }
        self.set_site(site);
        let (mut kept, mut kept_bytes) = (VecDeque::new(), 0);
        for image in core::mem::take(&mut self.former) {
            // Nobody may be left who reads it.
            let Some(bytes) = image.upgrade() else { continue };
            kept_bytes += (*bytes).as_ref().len();
            if kept.is_empty() || kept_bytes <= former_bytes {
                kept.push_back(image);
            } else {
                self.cut_off(&bytes);
            }
        }
        self.former = kept;
    }

    /// Ends the connections whose responses are lent from this image. Clients see that those are not whole (RFC 9112 §8).
    fn cut_off(&mut self, image: &Bytes) {
        for slot in 0..self.connections.len() {
            let reader = self.connections[slot].take_if(|connection| connection.output.is_lent_from(image));
            let Some(mut connection) = reader else { continue };
            connection.state = State::Dead;
            self.shared.stats.buffers_refused += 1;
            self.settle(ConnectionId(slot as u32), connection, Progress::None, Told::Yes);
        }
    }

    /// Serves this site, whose bodies are on a disk, from now on, and keeps about so many bytes of them in memory.
    pub fn set_site_on_disk(&mut self, site: Site, memory_bytes: usize) -> Result<(), OpenError> {
        self.shared.chunks = Some(Chunks::new(&site, memory_bytes)?);
        self.set_site(site);
        Ok(())
    }

    /// What has happened since the start.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Starts a turn: all that happens until the next one happens at `now`. Goes on with the requests that were put off.
    #[inline(never)]
    pub fn begin_turn(&mut self, now: Now, pages: &mut dyn Pages) {
        let shared = &mut self.shared;
        if now.unix_us / 1_000_000 != shared.now.unix_us / 1_000_000 {
            shared.date = date::format(now.unix_us / 1_000_000);
        }
        shared.now = now;
        let makes_bytes = core::mem::replace(&mut shared.makes_bytes, [MADE_BYTES_PER_TURN; 2]);
        let waiting = if makes_bytes.contains(&0) { self.waiting.len() } else { 0 };
        for _ in 0..waiting {
            // Who is not reached is the first in the next turn.
            if self.shared.makes_bytes.contains(&0) {
                break;
            }
            let Some(id) = self.waiting.pop_front() else { break };
            let put_off = |connection: &mut Box<Connection>| connection.awaits == Some(Awaits::Turn);
            let Some(mut connection) = self.connections[id.0 as usize].take_if(put_off) else {
                self.keep_waiting(id);
                continue;
            };
            self.is_waiting[id.0 as usize] = false;
            connection.awaits = None;
            let progress = self.resume(&mut connection, pages);
            self.settle(id, connection, progress, Told::Yes);
        }
    }

    /// Changes [`Limits::connections`]. Whoever is there stays.
    pub fn set_connections(&mut self, connections: usize) {
        self.shared.limits.connections = connections;
    }

    /// Changes [`Limits::buffer_bytes`]. Who holds more already is not disconnected for that.
    pub fn set_buffer_bytes(&mut self, bytes: usize) {
        self.shared.limits.buffer_bytes = bytes;
    }

    /// Admits a connection from an address, and notes whether that is one from which protected mode lets everybody in.
    #[inline(never)]
    pub fn connect(&mut self, remote: SocketAddr, is_local: bool) -> Result<ConnectionId, Refusal> {
        let has_room = (self.shared.stats.connections as usize) < self.shared.limits.connections;
        if !has_room || (self.free_slots.is_empty() && self.reserve_slot().is_err()) {
            self.shared.stats.connections_rejected += 1;
            return Err(FULL);
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.is_waiting.push(false);
            self.connections.len() as u32 - 1
        });
        let mut connection = Box::new(Connection {
            remote,
            is_local,
            input: Vec::new(),
            scanned: 0,
            pending: None,
            awaits: None,
            held: None,
            skipped_line: false,
            authorization: Vec::new(),
            output: Output::default(),
            state: State::Open,
            phase: Phase::Dead,
            deadline_ns: u64::MAX,
            named: Named::No,
            has_own_page: false,
            counted_bytes: 0,
            counted_made: (Maker::Keys, 0),
        });
        self.enter_phase(&mut connection, Progress::None);
        self.connections[slot as usize] = Some(connection);
        self.shared.stats.connections += 1;
        self.shared.stats.connections_received += 1;
        Ok(ConnectionId(slot))
    }

    /// Makes sure that one more connection can come, be named ready and go.
    fn reserve_slot(&mut self) -> Result<(), TryReserveError> {
        let slots = self.connections.len() + 1;
        self.connections.try_reserve(1)?;
        self.is_waiting.try_reserve(1)?;
        self.waiting.try_reserve(slots.saturating_sub(self.waiting.len()))?;
        self.free_slots.try_reserve(slots - self.free_slots.len())?;
        self.ready.try_reserve(slots.saturating_sub(self.ready.len()))
    }

    /// Takes bytes that a client sent, all of them, and answers the requests that they complete.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], pages: &mut dyn Pages) {
        let Some(mut connection) = self.connections.get_mut(id.0 as usize).and_then(Option::take) else { return };
        self.shared.stats.input_bytes += bytes.len() as u64;
        let mut progress = Progress::None;
        connection.has_own_page = false;
        if connection.input.is_empty() {
            let (used, answered) = connection.answer_all(bytes, &mut self.shared, pages);
            connection.keep(&bytes[used..]);
            progress = answered;
        } else {
            connection.keep(bytes);
            progress = progress.max(self.resume(&mut connection, pages));
        }
        self.settle(id, connection, progress, Told::Yes);
    }

    /// Answers what is kept of a connection's input.
    fn resume(&mut self, connection: &mut Connection, pages: &mut dyn Pages) -> Progress {
        let mut input = core::mem::take(&mut connection.input);
        let (used, progress) = connection.answer_all(&input, &mut self.shared, pages);
        if used == input.len() {
            input = Vec::new();
        } else {
            input.drain(..used);
        }
        connection.input = input;
        progress
    }

    /// Puts a connection back in its place after something has happened to it.
    fn settle(&mut self, id: ConnectionId, mut connection: Box<Connection>, progress: Progress, told: Told) {
        let was_streaming = connection.phase == Phase::Streaming;
        let has_grown = self.count(&mut connection);
        let limit_bytes = self.shared.limits.buffer_bytes;
        let own_bytes = if connection.has_own_page { limit_bytes / OWN_PART } else { 0 };
        if has_grown && self.buffered_bytes > limit_bytes + own_bytes {
            connection.state = State::Dead;
            self.shared.stats.buffers_refused += 1;
        }
        if connection.state == State::Dead {
            connection.output.clear();
            (connection.input, connection.pending) = (Vec::new(), None);
            (connection.awaits, connection.held) = (None, None);
            self.count(&mut connection);
        }
        self.list_waiting(id, &connection);
        self.enter_phase(&mut connection, progress);
        let is_streaming = connection.phase == Phase::Streaming;
        self.listeners = self.listeners + usize::from(is_streaming) - usize::from(was_streaming);
        let wants_target = !connection.output.is_empty() || connection.state != State::Open;
        if told == Told::Yes && (wants_target || progress == Progress::Resumed) {
            if connection.named == Named::No {
                connection.named = Named::ToSend;
                self.ready.push_back(id);
            }
            if progress == Progress::Resumed {
                connection.named = Named::ToRead;
            }
        } else if connection.named == Named::ToSend && !wants_target && self.ready.back() == Some(&id) {
            // It was served at once.
            connection.named = Named::No;
            self.ready.pop_back();
        }
        self.connections[id.0 as usize] = Some(connection);
    }

    /// Counts a connection's buffers as they are now. Returns whether they have grown.
    fn count(&mut self, connection: &mut Connection) -> bool {
        let bytes = connection.buffered_bytes();
        let before = core::mem::replace(&mut connection.counted_bytes, bytes);
        self.buffered_bytes = self.buffered_bytes - before + bytes;
        let made = connection.output.made();
        if made != connection.counted_made {
            let made_before = core::mem::replace(&mut connection.counted_made, made);
            self.shared.made_bytes[made_before.0 as usize] -= made_before.1;
            self.shared.made_bytes[made.0 as usize] += made.1;
        }
        bytes > before
    }

    /// Gives a connection its time for what it waits for now. Only progress or something else to wait for sets a new one.
    fn enter_phase(&mut self, connection: &mut Connection, progress: Progress) {
        let phase = connection.wanted_phase();
        if phase == connection.phase && progress == Progress::None {
            return;
        }
        connection.phase = phase;
        let limits = &self.shared.limits;
        let time_ns = match phase {
            Phase::Idle => limits.idle_ns,
            Phase::Head | Phase::Body => limits.request_ns,
            Phase::Sending | Phase::Disk => limits.send_ns,
            Phase::Lingering => limits.linger_ns,
            Phase::Streaming if !connection.output.is_empty() => limits.send_ns,
            Phase::Streaming | Phase::Dead => u64::MAX,
        };
        connection.deadline_ns = self.shared.now.monotonic_ns.saturating_add(time_ns);
        self.next_sweep_ns = self.next_sweep_ns.min(connection.deadline_ns);
    }

    /// Forgets a connection that is gone. Its id may be given out again from now on.
    #[inline(never)]
    pub fn disconnect(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0 as usize).and_then(Option::take) {
            self.listeners -= usize::from(connection.phase == Phase::Streaming);
            self.buffered_bytes -= connection.counted_bytes;
            let (maker, made_bytes) = connection.counted_made;
            self.shared.made_bytes[maker as usize] -= made_bytes;
            self.free_slots.push(id.0);
            self.shared.stats.connections -= 1;
        }
    }

    /// Ends a turn: connections that have taken too long are ended.
    pub fn end_turn(&mut self) {
        let now_ns = self.shared.now.monotonic_ns;
        if now_ns < self.next_sweep() {
            return;
        }
        (self.last_sweep_ns, self.next_sweep_ns) = (now_ns, u64::MAX);
        for slot in 0..self.connections.len() {
            let id = ConnectionId(slot as u32);
            let late = self.connections[slot].take_if(|connection| connection.deadline_ns <= now_ns);
            if let Some(mut connection) = late {
                self.shared.stats.timeouts += 1;
                connection.time_out(&mut self.shared);
                self.settle(id, connection, Progress::Answered, Told::Yes);
            }
            if let Some(connection) = &self.connections[slot] {
                self.next_sweep_ns = self.next_sweep_ns.min(connection.deadline_ns);
            }
        }
    }

    /// Looking at all connections takes its time, so it is done once a second at most.
    fn next_sweep(&self) -> u64 {
        self.next_sweep_ns.max(self.last_sweep_ns.saturating_add(SECOND_NS))
    }

    /// When the next turn has to begin, at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        if self.shared.makes_bytes.contains(&0) && self.has_waiting() {
            return Some(self.shared.now.monotonic_ns);
        }
        Some(self.next_sweep()).filter(|_| self.next_sweep_ns < u64::MAX)
    }

    /// The next connection with output or another fate.
    pub fn next_ready(&mut self) -> Option<ConnectionId> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(connection) = self.connections[id.0 as usize].as_mut() {
                connection.named = Named::No;
                return Some(id);
            }
        }
    }

    /// What is to be sent next: two parts, one behind the other. There may be more behind them.
    pub fn output(&self, id: ConnectionId) -> [&[u8]; 2] {
        let chunks = self.shared.chunks.as_ref();
        match self.connection(id) {
            Some(connection) if connection.held.is_none() && !connection.output.is_empty() => {
                connection.output.next(chunks)
            }
            _ => [&[], &[]],
        }
    }

    /// Notes that a connection waits, if it does.
    fn list_waiting(&mut self, id: ConnectionId, connection: &Connection) {
        let is_listed = &mut self.is_waiting[id.0 as usize];
        if (connection.awaits.is_some() || connection.held.is_some()) && !*is_listed {
            *is_listed = true;
            self.waiting.push_back(id);
        }
    }

    /// Takes what the disk of the site has read, and goes on with whoever waited for that.
    #[inline(never)]
    pub fn take_from_disk(&mut self, disk: &mut dyn BlockDevice, pages: &mut dyn Pages) {
        let Some(chunks) = &mut self.shared.chunks else { return };
        if !chunks.take(disk) {
            return;
        }
        self.shared.stats.disk_failures = chunks.failures;
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            let Some((chunk, chunks)) = self.awaited(id).zip(self.shared.chunks.as_ref()) else {
                self.keep_waiting(id);
                continue;
            };
            let is_failed = match chunks.look(chunk) {
                Lookup::Missing => {
                    self.waiting.push_back(id);
                    continue;
                }
                Lookup::Failed => true,
                Lookup::Ready(_) => false,
            };
            self.is_waiting[id.0 as usize] = false;
            let Some(mut connection) = self.connections[id.0 as usize].take() else { continue };
            connection.awaits = None;
            let is_cut_off = is_failed && connection.output.missing(Some(chunks)).is_some();
            let progress = if is_cut_off {
                // The client sees that the response is not whole (RFC 9112 §8).
                connection.state = State::Dead;
                Progress::None
            } else {
                self.resume(&mut connection, pages)
            };
            self.settle(id, connection, progress, Told::Yes);
        }
        if let Some(chunks) = &mut self.shared.chunks {
            chunks.forget_failed();
        }
    }

    /// Puts back one that was not waited for now, if it waits for something.
    fn keep_waiting(&mut self, id: ConnectionId) {
        let waits = |connection: &Connection| connection.awaits.is_some() || connection.held.is_some();
        let is_waiting = self.connection(id).is_some_and(waits);
        self.is_waiting[id.0 as usize] = is_waiting;
        if is_waiting {
            self.waiting.push_back(id);
        }
    }

    /// Whether responses wait until what they tell of is stable, for the disk, for the next turn or for the end of a pause.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Lets responses be sent whose pages tell of what is stable by now, and goes on with requests that waited for the end of a
    /// pause if it has come.
    #[inline(never)]
    pub fn release(&mut self, pages: &mut dyn Pages) {
        let (stable, are_paused) = (pages.stable(), pages.are_paused());
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            let is_over = |held| match stable {
                Stable::Through(seen) => held <= seen,
                Stable::All | Stable::Lost => true,
            };
            let connection = &mut self.connections[id.0 as usize];
            let is_put_off = |connection: &Connection| connection.awaits == Some(Awaits::Pause) && !are_paused;
            let goes_on =
                connection.take_if(|connection| connection.held.is_some_and(is_over) || is_put_off(connection));
            let Some(mut connection) = goes_on else {
                self.keep_waiting(id);
                continue;
            };
            self.is_waiting[id.0 as usize] = false;
            if connection.held.take_if(|held| is_over(*held)).is_some() && stable == Stable::Lost {
                connection.state = State::Dead;
            }
            let mut progress = Progress::None;
            if is_put_off(&connection) {
                connection.awaits = None;
                progress = self.resume(&mut connection, pages);
            }
            self.settle(id, connection, progress, Told::Yes);
        }
    }

    fn awaited(&self, id: ConnectionId) -> Option<u64> {
        self.connection(id)?.awaited_chunk()
    }

    /// Has the disk of the site read what is waited for. To be called after all that is ready has been sent.
    #[inline(never)]
    pub fn read_from_disk(&mut self, disk: &mut dyn BlockDevice) {
        let connections = &self.connections;
        let Some(chunks) = &mut self.shared.chunks else { return };
        let awaited = |id: &ConnectionId| connections[id.0 as usize].as_ref()?.awaited_chunk();
        for chunk in self.waiting.iter().filter_map(awaited) {
            if !chunks.fetch(chunk, disk) {
                return;
            }
        }
    }

    /// Notes that so many bytes of the output are sent, and answers requests that waited for that.
    pub fn sent(&mut self, id: ConnectionId, bytes: usize, pages: &mut dyn Pages) {
        let Some(mut connection) = self.connections.get_mut(id.0 as usize).and_then(Option::take) else { return };
        if let Some(chunks) = &mut self.shared.chunks {
            connection.output.touch(chunks);
        }
        connection.output.advance(bytes, &mut self.shared.spare);
        self.shared.stats.output_bytes += bytes as u64;
        let mut progress = if bytes > 0 { Progress::Answered } else { Progress::None };
        if connection.output.is_empty() && connection.state == State::Open && !connection.input.is_empty() {
            self.resume(&mut connection, pages);
            progress = Progress::Resumed;
        }
        // The target has the connection in its hands, and goes on with what it finds there.
        let told = if progress == Progress::Resumed { Told::Yes } else { Told::No };
        self.settle(id, connection, progress, told);
    }

    /// What a target does with a connection after it has sent what it could.
    pub fn fate(&mut self, id: ConnectionId) -> Fate {
        if self.shared.chunks.is_some() {
            self.await_missing(id);
        }
        let Some(connection) = self.connection(id) else { return Fate::CloseNow };
        match connection.state {
            State::Dead => Fate::CloseNow,
            _ if connection.awaits.is_some() || connection.held.is_some() => Fate::Waiting,
            State::Ending => Fate::EndAfterOutput,
            State::Open if !connection.output.is_empty() && !connection.input.is_empty() => Fate::Paused,
            State::Open | State::Streaming => Fate::Open,
        }
    }

    /// Has a connection wait for the chunk that its output does not go on without.
    #[inline(never)]
    fn await_missing(&mut self, id: ConnectionId) {
        let awaits_nothing = |connection: &mut Box<Connection>| connection.awaits.is_none();
        let slot = self.connections.get_mut(id.0 as usize);
        let Some(mut connection) = slot.and_then(|slot| slot.take_if(awaits_nothing)) else { return };
        connection.awaits = connection.output.missing(self.shared.chunks.as_ref()).map(Awaits::Chunk);
        self.list_waiting(id, &connection);
        self.connections[id.0 as usize] = Some(connection);
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(id.0 as usize)?.as_deref()
    }

    /// Whether anybody listens to the stream.
    pub fn has_listeners(&self) -> bool {
        self.listeners > 0
    }

    /// Sends this to all who listen to the stream, but for those who have not taken what was sent before. Who may no longer
    /// listen is told so instead, and ended.
    #[inline(never)]
    pub fn publish(&mut self, event: &[u8], pages: &dyn Pages) {
        for slot in 0..self.connections.len() {
            let listener = self.connections[slot].take_if(|connection| connection.state == State::Streaming);
            let Some(mut connection) = listener else { continue };
            let was_empty = connection.output.is_empty();
            let farewell = pages.farewell(&connection.authorization, connection.is_local);
            if farewell.is_some() {
                connection.state = State::Ending;
            }
            let event = farewell.unwrap_or(event);
            if connection.output.takes_more(MAX_STREAM_BYTES) && connection.output.reserve(event.len()).is_ok() {
                connection.output.put(event);
            }
            let progress = if was_empty { Progress::Answered } else { Progress::None };
            self.settle(ConnectionId(slot as u32), connection, progress, Told::Yes);
        }
    }

    /// Takes the lines of the access log that have come since the last call.
    pub fn take_access_log(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.shared.log)
    }
}

/// Whether a connection is to be named to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

#[cfg(test)]
mod tests;
