//! Connections: bytes in, bytes out, next deadline.

use crate::{
    body::BodyReader,
    date::{self, DATE_BYTES},
    disk::{Chunks, Lookup, OpenError},
    log_line,
    output::{Made, Output},
    pages::{Delivery, Pages, Stable},
    request::{self, Persistence, Request},
    respond::{self, COPIED_BYTES, Context, Outcome, RESPONSE_BYTES, Scratch, Sent},
    site::Site,
    status::Status,
};
use alloc::{
    boxed::Box,
    collections::{TryReserveError, VecDeque},
    string::String,
    vec::Vec,
};
use kayvee_platform::{BlockDevice, Now};

const SECOND_NS: u64 = 1_000_000_000;
/// Replies to pipelined requests that are gathered before the next request is looked at.
const BATCH_BYTES: usize = 16 << 10;
/// Room for a response's head, and for a body that is copied.
const RESPONSE_ROOM_BYTES: usize = COPIED_BYTES + RESPONSE_BYTES;
/// Bytes of the access log that wait to be taken; lines beyond are counted only.
const MAX_LOG_BYTES: usize = 1 << 20;
/// The server's own pages may take this part more than all others together, so that clients which take slowly what they have asked
/// for do not keep them from who watches it.
const OWN_PART: usize = 8;
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
    /// The same until the disk has been read, or what the output tells of is stable: nothing is to be sent now.
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

/// What a connection waits for, and for how long it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next request.
    Idle,
    /// The rest of a head.
    Head,
    /// The rest of a body.
    Body,
    /// The disk, for the beginning of a response.
    Disk,
    /// A client that takes its output, or the disk for the rest of it.
    Sending,
    /// What is published next.
    Streaming,
    /// The client's end, after ours.
    Lingering,
    /// The target, to close it.
    Dead,
}

/// Whether requests are still answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Streaming,
    /// The last response is on its way.
    Ending,
    Dead,
}

struct Connection {
    remote: String,
    /// Bytes that are not answered yet; they begin where a request begins, or with its body.
    input: Vec<u8>,
    /// How much of the head at the start of `input` has been searched for its end.
    scanned: usize,
    /// A request that is answered when its body has been read over.
    pending: Option<(Vec<u8>, BodyReader)>,
    /// The chunk of the site that is to be read before anything else can happen.
    awaits: Option<u64>,
    /// What has to be stable before any more of the output may be sent.
    held: Option<u64>,
    /// An empty line was skipped before the next request.
    skipped_line: bool,
    /// The value of Authorization with which a stream was asked for; empty without one.
    authorization: Vec<u8>,
    output: Output,
    state: State,
    phase: Phase,
    deadline_ns: u64,
    is_ready: bool,
    /// Its last response is a page of the server's own.
    has_own_page: bool,
    /// What its buffers were last counted as, and the page that was made for it.
    counted_bytes: usize,
    counted_made: Made,
}

/// What all connections share.
struct Shared {
    limits: Limits,
    made: Made,
    site: Option<Site>,
    /// What is in memory of the site's bodies if they are on a disk.
    chunks: Option<Chunks>,
    now: Now,
    date: [u8; DATE_BYTES],
    stats: Stats,
    access_log: AccessLog,
    log: Vec<u8>,
    scratch: Scratch,
}

/// The web server and its connections.
pub struct Server {
    connections: Vec<Option<Box<Connection>>>,
    free_slots: Vec<u32>,
    ready: VecDeque<ConnectionId>,
    /// Those that wait for the disk or for what is to be stable, in their order, and which slots are among them.
    waiting: VecDeque<ConnectionId>,
    is_waiting: Vec<bool>,
    /// What the buffers of all connections take.
    buffered_bytes: usize,
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
            made: Made::default(),
            site: None,
            chunks: None,
            now,
            date: date::format(now.unix_us / 1_000_000),
            stats: Stats::default(),
            access_log,
            log: Vec::new(),
            scratch: Scratch::default(),
        };
        Server {
            connections: Vec::new(),
            free_slots: Vec::new(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            is_waiting: Vec::new(),
            buffered_bytes: 0,
            listeners: 0,
            next_sweep_ns: u64::MAX,
            last_sweep_ns: now.monotonic_ns,
            shared,
        }
    }

    /// Serves this site from now on. Responses that are on their way are finished from the one before.
    pub fn set_site(&mut self, site: Site) {
        self.shared.site = Some(site);
    }

    /// Serves this site, whose bodies are on a disk, from now on, and keeps about so many bytes of them in memory.
    pub fn set_site_on_disk(&mut self, site: Site, memory_bytes: usize) -> Result<(), OpenError> {
        self.shared.chunks = Some(Chunks::new(&site, memory_bytes)?);
        self.shared.site = Some(site);
        Ok(())
    }

    /// What has happened since the start.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Starts a turn: all that happens until the next one happens at `now`.
    pub fn begin_turn(&mut self, now: Now) {
        let shared = &mut self.shared;
        if now.unix_us / 1_000_000 != shared.now.unix_us / 1_000_000 {
            shared.date = date::format(now.unix_us / 1_000_000);
        }
        shared.now = now;
    }

    /// Admits a connection from an address.
    #[inline(never)]
    pub fn connect(&mut self, remote: &str) -> Result<ConnectionId, Refusal> {
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
        let remote = if self.shared.access_log == AccessLog::Off { String::new() } else { String::from(remote) };
        let mut connection = Box::new(Connection {
            remote,
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
            is_ready: false,
            has_own_page: false,
            counted_bytes: 0,
            counted_made: Made::default(),
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
            connection.authorization = Vec::new();
            self.count(&mut connection);
        }
        self.list_waiting(id, &connection);
        self.enter_phase(&mut connection, progress);
        let is_streaming = connection.phase == Phase::Streaming;
        self.listeners = self.listeners + usize::from(is_streaming) - usize::from(was_streaming);
        let wants_target = !connection.output.is_empty() || connection.state != State::Open;
        if told == Told::Yes && (wants_target || progress == Progress::Resumed) && !connection.is_ready {
            connection.is_ready = true;
            self.ready.push_back(id);
        }
        self.connections[id.0 as usize] = Some(connection);
    }

    /// Counts a connection's buffers as they are now. Returns whether they have grown.
    fn count(&mut self, connection: &mut Connection) -> bool {
        let bytes = connection.buffered_bytes();
        let before = core::mem::replace(&mut connection.counted_bytes, bytes);
        self.buffered_bytes = self.buffered_bytes - before + bytes;
        let made = connection.output.made();
        let made_before = core::mem::replace(&mut connection.counted_made, made);
        self.shared.made = self.shared.made.changed(made_before, made);
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
            self.shared.made = self.shared.made.changed(connection.counted_made, Made::default());
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

    /// When [`end_turn`](Self::end_turn) has to be called next, at the latest.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        Some(self.next_sweep()).filter(|_| self.next_sweep_ns < u64::MAX)
    }

    /// The next connection with output or another fate.
    pub fn next_ready(&mut self) -> Option<ConnectionId> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(connection) = self.connections[id.0 as usize].as_mut() {
                connection.is_ready = false;
                return Some(id);
            }
        }
    }

    /// What is to be sent next: two parts, one behind the other. There may be more behind them.
    pub fn output(&self, id: ConnectionId) -> [&[u8]; 2] {
        let chunks = self.shared.chunks.as_ref();
        let connection = self.connection(id).filter(|connection| connection.held.is_none());
        connection.map_or([&[], &[]], |connection| connection.output.next(chunks))
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

    /// Whether responses wait until what they tell of is stable, or for the disk.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Lets responses be sent whose pages tell of what is stable by now.
    #[inline(never)]
    pub fn release(&mut self, pages: &dyn Pages) {
        let stable = pages.stable();
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            let is_over = |held| match stable {
                Stable::Through(seen) => held <= seen,
                Stable::All | Stable::Lost => true,
            };
            let connection = &mut self.connections[id.0 as usize];
            let held = connection.take_if(|connection| connection.held.is_some_and(is_over));
            let Some(mut connection) = held else {
                self.keep_waiting(id);
                continue;
            };
            self.is_waiting[id.0 as usize] = false;
            connection.held = None;
            if stable == Stable::Lost {
                connection.state = State::Dead;
            }
            self.settle(id, connection, Progress::None, Told::Yes);
        }
    }

    fn awaited(&self, id: ConnectionId) -> Option<u64> {
        self.connection(id)?.awaits
    }

    /// Has the disk of the site read what is waited for. To be called after all that is ready has been sent.
    #[inline(never)]
    pub fn read_from_disk(&mut self, disk: &mut dyn BlockDevice) {
        let connections = &self.connections;
        let Some(chunks) = &mut self.shared.chunks else { return };
        let awaited = |id: &ConnectionId| connections[id.0 as usize].as_ref()?.awaits;
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
        connection.output.advance(bytes);
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
        let Some(mut connection) = self.connections.get_mut(id.0 as usize).and_then(Option::take) else {
            return Fate::CloseNow;
        };
        if self.shared.chunks.is_some() && connection.awaits.is_none() {
            connection.awaits = connection.output.missing(self.shared.chunks.as_ref());
            self.list_waiting(id, &connection);
        }
        let fate = match connection.state {
            State::Dead => Fate::CloseNow,
            _ if connection.awaits.is_some() || connection.held.is_some() => Fate::Waiting,
            State::Ending => Fate::EndAfterOutput,
            State::Open if !connection.output.is_empty() && !connection.input.is_empty() => Fate::Paused,
            State::Open | State::Streaming => Fate::Open,
        };
        self.connections[id.0 as usize] = Some(connection);
        fate
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
    pub fn publish(&mut self, event: &[u8], pages: &dyn Pages) {
        for slot in 0..self.connections.len() {
            let listener = self.connections[slot].take_if(|connection| connection.state == State::Streaming);
            let Some(mut connection) = listener else { continue };
            let was_empty = connection.output.is_empty();
            let authorization = Some(connection.authorization.as_slice()).filter(|value| !value.is_empty());
            let farewell = pages.farewell(authorization);
            if farewell.is_some() {
                (connection.state, connection.authorization) = (State::Ending, Vec::new());
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

/// What a client's bytes, or its taking ours, have brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    None,
    /// A request was answered, or bytes were sent.
    Answered,
    /// Requests that had waited were looked at.
    Resumed,
}

impl Shared {
    fn context(&self) -> Context<'_> {
        Context {
            site: self.site.as_ref(),
            chunks: self.chunks.as_ref(),
            now_s: self.now.unix_us / 1_000_000,
            date: &self.date,
            stats: &self.stats,
            lends_made: self.made.page_bytes < self.limits.buffer_bytes,
            lends_own: self.made.own_bytes < self.limits.buffer_bytes / OWN_PART,
        }
    }

    /// Counts and logs a response.
    fn note(&mut self, remote: &str, line: &[u8], sent: Sent) {
        let class = usize::from(sent.status.0 / 100).clamp(1, 5);
        self.stats.responses[class - 1] += 1;
        if self.access_log == AccessLog::Off {
            return;
        }
        if self.log.len() >= MAX_LOG_BYTES || self.log.try_reserve(line.len() * 4 + remote.len() + 128).is_err() {
            self.stats.log_lines_lost += 1;
            return;
        }
        log_line::put(&mut self.log, remote, self.now.unix_us / 1_000_000, line, sent.status, sent.body_bytes);
    }
}

impl Connection {
    fn buffered_bytes(&self) -> usize {
        let pending_bytes = self.pending.as_ref().map_or(0, |(head, _)| head.capacity());
        self.input.capacity() + pending_bytes + self.authorization.capacity() + self.output.own_bytes()
    }

    /// Keeps bytes that cannot be answered yet.
    fn keep(&mut self, bytes: &[u8]) {
        if self.state != State::Open || bytes.is_empty() {
            return;
        }
        match self.input.try_reserve_exact(bytes.len()) {
            Ok(()) => self.input.extend_from_slice(bytes),
            Err(_) => self.state = State::Dead,
        }
    }

    /// Keeps what lets this client listen, for as long as it does.
    fn keep_authorization(&mut self, value: &[u8]) {
        match self.authorization.try_reserve_exact(value.len()) {
            Ok(()) => self.authorization.extend_from_slice(value),
            Err(_) => self.state = State::Dead,
        }
    }

    /// Answers every complete request at the start of `bytes`, as long as the output has room. Returns how much it used.
    fn answer_all(&mut self, bytes: &[u8], shared: &mut Shared, pages: &mut dyn Pages) -> (usize, Progress) {
        let (mut used, mut progress) = (0, Progress::None);
        loop {
            if self.state != State::Open {
                return (bytes.len(), progress);
            }
            let rest = &bytes[used..];
            let is_read = self.pending.as_ref().is_some_and(|(_, reader)| reader.is_done());
            if rest.is_empty() && !is_read || !self.output.takes_more(BATCH_BYTES) || self.awaits.is_some() {
                return (used, progress);
            }
            let step = match &mut self.pending {
                Some((_, reader)) => reader.read(rest).map(|len| Step { len, is_whole: reader.is_done() }),
                // One empty line before a request is a remnant of the one before (RFC 9112 §2.2).
                None if rest.starts_with(b"\r\n") && !self.skipped_line => {
                    self.skipped_line = true;
                    self.scanned = 0;
                    used += 2;
                    continue;
                }
                None => request::find_end(rest, &mut self.scanned)
                    .map(|end| Step { len: end.unwrap_or(0), is_whole: end.is_some() }),
            };
            let answered = step.and_then(|step| {
                used += step.len;
                if !step.is_whole {
                    return Ok(Answered::Incomplete);
                }
                self.scanned = 0;
                self.answer_or_read_body(&rest[..step.len], shared, pages)
            });
            match answered {
                Ok(Answered::Yes) => (progress, self.skipped_line) = (Progress::Answered, false),
                Ok(Answered::AfterBody) => {}
                Ok(Answered::Incomplete) => return (used, progress),
                Ok(Answered::AfterReading { head_bytes }) => return (used - head_bytes, progress),
                Err(_) if self.output.reserve(RESPONSE_ROOM_BYTES).is_err() => self.state = State::Dead,
                Err(status) => {
                    let line = request_line(self.pending.as_ref().map_or(rest, |(head, _)| head));
                    let sent = respond::refuse(status, &shared.context(), &mut self.output);
                    shared.note(&self.remote, line, sent);
                    self.state = State::Ending;
                }
            }
        }
    }

    /// Answers a request whose head has arrived, or whose body has been read over.
    fn answer_or_read_body(
        &mut self,
        head: &[u8],
        shared: &mut Shared,
        pages: &mut dyn Pages,
    ) -> Result<Answered, Status> {
        if let Some((head, reader)) = self.pending.take() {
            let answered = request::parse(&head, |request| self.answer(request, request.persistence, shared, pages))?;
            if let Answered::AfterReading { .. } = answered {
                self.pending = Some((head, reader));
                return Ok(Answered::AfterReading { head_bytes: 0 });
            }
            return Ok(answered);
        }
        let step = request::parse(head, |request| {
            let reader = BodyReader::new(request.framing)?;
            let expects = request.minor_version > 0 && request.values("expect").next().is_some();
            if reader.is_done() {
                return Ok(Err(self.answer(request, request.persistence, shared, pages)));
            }
            if expects {
                // The answer does not depend on the body, so it is not asked for; whether it comes all the same cannot
                // be known, so the connection ends (RFC 9110 §10.1.1).
                return Ok(Err(self.answer(request, Persistence::Close, shared, pages)));
            }
            Ok(Ok(reader))
        })??;
        match step {
            Ok(reader) => {
                let mut kept = Vec::new();
                kept.try_reserve_exact(head.len()).map_err(|_| Status::SERVICE_UNAVAILABLE)?;
                kept.extend_from_slice(head);
                self.pending = Some((kept, reader));
                Ok(Answered::AfterBody)
            }
            Err(answered) => Ok(answered),
        }
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        persistence: Persistence,
        shared: &mut Shared,
        pages: &mut dyn Pages,
    ) -> Answered {
        if self.output.reserve(RESPONSE_ROOM_BYTES).is_err() {
            self.state = State::Dead;
            return Answered::Yes;
        }
        let mut scratch = core::mem::take(&mut shared.scratch);
        let outcome = respond::respond(request, persistence, &shared.context(), pages, &mut scratch, &mut self.output);
        shared.scratch = scratch;
        let sent = match outcome {
            Outcome::Sent(sent) => sent,
            Outcome::Awaits(chunk) => {
                self.awaits = Some(chunk);
                return Answered::AfterReading { head_bytes: request.head_bytes };
            }
        };
        shared.note(&self.remote, request.line, sent);
        self.held = self.held.max(sent.seen);
        self.has_own_page = sent.is_own;
        self.state = match (sent.delivery, sent.persistence) {
            (Delivery::Stream, _) if request.method != request::Method::Head => State::Streaming,
            (_, Persistence::Close) | (Delivery::Stream, _) => State::Ending,
            (Delivery::Whole, Persistence::KeepAlive) => State::Open,
        };
        if self.state == State::Streaming {
            self.keep_authorization(request.value("authorization").unwrap_or_default());
        }
        Answered::Yes
    }

    fn wanted_phase(&self) -> Phase {
        match self.state {
            State::Dead => Phase::Dead,
            State::Streaming => Phase::Streaming,
            _ if self.awaits.is_some() && self.output.is_empty() => Phase::Disk,
            _ if !self.output.is_empty() => Phase::Sending,
            State::Ending => Phase::Lingering,
            State::Open if self.pending.is_some() => Phase::Body,
            State::Open if !self.input.is_empty() => Phase::Head,
            State::Open => Phase::Idle,
        }
    }

    /// Ends a connection that has taken too long; one in the middle of a request is told.
    fn time_out(&mut self, shared: &mut Shared) {
        if !matches!(self.phase, Phase::Head | Phase::Body) {
            self.state = State::Dead;
            return;
        }
        let sent = respond::refuse(Status::REQUEST_TIMEOUT, &shared.context(), &mut self.output);
        let line = request_line(self.pending.as_ref().map_or(&self.input, |(head, _)| head));
        shared.note(&self.remote, line, sent);
        self.state = State::Ending;
    }
}

/// How far into a request some bytes lead.
struct Step {
    len: usize,
    /// Whether a head or a body has come to its end.
    is_whole: bool,
}

/// Whether a request was answered.
enum Answered {
    Yes,
    /// Its body is to be read over first.
    AfterBody,
    /// Its page is to be read first. Its head, of so many bytes, is looked at again then.
    AfterReading {
        head_bytes: usize,
    },
    Incomplete,
}

/// What is there of a request line.
fn request_line(head: &[u8]) -> &[u8] {
    head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
