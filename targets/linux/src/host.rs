//! What the store asks of the operating system: files, and new options that concern its sockets.

use crate::{
    listeners::{self, Place},
    open_files,
};
use kayvee_server::{Host, OptionError, Options};
use mio::net::TcpListener;
use std::{
    cell::{Cell, RefCell},
    env,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Listeners that came with new options.
pub struct Rebound {
    /// Where the process listens from now on.
    pub places: Vec<Place>,
    /// The sockets of those places that are new.
    pub opened: Vec<(Place, TcpListener)>,
}

/// The process' surroundings.
pub struct LinuxHost {
    config_file: Option<String>,
    /// Where it listens, and what the loop is still to be told of that.
    places: RefCell<Vec<Place>>,
    rebound: Cell<Option<Rebound>>,
}

impl LinuxHost {
    /// Those of a process that listens in these places.
    pub fn new(config_file: Option<String>, places: Vec<Place>) -> LinuxHost {
        LinuxHost { config_file, places: RefCell::new(places), rebound: Cell::new(None) }
    }

    /// What has become of the listeners since the last call.
    pub fn take_rebound(&self) -> Option<Rebound> {
        self.rebound.take()
    }
}

fn refused(name: &str, reason: impl ToString) -> OptionError {
    OptionError { name: name.into(), reason: reason.to_string() }
}

impl Host for LinuxHost {
    fn apply(&self, old: &Options, new: &mut Options) -> Result<(), OptionError> {
        if new.maxclients > old.maxclients {
            let possible = open_files::reserve(new.maxclients).unwrap_or(old.maxclients);
            if possible < new.maxclients {
                let why = "The operating system is not able to handle the specified number of clients, try with";
                return Err(refused("maxclients", format!("{why} {possible}")));
            }
        }
        let mut rebound = None;
        if (old.port, &old.bind) != (new.port, &new.bind) {
            let places = listeners::places(new);
            let is_new = |place: &&Place| !self.places.borrow().contains(place);
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
            self.places.replace(rebound.places.clone());
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

    fn write_file(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        replace(Path::new(path), bytes).map_err(|error| plain(&error))
    }
}

/// An error without the number that std adds: `No such file or directory`.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
}

/// The working folder, or nothing where it is gone.
pub fn current_dir() -> String {
    env::current_dir().map(|dir| dir.display().to_string()).unwrap_or_default()
}

/// Replaces a file in one step, so that a crash leaves the old or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary: PathBuf = path.with_file_name(name);
    let written = (|| {
        let mut file = File::create(&temporary)?;
        if let Ok(old) = fs::metadata(path) {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // It may not even have come into being.
        let _ = fs::remove_file(&temporary);
    }
    written
}
