//! A disk in memory that is as slow as the test wants it to be, and fails when it is told to.

use kayvee_platform::{BlockDevice, BlockError, Finished, Geometry, Operation, Transfer};
use std::collections::VecDeque;

/// Its block.
const BLOCK_BYTES: u32 = 4096;

/// A disk. What is started finishes when the test lets it, in order.
pub struct Disk {
    pub bytes: Vec<u8>,
    started: VecDeque<Transfer>,
    finished: VecDeque<Finished>,
    /// How many transfers may still finish by themselves.
    pub budget: usize,
    /// What every write and flush fails with.
    pub failure: Option<BlockError>,
    pub flushes: usize,
}

impl Disk {
    pub fn new(size_bytes: usize) -> Disk {
        Disk {
            bytes: vec![0; size_bytes],
            started: VecDeque::new(),
            finished: VecDeque::new(),
            budget: usize::MAX,
            failure: None,
            flushes: 0,
        }
    }

    /// A disk with what is stable on this one.
    pub fn copy(&self) -> Disk {
        Disk { bytes: self.bytes.clone(), ..Disk::new(0) }
    }

    fn work(&mut self) {
        while self.budget > 0
            && let Some(mut transfer) = self.started.pop_front()
        {
            self.budget = self.budget.saturating_sub(usize::from(self.budget != usize::MAX));
            let at = transfer.at_bytes as usize;
            let range = at..at + transfer.buffer.len();
            let result = match (transfer.operation, self.failure) {
                (Operation::Read, _) => {
                    transfer.buffer.copy_from_slice(&self.bytes[range]);
                    Ok(())
                }
                (_, Some(error)) => Err(error),
                (Operation::Flush, None) => {
                    self.flushes += 1;
                    Ok(())
                }
                (Operation::Write | Operation::WriteStable, None) => {
                    self.bytes[range].copy_from_slice(&transfer.buffer);
                    Ok(())
                }
            };
            self.finished.push_back(Finished { token: transfer.token, buffer: transfer.buffer, result });
        }
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: BLOCK_BYTES, size_bytes: self.bytes.len() as u64, is_read_only: false }
    }

    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        self.started.push_back(transfer);
        Ok(())
    }

    fn finished(&mut self) -> Option<Finished> {
        self.work();
        self.finished.pop_front()
    }

    fn wait(&mut self) {
        if self.finished.is_empty() {
            self.budget = self.budget.max(1);
            self.work();
        }
    }
}
