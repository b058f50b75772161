//! The log: what is acknowledged, what comes back, and what happens when the disk does not do its part.

use crate::{
    bench::{Bench, answer},
    disk::Disk,
    lines,
};
use kayvee_http::{AccessLog, Limits, Server};
use kayvee_platform::{BlockError, Now};
use kayvee_server::{ClientId, Fate};
use std::sync::atomic::Ordering;

mod end;
mod full_disk;
mod parts;

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes"];

/// A log whose batches are full.
const GATHERED: &[&str] = &[
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--enable-debug-command",
    "yes",
    "--auto-aof-rewrite-percentage",
    "0",
    "--save",
    "3600 1",
];

/// An engine with a disk.
struct Durable {
    bench: Bench,
    disk: Disk,
    client: ClientId,
}

impl Durable {
    fn new(options: &[&str], disk: Disk) -> Durable {
        let mut bench = Bench::new(options);
        let mut disk = disk;
        bench.engine.open_log(&mut disk).unwrap_or_else(|error| panic!("{error}"));
        let client = bench.connect();
        Durable { bench, disk, client }
    }

    /// Begins anew with what is on the disk.
    fn reopened(&self, options: &[&str]) -> Durable {
        Durable::new(options, self.disk.copy())
    }

    fn turn(&mut self) {
        self.bench.engine.end_turn();
        self.bench.engine.drive_log(&mut self.disk);
        while self.bench.engine.next_ready().is_some() {}
    }

    /// What a client may be told now.
    fn output(&mut self, client: ClientId) -> String {
        let output = self.bench.engine.output(client).to_vec();
        self.bench.engine.sent(client, output.len());
        String::from_utf8(output).unwrap()
    }

    fn send(&mut self, client: ClientId, request: &str) {
        self.bench.engine.receive(client, format!("{request}\r\n").as_bytes());
    }

    /// Sends a request and takes turns until there is an answer.
    fn ask(&mut self, request: &str) -> String {
        let client = self.client;
        self.send(client, request);
        answer(request, || {
            self.turn();
            self.output(client)
        })
    }

    fn expect(&mut self, exchanges: &[(&str, &str)]) {
        for (request, reply) in exchanges {
            assert_eq!(self.ask(request), *reply, "{request}");
        }
    }

    fn digest(&mut self) -> String {
        self.ask("DEBUG DIGEST")
    }
}

#[test]
fn what_was_told_comes_back() {
    let mut one = Durable::new(ALWAYS, Disk::new(8 << 20));
    one.expect(&[
        ("SET a 1", "+OK"),
        ("INCRBY a 41", ":42"),
        ("SET gone x PX 1000", "+OK"),
        ("RPUSH l a b c", ":3"),
        ("MULTI", "+OK"),
        ("SELECT 3", "+QUEUED"),
        ("HSET h f v g 1 last 2", "+QUEUED"),
        ("HPEXPIRE h 1000 FIELDS 2 f g", "+QUEUED"),
        ("HINCRBYFLOAT h g 0.5", "+QUEUED"),
        ("EXEC", "*4 +OK :3 *2 :1 :1 $3 1.5"),
        ("SELECT 0", "+OK"),
        ("EVAL \"return redis.call('SADD','s',1,2,3)\" 0", ":3"),
        ("XADD x * f v", "$15 1700000000000-0"),
        ("DEL a", ":1"),
        // It fails, and the string has grown for it.
        ("BITFIELD bits OVERFLOW FAIL SET i1 100 5", "*1 $-1"),
        ("STRLEN bits", ":13"),
        ("FUNCTION LOAD \"#!lua name=mine\\nredis.register_function('f', function() return 7 end)\"", "$4 mine"),
    ]);
    let digest = one.digest();
    let mut two = one.reopened(ALWAYS);
    assert_eq!(two.digest(), digest);
    two.expect(&[("FCALL f 0", ":7"), ("DBSIZE", ":5"), ("PTTL gone", ":1000"), ("STRLEN bits", ":13")]);
    two.expect(&[("SELECT 3", "+OK"), ("HPTTL h FIELDS 3 f g last", "*3 :1000 :1000 :-1")]);
    two.bench.advance_ms(2000);
    two.expect(&[
        ("HGETALL h", "*2 $4 last $1 2"),
        ("HPEXPIREAT h 1900000000000 FIELDS 1 last", "*1 :1"),
        ("SELECT 0", "+OK"),
        ("EXISTS gone", ":0"),
        ("BGREWRITEAOF", "+Background append only file rewriting started"),
        ("WAITAOF 1 0 0", "*2 :1 :0"),
    ]);
    let digest = two.digest();
    let mut three = two.reopened(ALWAYS);
    assert_eq!(three.digest(), digest);
    three.expect(&[("FCALL f 0", ":7"), ("DBSIZE", ":4")]);
    three.expect(&[("SELECT 3", "+OK"), ("HPEXPIRETIME h FIELDS 1 last", "*1 :1900000000000")]);
}

#[test]
fn replies_wait_for_stable_storage_and_so_do_readers() {
    let mut one = Durable::new(ALWAYS, Disk::new(8 << 20));
    let (writer, reader) = (one.client, one.bench.connect());
    one.expect(&[("SET k old", "+OK")]);
    one.disk.budget = 0;
    one.send(writer, "PING");
    one.turn();
    assert_eq!(one.output(writer), "+PONG\r\n", "nothing is pending, so nothing waits");
    one.send(writer, "SET k new\r\nPING\r\nQUIT");
    one.send(reader, "GET k");
    for _ in 0..5 {
        one.turn();
        assert_eq!((one.output(writer), one.output(reader)), (String::new(), String::new()));
        assert_eq!(one.bench.engine.fate(writer), Fate::Paused);
        assert!([writer, reader].into_iter().all(|client| one.bench.engine.awaits_log(client)));
    }
    let third = one.bench.connect();
    one.send(third, "SET other 1");
    one.turn();
    one.disk.budget = 1;
    one.turn();
    assert_eq!((one.output(writer), one.output(reader)), ("+OK\r\n+PONG\r\n+OK\r\n".into(), "$3\r\nnew\r\n".into()));
    assert_eq!(one.output(third), "", "it came later");
    assert_eq!([writer, reader, third].map(|client| one.bench.engine.awaits_log(client)), [false, false, true]);
    assert_eq!(one.bench.engine.fate(writer), Fate::CloseAfterOutput);
    one.disk.budget = 2;
    one.turn();
    one.turn();
    assert_eq!(one.output(third), "+OK\r\n");
}

/// What a web server may send now for a path.
fn page(server: &mut Server, id: kayvee_http::ConnectionId) -> (String, kayvee_http::Fate) {
    let text = String::from_utf8(server.output(id).concat()).unwrap();
    server.sent(id, text.len(), &mut kayvee_http::NoPages);
    let line = text.lines().next().unwrap_or_default().to_string();
    (format!("{line} {}", text.lines().last().unwrap_or_default()).trim().into(), server.fate(id))
}

#[test]
fn pages_wait_for_stable_storage_as_replies_do() {
    const WAITS: (String, kayvee_http::Fate) = (String::new(), kayvee_http::Fate::Waiting);
    let options = [ALWAYS, &["--http-port", "8080", "--http-keys", "page:"]].concat();
    let mut one = Durable::new(&options, Disk::new(8 << 20));
    let mut server = Server::new(Limits::new(10, 1 << 20), AccessLog::Off, Now::default());
    let ask = |one: &mut Durable, server: &mut Server, path: &str| {
        let id = server.connect(crate::web::REMOTE, true).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        server.receive(id, request.as_bytes(), &mut one.bench.engine.web());
        id
    };
    one.expect(&[("SET page:a old", "+OK"), ("SET page:b gone", "+OK")]);
    let id = ask(&mut one, &mut server, "/a");
    assert_eq!(page(&mut server, id).0, "HTTP/1.1 200 OK old", "nothing is pending, so nothing waits");
    one.disk.budget = 0;
    one.send(one.client, "SET page:a new\r\nDEL page:b");
    let shown = ask(&mut one, &mut server, "/a");
    let gone = ask(&mut one, &mut server, "/b");
    let health = ask(&mut one, &mut server, "/healthz");
    for _ in 0..3 {
        one.turn();
        server.release(&mut one.bench.engine.web());
        assert_eq!((page(&mut server, shown), page(&mut server, gone)), (WAITS, WAITS));
    }
    assert_eq!(page(&mut server, health).0, "HTTP/1.1 200 OK ok", "it tells nothing of keys");
    one.disk.budget = usize::MAX;
    one.turn();
    server.release(&mut one.bench.engine.web());
    assert_eq!(page(&mut server, shown), ("HTTP/1.1 200 OK new".into(), kayvee_http::Fate::Open));
    assert!(page(&mut server, gone).0.starts_with("HTTP/1.1 404"));
    assert!(!server.has_waiting());
    // What may be lost is told to nobody.
    one.disk.failure = Some(BlockError::Io);
    one.send(one.client, "SET page:a lost");
    let lost = ask(&mut one, &mut server, "/a");
    one.turn();
    one.turn();
    server.release(&mut one.bench.engine.web());
    assert_eq!(page(&mut server, lost), (String::new(), kayvee_http::Fate::CloseNow));
}

#[test]
fn a_slow_disk_is_an_event_of_latency() {
    let options = [ALWAYS, &["--latency-monitor-threshold", "30"]].concat();
    let mut one = Durable::new(&options, Disk::new(8 << 20));
    one.expect(&[("SET k old", "+OK"), ("LATENCY HISTORY aof-fsync-always", "*0")]);
    one.bench.let_time_pass();
    one.disk.budget = 0;
    one.send(one.client, "SET k new");
    // Each of them looks at the clock, which goes on by a millisecond then.
    (0..30).for_each(|_| one.turn());
    one.disk.budget = usize::MAX;
    one.turn();
    assert_eq!(one.output(one.client), "+OK\r\n");
    let history = one.ask("LATENCY HISTORY aof-fsync-always");
    assert!(history.starts_with("*1 *2 :1700000000 :"), "{history}");
}

#[test]
fn a_disk_that_fails_refuses_writes_and_lies_to_nobody() {
    let mut one = Durable::new(ALWAYS, Disk::new(8 << 20));
    one.expect(&[("SET k v", "+OK")]);
    lines::begin();
    one.disk.failure = Some(BlockError::Io);
    let (writer, other) = (one.client, one.bench.connect());
    one.send(writer, "SET k w");
    one.turn();
    one.turn();
    assert_eq!((one.output(writer), one.bench.engine.fate(writer)), (String::new(), Fate::CloseNow));
    one.client = other;
    const REFUSED: &str = "-MISCONF Errors writing to the AOF file: Input/output error";
    one.expect(&[
        ("SET k x", REFUSED),
        ("PING", REFUSED),
        ("GET k", "$1 w"),
        ("MULTI", "+OK"),
        ("SET k x", REFUSED),
        ("DISCARD", "+OK"),
    ]);
    assert!(one.ask("EVAL \"return redis.call('SET','k','x')\" 0").starts_with(REFUSED));
    for _ in 0..65 {
        one.bench.advance_ms(2000);
        one.turn();
    }
    // At first, and after one minute and two.
    let told = lines::take();
    assert!(
        told.len() == 3 && told.iter().all(|line| line.ends_with("are refused until that works again")),
        "{told:?}"
    );
    one.disk.failure = None;
    one.bench.advance_ms(2000);
    one.bench.let_time_pass();
    for _ in 0..2000 {
        one.turn();
    }
    assert_eq!(lines::take().first().map(String::as_str), Some("the log's disk works again"));
    one.expect(&[("SET k y", "+OK"), ("GET k", "$1 y")]);
    let digest = one.digest();
    assert_eq!(one.reopened(ALWAYS).digest(), digest);
}

/// Whoever waits for a disk that is slow hears that it fails.
#[test]
fn a_disk_that_is_slow_and_then_fails_refuses_those_who_wait() {
    const REFUSED: &str = "-MISCONF Errors writing to the AOF file: Input/output error\r\n";
    let mut one = Durable::new(GATHERED, Disk::new(64 << 20));
    one.disk.budget = 0;
    let value = "v".repeat(20_000);
    let mut told = String::new();
    for n in 0..300 {
        one.send(one.client, &format!("SET k{n} {value}"));
        one.turn();
        told += &one.output(one.client);
    }
    let done = told.matches("+OK").count();
    assert!((100..300).contains(&done) && told.len() == done * 5, "{done} of 300 before the others wait");
    one.disk.failure = Some(BlockError::Io);
    one.disk.budget = usize::MAX;
    (0..3).for_each(|_| one.turn());
    assert_eq!(one.output(one.client), REFUSED.repeat(300 - done));
    one.expect(&[("SET k v", REFUSED.trim_end()), ("STRLEN k1", ":20000")]);
    assert!(one.bench.engine.next_deadline_ns().is_none_or(|at_ns| at_ns > one.bench.now.monotonic_ns), "it rests");
    one.disk.failure = None;
    one.rest(3000);
    one.expect(&[("SET k v", "+OK"), ("DBSIZE", &format!(":{}", done + 1))]);
    one.rest(3000);
    let digest = one.digest();
    assert_eq!(one.reopened(GATHERED).digest(), digest);
}

/// `DEBUG LOADAOF` puts what the log says in the place of what is there: the same, for clients that go on as before.
#[test]
fn all_data_comes_back_from_the_log_while_clients_are_there() {
    let mut durable = Durable::new(ALWAYS, Disk::new(64 << 20));
    durable.ask("SET k v PX 100000");
    durable.ask("RPUSH l a b c");
    durable.ask("XADD s 1-1 f v");
    durable.ask("LPOP l");
    durable.ask("FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() return 7 end)\"");
    let digest = durable.ask("DEBUG DIGEST");
    durable.ask("WATCH k");
    assert_eq!(durable.ask("DEBUG LOADAOF"), "+OK");
    assert_eq!(durable.ask("DEBUG DIGEST"), digest);
    assert_eq!(durable.ask("FCALL f 0"), ":7");
    assert_eq!(durable.ask("LRANGE l 0 -1"), "*2 $1 b $1 c");
    durable.ask("SET later 1");
    let digest = durable.ask("DEBUG DIGEST");
    assert_eq!(durable.reopened(ALWAYS).ask("DEBUG DIGEST"), digest, "and the log goes on");
    let mut without = Bench::new(&["--enable-debug-command", "yes"]);
    let client = without.connect();
    assert!(without.ask(client, "DEBUG LOADAOF\r\n").starts_with("-ERR there is no log"));
}

/// Without the log from its beginning on, what is appended means nothing: it has to begin anew before that counts.
#[test]
fn the_log_is_switched_on_and_off() {
    const NEVER: &[&str] = &["--appendfsync", "always", "--enable-debug-command", "yes"];
    let mut one = Durable::new(NEVER, Disk::new(8 << 20));
    one.expect(&[
        ("SET a 1", "+OK"),
        ("WAITAOF 1 0 0", "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."),
    ]);
    assert_eq!(one.reopened(NEVER).ask("DBSIZE"), ":0", "nobody has asked for it to be kept");
    one.expect(&[("SAVE", "+OK"), ("SET b 2", "+OK")]);
    assert_eq!(one.reopened(NEVER).ask("DBSIZE"), ":1", "what was saved");
    one.expect(&[("CONFIG SET appendonly yes", "+OK"), ("SET c 3", "+OK")]);
    // The disk works, so a few turns are enough for the new beginning.
    (0..50).for_each(|_| one.turn());
    one.expect(&[("INCR c", ":4"), ("WAITAOF 1 0 0", "*2 :1 :0")]);
    let digest = one.digest();
    assert_eq!(one.reopened(ALWAYS).digest(), digest);
    // A beginning that never comes to its end, with changes before it that are in no log.
    one.expect(&[("CONFIG SET appendonly no", "+OK"), ("DEL a", ":1"), ("DEBUG POPULATE 5000", "+OK")]);
    one.disk.budget = 0;
    one.send(one.client, "CONFIG SET appendonly yes");
    for _ in 0..5 {
        one.turn();
    }
    one.send(one.client, "INCR c");
    one.turn();
    assert_eq!(one.reopened(ALWAYS).digest(), digest, "the old log up to where it was switched off");
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    let refused = bench.ask(client, "CONFIG SET appendonly yes\r\n");
    assert!(refused.contains("start Kayvee with --disk"), "{refused}");
}

/// What a command has told the log alone says nothing of what a replica that comes later is told.
#[test]
fn expired_keys_are_told_one_by_one_after_the_log_was_on() {
    let mut durable = Durable::new(ALWAYS, Disk::new(64 << 20));
    durable.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    durable.ask("SET a 1 EX 100");
    durable.ask("CONFIG SET appendonly no");
    durable.ask("SET b 1 PX 1");
    durable.ask("SET c 1 PX 1");
    let replica = durable.bench.connect();
    durable.send(replica, "SYNC");
    durable.turn();
    let dump_len = durable.bench.engine.output(replica).len();
    durable.bench.engine.sent(replica, dump_len);
    durable.bench.advance_ms(10);
    durable.ask("SCAN 0");
    let told = durable.output(replica);
    assert!(told.matches("DEL").count() == 2 && !told.contains("MULTI"), "{told}");
}

/// Lists that are written down in parts, while others take their places that are copied from another database.
#[test]
fn copies_over_keys_of_another_database_are_written_down_once() {
    const LARGE: &[&str] = &["--list-max-listpack-size", "2"];
    let options = [ALWAYS, LARGE].concat();
    for turns in 0..12 {
        let mut one = Durable::new(&options, Disk::new(8 << 20));
        one.bench.engine.set_part_sizes(2, 3);
        one.ask("RPUSH from 1 2 3 4 5 6 7 8 9");
        one.ask("SELECT 1");
        one.ask(&format!("RPUSH to {}", "x y z ".repeat(5)));
        one.bench.let_time_pass();
        one.send(one.client, "BGREWRITEAOF");
        (0..turns).for_each(|_| one.turn());
        one.send(one.client, "LPUSH to w\r\nSELECT 0\r\nCOPY from to DB 1 REPLACE");
        (0..200).for_each(|_| one.turn());
        assert!(one.output(one.client).ends_with(":16\r\n+OK\r\n:1\r\n"));
        let mut two = one.reopened(&options);
        two.expect(&[("SELECT 1", "+OK"), ("LRANGE to 0 -1", "*9 $1 1 $1 2 $1 3 $1 4 $1 5 $1 6 $1 7 $1 8 $1 9")]);
    }
}

/// A string that is written down in parts, and what may be done to it meanwhile.
#[test]
fn long_strings_are_written_down_in_parts() {
    let text: String = (0..20_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    for meanwhile in [
        "PING",
        "APPEND big x",
        "SETRANGE big 9999 xyz",
        "SET big y",
        "SET big y EX 9",
        "GETEX big PX 900000",
        "DEL big",
        "RENAME big other",
        "DEL big\r\nSET big y",
        "MULTI\r\nAPPEND big x\r\nSET small x\r\nEXEC",
        "GETSET big y",
        "COPY big other",
        "SETBIT big 70000 1",
        "SWAPDB 0 1",
        "PEXPIRE big 900000",
        "FLUSHALL\r\nAPPEND big x",
        "GETDEL big",
        "RPUSH l 1\r\nSORT l STORE big",
        "MSET small 1 big 2",
    ] {
        for turns in [0, 1, 2, 3, 9, 19, 20, 21] {
            let mut one = Durable::new(ALWAYS, Disk::new(1 << 20));
            one.bench.engine.set_part_sizes(2, 3);
            one.ask("SET small 5");
            one.ask(&format!("SET big {text}"));
            one.bench.let_time_pass();
            one.send(one.client, "BGREWRITEAOF");
            (0..turns).for_each(|_| one.turn());
            one.send(one.client, meanwhile);
            one.turn();
            one.client = one.bench.connect();
            // Whether the replay begins before the compaction or with it.
            for _ in 0..2 {
                let digest = one.digest();
                let mut two = one.reopened(ALWAYS);
                assert_eq!(two.digest(), digest, "{meanwhile} after {turns} turns");
                (0..50).for_each(|_| one.turn());
            }
        }
    }
}

/// What is flushed counts when the log has its beginning, without which nothing of it would come back.
#[test]
fn copies_are_waited_for_until_the_log_has_its_beginning() {
    let mut one = Durable::new(&["--enable-debug-command", "yes"], Disk::new(8 << 20));
    one.ask("DEBUG POPULATE 2000");
    one.bench.let_time_pass();
    one.send(one.client, "CONFIG SET appendonly yes\r\nSET k v\r\nWAITAOF 1 0 0");
    let mut told = String::new();
    for _ in 0..100_000 {
        one.turn();
        told += &one.output(one.client);
        if told.ends_with("*2\r\n:1\r\n:0\r\n") {
            break;
        }
    }
    assert_eq!(told, "+OK\r\n+OK\r\n*2\r\n:1\r\n:0\r\n");
    assert_eq!(one.reopened(ALWAYS).ask("GET k"), "$1 v");
}

/// Data that a blank disk has never had get there all or not at all, wherever their first write-down is cut.
#[test]
fn a_first_write_down_that_is_cut_leaves_nothing() {
    let (mut nothing, mut all) = (0, 0);
    for transfers in 0.. {
        let mut one = Durable::new(&["--enable-debug-command", "yes"], Disk::new(8 << 20));
        one.ask("DEBUG POPULATE 8000 key 200");
        one.disk.budget = transfers;
        one.send(one.client, "CONFIG SET appendonly yes appendfsync always\r\nSET k v");
        (0..500).for_each(|_| one.turn());
        let is_cut = one.disk.budget == 0;
        let mut two = one.reopened(ALWAYS);
        match two.ask("DBSIZE").as_str() {
            ":0" => nothing += 1,
            ":8001" => all += 1,
            size => panic!("{size} after {transfers} transfers"),
        }
        // It goes on as a log.
        two.expect(&[("SET later 1", "+OK")]);
        assert_eq!(two.reopened(ALWAYS).digest(), two.digest());
        if !is_cut {
            break;
        }
    }
    assert!(nothing > 10 && all > 1, "{nothing} and {all}");
}

/// An end is no reason to lose what a log that was just switched on has not got yet.
#[test]
fn the_end_waits_for_a_log_s_beginning() {
    let mut one = Durable::new(&["--enable-debug-command", "yes"], Disk::new(8 << 20));
    one.ask("DEBUG POPULATE 2000");
    one.bench.let_time_pass();
    one.send(one.client, "CONFIG SET appendonly yes\r\nSHUTDOWN");
    let turns = (0..100_000).position(|_| {
        one.turn();
        one.bench.engine.shutdown().is_some()
    });
    assert!(turns.is_some_and(|turns| turns > 0), "{turns:?}");
    assert_eq!(one.reopened(ALWAYS).ask("DBSIZE"), ":2000");
}

#[test]
fn a_shard_takes_no_other_shard_s_disk() {
    const FIRST: &[&str] = &["--appendonly", "yes", "--cluster-shards", "a:1 b:2", "--cluster-shard", "0"];
    const SECOND: &[&str] = &["--appendonly", "yes", "--cluster-shards", "a:1 b:2", "--cluster-shard", "1"];
    let mut first = Durable::new(FIRST, Disk::new(8 << 20));
    // Slot 5061, in the lower half.
    first.expect(&[("SET bar 1", "+OK"), ("SET foo 1", "-MOVED 12182 b:2")]);
    first.ask("BGREWRITEAOF");
    let mut disk = first.disk.copy();
    let error = Bench::new(SECOND).engine.open_log(&mut disk).unwrap_err().to_string();
    assert!(error.starts_with("1 keys here belong to other shards than number 1 of 2"), "{error}");
    // To have been tried by another one does it no harm.
    Durable::new(FIRST, disk).expect(&[("GET bar", "$1 1")]);
}

/// A few keys that are another shard's, as slots that are cut elsewhere leave them, are kept, and stop nothing.
#[test]
fn a_shard_starts_beside_a_few_keys_of_others() {
    const FIRST: &[&str] = &["--appendonly", "yes", "--cluster-shards", "a:1 b:2", "--cluster-shard", "0"];
    let mut alone = Durable::new(ALWAYS, Disk::new(8 << 20));
    alone.expect(&[("MSET bar 1 {bar}2 1 {bar}3 1 foo 1", "+OK")]);
    lines::begin();
    let mut shard = alone.reopened(FIRST);
    let said = lines::take();
    let warning =
        |line: &String| line.starts_with("1 keys here belong to other shards than number 0 of 2: start it as");
    assert_eq!(said.iter().filter(|line| warning(line)).count(), 1, "{said:?}");
    shard.expect(&[
        ("GET bar", "$1 1"),
        ("GET foo", "-MOVED 12182 b:2"),
        ("DBSIZE", ":4"),
        ("BGREWRITEAOF", "+Background append only file rewriting started"),
    ]);
    while shard.ask("INFO persistence").contains("aof_rewrite_in_progress:1") {}
    // They are there for whoever starts it by itself.
    let mut alone = shard.reopened(ALWAYS);
    alone.expect(&[("GET foo", "$1 1"), ("MSET x 1 y 1", "+OK"), ("DEL bar", ":1")]);
    // With more of them it is another shard's disk, or one of another number of shards.
    let error = Bench::new(FIRST).engine.open_log(&mut alone.disk.copy()).unwrap_err().to_string();
    assert!(error.contains("belong to other shards"), "{error}");
}

/// Receives a request that sets a key to a long string in two pieces, as such come.
fn set_in_two(durable: &mut Durable, key: &str, value: &str, options: &[&str]) {
    let mut request = format!("*{}\r\n", 3 + options.len());
    for word in ["SET", key, value].iter().chain(options) {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    let (first, second) = request.split_at(request.len() / 2);
    durable.bench.engine.receive(durable.client, first.as_bytes());
    durable.bench.engine.receive(durable.client, second.as_bytes());
}

/// A string that becomes a value in the buffer that it came in is in the log as well.
#[test]
fn a_long_string_that_came_in_pieces_is_logged() {
    let mut durable = Durable::new(ALWAYS, Disk::new(8 << 20));
    set_in_two(&mut durable, "k", &"v".repeat(100_000), &[]);
    set_in_two(&mut durable, "l", &"v".repeat(200_000), &["EX", "1000"]);
    set_in_two(&mut durable, "l", &"w".repeat(200_000), &["XX", "KEEPTTL"]);
    assert_eq!(durable.ask("EXPIRE k 1000"), "+OK +OK +OK :1");
    let digest = durable.digest();
    let mut reopened = durable.reopened(ALWAYS);
    reopened.expect(&[("STRLEN k", ":100000"), ("GETRANGE l 0 1", "$2 ww"), ("DEBUG DIGEST", &digest)]);
}

/// Who waits for any change of a key looks at it before the next turn, and a compaction has that written down.
#[test]
fn a_long_string_in_place_of_what_somebody_waits_for_is_logged() {
    for turns in 1..20 {
        let mut one = Durable::new(ALWAYS, Disk::new(8 << 20));
        one.expect(&[("DEBUG POPULATE 500 key 100", "+OK"), ("XGROUP CREATE k g $ MKSTREAM", "+OK")]);
        let waiting = one.bench.connect();
        one.send(waiting, "XREADGROUP GROUP g c BLOCK 0 STREAMS k >");
        one.turn();
        one.bench.let_time_pass();
        one.send(one.client, "BGREWRITEAOF");
        (0..turns).for_each(|_| one.turn());
        set_in_two(&mut one, "k", &"v".repeat(100_000), &[]);
        (0..2000).for_each(|_| one.turn());
        assert!(one.output(one.client).ends_with("+OK\r\n"));
        assert!(one.output(waiting).starts_with("-WRONGTYPE"));
        let mut two = one.reopened(ALWAYS);
        two.expect(&[("STRLEN k", ":100000"), ("DBSIZE", ":501")]);
    }
}

/// What a script does that other clients' turns interrupt is one record, and is replayed at the time at which it ran.
#[test]
fn what_a_slow_script_does_is_one_record() {
    const SLOW: &str =
        "EVAL \"redis.call('DECR','a') for i = 1, 3e6 do end redis.call('INCR','k') redis.call('PERSIST','k')\" 0";
    let options = [ALWAYS, &["--busy-reply-threshold", "5"]].concat();
    for request in [SLOW, &format!("MULTI\r\nDECR before\r\n{SLOW}\r\nSET later 1 PX 500\r\nEXEC")] {
        let mut one = Durable::new(&options, Disk::new(8 << 20));
        one.expect(&[("SET k 5 PX 3000", "+OK")]);
        one.bench.let_time_pass();
        one.send(one.client, request);
        one.turn();
        let other = one.bench.connect();
        one.bench.advance_ms(4000);
        one.send(other, "GET k");
        one.turn();
        assert!(one.output(other).starts_with("-BUSY"));
        (0..20).for_each(|_| one.turn());
        one.reopened(&options).expect(&[("GET k", "$1 5"), ("DBSIZE", ":1")]);
        let mut reply = one.output(one.client);
        for _ in 0..20_000 {
            one.bench.advance_ms(1);
            one.turn();
            reply += &one.output(one.client);
            if reply.ends_with("$-1\r\n") || reply.ends_with("$-1\r\n+OK\r\n") {
                break;
            }
        }
        let digest = one.digest();
        let mut two = one.reopened(&options);
        two.bench.now = one.bench.now;
        two.bench.advance_ms(0);
        two.expect(&[("GET k", "$1 6"), ("PTTL k", ":-1"), ("GET a", "$2 -1"), ("DEBUG DIGEST", &digest)]);
    }
}

/// All data is not taken back from a log that half of a script is not in yet.
#[test]
fn data_come_back_from_the_log_when_a_slow_script_is_over() {
    let mut one = Durable::new(&[ALWAYS, &["--busy-reply-threshold", "5"]].concat(), Disk::new(8 << 20));
    one.bench.let_time_pass();
    let slow = one.bench.connect();
    one.send(one.client, "DEBUG LOADAOF");
    one.send(slow, "EVAL \"redis.call('SET', 'a', '1') for i = 1, 3e6 do end redis.call('SET', 'b', '2')\" 0");
    let loaded = (0..10_000).find_map(|_| {
        one.bench.advance_ms(1);
        one.turn();
        Some(one.output(one.client)).filter(|reply| !reply.is_empty())
    });
    assert_eq!((loaded.as_deref(), &one.output(slow)[..]), (Some("+OK\r\n"), "$-1\r\n"));
    one.expect(&[("MGET a b", "*2 $1 1 $1 2")]);
}

/// Databases that change places while a compaction walks have what it writes later stand where it has to, and not longer.
#[test]
fn databases_that_change_places_during_a_compaction_keep_all() {
    let options = ["--appendonly", "yes", "--appendfsync", "everysec", "--enable-debug-command", "yes"];
    for turns in 0..20 {
        let mut one = Durable::new(&options, Disk::new(8 << 20));
        (0..60).for_each(|n| one.expect(&[(&format!("HSET h{n} f {n}"), ":1")]));
        one.expect(&[("SELECT 1", "+OK"), ("HSET other f v", ":1"), ("SELECT 0", "+OK")]);
        for _ in 0..3 {
            one.bench.advance_ms(2000);
            one.turn();
        }
        let before = one.digest();
        one.send(one.client, "BGREWRITEAOF");
        (0..turns).for_each(|_| one.turn());
        one.send(one.client, "SWAPDB 0 1");
        let found: Vec<String> = (0..20)
            .map(|_| {
                one.turn();
                one.reopened(&options).digest()
            })
            .collect();
        one.output(one.client);
        let after = one.digest();
        let is_whole = |found: &String| *found == before || *found == after;
        assert!(found.iter().all(is_whole), "swapped after {turns} turns: {found:?}, {before}, {after}");
    }
}

impl Durable {
    /// Lets time pass as a target does, which sleeps until somebody wants a turn.
    fn rest(&mut self, ms: u64) {
        let end_ns = self.bench.now.monotonic_ns + ms * 1_000_000;
        for _ in 0..100_000 {
            self.turn();
            let now_ns = self.bench.now.monotonic_ns;
            let wanted_ns = self.bench.engine.next_deadline_ns().unwrap_or(u64::MAX);
            if wanted_ns > now_ns {
                if now_ns >= end_ns {
                    return;
                }
                self.bench.advance_ms((wanted_ns.min(end_ns) - now_ns).div_ceil(1_000_000));
            }
        }
        panic!("a turn is wanted all the time");
    }
}

/// Data that cannot be taken back from the log stay, and so does the log.
#[test]
fn a_log_that_cannot_be_read_again_goes_on() {
    const FAILED: &str = "-ERR Error trying to load the log, check server logs.";
    let mut one = Durable::new(GATHERED, Disk::new(8 << 20));
    one.expect(&[("SET k v", "+OK"), ("SET l w", "+OK")]);
    one.rest(3000);
    one.expect(&[("SET m x", "+OK")]);
    one.rest(3000);
    let sound = one.disk.bytes.clone();
    let at = sound.windows(4).position(|bytes| bytes == b"KvBt").expect("a batch");
    one.disk.bytes[at + 70] ^= 1;
    lines::begin();
    one.expect(&[("DEBUG LOADAOF", FAILED)]);
    let told = lines::take();
    assert!(told[0].starts_with("the data are not taken back from the log: the log is damaged"), "{told:?}");
    one.disk.bytes[at + 70] ^= 1;
    one.expect(&[("MGET k l m", "*3 $1 v $1 w $1 x"), ("SET later 1", "+OK")]);
    one.disk.failure = Some(BlockError::Io);
    one.expect(&[("DEBUG LOADAOF", FAILED)]);
    assert!(one.ask("INFO persistence").contains("aof_last_write_status:err"));
    one.expect(&[("SET later 2", "-MISCONF Errors writing to the AOF file: Input/output error")]);
    one.disk.failure = None;
    one.rest(3000);
    one.expect(&[("SET later 3", "+OK"), ("DEBUG LOADAOF", "+OK"), ("GET later", "$1 3")]);
    let digest = one.digest();
    assert_eq!(one.reopened(GATHERED).digest(), digest);
}

/// A command that fails because its key has expired has done nothing but to find that out.
#[test]
fn a_command_that_fails_on_an_expired_key_is_told_to_nobody() {
    let mut durable = Durable::new(ALWAYS, Disk::new(8 << 20));
    durable.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    durable.ask("SET n1 x PX 1");
    let replica = durable.bench.connect();
    durable.send(replica, "SYNC");
    durable.turn();
    let dump_len = durable.bench.engine.output(replica).len();
    durable.bench.engine.sent(replica, dump_len);
    durable.bench.advance_ms(10);
    durable.expect(&[("RENAMENX n1 n3", "-ERR no such key")]);
    let told = durable.output(replica);
    assert!(told.contains("DEL") && !told.to_lowercase().contains("renamenx"), "{told}");
}

/// A lower limit on what clients send takes nothing of what there is.
#[test]
fn long_strings_outlive_a_lower_limit() {
    let mut one = Durable::new(ALWAYS, Disk::new(32 << 20));
    one.expect(&[
        ("SETBIT bits 16000000 1", ":0"),
        ("BITFIELD field SET u8 16000000 7", "*1 :0"),
        ("SETRANGE text 2000000 x", ":2000001"),
        ("APPEND text y", ":2000002"),
    ]);
    let digest = one.digest();
    let mut two = one.reopened(&[ALWAYS, &["--proto-max-bulk-len", "1mb"]].concat());
    assert_eq!(two.digest(), digest);
    two.expect(&[("SETBIT bits 16000000 0", "-ERR bit offset is not an integer or out of range")]);
}

/// What a guest's log has kept for itself from its start on is nobody's data: no key goes for it, and no write is refused.
#[test]
fn buffers_of_the_log_do_not_count_as_data() {
    let options = [ALWAYS, &["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"]].concat();
    let mut bench = Bench::new(&options);
    bench.heap.limit.store(1 << 30, Ordering::Relaxed);
    let mut disk = Disk::new(64 << 20);
    bench.engine.open_log(&mut disk).unwrap_or_else(|error| panic!("{error}"));
    let client = bench.connect();
    let mut one = Durable { bench, disk, client };
    one.expect(&[("SET a 1", "+OK")]);
    let info = one.ask("INFO memory");
    let buffers = info.split("mem_not_counted_for_evict:").nth(1).and_then(|rest| rest.split_whitespace().next());
    let buffers: u64 = buffers.expect("it is told").parse().expect("a number");
    assert!(buffers >= 1 << 20, "{buffers}");
    one.bench.heap.used.store((3 << 20) + buffers, Ordering::Relaxed);
    one.expect(&[("SET b 1", "+OK"), ("DBSIZE", ":2")]);
    one.bench.heap.used.store((4 << 20) + buffers, Ordering::Relaxed);
    one.expect(&[("SET c 1", "-OOM command not allowed when used memory > 'maxmemory'."), ("DBSIZE", ":0")]);
}
