//! Publish and subscribe: channels, patterns of channels, and the channels of a cluster's shard.

use crate::{
    Close, Context, Error, Outcome, Session, Store, args,
    glob::Glob,
    server::help,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use kayvee_resp::{Protocol, Request, Writer};

const ANY_TIME: Flags = Flags::PUBSUB.union(Flags::LOADING).union(Flags::STALE);
const SUBSCRIBE: Flags = ANY_TIME.union(Flags::NOSCRIPT);
const PUBLISH: Flags = ANY_TIME.union(Flags::FAST).union(Flags::MAY_REPLICATE);
const ROW: Command = Command { categories: Categories::NONE, group: Group::Pubsub, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "psubscribe", arity: -2, flags: SUBSCRIBE, handler: Some(psubscribe), ..ROW },
    Command { name: "publish", arity: 3, flags: PUBLISH, handler: Some(publish), ..ROW },
    Command { name: "pubsub", arity: -2, subcommands: SUBCOMMANDS, ..ROW },
    Command { name: "punsubscribe", arity: -1, flags: SUBSCRIBE, handler: Some(punsubscribe), ..ROW },
    Command { name: "spublish", arity: 3, flags: PUBLISH, keys: &[SHARD_CHANNEL], handler: Some(spublish), ..ROW },
    Command {
        name: "ssubscribe",
        arity: -2,
        flags: SUBSCRIBE,
        keys: &[SHARD_CHANNELS],
        handler: Some(ssubscribe),
        ..ROW
    },
    Command { name: "subscribe", arity: -2, flags: SUBSCRIBE, handler: Some(subscribe), ..ROW },
    Command {
        name: "sunsubscribe",
        arity: -1,
        flags: SUBSCRIBE,
        keys: &[SHARD_CHANNELS],
        handler: Some(sunsubscribe),
        ..ROW
    },
    Command { name: "unsubscribe", arity: -1, flags: SUBSCRIBE, handler: Some(unsubscribe), ..ROW },
];

const SHARD_CHANNEL: Keys = Keys::one(1, KeyFlags::NOT_KEY);
const SHARD_CHANNELS: Keys = Keys::range(1, -1, 1, KeyFlags::NOT_KEY);

static SUBCOMMANDS: &[Command] = &[
    Command {
        name: "channels",
        arity: -2,
        flags: ANY_TIME,
        handler: Some(|context, request| channels(context, request, Scope::Channel)),
        ..ROW
    },
    ROW.help(help_text),
    Command { name: "numpat", arity: 2, flags: ANY_TIME, handler: Some(numpat), ..ROW },
    Command {
        name: "numsub",
        arity: -2,
        flags: ANY_TIME,
        handler: Some(|context, request| numsub(context, request, Scope::Channel)),
        ..ROW
    },
    Command {
        name: "shardchannels",
        arity: -2,
        flags: ANY_TIME,
        handler: Some(|context, request| channels(context, request, Scope::Shard)),
        ..ROW
    },
    Command {
        name: "shardnumsub",
        arity: -2,
        flags: ANY_TIME,
        handler: Some(|context, request| numsub(context, request, Scope::Shard)),
        ..ROW
    },
];

/// What one can subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
    /// A channel of a cluster's shard. There is one shard.
    Shard,
}

impl Scope {
    const ALL: [Scope; 3] = [Scope::Channel, Scope::Pattern, Scope::Shard];

    fn subscribed(self) -> &'static [u8] {
        match self {
            Scope::Channel => b"subscribe",
            Scope::Pattern => b"psubscribe",
            Scope::Shard => b"ssubscribe",
        }
    }

    fn unsubscribed(self) -> &'static [u8] {
        match self {
            Scope::Channel => b"unsubscribe",
            Scope::Pattern => b"punsubscribe",
            Scope::Shard => b"sunsubscribe",
        }
    }
}

/// What one client listens to, by [`Scope`].
#[derive(Default)]
pub struct Subscriptions {
    /// Whether it carries messages between the shards of a cluster.
    pub(crate) is_relay: bool,
    names: [BTreeSet<Vec<u8>>; 3],
}

impl Subscriptions {
    /// Number of channels and patterns of one kind.
    pub fn count_of(&self, scope: Scope) -> usize {
        self.names[scope as usize].len()
    }

    /// Number of all of them.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.names[0].len() + self.names[1].len() + self.names[2].len()
    }

    /// The names of one kind.
    pub fn names(&self, scope: Scope) -> impl Iterator<Item = &[u8]> {
        self.names[scope as usize].iter().map(Vec::as_slice)
    }

    /// Those that a reply counts together: a shard's channels are counted apart from the others.
    fn counted_with(&self, scope: Scope) -> usize {
        match scope {
            Scope::Shard => self.count_of(Scope::Shard),
            Scope::Channel | Scope::Pattern => self.count_of(Scope::Channel) + self.count_of(Scope::Pattern),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        /// What a tree takes for an entry, roughly.
        const ENTRY_BYTES: usize = 48;
        self.names.iter().flatten().map(|name| name.capacity() + ENTRY_BYTES).sum()
    }
}

/// Who listens to what: the slots of the clients by name and [`Scope`].
#[derive(Default)]
pub struct Listeners {
    names: [BTreeMap<Vec<u8>, BTreeSet<u32>>; 3],
}

impl Listeners {
    /// Number of channels or patterns of one kind that somebody listens to.
    pub fn count(&self, scope: Scope) -> usize {
        self.names[scope as usize].len()
    }

    fn is_empty(&self) -> bool {
        self.names.iter().all(BTreeMap::is_empty)
    }
}

/// Whether a client that listens in RESP2 may send this command: it could not tell a reply from a message.
pub fn is_allowed_while_listening(command: &Command) -> bool {
    const ALLOWED: [&str; 9] = [
        "ping",
        "subscribe",
        "psubscribe",
        "ssubscribe",
        "unsubscribe",
        "punsubscribe",
        "sunsubscribe",
        "quit",
        "reset",
    ];
    ALLOWED.contains(&command.name)
}

/// The head of a message of `len` elements, which is an array in RESP2.
pub fn message(writer: &mut Writer<'_>, len: usize) {
    if !writer.push(len) {
        writer.array(len);
    }
}

fn subscribe(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    subscribe_to(context, request, Scope::Channel)
}

fn psubscribe(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    subscribe_to(context, request, Scope::Pattern)
}

fn ssubscribe(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    subscribe_to(context, request, Scope::Shard)
}

fn unsubscribe(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    unsubscribe_from(context, request, Scope::Channel)
}

fn punsubscribe(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    unsubscribe_from(context, request, Scope::Pattern)
}

fn sunsubscribe(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    unsubscribe_from(context, request, Scope::Shard)
}

fn subscribe_to(context: &mut Context<'_>, request: Request<'_>, scope: Scope) -> Outcome {
    context.is_message = true;
    if context.origin == crate::Origin::Script {
        return Err(Error::text("ERR This Redis command is not allowed from script"));
    }
    let slot = context.slot;
    for name in request.from(1) {
        let session = context.session();
        if !session.subscriptions.names[scope as usize].contains(name) {
            session.subscriptions.names[scope as usize].insert(args::copied(name)?);
            let listeners = &mut context.store.listeners.names[scope as usize];
            match listeners.get_mut(name) {
                Some(slots) => _ = slots.insert(slot),
                None => _ = listeners.insert(args::copied(name)?, BTreeSet::from([slot])),
            }
        }
        let count = context.session().subscriptions.counted_with(scope);
        confirm(&mut context.reply, scope.subscribed(), Some(name), count);
    }
    Ok(())
}

fn confirm(reply: &mut Writer<'_>, what: &[u8], name: Option<&[u8]>, count: usize) {
    message(reply, 3);
    reply.bulk(what);
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(count as i64);
}

fn unsubscribe_from(context: &mut Context<'_>, request: Request<'_>, scope: Scope) -> Outcome {
    context.is_message = true;
    let slot = context.slot;
    if request.len() == 1 {
        let names = core::mem::take(&mut context.session().subscriptions.names[scope as usize]);
        if names.is_empty() {
            let count = context.session().subscriptions.counted_with(scope);
            confirm(&mut context.reply, scope.unsubscribed(), None, count);
        }
        let rest = context.session().subscriptions.counted_with(scope);
        for (left, name) in (0..names.len()).rev().zip(&names) {
            context.store.stop_listening(slot, scope, name);
            confirm(&mut context.reply, scope.unsubscribed(), Some(name), rest + left);
        }
        return Ok(());
    }
    for name in request.from(1) {
        if context.session().subscriptions.names[scope as usize].remove(name) {
            context.store.stop_listening(slot, scope, name);
        }
        let count = context.session().subscriptions.counted_with(scope);
        confirm(&mut context.reply, scope.unsubscribed(), Some(name), count);
    }
    Ok(())
}

fn publish(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let receivers = publish_here(context, &request[1], &request[2]);
    context.store.tell_relays(&request[1], &request[2]);
    context.reply.integer(receivers as i64);
    Ok(())
}

/// Sends a message to the listeners of this store, of which it returns the number, and to those of its replicas.
pub fn publish_here(context: &mut Context<'_>, channel: &[u8], text: &[u8]) -> usize {
    let receivers = context.store.publish(channel, text);
    let db = context.db_index();
    context.store.tell_listeners(db, &[b"PUBLISH", channel, text]);
    receivers
}

fn spublish(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let receivers = context.store.publish_in(Scope::Shard, &request[1], &request[2]);
    context.reply.integer(receivers as i64);
    Ok(())
}

fn channels(context: &mut Context<'_>, request: Request<'_>, scope: Scope) -> Outcome {
    let glob = match (request.len(), request.get(2)) {
        (2, _) => None,
        (3, Some(pattern)) => Glob::of(pattern),
        _ => return Err(crate::server::unknown_use(request, "PUBSUB")),
    };
    let mut steps = 0;
    let mut matching: Vec<&[u8]> = Vec::new();
    for name in context.store.listeners.names[scope as usize].keys() {
        let matches = glob.is_none_or(|glob| glob.matches(name, &mut steps) == Ok(true));
        if matches {
            matching.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
            matching.push(name);
        }
    }
    context.reply.array(matching.len());
    matching.iter().for_each(|name| context.reply.bulk(name));
    Ok(())
}

fn numsub(context: &mut Context<'_>, request: Request<'_>, scope: Scope) -> Outcome {
    context.reply.array((request.len() - 2) * 2);
    for name in request.from(2) {
        let count = context.store.listeners.names[scope as usize].get(name).map_or(0, BTreeSet::len);
        context.reply.bulk(name);
        context.reply.integer(count as i64);
    }
    Ok(())
}

fn numpat(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let count = context.store.listeners.count(Scope::Pattern);
    context.reply.integer(count as i64);
    Ok(())
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "PUBSUB", SUBCOMMANDS)
}

impl Store {
    /// Sends a message to a channel's listeners and those of the patterns that match it. Returns how many they are.
    pub fn publish(&mut self, channel: &[u8], text: &[u8]) -> usize {
        if self.listeners.is_empty() {
            return 0;
        }
        let mut receivers = self.publish_in(Scope::Channel, channel, text);
        let patterns = core::mem::take(&mut self.listeners.names[Scope::Pattern as usize]);
        let mut steps = 0;
        for (pattern, slots) in &patterns {
            let matches = Glob::of(pattern).is_none_or(|glob| glob.matches(channel, &mut steps) == Ok(true));
            for slot in slots.iter().filter(|_| matches) {
                self.send(*slot, |writer| {
                    message(writer, 4);
                    writer.bulk(b"pmessage");
                    writer.bulk(pattern);
                    writer.bulk(channel);
                    writer.bulk(text);
                });
                receivers += 1;
            }
        }
        self.listeners.names[Scope::Pattern as usize] = patterns;
        receivers
    }

    fn publish_in(&mut self, scope: Scope, channel: &[u8], text: &[u8]) -> usize {
        let kind: &[u8] = if scope == Scope::Shard { b"smessage" } else { b"message" };
        // Sending changes no subscription, but the borrow checker cannot know.
        let Some(slots) = self.listeners.names[scope as usize].get_mut(channel).map(core::mem::take) else { return 0 };
        for slot in &slots {
            self.send(*slot, |writer| {
                message(writer, 3);
                writer.bulk(kind);
                writer.bulk(channel);
                writer.bulk(text);
            });
        }
        let receivers = slots.len();
        if let Some(place) = self.listeners.names[scope as usize].get_mut(channel) {
            *place = slots;
        }
        receivers
    }

    /// Writes a message to a client, behind the reply to what it is running. One that finds no memory ends the client's
    /// connection, since it could not know what it has missed.
    pub(crate) fn send(&mut self, slot: u32, write: impl FnOnce(&mut Writer<'_>)) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        let is_running = self.running == Some(slot);
        let buffer = if is_running { &mut self.messages_to_running } else { &mut session.output.last };
        let start = buffer.len();
        let mut writer = Writer::new(buffer, session.protocol);
        write(&mut writer);
        if writer.failed() {
            writer.truncate(start);
            session.close = Some(Close::Now);
        }
        session.output.end_part();
        self.touch(slot);
    }

    /// Lets the engine look at a client at the end of the turn: there is something new about it.
    pub(crate) fn touch(&mut self, slot: u32) {
        if let Some(session) = self.sessions[slot as usize].as_deref_mut()
            && !session.is_touched
        {
            session.is_touched = true;
            self.touched.push(slot);
        }
    }

    /// The next client that there is something new about.
    pub fn next_touched(&mut self) -> Option<u32> {
        let slot = self.touched.pop()?;
        if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
            session.is_touched = false;
        }
        Some(slot)
    }

    /// Whether anybody listens to a channel.
    pub fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    fn stop_listening(&mut self, slot: u32, scope: Scope, name: &[u8]) {
        let names = &mut self.listeners.names[scope as usize];
        if let Some(slots) = names.get_mut(name) {
            slots.remove(&slot);
            if slots.is_empty() {
                names.remove(name);
            }
        }
    }

    /// Ends all subscriptions of a client without a word.
    pub(crate) fn stop_listening_at_all(&mut self, slot: u32) {
        self.forget_relay(slot);
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        let subscriptions = core::mem::take(&mut session.subscriptions);
        for scope in Scope::ALL {
            subscriptions.names(scope).for_each(|name| self.stop_listening(slot, scope, name));
        }
    }
}

/// `PING` by a client that listens in RESP2 is answered like a message.
pub fn pong(context: &mut Context<'_>, text: &[u8]) -> bool {
    let session: &Session = context.session();
    let applies = session.subscriptions.count() > 0 && session.protocol == Protocol::Resp2;
    if applies {
        context.reply.array(2);
        context.reply.bulk(b"pong");
        context.reply.bulk(text);
    }
    applies
}
