//! What the store asks of the operating system: files, and new options that concern its sockets.

use crate::{
    data, http,
    listeners::{self, Place},
    logger, open_files,
};
use kayvee_disk::FileDisk;
use kayvee_files::plain;
use kayvee_platform::{ReadFile, WriteFile};
use kayvee_server::{Host, OptionError, Options, Store};
use mio::{Registry, net::TcpListener};
use std::{
    cell::{Cell, OnceCell, RefCell},
    env, fs, io,
    path::Path,
    time::{Duration, Instant},
};

/// Listeners that came with new options.
pub struct Rebound {
    /// Where the process listens from now on.
    pub places: Vec<Place>,
    /// The sockets of those places that are new.
    pub opened: Vec<(Place, TcpListener)>,
}

/// How clients reach the process.
pub enum Reach {
    /// By sockets of the kernel's that listen in these places.
    Kernel(Vec<Place>),
    /// By a network of its own, whose port is fixed.
    Own,
}

/// The process' surroundings.
pub struct LinuxHost {
    config_file: Option<String>,
    /// Where it listens, and what the loop is still to be told of that.
    reach: RefCell<Reach>,
    rebound: Cell<Option<Rebound>>,
    /// Where disks tell that a transfer has ended, and a disk that the loop is still to be told of.
    registry: OnceCell<Registry>,
    disk: Cell<Option<Box<FileDisk>>>,
}

impl LinuxHost {
    /// Those of a process that is reached like this.
    pub fn new(config_file: Option<String>, reach: Reach) -> LinuxHost {
        LinuxHost {
            config_file,
            reach: RefCell::new(reach),
            rebound: Cell::new(None),
            registry: OnceCell::new(),
            disk: Cell::new(None),
        }
    }

    /// Lets logs be made, whose disks wake this loop.
    pub fn serve_disks(&self, registry: &Registry) -> io::Result<()> {
        // There is one loop.
        let _ = self.registry.set(registry.try_clone()?);
        Ok(())
    }

    /// The disk of a log that was made since the last call.
    pub fn take_disk(&self) -> Option<Box<FileDisk>> {
        self.disk.take()
    }

    /// What has become of the listeners since the last call.
    pub fn take_rebound(&self) -> Option<Rebound> {
        self.rebound.take()
    }
}

/// A file of data. Reading a long one takes time, in which the log says how far that is.
struct ToldFile {
    name: String,
    file: Box<dyn ReadFile>,
    read_bytes: u64,
    told: Instant,
}

impl ToldFile {
    const INTERVAL: Duration = Duration::from_secs(1);

    fn new(name: &str, file: Box<dyn ReadFile>) -> ToldFile {
        ToldFile { name: name.into(), file, read_bytes: 0, told: Instant::now() }
    }

    /// What is to be said at this time, if it is time.
    fn progress(&mut self, now: Instant) -> Option<String> {
        if now.saturating_duration_since(self.told) < ToldFile::INTERVAL {
            return None;
        }
        self.told = now;
        let [read_mb, of_mb] = [self.read_bytes, self.size_bytes()].map(|bytes| bytes / 1_000_000);
        Some(format!("reading {}: {read_mb} of {of_mb} MB", self.name))
    }
}

impl ReadFile for ToldFile {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        if let Some(line) = self.progress(Instant::now()) {
            logger::awaited(&line);
        }
        let len = self.file.read(buffer)?;
        self.read_bytes += len as u64;
        Ok(len)
    }
}

fn refused(name: &str, reason: impl ToString) -> OptionError {
    OptionError { name: name.into(), reason: reason.to_string() }
}

impl Host for LinuxHost {
    fn apply(&self, old: &Options, new: &mut Options) -> Result<(), OptionError> {
        // On a network of its own, clients are no open files.
        if new.maxclients > old.maxclients && matches!(&*self.reach.borrow(), Reach::Kernel(_)) {
            let possible = open_files::reserve(new.maxclients, http::is_wanted(new)).unwrap_or(old.maxclients);
            if possible < new.maxclients {
                return Err(OptionError::too_many_clients(possible));
            }
        }
        let mut rebound = None;
        if (old.port, &old.bind) != (new.port, &new.bind) {
            let Reach::Kernel(old_places) = &*self.reach.borrow() else {
                return Err(refused(
                    "port",
                    "A store with a network of its own keeps its port and has no addresses to bind.",
                ));
            };
            let places = listeners::places(new);
            let is_new = |place: &&Place| !old_places.contains(place);
            let missing: Vec<Place> = places.iter().filter(is_new).cloned().collect();
            let opened = listeners::bind(&missing, new).map_err(|error| {
                log::warn!("{error}");
                match old.port == new.port {
                    true => refused("bind", "Failed to bind to specified addresses."),
                    false => refused("port", "Unable to listen on this port. Check server logs."),
                }
            })?;
            rebound = Some(Rebound { places, opened });
        }
        if old.dir != new.dir {
            env::set_current_dir(&new.dir).map_err(|error| refused("dir", plain(&error)))?;
            new.dir = current_dir();
        }
        if let Some(rebound) = rebound {
            self.reach.replace(Reach::Kernel(rebound.places.clone()));
            self.rebound.set(Some(rebound));
        }
        Ok(())
    }

    fn config_file(&self) -> Option<&str> {
        self.config_file.as_deref()
    }

    fn read_file(&self, path: &str) -> Result<Vec<u8>, String> {
        fs::read(path).map_err(|error| plain(&error))
    }

    fn has_files(&self) -> bool {
        true
    }

    fn open_file(&self, path: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
        let told = |file| -> Box<dyn ReadFile> { Box::new(ToldFile::new(path, file)) };
        Ok(kayvee_files::open(path)?.map(told))
    }

    fn create_file(&self, path: &str) -> Result<Box<dyn WriteFile>, String> {
        kayvee_files::replace(Path::new(path))
    }

    fn create_log(&self, store: &mut Store, dir: &str) -> Result<(), String> {
        let registry = self.registry.get().ok_or("the store does not serve yet")?;
        let wake = data::wake(registry).map_err(|error| plain(&error))?;
        let path = Path::new(dir).join(kayvee_disk::USUAL_NAME);
        let (mut disk, file) = FileDisk::create(&path, wake).map_err(|error| error.to_string())?;
        store.take_new_log(&mut disk, Box::new(file))?;
        self.disk.set(Some(Box::new(disk)));
        Ok(())
    }
}

/// The working folder, or nothing where it is gone.
pub fn current_dir() -> String {
    env::current_dir().map(|dir| dir.display().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_told_of_once_a_second() {
        let path = env::temp_dir().join(format!("kayvee-told-{}", std::process::id()));
        fs::write(&path, vec![0; 3_000_000]).unwrap();
        let mut file = ToldFile::new("dump.rdb", kayvee_files::open(path.to_str().unwrap()).unwrap().unwrap());
        fs::remove_file(&path).unwrap();
        let began = file.told;
        assert_eq!(file.progress(began + Duration::from_millis(999)), None);
        while file.read_bytes < 2_000_000 {
            assert!(file.read(&mut [0; 10_000]).unwrap() > 0);
        }
        let later = file.told + Duration::from_secs(1);
        assert_eq!(file.progress(later).as_deref(), Some("reading dump.rdb: 2 of 3 MB"));
        assert_eq!(file.progress(later + Duration::from_millis(999)), None);
    }
}
