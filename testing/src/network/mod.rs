//! A whole network in one process and in simulated time.
//!
//! A run depends on its seed alone. A test that fails prints the seed, and the same seed fails again.

pub mod frames;
pub mod fuzz;
pub mod offload;
pub mod peer;
pub mod sender;
pub mod transfer;
pub mod wire;
pub mod world;

/// Seeds for a test that tries several: that of the environment variable `KAYVEE_SEED` alone if it is set, to
/// reproduce a failure, else `count` fixed ones.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("KAYVEE_SEED") {
        Ok(seed) => vec![seed.parse().expect("KAYVEE_SEED is a decimal number")],
        Err(_) => (1..=count).collect(),
    }
}

/// Prints the seed of a run that panics.
pub struct SeedReport(pub u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}; reproduce with KAYVEE_SEED={0}", self.0);
        }
    }
}
