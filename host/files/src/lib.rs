//! Files of a Linux host, as the store reads them, and what goes wrong with them, as its users read it.
#![forbid(unsafe_code)]

use kayvee_platform::ReadFile;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

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
