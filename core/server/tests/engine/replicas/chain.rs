//! Stores that are copies of one another, over connections whose bytes come in pieces.

use crate::{
    bench::Bench,
    disk::Disk,
    made_log::{Folder, State},
};
use kayvee_server::{ClientId, Fate, Peer, ShutdownOn};
use std::rc::Rc;

const OPTIONS: &[&str] = &["--enable-debug-command", "yes", "--repl-backlog-size", "20000"];

/// Those of stores that keep their data, who may be away for a while. They save a dump file at the end if they have no disk.
const KEEPING: &[&str] = &["--enable-debug-command", "yes", "--repl-backlog-size", "1mb", "--save", "1000 1000000"];

/// Both ends of a connection: at the replica, and at its master, which is this one.
#[derive(Clone, Copy)]
struct Pipe {
    up: ClientId,
    down: ClientId,
    master: usize,
}

/// Some stores, each of which but the first copies the one before it, or the first one.
pub struct Chain {
    pub nodes: Vec<Bench>,
    pub users: Vec<ClientId>,
    pipes: Vec<Option<Pipe>>,
    pub disks: Vec<Option<Disk>>,
    /// Where those that have dump files have them.
    folders: Vec<Option<Rc<State>>>,
    /// How often one was started again.
    starts: u8,
    /// What the first one's user is told beside its own requests.
    told: String,
    pub rng: fastrand::Rng,
    seed: u64,
}

/// How a store ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    InOrder,
    /// With what is on its disk by chance, or in the last file that it has written.
    Killed,
}

/// A store with the files of a folder.
fn with_folder(options: &[&str], seed: u8, folder: &Rc<State>) -> Bench {
    Bench::with(options, seed, Box::leak(Box::new(Folder(Rc::clone(folder)))))
}

pub fn peer(at: usize) -> Peer {
    Peer { remote: format!("10.0.0.{at}:5000"), local: format!("10.0.1.{at}:6379"), is_local: true }
}

impl Chain {
    pub fn new(seed: u64, count: usize) -> Chain {
        Chain::of(seed, (0..count).map(|at| (Bench::seeded(OPTIONS, at as u8 + 1), None)).collect())
    }

    /// Stores that have disks, which none uses before it is told to.
    pub fn with_disks(seed: u64, count: usize) -> Chain {
        let node = |at| {
            let (mut bench, mut disk) = (Bench::seeded(KEEPING, at as u8 + 1), Disk::new(8 << 20));
            bench.engine.open_log(&mut disk).expect("the disk is blank");
            (bench, Some(disk))
        };
        Chain::of(seed, (0..count).map(node).collect())
    }

    /// Stores that save dump files when they end.
    pub fn with_dumps(seed: u64, count: usize) -> Chain {
        let folders: Vec<Rc<State>> = (0..count).map(|_| Rc::default()).collect();
        let node = |(at, folder): (u8, &Rc<State>)| (with_folder(KEEPING, at, folder), None);
        let mut chain = Chain::of(seed, (1..).zip(&folders).map(node).collect());
        chain.folders = folders.into_iter().map(Some).collect();
        chain
    }

    fn of(seed: u64, nodes: Vec<(Bench, Option<Disk>)>) -> Chain {
        let (mut nodes, disks): (Vec<Bench>, Vec<Option<Disk>>) = nodes.into_iter().unzip();
        let folders = vec![None; nodes.len()];
        let users = nodes.iter_mut().map(Bench::connect).collect();
        // A slice of a dump ends as soon as it looks at the clock.
        nodes.iter_mut().for_each(Bench::let_time_pass);
        let pipes = vec![None; nodes.len()];
        let rng = fastrand::Rng::with_seed(seed);
        Chain { nodes, users, pipes, disks, folders, starts: 0, told: String::new(), rng, seed }
    }

    /// Ends a store, and some seconds later starts it again with what is on its disk or in its folder, as the replica of
    /// whom it was one of.
    pub fn restart(&mut self, at: usize, end: End) {
        let master = self.pipes[at].map(|pipe| pipe.master).or(at.checked_sub(1));
        if end == End::InOrder {
            self.nodes[at].engine.request_shutdown(ShutdownOn { now: true, ..ShutdownOn::default() });
            while self.nodes[at].engine.shutdown().is_none() {
                self.turn(5);
            }
            // What is left of its output is sent.
            (0..100).for_each(|_| (0..self.nodes.len()).for_each(|replica| self.carry(replica)));
        }
        for one in 0..self.nodes.len() {
            if one == at || self.pipes[one].is_some_and(|pipe| pipe.master == at) {
                self.cut(one);
            }
        }
        self.nodes.iter_mut().for_each(|node| node.advance_ms(4000));
        self.starts += 1;
        let seed = 100 + self.starts;
        let place = master.map(|master| format!("10.0.0.{master} 6379"));
        let follows: Vec<&str> = place.iter().flat_map(|place| ["--replicaof", place]).collect();
        let mut bench = match &self.folders[at] {
            Some(folder) => with_folder(&[KEEPING, &follows].concat(), seed, folder),
            None => Bench::seeded(&[KEEPING, &["--appendonly", "yes"], &follows].concat(), seed),
        };
        let passed_ns = self.nodes[at].now.monotonic_ns - bench.now.monotonic_ns;
        bench.advance_ms(passed_ns / 1_000_000);
        bench.let_time_pass();
        match &mut self.disks[at] {
            Some(disk) => {
                *disk = disk.copy();
                bench.engine.open_log(disk).expect("it is sound");
            }
            None => bench.engine.load_at_start().expect("it is sound"),
        }
        bench.advance_ms(0);
        self.users[at] = bench.connect();
        self.nodes[at] = bench;
    }

    pub fn start_log(&mut self, at: usize) {
        assert_eq!(self.ask(at, "CONFIG SET appendonly yes appendfsync everysec"), "+OK");
    }

    pub fn follow(&mut self) {
        (1..self.nodes.len()).for_each(|at| self.follow_one(at, at - 1));
    }

    pub fn follow_one(&mut self, at: usize, master: usize) {
        assert_eq!(self.ask(at, &format!("REPLICAOF 10.0.0.{master} 6379")), "+OK");
    }

    pub fn ask(&mut self, at: usize, request: &str) -> String {
        let request = format!("{request}\r\n");
        self.nodes[at].ask(self.users[at], &request).trim_end().into()
    }

    /// Lets all go on for a while, in which some bytes are on their way.
    pub fn turn(&mut self, ms: u64) {
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

    pub fn carry(&mut self, at: usize) {
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

    pub fn cut(&mut self, at: usize) {
        if let Some(Pipe { up, down, master }) = self.pipes[at].take() {
            self.nodes[at].engine.disconnect(up);
            self.nodes[master].engine.disconnect(down);
        }
    }

    pub fn change(&mut self) {
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
    pub fn told_within_ms(&mut self, ms: u64) -> String {
        self.told.clear();
        (0..ms / 10).for_each(|_| self.turn(10));
        core::mem::take(&mut self.told)
    }

    /// Waits until all have the same.
    pub fn settle(&mut self) {
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
