//! Clients that wait for keys, for time or for messages, as a target sees them.

use crate::bench::Bench;
use kayvee_server::{Fate, Peer};

#[test]
fn who_waits_is_served_in_order_and_goes_on_with_what_it_sent() {
    let mut bench = Bench::new(&[]);
    let [first, second, pusher] = [bench.connect(), bench.connect(), bench.connect()];
    assert_eq!(bench.ask(first, "BLPOP a b 0\r\nPING\r\n"), "");
    assert_eq!(bench.ask(second, "BRPOP b 0\r\nECHO later\r\n"), "");
    assert_eq!(bench.engine.fate(first), Fate::Open, "its end has to be seen");
    assert_eq!(bench.ask(pusher, "RPUSH b x y\r\nLLEN b\r\n"), ":2\r\n:0\r\n");
    assert_eq!(bench.take_text(first), "*2\r\n$1\r\nb\r\n$1\r\nx\r\n+PONG\r\n");
    assert_eq!(bench.take_text(second), "*2\r\n$1\r\nb\r\n$1\r\ny\r\n$5\r\nlater\r\n");
}

#[test]
fn a_transaction_serves_nobody_before_its_end() {
    let mut bench = Bench::new(&[]);
    let [waiter, pusher] = [bench.connect(), bench.connect()];
    bench.ask(waiter, "BLPOP k 0\r\n");
    bench.ask(pusher, "MULTI\r\nRPUSH k gone\r\nDEL k\r\nRPUSH k kept\r\nEXEC\r\n");
    assert_eq!(bench.take_text(waiter), "*2\r\n$1\r\nk\r\n$4\r\nkept\r\n");
}

#[test]
fn waiting_ends_in_time_and_costs_no_turn_before() {
    let mut bench = Bench::new(&[]);
    let [brief, patient] = [bench.connect(), bench.connect()];
    bench.ask(brief, "BLPOP k 0.25\r\n");
    bench.ask(patient, "BLPOP k 0\r\n");
    let deadline = bench.engine.next_deadline_ns().unwrap();
    assert_eq!(deadline - bench.now.monotonic_ns, 250_000_000);
    bench.advance_ms(249);
    assert_eq!(bench.take_text(brief), "");
    bench.advance_ms(1);
    assert_eq!(bench.take_text(brief), "*-1\r\n");
    assert_eq!(bench.engine.next_deadline_ns(), None);
    assert_eq!(bench.take_text(patient), "");
}

#[test]
fn one_that_leaves_while_it_waits_takes_nothing_along() {
    let mut bench = Bench::new(&[]);
    let [waiter, pusher] = [bench.connect(), bench.connect()];
    bench.ask(waiter, "BLPOP k k k 0.5\r\n");
    bench.engine.disconnect(waiter);
    assert_eq!(bench.ask(pusher, "RPUSH k v\r\n"), ":1\r\n");
    assert_eq!(bench.ask(pusher, "LLEN k\r\n"), ":1\r\n");
    assert_eq!(bench.engine.next_deadline_ns(), None);
}

#[test]
fn a_value_of_another_kind_is_not_waited_for() {
    let mut bench = Bench::new(&[]);
    let [waiter, other] = [bench.connect(), bench.connect()];
    bench.ask(waiter, "BLPOP k 0\r\n");
    bench.ask(other, "SET k v\r\n");
    assert_eq!(bench.take_text(waiter), "");
    bench.ask(other, "DEL k\r\nRPUSH k v\r\n");
    assert_eq!(bench.take_text(waiter), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
}

#[test]
fn whom_another_client_unblocks_hears_why() {
    let mut bench = Bench::new(&[]);
    let [waiter, other] = [bench.connect(), bench.connect()];
    let id: u64 = bench.ask(waiter, "CLIENT ID\r\n")[1..].trim().parse().unwrap();
    bench.ask(waiter, "BLPOP k 0\r\n");
    assert_eq!(bench.ask(other, &format!("CLIENT UNBLOCK {id} ERROR\r\n")), ":1\r\n");
    assert_eq!(bench.take_text(waiter), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(bench.ask(other, &format!("CLIENT UNBLOCK {id}\r\n")), ":0\r\n");
}

#[test]
fn messages_reach_listeners_and_follow_ones_own_reply() {
    let mut bench = Bench::new(&[]);
    let [old, new, sender] = [bench.connect(), bench.connect(), bench.connect()];
    bench.ask(old, "SUBSCRIBE news\r\n");
    bench.ask(new, "HELLO 3\r\n");
    bench.ask(new, "PSUBSCRIBE n*\r\n");
    assert_eq!(bench.ask(sender, "PUBLISH news hi\r\n"), ":2\r\n");
    assert_eq!(bench.take_text(old), "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nhi\r\n");
    assert_eq!(bench.take_text(new), ">4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$2\r\nhi\r\n");
    let own = bench.ask(new, "PUBLISH news me\r\n");
    assert!(own.starts_with(":2\r\n>4\r\n"), "{own}");
    bench.engine.disconnect(old);
    bench.engine.disconnect(new);
    assert_eq!(bench.ask(sender, "PUBLISH news hi\r\n"), ":0\r\n");
    assert_eq!(bench.ask(sender, "PUBSUB NUMPAT\r\n"), ":0\r\n");
}

#[test]
fn a_watched_key_fails_the_transaction_when_it_changes_or_expires() {
    let mut bench = Bench::new(&[]);
    let [watcher, other] = [bench.connect(), bench.connect()];
    for change in ["SET k 1", "DEL k", "FLUSHALL", "SWAPDB 0 1", "EXPIRE k 100", "APPEND k x", "RENAME k l"] {
        bench.ask(other, "SWAPDB 0 1\r\nFLUSHALL\r\nSWAPDB 0 1\r\nSET k v\r\n");
        bench.ask(watcher, "WATCH k\r\nMULTI\r\nSET r 1\r\n");
        bench.ask(other, &format!("{change}\r\n"));
        assert_eq!(bench.ask(watcher, "EXEC\r\n"), "*-1\r\n", "{change}");
    }
    bench.ask(other, "SET k v PX 10\r\n");
    bench.ask(watcher, "WATCH k\r\nMULTI\r\nSET r 1\r\n");
    bench.advance_ms(11);
    assert_eq!(bench.ask(watcher, "EXEC\r\n"), "*-1\r\n");
    bench.ask(watcher, "WATCH k\r\nMULTI\r\nSET r 1\r\n");
    bench.ask(other, "SET unrelated v\r\nGET k\r\n");
    assert_eq!(bench.ask(watcher, "EXEC\r\n"), "*1\r\n+OK\r\n");
}

#[test]
fn copies_are_called_back_once_and_broadcast_at_the_end_of_a_turn() {
    let mut bench = Bench::new(&[]);
    let [reader, all, writer] = [bench.connect(), bench.connect(), bench.connect()];
    bench.ask(reader, "HELLO 3\r\nCLIENT TRACKING ON\r\nGET k\r\n");
    bench.ask(all, "HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX k PREFIX l\r\n");
    bench.ask(writer, "SET k 1\r\nSET k 2\r\nSET l 1\r\nSET m 1\r\n");
    let told = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
    assert_eq!(bench.take_text(reader), told, "once");
    assert_eq!(bench.take_text(all), format!("{told}{}", told.replace("\r\nk\r\n", "\r\nl\r\n")));
    bench.ask(reader, "GET k\r\n");
    bench.ask(writer, "FLUSHALL\r\n");
    assert_eq!(bench.take_text(reader), ">2\r\n$10\r\ninvalidate\r\n_\r\n");
}

/// The time that MIGRATE is given is for a pause, not for all of it.
#[test]
fn a_slow_migration_goes_on_as_long_as_something_moves() {
    for answers in [true, false] {
        let mut bench = Bench::new(&[]);
        let client = bench.connect();
        bench.ask(client, &format!("SET k {}\r\n", "x".repeat(10_000)));
        assert_eq!(bench.ask(client, "MIGRATE 10.0.0.2 6379 k 0 1000\r\n"), "");
        let dial = bench.engine.next_dial().expect("it wants a connection");
        bench.advance_ms(900);
        let peer = Peer { remote: "10.0.0.2:6379".into(), local: "10.0.0.1:5000".into(), is_local: true };
        let target = bench.engine.dialed(&dial, peer).expect("it was asked for");
        for _ in 0..3 {
            bench.advance_ms(900);
            assert_eq!(bench.take_text(client), "");
            bench.engine.sent(target, 10);
        }
        bench.advance_ms(900);
        bench.engine.receive(target, b"+OK\r\n");
        bench.advance_ms(900);
        assert_eq!(bench.take_text(client), "");
        if answers {
            bench.engine.receive(target, b"+OK\r\n");
            assert_eq!(bench.take_text(client), "+OK\r\n");
        } else {
            bench.advance_ms(101);
            assert_eq!(bench.take_text(client), "-IOERR error or timeout reading to target instance\r\n");
        }
    }
}

/// What the other store has taken goes here, whatever it says of other keys; nothing does if it has refused the database.
#[test]
fn a_key_that_the_other_store_refuses_keeps_no_other() {
    for (refuses_database, left) in [(false, ":1\r\n"), (true, ":3\r\n")] {
        let mut bench = Bench::new(&[]);
        let client = bench.connect();
        bench.ask(client, "MSET a 1 b 2 c 3\r\n");
        assert_eq!(bench.ask(client, "MIGRATE 10.0.0.2 6379 \"\" 9 1000 KEYS a b c\r\n"), "");
        let dial = bench.engine.next_dial().expect("it wants a connection");
        let peer = Peer { remote: "10.0.0.2:6379".into(), local: "10.0.0.1:5000".into(), is_local: true };
        let target = bench.engine.dialed(&dial, peer).expect("it was asked for");
        bench.engine.receive(target, if refuses_database { b"-ERR no\r\n" } else { b"+OK\r\n" });
        bench.engine.receive(target, b"-BUSYKEY no\r\n+OK\r\n+OK\r\n");
        let reply = bench.take_text(client);
        assert!(reply.starts_with("-ERR Target instance replied with error: "), "{reply}");
        assert_eq!(bench.ask(client, "DBSIZE\r\n"), left);
    }
}

#[test]
fn one_that_is_killed_while_it_waits_takes_nothing_along() {
    let mut bench = Bench::new(&[]);
    let [waiter, killer] = [bench.connect(), bench.connect()];
    assert_eq!(bench.ask(waiter, "CLIENT ID\r\nBLPOP k 0\r\n"), ":1\r\n");
    assert_eq!(bench.ask(killer, "CLIENT KILL ID 1\r\nRPUSH k v\r\nLLEN k\r\n"), ":1\r\n:1\r\n:1\r\n");
    assert_eq!(bench.engine.fate(waiter), Fate::CloseNow);
}
