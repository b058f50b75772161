//! A file as a block device.

use crate::worker::{self, Files, Fresh};
use kayvee_log::OpenError;
use kayvee_platform::{BlockDevice, BlockError, Finished, Geometry, Transfer};
use std::{
    collections::VecDeque,
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
};

/// The unit of transfers: what direct I/O takes on every file system and device.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Transfers taken at a time.
const TRANSFERS_MAX: usize = 64;

/// A disk in a file or on a block device. It is locked as long as this value lives.
pub struct FileDisk {
    geometry: Geometry,
    /// Taken away to end the worker.
    transfers: Option<Sender<Transfer>>,
    finished: Receiver<Finished>,
    /// What came while it was waited for, or was refused.
    ended: VecDeque<Finished>,
    /// Transfers that the worker has.
    under_way: usize,
    worker: Option<JoinHandle<()>>,
}

/// Tells, from another thread, that a transfer has finished.
pub type Wake = Box<dyn Fn() + Send>;

impl FileDisk {
    /// A disk of these files, the first `size_bytes` of them.
    pub(crate) fn new(files: Files, size_bytes: u64, fresh: Option<Fresh>, wake: Wake) -> io::Result<FileDisk> {
        let is_read_only = files.stable.is_none();
        let (transfers, to_do) = mpsc::channel();
        let (done, finished) = mpsc::channel();
        let worker = thread::Builder::new().name("disk".into());
        let worker = worker.spawn(move || worker::work(&files, fresh, &to_do, &done, &wake))?;
        let size_bytes = size_bytes / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
        Ok(FileDisk {
            geometry: Geometry { block_bytes: BLOCK_BYTES, size_bytes, is_read_only },
            transfers: Some(transfers),
            finished,
            ended: VecDeque::new(),
            under_way: 0,
            worker: Some(worker),
        })
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
        let sent = match &self.transfers {
            Some(transfers) if possible => transfers.send(transfer).map_err(|error| (error.0, BlockError::Io)),
            _ => Err((transfer, BlockError::Invalid)),
        };
        match sent {
            Ok(()) => self.under_way += 1,
            Err((Transfer { token, buffer, .. }, error)) => {
                self.ended.push_back(Finished { token, buffer, result: Err(error) });
            }
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
        self.transfers = None;
        // It ends when it has done what it was given; a panic of its own has been reported already.
        let _ = self.worker.take().map(JoinHandle::join);
    }
}
