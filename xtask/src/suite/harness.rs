//! Running one unit of the suite and reading what the harness says.

use super::{Servers, Target, source};
use crate::command::with_open_files;
use std::{
    fs::{self, File},
    io,
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Ports that one job's harness may use for itself and for servers.
const PORTS_PER_JOB: u32 = 250;
/// From here on, with room for 40 jobs of several runs at a time below the ports that systems give out.
const FIRST_PORT: u32 = 11_200;
const JOBS_LIMIT: u32 = 40;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A copy of the harness for one unit at a time.
pub struct Job {
    dir: PathBuf,
    ports: Ports,
}

/// A range of ports that no other job on this machine uses.
struct Ports {
    base: u32,
    /// Its last one is bound for as long as the range is in use.
    _claim: TcpListener,
}

impl Ports {
    fn claim() -> io::Result<Ports> {
        let bases = (0..JOBS_LIMIT).map(|slot| FIRST_PORT + slot * PORTS_PER_JOB);
        let claimed = bases.filter_map(|base| {
            let last = (base + PORTS_PER_JOB - 1) as u16;
            Some(Ports { base, _claim: TcpListener::bind(("127.0.0.1", last)).ok()? })
        });
        { claimed }.next().ok_or_else(|| io::Error::other("other runs of the suite use all ports that it may have"))
    }
}

/// What one unit's tests did.
#[derive(Debug)]
pub struct Outcome {
    pub unit: String,
    pub passed: Vec<String>,
    /// Names and details.
    pub failed: Vec<(String, String)>,
    pub skipped: u32,
    pub took: Duration,
}

impl Job {
    /// Unpacks a copy for the job of this number.
    pub fn prepare(number: usize, tarball: &Path, servers: Servers, target: Target) -> io::Result<Job> {
        let dir = source::dir().join(format!("job-{number}"));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        source::unpack(tarball, &dir)?;
        go_on_where_an_option_is_refused(&dir)?;
        tolerate_packed_lists(&dir)?;
        fs::create_dir_all(dir.join("src"))?;
        for program in ["redis-cli", "redis-benchmark"] {
            wrapper(&dir, program, &format!("exec {program} \"$@\""))?;
        }
        if servers == Servers::Own {
            wrapper(&dir, "redis-server", &target.server_line())?;
        }
        Ok(Job { dir, ports: Ports::claim()? })
    }

    /// An empty folder for a store's files, and a disk in it that is not there yet.
    pub fn fresh_data_dir(&self) -> io::Result<(String, String)> {
        let dir = self.dir.join("data");
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        let text = |path: PathBuf| path.to_str().map(String::from).ok_or_else(|| io::Error::other("a path is no text"));
        let disk = text(dir.join("disk"))?;
        Ok((text(dir)?, format!("{disk}:1G")))
    }

    /// Runs one unit, on the server at `addr` or on servers that the harness starts.
    pub fn run(&self, unit: &str, addr: Option<&str>, arguments: &[&str], limit: Duration) -> io::Result<Outcome> {
        let output = source::dir().join("output").join(format!("{}.txt", unit.replace('/', "-")));
        fs::create_dir_all(output.parent().expect("it has one"))?;
        let mut command = with_open_files("./runtest".as_ref());
        command.args(["--durable", "--single", unit, "--clients", "1", "--dont-clean"]).args(arguments);
        // The harness' own socket is below the base port.
        command.args(["--baseport", &(self.ports.base + 40).to_string(), "--portcount", "200"]);
        if let Some((host, port)) = addr.and_then(|addr| addr.rsplit_once(':')) {
            command.args(["--host", host, "--port", port]);
        }
        let file = File::create(&output)?;
        command.current_dir(&self.dir).env_remove("TERM").stdin(Stdio::null());
        // A process group of its own, so that its servers end with it.
        command.stdout(file.try_clone()?).stderr(file).process_group(0);
        let started = Instant::now();
        let mut child = command.spawn()?;
        let mut in_time = true;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() > limit {
                in_time = false;
                signal_group("-TERM", child.id());
                std::thread::sleep(Duration::from_secs(1));
                signal_group("-KILL", child.id());
                break child.wait()?;
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let text = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        let mut outcome = read(unit, &text);
        outcome.took = started.elapsed();
        let ended = text.contains("The End");
        if !in_time {
            outcome.failed.push(("the unit ends in time".into(), last_lines(&text)));
        } else if !ended || (!status.success() && outcome.failed.is_empty()) {
            outcome.failed.push(("the unit ends".into(), last_lines(&text)));
        }
        Ok(outcome)
    }
}

/// Where an option is refused that some tests of a file need, those fail, and the others run: the harness would end with
/// the first.
fn go_on_where_an_option_is_refused(dir: &Path) -> io::Result<()> {
    const SET: &str = "        r config set $param $val\n\n";
    const TRY: &str = "        if {[catch {r config set $param $val}]} {\n            dict unset saved_config $param\n            \
                       set code [list error \"assertion:tests that need $param $val\"]\n            break\n        }\n\n";
    let path = dir.join("tests/support/server.tcl");
    let text = fs::read_to_string(&path)?;
    fs::write(path, text.replace(SET, TRY))
}

/// Redis 7.2 packs small lists, and its own tests say so; those of 7.0 know one encoding of lists only.
fn tolerate_packed_lists(dir: &Path) -> io::Result<()> {
    const COMPARED: &str = "    set val [r object encoding $key]\n";
    const PACKED: &str = "    if {$enc eq {quicklist} && $val eq {listpack} && [r type $key] eq {list}} return\n";
    let path = dir.join("tests/support/test.tcl");
    let text = fs::read_to_string(&path)?;
    fs::write(path, text.replace(COMPARED, &[COMPARED, PACKED].concat()))
}

/// A program of one line of the shell's, where the harness looks for programs.
pub fn wrapper(dir: &Path, program: &str, line: &str) -> io::Result<PathBuf> {
    let path = dir.join("src").join(program);
    fs::write(&path, format!("#!/bin/sh\n{line}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn signal_group(signal: &str, leader: u32) {
    // Its members may have ended by themselves.
    let _ = Command::new("kill").args([signal, "--", &format!("-{leader}")]).stderr(Stdio::null()).status();
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Reads the harness' output: `[ok]: NAME (5 ms)`, `[err]: NAME in tests/unit/x.tcl` with lines of details,
/// `[ignore]: …`, `[skip]: …`, and at the end all failures once more.
fn read(unit: &str, text: &str) -> Outcome {
    let mut outcome =
        Outcome { unit: unit.into(), passed: Vec::new(), failed: Vec::new(), skipped: 0, took: Duration::ZERO };
    let mut in_details = false;
    for line in text.lines() {
        if line.trim() == "The End" {
            break;
        }
        if let Some(rest) = line.strip_prefix("[ok]: ") {
            in_details = false;
            let name = rest.rsplit_once(" (").filter(|(_, time)| time.ends_with("ms)")).map_or(rest, |(name, _)| name);
            outcome.passed.push(name.into());
        } else if let Some(rest) = line.strip_prefix("[err]: ").or_else(|| line.strip_prefix("[exception]: ")) {
            in_details = true;
            let name = rest.rsplit_once(" in tests/").map_or(rest, |(name, _)| name);
            outcome.failed.push((name.trim().into(), String::new()));
        } else if line.starts_with("[ignore]: ") || line.starts_with("[skip]: ") {
            in_details = false;
            outcome.skipped += 1;
        } else if line.starts_with('[') && line.contains("]: ") {
            in_details = false;
        } else if in_details && let Some((_, details)) = outcome.failed.last_mut() {
            details.push_str(line);
            details.push('\n');
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_harness_output() {
        let text = "[ready]: 5\nTesting unit/x\n[ok]: A (b) (0 ms)\n[err]: B in tests/unit/x.tcl\nExpected 1\n\
                    [ignore]: C: no\n[skip]: D\n[err]: ERR wrong\nstack\n[1/1 done]: unit/x (1 seconds)\n\n\
                    The End\n*** [err]: B in tests/unit/x.tcl\n";
        let outcome = read("unit/x", text);
        assert_eq!((outcome.passed, outcome.skipped), (vec!["A (b)".to_string()], 2));
        let failed = [("B", "Expected 1\n"), ("ERR wrong", "stack\n")];
        assert_eq!(outcome.failed, failed.map(|(name, details)| (name.to_string(), details.to_string())));
    }
}
