//! The persistent log on a disk that says anything.

use crate::disk::SimulatedDisk;
use kayvee_log::{BLOCK_BYTES, Kind, Log, OpenError, READ_AHEAD_BYTES, minimum_bytes};
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SUPERBLOCKS_AT: [usize; 2] = [0, 64 << 10];
const SEGMENTS_AT: usize = 128 << 10;
const BATCH_HEADER_BYTES: usize = 64;
const RECORD_HEADER_BYTES: usize = 16;
const ID: [u8; 16] = *b"a log of fuzzers";

/// A disk with a log of several lives and a compaction, so that there is something to spoil.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let mut disk = SimulatedDisk::new(minimum_bytes() as usize, 1);
        let mut log = Log::format(&mut disk, ID).expect("a log");
        for life in 0..3_u8 {
            for i in 0..12_u8 {
                append(&mut log, &vec![i; usize::from(i) * 700]);
                log.sync(&mut disk, 0).expect("a disk that works");
            }
            if life == 1 {
                log.begin_compaction().expect("room");
                append(&mut log, &vec![life; 90_000]);
                log.finish_compaction();
                log.sync(&mut disk, 0).expect("a disk that works");
            }
            log =
                Log::open::<()>(&mut disk, READ_AHEAD_BYTES, &mut |_, _| Ok(()), &mut |_| {}).expect("a sound log").log;
        }
        log.close(&mut disk, 0).expect("a disk that works");
        disk.bytes().to_vec()
    })
}

fn append(log: &mut Log, bytes: &[u8]) -> bool {
    let Ok(mut record) = log.record(Kind::EFFECTS) else { return false };
    if record.push(bytes).is_err() {
        return false;
    }
    record.commit();
    true
}

fn put_checksum(bytes: &mut [u8], seed: u64) {
    let checksum = xxh3_64_with_seed(&bytes[8..], seed);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Makes checksums right again, so that what they guard is looked at.
fn forge(image: &mut [u8]) {
    for at in SUPERBLOCKS_AT {
        let checksum = xxh3_64_with_seed(&image[at + 16..at + 128], 0);
        image[at + 8..at + 16].copy_from_slice(&checksum.to_le_bytes());
    }
    let id: [u8; 16] = image[32..48].try_into().expect("sixteen bytes");
    let batch_key = xxh3_64_with_seed(&id, 0);
    for at in (SEGMENTS_AT..image.len()).step_by(BLOCK_BYTES) {
        if image[at + 8..at + 12] != *b"KvBt" {
            continue;
        }
        let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes")) as usize;
        let end = (at + word(at + 12)).min(image.len());
        let epoch = u64::from_le_bytes(image[at + 40..at + 48].try_into().expect("eight bytes"));
        let record_key = xxh3_64_with_seed(&id, epoch);
        put_checksum(&mut image[at..at + BATCH_HEADER_BYTES], batch_key);
        let mut record = at + BATCH_HEADER_BYTES;
        while record + RECORD_HEADER_BYTES <= end {
            let word = u32::from_le_bytes(image[record + 4..record + 8].try_into().expect("four bytes"));
            let next = record + RECORD_HEADER_BYTES + (word & 0xff_ffff) as usize;
            if next > end {
                break;
            }
            let checksum = xxh3_64_with_seed(&image[record + 4..next], record_key) as u32;
            image[record..record + 4].copy_from_slice(&checksum.to_le_bytes());
            record = next;
        }
    }
}

/// Opens a disk whose log was spoiled: `data` is a byte of flags and patches, each of three bytes for a place, one for a
/// length, and the bytes to put there. What opens goes on to work, and what it held is there again.
pub fn log(data: &[u8]) {
    let Some((&flags, mut patches)) = data.split_first() else { return };
    let mut bytes = image().to_vec();
    while let Some((&[a, b, c, len], rest)) = patches.split_first_chunk() {
        let (patch, rest) = rest.split_at(rest.len().min(len.into()));
        // Where there is structure: in the superblocks, or in the first bytes of a block.
        let place = u32::from_le_bytes([a, b, c, 0]) as usize;
        let at = match place % 4 {
            0 => SUPERBLOCKS_AT[place / 4 % 2] + place / 8 % 128,
            1 => SEGMENTS_AT + place / 4 % 128 * BLOCK_BYTES + place / 512 % 128,
            _ => place % bytes.len(),
        };
        let end = (at + patch.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&patch[..end - at]);
        patches = rest;
    }
    if flags & 1 != 0 {
        forge(&mut bytes);
    }
    let size_bytes = bytes.len();
    let mut disk = SimulatedDisk::with(bytes, flags.into());
    let mut found: Vec<Vec<u8>> = Vec::new();
    let Ok(mut opened) = open(&mut disk, &mut found) else {
        assert!(disk.bytes().len() == size_bytes && disk.writes() == 0, "what is refused stays as it is");
        return;
    };
    assert!(found.iter().map(Vec::len).sum::<usize>() <= size_bytes, "no record comes twice");
    if append(&mut opened, b"one more") {
        found.push(b"one more".to_vec());
    }
    // There may be no room for a compaction; if there is, it finishes.
    if flags & 2 != 0 && opened.begin_compaction().is_ok() {
        opened.finish_compaction();
        found.clear();
    }
    opened.sync(&mut disk, 0).expect("a disk that works");
    let mut again = Vec::new();
    if open(&mut disk, &mut again).is_ok() {
        assert!(again.starts_with(&found), "what was there is there again");
    } else {
        assert!(flags & 1 != 0, "only a forger can make the log its own damage");
    }
}

fn open(disk: &mut SimulatedDisk, found: &mut Vec<Vec<u8>>) -> Result<Log, OpenError<()>> {
    let opened = Log::open(
        disk,
        READ_AHEAD_BYTES,
        &mut |_, bytes| {
            found.push(bytes.to_vec());
            Ok(())
        },
        &mut |_| {},
    )?;
    Ok(opened.log)
}
