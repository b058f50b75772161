//! Opening, making and growing disks.

use crate::{
    FileDisk, Spec,
    claim::{Access, Claim, NO_DISK, claim, lock, open_files},
    file::{BLOCK_BYTES, Wake},
    fresh::{self, Fresh},
    withheld,
    worker::Files,
};
use kayvee_files::{plain, sync_name};
use kayvee_log::OpenError;
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    libc,
};
use std::{
    convert::Infallible,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// The size of a new file for which none was asked. Nothing of it is taken from the file system before it is used.
const USUAL_BYTES: u64 = 16 << 30;
/// So much of a new file is written at once, as far as it was asked for.
const WRITTEN_BYTES: u64 = 64 << 20;

/// Why a disk cannot be used, in words for the user.
#[derive(Debug)]
pub struct DiskError(String);

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DiskError {}

impl DiskError {
    pub(crate) fn new(path: &Path, why: impl fmt::Display) -> DiskError {
        DiskError(format!("disk {}: {why}", path.display()))
    }
}

impl FileDisk {
    /// Opens a disk; makes the file where there is none, and makes it larger where it is to be. `wake` is called from
    /// another thread whenever a transfer has finished.
    pub fn open(spec: &Spec, wake: Wake) -> Result<FileDisk, DiskError> {
        let Claim { files, size_bytes, made } = claim(&spec.path)?;
        let disk = open_or_grow(spec, files, size_bytes, wake)?;
        if let Some(made) = made {
            made.keep();
        }
        Ok(disk)
    }

    /// Opens a disk to be read only. Nothing of it is changed.
    pub fn open_read_only(path: &Path) -> Result<FileDisk, DiskError> {
        let (files, size_bytes) = open_files(path, Access::ReadOnly)?;
        // It has no block that could be looked at.
        if (1..u64::from(BLOCK_BYTES)).contains(&size_bytes) {
            return Err(DiskError::new(path, OpenError::<Infallible>::Foreign));
        }
        FileDisk::new(files, size_bytes, None, Box::new(|| {})).map_err(|error| DiskError::new(path, plain(&error)))
    }

    /// Opens a disk to be read only, as [`open_to_read`] does. `wake` is called as that of [`open`](Self::open).
    pub fn open_shared(path: &Path, wake: Wake) -> Result<FileDisk, DiskError> {
        let mut file = open_to_read(path)?;
        let failed = |error: io::Error| DiskError::new(path, plain(&error));
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        FileDisk::new(Files::new(file, None), size_bytes, None, wake).map_err(failed)
    }
}

/// Opens a file or block device that is only read, by way of the page cache. Several can do so at a time.
pub fn open_to_read(path: &Path) -> Result<File, DiskError> {
    let failed = |error: io::Error| DiskError::new(path, plain(&error));
    // A FIFO would keep whoever opens it waiting until somebody writes.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(DiskError::new(path, NO_DISK));
    }
    lock(&file, path, Access::ReadOnly)?;
    Ok(file)
}

/// Opens and locks a disk that is [prepared](prepare), for a monitor that carries out a guest's transfers.
pub fn open_prepared(path: &Path) -> Result<File, DiskError> {
    Ok(open_files(path, Access::ReadWrite)?.0.plain)
}

/// A disk that is ready for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Whether it is a block device, and no file.
    pub is_device: bool,
    /// Whether it can be read and written past the page cache.
    pub is_direct: bool,
}

/// Makes a disk ready for a guest: it is there, has its size, and holds a log or nothing.
pub fn prepare(spec: &Spec) -> Result<Prepared, DiskError> {
    FileDisk::open(spec, Box::new(|| {}))?;
    let failed = |error: io::Error| DiskError::new(&spec.path, plain(&error));
    let is_device = fs::metadata(&spec.path).map_err(failed)?.file_type().is_block_device();
    let is_direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&spec.path).is_ok();
    Ok(Prepared { is_device, is_direct })
}

fn open_or_grow(spec: &Spec, files: Files, size_bytes: u64, wake: Wake) -> Result<FileDisk, DiskError> {
    let path = spec.path.as_path();
    let failed = |error: io::Error| DiskError::new(path, plain(&error));
    let is_file = files.plain.metadata().map_err(failed)?.is_file();
    let wanted_bytes = wanted_bytes(spec, size_bytes, is_file)?;
    if size_bytes > 0 {
        // What is no disk of Kayvee's is neither used nor made larger.
        identify(&files.plain, size_bytes, path)?;
    }
    if !is_file {
        return FileDisk::new(files, size_bytes, None, wake).map_err(failed);
    }
    if wanted_bytes > size_bytes {
        match spec.size_bytes {
            Some(_) => reserve(&files.plain, size_bytes, wanted_bytes),
            None => files.plain.set_len(wanted_bytes),
        }
        .map_err(failed)?;
    }
    let mut fresh = Fresh::of(&files.plain, wanted_bytes).map_err(failed)?;
    if size_bytes == 0 {
        let until_bytes = WRITTEN_BYTES.min(wanted_bytes / 2);
        write_ahead(&mut fresh, &files.plain, spec.size_bytes, until_bytes).map_err(failed)?;
        sync(&files.plain, path).map_err(failed)?;
    }
    FileDisk::new(files, wanted_bytes, Some(fresh), wake).map_err(failed)
}

/// Writes the beginning of a new file. Where no size was asked for, the file system need not have room for all of it.
fn write_ahead(fresh: &mut Fresh, file: &File, asked_bytes: Option<u64>, until_bytes: u64) -> io::Result<()> {
    while fresh.start_bytes() < until_bytes {
        match fresh.write_step(file, fresh.start_bytes()) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) if asked_bytes.is_none() && error.kind() == io::ErrorKind::StorageFull => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The size that a disk gets, if it can.
fn wanted_bytes(spec: &Spec, size_bytes: u64, is_file: bool) -> Result<u64, DiskError> {
    let wanted_bytes = match spec.size_bytes {
        Some(bytes) => bytes.next_multiple_of(BLOCK_BYTES.into()),
        None => return Ok(usual_bytes(size_bytes)),
    };
    let least_bytes = kayvee_log::minimum_bytes();
    let (has, least) = (human(size_bytes), human(least_bytes));
    let why = match is_file {
        true if wanted_bytes < size_bytes => {
            format!("it has {has}, and cannot be made smaller; leave the size out, or name a larger one")
        }
        true if wanted_bytes < least_bytes => format!("{} are too few, a log needs {least}", human(wanted_bytes)),
        false if wanted_bytes != size_bytes => format!("the device has {has}, which no option changes"),
        _ => return Ok(wanted_bytes),
    };
    Err(DiskError::new(&spec.path, why))
}

/// The size of a disk for which none was asked, in place of one that has so many bytes.
pub(crate) fn usual_bytes(size_bytes: u64) -> u64 {
    if size_bytes == 0 { USUAL_BYTES } else { size_bytes }
}

/// Whether a disk is Kayvee's or blank.
pub(crate) fn identify(file: &File, size_bytes: u64, path: &Path) -> Result<(), DiskError> {
    let failed = |error: io::Error| DiskError::new(path, plain(&error));
    let files = Files::new(file.try_clone().map_err(failed)?, None);
    let mut disk = FileDisk::new(files, size_bytes, None, Box::new(|| {})).map_err(failed)?;
    match kayvee_log::identify(&mut disk) {
        Ok(()) => Ok(()),
        Err(OpenError::Blank)
            if size_bytes < kayvee_log::minimum_bytes() || !is_blank(file, size_bytes).map_err(failed)? =>
        {
            Err(DiskError::new(path, OpenError::<Infallible>::Foreign))
        }
        Err(OpenError::Blank) => Ok(()),
        Err(error) => Err(DiskError::new(path, error)),
    }
}

/// Whether the beginning of a file is zeros, or only begun. Images of other kinds keep some zeros there, but none so many.
fn is_blank(file: &File, size_bytes: u64) -> io::Result<bool> {
    let mut start = fresh::step()?;
    let len = (size_bytes / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES)).min(start.len() as u64);
    file.read_exact_at(&mut start[..len as usize], 0)?;
    Ok(start.iter().all(|byte| *byte == 0) || withheld::is_begun(&start))
}

/// Makes a file larger and takes the room for that from the file system, so that it cannot be short of it later.
fn reserve(file: &File, size_bytes: u64, wanted_bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), size_bytes as i64, (wanted_bytes - size_bytes) as i64) {
        Ok(()) => Ok(()),
        // It takes what it needs when it needs it.
        Err(Errno::EOPNOTSUPP) => file.set_len(wanted_bytes),
        Err(error) => {
            file.set_len(size_bytes)?;
            Err(error.into())
        }
    }
}

/// Brings a new file and its name to stable storage.
fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    sync_name(path)
}

/// A size for people: `16 GiB`.
fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = UNITS.iter().find(|(_, shift)| bytes >> shift > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
pub(crate) mod tests;
