//! The log and its device, turn by turn.

use super::{AtEnd, Durable, unit};
use crate::{
    Error, History, Store,
    options::{AppendFsync, Options},
    persistence::LOOK_NS,
    transactions::Needs,
};
use kayvee_log::{FlushPolicy, Kind, Log, RecordError, Sequence};
use kayvee_platform::{BlockDevice, BlockError, earliest};
use kayvee_resp::Request;

/// Room that must be left on the disk beyond a request's own length before it may run.
const SPARE_BYTES: u64 = 64 << 10;
/// Room that a record takes besides its bytes, in blocks that it fills and leaves.
const LAST_SPARE_BYTES: u64 = 8 << 10;
/// What the log has no room for.
const NO_SPACE: &str = "No space left on device";

impl Durable {
    /// The error for the command of this name that changes data, if the change could not be made to last, behind all that
    /// has happened with it.
    #[inline]
    pub(crate) fn refusal(
        &self,
        options: &Options,
        request_bytes: usize,
        name: &str,
        needs_memory: bool,
    ) -> Option<Error> {
        let log = self.log.as_ref().filter(|_| options.appendonly)?;
        let bytes = (request_bytes + self.unit_bytes()) as u64;
        // A compaction may have to write as much once more, which is measured later.
        let needed_bytes = SPARE_BYTES + bytes * 2 + bytes / 8;
        match log.failure().is_none() && !self.refuses && log.room_bytes() >= needed_bytes {
            true => None,
            false => self.refusal_without_room(log, options.appendfsync, bytes, name, needs_memory),
        }
    }

    #[cold]
    #[inline(never)]
    fn refusal_without_room(
        &self,
        log: &Log,
        policy: AppendFsync,
        bytes: u64,
        name: &str,
        needs_memory: bool,
    ) -> Option<Error> {
        let reason = match log.failure() {
            Some(failure) if failure.error != BlockError::NoSpace => "Input/output error",
            None if !needs_memory && self.may_use_the_last(log, policy, bytes, name) => return None,
            // What is to be written anew was lost for want of something else.
            None if self.refuses && log.room_bytes() > 0 => "Cannot allocate memory",
            _ => NO_SPACE,
        };
        Some(alloc::format!("MISCONF Errors writing to the AOF file: {reason}").into())
    }

    /// Whether a command that needs no memory may write so many bytes on a full disk. What is kept for a compaction is for
    /// what deletes, without which there would never be room again, and the last of it for what leaves nothing, after
    /// which there is.
    fn may_use_the_last(&self, log: &Log, policy: AppendFsync, bytes: u64, name: &str) -> bool {
        let last_bytes = log.last_bytes();
        let kept_bytes = match name {
            // What is written anew has what is deleted, but that may come too late for what a reply says.
            "del" | "unlink" | "flushall" | "flushdb" if self.refuses => return policy != AppendFsync::Always,
            _ if self.refuses => return false,
            // Where its record finds no room all is written anew, which is nothing.
            "flushall" => last_bytes,
            "flushdb" => last_bytes + LAST_SPARE_BYTES,
            "del" | "unlink" => last_bytes + 2 * LAST_SPARE_BYTES,
            _ => SPARE_BYTES / 2 + log.reserve_bytes(),
        };
        log.free_bytes() >= kept_bytes + bytes
    }

    /// What kind of record so many bytes of effects are, which may have only room that is kept for compactions. The last of
    /// it is left, or there would never be a compaction again: better to lose these, which the next one writes.
    #[inline]
    pub(super) fn kind_of_effects(&self, bytes: usize) -> Result<Kind, RecordError> {
        match &self.log {
            Some(log) if log.room_bytes() < SPARE_BYTES + bytes as u64 => self.kind_of_last_effects(log, bytes),
            _ => Ok(Kind::EFFECTS),
        }
    }

    #[cold]
    #[inline(never)]
    fn kind_of_last_effects(&self, log: &Log, bytes: usize) -> Result<Kind, RecordError> {
        let has_room = log.free_bytes() >= log.last_bytes() + LAST_SPARE_BYTES + bytes as u64;
        if has_room || self.compaction().is_some() { Ok(Kind::RELEASES) } else { Err(RecordError::Full) }
    }

    /// Whether the end waits until all data is saved.
    fn saves_yet(&self) -> bool {
        self.at_end.saves && self.is_compacting()
    }

    /// Whether what was recorded may not become stable.
    fn fails(&self) -> bool {
        self.refuses || self.log.as_ref().is_some_and(|log| log.failure().is_some())
    }
}

fn policy_of(options: &Options) -> FlushPolicy {
    match options.appendfsync {
        AppendFsync::Always => FlushPolicy::Always,
        AppendFsync::EverySecond => FlushPolicy::EverySecond,
        AppendFsync::No => FlushPolicy::No,
    }
}

impl Store {
    /// Whether there is a log that is to have every change.
    pub fn is_logging(&self) -> bool {
        self.has_log() && self.options.appendonly
    }

    /// Whether replies wait until what they tell is on stable storage.
    pub fn replies_wait(&self) -> bool {
        self.is_logging() && self.options.appendfsync == AppendFsync::Always && !self.durable.fails()
    }

    /// Whether it is in doubt if what was recorded will ever be on stable storage.
    pub fn log_fails(&self) -> bool {
        self.durable.fails()
    }

    /// The last record with effects.
    pub fn appended(&self) -> Sequence {
        self.durable.last_effects
    }

    /// Every record up to this one is on stable storage.
    pub fn stable(&self) -> Sequence {
        self.durable.log.as_ref().map_or(0, |log| log.durable())
    }

    /// Hands what is due to the log's device and takes what it has finished.
    pub fn drive_log(&mut self, device: &mut dyn BlockDevice) {
        if !self.durable.is_open() {
            return;
        }
        self.measure_live_bytes();
        if self.lacks_history() {
            self.log_history();
        }
        let policy = if self.shutdown.is_some() { FlushPolicy::Always } else { policy_of(&self.options) };
        let now_ns = self.environment.clock.monotonic_ns();
        let durable = &mut self.durable;
        let Some(log) = &mut durable.log else { return };
        if self.shutdown.is_some() && log.durable() < log.appended() {
            log.request_flush();
        }
        let stable = log.durable();
        if stable < durable.last_effects {
            durable.behind_since_ns.get_or_insert(now_ns);
        }
        durable.due_ns = log.drive(device, policy, now_ns);
        match log.failure() {
            Some(failure) if durable.disk_trouble.fails(now_ns) => {
                log::error!("{failure}; commands that write are refused until that works again");
            }
            None if durable.disk_trouble.ends() => {
                log::warn!("the log's disk works again");
                // A master that has waited for that may go on.
                durable.due_ns = Some(now_ns);
            }
            _ => {}
        }
        // Whoever waits for one that fails hears so.
        durable.is_congested = log.is_congested() && log.failure().is_none();
        if durable.is_congested {
            durable.congested_since_ns.get_or_insert(now_ns);
        }
        if log.durable() > stable {
            self.note_flush(policy);
            self.recheck_copies();
        }
        if self.durable.finishing.is_some() {
            self.note_compacted();
        }
        self.check_end();
        let may_reload = self.durable.is_whole && self.durable.compaction().is_none() && !self.scripting.is_busy();
        if self.durable.reload_is_wanted && may_reload {
            self.durable.reload_is_wanted = false;
            let reloaded = self.reload_from_log(device);
            self.durable.reload_failed = reloaded.is_err();
            reloaded.unwrap_or_else(|error| log::error!("the data are not taken back from the log: {error}"));
        }
        self.note_covered();
        self.end_ack_waits();
        self.end_log_waits();
    }

    /// How many bytes of effects are on stable storage, if any ever are.
    pub(crate) fn covered(&self) -> Option<u64> {
        (self.is_logging() && self.durable.is_whole).then_some(self.durable.covered)
    }

    /// Notes how many bytes of effects are on stable storage by now. Of one record after the other that is not, it is known
    /// how many there were before it.
    fn note_covered(&mut self) {
        let (stable, offset) = (self.stable(), self.effects.offset());
        let durable = &mut self.durable;
        let next = (durable.last_effects, offset);
        if !durable.is_whole {
            (durable.covered, durable.covered_next) = (0, next);
        } else if stable >= durable.covered_next.0 {
            durable.covered = if stable >= next.0 { next.1 } else { durable.covered_next.1 };
            durable.covered_next = next;
        }
        self.tell_covered();
    }

    /// Tells `LATENCY` how long what has become stable took for that, and how long changes have waited for the device, by
    /// the names that such events have in Redis.
    fn note_flush(&mut self, policy: FlushPolicy) {
        let now_ns = self.environment.clock.monotonic_ns();
        let durable = &mut self.durable;
        let is_behind = durable.log.as_ref().is_some_and(|log| log.durable() < durable.last_effects);
        let behind_since_ns = core::mem::replace(&mut durable.behind_since_ns, is_behind.then_some(now_ns));
        let congested_since_ns = durable.congested_since_ns.take_if(|_| !durable.is_congested);
        if let Some(since_ns) = behind_since_ns.filter(|_| policy == FlushPolicy::Always) {
            self.note_latency("aof-fsync-always", now_ns.saturating_sub(since_ns));
        }
        if let Some(since_ns) = congested_since_ns {
            self.note_latency("aof-write-pending-fsync", now_ns.saturating_sub(since_ns));
        }
    }

    /// Tells the log how many bytes a compaction would write, at the most, if anything has changed: what is written of a
    /// value is no longer than what it takes here, and of no data there is nothing to write. Memory of what was deleted comes back later than its record, which counts where
    /// there is no room. When all is deleted, what has kept the last compaction from its end keeps the next one no more.
    pub(super) fn measure_live_bytes(&mut self) {
        let is_empty = self.is_empty();
        let Some(log) = &mut self.durable.log else { return };
        let appended = Some(log.appended());
        if self.durable.measured_at != appended || self.durable.is_tight {
            self.durable.measured_at = appended;
            // What is small beside most data is not where the disk is small as well.
            let buffers = log.buffers_bytes() + self.network_buffers_bytes;
            let others = self.startup_bytes + buffers + self.replication.backlog_bytes();
            let used = self.environment.heap.used_bytes().saturating_sub(others);
            let live = used.max(self.dbs.iter().map(|db| db.overhead_bytes() as u64).sum());
            if is_empty && log.live_bytes() > 0 {
                self.durable.again_after_ns = 0;
            }
            log.set_live_bytes(if is_empty { 0 } else { live });
        }
        self.durable.is_tight = log.room_bytes() == 0;
        if !self.durable.is_tight {
            self.durable.roomy_bytes = log.used_bytes();
        }
    }

    /// When the log has to be driven, in monotonic nanoseconds, even if nothing happens.
    pub fn log_deadline_ns(&self) -> Option<u64> {
        let durable = &self.durable;
        let log = durable.log.as_ref()?;
        let now_ns = self.now.monotonic_ns;
        let may_walk = self.may_compact();
        let walks = may_walk && durable.walk.is_some() && !log.is_congested() && log.failure().is_none();
        let begins = may_walk && durable.is_wanted && durable.finishing.is_none();
        let again = (may_walk && self.compaction_is_due()).then_some(durable.again_after_ns);
        let goes_on = self.device_waits_are_over() || self.lacks_history();
        let placed = durable.is_placing().then_some(now_ns + LOOK_NS);
        earliest(&[durable.due_ns, (walks || begins || goes_on).then_some(now_ns), again, placed])
    }

    /// Whether the log ends, and does not say yet what history the data are of.
    fn lacks_history(&self) -> bool {
        let durable = &self.durable;
        let appended = durable.log.as_ref().map(|log| log.appended());
        self.shutdown.is_some()
            && !durable.saves_yet()
            && self.is_logging()
            && durable.is_whole
            && !durable.fails()
            && durable.history_at != appended
    }

    /// Notes what history the data are of, as the last thing that the log says.
    fn log_history(&mut self) {
        if let Some(history) = self.history() {
            let [name, option] = History::WORDS;
            let [db, id, offset] = history.fields().map(|(_, text)| text);
            let words = [option, &db, &id, &offset];
            // Without room for it the next start does not know it.
            let _ = self.durable.append(Kind::EFFECTS, self.now.unix_ms(), |writing| {
                unit::write_command(writing, name.as_bytes(), words.iter().map(|word| word.as_bytes()));
            });
        }
        self.durable.history_at = self.durable.log.as_ref().map(Log::appended);
    }

    /// Calls an end off that cannot save what it was to save, or would lose what was acknowledged. One that comes all the same
    /// is no clean one.
    fn check_end(&mut self) {
        let durable = &self.durable;
        let Some(log) = durable.log.as_ref().filter(|_| self.shutdown == Some(0)) else { return };
        let (AtEnd { saves, ended, is_forced }, fails) = (durable.at_end, log.failure().is_some());
        let is_tried = !durable.is_compacting() && durable.status.ended > ended;
        // What could not be written anew is there all the same.
        let has_all = self.is_logging() && durable.is_whole;
        let is_unsaved = saves && !has_all && if is_tried { !durable.status.last_succeeded } else { fails };
        let loses = fails && log.durable() < durable.last_effects;
        if !(is_unsaved || loses) {
            return;
        }
        let what = if is_unsaved { "Error trying to save the DB" } else { "Changes are not on stable storage" };
        log::warn!("{what}, {}.", if is_forced { "exit anyway" } else { "can't exit" });
        self.durable.at_end.saves = false;
        if is_forced {
            self.shutdown = Some(1);
        } else {
            self.call_off_end();
        }
    }

    /// Whether an end now would lose nothing that it need not.
    pub fn log_is_settled(&self) -> bool {
        let durable = &self.durable;
        let Some(log) = &durable.log else { return true };
        let is_stable = log.durable() >= durable.last_effects;
        let may_lose = self.shutdown != Some(0) && log.failure().is_some();
        may_lose || (!durable.saves_yet() && is_stable && !self.lacks_history())
    }

    /// Whether a request has to wait because the log's device has more than enough to do.
    #[inline]
    pub(crate) fn waits_for_device(&mut self, slot: u32, request: Request<'_>) -> bool {
        if !self.durable.is_congested || !self.effects.are_logged {
            return false;
        }
        let transaction = self.sessions[slot as usize].as_ref().and_then(|session| session.transaction.as_ref());
        let runs_some = transaction.is_some_and(|transaction| transaction.needs.writes);
        let waits = self
            .command_of(request)
            .is_some_and(|command| command.may_change_data() || (runs_some && command.name == "exec"));
        self.durable.holds_back |= waits;
        waits
    }

    /// Whether what a master sends has to wait until the log has room for it, where a client's request would be refused.
    #[inline(never)]
    pub(crate) fn waits_for_room(&mut self, slot: u32, request: Request<'_>) -> bool {
        let Some(command) = self.command_of(request) else { return false };
        let session = self.sessions[slot as usize].as_deref();
        let needs = Needs::of(command, session.and_then(|session| session.transaction.as_deref()));
        let durable = &self.durable;
        let Some(log) = durable.log.as_ref().filter(|_| needs.writes && self.effects.are_logged) else { return false };
        if log.failure().is_some() {
            // Until that has enough to do.
            return log.is_congested();
        }
        let bytes = request.bytes_len() + needs.queued_bytes;
        if durable.refusal(&self.options, bytes, command.name, needs.memory).is_none() {
            if self.durable.room_trouble.ends() {
                log::warn!("there is room on the log's disk again, and the master is listened to");
            }
            return false;
        }
        let is_compacted = durable.is_compacting() || self.compaction_is_due();
        if !is_compacted && self.durable.room_trouble.fails(self.now.monotonic_ns) {
            log::error!("there is no room on the log's disk for what the master sends: it waits for a larger disk");
        }
        true
    }

    /// Whether a master cannot be listened to for want of room.
    pub(crate) fn lacks_room_for_master(&self) -> bool {
        self.replication.has_master() && self.durable.room_trouble.lasts()
    }

    /// Whether requests that have waited for the device may run now. It is asked once.
    pub fn take_device_waits(&mut self) -> bool {
        self.device_waits_are_over() && core::mem::take(&mut self.durable.holds_back)
    }

    fn device_waits_are_over(&self) -> bool {
        self.durable.holds_back && !self.durable.is_congested
    }
}
