//! Clients that wait: for a key to have something for them, or for time to pass.
//!
//! A command that finds nothing to return calls [`Context::block`]. Whenever a key that somebody waits for has changed,
//! the command that changed it is followed by running the waiting commands again, in the order in which they came. One
//! that still finds nothing keeps its place.

use crate::{
    Close, Context, Error, Origin, Store, args,
    replication::{self, Wanted},
    shutdown::FAILED,
    table::{Categories, Command, Flags, Group, Tips},
    transactions::for_each_request,
};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use kayvee_keyspace::Kind;

pub static COMMANDS: &[Command] = &[
    Command { name: "wait", arity: 3, ..WAIT_ROW },
    Command { name: "waitaof", arity: 4, handler: Some(replication::waitaof), ..WAIT_ROW },
];

const WAIT_ROW: Command = Command {
    flags: Flags::NOSCRIPT,
    categories: Categories::CONNECTION,
    group: Group::Generic,
    tips: Tips::ALL_SHARDS.union(Tips::AGG_MIN),
    handler: Some(replication::wait),
    ..Command::ROW
};

/// What a client waits for.
pub struct Wait {
    /// Its request, to run again.
    request: Vec<u8>,
    /// The keys, in the client's database.
    keys: Vec<Vec<u8>>,
    kind: Option<Kind>,
    until_ns: Option<u64>,
    pub(crate) on_timeout: OnTimeout,
}

impl Wait {
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Wait>() + self.request.capacity() + self.keys.iter().map(Vec::capacity).sum::<usize>()
    }
}

/// What a command says when it has waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTimeout {
    /// Nothing, where an array would stand.
    NullArray,
    /// This number.
    Integer(i64),
    /// How many copies there are by then of what the client wrote. It is over once there are as many as are wanted.
    Copies(Wanted),
    /// That the store does not end.
    EndFailed,
}

impl OnTimeout {
    /// Writes it as a reply.
    fn write(self, context: &mut Context<'_>) {
        match self {
            OnTimeout::NullArray => context.reply.null_array(),
            OnTimeout::Integer(number) => context.reply.integer(number),
            OnTimeout::Copies(wanted) => context.store.copies(wanted).write(&mut context.reply),
            OnTimeout::EndFailed => context.reply.error(&FAILED.0),
        }
    }
}

/// How a command waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Of what kind the keys have to be before it pays to try again; any change will do, if `None`.
    pub kind: Option<Kind>,
    /// For how long, in nanoseconds; `None` for ever.
    pub timeout_ns: Option<u64>,
    /// What the command says after that time.
    pub on_timeout: OnTimeout,
}

/// Clients that wait for one key.
#[derive(Default)]
pub struct Waiting {
    slots: VecDeque<u32>,
    /// How many of them wait for any change, rather than for a value of some kind.
    for_any_change: usize,
    /// Whether the key is in the list of keys that have changed.
    has_changed: bool,
}

/// Reads a timeout in seconds, with fractions, as blocking commands take it; 0 is for ever.
pub fn timeout_ns(arg: &[u8]) -> Result<Option<u64>, Error> {
    let not_float = Error::text("ERR timeout is not a float or out of range");
    let text = core::str::from_utf8(arg).map_err(|_| not_float.clone())?;
    if text.starts_with(|c: char| c.is_ascii_whitespace()) || text.is_empty() {
        return Err(not_float);
    }
    let seconds: f64 = text.parse().map_err(|_| not_float.clone())?;
    if seconds.is_nan() {
        return Err(not_float);
    }
    in_ns(seconds * 1e3)
}

/// Reads a timeout in milliseconds, as `XREAD` and `WAIT` take it; 0 is for ever.
pub fn timeout_ms(arg: &[u8]) -> Result<Option<u64>, Error> {
    let ms = args::integer(arg).map_err(|_| Error::text("ERR timeout is not an integer or out of range"))?;
    in_ns(ms as f64)
}

fn in_ns(ms: f64) -> Result<Option<u64>, Error> {
    if ms < 0.0 {
        return Err(Error::text("ERR timeout is negative"));
    }
    // More than a C `long long` of milliseconds cannot be added to a time.
    if ms > i64::MAX as f64 / 2.0 {
        return Err(Error::text("ERR timeout is out of range"));
    }
    // Parts of a millisecond count as a whole one: 0.0001 must not mean for ever.
    let whole_ms = ms as u64 + u64::from(ms as u64 as f64 != ms);
    Ok((whole_ms > 0).then(|| whole_ms.saturating_mul(1_000_000)))
}

impl Context<'_> {
    /// Whether a command that finds nothing may wait. In a transaction or script, it must not.
    pub fn may_block(&self) -> bool {
        matches!(self.origin, Origin::Client | Origin::Retry)
    }

    /// Lets the client wait until one of `keys` changes, and then runs the command of these `words` again: the one that is
    /// running, with what must not be read anew replaced. The handler writes no reply and returns. Where a client may
    /// not wait, the reply is that of a wait that was in vain.
    pub fn block<'w>(
        &mut self,
        words: impl ExactSizeIterator<Item = &'w [u8]>,
        keys: impl Iterator<Item = &'w [u8]>,
        patience: Patience,
    ) -> Result<(), Error> {
        match self.origin {
            Origin::Transaction | Origin::Script | Origin::Replay => {
                patience.on_timeout.write(self);
                return Ok(());
            }
            // It keeps its place and its deadline.
            Origin::Retry => {
                self.is_blocked = true;
                return Ok(());
            }
            Origin::Client => {}
        }
        let mut request = Vec::new();
        kayvee_resp::encode(words, &mut request).map_err(|_| Error::OUT_OF_MEMORY)?;
        let Patience { kind, timeout_ns, on_timeout } = patience;
        let until_ns = timeout_ns.map(|timeout| self.store.now.monotonic_ns.saturating_add(timeout));
        let (db, slot) = (self.db_index(), self.slot);
        let mut wait = Wait { request, keys: Vec::new(), kind, until_ns, on_timeout };
        let noted = self.store.note_waiting(slot, db, &mut wait, keys);
        if let Some(until_ns) = until_ns {
            self.store.deadlines.insert((until_ns, slot));
        }
        self.store.blocked_clients += 1;
        self.session().waits = Some(Box::new(wait));
        if let Err(error) = noted {
            self.store.unblock(slot);
            return Err(error);
        }
        self.is_blocked = true;
        Ok(())
    }
}

impl Store {
    /// Puts a client at the end of the queues of the keys that it waits for.
    fn note_waiting<'w>(
        &mut self,
        slot: u32,
        db: usize,
        wait: &mut Wait,
        keys: impl Iterator<Item = &'w [u8]>,
    ) -> Result<(), Error> {
        for key in keys {
            let copy = args::copied(key)?;
            wait.keys.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
            let waiting = self.waiting.of(db, key)?;
            // A key that is named twice is waited for once.
            if waiting.slots.back() != Some(&slot) {
                waiting.slots.push_back(slot);
                waiting.for_any_change += usize::from(wait.kind.is_none());
                wait.keys.push(copy);
            }
        }
        Ok(())
    }

    /// Notes that a key has changed, for those who wait for it.
    pub(crate) fn wake_waiting(&mut self, db: usize, key: &[u8]) {
        if let Some(waiting) = self.waiting.get_mut(db, key)
            && !waiting.has_changed
            && let Ok(copy) = args::copied(key)
        {
            waiting.has_changed = true;
            self.changed_keys.push_back((db, copy));
        }
    }

    /// The same for all keys of a database that somebody waits for.
    pub(crate) fn wake_all_waiting(&mut self, db: usize) {
        let keys: Vec<Vec<u8>> = self.waiting.in_db(db).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.wake_waiting(db, key));
    }

    /// Runs the commands again that wait for keys which have changed.
    #[inline(always)]
    pub(crate) fn serve_waiting(&mut self) {
        if !self.changed_keys.is_empty() {
            self.serve_waiting_for_changes();
        }
    }

    fn serve_waiting_for_changes(&mut self) {
        while let Some((db, key)) = self.changed_keys.pop_front() {
            if let Some(waiting) = self.waiting.get_mut(db, &key) {
                waiting.has_changed = false;
            }
            let mut at = 0;
            // One who is served leaves the queue; one who is not stays, and the next one has its turn.
            while let Some(waiting) = self.waiting.get(db, &key)
                && let Some(&slot) = waiting.slots.get(at)
            {
                let any_change_will_do = waiting.for_any_change > 0;
                let is_there = self.dbs[db].find(&key, self.now.unix_ms()).is_some();
                if self.dbs[db].expired_names.has_any() {
                    self.report_expired(db);
                }
                if !is_there && !any_change_will_do {
                    break;
                }
                let offset = self.effects.offset();
                at += usize::from(self.retry(slot, db, &key));
                self.end_unit();
                self.note_written(slot, offset);
            }
        }
    }

    /// Runs a client's command again. Returns whether it still waits.
    fn retry(&mut self, slot: u32, db: usize, key: &[u8]) -> bool {
        let now_ms = self.now.unix_ms();
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return true };
        // What it took would be lost.
        if session.close == Some(Close::Now) {
            return true;
        }
        let Some(wait) = session.waits.take() else { return true };
        let found = self.dbs[db].find(key, now_ms);
        let is_worthwhile = match wait.kind {
            Some(kind) => found.is_some_and(|found| self.dbs[db].kind(found) == kind),
            None => true,
        };
        let mut still_waits = !is_worthwhile;
        if is_worthwhile {
            for_each_request(&wait.request, |request| {
                still_waits = self.run_as(slot, Origin::Retry, |context| context.process(request));
            });
        }
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return true };
        session.waits = Some(wait);
        if !still_waits {
            self.unblock(slot);
        }
        still_waits
    }

    /// Ends a client's wait without a reply: that was written, or the client goes.
    pub(crate) fn unblock(&mut self, slot: u32) {
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        let (db, id) = (session.db, session.id);
        let Some(wait) = session.waits.take() else { return };
        for key in &wait.keys {
            if let Some(waiting) = self.waiting.get_mut(db, key) {
                // The first one is the likeliest to go.
                match waiting.slots.front() {
                    Some(&first) if first == slot => _ = waiting.slots.pop_front(),
                    _ => waiting.slots.retain(|&other| other != slot),
                }
                waiting.for_any_change -= usize::from(wait.kind.is_none());
                if waiting.slots.is_empty() {
                    self.waiting.remove(db, key);
                }
            }
        }
        if let Some(until_ns) = wait.until_ns {
            self.deadlines.remove(&(until_ns, slot));
        }
        if matches!(wait.on_timeout, OnTimeout::Copies(_)) {
            self.replication.waiting.remove(&(id, slot));
        }
        self.blocked_clients -= 1;
        self.touch(slot);
    }

    /// Ends a client's wait with the reply of one that was in vain, or with an error. Returns whether it waited.
    pub(crate) fn give_up_waiting(&mut self, slot: u32, error: Option<&Error>) -> bool {
        let Some(session) = self.sessions[slot as usize].as_deref() else { return false };
        let Some(on_timeout) = session.waits.as_ref().map(|wait| wait.on_timeout) else { return false };
        let command = session.last_command.map(|(container, sub)| sub.unwrap_or(container));
        self.run_as(slot, Origin::Retry, |context| match error {
            Some(error) => context.reply.error(&error.0),
            None => on_timeout.write(context),
        });
        if let Some(command) = command {
            self.count_unblocked(command, error);
        }
        self.unblock(slot);
        true
    }

    /// Ends the waits for keys that have gone by themselves, and those whose time is over.
    pub fn end_waits(&mut self) {
        self.serve_waiting();
        while let Some(&(until_ns, slot)) = self.deadlines.first()
            && until_ns <= self.now.monotonic_ns
        {
            self.give_up_waiting(slot, None);
        }
    }

    /// When the next wait ends, in monotonic nanoseconds.
    pub fn next_wait_ends_ns(&self) -> Option<u64> {
        self.deadlines.first().map(|&(until_ns, _)| until_ns)
    }
}
