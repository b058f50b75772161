//! Disks that are full: writes are refused, reads go on, and what is deleted makes room.

use super::{ALWAYS, Durable, GATHERED};
use crate::{bench::Bench, disk::Disk};
use std::sync::atomic::Ordering;

/// When nothing more fits, writes are refused, reads go on, and what was acknowledged is there. Compaction makes room by
/// itself where there is something to gain.
#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let mut one = Durable::new(ALWAYS, Disk::new(2 << 20));
    let value = "x".repeat(1000);
    // The same keys again and again: the log is compacted by itself and never full.
    for round in 0..5000 {
        assert_eq!(one.ask(&format!("SET key:{} {value}", round % 100)), "+OK", "round {round}");
        one.bench.advance_ms(10);
    }
    let mut keys = 100;
    let refused = loop {
        let reply = one.ask(&format!("SET key:{keys} {value}"));
        if reply != "+OK" {
            break reply;
        }
        keys += 1;
        one.bench.advance_ms(10);
        assert!(keys < 10_000, "the disk is never full");
    };
    assert_eq!(refused, "-MISCONF Errors writing to the AOF file: No space left on device");
    assert_eq!((one.ask("GET key:7"), one.ask("DBSIZE")), (format!("$1000 {value}"), format!(":{keys}")));
    let digest = one.digest();
    let mut two = one.reopened(ALWAYS);
    assert_eq!(two.digest(), digest);
    // A larger disk is used wholly.
    one.disk.bytes.resize(4 << 20, 0);
    let mut three = one.reopened(ALWAYS);
    assert_eq!(three.digest(), digest);
    assert_eq!(three.ask(&format!("SET key:{keys} {value}")), "+OK");
}

/// A compaction that a crash has cut leaves its part on a disk that was almost full: the next one finds no room. Nothing is
/// lost, all can be read, and what is deleted makes room.
#[test]
fn a_disk_that_a_cut_compaction_has_filled_recovers_when_data_are_deleted() {
    const VALUE_BYTES: usize = 900;
    let options = [ALWAYS, &["--auto-aof-rewrite-percentage", "0"]].concat();
    let mut one = Durable::new(&options, Disk::new(4 << 20));
    let value = "x".repeat(VALUE_BYTES);
    let mut keys = 0;
    while one.ask(&format!("SET key:{keys} {value}")) == "+OK" {
        keys += 1;
        one.bench.advance_ms(10);
        assert!(keys < 10_000, "the disk is never full");
    }
    let digest = one.digest();
    // A compaction runs, and the disk takes no more than a part of it.
    one.disk.budget = 9;
    let client = one.client;
    one.send(client, "BGREWRITEAOF");
    (0..20).for_each(|_| one.turn());
    let mut two = one.reopened(&options);
    assert_eq!(two.digest(), digest);
    let full = "-MISCONF Errors writing to the AOF file: No space left on device";
    assert_eq!(two.ask(&format!("SET more {value}")), full);
    // It is not tried for ever: what is left is for what is deleted.
    for _ in 0..20 {
        two.bench.advance_ms(6000);
        (0..200).for_each(|_| two.turn());
    }
    assert_eq!((two.ask("PING"), two.ask(&format!("SET more {value}"))), (full.into(), full.into()));
    assert_eq!(two.ask("GET key:7"), format!("$900 {value}"));
    let mut gone = 0;
    while gone < keys && two.ask(&format!("SET more {value}")) != "+OK" {
        let names: String = (gone..gone + 20).map(|key| format!(" key:{key}")).collect();
        assert_eq!(two.ask(&format!("DEL{names}")), format!(":{}", 20.min(keys - gone)));
        gone += 20;
        two.bench.advance_ms(1000);
    }
    assert!((1..keys).contains(&gone), "{gone} of {keys} keys had to go");
    // It is compacted by itself, and as good as new.
    for _ in 0..20 {
        two.bench.advance_ms(6000);
        (0..200).for_each(|_| two.turn());
    }
    for at in 0..gone - 1 {
        assert_eq!(two.ask(&format!("SET key:{at} {value}")), "+OK", "key {at} of {gone}");
        two.bench.advance_ms(100);
    }
    let digest = two.digest();
    assert_eq!(two.reopened(&options).digest(), digest);
}

/// What takes long to be freed makes room on a full disk when it is.
#[test]
fn a_full_disk_has_room_when_what_was_deleted_is_freed() {
    let mut one = Durable::new(ALWAYS, Disk::new(2 << 20));
    let value = "x".repeat(1000);
    let mut keys = 0;
    while one.ask(&format!("SET key:{keys} {value}")) == "+OK" {
        keys += 1;
        one.bench.heap.used.store(keys * 1000, Ordering::Relaxed);
        one.bench.advance_ms(10);
        assert!(keys < 10_000, "the disk is never full");
    }
    assert_eq!(one.ask("FLUSHALL"), "+OK");
    (0..10).for_each(|_| one.turn());
    one.bench.heap.used.store(0, Ordering::Relaxed);
    for _ in 0..100 {
        one.bench.advance_ms(100);
        one.turn();
    }
    assert_eq!(one.ask("SET k v"), "+OK");
}

const FULL: &str = "-MISCONF Errors writing to the AOF file: No space left on device";

impl Durable {
    /// Sets keys until the disk takes no more of them, or there are so many, and has all of that on it. Returns how many
    /// there are.
    fn fill(&mut self, most_keys: usize) -> usize {
        let value = "x".repeat(900);
        let mut keys = 0;
        while keys < most_keys {
            let words: String = (keys..keys + 20).map(|key| format!(" key:{key} {value}")).collect();
            match self.ask(&format!("MSET{words}")).as_str() {
                "+OK" => keys += 20,
                reply => {
                    assert_eq!(reply, FULL);
                    break;
                }
            }
        }
        self.wait_a_while();
        keys
    }

    /// Lets some seconds pass, in which the log is flushed and compacted if that is due.
    fn wait_a_while(&mut self) {
        for _ in 0..5 {
            self.bench.advance_ms(2000);
            (0..200).for_each(|_| self.turn());
        }
    }

    /// Begins a compaction that a crash cuts when so many transfers have ended.
    fn cut(&mut self, request: &str, transfers: usize) -> Durable {
        self.disk.budget = transfers;
        self.send(self.client, request);
        (0..200).for_each(|_| self.turn());
        self.reopened(GATHERED)
    }

    /// Deletes keys until others are taken. Returns how many had to go.
    fn make_room(&mut self, keys: usize) -> usize {
        let mut gone = 0;
        while gone < keys && self.ask("SET more x") != "+OK" {
            let names: String = (gone..gone + 20).map(|key| format!(" key:{key}")).collect();
            assert_eq!(self.ask(&format!("DEL{names}")), ":20");
            gone += 20;
            self.wait_a_while();
        }
        gone
    }
}

/// Commands that need no memory use room that is kept for a compaction, and never so much that none can begin.
#[test]
fn a_full_disk_is_compacted_for_commands_that_need_no_memory() {
    let options = [ALWAYS, &["--auto-aof-rewrite-percentage", "0"]].concat();
    let mut one = Durable::new(&options, Disk::new(4 << 20));
    let value = "x".repeat(1000);
    let mut keys = 0;
    while one.ask(&format!("SET key:{keys} {value}")) == "+OK" {
        keys += 1;
        assert!(keys < 10_000, "the disk is never full");
    }
    let mut taken = 0;
    for round in 0..3000 {
        match one.ask(&format!("EXPIRE key:{} {}", round % keys, 1000 + round)).as_str() {
            ":1" => taken += 1,
            reply => assert_eq!(reply, FULL),
        }
        one.turn();
    }
    // A block each, so that these are longer than the disk.
    assert!(taken > 1500, "{taken}");
    assert_eq!(one.ask("DEL key:0"), ":1");
    one.expect(&[("FLUSHALL", "+OK")]);
    one.wait_a_while();
    one.expect(&[("SET k v", "+OK")]);
    let digest = one.digest();
    assert_eq!(one.reopened(&options).digest(), digest);
}

/// What only takes room is refused where a compaction would find none, and what deletes is not.
#[test]
fn what_a_compaction_lacks_is_left_for_what_deletes() {
    let mut one = Durable::new(GATHERED, Disk::new(4 << 20));
    let keys = one.fill(usize::MAX);
    let mut two = one.cut("BGREWRITEAOF", 9);
    two.expect(&[
        ("SET more x", FULL),
        ("EXPIRE key:1 1000", FULL),
        ("GETEX key:1 EX 1000", FULL),
        ("DEL key:0", ":1"),
    ]);
    two.expect(&[("SET key:0 x", FULL)]);
    two.ask("BGREWRITEAOF");
    two.wait_a_while();
    two.expect(&[("DEL key:1", ":1"), ("UNLINK key:2", ":1"), ("DEL key:3 key:4", ":2")]);
    assert!(keys > 1000, "{keys}");
}

/// A compaction that found no room leaves a part of the disk, which is enough for one when the data are gone.
#[test]
fn a_disk_without_room_for_a_compaction_has_some_when_all_is_deleted() {
    let mut one = Durable::new(GATHERED, Disk::new(32 << 20));
    one.fill(usize::MAX);
    let mut two = one.cut("BGREWRITEAOF", 60);
    for _ in 0..3 {
        two.ask("BGREWRITEAOF");
        two.wait_a_while();
        two.expect(&[("SET more x", FULL)]);
    }
    two.expect(&[("DEL key:0", ":1"), ("FLUSHALL", "+OK")]);
    // What else takes memory is not written.
    two.bench.heap.used.store(8 << 20, Ordering::Relaxed);
    two.wait_a_while();
    two.bench.heap.used.store(0, Ordering::Relaxed);
    two.expect(&[("SET k v", "+OK")]);
    two.wait_a_while();
    let digest = two.digest();
    assert_eq!(two.reopened(GATHERED).digest(), digest);
}

/// What lies behind a gap is of no use, and takes room. The store starts all the same, and goes on when there is room.
#[test]
fn a_start_behind_a_gap_without_room_serves_what_there_is() {
    let mut one = Durable::new(GATHERED, Disk::new(4 << 20));
    let keys = one.fill(1600);
    assert_eq!(keys, 1600);
    let digest = one.digest();
    one.ask("CONFIG SET appendonly no");
    let mut two = one.cut("CONFIG SET appendonly yes", 12);
    let used = |durable: &mut Durable| {
        let info = durable.ask("INFO persistence");
        info.split(' ').find(|line| line.starts_with("aof_current_size:")).unwrap().to_string()
    };
    let used_bytes = used(&mut two);
    for _ in 0..3 {
        assert_eq!(two.digest(), digest);
        two.expect(&[("SET more x", FULL), ("EXPIRE key:1 1000", FULL), ("PING", FULL)]);
        two.wait_a_while();
        assert_eq!(used(&mut two), used_bytes, "no try takes more");
        two = two.reopened(GATHERED);
    }
    let gone = two.make_room(keys);
    assert!((20..keys - 500).contains(&gone), "{gone}");
    two.wait_a_while();
    two.expect(&[("GET key:1599", &format!("$900 {}", "x".repeat(900)))]);
    let digest = two.digest();
    assert_eq!(two.reopened(GATHERED).digest(), digest);
    // All at once does as well.
    let mut three = one.reopened(GATHERED);
    three.expect(&[("FLUSHALL", "+OK")]);
    three.wait_a_while();
    three.expect(&[("SET k v", "+OK")]);
    three.wait_a_while();
    three.reopened(GATHERED).expect(&[("DBSIZE", ":1")]);
}

/// What a reply says has to be on stable storage. What is deleted behind a gap gets there when all is written anew, which may
/// be never.
#[test]
fn nothing_is_deleted_behind_a_gap_if_replies_are_to_last() {
    let mut one = Durable::new(GATHERED, Disk::new(4 << 20));
    let keys = one.fill(1600);
    one.ask("CONFIG SET appendonly no");
    let always = [GATHERED, &["--appendfsync", "always"]].concat();
    let mut two = one.cut("CONFIG SET appendonly yes", 12).reopened(&always);
    let digest = two.digest();
    two.expect(&[("DEL key:0", FULL), ("UNLINK key:0", FULL), ("FLUSHDB", FULL), ("FLUSHALL", FULL)]);
    assert_eq!(two.digest(), digest);
    two.expect(&[("CONFIG SET appendfsync everysec", "+OK")]);
    let gone = two.make_room(keys);
    assert!((20..keys - 500).contains(&gone), "{gone}");
    two.expect(&[("CONFIG SET appendfsync always", "+OK"), ("DEL key:1599", ":1")]);
    let digest = two.digest();
    assert_eq!(two.reopened(&always).digest(), digest);
}

/// When everything is deleted the log is compacted at once, whatever has kept the last compaction from its end.
#[test]
fn the_first_write_after_everything_is_deleted_is_taken() {
    let mut one = Durable::new(GATHERED, Disk::new(32 << 20));
    one.fill(usize::MAX);
    let mut two = one.cut("BGREWRITEAOF", 100);
    two.expect(&[("BGREWRITEAOF", "+Background append only file rewriting started")]);
    two.rest(100);
    let info = two.ask("INFO persistence");
    assert!(info.contains("aof_last_bgrewrite_status:err"), "{info}");
    two.expect(&[("SET more x", FULL), ("FLUSHALL", "+OK")]);
    two.rest(0);
    two.expect(&[("SET more x", "+OK")]);
    let digest = two.digest();
    two.rest(2000);
    assert_eq!(two.reopened(GATHERED).digest(), digest);
}

/// What takes memory and is no data keeps no disk full whose data are deleted, and the log is compacted though nobody asks
/// for anything.
#[test]
fn a_disk_that_a_cut_compaction_has_filled_has_room_when_nearly_all_is_deleted() {
    let options = [GATHERED, &["--save", ""]].concat();
    for disk_bytes in [16 << 20, 32 << 20] {
        let mut one = Durable::new(&options, Disk::new(disk_bytes));
        let keys = one.fill(usize::MAX);
        let cut = one.cut("BGREWRITEAOF", 60);
        let mut bench = Bench::new(&options);
        bench.heap.used.store(5 << 18, Ordering::Relaxed);
        let mut disk = cut.disk.copy();
        bench.engine.open_log(&mut disk).unwrap();
        let client = bench.connect();
        let mut two = Durable { bench, disk, client };
        two.ask("BGREWRITEAOF");
        two.rest(100);
        two.expect(&[("SET more x", FULL)]);
        for at in (20..keys).step_by(20) {
            let names: String = (at..at + 20).map(|key| format!(" key:{key}")).collect();
            assert_eq!(two.ask(&format!("DEL{names}")), ":20");
        }
        two.rest(6000);
        two.expect(&[("SET more x", "+OK"), ("DBSIZE", ":21")]);
        let digest = two.digest();
        two.rest(2000);
        assert_eq!(two.reopened(&options).digest(), digest);
    }
}

/// The same key again and again fills no disk, however small.
#[test]
fn the_smallest_disks_are_compacted() {
    for disk_bytes in [1 << 20, 3 << 19] {
        let mut one = Durable::new(ALWAYS, Disk::new(disk_bytes));
        for round in 0..1000 {
            assert_eq!(one.ask(&format!("SET k {round}")), "+OK", "round {round} on {disk_bytes} bytes");
            one.bench.advance_ms(10);
        }
        one.reopened(ALWAYS).expect(&[("GET k", "$3 999")]);
    }
}

/// What is one record has to find room as a whole, before it is done.
#[test]
fn a_script_or_transaction_that_is_larger_than_the_disk_is_refused() {
    let mut one = Durable::new(ALWAYS, Disk::new(4 << 20));
    const SCRIPT: &str = "for i = 1, 200 do redis.call('SET', 'big' .. i, string.rep('x', 100000)) end return 1";
    let refused = one.ask(&format!("EVAL \"{SCRIPT}\" 0"));
    assert!(refused.starts_with(FULL), "{refused}");
    one.expect(&[("EXISTS big1 big200", ":1")]);
    let digest = one.digest();
    assert_eq!(one.reopened(ALWAYS).digest(), digest, "what was done until then");
    one.expect(&[("FLUSHALL", "+OK")]);
    one.wait_a_while();
    one.expect(&[("MULTI", "+OK")]);
    let value = "x".repeat(50_000);
    for key in 0..100 {
        one.expect(&[(&format!("SET {key} {value}"), "+QUEUED")]);
    }
    let refused = one.ask("EXEC");
    assert!(refused.starts_with("-EXECABORT") && refused.contains("No space left"), "{refused}");
    one.expect(&[("EXISTS 0", ":0"), ("SET k v", "+OK")]);
    let digest = one.digest();
    assert_eq!(one.reopened(ALWAYS).digest(), digest);
}
