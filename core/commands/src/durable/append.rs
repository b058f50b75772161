//! From effects to records.

use super::{
    Durable,
    unit::{self, Head, Sink},
};
use crate::{
    Context, Store, args, dump,
    effects::KEPT_UNIT_BYTES,
    table::{Command, is_name_of},
};
use alloc::vec::Vec;
use kayvee_keyspace::{Db, Found, Kind as ValueKind};
use kayvee_log::{Kind, Log, RecordError};
use kayvee_rdb::{Compression, Dialect, Writer};
use kayvee_resp::Request;

/// A record that is being written.
pub(super) struct Writing<'a> {
    log: &'a mut Log,
    result: Result<(), RecordError>,
}

impl Sink for Writing<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.result.is_ok() {
            self.result = self.log.push(bytes);
        }
    }
}

/// Items of a record, in memory.
#[derive(Default)]
pub(super) struct Gathered {
    bytes: Vec<u8>,
    is_short: bool,
}

impl Sink for Gathered {
    fn put(&mut self, bytes: &[u8]) {
        match self.bytes.try_reserve(bytes.len()) {
            Ok(()) => self.bytes.extend_from_slice(bytes),
            Err(_) => self.is_short = true,
        }
    }
}

impl Gathered {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn bytes(&self) -> Result<&[u8], RecordError> {
        if self.is_short { Err(RecordError::OutOfMemory) } else { Ok(&self.bytes) }
    }

    /// Forgets all, and keeps a little room for what comes.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_UNIT_BYTES);
        self.is_short = false;
    }
}

impl Durable {
    /// Appends a record of what `write` writes. Effects have happened already: they may use the last of the disk.
    #[inline]
    pub(super) fn append(
        &mut self,
        kind: Kind,
        now_ms: u64,
        write: impl FnOnce(&mut Writing<'_>),
    ) -> Result<(), RecordError> {
        let kind = if self.is_tight && kind == Kind::EFFECTS { Kind::RELEASES } else { kind };
        let Some(log) = self.log.as_mut().filter(|_| !self.is_broken) else { return Ok(()) };
        log.begin_record(kind)?;
        let mut writing = Writing { log, result: Ok(()) };
        if now_ms != self.last_ms {
            unit::write_time(&mut writing, now_ms);
        }
        write(&mut writing);
        match writing.result {
            Ok(()) => {
                self.last_ms = now_ms;
                let sequence = log.commit_record();
                if matches!(kind, Kind::EFFECTS | Kind::RELEASES) {
                    self.last_effects = sequence;
                }
                Ok(())
            }
            Err(error) => {
                log.abandon_record();
                Err(error)
            }
        }
    }

    /// Appends a record that lies in memory.
    pub(super) fn append_bytes(&mut self, kind: Kind, now_ms: u64, bytes: &[u8]) -> Result<(), RecordError> {
        self.append(kind, now_ms, |writing| writing.put(bytes))
    }

    /// Notes an effect that belongs to the unit that is running.
    pub(crate) fn note(&mut self, now_ms: u64, db: usize, words: &[&[u8]]) {
        let [name, rest @ ..] = words else { return };
        self.gather(now_ms, db, |sink| unit::write_command(sink, name, rest.iter().copied()));
    }

    pub(super) fn gather(&mut self, now_ms: u64, db: usize, write: impl FnOnce(&mut Gathered)) {
        self.begin_item(now_ms, db);
        write(&mut self.unit);
    }

    /// Says when and about what database the next item of the unit is, where it does not go without saying.
    #[inline(never)]
    fn begin_item(&mut self, now_ms: u64, db: usize) {
        if self.unit.is_empty() {
            self.unit_began_ms = now_ms;
        } else if now_ms != self.unit_ms {
            // A script that was put aside goes on at the time at which it began, and what follows it has its own.
            unit::write_time(&mut self.unit, now_ms);
        }
        self.unit_ms = now_ms;
        if db != self.unit_db {
            unit::write_database(&mut self.unit, db);
            self.unit_db = db;
        }
    }

    /// Notes that two databases change places.
    pub(crate) fn note_swap(&mut self, first: usize, second: usize) {
        self.unit_swaps = self.walk.is_some();
        for sliced in &mut self.sliced {
            match sliced.db {
                db if db == first => sliced.db = second,
                db if db == second => sliced.db = first,
                _ => {}
            }
        }
    }

    /// Ends a unit of nothing that is to be a record: databases that have changed places are one already.
    #[inline]
    pub(crate) fn end_empty_unit(&mut self) {
        self.unit_swaps = false;
    }

    /// Bytes of what has happened that is no record yet.
    #[inline]
    pub(crate) fn unit_bytes(&self) -> usize {
        self.unit.bytes.len()
    }

    /// Whether something has happened that is no record yet.
    #[inline]
    pub(crate) fn has_unit(&self) -> bool {
        !self.unit.is_empty()
    }

    /// Notes that an effect could not be kept. Nothing that follows can be relied upon until all is written anew.
    #[cold]
    pub(crate) fn lose(&mut self, why: impl core::fmt::Display) {
        if self.log.is_some() && !self.is_broken {
            log::error!("the log has lost what has changed, and is written anew: {why}");
            (self.is_broken, self.is_whole, self.refuses) = (true, false, true);
            self.spoil();
        }
    }
}

impl Store {
    /// Appends a request that is its own effect: as a record of its own if it `is_alone`.
    #[inline]
    pub(crate) fn log_request(&mut self, db: usize, command: &'static Command, request: Request<'_>, is_alone: bool) {
        let name = self.original_name(command, request).as_bytes();
        if !is_alone || self.durable.has_unit() {
            let now_ms = self.now.unix_ms();
            return self.durable.gather(now_ms, db, |sink| unit::write_command(sink, name, request.from(1)));
        }
        self.append_effects(self.now.unix_ms(), request.bytes_len(), |writing| {
            if db != 0 {
                unit::write_database(writing, db);
            }
            unit::write_command(writing, name, request.from(1));
        });
    }

    /// Appends a record of so many bytes of effects of this time, which says if they are a master's.
    #[inline]
    fn append_effects(&mut self, now_ms: u64, bytes: usize, write: impl FnOnce(&mut Writing<'_>)) {
        let shows_expired = self.shows_expired();
        let appended = self.durable.kind_of_effects(bytes).and_then(|kind| {
            self.durable.append(kind, now_ms, |writing| {
                if shows_expired {
                    unit::write_from_master(writing);
                }
                write(writing);
            })
        });
        if let Err(error) = appended {
            self.durable.lose(error);
        }
    }

    /// What a request's first word is without `rename-command`.
    #[inline]
    fn original_name(&self, command: &'static Command, request: Request<'_>) -> &'static str {
        if is_name_of(command, &request[0]) {
            return command.name;
        }
        self.commands.find(&request[0]).map_or(command.name, |container| container.name)
    }

    /// Makes a record of what is running.
    pub(crate) fn log_unit(&mut self) {
        let mut unit = core::mem::take(&mut self.durable.unit);
        (self.durable.unit_db, self.durable.unit_swaps) = (0, false);
        match unit.bytes() {
            Ok(bytes) => {
                self.append_effects(self.durable.unit_began_ms, bytes.len(), |writing| writing.put(bytes));
                self.durable.last_ms = self.durable.unit_ms;
            }
            Err(error) => self.durable.lose(error),
        }
        unit.clear();
        self.durable.unit = unit;
    }

    /// Writes a key down, or the first part of it.
    pub(super) fn write_down(&mut self, db: usize, found: Found) -> Result<(), RecordError> {
        if self.is_large(db, found) {
            return self.begin_parts(db, found);
        }
        let now_ms = self.now.unix_ms();
        self.prepare_value(db, found)?;
        let Store { durable, dbs, .. } = self;
        let writer = core::mem::replace(&mut durable.writer, Writer::new(Compression::Off));
        let appended = if durable.unit_swaps {
            durable.gather(now_ms, db, |sink| write_state(sink, &dbs[db], found, &writer));
            Ok(())
        } else {
            durable.append(Kind::STATE, now_ms, |writing| {
                if db != 0 {
                    unit::write_database(writing, db);
                }
                write_state(writing, &dbs[db], found, &writer);
            })
        };
        durable.writer = writer;
        appended?;
        dbs[db].mark(found);
        durable.note_written_down();
        Ok(())
    }

    /// Writes a key down that is about to be used in whatever way, unless the walk has been at it.
    pub(crate) fn write_down_key(&mut self, db: usize, found: Found) {
        self.write_down_for(db, found, None);
    }

    /// Writes a key of another database than the command's own down, before something takes its place.
    pub(crate) fn write_down_there(&mut self, db: usize, key: &[u8]) {
        if let Some(found) = self.dbs[db].find_any(key) {
            self.write_down_key(db, found);
        }
    }

    /// The same as [`write_down_key`](Self::write_down_key) for one that is used by a command. Of a large collection only what the command depends on is written.
    fn write_down_for(&mut self, db: usize, found: Found, what: Option<(&'static Command, Request<'_>)>) {
        let is_sliced = !self.durable.sliced.is_empty() && self.dbs[db].is_partial(found);
        if !is_sliced && self.dbs[db].is_marked(found) {
            return;
        }
        if self.replication.walks() {
            return self.copy_key(db, found);
        }
        if !self.durable.walks() {
            return;
        }
        let is_written = match is_sliced && self.is_sliced(db, found) {
            true => Ok(()),
            false => self.write_down(db, found),
        };
        if let Err(error) = is_written.and_then(|()| self.write_needed(db, found, what)) {
            // What is changed now would be missing from what the compaction writes.
            self.abandon_compaction(error);
        }
    }

    /// Puts a value that is no string into the form in which it is written down.
    fn prepare_value(&mut self, db: usize, found: Found) -> Result<(), RecordError> {
        if self.dbs[db].kind(found) == ValueKind::String {
            return Ok(());
        }
        let mut writer = core::mem::replace(&mut self.durable.writer, Writer::new(Compression::Off));
        writer.clear();
        let written = dump::write_value(self, db, found, &mut writer, Dialect::Redis72);
        self.durable.writer = writer;
        written.map_err(|_| RecordError::OutOfMemory)?;
        self.durable.writer.so_far().map(drop).map_err(|_| RecordError::OutOfMemory)
    }

    /// Writes down the keys of one bucket of a walk in one record.
    pub(super) fn write_down_all(&mut self, db: usize, keys: &[Found]) -> Result<(), RecordError> {
        let is_short = |&found: &Found| self.dbs[db].kind(found) == ValueKind::String && !self.is_large(db, found);
        if !keys.iter().all(is_short) {
            return keys.iter().try_for_each(|&found| self.write_down(db, found));
        }
        let now_ms = self.now.unix_ms();
        let Store { durable, dbs, .. } = self;
        durable.append(Kind::STATE, now_ms, |writing| {
            if db != 0 {
                unit::write_database(writing, db);
            }
            for &found in keys {
                unit::write_string(writing, head(&dbs[db], found), dbs[db].value(found));
            }
        })?;
        for &found in keys {
            dbs[db].mark(found);
            durable.note_written_down();
        }
        Ok(())
    }
}

pub(super) fn head(db: &Db, found: Found) -> Head<'_> {
    Head { key: db.key(found), expires_ms: db.expires_ms(found), used: db.use_field(found) }
}

fn write_state(sink: &mut impl Sink, db: &Db, found: Found, writer: &Writer) {
    match db.kind(found) {
        ValueKind::String => unit::write_string(sink, head(db, found), db.value(found)),
        _ => unit::write_value(sink, head(db, found), writer.so_far().unwrap_or_default()),
    }
}

impl Context<'_> {
    /// Writes down the keys that a command is about to use and that the walk has not been at.
    #[cold]
    pub(crate) fn write_down_before(&mut self, command: &'static Command, request: Request<'_>) {
        if !command.may_change_data() {
            return;
        }
        // What a file is to have must be there before it is overwritten; a replica is told of that.
        let comes_first = overwrites(command, request) && !self.store.copies_to_file();
        if comes_first && (self.store.durable.sliced.is_empty() || removes(command)) {
            return;
        }
        // A request that is malformed changes nothing.
        let Some(keys) = command.keys_in(request) else { return };
        let db = self.db_index();
        for (at, _) in keys {
            let keys = &self.store.dbs[db];
            let found = keys.find_any(&request[at]);
            // What takes the place of a string of which a part is written would be taken for the same one.
            let is_begun = |found| keys.is_partial(found) && keys.kind(found) == ValueKind::String;
            if let Some(found) = found.filter(|&found| !comes_first || is_begun(found)) {
                self.store.write_down_for(db, found, Some((command, request)));
            }
        }
    }
}

/// Whether a command does the same to a key whatever it was: what is written down of it later is then as good.
fn overwrites(command: &Command, request: Request<'_>) -> bool {
    match (command.name, request.len()) {
        ("mset" | "setex" | "psetex", _) | ("set", 3) => true,
        ("set", 5) => ["ex", "px", "exat", "pxat"].iter().any(|word| args::is(&request[3], word)),
        _ => removes(command),
    }
}

fn removes(command: &Command) -> bool {
    matches!(command.name, "del" | "unlink" | "getdel")
}
