//! `CLIENT` and its subcommands.

use crate::{
    Close, Context, Error, Outcome, Pause, ReplyMode, Session, Store,
    args::{copied, integer, is},
    pubsub::Scope,
    server::help,
    table::{Categories, Command, Flags, Group, Tips},
    text::Text,
    tracking,
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};
use core::fmt::Write;
use kayvee_resp::{Protocol, Request};

const EVERYBODY: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE);
const ADMIN: Flags = EVERYBODY.union(Flags::ADMIN);
const ROW: Command = Command {
    arity: 2,
    flags: EVERYBODY,
    categories: Categories::CONNECTION,
    group: Group::Connection,
    ..Command::ROW
};

pub static SUBCOMMANDS: &[Command] = &[
    Command { name: "caching", arity: 3, handler: Some(tracking::caching), ..ROW },
    Command { name: "getname", handler: Some(getname), ..ROW },
    Command { name: "getredir", handler: Some(tracking::getredir), ..ROW },
    ROW.help(help_text),
    Command { name: "id", handler: Some(id), ..ROW },
    Command { name: "info", tips: Tips::NONDETERMINISTIC_OUTPUT, handler: Some(info), ..ROW },
    Command { name: "kill", arity: -3, flags: ADMIN, handler: Some(kill), ..ROW },
    Command { name: "list", tips: Tips::NONDETERMINISTIC_OUTPUT, arity: -2, flags: ADMIN, handler: Some(list), ..ROW },
    Command { name: "no-evict", arity: 3, flags: ADMIN, handler: Some(no_evict), ..ROW },
    Command { name: "no-touch", arity: 3, handler: Some(no_touch), ..ROW },
    Command { name: "pause", arity: -3, flags: ADMIN, handler: Some(pause), ..ROW },
    Command { name: "reply", arity: 3, handler: Some(reply), ..ROW },
    Command { name: "setinfo", arity: 4, handler: Some(setinfo), ..ROW },
    Command { name: "setname", arity: 3, handler: Some(setname), ..ROW },
    Command { name: "tracking", arity: -3, handler: Some(tracking::tracking), ..ROW },
    Command { name: "trackinginfo", handler: Some(tracking::trackinginfo), ..ROW },
    Command { name: "unblock", arity: -3, flags: ADMIN, handler: Some(unblock), ..ROW },
    Command { name: "unpause", flags: ADMIN, handler: Some(unpause), ..ROW },
];

fn is_printable(text: &[u8]) -> bool {
    text.iter().all(|b| (b'!'..=b'~').contains(b))
}

/// Checks a connection's name: it must not upset the format of `CLIENT LIST`.
pub fn valid_name(name: &[u8]) -> Result<&[u8], Error> {
    if is_printable(name) {
        return Ok(name);
    }
    Err(Error::text("ERR Client names cannot contain spaces, newlines or special characters."))
}

fn id(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let id = context.session().id;
    context.reply.integer(id as i64);
    Ok(())
}

fn getname(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let Context { store, reply, slot, .. } = context;
    match store.sessions[*slot as usize].as_ref().map(|session| session.name.as_slice()) {
        None | Some([]) => reply.null(),
        Some(name) => reply.bulk(name),
    }
    Ok(())
}

fn setname(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.session().name = copied(valid_name(&request[2])?)?;
    context.reply.ok();
    Ok(())
}

fn setinfo(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (option, value) = (&request[2], &request[3]);
    let session = context.session();
    let (field, shown) = if is(option, "lib-name") {
        (&mut session.lib_name, "lib-name")
    } else if is(option, "lib-ver") {
        (&mut session.lib_ver, "lib-ver")
    } else {
        return Err(Error::showing("ERR Unrecognized option '", option, "'"));
    };
    if !is_printable(value) {
        return Err(format!("ERR {shown} cannot contain spaces, newlines or special characters.").into());
    }
    *field = copied(value)?;
    context.reply.ok();
    Ok(())
}

/// The letters for what a client is and does.
fn flags_of(session: &Session) -> String {
    let tracking = session.tracking.as_deref();
    let letters = [
        (session.is_master, 'M'),
        (session.is_monitor, 'O'),
        (session.replica.is_some(), 'S'),
        (session.subscriptions.count() > 0, 'P'),
        (session.transaction.is_some(), 'x'),
        (session.waits.is_some() || session.is_paused, 'b'),
        (tracking.is_some(), 't'),
        (tracking.is_some_and(tracking::Tracking::is_redirect_broken), 'R'),
        (tracking.is_some_and(tracking::Tracking::is_broadcast), 'B'),
        (session.watch_broken, 'd'),
        (session.close == Some(Close::AfterOutput), 'c'),
        (session.close == Some(Close::Now), 'A'),
        (session.no_evict, 'e'),
        (session.no_touch, 'T'),
    ];
    let set: String = letters.iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| *letter).collect();
    if set.is_empty() { "N".into() } else { set }
}

/// One line of `CLIENT LIST`.
fn describe(text: &mut Text, session: &Session, now_ns: u64, own_request_bytes: usize) {
    const SECOND_NS: u64 = 1_000_000_000;
    // Names are printable, or they would have been refused.
    let shown = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
    let (command, bar, sub) = match session.last_command {
        None => ("NULL", "", ""),
        Some((command, None)) => (command.name, "", ""),
        Some((command, Some(sub))) => (command.name, "|", sub.name),
    };
    let flags = flags_of(session);
    let (query, capacity) = (session.pending.query_bytes + own_request_bytes, session.pending.query_capacity);
    let (last, parts) = (session.output.unsent(), session.output.parts());
    // What finds no memory fails the whole text.
    let _ = writeln!(
        text,
        "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={flags} db={} sub={} psub={} ssub={} multi={} \
         qbuf={query} qbuf-free={} argv-mem={own_request_bytes} multi-mem={} rbs={} rbp={} obl={last} oll={parts} omem={} tot-mem={} events=r \
         cmd={command}{bar}{sub} user={} redir={} resp={} lib-name={} lib-ver={}",
        session.id,
        session.remote,
        session.local,
        shown(&session.name),
        now_ns.saturating_sub(session.connected_ns) / SECOND_NS,
        now_ns.saturating_sub(session.last_request_ns) / SECOND_NS,
        session.db,
        session.subscriptions.count_of(Scope::Channel),
        session.subscriptions.count_of(Scope::Pattern),
        session.subscriptions.count_of(Scope::Shard),
        session.transaction.as_ref().map_or(-1, |transaction| transaction.len as i64),
        (capacity + own_request_bytes).saturating_sub(query),
        session.transaction.as_ref().map_or(0, |transaction| transaction.requests.capacity()),
        session.output.memory_bytes(),
        session.output.memory_bytes(),
        session.output.memory_bytes(),
        session.memory_bytes(),
        shown(&session.user_name),
        tracking::redirect_of(session),
        if session.protocol == Protocol::Resp3 { 3 } else { 2 },
        shown(&session.lib_name),
        shown(&session.lib_ver),
    );
}

/// The length of a request as clients send it.
fn request_bytes(request: Request<'_>) -> usize {
    let header = |len: usize| kayvee_keyspace::Decimal::new(len as i64).as_bytes().len() + "*\r\n".len();
    header(request.len()) + request.from(0).map(|word| header(word.len()) + word.len() + "\r\n".len()).sum::<usize>()
}

/// The client's own line of `CLIENT LIST`.
fn own_text(context: &mut Context<'_>, request: Request<'_>) -> Text {
    let now_ns = context.store.now.monotonic_ns;
    let mut text = Text::default();
    describe(&mut text, context.session(), now_ns, request_bytes(request));
    text
}

/// The same without its line break.
pub fn own_line(context: &mut Context<'_>, request: Request<'_>) -> Vec<u8> {
    own_text(context, request).as_bytes().trim_ascii_end().to_vec()
}

/// The same of a client that sends no requests.
pub fn line(session: &Session, now_ns: u64) -> Vec<u8> {
    let mut text = Text::default();
    describe(&mut text, session, now_ns, 0);
    text.as_bytes().trim_ascii_end().to_vec()
}

fn info(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let text = own_text(context, request);
    text.reply(&mut context.reply)
}

/// What clients are, as `CLIENT LIST`, `CLIENT KILL` and the limits of output tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientType {
    /// One that is none of the others.
    Normal,
    /// One that listens to channels.
    Subscriber,
    /// One that gets every effect.
    Replica,
    /// The one that effects come from.
    Master,
}

impl ClientType {
    fn parse(word: &[u8]) -> Result<ClientType, Error> {
        match () {
            () if is(word, "normal") => Ok(ClientType::Normal),
            () if is(word, "pubsub") => Ok(ClientType::Subscriber),
            () if is(word, "slave") || is(word, "replica") => Ok(ClientType::Replica),
            () if is(word, "master") => Ok(ClientType::Master),
            () => Err(Error::showing("ERR Unknown client type '", word, "'")),
        }
    }

    /// What a client is.
    pub fn of(session: &Session) -> ClientType {
        match session {
            Session { replica: Some(_), .. } => ClientType::Replica,
            _ if session.is_master => ClientType::Master,
            _ if session.is_subscriber() => ClientType::Subscriber,
            _ => ClientType::Normal,
        }
    }
}

fn list(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (mut by_number, mut of_type) = (false, None);
    match request.get(2) {
        None => {}
        Some(word) if is(word, "type") && request.len() == 4 => of_type = Some(ClientType::parse(&request[3])?),
        Some(word) if is(word, "id") && request.len() > 3 => by_number = true,
        Some(_) => return Err(Error::SYNTAX),
    }
    let now_ns = context.store.now.monotonic_ns;
    let own = (context.session().id, request_bytes(request));
    let own_request_bytes = |session: &Session| if session.id == own.0 { own.1 } else { 0 };
    let mut text = Text::default();
    let mut by_id: BTreeMap<u64, &Session> = BTreeMap::new();
    // One by one: collecting them would take one large piece of memory.
    // Those that were dropped in this turn are gone for whoever asks.
    let there = context.store.all_sessions().filter(|session| session.close != Some(Close::Now));
    there.for_each(|session| _ = by_id.insert(session.id, session));
    if by_number {
        for id in request.from(3) {
            let id = integer(id).map_err(|_| Error::text("ERR Invalid client ID"))?;
            // A number that is nobody's is no error.
            if let Some(session) = u64::try_from(id).ok().and_then(|id| by_id.remove(&id)) {
                describe(&mut text, session, now_ns, own_request_bytes(session));
            }
        }
    } else {
        let wanted = by_id.values().filter(|session| of_type.is_none_or(|of_type| ClientType::of(session) == of_type));
        wanted.for_each(|session| describe(&mut text, session, now_ns, own_request_bytes(session)));
    }
    text.reply(&mut context.reply)
}

/// Which connections `CLIENT KILL` ends.
#[derive(Default)]
struct Filter<'a> {
    id: Option<u64>,
    remote: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    of_type: Option<ClientType>,
    spares_itself: bool,
}

impl Filter<'_> {
    fn matches(&self, session: &Session, own_id: u64) -> bool {
        !(self.user.is_some_and(|user| *user != *session.user_name)
            || self.of_type.is_some_and(|of_type| of_type != ClientType::of(session))
            || (self.spares_itself && session.id == own_id)
            || self.id.is_some_and(|id| id != session.id)
            || self.remote.is_some_and(|remote| remote != session.remote.as_bytes())
            || self.local.is_some_and(|local| local != session.local.as_bytes()))
    }
}

fn parse_filter<'a>(store: &Store, request: Request<'a>) -> Result<Filter<'a>, Error> {
    let mut filter = Filter { spares_itself: true, ..Filter::default() };
    let mut words = request.from(2);
    while let Some(option) = words.next() {
        let value = words.next().ok_or(Error::SYNTAX)?;
        if is(option, "id") {
            let id = integer(value).ok().and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
            filter.id = Some(id.ok_or(Error::text("ERR client-id should be greater than 0"))?);
        } else if is(option, "type") {
            filter.of_type = Some(ClientType::parse(value)?);
        } else if is(option, "addr") {
            filter.remote = Some(value);
        } else if is(option, "laddr") {
            filter.local = Some(value);
        } else if is(option, "user") {
            if !store.acl.has_user(value) {
                return Err(Error::showing("ERR No such user '", value, "'"));
            }
            filter.user = Some(value);
        } else if is(option, "skipme") {
            filter.spares_itself = match () {
                () if is(value, "yes") => true,
                () if is(value, "no") => false,
                () => return Err(Error::SYNTAX),
            };
        } else {
            return Err(Error::SYNTAX);
        }
    }
    Ok(filter)
}

fn kill(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    // The old form names one address, and may end the client's own connection.
    let by_address = request.len() == 3;
    let filter = if by_address {
        Filter { remote: Some(&request[2]), ..Filter::default() }
    } else {
        parse_filter(context.store, request)?
    };
    let own_id = context.session().id;
    let mut ended = Vec::new();
    for (slot, session) in (0..).zip(&mut context.store.sessions) {
        let lives = |session: &&mut Session| session.close != Some(Close::Now) && filter.matches(session, own_id);
        let Some(session) = session.as_deref_mut().filter(lives) else { continue };
        // Its own reply shall still arrive.
        session.close = Some(if session.id == own_id { Close::AfterOutput } else { Close::Now });
        ended.push(slot);
    }
    let killed = ended.len() as i64;
    ended.into_iter().for_each(|slot| context.store.touch(slot));
    match (by_address, killed) {
        (true, 0) => return Err(Error::text("ERR No such client")),
        (true, _) => context.reply.ok(),
        (false, _) => context.reply.integer(killed),
    }
    Ok(())
}

fn on_or_off(arg: &[u8]) -> Result<bool, Error> {
    match () {
        () if is(arg, "on") => Ok(true),
        () if is(arg, "off") => Ok(false),
        () => Err(Error::SYNTAX),
    }
}

fn no_evict(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.session().no_evict = on_or_off(&request[2])?;
    context.reply.ok();
    Ok(())
}

fn no_touch(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.session().no_touch = on_or_off(&request[2])?;
    context.reply.ok();
    Ok(())
}

fn reply(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let session = context.session();
    session.reply_mode = match &request[2] {
        // A master is never replied to: it may not read, and what waits for it has no limit.
        _ if session.is_master => ReplyMode::Off,
        mode if is(mode, "on") => ReplyMode::On,
        mode if is(mode, "off") => ReplyMode::Off,
        mode if is(mode, "skip") && session.reply_mode == ReplyMode::Off => ReplyMode::Off,
        mode if is(mode, "skip") => ReplyMode::SkipNext,
        _ => return Err(Error::SYNTAX),
    };
    context.reply.ok();
    Ok(())
}

fn pause(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let writes_only = match request.get(3) {
        None => false,
        Some(mode) if is(mode, "all") && request.len() == 4 => false,
        Some(mode) if is(mode, "write") && request.len() == 4 => true,
        Some(_) => return Err(Error::text("ERR CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let timeout_ms = integer(&request[2]).map_err(|_| Error::text("ERR timeout is not an integer or out of range"))?;
    let timeout_ms = u64::try_from(timeout_ms).map_err(|_| Error::text("ERR timeout is negative"))?;
    // What cannot be added to a time in milliseconds is refused, as in Redis.
    if i64::try_from(timeout_ms + context.now_ms()).is_err() {
        return Err(Error::text("ERR timeout is out of range"));
    }
    let now_ns = context.store.now.monotonic_ns;
    let until_ns = now_ns.saturating_add(timeout_ms.saturating_mul(1_000_000));
    // A pause that is in force is never shortened or weakened by another one.
    let current = context.store.pause.filter(|pause| pause.until_ns > now_ns);
    context.store.set_pause(Some(Pause {
        until_ns: until_ns.max(current.map_or(0, |pause| pause.until_ns)),
        writes_only: writes_only && current.is_none_or(|pause| pause.writes_only),
    }));
    context.reply.ok();
    Ok(())
}

fn unpause(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    if let Some(pause) = &mut context.store.pause {
        // The engine ends it, and goes on with those that it kept waiting.
        pause.until_ns = 0;
    }
    context.reply.ok();
    Ok(())
}

impl Store {
    /// Begins or ends a pause. No key expires meanwhile: that would be a change.
    pub fn set_pause(&mut self, pause: Option<Pause>) {
        self.pause = pause;
        self.apply_expiry_rule();
    }

    /// Whether a command may change data, or would be replicated though it changes none.
    pub fn may_replicate(&self, command: &Command, request: Request<'_>) -> bool {
        command.may_change_data() && !self.runs_readonly_script(command, request)
    }

    /// Whether a client's request has to wait for the end of a pause.
    pub fn is_held_back(&mut self, slot: u32, request: Request<'_>) -> bool {
        if self.migrates() && !self.is_migration(slot) {
            return true;
        }
        if self.waits_for_device(slot, request) {
            return true;
        }
        if self.is_master_link(slot) && (self.scripting.is_busy() || self.waits_for_room(slot, request)) {
            return true;
        }
        let Some(pause) = self.pause_in_force() else { return false };
        // What is wrong is told at once.
        let Some(command) = self.command_of(request).filter(|command| command.accepts(request.len())) else {
            return false;
        };
        let session = self.sessions[slot as usize].as_deref();
        // What replicas say is no change.
        if session.is_some_and(|session| session.replica.is_some()) {
            return false;
        }
        let transaction = session.and_then(|session| session.transaction.as_deref());
        let may_replicate = self.may_replicate(command, request)
            || (command.name == "exec" && transaction.is_some_and(|transaction| transaction.may_replicate));
        // Whoever paused must be able to end the pause.
        command.group != Group::Connection && (!pause.writes_only || may_replicate)
    }
}

fn unblock(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match request.get(3) {
        None => {}
        Some(how) if request.len() == 4 && (is(how, "timeout") || is(how, "error")) => {}
        Some(_) => return Err(Error::text("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
    }
    let is_error = request.get(3).is_some_and(|how| is(how, "error"));
    const UNBLOCKED: Error = Error::text("UNBLOCKED client unblocked via CLIENT UNBLOCK");
    let slot = context.store.slot_of(integer(&request[2])? as u64);
    let waited = slot.is_some_and(|slot| context.store.give_up_waiting(slot, is_error.then_some(&UNBLOCKED)));
    context.reply.integer(waited.into());
    Ok(())
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "CLIENT", SUBCOMMANDS)
}
