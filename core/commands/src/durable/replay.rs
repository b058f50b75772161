//! From the log to data, at start.

use super::{
    Durable, GAP, made,
    unit::{Head, Item, LEAST_KEY_BYTES, Malformed, Reader},
};
use crate::{Context, Error, History, Origin, Session, ShowsExpired, Store, dump, store::Writers, table::ByName};
use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;
use kayvee_keyspace::{Db, Expiry, WrittenString};
use kayvee_log::{FormatError, Kind, Log, OpenError, Progress, READ_AHEAD_BYTES};
use kayvee_platform::{BlockDevice, Geometry, Heap};
use kayvee_resp::{Places, Protocol, Request, Writer};
use log::Level;

const SECOND_NS: u64 = 1_000_000_000;
/// Effects that fail and are told of one by one.
const FAILURES_TOLD: u64 = 10;
const NO_ROOM: &str = "there is no room for all data on the disk";

/// Why there is no log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// It could not be read.
    Open(OpenError<Refusal>),
    /// It could not be made.
    Format(FormatError),
    /// It could not be written.
    Write(String),
    /// What it holds is not for this store.
    Foreign(String),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Open(error) => error.fmt(f),
            LogError::Format(error) => error.fmt(f),
            LogError::Foreign(why) => f.write_str(why),
            LogError::Write(why) => write!(f, "the log could not be written: {why}"),
        }
    }
}

impl core::error::Error for LogError {}

/// Why a record was not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It says nothing that makes sense, though its checksum is right.
    Malformed,
    /// It is about a database that there is not.
    NoDatabase(usize),
    /// It has a command that there is not.
    UnknownCommand(String),
    /// A value is none.
    BadValue,
    /// There is no memory for it.
    OutOfMemory,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Malformed => f.write_str("it is malformed: was it written by another version?"),
            Refusal::NoDatabase(db) => {
                write!(f, "it is about database {db}: start with a higher number of databases (option databases)")
            }
            Refusal::UnknownCommand(name) => {
                write!(f, "it has a command '{name}' that is unknown: was it written by a newer version?")
            }
            Refusal::BadValue => f.write_str("a value in it cannot be read: was it written by another version?"),
            Refusal::OutOfMemory => f.write_str("there is not enough memory for the data: start with more"),
        }
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Refusal {
        Refusal::Malformed
    }
}

/// Takes over what a log says.
struct Replay<'a> {
    store: &'a mut Store,
    /// Commands under their own names.
    names: ByName,
    places: Places,
    reply: Vec<u8>,
    /// More keys than this the device cannot hold.
    most_keys: u64,
    records: u64,
    /// Whether a gap has been passed, behind which nothing can be relied upon.
    is_behind_gap: bool,
    /// Whether anything has been taken over, and whether a compaction has begun after that: what it has written of the
    /// keys is there then.
    has_some: bool,
    skips_state: bool,
    failures: u64,
    /// What history the data are of, if the last record says so.
    history: Option<History>,
}

impl Replay<'_> {
    fn new(store: &mut Store, geometry: Geometry) -> Replay<'_> {
        // Of a key whose time had come the log says when it went.
        store.dbs.iter_mut().for_each(|db| db.keeps_expired = true);
        store.writers = Writers::Log;
        Replay {
            store,
            most_keys: geometry.size_bytes / LEAST_KEY_BYTES,
            names: ByName::default(),
            places: Places::default(),
            reply: Vec::new(),
            records: 0,
            is_behind_gap: false,
            has_some: false,
            skips_state: false,
            failures: 0,
            history: None,
        }
    }

    fn record(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), Refusal> {
        self.records += 1;
        self.history = None;
        if kind == GAP {
            self.is_behind_gap |= self.records > 1;
            return Ok(());
        }
        if self.is_behind_gap {
            return Ok(());
        }
        let mut reader = Reader::new(bytes);
        let mut places = core::mem::take(&mut self.places);
        let result = self.items(&mut reader, &mut places);
        self.places = places;
        self.has_some = true;
        // What is read takes a part of the reserve, which nobody else needs yet: data that filled all else fit in again.
        match self.store.reply_room_bytes() {
            0 => result.and(Err(Refusal::OutOfMemory)),
            _ => result,
        }
    }

    fn items(&mut self, reader: &mut Reader<'_>, places: &mut Places) -> Result<(), Refusal> {
        let mut db = 0;
        while let Some(item) = reader.next(places)? {
            self.item(&mut db, item, reader)?;
        }
        if self.store.shows_expired() {
            self.store.show_expired(ShowsExpired::No);
        }
        Ok(())
    }

    /// Takes over a string and those that follow it.
    fn strings(&mut self, db: usize, first: WrittenString<'_>, reader: &mut Reader<'_>) -> Result<(), Refusal> {
        let mut strings = [first; Db::FETCHED_AT_A_TIME];
        let mut count = 1;
        while let Some(string) = reader.next_string()? {
            if count == strings.len() {
                self.load(db, &strings)?;
                count = 0;
            }
            strings[count] = string;
            count += 1;
        }
        self.load(db, &strings[..count])
    }

    fn load(&mut self, db: usize, strings: &[WrittenString<'_>]) -> Result<(), Refusal> {
        if self.skips_state {
            return Ok(());
        }
        self.store.dbs[db].load_strings(strings).map_err(|_| Refusal::OutOfMemory)
    }

    fn item(&mut self, db: &mut usize, item: Item<'_>, reader: &mut Reader<'_>) -> Result<(), Refusal> {
        let store = &mut *self.store;
        match item {
            Item::Time(unix_ms) => store.now.unix_us = unix_ms.saturating_mul(1000),
            Item::Database(number) if number < store.dbs.len() => *db = number,
            Item::Database(number) => return Err(Refusal::NoDatabase(number)),
            Item::Command(request) => return self.command(*db, request),
            Item::Beginning => self.skips_state = self.has_some,
            Item::Size(_) | Item::Value(..) | Item::Part(..) if self.skips_state => {}
            Item::Size(keys) => store.dbs[*db].expect((keys as u64).min(self.most_keys) as usize),
            Item::String(first) => return self.strings(*db, first, reader),
            Item::Value(head, value) => return self.value(*db, head, value, None),
            Item::Part(head, index, value) => return self.value(*db, head, value, Some(index)),
            Item::FromMaster => store.show_expired(ShowsExpired::Yes),
        }
        Ok(())
    }

    /// Takes over a collection, or a part of one.
    #[inline(never)]
    fn value(&mut self, db: usize, head: Head<'_>, value: &[u8], merge_at: Option<usize>) -> Result<(), Refusal> {
        let store = &mut *self.store;
        let (kind, value) = value.split_first().ok_or(Refusal::BadValue)?;
        let expiry = head.expires_ms.map_or(Expiry::Never, Expiry::At);
        let given = dump::give_value(store, db, head.key, (*kind, value), Some(expiry), merge_at);
        given.map_err(|error| match error == Error::OUT_OF_MEMORY {
            true => Refusal::OutOfMemory,
            false => Refusal::BadValue,
        })?;
        if let Some(found) = store.dbs[db].find_any(head.key) {
            store.dbs[db].set_use_field(found, head.used);
        }
        Ok(())
    }

    fn command(&mut self, db: usize, request: Request<'_>) -> Result<(), Refusal> {
        self.history = History::of_request(request);
        if self.history.is_some() {
            return Ok(());
        }
        match self.store.replay_request(&self.names, db, request, &mut self.reply) {
            Ok(()) => Ok(()),
            Err(Replayed::Unknown) => Err(Refusal::UnknownCommand(String::from_utf8_lossy(&request[0]).into_owned())),
            Err(Replayed::Failed(error)) if error == Error::OUT_OF_MEMORY => Err(Refusal::OutOfMemory),
            Err(Replayed::Failed(error)) => {
                self.failures += 1;
                if self.failures <= FAILURES_TOLD {
                    let name = request[0].escape_ascii();
                    log::warn!("record {}: {name} fails: {}", self.records, error.0.escape_ascii());
                }
                Ok(())
            }
        }
    }
}

/// What became of a request that was run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// There is no such command.
    Unknown,
    /// It ended with this error.
    Failed(Error),
}

impl Store {
    /// Runs a request again that had its effect once: for no client, with all rights, and nobody is told. `names` are the
    /// commands', `reply` takes what nobody wants to read.
    pub fn replay_request(
        &mut self,
        names: &ByName,
        db: usize,
        request: Request<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Replayed> {
        let command = names.command_of(request).ok_or(Replayed::Unknown)?;
        let handler = command.handler.ok_or(Replayed::Unknown)?;
        if !command.accepts(request.len()) {
            return Err(Replayed::Unknown);
        }
        reply.clear();
        let slot = self.replay_slot();
        let mut context = Context::new(self, Writer::new(reply, Protocol::Resp2), slot, Origin::Replay);
        context.session().db = db;
        handler(&mut context, request).map_err(Replayed::Failed)
    }

    /// The slot of the session that requests run in which are run again.
    fn replay_slot(&mut self) -> u32 {
        if self.sessions.is_empty() {
            let session = Session::new(0, String::new(), String::new(), true, self.now.monotonic_ns);
            self.sessions.push(Some(Box::new(session)));
        }
        0
    }

    /// Ends running requests again: the store is as one in which nobody ever ran them, but for the data.
    pub fn end_replay(&mut self) {
        self.sessions.clear();
        self.writers = Writers::Clients;
        self.stats = crate::store::Stats::default();
        self.changes = 0;
        for db in &mut self.dbs {
            db.take_lazily_expired();
            db.expired_names.take();
            db.new_names.take();
        }
        self.apply_expiry_rule();
    }

    /// Opens the log on a device, or makes one there if it is blank, and takes over what it holds: before the first client
    /// comes. On an error the device is as it was, and the store is good for nothing.
    #[inline(never)]
    pub fn open_log(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        let clock = self.environment.clock;
        let began_ns = clock.monotonic_ns();
        let own_now = self.now;
        let was_empty = self.is_empty();
        if was_empty {
            // What a target has made since the store was is no data.
            self.startup_bytes = self.environment.heap.used_bytes();
        }
        let read_ahead_bytes = read_ahead_bytes(self.environment.heap);
        let mut replay = Replay::new(self, device.geometry());
        let mut told_ns = began_ns;
        let opened =
            Log::open(device, read_ahead_bytes, &mut |kind, bytes| replay.record(kind, bytes), &mut |progress| {
                if clock.monotonic_ns() >= told_ns + SECOND_NS {
                    told_ns = clock.monotonic_ns();
                    // Whoever waits for the end of it gives a store up that says nothing.
                    let level = log::max_level().to_level().unwrap_or(Level::Warn).min(Level::Info);
                    let Progress { read_bytes, records, searched, .. } = progress;
                    log::log!(
                        level,
                        "reading the log: {} MB, {records} records, {searched} segments beyond",
                        read_bytes / 1_000_000
                    );
                }
            });
        let (is_behind_gap, failures, records) = (replay.is_behind_gap, replay.failures, replay.records);
        let history = replay.history.take();
        self.end_replay();
        self.now = own_now;
        let (log, mut is_whole) = match opened {
            Ok(opened) => {
                if opened.grown_bytes > 0 {
                    log::info!("the disk has grown by {} bytes, which the log takes", opened.grown_bytes);
                }
                (opened.log, was_empty && !is_behind_gap)
            }
            Err(OpenError::Blank) => {
                let log = made::format(&mut self.log_ids, device).map_err(LogError::Format)?;
                log::info!("the disk was blank: made a log of {} MB", log.size_bytes() / 1_000_000);
                (log, was_empty)
            }
            Err(error) => return Err(LogError::Open(error)),
        };
        is_whole &= self.options.appendonly;
        if failures > 0 {
            log::warn!("{failures} effects in the log have failed");
        }
        self.check_slots().map_err(LogError::Foreign)?;
        let keys = self.all_keys();
        let took_ms = (clock.monotonic_ns() - began_ns) / 1_000_000;
        log::info!("DB loaded from the log: {keys} keys, {records} records, {took_ms} ms");
        self.durable.opened(log, is_whole, self.environment.heap);
        self.measure_live_bytes();
        self.saves.loaded_keys = keys as u64;
        self.effects.are_logged = is_whole;
        if let Some(history) = history.filter(|_| is_whole) {
            self.open_backlog();
            self.go_on_with(&history);
        }
        match self.options.appendonly && !is_whole {
            true if is_behind_gap => self.write_all_behind_gap(device),
            true => self.write_all(device),
            false => Ok(()),
        }
    }

    /// Does what [`write_all`](Self::write_all) does for a log whose end is of no use, but takes room. Where that is too
    /// much, what lies before can be read, and deleted until there is room.
    fn write_all_behind_gap(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        // A try would take more of it.
        if self.durable.log.as_ref().is_some_and(Log::has_room_for_compaction) {
            let written = self.write_all(device);
            if written.is_ok() || self.durable.log.as_ref().is_none_or(|log| log.failure().is_some()) {
                return written;
            }
        }
        log::error!(
            "{NO_ROOM}; commands that write are refused until enough is deleted, which takes another appendfsync than \
             always, or the disk is larger"
        );
        self.durable.refuses = true;
        Ok(())
    }

    /// Takes over what a log holds, on a device that stays as it is. The log is not open afterwards.
    #[inline(never)]
    pub fn read_log(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        let own_now = self.now;
        let read_ahead_bytes = read_ahead_bytes(self.environment.heap);
        let mut replay = Replay::new(self, device.geometry());
        let visit = &mut |kind, bytes: &[u8]| replay.record(kind, bytes);
        let read = kayvee_log::check(device, read_ahead_bytes, visit, &mut |_| {});
        if replay.is_behind_gap {
            log::warn!("the log has a gap; what was appended behind it is left out");
        }
        self.end_replay();
        self.now = own_now;
        read.map(drop).map_err(LogError::Open)
    }

    /// Takes all data back from the log, as a start does, in place of what is there. The log stays as it is, and so does
    /// everything else on an error.
    pub(super) fn reload_from_log(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        if let Some(log) = &mut self.durable.log {
            let synced = log.sync(device, self.environment.clock.monotonic_ns());
            synced.map_err(|error| LogError::Write(alloc::format!("{error}")))?;
        }
        // Replaying happens to nobody: no client sees a key change that has not.
        let mut loaded = Store::new(self.options.clone(), self.environment.clone(), self.now);
        loaded.read_log(device)?;
        self.take_data_of(&mut loaded);
        Ok(())
    }

    /// Takes another store's keys and libraries in place of its own.
    pub(crate) fn take_data_of(&mut self, other: &mut Store) {
        self.flush_all();
        // What is left of a copy of the old ones would be none of the new ones.
        self.abandon_copy("other data take their place");
        self.dbs = core::mem::take(&mut other.dbs);
        // Their keys have the marks of the other one's walks.
        (self.durable.epoch, self.durable.abandoned) = (other.durable.epoch, other.durable.abandoned);
        self.apply_expiry_rule();
        self.scripting.swap_libraries(&mut other.scripting);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dbs.iter().all(kayvee_keyspace::Db::is_empty) && self.scripting.library_counts().0 == 0
    }

    /// Writes all data to the log and waits until it is on stable storage. Nobody is served meanwhile.
    pub fn write_all(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        let failures = self.durable.status.failures_in_a_row;
        self.durable.request_compaction();
        while self.durable.is_compacting() {
            self.compact_slice();
            self.drive_log(device);
            if self.durable.status.failures_in_a_row > failures {
                return Err(LogError::Write(String::from(NO_ROOM)));
            }
            let Some(log) = &self.durable.log else { return Ok(()) };
            if let Some(failure) = log.failure() {
                return Err(LogError::Write(alloc::format!("{failure}")));
            }
            if log.is_congested() || self.durable.finishing.is_some() {
                device.wait();
            }
        }
        Ok(())
    }
}

/// This part of a heap with a limit is for the log's buffers, up to what they are elsewhere. Those that it is read with are gone
/// before others are needed.
const BUFFERS_PART: u64 = 64;

fn read_ahead_bytes(heap: &dyn Heap) -> usize {
    let part = heap.limit_bytes().map_or(u64::MAX, |limit| limit / BUFFERS_PART);
    part.min(READ_AHEAD_BYTES as u64) as usize
}

impl Durable {
    pub(super) fn opened(&mut self, mut log: Log, is_whole: bool, heap: &dyn Heap) {
        if let Some(limit) = heap.limit_bytes() {
            log.set_buffers_bytes(log.max_buffers_bytes().min((limit / BUFFERS_PART) as usize));
            // Data and clients may take all else, down to pieces that are too small for one.
            log.reserve_buffers();
        }
        self.base_bytes = log.used_bytes();
        // The records that are there name times of their own.
        self.last_ms = u64::MAX;
        self.last_effects = log.appended();
        (self.log, self.is_whole) = (Some(log), is_whole);
    }
}
