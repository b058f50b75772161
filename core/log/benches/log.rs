//! What appending costs, and how fast a log is read: `cargo bench -p kayvee-log`. The disk is memory.

#[path = "../tests/memory/mod.rs"]
mod memory;

use kayvee_log::{FlushPolicy, Kind, Log, READ_AHEAD_BYTES};
use memory::MemoryDisk;
use std::{convert::Infallible, hint::black_box, time::Instant};

const DISK_BYTES: u64 = 1 << 30;
const RECORD: [u8; 60] = [b'x'; 60];
/// Records of a turn.
const TURN: usize = 100;
/// Turns that are measured.
const TURNS: usize = 40_000;

fn main() {
    let mut disk = MemoryDisk::new(DISK_BYTES);
    disk.bytes.fill(1);
    let mut log = Log::format(&mut disk, [7; 16]).expect("a log");
    let (mut appending_ns, mut driving_ns) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let start = Instant::now();
        for _ in 0..TURN {
            let mut record = log.record(Kind::EFFECTS).expect("room");
            record.push(black_box(&RECORD)).expect("room");
            record.commit();
        }
        let appended = Instant::now();
        log.drive(&mut disk, FlushPolicy::EverySecond, turn as u64 * 200_000_000);
        appending_ns.push((appended - start).as_nanos());
        driving_ns.push(appended.elapsed().as_nanos());
    }
    // The mean is that of a machine with nothing else to do only.
    for (what, mut turns_ns) in [("append", appending_ns), ("drive, with the disk's copying", driving_ns)] {
        turns_ns.sort_unstable();
        let mean = turns_ns.iter().sum::<u128>() as f64 / (TURN * TURNS) as f64;
        let median = turns_ns[TURNS / 2] as f64 / TURN as f64;
        println!(
            "{what}: {median:.1} ns a record of {} bytes in the median turn, {mean:.1} ns in the mean",
            RECORD.len()
        );
    }
    log.close(&mut disk, 0).expect("a disk that works");

    for _ in 0..3 {
        let start = Instant::now();
        let mut bytes = 0;
        let opened = Log::open::<Infallible>(
            &mut disk,
            READ_AHEAD_BYTES,
            &mut |_, record| {
                bytes += record.len();
                Ok(())
            },
            &mut |_| {},
        );
        let contents = opened.expect("a sound log").contents;
        let seconds = start.elapsed().as_secs_f64();
        let megabytes = contents.log_bytes as f64 / 1e6;
        println!(
            "recovery: {:.0} MB of log, {} records in {:.3} s: {:.0} MB/s, {:.1} ns a record",
            megabytes,
            contents.records,
            seconds,
            megabytes / seconds,
            seconds * 1e9 / contents.records as f64
        );
    }
    let (from, to) = disk.bytes.split_at_mut(DISK_BYTES as usize / 2);
    let start = Instant::now();
    black_box(to).copy_from_slice(black_box(from));
    println!("a copy of memory: {:.0} MB/s", from.len() as f64 / 1e6 / start.elapsed().as_secs_f64());
}
