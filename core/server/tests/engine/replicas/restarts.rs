//! Stores that end, in good order or not, and start again with what they have kept of their data and of its history.

use super::chain::{Chain, End};
use crate::{bench::Bench, lines};

/// However stores end and start again, with logs or dump files of their own, all copies become the same.
#[test]
fn copies_become_the_same_though_stores_start_again() {
    let mut went_on = 0;
    for seed in 0..12 {
        let logs = seed % 2 == 0;
        let mut chain = keeping(seed, 3, logs);
        for _ in 0..20 {
            for _ in 0..chain.rng.u32(..150) {
                if chain.rng.u8(..4) > 0 {
                    chain.change();
                }
                let ms = chain.rng.u64(..60);
                chain.turn(ms);
            }
            let (at, saver) = (chain.rng.usize(..3), chain.rng.usize(..3));
            if !logs {
                chain.ask(saver, ["SAVE", "BGSAVE"][at % 2]);
            }
            went_on += (0..3).map(|at| syncs(&mut chain, at).1).sum::<u32>();
            let end = if chain.rng.u8(..3) > 0 { End::InOrder } else { End::Killed };
            chain.restart(at, end);
        }
        chain.settle();
    }
    assert!(went_on > 60, "{went_on}");
}

/// How many replicas have got a dump from a store, and how many have gone on without one.
fn syncs(chain: &mut Chain, at: usize) -> (u32, u32) {
    let info = chain.ask(at, "INFO stats");
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).expect(name);
    (field("sync_full:"), field("sync_partial_ok:"))
}

/// Stores with logs or dump files of their own, the second of which copies the first one, and so on.
fn keeping(seed: u64, count: usize, logs: bool) -> Chain {
    let mut chain = if logs { Chain::with_disks(seed, count) } else { Chain::with_dumps(seed, count) };
    (0..300).for_each(|_| chain.change());
    if logs {
        (0..count).for_each(|at| chain.start_log(at));
    }
    chain.follow();
    chain
}

/// Who had everything when a store ended in good order goes on with it, and a replica that ended so with its master: nobody
/// needs a dump.
#[test]
fn histories_outlive_an_end() {
    for logs in [false, true] {
        let mut chain = keeping(9, 3, logs);
        chain.settle();
        // Something is said of another database than the first, and some of what expires there has done so, or will while
        // nobody runs.
        chain.ask(0, "SELECT 2");
        chain.ask(0, "DEBUG SET-ACTIVE-EXPIRE 0");
        (0..20).for_each(|key| _ = chain.ask(0, &format!("SET late{key} v PX {}", if key < 10 { 1 } else { 3000 })));
        chain.settle();
        for at in [0, 1, 2] {
            let before = [0, 1, 2].map(|one| if one == at { 0 } else { syncs(&mut chain, one).0 });
            if logs {
                // Half of a compaction is nothing to wait for.
                chain.ask(at, "BGREWRITEAOF");
                chain.turn(1);
            }
            chain.restart(at, End::InOrder);
            chain.ask(0, "SELECT 2");
            chain.ask(0, "INCR n");
            chain.settle();
            assert_eq!([0, 1, 2].map(|one| syncs(&mut chain, one).0), before, "{at} starts again, logs: {logs}");
            assert!(chain.ask(at, "INFO replication").contains(if at == 0 { "role:master" } else { "role:slave" }));
        }
    }
}

/// A master that is killed has lost what its replica has, and nobody takes what comes then for what follows that.
#[test]
fn nobody_goes_on_with_what_is_lost() {
    for logs in [false, true] {
        let mut chain = keeping(10, 2, logs);
        chain.settle();
        // The last that is kept of the history.
        if logs {
            chain.restart(0, End::InOrder);
            chain.settle();
        } else {
            assert_eq!(chain.ask(0, "SAVE"), "+OK");
        }
        assert_eq!([chain.ask(0, "SELECT 0"), chain.ask(0, "INCR lost")], ["+OK", ":1"]);
        (0..200).for_each(|_| chain.turn(1));
        assert_eq!(chain.ask(1, "GET lost"), "$1\r\n1");
        chain.restart(0, End::Killed);
        // It has more than what it has lost before its replica comes back.
        (0..100).for_each(|_| _ = chain.ask(0, "INCR other"));
        chain.settle();
        assert_eq!(syncs(&mut chain, 0), (1, 0), "logs: {logs}");
    }
}

/// What a store reads from its dump file in place of its data is none of their history, so its replicas get all of it, and a
/// replica that does this gets all data again from its master. What it writes and reads anew is what it was.
#[test]
fn data_from_a_file_are_of_no_history() {
    let mut chain = keeping(11, 3, false);
    chain.settle();
    assert_eq!([0, 1].map(|at| chain.ask(at, "SAVE")), ["+OK", "+OK"]);
    assert_eq!(chain.ask(0, "DEBUG RELOAD"), "+OK");
    assert_eq!([chain.ask(0, "SELECT 0"), chain.ask(0, "INCR later")], ["+OK", ":1"]);
    chain.settle();
    let dumps = |chain: &mut Chain| [0, 1].map(|at| syncs(chain, at).0);
    assert_eq!(dumps(&mut chain), [1, 1]);
    assert_eq!(chain.ask(1, "DEBUG RELOAD NOSAVE"), "+OK");
    chain.settle();
    assert_eq!((dumps(&mut chain), chain.ask(0, "GET later").as_str()), ([2, 1], "$1\r\n1"));
    assert_eq!(chain.ask(0, "DEBUG RELOAD NOSAVE"), "+OK");
    // It starts again before a replica has noticed.
    chain.restart(0, End::InOrder);
    chain.settle();
    assert_eq!(dumps(&mut chain), [1, 2]);
    assert_eq!([chain.ask(0, "SELECT 0"), chain.ask(0, "GET later")], ["+OK", "$-1"]);
}

/// A copy that is on its way when all data come back from the log is given up, and made anew.
#[test]
fn a_copy_on_its_way_while_data_come_from_the_log() {
    let mut chain = Chain::with_disks(12, 2);
    chain.start_log(0);
    chain.ask(0, "DEBUG POPULATE 3000");
    (0..100).for_each(|_| chain.turn(20));
    assert_eq!(chain.ask(0, "CONFIG SET rdb-key-save-delay 10000"), "+OK");
    chain.follow();
    while !chain.ask(0, "INFO replication").contains("state=wait_bgsave") {
        chain.turn(1);
    }
    (0..5).for_each(|_| chain.turn(10));
    assert_eq!(chain.ask(0, "DEBUG LOADAOF"), "");
    assert_eq!(chain.told_within_ms(100), "+OK\r\n");
    assert_eq!(chain.ask(0, "CONFIG SET rdb-key-save-delay 0"), "+OK");
    chain.settle();
    assert_eq!(chain.ask(1, "DBSIZE"), ":3000");
}

/// Keys from a file are written down by whatever walks over all keys next, however many walks there were before.
#[test]
fn data_from_a_file_are_copied() {
    let mut chain = Chain::with_dumps(12, 1);
    chain.ask(0, "SET k v");
    for _ in 0..62 {
        assert_eq!(chain.ask(0, "BGSAVE"), "+Background saving started");
        (0..5).for_each(|_| chain.turn(20));
    }
    assert_eq!([chain.ask(0, "DEBUG RELOAD NOSAVE"), chain.ask(0, "GET k")], ["+OK", "$1\r\nv"]);
    assert_eq!(chain.ask(0, "BGSAVE"), "+Background saving started");
    (0..5).for_each(|_| chain.turn(20));
    assert_eq!([chain.ask(0, "DEBUG RELOAD NOSAVE"), chain.ask(0, "GET k")], ["+OK", "$1\r\nv"]);
}

/// What a master sends waits for a compaction that makes room for it, as what a client asks for is refused meanwhile.
#[test]
fn a_replica_with_a_small_disk_is_compacted_in_time() {
    let mut chain = Chain::with_disks(13, 2);
    chain.start_log(1);
    chain.follow();
    chain.settle();
    let value = "x".repeat(300);
    let mut sent_bytes = 0;
    for round in 0..20 {
        for first in (0..3000).step_by(100) {
            let words: String = (first..first + 100).map(|key| format!(" key:{key} {round}{value}")).collect();
            assert_eq!(chain.ask(0, &format!("MSET{words}")), "+OK");
            sent_bytes += words.len();
            chain.turn(10);
        }
    }
    chain.settle();
    assert!(sent_bytes > 2 * (8 << 20) && !chain.ask(1, "INFO persistence").contains("aof_last_write_status:err"));
    chain.restart(1, End::Killed);
    chain.settle();
    assert_eq!(chain.ask(1, "DBSIZE"), ":3000");
}

/// A replica takes no more than its disk has room for, and can be started with that.
#[test]
fn a_replica_without_room_stops_taking_what_its_master_sends() {
    let mut chain = Chain::with_disks(14, 2);
    chain.start_log(1);
    chain.follow();
    chain.settle();
    lines::begin();
    let value = "x".repeat(900);
    for first in (0..9000).step_by(50) {
        let words: String = (first..first + 50).map(|key| format!(" key:{key} {value}")).collect();
        assert_eq!(chain.ask(0, &format!("MSET{words}")), "+OK");
        chain.turn(10);
    }
    for _ in 0..2000 {
        chain.turn(10);
    }
    let told = lines::take();
    assert_eq!(
        told.iter().filter(|line| line.starts_with("there is no room on the log's disk for what")).count(),
        1,
        "{told:?}"
    );
    assert!(chain.ask(1, "INFO persistence").contains("aof_last_write_status:err"));
    let keys: usize = chain.ask(1, "DBSIZE")[1..].parse().unwrap();
    assert!((2000..8000).contains(&keys), "{keys}");
    let digest = chain.ask(1, "DEBUG DIGEST");
    let mut disk = chain.disks[1].as_ref().unwrap().copy();
    let mut bench = Bench::new(&["--appendonly", "yes", "--enable-debug-command", "yes"]);
    bench.engine.open_log(&mut disk).unwrap();
    let client = bench.connect();
    assert_eq!(bench.ask(client, "DEBUG DIGEST\r\n").trim_end(), digest);
    assert_eq!(chain.ask(1, "REPLICAOF NO ONE"), "+OK");
    assert_eq!(chain.ask(1, "FLUSHALL"), "+OK");
    (0..100).for_each(|_| chain.turn(10));
    assert_eq!(chain.ask(1, "SET k v"), "+OK");
    assert!(chain.ask(1, "INFO persistence").contains("aof_last_write_status:ok"));
}
