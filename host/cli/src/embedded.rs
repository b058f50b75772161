//! A store in this process, without clients, for its data's sake.

use anyhow::{Context, Result};
use kayvee_files::plain;
use kayvee_platform::{Clock, Heap, Now, ProcessorTime, ReadFile, WriteFile};
use kayvee_server::{Engine, Environment, Host, OptionError, Options};
use std::{
    fs::{self, File},
    io::Read,
    sync::OnceLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// As many databases as a store can have, so that the data of any fits.
const DATABASES: u32 = 1024;

/// An empty store.
pub fn engine() -> Result<Engine> {
    let mut seed = [0; 32];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed)).context("reading /dev/urandom")?;
    let environment = Environment {
        target: "host",
        os: String::new(),
        multiplexing: "none",
        process_id: std::process::id(),
        clock: &HostClock,
        heap: &Unmetered,
        system_memory_bytes: 0,
        processor_time: ProcessorTime::default,
        monitor: || None,
        host: &Files,
        seed,
    };
    let options = Options { databases: DATABASES, appendonly: true, ..Options::default() };
    Ok(Engine::new(options, environment, HostClock.now()))
}

struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Now {
        static START: OnceLock<Instant> = OnceLock::new();
        Now {
            monotonic_ns: START.get_or_init(Instant::now).elapsed().as_nanos() as u64,
            unix_us: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64,
        }
    }

    fn name(&self) -> &'static str {
        "POSIX clock_gettime"
    }
}

/// A heap without limits, of which nobody asks how much is in use.
struct Unmetered;

impl Heap for Unmetered {
    fn used_bytes(&self) -> u64 {
        0
    }

    fn limit_bytes(&self) -> Option<u64> {
        None
    }

    fn resident_bytes(&self) -> u64 {
        0
    }

    fn allocator(&self) -> &'static str {
        "libc"
    }
}

/// Files to read.
struct Files;

impl Host for Files {
    fn apply(&self, _: &Options, _: &mut Options) -> Result<(), OptionError> {
        Ok(())
    }

    fn read_file(&self, path: &str) -> Result<Vec<u8>, String> {
        fs::read(path).map_err(|error| plain(&error))
    }

    fn has_files(&self) -> bool {
        true
    }

    fn open_file(&self, path: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
        kayvee_files::open(path)
    }

    fn create_file(&self, _: &str) -> Result<Box<dyn WriteFile>, String> {
        Err("this store saves nothing by itself".into())
    }
}
