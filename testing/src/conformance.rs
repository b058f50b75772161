//! Runs the conformance vectors against a server.
//!
//! Every case runs four times: over RESP2, over RESP3, over RESP2 with each request in writes of one byte, and over
//! RESP2 with the requests of a connection sent as one pipeline. The vectors are facts: all of them pass on
//! redis-server 7.0, except those for what 7.2 changed and what 7.4 added.

mod pattern;
mod vectors;

pub use vectors::{Case, Request, parse};

use crate::client::{Client, Reply, encode};
use pattern::{Bindings, Pattern, shown};
use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use vectors::{Actor, Outcome, Step};

/// The pause between two attempts of an `until` step.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// So many cases in a row that could not even start mean that the server is gone.
const GIVE_UP_AFTER: usize = 3;
const UNPREPARED: &str = "cannot prepare";
const ECHO_TOKEN: &str = "end-of-case";

/// Where the server is and how to get in.
#[derive(Clone, Debug)]
pub struct Target {
    /// `HOST:PORT`
    pub addr: String,
    /// The default user's password.
    pub password: Option<String>,
}

/// How the requests of a case reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One by one in RESP2.
    Resp2,
    /// One by one in RESP3.
    Resp3,
    /// In RESP2, each byte in a write of its own.
    Split,
    /// In RESP2, all that one connection sends in a row at once.
    Pipeline,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 4] = [Mode::Resp2, Mode::Resp3, Mode::Split, Mode::Pipeline];

    /// Its name in a report and in tags.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Resp2 => "resp2",
            Mode::Resp3 => "resp3",
            Mode::Split => "split",
            Mode::Pipeline => "pipeline",
        }
    }

    /// Whether a case wants it: one that names modes wants only those.
    fn suits(self, case: &Case) -> bool {
        let named = |mode: Mode| case.tags.iter().any(|tag| tag == mode.name());
        !Mode::ALL.into_iter().any(named) || named(self)
    }
}

/// The folder of the vectors that belong to this source tree.
pub fn vectors_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// Reads every `*.txt` of a folder, in the order of their names.
pub fn load(dir: &Path) -> Result<Vec<Case>, String> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .map_err(|e| format!("{}: {e}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        cases.extend(parse(&name, &text)?);
    }
    Ok(cases)
}

/// What a server is, so far as cases depend on it.
#[derive(Clone, Debug, Default)]
pub struct Traits {
    /// `redis_version`: major and minor.
    pub version: (u32, u32),
    /// Whether it is Kayvee, which has some of what is newer than its version.
    pub is_kayvee: bool,
    /// Whether `DEBUG` may be used.
    pub debug: bool,
    /// Whether a value of 512 MiB fits.
    pub large: bool,
    /// Whether it lets everyone in.
    pub open: bool,
}

/// The memory that cases with values of 512 MiB want.
const LARGE_BYTES: u64 = 3 << 30;

impl Traits {
    /// Asks the server.
    pub fn of(target: &Target) -> io::Result<Traits> {
        let mut client = Client::connect_with(&target.addr, target.password.as_deref())?;
        let info = client.call(&["INFO"])?;
        let text = String::from_utf8_lossy(info.text().unwrap_or_default()).into_owned();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        let mut numbers = field("redis_version:").split('.').map(|n| n.parse().unwrap_or(0));
        let debug = client.call(&["DEBUG", "HELP"])?;
        Ok(Traits {
            version: (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)),
            is_kayvee: !field("kayvee_version:").is_empty(),
            debug: matches!(debug, Reply::Array(_)),
            open: target.password.is_none(),
            large: field("total_system_memory:").parse().is_ok_and(|bytes: u64| bytes >= LARGE_BYTES),
        })
    }

    /// Why a case cannot run on this server, if it cannot.
    pub fn unsuited(&self, case: &Case) -> Option<&'static str> {
        for tag in &case.tags {
            match tag.as_str() {
                "7.4" if self.version < (7, 4) && !self.is_kayvee => return Some("needs Redis 7.4"),
                "7.2" if self.version < (7, 2) => return Some("needs Redis 7.2"),
                "7.0" if self.version >= (7, 2) => return Some("what Redis 7.2 changed"),
                "open" if !self.open => return Some("needs a server without a password"),
                "large" if !self.large => return Some("needs a machine with more memory"),
                "debug" if !self.debug => return Some("needs DEBUG"),
                _ => {}
            }
        }
        None
    }
}

/// What one request got.
struct Got {
    line: usize,
    replies: Vec<Reply>,
    closed: bool,
}

struct Run<'a> {
    case: &'a Case,
    target: &'a Target,
    mode: Mode,
    connections: HashMap<String, Client>,
    bindings: Bindings,
}

/// Runs a case once. The message of a failure says where and what.
pub fn run_case(case: &Case, target: &Target, mode: Mode) -> Result<(), String> {
    run_recording(case, target, mode).0
}

fn run_recording(case: &Case, target: &Target, mode: Mode) -> (Result<(), String>, Vec<Got>) {
    let mut control = match prepare(target) {
        Ok(control) => control,
        Err(error) => return (Err(format!("{UNPREPARED}: {error}")), Vec::new()),
    };
    let bindings = Bindings::from([("password".to_string(), target.password.clone().unwrap_or_default().into_bytes())]);
    let mut run = Run { case, target, mode, connections: HashMap::new(), bindings };
    let mut got = Vec::new();
    let mut result = run.script(&mut got);
    for step in case.steps.iter().filter(|step| step.actor == Actor::Cleanup) {
        if let Request::Command(words) = &step.request {
            let words: Vec<Vec<u8>> = words.iter().map(|w| w.expand(&run.bindings)).collect();
            let answer = control.call(&words);
            let expected = matches!(&step.outcome, Outcome::Replies(p)
                if answer.as_ref().is_ok_and(|reply| p[0].matches(reply, &mut run.bindings)));
            if !expected && result.is_ok() {
                result = Err(format!("line {}: cleaning up gave {answer:?}", step.line));
            }
            got.extend(answer.ok().map(|reply| Got { line: step.line, replies: vec![reply], closed: false }));
        }
    }
    (result.map_err(|e| format!("{} {} ({}): {e}", case.place, case.name, mode.name())), got)
}

fn prepare(target: &Target) -> io::Result<Client> {
    let mut control = Client::connect_with(&target.addr, target.password.as_deref())?;
    let reply = control.call(&["FLUSHALL"])?;
    match reply {
        Reply::Simple(_) => Ok(control),
        other => Err(io::Error::other(format!("FLUSHALL: {other}"))),
    }
}

impl Run<'_> {
    fn script(&mut self, got: &mut Vec<Got>) -> Result<(), String> {
        let steps: Vec<&Step> = self.case.steps.iter().filter(|step| step.actor != Actor::Cleanup).collect();
        let mut rest = &steps[..];
        while let Some(first) = rest.first() {
            let batch = if self.mode == Mode::Pipeline { pipeline_len(rest) } else { 1 };
            let (now, later) = rest.split_at(batch);
            rest = later;
            match first.until {
                Some(bound) => self.retry(first, bound, got)?,
                None => self.batch(now, got)?,
            }
        }
        self.nothing_is_left()
    }

    /// Sends the requests of `steps`, which are of one connection, then checks their replies.
    fn batch(&mut self, steps: &[&Step], got: &mut Vec<Got>) -> Result<(), String> {
        let at = |step: &Step, e: &dyn std::fmt::Display| format!("line {}: {e}", step.line);
        let bytes: Vec<u8> = steps.iter().flat_map(|step| self.request_bytes(step)).collect();
        let one_byte_writes = self.mode == Mode::Split;
        let client = self.connection(steps[0]).map_err(|e| at(steps[0], &e))?;
        // A server may close before it has read everything, so a failed write is judged by what can be read.
        if one_byte_writes {
            let _ = bytes.iter().try_for_each(|b| client.send(&[*b]));
        } else {
            let _ = client.send(&bytes);
        }
        for step in steps {
            let mut found = Got { line: step.line, replies: Vec::new(), closed: false };
            let result = self.check(step, &mut found);
            got.push(found);
            result.map_err(|e| at(step, &e))?;
        }
        Ok(())
    }

    fn check(&mut self, step: &Step, found: &mut Got) -> Result<(), String> {
        let (patterns, closes): (&[Pattern], bool) = match &step.outcome {
            Outcome::Replies(patterns) => (patterns, false),
            Outcome::Closes(patterns) => (patterns, true),
            Outcome::Silence => (&[], false),
        };
        let Actor::Connection(name) = &step.actor else { return Ok(()) };
        let client = self.connections.get_mut(name).ok_or("no such connection")?;
        let mut wrong = None;
        for pattern in patterns {
            let reply = match client.read_reply() {
                Ok(reply) => reply,
                Err(error) => {
                    found.closed = true;
                    return Err(wrong.unwrap_or(format!("expected {pattern}, got: {error}")));
                }
            };
            if !pattern.matches(&reply, &mut self.bindings) {
                wrong.get_or_insert(format!("expected {pattern}, got {}", shown(&reply)));
            }
            found.replies.push(reply);
        }
        if closes {
            client.expect_closed().map_err(|e| format!("expected the connection to be closed: {e}"))?;
            self.connections.remove(name);
        }
        wrong.map_or(Ok(()), Err)
    }

    /// Asks until the replies are as expected; what an `until` step is about is that they will be.
    fn retry(&mut self, step: &Step, bound: Duration, got: &mut Vec<Got>) -> Result<(), String> {
        let deadline = Instant::now() + bound;
        loop {
            let known = got.len();
            let result = self.batch(&[step], got);
            if result.is_ok() || Instant::now() >= deadline || got.last().is_none_or(|g| g.closed) {
                return result;
            }
            got.truncate(known);
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn request_bytes(&self, step: &Step) -> Vec<u8> {
        match &step.request {
            Request::Command(words) => {
                let words: Vec<Vec<u8>> = words.iter().map(|w| w.expand(&self.bindings)).collect();
                encode(&words)
            }
            Request::Raw(words) => words.iter().flat_map(|w| w.expand(&self.bindings)).collect(),
        }
    }

    fn connection(&mut self, step: &Step) -> io::Result<&mut Client> {
        let Actor::Connection(name) = &step.actor else {
            return Err(io::Error::other("a clean-up step has no connection"));
        };
        if !self.connections.contains_key(name) {
            let plain = self.case.tags.iter().any(|tag| tag == "plain");
            let password = self.target.password.as_deref().filter(|_| !plain);
            let mut client = Client::connect_with(&self.target.addr, password)?;
            if self.mode == Mode::Resp3 && !plain {
                let reply = client.call(&["HELLO", "3"])?;
                if !matches!(reply, Reply::Map(_)) {
                    return Err(io::Error::other(format!("HELLO 3: {reply}")));
                }
            }
            self.connections.insert(name.clone(), client);
        }
        self.connections.get_mut(name).ok_or_else(|| io::Error::other("no such connection"))
    }

    /// No reply may be left that nothing asked for.
    fn nothing_is_left(&mut self) -> Result<(), String> {
        for (name, client) in &mut self.connections {
            let reply = client.call(&["ECHO", ECHO_TOKEN]).map_err(|e| format!("connection {name}: {e}"))?;
            match &reply {
                Reply::Bulk(text) if text == ECHO_TOKEN.as_bytes() => {}
                Reply::Error(text) if text.starts_with(b"NOAUTH") => {}
                other => return Err(format!("connection {name}: a reply to nothing: {}", shown(other))),
            }
        }
        Ok(())
    }
}

/// How many of the first steps can be sent at once: of one connection, not waiting for a name that a reply binds.
fn pipeline_len(steps: &[&Step]) -> usize {
    let mut len = 1;
    while len < steps.len() {
        let (before, step) = (steps[len - 1], steps[len]);
        let (Request::Command(words) | Request::Raw(words)) = &step.request;
        let before_ends = match &before.outcome {
            Outcome::Replies(patterns) => before.until.is_some() || patterns.iter().any(Pattern::binds),
            Outcome::Closes(_) => true,
            Outcome::Silence => false,
        };
        let waits = words.iter().any(|word| word.uses_names());
        if before_ends || waits || step.until.is_some() || step.actor != before.actor {
            break;
        }
        len += 1;
    }
    len
}

/// The outcome of a whole run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Cases that did what they should, counted once for each mode.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Cases that do not suit this server.
    pub skipped: usize,
}

/// Runs all cases in every mode that suits them, printing failures as they come.
pub fn run_all(cases: &[Case], target: &Target, traits: &Traits) -> Totals {
    let mut totals = Totals::default();
    let mut unprepared = 0;
    for case in cases {
        if traits.unsuited(case).is_some() {
            totals.skipped += 1;
            continue;
        }
        for mode in Mode::ALL.into_iter().filter(|mode| mode.suits(case)) {
            match run_case(case, target, mode) {
                Ok(()) => totals.passed += 1,
                Err(error) => {
                    totals.failed += 1;
                    println!("FAILED {error}");
                    unprepared = if error.starts_with(UNPREPARED) { unprepared + 1 } else { 0 };
                    if unprepared == GIVE_UP_AFTER {
                        println!("the server is gone; the rest of the cases did not run");
                        return totals;
                    }
                }
            }
        }
    }
    totals
}

/// Runs the cases of one file and returns its text with what the server said wherever that differs.
pub fn record(file: &str, text: &str, target: &Target, traits: &Traits) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out: Vec<String> = Vec::new();
    let mut copied = 0;
    for case in parse(file, text)? {
        if traits.unsuited(&case).is_some() {
            continue;
        }
        let mode = if Mode::Resp3.suits(&case) { Mode::Resp3 } else { Mode::Resp2 };
        let (_, got) = run_to_the_end(&case, target, mode);
        for step in &case.steps {
            let Some(got) = got.iter().find(|g| g.line == step.line) else { continue };
            let (Outcome::Replies(patterns) | Outcome::Closes(patterns)) = &step.outcome else { continue };
            let closes = got.closed || matches!(step.outcome, Outcome::Closes(_));
            let mut bindings = Bindings::new();
            let fits = patterns.len() == got.replies.len()
                && patterns.iter().zip(&got.replies).all(|(p, r)| p.uses_names() || p.matches(r, &mut bindings));
            if fits || (got.replies.is_empty() && !got.closed) {
                continue;
            }
            out.extend(lines[copied..step.expected_lines.start].iter().map(|l| l.to_string()));
            out.extend(got.replies.iter().map(Reply::to_string));
            out.extend(closes.then(|| "closed".to_string()));
            copied = step.expected_lines.end;
        }
    }
    out.extend(lines[copied..].iter().map(|l| l.to_string()));
    Ok(out.join("\n") + "\n")
}

/// Runs a case on past every mismatch, by expecting nothing.
fn run_to_the_end(case: &Case, target: &Target, mode: Mode) -> (Result<(), String>, Vec<Got>) {
    let mut lenient = case.clone();
    for step in &mut lenient.steps {
        if let Outcome::Replies(patterns) | Outcome::Closes(patterns) = &mut step.outcome {
            for pattern in patterns.iter_mut().filter(|p| !p.binds() && step.until.is_none()) {
                *pattern = Pattern::Any;
            }
        }
    }
    run_recording(&lenient, target, mode)
}
