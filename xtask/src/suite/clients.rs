//! `./kayvee suite clients`: the tests that real clients come with, and applications, on redis-server and on Kayvee.
//!
//! What redis-server passes has to pass here. Much of the clients' suites needs Redis Stack, a cluster or sentinels: what
//! fails on redis-server is no measure of ours.

use super::{
    Servers, Target,
    expected::{Expected, Verdict},
    harness::{Outcome, wrapper},
    source,
};
use crate::{
    clients,
    command::{self, Tally, target_dir},
    store::{RedisServer, Store},
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A client's tests.
struct Client {
    name: &'static str,
    /// Who starts the servers: redis-rs' tests do it themselves.
    servers: Servers,
    /// The commands that run them, one after the other.
    commands: fn(&Place) -> io::Result<Vec<Command>>,
    /// What a line of the output says of a test.
    read: fn(&str) -> Option<(Said, &str)>,
}

/// Where the tests find what they test.
enum Place {
    /// `HOST:PORT`
    Server(String),
    /// A program that takes redis-server's arguments.
    Program(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Passed,
    Failed,
    Skipped,
}

const CLIENTS: &[Client] = &[
    Client { name: "redis-py", servers: Servers::External, commands: redis_py, read: read_pytest },
    Client { name: "redis-rs", servers: Servers::Own, commands: redis_rs, read: read_cargo },
    Client { name: "applications", servers: Servers::External, commands: applications, read: read_ours },
];

/// What `./kayvee suite clients --help` says.
pub const USAGE: &str = "\
Real clients' own tests, and applications, on redis-server and on Kayvee.

Usage: ./kayvee suite clients [OPTION]... [CLIENT]...

CLIENT is redis-py, redis-rs or applications (RQ, Celery, BullMQ, Sidekiq); without any, all run.

  --target linux|tcg|kvm  What is compared with redis-server [default: linux]

What may fail where redis-server passes stands in testing/suite/expected.txt, below [clients/CLIENT], with its reason.
";

fn redis_py(place: &Place) -> io::Result<Vec<Command>> {
    let Place::Server(addr) = place else { unreachable!("its tests take an address") };
    let (python, tests) = clients::redis_py_tests()?;
    let mut command = Command::new(python);
    command.current_dir(tests).args(["-m", "pytest", "tests", "-q", "-rA", "--tb=line", "--timeout=60"]);
    command.args(["-W", "ignore", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--color=no"]);
    command.args(["-m", "not onlycluster and not redismod and not ssl"]);
    command.args(["--ignore=tests/test_cluster.py", "--ignore=tests/test_asyncio/test_cluster.py"]);
    // Wide enough for the longest name.
    command.arg(format!("--redis-url=redis://{addr}/9")).env("COLUMNS", "1000");
    Ok(vec![command])
}

fn redis_rs(place: &Place) -> io::Result<Vec<Command>> {
    let Place::Program(program) = place else { unreachable!("its tests start servers") };
    let mut command = Command::new("cargo");
    command.current_dir(clients::redis_rs_tests()?).args(["test", "--locked", "--no-fail-fast", "--tests"]);
    command.env("CARGO_TERM_COLOR", "never").env("REDISRS_SERVER_BIN", program);
    // Nobody debugs it: it is built in half the time without.
    command.env("CARGO_TARGET_DIR", target_dir().join("clients-build")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.env("CARGO_PROFILE_TEST_DEBUG", "0");
    Ok(vec![command])
}

fn applications(place: &Place) -> io::Result<Vec<Command>> {
    let Place::Server(addr) = place else { unreachable!("applications take an address") };
    clients::applications_commands(addr)
}

/// `PASSED tests/x.py::T::t`, `FAILED tests/x.py::T::t - why`, `ERROR …`, `SKIPPED [3] tests/x.py:5: why`.
fn read_pytest(line: &str) -> Option<(Said, &str)> {
    let (word, rest) = line.split_once(' ')?;
    let test = rest.split_once(" - ").map_or(rest, |(test, _)| test);
    match word {
        "PASSED" => Some((Said::Passed, rest)),
        "FAILED" | "ERROR" if test.starts_with("tests/") => Some((Said::Failed, test)),
        "SKIPPED" => Some((Said::Skipped, test)),
        _ => None,
    }
}

/// `test basic::test_args ... ok`
fn read_cargo(line: &str) -> Option<(Said, &str)> {
    let (test, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    match result {
        "ok" => Some((Said::Passed, test)),
        "FAILED" => Some((Said::Failed, test)),
        _ if result.starts_with("ignored") => Some((Said::Skipped, test)),
        _ => None,
    }
}

/// `ok celery_tasks (3.1 s)`, `FAILED celery_tasks: why`, `skipped: sidekiq needs ruby`
fn read_ours(line: &str) -> Option<(Said, &str)> {
    let (word, rest) = line.split_once(' ')?;
    let test = rest.split([' ', ':']).next()?;
    match word {
        "ok" => Some((Said::Passed, test)),
        "FAILED" => Some((Said::Failed, test)),
        "skipped:" => Some((Said::Skipped, rest)),
        _ => None,
    }
}

impl Client {
    /// Runs the tests on a server of this kind.
    fn run(&self, target: Target) -> io::Result<Outcome> {
        let target_name = target.name();
        if self.servers == Servers::Own {
            let dir = source::dir().join("clients");
            fs::create_dir_all(dir.join("src"))?;
            let program = wrapper(&dir, &format!("server-{target_name}"), &target.server_line())?;
            return self.run_at(&Place::Program(program), target_name);
        }
        match target {
            Target::Redis => {
                let redis = RedisServer::start(&["--enable-debug-command", "yes"])?;
                self.run_at(&Place::Server(redis.addr()), target_name)
            }
            Target::Kayvee(target) => {
                let memory: &[&str] = if target == "linux" { &[] } else { &["--memory", "512"] };
                let store = Store::start_with(&[&["--target", target], memory].concat(), &[])?;
                let mut outcome = self.run_at(&Place::Server(store.addr.clone()), target_name)?;
                if let Some(how) = store.end_quietly()? {
                    outcome.failed.push((format!("the store ended: {how}"), String::new()));
                }
                Ok(outcome)
            }
        }
    }

    fn run_at(&self, place: &Place, target: &str) -> io::Result<Outcome> {
        let output = source::dir().join("output").join(format!("{}-{target}.txt", self.name));
        fs::create_dir_all(output.parent().expect("it has one"))?;
        let file = File::create(&output)?;
        let started = Instant::now();
        for mut command in (self.commands)(place)? {
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
            command
                .status()
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", command.get_program().display())))?;
        }
        let mut outcome = self.read_all(&String::from_utf8_lossy(&fs::read(&output)?));
        outcome.took = started.elapsed();
        if outcome.passed.is_empty() && outcome.failed.is_empty() && outcome.skipped == 0 {
            return Err(io::Error::other(format!("{} ran no test: see {}", self.name, output.display())));
        }
        Ok(outcome)
    }

    fn read_all(&self, text: &str) -> Outcome {
        let mut outcome = Outcome {
            unit: self.name.into(),
            passed: Vec::new(),
            failed: Vec::new(),
            skipped: 0,
            took: Duration::ZERO,
        };
        for line in text.lines() {
            match (self.read)(line) {
                Some((Said::Passed, test)) => outcome.passed.push(test.into()),
                Some((Said::Failed, test)) => outcome.failed.push((test.into(), line.into())),
                Some((Said::Skipped, _)) => outcome.skipped += 1,
                None => {}
            }
        }
        // A test that passes and then fails to clean up is told of twice.
        outcome.passed.retain(|test| outcome.failed.iter().all(|(failed, _)| failed != test));
        outcome
    }
}

/// What redis-server passes and the other does not, in words and numbers.
fn judge(redis: &Outcome, ours: &Outcome, target: &str, expected: &Expected) -> (String, Tally) {
    let unit = format!("clients/{}", redis.unit);
    let passed: BTreeSet<&String> = ours.passed.iter().collect();
    let mut text = String::new();
    let mut tally = Tally { passed: ours.passed.len() as u32, failed: 0, skipped: ours.skipped };
    let mut expected_failures = 0;
    for test in &redis.passed {
        match (passed.contains(test), expected.verdict(&unit, test, &[target])) {
            (true, Verdict::MustPass) => {}
            (true, Verdict::MayFail(_)) if expected.is_unsure(&unit, test) => {}
            (true, Verdict::MayFail(_)) => text += &format!("  expected to fail, but passed: {test}\n"),
            (false, Verdict::MayFail(reason)) => {
                expected_failures += 1;
                text += &format!("  expected failure: {test} ({reason})\n");
            }
            (false, Verdict::MustPass) => {
                tally.failed += 1;
                let why = ours.failed.iter().find(|(failed, _)| failed == test);
                text += &why
                    .map_or_else(|| format!("  FAILED {test}: it did not run\n"), |(_, line)| format!("  {line}\n"));
            }
        }
    }
    let count = |name: &str, outcome: &Outcome| {
        let (passed, failed, seconds) = (outcome.passed.len(), outcome.failed.len(), outcome.took.as_secs());
        format!("  {name:<14} {passed:>5} passed {failed:>5} failed {:>5} skipped {seconds:>5} s\n", outcome.skipped)
    };
    let head = format!("{}\n{}{}", redis.unit, count("redis-server", redis), count(target, ours));
    let differ =
        format!("  fewer than redis-server: {} ({expected_failures} expected)\n", expected_failures + tally.failed);
    (head + &differ + &text, tally)
}

/// Runs what the command line asks for.
pub fn run(arguments: &[String]) -> Result<io::Result<Tally>, String> {
    let mut target = Target::Kayvee("linux");
    let mut names = Vec::new();
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--target" => match Target::parse(words.next().unwrap_or_default())? {
                Target::Redis => return Err("redis-server is compared with in any case".into()),
                kayvee => target = kayvee,
            },
            _ if CLIENTS.iter().any(|client| client.name == word) => names.push(word),
            _ => return Err(format!("there is no option or client '{word}'")),
        }
    }
    Ok(run_clients(target, &names))
}

fn run_clients(target: Target, names: &[&str]) -> io::Result<Tally> {
    target.need_build()?;
    let expected = Expected::read(&command::root().join("testing/suite/expected.txt"))?;
    let mut total = Tally::default();
    for client in CLIENTS.iter().filter(|client| names.is_empty() || names.contains(&client.name)) {
        if client.servers == Servers::Own && target != Target::Kayvee("linux") {
            total +=
                Tally::skipped(&format!("{} starts its own servers, which only the Linux process can be", client.name));
            continue;
        }
        let redis = client.run(Target::Redis)?;
        let ours = client.run(target)?;
        let (text, tally) = judge(&redis, &ours, target.name(), &expected);
        command::tell(&text);
        total += tally;
    }
    println!("outputs: {}", source::dir().join("output").display());
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_test_runners_say() {
        let line = "FAILED tests/test_a.py::TestA::test_b[x y] - AssertionError: 1 - 2";
        assert_eq!(read_pytest(line), Some((Said::Failed, "tests/test_a.py::TestA::test_b[x y]")));
        assert_eq!(read_pytest("PASSED tests/a.py::b"), Some((Said::Passed, "tests/a.py::b")));
        assert_eq!(read_pytest("ERROR    asyncio:base_events.py:1821 text"), None);
        assert_eq!(read_cargo("test basic::args ... ok"), Some((Said::Passed, "basic::args")));
        assert_eq!(read_cargo("test basic::args ... FAILED"), Some((Said::Failed, "basic::args")));
        assert_eq!(read_cargo("test result: ok. 1 passed"), None);
        assert_eq!(read_ours("ok rq_jobs (3.1 s)"), Some((Said::Passed, "rq_jobs")));
        assert_eq!(read_ours("FAILED bullmq: Error"), Some((Said::Failed, "bullmq")));
    }

    #[test]
    fn what_redis_server_passes_must_pass() {
        let outcome = |text: &str| CLIENTS[2].read_all(text);
        let redis = outcome("ok a\nok b\nok c\nFAILED d: x");
        let ours = outcome("ok a\nFAILED b: why\nFAILED c: why\nFAILED d: x");
        let expected = Expected::parse("[clients/applications]\nc => reason\n").unwrap();
        let (text, tally) = judge(&redis, &ours, "linux", &expected);
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert!(text.contains("  FAILED b: why\n") && text.contains("expected failure: c (reason)"), "{text}");
    }
}
