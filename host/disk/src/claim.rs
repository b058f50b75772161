//! Who has a disk's file: it is locked, and what its name leads to is what is locked.

use crate::{DiskError, worker::Files};
use kayvee_files::{Hold, forget_unfinished, note_unfinished, plain};
use nix::libc;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

pub(crate) const NO_DISK: &str = "it is neither a regular file nor a block device";
/// A name that leads to another file each time is left to those who change that.
const TRIES: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// A file or block device that is nobody else's, to be written.
pub(crate) struct Claim {
    pub files: Files,
    pub size_bytes: u64,
    /// Whether it was made for this.
    pub made: Option<Made>,
}

/// A file that was made here and holds nothing of anybody's. It is removed unless it is kept.
pub(crate) struct Made {
    /// None if it is kept.
    path: Option<PathBuf>,
    /// It has the lock until the file is gone. Who opened it meanwhile then sees that its name leads there no more.
    file: File,
}

/// The place of a disk that is yet to come, locked: an empty file, which is removed if that does not come.
pub struct Place {
    _file: File,
    _made: Option<Made>,
}

impl Place {
    /// Takes a place that is empty.
    pub fn take(path: &Path) -> Result<Place, DiskError> {
        match claim(path)? {
            Claim { files, size_bytes: 0, made } => Ok(Place { _file: files.plain, _made: made }),
            // It was a moment ago.
            _ => Err(in_use(path)),
        }
    }
}

impl Made {
    /// It is of use now.
    pub fn keep(mut self) {
        if let Some(path) = self.path.take() {
            forget_unfinished(&path);
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        if leads_to(&path, &self.file) {
            // Should that fail, an empty file stays, which the next start takes.
            let _ = fs::remove_file(&path);
        }
        forget_unfinished(&path);
    }
}

/// Takes a file or block device to be written. Where there is none, an empty file is made.
pub(crate) fn claim(path: &Path) -> Result<Claim, DiskError> {
    claim_made_by(path, &mut make_file)
}

fn claim_made_by(path: &Path, make: &mut dyn FnMut(&Path) -> io::Result<bool>) -> Result<Claim, DiskError> {
    let failed = |error: io::Error| DiskError::new(path, plain(&error));
    let mut is_made = false;
    let (files, size_bytes) = again(path, || {
        is_made = make(path).map_err(failed)?;
        try_open(path, Access::ReadWrite)
    })?;
    // Whoever has locked it in between may have been quick, and gone.
    let made = match is_made && size_bytes == 0 {
        true => {
            // The working folder may be another one before it is known whether it is kept.
            let path = fs::canonicalize(path).map_err(failed)?;
            let file = files.plain.try_clone().map_err(failed)?;
            note_unfinished(&path);
            Some(Made { path: Some(path), file })
        }
        false => None,
    };
    Ok(Claim { files, size_bytes, made })
}

/// Makes an empty file unless there is one; tells whether it has.
fn make_file(path: &Path) -> io::Result<bool> {
    // Nobody but the owner is to read what the store keeps.
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens and locks a file or block device, and tells its size.
pub(crate) fn open_files(path: &Path, access: Access) -> Result<(Files, u64), DiskError> {
    again(path, || try_open(path, access))
}

/// Tries until the file that is locked is what the path leads to: another one may be put there, or it may be removed, between
/// opening and locking.
fn again<T>(path: &Path, mut attempt: impl FnMut() -> Result<Option<T>, DiskError>) -> Result<T, DiskError> {
    for _ in 0..TRIES {
        if let Some(found) = attempt()? {
            return Ok(found);
        }
    }
    Err(fs::metadata(path).map_or_else(|error| DiskError::new(path, plain(&error)), |_| in_use(path)))
}

/// Nothing if the path does not lead to what was opened.
fn try_open(path: &Path, access: Access) -> Result<Option<(Files, u64)>, DiskError> {
    let failed = |error: io::Error| DiskError::new(path, plain(&error));
    let Some(found) = if_there(fs::metadata(path)).map_err(failed)? else { return Ok(None) };
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(DiskError::new(path, NO_DISK));
    }
    // Opening a block device like this fails where it is mounted or otherwise in use.
    let exclusive = if kind.is_block_device() && access == Access::ReadWrite { libc::O_EXCL } else { 0 };
    let opened = if_there(open_direct(path, access, exclusive)).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => in_use(path),
        _ => failed(error),
    })?;
    let Some(mut plain) = opened else { return Ok(None) };
    lock(&plain, path, access)?;
    let stable = match access {
        Access::ReadOnly => None,
        Access::ReadWrite => if_there(open_direct(path, access, libc::O_DSYNC)).map_err(failed)?,
    };
    let is_writable = stable.is_some() || access == Access::ReadOnly;
    if !is_writable || ![Some(&plain), stable.as_ref()].iter().flatten().all(|file| leads_to(path, file)) {
        return Ok(None);
    }
    let size_bytes = plain.seek(SeekFrom::End(0)).map_err(failed)?;
    Ok(Some((Files::new(plain, stable), size_bytes)))
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Whether a path leads to an open file.
pub(crate) fn leads_to(path: &Path, file: &File) -> bool {
    let same = |found: fs::Metadata, own: fs::Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
    fs::metadata(path).is_ok_and(|found| file.metadata().is_ok_and(|own| same(found, own)))
}

/// Opens a file past the page cache, which would only copy what the log has in memory already, where the file system
/// can do that.
fn open_direct(path: &Path, access: Access, flags: i32) -> io::Result<File> {
    let open = |flags| OpenOptions::new().read(true).write(access == Access::ReadWrite).custom_flags(flags).open(path);
    match open(flags | libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(flags),
        result => result,
    }
}

pub(crate) fn lock(file: &File, path: &Path, access: Access) -> Result<(), DiskError> {
    let hold = match access {
        Access::ReadOnly => Hold::Shared,
        Access::ReadWrite => Hold::Alone,
    };
    match kayvee_files::lock(file, hold) {
        Ok(true) => Ok(()),
        Ok(false) => Err(in_use(path)),
        Err(error) => Err(DiskError::new(path, format!("locking it: {}", plain(&error)))),
    }
}

pub(crate) fn in_use(path: &Path) -> DiskError {
    DiskError::new(path, "it is in use by another program, such as another Kayvee or a QEMU")
}

#[cfg(test)]
mod tests;
