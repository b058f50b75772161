//! What the device has to do, and what it has done.

use crate::{
    append::{Batch, BatchState, Log},
    compaction::CompactionStage,
    error::{LogError, Work},
    format::{BATCH_HEADER_BYTES, SUPERBLOCKS_AT, Superblock, padded},
};
use kayvee_platform::{BlockBuffer, BlockDevice, BlockError, Finished, Operation, Transfer, earliest};

/// When the log is brought to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPolicy {
    /// At once, and all that has gathered in the meantime together.
    Always,
    /// Every second.
    EverySecond,
    /// As seldom as an operating system would: every 30 seconds.
    No,
}

impl FlushPolicy {
    fn interval_ns(self) -> u64 {
        match self {
            FlushPolicy::Always => 0,
            FlushPolicy::EverySecond => 1_000_000_000,
            FlushPolicy::No => 30_000_000_000,
        }
    }
}

/// Records gather so long before a batch that is not full is written, unless somebody waits for them.
const GATHER_NS: u64 = 100_000_000;
/// A device that failed is tried again after so long.
const RETRY_NS: u64 = 1_000_000_000;
/// When this part of the buffers holds what is not stable a flush is due, whatever the policy: they are kept until then,
/// since what a failed flush has lost must be written again.
const FLUSH_AT_PART: usize = 2;
/// So many batches are flushed though others are still being written.
const FLUSH_GROUP: usize = 4;

/// Tokens of transfers that are no batch; batches have their number.
const FLUSH_TOKEN: u64 = u64::MAX;
const SUPERBLOCK_TOKEN: u64 = u64::MAX - 1;

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct Drive {
    /// What keeps records from being stable, until they are.
    pub(crate) failure: Option<LogError>,
    retry_at_ns: u64,
    /// When all through this batch is stable the failure is over.
    failed_through: u64,
    /// A flush that will cover all through this batch.
    flush_through: Option<u64>,
    last_flush_ns: u64,
    /// Somebody waits for the batches through this one.
    flush_wanted: u64,
    superblock: Option<SuperblockJob>,
    /// For superblocks: kept, so that writing one needs no memory. Empty while the device has it.
    pub(crate) superblock_buffer: BlockBuffer,
    counters: Counters,
}

/// What the log has had the device do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches that were written.
    pub batches: u64,
    /// Bytes of them, with their padding.
    pub written_bytes: u64,
    /// Flushes, and batches that were written to stable storage at once.
    pub flushes: u64,
    /// Transfers that failed.
    pub failures: u64,
}

/// The superblocks are being written, one after the other.
#[derive(Debug)]
pub(crate) struct SuperblockJob {
    superblock: Superblock,
    /// Which of the two.
    step: usize,
    is_under_way: bool,
}

impl SuperblockJob {
    pub(crate) fn new(superblock: Superblock) -> SuperblockJob {
        SuperblockJob { superblock, step: 0, is_under_way: false }
    }
}

impl Drive {
    /// Nothing is under way. The buffer is for superblocks.
    pub(crate) fn new(superblock_buffer: BlockBuffer) -> Drive {
        Drive { superblock_buffer, ..Drive::default() }
    }
}

impl Log {
    /// Hands the device what is due and takes what it has finished. To be called after each turn and when the device has
    /// something; gives the time when it has to be called again even without either. Never waits.
    pub fn drive(&mut self, device: &mut dyn BlockDevice, policy: FlushPolicy, monotonic_ns: u64) -> Option<u64> {
        assert!(self.record.is_none(), "no record is open");
        loop {
            while let Some(finished) = device.finished() {
                self.take(finished, monotonic_ns);
            }
            if self.drive.failure.is_some() && monotonic_ns < self.drive.retry_at_ns {
                return Some(self.drive.retry_at_ns);
            }
            if self.batch_is_due(policy, monotonic_ns) {
                self.seal();
            }
            self.write_batches(device, policy);
            if self.flush_is_due(policy, monotonic_ns) {
                self.flush(device, monotonic_ns);
            }
            self.write_superblock(device);
            // A device may have carried out at once what it was given: then there may be more to be done.
            match device.finished() {
                Some(finished) => self.take(finished, monotonic_ns),
                None => return self.next_call_ns(policy),
            }
        }
    }

    /// Wants all effects that were recorded to be stable soon, whatever the policy.
    pub fn request_flush(&mut self) {
        self.drive.flush_wanted = self.next_number - u64::from(!self.open.is_urgent);
    }

    /// Wants all that was recorded to be stable soon.
    pub(crate) fn flush_all(&mut self) {
        self.seal();
        self.drive.flush_wanted = self.next_number - 1;
    }

    /// What keeps records from becoming stable. The log tries again every second, and goes on when that succeeds: what the
    /// device may have lost is kept in memory until then.
    pub fn failure(&self) -> Option<LogError> {
        self.drive.failure
    }

    /// Whether so much is on its way to stable storage that whoever makes records should wait.
    pub fn is_congested(&self) -> bool {
        self.batches.len() >= self.max_batches
    }

    /// What the device was made to do.
    pub fn counters(&self) -> Counters {
        self.drive.counters
    }

    /// Waits until everything that was recorded is stable, or until the device fails. The device then has nothing to do.
    pub fn sync(&mut self, device: &mut dyn BlockDevice, monotonic_ns: u64) -> Result<(), LogError> {
        self.flush_all();
        // The failure of earlier work is not an answer: this tries once more.
        self.drive.retry_at_ns = 0;
        let failures = self.drive.counters.failures;
        loop {
            self.drive(device, FlushPolicy::Always, monotonic_ns);
            let is_finishing = self.compaction_stage() == CompactionStage::Finishing;
            if self.batches.is_empty() && !is_finishing && !self.is_under_way() {
                return Ok(());
            }
            if let Some(failure) = self.drive.failure
                && self.drive.counters.failures > failures
            {
                return Err(failure);
            }
            if !self.is_under_way() {
                // A device that is idle and takes nothing is broken.
                return Err(LogError { work: Work::Write, at_bytes: 0, error: BlockError::Io });
            }
            device.wait();
        }
    }

    fn is_flush_wanted(&self) -> bool {
        self.stable_batch < self.drive.flush_wanted || self.drive.failure.is_some()
    }

    fn is_writing(&self) -> bool {
        self.batches.iter().any(|batch| matches!(batch.state, BatchState::Writing | BatchState::WritingStable))
    }

    fn is_under_way(&self) -> bool {
        let is_superblock = self.drive.superblock.as_ref().is_some_and(|job| job.is_under_way);
        self.is_writing() || self.drive.flush_through.is_some() || is_superblock
    }

    /// Whether the open batch should be written though it is not full. One without effects waits until it is: so a
    /// compaction takes no more room than it needs.
    fn batch_is_due(&mut self, policy: FlushPolicy, now_ns: u64) -> bool {
        if !self.open.is_urgent {
            return false;
        }
        let since_ns = *self.open.since_ns.get_or_insert(now_ns);
        if policy == FlushPolicy::Always || self.is_flush_wanted() {
            // What comes while the device works gathers, and is served by the next flush together.
            return self.drive.flush_through.is_none() && !self.is_writing();
        }
        now_ns >= since_ns.saturating_add(GATHER_NS)
    }

    fn write_batches(&mut self, device: &mut dyn BlockDevice, policy: FlushPolicy) {
        let is_alone = self.batches.len() == 1;
        let is_flushed_at_once = policy == FlushPolicy::Always || self.is_flush_wanted();
        for batch in self.batches.iter_mut().filter(|batch| batch.state == BatchState::Sealed) {
            let (operation, state) = if is_alone && is_flushed_at_once && batch.is_urgent {
                (Operation::WriteStable, BatchState::WritingStable)
            } else {
                (Operation::Write, BatchState::Writing)
            };
            let mut buffer = core::mem::take(&mut batch.buffer);
            buffer.set_len(padded(batch.header.len as usize));
            batch.header.emit(&mut buffer[..BATCH_HEADER_BYTES], &self.keys);
            let transfer = Transfer { token: batch.header.number, operation, at_bytes: batch.at_bytes, buffer };
            match device.start(transfer) {
                Ok(()) => batch.state = state,
                Err(transfer) => {
                    batch.buffer = transfer.buffer;
                    return;
                }
            }
        }
    }

    /// The last batch of those that are written and follow each other from the first one on.
    fn written_through(&self) -> Option<&Batch> {
        self.batches.iter().take_while(|batch| matches!(batch.state, BatchState::Written | BatchState::Stable)).last()
    }

    fn flush_is_due(&self, policy: FlushPolicy, now_ns: u64) -> bool {
        if self.drive.flush_through.is_some() {
            return false;
        }
        let Some(last) = self.written_through() else { return false };
        let number = last.header.number;
        if self.batches.len() >= self.max_batches / FLUSH_AT_PART {
            return true;
        }
        if policy == FlushPolicy::Always || self.is_flush_wanted() {
            let mut written = self.batches.iter().take_while(|batch| batch.header.number <= number);
            // One flush for all that is being written, unless there is no end to it.
            let is_last = !self.is_writing() || written.clone().count() >= FLUSH_GROUP;
            return is_last && (self.is_flush_wanted() || written.any(|batch| batch.is_urgent));
        }
        now_ns >= self.drive.last_flush_ns.saturating_add(policy.interval_ns())
    }

    fn flush(&mut self, device: &mut dyn BlockDevice, now_ns: u64) {
        let through = self.written_through().expect("a flush is due").header.number;
        let transfer =
            Transfer { token: FLUSH_TOKEN, operation: Operation::Flush, at_bytes: 0, buffer: BlockBuffer::default() };
        if device.start(transfer).is_ok() {
            self.drive.flush_through = Some(through);
            self.drive.last_flush_ns = now_ns;
        }
    }

    fn write_superblock(&mut self, device: &mut dyn BlockDevice) {
        if self.drive.superblock.is_none() {
            self.drive.superblock = self.due_superblock();
        }
        let Some(job) = self.drive.superblock.as_mut().filter(|job| !job.is_under_way) else { return };
        let mut buffer = core::mem::take(&mut self.drive.superblock_buffer);
        job.superblock.emit(&mut buffer);
        let at_bytes = SUPERBLOCKS_AT[job.step];
        let transfer = Transfer { token: SUPERBLOCK_TOKEN, operation: Operation::WriteStable, at_bytes, buffer };
        match device.start(transfer) {
            Ok(()) => job.is_under_way = true,
            Err(transfer) => self.drive.superblock_buffer = transfer.buffer,
        }
    }

    /// When to call again if nothing else happens.
    fn next_call_ns(&self, policy: FlushPolicy) -> Option<u64> {
        if self.drive.failure.is_some() {
            return Some(self.drive.retry_at_ns);
        }
        if policy == FlushPolicy::Always {
            return None;
        }
        let gather = self.open.since_ns.map(|since_ns| since_ns.saturating_add(GATHER_NS));
        let has_written = self.batches.front().is_some_and(|batch| batch.state == BatchState::Written);
        let flush = (has_written && self.drive.flush_through.is_none())
            .then(|| self.drive.last_flush_ns.saturating_add(policy.interval_ns()));
        earliest(&[gather, flush])
    }

    /// Takes what the device has finished.
    fn take(&mut self, finished: Finished, now_ns: u64) {
        match finished.token {
            FLUSH_TOKEN => self.take_flush(finished.result, now_ns),
            SUPERBLOCK_TOKEN => self.take_superblock(finished, now_ns),
            _ => self.take_batch(finished, now_ns),
        }
    }

    fn take_batch(&mut self, finished: Finished, now_ns: u64) {
        let first = self.batches.front().expect("the device writes one").header.number;
        let batch = &mut self.batches[(finished.token - first) as usize];
        let is_stable = batch.state == BatchState::WritingStable;
        assert!(is_stable || batch.state == BatchState::Writing, "the device writes this one");
        batch.buffer = finished.buffer;
        let at_bytes = batch.at_bytes;
        if let Err(error) = finished.result {
            batch.state = BatchState::Sealed;
            return self.fail(LogError { work: Work::Write, at_bytes, error }, now_ns);
        }
        self.drive.counters.batches += 1;
        self.drive.counters.written_bytes += batch.buffer.len() as u64;
        self.drive.counters.flushes += u64::from(is_stable);
        batch.state = if is_stable {
            BatchState::Stable
        } else if core::mem::take(&mut batch.is_distrusted) {
            BatchState::Sealed
        } else {
            BatchState::Written
        };
        self.retire();
    }

    fn take_flush(&mut self, result: Result<(), BlockError>, now_ns: u64) {
        let through = self.drive.flush_through.take().expect("a flush is under way");
        match result {
            Ok(()) => {
                self.drive.counters.flushes += 1;
                for batch in self.batches.iter_mut().take_while(|batch| batch.header.number <= through) {
                    batch.state = BatchState::Stable;
                }
                self.retire();
            }
            Err(error) => {
                // What is in a cache may be lost, and the next flush may succeed without it: it is written again.
                let at_bytes = self.batches.front().map_or(0, |batch| batch.at_bytes);
                for batch in &mut self.batches {
                    match batch.state {
                        BatchState::Written => batch.state = BatchState::Sealed,
                        BatchState::Writing => batch.is_distrusted = true,
                        _ => {}
                    }
                }
                self.fail(LogError { work: Work::Flush, at_bytes, error }, now_ns);
            }
        }
    }

    fn take_superblock(&mut self, finished: Finished, now_ns: u64) {
        let job = self.drive.superblock.as_mut().expect("the device writes it");
        job.is_under_way = false;
        self.drive.superblock_buffer = finished.buffer;
        if let Err(error) = finished.result {
            let at_bytes = SUPERBLOCKS_AT[job.step];
            return self.fail(LogError { work: Work::Write, at_bytes, error }, now_ns);
        }
        job.step += 1;
        if job.step == SUPERBLOCKS_AT.len() {
            let job = self.drive.superblock.take().expect("the device wrote it");
            self.superblock = job.superblock;
            self.superblock_is_written();
        }
        self.recover_from_failure();
    }

    fn fail(&mut self, error: LogError, now_ns: u64) {
        self.drive.counters.failures += 1;
        self.drive.failure = Some(error);
        self.drive.retry_at_ns = now_ns.saturating_add(RETRY_NS);
        self.drive.failed_through = self.next_number - 1;
    }

    /// The failure is over when all that it concerned is stable.
    fn recover_from_failure(&mut self) {
        let is_superblock_failing =
            self.drive.failure.is_some_and(|failure| SUPERBLOCKS_AT.contains(&failure.at_bytes));
        if self.stable_batch >= self.drive.failed_through && !(is_superblock_failing && self.drive.superblock.is_some())
        {
            self.drive.failure = None;
        }
    }

    /// Lets go of the batches that are stable and follow those before.
    fn retire(&mut self) {
        while self.batches.front().is_some_and(|batch| batch.state == BatchState::Stable) {
            let batch = self.batches.pop_front().expect("there is one");
            self.stable_batch = batch.header.number;
            self.durable = batch.last_sequence;
            self.recycle(batch.buffer);
        }
        self.recover_from_failure();
    }
}
