//! The thread that carries out transfers.

use kayvee_platform::{BlockError, Finished, Operation, Transfer};
use nix::errno::Errno;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::mpsc::{Receiver, Sender, TryRecvError},
};

/// A new part of a file is written with zeros in steps of so much ...
const STEP_BYTES: u64 = 1 << 20;
/// ... so far ahead of the transfers.
const AHEAD_BYTES: u64 = 16 << 20;

/// Both ways to a file.
pub struct Files {
    /// Writes that a flush makes stable, and reads.
    pub plain: File,
    /// The same file with `O_DSYNC`: one system call for a write and its flush, and where the medium can write through
    /// its cache, one command to it.
    pub stable: Option<File>,
}

impl Files {
    fn run(&self, transfer: &mut Transfer) -> io::Result<()> {
        let Transfer { operation, at_bytes, ref mut buffer, .. } = *transfer;
        match operation {
            Operation::Read => self.plain.read_exact_at(buffer, at_bytes),
            // A short write is continued; one that was interrupted, too.
            Operation::Write => self.plain.write_all_at(buffer, at_bytes),
            Operation::WriteStable => match &self.stable {
                Some(file) => file.write_all_at(buffer, at_bytes),
                None => Err(Errno::EROFS.into()),
            },
            Operation::Flush => self.plain.sync_data(),
        }
    }
}

/// The part of a regular file that has never been written. A write there has the file system note that its blocks hold
/// something now, and each flush waits for that note: half as long again. So it is written before it is needed, when there
/// is nothing else to do.
pub struct Fresh {
    /// Everything from here on is a hole or unwritten.
    pub start_bytes: u64,
    /// The end of the file.
    pub end_bytes: u64,
    /// Zeros, as long and as aligned as direct I/O wants it.
    pub zeros: kayvee_platform::BlockBuffer,
}

impl Fresh {
    /// Zeros for one step.
    pub fn step() -> io::Result<kayvee_platform::BlockBuffer> {
        kayvee_platform::BlockBuffer::zeroed(STEP_BYTES as usize).map_err(|_| Errno::ENOMEM.into())
    }

    /// Bytes through `end_bytes` are about to be written.
    fn reach(&mut self, end_bytes: u64) {
        self.start_bytes = self.start_bytes.max(end_bytes);
    }

    /// Writes one step if the transfers, the last of which ended at `near_bytes`, may get there soon.
    pub fn write_step(&mut self, file: &File, near_bytes: u64) -> io::Result<bool> {
        let len = (self.end_bytes - self.start_bytes.min(self.end_bytes)).min(STEP_BYTES);
        if len == 0 || near_bytes + AHEAD_BYTES <= self.start_bytes {
            return Ok(false);
        }
        file.write_all_at(&self.zeros[..len as usize], self.start_bytes)?;
        self.start_bytes += len;
        Ok(true)
    }
}

/// Carries out transfers until nobody can send more.
pub fn work(
    files: &Files,
    mut fresh: Option<Fresh>,
    transfers: &Receiver<Transfer>,
    finished: &Sender<Finished>,
    wake: &dyn Fn(),
) {
    let mut near_bytes = 0;
    loop {
        let mut transfer = match transfers.try_recv() {
            Ok(transfer) => transfer,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                // Where writing ahead fails, the transfers will tell.
                let step = fresh.as_mut().map(|fresh| fresh.write_step(&files.plain, near_bytes));
                if matches!(step, Some(Ok(true))) {
                    continue;
                }
                let Ok(transfer) = transfers.recv() else { return };
                transfer
            }
        };
        if matches!(transfer.operation, Operation::Write | Operation::WriteStable) {
            near_bytes = transfer.at_bytes + transfer.buffer.len() as u64;
            fresh.iter_mut().for_each(|fresh| fresh.reach(near_bytes));
        }
        let result = files.run(&mut transfer).map_err(|error| {
            log::warn!("disk: {:?} at byte {}: {error}", transfer.operation, transfer.at_bytes);
            block_error(&error)
        });
        let Transfer { token, buffer, .. } = transfer;
        if finished.send(Finished { token, buffer, result }).is_err() {
            return;
        }
        wake();
    }
}

fn block_error(error: &io::Error) -> BlockError {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => BlockError::NoSpace,
        _ => BlockError::Io,
    }
}
