//! How transfers are carried out, and the thread that does so while the disk's owner goes on.

use crate::{complaints::Complaints, fresh::Fresh};
use kayvee_platform::{BlockError, Finished, Operation, Transfer};
use nix::errno::Errno;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, TryRecvError},
    },
    time::Instant,
};

/// A write to stable storage counts for so much of what such writes take on average.
const AVERAGED: u64 = 8;

/// Both ways to a file, and what is known of it.
pub struct Files {
    /// Writes that a flush makes stable, and reads.
    pub plain: File,
    /// The same file with `O_DSYNC`: one system call for a write and its flush, and where the medium can write through
    /// its cache, one command to it.
    pub stable: Option<File>,
    /// Everything before this has been written at some time.
    pub written_bytes: AtomicU64,
    /// What a write to stable storage takes on average.
    pub stable_ns: AtomicU64,
    complaints: Complaints,
}

impl Files {
    /// A file all of which was written, as far as is known.
    pub fn new(plain: File, stable: Option<File>) -> Files {
        Files {
            plain,
            stable,
            written_bytes: AtomicU64::new(u64::MAX),
            stable_ns: AtomicU64::new(0),
            complaints: Complaints::default(),
        }
    }

    /// Carries out a transfer.
    pub fn run(&self, mut transfer: Transfer) -> Finished {
        let result = self.try_run(&mut transfer).map_err(|error| {
            self.complaints.tell(format_args!("{:?} at byte {}: {error}", transfer.operation, transfer.at_bytes));
            block_error(&error)
        });
        let Transfer { token, buffer, .. } = transfer;
        Finished { token, buffer, result }
    }

    fn try_run(&self, transfer: &mut Transfer) -> io::Result<()> {
        let Transfer { operation, at_bytes, ref mut buffer, .. } = *transfer;
        match operation {
            Operation::Read => self.plain.read_exact_at(buffer, at_bytes),
            // A short write is continued; one that was interrupted, too.
            Operation::Write => self.plain.write_all_at(buffer, at_bytes),
            Operation::WriteStable => match &self.stable {
                Some(file) => {
                    let began = Instant::now();
                    let result = file.write_all_at(buffer, at_bytes);
                    let (took_ns, average_ns) = (began.elapsed().as_nanos() as u64, self.stable_ns.load(Relaxed));
                    self.stable_ns.store(average_ns - average_ns / AVERAGED + took_ns / AVERAGED, Relaxed);
                    result
                }
                None => Err(Errno::EROFS.into()),
            },
            Operation::Flush => self.plain.sync_data(),
        }
    }
}

/// What the thread is to do.
pub enum Job {
    /// A transfer.
    Transfer(Transfer),
    /// To see to it that there is something written ahead of this place.
    WriteAhead {
        /// The end of what was written last.
        near_bytes: u64,
    },
}

/// Carries out transfers until nobody can send more.
pub fn work(
    files: &Files,
    mut fresh: Option<Fresh>,
    jobs: &Receiver<Job>,
    finished: &Sender<Finished>,
    wake: &dyn Fn(),
) {
    let mut near = 0;
    loop {
        let job = match jobs.try_recv() {
            Ok(job) => job,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                // Where writing ahead fails, the transfers will tell.
                if let Some(fresh) = &mut fresh
                    && let Ok(true) = fresh.write_step(&files.plain, near)
                {
                    files.written_bytes.store(fresh.start_bytes(), Relaxed);
                    continue;
                }
                let Ok(job) = jobs.recv() else { return };
                job
            }
        };
        match job {
            Job::WriteAhead { near_bytes } => near = near_bytes,
            Job::Transfer(transfer) => {
                let is_write = matches!(transfer.operation, Operation::Write | Operation::WriteStable);
                let end_bytes = transfer.at_bytes + transfer.buffer.len() as u64;
                let done = files.run(transfer);
                if is_write {
                    near = end_bytes;
                    // Whether it has failed or not: zeros must not follow it there.
                    if let Some(fresh) = &mut fresh {
                        fresh.reach(near);
                        files.written_bytes.store(fresh.start_bytes(), Relaxed);
                    }
                }
                if finished.send(done).is_err() {
                    return;
                }
                wake();
            }
        }
    }
}

fn block_error(error: &io::Error) -> BlockError {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => BlockError::NoSpace,
        _ => BlockError::Io,
    }
}
