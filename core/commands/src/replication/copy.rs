//! All data for replicas or for a file, written as a dump while clients are served.
//!
//! The dump is the data as they were when it began, because a key is written down before it is changed. What overwrites a
//! key may come first if the dump is for replicas: its effect follows the dump and does the same again.

use super::master::{DIALECT, State};
use crate::{Close, History, Session, Store, dump};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use kayvee_keyspace::Found;
use kayvee_platform::WriteFile;
use kayvee_rdb::{Checksum, Compression, file::FileWriter};

/// How long a turn may write, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// How many places of the index a turn looks at, at the most.
const SLICE_PLACES: usize = 256;
/// Bytes of a piece, at least.
const PIECE_BYTES: usize = 16 << 10;
/// Bytes of the dump that may wait to be sent to a replica before the next ones are written.
const AHEAD_BYTES: usize = 1 << 20;

/// A dump that is being written.
pub struct Copy {
    file: FileWriter,
    sink: Sink,
    /// The database of the last key.
    db: Option<usize>,
    /// The numbers that databases had at the beginning.
    numbers: Vec<usize>,
    /// For the keys of a place.
    keys: Vec<Found>,
    keys_written: u64,
    /// When it goes on, with `rdb-key-save-delay`: nobody is kept waiting for a dump that takes long on purpose.
    resumes_ns: u64,
    /// Why nothing can come of it.
    failure: Option<String>,
}

/// Where a dump goes.
enum Sink {
    /// What follows its last byte tells them its end, and is what follows this offset.
    Replicas { mark: String, offset: u64, has_left: bool },
    File {
        file: Box<dyn WriteFile>,
        started_ns: u64,
        /// Changes that there had been.
        changes: u64,
    },
}

const NO_MEMORY: &str = "there is no memory for it";

impl Copy {
    fn new(file: FileWriter, sink: Sink, databases: usize) -> Copy {
        let numbers = (0..databases).collect();
        Copy { file, sink, db: None, numbers, keys: Vec::new(), keys_written: 0, resumes_ns: 0, failure: None }
    }

    /// Notes that two databases change places.
    pub fn swap(&mut self, first: usize, second: usize) {
        self.numbers.swap(first, second);
        self.db = None;
    }
}

impl Store {
    /// Whether a walk goes over all keys, so that what changes has to be written down before.
    #[inline]
    pub(crate) fn walks(&self) -> bool {
        self.durable.walks() || self.replication.walks()
    }

    /// Lets the copy know that two databases change places.
    pub(crate) fn note_swap_for_copy(&mut self, first: usize, second: usize) {
        if let Some(copy) = &mut self.replication.copy {
            copy.swap(first, second);
        }
    }

    pub(super) fn slots_in(&self, state: State) -> Vec<u32> {
        self.each_replica().filter(|(_, replica)| replica.state == state).map(|(slot, _)| slot).collect()
    }

    /// Whether what is written has to be sent before more is.
    pub(super) fn copy_is_congested(&self) -> bool {
        self.each_replica().any(|(_, replica)| replica.state == State::Copies && replica.dump_bytes > AHEAD_BYTES)
    }

    /// When there is something to do for a dump, in monotonic nanoseconds.
    pub(super) fn copy_resumes_ns(&self) -> Option<u64> {
        let copy = self.replication.copy.as_ref().filter(|_| !self.copy_is_congested())?;
        Some(copy.resumes_ns.max(self.now.monotonic_ns))
    }

    /// Whether a dump for a file is being written.
    pub(crate) fn copies_to_file(&self) -> bool {
        self.replication.copy.as_ref().is_some_and(|copy| matches!(copy.sink, Sink::File { .. }))
    }

    /// Goes on with a dump, or begins one, for a moment.
    #[inline(never)]
    pub fn copy_slice(&mut self) {
        self.end_saving();
        if self.replication.copy.is_none() {
            // What a master is still sending is nothing to save.
            if self.durable.walks() || self.scripting.is_busy() || self.replication.is_loading() {
                return;
            }
            if self.copy_is_due() {
                self.begin_copy();
            } else if let Some(file) = self.begin_saving() {
                self.begin_copy_to_file(file);
            }
            return;
        }
        self.greet_waiting();
        if self.scripting.is_busy() {
            // What the script has made would be copied, and its effects would follow.
            return;
        }
        let clock = self.environment.clock;
        let until_ns = clock.monotonic_ns() + SLICE_NS;
        let key_delay_ns = self.option_number("rdb-key-save-delay").saturating_mul(1000);
        for _ in 0..SLICE_PLACES {
            // A delay that is taken back holds no longer.
            if self.copy_resumes_ns().is_none_or(|at_ns| key_delay_ns > 0 && at_ns > self.now.monotonic_ns) {
                return;
            }
            let Some((db, cursor)) = self.walk_place() else { return self.end_copy() };
            self.copy_place(db, cursor, key_delay_ns);
            if let Some(why) = self.replication.copy.as_mut().and_then(|copy| copy.failure.take()) {
                return self.abandon_copy(&why);
            }
            if clock.monotonic_ns() >= until_ns {
                return;
            }
        }
    }

    fn begin_copy(&mut self) {
        // What has happened until now is in the dump.
        self.end_unit();
        self.feed_replicas();
        self.effects.name_database();
        let mark = self.new_id();
        // What comes from a master does not name the database that its next effect is about.
        let history = self.history();
        let mut file = self.new_dump(Compression::Off, Checksum::On, history.as_ref());
        self.scripting.library_texts().for_each(|text| file.function(text));
        log::info!("Starting to copy {} keys to replicas", self.all_keys());
        self.begin_walk();
        let sink = Sink::Replicas { mark, offset: self.effects.offset(), has_left: false };
        self.replication.copy = Some(Box::new(Copy::new(file, sink, self.dbs.len())));
        self.greet_waiting();
    }

    /// Lets replicas that wait for a dump have the one that is being written, as long as nothing of it is sent.
    fn greet_waiting(&mut self) {
        let sink = self.replication.copy.as_ref().map(|copy| &copy.sink);
        let Some(Sink::Replicas { mark, offset, has_left: false }) = sink else { return };
        let (head, offset) = (format!("$EOF:{mark}\r\n"), *offset);
        self.slots_in(State::Waits).into_iter().for_each(|slot| self.greet(slot, &head, offset));
    }

    fn begin_copy_to_file(&mut self, sink: Box<dyn WriteFile>) {
        self.end_unit();
        let compression = if self.options.rdbcompression { Compression::On } else { Compression::Off };
        // It says nothing of its history: keys that expire while it is written may not be in it.
        let mut file = self.new_dump(compression, self.checksum(), None);
        self.scripting.library_texts().for_each(|text| file.function(text));
        if !self.saves.trouble.lasts() {
            log::info!("Saving {} keys in the background", self.all_keys());
        }
        self.begin_walk();
        let started_ns = self.environment.clock.monotonic_ns();
        let sink = Sink::File { file: sink, started_ns, changes: self.changes };
        self.replication.copy = Some(Box::new(Copy::new(file, sink, self.dbs.len())));
    }

    fn new_dump(&self, compression: Compression, checksum: Checksum, history: Option<&History>) -> FileWriter {
        let mut file = FileWriter::new(dump::file_dialect(self, DIALECT), compression, checksum);
        dump::write_about(self, history, &mut file);
        file
    }

    /// Writes the keys at a place of the walk.
    fn copy_place(&mut self, db: usize, cursor: u64, key_delay_ns: u64) {
        let Some(copy) = &mut self.replication.copy else { return };
        let mut keys = core::mem::take(&mut copy.keys);
        keys.clear();
        let next = self.dbs[db].unmarked_at(cursor, &mut keys);
        keys.iter().for_each(|&found| self.copy_key(db, found));
        let Some(copy) = &mut self.replication.copy else { return };
        copy.resumes_ns = self.now.monotonic_ns + key_delay_ns.saturating_mul(keys.len() as u64);
        copy.keys = keys;
        match next {
            Ok(next) => self.dbs[db].continue_walk_at(next),
            Err(_) => copy.failure = Some(NO_MEMORY.into()),
        }
    }

    /// Writes a key that the walk has not been at.
    pub(crate) fn copy_key(&mut self, db: usize, found: Found) {
        let Some(mut copy) = self.replication.copy.take() else { return };
        if copy.db != Some(db) {
            let (keys, volatile) = (self.dbs[db].len() as u64, self.dbs[db].volatile_len() as u64);
            copy.file.database(copy.numbers[db] as u64, keys, volatile);
            copy.db = Some(db);
        }
        if dump::write_entry(self, db, found, &mut copy.file, DIALECT).is_err() {
            copy.failure.get_or_insert(NO_MEMORY.into());
        }
        copy.keys_written += 1;
        self.dbs[db].mark(found);
        if copy.file.waiting() >= PIECE_BYTES && copy.failure.is_none() {
            let Copy { file, sink, .. } = &mut *copy;
            copy.failure = file.drain(|bytes| self.give(sink, bytes)).err().map(|Undone(why)| why);
        }
        self.replication.copy = Some(copy);
    }

    /// Gives bytes to where the dump goes.
    fn give(&mut self, sink: &mut Sink, bytes: &[u8]) -> Result<(), Undone> {
        match sink {
            Sink::Replicas { has_left, .. } => {
                *has_left = true;
                self.slots_in(State::Copies).into_iter().for_each(|slot| self.send_dump(slot, bytes));
                Ok(())
            }
            Sink::File { file, .. } => file.write(bytes).map_err(Undone),
        }
    }

    fn end_copy(&mut self) {
        let Some(copy) = self.replication.copy.take() else { return };
        let Copy { file, mut sink, keys_written, .. } = *copy;
        let ended = file.finish(|bytes| self.give(&mut sink, bytes));
        self.end_walk_of_copy();
        match (sink, ended) {
            (Sink::Replicas { mark, .. }, Ok(())) => {
                let slots = self.slots_in(State::Copies);
                log::info!("Copied {keys_written} keys to {} replicas", slots.len());
                for slot in slots {
                    self.send_dump(slot, mark.as_bytes());
                    self.end_dump(slot);
                }
            }
            (Sink::File { file, started_ns, changes }, Ok(())) => {
                self.note_saving(file.finish_soon(), started_ns, changes);
            }
            (Sink::Replicas { .. }, Err(_)) => self.disconnect_copying(),
            (Sink::File { .. }, Err(Undone(why))) => self.saving_failed(&why),
        }
    }

    fn disconnect_copying(&mut self) {
        self.slots_in(State::Copies).into_iter().for_each(|slot| self.disconnect(slot));
    }

    /// Gives a dump up: the replicas that wait for it have to ask again.
    pub(crate) fn abandon_copy(&mut self, why: &str) {
        let Some(copy) = self.replication.copy.take() else { return };
        self.abandon_walk();
        match copy.sink {
            Sink::Replicas { .. } => {
                log::warn!("copying to replicas is given up: {why}");
                self.disconnect_copying();
            }
            Sink::File { .. } => self.saving_failed(why),
        }
    }

    /// Gives up a dump for a file, of which then nothing is left. Returns whether there was one.
    pub(crate) fn drop_copy_to_file(&mut self) -> bool {
        let copies = self.copies_to_file();
        if copies {
            self.replication.copy = None;
            self.abandon_walk();
        }
        copies
    }

    /// Gives a dump up that nobody waits for any more.
    pub(super) fn abandon_copy_for_nobody(&mut self) {
        let is_for_them = self.replication.copy.is_some() && !self.copies_to_file();
        let wants = |session: &Session| {
            let copies = session.replica.as_ref().is_some_and(|replica| replica.state == State::Copies);
            copies && session.close != Some(Close::Now)
        };
        if is_for_them && !self.each_replica_session().any(wants) {
            self.abandon_copy("the replicas are gone");
        }
    }
}

/// Why a dump comes to nothing.
struct Undone(String);

impl From<kayvee_rdb::Error> for Undone {
    fn from(_: kayvee_rdb::Error) -> Undone {
        // Nothing is read that could be corrupt.
        Undone(NO_MEMORY.into())
    }
}
