//! Tests with names, that a program runs against something that is already there.

use std::{error::Error, time::Instant};

/// A test of a target.
pub type Test<T> = fn(&T) -> Result<(), Box<dyn Error>>;

/// Runs the tests whose names contain `filter` and prints how each went; whether all have passed.
pub fn run<T>(tests: &[(&str, Test<T>)], filter: &str, target: &T) -> bool {
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests.iter().filter(|(name, _)| name.contains(filter)) {
        let start = Instant::now();
        match test(target) {
            Ok(()) => {
                passed += 1;
                println!("ok {name} ({:.1} s)", start.elapsed().as_secs_f32());
            }
            Err(error) => {
                failed += 1;
                println!("FAILED {name}: {error}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    failed == 0
}
