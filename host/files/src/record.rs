//! A record of frames (pcap, as libpcap's `pcap-savefile` describes it), for tcpdump and Wireshark.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Times in microseconds, numbers in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: [u16; 2] = [2, 4];
/// The most of a frame that is read, which is what libpcap allows: a packet of 65,535 bytes has an Ethernet header besides.
const MAX_BYTES: u32 = 262_144;
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

#[cfg(test)]
mod tests {
    use super::*;
    use kayvee_testing::{
        network::{SeedReport, seeds},
        random::Random,
    };
    use std::fs;

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
