//! What contributors run: `./kayvee test`, which is `cargo run -p xtask -- test`.
//!
//! A section is a command with a title. Every section runs even after another has failed; the last line sums them up.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Command, ExitCode, Stdio},
};

const USAGE: &str = "\
What contributors run.

Usage: ./kayvee test [SECTION]...

Runs everything that CI runs, or the sections named:
";

/// One part of the tests.
struct Section {
    name: &'static str,
    what: &'static str,
    command: &'static [&'static str],
}

const SECTIONS: &[Section] = &[
    Section { name: "format", what: "rustfmt changes nothing", command: &["cargo", "fmt", "--all", "--check"] },
    Section {
        name: "lint",
        what: "clippy has nothing to say",
        command: &["cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
    },
    Section {
        name: "core",
        what: "the tests that need nothing but this host",
        command: &["cargo", "test", "--locked", "--workspace", "--no-fail-fast"],
    },
    Section { name: "build", what: "the release build", command: &["cargo", "build", "--locked", "--release"] },
    Section {
        name: "boot",
        what: "the image on QEMU's machines: starting, failing and ending",
        command: &[
            "cargo",
            "test",
            "--locked",
            "--release",
            "-p",
            "kayvee-image",
            "--test",
            "boot",
            "--",
            "--ignored",
            "--test-threads",
            "2",
        ],
    },
    Section {
        name: "run",
        what: "the store as a process and as a guest, by the kayvee command",
        command: &[
            "cargo",
            "test",
            "--locked",
            "--release",
            "-p",
            "kayvee-cli",
            "--test",
            "run",
            "--",
            "--ignored",
            "--test-threads",
            "2",
        ],
    },
];

/// How many tests passed and failed.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((task, names)) if task == "test" && names.iter().all(|name| section(name).is_some()) => test(names),
        Some((task, names)) if task == "test" && !names.iter().any(|name| name == "-h" || name == "--help") => {
            eprint!("xtask: there is no such section\n\n{}", usage());
            ExitCode::from(2)
        }
        _ => {
            print!("{}", usage());
            ExitCode::SUCCESS
        }
    }
}

fn usage() -> String {
    let sections = SECTIONS.iter().map(|section| format!("  {:<8} {}\n", section.name, section.what));
    sections.fold(USAGE.to_string(), |text, line| text + &line)
}

fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

fn test(names: &[String]) -> ExitCode {
    let mut total = Tally::default();
    let mut failed_sections = Vec::new();
    let wanted = |section: &&Section| names.is_empty() || names.iter().any(|name| name == section.name);
    for section in SECTIONS.iter().filter(wanted) {
        println!("\n== {}: {}", section.name, section.what);
        let tally = section.run().unwrap_or_else(|error| {
            println!("{}: {error}", section.command[0]);
            Tally { passed: 0, failed: 1 }
        });
        if tally.failed > 0 {
            failed_sections.push(section.name);
        }
        total.passed += tally.passed;
        total.failed += tally.failed;
    }
    println!();
    if !failed_sections.is_empty() {
        println!("failed: {}", failed_sections.join(", "));
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    ExitCode::from(u8::from(total.failed > 0))
}

impl Section {
    /// Runs the section and counts its tests; one that reports none, such as a build, counts as one test.
    fn run(&self) -> io::Result<Tally> {
        let (program, arguments) = self.command.split_first().expect("a section has a command");
        let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
        let mut tally = Tally::default();
        let mut stdout = io::stdout().lock();
        for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
            let line = line?;
            writeln!(stdout, "{line}")?;
            let (passed, failed) = counts(&line).unwrap_or_default();
            tally.passed += passed;
            tally.failed += failed;
        }
        let succeeded = child.wait()?.success();
        if !succeeded && tally.failed == 0 {
            tally.failed = 1;
        } else if succeeded && tally.passed == 0 {
            tally.passed = 1;
        }
        Ok(tally)
    }
}

/// Reads a test runner's `test result: ok. 20 passed; 0 failed; …`.
fn counts(line: &str) -> Option<(u32, u32)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ").map(|count| count.split_once(' '));
    let (passed, _) = counts.next()??;
    let (failed, _) = counts.next()??;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_runner_s_result() {
        let line = "test result: FAILED. 18 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.26s";
        assert_eq!(counts(line), Some((18, 2)));
        assert_eq!(counts("test result: ok"), None);
        assert_eq!(counts("test proxy ... ok"), None);
    }

    #[test]
    fn every_section_has_its_own_name() {
        for (at, section) in SECTIONS.iter().enumerate() {
            assert!(!section.command.is_empty());
            assert!(SECTIONS[..at].iter().all(|earlier| earlier.name != section.name), "{}", section.name);
        }
    }
}
