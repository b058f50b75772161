//! Where the lines of a run go: standard error, which is the terminal or, in the background, a file of bounded size.

use anyhow::{Context, Result};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

/// A log that grows beyond this is set aside, and the one set aside before it removed.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// The lines' destination.
pub enum Log {
    /// The standard error that this process was started with.
    Terminal,
    /// A file.
    File(Mutex<BoundedFile>),
}

/// A file that begins anew when it has grown too long.
pub struct BoundedFile {
    path: PathBuf,
    file: File,
    written_bytes: u64,
    max_bytes: u64,
}

/// Whether a line made a file begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Appended,
    BegunAnew,
}

impl Log {
    /// A new file, which also becomes this process's standard error.
    pub fn file(path: &Path) -> Result<Log> {
        let log = BoundedFile::create(path, FILE_MAX_BYTES).with_context(|| format!("creating {}", path.display()))?;
        nix::unistd::dup2_stderr(&log.file)?;
        Ok(Log::File(Mutex::new(log)))
    }

    /// Writes one line. A terminal that has gone away or a full disk does not end the store.
    pub fn line(&self, line: &str) {
        match self {
            Log::Terminal => {
                let _ = write_line(&mut io::stderr(), line);
            }
            Log::File(log) => {
                let mut log = log.lock().expect("no thread panics while it holds the log");
                if let Ok(Written::BegunAnew) = log.line(line) {
                    let _ = nix::unistd::dup2_stderr(&log.file);
                }
            }
        }
    }
}

impl BoundedFile {
    fn create(path: &Path, max_bytes: u64) -> io::Result<BoundedFile> {
        Ok(BoundedFile { path: path.into(), file: create_anew(path)?, written_bytes: 0, max_bytes })
    }

    fn line(&mut self, line: &str) -> io::Result<Written> {
        let len = line.len() as u64 + 1;
        let mut written = Written::Appended;
        if self.written_bytes + len > self.max_bytes {
            // Where the old file cannot be set aside the new one replaces it, which keeps the bound all the same.
            let _ = fs::rename(&self.path, set_aside(&self.path));
            self.file = create_anew(&self.path)?;
            self.written_bytes = 0;
            written = Written::BegunAnew;
        }
        self.written_bytes += len;
        write_line(&mut self.file, line)?;
        Ok(written)
    }
}

/// Writes a line in one piece: others write to the same pipe or file, and what they say would stand in the middle of it.
pub fn write_line(out: &mut impl Write, line: &str) -> io::Result<()> {
    out.write_all(format!("{line}\n").as_bytes())
}

/// The name of the log's older half.
pub fn set_aside(path: &Path) -> PathBuf {
    path.with_extension("old")
}

/// Creates a file in the place of an older one; whoever still reads that keeps what it has.
fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new().append(true).create_new(true).open(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps each piece that is written.
    struct Pieces(Vec<Vec<u8>>);

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_comes_between_a_line_and_its_end() {
        let mut pieces = Pieces(Vec::new());
        write_line(&mut pieces, "ready in 5 ms").unwrap();
        assert_eq!(pieces.0, [b"ready in 5 ms\n"]);
    }

    #[test]
    fn a_log_keeps_its_newest_lines_within_its_bound() {
        let folder = std::env::temp_dir().join(format!("kayvee-log-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        fs::write(&path, "of an earlier run\n").unwrap();
        let mut log = BoundedFile::create(&path, 100).unwrap();
        // Ten bytes each: ten lines fill a file.
        let outcomes: Vec<_> = (0..35).map(|n| log.line(&format!("line {n:04}")).unwrap()).collect();
        let begun: Vec<_> = (0..35).filter(|&n| outcomes[n] == Written::BegunAnew).collect();
        assert_eq!(begun, [10, 20, 30]);
        let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().map(String::from).collect::<Vec<_>>();
        assert_eq!(lines(&path), ["line 0030", "line 0031", "line 0032", "line 0033", "line 0034"]);
        assert_eq!(lines(&set_aside(&path)).first().unwrap(), "line 0020");
        fs::remove_dir_all(folder).unwrap();
    }
}
