//! The web server's access log: a thread writes it, so that nobody waits for a slow disk, a FIFO without a reader or a terminal
//! that stands still.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    mem,
    os::{fd::AsFd, unix::fs::FileTypeExt},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Bytes of lines that wait to be written; further lines are lost.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// How long the thread rests after an error. What it could not write comes first then.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end waits for lines to be written.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// An access log that is open.
pub struct AccessLog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Lines have come, or the end; or the thread has come to its end.
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The lines that wait.
    lines: Vec<u8>,
    /// Those that there was no room for.
    lost: u64,
    is_ending: bool,
    is_written: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccessLog {
    /// Opens it: a file, `-` for the standard output, or none.
    pub fn open(name: &str) -> io::Result<Option<AccessLog>> {
        let file = match name {
            "" => return Ok(None),
            "-" => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            name => open_file(name),
        };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("http-access-log {name}: {error}"));
        AccessLog::start(file.map_err(named)?).map(Some)
    }

    fn start(to: impl Write + Send + 'static) -> io::Result<AccessLog> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        thread::Builder::new().name("access-log".into()).spawn(move || Writer { shared: of_thread, to }.run())?;
        Ok(AccessLog(shared))
    }

    /// Has lines written, as soon as that can be done.
    pub fn put(&self, lines: Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        let mut state = self.0.state();
        if state.lines.len() + lines.len() > MAX_WAITING_BYTES {
            if state.lost == 0 {
                log::warn!("the access log takes what is written to it too slowly: lines are lost");
            }
            state.lost += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        } else if state.lines.is_empty() {
            state.lines = lines;
            self.0.has_changed.notify_all();
        } else {
            state.lines.extend_from_slice(&lines);
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_ending = true;
        self.0.has_changed.notify_all();
        // Who takes no lines now is not waited for.
        let _ = self.0.has_changed.wait_timeout_while(state, LAST_WRITES, |state| !state.is_written);
    }
}

/// A file at its end, or something that takes lines.
fn open_file(name: &str) -> io::Result<File> {
    let kind = fs::metadata(name).map(|found| found.file_type());
    if kind.as_ref().is_ok_and(FileTypeExt::is_block_device) {
        return Err(io::Error::other("it is a disk"));
    }
    // Opening a FIFO waits for a reader, and writing to one whose reader has left fails, unless this is one as well (fifo(7)).
    let is_fifo = kind.is_ok_and(|kind| kind.is_fifo());
    OpenOptions::new().create(!is_fifo).append(true).read(is_fifo).open(name)
}

/// What the thread has.
struct Writer<W> {
    shared: Arc<Shared>,
    to: W,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        while let Some(lines) = self.next_lines() {
            self.write(&lines);
        }
        self.shared.state().is_written = true;
        self.shared.has_changed.notify_all();
    }

    /// Waits for lines; there are no more at the end.
    fn next_lines(&self) -> Option<Vec<u8>> {
        let is_idle = |state: &mut State| state.lines.is_empty() && !state.is_ending;
        let waited = self.shared.has_changed.wait_while(self.shared.state(), is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        Some(mem::take(&mut state.lines)).filter(|lines| !lines.is_empty())
    }

    /// Writes lines, however long it takes: a part of a line is no line. At the end it tries once.
    fn write(&mut self, mut lines: &[u8]) {
        let mut has_failed = false;
        while !lines.is_empty() {
            match self.to.write(lines) {
                Ok(0) => self.rest(&mut has_failed, &io::ErrorKind::WriteZero.into()),
                Ok(len) => lines = &lines[len..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.rest(&mut has_failed, &error),
            }
            if has_failed && self.shared.state().is_ending {
                return;
            }
        }
        let lost = mem::take(&mut self.shared.state().lost);
        if has_failed || lost > 0 {
            log::info!("the access log is written again; lines that are lost: {lost}");
        }
    }

    fn rest(&self, has_failed: &mut bool, error: &io::Error) {
        if !mem::replace(has_failed, true) {
            log::warn!(
                "the access log cannot be written: {error}; it is tried again, and further lines wait or are lost"
            );
        }
        let is_over =
            self.shared.has_changed.wait_timeout_while(self.shared.state(), RETRY_INTERVAL, |state| !state.is_ending);
        drop(is_over);
    }
}

#[cfg(test)]
mod tests;
