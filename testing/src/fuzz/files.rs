//! Dump files and append-only files.

use crate::in_process::environment;
use kayvee_commands::{CutOff, Environment, Error, Host};
use kayvee_platform::Now;
use kayvee_platform::{ReadFile, WriteFile};
use kayvee_server::{Dialect, Engine, OptionError, Options};
use std::cell::RefCell;

thread_local! {
    /// What every file holds.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A host on which every file is the same.
struct OneFile;

struct Source {
    bytes: Vec<u8>,
    at: usize,
}

impl ReadFile for Source {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let len = buffer.len().min(self.bytes.len() - self.at);
        buffer[..len].copy_from_slice(&self.bytes[self.at..][..len]);
        self.at += len;
        Ok(len)
    }
}

impl Host for OneFile {
    fn apply(&self, _: &Options, _: &mut Options) -> Result<(), OptionError> {
        Ok(())
    }

    fn read_file(&self, _: &str) -> Result<Vec<u8>, String> {
        Ok(BYTES.with_borrow(Vec::clone))
    }

    fn has_files(&self) -> bool {
        true
    }

    fn open_file(&self, path: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
        Ok(Some(Box::new(Source { bytes: self.read_file(path)?, at: 0 })))
    }

    fn create_file(&self, _: &str) -> Result<Box<dyn WriteFile>, String> {
        Err("it is for reading".into())
    }
}

/// Loads these bytes as a file.
fn load(bytes: &[u8]) -> Result<Engine, String> {
    BYTES.replace(bytes.to_vec());
    let environment = Environment { host: &OneFile, ..environment() };
    let mut engine =
        Engine::new(Options::default(), environment, Now { monotonic_ns: 1, unix_us: 1_700_000_000_000_000 });
    engine.load_file("file", CutOff::LeaveOut, &mut |_, _| {})?;
    Ok(engine)
}

/// Files, whose checksum is left out so that what is wrong is not found by that alone: they are refused, or hold data that
/// can be written and loaded again.
pub fn file(data: &[u8]) {
    is_file_taken(data);
}

/// The same, and whether the file was not refused.
pub fn is_file_taken(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if kayvee_rdb::file::is_dump(data)
        && let Some(sum) = bytes.last_chunk_mut::<8>()
    {
        sum.fill(0);
    }
    let Ok(engine) = load(&bytes) else { return false };
    let keys = |engine: &Engine| -> usize { engine.databases().iter().map(|(_, keys)| keys).sum() };
    for dialect in [Dialect::Redis70, Dialect::Redis72] {
        let mut written = Vec::new();
        let result = engine.export(dialect, |bytes| -> Result<(), Error> {
            written.extend_from_slice(bytes);
            Ok(())
        });
        result.expect("what was loaded can be written");
        let again = load(&written).unwrap_or_else(|why| panic!("what was written can be loaded: {why}"));
        // What has expired is not written.
        assert!(keys(&again) <= keys(&engine));
    }
    true
}
