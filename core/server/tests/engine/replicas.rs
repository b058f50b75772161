//! Copies of the data in other engines, over connections whose bytes come in pieces and that are cut.

use crate::bench::Bench;
use kayvee_server::{ClientId, Fate, Peer};
use std::sync::atomic::Ordering;

const OPTIONS: &[&str] = &["--enable-debug-command", "yes", "--repl-backlog-size", "20000"];

/// Both ends of a connection: at the replica, and at its master.
#[derive(Clone, Copy)]
struct Pipe {
    up: ClientId,
    down: ClientId,
}

/// Some stores, each of which but the first copies the one before it.
struct Chain {
    nodes: Vec<Bench>,
    users: Vec<ClientId>,
    pipes: Vec<Option<Pipe>>,
    rng: fastrand::Rng,
    seed: u64,
}

fn peer(at: usize) -> Peer {
    Peer { remote: format!("10.0.0.{at}:5000"), local: format!("10.0.1.{at}:6379"), is_local: true }
}

impl Chain {
    fn new(seed: u64, count: usize) -> Chain {
        let mut nodes: Vec<Bench> = (0..count).map(|at| Bench::seeded(OPTIONS, at as u8 + 1)).collect();
        let users = nodes.iter_mut().map(Bench::connect).collect();
        // A slice of a dump ends as soon as it looks at the clock.
        nodes.iter_mut().for_each(Bench::let_time_pass);
        Chain { nodes, users, pipes: vec![None; count], rng: fastrand::Rng::with_seed(seed), seed }
    }

    fn follow(&mut self) {
        for at in 1..self.nodes.len() {
            let reply = self.ask(at, &format!("REPLICAOF 10.0.0.{} 6379", at - 1));
            assert_eq!(reply, "+OK");
        }
    }

    fn ask(&mut self, at: usize, request: &str) -> String {
        let request = format!("{request}\r\n");
        self.nodes[at].ask(self.users[at], &request).trim_end().into()
    }

    /// Lets all go on for a while, in which some bytes are on their way.
    fn turn(&mut self, ms: u64) {
        for at in 0..self.nodes.len() {
            self.nodes[at].advance_ms(ms);
            let user = self.users[at];
            self.nodes[at].take(user);
            if let Some(dial) = self.nodes[at].engine.next_dial() {
                assert_eq!(dial.host, format!("10.0.0.{}", at - 1));
                self.cut(at);
                let up = self.nodes[at].engine.dialed(&dial, peer(at)).expect("it was asked for");
                let down = self.nodes[at - 1].engine.connect(peer(at)).expect("there is room");
                self.pipes[at] = Some(Pipe { up, down });
            }
            self.carry(at);
        }
    }

    fn carry(&mut self, at: usize) {
        let Some(Pipe { up, down }) = self.pipes[at] else { return };
        let [master, replica] = &mut self.nodes[at - 1..=at] else { unreachable!("two of them") };
        let some = |rng: &mut fastrand::Rng, bytes: &[u8]| {
            let limit = [bytes.len(), bytes.len().min(100), bytes.len().min(20_000)][rng.usize(..3)];
            bytes[..rng.usize(..=limit)].to_vec()
        };
        let bytes = some(&mut self.rng, replica.engine.output(up));
        replica.engine.sent(up, bytes.len());
        master.engine.receive(down, &bytes);
        let bytes = some(&mut self.rng, master.engine.output(down));
        master.engine.sent(down, bytes.len());
        replica.engine.receive(up, &bytes);
        let is_over = |fate: Fate| matches!(fate, Fate::CloseNow | Fate::CloseAfterOutput);
        if is_over(master.engine.fate(down)) || is_over(replica.engine.fate(up)) {
            self.cut(at);
        }
    }

    fn cut(&mut self, at: usize) {
        if let Some(Pipe { up, down }) = self.pipes[at].take() {
            self.nodes[at].engine.disconnect(up);
            self.nodes[at - 1].engine.disconnect(down);
        }
    }

    fn change(&mut self) {
        let (a, b) = (self.rng.u8(..40), self.rng.u8(..40));
        let number = self.rng.u32(..1000);
        let long = "x".repeat(self.rng.usize(..3000));
        let request = match self.rng.u8(..26) {
            0 | 1 => format!("SET k{a} {number}"),
            2 => format!("SET k{a} {long}"),
            3 => format!("INCR n{a}"),
            4 => format!("APPEND k{a} {number}"),
            5 => format!("RPUSH l{a} {number} {long}"),
            6 => format!("LMOVE l{a} l{b} LEFT RIGHT"),
            7 => format!("SADD s{a} {number} m{b}"),
            8 => format!("SPOP s{a}"),
            9 => format!("HINCRBY h{a} f{b} {number}"),
            10 => format!("ZADD z{a} {number} m{b}"),
            11 => format!("ZPOPMIN z{a}"),
            12 => format!("XADD x{a} MAXLEN 50 * f {number}"),
            13 => format!("DEL k{a} l{a} s{b}"),
            14 => format!("RENAME k{a} k{b}"),
            15 => format!("SET e{a} {number} PX {}", 1 + number),
            16 => format!("PEXPIRE h{a} {number}"),
            17 => format!("SELECT {}", a % 3),
            18 => format!("MOVE k{a} {}", b % 3),
            19 if a < 5 => format!("SWAPDB {} {}", a % 3, b % 3),
            20 if a < 2 => "FLUSHDB".into(),
            21 => format!("MULTI\r\nINCR n{a}\r\nRPUSH l{b} {number}\r\nSELECT {}\r\nINCR n{b}\r\nEXEC", a % 3),
            22 => format!("EVAL \"redis.call('incr', 'n{a}') redis.call('sadd', 's{b}', '{number}')\" 0"),
            23 => format!("COPY h{a} h{b} REPLACE"),
            24 => format!("SETRANGE k{a} {number} yz"),
            _ => format!("GETEX e{a} PX {number}"),
        };
        self.ask(0, &request);
    }

    /// Waits until all have the same.
    fn settle(&mut self) {
        for _ in 0..400 {
            (0..100).for_each(|_| self.turn(20));
            let digests: Vec<String> = (0..self.nodes.len()).map(|at| self.ask(at, "DEBUG DIGEST")).collect();
            let is_followed = |info: String| info.contains("state=online");
            let are_up = (1..self.nodes.len()).all(|at| is_followed(self.ask(at - 1, "INFO replication")));
            if are_up && digests.iter().all(|digest| *digest == digests[0]) {
                return;
            }
        }
        for db in 0..3 {
            for kind in ["k", "n", "l", "s", "h", "z", "x", "e"] {
                for number in 0..40 {
                    let digests: Vec<String> = (0..self.nodes.len())
                        .map(|at| {
                            self.ask(at, &format!("SELECT {db}"));
                            self.ask(at, &format!("DEBUG DIGEST-VALUE {kind}{number}"))
                        })
                        .collect();
                    if digests.iter().any(|digest| *digest != digests[0]) {
                        eprintln!("{kind}{number} of database {db} differs: {digests:?}");
                    }
                }
            }
        }
        let infos: Vec<String> = (0..self.nodes.len()).map(|at| self.ask(at, "INFO replication")).collect();
        panic!("seed {}: they do not become the same: {infos:#?}", self.seed);
    }
}

/// However connections are cut, and whatever changes while a dump is written, all copies become the same.
#[test]
fn copies_become_the_same() {
    for seed in 0..8 {
        let mut chain = Chain::new(seed, 3);
        (0..chain.rng.usize(..600)).for_each(|_| chain.change());
        chain.follow();
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

/// A replica that is promoted goes on with the history, so that its own replica needs no dump.
#[test]
fn one_takes_over() {
    let mut chain = Chain::new(1, 3);
    (0..300).for_each(|_| chain.change());
    chain.follow();
    chain.settle();
    let offset = |chain: &mut Chain, at| {
        let info = chain.ask(at, "INFO replication");
        let line = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).expect("there is one");
        line.trim().parse::<u64>().unwrap()
    };
    assert_eq!(offset(&mut chain, 1), offset(&mut chain, 2));
    assert!(chain.ask(1, "SET x 1").starts_with("-READONLY"));
    assert_eq!(chain.ask(1, "REPLICAOF NO ONE"), "+OK");
    chain.cut(1);
    assert_eq!(chain.ask(1, "SET x 1"), "+OK");
    for _ in 0..2000 {
        chain.turn(20);
    }
    assert_eq!(chain.ask(2, "GET x"), "$1\r\n1");
    assert!(chain.ask(1, "INFO stats").contains("sync_full:1\r\n"), "only the first dump");
    assert!(chain.ask(1, "INFO stats").contains("sync_partial_ok:1\r\n"));
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
        assert_eq!(fate_after_50_s(&|bench| bench.engine.sent(replica, 1000)), Fate::Open);
    }
    for _ in 0..3 {
        assert_eq!(fate_after_50_s(&|bench| bench.engine.receive(replica, b"\n")), Fate::Open);
    }
    assert_eq!(fate_after_50_s(&|_| ()), Fate::CloseNow);
}

/// Whoever has waited in vain is not told of replicas that come later.
#[test]
fn a_wait_for_replicas_that_is_over_is_forgotten() {
    let mut bench = Bench::new(&[]);
    let (client, replica) = (bench.connect(), bench.connect());
    assert_eq!(bench.ask(client, "WAIT 1 1\r\n"), "");
    bench.advance_ms(2);
    assert_eq!(bench.take_text(client), ":0\r\n");
    assert_eq!(bench.ask(client, "BLPOP l 0\r\n"), "");
    bench.engine.receive(replica, b"SYNC\r\n");
    bench.take(replica);
    bench.ask(replica, "REPLCONF ACK 1000\r\n");
    assert_eq!(bench.take_text(client), "");
}

/// WAIT is answered when replicas have said that they have what was written, or when its time is over.
#[test]
fn waiting_for_replicas() {
    let mut chain = Chain::new(2, 2);
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(0, "WAIT 0 0"), ":1");
    assert_eq!(chain.ask(0, "SET a 1"), "+OK");
    assert_eq!(chain.ask(0, "WAIT 1 5000"), "");
    let user = chain.users[0];
    let mut reply = String::new();
    for _ in 0..200 {
        chain.nodes[0].advance_ms(1);
        reply += &chain.nodes[0].take_text(user);
        chain.carry(1);
        let user = chain.users[1];
        chain.nodes[1].advance_ms(1);
        chain.nodes[1].take(user);
        chain.carry(1);
    }
    assert_eq!(reply, ":1\r\n");
    chain.cut(1);
    assert_eq!(chain.ask(0, "INCR a"), ":2");
    assert_eq!(chain.ask(0, "WAIT 1 100"), "");
    chain.nodes[0].advance_ms(101);
    assert_eq!(chain.nodes[0].take_text(user), ":0\r\n");
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
    let limits = ["--maxmemory", "10mb", "--maxmemory-policy", "allkeys-random"];
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
