//! The simplest disk there is, for tests and measurements.

use kayvee_platform::{BlockDevice, BlockError, Finished, Geometry, Operation, Transfer};
use std::collections::VecDeque;

/// A disk in memory: whatever is started has ended.
pub struct MemoryDisk {
    /// All of it.
    pub bytes: Vec<u8>,
    finished: VecDeque<Finished>,
    /// Whether it keeps what has ended to itself for now.
    pub is_held: bool,
    /// What it was told to do, reads apart.
    pub started: Vec<Operation>,
}

impl MemoryDisk {
    /// A disk of zeros.
    pub fn new(size_bytes: u64) -> MemoryDisk {
        MemoryDisk::with(vec![0; size_bytes as usize])
    }

    /// A disk that holds `bytes`.
    pub fn with(bytes: Vec<u8>) -> MemoryDisk {
        MemoryDisk { bytes, finished: VecDeque::new(), is_held: false, started: Vec::new() }
    }
}

impl BlockDevice for MemoryDisk {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: 512, size_bytes: self.bytes.len() as u64, is_read_only: false }
    }

    fn start(&mut self, mut transfer: Transfer) -> Result<(), Transfer> {
        if transfer.operation != Operation::Read {
            self.started.push(transfer.operation);
        }
        let at = transfer.at_bytes as usize;
        let place = self.bytes.get_mut(at..at + transfer.buffer.len());
        let result = match (transfer.operation, place) {
            (_, None) => Err(BlockError::Invalid),
            (Operation::Read, Some(place)) => {
                transfer.buffer.copy_from_slice(place);
                Ok(())
            }
            (Operation::Write | Operation::WriteStable, Some(place)) => {
                place.copy_from_slice(&transfer.buffer);
                Ok(())
            }
            (Operation::Flush, Some(_)) => Ok(()),
        };
        self.finished.push_back(Finished { token: transfer.token, buffer: transfer.buffer, result });
        Ok(())
    }

    fn finished(&mut self) -> Option<Finished> {
        if self.is_held { None } else { self.finished.pop_front() }
    }

    fn wait(&mut self) {
        assert!(!self.finished.is_empty() && !self.is_held, "waiting for nothing");
    }
}
