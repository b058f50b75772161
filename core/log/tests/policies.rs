//! When records are written and flushed, and what waits for what.

mod memory;

use kayvee_log::{FlushPolicy, Kind, Log, RecordError};
use kayvee_platform::Operation::{self, Flush, Write, WriteStable};
use memory::MemoryDisk;

const MS: u64 = 1_000_000;

fn fresh() -> (MemoryDisk, Log) {
    let mut disk = MemoryDisk::new(64 << 20);
    let log = Log::format(&mut disk, [3; 16]).expect("a log");
    disk.started.clear();
    (disk, log)
}

fn append(log: &mut Log, kind: Kind, len: usize) -> Result<(), RecordError> {
    let mut record = log.record(kind)?;
    record.push(&vec![1; len])?;
    record.commit();
    Ok(())
}

fn started(disk: &mut MemoryDisk) -> Vec<Operation> {
    std::mem::take(&mut disk.started)
}

#[test]
fn one_flush_serves_all_turns_that_came_while_the_device_worked() {
    let (mut disk, mut log) = fresh();
    disk.is_held = true;
    append(&mut log, Kind::EFFECTS, 60).expect("room");
    assert_eq!(log.drive(&mut disk, FlushPolicy::Always, 0), None);
    assert_eq!(started(&mut disk), [WriteStable]);
    for _ in 0..5 {
        append(&mut log, Kind::EFFECTS, 60).expect("room");
        log.drive(&mut disk, FlushPolicy::Always, 0);
    }
    assert_eq!((started(&mut disk), log.durable()), (vec![], 0));
    disk.is_held = false;
    // The device is done with the first one, and with the second one at once.
    log.drive(&mut disk, FlushPolicy::Always, 0);
    assert_eq!((started(&mut disk), log.durable()), (vec![WriteStable], 6));
    assert_eq!(log.counters().flushes, 2);
}

#[test]
fn several_batches_are_written_together_and_flushed_once() {
    let (mut disk, mut log) = fresh();
    append(&mut log, Kind::EFFECTS, 500_000).expect("room");
    disk.is_held = true;
    log.drive(&mut disk, FlushPolicy::Always, 0);
    assert_eq!(started(&mut disk), [Write; 8]);
    disk.is_held = false;
    log.drive(&mut disk, FlushPolicy::Always, 0);
    log.drive(&mut disk, FlushPolicy::Always, 0);
    assert_eq!((started(&mut disk), log.durable()), (vec![Flush], 1));
}

#[test]
fn every_second_gathers_and_flushes_by_the_clock() {
    let (mut disk, mut log) = fresh();
    let start = 5000 * MS;
    append(&mut log, Kind::EFFECTS, 60).expect("room");
    assert_eq!(log.drive(&mut disk, FlushPolicy::EverySecond, start), Some(start + 100 * MS));
    assert!(started(&mut disk).is_empty());
    log.drive(&mut disk, FlushPolicy::EverySecond, start + 100 * MS);
    // The last flush is long ago.
    log.drive(&mut disk, FlushPolicy::EverySecond, start + 100 * MS);
    assert_eq!(started(&mut disk), [Write, Flush]);
    append(&mut log, Kind::EFFECTS, 60).expect("room");
    assert_eq!(log.drive(&mut disk, FlushPolicy::EverySecond, start + 150 * MS), Some(start + 250 * MS));
    log.drive(&mut disk, FlushPolicy::EverySecond, start + 250 * MS);
    assert_eq!(log.drive(&mut disk, FlushPolicy::EverySecond, start + 260 * MS), Some(start + 1100 * MS));
    assert_eq!((started(&mut disk), log.durable()), (vec![Write], 1));
    log.request_flush();
    log.drive(&mut disk, FlushPolicy::EverySecond, start + 300 * MS);
    assert_eq!(log.drive(&mut disk, FlushPolicy::EverySecond, start + 310 * MS), None);
    assert_eq!((started(&mut disk), log.durable()), (vec![Flush], 2));
}

#[test]
fn state_alone_waits_for_a_full_batch_or_for_company() {
    for policy in [FlushPolicy::Always, FlushPolicy::EverySecond, FlushPolicy::No] {
        let (mut disk, mut log) = fresh();
        append(&mut log, Kind::STATE, 60).expect("room");
        assert_eq!(log.drive(&mut disk, policy, 0), None);
        assert_eq!(log.drive(&mut disk, policy, 10_000 * MS), None);
        assert!(started(&mut disk).is_empty());
        append(&mut log, Kind::EFFECTS, 60).expect("room");
        log.request_flush();
        log.drive(&mut disk, policy, 10_000 * MS);
        log.drive(&mut disk, policy, 10_000 * MS);
        assert_eq!((started(&mut disk), log.durable()), (vec![WriteStable], 2));
    }
}

#[test]
fn buffers_are_bounded_and_patience_is_asked_for() {
    for (bytes, records) in [(4 << 20, 21), (8 << 20, 42), (0, 3)] {
        fill_buffers(bytes, records);
    }
}

fn fill_buffers(bytes: usize, records: usize) {
    let (mut disk, mut log) = fresh();
    log.set_buffers_bytes(bytes);
    disk.is_held = true;
    let mut turns = 0;
    while !log.is_congested() {
        append(&mut log, Kind::EFFECTS, 100_000).expect("room");
        log.drive(&mut disk, FlushPolicy::No, 0);
        turns += 1;
    }
    // A batch is as long as a segment of this disk, which is half a buffer.
    assert_eq!(turns, records, "so many records of 100 kB fill the buffers");
    disk.is_held = false;
    for _ in 0..4 {
        log.drive(&mut disk, FlushPolicy::No, 0);
    }
    assert!(!log.is_congested());
}
