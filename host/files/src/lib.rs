//! Files of a Linux host, as the store reads and writes them, and what goes wrong with them, as its users read it.
#![forbid(unsafe_code)]

mod record;

use kayvee_platform::{Finishing, ReadFile, WriteFile};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use std::{
    fs::{self, File, Metadata},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{self, Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

pub use record::{Recorder, create_record};

/// Who else may use a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Others that only read it, too.
    Shared,
    /// Nobody.
    Alone,
}

/// QEMU takes a lock, which others may have as well, on a byte from here on for each thing that it does with an image
/// (`block/file-posix.c`) ...
const DOES_AT: libc::off_t = 100;
/// ... and from here on for each that nobody else may do. It looks at those of others when it has its own.
const DENIES_AT: libc::off_t = 200;
const READS: libc::off_t = 0;
const WRITES: libc::off_t = 1;

/// Takes a file for this value, and tells whether nobody has it whom that excludes: neither another process nor, as its locks
/// are on bytes of the file, a QEMU. Where somebody has it, the file is of no more use.
pub fn lock(file: &File, hold: Hold) -> io::Result<bool> {
    match hold {
        Hold::Alone => set_lock(file, libc::F_WRLCK, 0, 0),
        // As a QEMU that reads.
        Hold::Shared => Ok(set_lock(file, libc::F_RDLCK, DOES_AT + READS, 1)?
            && set_lock(file, libc::F_RDLCK, DENIES_AT + WRITES, 1)?
            && !is_written_by_qemu(file)?),
    }
}

/// Locks a range, up to the end where its length is 0, unless somebody else has it.
fn set_lock(file: &File, kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, start, len))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_written_by_qemu(file: &File) -> io::Result<bool> {
    let mut found = range(libc::F_WRLCK, DOES_AT + WRITES, 1);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(found.l_type != libc::F_UNLCK as libc::c_short)
}

fn range(kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: start, l_len: len, l_pid: 0 }
}

/// A file that is read.
struct Source {
    file: File,
    size_bytes: u64,
}

impl Source {
    fn new(file: File) -> io::Result<Source> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Source { size_bytes: metadata.len(), file })
    }
}

impl ReadFile for Source {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        loop {
            match self.file.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| plain(&error)),
            }
        }
    }
}

/// Opens a file at its beginning; `None` if there is none.
pub fn open(path: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
    match File::open(path) {
        Ok(file) => Ok(Some(Box::new(Source::new(file).map_err(|error| plain(&error))?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(plain(&error)),
    }
}

/// Begins to write a file that takes the place of the one with this name, if there is one, when it is finished. One that is
/// not finished leaves no trace.
pub fn replace(path: &Path) -> Result<Box<dyn WriteFile>, String> {
    match Replacement::create(path) {
        Ok(file) => Ok(Box::new(file)),
        Err(error) => Err(plain(&error)),
    }
}

/// Permissions of a file that takes nobody's place, less those that the process withholds from all.
const NEW_FILE_MODE: u32 = 0o666;

/// A file that takes another one's place in one step, so that a crash leaves the old or the new one.
pub struct Replacement {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl Replacement {
    /// An empty file, which is removed unless it is [put in its place](Self::put_in_place). A device, a pipe or a folder has no
    /// place that a file could take.
    pub fn create(path: &Path) -> io::Result<Replacement> {
        let old = fs::metadata(path);
        old.as_ref().map_or(Ok(()), check_regular)?;
        // The working folder may be another one before the file is finished.
        let path = path::absolute(path)?;
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        note_unfinished(&temporary);
        // It is never for others to read where its place is not, and what somebody's link leads to is not written to.
        let mode = old.as_ref().map_or(NEW_FILE_MODE, |old| old.permissions().mode() & 0o777);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(mode).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&temporary).inspect_err(|_| forget_unfinished(&temporary))?;
        let replacement = Replacement { file, temporary, path, is_finished: false };
        if let Ok(old) = old {
            replacement.file.set_permissions(old.permissions())?;
        }
        Ok(replacement)
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it is until it is put in its place.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Brings it to stable storage, with its name. If that fails it can be tried again.
    pub fn put_in_place(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.is_finished {
            // What was noted under its name is another file.
            let mut unfinished = unfinished();
            fs::rename(&self.temporary, &self.path)?;
            unfinished.retain(|path| *path != self.temporary && *path != self.path);
            self.is_finished = true;
        }
        // The new name is on stable storage only once the folder is.
        sync_name(&self.path)
    }
}

/// Removes what processes that are gone had not put in the place of this file. No other process may be about to.
pub fn remove_left(path: &Path) {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else { return };
    let is_left = |found: &[u8]| {
        let rest = found.strip_prefix(name.as_encoded_bytes()).and_then(|rest| rest.strip_prefix(b"."));
        rest.and_then(|rest| rest.strip_suffix(b".tmp")).is_some_and(|number| number.iter().all(u8::is_ascii_digit))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_left(entry.file_name().as_encoded_bytes()) {
            // What cannot be removed takes room, and is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// What this process has not put in its place yet, wherever that is.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a file removed where this process [ends at once](remove_unfinished), until it is forgotten or another one is put in its
/// place. The path is absolute.
pub fn note_unfinished(path: &Path) {
    unfinished().push(path.into());
}

/// The file is of use now, or gone.
pub fn forget_unfinished(file: &Path) {
    unfinished().retain(|path| path != file);
}

/// Removes the files that this process has not put in their places yet, for an end that waits for nothing. None is begun as
/// long as what is returned lives.
#[must_use = "another thread could begin a file before the end"]
pub fn remove_unfinished() -> impl Sized {
    let unfinished = unfinished();
    for path in &*unfinished {
        // It may not be there yet.
        let _ = fs::remove_file(path);
    }
    unfinished
}

impl WriteFile for Replacement {
    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.file.write_all(bytes).map_err(|error| plain(&error))
    }

    fn finish(mut self: Box<Self>) -> Result<(), String> {
        self.put_in_place().map_err(|error| plain(&error))
    }

    fn finish_soon(self: Box<Self>) -> Box<dyn Finishing> {
        soon(move || self.finish())
    }
}

/// Finishes a file in a thread of its own: the medium may take seconds for a long one.
pub fn soon(finish: impl FnOnce() -> Result<(), String> + Send + 'static) -> Box<dyn Finishing> {
    let (told, ending) = mpsc::channel();
    let finish = move || {
        // Whoever asked may be gone.
        let _ = told.send(finish());
    };
    match thread::Builder::new().name("file".into()).spawn(finish) {
        Ok(_) => Box::new(Ending(ending)),
        Err(error) => Box::new(Some(Err(plain(&error)))),
    }
}

const ENDED: &str = "its thread has ended";

/// A file that a thread finishes.
struct Ending(mpsc::Receiver<Result<(), String>>);

impl Finishing for Ending {
    fn result(&mut self) -> Option<Result<(), String>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(ENDED.into())),
        }
    }

    fn wait(self: Box<Self>) -> Result<(), String> {
        self.0.recv().unwrap_or_else(|_| Err(ENDED.into()))
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_finished {
            // It may be gone already.
            let _ = fs::remove_file(&self.temporary);
            forget_unfinished(&self.temporary);
        }
    }
}

/// Refuses a device, a pipe or a folder.
fn check_regular(found: &Metadata) -> io::Result<()> {
    if found.is_file() { Ok(()) } else { Err(io::Error::other("it is no regular file")) }
}

/// Brings the name of a file to stable storage: that is its folder's content.
pub fn sync_name(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// An error without the number that std adds: `No such file or directory`.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use std::os::unix::fs::symlink;

    #[test]
    fn files_take_the_places_of_regular_files_alone() {
        let folder = std::env::temp_dir().join(format!("kayvee-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        symlink("/dev/null", path("device")).unwrap();
        for name in ["pipe", "device", "."] {
            assert_eq!(replace(&path(name)).err(), Some("it is no regular file".to_string()), "{name}");
        }
        fs::write(path("old"), "old").unwrap();
        for name in ["old", "new"] {
            let mut file = replace(&path(name)).unwrap();
            file.write(b"text").unwrap();
            file.finish().unwrap();
            assert_eq!(fs::read(path(name)).unwrap(), b"text");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 4, "nothing else is left");
        fs::remove_dir_all(folder).unwrap();
    }
}
