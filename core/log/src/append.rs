//! Records, built in place in the buffer of the batch that the device will write.

use crate::{
    compaction::Compaction,
    drive::Drive,
    error::RecordError,
    format::{
        BATCH_HEADER_BYTES, BatchHeader, Keys, Kind, Part, RECORD_HEADER_BYTES, RecordHeader, Superblock, padded,
        seal_records,
    },
    space::{Mark, Space},
};
use alloc::{collections::VecDeque, vec::Vec};
use kayvee_platform::BlockBuffer;

/// Number of a record: the first is 1, and each has one more than the one before. 0 is before all of them.
pub type Sequence = u64;

/// Bytes of a buffer, and so of a batch at the most.
pub(crate) const BUFFER_BYTES: usize = 128 << 10;
/// Bytes of buffers that a log has unless it is told otherwise.
const DEFAULT_BUFFERS_BYTES: usize = 4 << 20;
/// With fewer there would be none to fill while the device works.
const MIN_BUFFERS: usize = 4;
/// Buffers at a log's beginning.
pub(crate) const DEFAULT_BUFFERS: usize = DEFAULT_BUFFERS_BYTES / BUFFER_BYTES;

const _: () = assert!(BUFFER_BYTES <= crate::format::MAX_BATCH_BYTES);

/// A log that is open for writing.
#[derive(Debug)]
pub struct Log {
    /// What the disk's superblocks say.
    pub(crate) superblock: Superblock,
    pub(crate) keys: Keys,
    /// For the records of this epoch.
    pub(crate) record_key: u64,
    pub(crate) space: Space,
    /// The batch that takes records now.
    pub(crate) open: OpenBatch,
    /// Number of the batch that is open, or will be next.
    pub(crate) next_number: u64,
    /// The record that is being written.
    pub(crate) record: Option<OpenRecord>,
    /// What is complete and not yet stable, in order.
    pub(crate) batches: VecDeque<Batch>,
    pub(crate) spare: Vec<BlockBuffer>,
    /// So many batches may be on their way to stable storage before the log asks for patience
    /// ([`is_congested`](Self::is_congested)) and, when its device fails, takes no more.
    pub(crate) max_batches: usize,
    pub(crate) appended: Sequence,
    pub(crate) durable: Sequence,
    /// Every batch through this one is stable.
    pub(crate) stable_batch: u64,
    pub(crate) drive: Drive,
    pub(crate) compaction: Compaction,
}

/// A batch that takes records. Without one, its capacity is 0.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    pub(crate) buffer: BlockBuffer,
    /// Bytes that are written, the header's place among them.
    pub(crate) used: usize,
    pub(crate) capacity: usize,
    at_bytes: u64,
    segment: u64,
    first_sequence: Sequence,
    /// Whether there was room for effects when it was opened, and for the state of a compaction.
    has_room_for_effects: bool,
    has_room_for_state: bool,
    /// Whether somebody may wait for one of its records.
    pub(crate) is_urgent: bool,
    /// When it was first seen with a record in it.
    pub(crate) since_ns: Option<u64>,
}

impl OpenBatch {
    /// Whether it has a record.
    pub(crate) fn has_records(&self) -> bool {
        self.used > BATCH_HEADER_BYTES
    }

    fn room(&self) -> usize {
        self.capacity - self.used
    }
}

/// A record that is being written.
#[derive(Debug)]
pub(crate) struct OpenRecord {
    kind: Kind,
    /// Where its part in the open batch begins.
    start: usize,
    /// Bytes of its earlier parts.
    len_before: u64,
    is_continuation: bool,
    /// Where the log was before the record left its first batch.
    rewind: Option<Rewind>,
}

#[derive(Debug)]
struct Rewind {
    space: Mark,
    batches: usize,
    start: usize,
}

/// A batch that is complete.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    pub(crate) at_bytes: u64,
    /// The last record that ends in it, or before it.
    pub(crate) last_sequence: Sequence,
    pub(crate) is_urgent: bool,
    pub(crate) state: BatchState,
    /// A flush failed while the device wrote it: it has to be written again.
    pub(crate) is_distrusted: bool,
    /// Empty while the device has it.
    pub(crate) buffer: BlockBuffer,
    capacity: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchState {
    /// To be written.
    Sealed,
    /// The device writes it.
    Writing,
    /// The device writes it to stable storage.
    WritingStable,
    /// Written; a flush has to follow.
    Written,
    /// On stable storage.
    Stable,
}

impl Log {
    /// Begins a record. What [`record`](Self::record) does, for callers that cannot hold a borrow while they write: they
    /// [`push`](Self::push) and then [`commit_record`](Self::commit_record) or [`abandon_record`](Self::abandon_record).
    #[inline]
    pub fn begin_record(&mut self, kind: Kind) -> Result<(), RecordError> {
        assert!(self.record.is_none(), "one record is written at a time");
        if self.open.room() <= RECORD_HEADER_BYTES {
            self.next_batch(kind)?;
        }
        if kind == Kind::EFFECTS && !self.open.has_room_for_effects {
            self.open.has_room_for_effects = self.has_room_for_effects(0);
            if !self.open.has_room_for_effects {
                return Err(RecordError::Full);
            }
        } else if kind != Kind::RELEASES && !self.open.has_room_for_state {
            self.open.has_room_for_state = self.has_room_for_state(0);
            if !self.open.has_room_for_state {
                return Err(RecordError::Full);
            }
        }
        let start = self.open.used;
        self.open.used += RECORD_HEADER_BYTES;
        self.record = Some(OpenRecord { kind, start, len_before: 0, is_continuation: false, rewind: None });
        Ok(())
    }

    /// Begins a record; dropping the writer abandons it.
    pub fn record(&mut self, kind: Kind) -> Result<RecordWriter<'_>, RecordError> {
        self.begin_record(kind)?;
        Ok(RecordWriter { log: self })
    }

    /// Appends bytes to the record. After an error the record can only be abandoned.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        debug_assert!(self.record.is_some(), "a record was begun");
        if bytes.len() <= self.open.room() {
            let end = self.open.used + bytes.len();
            self.open.buffer[self.open.used..end].copy_from_slice(bytes);
            self.open.used = end;
            return Ok(());
        }
        self.push_on(bytes)
    }

    /// Appends bytes that do not fit into the batch.
    #[cold]
    fn push_on(&mut self, mut bytes: &[u8]) -> Result<(), RecordError> {
        loop {
            let len = bytes.len().min(self.open.room());
            let end = self.open.used + len;
            self.open.buffer[self.open.used..end].copy_from_slice(&bytes[..len]);
            self.open.used = end;
            bytes = &bytes[len..];
            if bytes.is_empty() {
                return Ok(());
            }
            let record = self.record.as_mut().expect("a record was begun");
            let kind = record.kind;
            if record.rewind.is_none() {
                record.rewind =
                    Some(Rewind { space: self.space.mark(), batches: self.batches.len(), start: record.start });
            }
            self.finish_part(true);
            self.next_batch(kind)?;
            let record = self.record.as_mut().expect("a record was begun");
            record.start = self.open.used;
            record.is_continuation = true;
            self.open.used += RECORD_HEADER_BYTES;
        }
    }

    /// Completes the record. It is in the log, though not yet durable.
    #[inline]
    pub fn commit_record(&mut self) -> Sequence {
        let kind = self.record.as_ref().expect("a record was begun").kind;
        self.finish_part(false);
        let record = self.record.take().expect("a record was begun");
        self.appended += 1;
        if kind.is_urgent() {
            self.open.is_urgent = true;
        } else {
            // Its first header; those of its later parts are not what the owner has counted.
            let part_len = self.open.used - record.start - RECORD_HEADER_BYTES;
            self.compaction.wrote(RECORD_HEADER_BYTES as u64 + record.len_before + part_len as u64);
        }
        self.appended
    }

    /// Takes back the record: nothing of it was in the log, or will be.
    pub fn abandon_record(&mut self) {
        let record = self.record.take().expect("a record was begun");
        let Some(rewind) = record.rewind else {
            self.open.used = record.start;
            return;
        };
        self.give_back_open();
        while self.batches.len() > rewind.batches + 1 {
            let batch = self.batches.pop_back().expect("more batches");
            self.recycle(batch.buffer);
        }
        let batch = self.batches.pop_back().expect("the batch that the record began in");
        assert_eq!(batch.state, BatchState::Sealed, "nothing is driven while a record is open");
        self.space.rewind(rewind.space);
        self.next_number = batch.header.number;
        self.open = OpenBatch {
            buffer: batch.buffer,
            used: rewind.start,
            capacity: batch.capacity,
            at_bytes: batch.at_bytes,
            segment: batch.header.segment,
            first_sequence: batch.header.first_sequence,
            has_room_for_effects: true,
            has_room_for_state: true,
            is_urgent: batch.is_urgent,
            since_ns: None,
        };
    }

    /// Writes the header before what was pushed into the open batch.
    #[inline]
    fn finish_part(&mut self, is_continued: bool) {
        let record = self.record.as_mut().expect("a record was begun");
        let header = RecordHeader {
            len: self.open.used - record.start - RECORD_HEADER_BYTES,
            kind: record.kind,
            part: Part { is_continuation: record.is_continuation, is_continued },
            sequence: self.appended + 1,
        };
        header.emit(&mut self.open.buffer[record.start..]);
        if is_continued {
            record.len_before += header.len as u64;
        }
    }

    /// Bounds the memory for buffers, which is 4 MiB otherwise: what a device may lag behind before
    /// [`is_congested`](Self::is_congested). Only a record that is longer takes more, while it is on its way.
    pub fn set_buffers_bytes(&mut self, bytes: usize) {
        self.max_batches = (bytes / BUFFER_BYTES).max(MIN_BUFFERS);
        self.spare.truncate(self.max_batches);
    }

    /// What [`set_buffers_bytes`](Self::set_buffers_bytes) was told, or the usual bound.
    pub fn max_buffers_bytes(&self) -> usize {
        self.max_batches * BUFFER_BYTES
    }

    /// Takes the memory for all buffers, as far as there is so much, and keeps it: when it is used up later, the log has its own.
    pub fn reserve_buffers(&mut self) {
        for _ in self.spare.len()..self.max_batches {
            let Ok(buffer) = BlockBuffer::zeroed(self.buffer_bytes() as usize) else { return };
            self.recycle(buffer);
        }
    }

    /// Bytes of all buffers.
    pub fn buffers_bytes(&self) -> u64 {
        let buffers = self.spare.len() + self.batches.len() + usize::from(self.open.capacity > 0);
        buffers as u64 * u64::from(self.buffer_bytes())
    }

    fn buffer_bytes(&self) -> u32 {
        self.superblock.segment_bytes.min(BUFFER_BYTES as u32)
    }

    /// Completes the open batch and opens the one after it.
    #[cold]
    fn next_batch(&mut self, kind: Kind) -> Result<(), RecordError> {
        self.seal();
        let has_room_for_effects = self.has_room_for_effects(BUFFER_BYTES as u32);
        let has_room_for_state = self.has_room_for_state(BUFFER_BYTES as u32);
        let has_room = match kind {
            Kind::EFFECTS => has_room_for_effects,
            Kind::RELEASES => true,
            _ => has_room_for_state,
        };
        if !has_room {
            return Err(RecordError::Full);
        }
        self.open_batch()?;
        (self.open.has_room_for_effects, self.open.has_room_for_state) = (has_room_for_effects, has_room_for_state);
        Ok(())
    }

    /// Opens a batch.
    pub(crate) fn open_batch(&mut self) -> Result<(), RecordError> {
        if self.drive.failure.is_some() && self.batches.len() >= self.max_batches {
            return Err(RecordError::Failing);
        }
        if self.space.batch_bytes() == 0 && !self.space.enter_next() {
            return Err(RecordError::Full);
        }
        // A batch lies in one segment.
        let buffer_bytes = self.buffer_bytes();
        let capacity = self.space.batch_bytes().min(buffer_bytes);
        if capacity == 0 {
            return Err(RecordError::Full);
        }
        self.batches.try_reserve(1).map_err(|_| RecordError::OutOfMemory)?;
        let mut buffer = match self.spare.pop() {
            Some(buffer) => buffer,
            None => BlockBuffer::zeroed(buffer_bytes as usize).map_err(|_| RecordError::OutOfMemory)?,
        };
        buffer.set_len(buffer_bytes as usize);
        let segment = self.space.last();
        self.open = OpenBatch {
            buffer,
            used: BATCH_HEADER_BYTES,
            capacity: capacity as usize,
            at_bytes: self.superblock.place_at_bytes(segment.place) + u64::from(self.space.offset()),
            segment: segment.number,
            first_sequence: self.appended + 1,
            has_room_for_effects: false,
            has_room_for_state: false,
            is_urgent: false,
            since_ns: None,
        };
        Ok(())
    }

    fn has_room_for_effects(&self, batch_bytes: u32) -> bool {
        self.space.free_bytes() >= self.reserve_bytes() + u64::from(batch_bytes)
    }

    /// Completes the open batch, if there is something in it.
    pub(crate) fn seal(&mut self) {
        if !self.open.has_records() {
            self.give_back_open();
            return;
        }
        self.seal_open();
    }

    /// Completes the open batch, even without records.
    pub(crate) fn seal_open(&mut self) {
        let mut open = core::mem::take(&mut self.open);
        let len = padded(open.used);
        seal_records(&mut open.buffer[BATCH_HEADER_BYTES..open.used], self.record_key);
        open.buffer[open.used..len].fill(0);
        let header = BatchHeader {
            len: open.used as u32,
            next_place: self.space.next(),
            number: self.next_number,
            segment: open.segment,
            epoch: self.superblock.epoch,
            first_sequence: open.first_sequence,
            stable_batch: self.stable_batch,
        };
        self.space.advance(len as u32);
        self.next_number += 1;
        self.batches.push_back(Batch {
            header,
            at_bytes: open.at_bytes,
            last_sequence: self.appended,
            is_urgent: open.is_urgent,
            state: BatchState::Sealed,
            is_distrusted: false,
            buffer: open.buffer,
            capacity: open.capacity,
        });
    }

    /// Forgets the open batch.
    pub(crate) fn give_back_open(&mut self) {
        let open = core::mem::take(&mut self.open);
        self.recycle(open.buffer);
    }

    /// Keeps a buffer for later, unless there are enough.
    pub(crate) fn recycle(&mut self, buffer: BlockBuffer) {
        if !buffer.is_empty() && self.spare.len() < self.max_batches && self.spare.try_reserve(1).is_ok() {
            self.spare.push(buffer);
        }
    }

    /// The last record that was committed.
    #[inline]
    pub fn appended(&self) -> Sequence {
        self.appended
    }

    /// Every record through this one is on stable storage.
    #[inline]
    pub fn durable(&self) -> Sequence {
        self.durable
    }
}

/// A record that is being written, see [`Log::record`].
#[derive(Debug)]
pub struct RecordWriter<'log> {
    log: &'log mut Log,
}

impl RecordWriter<'_> {
    /// Appends bytes. After an error the record can only be dropped.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        self.log.push(bytes)
    }

    /// Completes the record. It is in the log, though not yet durable.
    #[inline]
    pub fn commit(self) -> Sequence {
        self.log.commit_record()
    }
}

impl Drop for RecordWriter<'_> {
    fn drop(&mut self) {
        if self.log.record.is_some() {
            self.log.abandon_record();
        }
    }
}
