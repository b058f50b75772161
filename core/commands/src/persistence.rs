//! Dump files on the host: `SAVE`, `BGSAVE`, save points, and what is loaded at start.
//!
//! All of it goes through [`Host`](crate::Host): where there are no files there is a clear error.

use crate::{
    Context, Error, History, Outcome, Store,
    args::is,
    dump,
    options::ShutdownOn,
    table::{Categories, Command, Flags, Group, Tips},
};
use alloc::{boxed::Box, string::String};
use kayvee_platform::{Finishing, Trouble, WriteFile};
use kayvee_rdb::{Checksum, Compression, Dialect};
use kayvee_resp::Request;

mod aof;
mod input;
mod load;

pub use aof::CutOff;
pub use input::Input;
pub use load::{Expired, Loaded, Progress};

#[cfg(test)]
mod tests;

const SAVES: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING);
const ROW: Command = Command { group: Group::Server, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "bgsave", arity: -1, flags: SAVES, handler: Some(bgsave), ..ROW },
    Command {
        name: "lastsave",
        arity: 1,
        flags: Flags::LOADING.union(Flags::STALE).union(Flags::FAST),
        categories: Categories::ADMIN.union(Categories::DANGEROUS),
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(lastsave),
        ..ROW
    },
    Command { name: "save", arity: 1, flags: SAVES.union(Flags::NO_MULTI), handler: Some(save), ..ROW },
];

const NO_FILES: Error =
    Error::text("ERR there are no files here to save to: give the store a disk, or run it as a Linux process");
/// After a failure the next attempt waits, as in Redis.
const RETRY_NS: u64 = 5_000_000_000;
/// Between two looks at whether a file is in its place.
pub(crate) const LOOK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// A dump file that is complete, but not in its place yet.
struct Saving {
    file: Box<dyn Finishing>,
    started_ns: u64,
    changes: u64,
}

/// What has been saved and loaded.
#[derive(Default)]
pub struct Saves {
    /// How many changes there were when all data was last saved.
    changes_before: u64,
    /// When that was, or the start: in seconds since 1970 and in monotonic nanoseconds.
    last_unix_s: u64,
    last_ns: u64,
    /// When it was last tried in the background.
    attempt_ns: u64,
    /// What is wrong with attempts in the background, if the last one failed.
    pub trouble: Trouble,
    /// How long the last one in the background took.
    pub took_s: Option<u64>,
    /// How often all data has been saved.
    pub count: u64,
    /// Whether it is to be saved as soon as that can begin, and what is about to be.
    is_due: bool,
    saving: Option<Saving>,
    /// Keys that came from the file at start, and those that were left out because their time had come.
    pub loaded_keys: u64,
    #[allow(missing_docs)]
    pub expired_keys: u64,
}

impl Saves {
    /// At the start.
    pub fn new(now: kayvee_platform::Now) -> Saves {
        Saves { last_unix_s: now.unix_us / 1_000_000, last_ns: now.monotonic_ns, ..Saves::default() }
    }

    /// When all data was last saved, in seconds since 1970.
    pub fn last_unix_s(&self) -> u64 {
        self.last_unix_s
    }
}

fn save(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if context.store.saves_to_log() {
        return context.save_to_log(request);
    }
    context.store.need_files()?;
    if context.store.is_saving() {
        return Err(Error::text("ERR Background save already in progress"));
    }
    let history = context.store.history();
    context.store.save_dump(history.as_ref()).map_err(|_| Error::text("ERR"))?;
    context.reply.ok();
    Ok(())
}

fn bgsave(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => {}
        (2, Some(how)) if is(how, "schedule") => {}
        _ => return Err(Error::SYNTAX),
    }
    let in_transaction = context.origin != crate::Origin::Client;
    if context.store.saves_to_log() {
        return context.save_to_log_in_background(in_transaction || request.len() == 2);
    }
    context.store.need_files()?;
    if context.store.is_saving() {
        return Err(Error::text("ERR Background save already in progress"));
    }
    context.store.saves.is_due = true;
    context.reply.simple(if in_transaction { "Background saving scheduled" } else { "Background saving started" });
    Ok(())
}

fn lastsave(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    context.reply.integer(context.store.saves.last_unix_s as i64);
    Ok(())
}

/// Why all data was not saved.
enum Failure {
    Store(Error),
    Host(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

impl Store {
    fn need_files(&self) -> Outcome {
        if self.environment.host.has_files() { Ok(()) } else { Err(NO_FILES) }
    }

    /// Saves all data to the dump file, and what history they are of. What goes wrong is told in the log.
    fn save_dump(&mut self, history: Option<&History>) -> Result<(), ()> {
        let name = self.options.dbfilename.clone();
        if let Err(why) = self.write_dump(&name, history) {
            let why = match why {
                Failure::Store(error) => String::from_utf8_lossy(&error.0).into_owned(),
                Failure::Host(why) => why,
            };
            log::warn!("Error saving DB to the file {name} (in {}): {why}", self.options.dir);
            return Err(());
        }
        log::info!("DB saved on disk");
        self.note_saved(self.changes);
        Ok(())
    }

    /// Notes that all data is saved as it was after so many changes.
    pub(crate) fn note_saved(&mut self, changes: u64) {
        self.saves.changes_before = changes;
        (self.saves.last_unix_s, self.saves.last_ns) = (self.now.unix_us / 1_000_000, self.now.monotonic_ns);
        self.saves.count += 1;
        self.saves.trouble.ends();
    }

    fn write_dump(&self, name: &str, history: Option<&History>) -> Result<(), Failure> {
        let mut file = self.environment.host.create_file(name).map_err(Failure::Host)?;
        let compression = if self.options.rdbcompression { Compression::On } else { Compression::Off };
        let take = |bytes: &[u8]| file.write(bytes).map_err(Failure::Host);
        dump::write_file(self, Dialect::Redis72, compression, self.checksum(), history, take)?;
        file.finish().map_err(Failure::Host)
    }

    /// Whether dump files have a checksum, and it is looked at.
    pub(crate) fn checksum(&self) -> Checksum {
        if self.options.rdbchecksum { Checksum::On } else { Checksum::Off }
    }

    /// Writes all data as a dump file, whose bytes `take` gets piece by piece.
    pub fn export<E: From<Error>>(&self, dialect: Dialect, take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        dump::write_file(self, dialect, Compression::On, Checksum::On, None, take)
    }

    /// The oldest dialect that has a form for all data.
    pub fn oldest_dialect(&self) -> Dialect {
        dump::file_dialect(self, Dialect::Redis70)
    }

    /// How many libraries of functions there are.
    pub fn library_count(&self) -> usize {
        self.scripting.library_counts().0
    }

    /// Changes since all data was last saved.
    pub fn unsaved_changes(&self) -> u64 {
        self.changes - self.saves.changes_before
    }

    /// When the next save point is reached if nothing more changes, in monotonic nanoseconds.
    fn save_point_ns(&self) -> Option<u64> {
        let changes = self.unsaved_changes();
        // With a log that has every change there is nothing to save.
        let can_save = if self.saves_to_log() { !self.options.appendonly } else { self.environment.host.has_files() };
        if changes == 0 || !can_save {
            return None;
        }
        let reached = self.options.save.iter().filter(|(_, least)| changes >= *least);
        let first =
            reached.map(|(seconds, _)| self.saves.last_ns.saturating_add(seconds.saturating_mul(SECOND_NS))).min();
        let earliest = if self.saves.trouble.lasts() { self.saves.attempt_ns + RETRY_NS } else { 0 };
        first.map(|at_ns| at_ns.max(earliest))
    }

    /// When all data is to be saved next, in monotonic nanoseconds.
    pub fn next_save_ns(&self) -> Option<u64> {
        match self.saves.saving {
            Some(_) => Some(self.now.monotonic_ns + LOOK_NS),
            // One that waits for the end of another walk is looked at with each turn that this takes.
            None if self.saves.is_due && !self.walks() && !self.replication.is_loading() => Some(self.now.monotonic_ns),
            None if self.is_saving() => None,
            None => self.save_point_ns(),
        }
    }

    /// Saves all data if somebody has asked for it, or a save point is reached.
    #[inline(never)]
    pub fn save_if_due(&mut self) {
        let now_ns = self.now.monotonic_ns;
        if self.save_point_ns().is_some_and(|at_ns| at_ns <= now_ns) && !self.is_saving() {
            if !self.saves.trouble.lasts() {
                log::info!("{} changes since the last save. Saving...", self.unsaved_changes());
            }
            self.saves.is_due = true;
        }
        if self.saves_to_log() && core::mem::take(&mut self.saves.is_due) {
            self.saves.attempt_ns = now_ns;
            self.save_to_log_soon();
        }
    }

    /// Whether all data is being saved to a file in the background, or about to be.
    pub(crate) fn is_saving(&self) -> bool {
        self.saves.is_due || self.saves.saving.is_some() || self.copies_to_file()
    }

    /// Makes the file that all data is to be saved to, if it is time for that.
    pub(crate) fn begin_saving(&mut self) -> Option<Box<dyn WriteFile>> {
        if self.saves.saving.is_some() || self.saves_to_log() || !core::mem::take(&mut self.saves.is_due) {
            return None;
        }
        self.saves.attempt_ns = self.now.monotonic_ns;
        let file = self.environment.host.create_file(&self.options.dbfilename);
        file.inspect_err(|why| self.saving_failed(why)).ok()
    }

    /// Notes that a file is complete, and only has to be brought to stable storage and to its place.
    pub(crate) fn note_saving(&mut self, file: Box<dyn Finishing>, started_ns: u64, changes: u64) {
        self.saves.saving = Some(Saving { file, started_ns, changes });
        self.end_saving();
    }

    /// Notes that a file is in its place, if it is by now.
    pub(crate) fn end_saving(&mut self) {
        let Some(saving) = &mut self.saves.saving else { return };
        let Some(result) = saving.file.result() else { return };
        let (started_ns, changes) = (saving.started_ns, saving.changes);
        self.saves.saving = None;
        match result {
            Ok(()) => {
                let took_ns = self.environment.clock.monotonic_ns().saturating_sub(started_ns);
                self.saves.took_s = Some(took_ns / SECOND_NS);
                log::info!("DB saved on disk");
                self.note_saved(changes);
            }
            Err(why) => self.saving_failed(&why),
        }
    }

    pub(crate) fn saving_failed(&mut self, why: &str) {
        if self.saves.trouble.fails(self.now.monotonic_ns) {
            log::warn!("Error saving DB to the file {} (in {}): {why}", self.options.dbfilename, self.options.dir);
        }
    }

    /// Has all data saved if there are points at which they are to be.
    pub(crate) fn save_soon(&mut self) {
        self.saves.is_due |= !self.options.save.is_empty();
    }

    /// Begins a dump for a file anew, if one is being written, as data go away that it has not come to.
    pub(crate) fn save_anew(&mut self) {
        self.saves.is_due |= self.drop_copy_to_file();
    }

    /// Saves that all data is gone, as in Redis: with the next start it would come back. That takes no time worth mention.
    pub(crate) fn save_flush(&mut self) {
        if self.options.save.is_empty() || self.saves_to_log() || !self.environment.host.has_files() {
            return;
        }
        if self.saves.saving.is_some() {
            // A file is on its way to its place, and would take this one's.
            self.saves.is_due = true;
            return;
        }
        // What goes wrong is in the log, and a save point follows. The command that runs is no part of the history yet.
        let _ = self.save_dump(None);
    }

    /// Why commands that write are refused, if they are.
    pub(crate) fn unsaved_error(&self) -> Option<Error> {
        const UNSAVED: Error = Error::text(
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. \
             Commands that may modify the data set are disabled, because this instance is configured to report errors \
             during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs \
             for details about the RDB error.",
        );
        let options = &self.options;
        let is_refused = self.saves.trouble.lasts() && options.stop_writes_on_bgsave_error && !options.save.is_empty();
        // A log that has every change says by itself what it has no room for.
        (is_refused && !(options.appendonly && self.saves_to_log())).then_some(UNSAVED)
    }

    /// Saves what is to be saved before the end. Returns whether that may come: not if saving fails.
    pub(crate) fn save_at_end(&mut self, on: ShutdownOn) -> bool {
        // Half of what a master sends would take the place of all that was saved before.
        let may_save = !self.replication.is_loading();
        if self.has_log() {
            let saves_there = self.saves_to_log();
            let has_points = !self.options.save.is_empty() && !self.options.appendonly;
            let is_needed = (saves_there && on.save) || (!on.nosave && (has_points || self.log_lacks_its_beginning()));
            self.save_to_log_at_end(may_save && is_needed, on);
            if saves_there {
                return true;
            }
        }
        self.drop_copy_to_file();
        if let Some(saving) = self.saves.saving.take()
            && let Err(why) = saving.file.wait()
        {
            self.saving_failed(&why);
        }
        let has_files = self.environment.host.has_files();
        if !may_save || !on.save && (on.nosave || self.options.save.is_empty() || !has_files) {
            return true;
        }
        log::info!("Saving the final RDB snapshot before exiting.");
        let history = self.history();
        if has_files && self.save_dump(history.as_ref()).is_ok() {
            return true;
        }
        log::warn!("Error trying to save the DB, {}.", if on.force { "exit anyway" } else { "can't exit" });
        on.force
    }
}
