//! Records what passes on a store's link, for `--pcap`: from this end of it, beside the way of the frames, which neither the
//! store's monitor nor this program carries.

use crate::log::Log;
use anyhow::{Context, Result};
use kayvee_files::{Recorder, create_record};
use kayvee_link::{Seen, Unfinished, Watch};
use kayvee_net::checksum;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter},
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
};

/// Frames taken in a row before it is seen whether this is the end.
const BATCH: usize = 256;

/// A recording. It ends, with all that has passed until then, when this is dropped.
pub struct Recording {
    /// Closed to end it. Both are there until then.
    end: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Recording {
    /// Begins to record what passes on an interface.
    pub fn begin(path: &Path, interface: &str, log: Arc<Log>) -> Result<Recording> {
        let recorder = Recorder::begin(create(path)?)?;
        let watch = Watch::open(interface).context("--pcap")?;
        let (ended, end) = io::pipe()?;
        let tape = Tape { recorder, watch, missed: 0, log };
        let thread = thread::Builder::new().name("pcap".into()).spawn(move || tape.run(&ended))?;
        Ok(Recording { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It has said itself what went wrong.
            let _ = thread.join();
        }
    }
}

/// The file of a recording.
pub fn create(path: &Path) -> Result<File> {
    create_record(path).with_context(|| format!("recording frames in {}", path.display()))
}

/// What the thread works with.
struct Tape {
    recorder: Recorder,
    watch: Watch,
    /// Frames that passed too fast.
    missed: u64,
    log: Arc<Log>,
}

impl Tape {
    fn run(mut self, ended: &PipeReader) {
        if let Err(error) = self.record_until(ended) {
            self.note(&format!("no more frames are recorded: {error}"));
        }
        if self.missed > 0 {
            self.note(&format!("{} frames are missing in the recording", self.missed));
        }
    }

    fn record_until(&mut self, ended: &PipeReader) -> io::Result<()> {
        let mut is_over = false;
        loop {
            if self.take_some()? {
                if is_over {
                    return Ok(());
                }
                is_over = self.wait(ended)?;
            }
        }
    }

    /// Records frames that have passed, and tells whether these were all.
    fn take_some(&mut self) -> io::Result<bool> {
        let mut all = false;
        for _ in 0..BATCH {
            let Some(Seen { frame, at, unfinished }) = self.watch.take()? else {
                all = true;
                break;
            };
            if let Some(unfinished) = unfinished {
                finish(frame, unfinished);
            }
            self.recorder.record_at(at, frame)?;
        }
        self.recorder.flush()?;
        let missed = self.watch.missed()?;
        if missed > 0 && self.missed == 0 {
            self.note("frames pass faster than they are recorded: some are missing in the recording");
        }
        self.missed += u64::from(missed);
        Ok(all)
    }

    /// Waits for more, and tells whether this is the end.
    fn wait(&self, ended: &PipeReader) -> io::Result<bool> {
        let mut heard =
            [PollFd::new(self.watch.as_fd(), PollFlags::POLLIN), PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        match poll(&mut heard, PollTimeout::NONE) {
            Err(Errno::EINTR) => Ok(false),
            result => result.map(|_| heard[1].any().unwrap_or(true)).map_err(io::Error::from),
        }
    }

    fn note(&self, text: &str) {
        self.log.line(&format!("kayvee: --pcap: {text}"));
    }
}

/// Finishes a checksum as a card does before it sends a frame on a wire.
fn finish(frame: &mut [u8], unfinished: Unfinished) {
    let Unfinished { start, field } = unfinished;
    let finished = match checksum::finish(checksum::sum(&frame[start..])) {
        // That is how UDP says that there is none (RFC 768); either is right for TCP.
        [0, 0] => [u8::MAX; 2],
        finished => finished,
    };
    frame[field..field + 2].copy_from_slice(&finished);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_checksum_makes_the_sum_right() {
        let unfinished = Unfinished { start: 3, field: 5 };
        for len in 7..200u8 {
            let mut frame: Vec<u8> = (0..len).map(|at| at.wrapping_mul(len)).collect();
            let before = frame.clone();
            finish(&mut frame, unfinished);
            // What the field held belongs to the sum: it is taken away again.
            frame.extend([0; 4]);
            assert_eq!(frame[..5], before[..5]);
            assert_eq!(frame[7..usize::from(len)], before[7..]);
            let pseudo = u64::from(u16::from_ne_bytes([before[5], before[6]]));
            assert_eq!(checksum::finish(checksum::sum(&frame[3..]) + pseudo), [0, 0], "{len} bytes");
        }
        let mut frame = [0, 0, 0, 0x12, 0x34, 0xed, 0xcb];
        finish(&mut frame, unfinished);
        assert_eq!(frame[5..], [0xff; 2], "not the zeros that mean that there is none");
    }
}
