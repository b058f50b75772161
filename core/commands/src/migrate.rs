//! `MIGRATE`: keys go to another store, all at once as far as anybody can tell.
//!
//! The other store gets a `RESTORE` for each key over a connection of its own. Nobody is served meanwhile: what changed a
//! key between its copy and its end here would be lost. As in Redis, it is given up when nothing has moved for as long as
//! the client allows, however long all of it takes.

use crate::{
    ClientRef, Context, Error, EventClass, Origin, Outcome, Patience, Store,
    args::{copied, integer, is},
    blocking::OnTimeout,
    dump,
    replication::Dial,
    table::{Categories, Command, Flags, Group, KeyAt, KeyFlags, Keys, Tips},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use kayvee_resp::{Request, encode};

pub static COMMANDS: &[Command] = &[Command {
    name: "migrate",
    arity: -6,
    flags: Flags::WRITE.union(Flags::MOVABLEKEYS),
    keys: &[
        Keys::one(3, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE).union(KeyFlags::INCOMPLETE)),
        Keys {
            begin: crate::table::Begin::Keyword("KEYS", -2),
            find: crate::table::Find::Range { last: -1, step: 1, limit: 0 },
            flags: KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE).union(KeyFlags::INCOMPLETE),
        },
    ],
    find_keys: Some(find_keys),
    categories: Categories::KEYSPACE.union(Categories::DANGEROUS),
    group: Group::Generic,
    tips: Tips::NONDETERMINISTIC_OUTPUT,
    handler: Some(migrate),
    ..Command::ROW
}];

pub(crate) const NOT_CONNECTED: &str = "IOERR error or timeout connecting to the client";
const NOT_WRITTEN: &str = "IOERR error or timeout writing to target instance";
const NOT_READ: &str = "IOERR error or timeout reading to target instance";

/// What a client has asked for.
struct Order<'r> {
    host: String,
    port: u16,
    db: i64,
    timeout_ms: u64,
    keeps: bool,
    replaces: bool,
    login: Vec<&'r [u8]>,
    keys: Vec<&'r [u8]>,
}

/// A migration that goes on.
pub struct Migration {
    client: ClientRef,
    dial: Option<Dial>,
    slot: Option<u32>,
    /// For how long nothing may move, and until when something has to.
    timeout_ns: u64,
    until_ns: u64,
    /// What is to be sent once there is a connection, and what has come that is no whole line.
    requests: Vec<u8>,
    heard: Vec<u8>,
    /// Replies before those about keys, and replies so far.
    preliminary: usize,
    replies: usize,
    db: usize,
    keys: Vec<Vec<u8>>,
    keeps: bool,
    /// Whether the other store refused the login or the database: then it has no key where it should be.
    is_refused: bool,
    error: Option<Error>,
}

/// As many as there are, if there is memory for them.
fn fallible<T>(all: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Error> {
    let mut kept = Vec::new();
    kept.try_reserve_exact(all.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
    kept.extend(all);
    Ok(kept)
}

fn word_at(request: Request<'_>, at: usize) -> &[u8] {
    request.get(at).unwrap_or_default()
}

fn parse<'r>(request: Request<'r>) -> Result<Order<'r>, Error> {
    let mut order = Order {
        host: String::from_utf8_lossy(&request[1]).into_owned(),
        port: 0,
        db: 0,
        timeout_ms: 0,
        keeps: false,
        replaces: false,
        login: Vec::new(),
        keys: Vec::from([word_at(request, 3)]),
    };
    let mut at = 6;
    while at < request.len() {
        let word = &request[at];
        let rest = request.len() - at - 1;
        match () {
            () if is(word, "copy") => order.keeps = true,
            () if is(word, "replace") => order.replaces = true,
            () if is(word, "auth") && rest >= 1 => {
                order.login = Vec::from([word_at(request, at + 1)]);
                at += 1;
            }
            () if is(word, "auth2") && rest >= 2 => {
                order.login = Vec::from([word_at(request, at + 1), word_at(request, at + 2)]);
                at += 2;
            }
            () if is(word, "keys") => {
                if !request[3].is_empty() {
                    return Err(Error::text(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    ));
                }
                order.keys = fallible(request.from(at + 1))?;
                break;
            }
            () => return Err(Error::SYNTAX),
        }
        at += 1;
    }
    order.timeout_ms = u64::try_from(integer(&request[5])?).ok().filter(|ms| *ms > 0).unwrap_or(1000);
    order.db = integer(&request[4])?;
    order.port = integer(&request[2]).ok().and_then(|port| u16::try_from(port).ok()).ok_or(Error::NOT_INTEGER)?;
    Ok(order)
}

/// The one key, or those behind the word KEYS; a password may be that word.
fn find_keys(request: Request<'_>) -> Option<Vec<KeyAt>> {
    let flags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);
    if !request.get(3)?.is_empty() {
        return Some(Vec::from([(3, flags)]));
    }
    let mut at = 6;
    while at < request.len() {
        match () {
            () if is(&request[at], "keys") => return fallible((at + 1..request.len()).map(|at| (at, flags))).ok(),
            () if is(&request[at], "auth") => at += 2,
            () if is(&request[at], "auth2") => at += 3,
            () => at += 1,
        }
    }
    Some(Vec::from([(3, flags)]))
}

fn migrate(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let order = parse(request)?;
    let (mut keys, mut requests) = (Vec::new(), Vec::new());
    let push = |requests: &mut Vec<u8>, words: &[&[u8]]| {
        encode(words.iter().copied(), requests).map_err(|_| Error::OUT_OF_MEMORY)
    };
    let mut preliminary = 1;
    if !order.login.is_empty() {
        push(&mut requests, &[&[&b"AUTH"[..]], &order.login[..]].concat())?;
        preliminary += 1;
    }
    push(&mut requests, &[b"SELECT", format!("{}", order.db).as_bytes()])?;
    let now_ms = context.now_ms();
    for &key in &order.keys {
        let Some(found) = context.find(key) else { continue };
        let expires_ms = context.db().expires_ms(found);
        let ttl = format!("{}", expires_ms.map_or(0, |at_ms| at_ms.saturating_sub(now_ms).max(1)));
        let payload = dump::payload_for_older(context.store, context.db_index(), found)?;
        let words: [&[u8]; 5] = [b"RESTORE", key, ttl.as_bytes(), &payload, b"REPLACE"];
        push(&mut requests, &words[..if order.replaces { 5 } else { 4 }])?;
        keys.push(copied(key)?);
    }
    if keys.is_empty() {
        context.reply.simple("NOKEY");
        return Ok(());
    }
    if context.origin != Origin::Client {
        return Err(Error::text("ERR MIGRATE waits for another store, which a transaction or script cannot"));
    }
    let timeout_ns = order.timeout_ms.saturating_mul(1_000_000);
    let until_ns = context.store.now.monotonic_ns.saturating_add(timeout_ns);
    let patience = Patience { kind: None, timeout_ns: None, on_timeout: OnTimeout::NullArray };
    context.block(request.from(0), core::iter::empty(), patience)?;
    let client = ClientRef { slot: context.slot, id: context.session().id };
    let db = context.db_index();
    context.store.migration = Some(Box::new(Migration {
        client,
        dial: Some(Dial::for_migration(order.host, order.port)),
        slot: None,
        timeout_ns,
        until_ns,
        requests,
        heard: Vec::new(),
        preliminary,
        replies: 0,
        db,
        keys,
        keeps: order.keeps,
        is_refused: false,
        error: None,
    }));
    context.no_more_effects();
    Ok(())
}

impl Store {
    /// Whether requests wait because keys are on their way.
    #[inline]
    pub(crate) fn migrates(&self) -> bool {
        self.migration.is_some()
    }

    /// When the migration is given up unless something moves before.
    pub(crate) fn migration_ends_ns(&self) -> Option<u64> {
        self.migration.as_ref().map(|migration| migration.until_ns)
    }

    pub(crate) fn migration_dial(&mut self) -> Option<Dial> {
        self.migration.as_mut()?.dial.take()
    }

    /// Takes the connection to the other store.
    pub(crate) fn migration_dialed(&mut self, slot: u32) -> bool {
        let Some(migration) = &mut self.migration else { return false };
        migration.slot = Some(slot);
        let requests = core::mem::take(&mut migration.requests);
        self.note_migration_progress();
        self.send(slot, |writer| writer.raw(&requests));
        true
    }

    /// Whether a client is the other store.
    #[inline]
    pub fn is_migration(&self, slot: u32) -> bool {
        self.migration.as_ref().is_some_and(|migration| migration.slot == Some(slot))
    }

    /// Notes that bytes were sent to the other store, or that it can be reached or has said something.
    #[cold]
    pub fn note_migration_progress(&mut self) {
        let now_ns = self.now.monotonic_ns;
        if let Some(migration) = &mut self.migration {
            migration.until_ns = now_ns.saturating_add(migration.timeout_ns);
        }
    }

    /// Takes what the other store has said.
    #[inline(never)]
    pub fn hear_migration(&mut self, bytes: &[u8]) {
        /// A longer line is no reply to what was asked.
        const LINE_LIMIT_BYTES: usize = 4096;
        self.note_migration_progress();
        if let Some(migration) = &mut self.migration {
            migration.heard.extend_from_slice(bytes);
        }
        let heard = self.migration.as_mut().map_or(Vec::new(), |migration| core::mem::take(&mut migration.heard));
        let mut rest = &heard[..];
        while let Some(migration) = &mut self.migration
            && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
        {
            let (line, behind) = rest.split_at(end + 1);
            rest = behind;
            let at = migration.replies;
            migration.replies += 1;
            let is_last = migration.replies == migration.preliminary + migration.keys.len();
            if let Some(error) = line.strip_prefix(b"-") {
                let text = [b"ERR Target instance replied with error: ", error.trim_ascii_end()].concat();
                migration.error.get_or_insert_with(|| text.into());
                migration.is_refused |= at < migration.preliminary;
            } else if at >= migration.preliminary && !migration.is_refused && !migration.keeps {
                // Of several keys those go that the other store has, whatever became of the others.
                let (db, key) = (migration.db, migration.keys[at - migration.preliminary].clone());
                self.remove_migrated(db, &key);
            }
            if is_last {
                return self.end_migration();
            }
        }
        match &mut self.migration {
            Some(_) if rest.len() > LINE_LIMIT_BYTES => self.fail_migration(NOT_READ),
            Some(migration) => migration.heard = rest.to_vec(),
            None => {}
        }
    }

    fn remove_migrated(&mut self, db: usize, key: &[u8]) {
        if let Some(found) = self.dbs[db].find_any(key) {
            self.write_down_key(db, found);
            self.dbs[db].remove(found);
            self.effect(db, &[b"DEL", key]);
            self.changed(db, key);
            self.notify(EventClass::GENERIC, "del", db, key);
            self.end_unit();
        }
    }

    /// Ends a migration whose connection failed, or that took too long.
    pub(crate) fn fail_migration(&mut self, why: &'static str) {
        if let Some(migration) = &mut self.migration {
            migration.error.get_or_insert(Error::text(why));
            self.end_migration();
        }
    }

    /// Does what time brings for a migration.
    pub(crate) fn tick_migration(&mut self) {
        if self.migration_ends_ns().is_some_and(|at_ns| at_ns <= self.now.monotonic_ns) {
            self.tell_of_lost_target();
        }
    }

    /// Answers the client, and lets all others be served again.
    fn end_migration(&mut self) {
        let Some(migration) = self.migration.take() else { return };
        if let Some(slot) = migration.slot {
            self.disconnect(slot);
        }
        self.releases_held = true;
        if self.client(migration.client).is_none_or(|session| session.waits.is_none()) {
            return;
        }
        let slot = migration.client.slot;
        self.run_as(slot, Origin::Retry, |context| match &migration.error {
            Some(error) => {
                let start = context.reply.len();
                context.fail(start, error);
            }
            None => context.reply.ok(),
        });
        self.unblock(slot);
    }

    /// Notes that a connection is gone.
    pub(crate) fn forget_migration(&mut self, slot: u32) {
        if self.is_migration(slot) {
            if let Some(migration) = &mut self.migration {
                migration.slot = None;
            }
            self.tell_of_lost_target();
        }
    }

    fn tell_of_lost_target(&mut self) {
        let is_connected = self.migration.as_ref().is_some_and(|migration| migration.replies > 0);
        self.fail_migration(if is_connected { NOT_READ } else { NOT_WRITTEN });
    }
}

#[cfg(test)]
mod tests {
    use crate::harness::Harness;

    #[test]
    fn what_is_wrong_is_told_before_anything_is_sent() {
        let mut harness = Harness::new();
        harness.expect(&[
            ("MIGRATE 127.0.0.1 1 k 0 100", "+NOKEY"),
            ("SET k v", "+OK"),
            ("MIGRATE 127.0.0.1 1 k 0 100 AUTH", "-ERR syntax error"),
            ("MIGRATE 127.0.0.1 1 k 0 x", "-ERR value is not an integer or out of range"),
            (
                "MIGRATE 127.0.0.1 1 k 0 100 KEYS k",
                "-ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
            ),
        ]);
    }
}
