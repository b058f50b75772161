//! How long the slowest turn takes while the log of ten million keys is compacted and clients write, how much memory that
//! takes, and how long it takes to load all of it again.
//!
//! `cargo run --release -p kayvee-server --example compaction_latency [KEYS] [strings|text|hash|set|zset|list|stream]`
//!
//! With a kind of collection there is one key, which has as many members, and the clients change that. A text has ten bytes for
//! each.
//!
//! The disk is memory, which is there at once: what is measured is the engine's own part. The machine does other things as
//! well. So all is done several times in exactly the same way, and of each turn the least time over all runs counts.

mod still;

use kayvee_platform::{BlockDevice, Clock, Finished, Geometry, Now, Operation, Transfer};
use kayvee_server::{ClientId, Engine, Environment, Options, Peer};
use std::{collections::VecDeque, sync::LazyLock, time::Instant};

const RUNS: usize = 3;
const KEYS: usize = 10_000_000;
const KEYS_PER_REQUEST: usize = 1000;
/// Writes in each turn while the log is compacted.
const WRITES_PER_TURN: usize = 16;

/// Bytes of memory that the process has, or has had at the most since [`forget_peak`], by what the kernel says.
fn memory_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn forget_peak() {
    // Without it the peak is that since the process began, which says more than it should, not less.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Now { monotonic_ns: START.elapsed().as_nanos() as u64, unix_us: 1_700_000_000_000_000 }
    }

    fn name(&self) -> &'static str {
        "system"
    }
}

/// A disk in memory.
struct Disk {
    bytes: Vec<u8>,
    finished: VecDeque<Finished>,
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: 4096, size_bytes: self.bytes.len() as u64, is_read_only: false }
    }

    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        let Transfer { token, operation, at_bytes, mut buffer } = transfer;
        let place = &mut self.bytes[at_bytes as usize..][..buffer.len()];
        match operation {
            Operation::Read => buffer.copy_from_slice(place),
            Operation::Write | Operation::WriteStable => place.copy_from_slice(&buffer),
            Operation::Flush => {}
        }
        self.finished.push_back(Finished { token, buffer, result: Ok(()) });
        Ok(())
    }

    fn finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn wait(&mut self) {}
}

struct Bench {
    engine: Engine,
    client: ClientId,
    disk: Disk,
}

impl Bench {
    fn open(disk: Disk) -> Bench {
        let mut disk = disk;
        let environment = Environment { clock: &SystemClock, ..still::environment() };
        let words = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
        let options = Options::from_args(words.iter().map(|word| word.as_bytes())).expect("they are options");
        let mut engine = Engine::new(options, environment, SystemClock.now());
        engine.begin_turn(SystemClock.now());
        engine.open_log(&mut disk).expect("the disk is sound");
        let client = engine.connect(Peer { is_local: true, ..Peer::default() }).expect("the first client is welcome");
        Bench { engine, client, disk }
    }

    /// One turn, with these requests. Returns how long it took.
    fn turn(&mut self, requests: &[u8]) -> u64 {
        let start = Instant::now();
        self.engine.begin_turn(SystemClock.now());
        self.engine.receive(self.client, requests);
        self.engine.end_turn();
        self.engine.drive_log(&mut self.disk);
        while let Some(client) = self.engine.next_ready() {
            let len = self.engine.output(client).len();
            self.engine.sent(client, len);
        }
        start.elapsed().as_nanos() as u64
    }

    fn is_compacting(&mut self) -> bool {
        self.engine.receive(self.client, b"INFO persistence\r\n");
        self.engine.end_turn();
        while self.engine.next_ready().is_some() {}
        let text = String::from_utf8_lossy(self.engine.output(self.client)).into_owned();
        self.engine.sent(self.client, text.len());
        text.contains("aof_rewrite_in_progress:1") || text.contains("aof_rewrite_scheduled:1")
    }
}

fn key(number: usize) -> String {
    format!("key:{number:012}")
}

/// What is compacted.
#[derive(Clone, Copy)]
enum Kind {
    Strings,
    Text,
    Hash,
    Set,
    SortedSet,
    List,
    Stream,
}

impl Kind {
    fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "strings" => Kind::Strings,
            "text" => Kind::Text,
            "hash" => Kind::Hash,
            "set" => Kind::Set,
            "zset" => Kind::SortedSet,
            "list" => Kind::List,
            "stream" => Kind::Stream,
            _ => return None,
        })
    }

    /// Requests that add some keys or members.
    fn fill(self, numbers: std::ops::Range<usize>) -> String {
        let value = |number: usize| format!("value:{number:010}");
        let words: Vec<String> = match self {
            Kind::Strings => ["MSET".into()].into_iter().chain(numbers.flat_map(|n| [key(n), value(n)])).collect(),
            Kind::Text => ["APPEND", "big", &"ten bytes ".repeat(numbers.len())].map(String::from).into(),
            Kind::Hash => {
                ["HSET", "big"].map(String::from).into_iter().chain(numbers.flat_map(|n| [key(n), value(n)])).collect()
            }
            Kind::Set => ["SADD", "big"].map(String::from).into_iter().chain(numbers.map(key)).collect(),
            Kind::SortedSet => {
                let scored = numbers.flat_map(|n| [(n % 1_000_000).to_string(), key(n)]);
                ["ZADD", "big"].map(String::from).into_iter().chain(scored).collect()
            }
            Kind::List => ["RPUSH", "big"].map(String::from).into_iter().chain(numbers.map(key)).collect(),
            Kind::Stream => {
                return numbers
                    .map(|n| request(&["XADD", "big", &format!("{}-1", n + 1), "field", &value(n)].map(String::from)))
                    .collect();
            }
        };
        request(&words)
    }

    /// A request that changes something that was there.
    fn change(self, keys: usize, random: u64, turn: usize) -> String {
        let name = key(random as usize % keys);
        let words: Vec<&str> = match (self, random % 3) {
            (Kind::Strings, _) => vec!["APPEND", &name, "!"],
            // What changes it has all of it written down.
            (Kind::Text, _) => vec!["STRLEN", "big"],
            (Kind::Hash, 0) => vec!["HINCRBY", "big", "count", "1"],
            (Kind::Hash, 1) => vec!["HDEL", "big", &name],
            (Kind::Hash, _) => vec!["HSET", "big", &name, "changed"],
            (Kind::Set, 0) => vec!["SPOP", "big"],
            (Kind::Set, 1) => vec!["SREM", "big", &name],
            (Kind::Set, _) => vec!["SADD", "big", &name],
            (Kind::SortedSet, 0) => vec!["ZINCRBY", "big", "1", &name],
            (Kind::SortedSet, 1) => vec!["ZPOPMIN", "big"],
            (Kind::SortedSet, _) => vec!["ZADD", "big", "GT", "7", &name],
            (Kind::List, 0) => vec!["LPOP", "big"],
            (Kind::List, 1) => vec!["LPUSH", "big", &name],
            (Kind::List, _) if turn.is_multiple_of(2) => vec!["RPUSH", "big", &name],
            (Kind::List, _) => vec!["RPOP", "big"],
            (Kind::Stream, 0) => vec!["XTRIM", "big", "MAXLEN", "~", "9000000"],
            (Kind::Stream, 1) => {
                return request(&["XDEL".into(), "big".into(), format!("{}-1", random as usize % keys)]);
            }
            (Kind::Stream, _) => vec!["XADD", "big", "*", "field", "value"],
        };
        request(&words.into_iter().map(String::from).collect::<Vec<_>>())
    }
}

fn request(words: &[String]) -> String {
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect::<Vec<_>>().concat();
    format!("*{}\r\n{words}", words.matches("\r\n").count() / 2)
}

fn main() {
    let keys = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(KEYS);
    let kind = std::env::args().nth(2).map_or(Some(Kind::Strings), |name| Kind::of(&name)).expect("a kind of value");
    let mut runs: Vec<Vec<u64>> = Vec::new();
    for run in 0..RUNS {
        let disk_bytes = keys * 400 + (64 << 20);
        let mut bench = Bench::open(Disk { bytes: vec![0; disk_bytes], finished: VecDeque::new() });
        for first in (0..keys).step_by(KEYS_PER_REQUEST) {
            bench.turn(kind.fill(first..first + KEYS_PER_REQUEST).as_bytes());
        }
        // All of the disk is touched, so that it does not count as what the compaction takes.
        bench.disk.bytes.iter_mut().step_by(4096).for_each(|byte| *byte = core::hint::black_box(*byte));
        let steady_bytes = memory_bytes("VmRSS:") - disk_bytes as u64;
        forget_peak();
        let mut times_ns = vec![bench.turn(b"BGREWRITEAOF\r\n")];
        let mut random = 1u64;
        loop {
            for _ in 0..100 {
                let mut requests = String::new();
                for _ in 0..WRITES_PER_TURN {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    requests += &kind.change(keys, random >> 33, times_ns.len());
                }
                times_ns.push(bench.turn(requests.as_bytes()));
            }
            if !bench.is_compacting() {
                break;
            }
        }
        let peak_bytes = memory_bytes("VmHWM:") - disk_bytes as u64;
        let turns = times_ns.len();
        let total_ms = times_ns.iter().sum::<u64>() as f64 / 1e6;
        println!(
            "run {run}: {keys} keys, {turns} turns of {WRITES_PER_TURN} writes in {total_ms:.0} ms; memory {:.0} MB, at the most {:.0} MB ({:.3})",
            steady_bytes as f64 / 1e6,
            peak_bytes as f64 / 1e6,
            peak_bytes as f64 / steady_bytes as f64
        );
        let Bench { engine, disk, .. } = bench;
        drop(engine);
        runs.push(times_ns);
        let start = Instant::now();
        let reopened = Bench::open(disk);
        let took = start.elapsed();
        println!(
            "run {run}: loaded again in {:.0} ms, {:.0} ns a key",
            took.as_secs_f64() * 1e3,
            took.as_nanos() as f64 / keys as f64
        );
        drop(reopened);
    }
    let least = |turn: usize| runs.iter().filter_map(|run| run.get(turn)).min().copied().unwrap_or(0);
    let count = runs.iter().map(Vec::len).min().unwrap_or(0);
    let mut least_ns: Vec<u64> = (0..count).map(least).collect();
    least_ns.sort_unstable();
    let longest = |runs: &[u64]| runs.last().copied().unwrap_or(0) as f64 / 1e3;
    println!(
        "longest turn of all {count}: {:.0} µs; the 99.9th of 100: {:.0} µs; in the middle: {:.0} µs",
        longest(&least_ns),
        least_ns[count * 999 / 1000] as f64 / 1e3,
        least_ns[count / 2] as f64 / 1e3
    );
}
