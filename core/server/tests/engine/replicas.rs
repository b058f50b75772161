//! Copies of the data in other engines, over connections whose bytes come in pieces and that are cut.

use crate::{bench::Bench, disk::Disk};
use kayvee_server::{ClientId, Fate, Peer, ShutdownOn};
use std::sync::atomic::Ordering;

const OPTIONS: &[&str] = &["--enable-debug-command", "yes", "--repl-backlog-size", "20000"];

/// Both ends of a connection: at the replica, and at its master, which is this one.
#[derive(Clone, Copy)]
struct Pipe {
    up: ClientId,
    down: ClientId,
    master: usize,
}

/// Some stores, each of which but the first copies the one before it, or the first one.
struct Chain {
    nodes: Vec<Bench>,
    users: Vec<ClientId>,
    pipes: Vec<Option<Pipe>>,
    disks: Vec<Option<Disk>>,
    /// What the first one's user is told beside its own requests.
    told: String,
    rng: fastrand::Rng,
    seed: u64,
}

fn peer(at: usize) -> Peer {
    Peer { remote: format!("10.0.0.{at}:5000"), local: format!("10.0.1.{at}:6379"), is_local: true }
}

impl Chain {
    fn new(seed: u64, count: usize) -> Chain {
        Chain::of(seed, (0..count).map(|at| (Bench::seeded(OPTIONS, at as u8 + 1), None)).collect())
    }

    /// Stores that have disks, which none uses before it is told to.
    fn with_disks(seed: u64, count: usize) -> Chain {
        let node = |at| {
            let (mut bench, mut disk) = (Bench::seeded(OPTIONS, at as u8 + 1), Disk::new(8 << 20));
            bench.engine.open_log(&mut disk).expect("the disk is blank");
            (bench, Some(disk))
        };
        Chain::of(seed, (0..count).map(node).collect())
    }

    fn of(seed: u64, nodes: Vec<(Bench, Option<Disk>)>) -> Chain {
        let (mut nodes, disks): (Vec<Bench>, Vec<Option<Disk>>) = nodes.into_iter().unzip();
        let users = nodes.iter_mut().map(Bench::connect).collect();
        // A slice of a dump ends as soon as it looks at the clock.
        nodes.iter_mut().for_each(Bench::let_time_pass);
        let pipes = vec![None; nodes.len()];
        Chain { nodes, users, pipes, disks, told: String::new(), rng: fastrand::Rng::with_seed(seed), seed }
    }

    fn start_log(&mut self, at: usize) {
        assert_eq!(self.ask(at, "CONFIG SET appendonly yes appendfsync everysec"), "+OK");
    }

    fn follow(&mut self) {
        (1..self.nodes.len()).for_each(|at| self.follow_one(at, at - 1));
    }

    fn follow_one(&mut self, at: usize, master: usize) {
        assert_eq!(self.ask(at, &format!("REPLICAOF 10.0.0.{master} 6379")), "+OK");
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
            let told = self.nodes[at].take_text(user);
            self.told += if at == 0 { &told } else { "" };
            if let Some(disk) = &mut self.disks[at] {
                self.nodes[at].engine.drive_log(disk);
            }
            if let Some(dial) = self.nodes[at].engine.next_dial() {
                let master = dial.host.strip_prefix("10.0.0.").and_then(|at| at.parse::<usize>().ok());
                let master = master.expect("it is one of these");
                self.cut(at);
                let up = self.nodes[at].engine.dialed(&dial, peer(at)).expect("it was asked for");
                let down = self.nodes[master].engine.connect(peer(at)).expect("there is room");
                self.pipes[at] = Some(Pipe { up, down, master });
            }
            self.carry(at);
        }
    }

    fn carry(&mut self, at: usize) {
        let Some(Pipe { up, down, master }) = self.pipes[at] else { return };
        let [master, replica] = self.nodes.get_disjoint_mut([master, at]).expect("two of them");
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
        if let Some(Pipe { up, down, master }) = self.pipes[at].take() {
            self.nodes[at].engine.disconnect(up);
            self.nodes[master].engine.disconnect(down);
        }
    }

    fn change(&mut self) {
        let (a, b) = (self.rng.u8(..40), self.rng.u8(..40));
        let number = self.rng.u32(..1000);
        let long = "x".repeat(self.rng.usize(..3000));
        let request = match self.rng.u8(..33) {
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
            25 => format!("GETEX e{a} PX {number}"),
            26 | 27 => format!("HSET h{a} f{b} {number} f{} {number}", b + 1),
            28 | 29 => format!("HPEXPIRE h{a} {number} FIELDS 3 f{b} f{} f{}", b + 1, b + 2),
            30 => format!("HEXPIRE h{a} {} GT FIELDS 1 f{b}", number % 3),
            31 => format!("HPERSIST h{a} FIELDS 2 f{b} f{}", b + 1),
            _ => format!("HINCRBYFLOAT h{a} f{b} 0.5"),
        };
        self.ask(0, &request);
    }

    /// What the first one's user is told within this time.
    fn told_within_ms(&mut self, ms: u64) -> String {
        self.told.clear();
        (0..ms / 10).for_each(|_| self.turn(10));
        core::mem::take(&mut self.told)
    }

    /// Waits until all have the same.
    fn settle(&mut self) {
        for _ in 0..400 {
            (0..100).for_each(|_| self.turn(20));
            let digests: Vec<String> = (0..self.nodes.len()).map(|at| self.ask(at, "DEBUG DIGEST")).collect();
            let is_up = |info: String| info.contains("master_link_status:up");
            let are_up = (1..self.nodes.len()).all(|at| is_up(self.ask(at, "INFO replication")));
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

/// WAITAOF counts replicas by what they have on their disks, which they tell when it is there.
#[test]
fn waiting_for_disks_of_replicas() {
    let mut chain = Chain::with_disks(3, 2);
    chain.start_log(0);
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(0, "SET a 1"), "+OK");
    assert_eq!(chain.ask(0, "WAITAOF 0 1 2000"), "");
    assert_eq!(chain.told_within_ms(2010), "*2\r\n:1\r\n:0\r\n", "the replica has no disk");
    chain.start_log(1);
    (0..300).for_each(|_| chain.turn(20));
    assert_eq!(chain.ask(0, "WAITAOF 1 1 0"), "*2\r\n:1\r\n:1", "all is on both disks by now");
    assert_eq!(chain.ask(0, "SET a 2"), "+OK");
    assert_eq!(chain.ask(0, "WAITAOF 1 1 0"), "");
    assert_eq!(chain.told_within_ms(2500), "*2\r\n:1\r\n:1\r\n");
    // A disk that does nothing has nothing.
    chain.disks[1].as_mut().expect("it has one").budget = 0;
    assert_eq!(chain.ask(0, "SET a 3"), "+OK");
    assert_eq!(chain.ask(0, "WAITAOF 1 1 3000"), "");
    assert_eq!(chain.told_within_ms(2990), "");
    assert_eq!(chain.told_within_ms(20), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(chain.ask(0, "WAITAOF 0 1 0"), "");
    assert_eq!(chain.told_within_ms(1000), "");
    chain.disks[1].as_mut().expect("it has one").budget = usize::MAX;
    assert_eq!(chain.told_within_ms(100), "*2\r\n:1\r\n:1\r\n", "it is told as soon as it is there");
    // Whoever waits for a log that is no more is told.
    chain.disks[0].as_mut().expect("it has one").budget = 0;
    assert_eq!(chain.ask(0, "SET a 4"), "+OK");
    assert_eq!(chain.ask(0, "WAITAOF 1 0 0"), "");
    let other = chain.nodes[0].connect();
    assert_eq!(chain.nodes[0].ask(other, "CONFIG SET appendonly no\r\n"), "+OK\r\n");
    let why = "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";
    assert_eq!(chain.told_within_ms(10), why);
    assert!(chain.ask(1, "WAITAOF 0 0 0").starts_with("-ERR WAITAOF cannot be used with replica instances."));
}

/// A replica and its master change places, and nobody needs a dump for it.
#[test]
fn a_failover() {
    let mut chain = Chain::new(4, 3);
    (0..300).for_each(|_| chain.change());
    chain.follow();
    chain.settle();
    (0..3).for_each(|at| assert_eq!(chain.ask(at, "SELECT 0"), "+OK"));
    let state = |chain: &mut Chain| {
        let info = chain.ask(0, "INFO replication");
        let line = info.lines().find_map(|line| line.strip_prefix("master_failover_state:")).expect("there is one");
        line.to_string()
    };
    assert_eq!(chain.ask(0, "FAILOVER TO 10.0.0.9 6379"), "-ERR FAILOVER target HOST and PORT is not a replica.");
    assert_eq!(
        chain.ask(0, "FAILOVER TO 10.0.0.1 6379 FORCE"),
        "-ERR FAILOVER with force option requires both a timeout and target HOST and IP."
    );
    assert_eq!(chain.ask(1, "FAILOVER"), "-ERR FAILOVER is not valid when server is a replica.");
    // One that is given up: writers wait until then.
    let writer = chain.nodes[0].connect();
    assert_eq!(chain.ask(0, "INCR before"), ":1");
    assert_eq!(chain.ask(0, "FAILOVER TIMEOUT 100"), "+OK");
    assert_eq!(state(&mut chain), "waiting-for-sync");
    assert_eq!(chain.ask(0, "FAILOVER"), "-ERR FAILOVER already in progress.");
    assert_eq!(chain.ask(0, "REPLICAOF NO ONE"), "-ERR REPLICAOF not allowed while failing over.");
    assert_eq!(chain.nodes[0].ask(writer, "INCR n\r\n"), "");
    assert_eq!(chain.ask(0, "GET before"), "$1\r\n1");
    chain.nodes[0].advance_ms(101);
    assert_eq!(chain.nodes[0].take_text(writer), ":1\r\n");
    assert_eq!(state(&mut chain), "no-failover");
    assert_eq!(chain.ask(0, "FAILOVER"), "+OK");
    assert_eq!(chain.ask(0, "FAILOVER ABORT"), "+OK");
    assert_eq!(chain.ask(0, "FAILOVER ABORT"), "-ERR No failover in progress.");
    // One that succeeds. Who wrote meanwhile learns that this is a replica now.
    assert_eq!(chain.ask(0, "FAILOVER TO 10.0.0.1 6379 TIMEOUT 60000"), "+OK");
    assert_eq!(chain.nodes[0].ask(writer, "INCR n\r\n"), "");
    (0..300).for_each(|_| chain.turn(20));
    assert_eq!(state(&mut chain), "no-failover");
    assert_eq!(chain.nodes[0].take_text(writer), "-READONLY You can't write against a read only replica.\r\n");
    assert_eq!(chain.ask(1, "INCR n"), ":2");
    (0..300).for_each(|_| chain.turn(20));
    for at in [0, 2] {
        assert_eq!(chain.ask(at, "GET n"), "$1\r\n2");
        assert!(chain.ask(at, "INFO replication").contains("master_host:10.0.0.1\r\n"));
    }
    let stats = chain.ask(1, "INFO stats");
    assert!(stats.contains("sync_full:1\r\n"), "its own replica's first dump only: {stats}");
    // And back, though the replica that is to be the master has not got everything.
    assert_eq!(chain.ask(1, "FAILOVER TO 10.0.0.0 6379 FORCE TIMEOUT 1"), "+OK");
    (0..300).for_each(|_| chain.turn(20));
    assert!(chain.ask(1, "INFO replication").contains("master_host:10.0.0.0\r\n"));
    assert_eq!(chain.ask(0, "INCR n"), ":3");
    (0..300).for_each(|_| chain.turn(20));
    assert_eq!(chain.ask(2, "GET n"), "$1\r\n3");
}

/// One that is no replica of this data refuses to be the master: the old one stays it.
#[test]
fn a_failover_that_is_refused() {
    let mut chain = Chain::new(5, 2);
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(0, "FAILOVER TO 10.0.0.1 6379 FORCE TIMEOUT 1"), "+OK");
    // It is the master of its own before it is asked.
    assert_eq!(chain.ask(1, "REPLICAOF NO ONE"), "+OK");
    (0..300).for_each(|_| chain.turn(20));
    assert!(chain.ask(0, "INFO replication").contains("master_failover_state:no-failover"));
    assert_eq!(chain.ask(0, "INCR n"), ":1");
}

/// The end waits for a replica that lags, and meanwhile nobody writes. It may be given up.
#[test]
fn an_end_waits_for_replicas() {
    let mut chain = Chain::new(6, 2);
    chain.follow();
    chain.settle();
    let (first, writer) = (chain.nodes[0].connect(), chain.nodes[0].connect());
    let waits = |chain: &mut Chain| chain.ask(0, "INFO server").contains("\r\nshutdown_in_milliseconds:");
    assert_eq!(chain.ask(0, "SHUTDOWN ABORT"), "-ERR No shutdown in progress.");
    assert_eq!(chain.ask(0, "CONFIG SET save \"\" shutdown-timeout 2"), "+OK");
    // What is given up ends as if nothing had been asked for.
    assert_eq!(chain.ask(0, "INCR n"), ":1");
    assert_eq!(chain.nodes[0].ask(first, "SHUTDOWN\r\nPING\r\n"), "");
    assert!(waits(&mut chain));
    assert_eq!(chain.nodes[0].ask(writer, "INCR n\r\n"), "");
    assert_eq!(chain.ask(0, "GET n"), "$1\r\n1");
    assert!(chain.ask(0, "INFO clients").contains("blocked_clients:2\r\n"));
    assert_eq!(chain.ask(0, "SHUTDOWN ABORT"), "+OK");
    assert_eq!(chain.nodes[0].take_text(first), "-ERR Errors trying to SHUTDOWN. Check logs.\r\n+PONG\r\n");
    assert_eq!(chain.nodes[0].take_text(writer), ":2\r\n");
    assert!(!waits(&mut chain) && chain.nodes[0].engine.shutdown().is_none());
    // Where saving fails that is known when replicas have what they lack.
    assert_eq!(chain.nodes[0].ask(first, "SHUTDOWN SAVE\r\n"), "");
    assert_eq!(chain.nodes[0].ask(writer, "INCR n\r\n"), "");
    while waits(&mut chain) {
        chain.turn(20);
    }
    assert_eq!(chain.nodes[0].take_text(first), "-ERR Errors trying to SHUTDOWN. Check logs.\r\n");
    assert_eq!(chain.nodes[0].take_text(writer), ":3\r\n");
    // With one that keeps up it ends once that has everything.
    chain.nodes[0].engine.request_shutdown(ShutdownOn::default());
    assert!(waits(&mut chain));
    while chain.nodes[0].engine.shutdown().is_none() {
        chain.turn(20);
    }
    assert_eq!(chain.ask(1, "GET n"), "$1\r\n3");
    let ended_ms = |chain: &mut Chain| {
        let began_ns = chain.nodes[0].now.monotonic_ns;
        while chain.nodes[0].engine.shutdown().is_none() {
            chain.nodes[0].advance_ms(10);
            chain.nodes[0].take(first);
        }
        (chain.nodes[0].now.monotonic_ns - began_ns) / 1_000_000
    };
    // One that says nothing is waited for as long as was set, and not at all by who does not want to.
    assert_eq!(chain.ask(0, "SHUTDOWN ABORT"), "+OK");
    assert_eq!(chain.ask(0, "INCR n"), ":4");
    assert_eq!(chain.nodes[0].ask(first, "SHUTDOWN\r\n"), "");
    assert_eq!(ended_ms(&mut chain), 2000);
    assert_eq!(chain.ask(0, "SHUTDOWN ABORT"), "+OK");
    chain.nodes[0].engine.request_shutdown(ShutdownOn { now: true, ..ShutdownOn::default() });
    assert_eq!(ended_ms(&mut chain), 0);
    // What a replica lacks it gets from its master, whoever it is the master of.
    let mut chain = Chain::new(7, 3);
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(0, "INCR n"), ":1");
    while chain.ask(1, "GET n") != "$1\r\n1" {
        chain.ask(0, "PING");
        chain.carry(1);
    }
    chain.nodes[1].engine.request_shutdown(ShutdownOn::default());
    assert!(chain.nodes[1].engine.shutdown().is_some());
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

/// A replica hides a key whose time has come already when its master gives it that time, and keeps it until the master says
/// that it goes, or that it stays.
#[test]
fn keys_of_a_replica_go_when_the_master_says_so() {
    let (mut bench, user, link) = replica_of_a_stranger();
    let greeting = format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n");
    bench.engine.receive(link, greeting.as_bytes());
    assert!(bench.ask(user, "INFO replication\r\n").contains("master_link_status:up"));
    bench.ask(user, "CONFIG SET replica-read-only no\r\n");
    for given in ["SET k v\r\nPEXPIREAT k 1000", "SET k v\r\nEXPIREAT k -5", "SET k v\r\nGETEX k PXAT 1000"] {
        for (by, is_master) in [(link, true), (user, false)] {
            bench.ask(by, &format!("{given}\r\n"));
            assert_eq!(bench.ask(user, "GET k\r\nDBSIZE\r\n"), "$-1\r\n:1\r\n", "{given}, by the master: {is_master}");
            bench.ask(link, "PERSIST k\r\n");
            assert_eq!(bench.ask(user, "GET k\r\n"), "$1\r\nv\r\n", "{given}, by the master: {is_master}");
            bench.ask(link, &format!("{given}\r\nDEL k\r\n"));
            assert_eq!(bench.ask(user, "DBSIZE\r\n"), ":0\r\n");
        }
    }
    bench.ask(link, "SET k v\r\n");
    bench.engine.receive(user, b"DUMP k\r\n");
    let dump = bench.take(user);
    bench.engine.receive(link, b"DEL k\r\n*5\r\n$7\r\nRESTORE\r\n$1\r\nk\r\n$4\r\n1000\r\n");
    bench.engine.receive(link, &[&dump[..], b"$6\r\nABSTTL\r\n"].concat());
    assert_eq!(bench.ask(user, "GET k\r\nDBSIZE\r\n"), "$-1\r\n:1\r\n");
}

/// What a replica's log says is the same without the master: of keys whose time is over, too, which the master has kept, or
/// a client of a writable replica has found missing.
#[test]
fn the_log_of_a_replica_says_what_the_master_has_kept() {
    for (said, then) in [
        ("SET k v\r\nPEXPIREAT k 1000\r\nPERSIST k", "v"),
        ("SET k v\r\nEXPIREAT k -5\r\nPERSIST k", "v"),
        ("SET k v PXAT 1000\r\nSET k w XX KEEPTTL\r\nEXPIREAT k 4000000000", "w"),
        ("SET k v PXAT 1000\r\nMULTI\r\nGETEX k PXAT 2000\r\nAPPEND k w\r\nEXEC\r\nPERSIST k", "vw"),
        ("SET k 1\r\nGETEX k PXAT 1000\r\nINCR k\r\nPERSIST k", "2"),
        ("SET o v PXAT 1000\r\nRENAME o k\r\nCOPY k o\r\nPERSIST k", "v"),
        (
            "HSET h f v\r\nHPEXPIREAT h 1000 FIELDS 1 f\r\nHPERSIST h FIELDS 1 f\r\nEVAL \"return redis.call('set', 'k', 'v')\" 0",
            "v",
        ),
        ("SET k v PXAT 1000\r\nDEL k\r\nSET k w NX", "w"),
        ("SET k v PXAT 1000;SET k w NX;STRLEN k", "w"),
        ("SET k v PXAT 1000;SETRANGE o 0 x\r\nBITOP OR o k;PERSIST k", "v"),
        ("SET k v PXAT 1000;DEL k;SET k w NX", "w"),
    ] {
        let options = ["--enable-debug-command", "yes", "--appendonly", "yes"];
        let (mut bench, mut disk) = (Bench::new(&options), Disk::new(8 << 20));
        bench.engine.open_log(&mut disk).expect("the disk is blank");
        let (user, link) = follow_a_stranger(&mut bench);
        bench.ask(user, "CONFIG SET replica-read-only no\r\n");
        bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
        // What the master and a client say in turns.
        for (at, said) in said.split(';').enumerate() {
            bench.ask([link, user][at % 2], &format!("{said}\r\n"));
        }
        for _ in 0..100 {
            bench.advance_ms(20);
            bench.engine.drive_log(&mut disk);
        }
        let digest = |bench: &mut Bench| {
            let user = bench.connect();
            bench.ask(user, "GET k\r\nDEBUG DIGEST\r\nHGETALL h\r\n")
        };
        let whole = digest(&mut bench);
        let mut again = Bench::new(&options);
        again.engine.open_log(&mut disk.copy()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(digest(&mut again), whole, "{said}");
        assert!(whole.contains(&format!("\r\n{then}\r\n")), "{said}: {whole}");
    }
}

const HISTORY: &str = "0123456789012345678901234567890123456789";

/// A replica, its user, and its connection to a master that the test speaks for.
fn replica_of_a_stranger() -> (Bench, ClientId, ClientId) {
    let mut bench = Bench::new(&["--enable-debug-command", "yes"]);
    let (user, link) = follow_a_stranger(&mut bench);
    (bench, user, link)
}

fn follow_a_stranger(bench: &mut Bench) -> (ClientId, ClientId) {
    let user = bench.connect();
    bench.ask(user, "REPLICAOF 10.0.0.1 6379\r\n");
    let dial = bench.engine.next_dial().expect("it has a master");
    let link = bench.engine.dialed(&dial, peer(1)).expect("it was asked for");
    (user, link)
}

/// Whatever a master answers, clients are served, and the connection is given up or goes on.
#[test]
fn a_master_that_answers_anything() {
    const PIECES: &[&[u8]] = &[
        b"+PONG\r\n",
        b"+OK\r\n",
        b"\n",
        b" \r\n",
        b"-ERR x\r\n",
        b"+FULLRESYNC ",
        HISTORY.as_bytes(),
        b" ",
        b"18446744073709551615",
        b"4611686018427387903",
        b"-1",
        b"\r\n",
        b"$EOF:",
        b"$18446744073709551615\r\n",
        b"$0\r\n",
        b"$-1\r\n",
        b"$10\r\n",
        b"REDIS0011",
        b"\xfe\x00",
        b"\xfe\x0f",
        b"\xfb\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00",
        b"\x00\x01k\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xff",
        b"\x00\x01k\x01v",
        b"+CONTINUE\r\n",
        b"+CONTINUE ",
        b"*1\r\n$4\r\nPING\r\n",
        b"\xfa\x0erepl-stream-db\x0299",
        b"*3\r\n$3\r\nSET\r\n",
        b"\xf5\x05hello",
    ];
    let greeting = ["+PONG", "+OK", "+OK", &format!("+FULLRESYNC {HISTORY} 5"), &format!("$EOF:{HISTORY}")];
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut bench, user, link) = replica_of_a_stranger();
        for line in &greeting[..rng.usize(..=greeting.len())] {
            bench.engine.receive(link, format!("{line}\r\n").as_bytes());
        }
        for _ in 0..rng.usize(1..12) {
            bench.engine.receive(link, PIECES[rng.usize(..PIECES.len())]);
            bench.take(link);
        }
        bench.advance_ms(1100);
        bench.take(user);
        let loads = bench.ask(user, "INFO persistence\r\n").contains("loading:1");
        let expected = if loads { "-LOADING Redis is loading the dataset in memory\r\n" } else { "+PONG\r\n" };
        assert_eq!(bench.ask(user, "PING\r\n"), expected, "seed {seed}");
        bench.engine.disconnect(link);
        assert_eq!(bench.ask(user, "REPLICAOF NO ONE\r\nSET k v\r\n"), "+OK\r\n+OK\r\n", "seed {seed}");
    }
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

/// A master says by empty lines that it is alive: many take no longer than few.
#[test]
fn lines_of_a_master_that_say_nothing() {
    let (mut bench, _, link) = replica_of_a_stranger();
    bench.engine.receive(link, &b" \r\n".repeat(1 << 20));
    bench.engine.receive(link, b"+PONG\r\n\n\n+OK\r\n\r\n+OK\r\n");
    assert!(String::from_utf8(bench.take(link)).unwrap().ends_with("PSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"));
}

/// What a master has no business to send, and what it may: requests by words, and bytes that are none. `DEBUG PANIC` and `DEBUG
/// SLEEP` are not among them: they do what they are for wherever the operator lets anybody use DEBUG.
const REQUESTS: &str = "\
PING|SET k v|SET k v PXAT 1|INCR n|APPEND n x|LPUSH l a b c|HSET h f v|SADD s a b|ZADD z 1 m|XADD x * f v|DEL k l|GET k|\
SELECT 999|SELECT -1|SELECT 1|SELECT|MOVE k 99|SWAPDB 0 99|COPY k k2 DB 99|FLUSHALL|\
MULTI|MULTI|MULTI|EXEC|EXEC|DISCARD|WATCH k|UNWATCH|MULTI now|NOSUCH a b c|SET k|SET|GETSET|\
BLPOP none 0|BLMOVE none l LEFT LEFT 0|BZPOPMIN none 0|XREAD BLOCK 0 STREAMS none $|WAIT 5 0|WAITAOF 1 1 0|\
SUBSCRIBE c|PSUBSCRIBE *|SSUBSCRIBE c|UNSUBSCRIBE|PUBLISH c m|MONITOR|HELLO 3|HELLO 2|HELLO 9|RESET|QUIT|AUTH a b|\
CLIENT REPLY ON|CLIENT REPLY SKIP|CLIENT TRACKING ON BCAST|CLIENT NO-EVICT ON|CLIENT SETNAME m|CLIENT LIST|CLIENT INFO|\
CLIENT KILL TYPE master|CLIENT KILL TYPE normal|CLIENT KILL TYPE replica|CLIENT PAUSE 5|CLIENT UNPAUSE|CLIENT UNBLOCK 1|\
REPLICAOF NO ONE|REPLICAOF 10.0.0.7 1|REPLICAOF 10.0.0.1 6379|FAILOVER|FAILOVER ABORT|ROLE|\
PSYNC ? -1|PSYNC ? -1 FAILOVER|SYNC|REPLCONF GETACK *|REPLCONF ACK -5|REPLCONF ACK 99999999|REPLCONF capa eof|REPLCONF x|\
SHUTDOWN|SHUTDOWN NOSAVE|SHUTDOWN NOW FORCE|SHUTDOWN ABORT|SAVE|BGSAVE|BGREWRITEAOF|LASTSAVE|INFO|DEBUG JMAP|DEBUG CHANGE-REPL-ID|DEBUG RELOAD|DEBUG LOADAOF|DEBUG POPULATE 9|\
RESTORE k 0 x|RESTORE k 0 x REPLACE ABSTTL|DUMP k|MIGRATE 10.0.0.8 1 k 0 100|OBJECT FREQ k|MEMORY USAGE k|\
EVAL return(redis.call('SET','k','v')) 0|EVAL redis.call('SELECT',99) 0|EVAL redis.call('MULTI') 0|EVAL x( 0|FCALL f 0|\
SCRIPT FLUSH|SCRIPT KILL|FUNCTION DELETE x|FUNCTION RESTORE x|SORT l STORE k|SETRANGE k 99999999999 x|SETBIT k 100000 1|\
LPOP l 99999999999|SRANDMEMBER s -9223372036854775808|EXPIRE k -1|PEXPIREAT k 1|GETEX h PXAT 1|HPEXPIREAT h 1 FIELDS 1 f|\
CONFIG SET repl-backlog-size 1|CONFIG SET maxmemory 1|CONFIG SET maxmemory 0|CONFIG SET databases 1|CLUSTER SLOTS|LATENCY DOCTOR";
const BYTES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\0",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2147483647\r\n",
    b"*2147483648\r\n",
    b"*99999999999999999999\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n",
    b"*2\r\n$-1\r\n",
    b"*1\r\n*1\r\n*1\r\n",
    b"$5\r\nhello\r\n",
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":5\r\n",
    b"\"unbalanced\r\n",
    b"$EOF:",
];

/// Whatever a master sends in place of effects, the store neither fails nor keeps more than that takes, serves its clients, and
/// can be made to do without that master.
#[test]
fn a_master_that_sends_anything() {
    let requests: Vec<&str> = REQUESTS.split('|').collect();
    let mut still_masters = 0;
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut bench, user, link) = replica_of_a_stranger();
        bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
        let mut stream = Vec::new();
        for _ in 0..rng.usize(1..40) {
            match rng.u8(..20) {
                0 => stream.extend_from_slice(BYTES[rng.usize(..BYTES.len())]),
                1 => stream.extend_from_slice(&vec![rng.u8(..); rng.usize(..100_000)]),
                2..10 => stream.extend([requests[rng.usize(..requests.len())], "\r\n"].concat().bytes()),
                _ => {
                    let words: Vec<&str> = requests[rng.usize(..requests.len())].split(' ').collect();
                    stream.extend(format!("*{}\r\n", words.len()).bytes());
                    words.iter().for_each(|word| stream.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
                }
            }
        }
        let mut rest = &stream[..];
        while !rest.is_empty() && bench.engine.fate(link) == Fate::Open {
            let (piece, behind) = rest.split_at(rng.usize(1..=rest.len()));
            bench.engine.receive(link, piece);
            let sent = bench.take(link);
            // It may follow its own replica, and gets no more back than it sends.
            assert!(sent.len() < stream.len() + (64 << 10), "seed {seed}: {} bytes are sent to it", sent.len());
            bench.advance_ms(rng.u64(..300));
            rest = behind;
        }
        // Until each of the pauses that it has asked for is over.
        for _ in 0..40 {
            bench.advance_ms(30);
            bench.take(user);
        }
        let kept = |list: String| {
            let of_master = list.lines().find(|line| line.contains(" flags=M"))?;
            of_master.split(" tot-mem=").nth(1)?.split(' ').next()?.parse::<usize>().ok()
        };
        assert!(bench.engine.shutdown().is_none(), "seed {seed}: it ends");
        let late = bench.connect();
        assert_eq!(bench.ask(late, "PING\r\n"), "+PONG\r\n", "seed {seed}");
        let kept = kept(bench.ask(late, "CLIENT LIST\r\n"));
        still_masters += u32::from(kept.is_some());
        let kept = kept.unwrap_or(0);
        assert!(kept < 4 * stream.len() + (64 << 10), "seed {seed}: {kept} of {} bytes", stream.len());
        assert_eq!(bench.ask(late, "REPLICAOF NO ONE\r\n"), "+OK\r\n", "seed {seed}");
        assert_ne!(bench.engine.fate(link), Fate::Open, "seed {seed}");
        bench.engine.disconnect(link);
        // It may have asked for that, once it was a replica.
        bench.ask(late, "FAILOVER ABORT\r\n");
        assert_eq!(bench.ask(late, "CONFIG SET maxmemory 0\r\nSET k v\r\n"), "+OK\r\n+OK\r\n", "seed {seed}");
    }
    assert!(still_masters > 50, "most are given up for nonsense, not all");
}

/// A master that does not read gets nothing that it could leave unread: no replies, whatever it asks for.
#[test]
fn a_master_gets_no_replies() {
    let (mut bench, user, link) = replica_of_a_stranger();
    bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
    bench.take(link);
    assert_eq!(bench.ask(link, "CLIENT REPLY ON\r\nRESET\r\nCLIENT REPLY SKIP\r\nPING\r\nINFO\r\nNOSUCH\r\n"), "");
    assert_eq!(bench.ask(link, "SELECT 1\r\nRESET\r\nSET k v\r\n"), "");
    assert_eq!(bench.ask(user, "SELECT 1\r\nGET k\r\n"), "+OK\r\n$1\r\nv\r\n", "it is no usual client");
}

/// A transfer in which nothing comes any more ends, and so does one that goes on for ever when somebody says so.
#[test]
fn a_master_that_never_comes_to_the_end_of_its_dump() {
    let greeting = format!("+PONG\r\n+OK\r\n+OK\r\n+FULLRESYNC {HISTORY} 5\r\n$EOF:{HISTORY}\r\nREDIS0011");
    const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";
    let pass = |bench: &mut Bench, seconds| {
        for _ in 0..seconds {
            let due_ns = bench.engine.next_deadline_ns().expect("it looks at the time");
            assert!(due_ns <= bench.now.monotonic_ns + 1_000_000_000);
            bench.advance_ms(1000);
            bench.engine.end_turn();
        }
    };
    let (mut bench, user, link) = replica_of_a_stranger();
    bench.engine.receive(link, greeting.as_bytes());
    pass(&mut bench, 59);
    assert_eq!(bench.ask(user, "PING\r\n"), LOADING);
    pass(&mut bench, 3);
    assert_eq!(bench.ask(user, "PING\r\nDBSIZE\r\n"), "+PONG\r\n:0\r\n");
    assert_ne!(bench.engine.fate(link), Fate::Open);
    bench.engine.disconnect(link);
    pass(&mut bench, 1);
    let dial = bench.engine.next_dial().expect("it tries again");
    // Bytes of an endless string, some each minute.
    let link = bench.engine.dialed(&dial, peer(1)).expect("it was asked for");
    bench.engine.receive(link, greeting.as_bytes());
    bench.engine.receive(link, b"\x00\x01k\x80\x10\x00\x00\x00");
    for _ in 0..100 {
        pass(&mut bench, 50);
        bench.engine.receive(link, b"x");
        assert_eq!(bench.ask(user, "PING\r\n"), LOADING);
    }
    assert_eq!(bench.ask(user, "REPLICAOF NO ONE\r\nSET k v\r\nDBSIZE\r\n"), "+OK\r\n+OK\r\n:1\r\n");
    assert_ne!(bench.engine.fate(link), Fate::Open);
}
