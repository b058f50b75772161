//! A site whose bodies stay on a disk: its index is read at the start, and pieces of its bodies as they are asked for.
//!
//! What was read is kept in a fixed number of slots, whoever it was read for, so that slow clients cost no memory: each
//! has what the slots have when it takes bytes, and waits for another read where they have gone on.

use crate::site::{CHUNK_BYTES, HEADER_BYTES, Layout, Site, SiteError};
use alloc::{string::ToString, sync::Arc, vec::Vec};
use core::{fmt, ops::Range};
use kayvee_platform::{BlockBuffer, BlockDevice, BlockError, Finished, Operation, Transfer, transfer_alone};

/// Reads under way at a time.
const MAX_READS: usize = 16;
/// Chunks that are kept at least. Half of them may be under way.
const MIN_SLOTS: usize = 4;
/// More would not be more than some of a page cache.
const MAX_SLOTS: usize = 512;
/// The place of a chunk that no slot has.
const NOWHERE: u16 = u16::MAX;

const _: () = assert!(MAX_SLOTS < NOWHERE as usize);

/// Why a site on a disk cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The disk could not be read.
    Disk(BlockError),
    /// What it holds is no site, or no sound one.
    Site(SiteError),
    /// There is no memory for so many bytes of index.
    NoMemory(u64),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Disk(error) => error.fmt(f),
            OpenError::Site(error) => error.fmt(f),
            OpenError::NoMemory(bytes) => {
                write!(f, "there is no memory for {bytes} bytes, the index of the site: give it more")
            }
        }
    }
}

impl core::error::Error for OpenError {}

impl From<SiteError> for OpenError {
    fn from(error: SiteError) -> OpenError {
        OpenError::Site(error)
    }
}

/// Reads and checks the index of a site on a disk that has nothing else to do.
pub fn open(disk: &mut dyn BlockDevice) -> Result<Site, OpenError> {
    let size_bytes = disk.geometry().size_bytes;
    let mut read = |at_bytes, bytes: u64| {
        if bytes > size_bytes || at_bytes > size_bytes - bytes {
            return Err(OpenError::Site(SiteError::Length));
        }
        let buffer = usize::try_from(bytes).ok().and_then(|bytes| BlockBuffer::zeroed(bytes).ok());
        let buffer = buffer.ok_or(OpenError::NoMemory(bytes))?;
        transfer_alone(disk, Operation::Read, at_bytes, buffer).map_err(OpenError::Disk)
    };
    let header = read(0, HEADER_BYTES as u64).map_err(|error| match error {
        OpenError::Site(_) => OpenError::Site(SiteError::NotASite),
        error => error,
    })?;
    let layout = Layout::read(&header)?;
    let index = read(layout.index_at, layout.index_bytes() as u64)?;
    Ok(Site::open_index(layout, Arc::new(index))?)
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    /// The disk has its buffer.
    Reading,
    Ready,
    /// It could not be read, or is not what was packed. Told to those who wait for it, and then forgotten.
    Failed,
}

struct Slot {
    chunk: u64,
    state: State,
    /// Whether somebody has used it since the hand came by.
    is_used: bool,
    buffer: Option<BlockBuffer>,
}

/// What there is of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    Ready(&'a [u8]),
    Failed,
    Missing,
}

/// The pieces of bodies that are in memory.
pub struct Chunks {
    site: Site,
    /// By chunk: the slot that has it.
    places: Vec<u16>,
    slots: Vec<Slot>,
    /// Where the search for a slot to be used again goes on.
    hand: usize,
    reads: usize,
    /// Reads that have failed since the start.
    pub failures: u64,
}

impl Chunks {
    /// Room for some bytes of a site on a disk.
    pub fn new(site: &Site, memory_bytes: usize) -> Result<Chunks, OpenError> {
        let count = site.layout().bodies_bytes().div_ceil(CHUNK_BYTES as u64) as usize;
        let slots_len = (memory_bytes / CHUNK_BYTES).clamp(MIN_SLOTS, MAX_SLOTS);
        let (mut places, mut slots) = (Vec::new(), Vec::new());
        let no_memory = |_| OpenError::NoMemory(count as u64 * size_of::<u16>() as u64);
        places.try_reserve_exact(count).map_err(no_memory)?;
        slots.try_reserve_exact(slots_len).map_err(no_memory)?;
        places.resize(count, NOWHERE);
        for index in 0..slots_len {
            // As many as are needed to go on at all have their memory from the start, the others take it when they are
            // used.
            let buffer = match index < MIN_SLOTS {
                true => Some(BlockBuffer::zeroed(CHUNK_BYTES).map_err(no_memory)?),
                false => None,
            };
            slots.push(Slot { chunk: 0, state: State::Empty, is_used: false, buffer });
        }
        Ok(Chunks { site: site.clone(), places, slots, hand: 0, reads: 0, failures: 0 })
    }

    /// The chunk that has a byte of the bodies.
    pub fn chunk_of(at: u64) -> u64 {
        at / CHUNK_BYTES as u64
    }

    /// What there is of a chunk.
    pub fn look(&self, chunk: u64) -> Lookup<'_> {
        let Some(slot) = self.slot_of(chunk) else { return Lookup::Missing };
        match (slot.state, &slot.buffer) {
            (State::Ready, Some(buffer)) => Lookup::Ready(buffer),
            (State::Failed, _) => Lookup::Failed,
            _ => Lookup::Missing,
        }
    }

    /// The beginning of some bytes of the bodies, as far as one chunk has it; empty if it is not there.
    pub fn beginning(&self, range: &Range<u64>) -> &[u8] {
        let Lookup::Ready(bytes) = self.look(Chunks::chunk_of(range.start)) else { return &[] };
        let from = (range.start % CHUNK_BYTES as u64) as usize;
        let len = (range.end - range.start).min((CHUNK_BYTES - from) as u64) as usize;
        // The last chunk is shorter, and the body ends in it.
        bytes.get(from..from + len).unwrap_or_default()
    }

    /// Notes that a chunk is of use.
    pub fn touch(&mut self, chunk: u64) {
        if let Some(place) = self.place_of(chunk) {
            self.slots[place].is_used = true;
        }
    }

    fn place_of(&self, chunk: u64) -> Option<usize> {
        let place = self.places.get(usize::try_from(chunk).ok()?)?;
        (*place != NOWHERE).then_some(usize::from(*place))
    }

    fn slot_of(&self, chunk: u64) -> Option<&Slot> {
        self.slots.get(self.place_of(chunk)?)
    }

    /// Has a chunk read if nobody has. Returns whether more reads can begin.
    pub fn fetch(&mut self, chunk: u64, disk: &mut dyn BlockDevice) -> bool {
        // What has arrived is to be used before another chunk takes its slot, or nobody might ever come to an end.
        if self.reads >= MAX_READS.min(self.slots.len() / 2) {
            return false;
        }
        if self.place_of(chunk).is_some() {
            return true;
        }
        let Some((place, mut buffer)) = self.free_slot() else { return false };
        let from = chunk * CHUNK_BYTES as u64;
        buffer.set_len((self.site.layout().bodies_bytes() - from).min(CHUNK_BYTES as u64) as usize);
        let at_bytes = HEADER_BYTES as u64 + from;
        let transfer = Transfer { token: place as u64, operation: Operation::Read, at_bytes, buffer };
        let slot = &mut self.slots[place];
        (slot.chunk, slot.is_used) = (chunk, true);
        match disk.start(transfer) {
            Ok(()) => {
                slot.state = State::Reading;
                self.places[chunk as usize] = place as u16;
                self.reads += 1;
                true
            }
            Err(transfer) => {
                slot.buffer = Some(transfer.buffer);
                false
            }
        }
    }

    /// An empty slot, or that of the first chunk in a round that nobody has used since the last one.
    fn free_slot(&mut self) -> Option<(usize, BlockBuffer)> {
        for _ in 0..2 * self.slots.len() {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[place];
            match slot.state {
                State::Reading | State::Failed => continue,
                State::Ready if slot.is_used => slot.is_used = false,
                state => {
                    let buffer = slot.buffer.take().or_else(|| BlockBuffer::zeroed(CHUNK_BYTES).ok());
                    // Where there is no memory for more slots, those that have some go round.
                    let Some(buffer) = buffer else { continue };
                    if state == State::Ready {
                        slot.state = State::Empty;
                        let chunk = slot.chunk;
                        self.places[chunk as usize] = NOWHERE;
                    }
                    return Some((place, buffer));
                }
            }
        }
        None
    }

    /// Takes what the disk has read. Returns whether there was anything.
    pub fn take(&mut self, disk: &mut dyn BlockDevice) -> bool {
        let mut any = false;
        while let Some(Finished { token, mut buffer, result }) = disk.finished() {
            let slot = usize::try_from(token).ok().and_then(|place| self.slots.get_mut(place));
            // A device answers to what it was asked for alone.
            let Some(slot) = slot.filter(|slot| slot.state == State::Reading) else { continue };
            any = true;
            self.reads -= 1;
            let is_sound = result.is_ok() && self.site.is_sound(slot.chunk, &buffer);
            if !is_sound {
                self.failures += 1;
                // A disk that fails does so often.
                if self.failures.is_power_of_two() {
                    let what = result.map_or_else(|error| error.to_string(), |()| "a checksum differs".into());
                    log::error!("site disk: chunk {}: {what}; failures so far: {}", slot.chunk, self.failures);
                }
            }
            slot.state = if is_sound { State::Ready } else { State::Failed };
            buffer.set_len(CHUNK_BYTES);
            slot.buffer = Some(buffer);
        }
        any
    }

    /// Forgets what could not be read, so that it is tried again when it is asked for again.
    pub fn forget_failed(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.state == State::Failed) {
            slot.state = State::Empty;
            self.places[slot.chunk as usize] = NOWHERE;
        }
    }
}
