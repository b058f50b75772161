//! What a master and its replicas do together: `WAIT` and `WAITAOF`, failovers, the end.

use super::chain::Chain;
use crate::bench::Bench;
use kayvee_server::ShutdownOn;

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

/// What a slow script and a command that had to wait have written is waited for as well.
#[test]
fn waiting_for_replicas_of_what_took_long() {
    let mut chain = Chain::new(2, 2);
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(0, "CONFIG SET busy-reply-threshold 5"), "+OK");
    assert_eq!(chain.ask(0, "WAIT 0 0"), ":1");
    let wait = |chain: &mut Chain| {
        assert_eq!(chain.ask(0, "WAIT 1 0"), "", "no replica has it yet");
        assert_eq!(chain.told_within_ms(1000), ":1\r\n");
    };
    assert_eq!(chain.ask(0, "EVAL \"redis.call('SET', 'k', 'v') for i = 1, 3e6 do end return 1\" 0"), "");
    let user = chain.users[0];
    let reply = (0..10_000).find_map(|_| {
        chain.nodes[0].advance_ms(1);
        Some(chain.nodes[0].take_text(user)).filter(|reply| !reply.is_empty())
    });
    assert_eq!(reply.as_deref(), Some(":1\r\n"));
    wait(&mut chain);
    assert_eq!(chain.ask(0, "BLMOVE from to LEFT RIGHT 0"), "");
    let other = chain.nodes[0].connect();
    assert_eq!(chain.nodes[0].ask(other, "RPUSH from v\r\n"), ":1\r\n");
    assert_eq!(chain.nodes[0].take_text(user), "$1\r\nv\r\n");
    wait(&mut chain);
}

/// A key that was gone for a replica's clients when they began to watch it may be removed by the master meanwhile, but not made
/// anew.
#[test]
fn what_had_gone_is_watched_on_a_replica() {
    let mut chain = Chain::new(3, 2);
    chain.follow();
    for request in ["", "DEL k", "SET k new"] {
        assert_eq!(chain.ask(0, "SET k v PX 100000"), "+OK");
        chain.settle();
        let gone_ms = 50_000_000;
        chain.nodes[1].now.unix_us += gone_ms * 1000;
        assert_eq!(chain.ask(1, "PING"), "+PONG");
        chain.nodes[1].advance_ms(0);
        assert_eq!([chain.ask(1, "WATCH k"), chain.ask(1, "MULTI"), chain.ask(1, "PING")], ["+OK", "+OK", "+QUEUED"]);
        if !request.is_empty() {
            chain.ask(0, request);
            (0..100).for_each(|_| chain.turn(10));
        }
        let reply = chain.ask(1, "EXEC");
        assert_eq!(reply, if request == "SET k new" { "*-1" } else { "*1\r\n+PONG" }, "{request}");
        chain.nodes[1].now.unix_us -= gone_ms * 1000;
    }
}

/// Libraries that come with all data while a function runs on a replica are those that it has then.
#[test]
fn libraries_come_while_a_function_runs() {
    let function = |name: &str, does: &str| {
        format!(
            "redis.register_function{{function_name='{name}', callback=function() {does} end, flags={{'no-writes'}}}}"
        )
    };
    let library = |functions: &str| format!("FUNCTION LOAD REPLACE \"#!lua name=l\\n{functions}\"");
    let old = function("f", "return 1") + " " + &function("slow", "while true do end");
    let mut chain = Chain::new(4, 2);
    chain.ask(0, &library(&old));
    chain.follow();
    chain.settle();
    assert_eq!(chain.ask(1, "CONFIG SET busy-reply-threshold 5"), "+OK");
    assert_eq!(chain.ask(1, "FCALL_RO slow 0"), "");
    let other = chain.nodes[1].connect();
    chain.ask(0, &library(&function("f", "return 2")));
    chain.ask(0, "DEBUG CHANGE-REPL-ID");
    chain.cut(1);
    (0..2000).for_each(|_| chain.turn(20));
    assert!(chain.ask(0, "INFO stats").contains("sync_full:2\r\n"));
    assert_eq!(chain.nodes[1].ask(other, "FUNCTION KILL\r\n"), "+OK\r\n");
    chain.settle();
    assert_eq!(chain.nodes[1].ask(other, "FCALL f 0\r\n"), ":2\r\n");
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
