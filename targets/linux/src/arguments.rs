//! The process' arguments: redis.conf's names, as redis-server takes them.

use kayvee_commands::options::{OPTIONS, OptionError};
use kayvee_server::Options;
use std::{ffi::OsString, fmt::Write, os::unix::ffi::OsStrExt};

/// What the arguments ask for.
pub enum Invocation {
    /// To serve.
    Run(Box<Options>),
    /// To print a text and end.
    Print(String),
}

/// Reads the arguments behind the program's name.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Invocation, OptionError> {
    let words: Vec<OsString> = words.collect();
    match words.first().and_then(|word| word.to_str()) {
        Some("--help" | "-h") => return Ok(Invocation::Print(help())),
        Some("--version" | "-v") => return Ok(Invocation::Print(format!("Kayvee {}\n", env!("CARGO_PKG_VERSION")))),
        _ => {}
    }
    let options = Options::from_args(words.iter().map(|word| word.as_bytes()))?;
    Ok(Invocation::Run(Box::new(options)))
}

fn help() -> String {
    let mut text = String::from(
        "Kayvee, a Redis-compatible store, as a Linux process.\n\n\
         Usage: kayvee-linux [--OPTION VALUE]...\n\n\
         The options have redis.conf's names and meanings; these are their defaults:\n",
    );
    let defaults = Options::default();
    for option in OPTIONS {
        let value = String::from_utf8_lossy(&option.get(&defaults)).into_owned();
        let value = if value.is_empty() { "\"\"" } else { &value };
        // Writing to a string does not fail.
        let _ = writeln!(text, "  --{} {value}", option.name);
    }
    text.push_str("\n  -h, --help     Print this text\n  -v, --version  Print the version\n");
    text
}
