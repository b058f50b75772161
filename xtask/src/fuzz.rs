//! libFuzzer on the targets of `fuzz/`.

use crate::{
    Effort,
    command::{self, Tally, cargo, run, testing},
    needed,
};
use std::{io, process::Command};

/// Seconds for each target.
const SECONDS: u32 = 60;
/// A hang: the longest that is allowed are three Lua patterns of 50 million steps each, some seconds of a busy processor.
const TIMEOUT: &str = "-timeout=30";
/// The target that has to fail.
const CANARY: &str = "canary";

/// Runs every target for a minute, from examples and with a dictionary.
pub fn run_targets(effort: Effort) -> io::Result<Tally> {
    if effort == Effort::Usual {
        return Ok(Tally::skipped("libFuzzer runs with --long; the same harnesses have run as seeded tests"));
    }
    if let Some(missing) = missing() {
        return Ok(Tally::skipped(missing));
    }
    let corpus = command::root().join("fuzz/corpus");
    needed(cargo(&["build", "--quiet", "--locked", "-p", "kayvee-testing", "--bin", "fuzz_inputs"])?)?;
    needed(run(testing("fuzz_inputs").arg(&corpus))?)?;
    // One build for all; a target that does not build fails here and not as one whose bytes were found.
    needed(run(&mut cargo_fuzz("build"))?)?;
    let mut tally = Tally::default();
    for target in targets()? {
        let mut fuzz = cargo_fuzz("run");
        fuzz.arg(&target).arg("--");
        fuzz.args([&format!("-max_total_time={SECONDS}"), "-rss_limit_mb=2048", TIMEOUT]);
        let words = corpus.join(format!("{target}.dict"));
        if words.exists() {
            fuzz.arg(format!("-dict={}", words.display()));
        }
        let passed = fuzz.status()?.success() != (target == CANARY);
        tally += if passed { Tally::ok(&target) } else { Tally::failed(&target) };
    }
    Ok(tally)
}

/// What has to be installed first.
fn missing() -> Option<&'static str> {
    let works = |args: &[&str]| {
        let output = Command::new("cargo").args(args).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !works(&["+nightly", "--version"]) {
        return Some("libFuzzer needs a nightly toolchain; install it with: rustup toolchain install nightly");
    }
    if !works(&["+nightly", "fuzz", "--version"]) {
        return Some("libFuzzer needs cargo-fuzz; install it with: cargo install cargo-fuzz --locked");
    }
    None
}

/// `cargo fuzz` without a sanitizer: what is fuzzed has no `unsafe` code of its own that one could watch, and runs twice as
/// fast.
fn cargo_fuzz(what: &str) -> Command {
    let mut fuzz = Command::new("cargo");
    fuzz.args(["+nightly", "fuzz", what, "--sanitizer", "none"]).current_dir(command::root());
    fuzz
}

fn targets() -> io::Result<Vec<String>> {
    let output = Command::new("cargo").args(["+nightly", "fuzz", "list"]).current_dir(command::root()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
