//! Compaction: the log is given a new beginning, and how much room is kept so that this can always be done.
//!
//! Whoever owns the log writes its whole state once more, as records between the others. The log's part is to remember
//! where that began, to make it the beginning once all of it is stable, and to free what lies before.

use crate::{
    append::{BUFFER_BYTES, Log, Sequence},
    drive::SuperblockJob,
    error::RecordError,
    format::{BATCH_HEADER_BYTES, BLOCK_BYTES},
    space::Segment,
};

/// How far a compaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionStage {
    /// None runs.
    None,
    /// The state is being written.
    Writing,
    /// The state is written; the log waits until that is stable and then moves its beginning.
    Finishing,
}

/// What the log knows of compactions.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// What one would write, as the owner estimates it.
    live_bytes: u64,
    /// What the one that runs has written.
    written_bytes: u64,
    start: Option<Start>,
    /// When this batch is stable the beginning can move.
    finish_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    segment: Segment,
    batch: u64,
    sequence: Sequence,
    /// Whether it uses what is kept from others.
    uses_kept: bool,
}

impl Compaction {
    /// A record of state was written.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        if self.start.is_some() && self.finish_at.is_none() {
            self.written_bytes += bytes;
        }
    }
}

/// Segments that are kept free beyond what a compaction is expected to write: the rest of the one in which it begins, and
/// that in which it ends.
const SPARE_SEGMENTS: u64 = 2;

/// This part of the disk, and a segment at least, is left by compactions for what makes data fewer. Where it is more than a
/// segment, a small disk leaves twice as much, up to these bytes.
const KEPT_PART: u64 = 64;
const KEPT_OF_SMALL_BYTES: u64 = 4 << 20;
/// One of data that are few leaves this part of that.
const LAST_PART: u64 = 4;

impl Log {
    /// Begins a compaction: the log's new beginning is here. Records from now on, together with the state that the owner
    /// writes until [`finish_compaction`](Self::finish_compaction), must yield what the log yields now. One runs at a time.
    /// `Full` if no state could be written; the log is then as it was.
    pub fn begin_compaction(&mut self) -> Result<(), RecordError> {
        assert!(self.compaction.start.is_none(), "one compaction runs at a time");
        assert!(self.record.is_none(), "no record is open");
        self.seal();
        let uses_kept = self.space.free_bytes() < self.reserve_bytes() && self.has_room_for_compaction();
        // Each try would take a segment.
        let is_begun = self.space.offset() > 0;
        let lost_bytes = if is_begun { self.space.rest_bytes() } else { 0 };
        let needed_bytes = self.kept_from_state(uses_kept) + u64::from(lost_bytes) + BUFFER_BYTES as u64;
        if self.space.free_bytes() < needed_bytes {
            return Err(RecordError::Full);
        }
        if is_begun {
            if !self.space.is_linked() {
                self.link()?;
            }
            if !self.space.enter_next() {
                return Err(RecordError::Full);
            }
        }
        let start =
            Start { segment: self.space.last(), batch: self.next_number, sequence: self.appended + 1, uses_kept };
        self.compaction.start = Some(start);
        self.compaction.written_bytes = 0;
        Ok(())
    }

    /// Writes a batch without records that names the next segment, which was not free when the last one was written.
    fn link(&mut self) -> Result<(), RecordError> {
        self.open_batch()?;
        assert_eq!(self.open.used, BATCH_HEADER_BYTES);
        self.seal_open();
        Ok(())
    }

    /// The state is written. Once all of this is stable the log begins where the compaction began, and the room before is
    /// free; [`drive`](Self::drive) does that, and [`compaction_stage`](Self::compaction_stage) tells when.
    pub fn finish_compaction(&mut self) {
        assert!(self.compaction.start.is_some() && self.compaction.finish_at.is_none(), "a compaction runs");
        self.flush_all();
        self.compaction.finish_at = Some(self.next_number - 1);
    }

    /// Gives a compaction up: the log's beginning stays where it is. Of no account for one that is finishing.
    pub fn cancel_compaction(&mut self) {
        if self.compaction.finish_at.is_none() {
            self.compaction.start = None;
        }
    }

    /// How far the compaction is.
    pub fn compaction_stage(&self) -> CompactionStage {
        match (self.compaction.start, self.compaction.finish_at) {
            (None, _) => CompactionStage::None,
            (Some(_), None) => CompactionStage::Writing,
            (Some(_), Some(_)) => CompactionStage::Finishing,
        }
    }

    /// Tells how many bytes of records a compaction would write now, at the most, with
    /// [`RECORD_HEADER_BYTES`](crate::RECORD_HEADER_BYTES) for each. So much stays free for it.
    pub fn set_live_bytes(&mut self, live_bytes: u64) {
        self.compaction.live_bytes = live_bytes;
    }

    /// What [`set_live_bytes`](Self::set_live_bytes) was told.
    pub fn live_bytes(&self) -> u64 {
        self.compaction.live_bytes
    }

    /// What effects must leave free.
    pub fn reserve_bytes(&self) -> u64 {
        self.left_bytes() + self.kept_bytes()
    }

    /// What a compaction still takes, at the most.
    fn left_bytes(&self) -> u64 {
        let compaction = &self.compaction;
        let written = if compaction.start.is_some() { compaction.written_bytes } else { 0 };
        let left = compaction.live_bytes.saturating_sub(written);
        // An eighth: headers of batches and of parts of records, and what batches leave at the end of their last block.
        left + left / 8 + SPARE_SEGMENTS * u64::from(self.superblock.segment_bytes)
    }

    /// What a compaction must leave free, unless data are few.
    pub fn kept_bytes(&self) -> u64 {
        let (segment_bytes, part) = (u64::from(self.superblock.segment_bytes), self.space.size_bytes() / KEPT_PART);
        if part < segment_bytes { segment_bytes } else { part.max((2 * part).min(KEPT_OF_SMALL_BYTES)) }
    }

    /// What a compaction of nothing needs to begin and to end.
    fn needed_for_nothing(&self) -> u64 {
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let begins = self.kept_from_state(true) + BUFFER_BYTES as u64 + segment_bytes;
        begins.max(2 * SPARE_SEGMENTS * segment_bytes) + 2 * BLOCK_BYTES as u64
    }

    /// What records that make data fewer must leave free: so much that there can be a compaction of nothing, unless the disk
    /// is too small.
    pub fn last_bytes(&self) -> u64 {
        self.needed_for_nothing().min(self.kept_bytes() / 16 * 7)
    }

    /// What a compaction that may use what is kept must leave free, or one that may not.
    fn kept_from_state(&self, uses_kept: bool) -> u64 {
        self.kept_bytes() / if uses_kept { LAST_PART } else { 1 }
    }

    /// Whether there is room for state, and for so many bytes more.
    pub(crate) fn has_room_for_state(&self, batch_bytes: u32) -> bool {
        let uses_kept = self.compaction.start.is_some_and(|start| start.uses_kept);
        self.space.free_bytes() >= self.kept_from_state(uses_kept) + u64::from(batch_bytes)
    }

    /// Whether a compaction that began now would find room for all that it writes, as that was estimated. One that writes
    /// little may use what is kept: if it is cut, half of what was free is left.
    pub fn has_room_for_compaction(&self) -> bool {
        let free_bytes = self.space.free_bytes();
        free_bytes >= self.reserve_bytes() || free_bytes / 2 >= self.left_bytes()
    }

    /// Bytes that the log's records may still take before effects are refused. What a batch needs is taken off: when this
    /// is not 0, a record of that length, or some 100 KiB of shorter ones, will find room.
    pub fn room_bytes(&self) -> u64 {
        let kept = self.reserve_bytes() + 2 * BUFFER_BYTES as u64;
        self.space.free_bytes().saturating_sub(kept)
    }

    /// Bytes that the log does not use, for records that are not in the open batch yet.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes().saturating_sub(self.open.used as u64)
    }

    /// Bytes that the log uses.
    pub fn used_bytes(&self) -> u64 {
        self.space.size_bytes() - self.space.free_bytes()
    }

    /// Bytes that the log can have.
    pub fn size_bytes(&self) -> u64 {
        self.space.size_bytes()
    }

    /// What has to be written when the log's beginning can move.
    pub(crate) fn due_superblock(&self) -> Option<SuperblockJob> {
        let (start, finish_at) = (self.compaction.start?, self.compaction.finish_at?);
        if self.stable_batch < finish_at {
            return None;
        }
        let mut superblock = self.superblock.clone();
        superblock.generation += 1;
        superblock.first_place = start.segment.place;
        superblock.first_segment = start.segment.number;
        superblock.first_batch = start.batch;
        superblock.first_sequence = start.sequence;
        superblock.stable_batch = self.stable_batch;
        Some(SuperblockJob::new(superblock))
    }

    /// Both superblocks name the new beginning.
    pub(crate) fn superblock_is_written(&mut self) {
        self.space.free_before(self.superblock.first_segment);
        self.compaction.start = None;
        self.compaction.finish_at = None;
    }
}
