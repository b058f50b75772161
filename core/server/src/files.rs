//! Data from files and to files, when there are no clients to serve.

use crate::Engine;
use alloc::{string::String, vec::Vec};
use kayvee_commands::{CutOff, Error, Loaded, LogError, Progress};
use kayvee_platform::BlockDevice;
pub use kayvee_rdb::Dialect;

impl Engine {
    /// Loads the dump file of the options, if there is one: before clients are served.
    pub fn load_at_start(&mut self) -> Result<(), String> {
        self.store.load_at_start()
    }

    /// Loads what redis-server has left in the working folder, before there is a log: append-only files, or else the dump
    /// file. Returns whether there was anything.
    pub fn load_before_log(&mut self) -> Result<bool, String> {
        self.store.load_before_log()
    }

    /// Loads a dump file or an append-only file. `progress` is told of it with the file's name.
    pub fn load_file(
        &mut self,
        path: &str,
        cut_off: CutOff,
        progress: &mut dyn FnMut(&str, Progress),
    ) -> Result<Loaded, String> {
        self.store.load_aof(path, cut_off, progress)
    }

    /// Loads the append-only files that a manifest in `dir` names.
    pub fn load_folder(
        &mut self,
        dir: &str,
        manifest: &str,
        cut_off: CutOff,
        progress: &mut dyn FnMut(&str, Progress),
    ) -> Result<Loaded, String> {
        self.store.load_aof_dir(dir, manifest, cut_off, progress)
    }

    /// Writes all data as a dump file, whose bytes `take` gets piece by piece.
    pub fn export<E: From<Error>>(&self, dialect: Dialect, take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.store.export(dialect, take)
    }

    /// The oldest dialect that has a form for all data.
    pub fn oldest_dialect(&self) -> Dialect {
        self.store.oldest_dialect()
    }

    /// Takes over what a log holds, on a device that stays as it is. The log is not open afterwards.
    pub fn read_log(&mut self, device: &mut dyn BlockDevice) -> Result<(), LogError> {
        self.store.read_log(device)
    }

    /// How many libraries of functions there are.
    pub fn libraries(&self) -> usize {
        self.store.library_count()
    }

    /// The numbers of the databases that have keys, and how many these are.
    pub fn databases(&self) -> Vec<(usize, usize)> {
        let lens = self.store.dbs.iter().map(|db| db.len()).enumerate();
        lens.filter(|(_, len)| *len > 0).collect()
    }
}
