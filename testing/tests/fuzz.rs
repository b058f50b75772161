//! The fuzzing harnesses on inputs made from examples: seeded, so that a failure can be seen again with `KAYVEE_SEED`.

use kayvee_testing::{
    fuzz::{self, Mutator, target},
    network::{SeedReport, seeds, sender},
};
use std::panic::catch_unwind;

/// Runs a harness on its examples, and on `rounds` inputs for each of some seeds.
fn run(name: &str, rounds: usize) {
    let harness = target(name).harness;
    let examples = (target(name).examples)();
    examples.iter().for_each(|example| harness(example));
    let examples: Vec<&[u8]> = examples.iter().map(Vec::as_slice).collect();
    for seed in seeds(4) {
        let _report = SeedReport(seed);
        let mut mutator = Mutator::new(seed, &examples);
        for _ in 0..rounds {
            harness(&mutator.next_input());
        }
    }
}

#[test]
fn requests_mean_the_same_however_they_are_split() {
    run("resp", 3000);
}

#[test]
fn lines_split_into_words() {
    run("words", 20_000);
}

#[test]
fn boot_arguments() {
    run("boot_args", 5000);
}

#[test]
fn process_arguments() {
    run("options", 5000);
}

#[test]
fn lua_scripts_and_what_they_decode() {
    run("lua", 2000);
}

#[test]
fn dumped_values() {
    run("restore", 5000);
}

#[test]
fn logs_on_disks_that_say_anything() {
    run("log", 400);
}

#[test]
fn dump_files_and_append_only_files() {
    for example in (target("files").examples)() {
        assert!(fuzz::is_file_taken(&example), "{}", example.escape_ascii());
    }
    run("files", 1000);
}

#[test]
fn the_engine_replies_the_same_however_requests_are_split() {
    run("engine", 240);
}

#[test]
fn a_replica_makes_the_same_of_what_a_master_sends_however_it_is_split() {
    run("master", 240);
}

#[test]
fn web_requests_are_answered_the_same_however_they_are_split() {
    run("http", 3000);
}

#[test]
fn site_images_are_refused_or_served() {
    run("site", 300);
}

#[test]
fn frames_from_the_wire() {
    run("frames", 300);
}

#[test]
fn what_peers_say_of_what_they_are_sent() {
    for example in (target("sender").examples)() {
        let figures = sender::fuzz_sender(&example);
        let recovered = [figures.fast_recoveries, figures.timeouts, figures.loss_probes];
        assert!(figures.retransmissions > 0 && recovered != [0; 3], "{}: {recovered:?}", example.escape_ascii());
    }
    run("sender", 400);
}

/// If this fails, the tests above could not have found anything either.
#[test]
fn the_canary_is_found() {
    let mut mutator = Mutator::new(1, &[b"*1\r\n$4\r\nPING\r\n"]);
    let found = (0..200_000).any(|_| {
        let input = mutator.next_input();
        catch_unwind(|| fuzz::canary(&input)).is_err()
    });
    assert!(found);
}
