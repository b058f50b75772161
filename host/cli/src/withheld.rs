//! A disk whose beginning is written last.
//!
//! Without its superblocks a disk is no log's. They are kept in memory until all that they speak of is on stable storage, so
//! whatever ends the work before leaves nothing that could be taken for a whole disk.

use anyhow::{Result, anyhow, bail};
use kayvee_log::SEGMENTS_AT;
use kayvee_platform::{BlockBuffer, BlockDevice, Finished, Geometry, Operation, Transfer};
use std::collections::VecDeque;

/// A disk whose beginning is in memory, and blank at first.
pub struct Withheld<D> {
    disk: D,
    head: BlockBuffer,
    /// Transfers of the beginning, which end at once.
    ended: VecDeque<Finished>,
}

impl<D: BlockDevice> Withheld<D> {
    /// Erases the beginning of a disk and keeps what is to stand there.
    pub fn new(mut disk: D) -> Result<Withheld<D>> {
        carry_out(&mut disk, Operation::WriteStable, BlockBuffer::zeroed(SEGMENTS_AT as usize)?)?;
        let head = BlockBuffer::zeroed(SEGMENTS_AT as usize)?;
        Ok(Withheld { disk, head, ended: VecDeque::new() })
    }

    /// Brings everything to stable storage, the beginning last.
    pub fn release(mut self) -> Result<()> {
        // Whatever the log still has under way.
        loop {
            self.disk.wait();
            match self.disk.finished() {
                Some(finished) => finished.result.map_err(|error| anyhow!("writing to the disk: {error}"))?,
                None => break,
            }
        }
        carry_out(&mut self.disk, Operation::Flush, BlockBuffer::default())?;
        carry_out(&mut self.disk, Operation::WriteStable, self.head)
    }

    fn touch_head(&mut self, transfer: Transfer) {
        let Transfer { token, operation, at_bytes, mut buffer } = transfer;
        let range = at_bytes as usize..at_bytes as usize + buffer.len();
        // The log's transfers are of superblocks or of segments, never of both.
        let place = &mut self.head[range];
        match operation {
            Operation::Read => buffer.copy_from_slice(place),
            _ => place.copy_from_slice(&buffer),
        }
        self.ended.push_back(Finished { token, buffer, result: Ok(()) });
    }
}

/// Has a disk that does nothing else do one thing at its beginning, and waits for it.
fn carry_out(disk: &mut dyn BlockDevice, operation: Operation, buffer: BlockBuffer) -> Result<()> {
    let transfer = Transfer { token: 0, operation, at_bytes: 0, buffer };
    if disk.start(transfer).is_err() {
        bail!("the disk is busy");
    }
    loop {
        if let Some(finished) = disk.finished() {
            return finished.result.map_err(|error| anyhow!("writing to the disk: {error}"));
        }
        disk.wait();
    }
}

impl<D: BlockDevice> BlockDevice for Withheld<D> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        if transfer.operation == Operation::Flush || transfer.at_bytes >= SEGMENTS_AT {
            return self.disk.start(transfer);
        }
        self.touch_head(transfer);
        Ok(())
    }

    fn finished(&mut self) -> Option<Finished> {
        self.ended.pop_front().or_else(|| self.disk.finished())
    }

    fn wait(&mut self) {
        if self.ended.is_empty() {
            self.disk.wait();
        }
    }
}
