//! Where the lines of a run go: standard error, which is the terminal or, in the background, a file of bounded size.

use anyhow::{Context, Result};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::Mutex,
};

/// A log that grows beyond this is set aside, and the one set aside before it removed.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// The lines' destination.
pub struct Log {
    file: Option<Mutex<Rotation>>,
}

struct Rotation {
    path: PathBuf,
    written_bytes: u64,
}

impl Log {
    /// The standard error that this process was started with.
    pub fn terminal() -> Log {
        Log { file: None }
    }

    /// A new file, which also becomes this process's standard error.
    pub fn file(path: PathBuf) -> Result<Log> {
        become_standard_error(&path)?;
        Ok(Log { file: Some(Mutex::new(Rotation { path, written_bytes: 0 })) })
    }

    /// Writes one line.
    pub fn line(&self, line: &str) {
        let rotation = self.file.as_ref().map(|file| file.lock().expect("no thread panics while it holds the log"));
        if let Some(mut rotation) = rotation {
            rotation.written_bytes += line.len() as u64 + 1;
            if rotation.written_bytes > FILE_MAX_BYTES {
                rotation.written_bytes = 0;
                // Where the old file cannot be set aside the new one replaces it, which keeps the bound all the same.
                let _ = std::fs::rename(&rotation.path, set_aside(&rotation.path));
                let _ = become_standard_error(&rotation.path);
            }
        }
        // A terminal that has gone away must not end the store.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// The name of the log's older half.
pub fn set_aside(path: &Path) -> PathBuf {
    path.with_extension("old")
}

fn become_standard_error(path: &Path) -> Result<()> {
    let create = || -> std::io::Result<File> {
        // A file of the same name that someone still reads keeps what it has.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => OpenOptions::new().append(true).create_new(true).open(path),
        }
    };
    let file = create().with_context(|| format!("creating {}", path.display()))?;
    Ok(nix::unistd::dup2_stderr(&file)?)
}
