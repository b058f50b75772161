//! The persistent log on a disk that keeps no promise but those it has made.

use kayvee_log::{
    CompactionStage, Contents, FlushPolicy, Kind, Log, LogError, OpenError, READ_AHEAD_BYTES, Work, check,
};
use kayvee_platform::BlockError;
use kayvee_testing::{
    disk::{Lie, SimulatedDisk},
    log_model::{self, Tally},
};

/// Runs of the model in CI: some 56,000 crash points.
const RUNS: u64 = 400;
const DISK_BYTES: usize = 1 << 20;

#[test]
fn what_was_acknowledged_survives_every_crash() {
    let mut total = Tally::default();
    for seed in 0..RUNS {
        total += log_model::run(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{total:?}");
    assert!(total.crash_points > 40_000 && total.compactions > 200 && total.failures > 50 && total.full > 100);
}

/// If these lies went unnoticed, the test above could not have found anything either.
#[test]
fn a_disk_that_lies_is_found_out() {
    for lie in [Lie::Flush, Lie::WriteStable] {
        assert!((0..50).any(|seed| log_model::run(seed, Some(lie)).is_err()), "{lie:?}");
    }
}

type Records = Vec<Vec<u8>>;

fn read(disk: &mut SimulatedDisk) -> Result<(Contents, Records), OpenError<&'static str>> {
    let mut records = Records::new();
    let contents = check(
        disk,
        READ_AHEAD_BYTES,
        &mut |_, bytes| {
            records.push(bytes.to_vec());
            Ok(())
        },
        &mut |_| {},
    )?;
    Ok((contents, records))
}

/// What a fixed workload has met.
struct Outcome {
    /// Each failure that the log has told of.
    failures: Vec<LogError>,
    /// All that was recorded, of which the disk holds the end.
    records: Records,
    disk: SimulatedDisk,
}

/// A fixed workload in which the given transfer fails, if there are so many.
fn workload(policy: FlushPolicy, fail_in: Option<u64>, error: BlockError) -> Outcome {
    let mut disk = SimulatedDisk::new(DISK_BYTES, 5);
    disk.faults.no_space_one_in = usize::from(error == BlockError::NoSpace);
    let mut log = Log::format(&mut disk, [9; 16]).expect("a log");
    let mut outcome = Outcome { failures: Vec::new(), records: Records::new(), disk };
    let disk = &mut outcome.disk;
    disk.fail_in = fail_in;
    let record = |log: &mut Log, records: &mut Records, kind, bytes: Vec<u8>| {
        let mut record = log.record(kind).expect("room");
        record.push(&bytes).expect("room");
        record.commit();
        records.push(bytes);
    };
    for turn in 0..40_u8 {
        for len in [10, 110, 210] {
            record(&mut log, &mut outcome.records, Kind::EFFECTS, vec![turn; len]);
        }
        if turn == 20 {
            log.begin_compaction().expect("room");
            record(&mut log, &mut outcome.records, Kind::STATE, vec![turn; 150_000]);
            log.finish_compaction();
        }
        let before = log.failure();
        for _ in 0..3 {
            log.drive(disk, policy, u64::from(turn) * 300_000_000);
        }
        if let Some(failure) = log.failure()
            && before.is_none()
        {
            outcome.failures.push(failure);
        }
        let (contents, found) = read(&mut disk.crash()).expect("a sound log");
        assert!(contents.last_sequence >= log.durable(), "what was acknowledged is there");
        assert!(outcome.records[contents.first_sequence as usize - 1..].starts_with(&found));
    }
    // A failure that comes with the last call is told by that.
    if let Err(failure) = log.sync(disk, 0) {
        outcome.failures.push(failure);
        log.sync(disk, 0).expect("a disk that works again");
    }
    assert_eq!((log.failure(), log.durable()), (None, log.appended()));
    assert_eq!(log.compaction_stage(), CompactionStage::None);
    let (contents, found) = read(&mut disk.crash()).expect("a sound log");
    assert_eq!(contents.last_sequence, log.appended());
    assert!(outcome.records[contents.first_sequence as usize - 1..] == found);
    assert_eq!(contents.first_sequence, 64, "the compaction has moved the beginning");
    outcome
}

/// Fails each transfer in turn, and says how many failed.
fn fail_each(policy: FlushPolicy, error: BlockError) -> usize {
    let mut kinds = Vec::new();
    for transfer in 0.. {
        let outcome = workload(policy, Some(transfer), error);
        match outcome.failures[..] {
            [] => {
                assert!(outcome.disk.fail_in.is_some(), "a failure is told");
                break;
            }
            [failure] => {
                assert_eq!(failure.error, error);
                kinds.push(failure.work);
            }
            ref failures => panic!("one failure is told as {failures:?}"),
        }
    }
    assert!(kinds.contains(&Work::Write));
    kinds.len()
}

#[test]
fn whichever_transfer_fails_nothing_is_lost_and_service_goes_on() {
    assert!(fail_each(FlushPolicy::Always, BlockError::Io) > 30);
    assert!(fail_each(FlushPolicy::EverySecond, BlockError::NoSpace) > 30);
}

#[test]
fn a_failed_flush_is_told_and_what_it_lost_is_written_again() {
    let failures =
        (0..200).flat_map(|transfer| workload(FlushPolicy::EverySecond, Some(transfer), BlockError::Io).failures);
    let is_flush = |failure: &LogError| failure.work == Work::Flush;
    assert!(failures.filter(is_flush).count() >= 5);
}

#[test]
fn whichever_transfer_fails_while_a_log_is_opened_it_can_be_opened_later() {
    let Outcome { mut disk, records, .. } = workload(FlushPolicy::Always, None, BlockError::Io);
    let before = disk.crash().bytes().to_vec();
    let (mut reads, mut writes) = (0, 0);
    for transfer in 0.. {
        let mut crashed = SimulatedDisk::with(before.clone(), 5);
        crashed.fail_in = Some(transfer);
        let result = Log::open::<&str>(&mut crashed, READ_AHEAD_BYTES, &mut |_, _| Ok(()), &mut |_| {});
        match result {
            Err(OpenError::Device(LogError { work: Work::Read, .. })) => {
                assert!(crashed.bytes() == before, "a disk that was not opened is as it was");
                reads += 1;
            }
            Err(OpenError::Device(_)) => writes += 1,
            // What was read ahead may fail without harm.
            Ok(_) if crashed.fail_in.is_none() => {}
            Ok(_) => break,
            Err(error) => panic!("transfer {transfer}: {error}"),
        }
        crashed.fail_in = None;
        let (contents, found) = read(&mut crashed.crash()).expect("a sound log");
        assert!(records[contents.first_sequence as usize - 1..] == found);
    }
    assert!(reads > 5 && writes == 3, "{reads} reads and {writes} writes failed");
}

/// What the open batch holds is not free: a record that makes data fewer would begin in it and find no room for its end.
#[test]
fn a_full_disk_with_a_full_batch_has_no_room() {
    log_model::run(1_795_311_893_537_395_995, None).unwrap();
}
