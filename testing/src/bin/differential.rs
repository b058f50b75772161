//! Compares two servers: `differential --left ADDR --right ADDR [--seed N] [--steps N]`.

use kayvee_testing::{
    differential::{self, Pair},
    in_process::Server,
};
use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

const USAGE: &str = "usage: differential --left HOST:PORT [--right HOST:PORT] [--seed N] [--steps N]

Sends the same random commands to both servers, whose data it deletes, and compares every
reply and all that is stored. --left is the one that is right, as redis-server is.
Without --right the engine runs in this program.";

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("differential: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, String> {
    let mut pair = Pair { left: String::new(), right: String::new() };
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut steps = 100_000;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
        match word.as_str() {
            "--left" => pair.left = value()?,
            "--right" => pair.right = value()?,
            "--seed" => seed = number(value()?)?,
            "--steps" => steps = number(value()?)? as usize,
            "--help" => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            _ => return Err(format!("{word}?\n{USAGE}")),
        }
    }
    if pair.left.is_empty() {
        return Err(format!("--left is needed\n{USAGE}"));
    }
    let server = if pair.right.is_empty() {
        let server = Server::start(&[]).map_err(|e| e.to_string())?;
        pair.right = server.addr();
        Some(server)
    } else {
        None
    };
    println!("seed {seed}, {steps} steps");
    let outcome = differential::run(&pair, seed, steps).map_err(|e| format!("seed {seed}: {e}"))?;
    drop(server);
    match outcome {
        None => {
            println!("1 passed, 0 failed");
            Ok(ExitCode::SUCCESS)
        }
        Some(difference) => {
            println!("{difference}0 passed, 1 failed");
            Ok(ExitCode::FAILURE)
        }
    }
}
