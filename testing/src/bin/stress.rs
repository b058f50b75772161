//! Runs the load tests against a server: `stress --addr HOST:PORT [--seed N] [--long] [FILTER]`.

use kayvee_testing::{
    named,
    stress::{LONG_TESTS, TESTS, Target},
};
use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

const USAGE: &str = "usage: stress --addr HOST:PORT [--seed N] [--long] [FILTER]

Runs load tests against a server whose data it deletes. FILTER picks those whose name
contains it. --long adds what needs gigabytes. It holds 1,000 connections: `ulimit -n 4096`.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stress: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let mut addr = String::new();
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut tests = TESTS.to_vec();
    let mut filter = String::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--addr" => addr = value()?,
            "--seed" => seed = value()?.parse().map_err(|_| "--seed takes a number")?,
            "--long" => tests.extend(LONG_TESTS),
            "--help" => {
                println!("{USAGE}");
                return Ok(true);
            }
            _ if word.starts_with("--") || !filter.is_empty() => return Err(format!("{word}?\n{USAGE}")),
            _ => filter = word,
        }
    }
    let target = Target::new(&addr, seed).map_err(|e| format!("{addr}: {e}"))?;
    println!("seed {seed}");
    Ok(named::run(&tests, &filter, &target))
}
