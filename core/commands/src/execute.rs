//! From a request to a reply: which command it is, whether it may run now, and running it.

use crate::{
    Close, Context, Error, Origin, ReplyMode, Store, args,
    error::c_text,
    table::{Command, Flags},
    transactions,
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
        let offset = self.effects.offset();
        self.run_as(slot, Origin::Client, |context| context.process(request));
        self.stats.commands_processed += 1;
        if !self.scripting.is_busy() {
            self.end_unit();
            self.note_written(slot, offset);
            self.serve_waiting();
        }
    }

    /// Notes up to where a client's effects reach, which began after an offset.
    #[inline]
    fn note_written(&mut self, slot: u32, offset: u64) {
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
            // The reply found no memory. An error is short enough for what was there before, or else nothing is.
            context.reply.truncate(start);
            context.reply.error(&Error::OUT_OF_MEMORY.0);
            if context.reply.failed() {
                context.reply.truncate(start);
                context.session().close = Some(Close::AfterOutput);
            }
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
            return self.store.reject(command, wrong_arity(container, sub)).map(|()| None);
        }
        let session = self.session();
        session.last_command = Some((container, sub));
        let in_transaction = session.transaction.is_some();
        let listens = session.subscriptions.count() > 0 && session.protocol == Protocol::Resp2;
        let is_master = session.is_master;
        let is_let_in = session.authenticated || command.flags.contains(Flags::NO_AUTH);
        // Who sent it to the master was asked all that follows.
        if is_master && self.origin == Origin::Client {
            return Ok(Some(command));
        }
        if !is_let_in && self.store.acl.needs_login() {
            return self.store.reject(command, Error::NO_AUTH).map(|()| None);
        }
        if let Err(error) = self.check_permission(container, command, request) {
            return self.store.reject(command, error).map(|()| None);
        }
        if in_transaction && command.flags.contains(Flags::NO_MULTI) {
            const NOT_IN_TRANSACTION: Error = Error::text("ERR Command not allowed inside a transaction");
            return self.store.reject(command, NOT_IN_TRANSACTION).map(|()| None);
        }
        let needs_memory = command.flags.contains(Flags::DENYOOM);
        let has_room = match self.origin {
            // Any command makes room, even if it needs none.
            Origin::Client if !self.store.make_room() => !(needs_memory || transactions::needs_memory(self, command)),
            _ => !needs_memory || request.bytes_len() as u64 <= self.store.data_room_bytes(),
        };
        // Copies of keys that had to go are called back before the command has its say.
        if self.origin == Origin::Client && !self.store.messages_to_running.is_empty() {
            let messages = core::mem::take(&mut self.store.messages_to_running);
            self.reply.raw(&messages);
        }
        if !has_room {
            return self.store.reject(command, Error::OUT_OF_MEMORY).map(|()| None);
        }
        if self.store.saves.has_failed
            && self.writes(command)
            && let Some(error) = self.store.unsaved_error()
        {
            return self.store.reject(command, error).map(|()| None);
        }
        if self.store.has_log()
            && self.origin == Origin::Client
            && (self.writes(command) || command.name == "ping")
            && let Some(error) = self.store.durable.refusal(&self.store.options, request.bytes_len())
        {
            return self.store.reject(command, error).map(|()| None);
        }
        if self.writes(command) && self.store.lacks_replicas() {
            const NO_REPLICAS: Error = Error::text("NOREPLICAS Not enough good replicas to write.");
            return self.store.reject(command, NO_REPLICAS).map(|()| None);
        }
        if self.store.replication.has_master()
            && self.origin == Origin::Client
            && self.writes(command)
            && let Some(error) = self.store.refusal_of_write()
        {
            return self.store.reject(command, error).map(|()| None);
        }
        if listens && self.origin == Origin::Client && !crate::pubsub::is_allowed_while_listening(container) {
            let name = full_name(container, sub);
            let text = format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            );
            return self.store.reject(command, text.into()).map(|()| None);
        }
        if self.store.replication.has_master()
            && self.origin == Origin::Client
            && let Some(error) = self.refusal_by_link(command)
        {
            return self.store.reject(command, error).map(|()| None);
        }
        if self.store.scripting.is_busy() && !command.flags.contains(Flags::ALLOW_BUSY) {
            let busy = self.store.scripting.busy_error();
            return self.store.reject(command, busy).map(|()| None);
        }
        Ok(Some(command))
    }
}

impl Context<'_> {
    /// Whether the master of this store has sent what runs.
    pub(crate) fn is_from_master(&self) -> bool {
        self.store.sessions[self.slot as usize].as_ref().is_some_and(|session| session.is_master)
    }

    /// Why a command may not run because the data are old, or are being replaced.
    fn refusal_by_link(&mut self, command: &Command) -> Option<Error> {
        const LOADING: Error = Error::text("LOADING Redis is loading the dataset in memory");
        let transaction = self.session().transaction.as_deref();
        let runs_stale = transaction.is_some_and(|transaction| command.name == "exec" && transaction.needs_fresh);
        if (!command.flags.contains(Flags::STALE) || runs_stale)
            && let Some(error) = self.store.refusal_of_stale_data()
        {
            return Some(error);
        }
        (self.store.replication.is_loading() && !command.flags.contains(Flags::LOADING)).then_some(LOADING)
    }

    /// Whether a command writes. What is in a transaction was looked at with `EXEC`.
    fn writes(&mut self, command: &Command) -> bool {
        let transaction = self.session().transaction.as_ref();
        let writes = command.flags.contains(Flags::WRITE)
            || (command.name == "exec" && transaction.is_some_and(|transaction| transaction.writes));
        writes && self.origin != Origin::Transaction
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
    args::wrong_arity(&full_name(container, sub))
}

/// A command's name as errors show it: `container|subcommand`.
fn full_name(container: &Command, sub: Option<&Command>) -> String {
    let name: Vec<&str> = core::iter::once(container.name).chain(sub.map(|sub| sub.name)).collect();
    name.join("|")
}
