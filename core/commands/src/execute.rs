//! From a request to a reply: which command it is, whether it may run now, and running it.

use crate::{
    Close, Context, Error, Origin, ReplyMode, Store, args,
    error::c_text,
    options::PROTO_MAX_BULK_LEN_MAX,
    pubsub,
    table::{Command, Flags},
    transactions::{self, Needs},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::{Protocol, Request, Writer};

impl Store {
    /// Executes one request of the client in `slot` and appends the reply to its output.
    pub fn execute(&mut self, slot: u32, request: Request<'_>) {
        let now_ns = self.now.monotonic_ns;
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        session.requests += 1;
        session.last_request_ns = now_ns;
        let is_replica = session.replica.is_some();
        let offset = self.effects.offset();
        self.run_as(slot, Origin::Client, |context| {
            let start = context.reply.len();
            context.process(request);
            if is_replica && (context.reply.len() > start || context.is_blocked) {
                context.drop_talkative_replica(start);
            }
        });
        self.stats.commands_processed += 1;
        if !self.scripting.is_busy() {
            self.end_unit();
            self.note_written(slot, offset);
            self.serve_waiting();
        }
    }

    /// Notes up to where a client's effects reach, which began after an offset.
    #[inline]
    pub(crate) fn note_written(&mut self, slot: u32, offset: u64) {
        let now = self.effects.offset();
        if now != offset
            && let Some(session) = self.sessions[slot as usize].as_deref_mut()
        {
            session.written_offset = now;
        }
    }

    /// Lets the client in `slot` run something, whose reply goes to its output. Returns whether the client is blocked by
    /// it.
    pub(crate) fn run_as(&mut self, slot: u32, origin: Origin, run: impl FnOnce(&mut Context<'_>)) -> bool {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return false };
        let protocol = session.protocol;
        let mut output = core::mem::take(&mut session.output.last);
        let start = output.len();
        let outer = self.running.replace(slot);
        let mut context = Context::new(self, Writer::new(&mut output, protocol), slot, origin);
        run(&mut context);
        if context.reply.failed() {
            context.reply_no_memory(start);
        }
        let (is_blocked, is_message) = (context.is_blocked, context.is_message);
        self.running = outer;
        let messages = core::mem::take(&mut self.messages_to_running);
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return false };
        if session.reply_mode != ReplyMode::On && !is_message {
            output.truncate(start);
        }
        match session.reply_mode {
            ReplyMode::On | ReplyMode::Off => {}
            ReplyMode::SkipNext => session.reply_mode = ReplyMode::Skip,
            // The reply that is skipped comes later.
            ReplyMode::Skip if is_blocked => {}
            ReplyMode::Skip => session.reply_mode = ReplyMode::On,
        }
        if !messages.is_empty() && output.try_reserve(messages.len()).is_ok() {
            output.extend_from_slice(&messages);
        }
        session.output.last = output;
        session.output.end_part();
        is_blocked
    }

    /// The command that a request names, if it may be called at all: `None` for one that is unknown.
    pub fn command_of(&self, request: Request<'_>) -> Option<&'static Command> {
        self.commands.command_of(request)
    }

    pub(crate) fn count_error(&mut self, error: &Error) {
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
}

impl Context<'_> {
    /// Runs a request, if it may run now, and writes its reply.
    pub fn process(&mut self, request: Request<'_>) {
        let admitted = self.admit(request);
        let start = self.reply.len();
        let command = match admitted {
            Ok(Some(command)) => command,
            Ok(None) => return,
            Err(error) => return self.refuse(request, start, error),
        };
        if transactions::queues(self, command) {
            if let Err(error) = transactions::queue(self, command, request) {
                self.refuse(request, start, error);
            }
            return;
        }
        self.call(command, request);
    }

    /// Replies with the error for a request that may not run, which fails a transaction that it belongs to.
    fn refuse(&mut self, request: Request<'_>, start: usize, error: Error) {
        let error = match self.origin {
            Origin::Client => transactions::refuse(self, request, error),
            _ => error,
        };
        self.fail(start, &error);
    }

    /// Writes an error as the reply, in place of what was written since `start`.
    pub(crate) fn fail(&mut self, start: usize, error: &Error) {
        self.reply.truncate(start);
        self.reply.error(&error.0);
        self.store.count_error(error);
        if self.is_from_master() {
            self.note_divergence(error);
        }
    }

    /// Takes back a reply that found no memory.
    #[cold]
    pub(crate) fn reply_no_memory(&mut self, start: usize) {
        // An error is short enough for what was there before, or else nothing is.
        self.reply.truncate(start);
        self.reply.error(&Error::OUT_OF_MEMORY.0);
        if self.reply.failed() {
            self.reply.truncate(start);
            self.session().close = Some(Close::AfterOutput);
        }
    }

    /// Ends the connection of a replica that has asked for something: the reply would look like an effect.
    #[cold]
    fn drop_talkative_replica(&mut self, start: usize) {
        self.reply.truncate(start);
        let session = self.session();
        session.close = Some(Close::Now);
        let command = session.last_command.map_or("", |(command, _)| command.name);
        log::warn!("Replica generated a reply to command '{command}', disconnecting it: {}", session.remote);
    }

    /// Tells that an effect of the master could not be had here.
    #[cold]
    fn note_divergence(&mut self, error: &Error) {
        let command = self.session().last_command.map_or("", |(command, _)| command.name);
        log::warn!(
            "== CRITICAL == This replica is sending an error to its master: '{}' after processing the command '{command}'",
            String::from_utf8_lossy(&error.0)
        );
    }

    /// Finds a request's command and checks that it may run. `None` means that there is nothing to run or to say.
    fn admit(&mut self, request: Request<'_>) -> Result<Option<&'static Command>, Error> {
        let Some((container, sub)) = self.look_up(request)? else { return Ok(None) };
        let command = sub.unwrap_or(container);
        match self.refusal(container, sub, request) {
            None => Ok(Some(command)),
            Some(error) => self.store.reject(command, error).map(|()| None),
        }
    }

    /// The command that a request names, and its subcommand if it has any.
    #[inline(always)]
    fn look_up(&mut self, request: Request<'_>) -> Result<Option<Named>, Error> {
        let name = request.get(0).unwrap_or_default();
        let Some(container) = self.store.commands.find(name) else {
            // A browser that was tricked into posting requests to us must not get one executed.
            if args::is(name, "post") || args::is(name, "host:") {
                log::debug!("closing a connection that sends HTTP, from {}", self.session().remote);
                self.session().close = Some(Close::Now);
                return Ok(None);
            }
            return Err(unknown_command(request));
        };
        match (container.subcommands, request.get(1)) {
            ([], _) => Ok(Some((container, None))),
            (subs, Some(name)) => match subs.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name)) {
                Some(sub) => Ok(Some((container, Some(sub)))),
                None => Err(unknown_subcommand(container, name)),
            },
            (_, None) if container.handler.is_some() => Ok(Some((container, None))),
            (_, None) => Err(wrong_arity(container, None)),
        }
    }

    /// Why a command may not run now, in the order in which Redis asks.
    #[inline(always)]
    fn refusal(
        &mut self,
        container: &'static Command,
        sub: Option<&'static Command>,
        request: Request<'_>,
    ) -> Option<Error> {
        const NOT_IN_TRANSACTION: Error = Error::text("ERR Command not allowed inside a transaction");
        const NO_REPLICAS: Error = Error::text("NOREPLICAS Not enough good replicas to write.");
        let command = sub.unwrap_or(container);
        if !command.accepts(request.len()) {
            return Some(wrong_arity(container, sub));
        }
        let is_client = self.origin == Origin::Client;
        let session = self.session();
        session.last_command = Some((container, sub));
        let transaction = session.transaction.as_deref();
        let needs = Needs::of(command, transaction);
        let in_transaction = transaction.is_some();
        let listens = session.subscriptions.count() > 0 && session.protocol == Protocol::Resp2;
        let is_let_in = session.authenticated || command.flags.contains(Flags::NO_AUTH);
        // Who sent it to the master was asked all that follows.
        if session.is_master && is_client {
            return None;
        }
        if !is_let_in && self.store.acl.needs_login() {
            return Some(Error::NO_AUTH);
        }
        if let Err(error) = self.check_permission(container, command, request) {
            return Some(error);
        }
        if let Some(error) = self.redirection(command, request) {
            return Some(error);
        }
        if in_transaction && command.flags.contains(Flags::NO_MULTI) {
            return Some(NOT_IN_TRANSACTION);
        }
        // Any command of a client makes room, even if it needs none.
        let has_room = if is_client && !self.store.make_room() {
            // To be queued takes some.
            !(needs.memory || in_transaction && !transactions::is_never_queued(command))
        } else {
            !needs.memory || request.bytes_len() as u64 <= self.store.data_room_bytes()
        };
        // Copies of keys that had to go are called back before the command has its say.
        if is_client && !self.store.messages_to_running.is_empty() {
            let messages = core::mem::take(&mut self.store.messages_to_running);
            self.reply.raw(&messages);
        }
        if !has_room {
            return Some(Error::OUT_OF_MEMORY);
        }
        let store = &mut *self.store;
        let writes = needs.writes && self.origin != Origin::Transaction;
        if writes && let Some(error) = store.unsaved_error() {
            return Some(error);
        }
        if is_client
            && store.has_log()
            && (writes || command.name == "ping")
            && let Some(error) = store.durable.refusal(
                &store.options,
                request.bytes_len() + needs.queued_bytes,
                command.name,
                needs.memory || !writes,
            )
        {
            return Some(error);
        }
        if writes && store.lacks_replicas() {
            return Some(NO_REPLICAS);
        }
        let is_replica = is_client && store.replication.has_master();
        if is_replica
            && writes
            && let Some(error) = store.refusal_of_write()
        {
            return Some(error);
        }
        if listens && is_client && !pubsub::is_allowed_while_listening(container) {
            return Some(not_while_listening(container, sub));
        }
        if is_replica && let Some(error) = store.refusal_by_link(command, needs) {
            return Some(error);
        }
        (store.scripting.is_busy() && !command.flags.contains(Flags::ALLOW_BUSY)).then(|| store.scripting.busy_error())
    }
}

impl Store {
    /// Why a command may not run because the data are old, or are being replaced.
    fn refusal_by_link(&self, command: &Command, needs: Needs) -> Option<Error> {
        const LOADING: Error = Error::text("LOADING Redis is loading the dataset in memory");
        if needs.fresh_data
            && let Some(error) = self.refusal_of_stale_data()
        {
            return Some(error);
        }
        // A master that never comes to the end of its data can be done without. Redis keeps the old data while a dump comes,
        // and so takes these commands as well.
        let may_load = command.flags.contains(Flags::LOADING) || matches!(command.name, "replicaof" | "slaveof");
        (self.replication.is_loading() && !may_load).then_some(LOADING)
    }
}

/// A command, and which of its subcommands if it has any.
type Named = (&'static Command, Option<&'static Command>);

impl Context<'_> {
    /// Bytes that a string may have. What was accepted before is bound by no lower limit than any store can have.
    pub(crate) fn string_limit_bytes(&self) -> u64 {
        if self.was_accepted() { PROTO_MAX_BULK_LEN_MAX } else { self.store.options.bulk_limit_bytes() }
    }

    /// Whether what runs had its effect before, here or at the master.
    pub(crate) fn was_accepted(&self) -> bool {
        self.is_replayed() || self.is_from_master()
    }

    /// Whether the master of this store has sent what runs.
    pub(crate) fn is_from_master(&self) -> bool {
        self.store.sessions[self.slot as usize].as_ref().is_some_and(|session| session.is_master)
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

#[cold]
fn not_while_listening(container: &Command, sub: Option<&Command>) -> Error {
    let name = full_name(container, sub);
    format!(
        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    )
    .into()
}

#[cold]
fn wrong_arity(container: &Command, sub: Option<&Command>) -> Error {
    args::wrong_arity(&full_name(container, sub))
}

/// A command's name as errors show it: `container|subcommand`.
fn full_name(container: &Command, sub: Option<&Command>) -> String {
    let name: Vec<&str> = core::iter::once(container.name).chain(sub.map(|sub| sub.name)).collect();
    name.join("|")
}
