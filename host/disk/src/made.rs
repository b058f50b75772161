//! A disk that takes the place of another one when what it holds is of use.

use crate::{
    DiskError, FileDisk,
    claim::{Access, Claim, Made, claim, in_use, leads_to, open_files},
    file::Wake,
    fresh::Fresh,
    open::{identify, usual_bytes},
};
use kayvee_files::{Replacement, plain, remove_left, soon};
use kayvee_platform::{Finishing, LogFile};
use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::{Arc, Mutex},
};

/// A new disk's file, which lies beside its place until it is put there. Otherwise nothing of it is left.
pub struct NewDisk(Arc<Mutex<Place>>);

struct Place {
    file: Replacement,
    /// What is in the place before. It is locked, so that nobody uses it or begins to; it may have been made for nothing else.
    old: Option<(File, Option<Made>)>,
}

impl FileDisk {
    /// Makes a blank disk that is to take the place of the one at this path, if there is one. `wake` is called as that of
    /// [`open`](Self::open).
    pub fn create(path: &Path, wake: Wake) -> Result<(FileDisk, NewDisk), DiskError> {
        let failed = |error: io::Error| DiskError::new(path, plain(&error));
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(DiskError::new(
                path,
                "it is no file, whose place a new log could take: start Kayvee with --disk",
            ));
        }
        let Claim { files: old, size_bytes, made } = claim(path)?;
        // A link stays, and so does the disk's place where the working folder changes.
        let real = fs::canonicalize(path).map_err(failed)?;
        if !leads_to(&real, &old.plain) {
            return Err(in_use(path));
        }
        if size_bytes > 0 {
            identify(&old.plain, size_bytes, path)?;
        }
        remove_left(&real);
        let file = Replacement::create(&real).map_err(failed)?;
        let (files, _) = open_files(file.temporary(), Access::ReadWrite)?;
        let size_bytes = usual_bytes(size_bytes);
        files.plain.set_len(size_bytes).map_err(failed)?;
        let fresh = Fresh::of(&files.plain, size_bytes).map_err(failed)?;
        let disk = FileDisk::new(files, size_bytes, Some(fresh), wake).map_err(failed)?;
        let place = Place { file, old: Some((old.plain, made)) };
        Ok((disk, NewDisk(Arc::new(Mutex::new(place)))))
    }

    /// Removes what a crash has left of one that was to take the place of this disk, which is open and so locked.
    pub fn remove_left(&self, path: &Path) {
        if let Ok(real) = fs::canonicalize(path) {
            remove_left(&real);
        }
    }
}

impl LogFile for NewDisk {
    fn put_in_place(&mut self) -> Box<dyn Finishing> {
        let place = Arc::clone(&self.0);
        soon(move || {
            let mut place = place.lock().map_err(|_| "an earlier attempt has failed".to_string())?;
            place.file.put_in_place().map_err(|error| plain(&error))?;
            place.old = None;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
