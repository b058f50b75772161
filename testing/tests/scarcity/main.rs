//! No request may end the program for want of memory: an allocation whose size a client chooses has to be one that may
//! fail. One that may not would end this test with "memory allocation of N bytes failed".

mod sys;
mod web;

use kayvee_log::{Kind, Log};
use kayvee_platform::{Heap, Now};
use kayvee_server::{ClientId, Engine, Fate, Options, Peer};
use kayvee_testing::{disk::SimulatedDisk, in_process::environment};
use std::{
    collections::TryReserveError,
    sync::atomic::{AtomicU64, Ordering},
};
use sys::{ScarceHeap, with_large_allocations, with_room};

#[global_allocator]
static HEAP: ScarceHeap = ScarceHeap;

/// Large allocations that succeed before the rest fails.
const SUCCESSES: std::ops::Range<usize> = 0..8;
const LARGE: usize = 80_000;
const MANY: usize = 4_000;

fn engine() -> Engine {
    let options = Options::from_args([&b"--enable-debug-command"[..], b"yes"]).unwrap();
    let mut engine = Engine::new(options, environment(), Now::default());
    engine.begin_turn(Now::default());
    engine
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// What a line asks for: `LARGE` stands for a long word, `WORD…` for so many times this word.
fn expand(line: &str, large: &[u8]) -> Vec<u8> {
    let mut words: Vec<&[u8]> = Vec::new();
    for word in line.split(' ') {
        match (word, word.strip_suffix('…')) {
            ("LARGE", _) => words.push(large),
            (_, Some(repeated)) => words.extend(std::iter::repeat_n(repeated.as_bytes(), MANY)),
            _ => words.push(word.as_bytes()),
        }
    }
    request(&words)
}

/// Takes all that the engine wants to send, and closes whom it wants to close.
fn end_turn(engine: &mut Engine) {
    engine.end_turn();
    while let Some(client) = engine.next_ready() {
        while !engine.output(client).is_empty() {
            engine.sent(client, engine.output(client).len());
        }
        if matches!(engine.fate(client), Fate::CloseNow | Fate::CloseAfterOutput) {
            engine.disconnect(client);
        }
    }
}

fn peer() -> Peer {
    Peer { remote: "127.0.0.1:1".into(), local: "127.0.0.1:2".into(), is_local: true }
}

fn connect(engine: &mut Engine) -> ClientId {
    engine.connect(peer()).unwrap()
}

/// Makes collections that are not small.
fn fill(engine: &mut Engine) {
    let client = connect(engine);
    let mut elements = Vec::new();
    for number in 0..1000 {
        let (number, name) = (number.to_string().into_bytes(), format!("m{number}").into_bytes());
        engine.receive(client, &request(&[b"SADD", b"set", &number, &name]));
        engine.receive(client, &request(&[b"HSET", b"hash", &name, &number]));
        engine.receive(client, &request(&[b"SADD", b"ints", &number]));
        elements.push(number);
    }
    engine.receive(client, &request(&[b"SADD", b"other", b"m1", b"m2", b"m3"]));
    let elements: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
    for head in [&[&b"RPUSH"[..], b"list"], &[b"PFADD", b"hll"]] {
        engine.receive(client, &request(&[head, &elements[..]].concat()));
    }
    let scored: Vec<String> = (0..600).flat_map(|number| [number.to_string(), format!("member:{number}")]).collect();
    let words = [&b"ZADD"[..], b"z"].into_iter().chain(scored.iter().map(String::as_bytes));
    engine.receive(client, &request(&words.collect::<Vec<_>>()));
    engine.receive(client, &expand("XGROUP CREATE s g $ MKSTREAM", b""));
    for number in 0..300 {
        engine.receive(client, &expand(&format!("XADD s {}-1 name value{number}", number + 1), b""));
    }
    engine.receive(client, &expand("XREADGROUP GROUP g c COUNT 200 STREAMS s >", b""));
    engine.disconnect(client);
}

/// Has one client send bytes with ever more memory, and another one served after each time.
fn survives(name: &str, bytes: &[u8]) {
    let mut engine = engine();
    for key in ["a", "b"] {
        let client = connect(&mut engine);
        engine.receive(client, &request(&[b"SET", key.as_bytes(), &vec![b'x'; 5000]]));
    }
    fill(&mut engine);
    end_turn(&mut engine);
    for successes in SUCCESSES {
        let client = connect(&mut engine);
        with_large_allocations(successes, || {
            // In two pieces, so that the query buffer has its part in it.
            let (first, second) = bytes.split_at(bytes.len() / 2);
            engine.receive(client, first);
            engine.receive(client, second);
            engine.end_turn();
        });
        end_turn(&mut engine);
        engine.disconnect(client);
        let other = connect(&mut engine);
        engine.receive(other, b"AUTH default x\r\nCONFIG SET requirepass ''\r\nPING\r\n");
        engine.end_turn();
        assert!(engine.output(other).ends_with(b"+PONG\r\n"), "{name} with {successes} large allocations");
        engine.sent(other, engine.output(other).len());
        engine.disconnect(other);
    }
}

#[test]
fn requests_survive_want_of_memory() {
    // A number, a name, a pattern: whatever is wanted.
    let large = vec![b'1'; LARGE];
    let lines = [
        "LARGE",
        "LARGE x x",
        "GET LARGE",
        "CLIENT LARGE",
        "CLIENT SETNAME LARGE",
        "CLIENT SETINFO lib-name LARGE",
        "CLIENT SETINFO LARGE x",
        "CLIENT LIST TYPE LARGE",
        "CLIENT LIST ID 1…",
        "CLIENT KILL TYPE LARGE",
        "CLIENT KILL USER LARGE",
        "CLIENT KILL ID 7 ADDR LARGE",
        "CLIENT KILL ID… 1",
        "CLIENT KILL ID ID… 1",
        "CLIENT REPLY LARGE",
        "HELLO 3 SETNAME LARGE",
        "HELLO 3 LARGE",
        "HELLO LARGE",
        "AUTH LARGE",
        "AUTH LARGE LARGE",
        "SELECT LARGE",
        "ECHO LARGE",
        "PING LARGE",
        "COMMAND LARGE",
        "COMMAND INFO LARGE",
        "COMMAND INFO get…",
        "COMMAND DOCS get…",
        "COMMAND DOCS",
        "COMMAND",
        "COMMAND LIST",
        "COMMAND LIST FILTERBY PATTERN LARGE",
        "COMMAND LIST FILTERBY ACLCAT LARGE",
        "COMMAND GETKEYS MGET k…",
        "COMMAND GETKEYSANDFLAGS MGET k…",
        "CONFIG GET LARGE",
        "CONFIG GET *…",
        "CONFIG GET *",
        "CONFIG SET LARGE 1",
        "CONFIG SET hz LARGE",
        "CONFIG SET hz 10…",
        "CONFIG SET requirepass LARGE",
        "CONFIG SET maxmemory LARGE",
        "CONFIG SET maxmemory-clients LARGE",
        "CONFIG SET loglevel LARGE",
        "CONFIG SET client-output-buffer-limit LARGE",
        "CONFIG SET save LARGE",
        "INFO",
        "INFO everything",
        "INFO LARGE",
        "INFO x…",
        "SHUTDOWN LARGE",
        "SHUTDOWN x…",
        "LOLWUT LARGE",
        "FLUSHALL LARGE",
        "MEMORY USAGE LARGE",
        "MEMORY USAGE a SAMPLES LARGE",
        "SWAPDB LARGE 1",
        "DEBUG LARGE",
        "DEBUG ERROR LARGE",
        "DEBUG OBJECT LARGE",
        "DEBUG PROTOCOL LARGE",
        "DEBUG SLEEP LARGE",
        "DEBUG STRINGMATCH-LEN 100000 x",
        "DEBUG STRINGMATCH-LEN 100 LARGE",
        "DEBUG POPULATE 2 LARGE",
        "DEBUG POPULATE 2 k 100000",
        "DEBUG POPULATE LARGE",
        "KEYS LARGE",
        "SCAN LARGE",
        "SCAN 0 MATCH LARGE",
        "SCAN 0 COUNT LARGE",
        "SCAN 0 TYPE LARGE",
        "OBJECT LARGE a",
        "OBJECT ENCODING LARGE",
        "COPY a LARGE",
        "COPY a b REPLACE",
        "RENAME a LARGE",
        "MOVE a 1",
        "DEL LARGE",
        "DEL k…",
        "EXISTS k…",
        "EXPIRE a LARGE",
        "EXPIRE a 1 LARGE",
        "SET LARGE LARGE",
        "SET a LARGE GET",
        "SET a b LARGE",
        "SET a b EX LARGE",
        "SETEX LARGE 10 LARGE",
        "GETEX a EX LARGE",
        "GETSET a LARGE",
        "GETDEL a",
        "MSET k…",
        "MSETNX k…",
        "MGET a…",
        "APPEND a LARGE",
        "SETRANGE a 100000 x",
        "SETRANGE a LARGE x",
        "GETRANGE a LARGE 1",
        "GETRANGE a 0 -1",
        "INCRBY a LARGE",
        "INCRBYFLOAT n LARGE",
        "INCR LARGE",
        "LCS a b",
        "LCS a b LEN",
        "LCS a b IDX WITHMATCHLEN",
        "LCS a b LARGE",
        "SUBSTR a 0 -1",
        "STRLEN LARGE",
        "RANDOMKEY",
        "TOUCH LARGE",
        "HSET hash LARGE LARGE",
        "HSET new k…",
        "HSETNX hash LARGE x",
        "HMGET hash k…",
        "HGETALL hash",
        "HDEL hash k…",
        "HINCRBY hash LARGE 1",
        "HINCRBY hash m1 LARGE",
        "HINCRBYFLOAT hash m1 LARGE",
        "HRANDFIELD hash 1000 WITHVALUES",
        "HRANDFIELD hash 200",
        "HRANDFIELD hash -5000",
        "HSCAN hash 0 MATCH LARGE",
        "HSCAN hash 0 COUNT 1000",
        "SADD set LARGE",
        "SADD new LARGE",
        "SADD new k…",
        "SREM set k…",
        "SMISMEMBER set k…",
        "SMOVE set other LARGE",
        "SMOVE other set m1",
        "SINTER set…",
        "SINTER set other ints",
        "SINTERCARD 2 set other",
        "SINTERSTORE new set set",
        "SUNION set other ints",
        "SUNION set…",
        "SUNIONSTORE new set ints",
        "SDIFF set other",
        "SDIFFSTORE new set other ints",
        "SDIFFSTORE other set ints",
        "SPOP set 300",
        "SPOP set 900",
        "SPOP set 100000",
        "SRANDMEMBER set 900",
        "SRANDMEMBER set 200",
        "SSCAN set 0 COUNT 1000",
        "SETBIT a 800000 1",
        "SETBIT new 800000 1",
        "BITOP OR new a b",
        "BITOP NOT a a",
        "BITOP AND new a…",
        "BITFIELD a GET…",
        "BITFIELD a SET u8 800000 1",
        "BITPOS a 1 LARGE",
        "PFADD hll k…",
        "PFADD new LARGE",
        "PFADD new k…",
        "PFCOUNT hll",
        "PFCOUNT hll hll",
        "PFMERGE new hll",
        "PFDEBUG GETREG hll",
        "PFDEBUG DECODE hll",
        "PFSELFTEST",
        "SORT list",
        "SORT set ALPHA GET # GET a",
        "SORT list BY a*LARGE",
        "SORT list GET LARGE",
        "SORT list STORE new",
        "SORT set BY nosort GET * STORE new",
        "SORT list GET…",
        "DUMP a",
        "DUMP set",
        "DUMP hash",
        "DUMP ints",
        "DUMP list",
        "RESTORE LARGE 0 LARGE",
        "ZADD z 1…",
        "ZADD z 1 LARGE",
        "ZADD z LARGE a",
        "ZADD new 1 LARGE",
        "ZINCRBY z LARGE a",
        "ZREM z LARGE",
        "ZMSCORE z a…",
        "ZRANGE z LARGE 1",
        "ZRANGE z 0 -1 WITHSCORES",
        "ZRANGESTORE new z 0 -1",
        "ZREMRANGEBYRANK z 0 -2",
        "ZPOPMIN z 100",
        "ZUNION LARGE z",
        "ZUNION 4000 z…",
        "ZUNIONSTORE new 4000 z…",
        "ZINTERSTORE new 1 z",
        "ZDIFF 4000 none…",
        "ZRANDMEMBER z 400",
        "ZRANDMEMBER z -4000",
        "ZSCAN z 0 COUNT 1000",
        "BZPOPMIN none… 0",
        "COPY z new",
        "GEOADD g 1 1 1…",
        "GEOADD g 1 1 LARGE",
        "GEOPOS z member:1…",
        "GEOSEARCH z FROMLONLAT 0 0 BYRADIUS 30000 km",
        "GEOSEARCHSTORE new z FROMLONLAT 0 0 BYRADIUS 30000 km",
        "XADD s * f…",
        "XADD s * f LARGE",
        "XADD s * LARGE v",
        "XADD new * f LARGE",
        "XADD s LARGE f v",
        "XADD s MAXLEN 2 * f v",
        "XDEL s 1…",
        "XACK s g 1…",
        "XRANGE s - +",
        "XREAD STREAMS s…",
        "XREAD BLOCK 0 STREAMS $…",
        "XREADGROUP GROUP g c STREAMS s 0",
        "XREADGROUP GROUP g c STREAMS s >",
        "XREADGROUP GROUP g LARGE STREAMS s >",
        "XREADGROUP GROUP LARGE c STREAMS s >",
        "XGROUP CREATE s LARGE $",
        "XGROUP CREATECONSUMER s g LARGE",
        "XCLAIM s g other 0 1…",
        "XCLAIM s g other 0 LARGE",
        "XAUTOCLAIM s g other 0 0 COUNT 1000",
        "XPENDING s g - + 1000",
        "XPENDING s LARGE",
        "XINFO STREAM s FULL COUNT 0",
        "COPY s new",
    ];
    for line in lines {
        survives(line, &expand(line, &large));
    }
}

#[test]
fn inline_requests_survive_want_of_memory() {
    survives("an inline request of many words", &[b"a ".repeat(MANY), b"\r\n".to_vec()].concat());
    survives("an inline request of a long word", &[b"ECHO ".to_vec(), vec![b'x'; 60_000], b"\r\n".to_vec()].concat());
    survives(
        "an inline request of a quoted word",
        &[b"ECHO \"".to_vec(), vec![b'x'; 60_000], b"\"\r\n".to_vec()].concat(),
    );
    survives("a line without an end", &vec![b'x'; 70_000]);
}

/// Its parts are gathered, and become a value beside them.
#[test]
fn a_long_record_is_read_where_there_is_little_more_room_than_for_it_and_its_value() {
    const LONG: usize = 20 << 20;
    let mut disk = SimulatedDisk::new(64 << 20, 1);
    let mut log = Log::format(&mut disk, [7; 16]).unwrap();
    let mut record = log.record(Kind::EFFECTS).unwrap();
    record.push(&vec![5; LONG]).unwrap();
    record.commit();
    log.close(&mut disk, 0).unwrap();
    let mut value = Vec::new();
    let read = with_room(2 * LONG + (8 << 20), || {
        let mut take = |_: Kind, bytes: &[u8]| -> Result<(), TryReserveError> {
            value.try_reserve_exact(bytes.len())?;
            value.extend_from_slice(bytes);
            Ok(())
        };
        kayvee_log::check(&mut disk, kayvee_log::READ_AHEAD_BYTES, &mut take, &mut |_| {})
            .map(|contents| contents.records)
    });
    assert_eq!(read, Ok(1));
    assert!(value == [5; LONG]);
}

#[test]
fn connections_survive_want_of_memory() {
    for successes in SUCCESSES {
        let mut engine = engine();
        let peers: Vec<Peer> = (0..2000).map(|_| peer()).collect();
        let mut accepted = Vec::with_capacity(peers.len());
        with_large_allocations(successes, || accepted.extend(peers.into_iter().flat_map(|peer| engine.connect(peer))));
        assert!(accepted.len() > 100, "{}", accepted.len());
        let (&killer, _) = accepted.split_last().unwrap();
        let kills = b"CLIENT KILL TYPE normal\r\nCLIENT LIST\r\nINFO\r\n".repeat(3);
        with_large_allocations(successes, || {
            engine.receive(killer, &kills);
            for &client in &accepted {
                engine.disconnect(client);
            }
        });
        end_turn(&mut engine);
        let client = connect(&mut engine);
        engine.receive(client, b"PING\r\n");
        assert_eq!(engine.output(client), b"+PONG\r\n");
    }
}

/// A reply that finds no memory is an error, and then the command must not have done its work.
#[test]
fn a_value_that_could_not_be_shown_is_kept() {
    let mut engine = engine();
    let client = connect(&mut engine);
    engine.receive(client, &request(&[b"SET", b"a", &[b'x'; 5000]]));
    end_turn(&mut engine);
    for words in [&[&b"GETSET"[..], b"a", b"y"][..], &[b"SET", b"a", b"y", b"GET"], &[b"GETDEL", b"a"]] {
        let bytes = request(words);
        with_large_allocations(0, || engine.receive(client, &bytes));
        assert!(engine.output(client).starts_with(b"-OOM"), "{}", bytes.escape_ascii());
        end_turn(&mut engine);
        engine.receive(client, b"STRLEN a\r\n");
        assert_eq!(engine.output(client), b":5000\r\n");
        end_turn(&mut engine);
    }
}

/// So must elements that were to be removed, whatever the log or a replica is told.
#[test]
fn elements_that_could_not_be_shown_are_kept() {
    let elements: Vec<Vec<u8>> = (0..400).map(|number| format!("element:{number:04}").into_bytes()).collect();
    for (add, key, takes) in [
        ("RPUSH", "list", &["LPOP list 300", "RPOP list 300", "LMPOP 1 list LEFT COUNT 300", "LPOP list 1000"][..]),
        ("SADD", "set", &["SPOP set 300", "SPOP set 399", "SPOP set 1000"]),
    ] {
        let mut engine = engine();
        let client = connect(&mut engine);
        let words = [add.as_bytes(), key.as_bytes()].into_iter().chain(elements.iter().map(Vec::as_slice));
        engine.receive(client, &request(&words.collect::<Vec<_>>()));
        end_turn(&mut engine);
        let digest = |engine: &mut Engine| {
            engine.receive(client, b"DEBUG DIGEST\r\n");
            let digest = engine.output(client).to_vec();
            end_turn(engine);
            digest
        };
        let before = digest(&mut engine);
        for line in takes {
            let bytes = expand(line, b"");
            with_large_allocations(0, || engine.receive(client, &bytes));
            assert!(engine.output(client).starts_with(b"-OOM"), "{line}");
            end_turn(&mut engine);
            assert_eq!(digest(&mut engine), before, "{line}");
        }
    }
}

/// Members that find no memory are refused one by one; the order and the index always have the same ones.
#[test]
fn a_sorted_set_stays_whole() {
    let mut engine = engine();
    let client = connect(&mut engine);
    let mut refused = 0;
    for round in 0..300 {
        // Short enough that reading it takes no large allocation.
        let scored: Vec<String> =
            (0..30).flat_map(|at| [(at * 7 % 13).to_string(), format!("member:{round}:{at}")]).collect();
        let words = [&b"ZADD"[..], b"z"].into_iter().chain(scored.iter().map(String::as_bytes));
        let bytes = request(&words.collect::<Vec<_>>());
        with_large_allocations(usize::from(round % 8 == 0) * 3, || engine.receive(client, &bytes));
        refused += usize::from(engine.output(client).starts_with(b"-OOM"));
        end_turn(&mut engine);
        for command in ["ZCARD z", "ZCOUNT z -inf +inf"] {
            engine.receive(client, &expand(command, b""));
        }
        let counts = String::from_utf8_lossy(engine.output(client)).into_owned();
        let counts: Vec<&str> = counts.lines().collect();
        assert!(counts.len() == 2 && counts.iter().all(|count| *count == counts[0]), "{round}: {counts:?}");
        end_turn(&mut engine);
    }
    assert!(refused > 0);
}

/// What a replica has no room to hand on counts all the same: its master has sent so many bytes.
#[test]
fn a_replica_counts_a_transaction_that_it_cannot_keep() {
    let long = vec![b'x'; 5000];
    let mut transaction = request(&[b"MULTI"]);
    for key in [b"a", b"b", b"c"] {
        transaction.extend(request(&[b"SET", key, &long]));
    }
    transaction.extend(request(&[b"EXEC"]));
    for successes in 0..16 {
        let mut engine = engine();
        let user = connect(&mut engine);
        engine.receive(user, b"REPLICAOF 10.0.0.1 6379\r\n");
        let dial = engine.next_dial().expect("it has a master");
        let master = engine.dialed(&dial, peer()).expect("it was asked for");
        engine.receive(master, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {:040}\r\n", 7).as_bytes());
        let before = offset_of_replica(&mut engine, user);
        with_large_allocations(successes, || {
            engine.receive(master, &transaction);
            engine.end_turn();
        });
        let counted = offset_of_replica(&mut engine, user) - before;
        assert_eq!(counted, transaction.len(), "with {successes} large allocations");
    }
}

/// Bytes of effects that a replica has taken.
fn offset_of_replica(engine: &mut Engine, user: ClientId) -> usize {
    engine.receive(user, b"INFO replication\r\n");
    let info = String::from_utf8_lossy(engine.output(user)).into_owned();
    let offset = info.rsplit_once("slave_repl_offset:").expect("it has a master").1.lines().next();
    offset.and_then(|offset| offset.parse().ok()).expect("a number")
}

/// A heap of which so much is used as was said last.
#[derive(Default)]
struct ToldHeap {
    used_bytes: AtomicU64,
}

const TOLD_LIMIT_BYTES: u64 = 64 << 20;

impl Heap for ToldHeap {
    fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn limit_bytes(&self) -> Option<u64> {
        Some(TOLD_LIMIT_BYTES)
    }

    fn resident_bytes(&self) -> u64 {
        self.used_bytes()
    }

    fn allocator(&self) -> &'static str {
        "told"
    }
}

/// Many clients, none of which takes much, can have all memory together: they end before small allocations fail.
#[test]
fn many_small_buffers_make_way_as_well() {
    let options = Options::from_args([&b"--save"[..], b""]).unwrap();
    let heap: &ToldHeap = Box::leak(Box::default());
    let mut engine = Engine::new(options, kayvee_server::Environment { heap, ..environment() }, Now::default());
    engine.begin_turn(Now::default());
    let clients: Vec<ClientId> = (0..50).map(|_| connect(&mut engine)).collect();
    let (&reader, slow) = clients.split_last().unwrap();
    engine.receive(reader, &request(&[b"SET", b"a", &[b'x'; 7000]]));
    slow.iter().for_each(|client| engine.receive(*client, b"GET a\r\nGET a\r\nGET a\r\n"));
    engine.end_turn();
    assert!(clients.iter().all(|client| engine.fate(*client) == Fate::Open), "there is room");
    heap.used_bytes.store(TOLD_LIMIT_BYTES - (1 << 20), Ordering::Relaxed);
    engine.begin_turn(Now { monotonic_ns: 1, ..Now::default() });
    engine.end_turn();
    assert!(slow.iter().all(|client| engine.fate(*client) == Fate::CloseNow), "each has 21 KB that are needed");
    assert_eq!(engine.fate(reader), Fate::Open);
}

/// Data may take the last large piece of memory: the log has its own by then.
#[test]
fn the_log_has_buffers_when_there_is_no_memory() {
    let options = Options::from_args([&b"--appendonly"[..], b"yes", b"--appendfsync", b"no"]).unwrap();
    let heap: &ToldHeap = Box::leak(Box::default());
    let mut engine = Engine::new(options, kayvee_server::Environment { heap, ..environment() }, Now::default());
    let mut disk = SimulatedDisk::new(64 << 20, 1);
    engine.open_log(&mut disk).unwrap_or_else(|error| panic!("{error}"));
    engine.begin_turn(Now::default());
    let client = connect(&mut engine);
    let set = request(&[b"SET", b"key", &[b'x'; 900]]);
    engine.receive(client, &set);
    end_turn(&mut engine);
    for _ in 0..3 {
        let answers = with_large_allocations(0, || {
            // Six of the eight buffers are on their way at a time.
            (0..400)
                .take_while(|_| {
                    engine.receive(client, &set);
                    let is_kept = engine.output(client) == b"+OK\r\n";
                    if is_kept {
                        end_turn(&mut engine);
                    }
                    is_kept
                })
                .count()
        });
        assert_eq!((answers, engine.output(client).escape_ascii().to_string().as_str()), (400, ""));
        (0..20).for_each(|_| engine.drive_log(&mut disk));
    }
    engine.receive(client, b"INFO persistence\r\n");
    assert!(String::from_utf8_lossy(engine.output(client)).contains("aof_last_write_status:ok"));
}
