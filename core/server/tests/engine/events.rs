//! Keyspace events in Redis' order, and what of keys that expire is told elsewhere.

use crate::bench::Bench;
use kayvee_server::ClientId;

/// An engine where keys expire only when somebody finds them, a client, and one that listens to all events.
fn bench() -> (Bench, ClientId, ClientId) {
    let mut bench = Bench::new(&["--notify-keyspace-events", "EAn", "--enable-debug-command", "yes"]);
    let (client, listener) = (bench.connect(), bench.connect());
    assert_eq!(bench.ask(client, "DEBUG SET-ACTIVE-EXPIRE 0\r\n"), "+OK\r\n");
    bench.ask(listener, "PSUBSCRIBE __key*\r\n");
    (bench, client, listener)
}

/// The events that requests set off, as `DB:EVENT KEY`.
fn events(bench: &mut Bench, client: ClientId, listener: ClientId, requests: &str) -> String {
    let reply = bench.ask(client, &format!("{requests}\r\n"));
    assert!(!reply.contains("-ERR"), "{requests}: {reply}");
    let told = bench.take_text(listener);
    let words: Vec<&str> = told.split("\r\n").filter(|word| !word.starts_with(['$', '*'])).collect();
    let event = |words: &[&str]| format!("{} {}", words[2].replace("__keyevent@", "").replace("__", ""), words[3]);
    words.chunks_exact(4).map(event).collect::<Vec<_>>().join(", ")
}

/// redis-server removes a key whose time has come before another value takes its place, and says so.
#[test]
fn a_key_that_is_overwritten_when_its_time_has_come_expires_first() {
    let (mut bench, client, listener) = bench();
    events(&mut bench, client, listener, "SET a v\r\nSADD s 1\r\nZADD z 1 a");
    for (request, expected) in [
        ("SET k w", "0:expired k, 0:new k, 0:set k"),
        ("SET k w KEEPTTL", "0:expired k, 0:new k, 0:set k"),
        ("SETEX k 100 w", "0:expired k, 0:new k, 0:set k, 0:expire k"),
        ("GETSET k w", "0:expired k, 0:new k, 0:set k"),
        ("MSET k w j x", "0:expired k, 0:new k, 0:set k, 0:new j, 0:set j"),
        ("SUNIONSTORE k s", "0:expired k, 0:new k, 0:sunionstore k"),
        ("ZUNIONSTORE k 1 z", "0:expired k, 0:new k, 0:zunionstore k"),
        ("ZRANGESTORE k z 0 -1", "0:expired k, 0:new k, 0:zrangestore k"),
        ("SORT s STORE k", "0:expired k, 0:new k, 0:sortstore k"),
        ("BITOP NOT k a", "0:expired k, 0:new k, 0:set k"),
        ("COPY a k REPLACE", "0:expired k, 0:new k, 0:copy_to k"),
        ("RENAME a k", "0:expired k, 0:new k, 0:rename_from a, 0:rename_to k"),
    ] {
        events(&mut bench, client, listener, "SET k v PX 20");
        bench.advance_ms(50);
        assert_eq!(events(&mut bench, client, listener, request), expected, "{request}");
    }
    assert!(bench.ask(client, "INFO stats\r\n").contains("\r\nexpired_keys:12\r\n"));
}

#[test]
fn events_of_keys_that_move_are_in_redis_order() {
    let (mut bench, client, listener) = bench();
    for (requests, expected) in [
        ("SADD a 1 2", "0:new a, 0:sadd a"),
        ("SMOVE a b 1", "0:srem a, 0:new b, 0:sadd b"),
        ("SMOVE a b 2", "0:srem a, 0:del a, 0:sadd b"),
        ("SADD a 1", "0:new a, 0:sadd a"),
        ("SMOVE a b 1", "0:srem a, 0:del a"),
        ("SET k v", "0:new k, 0:set k"),
        ("MOVE k 1", "1:new k, 0:move_from k, 1:move_to k"),
        ("SET k v", "0:new k, 0:set k"),
        ("COPY k j", "0:new j, 0:copy_to j"),
        ("COPY k j DB 2", "2:new j, 2:copy_to j"),
        ("COPY k j REPLACE", "0:new j, 0:copy_to j"),
        ("COPY k j DB 2 REPLACE", "2:new j, 2:copy_to j"),
        ("RENAME k j", "0:new j, 0:rename_from k, 0:rename_to j"),
        ("BITFIELD bits OVERFLOW FAIL INCRBY u8 0 300", "0:new bits"),
    ] {
        assert_eq!(events(&mut bench, client, listener, requests), expected, "{requests}");
    }
}

/// Commands about an object miss a key without an event, others with one.
#[test]
fn misses_are_told_of() {
    let (mut bench, client, listener) = bench();
    assert_eq!(bench.ask(client, "CONFIG SET notify-keyspace-events Em\r\n"), "+OK\r\n");
    for (request, expected) in [
        ("GET k", "0:keymiss k"),
        ("TYPE k", "0:keymiss k"),
        ("OBJECT ENCODING k", ""),
        ("OBJECT FREQ k", ""),
        ("OBJECT IDLETIME k", ""),
        ("OBJECT REFCOUNT k", ""),
    ] {
        assert_eq!(events(&mut bench, client, listener, request), expected, "{request}");
    }
    assert!(bench.ask(client, "INFO stats\r\n").contains("\r\nkeyspace_misses:6\r\n"));
}

/// Who keeps a copy of the data is told that a key went before it is told what took its place.
#[test]
fn replicas_are_told_that_a_key_expired_before_it_is_overwritten() {
    let (mut bench, client, _) = bench();
    let replica = bench.connect();
    bench.engine.receive(replica, b"SYNC\r\n");
    bench.take(replica);
    bench.ask(client, "SET k v PX 20\r\nSET a v\r\n");
    bench.advance_ms(50);
    bench.take(replica);
    for (request, expected) in
        [("SET k w PX 20", "MULTI DEL k SET k w PXAT"), ("COPY a k REPLACE", "MULTI DEL k COPY a k REPLACE EXEC")]
    {
        bench.ask(client, &format!("{request}\r\n"));
        let told = bench.take_text(replica);
        let words = told.split("\r\n").filter(|word| !word.starts_with(['$', '*'])).collect::<Vec<_>>().join(" ");
        assert!(words.trim().starts_with(expected), "{request}: {words}");
        bench.advance_ms(50);
    }
}
