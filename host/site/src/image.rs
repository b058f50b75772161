//! Site images as files.

use anyhow::{Context, Result, anyhow, bail};
use kayvee_http::{
    Site,
    site::{CHUNK_BYTES, HEADER_BYTES, Layout, Sink},
};
use std::{
    fs::{self, File},
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
};

/// A file that an image is written to. What goes wrong is told at its end.
pub struct FileSink {
    file: BufWriter<File>,
    result: std::io::Result<()>,
}

impl FileSink {
    /// Of an empty file.
    pub fn new(file: File) -> FileSink {
        FileSink { file: BufWriter::new(file), result: Ok(()) }
    }

    /// The file, if all of it could be written.
    pub fn finish(self) -> std::io::Result<File> {
        self.result?;
        Ok(self.file.into_inner()?)
    }

    fn try_set_beginning(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(bytes)?;
        self.file.seek(SeekFrom::End(0)).map(|_| ())
    }
}

impl Sink for FileSink {
    fn append(&mut self, bytes: &[u8]) {
        if self.result.is_ok() {
            self.result = self.file.write_all(bytes);
        }
    }

    fn set_beginning(&mut self, bytes: &[u8]) {
        if self.result.is_ok() {
            self.result = self.try_set_beginning(bytes);
        }
    }
}

/// What a sound image has.
pub struct Checked {
    /// Its paths.
    pub paths: usize,
    /// Its length.
    pub bytes: u64,
}

/// Reads a whole image, with only its index in memory, and checks it.
pub fn check(path: &Path) -> Result<Checked> {
    let named = || format!("{}", path.display());
    if !fs::metadata(path).with_context(named)?.is_file() {
        bail!("{}: it is no regular file", named());
    }
    let mut file = File::open(path).with_context(named)?;
    let bytes = file.seek(SeekFrom::End(0)).with_context(named)?;
    let site = read_index(&mut file).with_context(named)?;
    let layout = site.layout();
    if layout.image_bytes() != bytes {
        bail!("{}: it has {bytes} bytes, and was packed as {}; copy or pack it again", named(), layout.image_bytes());
    }
    file.seek(SeekFrom::Start(HEADER_BYTES as u64)).with_context(named)?;
    let (mut chunk, mut left, mut buffer) = (0, layout.bodies_bytes(), vec![0; CHUNK_BYTES]);
    while left > 0 {
        let len = left.min(CHUNK_BYTES as u64) as usize;
        file.read_exact(&mut buffer[..len]).with_context(named)?;
        if !site.is_sound(chunk, &buffer[..len]) {
            let at = HEADER_BYTES as u64 + chunk * CHUNK_BYTES as u64;
            bail!("{}: it is damaged between the bytes {at} and {}; pack or copy it again", named(), at + len as u64);
        }
        chunk += 1;
        left -= len as u64;
    }
    Ok(Checked { paths: site.len(), bytes })
}

fn read_index(file: &mut File) -> Result<Site> {
    let mut header = Vec::new();
    file.rewind()?;
    Read::by_ref(file).take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    let layout = Layout::read(&header)?;
    let mut index = Vec::new();
    file.seek(SeekFrom::Start(layout.index_at()))?;
    file.take(layout.index_bytes() as u64).read_to_end(&mut index)?;
    Site::open_index(layout, Arc::new(index)).map_err(|error| anyhow!(error))
}
