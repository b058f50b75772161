//! What lies on the disk, byte by byte: views that check what they read, and emitters that are their inverses.
//! `docs/log-format.md` has the diagrams.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The unit in which the log is written. At least the block of every device, and of most media behind one that says 512:
/// a block that holds acknowledged bytes is never written again, not even in part.
pub const BLOCK_BYTES: usize = 4096;
/// The version that this code writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Where the two superblocks lie.
pub const SUPERBLOCKS_AT: [u64; 2] = [0, 64 << 10];
/// Where the first segment begins.
pub const SEGMENTS_AT: u64 = 128 << 10;
/// No batch is longer, in any disk of this version.
pub const MAX_BATCH_BYTES: usize = 1 << 20;
/// Bytes of a segment.
pub const MIN_SEGMENT_BYTES: u32 = 64 << 10;
/// Bytes of a segment.
pub const MAX_SEGMENT_BYTES: u32 = 16 << 20;
/// A disk is cut into about so many segments when it is formatted.
const SEGMENTS_WANTED: u64 = 1024;
/// With fewer segments there is nothing to recycle.
pub const MIN_SEGMENTS: u32 = 8;
/// More are never used: 64 TiB of the largest.
pub const MAX_SEGMENTS: u32 = 1 << 22;

/// Bytes of a batch's header.
pub const BATCH_HEADER_BYTES: usize = 64;
/// Bytes of a record's header, or that of a part of a record.
pub const RECORD_HEADER_BYTES: usize = 16;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"kayvee\x1a\n";
/// Bytes of a superblock that its checksum covers, with the checksum's own place left out.
const SUPERBLOCK_BYTES: usize = 128;
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"KvBt");
const NO_SEGMENT: u32 = u32::MAX;

const _: () = assert!(MIN_SEGMENT_BYTES as usize >= BLOCK_BYTES && MAX_BATCH_BYTES < 1 << 24);
const _: () = assert!(SUPERBLOCKS_AT[1] + BLOCK_BYTES as u64 <= SEGMENTS_AT);

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Bytes of segments for a device of this size.
pub fn segment_bytes_for(size_bytes: u64) -> u32 {
    let wanted = (size_bytes / SEGMENTS_WANTED).next_power_of_two();
    wanted.clamp(MIN_SEGMENT_BYTES.into(), MAX_SEGMENT_BYTES.into()) as u32
}

/// How many whole segments a device has.
pub fn segments_of(size_bytes: u64, segment_bytes: u32) -> u32 {
    (size_bytes.saturating_sub(SEGMENTS_AT) / u64::from(segment_bytes)).min(MAX_SEGMENTS.into()) as u32
}

/// Rounds up to whole blocks.
pub fn padded(len: usize) -> usize {
    len.next_multiple_of(BLOCK_BYTES)
}

/// What both superblocks say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Grows with each writing.
    pub generation: u64,
    /// Names this log among all.
    pub id: [u8; 16],
    /// Bytes of a segment: a power of two.
    pub segment_bytes: u32,
    /// How many segments there are.
    pub segment_count: u32,
    /// How often the log was opened for writing.
    pub epoch: u64,
    /// Where the log begins: place among the segments.
    pub first_place: u32,
    /// Where the log begins: number of the segment.
    pub first_segment: u64,
    /// Number of the first batch.
    pub first_batch: u64,
    /// Number of the first record.
    pub first_sequence: u64,
    /// Every batch through this one was stable when this was written.
    pub stable_batch: u64,
}

/// What a block that should be a superblock is instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSuperblock {
    /// Zeros alone.
    Blank,
    /// Something else.
    Foreign,
    /// One that is damaged.
    Damaged,
    /// One of a version that this code does not know.
    Version(u32),
}

impl Superblock {
    /// Reads a block. The first 24 bytes and the checksum are the same in every version.
    pub fn parse(block: &[u8]) -> Result<Superblock, NoSuperblock> {
        if block[..8] != SUPERBLOCK_MAGIC {
            let blank = block.iter().all(|byte| *byte == 0);
            return Err(if blank { NoSuperblock::Blank } else { NoSuperblock::Foreign });
        }
        if u64_at(block, 8) != xxh3_64_with_seed(&block[16..SUPERBLOCK_BYTES], 0) {
            return Err(NoSuperblock::Damaged);
        }
        let version = u32_at(block, 16);
        if version != FORMAT_VERSION {
            return Err(NoSuperblock::Version(version));
        }
        let superblock = Superblock {
            generation: u64_at(block, 24),
            id: block[32..48].try_into().expect("sixteen bytes"),
            segment_bytes: u32_at(block, 48),
            segment_count: u32_at(block, 52),
            epoch: u64_at(block, 56),
            first_place: u32_at(block, 64),
            first_segment: u64_at(block, 72),
            first_batch: u64_at(block, 80),
            first_sequence: u64_at(block, 88),
            stable_batch: u64_at(block, 96),
        };
        if superblock.is_sound() { Ok(superblock) } else { Err(NoSuperblock::Damaged) }
    }

    /// A checksum proves only that nothing changed, not that a writer was sane. What follows may then rely on it.
    fn is_sound(&self) -> bool {
        // Numbers only grow, by one for at least a byte that is written.
        const MAX_NUMBER: u64 = 1 << 62;
        self.segment_bytes.is_power_of_two()
            && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes)
            && (MIN_SEGMENTS..=MAX_SEGMENTS).contains(&self.segment_count)
            && self.first_place < self.segment_count
            && [self.generation, self.epoch, self.first_segment, self.first_batch, self.first_sequence]
                .iter()
                .all(|number| (1..MAX_NUMBER).contains(number))
            && self.stable_batch < MAX_NUMBER
    }

    /// Writes a block.
    pub fn emit(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
        block[16..20].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[20..24].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        block[24..32].copy_from_slice(&self.generation.to_le_bytes());
        block[32..48].copy_from_slice(&self.id);
        block[48..52].copy_from_slice(&self.segment_bytes.to_le_bytes());
        block[52..56].copy_from_slice(&self.segment_count.to_le_bytes());
        block[56..64].copy_from_slice(&self.epoch.to_le_bytes());
        block[64..68].copy_from_slice(&self.first_place.to_le_bytes());
        block[72..80].copy_from_slice(&self.first_segment.to_le_bytes());
        block[80..88].copy_from_slice(&self.first_batch.to_le_bytes());
        block[88..96].copy_from_slice(&self.first_sequence.to_le_bytes());
        block[96..104].copy_from_slice(&self.stable_batch.to_le_bytes());
        let checksum = xxh3_64_with_seed(&block[16..SUPERBLOCK_BYTES], 0);
        block[8..16].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Where a segment begins on the device.
    pub fn place_at_bytes(&self, place: u32) -> u64 {
        SEGMENTS_AT + u64::from(place) * u64::from(self.segment_bytes)
    }
}

/// What the checksums of a log are mixed with, so that no other log's bytes pass for its own.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// For headers of batches.
    batch: u64,
    id: [u8; 16],
}

impl Keys {
    /// Those of a log.
    pub fn new(id: &[u8; 16]) -> Keys {
        Keys { batch: xxh3_64_with_seed(id, 0), id: *id }
    }

    /// For records of one epoch, so that what an earlier life of the log left unfinished does not pass for this one's.
    pub fn record(&self, epoch: u64) -> u64 {
        xxh3_64_with_seed(&self.id, epoch)
    }
}

/// What stands before the records of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Bytes of the batch that are used, this header among them. The rest of the last block is padding.
    pub len: u32,
    /// Where the next segment is, if that is known.
    pub next_place: Option<u32>,
    /// Each has one more than the one before.
    pub number: u64,
    /// Number of the segment that it lies in.
    pub segment: u64,
    /// In which life of the log it was written.
    pub epoch: u64,
    /// Number of the record that it begins with or goes on with.
    pub first_sequence: u64,
    /// Every batch through this one was stable when this was written.
    pub stable_batch: u64,
}

impl BatchHeader {
    /// Reads a header; nothing unless it is one of this log.
    pub fn parse(bytes: &[u8], keys: &Keys) -> Option<BatchHeader> {
        let bytes = &bytes[..BATCH_HEADER_BYTES];
        if u32_at(bytes, 8) != BATCH_MAGIC || u64_at(bytes, 0) != xxh3_64_with_seed(&bytes[8..], keys.batch) {
            return None;
        }
        let next_place = u32_at(bytes, 16);
        Some(BatchHeader {
            len: u32_at(bytes, 12),
            next_place: (next_place != NO_SEGMENT).then_some(next_place),
            number: u64_at(bytes, 24),
            segment: u64_at(bytes, 32),
            epoch: u64_at(bytes, 40),
            first_sequence: u64_at(bytes, 48),
            stable_batch: u64_at(bytes, 56),
        })
    }

    /// Writes a header.
    pub fn emit(&self, bytes: &mut [u8], keys: &Keys) {
        let bytes = &mut bytes[..BATCH_HEADER_BYTES];
        bytes[8..12].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.next_place.unwrap_or(NO_SEGMENT).to_le_bytes());
        bytes[20..24].fill(0);
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.segment.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.stable_batch.to_le_bytes());
        let checksum = xxh3_64_with_seed(&bytes[8..], keys.batch);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// What a record is: one byte that the log keeps beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u8);

impl Kind {
    /// What commands have done. It may use only the room that a compaction does not need, and is written without delay.
    pub const EFFECTS: Kind = Kind(0);
    /// What a compaction writes. It may use the room that is kept for compactions, and waits until a buffer is full or
    /// something is urgent.
    pub const STATE: Kind = Kind(1);
    /// What commands have done that make data fewer: [`EFFECTS`](Self::EFFECTS) that may use all the room there is, so that
    /// an almost full disk can be made less full.
    pub const RELEASES: Kind = Kind(3);
    /// There are so many kinds.
    pub const COUNT: u8 = 64;

    /// Another kind, below [`COUNT`](Self::COUNT). It is treated as [`STATE`](Self::STATE).
    pub const fn new(code: u8) -> Kind {
        assert!(code < Kind::COUNT, "kinds have six bits");
        Kind(code)
    }

    /// Whether somebody may wait for it.
    pub(crate) fn is_urgent(self) -> bool {
        matches!(self, Kind::EFFECTS | Kind::RELEASES)
    }

    /// Its number.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Which part of a record follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// It goes on with what the batch before has begun.
    pub is_continuation: bool,
    /// The next batch goes on with it.
    pub is_continued: bool,
}

const IS_CONTINUATION: u8 = 0x40;
const IS_CONTINUED: u8 = 0x80;

/// What stands before a record, or before a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes that follow.
    pub len: usize,
    /// Of the record.
    pub kind: Kind,
    /// Which part it is.
    pub part: Part,
    /// Number of the record.
    pub sequence: u64,
}

impl RecordHeader {
    /// Reads a header and checks it together with the bytes that follow it; nothing unless all of them are as written.
    #[inline]
    pub fn parse(bytes: &[u8], key: u64) -> Option<RecordHeader> {
        if bytes.len() < RECORD_HEADER_BYTES {
            return None;
        }
        let len = (u32_at(bytes, 4) & 0xff_ffff) as usize;
        let whole = bytes.get(..RECORD_HEADER_BYTES + len)?;
        if u32_at(whole, 0) != xxh3_64_with_seed(&whole[4..], key) as u32 {
            return None;
        }
        Some(RecordHeader::parse_checked(bytes))
    }

    /// Reads a header that was checked before.
    #[inline]
    pub fn parse_checked(bytes: &[u8]) -> RecordHeader {
        let word = u32_at(bytes, 4);
        let flags = (word >> 24) as u8;
        RecordHeader {
            len: (word & 0xff_ffff) as usize,
            kind: Kind(flags & (Kind::COUNT - 1)),
            part: Part { is_continuation: flags & IS_CONTINUATION != 0, is_continued: flags & IS_CONTINUED != 0 },
            sequence: u64_at(bytes, 8),
        }
    }

    /// Writes the header before the `len` bytes that are there already, all but the checksum.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        let header = &mut bytes[..RECORD_HEADER_BYTES];
        let mut flags = self.kind.0;
        if self.part.is_continuation {
            flags |= IS_CONTINUATION;
        }
        if self.part.is_continued {
            flags |= IS_CONTINUED;
        }
        let word = self.len as u32 | u32::from(flags) << 24;
        header[4..8].copy_from_slice(&word.to_le_bytes());
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
    }
}

/// Gives the records of a batch, which stand one behind the other, their checksums. That is done for all of them at the end:
/// a processor that reads what it has just written by a few bytes each waits for them.
pub fn seal_records(mut records: &mut [u8], key: u64) {
    while !records.is_empty() {
        let len = RECORD_HEADER_BYTES + RecordHeader::parse_checked(records).len;
        let (record, rest) = records.split_at_mut(len);
        let checksum = xxh3_64_with_seed(&record[4..], key) as u32;
        record[..4].copy_from_slice(&checksum.to_le_bytes());
        records = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblocks_come_back_as_they_were_and_no_bit_of_them_may_change() {
        let superblock = Superblock {
            generation: 7,
            id: *b"sixteen letters.",
            segment_bytes: 1 << 20,
            segment_count: 1000,
            epoch: 3,
            first_place: 999,
            first_segment: 12,
            first_batch: 345,
            first_sequence: 6789,
            stable_batch: 400,
        };
        let mut block = [1; BLOCK_BYTES];
        superblock.emit(&mut block);
        assert_eq!(Superblock::parse(&block), Ok(superblock));
        for bit in 0..8 * SUPERBLOCK_BYTES {
            block[bit / 8] ^= 1 << (bit % 8);
            let wanted = if bit < 64 { NoSuperblock::Foreign } else { NoSuperblock::Damaged };
            assert_eq!(Superblock::parse(&block), Err(wanted), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn batch_headers_belong_to_one_log() {
        let keys = Keys::new(b"sixteen letters.");
        for next_place in [None, Some(0), Some(77)] {
            let (number, segment, epoch, first_sequence, stable_batch) = (1, 2, 3, 4, 5);
            let header = BatchHeader { len: 70, next_place, number, segment, epoch, first_sequence, stable_batch };
            let mut bytes = [9; BATCH_HEADER_BYTES];
            header.emit(&mut bytes, &keys);
            assert_eq!(BatchHeader::parse(&bytes, &keys), Some(header));
            assert_eq!(BatchHeader::parse(&bytes, &Keys::new(b"another sixteen.")), None);
            for bit in 0..8 * BATCH_HEADER_BYTES {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(BatchHeader::parse(&bytes, &keys), None, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn records_belong_to_one_epoch_and_are_whole() {
        let keys = Keys::new(b"sixteen letters.");
        for (is_continuation, is_continued) in [(false, false), (false, true), (true, false), (true, true)] {
            let part = Part { is_continuation, is_continued };
            let header = RecordHeader { len: 5, kind: Kind::new(63), part, sequence: 1 << 40 };
            let mut bytes = *b"................12345";
            header.emit(&mut bytes);
            seal_records(&mut bytes, keys.record(1));
            assert_eq!(&bytes[RECORD_HEADER_BYTES..], b"12345");
            assert_eq!(RecordHeader::parse(&bytes, keys.record(1)), Some(header));
            assert_eq!(RecordHeader::parse(&bytes, keys.record(2)), None);
            for len in 0..bytes.len() {
                assert_eq!(RecordHeader::parse(&bytes[..len], keys.record(1)), None, "{len} bytes");
            }
            for bit in 0..8 * bytes.len() {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(RecordHeader::parse(&bytes, keys.record(1)), None, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn segments_suit_the_disk() {
        assert_eq!(segment_bytes_for(1 << 20), MIN_SEGMENT_BYTES);
        assert_eq!(segment_bytes_for(1 << 30), 1 << 20);
        assert_eq!(segment_bytes_for(1 << 40), MAX_SEGMENT_BYTES);
        assert_eq!(segments_of(SEGMENTS_AT - 1, MIN_SEGMENT_BYTES), 0);
        assert_eq!(segments_of(SEGMENTS_AT + 8 * (64 << 10) + 4096, MIN_SEGMENT_BYTES), 8);
    }
}
