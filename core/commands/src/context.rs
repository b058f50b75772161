use crate::{
    Close, Error, EventClass, Outcome, ReplyMode, Session, Store, args,
    error::c_text,
    store::Calls,
    table::{Command, Flags},
};
use alloc::{format, vec::Vec};
use kayvee_keyspace::{Collection, Db, Edit, Found, Kind, OutOfMemory, Records};
use kayvee_resp::{Request, Writer};

/// What one command works with.
pub struct Context<'a> {
    /// The data, the options and the clients.
    pub store: &'a mut Store,
    /// Where the reply goes.
    pub reply: Writer<'a>,
    /// The slot of the client that sent the command.
    pub slot: u32,
}

impl Context<'_> {
    /// The client that sent the command.
    pub fn session(&mut self) -> &mut Session {
        self.store.sessions[self.slot as usize].as_deref_mut().expect("a client that sends commands has a session")
    }

    /// The number of the client's database.
    pub fn db_index(&self) -> usize {
        self.store.sessions[self.slot as usize].as_ref().map_or(0, |session| session.db)
    }

    /// The client's database.
    pub fn db(&mut self) -> &mut Db {
        let index = self.db_index();
        &mut self.store.dbs[index]
    }

    /// The time of this turn in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.store.now.unix_ms()
    }

    /// Finds a key for reading its value of this kind: counts a hit or miss and notes the use.
    #[inline]
    pub fn read(&mut self, key: &[u8], kind: Kind) -> Result<Option<Found>, Error> {
        let Some(found) = self.find_touched(key) else {
            self.missed(key);
            return Ok(None);
        };
        self.store.stats.keyspace_hits += 1;
        if self.db().kind(found) == kind { Ok(Some(found)) } else { Err(Error::WRONG_TYPE) }
    }

    /// Finds a key for reading about it: counts a hit or miss, but does not note a use.
    pub fn peek(&mut self, key: &[u8]) -> Option<Found> {
        let found = self.find(key);
        match found {
            Some(_) => self.store.stats.keyspace_hits += 1,
            None => self.missed(key),
        }
        found
    }

    fn missed(&mut self, key: &[u8]) {
        self.store.stats.keyspace_misses += 1;
        self.notify(EventClass::KEY_MISS, "keymiss", key);
    }

    /// Finds a key for changing its value of this kind: notes the use, but counts no hit or miss.
    #[inline]
    pub fn find_to_change(&mut self, key: &[u8], kind: Kind) -> Result<Option<Found>, Error> {
        match self.find_touched(key) {
            Some(found) if self.db().kind(found) != kind => Err(Error::WRONG_TYPE),
            found => Ok(found),
        }
    }

    /// Finds a key of any kind and notes the use.
    #[inline]
    pub fn find_touched(&mut self, key: &[u8]) -> Option<Found> {
        let found = self.find(key)?;
        let now_ms = self.now_ms();
        if !self.session().no_touch {
            self.db().touch(found, now_ms);
        }
        Some(found)
    }

    /// Changes the collection at `key`, or makes one where nothing was `found`; see [`Db::edit`].
    pub fn edit<C: Collection, R>(
        &mut self,
        key: &[u8],
        found: Option<Found>,
        change: impl FnOnce(&mut C, &mut Records) -> Result<R, OutOfMemory>,
    ) -> Result<Edit<R>, Error> {
        let now_ms = self.now_ms();
        Ok(self.db().edit(key, found, now_ms, change)?)
    }

    /// Removes a key, which is told as an event.
    pub fn remove(&mut self, key: &[u8], found: Found) {
        self.db().remove(found);
        self.changed(EventClass::GENERIC, "del", key);
    }

    /// Notes that a key has changed: whoever watches it, waits for it or keeps a copy of it learns of it, and those who
    /// listen to keyspace events as well.
    pub fn changed(&mut self, class: EventClass, event: &'static str, key: &[u8]) {
        let db = self.db_index();
        self.store.changed(db, key);
        self.notify(class, event, key);
    }

    /// Tells those who listen to keyspace events.
    #[inline]
    pub fn notify(&mut self, class: EventClass, event: &'static str, key: &[u8]) {
        let db = self.db_index();
        self.store.notify(class, event, db, key);
    }

    /// Finds a key and leaves its statistics alone.
    pub fn find(&mut self, key: &[u8]) -> Option<Found> {
        let now_ms = self.now_ms();
        self.db().find(key, now_ms)
    }
}

impl Store {
    /// Executes one request of the client in `slot` and appends the reply to its output.
    pub fn execute(&mut self, slot: u32, request: Request<'_>) {
        let now_ns = self.now.monotonic_ns;
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        session.requests += 1;
        session.last_request_ns = now_ns;
        let protocol = session.protocol;
        let mut output = core::mem::take(&mut session.output);
        let start = output.len();
        let mut context = Context { store: self, reply: Writer::new(&mut output, protocol), slot };
        let outcome = context.dispatch(request);
        if let Err(error) = outcome {
            context.reply.truncate(start);
            context.reply.error(&error.0);
            context.store.count_error(&error);
        }
        if context.reply.failed() {
            // The reply found no memory. An error is short enough for what was there before, or else nothing is.
            context.reply.truncate(start);
            context.reply.error(&Error::OUT_OF_MEMORY.0);
            if context.reply.failed() {
                context.reply.truncate(start);
                context.session().close = Some(Close::AfterOutput);
            }
        }
        self.stats.commands_processed += 1;
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        match session.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Off => output.truncate(start),
            ReplyMode::SkipNext => {
                output.truncate(start);
                session.reply_mode = ReplyMode::Skip;
            }
            ReplyMode::Skip => {
                output.truncate(start);
                session.reply_mode = ReplyMode::On;
            }
        }
        session.output = output;
    }

    /// The command that a request names, if it may be called at all: `None` for one that is unknown.
    pub fn command_of(&self, request: Request<'_>) -> Option<&'static Command> {
        let command = self.commands.find(request.get(0)?)?;
        match request.get(1) {
            Some(name) if !command.subcommands.is_empty() => {
                command.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
            }
            _ => Some(command),
        }
    }

    fn count_error(&mut self, error: &Error) {
        const KINDS_LIMIT: usize = 128;
        const CODE_LIMIT_BYTES: usize = 32;
        self.stats.error_replies += 1;
        let code = error.0.split(|&b| b == b' ').next().and_then(|code| core::str::from_utf8(code).ok());
        // Only DEBUG ERROR can make one that is no code of ours.
        let code = code.filter(|code| code.len() <= CODE_LIMIT_BYTES).unwrap_or("ERR");
        let errors = &mut self.stats.errors;
        match errors.iter().position(|(name, _)| name == code) {
            Some(at) => errors[at].1 += 1,
            None if errors.len() < KINDS_LIMIT => errors.push((code.into(), 1)),
            None => {}
        }
    }

    fn calls_of(&mut self, command: &'static Command) -> usize {
        // Pipelines mostly repeat one command: the one that is being timed.
        if let Some((at, _)) = self.timed
            && core::ptr::eq(self.calls[at].0, command)
        {
            return at;
        }
        match self.calls.iter().position(|(counted, _)| core::ptr::eq(*counted, command)) {
            Some(at) => at,
            None => {
                self.calls.push((command, Calls::default()));
                self.calls.len() - 1
            }
        }
    }

    fn reject(&mut self, command: &'static Command, error: Error) -> Outcome {
        let at = self.calls_of(command);
        self.calls[at].1.rejected += 1;
        Err(error)
    }

    /// Starts the timing of a command's call, unless the last call was of the same one and is timed still: reading the
    /// clock for each of many pipelined requests would cost as much as they do.
    fn begin_timing(&mut self, at: usize) {
        if self.timed.is_none_or(|(timed, _)| timed != at) {
            self.end_timing();
            self.timed = Some((at, self.environment.clock.monotonic_ns()));
        }
    }
}

impl Context<'_> {
    fn dispatch(&mut self, request: Request<'_>) -> Outcome {
        let name = request.get(0).unwrap_or_default();
        let Some(container) = self.store.commands.find(name) else {
            // A browser that was tricked into posting requests to us must not get one executed.
            if args::is(name, "post") || args::is(name, "host:") {
                log::debug!("closing a connection that sends HTTP, from {}", self.session().remote);
                self.session().close = Some(Close::Now);
                return Ok(());
            }
            return Err(unknown_command(request));
        };
        let (command, sub) = match (container.subcommands, request.get(1)) {
            ([], _) => (container, None),
            (subs, Some(name)) => {
                let sub = subs.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name));
                let Some(sub) = sub else { return Err(unknown_subcommand(container, name)) };
                (sub, Some(sub))
            }
            (_, None) if container.handler.is_some() => (container, None),
            (_, None) => return Err(wrong_arity(container, None)),
        };
        if !command.accepts(request.len()) {
            return self.store.reject(command, wrong_arity(container, sub));
        }
        let session = self.session();
        session.last_command = Some((container, sub));
        if !session.authenticated && !command.flags.contains(Flags::NO_AUTH) {
            return self.store.reject(command, Error::NO_AUTH);
        }
        let is_too_much = |store: &Store| store.is_full() || request.bytes_len() as u64 > store.data_room_bytes();
        if command.flags.contains(Flags::DENYOOM) && is_too_much(self.store) {
            return self.store.reject(command, Error::OUT_OF_MEMORY);
        }
        let handler = command.handler.expect("only containers lack one, and they were handled");
        let at = self.store.calls_of(command);
        self.store.begin_timing(at);
        let outcome = handler(self, request);
        // CONFIG RESETSTAT has emptied the list.
        let at = if at < self.store.calls.len() { at } else { self.store.calls_of(command) };
        let calls = &mut self.store.calls[at].1;
        calls.calls += 1;
        calls.failed += u64::from(outcome.is_err());
        outcome
    }
}

/// Most bytes that an error shows of a command's name, and of its arguments.
const SHOWN_LIMIT: usize = 128;

fn unknown_command(request: Request<'_>) -> Error {
    let mut args = Vec::new();
    for arg in request.from(1) {
        if args.len() >= SHOWN_LIMIT {
            break;
        }
        args.extend([b"'", c_text(arg, SHOWN_LIMIT - args.len()), b"' "].concat());
    }
    let name = c_text(request.get(0).unwrap_or_default(), SHOWN_LIMIT);
    [b"ERR unknown command '", name, b"', with args beginning with: ", &args].concat().into()
}

fn unknown_subcommand(container: &Command, name: &[u8]) -> Error {
    let upper = container.name.to_ascii_uppercase();
    Error::showing("ERR unknown subcommand '", c_text(name, SHOWN_LIMIT), &format!("'. Try {upper} HELP."))
}

fn wrong_arity(container: &Command, sub: Option<&Command>) -> Error {
    let name: Vec<&str> = core::iter::once(container.name).chain(sub.map(|sub| sub.name)).collect();
    args::wrong_arity(&name.join("|"))
}
