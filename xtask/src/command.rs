//! Running commands and counting what they test.

use crate::watchdog;
use std::{
    fmt,
    io::{self, BufRead, BufReader, Write},
    ops::AddAssign,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// Tests that hold 10,000 connections need more open files than many systems give at first.
const OPEN_FILES: &str = "ulimit -S -n 16384 2>/dev/null || ulimit -S -n \"$(ulimit -H -n)\"; exec \"$0\" \"$@\"";

/// What was said of each failure, to be said again at the end, where it is looked for.
static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Lines of a runner's account of its failures that are kept.
const FAILURE_LINES_MAX: usize = 200;

/// How many tests passed, failed and were not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

impl Tally {
    /// One that passed.
    pub fn ok(what: &str) -> Tally {
        println!("ok {what}");
        Tally { passed: 1, ..Tally::default() }
    }

    /// One that failed, and how.
    pub fn failed(what: &str) -> Tally {
        tell(&format!("FAILED {what}"));
        Tally { failed: 1, ..Tally::default() }
    }

    /// One that could not be run here, and why.
    pub fn skipped(why: &str) -> Tally {
        println!("skipped: {why}");
        Tally { skipped: 1, ..Tally::default() }
    }

    /// Reads what a test runner says at its end: cargo's `test result: ok. 20 passed; 0 failed; …`, or
    /// `20 passed, 0 failed, 3 skipped`.
    fn read(line: &str) -> Option<Tally> {
        let cargo = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "));
        let counts = cargo.map_or(line, |(_, counts)| counts);
        let mut tally = Tally::default();
        let mut words = counts.split([',', ';']).map(|count| count.trim().split_once(' '));
        tally.passed = words.next()??.0.parse().ok()?;
        let (failed, what) = words.next()??;
        if what != "failed" {
            return None;
        }
        tally.failed = failed.parse().ok()?;
        if let Some((skipped, "skipped")) = words.next().flatten() {
            tally.skipped = skipped.parse().ok()?;
        }
        Some(tally)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Prints what is to be said of tests, and keeps it for the end where it tells of failures.
pub fn tell(text: &str) {
    let text = text.trim_end();
    println!("{text}");
    if text.lines().any(|line| line.trim_start().starts_with("FAILED ")) {
        note_failure(text);
    }
}

fn note_failure(text: &str) {
    FAILURES.lock().unwrap_or_else(PoisonError::into_inner).push(text.into());
}

/// What was said of each failure so far.
pub fn take_failures() -> Vec<String> {
    std::mem::take(&mut FAILURES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Finds what a runner says of failures among its lines.
#[derive(Default)]
struct Failures {
    /// Within cargo's account of what failed, which goes from `failures:` to `test result:`.
    in_account: bool,
    lines: usize,
}

impl Failures {
    /// Whether a line does: our runners' `FAILED what`, cargo's `test what ... FAILED` and its account.
    fn tells(&mut self, line: &str) -> bool {
        match line {
            "failures:" => self.in_account = true,
            _ if line.starts_with("test result: ") => self.in_account = false,
            _ => {}
        }
        let tells = self.in_account || line.starts_with("FAILED ") || line.ends_with(" ... FAILED");
        self.lines += usize::from(tells);
        tells && self.lines <= FAILURE_LINES_MAX
    }
}

/// The project's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the project's folder").to_path_buf()
}

/// Where cargo builds.
pub fn target_dir() -> PathBuf {
    // An absolute one replaces the project's folder.
    root().join(std::env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()).unwrap_or_else(|| "target".into()))
}

/// Runs cargo in the project's folder.
pub fn cargo(arguments: &[&str]) -> io::Result<Tally> {
    run(Command::new("cargo").args(arguments))
}

/// A program that may open many files.
pub fn with_open_files(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", OPEN_FILES]).arg(program);
    command
}

/// A program of the testing crate.
pub fn testing(name: &str) -> Command {
    with_open_files(&target_dir().join("debug").join(name))
}

/// Runs a command, shows what it prints, and counts its tests; one that reports none, such as a build, is one test.
pub fn run(command: &mut Command) -> io::Result<Tally> {
    let mut child = command
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", command.get_program().display())))?;
    let (mut tally, mut failures) = (Tally::default(), Failures::default());
    let mut stdout = io::stdout();
    for line in BufReader::new(child.stdout.take().expect("it is piped")).split(b'\n') {
        let line = line?;
        stdout.write_all(&line)?;
        writeln!(stdout)?;
        watchdog::heard();
        let line = String::from_utf8_lossy(&line);
        tally += Tally::read(&line).unwrap_or_default();
        if failures.tells(&line) {
            note_failure(&line);
        }
    }
    let status = child.wait()?;
    let succeeded = status.success();
    if !succeeded && tally.failed == 0 {
        tally += Tally::failed(&format!("{status}: {command:?}"));
    } else if succeeded && tally.passed == 0 {
        tally.passed = 1;
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_may_open_as_many_files_as_the_largest_tests_need() {
        let output = with_open_files("sh".as_ref()).args(["-c", "ulimit -S -n; ulimit -H -n"]).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let [files, most] = [0, 1].map(|at| output.lines().nth(at).unwrap().parse().unwrap_or(u64::MAX));
        assert!(files > 10_000 || files == most, "{files} of {most}");
    }

    #[test]
    fn what_failed_is_kept() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\nfailures:\n    b\n\n\
                      test result: FAILED. 1 passed; 1 failed\nok c\nFAILED d: why\n2 passed, 1 failed";
        let mut failures = Failures::default();
        let told: Vec<&str> = output.lines().filter(|line| failures.tells(line) && !line.is_empty()).collect();
        let account = ["failures:", "---- b stdout ----", "why", "failures:", "    b"];
        assert_eq!(told, [&["test b ... FAILED"], &account[..], &["FAILED d: why"]].concat());
    }

    #[test]
    fn reads_the_runners_results() {
        let line = "test result: FAILED. 18 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.26s";
        assert_eq!(Tally::read(line), Some(Tally { passed: 18, failed: 2, skipped: 0 }));
        assert_eq!(Tally::read("7 passed, 1 failed"), Some(Tally { passed: 7, failed: 1, skipped: 0 }));
        let tally = Tally { passed: 7, failed: 1, skipped: 2 };
        assert_eq!(Tally::read(&tally.to_string()), Some(tally));
        for line in ["test result: ok", "test proxy ... ok", "", "7 passed", "we passed, 1 failed", "1 a, 2 b"] {
            assert_eq!(Tally::read(line), None, "{line}");
        }
    }
}
