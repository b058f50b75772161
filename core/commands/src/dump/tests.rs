use crate::harness::Harness;
use alloc::{format, string::String, vec::Vec};

/// What `DUMP` gives, without the reply's frame.
fn dumped(harness: &mut Harness, key: &str) -> Vec<u8> {
    let reply = harness.run_words(&[b"DUMP", key.as_bytes()]);
    let start = reply.iter().position(|&b| b == b'\n').unwrap() + 1;
    reply[start..reply.len() - 2].to_vec()
}

fn restored(harness: &mut Harness, key: &str, payload: &[u8]) -> String {
    let reply = harness.run_words(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"]);
    String::from_utf8(reply).unwrap().trim_end().into()
}

/// Fills keys of every kind and form.
fn fill(harness: &mut Harness, seed: u64) -> Vec<&'static str> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let long = "ab".repeat(rng.usize(1..200));
    harness.run(&format!("SET int {}", rng.i64(..)));
    harness.run(&format!("SET text {long}"));
    for number in 0..rng.usize(1..20) {
        harness.run(&format!("RPUSH list {number} {long} x{number}"));
        harness.run(&format!("SADD intset {}", rng.i64(..) >> rng.u32(..64)));
        harness.run(&format!("SADD set {number} m{number}"));
        harness.run(&format!("HSET hash f{number} {} {number} {long}", rng.i64(..)));
        harness.run(&format!("ZADD zset {} m{number} {}.5 n{number}", rng.i32(..), rng.i32(..)));
    }
    for number in 0..600 {
        harness.run(&format!("RPUSH biglist {number} element:{number}:{long}"));
        harness.run(&format!("SADD bigset {number} m{number}"));
        harness.run(&format!("HSET bighash f{number} {number} {number} {long}"));
        harness.run(&format!("ZADD bigzset {number} m{number} {}.25 n{number}", rng.i32(..)));
    }
    for number in 0..rng.usize(1..150) {
        let name = rng.choice(["a", "b", "c"]).unwrap();
        harness.run(&format!("XADD stream {}-* name {number} {name} {long}", 1000 + number / 3));
    }
    for number in 0..rng.usize(1..20) {
        harness.run(&format!("HSET fields f{number} {number} g{number} {long}"));
        harness.run(&format!("HPEXPIREAT fields {} FIELDS 1 f{number}", 1_600_000_000_001 + rng.u64(..1 << 44)));
    }
    harness.run("XDEL stream 1000-0");
    harness.run("XGROUP CREATE stream group 1000-1");
    harness.run("XGROUP CREATE stream other $ ENTRIESREAD 5");
    harness.run("XREADGROUP GROUP group alice COUNT 3 STREAMS stream >");
    harness.run("XREADGROUP GROUP group bob COUNT 2 STREAMS stream >");
    harness.run("XGROUP CREATECONSUMER stream other idle");
    Vec::from([
        "fields", "stream", "int", "text", "list", "intset", "set", "hash", "zset", "biglist", "bigset", "bighash",
        "bigzset",
    ])
}

/// What a key holds, in an order that is the same for the same content.
fn shown(harness: &mut Harness, key: &str) -> (String, Vec<String>) {
    let kind = harness.run(&format!("TYPE {key}"));
    let command = match kind.as_str() {
        "+string" => format!("GET {key}"),
        "+list" => format!("LRANGE {key} 0 -1"),
        "+set" => format!("SMEMBERS {key}"),
        "+hash" => format!("HGETALL {key}"),
        "+stream" => return (harness.run(&format!("XINFO STREAM {key} FULL")), Vec::new()),
        "+zset" => format!("ZRANGE {key} 0 -1 WITHSCORES"),
        other => panic!("{other}"),
    };
    let mut words: Vec<String> = harness.run(&command).split(' ').map(String::from).collect();
    if kind == "+set" || kind == "+hash" {
        words.sort();
    }
    (harness.run(&format!("OBJECT ENCODING {key}")), words)
}

#[test]
fn what_is_dumped_is_restored() {
    for seed in 0..5 {
        let mut harness = Harness::new();
        for key in fill(&mut harness, seed) {
            let payload = dumped(&mut harness, key);
            assert_eq!(restored(&mut harness, "copy", &payload), "+OK", "{seed} {key}");
            assert_eq!(shown(&mut harness, key), shown(&mut harness, "copy"), "{seed} {key}");
        }
    }
}

#[test]
fn options_are_those_of_redis() {
    let mut harness = Harness::new();
    harness.run("SET k v");
    let payload = dumped(&mut harness, "k");
    let mut run = |words: &[&[u8]]| {
        let request: Vec<&[u8]> = [&[&b"RESTORE"[..]], &words[..2], &[&payload[..]], &words[2..]].concat();
        String::from_utf8(harness.run_words(&request)).unwrap().trim_end().replace("\r\n", " ")
    };
    assert_eq!(run(&[b"k", b"0"]), "-BUSYKEY Target key name already exists.");
    assert_eq!(run(&[b"k", b"-1", b"REPLACE"]), "-ERR Invalid TTL value, must be >= 0");
    assert_eq!(run(&[b"l", b"100", b"NOPE"]), "-ERR syntax error");
    assert_eq!(run(&[b"l", b"100", b"IDLETIME", b"-1"]), "-ERR Invalid IDLETIME value, must be >= 0");
    assert_eq!(run(&[b"l", b"100", b"FREQ", b"256"]), "-ERR Invalid FREQ value, must be >= 0 and <= 255");
    assert_eq!(run(&[b"l", b"100", b"FREQ", b"1", b"IDLETIME", b"1"]), "-ERR syntax error");
    assert_eq!(run(&[b"l", b"100", b"IDLETIME", b"50"]), "+OK");
    assert_eq!(run(&[b"k", b"1", b"ABSTTL", b"REPLACE"]), "+OK");
    harness.expect(&[("PTTL l", ":100"), ("OBJECT IDLETIME l", ":50"), ("EXISTS k", ":0"), ("DUMP none", "$-1")]);
}

/// Payloads with a right checksum and wrong content never do harm: they are refused, or make a value that can be used.
#[test]
fn mutated_payloads_do_no_harm() {
    let mut harness = Harness::new();
    let keys = fill(&mut harness, 1);
    let payloads: Vec<Vec<u8>> = keys.into_iter().map(|key| dumped(&mut harness, key)).collect();
    for seed in 0..4000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut payload = rng.choice(&payloads[..9]).unwrap().clone();
        payload.truncate(payload.len() - kayvee_rdb::FOOTER);
        if rng.u8(..20) == 0 {
            payload = rng.choice(&payloads).unwrap().clone();
        }
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..payload.len());
            match rng.u8(..4) {
                0 => payload[at] = rng.u8(..),
                1 => payload[at] ^= 1 << rng.u8(..8),
                2 => payload.insert(at, rng.u8(..)),
                _ => _ = payload.remove(at),
            }
        }
        payload.extend_from_slice(&kayvee_rdb::VERSION.to_le_bytes());
        payload.extend_from_slice(&kayvee_rdb::checksum(&payload).to_le_bytes());
        let reply = restored(&mut harness, "k", &payload);
        match reply.as_str() {
            "+OK" => {
                assert!(!dumped(&mut harness, "k").is_empty(), "{seed}");
                harness.run("COPY k l REPLACE");
                harness.run("DEL k l");
            }
            "-ERR Bad data format" => {}
            other => panic!("{seed}: {other}"),
        }
    }
}

/// Fields keep their times, in the form of Redis 7.4, which only hashes with such fields have.
#[test]
fn times_of_fields_come_back() {
    let mut harness = Harness::new();
    let plain = {
        harness.run("HSET h a 1 b two c 3");
        dumped(&mut harness, "h")
    };
    harness.run("HPEXPIREAT h 1600000500000 FIELDS 2 a b");
    harness.run("HPEXPIREAT h 1600000400000 FIELDS 1 b");
    let payload = dumped(&mut harness, "h");
    assert_eq!((payload[0], payload[payload.len() - 10]), (24, 12));
    assert_eq!(restored(&mut harness, "copy", &payload), "+OK");
    harness.expect(&[("HPEXPIRETIME copy FIELDS 3 a b c", "*3 :1600000500000 :1600000400000 :-1")]);
    harness.run("HPERSIST h FIELDS 2 a b");
    assert_eq!(dumped(&mut harness, "h")[0], 4, "a table without times is written as ever");
    harness.run("DEL h");
    harness.run("HSET h a 1 b two c 3");
    assert_eq!(dumped(&mut harness, "h"), plain);
    // The packed form, which other stores write: the first time, and a listpack of fields, values and times.
    let mut writer = kayvee_rdb::Writer::new(kayvee_rdb::Compression::Off);
    writer.kind(25);
    writer.bytes(&1_600_000_400_000_u64.to_le_bytes());
    let mut pack = kayvee_rdb::Listpack::new();
    ["b", "two", "1600000400000", "a", "1", "0"].iter().for_each(|text| pack.push(text.as_bytes()));
    writer.text(&pack.finish().unwrap());
    let packed = writer.finish(kayvee_rdb::Dialect::Redis74).unwrap();
    assert_eq!(restored(&mut harness, "packed", &packed), "+OK");
    harness.expect(&[
        ("HPEXPIRETIME packed FIELDS 2 a b", "*2 :-1 :1600000400000"),
        ("HMGET packed a b", "*2 $1 1 $3 two"),
    ]);
}
