use crate::harness::{Harness, START_MS};
use alloc::{collections::BTreeSet, format, string::String, vec, vec::Vec};

#[test]
fn keys_expire_under_conditions() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("SET k v", "+OK"),
        ("EXPIRE k 100 XX", ":0"),
        ("EXPIRE k 100 GT", ":0"),
        ("EXPIRE k 100 LT", ":1"),
        ("EXPIRE k 50 NX", ":0"),
        ("EXPIRE k 50 GT", ":0"),
        ("EXPIRE k 50 XX LT", ":1"),
        ("EXPIRE k 50 LT", ":0"),
        ("PEXPIRE k 60000 gt", ":1"),
        ("TTL k", ":60"),
        ("PEXPIREAT k 1600000001499", ":1"),
        ("TTL k", ":1"),
        ("EXPIRETIME k", ":1600000001"),
        ("PEXPIRETIME k", ":1600000001499"),
        ("PERSIST k", ":1"),
        ("PERSIST k", ":0"),
        ("TTL k", ":-1"),
        ("EXPIRETIME k", ":-1"),
        ("PTTL none", ":-2"),
        ("PEXPIRETIME none", ":-2"),
        ("EXPIRE none 10", ":0"),
        ("PERSIST none", ":0"),
        ("EXPIRE k x", "-ERR value is not an integer or out of range"),
        ("EXPIRE k 10 NX GT", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE k 10 LT GT", "-ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE k 10 ZZ", "-ERR Unsupported option ZZ"),
        ("EXPIRE k 9223372036854776", "-ERR invalid expire time in 'expire' command"),
        ("EXPIRE k -9223372036854776", "-ERR invalid expire time in 'expire' command"),
        ("PEXPIRE k 9223372036854775807", "-ERR invalid expire time in 'pexpire' command"),
        ("EXPIREAT k 9223372036854776", "-ERR invalid expire time in 'expireat' command"),
        ("PEXPIREAT k 9223372036854775807", ":1"),
        ("PEXPIRETIME k", ":9223372036854775807"),
        ("PEXPIREAT k 1600000000000", ":1"),
        ("EXISTS k", ":0"),
        ("SET k v", "+OK"),
        ("EXPIRE k -1", ":1"),
        ("EXISTS k", ":0"),
        ("SET k v PX 5", "+OK"),
    ]);
    harness.at_ms(START_MS + 6);
    harness.expect(&[("DBSIZE", ":1"), ("TYPE k", "+none"), ("DBSIZE", ":0")]);
}

#[test]
fn keys_move_about() {
    let mut harness = Harness::new();
    let long_key = "n".repeat(600);
    let long_value = "v".repeat(5000);
    let bulk = format!("$5000 {long_value}");
    for (from, to) in [("a", "b"), ("a", &long_key), (&long_key, "a")] {
        for value in ["v", "12", &long_value] {
            let expected = format!("${} {value}", value.len());
            harness.run("FLUSHALL");
            harness.expect(&[
                (&format!("SET {from} {value} PX 100"), "+OK"),
                (&format!("SET {to} old"), "+OK"),
                (&format!("RENAMENX {from} {to}"), ":0"),
                (&format!("RENAME {from} {to}"), "+OK"),
                ("DBSIZE", ":1"),
                (&format!("GET {to}"), &expected),
                (&format!("PTTL {to}"), ":100"),
                (&format!("MOVE {to} 1"), ":1"),
                ("DBSIZE", ":0"),
                (&format!("SET {to} other"), "+OK"),
                (&format!("MOVE {to} 1"), ":0"),
                ("SELECT 1", "+OK"),
                (&format!("GET {to}"), &expected),
                (&format!("PTTL {to}"), ":100"),
                (&format!("COPY {to} {from} DB 0"), ":1"),
                (&format!("COPY {to} {from} DB 0"), ":0"),
                (&format!("COPY {to} {from} DB 0 REPLACE"), ":1"),
                ("SELECT 0", "+OK"),
                (&format!("GET {from}"), &expected),
                (&format!("PTTL {from}"), ":100"),
            ]);
        }
    }
    harness.expect(&[
        ("FLUSHALL", "+OK"),
        (&format!("SET a {long_value}"), "+OK"),
        ("APPEND a x", ":5001"),
        ("SETRANGE a 0 v", ":5001"),
        ("RENAME a b", "+OK"),
        ("OBJECT ENCODING b", "$3 raw"),
        ("GETRANGE b 4998 -1", "$3 vvx"),
        (&format!("SET a {long_value}"), "+OK"),
        ("RENAME a a", "+OK"),
        ("GET a", &bulk),
        ("RENAMENX a a", ":0"),
        ("RENAME none a", "-ERR no such key"),
        ("RENAME none none", "-ERR no such key"),
        ("COPY a a", "-ERR source and destination objects are the same"),
        ("COPY none b", ":0"),
        ("COPY a b DB", "-ERR syntax error"),
        ("COPY a b DB 16", "-ERR DB index is out of range"),
        ("COPY a b DB 2147483648", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
        ("MOVE a 0", "-ERR source and destination objects are the same"),
        ("MOVE a -1", "-ERR DB index is out of range"),
        ("MOVE a x", "-ERR value is not an integer or out of range"),
        ("MOVE none 1", ":0"),
    ]);
}

#[test]
fn keys_are_counted_and_removed() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("MSET a 1 b 2 c 3", "+OK"),
        ("EXISTS a a none", ":2"),
        ("TOUCH a b none", ":2"),
        ("TYPE a", "+string"),
        ("DEL a a none", ":1"),
        ("UNLINK b none", ":1"),
        ("RANDOMKEY", "$1 c"),
        ("DEL c", ":1"),
        ("RANDOMKEY", "$-1"),
    ]);
}

#[test]
fn objects_are_described() {
    let mut harness = Harness::new();
    let freq = "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
                between policies at runtime LRU and LFU data will take some time to adjust.";
    harness.expect(&[("SET k 9999", "+OK"), ("OBJECT REFCOUNT k", ":2147483647"), ("SET l 10000", "+OK")]);
    harness.at_ms(START_MS + 5000);
    harness.expect(&[
        ("OBJECT REFCOUNT l", ":1"),
        ("OBJECT IDLETIME k", ":5"),
        ("TYPE k", "+string"),
        ("TTL k", ":-1"),
        ("EXISTS k", ":1"),
        ("OBJECT IDLETIME k", ":5"),
        ("TOUCH k", ":1"),
        ("OBJECT IDLETIME k", ":0"),
        ("OBJECT ENCODING k", "$3 int"),
        ("OBJECT ENCODING none", "$-1"),
        ("OBJECT FREQ none", "$-1"),
        ("OBJECT FREQ k", freq),
        ("OBJECT NOPE k", "-ERR unknown subcommand 'NOPE'. Try OBJECT HELP."),
        ("OBJECT FREQ", "-ERR wrong number of arguments for 'object|freq' command"),
    ]);
    harness.store.sessions[0].as_mut().unwrap().no_touch = true;
    harness.at_ms(START_MS + 9000);
    harness.expect(&[
        ("GET k", "$4 9999"),
        ("OBJECT IDLETIME k", ":4"),
        ("TOUCH k", ":1"),
        ("OBJECT IDLETIME k", ":0"),
    ]);
}

/// The cursor and the keys of a reply of `SCAN`.
fn scan(harness: &mut Harness, request: &str) -> (String, Vec<String>) {
    let reply = harness.run(request);
    let mut words = reply.split(' ').filter(|word| !word.starts_with(['*', '$'])).map(String::from);
    (words.next().unwrap(), words.collect())
}

#[test]
fn scan_goes_through_all_keys() {
    let mut harness = Harness::new();
    for number in 0..2000 {
        harness.run(&format!("SET key:{number} v"));
    }
    for (options, expected, calls_limit) in
        [("", 2000, 250), (" COUNT 100 MATCH *:1*", 1111, 30), (" COUNT 1", 2000, 600), (" TYPE LIST COUNT 1000", 0, 3)]
    {
        let (mut seen, mut cursor, mut calls) = (BTreeSet::new(), String::from("0"), 0);
        loop {
            let keys;
            (cursor, keys) = scan(&mut harness, &format!("SCAN {cursor}{options}"));
            seen.extend(keys);
            calls += 1;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen.len(), expected, "{options}");
        assert!(calls < calls_limit, "{options}: {calls}");
    }
    harness.expect(&[
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN 18446744073709551616", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range"),
        ("SCAN 0 MATCH", "-ERR syntax error"),
        ("SCAN 0 NOPE x", "-ERR syntax error"),
        ("SCAN x COUNT 0", "-ERR invalid cursor"),
    ]);
    for cursor in ["-1", "+7", "18446744073709551615", "\"0\\x00x\"", "\"\""] {
        assert!(harness.run(&format!("SCAN {cursor}")).starts_with('*'), "{cursor}");
    }
}

#[test]
fn scan_bounds_the_work_of_one_call() {
    let mut harness = Harness::new();
    for number in 0..30_000 {
        harness.run_words(&[b"SET", format!("{number}").as_bytes(), b"v"]);
    }
    let (cursor, keys) = scan(&mut harness, "SCAN 0 COUNT 9223372036854775807");
    assert!(cursor != "0" && (5_000..5_100).contains(&keys.len()), "{}", keys.len());
    let (cursor, keys) = scan(&mut harness, "SCAN 0 COUNT 1000 MATCH nothing");
    assert!(cursor != "0" && keys.is_empty());
}

#[test]
fn scan_removes_what_has_expired_and_keys_does_not() {
    let mut harness = Harness::new();
    harness.expect(&[("SET a v PX 5", "+OK"), ("SET b v", "+OK")]);
    harness.at_ms(START_MS + 6);
    harness.expect(&[
        ("KEYS *", "*1 $1 b"),
        ("DBSIZE", ":2"),
        ("SCAN 0 COUNT 100", "*2 $1 0 *1 $1 b"),
        ("DBSIZE", ":1"),
    ]);
    assert_eq!(harness.store.dbs[0].take_lazily_expired(), 1);
}

#[test]
fn keys_match_patterns() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("MSET one 1 two 2 three 3", "+OK"),
        ("KEYS t[^h]*", "*1 $3 two"),
        ("KEYS none*", "*0"),
        ("KEYS one", "*1 $3 one"),
    ]);
    let reply = harness.run("KEYS *");
    assert!(reply.starts_with("*3 ") && ["one", "two", "three"].iter().all(|key| reply.contains(key)), "{reply}");
    let key = vec![b'a'; 100_000];
    let pattern = [b"*".to_vec(), vec![b'a'; 50_000], b"b".to_vec()].concat();
    harness.run_words(&[b"SET", &key, b"v"]);
    let too_complex = b"-ERR pattern takes too many steps to match a key of this length\r\n";
    assert_eq!(harness.run_words(&[b"KEYS", &pattern]), too_complex);
    assert_eq!(harness.run_words(&[b"SCAN", b"0", b"COUNT", b"100", b"MATCH", &pattern]), too_complex);
}
