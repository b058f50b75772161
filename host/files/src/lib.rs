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
    fs::{self, File},
    io::{self, Read, Write},
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

/// Takes the whole file for this value, and tells whether nobody else has it. QEMU locks its images in the same way, so a guest
/// and a process exclude each other.
pub fn lock(file: &File, hold: Hold) -> io::Result<bool> {
    let kind = match hold {
        Hold::Shared => libc::F_RDLCK,
        Hold::Alone => libc::F_WRLCK,
    };
    let whole = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
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

/// A file that takes another one's place in one step, so that a crash leaves the old or the new one.
pub struct Replacement {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl Replacement {
    /// An empty file, which is removed unless it is [put in its place](Self::put_in_place).
    pub fn create(path: &Path) -> io::Result<Replacement> {
        // The working folder may be another one before the file is finished.
        let path = path::absolute(path)?;
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        unfinished().push(temporary.clone());
        let file = File::create(&temporary).inspect_err(|_| forget(&temporary))?;
        let replacement = Replacement { file, temporary, path, is_finished: false };
        if let Ok(old) = fs::metadata(&replacement.path) {
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

    /// Whether it is in its place.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Brings it to stable storage, with its name. If that fails it can be tried again.
    pub fn put_in_place(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.is_finished {
            fs::rename(&self.temporary, &self.path)?;
            forget(&self.temporary);
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

fn forget(temporary: &Path) {
    unfinished().retain(|path| path != temporary);
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
            forget(&self.temporary);
        }
    }
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
