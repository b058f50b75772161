//! Runs the crash-consistency model of the persistent log for as long as wanted: `log_crashes [--seed N] [--runs N]`.

use kayvee_testing::log_model::{self, Tally};
use std::{
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

const USAGE: &str = "usage: log_crashes [--seed N] [--runs N]

Crashes the persistent log on a simulated disk. Each run has some 140 crash points
and follows from its seed; the first run has the seed given, each next one more.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("log_crashes: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut runs: u64 = 1000;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--seed" => seed = value()?.parse().map_err(|_| "--seed takes a number")?,
            "--runs" => runs = value()?.parse().map_err(|_| "--runs takes a number")?,
            "--help" => {
                println!("{USAGE}");
                return Ok(true);
            }
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    let start = Instant::now();
    let (mut total, mut failed) = (Tally::default(), 0);
    for seed in (0..runs).map(|run| seed.wrapping_add(run)) {
        match log_model::run(seed, None) {
            Ok(tally) => total += tally,
            Err(error) => {
                failed += 1;
                println!("FAILED seed {seed}: {error}");
            }
        }
    }
    println!("{total:?} in {:.0} s", start.elapsed().as_secs_f32());
    println!("{} passed, {failed} failed", runs - failed);
    Ok(failed == 0)
}
