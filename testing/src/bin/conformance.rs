//! Runs the conformance vectors against a server: `conformance --addr HOST:PORT [--password P] [FILTER]`.

use kayvee_testing::{
    conformance::{self, Target, Traits},
    in_process::Server,
};
use std::process::ExitCode;

const USAGE: &str = "usage: conformance [--addr HOST:PORT] [--password PASSWORD] [--record FILE | FILTER]

Runs testing/vectors against a server whose data it deletes. FILTER picks the cases whose
file, name or tags contain it. Without --addr the engine runs in this program. --record writes into FILE what the server replies instead.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let mut target = Target { addr: String::new(), password: None };
    let mut record = None;
    let mut filter = String::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--addr" => target.addr = value()?,
            "--password" => target.password = Some(value()?),
            "--record" => record = Some(value()?),
            "--help" => {
                println!("{USAGE}");
                return Ok(true);
            }
            _ if word.starts_with("--") || !filter.is_empty() => return Err(format!("{word}?\n{USAGE}")),
            _ => filter = word,
        }
    }
    let server = if target.addr.is_empty() {
        let server = Server::start(&["--enable-debug-command", "yes"]).map_err(|e| e.to_string())?;
        target.addr = server.addr();
        Some(server)
    } else {
        None
    };
    let traits = Traits::of(&target).map_err(|e| format!("{}: {e}", target.addr))?;
    if let Some(file) = record {
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let recorded = conformance::record(&file, &text, &target, &traits)?;
        std::fs::write(&file, recorded).map_err(|e| format!("{file}: {e}"))?;
        return Ok(true);
    }
    let mut cases = conformance::load(&conformance::vectors_dir())?;
    let tagged = |case: &conformance::Case| case.tags.contains(&filter);
    cases.retain(|case| case.place.contains(&filter) || case.name.contains(&filter) || tagged(case));
    if cases.is_empty() {
        return Err(format!("no case matches '{filter}'"));
    }
    let totals = conformance::run_all(&cases, &target, &traits);
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    drop(server);
    Ok(totals.failed == 0)
}
