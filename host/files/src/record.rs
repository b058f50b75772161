//! A record of frames (pcap, as libpcap's `pcap-savefile` describes it), for tcpdump and Wireshark.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    time::{SystemTime, UNIX_EPOCH},
};

/// Times in microseconds, numbers in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
const MAX_BYTES: u32 = 65_535;
const LINKTYPE_ETHERNET: u32 = 1;

/// The file.
#[derive(Debug)]
pub struct Recorder(BufWriter<File>);

impl Recorder {
    /// Begins a record in an empty file.
    pub fn begin(file: File) -> io::Result<Recorder> {
        let mut file = BufWriter::new(file);
        file.write_all(&MAGIC.to_ne_bytes())?;
        VERSION.iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
        [0, 0, MAX_BYTES, LINKTYPE_ETHERNET].iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
        file.flush()?;
        Ok(Recorder(file))
    }

    /// Adds a frame.
    pub fn record(&mut self, frame: &[u8]) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = frame.len() as u32;
        for number in [since.as_secs() as u32, since.subsec_micros(), len, len] {
            self.0.write_all(&number.to_ne_bytes())?;
        }
        self.0.write_all(frame)
    }

    /// Puts what was recorded where readers see it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
