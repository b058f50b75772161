use crate::harness::Harness;
use alloc::{format, string::String, vec::Vec};

#[test]
fn fields_are_set_and_read() {
    Harness::new().expect(&[
        ("HSET h a 1 b two", ":2"),
        ("HSET h a x c", "-ERR wrong number of arguments for 'hset' command"),
        ("HMSET h c 3 d 4", "+OK"),
        ("HGETALL h", "*8 $1 a $1 1 $1 b $3 two $1 c $1 3 $1 d $1 4"),
        ("HSETNX h a 9", ":0"),
        ("HSETNX h e 9", ":1"),
        ("HMGET h a none e", "*3 $1 1 $-1 $1 9"),
        ("HSTRLEN h b", ":3"),
        ("HSCAN h 0 MATCH [ab]", "*2 $1 0 *4 $1 a $1 1 $1 b $3 two"),
        ("HSCAN h 0 TYPE string", "-ERR syntax error"),
        ("HSCAN none 0 nonsense", "*2 $1 0 *0"),
        ("HINCRBY h a 5", ":6"),
        ("HINCRBY h b 5", "-ERR hash value is not an integer"),
        ("HINCRBYFLOAT h a 0.5", "$3 6.5"),
        ("HINCRBYFLOAT h b 1", "-ERR hash value is not a float"),
        ("HINCRBYFLOAT h a inf", "-ERR value is NaN or Infinity"),
        ("HDEL h a b none", ":2"),
        ("HDEL h c d e c", ":3"),
        ("EXISTS h", ":0"),
        ("SET s v", "+OK"),
        ("HGET s a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("HSET s a b", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ]);
}

#[test]
fn random_fields_are_asked_for_in_every_way() {
    Harness::new().expect(&[
        ("HRANDFIELD none", "$-1"),
        ("HRANDFIELD none 5", "*0"),
        ("HSET h a 1", ":1"),
        ("HRANDFIELD h", "$1 a"),
        ("HRANDFIELD h 0", "*0"),
        ("HRANDFIELD h 7", "*1 $1 a"),
        ("HRANDFIELD h -2", "*2 $1 a $1 a"),
        ("HRANDFIELD h -2 WITHVALUES", "*4 $1 a $1 1 $1 a $1 1"),
        ("HRANDFIELD h 2 NONSENSE", "-ERR syntax error"),
        ("HRANDFIELD h 2 WITHVALUES x", "-ERR syntax error"),
        ("HRANDFIELD h -9223372036854770000 WITHVALUES", "-ERR value is out of range"),
        // More than fits: an error alone, at once, and not behind the head of a reply.
        ("HRANDFIELD h -9223372036854770000", "-OOM command not allowed when used memory > 'maxmemory'."),
        (
            "HRANDFIELD h -9223372036854775808",
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
    ]);
}

/// Long after the tests begin.
const LATER_MS: u64 = crate::harness::START_MS + 1000;

#[test]
fn fields_are_hidden_once_their_time_has_come() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HPEXPIRE h 1000 FIELDS 3 a b none", "*3 :1 :1 :-2"),
        ("OBJECT ENCODING h", "$9 hashtable"),
    ]);
    harness.at_ms(LATER_MS);
    harness.expect(&[("HLEN h", ":3"), ("HPTTL h FIELDS 1 a", "*1 :0")]);
    harness.at_ms(LATER_MS + 1);
    harness.expect(&[
        ("HGET h a", "$-1"),
        ("HMGET h a c", "*2 $-1 $1 3"),
        ("HLEN h", ":1"),
        ("HGETALL h", "*2 $1 c $1 3"),
        ("HSCAN h 0", "*2 $1 0 *2 $1 c $1 3"),
        ("HRANDFIELD h", "$1 c"),
        ("HRANDFIELD h 5 WITHVALUES", "*2 $1 c $1 3"),
        ("HTTL h FIELDS 2 a c", "*2 :-2 :-1"),
        ("RPUSH list \"\"", ":1"),
        ("SORT list BY none GET h*->a GET h*->c", "*2 $-1 $1 3"),
        ("HSET h a 9", ":1"),
        ("HTTL h FIELDS 1 a", "*1 :-1"),
        ("HINCRBY h b 5", ":5"),
        ("HPEXPIRE h 10 FIELDS 3 a b c", "*3 :1 :1 :1"),
    ]);
    harness.at_ms(LATER_MS + 100);
    harness.expect(&[
        ("HGETALL h", "*0"),
        ("HRANDFIELD h", "$-1"),
        ("HRANDFIELD h -3", "*0"),
        ("HDEL h a b", ":0"),
        ("HDEL h c", ":0"),
        ("EXISTS h", ":0"),
    ]);
}

#[test]
fn due_fields_are_deleted_in_slices_and_told_of() {
    let mut harness = Harness::new();
    harness.store.effects.add_listener();
    for number in 0..100 {
        harness.run(&format!("HSET h{number} a 1 b 2"));
        harness.run(&format!("HPEXPIRE h{number} 10 FIELDS 1 a"));
    }
    (0..1000).for_each(|number| _ = harness.run(&format!("HSET large f{number} 1")));
    (0..1000).for_each(|number| _ = harness.run(&format!("HPEXPIRE large 10 FIELDS 1 f{number}")));
    harness.store.effects.take();
    assert!(!harness.store.expire_fields(0, 100));
    assert_eq!(harness.store.effects.take().unwrap(), b"");
    harness.at_ms(LATER_MS);
    let mut told = String::new();
    for slices in 0.. {
        let before = harness.store.stats.expired_fields;
        if !harness.store.expire_fields(0, 100) && harness.store.dbs[0].expiring_hashes() == 0 {
            assert!(slices >= 1100 / 132, "{slices}");
            break;
        }
        assert!((1..=132).contains(&(harness.store.stats.expired_fields - before)));
        harness.store.end_unit();
        told += &String::from_utf8(harness.store.effects.take().unwrap()).unwrap();
    }
    harness.store.end_unit();
    told += &String::from_utf8(harness.store.effects.take().unwrap()).unwrap();
    assert_eq!((told.matches("\r\nf").count(), told.matches("\r\na\r\n").count()), (1000, 100));
    assert!(!told.contains("MULTI"), "{told}");
    harness.expect(&[("DBSIZE", ":100"), ("EXISTS large", ":0"), ("HGETALL h7", "*2 $1 b $1 2")]);
    assert!(harness.run("INFO stats").contains("expired_subkeys:1100"));
}

/// What a replica and the log are told does the same whenever it is run.
#[test]
fn times_of_fields_are_told_as_moments() {
    let mut harness = Harness::new();
    harness.run("HSET h a 1 b 2 c 3 d 4.5");
    harness.store.effects.add_listener();
    for (request, told) in [
        ("HEXPIRE h 1 FIELDS 2 a none", "SELECT 0 HPEXPIREAT h 1600000001000 FIELDS 1 a"),
        ("HEXPIRE h 100 NX FIELDS 2 a b", "HPEXPIREAT h 1600000100000 FIELDS 1 b"),
        ("HEXPIRE h 50 GT FIELDS 1 b", ""),
        ("HEXPIRE h 100 FIELDS 1 d", "HPEXPIREAT h 1600000100000 FIELDS 1 d"),
        ("HINCRBYFLOAT h d 1", "MULTI HSET h d 5.5 HPEXPIREAT h 1600000100000 FIELDS 1 d EXEC"),
        ("HINCRBY h b 1", "HINCRBY h b 1"),
        ("HPERSIST h FIELDS 3 b c none", "HPERSIST h FIELDS 1 b"),
        ("HPERSIST h FIELDS 1 c", ""),
        ("HEXPIRE h 0 FIELDS 2 b none", "HDEL h b"),
        ("HSET \"\" FIELDS 1 g 2", "HSET FIELDS 1 g 2"),
        ("HEXPIRE \"\" 0 FIELDS 1 g", "HDEL g"),
        ("HEXPIRE \"\" 0 FIELDS 1 FIELDS", "HDEL FIELDS"),
    ] {
        harness.run(request);
        harness.store.end_unit();
        assert_eq!(words(&harness.store.effects.take().unwrap()), told, "{request}");
    }
    harness.at_ms(LATER_MS + 1);
    for (request, told) in
        [("HGET h a", ""), ("HINCRBY h c 1", "HINCRBY h c 1"), ("HINCRBY h a 1", "MULTI HDEL h a HINCRBY h a 1 EXEC")]
    {
        harness.run(request);
        harness.store.end_unit();
        assert_eq!(words(&harness.store.effects.take().unwrap()), told, "{request}");
    }
}

/// The words of encoded requests.
fn words(bytes: &[u8]) -> String {
    let text = core::str::from_utf8(bytes).unwrap();
    let is_word = |line: &&str| !line.is_empty() && !line.starts_with(['*', '$']);
    text.split("\r\n").filter(is_word).collect::<Vec<_>>().join(" ")
}
