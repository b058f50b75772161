use super::{AUX, DATABASE, END, EXPIRY_MS, FREQUENCY, FUNCTION, IDLE, MAGIC, SIZES, Use};
use crate::{CRC, Checksum, Compression, Dialect, Error, Writer};
use alloc::format;
use crc::{Digest, Table};

/// A dump file that is being written. What it has so far is to be taken by [`drain`](Self::drain) from time to time.
pub struct FileWriter {
    writer: Writer,
    /// `None` if the file is to have no checksum.
    digest: Option<Digest<'static, u64, Table<1>>>,
}

impl FileWriter {
    /// Begins a file.
    pub fn new(dialect: Dialect, compression: Compression, checksum: Checksum) -> FileWriter {
        let mut writer = Writer::new(compression);
        writer.bytes(MAGIC);
        writer.bytes(format!("{:04}", dialect.version()).as_bytes());
        FileWriter { writer, digest: (checksum == Checksum::On).then(|| CRC.digest()) }
    }

    /// Something about the file.
    pub fn aux(&mut self, name: &str, text: &[u8]) {
        self.writer.bytes(&[AUX]);
        self.writer.text(name.as_bytes());
        self.writer.text(text);
    }

    /// A library of functions.
    pub fn function(&mut self, text: &[u8]) {
        self.writer.bytes(&[FUNCTION]);
        self.writer.text(text);
    }

    /// Begins a database with so many keys, of which some expire.
    pub fn database(&mut self, index: u64, keys: u64, volatile: u64) {
        self.writer.bytes(&[DATABASE]);
        self.writer.len(index);
        self.writer.bytes(&[SIZES]);
        self.writer.len(keys);
        self.writer.len(volatile);
    }

    /// A key, whose value `write` writes with its type in front.
    pub fn entry<E>(
        &mut self,
        key: &[u8],
        expires_ms: Option<u64>,
        usage: Use,
        write: impl FnOnce(&mut Writer) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(at_ms) = expires_ms {
            self.writer.bytes(&[EXPIRY_MS]);
            self.writer.bytes(&at_ms.to_le_bytes());
        }
        match usage {
            Use::Unknown => {}
            Use::IdleSeconds(idle_s) => {
                self.writer.bytes(&[IDLE]);
                self.writer.len(idle_s);
            }
            Use::Frequency(counter) => self.writer.bytes(&[FREQUENCY, counter]),
        }
        let behind_type = self.writer.written() + 1;
        write(&mut self.writer)?;
        self.writer.insert(behind_type, |writer| writer.text(key));
        Ok(())
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.writer.written()
    }

    /// Gives away what waits.
    pub fn drain<E: From<Error>>(&mut self, take: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let bytes = self.writer.so_far()?;
        self.digest.iter_mut().for_each(|digest| digest.update(bytes));
        take(bytes)?;
        self.writer.clear();
        Ok(())
    }

    /// Ends the file and gives away its last bytes.
    pub fn finish<E: From<Error>>(mut self, take: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.writer.bytes(&[END]);
        let sum = match self.digest {
            Some(mut digest) => {
                digest.update(self.writer.so_far()?);
                digest.finalize()
            }
            // Whoever reads it knows by that.
            None => 0,
        };
        self.writer.bytes(&sum.to_le_bytes());
        take(self.writer.so_far()?)
    }
}
