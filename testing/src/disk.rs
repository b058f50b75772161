//! A disk that keeps no promise but those of [`BlockDevice`]: what is not flushed is lost with the power wholly or in part
//! and in any order, transfers end in any order, and now and then they fail.

use crate::random::Random;
use kayvee_platform::{BlockDevice, BlockError, Finished, Geometry, Operation, Transfer};
use std::collections::VecDeque;

/// What a disk loses or keeps on its own.
const SECTOR_BYTES: usize = 512;
/// Alignment in memory that devices ask for.
const MEMORY_ALIGNMENT: usize = 4096;

/// How often something goes wrong: once in so many times, 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A read fails.
    pub read_one_in: usize,
    /// A write fails, and has changed some of its sectors.
    pub write_one_in: usize,
    /// A flush fails. What it should have made stable may be lost for good, though reads still show it, as a file system
    /// does with pages that it could not write.
    pub flush_one_in: usize,
    /// Of failures, so many say that there is no space.
    pub no_space_one_in: usize,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Faults = Faults { read_one_in: 0, write_one_in: 0, flush_one_in: 0, no_space_one_in: 0 };
}

/// What a disk claims and does not do. With any of these, a test that looks for lost data has to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A flush ends well and has done nothing.
    Flush,
    /// A write to stable storage is an ordinary one.
    WriteStable,
}

/// A write that a loss of power may undo.
#[derive(Clone, Debug)]
struct Unflushed {
    /// In which order they finished.
    number: u64,
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct UnderWay {
    transfer: Transfer,
    /// For a flush: the writes before this one had finished when it began.
    covers: u64,
}

/// The disk.
#[derive(Debug)]
pub struct SimulatedDisk {
    random: Random,
    /// What reads see.
    seen: Vec<u8>,
    /// What a loss of power leaves for certain; nothing while that is what reads see.
    stable: Option<Vec<u8>>,
    /// Writes that have finished since, in that order.
    unflushed: Vec<Unflushed>,
    finished_writes: u64,
    under_way: Vec<UnderWay>,
    done: VecDeque<Finished>,
    /// What goes wrong.
    pub faults: Faults,
    /// The transfer that fails, of those it will finish: 0 for the next one.
    pub fail_in: Option<u64>,
    /// What it only claims to do.
    pub lie: Option<Lie>,
    /// Transfers that it takes at a time.
    pub queue_depth: usize,
    writes: u64,
    crash_in: Option<u64>,
    crashed: Option<Box<SimulatedDisk>>,
}

impl SimulatedDisk {
    /// A disk of zeros. All that it does follows from `seed`.
    pub fn new(size_bytes: usize, seed: u64) -> SimulatedDisk {
        SimulatedDisk::with(vec![0; size_bytes], seed)
    }

    /// A disk that holds `bytes`.
    pub fn with(mut bytes: Vec<u8>, seed: u64) -> SimulatedDisk {
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES), 0);
        SimulatedDisk {
            random: Random::new(seed),
            seen: bytes,
            stable: None,
            unflushed: Vec::new(),
            finished_writes: 0,
            under_way: Vec::new(),
            done: VecDeque::new(),
            faults: Faults::NONE,
            fail_in: None,
            lie: None,
            queue_depth: 8,
            writes: 0,
            crash_in: None,
            crashed: None,
        }
    }

    /// What reads see, to look at or to damage.
    pub fn bytes(&self) -> &[u8] {
        &self.seen
    }

    /// Changes the medium itself: `change` gets all of its bytes. Nothing may be under way or unflushed.
    pub fn damage(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        assert!(self.under_way.is_empty() && self.unflushed.is_empty(), "the disk is at rest");
        if let Some(stable) = self.stable.take() {
            self.seen = stable;
        }
        change(&mut self.seen);
    }

    /// How many writes and flushes it has been given.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Finishes one of the transfers that are under way, if there is one.
    pub fn work(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let at = self.random.below(self.under_way.len());
        let UnderWay { mut transfer, covers } = self.under_way.swap_remove(at);
        let result = self.carry_out(&mut transfer, covers);
        self.done.push_back(Finished { token: transfer.token, buffer: transfer.buffer, result });
    }

    /// Whether this transfer fails.
    fn fails(&mut self, one_in: usize) -> bool {
        if let Some(transfers) = &mut self.fail_in {
            if *transfers == 0 {
                self.fail_in = None;
                return true;
            }
            *transfers -= 1;
        }
        one_in != 0 && self.random.one_in(one_in)
    }

    fn error(&mut self) -> BlockError {
        let one_in = self.faults.no_space_one_in;
        if one_in != 0 && self.random.one_in(one_in) { BlockError::NoSpace } else { BlockError::Io }
    }

    fn carry_out(&mut self, transfer: &mut Transfer, covers: u64) -> Result<(), BlockError> {
        let at = transfer.at_bytes as usize;
        let is_inside = at + transfer.buffer.len() <= self.seen.len();
        match transfer.operation {
            Operation::Flush => self.flush(covers),
            _ if !is_inside => Err(BlockError::Invalid),
            Operation::Read if self.fails(self.faults.read_one_in) => Err(BlockError::Io),
            Operation::Read => {
                let len = transfer.buffer.len();
                transfer.buffer.copy_from_slice(&self.seen[at..at + len]);
                Ok(())
            }
            Operation::Write | Operation::WriteStable => self.write(transfer),
        }
    }

    fn write(&mut self, transfer: &Transfer) -> Result<(), BlockError> {
        let at = transfer.at_bytes as usize;
        if self.fails(self.faults.write_one_in) {
            for (i, sector) in transfer.buffer.chunks(SECTOR_BYTES).enumerate() {
                if self.random.one_in(2) {
                    self.put(at + i * SECTOR_BYTES, sector.to_vec());
                }
            }
            return Err(self.error());
        }
        if transfer.operation == Operation::WriteStable && self.lie != Some(Lie::WriteStable) {
            let end = at + transfer.buffer.len();
            self.stable()[at..end].copy_from_slice(&transfer.buffer);
            self.seen[at..end].copy_from_slice(&transfer.buffer);
            // An earlier write to the same place can no longer undo it.
            for write in &mut self.unflushed {
                let (from, to) = (at.max(write.at), end.min(write.at + write.bytes.len()));
                if from < to {
                    write.bytes[from - write.at..to - write.at].copy_from_slice(&transfer.buffer[from - at..to - at]);
                }
            }
            return Ok(());
        }
        self.put(at, transfer.buffer.to_vec());
        Ok(())
    }

    fn stable(&mut self) -> &mut Vec<u8> {
        self.stable.get_or_insert_with(|| self.seen.clone())
    }

    fn put(&mut self, at: usize, bytes: Vec<u8>) {
        self.stable();
        self.seen[at..at + bytes.len()].copy_from_slice(&bytes);
        self.unflushed.push(Unflushed { number: self.finished_writes, at, bytes });
        self.finished_writes += 1;
    }

    fn flush(&mut self, covers: u64) -> Result<(), BlockError> {
        if self.lie == Some(Lie::Flush) {
            return Ok(());
        }
        if self.fails(self.faults.flush_one_in) {
            for write in std::mem::take(&mut self.unflushed) {
                // Some of it got there; the rest never will.
                let stable = self.stable.get_or_insert_with(|| self.seen.clone());
                persist(stable, &write, &mut self.random, Fate::Torn);
            }
            return Err(self.error());
        }
        let covered = self.unflushed.partition_point(|write| write.number < covers);
        let stable = self.stable.get_or_insert_with(|| self.seen.clone());
        for write in self.unflushed.drain(..covered) {
            stable[write.at..write.at + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        Ok(())
    }

    /// What the disk holds when the power comes back, if it goes now.
    pub fn crash(&mut self) -> SimulatedDisk {
        let mut bytes = self.stable.as_ref().unwrap_or(&self.seen).clone();
        let mut writes = self.unflushed.clone();
        for work in &self.under_way {
            if matches!(work.transfer.operation, Operation::Write | Operation::WriteStable) {
                let at = work.transfer.at_bytes as usize;
                writes.push(Unflushed { number: u64::MAX, at, bytes: work.transfer.buffer.to_vec() });
            }
        }
        let all = [Fate::Lost, Fate::Kept, Fate::KeptOrLost, Fate::Torn, Fate::Torn];
        let fate = all[self.random.below(all.len())];
        while !writes.is_empty() {
            let write = writes.swap_remove(self.random.below(writes.len()));
            persist(&mut bytes, &write, &mut self.random, fate);
        }
        let mut disk = SimulatedDisk::with(bytes, self.random.next_u64());
        disk.faults = self.faults;
        disk.lie = self.lie;
        disk.queue_depth = self.queue_depth;
        disk
    }

    /// Keeps what a loss of power would leave after so many more events, for [`take_crashed`](Self::take_crashed).
    pub fn crash_in(&mut self, events: u64) {
        self.crash_in = Some(events);
    }

    /// What [`crash_in`](Self::crash_in) has kept.
    pub fn take_crashed(&mut self) -> Option<SimulatedDisk> {
        self.crash_in = None;
        self.crashed.take().map(|disk| *disk)
    }

    fn count_event(&mut self) {
        if let Some(events) = &mut self.crash_in {
            if *events == 0 {
                self.crash_in = None;
                self.crashed = Some(Box::new(self.crash()));
            } else {
                *events -= 1;
            }
        }
    }

    /// What a log must not do, though this disk would not mind.
    fn assert_well_used(&self, transfer: &Transfer) {
        if transfer.operation == Operation::Flush {
            return;
        }
        let range = |transfer: &Transfer| transfer.at_bytes..transfer.at_bytes + transfer.buffer.len() as u64;
        let new = range(transfer);
        assert!(!transfer.buffer.is_empty() && transfer.buffer.len().is_multiple_of(SECTOR_BYTES), "whole blocks");
        assert!(new.start.is_multiple_of(SECTOR_BYTES as u64), "the beginning of a block");
        assert!((transfer.buffer.as_ptr() as usize).is_multiple_of(MEMORY_ALIGNMENT), "an aligned buffer");
        for other in self.under_way.iter().map(|work| &work.transfer) {
            let old = range(other);
            let is_apart = new.end <= old.start || old.end <= new.start;
            let both_read = transfer.operation == Operation::Read && other.operation == Operation::Read;
            assert!(is_apart || both_read, "transfers under way do not meet");
        }
    }
}

/// What becomes of writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// None is there.
    Lost,
    /// All are there.
    Kept,
    /// Some are there.
    KeptOrLost,
    /// Of each, some sectors are there, or parts of sectors.
    Torn,
}

/// Lets a write that was not flushed take its fate.
fn persist(medium: &mut [u8], write: &Unflushed, random: &mut Random, fate: Fate) {
    let is_kept = match fate {
        Fate::Lost => false,
        Fate::Kept | Fate::Torn => true,
        Fate::KeptOrLost => random.one_in(2),
    };
    if !is_kept {
        return;
    }
    let place = &mut medium[write.at..write.at + write.bytes.len()];
    if fate != Fate::Torn {
        place.copy_from_slice(&write.bytes);
        return;
    }
    // Most of it, or little of it.
    let lost_one_in = 1 + random.below(8);
    let is_lost = |random: &mut Random| random.one_in(lost_one_in);
    for (place, sector) in place.chunks_mut(SECTOR_BYTES).zip(write.bytes.chunks(SECTOR_BYTES)) {
        if is_lost(random) {
            continue;
        }
        let len = if random.one_in(50) { random.below(sector.len()) } else { sector.len() };
        place[..len].copy_from_slice(&sector[..len]);
    }
}

impl BlockDevice for SimulatedDisk {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.seen.len() as u64;
        Geometry { block_bytes: SECTOR_BYTES as u32, size_bytes, is_read_only: false }
    }

    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        if self.under_way.len() >= self.queue_depth {
            return Err(transfer);
        }
        self.assert_well_used(&transfer);
        self.writes += u64::from(transfer.operation != Operation::Read);
        self.under_way.push(UnderWay { transfer, covers: self.finished_writes });
        self.count_event();
        Ok(())
    }

    fn finished(&mut self) -> Option<Finished> {
        if self.random.one_in(2) {
            self.work();
        }
        let finished = self.done.pop_front();
        if finished.is_some() {
            self.count_event();
        }
        finished
    }

    fn wait(&mut self) {
        if self.done.is_empty() {
            self.work();
        }
    }
}
