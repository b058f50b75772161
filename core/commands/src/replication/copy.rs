//! All data for replicas, written as a dump file while clients are served.
//!
//! The dump is the data as they were when it began, because a key is written down before it is changed. What overwrites a
//! key may come first: its effect follows the dump and does the same again.

use super::master::{DIALECT, State};
use crate::{Store, dump};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use kayvee_keyspace::Found;
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
    /// What follows its last byte, so that its end is known.
    mark: String,
    /// The database of the last key.
    db: Option<usize>,
    /// The numbers that databases had at the beginning.
    numbers: Vec<usize>,
    /// For the keys of a place.
    keys: Vec<Found>,
    keys_written: u64,
    is_spoiled: bool,
}

impl Copy {
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

    /// Goes on with a dump for replicas, or begins one, for a moment.
    #[inline(never)]
    pub fn copy_slice(&mut self) {
        if self.replication.copy.is_none() {
            let is_wanted = self.each_replica().any(|(_, replica)| replica.state == State::Waits);
            if is_wanted && !self.durable.walks() && !self.scripting.is_busy() {
                self.begin_copy();
            }
            return;
        }
        let clock = self.environment.clock;
        let until_ns = clock.monotonic_ns() + SLICE_NS;
        for _ in 0..SLICE_PLACES {
            if self.copy_is_congested() {
                return;
            }
            let Some((db, cursor)) = self.walk_place() else { return self.end_copy() };
            if !self.copy_place(db, cursor) {
                return self.abandon_copy("there is no memory for it");
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
        let mut file = FileWriter::new(DIALECT, Compression::Off, Checksum::On);
        for (name, text) in dump::about(self) {
            file.aux(name, text.as_bytes());
        }
        if let Some(link) = &self.replication.link {
            // What comes from the master does not name the database that its next effect is about.
            file.aux("repl-stream-db", format!("{}", self.stream_db(link)).as_bytes());
        }
        self.scripting.library_texts().for_each(|text| file.function(text));
        let head = format!("$EOF:{mark}\r\n");
        let slots = self.slots_in(State::Waits);
        log::info!("Starting to copy {} keys to {} replicas", self.all_keys(), slots.len());
        self.begin_walk();
        slots.into_iter().for_each(|slot| self.greet(slot, &head));
        let numbers = (0..self.dbs.len()).collect();
        self.replication.copy = Some(Box::new(Copy {
            file,
            mark,
            db: None,
            numbers,
            keys: Vec::new(),
            keys_written: 0,
            is_spoiled: false,
        }));
    }

    /// Writes the keys at a place of the walk. Returns whether there was memory for it.
    fn copy_place(&mut self, db: usize, cursor: u64) -> bool {
        let Some(copy) = &mut self.replication.copy else { return false };
        let mut keys = core::mem::take(&mut copy.keys);
        keys.clear();
        let next = self.dbs[db].unmarked_at(cursor, &mut keys);
        keys.iter().for_each(|&found| self.copy_key(db, found));
        let Some(copy) = &mut self.replication.copy else { return true };
        copy.keys = keys;
        match next {
            Ok(next) if !copy.is_spoiled => self.dbs[db].continue_walk_at(next),
            _ => return false,
        }
        true
    }

    /// Writes a key that the walk has not been at.
    pub(crate) fn copy_key(&mut self, db: usize, found: Found) {
        let Some(mut copy) = self.replication.copy.take() else { return };
        if copy.db != Some(db) {
            let (keys, volatile) = (self.dbs[db].len() as u64, self.dbs[db].volatile_len() as u64);
            copy.file.database(copy.numbers[db] as u64, keys, volatile);
            copy.db = Some(db);
        }
        copy.is_spoiled |= dump::write_entry(self, db, found, &mut copy.file, DIALECT).is_err();
        copy.keys_written += 1;
        self.dbs[db].mark(found);
        if copy.file.waiting() >= PIECE_BYTES {
            let slots = self.slots_in(State::Copies);
            let sent: Result<(), kayvee_rdb::Error> = copy.file.drain(|bytes| {
                slots.iter().for_each(|&slot| self.send_dump(slot, bytes));
                Ok(())
            });
            copy.is_spoiled |= sent.is_err();
        }
        self.replication.copy = Some(copy);
    }

    fn end_copy(&mut self) {
        let Some(copy) = self.replication.copy.take() else { return };
        let slots = self.slots_in(State::Copies);
        let Copy { file, mark, keys_written, .. } = *copy;
        let ended: Result<(), kayvee_rdb::Error> = file.finish(|bytes| {
            slots.iter().for_each(|&slot| self.send_dump(slot, bytes));
            Ok(())
        });
        if ended.is_err() {
            return slots.into_iter().for_each(|slot| self.disconnect(slot));
        }
        self.end_walk_of_copy();
        log::info!("Copied {keys_written} keys to {} replicas", slots.len());
        for slot in slots {
            self.send_dump(slot, mark.as_bytes());
            self.end_dump(slot);
        }
    }

    /// Gives a dump up: the replicas that wait for it have to ask again.
    pub(super) fn abandon_copy(&mut self, why: &str) {
        if self.replication.copy.take().is_none() {
            return;
        }
        log::warn!("copying to replicas is given up: {why}");
        self.abandon_walk();
        self.slots_in(State::Copies).into_iter().for_each(|slot| self.disconnect(slot));
    }

    /// Gives a dump up that nobody waits for any more.
    pub(super) fn abandon_copy_for_nobody(&mut self) {
        if self.replication.copy.is_some() && !self.each_replica().any(|(_, replica)| replica.state == State::Copies) {
            self.abandon_copy("the replicas are gone");
        }
    }
}
