//! Transactions: commands that run together, if no key that was watched has changed.

use crate::{
    Context, Error, Origin, Outcome, Store, args,
    cluster::{self, KeySlot},
    scripting::run_transaction,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys},
};
use alloc::vec::Vec;
use kayvee_resp::{Limits, Parser, Progress, Request};

const ANY_TIME: Flags =
    Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST).union(Flags::ALLOW_BUSY);
const ROW: Command = Command {
    arity: 1,
    flags: ANY_TIME,
    categories: Categories::TRANSACTION,
    group: Group::Transactions,
    ..Command::ROW
};

pub static COMMANDS: &[Command] = &[
    Command { name: "discard", handler: Some(discard), ..ROW },
    Command {
        name: "exec",
        flags: Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::SKIP_SLOWLOG),
        handler: Some(exec),
        ..ROW
    },
    Command { name: "multi", handler: Some(multi), ..ROW },
    Command { name: "unwatch", handler: Some(unwatch), ..ROW },
    Command { name: "watch", arity: -2, keys: &[Keys::range(1, -1, 1, KeyFlags::RO)], handler: Some(watch), ..ROW },
];

/// What commands need of the store.
#[derive(Clone, Copy, Default)]
pub struct Needs {
    /// They may change data.
    pub writes: bool,
    /// They may need memory.
    pub memory: bool,
    /// They may not run on old data.
    pub fresh_data: bool,
    /// Bytes of requests that were queued for them.
    pub queued_bytes: usize,
}

impl Needs {
    /// What a command needs: of `EXEC`, that is what it runs.
    #[inline(always)]
    pub fn of(command: &Command, transaction: Option<&Transaction>) -> Needs {
        let own = Needs {
            writes: command.flags.contains(Flags::WRITE),
            memory: command.flags.contains(Flags::DENYOOM),
            fresh_data: !command.flags.contains(Flags::STALE),
            queued_bytes: 0,
        };
        match transaction {
            Some(transaction) if command.name == "exec" => {
                Needs { queued_bytes: transaction.requests.len(), ..own.and(transaction.needs) }
            }
            _ => own,
        }
    }

    fn and(self, other: Needs) -> Needs {
        Needs {
            writes: self.writes || other.writes,
            memory: self.memory || other.memory,
            fresh_data: self.fresh_data || other.fresh_data,
            queued_bytes: 0,
        }
    }
}

/// The commands since `MULTI`.
#[derive(Default)]
pub struct Transaction {
    /// The queued requests, one behind the other as clients send them.
    pub requests: Vec<u8>,
    /// How many there are.
    pub len: usize,
    /// Whether one of them may change data, or would be replicated.
    pub may_replicate: bool,
    /// What they need, taken together.
    pub needs: Needs,
    /// Which slots of a cluster their keys are in.
    slot: KeySlot,
    /// Whether a command could not be queued, so that `EXEC` will run none.
    is_aborted: bool,
}

/// A key that a client watches.
pub struct Watch {
    db: usize,
    /// Its name.
    pub key: Vec<u8>,
    /// Whether its time had come already, so that its going is no change.
    is_stale: bool,
}

/// Whether a command is queued rather than run.
#[inline(always)]
pub fn queues(context: &mut Context<'_>, command: &Command) -> bool {
    context.origin == Origin::Client && context.session().transaction.is_some() && !is_never_queued(command)
}

/// Whether a command runs even in a transaction.
pub fn is_never_queued(command: &Command) -> bool {
    ["exec", "discard", "multi", "watch", "quit", "reset"].contains(&command.name)
}

/// Queues a request.
pub fn queue(context: &mut Context<'_>, command: &Command, request: Request<'_>) -> Outcome {
    let may_replicate = context.store.may_replicate(command, request);
    let slot = context.store.key_slot(request);
    if let Some(transaction) = context.session().transaction.as_deref_mut() {
        make_room_for(&mut transaction.requests, request)?;
        request.encode(&mut transaction.requests).map_err(|_| Error::OUT_OF_MEMORY)?;
        transaction.len += 1;
        transaction.may_replicate |= may_replicate;
        transaction.needs = transaction.needs.and(Needs::of(command, None));
        transaction.slot = transaction.slot.and(slot);
    }
    context.reply.simple("QUEUED");
    Ok(())
}

/// Makes room for a request: no more than it takes, if it is a long one.
fn make_room_for(requests: &mut Vec<u8>, request: Request<'_>) -> Outcome {
    const LONG_BYTES: usize = 64 << 10;
    /// Bytes around a word at most: its length and two line ends.
    const FRAME_BYTES: usize = 32;
    let bytes = request.bytes_len() + (request.len() + 1) * FRAME_BYTES;
    let reserved = if bytes > LONG_BYTES { requests.try_reserve_exact(bytes) } else { requests.try_reserve(bytes) };
    reserved.map_err(|_| Error::OUT_OF_MEMORY)
}

/// Fails the transaction that a request belongs to which may not run. Returns the error to reply with.
pub fn refuse(context: &mut Context<'_>, request: Request<'_>, error: Error) -> Error {
    let is_exec = request.get(0).is_some_and(|name| args::is(name, "exec"));
    let Some(transaction) = context.session().transaction.as_deref_mut() else { return error };
    if !is_exec {
        transaction.is_aborted = true;
        return error;
    }
    end(context);
    let reason = error.0.strip_prefix(b"ERR ").unwrap_or(&error.0);
    [b"EXECABORT Transaction discarded because of: ", reason].concat().into()
}

/// Ends a transaction and what was watched for it.
pub fn end(context: &mut Context<'_>) -> Option<Transaction> {
    let slot = context.slot;
    context.store.unwatch(slot);
    context.session().transaction.take().map(|transaction| *transaction)
}

fn multi(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let session = context.session();
    if session.transaction.is_some() {
        return Err(Error::text("ERR MULTI calls can not be nested"));
    }
    session.transaction = Some(Default::default());
    context.reply.ok();
    Ok(())
}

fn discard(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    if context.session().transaction.is_none() {
        return Err(Error::text("ERR DISCARD without MULTI"));
    }
    end(context);
    context.reply.ok();
    Ok(())
}

fn exec(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    if context.session().transaction.is_none() {
        return Err(Error::text("ERR EXEC without MULTI"));
    }
    let slot = context.slot;
    let is_broken = context.session().watch_broken || context.store.watches_expired(slot);
    let Some(transaction) = end(context) else { return Ok(()) };
    if transaction.is_aborted {
        return Err(Error::text("EXECABORT Transaction discarded because of previous errors."));
    }
    if transaction.slot == KeySlot::Several {
        return Err(cluster::CROSS_SLOT);
    }
    if is_broken {
        context.reply.null_array();
        return Ok(());
    }
    context.reply.array(transaction.len);
    let outer = core::mem::replace(&mut context.origin, Origin::Transaction);
    run_transaction(context, &transaction.requests);
    context.origin = outer;
    Ok(())
}

/// Calls `run` with each of the requests that lie one behind the other in `bytes`.
pub fn for_each_request(bytes: &[u8], mut run: impl FnMut(Request<'_>)) {
    let mut parser = Parser::new();
    let mut used = 0;
    while let Ok(Progress::Complete(len)) = parser.parse(&bytes[used..], Limits::PASSED) {
        run(parser.request(&bytes[used..]));
        parser.reset();
        used += len;
    }
}

fn watch(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let db = context.db_index();
    if context.session().transaction.is_some() {
        return Err(Error::text("ERR WATCH inside MULTI is not allowed"));
    }
    let slot = context.slot;
    // Once it has failed, what else is watched makes no difference.
    if !context.session().watch_broken {
        for key in request.from(1) {
            // A key whose time has come already is gone for good, so its going is no change.
            context.find(key);
            context.store.watch(slot, db, key)?;
        }
    }
    context.reply.ok();
    Ok(())
}

fn unwatch(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let slot = context.slot;
    context.store.unwatch(slot);
    context.reply.ok();
    Ok(())
}

impl Store {
    fn watch(&mut self, slot: u32, db: usize, key: &[u8]) -> Outcome {
        // Where a master removes it, or nothing may change, it is still there.
        let is_stale = self.dbs[db].is_expired_key(key, self.now.unix_ms());
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return Ok(()) };
        session.watched.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
        let copy = args::copied(key)?;
        let watchers = self.watchers.of(db, key)?;
        if !watchers.contains(&slot) {
            watchers.push(slot);
            session.watched.push(Watch { db, key: copy, is_stale });
        }
        Ok(())
    }

    /// Forgets what a client watches.
    pub(crate) fn unwatch(&mut self, slot: u32) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        session.watch_broken = false;
        for Watch { db, key, .. } in core::mem::take(&mut session.watched) {
            if let Some(slots) = self.watchers.get_mut(db, &key) {
                slots.retain(|&watcher| watcher != slot);
                if slots.is_empty() {
                    self.watchers.remove(db, &key);
                }
            }
        }
    }

    /// Whether a key that a client watches has expired and nobody has looked for it since.
    fn watches_expired(&mut self, slot: u32) -> bool {
        let now_ms = self.now.unix_ms();
        let Store { sessions, dbs, .. } = self;
        let Some(session) = sessions[slot as usize].as_deref() else { return false };
        session.watched.iter().any(|watch| !watch.is_stale && dbs[watch.db].is_expired_key(&watch.key, now_ms))
    }

    /// Fails the transactions of those who watch a key, but for those to whom it had gone before and that is removed now.
    pub(crate) fn break_watches(&mut self, db: usize, key: &[u8]) {
        let now_ms = self.now.unix_ms();
        let Store { watchers, sessions, dbs, .. } = self;
        let Some(slots) = watchers.get(db, key) else { return };
        let is_removed = !dbs[db].has(key, now_ms) && !dbs[db].is_expired_key(key, now_ms);
        for slot in slots {
            let Some(session) = sessions[*slot as usize].as_deref_mut() else { continue };
            let is_it = |watch: &&mut Watch| watch.is_stale && watch.db == db && watch.key == key;
            match session.watched.iter_mut().find(is_it) {
                Some(watch) if is_removed => watch.is_stale = false,
                _ => session.watch_broken = true,
            }
        }
    }

    /// Fails the transactions of those who watch a key of a database that is there, or is there in the database that takes
    /// its place.
    pub(crate) fn break_all_watches(&mut self, db: usize, replacement: Option<usize>) {
        let now_ms = self.now.unix_ms();
        let Store { watchers, sessions, dbs, .. } = self;
        for (key, slots) in watchers.in_db(db) {
            let is_there = dbs[db].has(key, now_ms) || replacement.is_some_and(|other| dbs[other].has(key, now_ms));
            let is_stale = replacement.is_some_and(|other| dbs[other].is_expired_key(key, now_ms));
            for slot in slots {
                let Some(session) = sessions[*slot as usize].as_deref_mut() else { continue };
                session.watch_broken |= is_there;
                for watch in session.watched.iter_mut().filter(|watch| watch.db == db && watch.key == *key) {
                    watch.is_stale = is_stale;
                }
            }
        }
    }
}
