//! Dump files to data.

use super::{CutOff, input::Input};
use crate::{Error, History, Store, dump, options::OptionSpec};
use alloc::{format, string::String};
use kayvee_keyspace::Expiry;
use kayvee_rdb::{
    Text,
    file::{Entry, Fault, FileReader, Item, Step, Use, module_name},
    kind,
};

/// The least that a file says of a key: what it is, and two lengths.
const LEAST_KEY_BYTES: u64 = 3;

/// What a file held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Keys that were in dump files.
    pub keys: u64,
    /// Keys whose time had come, which were left out.
    pub expired_keys: u64,
    /// Collections without members, which old versions of Redis could save: they were left out as well.
    pub empty_keys: u64,
    /// Libraries of functions.
    pub functions: u64,
    /// Requests of append-only files, and those among them that ended with an error.
    pub requests: u64,
    #[allow(missing_docs)]
    pub failed_requests: u64,
    /// Bytes at the end of the last file that were left out, because they are no whole request or transaction.
    pub cut_bytes: u64,
}

/// How far loading is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of the file that are done.
    pub bytes: u64,
    /// Bytes that it has.
    pub of_bytes: u64,
}

/// What becomes of keys whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// They are left out.
    Drop,
    /// They stay until somebody looks at them, since what follows may count on them.
    Keep,
}

impl Store {
    /// Loads a dump file from where `input` is. Returns what it held, and what it says of its history. What goes wrong is told
    /// with where in the file that is.
    pub(crate) fn load_dump(
        &mut self,
        input: &mut Input<'_>,
        expired: Expired,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Loaded, History), String> {
        let base = input.offset();
        let mut reader = FileReader::new(self.checksum());
        let (mut loaded, mut history) = (Loaded::default(), History::default());
        let mut db = 0;
        let of_bytes = input.size_bytes();
        loop {
            let at = base + reader.offset();
            let faulty = |why: &dyn core::fmt::Display| format!("at byte {at}: {why}");
            let used = match reader.next(input.bytes()).map_err(|fault| faulty(&fault))? {
                Step::Needs(needed) => {
                    if !input.fill(needed).map_err(|why| faulty(&why))? {
                        return Err(faulty(&"the file ends too early: it was cut off, or a length in it is wrong"));
                    }
                    continue;
                }
                Step::Item(Item::End, used) => {
                    input.consume(used);
                    return Ok((loaded, history));
                }
                Step::Item(item, used) => {
                    if let Item::Aux(name, text) = &item {
                        history.note(name.as_bytes(), text.as_bytes());
                    }
                    self.load_item(item, of_bytes, &mut db, expired, &mut loaded).map_err(|why| faulty(&why))?;
                    used
                }
            };
            input.consume(used);
            progress(Progress { bytes: input.offset(), of_bytes });
        }
    }

    pub(crate) fn load_item(
        &mut self,
        item: Item<'_>,
        of_bytes: u64,
        db: &mut usize,
        expired: Expired,
        loaded: &mut Loaded,
    ) -> Result<(), String> {
        match item {
            Item::Aux(name, text) => note_about(&name, &text),
            Item::Database(index) => {
                let index = usize::try_from(index).ok().filter(|index| *index < self.dbs.len());
                *db = index.ok_or_else(|| {
                    format!("the file has more than {} databases; set 'databases' accordingly", self.dbs.len())
                })?;
            }
            Item::Sizes(keys, _) => {
                let most = of_bytes / LEAST_KEY_BYTES;
                self.dbs[*db].expect(keys.min(most) as usize);
            }
            Item::SlotSizes(..) | Item::End => {}
            Item::Function(text) => {
                self.load_library(text.as_bytes(), false).map_err(text_of)?;
                loaded.functions += 1;
            }
            Item::ModuleData(id) => {
                return Err(format!(
                    "the file has data of the module type {}, and there are no modules",
                    module_name(id)
                ));
            }
            Item::Entry(entry) => self.load_entry(&entry, *db, expired, loaded)?,
        }
        Ok(())
    }

    fn load_entry(
        &mut self,
        entry: &Entry<'_>,
        db: usize,
        expired: Expired,
        loaded: &mut Loaded,
    ) -> Result<(), String> {
        if entry.kind == kind::MODULE_2 {
            let id = kayvee_rdb::Reader::new(entry.value).len().unwrap_or(0);
            return Err(format!("{}, and there are no modules", Fault::ModuleValue(id)));
        }
        let now_ms = self.now.unix_ms();
        let key = entry.key.as_bytes();
        // A time before 1970 has come for certain.
        let expires_ms = entry.expires_ms.map(|at| u64::try_from(at).unwrap_or(0));
        if expired == Expired::Drop && expires_ms.is_some_and(|at| at <= now_ms) {
            loaded.expired_keys += 1;
            // Those who have it yet are told.
            self.tell_listeners(db, &[b"DEL", key]);
            self.end_unit();
            self.feed_replicas();
            return Ok(());
        }
        if self.dbs[db].has(key, 0) {
            return Err(format!("the key '{}' is there twice", key.escape_ascii()));
        }
        let expiry = expires_ms.map_or(Expiry::Never, Expiry::At);
        match dump::load_value(self, db, key, (entry.kind, entry.value), Some(expiry)) {
            Err(error) if dump::is_about_emptiness(&error) => {
                log::warn!("skipping empty key: {}", key.escape_ascii());
                loaded.empty_keys += 1;
                return Ok(());
            }
            put => put.map_err(text_of)?,
        }
        loaded.keys += 1;
        if entry.usage != Use::Unknown
            && let Some(found) = self.dbs[db].find(key, 0)
        {
            match entry.usage {
                Use::Unknown => {}
                Use::IdleSeconds(idle_s) => {
                    self.dbs[db].set_last_use(found, now_ms.saturating_sub(idle_s.saturating_mul(1000)));
                }
                Use::Frequency(counter) => self.dbs[db].set_frequency(found, counter, now_ms),
            }
        }
        Ok(())
    }

    /// Loads what redis-server has left in the working folder, before there is a log: append-only files, or else the dump
    /// file. Returns whether there was anything.
    pub fn load_before_log(&mut self) -> Result<bool, String> {
        let host = self.environment.host;
        let option = |name: &[u8]| {
            let value = OptionSpec::find(name).map(|spec| spec.get(&self.options)).unwrap_or_default();
            String::from_utf8_lossy(&value).into_owned()
        };
        let (dir, file) = (option(b"appenddirname"), option(b"appendfilename"));
        let cut_off = if option(b"aof-load-truncated") == "yes" { CutOff::LeaveOut } else { CutOff::Refuse };
        let manifest = format!("{file}.manifest");
        let failed = |why: String| format!("Fatal error loading the append-only files: {why}. Exiting.");
        let loaded = if host.open_file(&format!("{dir}/{manifest}")).map_err(failed)?.is_some() {
            self.load_aof_dir(&dir, &manifest, cut_off, &mut |_, _| {}).map_err(failed)?
        } else if host.open_file(&file).map_err(failed)?.is_some() {
            self.load_aof(&file, cut_off, &mut |_, _| {}).map_err(failed)?
        } else {
            self.load_at_start()?;
            return Ok(self.saves.loaded_keys > 0);
        };
        log::info!("DB loaded from append-only files: {} requests, {} keys of a dump", loaded.requests, loaded.keys);
        if loaded.cut_bytes > 0 {
            log::warn!(
                "{} bytes at their end are no whole request or transaction; they were left out",
                loaded.cut_bytes
            );
        }
        self.check_slots()?;
        Ok(true)
    }

    /// Loads the dump file of these options, if there is one. What comes back is for an operator who has to choose what to
    /// do about a file that cannot be loaded.
    pub fn load_at_start(&mut self) -> Result<(), String> {
        let host = self.environment.host;
        if !host.has_files() {
            return Ok(());
        }
        let path = format!("{}/{}", self.options.dir, self.options.dbfilename);
        let failed = |why: String| format!("Fatal error loading the DB: {path}: {why}. Exiting.");
        let Some(mut file) = host.open_file(&self.options.dbfilename).map_err(failed)? else { return Ok(()) };
        let start_ns = self.environment.clock.monotonic_ns();
        let expired = if self.replication.has_master() { Expired::Keep } else { Expired::Drop };
        self.open_backlog();
        let (loaded, history) = self.load_dump(&mut Input::new(&mut *file), expired, &mut |_| {}).map_err(failed)?;
        let Loaded { keys, expired_keys, empty_keys, .. } = loaded;
        // Of a key that is left out for being empty nobody is told.
        self.go_on_with(&if empty_keys == 0 { history } else { History::default() });
        (self.saves.loaded_keys, self.saves.expired_keys) = (keys, expired_keys);
        log::info!(
            "Done loading RDB, keys loaded: {keys}, keys expired: {expired_keys}, empty keys skipped: {empty_keys}."
        );
        let took_ms = (self.environment.clock.monotonic_ns() - start_ns) / 1_000_000;
        log::info!("DB loaded from disk: {}.{:03} seconds", took_ms / 1000, took_ms % 1000);
        self.check_slots()
    }

    /// `DEBUG RELOAD NOSAVE`: takes all data from the dump file, in place of what is there. No effect tells it.
    pub(crate) fn reload_from_dump(&mut self) -> Result<(), String> {
        let name = &self.options.dbfilename;
        if self.environment.host.open_file(name)?.is_none() {
            return Err(format!("there is no file {name}"));
        }
        let mut loaded = Store::new(self.options.clone(), self.environment.clone(), self.now);
        loaded.load_at_start()?;
        self.leave_history();
        self.take_data_of(&mut loaded);
        Ok(())
    }
}

pub(super) fn text_of(error: Error) -> String {
    String::from_utf8_lossy(&error.0).into_owned()
}

/// Tells the log what a file says of itself.
fn note_about(name: &Text<'_>, text: &Text<'_>) {
    let shown = text.as_bytes().escape_ascii();
    match name.as_bytes() {
        b"redis-ver" => log::info!("Loading RDB produced by version {shown}"),
        _ => log::debug!("RDB '{}': {shown}", name.as_bytes().escape_ascii()),
    }
}
