//! What a log refuses to open, what it says, and that the disk is then as it was.

mod memory;

use kayvee_log::{BLOCK_BYTES, Contents, FormatError, Kind, Log, OpenError, READ_AHEAD_BYTES, check, minimum_bytes};
use memory::MemoryDisk;

const SUPERBLOCKS_AT: [usize; 2] = [0, 65_536];

/// A log of several segments and batches that was not closed: all of it but the last batch is known to be stable.
fn disk() -> MemoryDisk {
    let mut disk = MemoryDisk::new(2 << 20);
    let mut log = Log::format(&mut disk, *b"sixteen letters.").expect("a log");
    for i in 0..60_u8 {
        let mut record = log.record(Kind::EFFECTS).expect("room");
        record.push(&[i; 10_000]).expect("room");
        record.commit();
        log.sync(&mut disk, 0).expect("a disk that works");
    }
    disk
}

fn open(disk: &mut MemoryDisk) -> Result<(Contents, usize), OpenError<&'static str>> {
    let before = disk.bytes.clone();
    let mut records = 0;
    let result = Log::open(
        disk,
        READ_AHEAD_BYTES,
        &mut |_, _| {
            records += 1;
            Ok(())
        },
        &mut |_| {},
    );
    match result {
        Ok(opened) => Ok((opened.contents, records)),
        Err(error) => {
            assert!(disk.bytes == before, "the disk is as it was");
            Err(error)
        }
    }
}

#[test]
fn a_sound_log_opens() {
    let (contents, records) = open(&mut disk()).expect("a sound log");
    assert_eq!((records, contents.last_sequence, contents.bad_superblocks, contents.is_torn), (60, 60, 0, false));
}

#[test]
fn one_damaged_superblock_is_mended() {
    for at in SUPERBLOCKS_AT {
        let mut disk = disk();
        disk.bytes[at + 70] ^= 1;
        assert_eq!(open(&mut disk).expect("the other one").0.bad_superblocks, 1);
        assert_eq!(open(&mut disk).expect("both").0.bad_superblocks, 0);
    }
}

#[test]
fn what_is_no_log_is_told_from_a_damaged_one() {
    assert_eq!(open(&mut MemoryDisk::new(1 << 20)).unwrap_err(), OpenError::Blank);
    assert_eq!(open(&mut MemoryDisk::new(0)).unwrap_err(), OpenError::Blank);
    let mut foreign = MemoryDisk::new(1 << 20);
    foreign.bytes[510] = 0x55;
    assert_eq!(open(&mut foreign).unwrap_err(), OpenError::Foreign);
    let mut damaged = disk();
    SUPERBLOCKS_AT.iter().for_each(|at| damaged.bytes[at + 100] ^= 1);
    assert_eq!(open(&mut damaged).unwrap_err(), OpenError::SuperblocksDamaged);
}

#[test]
fn a_newer_version_is_left_to_a_newer_kayvee() {
    let mut disk = disk();
    for at in SUPERBLOCKS_AT {
        disk.bytes[at + 16] = 9;
        // Fixed for every version: the checksum of 112 bytes stands in front of them.
        let checksum = xxhash_rust::xxh3::xxh3_64(&disk.bytes[at + 16..at + 128]);
        disk.bytes[at + 8..at + 16].copy_from_slice(&checksum.to_le_bytes());
    }
    let error = open(&mut disk).unwrap_err();
    assert_eq!(error, OpenError::NewerVersion { version: 9 });
    assert!(error.to_string().contains("version 9"), "{error}");
}

#[test]
fn a_disk_that_has_lost_its_end_is_refused() {
    let mut disk = disk();
    disk.bytes.truncate(1 << 20);
    assert!(matches!(open(&mut disk), Err(OpenError::Shrunk { size_bytes: 0x10_0000, needed_bytes: 0x20_0000 })));
}

#[test]
fn a_disk_that_is_too_small_is_not_formatted() {
    let mut disk = MemoryDisk::new(minimum_bytes() - 1);
    let error = Log::format(&mut disk, [0; 16]).unwrap_err();
    assert!(matches!(error, FormatError::TooSmall { .. }), "{error}");
    assert!(disk.bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn damage_to_what_was_stable_is_refused_wherever_it_is() {
    let sound = disk();
    let mut copy = MemoryDisk::with(sound.bytes.clone());
    let contents = check::<&str>(&mut copy, READ_AHEAD_BYTES, &mut |_, _| Ok(()), &mut |_| {});
    let end = contents.expect("a sound log").end_at_bytes as usize;
    let last_batch = end - 3 * BLOCK_BYTES;
    for at in (131_072..last_batch).step_by(997) {
        let mut disk = MemoryDisk::with(sound.bytes.clone());
        disk.bytes[at] ^= 0x10;
        match open(&mut disk) {
            Err(OpenError::Damaged { at_bytes, batch, sequence, stable_batch }) => {
                // The batch that it lies in, or what follows a batch whose end is gone.
                assert!((at as u64).abs_diff(at_bytes) < 65_536, "byte {at}, told {at_bytes}");
                assert!(batch <= stable_batch && sequence <= 60, "batch {batch} of {stable_batch}");
            }
            Ok((_, 60)) => assert!(sound.bytes[at] == 0, "byte {at} is of no account only if it is padding"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn a_whole_segment_that_is_gone_is_missed() {
    let sound = disk();
    // The log has some twelve segments of 64 KiB. The first one is the beginning that superblocks name.
    for segment in 0..10 {
        let mut disk = MemoryDisk::with(sound.bytes.clone());
        let at = 131_072 + segment * 65_536;
        disk.bytes[at..at + 65_536].fill(0);
        let error = open(&mut disk).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { at_bytes, .. } if at_bytes == at as u64), "{segment}: {error}");
    }
}

#[test]
fn a_record_that_is_refused_says_which() {
    let mut disk = disk();
    let before = disk.bytes.clone();
    let mut records = 0;
    let result = Log::open(
        &mut disk,
        READ_AHEAD_BYTES,
        &mut |_, _| {
            records += 1;
            if records == 17 { Err("not this one") } else { Ok(()) }
        },
        &mut |_| {},
    );
    let error = result.unwrap_err();
    assert!(matches!(error, OpenError::Refused { sequence: 17, error: "not this one", .. }), "{error}");
    assert!(disk.bytes == before);
}

#[test]
fn damage_to_the_last_batch_of_a_closed_log_is_refused() {
    let mut disk = disk();
    let mut opened =
        Log::open::<&str>(&mut disk, READ_AHEAD_BYTES, &mut |_, _| Ok(()), &mut |_| {}).expect("a sound log");
    let end = opened.contents.end_at_bytes as usize;
    opened.log.close(&mut disk, 0).expect("a disk that works");
    disk.bytes[end - 2 * BLOCK_BYTES] ^= 1;
    assert!(matches!(open(&mut disk), Err(OpenError::Damaged { sequence: 60, .. })));
}

#[test]
fn a_disk_that_has_grown_is_used_wholly() {
    let mut disk = disk();
    disk.bytes.resize(4 << 20, 0);
    let opened = Log::open::<&str>(&mut disk, READ_AHEAD_BYTES, &mut |_, _| Ok(()), &mut |_| {}).expect("a sound log");
    assert_eq!(opened.grown_bytes, 2 << 20);
    assert_eq!(opened.log.size_bytes(), (4 << 20) - 131_072);
    let mut log = opened.log;
    let mut written = 0;
    while let Ok(mut record) = log.record(Kind::EFFECTS) {
        if record.push(&[3; 1000]).is_err() {
            break;
        }
        record.commit();
        written += 1;
    }
    log.sync(&mut disk, 0).expect("a disk that works");
    assert!(written > 3000);
    assert_eq!(open(&mut disk).expect("a sound log").1, 60 + written);
}
