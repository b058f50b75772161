//! Having replicas: what they get, what is kept for them, and when they are given up.

use super::chain::Chain;
use crate::bench::Bench;
use kayvee_server::{ClientId, Fate};
use std::sync::atomic::Ordering;

/// However connections are cut, and whatever changes while a dump is written, all copies become the same.
#[test]
fn copies_become_the_same() {
    for seed in 0..8 {
        let mut chain = Chain::new(seed, 3);
        (0..chain.rng.usize(..600)).for_each(|_| chain.change());
        match seed % 2 {
            0 => chain.follow(),
            _ => (1..3).for_each(|at| chain.follow_one(at, 0)),
        }
        for _ in 0..1500 {
            if chain.rng.u8(..4) > 0 {
                chain.change();
            }
            let ms = chain.rng.u64(..30);
            chain.turn(ms);
            if chain.rng.u32(..400) == 0 {
                let at = chain.rng.usize(1..3);
                chain.cut(at);
            }
        }
        chain.settle();
    }
}

/// What a master keeps for its replicas, in bytes, and what it tells of what they may go on with.
fn kept(bench: &mut Bench, user: ClientId) -> (u64, u64) {
    let info = bench.ask(user, "INFO memory\r\nINFO replication\r\n");
    let number = |field: &str| info.lines().find_map(|line| line.strip_prefix(field)?.parse().ok()).expect(field);
    (number("mem_total_replication_buffers:"), number("repl_backlog_histlen:"))
}

/// Replicas that ask before anything of a dump is sent get the same one, and each of them all that has changed since. That
/// lies in memory once, however many wait for it, and one whose connection was lost can go on with it.
#[test]
fn replicas_share_a_dump_and_what_follows() {
    let options = ["--repl-diskless-sync-delay", "3", "--repl-diskless-sync-max-replicas", "3"];
    let limits = ["--repl-backlog-size", "20kb", "--client-output-buffer-limit", "replica 0 0 0"];
    let mut bench = Bench::new(&[&options[..], &limits[..], &["--rdb-key-save-delay", "1000000"]].concat());
    let user = bench.connect();
    bench.ask(user, "MSET a 1 b 2 c 3 d 4\r\n");
    let replicas: Vec<ClientId> = (0..4).map(|_| bench.connect()).collect();
    let sync = |bench: &mut Bench, at: usize| {
        let output = bench.ask(replicas[at], "REPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n");
        output.trim_start_matches("+OK\r\n").to_string()
    };
    // The first two wait for a third one, in vain.
    assert_eq!([0, 1].map(|at| sync(&mut bench, at)), ["", ""]);
    bench.advance_ms(2999);
    bench.ask(user, "INCR a\r\n");
    assert!(!bench.take_text(replicas[0]).contains("FULLRESYNC"));
    bench.advance_ms(1);
    let heads = [0, 1].map(|at| bench.take_text(replicas[at]).trim_start().to_string());
    assert!(heads[0].starts_with("+FULLRESYNC ") && heads[0] == heads[1], "{heads:?}");
    // One more comes before anything of it is sent, though something has changed.
    bench.ask(user, "INCR a\r\n");
    assert_eq!(sync(&mut bench, 2), heads[0]);
    for _ in 0..30 {
        bench.ask(user, &format!("SET k {}\r\n", "x".repeat(10_000)));
    }
    let (bytes, history) = kept(&mut bench, user);
    assert!((300_000..350_000).contains(&bytes) && history > 300_000, "{bytes} for {history}");
    // Whoever gave up has no part in it, and who has seen the beginning may go on.
    bench.engine.disconnect(replicas[2]);
    bench.engine.end_turn();
    assert_eq!(kept(&mut bench, user).0, bytes);
    let words: Vec<&str> = heads[0].split_ascii_whitespace().collect();
    let next = words[2].parse::<u64>().expect("an offset") + 1;
    let mut missed = bench.ask(replicas[3], &format!("PSYNC {} {next}\r\n", words[1]));
    assert!(missed.starts_with("+CONTINUE\r\n"), "{}", missed.lines().next().unwrap_or_default());
    missed += &bench.take_text(replicas[3]);
    let dumps = [0, 1].map(|at| {
        let mut dump = Vec::new();
        for _ in 0..10 {
            bench.advance_ms(1000);
            dump.extend(bench.take(replicas[at]));
        }
        dump
    });
    assert!(dumps[0].len() > 100 && dumps[0] == dumps[1], "{:?}", dumps.map(|dump| dump.len()));
    // What follows comes when they have the dump, and is forgotten when all have it.
    let effects = [0, 1].map(|at| {
        let some = bench.ask(replicas[at], "REPLCONF ACK 0\r\n");
        some + &bench.take_text(replicas[at])
    });
    assert!(effects[0].len() > 300_000 && effects[0] == effects[1]);
    let pinged = missed + &bench.take_text(replicas[3]);
    assert_eq!(pinged.split_once("\r\n").map(|(_, all)| all), Some(&effects[0][..]));
    let (bytes, history) = kept(&mut bench, user);
    assert!(bytes < 60_000 && history == 20 << 10, "{bytes} for {history}");
    assert!(bench.ask(user, "INFO stats\r\n").contains("sync_full:3\r\nsync_partial_ok:1\r\n"));
}

/// What a replica does not read waits where it is kept for all, and drops it when there is more than it may leave unread.
#[test]
fn a_replica_that_does_not_read_has_limits() {
    let mut bench = Bench::new(&["--repl-backlog-size", "20kb", "--client-output-buffer-limit", "replica 1mb 0 0"]);
    let (user, quick, slow) = (bench.connect(), bench.connect(), bench.connect());
    for replica in [quick, slow] {
        bench.engine.receive(replica, b"SYNC\r\n");
        bench.take(replica);
    }
    let set = format!("SET k {}\r\n", "x".repeat(9980));
    let mut read = 0;
    for _ in 0..100 {
        bench.ask(user, &set);
        read += bench.take(quick).len();
    }
    assert!(read > 998_000, "{read}");
    let (bytes, history) = kept(&mut bench, user);
    assert!((600_000..800_000).contains(&history) && bytes < history + 50_000, "{bytes} for {history}");
    assert_eq!(bench.engine.fate(slow), Fate::Open);
    // It gets what there is once it reads.
    let mut late = 0;
    while late < read {
        let some = bench.take(slow).len();
        assert!(some > 0, "{late} of {read}");
        late += some;
    }
    assert_eq!(kept(&mut bench, user).1, 20 << 10);
    for _ in 0..110 {
        assert_eq!(bench.engine.fate(slow), Fate::Open);
        bench.ask(user, &set);
        bench.take(quick);
        if bench.engine.fate(slow) != Fate::Open {
            break;
        }
    }
    assert_eq!(bench.engine.fate(slow), Fate::CloseNow);
    bench.engine.end_turn();
    assert_eq!(kept(&mut bench, user).1, 20 << 10);
}

/// One of Redis sends nothing but empty lines while it loads, however long that takes.
#[test]
fn a_replica_that_makes_progress_is_kept() {
    let mut bench = Bench::new(&["--repl-timeout", "60"]);
    let (client, replica) = (bench.connect(), bench.connect());
    bench.ask(client, &format!("SET k {}\r\n", "x".repeat(10_000)));
    bench.engine.receive(replica, b"PSYNC ? -1\r\n");
    let mut fate_after_50_s = |does: &dyn Fn(&mut Bench)| {
        bench.engine.end_turn();
        does(&mut bench);
        bench.advance_ms(50_000);
        bench.engine.end_turn();
        bench.engine.fate(replica)
    };
    for _ in 0..3 {
        assert_eq!(fate_after_50_s(&|bench| _ = bench.engine.sent(replica, 1000)), Fate::Open);
    }
    for _ in 0..3 {
        assert_eq!(fate_after_50_s(&|bench| bench.engine.receive(replica, b"\n")), Fate::Open);
    }
    assert_eq!(fate_after_50_s(&|_| ()), Fate::CloseNow);
}

/// A replica hides the fields whose time has come, and keeps them until its master says that they go.
#[test]
fn fields_expire_on_a_replica_when_the_master_says_so() {
    let mut chain = Chain::new(3, 2);
    chain.ask(0, "HSET old a 1 b 2");
    chain.ask(0, "HPEXPIRE old 60000 FIELDS 1 a");
    chain.follow();
    chain.settle();
    chain.ask(0, "DEBUG SET-ACTIVE-EXPIRE 0");
    chain.ask(0, "HSET h a 1 b 2");
    chain.ask(0, "HPEXPIRE h 60000 FIELDS 1 a");
    chain.settle();
    (0..100).for_each(|_| chain.turn(1000));
    for key in ["old", "h"] {
        for at in 0..2 {
            assert_eq!(chain.ask(at, &format!("HGETALL {key}")), "*2\r\n$1\r\nb\r\n$1\r\n2", "{key} at {at}");
        }
    }
    assert!(chain.ask(1, "INFO keyspace").contains("subexpiry=2"));
    chain.ask(0, "DEBUG SET-ACTIVE-EXPIRE 1");
    (0..100).for_each(|_| chain.turn(100));
    chain.settle();
    assert!(chain.ask(1, "INFO keyspace").contains("subexpiry=0"));
}

/// A replica that was dropped would come back for as much as is in the backlog.
#[test]
fn a_replica_may_wait_for_as_much_as_the_backlog_has() {
    let mut bench = Bench::new(&["--client-output-buffer-limit", "replica 50kb 0 0", "--repl-backlog-size", "100kb"]);
    let (client, replica) = (bench.connect(), bench.connect());
    bench.engine.receive(replica, b"REPLCONF listening-port 6380\r\nSYNC\r\n");
    bench.take(replica);
    let set = format!("SET k {}\r\n", "x".repeat(40_000));
    for _ in 0..2 {
        bench.ask(client, &set);
    }
    assert_eq!(bench.engine.fate(replica), Fate::Open);
    bench.ask(client, &set);
    assert_eq!(bench.engine.fate(replica), Fate::CloseNow);
}

/// What waits for replicas is no reason to evict keys, of which they would have to be told as well.
#[test]
fn what_waits_for_replicas_drives_out_no_keys() {
    let limits = ["--maxmemory", "10mb", "--maxmemory-policy", "allkeys-random", "--repl-backlog-size", "10kb"];
    let mut bench = Bench::new(&limits);
    let (client, replica) = (bench.connect(), bench.connect());
    bench.ask(client, "SET a 1\r\n");
    bench.engine.receive(replica, b"REPLCONF listening-port 6380\r\nSYNC\r\n");
    bench.take(replica);
    for _ in 0..3 {
        bench.ask(client, &format!("SET k {}\r\n", "x".repeat(40_000)));
    }
    bench.heap.used.store((10 << 20) + 90_000, Ordering::Relaxed);
    assert_eq!(bench.ask(client, "SET b 1\r\nDBSIZE\r\n"), "+OK\r\n:3\r\n");
    let info = bench.ask(client, "INFO memory\r\n");
    let waiting = info.lines().find_map(|line| line.strip_prefix("mem_not_counted_for_evict:")).unwrap();
    assert!(waiting.parse::<u64>().unwrap() > 100_000, "{info}");
    bench.engine.disconnect(replica);
    bench.engine.end_turn();
    assert!(bench.ask(client, "SET c 1\r\n").starts_with("-OOM"), "nothing is spared without a replica");
}

#[test]
fn a_replica_that_acknowledges_what_cannot_be() {
    let mut bench = Bench::new(&[]);
    let (user, replica) = (bench.connect(), bench.connect());
    bench.ask(replica, "REPLCONF capa eof capa psync2\r\nPSYNC ? -1\r\n");
    (0..10).for_each(|_| _ = bench.take(replica));
    bench.ask(replica, "REPLCONF ACK 0\r\n");
    bench.ask(user, "SET k v\r\n");
    for lie in ["-1000000", "-9223372036854775808"] {
        bench.ask(replica, &format!("REPLCONF ACK {lie} FACK {lie}\r\n"));
        let reply = bench.ask(user, "WAIT 1 10\r\n");
        bench.advance_ms(20);
        assert_eq!(reply + &bench.take_text(user), ":0\r\n", "{lie}");
    }
    bench.ask(replica, "REPLCONF ACK 9223372036854775807\r\n");
    assert_eq!(bench.ask(user, "FAILOVER TIMEOUT 100\r\n"), "+OK\r\n");
    for _ in 0..5 {
        bench.advance_ms(50);
        bench.take(replica);
    }
    assert!(bench.ask(user, "ROLE\r\n").contains("master"), "it has not said that it has just what there is");
}

/// A reply would look like an effect, and no offset would be right any more.
#[test]
fn a_replica_that_asks_for_something_is_dropped() {
    let mut bench = Bench::new(&[]);
    let (client, replica) = (bench.connect(), bench.connect());
    bench.engine.receive(replica, b"SYNC\r\n");
    bench.take(replica);
    bench.engine.receive(replica, b"REPLCONF ACK 0\r\n");
    assert_eq!(bench.ask(client, "SET k v\r\n"), "+OK\r\n");
    assert!(bench.take_text(replica).ends_with("$1\r\nv\r\n"));
    bench.engine.receive(replica, b"GET k\r\n");
    assert_eq!(bench.take_text(replica), "");
    assert_eq!(bench.engine.fate(replica), Fate::CloseNow);
}

/// Clients that keep copies of values are told when all data make way for a master's.
#[test]
fn copies_of_clients_are_called_back() {
    let mut chain = Chain::new(20, 2);
    assert_eq!(chain.ask(0, "SET k v"), "+OK");
    assert!(chain.ask(0, "HELLO 3").starts_with('%'));
    assert_eq!([chain.ask(0, "CLIENT TRACKING ON"), chain.ask(0, "GET k")], ["+OK", "$1\r\nv"]);
    chain.follow_one(0, 1);
    assert_eq!(chain.told_within_ms(5000), ">2\r\n$10\r\ninvalidate\r\n_\r\n");
}

/// What the master's clients may do has its effect, whatever a replica's own may.
#[test]
fn a_lower_limit_of_a_replica_is_none_for_its_master() {
    let mut chain = Chain::new(21, 2);
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(1, "CONFIG SET proto-max-bulk-len 1mb"), "+OK");
    for (request, reply) in
        [("SETBIT bits 16000000 1", ":0"), ("SETRANGE text 2000000 x", ":2000001"), ("APPEND text y", ":2000002")]
    {
        assert_eq!(chain.ask(0, request), reply, "{request}");
    }
    let syncs = |chain: &mut Chain| {
        let info = chain.ask(0, "INFO stats");
        info.lines().filter(|line| line.starts_with("sync_")).collect::<String>()
    };
    let before = syncs(&mut chain);
    let long = "x".repeat(2_000_003);
    assert_eq!(chain.ask(0, &format!("*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$2000003\r\n{long}")), "+OK");
    chain.settle();
    let lengths = ["bits", "text", "long"].map(|key| chain.ask(1, &format!("STRLEN {key}")));
    assert_eq!(lengths, [":2000001", ":2000002", ":2000003"]);
    assert_eq!(syncs(&mut chain), before, "the link has lasted");
}
