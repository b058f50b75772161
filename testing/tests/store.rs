//! The store on a disk that keeps no promise but those it has made.

use kayvee_testing::store_model::{self, Tally};
use std::thread;

/// Seeds of a run in CI; KAYVEE_SEEDS and KAYVEE_FIRST_SEED ask for others.
const SEEDS: u64 = 12;

#[test]
fn what_was_acknowledged_comes_back() {
    let seeds = std::env::var("KAYVEE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let first = std::env::var("KAYVEE_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    // A seed's run is the same whatever runs beside it.
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let part = |worker| {
        let mut total = Tally::default();
        for seed in (first..first + seeds).skip(worker).step_by(workers) {
            total += store_model::run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        total
    };
    let mut total = Tally::default();
    thread::scope(|scope| {
        let parts: Vec<_> = (0..workers).map(|worker| scope.spawn(move || part(worker))).collect();
        parts.into_iter().for_each(|part| total += part.join().expect("a seed failed, as said above"));
    });
    println!("{total:?}");
}
