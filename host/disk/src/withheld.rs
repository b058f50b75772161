//! A disk whose beginning is written last.
//!
//! Without its superblocks a disk is no log's. They are kept in memory until all that they speak of is on stable storage, so
//! whatever ends the work before leaves nothing that could be taken for a whole disk. A mark tells that what lies behind is
//! of no worth to anybody: such a disk counts as a blank one, and the work can be done again.

use kayvee_log::SEGMENTS_AT;
use kayvee_platform::{BlockBuffer, BlockDevice, BlockError, Finished, Geometry, Operation, Transfer, transfer_alone};
use std::{collections::VecDeque, io};

/// What stands in the beginning, outside of the superblocks' blocks, until that is written.
const MARK: &[u8] = b"kayvee: not all has been written";
const MARK_AT: usize = SEGMENTS_AT as usize - 4096;

/// Whether the start of a disk is blank but for the mark, so that nothing that lies behind is of worth.
pub(crate) fn is_begun(start: &[u8]) -> bool {
    let Some(head) = start.get(..SEGMENTS_AT as usize) else { return false };
    let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    is_blank(&head[..MARK_AT]) && head[MARK_AT..].strip_prefix(MARK).is_some_and(is_blank)
}

/// A disk whose beginning is in memory, and blank at first.
pub struct Withheld<'d> {
    disk: &'d mut dyn BlockDevice,
    head: BlockBuffer,
    /// Transfers of the beginning, which end at once.
    ended: VecDeque<Finished>,
}

impl<'d> Withheld<'d> {
    /// Erases the beginning of a disk that has nothing to do, and keeps what is to stand there.
    pub fn new(disk: &'d mut dyn BlockDevice) -> io::Result<Withheld<'d>> {
        let mut marked = BlockBuffer::zeroed(SEGMENTS_AT as usize)?;
        marked[MARK_AT..][..MARK.len()].copy_from_slice(MARK);
        carry_out(disk, Operation::WriteStable, marked)?;
        let head = BlockBuffer::zeroed(SEGMENTS_AT as usize)?;
        Ok(Withheld { disk, head, ended: VecDeque::new() })
    }

    /// Brings everything to stable storage, the beginning last.
    pub fn release(self) -> io::Result<()> {
        // Whatever the log still has under way.
        loop {
            self.disk.wait();
            match self.disk.finished() {
                Some(finished) => finished.result.map_err(failed)?,
                None => break,
            }
        }
        carry_out(self.disk, Operation::Flush, BlockBuffer::default())?;
        carry_out(self.disk, Operation::WriteStable, self.head)
    }

    fn touch_head(&mut self, transfer: Transfer) {
        let Transfer { token, operation, at_bytes, mut buffer } = transfer;
        // The log's transfers are of superblocks or of segments, never of both.
        let place = self.head.get_mut(at_bytes as usize..).and_then(|rest| rest.get_mut(..buffer.len()));
        let result = match (place, operation) {
            (None, _) => Err(BlockError::Invalid),
            (Some(place), Operation::Read) => {
                buffer.copy_from_slice(place);
                Ok(())
            }
            (Some(place), _) => {
                place.copy_from_slice(&buffer);
                Ok(())
            }
        };
        self.ended.push_back(Finished { token, buffer, result });
    }
}

fn failed(error: BlockError) -> io::Error {
    io::Error::other(format!("writing to the disk: {error}"))
}

/// Has a disk that does nothing else do one thing at its beginning, and waits for it.
fn carry_out(disk: &mut dyn BlockDevice, operation: Operation, buffer: BlockBuffer) -> io::Result<()> {
    transfer_alone(disk, operation, 0, buffer).map(drop).map_err(failed)
}

impl BlockDevice for Withheld<'_> {
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
