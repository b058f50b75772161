//! From what clients send to requests that are executed.

use super::{ClientId, Connection, Engine};
use alloc::vec::Vec;
use kayvee_commands::{Close, Output, ShowsExpired, options::PROTO_MAX_BULK_LEN_MAX};
use kayvee_resp::{Limits, Parser, Progress, first_arguments};

/// What the options behind a long argument mostly take.
const OPTIONS_BYTES: usize = 128;
/// The two bytes behind an argument.
const LINE_END_BYTES: usize = 2;

/// Why execution of a client's requests stopped.
enum Stop {
    /// All that is complete has been executed.
    Incomplete {
        /// Bytes that the next request has at least, as far as it can be told.
        at_least: usize,
    },
    /// A pause is in force, or the client waits for something.
    Held,
    /// The connection ends.
    Closing,
}

impl Engine {
    /// Takes bytes that a client sent, all of them, and executes the requests that they complete.
    pub fn receive(&mut self, client: ClientId, bytes: &[u8]) {
        self.store.stats.reads += 1;
        if self.store.is_migration(client.0) {
            self.store.hear_migration(bytes);
            return self.mark_ready(client);
        }
        let effects;
        let bytes = match self.store.master_slot() == Some(client.0) {
            true => {
                self.store.heard_master(bytes.len());
                effects = self.hear_link(client, bytes);
                effects.as_deref().unwrap_or(bytes)
            }
            false => bytes,
        };
        let Some(mut connection) = self.connections.get_mut(client.0 as usize).and_then(Option::take) else { return };
        self.store.stats.net_input_bytes += bytes.len() as u64;
        let rest =
            if connection.head.is_empty() { Some(bytes) } else { self.take_long(client.0, &mut connection, bytes) };
        if let Some(bytes) = rest {
            if connection.query.is_empty() && !connection.is_held {
                // The usual case: whole requests, executed where they are.
                let (used, stop) = self.execute_all(client.0, &mut connection.parser, bytes);
                self.keep(client.0, &mut connection, &bytes[used..], stop);
            } else if self.append(client.0, &mut connection, bytes) {
                self.note_pending(client.0, &connection);
                self.resume(client.0, &mut connection);
            }
        }
        self.connections[client.0 as usize] = Some(connection);
        self.store.end_timing();
        self.check_output(client.0);
        self.mark_ready(client);
    }

    /// Has the processor fetch from memory what the first requests of some clients are about, all at a time, before they
    /// are [received](Self::receive) one by one.
    pub fn look_ahead<'a>(&self, sent: impl Iterator<Item = (ClientId, &'a [u8])> + Clone) {
        let db_of = |client: ClientId| Some(self.store.sessions.get(client.0 as usize)?.as_deref()?.db);
        // Nearly always all use the same database.
        let Some(at) = sent.clone().find_map(|(client, _)| db_of(client)) else { return };
        let db = &self.store.dbs[at];
        if db.is_beyond_caches() {
            let sent = sent.filter(|&(client, _)| db_of(client) == Some(at));
            let keys = sent.filter_map(|(_, bytes)| first_arguments(bytes).next());
            db.fetch(&mut keys.map(|[key, ..]| key));
        }
    }

    /// Takes what of `bytes` belongs to a request with a long argument, and executes it once it is complete. Returns the rest, if
    /// there is any.
    #[inline(never)]
    fn take_long<'a>(&mut self, slot: u32, connection: &mut Connection, mut bytes: &'a [u8]) -> Option<&'a [u8]> {
        while !(bytes.is_empty() || connection.head.is_empty()) {
            // Not a byte more: what follows the request is not the value's.
            let missing = connection.at_least - connection.query.len();
            let (more, rest) = bytes.split_at(missing.min(bytes.len()));
            if self.append(slot, connection, more) {
                self.note_pending(slot, connection);
                if more.len() == missing {
                    self.go_on_with_long(slot, connection);
                }
            }
            bytes = rest;
        }
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Goes on with the request whose long argument is complete at the beginning of the query buffer, which may become a value.
    #[inline(never)]
    fn go_on_with_long(&mut self, slot: u32, connection: &mut Connection) {
        if connection.ahead_len == 0 {
            connection.ahead_len = connection.at_least - LINE_END_BYTES;
            let head = core::mem::take(&mut connection.head);
            if !self.append(slot, connection, &head) {
                return;
            }
            connection.head = head;
            connection.parser.move_head();
        }
        let (query, ahead_len) = (core::mem::take(&mut connection.query), connection.ahead_len);
        // A value should not take much more memory than it needs: a buffer that held other requests may.
        if query.capacity() - ahead_len <= ahead_len / 8 {
            self.store.offer_buffer();
        }
        let (used, stop) = self.execute_all(slot, &mut connection.parser, &query);
        let kept = self.store.hand_over(query, ahead_len).filter(|_| used == 0);
        let is_over = !matches!(stop, Stop::Incomplete { .. }) || kept.is_none();
        if let Some(mut query) = kept {
            if is_over {
                // It has to wait, in the order in which it was sent.
                let head = &connection.head;
                query.copy_within(..ahead_len + LINE_END_BYTES, head.len());
                query[..head.len()].copy_from_slice(head);
                connection.parser.reset();
            }
            connection.query = query;
        }
        if is_over {
            (connection.head, connection.ahead_len) = (Vec::new(), 0);
        }
        self.keep(slot, connection, &[], stop);
    }

    /// Begins to keep a long argument alone in the query buffer, so that this may become a value. Returns what of the request's
    /// `rest` belongs there.
    fn set_apart<'a>(&self, slot: u32, connection: &mut Connection, rest: &'a [u8]) -> &'a [u8] {
        /// What is longer does not pay to be moved.
        const HEAD_BYTES_MAX: usize = 4 << 10;
        let argument = connection.long_argument().filter(|argument| argument.start <= HEAD_BYTES_MAX);
        // What a master sends is passed on as it came.
        let may_move =
            connection.parser.may_move_head() && connection.head.is_empty() && self.store.master_slot() != Some(slot);
        let Some(argument) = argument.filter(|_| may_move) else { return rest };
        let Connection { query, head, at_least, .. } = connection;
        if head.try_reserve_exact(argument.start).is_err() {
            return rest;
        }
        *at_least = argument.len() + LINE_END_BYTES;
        if query.is_empty() {
            let (before, rest) = rest.split_at(argument.start);
            head.extend_from_slice(before);
            return rest;
        }
        head.extend(query.drain(..argument.start));
        rest
    }

    /// Executes what is in a connection's query buffer.
    pub(super) fn resume(&mut self, slot: u32, connection: &mut Connection) {
        let mut query = core::mem::take(&mut connection.query);
        let (used, stop) = self.execute_all(slot, &mut connection.parser, &query);
        if used == query.len() {
            query = Vec::new();
        } else {
            query.drain(..used);
        }
        connection.query = query;
        self.keep(slot, connection, &[], stop);
    }

    /// Executes every complete request at the start of `bytes`. Returns the length of what was executed.
    #[inline]
    fn execute_all(&mut self, slot: u32, parser: &mut Parser, bytes: &[u8]) -> (usize, Stop) {
        if self.store.is_master_link(slot) {
            self.store.show_expired(ShowsExpired::Yes);
            let result = self.execute_each(slot, parser, bytes);
            self.store.show_expired(ShowsExpired::No);
            return result;
        }
        self.execute_each(slot, parser, bytes)
    }

    #[inline(never)]
    fn execute_each(&mut self, slot: u32, parser: &mut Parser, bytes: &[u8]) -> (usize, Stop) {
        let mut used = 0;
        // What the parser has said of the next request, where it was asked already.
        let mut parsed = None;
        let room_bytes = self.store.reply_room_bytes();
        loop {
            let Some(session) = self.store.sessions[slot as usize].as_deref_mut() else {
                return (bytes.len(), Stop::Closing);
            };
            if session.close.is_some() {
                return (bytes.len(), Stop::Closing);
            }
            if session.is_waiting() {
                return (used, Stop::Held);
            }
            // What its clients could send a master has to hold here as well.
            let bulk_bytes =
                if session.is_master { PROTO_MAX_BULK_LEN_MAX } else { self.store.options.bulk_limit_bytes() };
            // Whoever came before the password was taken away has not authenticated, and need not.
            let authenticated = session.authenticated || !self.store.acl.needs_login();
            let limits = Limits { bulk_bytes, authenticated, room_bytes };
            match parsed.take().unwrap_or_else(|| parser.parse(&bytes[used..], limits)) {
                Ok(Progress::Partial { at_least }) => return (used, Stop::Incomplete { at_least }),
                Ok(Progress::Complete(len)) => {
                    if self.store.is_calm(slot) && !self.clients_take_too_much() {
                        let executed = self.store.execute_plain(slot, parser, &bytes[used..], limits, len);
                        if executed.len > 0 {
                            used += executed.len;
                            parsed = Some(executed.next);
                            continue;
                        }
                    }
                    let request = parser.request(&bytes[used..]);
                    if !request.is_empty() {
                        if self.store.is_held_back(slot, request) {
                            parser.reset();
                            return (used, Stop::Held);
                        }
                        // Clients that take too much make way before keys do.
                        if self.clients_take_too_much() {
                            self.limit_clients_memory();
                            if self.store.sessions[slot as usize].as_ref().is_none_or(|session| session.close.is_some())
                            {
                                return (bytes.len(), Stop::Closing);
                            }
                        }
                        self.store.execute(slot, request);
                    } else if let Some(session) = self.store.sessions[slot as usize].as_deref_mut()
                        && let Some(replica) = &mut session.replica
                    {
                        replica.heard(self.store.now.monotonic_ns);
                    }
                    if self.store.is_master_link(slot) {
                        self.store.applied(slot, &bytes[used..used + len]);
                    }
                    parser.reset();
                    used += len;
                }
                Err(error) => {
                    log::debug!("protocol error from client {} at {}: {error}", session.id, session.remote);
                    let text = [b"ERR Protocol error: ", error.message().as_slice()].concat();
                    session.output.writer(session.protocol).error(&text);
                    session.close = Some(Close::AfterOutput);
                    return (bytes.len(), Stop::Closing);
                }
            }
        }
    }

    /// Keeps bytes that could not be executed yet, and notes what the connection waits for.
    fn keep(&mut self, slot: u32, connection: &mut Connection, rest: &[u8], stop: Stop) {
        connection.is_held = matches!(stop, Stop::Held);
        connection.at_least = 0;
        match stop {
            Stop::Closing => connection.forget_requests(),
            Stop::Incomplete { at_least } => {
                connection.at_least = at_least;
                // Mostly nothing is left.
                if !(rest.is_empty() && connection.query.is_empty()) {
                    let rest = self.set_apart(slot, connection, rest);
                    self.append(slot, connection, rest);
                }
            }
            Stop::Held => _ = self.append(slot, connection, rest),
        }
        if let Some(session) = self.store.sessions[slot as usize].as_deref_mut() {
            if session.close == Some(Close::Now) {
                session.output = Output::default();
            }
            session.pending = connection.pending();
            session.is_paused = connection.is_held && !session.is_waiting();
        }
    }

    /// Forgets requests of a client that are not executed yet, so that they never will be.
    pub(crate) fn drop_pending(&mut self, client: ClientId) {
        let slot = client.0 as usize;
        let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else { return };
        connection.forget_requests();
        self.keep(client.0, &mut connection, &[], Stop::Incomplete { at_least: 0 });
        self.connections[slot] = Some(connection);
    }

    /// Appends to the query buffer within its limit, or ends the connection. Where the buffer has to grow it does so by much, so
    /// that a long request is not copied for each of its pieces, but not beyond the request that is known to come.
    fn append(&mut self, slot: u32, connection: &mut Connection, bytes: &[u8]) -> bool {
        let query = &mut connection.query;
        let len = query.len() + bytes.len();
        let within_limit =
            len as u64 <= self.store.options.client_query_buffer_limit || self.store.is_master_link(slot);
        // What is moved behind a long argument when that is complete finds room there, and so do options behind it.
        let whole = match connection.head.len() {
            0 => connection.at_least,
            head_len => connection.at_least + head_len + OPTIONS_BYTES,
        };
        let ahead = match connection.at_least >= len {
            true if whole <= len * 8 => whole,
            true => len * 4,
            false => len * 2,
        };
        let has_room = len <= query.capacity();
        let room_bytes = self.store.reply_room_bytes();
        let mut grow =
            |capacity: usize| capacity as u64 <= room_bytes && query.try_reserve_exact(capacity - query.len()).is_ok();
        if within_limit && (has_room || grow(ahead) || grow(len)) {
            query.extend_from_slice(bytes);
            return true;
        }
        let may_log = self.may_log();
        if let Some(session) = self.store.sessions[slot as usize].as_deref_mut() {
            let why = if within_limit {
                "there is no memory for its requests"
            } else {
                "it reached client-query-buffer-limit"
            };
            if may_log {
                log::warn!("closing client {} at {}: {why} ({len} bytes)", session.id, session.remote);
            }
            session.close = Some(Close::Now);
            self.store.stats.query_buffer_limit_disconnections += 1;
        }
        connection.forget_requests();
        false
    }
}
