//! A file as a block device.

use crate::{
    fresh::{AHEAD_BYTES, Fresh, STEP_BYTES},
    worker::{self, Files, Job},
};
use kayvee_log::OpenError;
use kayvee_platform::{BlockDevice, BlockError, Finished, Geometry, Operation, Transfer};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
};

/// The unit of transfers: what direct I/O takes on every file system and device.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Transfers taken at a time.
const TRANSFERS_MAX: usize = 64;
/// A write to stable storage is what somebody waits for. It is carried out at once, by the caller, if such writes take no
/// more than this on average: to wake a thread and to be woken by it costs as much, and takes processors from the clients.
pub(crate) const AT_ONCE_NS: u64 = 500_000;

/// A disk in a file or on a block device. It is locked as long as this value lives.
pub struct FileDisk {
    geometry: Geometry,
    pub(crate) files: Arc<Files>,
    /// Taken away to end the worker.
    jobs: Option<Sender<Job>>,
    finished: Receiver<Finished>,
    /// What came while it was waited for, or was refused.
    ended: VecDeque<Finished>,
    /// Transfers that the worker has.
    under_way: usize,
    /// The step of the file that the worker was last told of.
    told_step: u64,
    worker: Option<JoinHandle<()>>,
}

/// Tells, from another thread, that a transfer has finished.
pub type Wake = Box<dyn Fn() + Send>;

impl FileDisk {
    /// A disk of these files, the first `size_bytes` of them.
    pub(crate) fn new(files: Files, size_bytes: u64, fresh: Option<Fresh>, wake: Wake) -> io::Result<FileDisk> {
        let is_read_only = files.stable.is_none();
        let files = Arc::new(files);
        if let Some(fresh) = &fresh {
            files.written_bytes.store(fresh.start_bytes(), Relaxed);
        }
        let (jobs, to_do) = mpsc::channel();
        let (done, finished) = mpsc::channel();
        let worker = thread::Builder::new().name("disk".into());
        let shared = Arc::clone(&files);
        let worker = worker.spawn(move || worker::work(&shared, fresh, &to_do, &done, &wake))?;
        let size_bytes = size_bytes / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
        Ok(FileDisk {
            geometry: Geometry { block_bytes: BLOCK_BYTES, size_bytes, is_read_only },
            files,
            jobs: Some(jobs),
            finished,
            ended: VecDeque::new(),
            under_way: 0,
            told_step: 0,
            worker: Some(worker),
        })
    }

    /// Whether a transfer is best carried out at once.
    pub(crate) fn is_quick(&self, transfer: &Transfer) -> bool {
        let end_bytes = transfer.at_bytes + transfer.buffer.len() as u64;
        transfer.operation == Operation::WriteStable
            && self.under_way == 0
            && self.files.stable_ns.load(Relaxed) <= AT_ONCE_NS
            // The worker writes zeros behind that.
            && end_bytes <= self.files.written_bytes.load(Relaxed)
    }

    /// Has the worker write ahead of a place, if it is not far ahead already.
    fn write_ahead_of(&mut self, near_bytes: u64) {
        let step = near_bytes / STEP_BYTES;
        if near_bytes.saturating_add(AHEAD_BYTES) > self.files.written_bytes.load(Relaxed) && step != self.told_step {
            self.told_step = step;
            // Where there is no worker, nothing can be done about it.
            let _ = self.jobs.as_ref().map(|jobs| jobs.send(Job::WriteAhead { near_bytes }));
        }
    }

    /// Whether the disk is blank: no log has been made on it yet.
    pub fn is_blank(&mut self) -> bool {
        matches!(kayvee_log::identify(self), Err(OpenError::Blank))
    }
}

impl BlockDevice for FileDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        if self.under_way + self.ended.len() >= TRANSFERS_MAX {
            return Err(transfer);
        }
        let possible = self.geometry.allows(&transfer);
        if !possible {
            let Transfer { token, buffer, .. } = transfer;
            self.ended.push_back(Finished { token, buffer, result: Err(BlockError::Invalid) });
        } else if self.is_quick(&transfer) {
            let end_bytes = transfer.at_bytes + transfer.buffer.len() as u64;
            self.ended.push_back(self.files.run(transfer));
            self.write_ahead_of(end_bytes);
        } else {
            // The worker lives as long as this value.
            let jobs = self.jobs.as_ref().expect("the disk has its thread");
            jobs.send(Job::Transfer(transfer)).expect("the disk's thread takes transfers");
            self.under_way += 1;
        }
        Ok(())
    }

    fn finished(&mut self) -> Option<Finished> {
        if let Some(finished) = self.ended.pop_front() {
            return Some(finished);
        }
        if self.under_way == 0 {
            return None;
        }
        let finished = self.finished.try_recv().ok()?;
        self.under_way -= 1;
        Some(finished)
    }

    fn wait(&mut self) {
        if self.ended.is_empty() && self.under_way > 0 {
            // The worker lives as long as this value, so there is an answer to each transfer.
            let finished = self.finished.recv().expect("the disk's thread answers");
            self.under_way -= 1;
            self.ended.push_back(finished);
        }
    }
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        self.jobs = None;
        // It ends when it has done what it was given; a panic of its own has been reported already.
        let _ = self.worker.take().map(JoinHandle::join);
    }
}
