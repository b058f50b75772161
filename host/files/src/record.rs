//! A record of frames (pcap, as libpcap's `pcap-savefile` describes it), for tcpdump and Wireshark.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Times in microseconds, numbers in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const MAX_BYTES: u32 = 65_535;
const LINKTYPE_ETHERNET: u32 = 1;
/// What is written at once: whole records, so that a process that is killed hardly ever leaves a piece of one. Room for the
/// largest.
const WRITTEN_BYTES: usize = 256 << 10;
const RECORD_HEADER_BYTES: usize = 16;

/// The file.
#[derive(Debug)]
pub struct Recorder(BufWriter<File>);

impl Recorder {
    /// Begins a record in an empty file.
    pub fn begin(file: File) -> io::Result<Recorder> {
        let mut file = BufWriter::with_capacity(WRITTEN_BYTES, file);
        file.write_all(&MAGIC.to_ne_bytes())?;
        VERSION.iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
        [0, 0, MAX_BYTES, LINKTYPE_ETHERNET].iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
        file.flush()?;
        Ok(Recorder(file))
    }

    /// Adds a frame that passes now.
    pub fn record(&mut self, frame: &[u8]) -> io::Result<()> {
        self.record_at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), frame)
    }

    /// Adds one that has passed, at a time since 1970.
    pub fn record_at(&mut self, at: Duration, frame: &[u8]) -> io::Result<()> {
        if self.0.capacity() - self.0.buffer().len() < RECORD_HEADER_BYTES + frame.len() {
            self.0.flush()?;
        }
        let len = frame.len() as u32;
        for number in [at.as_secs() as u32, at.subsec_micros(), len, len] {
            self.0.write_all(&number.to_ne_bytes())?;
        }
        self.0.write_all(frame)
    }

    /// Puts what was recorded where readers see it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
