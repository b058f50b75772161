//! The crash-consistency model of the whole store: random commands of every kind, with compactions running, on a disk
//! that keeps no promise but its own.
//!
//! The same commands run in a store without a log, whose data after each of them is the truth. At any point the power may
//! go; what a new store then finds on the disk must be the truth as it was at some point after the last command that was
//! acknowledged: nothing acknowledged is lost, nothing is half there, and nothing was never asked for.
//!
//! In some lives the store has no log at first and is told to have one while it runs. Then what was in the log's place before
//! has to stay as it was until the new log gets there, and from the moment when that begins the new one has to be as good as
//! one that was there from the start.

use crate::{differential::Generator, disk::SimulatedDisk, in_process::environment};
use kayvee_platform::{Clock, Finishing, LogFile, Now};
use kayvee_server::{ClientId, Engine, Environment, Host, NoHost, Options, Peer};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

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

/// Where the log of a store is made that is told to have one while it runs.
#[derive(Default)]
struct Place {
    new: RefCell<Option<SimulatedDisk>>,
    seed: u64,
    /// Whether the new log was to be put in its place, and whether that is known to have happened.
    asked: Cell<bool>,
    told: Cell<bool>,
    /// Looks that it takes until it is known.
    looks: Cell<usize>,
}

struct Surroundings(Rc<Place>);

impl Host for Surroundings {
    fn has_files(&self) -> bool {
        true
    }

    fn create_log(&self, store: &mut kayvee_server::Store, _: &str) -> Result<(), String> {
        let mut disk = SimulatedDisk::new(DISK_BYTES, self.0.seed);
        store.take_new_log(&mut disk, Box::new(Beside(Rc::clone(&self.0))))?;
        self.0.new.replace(Some(disk));
        Ok(())
    }
}

/// A log that is not in its place, and one that is on its way there.
struct Beside(Rc<Place>);

impl LogFile for Beside {
    fn put_in_place(&mut self) -> Box<dyn Finishing> {
        self.0.asked.set(true);
        Box::new(Beside(Rc::clone(&self.0)))
    }
}

impl Finishing for Beside {
    fn result(&mut self) -> Option<Result<(), String>> {
        self.0.looks.set(self.0.looks.get().saturating_sub(1));
        (self.0.looks.get() == 0).then(|| {
            self.0.told.set(true);
            Ok(())
        })
    }

    fn wait(mut self: Box<Self>) -> Result<(), String> {
        self.result().unwrap_or(Ok(()))
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
    /// Logs that were made while the store ran.
    pub made: u64,
    /// Instants before these were in their place.
    pub crash_points_before: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.crash_points += other.crash_points;
        self.requests += other.requests;
        self.cut += other.cut;
        self.compactions += other.compactions;
        self.made += other.made;
        self.crash_points_before += other.crash_points_before;
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
        let mut store = Store::new(if appends { "yes" } else { "no" }, sizes, now, &NoHost)?;
        store.engine.open_log(disk).map_err(|error| format!("opening: {error}"))?;
        store.admit()
    }

    /// One with the data of a log, and none of its own.
    fn without_log(disk: &mut SimulatedDisk, sizes: Sizes, now: Now, place: &Rc<Place>) -> Result<Store, String> {
        let host = Box::leak(Box::new(Surroundings(Rc::clone(place))));
        let mut store = Store::new("no", sizes, now, host)?;
        store.engine.read_log(disk).map_err(|error| format!("reading: {error}"))?;
        store.admit()
    }

    fn new(appendonly: &str, sizes: Sizes, now: Now, host: &'static dyn Host) -> Result<Store, String> {
        let words = ["--appendonly", appendonly, "--appendfsync", "always", "--enable-debug-command", "yes"];
        let words = [&words[..], &["--auto-aof-rewrite-min-size", "256kb"], sizes.options()].concat();
        let options =
            Options::from_args(words.iter().map(|word| word.as_bytes())).map_err(|error| error.to_string())?;
        let clock = Box::leak(Box::new(Ticking(AtomicU64::new(now.monotonic_ns))));
        let mut engine = Engine::new(options, Environment { clock, host, ..environment() }, now);
        if sizes == Sizes::Parts {
            engine.set_part_sizes(2, 3);
        }
        engine.begin_turn(now);
        let nobody = ClientId(u32::MAX);
        Ok(Store { engine, client: nobody, observer: nobody, received: Vec::new(), observed: Vec::new() })
    }

    /// Lets the clients in.
    fn admit(mut self) -> Result<Store, String> {
        let peer = || Peer { remote: "10.0.0.9:5000".into(), local: "10.0.0.1:6379".into(), is_local: true };
        let mut connect = || self.engine.connect(peer()).map_err(|_| "a client is refused".to_string());
        (self.client, self.observer) = (connect()?, connect()?);
        Ok(self)
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

    /// Hands the log's disk what is due, if there is one, and takes the replies.
    fn after_turn(&mut self, disk: Option<&mut SimulatedDisk>) {
        if let Some(disk) = disk {
            self.engine.drive_log(disk);
            self.engine.settle_log(disk);
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

    /// What the data come to now. To look may remove what has expired, and then the reply waits for the disk.
    fn fingerprint(&mut self, mut disk: Option<&mut SimulatedDisk>) -> Vec<u8> {
        self.observed.clear();
        self.look();
        for _ in 0..PATIENCE_TURNS {
            self.engine.end_turn();
            self.after_turn(disk.as_deref_mut());
            if !self.observed.is_empty() {
                break;
            }
        }
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
    /// What is in the log's place.
    disk: SimulatedDisk,
    /// The disk of a log that is not there yet, and the place that it is to take.
    made: Option<SimulatedDisk>,
    place: Rc<Place>,
    sizes: Sizes,
    now: Now,
    tally: Tally,
}

/// Runs one workload. All of it follows from `seed`.
pub fn run(seed: u64) -> Result<Tally, String> {
    let mut model = Model {
        generator: Generator::newer(seed),
        disk: SimulatedDisk::new(DISK_BYTES, seed),
        made: None,
        place: Rc::default(),
        sizes: if seed.is_multiple_of(2) { Sizes::Parts } else { Sizes::Usual },
        now: Now { monotonic_ns: 5_000_000_000, unix_us: 1_700_000_000_000_000 },
        tally: Tally::default(),
    };
    for life in 0..LIVES {
        // The last life is one with a log that was made in the one before.
        let kind = if life == LIVES / 2 && !seed.is_multiple_of(3) { Life::BeginsWithout } else { Life::HasLog };
        model.live(kind).map_err(|error| format!("life {life}: {error}"))?;
    }
    Ok(model.tally)
}

/// Whether a store has a log from its start on, or is told to have one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    HasLog,
    BeginsWithout,
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

    /// Lets a store end its turn, with the disk that its log is on.
    fn turn(&mut self, store: &mut Store) {
        store.engine.end_turn();
        self.made = self.place.new.take().or(self.made.take());
        store.after_turn(Some(self.made.as_mut().unwrap_or(&mut self.disk)));
        if self.place.told.take()
            && let Some(made) = self.made.take()
        {
            self.disk = made;
            self.place.asked.set(false);
        }
    }

    fn live(&mut self, kind: Life) -> Result<(), String> {
        let mut truth = Store::open(&mut self.disk.crash(), false, self.sizes, self.now)?;
        let mut switch_at = None;
        let mut store = match kind {
            Life::HasLog => Store::open(&mut self.disk, true, self.sizes, self.now)?,
            Life::BeginsWithout => {
                let random = self.generator.random();
                switch_at = Some(random.below(STEPS / 2));
                let looks = Cell::new(random.below(40));
                self.place = Rc::new(Place { seed: random.below(1 << 30) as u64, looks, ..Place::default() });
                Store::without_log(&mut self.disk.crash(), self.sizes, self.now, &self.place)?
            }
        };
        store.look();
        let mut states = vec![(truth.fingerprint(None), self.now.unix_us)];
        let mut acknowledged = 0;
        let mut marks: Vec<(Vec<u8>, usize)> = Vec::new();
        let mut trace: Vec<String> = Vec::new();
        for step in 0..STEPS {
            let passed_ms = [0, 0, 0, 1, 40, 700][self.generator.random().below(6)];
            self.pass(passed_ms);
            truth.engine.begin_turn(self.now);
            store.engine.begin_turn(self.now);
            if switch_at.take_if(|at| *at == step).is_some() {
                let observer = store.observer;
                store.send(observer, &["CONFIG", "SET", "appendonly", "yes"].map(|word| word.as_bytes().to_vec()));
                self.tally.made += 1;
            } else if switch_at.is_none() && self.generator.random().one_in(25) {
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
                states.push((truth.fingerprint(None), self.now.unix_us));
                let mark = format!("<mark {}.{}>", step, states.len()).into_bytes();
                let client = store.client;
                store.send(client, &[b"ECHO".to_vec(), mark.clone()]);
                marks.push((mark, states.len() - 1));
            }
            truth.engine.end_turn();
            truth.after_turn(None);
            self.turn(&mut store);
            store.look();
            states.push((truth.fingerprint(None), self.now.unix_us));
            for _ in 0..self.generator.random().below(8) {
                self.turn(&mut store);
                store.engine.begin_turn(self.now);
            }
            if let Some((at, (_, state))) =
                marks.iter().enumerate().rev().find(|(_, (mark, _))| contains(&store.received, mark))
            {
                acknowledged = *state;
                marks.drain(..=at);
                store.received.clear();
            }
            let is_elsewhere = switch_at.is_some() || self.made.is_some();
            if self.generator.random().one_in(4) {
                let known = if is_elsewhere { &states[..1] } else { &states[acknowledged..] };
                let disk = self.disk.crash();
                self.crash(disk, known).map_err(|error| explained(&error, step, &trace))?;
                self.tally.crash_points_before += u64::from(is_elsewhere);
            }
            if self.place.asked.get()
                && let Some(disk) = self.made.as_mut().map(SimulatedDisk::crash)
            {
                // It may be there already.
                self.crash(disk, &states[acknowledged..]).map_err(|error| explained(&error, step, &trace))?;
            }
        }
        self.settle(&mut store, &marks)?;
        let last = states.len() - 1;
        let disk = self.disk.crash();
        self.crash(disk, &states[last..]).map_err(|error| explained(&error, STEPS, &trace))?;
        let rest = self.disk.crash();
        self.disk = rest;
        Ok(())
    }

    /// Takes turns until everything is acknowledged and the log is in its place.
    fn settle(&mut self, store: &mut Store, marks: &[(Vec<u8>, usize)]) -> Result<(), String> {
        let Some((last, _)) = marks.last() else { return Ok(()) };
        for _ in 0..PATIENCE_TURNS {
            if contains(&store.received, last) && self.made.is_none() {
                return Ok(());
            }
            self.turn(store);
            store.engine.begin_turn(self.now);
        }
        Err("a command is never acknowledged, or the log never in its place".into())
    }

    /// Looks at what is on a disk after a loss of power: one of these states, each of which was seen at its own time.
    fn crash(&mut self, mut disk: SimulatedDisk, states: &[(Vec<u8>, u64)]) -> Result<(), String> {
        let mut store = Store::open(&mut disk, true, self.sizes, self.now)?;
        self.tally.crash_points += 1;
        let (mut at, mut found) = (0, Vec::new());
        let mut recovered = None;
        // Looking at a later time may remove what was still there at an earlier one.
        for same_time in states.chunk_by(|a, b| a.1 == b.1) {
            store.engine.begin_turn(Now { unix_us: same_time[0].1, ..self.now });
            found = store.fingerprint(Some(&mut disk));
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
