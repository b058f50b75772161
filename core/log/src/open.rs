//! Making a log, and opening and closing one: the only times when it waits for the device.

use crate::{
    append::{DEFAULT_BUFFERS, Log, OpenBatch},
    compaction::Compaction,
    drive::Drive,
    error::{FormatError, LogError, OpenError},
    format::{
        BLOCK_BYTES, Keys, MIN_SEGMENT_BYTES, MIN_SEGMENTS, SEGMENTS_AT, SUPERBLOCKS_AT, Superblock, segment_bytes_for,
        segments_of,
    },
    reader::transfer,
    recovery::{Contents, Progress, Visit, read_superblocks, recover, usable_bytes},
    space::{Segment, Space},
};
use alloc::{collections::VecDeque, vec::Vec};
use kayvee_platform::{BlockBuffer, BlockDevice, Operation};

/// Bytes that a device must have at the least.
pub const fn minimum_bytes() -> u64 {
    SEGMENTS_AT + MIN_SEGMENTS as u64 * MIN_SEGMENT_BYTES as u64
}

/// A log that was opened, and what was found.
#[derive(Debug)]
pub struct Opened {
    /// Ready for records.
    pub log: Log,
    /// What the disk held. `segments` is what it has now.
    pub contents: Contents,
    /// By how many bytes the log's room has grown, because the device had.
    pub grown_bytes: u64,
}

impl Log {
    /// Makes an empty log on a device. What was there before is lost. `id` must be random.
    pub fn format(device: &mut dyn BlockDevice, id: [u8; 16]) -> Result<Log, FormatError> {
        let geometry = device.geometry();
        if geometry.is_read_only {
            return Err(FormatError::ReadOnly);
        }
        let size_bytes = usable_bytes(geometry);
        if size_bytes < minimum_bytes() {
            return Err(FormatError::TooSmall { size_bytes, needed_bytes: minimum_bytes() });
        }
        let segment_bytes = segment_bytes_for(size_bytes);
        let superblock = Superblock {
            generation: 1,
            id,
            segment_bytes,
            segment_count: segments_of(size_bytes, segment_bytes),
            epoch: 1,
            first_place: 0,
            first_segment: 1,
            first_batch: 1,
            first_sequence: 1,
            stable_batch: 0,
        };
        let first = Segment { place: 0, number: 1 };
        let mut space =
            Space::new(segment_bytes, superblock.segment_count, first).map_err(|_| FormatError::OutOfMemory)?;
        space.choose_next();
        let buffer = BlockBuffer::zeroed(BLOCK_BYTES).map_err(|_| FormatError::OutOfMemory)?;
        let buffer = write_superblocks(device, &superblock, buffer).map_err(FormatError::Device)?;
        Ok(Log::new(superblock, space, 1, 0, buffer))
    }

    /// Opens the log on a device: shows every record to `apply` in order, finds the end, and makes ready for more. If it
    /// cannot, or `apply` fails, the device is as it was. A device that has grown is used wholly from now on. Reading takes
    /// `read_ahead_bytes` of memory for buffers: [`READ_AHEAD_BYTES`](crate::READ_AHEAD_BYTES) or less.
    pub fn open<E>(
        device: &mut dyn BlockDevice,
        read_ahead_bytes: usize,
        apply: &mut Visit<'_, E>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Opened, OpenError<E>> {
        if device.geometry().is_read_only {
            return Err(OpenError::ReadOnly);
        }
        let (mut superblock, bad_superblocks) = read_superblocks(device)?;
        let recovered = recover(device, &superblock, read_ahead_bytes, apply, progress)?;
        let contents = Contents { bad_superblocks, ..recovered.contents };
        let grown = contents.segments - superblock.segment_count;
        let grown_bytes = u64::from(grown) * u64::from(superblock.segment_bytes);
        // What was read may lie in a cache. Once this is done it is stable, and what follows it begins a new epoch.
        transfer(device, Operation::Flush, 0, BlockBuffer::default()).map_err(OpenError::Device)?;
        superblock.generation += 1;
        superblock.epoch += 1;
        superblock.segment_count = contents.segments;
        superblock.stable_batch = recovered.next_number - 1;
        let buffer = BlockBuffer::zeroed(BLOCK_BYTES).map_err(|_| OpenError::OutOfMemory)?;
        let buffer = write_superblocks(device, &superblock, buffer).map_err(OpenError::Device)?;
        let log = Log::new(superblock, recovered.space, recovered.next_number, recovered.appended, buffer);
        Ok(Opened { log, contents, grown_bytes })
    }

    /// Waits until everything is stable, and notes that in the superblocks: damage to the last batch will then be known
    /// for what it is.
    #[inline(never)]
    pub fn close(&mut self, device: &mut dyn BlockDevice, monotonic_ns: u64) -> Result<(), LogError> {
        self.sync(device, monotonic_ns)?;
        self.superblock.generation += 1;
        self.superblock.stable_batch = self.stable_batch;
        let buffer = core::mem::take(&mut self.drive.superblock_buffer);
        self.drive.superblock_buffer = write_superblocks(device, &self.superblock, buffer)?;
        Ok(())
    }

    fn new(superblock: Superblock, space: Space, next_number: u64, appended: u64, buffer: BlockBuffer) -> Log {
        let keys = Keys::new(&superblock.id);
        Log {
            record_key: keys.record(superblock.epoch),
            superblock,
            keys,
            space,
            open: OpenBatch::default(),
            next_number,
            record: None,
            batches: VecDeque::new(),
            spare: Vec::new(),
            max_batches: DEFAULT_BUFFERS,
            appended,
            durable: appended,
            stable_batch: next_number - 1,
            drive: Drive::new(buffer),
            compaction: Compaction::default(),
        }
    }
}

/// Writes both superblocks, one when the other is stable.
fn write_superblocks(
    device: &mut dyn BlockDevice,
    superblock: &Superblock,
    mut buffer: BlockBuffer,
) -> Result<BlockBuffer, LogError> {
    superblock.emit(&mut buffer);
    for at_bytes in SUPERBLOCKS_AT {
        buffer = transfer(device, Operation::WriteStable, at_bytes, buffer)?;
    }
    Ok(buffer)
}
