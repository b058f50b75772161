mod eviction;
mod link;
mod requests;

pub use link::Dial;

use crate::{held::Held, web::Web};
use alloc::{
    boxed::Box,
    collections::{TryReserveError, VecDeque},
    string::String,
    vec::Vec,
};
use core::ops::Range;
use kayvee_commands::{
    ClientType, Close, Environment, LogError, Output, Pause, Pending, Session, Store,
    options::{Options, ShutdownOn},
};
use kayvee_platform::{BlockDevice, NetworkFigures, Now, earliest};
use kayvee_resp::Parser;

/// Keys looked at in one slice of active expiry, at effort 1.
const EXPIRE_SLICE_KEYS: usize = 200;
/// Slices in one round of active expiry. A round that finds much to do is followed by the next one soon.
const EXPIRE_SLICES: usize = 8;
/// Share of the figures for `expired_stale_perc` that a slice of active expiry leaves over.
const EXPIRY_STATS_KEPT: f64 = 0.95;
const EXPIRE_AGAIN_NS: u64 = 1_000_000;
/// Lines a second about clients that are closed.
const LOG_LINES_PER_SECOND: u32 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// A connected client: a dense index, reused after [`Engine::disconnect`], by which a target finds its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// Where a client comes from, as `CLIENT LIST` shows it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The client's `address:port`.
    pub remote: String,
    /// The `address:port` that it connected to.
    pub local: String,
    /// Whether it comes from this machine, or from where protected mode lets everybody in.
    pub is_local: bool,
}

/// Why a connection was not accepted: bytes to send before closing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub &'static [u8]);

const NO_MEMORY: Refusal = Refusal(b"-ERR out of memory for another client\r\n");

const PROTECTED: Refusal = Refusal(
    b"-DENIED Kayvee is running in protected mode, and the default user has no password: only clients on the machine \
      itself are let in. To let others in, either set a password (requirepass, or ACL SETUSER default), or switch \
      protected mode off with 'CONFIG SET protected-mode no' from the machine itself or '--protected-mode no' at start, \
      if nobody but you can reach it.\r\n",
);

/// What a target does with a connection after it has sent what it could of the client's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays, and its bytes are wanted.
    Open,
    /// It stays, but nothing should be read from it until the engine names it ready again.
    Paused,
    /// Close it once all its output is sent.
    CloseAfterOutput,
    /// Close it now and drop its output.
    CloseNow,
}

/// A request to end the process or the virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// The exit status to end with.
    pub status: u8,
}

/// One connection's bytes.
struct Connection {
    parser: Parser,
    /// Bytes that are not executed yet; they begin where a request begins, or with an argument of it that is long.
    query: Vec<u8>,
    /// What came before that argument: empty while there is none.
    head: Vec<u8>,
    /// The length of that argument once it is complete, and what came before it stands behind it as well.
    ahead_len: usize,
    /// Bytes that the first request in the query buffer has at least, as far as it can be told. An argument that is long ends
    /// there.
    at_least: usize,
    /// Bytes sent since the connection began.
    sent_in_all: u64,
    /// What of the output waits for the log.
    held: Held,
    /// Whether it is in the ready queue.
    is_ready: bool,
    /// Whether its next request waits for the end of a `CLIENT PAUSE` or of a command that blocks.
    is_held: bool,
    /// As its [`Peer`] said.
    is_local: bool,
}

impl Connection {
    /// What there is of requests that are not executed yet. A long argument counts from its own beginning on, as Redis
    /// keeps it.
    fn pending(&self) -> Pending {
        let before = self.long_argument().filter(|_| self.head.is_empty()).map_or(0, |argument| argument.start);
        let query_bytes = self.query.len().saturating_sub(before);
        Pending {
            query_bytes,
            query_capacity: self.query.capacity() + self.head.capacity(),
            places_bytes: self.parser.places_bytes(),
        }
    }

    /// Where the argument lies among the bytes of its request that is being read, if it is long.
    fn long_argument(&self) -> Option<Range<usize>> {
        /// Redis' `PROTO_MBULK_BIG_ARG`.
        const LONG_ARGUMENT_BYTES: usize = 32 << 10;
        self.parser.argument().filter(|argument| argument.len() >= LONG_ARGUMENT_BYTES)
    }

    /// Forgets what has not been executed.
    fn forget_requests(&mut self) {
        (self.parser, self.query, self.head) = (Parser::new(), Vec::new(), Vec::new());
        (self.ahead_len, self.at_least) = (0, 0);
    }
}

/// The store and its clients.
pub struct Engine {
    pub(crate) store: Store,
    connections: Vec<Option<Box<Connection>>>,
    free_slots: Vec<u32>,
    ready: VecDeque<ClientId>,
    next_client_id: u64,
    next_cron_ns: u64,
    /// When idle clients are looked at next.
    next_sweep_ns: u64,
    /// The database that active expiry goes on with.
    expire_db: usize,
    /// Whether replies wait for the log, and the slots of the clients that have some which do.
    holds_replies: bool,
    holding: Vec<u32>,
    /// Bytes that each client takes, by slot, and all together, as far as that has been looked at. They are kept while
    /// there is a limit on them.
    weights: Vec<u64>,
    clients_bytes: u64,
    /// The limit as of the last look at all of them.
    limit_known: Option<u64>,
    /// The turn of that look.
    clients_weighed_ns: u64,
    /// The turn in which nobody was left to drop, though they took too much.
    evicted_in_vain_ns: u64,
    /// The present second of the monotonic clock, and the lines logged in it about clients that were closed.
    log_second: u64,
    log_lines: u32,
}

/// As [`Engine::turns_away`].
#[inline(never)]
pub(crate) fn turns_away(store: &Store, is_local: bool) -> bool {
    store.options.protected_mode && !is_local && store.acl.default_needs_no_password()
}

impl Engine {
    /// Makes an empty store.
    pub fn new(options: Options, environment: Environment, now: Now) -> Engine {
        Engine {
            store: Store::new(options, environment, now),
            connections: Vec::new(),
            free_slots: Vec::new(),
            ready: VecDeque::new(),
            next_client_id: 1,
            next_cron_ns: now.monotonic_ns,
            next_sweep_ns: now.monotonic_ns,
            expire_db: 0,
            holds_replies: false,
            holding: Vec::new(),
            weights: Vec::new(),
            clients_bytes: 0,
            limit_known: None,
            clients_weighed_ns: u64::MAX,
            evicted_in_vain_ns: u64::MAX,
            log_second: 0,
            log_lines: 0,
        }
    }

    /// The options in force; `CONFIG SET` may have changed them since start.
    pub fn options(&self) -> &Options {
        &self.store.options
    }

    /// Notes that a phase of the start is over, for the status page.
    pub fn note_boot_phase(&mut self, name: &'static str, over_ns: u64) {
        self.store.boot_phases.push((name, over_ns));
    }

    /// The store's own pages on the web server.
    pub fn web(&mut self) -> Web<'_> {
        Web { store: &mut self.store }
    }

    /// Starts a turn: all that happens until the next one happens at `now`.
    pub fn begin_turn(&mut self, now: Now) {
        self.store.now = now;
        self.store.watch_expiry();
    }

    /// Tells the store what its network has done, where that is one of our own, for whoever asks in this turn.
    pub fn set_network(&mut self, figures: NetworkFigures) {
        self.store.network = Some(figures);
    }

    /// Has no more clients than this, whatever `maxclients` says now or later: its network has no room for more.
    pub fn limit_clients(&mut self, most: u32) {
        self.store.most_clients = most;
        self.store.options.maxclients = self.store.options.maxclients.min(most);
    }

    /// Tells the store what the buffers of such a network take now.
    #[inline]
    pub fn note_network_buffers(&mut self, bytes: usize) {
        self.store.network_buffers_bytes = bytes as u64;
    }

    /// Bytes that the network's buffers may take in this turn.
    pub fn network_room_bytes(&self) -> u64 {
        self.store.network_room_bytes()
    }

    /// Admits a new connection.
    pub fn connect(&mut self, peer: Peer) -> Result<ClientId, Refusal> {
        if self.store.clients >= self.store.options.maxclients as usize {
            self.store.stats.connections_rejected += 1;
            return Err(Refusal(b"-ERR max number of clients reached\r\n"));
        }
        if turns_away(&self.store, peer.is_local) {
            self.store.stats.connections_rejected += 1;
            return Err(PROTECTED);
        }
        if self.is_short_of_memory() {
            self.store.stats.connections_rejected += 1;
            return Err(NO_MEMORY);
        }
        if self.free_slots.is_empty() && self.reserve_slot().is_err() {
            self.store.stats.connections_rejected += 1;
            return Err(NO_MEMORY);
        }
        Ok(self.admit(peer))
    }

    /// Whether protected mode lets nobody in who comes from there.
    pub fn turns_away(&self, is_local: bool) -> bool {
        turns_away(&self.store, is_local)
    }

    /// Whether a client that has never logged in would still be let in, and as the same user, if it connected now. A
    /// session that serves whoever sends a datagram has to be as new to each of them.
    pub fn is_as_new(&self, client: ClientId) -> bool {
        let slot = client.0 as usize;
        match (self.store.sessions.get(slot), self.connections.get(slot)) {
            (Some(Some(session)), Some(Some(connection))) => {
                session.authenticated != self.store.acl.needs_login() && !turns_away(&self.store, connection.is_local)
            }
            _ => false,
        }
    }

    /// Takes a connection for which there is room.
    fn admit(&mut self, peer: Peer) -> ClientId {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.store.sessions.push(None);
            self.weights.push(0);
            self.connections.len() as u32 - 1
        });
        let now_ns = self.store.now.monotonic_ns;
        let authenticated = !self.store.acl.needs_login();
        let session = Session::new(self.next_client_id, peer.remote, peer.local, authenticated, now_ns);
        let connection = Connection {
            parser: Parser::new(),
            query: Vec::new(),
            head: Vec::new(),
            ahead_len: 0,
            at_least: 0,
            sent_in_all: 0,
            held: Held::default(),
            is_ready: false,
            is_held: false,
            is_local: peer.is_local,
        };
        self.store.sessions[slot as usize] = Some(Box::new(session));
        self.connections[slot as usize] = Some(Box::new(connection));
        self.next_client_id += 1;
        self.store.clients += 1;
        self.store.stats.connections_received += 1;
        ClientId(slot)
    }

    /// Makes sure that one more client can come, be named ready, be touched by another one and go.
    fn reserve_slot(&mut self) -> Result<(), TryReserveError> {
        let slots = self.connections.len() + 1;
        self.connections.try_reserve(1)?;
        self.store.sessions.try_reserve(1)?;
        self.free_slots.try_reserve(slots - self.free_slots.len())?;
        self.store.reserve_touched(slots)?;
        self.holding.try_reserve(slots.saturating_sub(self.holding.len()))?;
        self.weights.try_reserve(slots.saturating_sub(self.weights.len()))?;
        self.ready.try_reserve(slots.saturating_sub(self.ready.len()))
    }

    fn active_pause(&mut self) -> Option<Pause> {
        self.store.pause.filter(|pause| pause.until_ns > self.store.now.monotonic_ns)
    }

    /// Ends a connection whose unsent replies exceed their limits.
    fn check_output(&mut self, slot: u32) {
        let now_ns = self.store.now.monotonic_ns;
        let Some(session) = self.store.sessions[slot as usize].as_deref_mut() else { return };
        let client_type = ClientType::of(session);
        let limit = self.store.options.output_limit(client_type);
        if limit.hard_bytes == 0 && limit.soft_bytes == 0 {
            session.over_soft_limit_since_ns = None;
            return self.weigh(slot);
        }
        let (dump_bytes, behind_bytes) =
            session.replica.as_ref().map_or((0, 0), |replica| (replica.dump_bytes, replica.behind_bytes()));
        let bytes = session.output.unsent().saturating_sub(dump_bytes) as u64 + behind_bytes;
        let over_hard = limit.hard_bytes > 0 && bytes > limit.hard_bytes;
        let since = match session.over_soft_limit_since_ns {
            _ if limit.soft_bytes == 0 || bytes <= limit.soft_bytes => None,
            None => Some(now_ns),
            since => since,
        };
        session.over_soft_limit_since_ns = since;
        let over_soft = since.is_some_and(|since| now_ns - since >= limit.soft_seconds.saturating_mul(SECOND_NS));
        // A replica that was dropped would come back for as much as is in the backlog, over and over.
        let is_over =
            |store: &Store| over_soft || client_type != ClientType::Replica || bytes > store.backlog_limit_bytes();
        if (over_soft || over_hard) && is_over(&self.store) {
            self.end_for_unsent(slot, bytes);
        }
        self.weigh(slot);
    }

    #[cold]
    fn end_for_unsent(&mut self, slot: u32, bytes: u64) {
        let may_log = self.may_log();
        let Some(session) = self.store.sessions[slot as usize].as_deref_mut() else { return };
        if session.close == Some(Close::Now) {
            return;
        }
        session.close = Some(Close::Now);
        if may_log {
            log::warn!("closing client {} at {}: {bytes} bytes of unsent replies", session.id, session.remote);
        }
        self.store.stats.output_buffer_limit_disconnections += 1;
        self.mark_ready(ClientId(slot));
    }

    /// Forgets a client whose connection is gone. Its id may be given out again from now on, or when a script has ended that has
    /// changed data in its name.
    pub fn disconnect(&mut self, client: ClientId) {
        let slot = client.0 as usize;
        if self.store.sessions.get(slot).is_some_and(Option::is_some) {
            self.connections[slot] = None;
            if self.store.forget(client.0) {
                return;
            }
            self.store.sessions[slot] = None;
            self.weigh(client.0);
            self.free_slots.push(client.0);
            self.store.clients -= 1;
        }
    }

    /// Ends a turn with a bounded slice of background work.
    pub fn end_turn(&mut self) {
        let now_ns = self.store.now.monotonic_ns;
        self.store.take_sample();
        if self.store.pause.is_some() && self.active_pause().is_none() {
            self.store.set_pause(None);
            self.release_held();
        }
        if self.store.take_device_waits() {
            self.release_held();
        }
        if now_ns >= self.next_cron_ns && !self.store.pauses_cron {
            let again = self.expire_round();
            let period_ns = if again { EXPIRE_AGAIN_NS } else { SECOND_NS / u64::from(self.store.options.hz) };
            self.next_cron_ns = now_ns + period_ns;
            self.store.stats.peak_bytes = self.store.stats.peak_bytes.max(self.store.used_bytes());
            self.limit_clients_memory();
        }
        if now_ns >= self.next_sweep_ns {
            self.sweep_clients();
            self.next_sweep_ns = now_ns + SECOND_NS;
        }
        if self.store.has_garbage() {
            self.store.free_slice();
        }
        self.relieve_memory();
        if let Some(slot) = self.store.continue_script()
            && self.connections[slot as usize].is_none()
        {
            // Its client has left: nobody reads what was said, and with the script it goes for good.
            self.disconnect(ClientId(slot));
        }
        // What others wait for may not be served between two commands of a script.
        if !self.store.scripting_is_busy() {
            self.store.end_waits();
            if !self.store.pauses_cron {
                self.store.save_if_due();
            }
        }
        self.store.tick_replication();
        if self.store.take_releases() {
            self.release_held();
        }
        if let Some(slot) = self.store.master_slot() {
            // It may have waited for a script.
            self.resume_held(slot);
        }
        self.serve_touched();
        if self.clients_take_too_much() {
            self.limit_clients_memory();
        }
        // What clients had sent while they waited may have changed more.
        self.store.broadcast_invalidations();
        // Expiry and eviction have effects of their own.
        self.store.report_all_expired();
        self.store.end_unit();
        self.store.compact_slice();
        self.store.feed_replicas();
        self.store.copy_slice();
        self.serve_touched();
    }

    /// Opens the log on a device, or makes one there if it is blank, and takes over what it holds: before the first client
    /// is served. On an error the device is as it was, and the store is good for nothing.
    pub fn open_log(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        self.store.open_log(device)?;
        self.holds_replies = self.store.replies_wait();
        Ok(())
    }

    /// Puts a log that was made in its place once it is all data, and closes one that is not wanted any more: after
    /// [`drive_log`](Self::drive_log), where the host makes logs.
    pub fn settle_log(&mut self, device: &mut dyn BlockDevice) {
        self.store.settle_log(device);
        self.serve_touched();
    }

    /// Closes the log, if there is one: when [`shutdown`](Self::shutdown) has told of the end.
    pub fn close_log(&mut self, device: &mut dyn BlockDevice) {
        self.store.close_log(device);
    }

    /// Whether a log is open, so that its device is needed.
    pub fn log_is_open(&self) -> bool {
        self.store.log_is_open()
    }

    /// Writes all data to the log and waits until it is on stable storage, when there are no clients to serve.
    pub fn write_all(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        self.store.write_all(device)
    }

    /// Sets how many members a part of a large collection has that is written down, and from where on one is large: for tests,
    /// in which none is.
    pub fn set_part_sizes(&mut self, part_members: usize, large_members: usize) {
        self.store.set_part_sizes(part_members, large_members);
    }

    /// Goes on with clients that a command of another one has unblocked or written to.
    fn serve_touched(&mut self) {
        while let Some(slot) = self.store.next_touched() {
            self.resume_held(slot);
            self.check_output(slot);
            self.mark_ready(ClientId(slot));
        }
    }

    /// Executes what a client had sent while it could not be served. Returns whether it had.
    #[inline(never)]
    fn resume_held(&mut self, slot: u32) -> bool {
        let waits = self.store.sessions[slot as usize].as_ref().is_some_and(|session| session.is_waiting());
        let held = self.connections[slot as usize].take_if(|connection| connection.is_held && !waits);
        let Some(mut connection) = held else { return false };
        self.resume(slot, &mut connection);
        self.connections[slot as usize] = Some(connection);
        self.store.end_timing();
        true
    }

    /// Executes what waited for the end of a pause.
    fn release_held(&mut self) {
        for slot in 0..self.connections.len() as u32 {
            if self.resume_held(slot) {
                self.check_output(slot);
                self.mark_ready(ClientId(slot));
            }
        }
    }

    /// Removes keys and fields whose time has come. Returns whether there is probably more to do.
    fn expire_round(&mut self) -> bool {
        if !self.store.active_expiry || self.store.keeps_expired() || self.store.scripting_is_busy() {
            return false;
        }
        let limit = EXPIRE_SLICE_KEYS * usize::from(self.store.options.active_expire_effort);
        let clock = self.store.environment.clock;
        let since_ns = self.store.monitors_latency().then(|| clock.monotonic_ns());
        let mut again = false;
        for _ in 0..EXPIRE_SLICES.max(self.store.dbs.len()) {
            let db = &mut self.store.dbs[self.expire_db];
            let slice = db.expire_slice(self.store.now.unix_ms(), limit);
            self.store.stats.expired_keys += slice.expired as u64 + db.take_lazily_expired();
            if db.expired_names.has_any() {
                self.store.report_expired(self.expire_db);
            }
            let stats = &mut self.store.stats;
            stats.expiry_examined = stats.expiry_examined * EXPIRY_STATS_KEPT + slice.examined as f64;
            stats.expiry_found = stats.expiry_found * EXPIRY_STATS_KEPT + slice.expired as f64;
            // Above a tenth of expired keys it pays to look on in the same database.
            let productive = slice.examined >= limit && slice.expired * 10 > slice.examined;
            let productive = self.store.expire_fields(self.expire_db, limit) || productive;
            again |= productive;
            if !productive {
                self.expire_db = (self.expire_db + 1) % self.store.dbs.len();
            }
        }
        if let Some(since_ns) = since_ns {
            self.store.note_latency("expire-cycle", clock.monotonic_ns().saturating_sub(since_ns));
        }
        self.store.stats.expiry_rounds_cut += u64::from(again);
        again
    }

    /// Ends connections that have been idle for too long or could not send their output.
    fn sweep_clients(&mut self) {
        let timeout_ns = u64::from(self.store.options.timeout) * SECOND_NS;
        let now_ns = self.store.now.monotonic_ns;
        for slot in 0..self.connections.len() as u32 {
            let Some(session) = self.store.sessions[slot as usize].as_deref_mut() else { continue };
            let may_idle = session.is_waiting() || session.is_monitor || ClientType::of(session) != ClientType::Normal;
            let is_idle = timeout_ns > 0 && now_ns - session.last_request_ns > timeout_ns && !may_idle;
            if is_idle && session.close.is_none() {
                log::debug!("closing idle client {} at {}", session.id, session.remote);
                session.close = Some(Close::Now);
                self.mark_ready(ClientId(slot));
            } else if session.over_soft_limit_since_ns.is_some() {
                self.check_output(slot);
            }
        }
    }

    /// Whether one more line about a client's end may be logged. Where a line takes a millisecond, as on a serial
    /// console, clients that misbehave could otherwise keep the store busy with telling of them.
    fn may_log(&mut self) -> bool {
        let second = self.store.now.monotonic_ns / SECOND_NS;
        if self.log_second != second {
            (self.log_second, self.log_lines) = (second, 0);
        }
        self.log_lines += 1;
        if self.log_lines == LOG_LINES_PER_SECOND + 1 {
            log::warn!("more clients are being closed; they are not reported until the next second");
        }
        self.log_lines <= LOG_LINES_PER_SECOND
    }

    fn mark_ready(&mut self, client: ClientId) {
        if let Some(connection) = self.connections[client.0 as usize].as_deref_mut()
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push_back(client);
        }
    }

    /// The next client with output to send or a changed [`Fate`], each at most once a turn.
    pub fn next_ready(&mut self) -> Option<ClientId> {
        loop {
            let client = self.ready.pop_front()?;
            if let Some(connection) = self.connections[client.0 as usize].as_deref_mut() {
                // One that was reconnected in the same slot since then is named once more, which does no harm.
                connection.is_ready = false;
                if self.holds_replies {
                    self.hold(client.0);
                }
                return Some(client);
            }
        }
    }

    /// Lets what a client has been told in this turn wait until it is on stable storage.
    fn hold(&mut self, slot: u32) {
        let (Some(connection), Some(session)) =
            (self.connections[slot as usize].as_deref_mut(), self.store.sessions[slot as usize].as_deref())
        else {
            return;
        };
        let end = connection.sent_in_all + session.output.unsent() as u64;
        if connection.held.hold(end, self.store.appended(), self.store.stable()) {
            self.holding.push(slot);
        }
    }

    /// Hands what is due to the log's device and takes what it has finished: once a turn between
    /// [`end_turn`](Self::end_turn) and [`next_ready`](Self::next_ready). Without a log it does nothing.
    pub fn drive_log(&mut self, device: &mut dyn BlockDevice) {
        self.store.drive_log(device);
        if self.store.replies_wait() != self.holds_replies {
            self.change_holding();
        }
        if !self.holding.is_empty() {
            self.release();
        }
        // Those who have waited for the log are answered.
        self.serve_touched();
    }

    /// Begins or ends to let replies wait. What was written before may leave, unless it tells of what may never become
    /// stable: such a client is disconnected instead.
    #[cold]
    fn change_holding(&mut self) {
        let is_lost = self.holds_replies && self.store.log_fails();
        self.holds_replies = !self.holds_replies;
        self.holding.clear();
        for slot in 0..self.connections.len() as u32 {
            let (Some(connection), Some(session)) =
                (self.connections[slot as usize].as_deref_mut(), self.store.sessions[slot as usize].as_deref_mut())
            else {
                continue;
            };
            let end = connection.sent_in_all + session.output.unsent() as u64;
            let has_more = end > connection.held.released();
            connection.held.release_all(end);
            if is_lost && has_more {
                session.close = Some(Close::Now);
                session.output = Output::default();
            }
            if has_more {
                self.mark_ready(ClientId(slot));
            }
        }
    }

    /// Lets leave what has become stable.
    fn release(&mut self) {
        let stable = self.store.stable();
        let mut holding = core::mem::take(&mut self.holding);
        holding.retain(|&slot| {
            let Some(connection) = self.connections[slot as usize].as_deref_mut() else { return false };
            let has_more = connection.held.release(stable);
            let waits = connection.held.is_waiting();
            if has_more {
                self.mark_ready(ClientId(slot));
            }
            waits
        });
        self.holding = holding;
    }

    /// Whether replies may have to wait for the log.
    pub(crate) fn holds_replies(&self) -> bool {
        self.holds_replies
    }

    /// Bytes to send to a client next. There may be more behind them, so a target asks again when they are sent.
    pub fn output(&self, client: ClientId) -> &[u8] {
        let slot = client.0 as usize;
        match (self.store.sessions.get(slot), self.connections.get(slot)) {
            (Some(Some(session)), Some(Some(connection))) => {
                let unsent = session.output.first();
                if self.holds_replies {
                    let released = connection.held.released().saturating_sub(connection.sent_in_all);
                    &unsent[..(released as usize).min(unsent.len())]
                } else {
                    unsent
                }
            }
            _ => &[],
        }
    }

    /// Reports that the first `len` bytes of a client's output are on their way. Returns whether there may be more of it.
    pub fn sent(&mut self, client: ClientId, len: usize) -> bool {
        let slot = client.0 as usize;
        let (Some(Some(session)), Some(Some(connection))) =
            (self.store.sessions.get_mut(slot), self.connections.get_mut(slot))
        else {
            return false;
        };
        session.output.advance(len);
        let has_more = session.output.unsent() > 0;
        connection.sent_in_all += len as u64;
        if let Some(replica) = &mut session.replica {
            replica.sent(len, self.store.now.monotonic_ns);
            self.store.stats.repl_output_bytes += len as u64;
        }
        if self.store.is_migration(client.0) {
            self.store.note_migration_progress();
        }
        self.store.stats.net_output_bytes += len as u64;
        self.store.stats.writes += 1;
        has_more
    }

    /// Whether a client is in the middle of a request whose length is known: it pays to read on.
    pub fn expects_more(&self, client: ClientId) -> bool {
        let connection = self.connections.get(client.0 as usize).and_then(Option::as_deref);
        connection.is_some_and(|connection| connection.at_least > connection.query.len() + 1)
    }

    /// Whether output of a client waits for the log. Until it has left, a client that will send no more is not closed.
    pub fn awaits_log(&self, client: ClientId) -> bool {
        let connection = self.connections.get(client.0 as usize).and_then(Option::as_deref);
        self.holds_replies && connection.is_some_and(|connection| connection.held.is_waiting())
    }

    /// What to do with a client's connection.
    pub fn fate(&self, client: ClientId) -> Fate {
        let slot = client.0 as usize;
        match (self.store.sessions.get(slot), self.connections.get(slot)) {
            (Some(Some(session)), Some(Some(connection))) => match session.close {
                Some(Close::Now) => Fate::CloseNow,
                // What waits for the log is output as well.
                Some(Close::AfterOutput) if self.awaits_log(client) => Fate::Paused,
                Some(Close::AfterOutput) => Fate::CloseAfterOutput,
                // One that waits is read on, or its end would not be seen.
                None if connection.is_held && !session.is_waiting() => Fate::Paused,
                None => Fate::Open,
            },
            _ => Fate::CloseNow,
        }
    }

    /// When the engine wants its next turn even if nothing arrives, in the clock's monotonic nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let store = &self.store;
        let bounds_clients = store.clients > 0 && store.clients_memory_limit_bytes().is_some();
        let has_expiry = store.dbs.iter().any(|db| db.volatile_len() + db.expiring_hashes() > 0);
        let has_cron = (has_expiry || bounds_clients) && !store.pauses_cron;
        let cron = has_cron.then_some(self.next_cron_ns);
        // To look at each client for one that is over its soft limit would cost every turn.
        let [normal, replica, listener] = store.options.client_output_buffer_limit.map(|limit| limit.soft_bytes > 0);
        let has_soft_limit = normal || (replica && !store.replicas.is_empty()) || (listener && store.has_listeners());
        let watches_clients = store.options.timeout > 0 || has_soft_limit;
        let sweep = (store.clients > 0 && watches_clients).then_some(self.next_sweep_ns);
        let pause = store.pause.map(|pause| pause.until_ns);
        let wait = store.next_wait_ends_ns();
        // Whoever has something to send is served between two slices.
        let garbage = store.has_garbage().then_some(store.now.monotonic_ns);
        // A script that was put aside goes on at once.
        let script = store.scripting_is_busy().then_some(store.now.monotonic_ns);
        let save = if store.pauses_cron { None } else { store.next_save_ns() };
        let log = store.log_deadline_ns();
        let replication = store.replication_deadline_ns();
        earliest(&[cron, sweep, pause, wait, garbage, script, save, log, replication])
    }

    /// A shutdown that a client has asked for. The target sends the output that is left, then ends.
    pub fn shutdown(&self) -> Option<Shutdown> {
        self.store
            .shutdown
            .filter(|_| !self.store.pauses_cron && self.store.log_is_settled())
            .map(|status| Shutdown { status })
    }

    /// Asks for a clean shutdown from outside, as a signal does. It may fail, if what is to be saved cannot be.
    pub fn request_shutdown(&mut self, on: ShutdownOn) {
        self.store.begin_shutdown(on);
    }

    /// Whether the end has been asked for, and has not been called off.
    pub fn is_ending(&self) -> bool {
        self.store.is_ending()
    }
}
