//! Servers that tests start, and data for them.

use kayvee_testing::{
    client::{Client, Reply, encode},
    ports::free_port,
    random::Random,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);
const DATABASES: [usize; 3] = [0, 3, 15];

/// A folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kayvee-{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server whose data is in a folder, killed with this value unless it has ended.
pub struct Server {
    pub child: Child,
    pub client: Client,
    pub port: String,
}

impl Server {
    /// redis-server.
    pub fn redis(folder: &Folder, options: &[&str]) -> Server {
        Server::start(Command::new("redis-server"), folder, &[&["--save", ""], options].concat())
    }

    /// `kayvee server`.
    pub fn kayvee(folder: &Folder, options: &[&str]) -> Server {
        let mut command = Command::new(crate::built::kayvee());
        command.arg("server");
        Server::start(command, folder, options)
    }

    fn start(mut command: Command, folder: &Folder, options: &[&str]) -> Server {
        let named = options.iter().position(|word| *word == "--port").map(|at| options[at + 1].to_string());
        let port = named.unwrap_or_else(|| free_port().to_string());
        command.args([
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--enable-debug-command",
            "yes",
            "--dir",
            &folder.path(""),
        ]);
        command.args(options).stdout(File::create(folder.path("log")).unwrap());
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let client = loop {
            // Until then nobody listens there.
            if let Ok(client) = Client::connect(&format!("127.0.0.1:{port}")) {
                break client;
            }
            let log = || fs::read_to_string(folder.path("log")).unwrap();
            assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "{command:?}: {}", log());
            thread::sleep(POLL_INTERVAL);
        };
        Server { child, client, port }
    }

    pub fn call(&mut self, words: &[&str]) -> Reply {
        self.client.call(words).unwrap()
    }

    /// Sends requests without waiting for each reply.
    fn pipelined(&mut self, requests: &[Vec<u8>]) -> Vec<Reply> {
        /// So few that neither end's socket fills up with what the other has not read.
        const DEPTH: usize = 100;
        let mut replies = Vec::new();
        for some in requests.chunks(DEPTH) {
            self.client.send(&some.concat()).unwrap();
            replies.extend(some.iter().map(|_| self.client.read_reply().unwrap()));
        }
        replies
    }

    pub fn expect(&mut self, words: &[&str], reply: &str) {
        assert_eq!(self.call(words).to_string(), reply, "{words:?} at port {}", self.port);
    }

    /// Everything that it holds, as digests by database and key.
    pub fn state(&mut self) -> State {
        let mut state = BTreeMap::new();
        for db in 0..16 {
            self.expect(&["SELECT", &db.to_string()], "+OK");
            let keys = self.call(&["KEYS", "*"]);
            let keys: Vec<&[u8]> = keys.items().unwrap().iter().map(|key| key.text().unwrap()).collect();
            let questions = |&key: &&[u8]| {
                [
                    encode(&[b"DEBUG", &b"DIGEST-VALUE"[..], key]),
                    encode(&[b"PEXPIRETIME", key]),
                    encode(&[b"TYPE", key]),
                ]
            };
            let replies = self.pipelined(&keys.iter().flat_map(questions).collect::<Vec<_>>());
            for (key, replies) in keys.iter().zip(replies.chunks(3)) {
                state.insert((db, key.to_vec()), replies.iter().map(|reply| format!("{reply} ")).collect());
            }
        }
        self.expect(&["SELECT", "0"], "+OK");
        let functions = self.call(&["FUNCTION", "LIST", "WITHCODE"]).to_string();
        state.insert((16, b"functions".into()), functions);
        let digest = self.call(&["DEBUG", "DIGEST"]).to_string();
        state.insert((16, b"digest".into()), digest);
        state
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub type State = BTreeMap<(usize, Vec<u8>), String>;

/// Fails with the keys that differ.
pub fn expect_same(found: &State, expected: &State, what: &str) {
    let differs = |(key, value): &(&(usize, Vec<u8>), &String), other: &State| other.get(*key) != Some(*value);
    let mut lines = Vec::new();
    for (sign, these, those) in [('-', expected, found), ('+', found, expected)] {
        for (key, value) in these.iter().filter(|entry| differs(entry, those)) {
            lines.push(format!("{sign} {} {}: {value}", key.0, key.1.escape_ascii()));
        }
    }
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
}

fn word(random: &mut Random) -> Vec<u8> {
    let bits = [3, 7, 15, 31, 63][random.below(5)];
    match random.below(6) {
        0 => ((random.next_u64() as i64) >> (63 - bits)).to_string().into_bytes(),
        1 => b"ab".repeat(1 + random.below(200)),
        2 => {
            let len = random.below(70);
            random.bytes(len)
        }
        _ => format!("w{}", random.below(10_000)).into_bytes(),
    }
}

/// Fills a server with values of all kinds, sizes and encodings.
pub fn fill(server: &mut Server, seed: u64) {
    let mut random = Random::new(seed);
    for db in DATABASES {
        server.expect(&["SELECT", &db.to_string()], "+OK");
        for number in 0..80 {
            let key = format!("{number}:{}", random.below(1_000_000)).into_bytes();
            let size = [1, 3, 20, 130, 600][random.below(5)];
            fill_key(server, &mut random, &key, size);
            if random.one_in(4) {
                let ttl_ms = (1_000_000 + random.below(1_000_000_000)).to_string();
                server.client.call(&[&b"PEXPIRE"[..], &key, ttl_ms.as_bytes()]).unwrap();
            }
        }
    }
    server.expect(&["SELECT", "0"], "+OK");
    let library = format!("#!lua name=lib\nredis.register_function('f{seed}', function() return 1 end)");
    server.call(&["FUNCTION", "LOAD", "REPLACE", &library]);
}

fn fill_key(server: &mut Server, random: &mut Random, key: &[u8], size: usize) {
    let mut requests = Vec::new();
    let mut call = |words: &[&[u8]]| requests.push(encode(words));
    let words = |random: &mut Random| -> Vec<Vec<u8>> { (0..size).map(|_| word(random)).collect() };
    match random.below(9) {
        0 => call(&[b"SET", key, &word(random)]),
        1 => words(random).iter().for_each(|word| call(&[b"RPUSH", key, word])),
        2 => words(random).iter().for_each(|word| call(&[b"SADD", key, word])),
        3 => {
            let shift = random.below(64);
            for _ in 0..size {
                call(&[b"SADD", key, ((random.next_u64() as i64) >> shift).to_string().as_bytes()]);
            }
        }
        4 => words(random).iter().for_each(|field| call(&[b"HSET", key, field, field])),
        5 => {
            for member in words(random) {
                // Not -0, which redis-server's own reload may turn into 0.
                let scores = ["inf", "-inf", "-1.5", "1e300", "0", "3.0000000001"];
                let score = match random.below(3) {
                    0 => random.pick(&scores).to_string(),
                    _ => (random.below(2000) as i64 - 1000).to_string(),
                };
                call(&[b"ZADD", key, score.as_bytes(), &member]);
            }
        }
        6 => {
            for number in 0..size {
                let id = format!("{}-{number}", 1000 + number / 3);
                let name = random.pick(&["a", "b", "c"]);
                call(&[b"XADD", key, id.as_bytes(), name.as_bytes(), &word(random), b"same", b"field"]);
            }
            call(&[b"XDEL", key, b"1000-1"]);
            for (group, id) in [("g", "1000-0"), ("h", "$")] {
                call(&[b"XGROUP", b"CREATE", key, group.as_bytes(), id.as_bytes()]);
            }
            for (consumer, count) in [("alice", "5"), ("bob", "2")] {
                let who = consumer.as_bytes();
                call(&[b"XREADGROUP", b"GROUP", b"g", who, b"COUNT", count.as_bytes(), b"STREAMS", key, b">"]);
            }
            call(&[b"XGROUP", b"CREATECONSUMER", key, b"h", b"zoe"]);
            call(&[b"XSETID", key, b"99999-1"]);
        }
        7 => words(random).iter().for_each(|word| call(&[b"PFADD", key, word])),
        _ => call(&[b"SETBIT", key, random.below(10_000).to_string().as_bytes(), b"1"]),
    }
    for reply in server.pipelined(&requests) {
        assert!(!matches!(reply, Reply::Error(_)), "{reply}");
    }
}
