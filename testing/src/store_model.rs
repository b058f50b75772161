//! The crash-consistency model of the whole store: random commands of every kind, with compactions running, on a disk
//! that keeps no promise but its own.
//!
//! The same commands run in a store without a log, whose data after each of them is the truth. At any point the power may
//! go; what a new store then finds on the disk must be the truth as it was at some point after the last command that was
//! acknowledged: nothing acknowledged is lost, nothing is half there, and nothing was never asked for.

use crate::{differential::Generator, disk::SimulatedDisk, in_process::environment};
use kayvee_platform::{Clock, Now};
use kayvee_server::{ClientId, Engine, Environment, Options, Peer};
use std::sync::atomic::{AtomicU64, Ordering};

const DISK_BYTES: usize = 12 << 20;
const LIVES: usize = 3;
const STEPS: usize = 150;
/// Turns that a command may wait for the disk.
const PATIENCE_TURNS: usize = 100_000;

/// A clock that goes on whenever it is read, so that a slice of a compaction is a few keys long, the same in each run.
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Now {
        const TICK_NS: u64 = 40_000;
        Now { monotonic_ns: self.0.fetch_add(TICK_NS, Ordering::Relaxed), unix_us: 0 }
    }

    fn name(&self) -> &'static str {
        "ticking"
    }
}

/// From which size on collections have their large form, and are written down in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    Usual,
    /// From a few members on, so that compactions write parts of most collections while they change.
    Parts,
}

impl Sizes {
    fn options(self) -> &'static [&'static str] {
        const SMALL: [&str; 12] = [
            "--hash-max-listpack-entries",
            "2",
            "--set-max-listpack-entries",
            "2",
            "--set-max-intset-entries",
            "2",
            "--zset-max-listpack-entries",
            "2",
            "--list-max-listpack-size",
            "2",
            "--stream-node-max-entries",
            "3",
        ];
        match self {
            Sizes::Usual => &[],
            Sizes::Parts => &SMALL,
        }
    }
}

/// What has been tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Instants at which the power went.
    pub crash_points: u64,
    /// Commands and transactions that were sent.
    pub requests: u64,
    /// Times that what came back was older than the last command, which was not acknowledged.
    pub cut: u64,
    /// Compactions that were begun.
    pub compactions: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.crash_points += other.crash_points;
        self.requests += other.requests;
        self.cut += other.cut;
        self.compactions += other.compactions;
    }
}

/// What the store's data come to. Keys and fields whose time has come do not count, removed or not: when that happens is nobody's
/// promise.
const FINGERPRINT: &str = "
local function value(key, kind)
    local parts = {}
    if kind == 'string' then
        parts[1] = redis.call('get', key)
    elseif kind == 'list' then
        parts = redis.call('lrange', key, 0, -1)
    elseif kind == 'zset' then
        parts = redis.call('zrange', key, 0, -1, 'withscores')
    elseif kind == 'set' then
        parts = redis.call('smembers', key)
        table.sort(parts)
    elseif kind == 'hash' then
        local pairs = redis.call('hgetall', key)
        for i = 1, #pairs, 2 do
            local at = redis.call('hpexpiretime', key, 'fields', 1, pairs[i])[1]
            parts[#parts + 1] = #pairs[i] .. ' ' .. pairs[i] .. pairs[i + 1] .. ' ' .. at
        end
        table.sort(parts)
    else
        for _, entry in ipairs(redis.call('xrange', key, '-', '+')) do
            parts[#parts + 1] = entry[1]
            for _, part in ipairs(entry[2]) do parts[#parts + 1] = part end
        end
    end
    for i = 1, #parts do parts[i] = #parts[i] .. ' ' .. parts[i] end
    return table.concat(parts)
end
local out = {}
for db = 0, 15 do
    redis.call('select', db)
    local keys = redis.call('keys', '*')
    table.sort(keys)
    for _, key in ipairs(keys) do
        local kind = redis.call('type', key).ok
        if kind ~= 'hash' or redis.call('hlen', key) > 0 then
            out[#out + 1] = db .. ' ' .. key .. ' ' .. redis.call('pexpiretime', key) .. ' ' .. kind .. ' ' .. value(key, kind)
        end
        if kind == 'stream' then
            local full = redis.call('xinfo', 'stream', key)
            out[#out + 1] = cjson.encode({full[2], full[8], full[10], full[12]})
            for _, group in ipairs(redis.call('xinfo', 'groups', key)) do
                out[#out + 1] = cjson.encode(group)
                out[#out + 1] = cjson.encode(redis.call('xpending', key, group[2], '-', '+', 100))
            end
        end
    end
end
return redis.sha1hex(table.concat(out, '|'))";

/// An engine with a client that asks and one that looks.
struct Store {
    engine: Engine,
    client: ClientId,
    observer: ClientId,
    received: Vec<u8>,
    observed: Vec<u8>,
}

impl Store {
    fn open(disk: &mut SimulatedDisk, appends: bool, sizes: Sizes, now: Now) -> Result<Store, String> {
        let appendonly = if appends { "yes" } else { "no" };
        let words = ["--appendonly", appendonly, "--appendfsync", "always", "--enable-debug-command", "yes"];
        let words = [&words[..], &["--auto-aof-rewrite-min-size", "256kb"], sizes.options()].concat();
        let options =
            Options::from_args(words.iter().map(|word| word.as_bytes())).map_err(|error| error.to_string())?;
        let clock = Box::leak(Box::new(Ticking(AtomicU64::new(now.monotonic_ns))));
        let mut engine = Engine::new(options, Environment { clock, ..environment() }, now);
        if sizes == Sizes::Parts {
            engine.set_part_sizes(2, 3);
        }
        engine.begin_turn(now);
        engine.open_log(disk).map_err(|error| format!("opening: {error}"))?;
        let peer = || Peer { remote: "10.0.0.9:5000".into(), local: "10.0.0.1:6379".into(), is_local: true };
        let mut connect = || engine.connect(peer()).map_err(|_| "a client is refused".to_string());
        let (client, observer) = (connect()?, connect()?);
        Ok(Store { engine, client, observer, received: Vec::new(), observed: Vec::new() })
    }

    fn send(&mut self, client: ClientId, words: &[Vec<u8>]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.engine.receive(client, &request);
    }

    fn turn(&mut self, disk: Option<&mut SimulatedDisk>) {
        self.engine.end_turn();
        if let Some(disk) = disk {
            self.engine.drive_log(disk);
        }
        while let Some(client) = self.engine.next_ready() {
            let output = self.engine.output(client).to_vec();
            self.engine.sent(client, output.len());
            if client == self.client {
                self.received.extend(output);
            } else {
                self.observed.extend(output);
            }
        }
    }

    /// What the data come to now. No reply may be held back.
    fn fingerprint(&mut self) -> Vec<u8> {
        self.observed.clear();
        self.look();
        self.turn(None);
        std::mem::take(&mut self.observed)
    }

    /// Asks what the data come to.
    fn look(&mut self) {
        let observer = self.observer;
        self.send(observer, &[b"EVAL".to_vec(), FINGERPRINT.into(), b"0".to_vec()]);
        self.send(observer, &[b"FUNCTION".to_vec(), b"DUMP".to_vec()]);
    }
}

struct Model {
    generator: Generator,
    disk: SimulatedDisk,
    sizes: Sizes,
    now: Now,
    tally: Tally,
}

/// Runs one workload. All of it follows from `seed`.
pub fn run(seed: u64) -> Result<Tally, String> {
    let mut model = Model {
        generator: Generator::newer(seed),
        disk: SimulatedDisk::new(DISK_BYTES, seed),
        sizes: if seed.is_multiple_of(2) { Sizes::Parts } else { Sizes::Usual },
        now: Now { monotonic_ns: 5_000_000_000, unix_us: 1_700_000_000_000_000 },
        tally: Tally::default(),
    };
    for life in 0..LIVES {
        model.live().map_err(|error| format!("life {life}: {error}"))?;
    }
    Ok(model.tally)
}

/// Commands that would end the experiment, or that only one of the stores answers in the same way.
fn is_unfit(words: &[Vec<u8>]) -> bool {
    const UNFIT: [&str; 11] =
        ["client", "hello", "config", "quit", "reset", "subscribe", "debug", "shutdown", "function", "script", "info"];
    let name = words[0].to_ascii_lowercase();
    let blocks = words.iter().any(|word| word.eq_ignore_ascii_case(b"block"));
    blocks || UNFIT.iter().any(|unfit| name == unfit.as_bytes())
}

impl Model {
    fn pass(&mut self, ms: u64) {
        self.now.monotonic_ns += ms * 1_000_000;
        self.now.unix_us += ms * 1000;
    }

    /// The next thing to ask for: a command, several as a transaction, or a library of functions.
    fn requests(&mut self) -> Vec<Vec<Vec<u8>>> {
        let random = self.generator.random();
        let count = if random.one_in(6) { 1 + random.below(6) } else { 0 };
        if random.one_in(60) {
            let text = format!(
                "#!lua name=lib{}\nredis.register_function('f{}', function() return {} end)",
                random.below(3),
                random.below(3),
                random.below(100)
            );
            let words = ["FUNCTION", "LOAD", "REPLACE"].iter().map(|word| word.as_bytes().to_vec());
            return vec![words.chain([text.into_bytes()]).collect()];
        }
        let mut step = || loop {
            let words = self.generator.step().words;
            if !is_unfit(&words) {
                return words;
            }
        };
        if count == 0 {
            return vec![step()];
        }
        let mut requests = vec![vec![b"MULTI".to_vec()]];
        requests.extend((0..count).map(|_| step()));
        requests.push(vec![b"EXEC".to_vec()]);
        requests
    }

    fn live(&mut self) -> Result<(), String> {
        let mut truth = Store::open(&mut self.disk.crash(), false, self.sizes, self.now)?;
        let mut store = Store::open(&mut self.disk, true, self.sizes, self.now)?;
        store.look();
        let mut states = vec![(truth.fingerprint(), self.now.unix_us)];
        let mut acknowledged = 0;
        let mut marks: Vec<(Vec<u8>, usize)> = Vec::new();
        let mut trace: Vec<String> = Vec::new();
        for step in 0..STEPS {
            let passed_ms = [0, 0, 0, 1, 40, 700][self.generator.random().below(6)];
            self.pass(passed_ms);
            truth.engine.begin_turn(self.now);
            store.engine.begin_turn(self.now);
            if self.generator.random().one_in(25) {
                let observer = store.observer;
                store.send(observer, &[b"BGREWRITEAOF".to_vec()]);
                self.tally.compactions += 1;
            }
            for _ in 0..1 + self.generator.random().below(4) {
                for words in self.requests() {
                    let shown: Vec<String> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
                    trace.push(shown.join(" "));
                    for one in [&mut truth, &mut store] {
                        let client = one.client;
                        one.send(client, &words);
                    }
                }
                self.tally.requests += 1;
                // Looking may remove what has expired, and draws random numbers: both do the same.
                store.look();
                // What has expired is removed with a turn's end, too.
                states.push((truth.fingerprint(), self.now.unix_us));
                let mark = format!("<mark {}.{}>", step, states.len()).into_bytes();
                let client = store.client;
                store.send(client, &[b"ECHO".to_vec(), mark.clone()]);
                marks.push((mark, states.len() - 1));
            }
            truth.turn(None);
            store.turn(Some(&mut self.disk));
            store.look();
            states.push((truth.fingerprint(), self.now.unix_us));
            for _ in 0..self.generator.random().below(8) {
                store.turn(Some(&mut self.disk));
                store.engine.begin_turn(self.now);
            }
            if let Some((at, (_, state))) =
                marks.iter().enumerate().rev().find(|(_, (mark, _))| contains(&store.received, mark))
            {
                acknowledged = *state;
                marks.drain(..=at);
                store.received.clear();
            }
            if self.generator.random().one_in(4) {
                self.crash(&states[acknowledged..]).map_err(|error| explained(&error, step, &trace))?;
            }
        }
        self.settle(&mut store, &marks)?;
        let last = states.len() - 1;
        self.crash(&states[last..]).map_err(|error| explained(&error, STEPS, &trace))?;
        let rest = self.disk.crash();
        self.disk = rest;
        Ok(())
    }

    /// Takes turns until everything is acknowledged.
    fn settle(&mut self, store: &mut Store, marks: &[(Vec<u8>, usize)]) -> Result<(), String> {
        let Some((last, _)) = marks.last() else { return Ok(()) };
        for _ in 0..PATIENCE_TURNS {
            if contains(&store.received, last) {
                return Ok(());
            }
            store.turn(Some(&mut self.disk));
            store.engine.begin_turn(self.now);
        }
        Err("a command is never acknowledged".into())
    }

    /// Looks at what would be there if the power went now: one of these states, each of which was seen at its own time.
    fn crash(&mut self, states: &[(Vec<u8>, u64)]) -> Result<(), String> {
        let mut disk = self.disk.crash();
        let mut store = Store::open(&mut disk, true, self.sizes, self.now)?;
        self.tally.crash_points += 1;
        let (mut at, mut found) = (0, Vec::new());
        let mut recovered = None;
        // Looking at a later time may remove what was still there at an earlier one.
        for same_time in states.chunk_by(|a, b| a.1 == b.1) {
            store.engine.begin_turn(Now { unix_us: same_time[0].1, ..self.now });
            found = store.fingerprint();
            let newest = same_time.iter().rposition(|(state, _)| *state == found);
            recovered = newest.map(|newest| at + newest).or(recovered);
            at += same_time.len();
        }
        let Some(recovered) = recovered else {
            let newest = states.last().map(|(state, _)| state.escape_ascii().to_string()).unwrap_or_default();
            return Err(format!(
                "what came back is none of the last {} states: {} (the last one is {newest})",
                states.len(),
                found.escape_ascii(),
            ));
        };
        self.tally.cut += u64::from(recovered + 1 < states.len());
        Ok(())
    }
}

fn explained(error: &str, step: usize, trace: &[String]) -> String {
    const SHOWN: usize = 40;
    let shown = &trace[trace.len().saturating_sub(SHOWN)..];
    format!("step {step}: {error}\n{}", shown.join("\n"))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
