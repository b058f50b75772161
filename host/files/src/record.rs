//! A record of frames (pcap, as libpcap's `pcap-savefile` describes it), for tcpdump and Wireshark.

use crate::{Hold, check_regular, lock};
use nix::libc;
use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Times in microseconds, numbers in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
/// In nanoseconds, as others write it.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// The most of a frame that is read, which is what libpcap allows: a packet of 65,535 bytes has an Ethernet header besides.
const MAX_BYTES: u32 = 262_144;
const LINKTYPE_ETHERNET: u32 = 1;
/// What is written at once: whole records, so that a process that is killed hardly ever leaves a piece of one. Room for the
/// largest.
const WRITTEN_BYTES: usize = 256 << 10;
const RECORD_HEADER_BYTES: usize = 16;

/// Makes the file of a record, or empties an older record. Anything else is refused and left as it is; what is returned has the
/// file for itself.
pub fn create_record(path: &Path) -> io::Result<File> {
    // A pipe would otherwise be waited for, until somebody reads it.
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK).open(path)?;
    check_regular(&file.metadata()?)?;
    if !lock(&file, Hold::Alone)? {
        return Err(io::Error::other("it is in use by another program"));
    }
    if file.metadata()?.len() > 0 && !is_record(&file)? {
        return Err(io::Error::other("it holds something that is no record of frames"));
    }
    file.set_len(0)?;
    Ok(file)
}

/// Whether a file begins as records do, of any machine's.
fn is_record(file: &File) -> io::Result<bool> {
    let mut start = [0; 4];
    match file.read_exact_at(&mut start, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        result => result?,
    }
    let magic = u32::from_ne_bytes(start);
    Ok([magic, magic.swap_bytes()].iter().any(|magic| [MAGIC, MAGIC_NANOSECONDS].contains(magic)))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use kayvee_testing::{
        network::{SeedReport, seeds},
        random::Random,
    };
    use std::{fs, process::Command};

    /// The largest frame that a Linux interface has: an Ethernet header, and a packet of 65,535 bytes.
    const LARGEST_BYTES: usize = 14 + 65_535;

    /// A record as it is read: how much a frame may have, and the frames with their times.
    fn read(bytes: &[u8]) -> (u32, Vec<(Duration, &[u8])>) {
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([number(0), number(8), number(12), number(20)], [0xa1b2_c3d4, 0, 0, 1]);
        assert_eq!([&bytes[4..6], &bytes[6..8]], [&2u16.to_ne_bytes(), &4u16.to_ne_bytes()]);
        let (mut at, mut frames) = (24, Vec::new());
        while at < bytes.len() {
            let (time, len) = (Duration::new(number(at).into(), number(at + 4) * 1000), number(at + 8));
            assert_eq!(len, number(at + 12), "nothing was cut off");
            frames.push((time, &bytes[at + 16..][..len as usize]));
            at += 16 + len as usize;
        }
        (number(16), frames)
    }

    #[test]
    fn only_a_record_is_written_over() {
        let path = std::env::temp_dir().join(format!("kayvee-over-{}", std::process::id()));
        let magics: [&[u8]; 3] = [b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\xa1\xb2\x3c\x4d"];
        for magic in magics {
            fs::write(&path, [magic, &[7; 100]].concat()).unwrap();
            drop(create_record(&path).unwrap());
            assert_eq!(fs::read(&path).unwrap(), []);
        }
        for other in [&[0; 8192][..], b"\xd4\xc3\xb2", b"Dear reader,"] {
            fs::write(&path, other).unwrap();
            assert!(create_record(&path).unwrap_err().to_string().contains("no record of frames"));
            assert_eq!(fs::read(&path).unwrap(), other);
        }
        fs::remove_file(&path).unwrap();
        let mut recorder = Recorder::begin(create_record(&path).unwrap()).unwrap();
        assert!(create_record(&path).unwrap_err().to_string().contains("in use"));
        recorder.record(&[7; 60]).and_then(|()| recorder.flush()).unwrap();
        assert_eq!(read(&fs::read(&path).unwrap()).1[0].1, [7; 60]);
        drop(recorder);
        drop(create_record(&path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        // Which also waits for nobody.
        for none in [&path, Path::new("/dev/null")] {
            assert!(create_record(none).unwrap_err().to_string().contains("no regular file"));
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn any_frames_are_read_as_they_passed() {
        for seed in seeds(4) {
            let _report = SeedReport(seed);
            let mut random = Random::new(seed);
            let path = std::env::temp_dir().join(format!("kayvee-record-{}-{seed}", std::process::id()));
            let mut recorder = Recorder::begin(File::create(&path).unwrap()).unwrap();
            let mut passed = Vec::new();
            for _ in 0..40 {
                let len = [0, 1, 60, 1514, LARGEST_BYTES][random.below(5)].saturating_sub(random.below(2));
                let time = Duration::from_micros(random.next_u64() >> (13 + random.below(32)));
                let frame = random.bytes(len);
                recorder.record_at(time, &frame).unwrap();
                passed.push((time, frame));
                // Whoever reads meanwhile, or after a kill, finds whole records.
                let written = fs::read(&path).unwrap();
                let (most, frames) = read(&written);
                assert!(frames.iter().all(|(_, frame)| frame.len() <= most as usize), "more than the file says");
                assert!(frames.iter().zip(&passed).all(|(read, passed)| *read == (passed.0, &passed.1[..])));
                if random.one_in(8) {
                    recorder.flush().unwrap();
                    assert_eq!(read(&fs::read(&path).unwrap()).1.len(), passed.len());
                }
            }
            drop(recorder);
            assert_eq!(read(&fs::read(&path).unwrap()).1.len(), passed.len());
            fs::remove_file(path).unwrap();
        }
    }
}
