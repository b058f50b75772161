//! What a log does on a disk that does what it is told.

mod memory;

use kayvee_log::{
    CompactionStage, FlushPolicy, Kind, Log, OpenError, Progress, READ_AHEAD_BYTES, RecordError, SEGMENTS_AT,
    minimum_bytes,
};
use memory::MemoryDisk;
use std::convert::Infallible;

type Records = Vec<(Kind, Vec<u8>)>;

fn open(disk: &mut MemoryDisk) -> Result<(Log, Records), OpenError<Infallible>> {
    let mut records = Records::new();
    let opened = Log::open(
        disk,
        READ_AHEAD_BYTES,
        &mut |kind, bytes| {
            records.push((kind, bytes.to_vec()));
            Ok(())
        },
        &mut |_| {},
    )?;
    Ok((opened.log, records))
}

fn append(log: &mut Log, kind: Kind, bytes: &[u8]) -> Result<u64, RecordError> {
    let mut record = log.record(kind)?;
    record.push(bytes)?;
    Ok(record.commit())
}

#[test]
fn records_of_any_length_are_there_again() {
    let mut disk = MemoryDisk::new(16 << 20);
    let mut log = Log::format(&mut disk, [7; 16]).expect("a log");
    let mut wanted = Records::new();
    for (i, len) in [0, 1, 60, 4096, 100_000, 131_072, 1 << 20, 3, 5 << 20, 17].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + i) as u8).collect();
        assert_eq!(append(&mut log, Kind::EFFECTS, &bytes), Ok(i as u64 + 1));
        wanted.push((Kind::EFFECTS, bytes));
        if i % 3 == 0 {
            log.sync(&mut disk, 0).expect("a disk that works");
        }
    }
    log.close(&mut disk, 0).expect("a disk that works");
    let (log, records) = open(&mut disk).expect("a sound log");
    assert!(records == wanted);
    assert_eq!((log.appended(), log.durable()), (10, 10));
}

#[test]
fn an_abandoned_record_leaves_no_trace() {
    let mut disk = MemoryDisk::new(4 << 20);
    let mut log = Log::format(&mut disk, [7; 16]).expect("a log");
    append(&mut log, Kind::EFFECTS, b"first").expect("room");
    let free = log.free_bytes();
    for len in [10, 200_000, 1_000_000] {
        let mut record = log.record(Kind::EFFECTS).expect("room");
        record.push(&vec![1; len]).expect("room");
        drop(record);
        assert_eq!(log.free_bytes(), free);
    }
    let mut record = log.record(Kind::EFFECTS).expect("room");
    assert_eq!(record.push(&vec![1; 5 << 20]), Err(RecordError::Full));
    drop(record);
    assert_eq!(log.free_bytes(), free);
    append(&mut log, Kind::STATE, b"second").expect("room");
    log.sync(&mut disk, 0).expect("a disk that works");
    let (_, records) = open(&mut disk).expect("a sound log");
    assert_eq!(records, [(Kind::EFFECTS, b"first".to_vec()), (Kind::STATE, b"second".to_vec())]);
}

#[test]
fn a_long_search_beyond_the_end_is_told_of() {
    let mut disk = MemoryDisk::new(minimum_bytes());
    Log::format(&mut disk, [7; 16]).expect("a log").close(&mut disk, 0).expect("a disk that works");
    // It goes on with the segments of a small disk.
    const SEGMENTS: u64 = 1000;
    disk.bytes.resize(SEGMENTS_AT as usize + SEGMENTS as usize * (64 << 10), 0);
    let mut told = Vec::new();
    let mut note = |progress: Progress| told.push(progress.searched);
    Log::open::<Infallible>(&mut disk, READ_AHEAD_BYTES, &mut |_, _| Ok(()), &mut note).expect("a sound log");
    // All but its own, one by one.
    assert_eq!(told.split_off(told.len() - SEGMENTS as usize + 1), (1..SEGMENTS).collect::<Vec<_>>());
}

#[test]
fn a_compaction_frees_what_lies_before_it() {
    let mut disk = MemoryDisk::new(minimum_bytes());
    let mut log = Log::format(&mut disk, [7; 16]).expect("a log");
    for round in 0..50 {
        while append(&mut log, Kind::EFFECTS, &[round; 1000]).is_ok() {}
        log.begin_compaction().expect("room for a compaction");
        append(&mut log, Kind::STATE, &[round; 50_000]).expect("room for a compaction");
        log.finish_compaction();
        assert_eq!(log.compaction_stage(), CompactionStage::Finishing);
        let mut calls = 0;
        while log.compaction_stage() != CompactionStage::None {
            log.drive(&mut disk, FlushPolicy::Always, 0);
            calls += 1;
            assert!(calls < 20, "the compaction finishes");
        }
        let (reopened, records) = open(&mut disk).expect("a sound log");
        assert_eq!(records, [(Kind::STATE, vec![round; 50_000])]);
        log = reopened;
    }
}
