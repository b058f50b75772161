//! Writing all data down in the log while clients are served, so that the log can begin there.

use super::{Durable, GAP, append::Gathered, unit};
use crate::{Store, options::Options};
use kayvee_keyspace::Epoch;
use kayvee_log::{CompactionStage, Kind, RecordError};

/// How long a turn may walk, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// How many places of the index a turn looks at, at the most.
const SLICE_PLACES: usize = 256;
/// Below this share of the disk that is left, the log is compacted if that would gain enough, in percent.
const SHORT_PERCENT: u64 = 12;
/// A compaction for want of room is worth it if the log is this much longer than what would be written, in percent, and by
/// so much more, or an eighth of a small disk.
const WORTHWHILE_PERCENT: u64 = 125;
const WORTHWHILE_BYTES: u64 = 1 << 20;
/// On a full disk it is worth it after so much that commands have written that need no memory: less than they may.
const RELEASED_BYTES: u64 = 128 << 10;
/// After a compaction has failed, the next one that nobody has asked for waits so long.
const AGAIN_AFTER_NS: u64 = 5_000_000_000;

/// A compaction that runs.
#[derive(Clone, Copy, Debug)]
pub struct Compaction {
    /// When it began.
    pub started_ns: u64,
    /// Keys that were there then, and keys that are written.
    pub keys_total: u64,
    pub keys_written: u64,
    /// Changes of keys until the walk had come to its end.
    changes: u64,
    /// Whether something was lost since then, so that it is of no use.
    is_spoiled: bool,
}

impl Durable {
    pub(super) fn note_written_down(&mut self) {
        if let Some(walk) = &mut self.walk {
            walk.keys_written += 1;
        }
    }

    /// Whether a compaction runs, or is about to.
    pub(crate) fn is_compacting(&self) -> bool {
        self.walk.is_some() || self.finishing.is_some() || self.is_wanted
    }

    /// The compaction that runs.
    pub(crate) fn compaction(&self) -> Option<Compaction> {
        self.walk.or(self.finishing)
    }

    /// Asks for a compaction. It begins with this turn's end, or when the one that runs has ended.
    pub(crate) fn request_compaction(&mut self) {
        self.is_wanted = true;
    }

    /// Notes that what is written down cannot be relied upon.
    pub(super) fn spoil(&mut self) {
        if let Some(compaction) = self.walk.as_mut().or(self.finishing.as_mut()) {
            compaction.is_spoiled = true;
        }
    }

    fn next_epoch(&mut self) -> Epoch {
        self.epoch = self.epoch.next();
        self.epoch
    }

    /// Whether the log has become so long that a compaction is worth it.
    fn is_too_long(&self, options: &Options) -> bool {
        let Some(log) = &self.log else { return false };
        // One that finds no room takes what is left for what is deleted.
        if log.failure().is_some() || !log.has_room_for_compaction() {
            return false;
        }
        let (used, live) = (log.used_bytes(), log.live_bytes());
        let is_short = log.room_bytes() < log.size_bytes() / 100 * SHORT_PERCENT;
        let base = self.base_bytes.max(1);
        let percent = u64::from(options.auto_aof_rewrite_percentage);
        let has_grown = percent > 0
            && used >= options.auto_aof_rewrite_min_size
            && used.saturating_sub(base).saturating_mul(100) / base >= percent;
        let is_full = self.is_tight && used >= self.roomy_bytes + RELEASED_BYTES;
        let gain = WORTHWHILE_BYTES.min(log.size_bytes() / 8);
        (is_short && used > live / 100 * WORTHWHILE_PERCENT + gain) || has_grown || is_full
    }
}

impl Store {
    /// Whether a compaction may begin or go on: there is one walk at a time, what a master is still sending is no state to
    /// begin a log with, and at the end nothing is to follow what the log says of the data's history.
    pub(super) fn may_compact(&self) -> bool {
        !self.replication.walks()
            && !self.replication.is_loading()
            && (self.shutdown.is_none() || self.durable.at_end.saves)
    }

    /// Whether a compaction has to begin that nobody has asked for, as soon as `again_after_ns` is over.
    pub(super) fn compaction_is_due(&self) -> bool {
        let durable = &self.durable;
        self.is_logging() && durable.compaction().is_none() && (!durable.is_whole || durable.is_too_long(&self.options))
    }

    /// Goes on with a compaction, or begins one, for a moment.
    #[inline(never)]
    pub fn compact_slice(&mut self) {
        if !self.durable.is_open() || self.scripting.is_busy() {
            return;
        }
        if !self.may_compact() {
            return;
        }
        if self.durable.walk.is_none() {
            let is_due = self.now.monotonic_ns >= self.durable.again_after_ns && self.compaction_is_due();
            if self.durable.finishing.is_none() && (self.durable.is_wanted || is_due) {
                self.begin_compaction();
            }
            return;
        }
        if self.durable.walk.is_some_and(|walk| walk.is_spoiled) {
            return self.abandon_compaction("what has changed meanwhile was lost");
        }
        if let Err(error) = self.walk_on() {
            self.abandon_compaction(error);
        }
    }

    fn begin_compaction(&mut self) {
        let is_wanted = core::mem::take(&mut self.durable.is_wanted);
        let now_ns = self.environment.clock.monotonic_ns();
        if let Err(error) = self.try_begin_compaction(is_wanted) {
            if self.durable.compaction_trouble.fails(now_ns) {
                log::warn!("the log cannot be compacted: {error}");
            }
            self.compaction_failed(now_ns);
            return;
        }
        let keys_total = self.all_keys() as u64;
        self.durable.walk =
            Some(Compaction { started_ns: now_ns, keys_total, keys_written: 0, changes: 0, is_spoiled: false });
        self.effects.are_logged = true;
        if !self.durable.compaction_trouble.lasts() {
            log::info!("compacting the log: {keys_total} keys");
        }
    }

    fn try_begin_compaction(&mut self, is_wanted: bool) -> Result<(), RecordError> {
        // This turn may have changed much.
        self.measure_live_bytes();
        let Some(log) = &mut self.durable.log else { return Ok(()) };
        // One that has to be would take more of the disk with each try, and so with each end.
        let must = !is_wanted || self.shutdown.is_some() && self.durable.refuses;
        if must && !log.has_room_for_compaction() {
            return Err(RecordError::Full);
        }
        if log.appended() == 0 && !self.durable.is_whole {
            // What begins the log passes for its beginning, even if it is cut: so it is not the first record.
            log.begin_record(GAP)?;
            log.commit_record();
        }
        log.begin_compaction()?;
        // What was lost before does not matter to what begins here.
        let was_broken = core::mem::take(&mut self.durable.is_broken);
        let begun = self.write_beginning();
        if begun.is_err() {
            self.durable.is_broken = was_broken;
            if let Some(log) = &mut self.durable.log {
                log.cancel_compaction();
            }
            return begun;
        }
        self.begin_walk();
        Ok(())
    }

    /// Begins a walk over all keys.
    pub(crate) fn begin_walk(&mut self) {
        // So many walks in a row were given up that some keys may have the mark of the next one by chance.
        if self.durable.abandoned >= Epoch::COUNT - 2 {
            self.settle_marks();
        }
        let epoch = self.durable.next_epoch();
        self.dbs.iter_mut().for_each(|db| db.begin_walk(epoch));
    }

    /// Where the walk is: a database and a place in it. It is over if there is none.
    pub(crate) fn walk_place(&self) -> Option<(usize, u64)> {
        self.dbs.iter().enumerate().find_map(|(at, db)| Some((at, db.walk_cursor()?)))
    }

    /// Notes that the walk for a copy has come to its end.
    pub(crate) fn end_walk_of_copy(&mut self) {
        self.durable.abandoned = 0;
    }

    /// Gives up the walk, whatever it is for.
    pub(crate) fn abandon_walk(&mut self) {
        self.dbs.iter_mut().for_each(kayvee_keyspace::Db::abandon_walk);
        self.durable.abandoned += 1;
    }

    /// Notes that all data have been replaced, which no effect tells.
    pub(crate) fn note_data_replaced(&mut self) {
        if self.effects.are_logged {
            self.stop_logging();
            self.durable.spoil();
            self.durable.request_compaction();
        }
    }

    /// What a log begins with, besides keys: the time, how many keys there are, and libraries of functions.
    fn write_beginning(&mut self) -> Result<(), RecordError> {
        let now_ms = self.now.unix_ms();
        let Store { durable, scripting, dbs, .. } = self;
        // What is read first must name its time.
        durable.last_ms = u64::MAX;
        if !durable.is_whole {
            durable.append_bytes(GAP, now_ms, &[])?;
        }
        let mut text = Gathered::default();
        unit::write_beginning(&mut text);
        for library in scripting.library_texts() {
            unit::write_command(&mut text, b"FUNCTION", [&b"LOAD"[..], b"REPLACE", library].into_iter());
        }
        for (at, db) in dbs.iter().enumerate().filter(|(_, db)| !db.is_empty()) {
            unit::write_database(&mut text, at);
            unit::write_size(&mut text, db.len());
        }
        durable.append_bytes(Kind::STATE, now_ms, text.bytes()?)
    }

    /// Marks all keys, so that the next walk's mark is nobody's.
    fn settle_marks(&mut self) {
        for db in &mut self.dbs {
            let epoch = db.epoch();
            db.begin_walk(epoch);
            let mut keys = core::mem::take(&mut self.durable.keys);
            while let Some(cursor) = db.walk_cursor() {
                keys.clear();
                // Without memory for a few references there is nothing to be done but to go on.
                let next = db.unmarked_at(cursor, &mut keys).unwrap_or(0);
                keys.iter().for_each(|&found| db.mark(found));
                db.continue_walk_at(next);
            }
            self.durable.keys = keys;
        }
        self.durable.abandoned = 0;
    }

    /// Walks on until the time of a turn is over, the device has enough to do, or the end is reached.
    fn walk_on(&mut self) -> Result<(), RecordError> {
        let clock = self.environment.clock;
        let until_ns = clock.monotonic_ns() + SLICE_NS;
        for _ in 0..SLICE_PLACES {
            if self.durable.log.as_ref().is_none_or(|log| log.is_congested()) {
                return Ok(());
            }
            if self.write_next_part()? {
                if clock.monotonic_ns() >= until_ns {
                    break;
                }
                continue;
            }
            let Some((db, cursor)) = self.walk_place() else {
                self.end_walk();
                return Ok(());
            };
            let mut keys = core::mem::take(&mut self.durable.keys);
            keys.clear();
            let next = match self.dbs[db].unmarked_at(cursor, &mut keys) {
                Ok(next) if keys.is_empty() => Ok(next),
                Ok(next) => self.write_down_all(db, &keys).map(|()| next),
                Err(_) => Err(RecordError::OutOfMemory),
            };
            self.durable.keys = keys;
            self.dbs[db].continue_walk_at(next?);
            if clock.monotonic_ns() >= until_ns {
                break;
            }
        }
        Ok(())
    }

    fn end_walk(&mut self) {
        self.durable.finishing = self.durable.walk.take().map(|walk| Compaction { changes: self.changes, ..walk });
        if let Some(log) = &mut self.durable.log {
            log.finish_compaction();
        }
        if !self.options.appendonly {
            // What follows is not part of what is saved.
            self.stop_logging();
        }
    }

    /// Gives a compaction up that cannot be finished.
    pub(crate) fn abandon_compaction(&mut self, why: impl core::fmt::Display) {
        if self.give_up_compaction(why) {
            self.compaction_failed(self.environment.clock.monotonic_ns());
        }
    }

    /// Gives a compaction up, if one walks. The log goes on from where it began before.
    pub(super) fn give_up_compaction(&mut self, why: impl core::fmt::Display) -> bool {
        if self.durable.walk.take().is_none() {
            return false;
        }
        if self.durable.compaction_trouble.fails(self.environment.clock.monotonic_ns()) {
            log::warn!("the compaction of the log is given up: {why}");
        }
        self.forget_parts();
        self.abandon_walk();
        if let Some(log) = &mut self.durable.log {
            log.cancel_compaction();
        }
        if !self.durable.is_whole {
            // What was appended since it began is behind a gap, and so would be all that follows.
            self.stop_logging();
        }
        true
    }

    fn compaction_failed(&mut self, now_ns: u64) {
        self.durable.again_after_ns = now_ns.saturating_add(AGAIN_AFTER_NS);
        self.durable.status.failed();
        if self.saves_to_log() {
            self.saves.trouble.fails(now_ns);
            self.durable.refuses |= self.log_lacks_its_beginning();
        }
    }

    /// Appends no changes any more. What is in the log stays, as it is now.
    pub(crate) fn stop_logging(&mut self) {
        self.effects.are_logged = false;
        self.durable.is_whole = false;
    }

    /// Notes that the log has its new beginning.
    pub(super) fn note_compacted(&mut self) {
        if self.durable.is_compacted() && !self.durable.is_beside() {
            self.end_compaction();
        }
    }

    /// Ends a compaction all of which is on stable storage, in its place if it has not failed.
    pub(super) fn end_compaction(&mut self) {
        let Some(compaction) = self.durable.finishing.take() else { return };
        let now_ns = self.environment.clock.monotonic_ns();
        if compaction.is_spoiled {
            return self.compaction_failed(now_ns);
        }
        self.durable.abandoned = 0;
        self.durable.is_whole = self.effects.are_logged;
        self.durable.refuses = false;
        self.recheck_copies();
        // What has waited for room may go on.
        self.durable.due_ns = Some(now_ns);
        let took_s = now_ns.saturating_sub(compaction.started_ns) / 1_000_000_000;
        self.durable.compaction_succeeded(compaction, took_s);
        if self.saves_to_log() {
            self.saves.took_s = Some(took_s);
            self.note_saved(compaction.changes);
        }
    }
}

impl Durable {
    /// Whether all that a compaction has written is on stable storage.
    pub(super) fn is_compacted(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.compaction_stage() == CompactionStage::None)
    }

    fn compaction_succeeded(&mut self, compaction: Compaction, took_s: u64) {
        self.base_bytes = self.log.as_ref().map_or(0, |log| log.used_bytes());
        self.roomy_bytes = self.base_bytes;
        self.status.succeeded(took_s);
        self.compaction_trouble.ends();
        log::info!("the log is compacted: {} keys, {} bytes", compaction.keys_written, self.base_bytes);
    }
}
