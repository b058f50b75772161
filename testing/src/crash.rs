//! Kills stores under load, and sees that what they have acknowledged is there when they start again.
//!
//! Each client has keys of its own and remembers every unit that it sent, a command or a transaction, and how many of them
//! were answered. The store executes a client's units in their order, so after a crash its keys must be what some number
//! of units leaves: at least those that were answered, at most those that were sent, and never a part of one.

use crate::{
    client::{Client, Reply, encode},
    ports::free_port,
    random::Random,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const CLIENTS: usize = 8;
/// Units that a client has sent before it waits for answers.
const WINDOW: usize = 16;
const KEYS: usize = 12;
/// How long a store serves before it is killed.
const LIFE_MS: std::ops::Range<usize> = 5..400;
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// What to kill and how often.
#[derive(Debug)]
pub struct Plan {
    /// The `kayvee` program.
    pub kayvee: PathBuf,
    /// Its targets, which take turns on one disk.
    pub targets: Vec<String>,
    /// The disk, which is made anew.
    pub disk: PathBuf,
    /// Its size, as `--disk` takes it.
    pub size: String,
    /// When the log is flushed. Only under `always` is everything there; under anything else something has to be missing.
    pub appendfsync: String,
    /// How often.
    pub kills: u32,
    /// Where chance comes from.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Units that were answered and found again.
    pub acknowledged: u64,
    /// Units that were not answered, and found all the same.
    pub beyond: u64,
}

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
}

type Keys = BTreeMap<Vec<u8>, Value>;

/// What is executed as one.
#[derive(Clone, Debug)]
struct Unit {
    commands: Vec<Vec<Vec<u8>>>,
}

impl Unit {
    /// Replies to it: a transaction's commands are announced and queued first.
    fn replies(&self) -> usize {
        if self.commands.len() == 1 { 1 } else { self.commands.len() + 2 }
    }

    fn bytes(&self) -> Vec<u8> {
        if let [command] = &self.commands[..] {
            return encode(command);
        }
        let inside = self.commands.iter().flat_map(|command| encode(command));
        encode(&["MULTI"]).into_iter().chain(inside).chain(encode(&["EXEC"])).collect()
    }

    fn apply(&self, keys: &mut Keys) {
        for command in &self.commands {
            let (name, key) = (&command[0][..], &command[1]);
            match name {
                b"SET" => _ = keys.insert(key.clone(), Value::Text(command[2].clone())),
                b"APPEND" => match keys.entry(key.clone()).or_insert(Value::Text(Vec::new())) {
                    Value::Text(text) => text.extend(&command[2]),
                    other => panic!("{other:?} is no text"),
                },
                b"DEL" => _ = keys.remove(key),
                b"RPUSH" => match keys.entry(key.clone()).or_insert(Value::List(VecDeque::new())) {
                    Value::List(list) => list.push_back(command[2].clone()),
                    other => panic!("{other:?} is no list"),
                },
                b"LPOP" => {
                    if let Some(Value::List(list)) = keys.get_mut(key) {
                        list.pop_front();
                        if list.is_empty() {
                            keys.remove(key);
                        }
                    }
                }
                b"HSET" => match keys.entry(key.clone()).or_insert(Value::Hash(BTreeMap::new())) {
                    Value::Hash(hash) => _ = hash.insert(command[2].clone(), command[3].clone()),
                    other => panic!("{other:?} is no hash"),
                },
                other => panic!("{} is not modelled", String::from_utf8_lossy(other)),
            }
        }
    }
}

/// A client and what it knows.
struct Memory {
    number: usize,
    random: Random,
    /// The keys after the units that were found at the last start.
    base: Keys,
    /// Units since then.
    units: Vec<Unit>,
    /// How many of them were answered.
    answered: usize,
}

impl Memory {
    fn key(&self, kind: &str, key: usize) -> Vec<u8> {
        format!("{kind}:{}:{key}", self.number).into_bytes()
    }

    fn command(&mut self) -> Vec<Vec<u8>> {
        let key = self.random.below(KEYS);
        // Now and then one that takes many blocks.
        let len = if self.random.one_in(100) { self.random.below(200_000) } else { self.random.below(200) };
        let value: Vec<u8> = format!("{}-", self.units.len()).bytes().chain((0..len).map(|at| at as u8)).collect();
        match self.random.below(8) {
            0..=2 => vec![b"SET".into(), self.key("text", key), value],
            3 => vec![b"APPEND".into(), self.key("text", key), value[..value.len().min(20)].into()],
            4 => vec![b"RPUSH".into(), self.key("list", key), value],
            5 => vec![b"LPOP".into(), self.key("list", key)],
            6 => vec![b"HSET".into(), self.key("hash", key % 2), format!("{key}").into(), value],
            _ => {
                let kind = ["text", "list"][self.random.below(2)];
                vec![b"DEL".into(), self.key(kind, key)]
            }
        }
    }

    fn unit(&mut self) -> Unit {
        let count = if self.random.one_in(5) { 2 + self.random.below(4) } else { 1 };
        Unit { commands: (0..count).map(|_| self.command()).collect() }
    }

    /// Sends units until the store has gone. An answer that tells of an error is a failure.
    fn load(&mut self, address: &str) -> Result<(), String> {
        // It may be gone before the first byte.
        let Ok(mut client) = Client::connect(address) else { return Ok(()) };
        let mut waiting: VecDeque<usize> = VecDeque::new();
        loop {
            let mut bytes = Vec::new();
            while waiting.len() < WINDOW {
                let unit = self.unit();
                bytes.extend(unit.bytes());
                waiting.push_back(unit.replies());
                // It may have been executed as soon as it is sent in part.
                self.units.push(unit);
            }
            if client.send(&bytes).is_err() {
                return Ok(());
            }
            for _ in 0..1 + self.random.below(WINDOW) {
                let Some(replies) = waiting.pop_front() else { break };
                for _ in 0..replies {
                    match client.read_reply() {
                        Ok(Reply::Error(error)) => {
                            return Err(format!("client {}: {}", self.number, String::from_utf8_lossy(&error)));
                        }
                        Ok(_) => {}
                        Err(_) => return Ok(()),
                    }
                }
                self.answered += 1;
            }
        }
    }

    /// Finds out which units are there, and goes on from them.
    fn verify(&mut self, client: &mut Client, outcome: &mut Outcome) -> Result<(), String> {
        let found = self.read(client).map_err(|error| format!("reading what is there: {error}"))?;
        let mut keys = std::mem::take(&mut self.base);
        for unit in &self.units[..self.answered] {
            unit.apply(&mut keys);
        }
        let mut at = self.answered;
        let acknowledged = keys.clone();
        while keys != found {
            let Some(unit) = self.units.get(at) else {
                return Err(self.difference(&acknowledged, &found));
            };
            unit.apply(&mut keys);
            at += 1;
        }
        outcome.acknowledged += self.answered as u64;
        outcome.beyond += (at - self.answered) as u64;
        (self.base, self.answered) = (keys, 0);
        self.units.clear();
        Ok(())
    }

    fn difference(&self, acknowledged: &Keys, found: &Keys) -> String {
        const SHOWN_KEYS: usize = 5;
        let keys: BTreeSet<_> = acknowledged.keys().chain(found.keys()).collect();
        let wrong = keys.into_iter().filter(|key| acknowledged.get(*key) != found.get(*key)).map(|key| {
            let (acknowledged, found) = (shown(acknowledged.get(key)), shown(found.get(key)));
            format!("\n  {}: acknowledged {acknowledged}, found {found}", String::from_utf8_lossy(key))
        });
        let counts = format!("{} units answered of {}", self.answered, self.units.len());
        let wrong: String = wrong.take(SHOWN_KEYS).collect();
        format!("client {}: no number of units leaves what is there ({counts}){wrong}", self.number)
    }

    /// All keys of this client in the store.
    fn read(&self, client: &mut Client) -> Result<Keys, String> {
        let mut keys = Keys::new();
        let mut call = |words: &[&[u8]]| client.call(words).map_err(|error| error.to_string());
        for key in 0..KEYS {
            let name = self.key("text", key);
            if let Reply::Bulk(text) = call(&[b"GET", &name])? {
                keys.insert(name, Value::Text(text));
            }
            let name = self.key("list", key);
            let list: VecDeque<_> = texts(&call(&[b"LRANGE", &name, b"0", b"-1"])?)?.into();
            if !list.is_empty() {
                keys.insert(name, Value::List(list));
            }
            let name = self.key("hash", key);
            let pairs = texts(&call(&[b"HGETALL", &name])?)?;
            if !pairs.is_empty() {
                let pairs = pairs.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
                keys.insert(name, Value::Hash(pairs.collect()));
            }
        }
        Ok(keys)
    }
}

/// A value in few words. Each text begins with the number of its unit.
fn shown(value: Option<&Value>) -> String {
    let number = |text: &Vec<u8>| {
        let digits = text.iter().take_while(|byte| **byte != b'-').take(12);
        format!("{}- ({} bytes)", digits.map(|byte| char::from(*byte)).collect::<String>(), text.len())
    };
    match value {
        None => "nothing".into(),
        Some(Value::Text(text)) => number(text),
        Some(Value::List(list)) => {
            format!("{} elements up to {}", list.len(), list.back().map(number).unwrap_or_default())
        }
        Some(Value::Hash(hash)) => hash.values().map(number).collect::<Vec<_>>().join(", "),
    }
}

fn texts(reply: &Reply) -> Result<Vec<Vec<u8>>, String> {
    let items = reply.items().ok_or_else(|| format!("{reply:?} is no list"))?;
    items.iter().map(|item| item.text().map(Vec::from).ok_or_else(|| format!("{item:?} is no text"))).collect()
}

/// A `kayvee run`.
struct Store {
    cli: Child,
    /// Kept open, for what it still says.
    _stdout: BufReader<ChildStdout>,
    address: String,
    log: PathBuf,
}

impl Store {
    fn start(plan: &Plan, target: &str) -> Result<Store, String> {
        let port = free_port();
        let log = plan.disk.with_extension("log");
        let mut command = Command::new(&plan.kayvee);
        // `kvm/qemu` names a monitor as well.
        let (target, monitor) = target.split_once('/').map_or((target, None), |(target, vmm)| (target, Some(vmm)));
        command.args(["run", "--target", target, "--port", &port.to_string(), "--disk"]);
        command.arg(format!("{}:{}", plan.disk.display(), plan.size));
        if target != "linux" {
            command.args(["--net", "user", "--memory", "128"]);
        }
        if let Some(monitor) = monitor {
            command.args(["--vmm", monitor]);
        }
        command.args(["--", "--appendfsync", &plan.appendfsync, "--auto-aof-rewrite-min-size", "1mb"]);
        let file = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn();
        let mut cli = spawned.map_err(|error| format!("{}: {error}", plan.kayvee.display()))?;
        let mut stdout = BufReader::new(cli.stdout.take().expect("it is piped"));
        let mut ready = String::new();
        // At the end of the output there is no such line.
        let _ = stdout.read_line(&mut ready);
        let address = ready.strip_prefix("ready: ").and_then(|rest| rest.split(' ').next()).map(String::from);
        let mut store = Store { cli, _stdout: stdout, address: address.unwrap_or_default(), log };
        if store.address.is_empty() {
            store.cli.kill().and_then(|()| store.cli.wait()).map_err(|error| error.to_string())?;
            return Err(format!("the store did not get ready:\n{}", store.last_lines()));
        }
        Ok(store)
    }

    fn last_lines(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Kills what the command supervises, QEMU or the process, and waits for both.
    fn kill(mut self) -> Result<(), String> {
        let pid = self.cli.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let Some(child) = children.split_ascii_whitespace().next() else {
            return Err(format!("the store has ended by itself:\n{}", self.last_lines()));
        };
        let killed = Command::new("kill").args(["-KILL", child]).status().map_err(|error| error.to_string())?;
        if !killed.success() {
            return Err(format!("kill -KILL {child} failed"));
        }
        let deadline = Instant::now() + END_TIMEOUT;
        while self.cli.try_wait().map_err(|error| error.to_string())?.is_none() {
            if Instant::now() > deadline {
                return Err("the command does not end although its store was killed".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // It has ended already, where all went well.
        let _ = self.cli.kill();
        let _ = self.cli.wait();
    }
}

/// Kills as planned. The error says what was lost.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    // Left by an earlier run.
    let _ = fs::remove_file(&plan.disk);
    let mut random = Random::new(plan.seed);
    let mut clients: Vec<Memory> = (0..CLIENTS)
        .map(|number| Memory {
            number,
            random: Random::new(random.next_u64()),
            base: Keys::new(),
            units: Vec::new(),
            answered: 0,
        })
        .collect();
    let mut outcome = Outcome::default();
    for kill in 0..=plan.kills {
        let target = &plan.targets[kill as usize % plan.targets.len()];
        let at_kill = |why: String| format!("seed {}, after {kill} kills, on {target}: {why}", plan.seed);
        let store = Store::start(plan, target).map_err(at_kill)?;
        let mut reader = Client::connect(&store.address).map_err(|error| at_kill(error.to_string()))?;
        for client in &mut clients {
            client.verify(&mut reader, &mut outcome).map_err(at_kill)?;
        }
        if kill == plan.kills {
            // Its end, waited for, gives the disk's lock back.
            store.kill().map_err(at_kill)?;
            break;
        }
        if random.one_in(3) {
            // One may be running already.
            let _ = reader.call(&["BGREWRITEAOF"]);
        }
        let life = Duration::from_millis((LIFE_MS.start + random.below(LIFE_MS.len())) as u64);
        let address = store.address.clone();
        let loads = thread::scope(|scope| {
            let running: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| client.load(&address))).collect();
            thread::sleep(life);
            let killed = store.kill();
            let loads = running.into_iter().map(|load| load.join().expect("no client panics"));
            loads.chain([killed]).collect::<Result<Vec<()>, String>>()
        });
        loads.map_err(at_kill)?;
    }
    check(&plan.kayvee, &plan.disk)?;
    fs::remove_file(&plan.disk).map_err(|error| error.to_string())?;
    Ok(outcome)
}

/// Has `kayvee log check` look at the disk.
fn check(kayvee: &Path, disk: &Path) -> Result<(), String> {
    let output = Command::new(kayvee).args(["log", "check"]).arg(disk).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("kayvee log check: {}", String::from_utf8_lossy(&output.stderr)))
}
