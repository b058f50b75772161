//! The persistent log on a disk that keeps no promise but those it has made.

use kayvee_testing::{
    disk::Lie,
    log_model::{self, Tally},
};

/// Seeds of a run in CI.
const SEEDS: u64 = 200;

#[test]
fn what_was_acknowledged_survives_every_crash() {
    let mut total = Tally::default();
    for seed in 0..SEEDS {
        total += log_model::run(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{total:?}");
}

/// If these lies went unnoticed, the test above could not have found anything either.
#[test]
fn a_disk_that_lies_is_found_out() {
    for lie in [Lie::Flush, Lie::WriteStable] {
        assert!((0..50).any(|seed| log_model::run(seed, Some(lie)).is_err()), "{lie:?}");
    }
}
