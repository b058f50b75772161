//! What losses cost a transfer between two stacks, in simulated time: the same everywhere, whatever else a machine does.
//!
//! `cargo run --release -p kayvee-testing --example loss_cost -- [MB] [ROUND_TRIP_MS] [JITTER_US]`

use kayvee_testing::network::{
    transfer::{Cost, transfer},
    wire::{Bottleneck, Faults},
};
use std::env;

const RUNS: u64 = 20;
/// What a bottleneck carries.
const RATE_MBIT: u64 = 100;

fn main() {
    let number = |at, usual| env::args().nth(at).map_or(usual, |word| word.parse().expect("a number"));
    let (megabytes, round_trip_ms, jitter_us) = (number(1, 4), number(2, 20), number(3, 0));
    println!("{megabytes} MB, {round_trip_ms} ms there and back, {jitter_us} us of jitter; means of {RUNS} runs");
    println!(
        "{:>6} {:>9} {:>9} {:>15} {:>9} {:>10}",
        "", "seconds", "KB/s", "retransmissions", "timeouts", "recoveries"
    );
    let delay_ns = round_trip_ms * 500_000;
    let way = Faults { min_delay_ns: delay_ns, max_delay_ns: delay_ns + jitter_us * 1000, ..Faults::NONE };
    println!("by KiB that wait where the way carries {RATE_MBIT} Mbit/s:");
    for queue_kib in [32, 64, 128, 256, 512, 1024, 4096] {
        let bottleneck = Bottleneck { bytes_per_s: RATE_MBIT * 1_000_000 / 8, queue_bytes: queue_kib << 10 };
        report(&format!("{queue_kib}"), Faults { bottleneck: Some(bottleneck), ..way }, megabytes);
    }
    println!("by frames that are lost:");
    for percent in [0, 1, 2, 5, 10, 20] {
        report(&format!("{percent}%"), Faults { loss_per_mille: percent * 10, ..way }, megabytes);
    }
}

/// Runs a transfer some times and prints what it takes.
fn report(name: &str, faults: Faults, megabytes: u64) {
    let mut sum = Cost::default();
    for seed in 1..=RUNS {
        let cost = transfer(faults, (megabytes * 1_000_000) as usize, seed);
        sum.seconds += cost.seconds;
        sum.retransmissions += cost.retransmissions;
        sum.timeouts += cost.timeouts;
        sum.recoveries += cost.recoveries;
    }
    let mean = |total: u64| total as f64 / RUNS as f64;
    let seconds = sum.seconds / RUNS as f64;
    println!(
        "{name:>6} {seconds:>9.2} {:>9.0} {:>15.1} {:>9.2} {:>10.1}",
        megabytes as f64 * 1000.0 / seconds,
        mean(sum.retransmissions),
        mean(sum.timeouts),
        mean(sum.recoveries)
    );
}
