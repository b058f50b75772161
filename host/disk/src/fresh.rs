//! The part of a file that has never been written.

use kayvee_platform::BlockBuffer;
use nix::{
    errno::Errno,
    unistd::{Whence, lseek},
};
use std::{fs::File, io, os::unix::fs::FileExt};

/// A new part of a file is written with zeros in steps of so much ...
pub const STEP_BYTES: u64 = 1 << 20;
/// ... so far ahead of the transfers.
pub const AHEAD_BYTES: u64 = 16 << 20;

/// The part of a regular file that has never been written. A write there has the file system note that its blocks hold
/// something now, and each flush waits for that note: half as long again. So it is written before it is needed, when there
/// is nothing else to do.
pub struct Fresh {
    /// Everything from here on is a hole or unwritten.
    start_bytes: u64,
    /// The end of the file.
    end_bytes: u64,
    /// Zeros, as long and as aligned as direct I/O wants it.
    zeros: BlockBuffer,
}

/// Zeros for one step.
pub(crate) fn step() -> io::Result<BlockBuffer> {
    BlockBuffer::zeroed(STEP_BYTES as usize).map_err(|_| Errno::ENOMEM.into())
}

impl Fresh {
    /// That of a file, of which the first `end_bytes` are used.
    pub fn of(file: &File, end_bytes: u64) -> io::Result<Fresh> {
        Ok(Fresh { start_bytes: end_of_data(file, end_bytes), end_bytes, zeros: step()? })
    }

    /// Everything before this has been written at some time.
    pub fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// Somebody has written bytes through `end_bytes`: zeros must not follow there.
    pub fn reach(&mut self, end_bytes: u64) {
        self.start_bytes = self.start_bytes.max(end_bytes);
    }

    /// Writes one step if the transfers, the last of which ended at `near_bytes`, may get there soon. Returns whether they
    /// may. Nobody else may write behind [`start_bytes`](Self::start_bytes) meanwhile.
    pub fn write_step(&mut self, file: &File, near_bytes: u64) -> io::Result<bool> {
        let len = (self.end_bytes - self.start_bytes.min(self.end_bytes)).min(STEP_BYTES);
        if len == 0 || near_bytes.saturating_add(AHEAD_BYTES) <= self.start_bytes {
            return Ok(false);
        }
        file.write_all_at(&self.zeros[..len as usize], self.start_bytes)?;
        self.reach(self.start_bytes + len);
        Ok(true)
    }
}

/// Where the last bytes end that were ever written; the end of the file where the file system does not tell.
fn end_of_data(file: &File, size_bytes: u64) -> u64 {
    let mut end = 0;
    loop {
        match lseek(file, end, Whence::SeekData) {
            Err(Errno::ENXIO) => return end as u64,
            Err(_) => return size_bytes,
            Ok(data) => match lseek(file, data, Whence::SeekHole) {
                Ok(hole) if hole > end => end = hole,
                _ => return size_bytes,
            },
        }
    }
}
