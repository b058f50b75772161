//! Effects: what has changed, as commands that do exactly the same when they are run again, whenever that is.
//!
//! Whoever keeps a copy of the data, on a disk or on another machine, runs the effects in their order. Most commands are
//! their own effect. One that depends on the time, on chance or on what was there says by [`Context::effect`] what it
//! came to: an expiry as a time since 1970, `SPOP` as the `SREM` of what it took. The effects of one transaction or
//! script stand between `MULTI` and `EXEC`, so that a copy never shows half of it.

use crate::{
    Context, Origin, Outcome, Store,
    table::{Command, Flags, Handler},
};
use alloc::vec::Vec;
use kayvee_keyspace::Decimal;
use kayvee_resp::{Request, encode};

/// Bytes that the effects of one unit leave to those of the next, however many they were.
pub(crate) const KEPT_UNIT_BYTES: usize = 64 << 10;

/// Who is not told of effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untold {
    /// Who keeps a copy on another machine.
    pub listeners: bool,
    #[allow(missing_docs)]
    pub log: bool,
}

/// Effects on their way to whoever wants them.
#[derive(Default)]
pub struct Effects {
    /// How many want them; none are noted for nobody.
    listeners: usize,
    /// The effects of what is running now, as encoded requests, and how many these are.
    unit: Vec<u8>,
    unit_len: usize,
    /// Whether a command has one of them, rather than time or want of memory.
    has_command: bool,
    /// The database that the last effect was about.
    db: Option<usize>,
    /// Whether the running command has said what its effects are.
    is_told: bool,
    /// Whole units.
    done: Vec<u8>,
    /// Bytes of whole units so far.
    offset: u64,
    /// Who is not to be told of what happens.
    untold: Untold,
    /// Whether listeners get what comes from a master, as it came, rather than what happens here.
    passes_on: bool,
    /// Whether they are appended to the log.
    pub(crate) are_logged: bool,
    /// How many keys were told of that had expired.
    pub(crate) expired: u64,
    /// Set when memory ran out and something is missing: the listeners have to begin anew.
    is_broken: bool,
}

impl Effects {
    /// Whether anybody wants them.
    #[inline(always)]
    pub fn are_wanted(&self) -> bool {
        self.listeners_want() || self.log_wants()
    }

    #[inline]
    fn listeners_want(&self) -> bool {
        self.listeners > 0 && !self.untold.listeners && !self.passes_on
    }

    #[inline]
    fn log_wants(&self) -> bool {
        self.are_logged && !self.untold.log
    }

    /// Keeps effects from some, or from nobody.
    pub(crate) fn keep_from(&mut self, untold: Untold) {
        self.untold = untold;
    }

    /// Begins to note effects for one more listener, which needs all data as it is now. The next effect names its
    /// database.
    pub fn add_listener(&mut self) {
        self.listeners += 1;
        self.db = None;
    }

    /// Notes effects for one listener less.
    pub fn remove_listener(&mut self) {
        self.listeners -= 1;
    }

    /// Lets the next effect name its database, for a listener that has all data as it is now.
    pub fn name_database(&mut self) {
        self.db = None;
    }

    /// Whether listeners get what comes from a master.
    pub(crate) fn set_passes_on(&mut self, passes_on: bool) {
        self.passes_on = passes_on;
    }

    /// Lets there have been so many bytes of effects.
    pub(crate) fn set_offset(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Notes whole effects that came from a master.
    pub(crate) fn pass_on(&mut self, effects: &[u8]) {
        self.offset += effects.len() as u64;
        match self.done.try_reserve(effects.len()) {
            Ok(()) => self.done.extend_from_slice(effects),
            Err(_) => self.is_broken = true,
        }
    }

    /// Notes that listeners will miss so many bytes of effects that came from a master.
    pub(crate) fn lose(&mut self, bytes: usize) {
        self.offset += bytes as u64;
        self.is_broken = true;
    }

    /// Notes something that changes nothing, as a whole unit.
    pub(crate) fn push_alone(&mut self, words: &[&[u8]]) {
        let before = self.done.len();
        self.is_broken |= encode(words.iter().copied(), &mut self.done).is_err();
        self.offset += (self.done.len() - before) as u64;
    }

    /// The database that the next effect is about if it does not say.
    pub(crate) fn db(&self) -> usize {
        self.db.unwrap_or(0)
    }

    /// Bytes of effects so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The whole units since the last call, or `None` if some are lost for want of memory.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let done = core::mem::take(&mut self.done);
        (!core::mem::take(&mut self.is_broken)).then_some(done)
    }

    /// Whether there are whole units to take.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && !self.is_broken
    }

    fn push<'w>(&mut self, db: usize, words: impl ExactSizeIterator<Item = &'w [u8]>) {
        if self.db != Some(db) {
            let number = Decimal::unsigned(db as u64);
            let select = [b"SELECT", number.as_bytes()];
            self.is_broken |= encode(select.into_iter(), &mut self.unit).is_err();
            self.db = Some(db);
        }
        self.is_broken |= encode(words, &mut self.unit).is_err();
        self.unit_len += 1;
    }

    /// Ends what is running: its effects become a whole unit.
    fn end_unit(&mut self) {
        const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
        const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
        // Keys that expire or make room one after the other have nothing to do with each other.
        let is_one = self.unit_len == 1 || !self.has_command;
        let frame: [&[u8]; 2] = if is_one { [b"", b""] } else { [MULTI, EXEC] };
        let len = frame.iter().map(|part| part.len()).sum::<usize>() + self.unit.len();
        if self.done.try_reserve(len).is_ok() {
            let mut unit = &self.unit[..];
            // The choice of a database stands before the transaction, as in Redis.
            if !is_one && unit.starts_with(b"*2\r\n$6\r\nSELECT\r\n") {
                let select_len = select_len(unit);
                self.done.extend_from_slice(&unit[..select_len]);
                unit = &unit[select_len..];
            }
            self.done.extend_from_slice(frame[0]);
            self.done.extend_from_slice(unit);
            self.done.extend_from_slice(frame[1]);
            self.offset += len as u64;
        } else {
            self.is_broken = true;
        }
        self.unit.clear();
        self.unit.shrink_to(KEPT_UNIT_BYTES);
        self.unit_len = 0;
        self.has_command = false;
    }
}

/// Length of the encoded `SELECT` that `unit` begins with: its two arguments have five line ends.
fn select_len(unit: &[u8]) -> usize {
    let mut ends = unit.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.nth(4).unwrap_or(unit.len())
}

impl Context<'_> {
    /// Whether anybody wants effects. Where it takes work to tell them, one may ask first.
    pub fn effects_are_wanted(&self) -> bool {
        self.store.effects.are_wanted()
    }

    /// Tells what the running command has done, in place of itself. It may be called several times.
    pub fn effect(&mut self, words: &[&[u8]]) {
        let db = self.db_index();
        self.effect_in(db, words);
    }

    /// The same for another database than the client's.
    pub fn effect_in(&mut self, db: usize, words: &[&[u8]]) {
        self.store.tell(db, words);
    }

    /// Tells that the running command has no effect beyond what it has told.
    pub fn no_more_effects(&mut self) {
        self.store.effects.is_told = true;
    }

    /// Runs a command's function and notes what it has done, if anything: its request, unless it has told better.
    #[inline]
    pub(crate) fn run(&mut self, command: &'static Command, request: Request<'_>, handler: Handler) -> Outcome {
        self.fetch_many(command, request);
        if self.store.walks() {
            self.write_down_before(command, request);
        }
        if self.store.effects.are_wanted() {
            self.run_noting_effects(command, request, handler)
        } else {
            handler(self, request)
        }
    }

    #[inline(never)]
    fn run_noting_effects(&mut self, command: &'static Command, request: Request<'_>, handler: Handler) -> Outcome {
        let db = self.db_index();
        let (changes, expired) = (self.store.changes, self.store.effects.expired);
        let outer = core::mem::take(&mut self.store.effects.is_told);
        let outcome = handler(self, request);
        let is_told = core::mem::replace(&mut self.store.effects.is_told, outer);
        // One that fails has not done what was told already, which is that keys had expired.
        let told = if outcome.is_err() { self.store.effects.expired - expired } else { 0 };
        let has_changed = self.store.changes != changes + told;
        let writes = command.flags.contains(Flags::WRITE);
        if has_changed && writes && !is_told {
            if self.store.effects.listeners_want() {
                self.store.effects.push(db, request.from(0));
                self.store.effects.has_command = true;
            }
            if self.store.effects.log_wants() {
                let is_alone = matches!(self.origin, Origin::Client | Origin::Retry);
                self.store.log_request(db, command, request, is_alone);
            }
        }
        outcome
    }
}

impl Store {
    /// Tells what the running command has done, in place of itself.
    pub(crate) fn tell(&mut self, db: usize, words: &[&[u8]]) {
        if self.effects.are_wanted() {
            self.effect(db, words);
            self.effects.is_told = true;
            // Of a unit of nothing nobody would take it back.
            self.effects.has_command |= self.effects.unit_len > 0;
        }
    }

    /// Notes an effect that no command has: a key that expired, or made room.
    pub(crate) fn effect(&mut self, db: usize, words: &[&[u8]]) {
        if self.effects.listeners_want() {
            self.effects.push(db, words.iter().copied());
        }
        if self.effects.log_wants() {
            self.durable.note(self.now.unix_ms(), db, words);
        }
    }

    /// Tells other machines of something that changes no data.
    pub(crate) fn tell_listeners(&mut self, db: usize, words: &[&[u8]]) {
        if self.effects.listeners_want() {
            self.effects.push(db, words.iter().copied());
            self.effects.has_command = true;
        }
    }

    /// Ends what is running: its effects become a whole unit. A script that was put aside is still running.
    #[inline]
    pub fn end_unit(&mut self) {
        match self.effects.unit_len == 0 && !self.durable.has_unit() {
            true => self.durable.end_empty_unit(),
            false => self.end_filled_unit(),
        }
    }

    #[inline(never)]
    fn end_filled_unit(&mut self) {
        if self.scripting.is_busy() {
            return;
        }
        if self.effects.unit_len > 0 {
            self.effects.end_unit();
        }
        if self.durable.has_unit() {
            self.log_unit();
        }
    }
}
