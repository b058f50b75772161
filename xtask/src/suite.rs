//! `./kayvee suite`: Redis' own Tcl tests as the judge.
//!
//! Each unit runs against a fresh store, as Redis' harness runs against an external server, because units leak options
//! into each other. With `--own-servers` the harness starts servers itself, with the Linux process in redis-server's
//! place: that is how the units run which external mode skips.

mod clients;
mod expected;
mod harness;
mod source;

use crate::command::{self, Tally, target_dir};
use crate::store::{RedisServer, Store};
use expected::{Expected, Verdict};
use harness::{Job, Outcome};
use std::{
    io,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const USAGE: &str = "\
Redis 7.0's own tests against Kayvee.

Usage: ./kayvee suite [OPTION]... [UNIT]...
       ./kayvee suite clients --help

UNIT is a file of the suite such as unit/type/list; without any, all that apply run.

  --target linux|tcg|kvm|redis   What to test; redis is the installed redis-server [default: linux]
  --mode full|no-debug|portable  Which tests: all but slow ones; without DEBUG; what any compatible server passes
                                 [default: full]
  --own-servers                  Let the harness start servers itself, from `kayvee server` (with --target linux|redis)
  --only TEST                    Only this test, or those that match /PATTERN (repeatable)
  --jobs N                       Units at a time [default: 1]
  --unit-limit SECONDS           Longest time of one unit [default: 300]
  --verbose                      Show what passes and what is skipped as well
  --strict                       Also fail on expected failures that did not happen

What may fail stands in testing/suite/expected.txt with its reason. The units' whole outputs are left in the folder
suite of the build folder.
";

/// What answers the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `kayvee run --target …`.
    Kayvee(&'static str),
    /// redis-server, to see what the tests themselves are worth.
    Redis,
}

impl Target {
    fn parse(word: &str) -> Result<Target, String> {
        Ok(match word {
            "linux" => Target::Kayvee("linux"),
            "tcg" => Target::Kayvee("tcg"),
            "kvm" => Target::Kayvee("kvm"),
            "redis" => Target::Redis,
            other => return Err(format!("there is no target '{other}'")),
        })
    }

    fn name(self) -> &'static str {
        match self {
            Target::Kayvee(name) => name,
            Target::Redis => "redis",
        }
    }

    /// Builds what is tested.
    fn need_build(self) -> io::Result<()> {
        match self {
            Target::Redis => Ok(()),
            Target::Kayvee("linux") => crate::need_linux_build(),
            Target::Kayvee(_) => crate::need_build(),
        }
    }

    /// The shell's line that starts a server with redis-server's arguments.
    fn server_line(self) -> String {
        match self {
            Target::Redis => "exec redis-server \"$@\"".into(),
            Target::Kayvee(_) => format!("exec '{}' server \"$@\"", target_dir().join("release/kayvee").display()),
        }
    }
}

/// Which tests of a unit run: the three runs that a compatible server is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Full,
    NoDebug,
    Portable,
}

impl Mode {
    fn arguments(self, servers: Servers) -> &'static [&'static str] {
        match self {
            // Of the units that need servers of their own, only unit/querybuf calls itself slow.
            Mode::Full if servers == Servers::Own => &[],
            Mode::Full => &["--tags", "-slow"],
            Mode::NoDebug => &["--tags", "-slow -needs:debug"],
            Mode::Portable => &[
                "--singledb",
                "--ignore-encoding",
                "--ignore-digest",
                "--tags",
                "-slow -needs:debug -needs:repl -needs:config-maxmemory -needs:pfdebug -needs:save \
                 -needs:config-resetstat -needs:reset",
            ],
        }
    }
}

/// Who starts the servers that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// We do, one a unit.
    External,
    /// The harness does.
    Own,
}

/// One run of the suite.
#[derive(Debug)]
pub struct Suite {
    target: Target,
    mode: Mode,
    servers: Servers,
    units: Vec<String>,
    only: Vec<String>,
    jobs: usize,
    unit_limit: Duration,
    verbose: bool,
    strict: bool,
}

/// Lines of a failure that are shown.
const DETAIL_LINES: usize = 6;

/// What Redis 7.0 chooses where 7.2 has a smaller encoding: its tests assert the former.
const ENCODINGS_OF_7_0: &[&str] = &["--set-max-listpack-entries", "0"];

impl Suite {
    fn parse(arguments: &[String]) -> Result<Suite, String> {
        let mut suite = Suite {
            target: Target::Kayvee("linux"),
            mode: Mode::Full,
            servers: Servers::External,
            units: Vec::new(),
            only: Vec::new(),
            jobs: 1,
            unit_limit: Duration::from_secs(300),
            verbose: false,
            strict: false,
        };
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word {
                "--target" => suite.target = Target::parse(value()?)?,
                "--mode" => {
                    suite.mode = match value()? {
                        "full" => Mode::Full,
                        "no-debug" => Mode::NoDebug,
                        "portable" => Mode::Portable,
                        other => return Err(format!("there is no mode '{other}'")),
                    }
                }
                "--own-servers" => suite.servers = Servers::Own,
                "--only" => suite.only.push(value()?.into()),
                "--jobs" => suite.jobs = value()?.parse().map_err(|_| "--jobs is a number")?,
                "--unit-limit" => {
                    let seconds = value()?.parse().map_err(|_| "--unit-limit is a number of seconds")?;
                    suite.unit_limit = Duration::from_secs(seconds);
                }
                "--verbose" => suite.verbose = true,
                "--strict" => suite.strict = true,
                _ if word.starts_with('-') => return Err(format!("there is no option '{word}'")),
                _ => suite.units.push(word.trim_end_matches(".tcl").trim_start_matches("tests/").into()),
            }
        }
        if suite.servers == Servers::Own && !matches!(suite.target, Target::Kayvee("linux") | Target::Redis) {
            return Err("--own-servers goes with --target linux or redis".into());
        }
        Ok(suite)
    }

    /// The condition words that hold for this run, as expected.txt names them.
    fn conditions(&self) -> [&'static str; 3] {
        let mode = match self.mode {
            Mode::Full => "full",
            Mode::NoDebug => "no-debug",
            Mode::Portable => "portable",
        };
        let servers = if self.servers == Servers::Own { "own-servers" } else { "external" };
        [self.target.name(), mode, servers]
    }

    /// Runs all units and reports on them. What fails against expectation counts as failed.
    pub fn run(mut self) -> io::Result<Tally> {
        self.target.need_build()?;
        let tarball = source::tarball()?;
        let expected = Expected::read(&command::root().join("testing/suite/expected.txt"))?;
        if self.units.is_empty() {
            let own = self.servers == Servers::Own;
            self.units = source::units(&tarball)?;
            self.units.retain(|unit| if own { is_for_own_servers(unit) } else { is_for_any_server(unit) });
        }
        let next = AtomicUsize::new(0);
        let outcomes = Mutex::new(Vec::new());
        let work = |job: usize| -> io::Result<()> {
            let job = Job::prepare(job, &tarball, self.servers, self.target)?;
            while let Some(unit) = self.units.get(next.fetch_add(1, Ordering::Relaxed)) {
                let not_run = expected.not_run(unit, &self.conditions());
                let outcome = self.run_unit(&job, unit, &not_run)?;
                let (text, tally) = self.judge(&outcome, &expected);
                command::tell(&text);
                outcomes.lock().expect("no job panics").push((outcome, tally));
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs.max(1)).map(|job| scope.spawn(move || work(job))).collect();
            jobs.into_iter().try_for_each(|job| job.join().expect("no job panics"))
        })?;
        Ok(summary(&outcomes.into_inner().expect("no job panics")))
    }

    fn run_unit(&self, job: &Job, unit: &str, not_run: &[&str]) -> io::Result<Outcome> {
        let mut arguments: Vec<&str> = self.mode.arguments(self.servers).to_vec();
        // redis-server passes them.
        for test in not_run.iter().filter(|_| self.target != Target::Redis) {
            arguments.extend(["--skiptest", test]);
        }
        for test in &self.only {
            arguments.extend(["--only", test]);
        }
        if self.servers == Servers::Own {
            return job.run(unit, None, &arguments, self.unit_limit);
        }
        match self.target {
            Target::Redis => {
                let redis = RedisServer::start(&["--enable-debug-command", "yes"])?;
                job.run(unit, Some(&redis.addr()), &arguments, self.unit_limit)
            }
            Target::Kayvee(target) => {
                let store = match target {
                    "linux" => {
                        let (dir, disk) = job.fresh_data_dir()?;
                        let options = [ENCODINGS_OF_7_0, &["--appendonly", "no", "--dir", &dir]].concat();
                        Store::start_with(&["--target", target, "--disk", &disk], &options)?
                    }
                    _ => Store::start_with(&["--target", target], ENCODINGS_OF_7_0)?,
                };
                let mut outcome = job.run(unit, Some(&store.addr), &arguments, self.unit_limit)?;
                // A store that ended before it was asked to has crashed.
                if let Some(how) = store.end_quietly()? {
                    outcome.failed.push((format!("the store ended: {how}"), String::new()));
                }
                Ok(outcome)
            }
        }
    }

    /// Compares what happened with what was expected, in words and numbers.
    fn judge(&self, outcome: &Outcome, expected: &Expected) -> (String, Tally) {
        let conditions = self.conditions();
        let mut text = String::new();
        let mut tally = Tally { passed: outcome.passed.len() as u32, failed: 0, skipped: outcome.skipped };
        let mut expected_failures = 0;
        for (name, details) in &outcome.failed {
            match expected.verdict(&outcome.unit, name, &conditions) {
                Verdict::MayFail(reason) => {
                    expected_failures += 1;
                    if self.verbose {
                        text += &format!("  expected failure: {name} ({reason})\n");
                    }
                }
                Verdict::MustPass => {
                    tally.failed += 1;
                    text += &format!("  FAILED {name}\n");
                    details.lines().take(DETAIL_LINES).for_each(|line| text += &format!("      {line}\n"));
                }
            }
        }
        for name in &outcome.passed {
            if self.verbose {
                text += &format!("  ok {name}\n");
            }
            if let Verdict::MayFail(_) = expected.verdict(&outcome.unit, name, &conditions)
                && !outcome.failed.iter().any(|(failed, _)| failed == name)
            {
                text += &format!("  expected to fail, but passed: {name}\n");
                tally.failed += u32::from(self.strict && !expected.is_unsure(&outcome.unit, name));
            }
        }
        let head = format!(
            "{:<28} {:>4} ok {:>3} err ({expected_failures} expected) {:>3} skipped {:>4} s\n",
            outcome.unit,
            outcome.passed.len(),
            outcome.failed.len(),
            outcome.skipped,
            outcome.took.as_secs()
        );
        (head + &text, tally)
    }
}

/// What Redis' harness can test on a server that it did not start, as far as it is about one store.
fn is_for_any_server(unit: &str) -> bool {
    let is_tool = ["integration/redis-cli", "integration/redis-benchmark"].contains(&unit);
    is_tool || (unit.starts_with("unit/") && !unit.starts_with("unit/cluster") && unit != "unit/tls")
}

/// Units that external mode skips in whole or in large part.
const OWN_SERVER_UNITS: [&str; 47] = [
    "integration/block-repl",
    "integration/convert-ziplist-hash-on-load",
    "integration/convert-ziplist-zset-on-load",
    "integration/convert-zipmap-hash-on-load",
    "integration/corrupt-dump",
    "integration/corrupt-dump-fuzzer",
    "integration/dismiss-mem",
    "integration/failover",
    "integration/psync2",
    "integration/psync2-master-restart",
    "integration/psync2-pingoff",
    "integration/psync2-reg",
    "integration/rdb",
    "integration/replication",
    "integration/replication-2",
    "integration/replication-3",
    "integration/replication-4",
    "integration/replication-buffer",
    "integration/replication-psync",
    "integration/shutdown",
    "unit/acl",
    "unit/acl-v2",
    "unit/aofrw",
    "unit/auth",
    "unit/bitfield",
    "unit/client-eviction",
    "unit/dump",
    "unit/expire",
    "unit/functions",
    "unit/info",
    "unit/introspection",
    "unit/introspection-2",
    "unit/limits",
    "unit/maxmemory",
    "unit/memefficiency",
    "unit/multi",
    "unit/networking",
    "unit/obuf-limits",
    "unit/other",
    "unit/pause",
    "unit/pendingquerybuf",
    "unit/pubsubshard",
    "unit/querybuf",
    "unit/replybufsize",
    "unit/shutdown",
    "unit/type/stream-cgroups",
    "unit/wait",
];

fn is_for_own_servers(unit: &str) -> bool {
    OWN_SERVER_UNITS.contains(&unit)
}

fn summary(outcomes: &[(Outcome, Tally)]) -> Tally {
    let mut total = Tally::default();
    let (mut ok, mut err) = (0, 0);
    for (outcome, tally) in outcomes {
        total += *tally;
        ok += outcome.passed.len();
        err += outcome.failed.len();
    }
    println!("suite: {ok} ok, {err} err, {} skipped in {} units", total.skipped, outcomes.len());
    println!("outputs: {}", target_dir().join("suite/output").display());
    total
}

/// The quick part of the suite: units that end within seconds, each type with one at least.
pub fn quick(target: &str) -> io::Result<Tally> {
    const EVERYWHERE: &[&str] =
        &["unit/type/string", "unit/type/hash", "unit/type/set", "unit/type/zset", "unit/multi"];
    const PROCESS: &[&str] = &[
        "unit/type/incr",
        "unit/type/list",
        "unit/type/stream",
        "unit/type/stream-cgroups",
        "unit/keyspace",
        "unit/scan",
        "unit/sort",
        "unit/expire",
        "unit/pubsub",
        "unit/scripting",
        "unit/functions",
        "unit/bitops",
        "unit/bitfield",
        "unit/dump",
    ];
    let (mode, units) = match target {
        "linux" => ("full", [EVERYWHERE, PROCESS].concat()),
        _ => ("portable", EVERYWHERE.to_vec()),
    };
    // Most of a unit is waiting of one side for the other.
    let words = ["--target", target, "--mode", mode, "--jobs", "4"];
    let words: Vec<String> = words.into_iter().chain(units).map(String::from).collect();
    Suite::parse(&words).map_err(io::Error::other)?.run()
}

/// Runs what the command line asks for.
pub fn main(arguments: &[String]) -> ExitCode {
    let of_clients = arguments.first().is_some_and(|word| word == "clients");
    let usage = if of_clients { clients::USAGE } else { USAGE };
    if arguments.iter().any(|word| word == "-h" || word == "--help") {
        print!("{usage}");
        return ExitCode::SUCCESS;
    }
    let done =
        if of_clients { clients::run(&arguments[1..]) } else { Suite::parse(arguments).map(|suite| suite.run()) };
    match done {
        Err(error) => {
            eprint!("xtask: {error}\n\n{usage}");
            ExitCode::from(2)
        }
        Ok(Ok(tally)) => {
            println!("{tally}");
            ExitCode::from(u8::from(tally.failed > 0))
        }
        Ok(Err(error)) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Suite, String> {
        Suite::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn reads_its_arguments() {
        let suite = parse("--target kvm --mode portable --only x tests/unit/type/list.tcl unit/scan").unwrap();
        assert_eq!(suite.units, ["unit/type/list", "unit/scan"]);
        assert_eq!(suite.conditions(), ["kvm", "portable", "external"]);
        for line in ["--target x", "--target", "--bogus", "--own-servers --target kvm", "--jobs x"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
