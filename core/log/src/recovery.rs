//! Reading a log from its beginning, and finding its end.
//!
//! The log ends where the next batch is not what was written, unless something on the disk says that this batch had been
//! stable: then it is damaged, and nothing is changed. `docs/log-format.md` has the argument.

use crate::{
    append::Sequence,
    error::OpenError,
    format::{
        BATCH_HEADER_BYTES, BLOCK_BYTES, BatchHeader, Keys, Kind, MAX_BATCH_BYTES, NoSuperblock, RECORD_HEADER_BYTES,
        RecordHeader, SUPERBLOCKS_AT, Superblock, padded, segments_of,
    },
    reader::{ReadError, Reader, scan, transfer},
    space::{Segment, Space},
};
use alloc::{collections::TryReserveError, vec::Vec};
use core::convert::Infallible;
use kayvee_platform::{BlockBuffer, BlockDevice, Geometry, Operation};

/// Who is shown records. An error ends the reading.
pub type Visit<'a, E> = dyn FnMut(Kind, &[u8]) -> Result<(), E> + 'a;

/// How far reading is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the log that were read.
    pub read_bytes: u64,
    /// Bytes that segments have, which is what the log has at the most.
    pub size_bytes: u64,
    /// Records that were found.
    pub records: u64,
    /// Segments beyond the log's end that were searched for what shows that more was there.
    pub searched: u64,
}

/// What lies on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Names this log among all.
    pub id: [u8; 16],
    /// Of the format.
    pub version: u32,
    /// How often it was opened for writing.
    pub epoch: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// How many there are.
    pub segments: u32,
    /// Segments that the log has.
    pub used_segments: u32,
    /// Batches that were found.
    pub batches: u64,
    /// Records that were found.
    pub records: u64,
    /// Bytes of batches with their padding.
    pub log_bytes: u64,
    /// Number of the first record.
    pub first_sequence: Sequence,
    /// Number of the last record, 0 if there was none ever.
    pub last_sequence: Sequence,
    /// Where the log ends on the device.
    pub end_at_bytes: u64,
    /// Bytes of a record that a crash has cut, the last one: it was never acknowledged.
    pub cut_record_bytes: u64,
    /// Whether a batch follows the end that was not written completely: the trace of a crash, without harm.
    pub is_torn: bool,
    /// How many of the two superblocks are damaged or old. Opening the log mends them.
    pub bad_superblocks: u32,
}

/// Reads a log without changing anything: what is in it, and whether it is sound. Every record is shown to `visit` in
/// order. `read_ahead_bytes` are of memory, for buffers: [`READ_AHEAD_BYTES`](crate::READ_AHEAD_BYTES) or less.
pub fn check<E>(
    device: &mut dyn BlockDevice,
    read_ahead_bytes: usize,
    visit: &mut Visit<'_, E>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Contents, OpenError<E>> {
    let (superblock, bad_superblocks) = read_superblocks(device)?;
    let recovered = recover(device, &superblock, read_ahead_bytes, visit, progress)?;
    Ok(Contents { bad_superblocks, ..recovered.contents })
}

/// Looks at the superblocks alone: whether there is a log that this version reads, on a device that still has all of it.
pub fn identify(device: &mut dyn BlockDevice) -> Result<(), OpenError<Infallible>> {
    read_superblocks(device).map(drop)
}

/// Adds a part to those of a long record. Beside them there has to be room for what they will be: so they take little more
/// than they need, where a vector would take twice as much, and no more than that if it is not to be had.
#[inline(never)]
fn gather(parts: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
    const MOST_DOUBLED: usize = 4 << 20;
    if parts.capacity() - parts.len() < bytes.len() {
        let more = (parts.len() / 8).max(parts.len().min(MOST_DOUBLED)).max(bytes.len());
        parts.try_reserve_exact(more).or_else(|_| parts.try_reserve_exact(bytes.len()))?;
    }
    parts.extend_from_slice(bytes);
    Ok(())
}

/// Where a log ends.
pub(crate) struct Recovered {
    pub contents: Contents,
    pub space: Space,
    /// Number of the next batch.
    pub next_number: u64,
    pub appended: Sequence,
}

/// Bytes that the log can use: whole blocks of its own.
pub(crate) fn usable_bytes(geometry: Geometry) -> u64 {
    geometry.size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

/// The newer one of the superblocks that are sound, and how many are not like it.
pub(crate) fn read_superblocks<E>(device: &mut dyn BlockDevice) -> Result<(Superblock, u32), OpenError<E>> {
    let geometry = device.geometry();
    let size_bytes = usable_bytes(geometry);
    let mut found = [Err(NoSuperblock::Blank), Err(NoSuperblock::Blank)];
    let mut buffer = BlockBuffer::zeroed(BLOCK_BYTES).map_err(|_| OpenError::OutOfMemory)?;
    for (at_bytes, found) in SUPERBLOCKS_AT.into_iter().zip(&mut found) {
        if at_bytes + BLOCK_BYTES as u64 > size_bytes {
            continue;
        }
        buffer = transfer(device, Operation::Read, at_bytes, buffer).map_err(OpenError::Device)?;
        *found = Superblock::parse(&buffer);
    }
    let newer = |version| OpenError::NewerVersion { version };
    let superblock = match &found {
        [Err(NoSuperblock::Version(version)), _] | [_, Err(NoSuperblock::Version(version))] => {
            return Err(newer(*version));
        }
        [Ok(a), Ok(b)] => if b.generation > a.generation { b } else { a }.clone(),
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => one.clone(),
        [Err(NoSuperblock::Damaged), Err(_)] | [Err(_), Err(NoSuperblock::Damaged)] => {
            return Err(OpenError::SuperblocksDamaged);
        }
        [Err(NoSuperblock::Blank), Err(NoSuperblock::Blank)] => return Err(OpenError::Blank),
        [Err(_), Err(_)] => return Err(OpenError::Foreign),
    };
    let needed_bytes = superblock.place_at_bytes(superblock.segment_count);
    if size_bytes < needed_bytes {
        return Err(OpenError::Shrunk { size_bytes, needed_bytes });
    }
    let bad = found.iter().filter(|found| found.as_ref() != Ok(&superblock)).count() as u32;
    Ok((superblock, bad))
}

/// The end of the log, as far as it has been followed.
struct Walk<'a, E> {
    superblock: &'a Superblock,
    keys: Keys,
    space: Space,
    /// Where the next batch is expected.
    segment: Segment,
    offset: u32,
    /// What the last batch named.
    next_place: Option<u32>,
    number: u64,
    epoch: u64,
    appended: Sequence,
    /// Parts of a record that goes on in the next batch.
    pending: Option<(Kind, Vec<u8>)>,
    contents: Contents,
    visit: &'a mut Visit<'a, E>,
}

/// Reads the log through and finds its end.
pub(crate) fn recover<'a, E>(
    device: &mut dyn BlockDevice,
    superblock: &'a Superblock,
    read_ahead_bytes: usize,
    visit: &'a mut Visit<'a, E>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, OpenError<E>> {
    let segment_count = segments_of(usable_bytes(device.geometry()), superblock.segment_bytes);
    let segment = Segment { place: superblock.first_place, number: superblock.first_segment };
    let space = Space::new(superblock.segment_bytes, segment_count, segment).map_err(|_| OpenError::OutOfMemory)?;
    let mut walk = Walk {
        superblock,
        keys: Keys::new(&superblock.id),
        space,
        segment,
        offset: 0,
        next_place: None,
        number: superblock.first_batch,
        epoch: 0,
        appended: superblock.first_sequence - 1,
        pending: None,
        contents: Contents {
            id: superblock.id,
            version: crate::FORMAT_VERSION,
            epoch: superblock.epoch,
            segment_bytes: superblock.segment_bytes,
            segments: segment_count,
            first_sequence: superblock.first_sequence,
            ..Contents::default()
        },
        visit,
    };
    let mut reader = Reader::new(device, read_ahead_bytes, superblock.segment_bytes, segment_count);
    while walk.step(&mut reader)? {
        progress(walk.progress());
    }
    drop(reader);
    walk.look_beyond(device, progress)?;
    Ok(walk.finish())
}

impl<E> Walk<'_, E> {
    fn progress(&self) -> Progress {
        Progress {
            read_bytes: self.contents.log_bytes,
            size_bytes: self.space.size_bytes(),
            records: self.contents.records,
            searched: 0,
        }
    }

    /// Takes the next batch, if there is one.
    fn step(&mut self, reader: &mut Reader<'_>) -> Result<bool, OpenError<E>> {
        let here = (self.offset < self.superblock.segment_bytes).then_some((self.segment, self.offset));
        let there = self.next_place.filter(|place| self.space.can_follow(*place));
        let there = there.map(|place| (Segment { place, number: self.segment.number + 1 }, 0));
        for (segment, offset) in [here, there].into_iter().flatten() {
            let at_bytes = self.superblock.place_at_bytes(segment.place) + u64::from(offset);
            let room = (self.superblock.segment_bytes - offset) as usize;
            let head = reader.view(at_bytes, BLOCK_BYTES).map_err(from_read)?;
            let Some(header) =
                BatchHeader::parse(head, &self.keys).filter(|header| self.is_next(header, segment, room))
            else {
                continue;
            };
            let batch = reader.view(at_bytes, header.len as usize).map_err(from_read)?;
            let record_key = self.keys.record(header.epoch);
            if !self.is_whole(&header, batch, record_key) {
                continue;
            }
            if segment != self.segment {
                self.space.follow(segment.place).map_err(|_| OpenError::OutOfMemory)?;
                self.segment = segment;
            }
            self.take(&header, at_bytes, batch)?;
            reader.expect(self.segment.place, self.next_place);
            self.offset = offset + padded(header.len as usize) as u32;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether a header is that of the batch that is expected.
    fn is_next(&self, header: &BatchHeader, segment: Segment, room: usize) -> bool {
        let len = header.len as usize;
        header.number == self.number
            && header.segment == segment.number
            && (self.epoch..=self.superblock.epoch).contains(&header.epoch)
            && header.first_sequence == self.appended + 1
            && (BATCH_HEADER_BYTES..=MAX_BATCH_BYTES).contains(&len)
            && len <= room
    }

    /// Whether all records of a batch are as written. Nobody hears of one before that is known of all.
    fn is_whole(&self, header: &BatchHeader, batch: &[u8], record_key: u64) -> bool {
        let mut rest = &batch[BATCH_HEADER_BYTES..];
        let mut sequence = header.first_sequence;
        let mut is_continued = self.pending.is_some();
        let mut is_first = true;
        while !rest.is_empty() {
            let Some(record) = RecordHeader::parse(rest, record_key) else { return false };
            // A record that an earlier life left unfinished may be followed by another under its number.
            let fits = if record.part.is_continuation { is_continued } else { is_first || !is_continued };
            if record.sequence != sequence || !fits {
                return false;
            }
            is_continued = record.part.is_continued;
            is_first = false;
            sequence += u64::from(!is_continued);
            rest = &rest[RECORD_HEADER_BYTES + record.len..];
        }
        true
    }

    /// Shows the records of a batch that is whole.
    fn take(&mut self, header: &BatchHeader, at_bytes: u64, batch: &[u8]) -> Result<(), OpenError<E>> {
        let mut rest = &batch[BATCH_HEADER_BYTES..];
        while !rest.is_empty() {
            let record = RecordHeader::parse_checked(rest);
            let (bytes, after) = rest[RECORD_HEADER_BYTES..].split_at(record.len);
            rest = after;
            if !record.part.is_continuation {
                self.pending = None;
            }
            if record.part.is_continuation || record.part.is_continued {
                let (_, parts) = self.pending.get_or_insert_with(|| (record.kind, Vec::new()));
                gather(parts, bytes).map_err(|_| OpenError::OutOfMemory)?;
            }
            if record.part.is_continued {
                continue;
            }
            let result = match self.pending.take() {
                Some((kind, parts)) => (self.visit)(kind, &parts),
                None => (self.visit)(record.kind, bytes),
            };
            result.map_err(|error| OpenError::Refused { sequence: record.sequence, at_bytes, error })?;
            self.appended = record.sequence;
            self.contents.records += 1;
        }
        self.number += 1;
        self.epoch = header.epoch;
        self.next_place = header.next_place;
        self.contents.batches += 1;
        self.contents.log_bytes += padded(header.len as usize) as u64;
        Ok(())
    }

    /// Looks for traces of the batch that is missing: a later one that knows it to have been stable.
    fn look_beyond(
        &mut self,
        device: &mut dyn BlockDevice,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), OpenError<E>> {
        let segment_bytes = self.superblock.segment_bytes;
        let segment_at = self.superblock.place_at_bytes(self.segment.place);
        let at_bytes = segment_at + u64::from(self.offset);
        let mut stable_batch = self.superblock.stable_batch;
        let next = self.next_place.filter(|place| self.space.can_follow(*place));
        // All of where the missing batch and those in flight with it would be, and the beginning of every other segment.
        let ranges = core::iter::once((at_bytes, segment_bytes - self.offset))
            .chain(next.map(|place| (self.superblock.place_at_bytes(place), segment_bytes)))
            .chain(
                self.space
                    .places_outside()
                    .filter(|place| Some(*place) != next)
                    .map(|place| (self.superblock.place_at_bytes(place), BLOCK_BYTES as u32)),
            );
        let mut is_torn = false;
        let (keys, number, epoch) = (self.keys, self.number, self.superblock.epoch);
        // There may be a million of them.
        let mut now = self.progress();
        scan(device, ranges, &mut |bytes| {
            now.searched += u64::from(bytes.len() == BLOCK_BYTES);
            progress(now);
            for block in bytes.chunks_exact(BLOCK_BYTES) {
                let Some(header) = BatchHeader::parse(block, &keys) else { continue };
                if header.number >= number {
                    is_torn = true;
                    stable_batch = stable_batch.max(header.stable_batch);
                    if header.epoch > epoch {
                        // It was written after a superblock that is gone: all before that was stable.
                        stable_batch = stable_batch.max(header.number);
                    }
                }
            }
        })
        .map_err(from_read)?;
        self.contents.is_torn = is_torn;
        if stable_batch >= self.number {
            return Err(OpenError::Damaged {
                at_bytes: if self.offset < segment_bytes {
                    at_bytes
                } else {
                    next.map_or(at_bytes, |place| self.superblock.place_at_bytes(place))
                },
                batch: self.number,
                sequence: self.appended + 1,
                stable_batch,
            });
        }
        Ok(())
    }

    fn finish(mut self) -> Recovered {
        self.space.end_at(self.offset, self.next_place);
        let contents = &mut self.contents;
        contents.used_segments = (self.segment.number - self.superblock.first_segment + 1) as u32;
        contents.last_sequence = self.appended;
        contents.end_at_bytes = self.superblock.place_at_bytes(self.segment.place) + u64::from(self.offset);
        contents.cut_record_bytes = self.pending.map_or(0, |(_, parts)| parts.len() as u64);
        Recovered { contents: self.contents, space: self.space, next_number: self.number, appended: self.appended }
    }
}

fn from_read<E>(error: ReadError) -> OpenError<E> {
    match error {
        ReadError::Device(error) => OpenError::Device(error),
        ReadError::OutOfMemory => OpenError::OutOfMemory,
    }
}
