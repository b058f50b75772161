//! What a client sends at once has the same replies, and leaves the same data, figures and log, and has the same sent to
//! replicas, as if it had come request by request while somebody watches, which has each of them go the long way.

#[allow(dead_code)]
#[path = "../../core/server/tests/engine/bench.rs"]
mod bench;
#[allow(dead_code)]
#[path = "../../core/server/tests/engine/disk.rs"]
mod disk;

use bench::Bench;
use disk::Disk;
use kayvee_platform::BlockError;
use kayvee_server::{ClientId, Fate};
use kayvee_testing::{client::encode, differential::Generator, random::Random};

const CLIENTS: usize = 4;
/// Seeds of a run in CI; KAYVEE_SEEDS and KAYVEE_FIRST_SEED ask for others.
const SEEDS: u64 = 150;
const ROUNDS: usize = 25;
/// The smallest disk that takes a log.
const LEAST_DISK_BYTES: usize = 704 << 10;

/// Requests that change what is asked before others run, or who else learns of them.
const TURNS: &str = "\
    MULTI|EXEC|DISCARD|WATCH k1 k2|UNWATCH|BLPOP k1 k2 0|BZPOPMIN k1 0|BLMOVE k1 k2 LEFT RIGHT 0|XREAD BLOCK 0 STREAMS k1 $|\
    SUBSCRIBE __keyspace@0__:k1|PSUBSCRIBE __key*|UNSUBSCRIBE|PUNSUBSCRIBE|HELLO 3|HELLO 2|RESET|QUIT|POST / HTTP|\
    CLIENT TRACKING ON|CLIENT TRACKING ON BCAST|CLIENT TRACKING OFF|CLIENT REPLY SKIP|CLIENT REPLY OFF|CLIENT REPLY ON|\
    CLIENT NO-TOUCH ON|CLIENT NO-EVICT ON|CLIENT PAUSE 100 WRITE|CLIENT PAUSE 100 ALL|CLIENT UNPAUSE|CLIENT KILL ID 3|\
    CLIENT UNBLOCK 2|CLIENT UNBLOCK 3 ERROR|CONFIG SET notify-keyspace-events KEAmn|CONFIG SET notify-keyspace-events ''|\
    EVAL redis.call('lpush',KEYS[1],'x')return(redis.call('lrange',KEYS[1],0,-1)) 1 k1|WAIT 0 0|\
    ACL SETUSER default -set|ACL SETUSER default +@all ~*|ACL SETUSER default -@all +@read +acl +client +hello|\
    CONFIG SET requirepass x|AUTH x|CONFIG SET requirepass ''|CONFIG SET min-replicas-to-write 1|CONFIG SET min-replicas-to-write 0|\
    CONFIG SET slowlog-log-slower-than 0|CONFIG SET slowlog-log-slower-than 10000|CONFIG SET latency-tracking no|\
    CONFIG SET maxmemory 1|CONFIG SET maxmemory 0|CONFIG SET maxmemory-policy allkeys-lru|CONFIG SET maxmemory-policy noeviction|\
    CONFIG RESETSTAT|MONITOR|SELECT 1|SELECT 0|FLUSHALL|SWAPDB 0 1|MOVE k1 1|EXPIRE k1 1|PEXPIRE k1 1|PING|PING x|GET|NOSUCH a b|\
    GET k1|SET k1 v|LPUSH k1 a b|RPUSH k2 c|LPOP k1|LLEN k1|LPOP k2|DEL k1|DEL k2|ZADD k1 1 a|XADD k1 * f v|ASKING|DBSIZE|OBJECT FREQ k1|\
    BGREWRITEAOF|CONFIG SET appendonly no|CONFIG SET appendonly yes|CONFIG SET appendfsync always|CONFIG SET appendfsync everysec|\
    SETRANGE k8 60000 x|SETRANGE k9 30000 x|DEL k8|DEL k9|WAITAOF 1 0 10|WAIT 1 10|INCR n|CONFIG SET proto-max-bulk-len 1mb|\
    DEBUG SET-ACTIVE-EXPIRE 0|LOLWUT|CONFIG SET maxmemory-policy allkeys-lfu|CONFIG SET latency-monitor-threshold 1";

/// What the store says of itself that must not depend on how requests came.
const REPORTS: [&[&str]; 8] = [
    &["INFO", "commandstats"],
    &["INFO", "errorstats"],
    &["INFO", "keyspace"],
    &["INFO", "stats"],
    &["INFO", "replication"],
    &["CLIENT", "LIST"],
    &["SLOWLOG", "LEN"],
    &["LATENCY", "LATEST"],
];
/// Lines that do, and words of a client's line: how often something was read, and who watches.
const LINES_APART: [&str; 7] =
    ["$", "id=1 ", "instantaneous_", "io_threaded_", "total_net_", "total_reads_", "total_writes_"];
const WORDS_APART: [&str; 10] =
    ["argv-mem=", "multi-mem=", "obl=", "oll=", "omem=", "qbuf", "rbp=", "rbs=", "tot-mem=", "tot-net-"];

fn has_replica(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

fn turn_of(random: &mut Random) -> Vec<Vec<u8>> {
    let lines: Vec<&str> = TURNS.split('|').collect();
    let line = lines[random.below(lines.len())];
    line.split(' ').map(|word| if word == "''" { Vec::new() } else { word.as_bytes().to_vec() }).collect()
}

/// A store with its clients.
struct Side {
    bench: Bench,
    disk: Option<Disk>,
    clients: Vec<ClientId>,
}

impl Side {
    /// One that seeds give a log, on disks that are soon full, and a replica, which is its first client.
    fn new(is_watched: bool, seed: u64) -> Side {
        let mut bench = Bench::new(match seed % 5 {
            0 => &["--enable-debug-command", "yes"],
            1 => &["--enable-debug-command", "yes", "--appendonly", "yes", "--appendfsync", "always"],
            _ => &["--enable-debug-command", "yes", "--appendonly", "yes"],
        });
        let mut disk = (!seed.is_multiple_of(5)).then(|| Disk::new(LEAST_DISK_BYTES << (seed % 3)));
        if let Some(disk) = &mut disk {
            bench.engine.open_log(disk).expect("the disk is blank");
        }
        let watcher = bench.connect();
        bench.ask(watcher, "MONITOR\r\n");
        if !is_watched {
            bench.engine.disconnect(watcher);
        }
        let clients: Vec<_> = (0..CLIENTS).map(|_| bench.connect()).collect();
        if has_replica(seed) {
            bench.engine.receive(clients[0], b"REPLCONF capa psync2\r\nPSYNC ? -1\r\n");
        }
        Side { bench, disk, clients }
    }

    /// Ends a turn. Returns what each client is sent, and what becomes of it.
    fn turn(&mut self) -> Vec<(String, Fate)> {
        let engine = &mut self.bench.engine;
        engine.end_turn();
        if let Some(disk) = &mut self.disk {
            engine.drive_log(disk);
        }
        while engine.next_ready().is_some() {}
        let mut all = Vec::new();
        for client in &self.clients {
            let mut output = Vec::new();
            while !engine.output(*client).is_empty() {
                let part = engine.output(*client).to_vec();
                engine.sent(*client, part.len());
                output.extend(part);
            }
            all.push((output.escape_ascii().to_string(), engine.fate(*client)));
        }
        for (client, (_, fate)) in self.clients.iter_mut().zip(&all) {
            if matches!(fate, Fate::CloseNow | Fate::CloseAfterOutput) {
                self.bench.engine.disconnect(*client);
                *client = self.bench.connect();
            }
        }
        all
    }

    /// What an observer is told that comes for this alone.
    fn report(&mut self) -> String {
        let observer = self.bench.connect();
        let mut report = Vec::new();
        for words in REPORTS {
            let text = self.bench.ask(observer, &String::from_utf8(encode(words)).expect("words are text"));
            let lines = text.lines().filter(|line| !LINES_APART.iter().any(|apart| line.starts_with(apart)));
            let words = lines.flat_map(|line| line.split(' '));
            report.extend(
                words.filter(|word| !WORDS_APART.iter().any(|apart| word.starts_with(apart))).map(String::from),
            );
        }
        self.bench.engine.disconnect(observer);
        report.join(" ")
    }
}

/// One request's bytes: mostly in order, now and then as a line, behind nothing, or broken.
fn bytes_of(words: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let is_plain = |byte: &u8| !matches!(byte, b'\r' | b'\n' | 0 | b'"' | b'\'');
    match random.below(200) {
        0..4 => words.join(&b' ').into_iter().filter(is_plain).chain(*b"\r\n").collect(),
        4..8 => [b"*0\r\n\r\n".to_vec(), encode(words)].concat(),
        8 => b"*1\r\n$zz\r\n".to_vec(),
        _ => encode(words),
    }
}

fn run(seed: u64) {
    let (mut generator, mut random) = (Generator::newer(seed), Random::new(!seed));
    let (mut batch, mut single) = (Side::new(false, seed), Side::new(true, seed));
    for round in 0..ROUNDS {
        // What a replica says ends it, mostly.
        let at =
            if has_replica(seed) && !random.one_in(20) { 1 + random.below(CLIENTS - 1) } else { random.below(CLIENTS) };
        // Disks that fail now and then, and such as are behind.
        let failures = [None, None, None, None, Some(BlockError::NoSpace), Some(BlockError::Io)];
        let failure = failures[random.below(if seed.is_multiple_of(7) { failures.len() } else { 1 })];
        let budget = [usize::MAX, 0, 1, 2][random.below(if seed % 4 == 1 { 4 } else { 1 })];
        for disk in [&mut batch.disk, &mut single.disk].into_iter().flatten() {
            (disk.failure, disk.budget) = (failure, budget);
        }
        let mut requests = Vec::new();
        for _ in 0..1 + random.below(30) {
            let is_turn = random.below(8) < [0, 1, 3, 8][seed as usize % 4];
            let words = if is_turn { turn_of(&mut random) } else { generator.step().words };
            requests.push(bytes_of(&words, &mut random));
        }
        let all = requests.concat();
        let (first, second) = all.split_at(if random.one_in(3) { random.below(all.len()) } else { 0 });
        for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
            batch.bench.engine.receive(batch.clients[at], part);
        }
        for request in &requests {
            single.bench.engine.receive(single.clients[at], request);
        }
        let shown = || requests.iter().map(|request| format!("\n{}", request.escape_ascii())).collect::<String>();
        assert_eq!(batch.turn(), single.turn(), "seed {seed}, round {round}, client {at}:{}", shown());
        let bytes = |side: &Side| side.disk.as_ref().map(|disk| disk.bytes.clone());
        assert!(
            bytes(&batch) == bytes(&single),
            "the logs differ: seed {seed}, round {round}, client {at}:{}",
            shown()
        );
        assert_eq!(batch.report(), single.report(), "seed {seed}, round {round}, client {at}:{}", shown());
        let ms = [0, 0, 1, 50, 1001][random.below(5)];
        batch.bench.advance_ms(ms);
        single.bench.advance_ms(ms);
    }
}

#[test]
fn a_batch_is_what_its_requests_are() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let first = number("KAYVEE_FIRST_SEED").unwrap_or(0);
    (first..first + number("KAYVEE_SEEDS").unwrap_or(SEEDS)).for_each(run);
}
