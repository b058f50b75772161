//! Client-side caching: clients keep copies of what they read, and are told when it changes (`CLIENT TRACKING`).
//!
//! By default the store remembers which client has read which key, and tells each client once. In broadcast mode it
//! remembers nothing but prefixes, and tells of every key that begins with one, at the end of the turn.

use crate::{
    ClientRef, Context, Error, Origin, Outcome, Session, Store,
    args::{self, integer, is},
    table::{Command, Flags, Group},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound;
use kayvee_resp::{Protocol, Request, Writer};

const INVALIDATION_CHANNEL: &[u8] = b"__redis__:invalidate";

/// Which keys a client is told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Those that it has read.
    Default,
    /// Those that it has read right after `CLIENT CACHING YES`.
    OptIn,
    /// Those that it has read, but for reads right after `CLIENT CACHING NO`.
    OptOut,
    /// Those that begin with one of its prefixes.
    Broadcast,
}

/// How one client keeps copies.
pub struct Tracking {
    mode: Mode,
    /// Whether it is spared what it changes itself.
    no_loop: bool,
    /// The client that is told in its place.
    redirect: Option<ClientRef>,
    /// Whether that client is gone.
    is_redirect_broken: bool,
    /// Whether `CLIENT CACHING` was called, and no command since.
    caching_called: bool,
    prefixes: BTreeSet<Vec<u8>>,
}

impl Tracking {
    /// Whether the client that is told in its place is gone.
    pub fn is_redirect_broken(&self) -> bool {
        self.is_redirect_broken
    }

    /// Bytes of memory, roughly.
    pub fn memory_bytes(&self) -> usize {
        /// What a tree takes for an entry.
        const ENTRY_BYTES: usize = 48;
        size_of::<Tracking>() + self.prefixes.iter().map(|prefix| prefix.capacity() + ENTRY_BYTES).sum::<usize>()
    }

    /// Whether it is told by prefix.
    pub fn is_broadcast(&self) -> bool {
        self.mode == Mode::Broadcast
    }
}

/// Which clients keep copies of which keys.
#[derive(Default)]
pub struct Trackers {
    /// Whether keys go because their time has come, which is nobody's doing.
    pub(crate) is_expiring: bool,
    /// Number of clients that keep copies, in whatever mode.
    clients: usize,
    /// The clients that have read a key, by key.
    readers: BTreeMap<Vec<u8>, BTreeSet<ClientRef>>,
    /// The last key that was called back to make room: the one behind it is the next.
    last_forgotten: Vec<u8>,
    /// Number of pairs in `readers`.
    items: usize,
    /// What each prefix's clients are to be told, by prefix.
    prefixes: BTreeMap<Vec<u8>, Broadcast>,
}

#[derive(Default)]
struct Broadcast {
    clients: BTreeSet<ClientRef>,
    /// Keys that have changed in this turn, each with the client that changed it.
    keys: BTreeMap<Vec<u8>, Option<ClientRef>>,
}

impl Trackers {
    /// Whether any client keeps copies.
    pub fn is_in_use(&self) -> bool {
        self.clients > 0
    }

    /// A key whose copies may be called back: another one each time, as long as there are several.
    fn next_to_forget(&self) -> Option<Vec<u8>> {
        let behind = (Bound::Excluded(&self.last_forgotten[..]), Bound::Unbounded);
        let next = self.readers.range::<[u8], _>(behind).next();
        next.or_else(|| self.readers.iter().next()).map(|(key, _)| key.clone())
    }

    /// Number of clients that keep copies, of keys and of pairs of both that are remembered, and of prefixes.
    pub fn counts(&self) -> [usize; 4] {
        [self.clients, self.readers.len(), self.items, self.prefixes.len()]
    }
}

struct Wish {
    mode: Mode,
    no_loop: bool,
    redirect: Option<ClientRef>,
    prefixes: BTreeSet<Vec<u8>>,
    /// A prefix that was given twice.
    repeated: Option<Vec<u8>>,
}

/// Reads the options, and checks that they fit together and what is in force if tracking is to be switched on.
fn parse(context: &mut Context<'_>, request: Request<'_>) -> Result<Wish, Error> {
    let mut wish =
        Wish { mode: Mode::Default, no_loop: false, redirect: None, prefixes: BTreeSet::new(), repeated: None };
    let (mut broadcast, mut opt_in, mut opt_out) = (false, false, false);
    let mut words = request.from(3);
    while let Some(word) = words.next() {
        if is(word, "redirect")
            && let Some(id) = words.next()
        {
            if wish.redirect.is_some() {
                return Err(Error::text("ERR A client can only redirect to a single other client"));
            }
            let id = integer(id)? as u64;
            let Some(slot) = context.store.slot_of(id) else {
                return Err(Error::text("ERR The client ID you want redirect to does not exist"));
            };
            wish.redirect = Some(ClientRef { slot, id });
        } else if is(word, "bcast") {
            broadcast = true;
        } else if is(word, "optin") {
            opt_in = true;
        } else if is(word, "optout") {
            opt_out = true;
        } else if is(word, "noloop") {
            wish.no_loop = true;
        } else if is(word, "prefix")
            && let Some(prefix) = words.next()
        {
            if !wish.prefixes.insert(args::copied(prefix)?) {
                wish.repeated.get_or_insert(args::copied(prefix)?);
            }
        } else {
            return Err(Error::SYNTAX);
        }
    }
    if !is(&request[2], "on") {
        return Ok(wish);
    }
    if !broadcast && !wish.prefixes.is_empty() {
        return Err(Error::text("ERR PREFIX option requires BCAST mode to be enabled"));
    }
    let present = context.session().tracking.as_ref().map(|tracking| tracking.mode);
    if present.is_some_and(|mode| (mode == Mode::Broadcast) != broadcast) {
        return Err(Error::text(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.",
        ));
    }
    if broadcast && (opt_in || opt_out) {
        return Err(Error::text("ERR OPTIN and OPTOUT are not compatible with BCAST"));
    }
    if opt_in && opt_out {
        return Err(Error::text("ERR You can't specify both OPTIN mode and OPTOUT mode"));
    }
    if (opt_in && present == Some(Mode::OptOut)) || (opt_out && present == Some(Mode::OptIn)) {
        return Err(Error::text(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.",
        ));
    }
    if broadcast {
        check_prefixes(context.session(), &mut wish, request)?;
    }
    wish.mode = match () {
        () if broadcast => Mode::Broadcast,
        () if opt_in => Mode::OptIn,
        () if opt_out => Mode::OptOut,
        () => Mode::Default,
    };
    Ok(wish)
}

/// A key must not match two of a client's prefixes, or it would be told twice.
fn check_prefixes(session: &Session, wish: &mut Wish, request: Request<'_>) -> Outcome {
    let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let refuse = |new: &[u8], other: &[u8], whose: &str| {
        let mut text =
            Error::showing("ERR Prefix '", new, &alloc::format!("' overlaps with {whose} prefix '")).0.into_owned();
        text.extend_from_slice(crate::error::c_text(other, 128));
        text.extend_from_slice(b"'. Prefixes for a single client must not overlap.");
        Err(text.into())
    };
    let present = session.tracking.iter().flat_map(|tracking| &tracking.prefixes);
    for old in present {
        if let Some(new) = wish.prefixes.iter().find(|new| overlap(new, old)) {
            return refuse(new, old, "an existing");
        }
    }
    if let Some(prefix) = &wish.repeated {
        return refuse(prefix, prefix, "another provided");
    }
    // Those that overlap are neighbours in order.
    for (a, b) in wish.prefixes.iter().zip(wish.prefixes.iter().skip(1)) {
        if overlap(a, b) {
            // The error names them as they were given.
            let place = |prefix: &Vec<u8>| request.from(3).position(|word| word == prefix);
            let (first, second) = if place(a) < place(b) { (a, b) } else { (b, a) };
            return refuse(first, second, "another provided");
        }
    }
    if wish.prefixes.is_empty() {
        wish.prefixes.insert(Vec::new());
    }
    Ok(())
}

pub fn tracking(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let slot = context.slot;
    if is(&request[2], "on") {
        let wish = parse(context, request)?;
        context.store.start_tracking(slot, wish)?;
    } else if is(&request[2], "off") {
        parse(context, request)?;
        context.store.stop_tracking(slot);
    } else {
        return Err(Error::SYNTAX);
    }
    context.reply.ok();
    Ok(())
}

pub fn caching(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(tracking) = context.session().tracking.as_deref_mut() else {
        return Err(Error::text(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ));
    };
    let (wanted, error) = if is(&request[2], "yes") {
        (Mode::OptIn, "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
    } else if is(&request[2], "no") {
        (Mode::OptOut, "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")
    } else {
        return Err(Error::SYNTAX);
    };
    if tracking.mode != wanted {
        return Err(Error::text(error));
    }
    tracking.caching_called = true;
    context.reply.ok();
    Ok(())
}

pub fn getredir(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let redirect = redirect_of(context.session());
    context.reply.integer(redirect);
    Ok(())
}

/// The client that is told in this one's place; 0 for none, -1 if it keeps no copies.
pub fn redirect_of(session: &Session) -> i64 {
    session.tracking.as_ref().map_or(-1, |tracking| tracking.redirect.map_or(0, |client| client.id as i64))
}

pub fn trackinginfo(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let Context { store, reply, slot, .. } = context;
    let session = store.sessions[*slot as usize].as_deref().expect("a client that sends commands has a session");
    let mut flags: Vec<&[u8]> = Vec::new();
    match session.tracking.as_deref() {
        None => flags.push(b"off"),
        Some(tracking) => {
            flags.push(b"on");
            match tracking.mode {
                Mode::Default => {}
                Mode::Broadcast => flags.push(b"bcast"),
                Mode::OptIn => flags.push(b"optin"),
                Mode::OptOut => flags.push(b"optout"),
            }
            if tracking.caching_called {
                flags.push(if tracking.mode == Mode::OptIn { b"caching-yes" } else { b"caching-no" });
            }
            if tracking.no_loop {
                flags.push(b"noloop");
            }
            if tracking.is_redirect_broken {
                flags.push(b"broken_redirect");
            }
        }
    }
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag));
    reply.bulk(b"redirect");
    reply.integer(redirect_of(session));
    reply.bulk(b"prefixes");
    let prefixes: Vec<&Vec<u8>> = match session.tracking.as_deref() {
        Some(tracking) if tracking.mode == Mode::Broadcast => tracking.prefixes.iter().collect(),
        _ => Vec::new(),
    };
    reply.array(prefixes.len());
    prefixes.iter().for_each(|prefix| reply.bulk(prefix));
    Ok(())
}

impl Context<'_> {
    /// Notes which keys a client has read by a command that has run, if it keeps copies.
    pub(crate) fn remember_reads(&mut self, command: &Command, request: Request<'_>) {
        let Some(tracking) = self.session().tracking.as_deref_mut() else { return };
        let is_wanted = match tracking.mode {
            Mode::Default => true,
            Mode::OptIn => tracking.caching_called,
            Mode::OptOut => !tracking.caching_called,
            Mode::Broadcast => false,
        };
        // CLIENT CACHING holds for one command, or for a whole transaction.
        let is_caching = command.name == "caching" && command.group == Group::Connection;
        let goes_on = self.origin != Origin::Client || is_caching || command.name == "multi";
        let session = self.session();
        if let Some(tracking) = session.tracking.as_deref_mut()
            && !goes_on
        {
            tracking.caching_called = false;
        }
        let reader = ClientRef { id: session.id, slot: self.slot };
        let reads = command.flags.contains(Flags::READONLY) && !command.flags.contains(Flags::PUBSUB);
        if is_wanted && reads {
            let keys = command.keys_in(request).unwrap_or_default();
            let read = keys.len();
            for (at, _) in keys {
                self.store.remember_reader(&request[at], reader);
            }
            self.store.limit_readers(read);
        }
    }
}

impl Store {
    fn start_tracking(&mut self, slot: u32, wish: Wish) -> Outcome {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return Ok(()) };
        let Wish { mode, no_loop, redirect, prefixes, .. } = wish;
        for prefix in &prefixes {
            self.tracking
                .prefixes
                .entry(args::copied(prefix)?)
                .or_default()
                .clients
                .insert(ClientRef { slot, id: session.id });
        }
        match session.tracking.as_deref_mut() {
            Some(tracking) => {
                (tracking.mode, tracking.no_loop, tracking.redirect) = (mode, no_loop, redirect);
                tracking.is_redirect_broken = false;
                tracking.prefixes.extend(prefixes);
            }
            None => {
                let (is_redirect_broken, caching_called) = (false, false);
                let tracking = Tracking { mode, no_loop, redirect, is_redirect_broken, caching_called, prefixes };
                session.tracking = Some(Box::new(tracking));
                self.tracking.clients += 1;
            }
        }
        Ok(())
    }

    /// Lets a client keep copies no more. What it has read is forgotten when it changes.
    pub(crate) fn stop_tracking(&mut self, slot: u32) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        let Some(tracking) = session.tracking.take() else { return };
        self.tracking.clients -= 1;
        for prefix in tracking.prefixes {
            if let Some(broadcast) = self.tracking.prefixes.get_mut(&prefix) {
                broadcast.clients.remove(&ClientRef { slot, id: session.id });
                if broadcast.clients.is_empty() {
                    self.tracking.prefixes.remove(&prefix);
                }
            }
        }
        if self.tracking.clients == 0 {
            self.tracking = Trackers::default();
        }
    }

    fn remember_reader(&mut self, key: &[u8], reader: ClientRef) {
        let trackers = &mut self.tracking;
        if !trackers.readers.contains_key(key) {
            // A copy that is not remembered could not be called back: without memory the store ends up here anyway.
            let Ok(copy) = args::copied(key) else { return };
            trackers.readers.insert(copy, BTreeSet::new());
        }
        if let Some(readers) = trackers.readers.get_mut(key) {
            trackers.items += usize::from(readers.insert(reader));
        }
    }

    /// Calls copies back while more keys are remembered than `tracking-table-max-keys` allows; and where memory is short two
    /// for each key that was `read`, so that clients which read take no more of it.
    fn limit_readers(&mut self, read: usize) {
        let limit = self.options.tracking_table_max_keys;
        let mut for_room = 2 * read;
        while limit > 0 && self.tracking.readers.len() as u64 > limit || for_room > 0 && self.lacks_room_for_copies() {
            for_room = for_room.saturating_sub(1);
            let Some(key) = self.tracking.next_to_forget() else { return };
            self.call_back(&key, None);
            self.tracking.last_forgotten = key;
        }
    }

    /// Tells the clients that keep a copy of a key that it has changed.
    pub(crate) fn invalidate(&mut self, key: &[u8]) {
        let id_of = |slot: u32| self.sessions[slot as usize].as_deref().map(|session| session.id);
        let running = self.running.filter(|_| !self.tracking.is_expiring);
        let writer = running.and_then(|slot| id_of(slot).map(|id| ClientRef { slot, id }));
        for (prefix, broadcast) in &mut self.tracking.prefixes {
            if key.starts_with(prefix)
                && let Ok(copy) = args::copied(key)
            {
                broadcast.keys.insert(copy, writer);
            }
        }
        self.call_back(key, writer);
    }

    fn call_back(&mut self, key: &[u8], writer: Option<ClientRef>) {
        let Some(readers) = self.tracking.readers.remove(key) else { return };
        self.tracking.items -= readers.len();
        for reader in readers {
            let Some(tracking) = self.client(reader).and_then(|session| session.tracking.as_deref()) else { continue };
            if tracking.mode == Mode::Broadcast || (tracking.no_loop && writer == Some(reader)) {
                continue;
            }
            self.send_invalidation(reader.slot, |writer| {
                writer.array(1);
                writer.bulk(key);
            });
        }
    }

    /// Tells all clients that keep copies to drop them all.
    pub(crate) fn invalidate_all(&mut self) {
        if !self.tracking.is_in_use() {
            return;
        }
        self.tracking.readers.clear();
        self.tracking.items = 0;
        for slot in 0..self.sessions.len() as u32 {
            if self.sessions[slot as usize].as_ref().is_some_and(|session| session.tracking.is_some()) {
                self.send_invalidation(slot, |writer| writer.null());
            }
        }
    }

    /// Sends what broadcasting clients are to be told of this turn.
    #[inline(never)]
    pub fn broadcast_invalidations(&mut self) {
        // The limit may have been lowered.
        self.limit_readers(0);
        if self.tracking.prefixes.values().all(|broadcast| broadcast.keys.is_empty()) {
            return;
        }
        let mut prefixes = core::mem::take(&mut self.tracking.prefixes);
        for broadcast in prefixes.values_mut() {
            let keys = core::mem::take(&mut broadcast.keys);
            for client in broadcast.clients.iter().filter(|_| !keys.is_empty()) {
                let tracking = self.client(*client).and_then(|session| session.tracking.as_deref());
                let no_loop = tracking.is_some_and(|tracking| tracking.no_loop);
                let told = || keys.iter().filter(|(_, writer)| !no_loop || **writer != Some(*client));
                if told().next().is_none() {
                    continue;
                }
                self.send_invalidation(client.slot, |writer| {
                    writer.array(told().count());
                    told().for_each(|(key, _)| writer.bulk(key));
                });
            }
        }
        self.tracking.prefixes = prefixes;
    }

    /// Sends an invalidation to a client, or to the one that is told in its place.
    fn send_invalidation(&mut self, slot: u32, keys: impl Fn(&mut Writer<'_>)) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        let Some(tracking) = session.tracking.as_deref_mut() else { return };
        let is_resp3 = session.protocol == Protocol::Resp3;
        let Some(redirect) = tracking.redirect else {
            if is_resp3 {
                self.send(slot, |writer| {
                    if writer.push(2) {
                        writer.bulk(b"invalidate");
                        keys(writer);
                    }
                });
            }
            return;
        };
        let target = redirect.slot;
        let Some(receiver) = self.client(redirect) else {
            self.tell_redirect_is_broken(slot, redirect.id);
            return;
        };
        if receiver.protocol == Protocol::Resp3 {
            self.send(target, |writer| {
                if writer.push(2) {
                    writer.bulk(b"invalidate");
                    keys(writer);
                }
            });
        } else if receiver.subscriptions.count() > 0 {
            self.send(target, |writer| {
                writer.array(3);
                writer.bulk(b"message");
                writer.bulk(INVALIDATION_CHANNEL);
                keys(writer);
            });
        }
    }

    fn tell_redirect_is_broken(&mut self, slot: u32, redirect: u64) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        if let Some(tracking) = session.tracking.as_deref_mut() {
            tracking.is_redirect_broken = true;
        }
        if session.protocol == Protocol::Resp3 {
            self.send(slot, |writer| {
                if writer.push(2) {
                    writer.bulk(b"tracking-redir-broken");
                    writer.integer(redirect as i64);
                }
            });
        }
    }
}
