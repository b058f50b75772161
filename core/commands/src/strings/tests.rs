use crate::harness::{Harness, START_MS};
use alloc::{format, vec};

#[test]
fn set_sets_under_its_conditions() {
    Harness::new().expect(&[
        ("SET k v XX", "$-1"),
        ("SET k v NX GET", "$-1"),
        ("GET k", "$1 v"),
        ("SET k w NX GET", "$1 v"),
        ("SET k w XX GET", "$1 v"),
        ("SET k x nx", "$-1"),
        ("SETNX k x", ":0"),
        ("SETNX l x", ":1"),
        ("GETSET k y", "$1 w"),
        ("MGET k none l", "*3 $1 y $-1 $1 x"),
        ("SET k v NX XX", "-ERR syntax error"),
        ("SET k v XX nx", "-ERR syntax error"),
        ("SET k v maybe", "-ERR syntax error"),
        ("GET k", "$1 y"),
    ]);
}

#[test]
fn set_and_getex_take_times() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("SET k v EX 100", "+OK"),
        ("PTTL k", ":100000"),
        ("SET k v KEEPTTL", "+OK"),
        ("PTTL k", ":100000"),
        ("SET k v", "+OK"),
        ("PTTL k", ":-1"),
        ("SET k v PXAT 1600000005000", "+OK"),
        ("PTTL k", ":5000"),
        ("SET k v EX 10 EX 20", "+OK"),
        ("TTL k", ":20"),
        ("SET k v EX 10 PX 20", "-ERR syntax error"),
        ("SET k v KEEPTTL EX 20", "-ERR syntax error"),
        ("SET k v EX", "-ERR syntax error"),
        ("SET k v PERSIST", "-ERR syntax error"),
        ("SET k v EX 0", "-ERR invalid expire time in 'set' command"),
        ("SET k v PX -1", "-ERR invalid expire time in 'set' command"),
        ("SET k v EX 9223372036854776", "-ERR invalid expire time in 'set' command"),
        ("SET k v PX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
        ("SET k v PX abc", "-ERR value is not an integer or out of range"),
        ("SETEX k 0 v", "-ERR invalid expire time in 'setex' command"),
        ("PSETEX k 9223372036854775807 v", "-ERR invalid expire time in 'psetex' command"),
        ("PSETEX k 70 w", "+OK"),
        ("PTTL k", ":70"),
        ("GETEX k", "$1 w"),
        ("PTTL k", ":70"),
        ("GETEX k EX 5", "$1 w"),
        ("PTTL k", ":5000"),
        ("GETEX k PERSIST", "$1 w"),
        ("PTTL k", ":-1"),
        ("GETEX k PERSIST EX 5", "-ERR syntax error"),
        ("GETEX k KEEPTTL", "-ERR syntax error"),
        ("GETEX none EX 0", "$-1"),
        ("GETEX k EXAT 1", "$1 w"),
        ("EXISTS k", ":0"),
        ("SET k v PX 10", "+OK"),
    ]);
    harness.at_ms(START_MS + 10);
    harness.expect(&[("GET k", "$1 v")]);
    harness.at_ms(START_MS + 11);
    harness.expect(&[("GETDEL k", "$-1")]);
}

#[test]
fn counters_count() {
    Harness::new().expect(&[
        ("INCR n", ":1"),
        ("INCRBY n 9223372036854775806", ":9223372036854775807"),
        ("INCR n", "-ERR increment or decrement would overflow"),
        ("DECRBY n 9223372036854775807", ":0"),
        ("DECR n", ":-1"),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow"),
        ("INCRBY n 1.5", "-ERR value is not an integer or out of range"),
        ("INCRBYFLOAT n 10.6", "$3 9.6"),
        ("OBJECT ENCODING n", "$6 embstr"),
        ("INCR n", "-ERR value is not an integer or out of range"),
        ("SET n 10.50", "+OK"),
        ("INCRBYFLOAT n 0.1", "$4 10.6"),
        ("SET n 5.0e3", "+OK"),
        ("INCRBYFLOAT n 2.0e2", "$4 5200"),
        ("INCR n", ":5201"),
        ("INCRBYFLOAT n inf", "-ERR increment would produce NaN or Infinity"),
        ("INCRBYFLOAT n nan", "-ERR value is not a valid float"),
        ("SET n ' 1'", "+OK"),
        ("INCRBYFLOAT n 1", "-ERR value is not a valid float"),
        ("SET n 1 EX 100", "+OK"),
        ("INCR n", ":2"),
        ("INCRBYFLOAT n 1", "$1 3"),
        ("TTL n", ":100"),
    ]);
}

#[test]
fn ranges_are_read_and_written() {
    Harness::new().expect(&[
        ("APPEND k 12", ":2"),
        ("OBJECT ENCODING k", "$3 int"),
        ("APPEND k 34", ":4"),
        ("OBJECT ENCODING k", "$3 raw"),
        ("INCR k", ":1235"),
        ("SETRANGE k 1 xy", ":4"),
        ("GET k", "$4 1xy5"),
        ("SETRANGE z 3 ab", ":5"),
        ("GET z", "$5 \0\0\0ab"),
        ("SETRANGE none 5 ''", ":0"),
        ("EXISTS none", ":0"),
        ("SETRANGE k -1 a", "-ERR offset is out of range"),
        ("SETRANGE k 536870911 ab", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("SETRANGE k 9223372036854775807 ab", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("GETRANGE k 0 -1", "$4 1xy5"),
        ("GETRANGE k -3 -2", "$2 xy"),
        ("GETRANGE k -1 -3", "$0"),
        ("GETRANGE k -100 0", "$1 1"),
        ("GETRANGE k 3 100", "$1 5"),
        ("GETRANGE k 4 100", "$0"),
        ("SUBSTR k -9223372036854775808 9223372036854775807", "$4 1xy5"),
        ("GETRANGE none 0 -1", "$0"),
        ("STRLEN k", ":4"),
        ("STRLEN none", ":0"),
    ]);
}

#[test]
fn strings_stop_at_their_longest() {
    let mut harness = Harness::new();
    harness.store.options.proto_max_bulk_len = 1 << 20;
    let half = vec![b'x'; 1 << 19];
    for len in ["524288", "1048576"] {
        assert_eq!(harness.run_words(&[b"APPEND", b"k", &half]), format!(":{len}\r\n").into_bytes());
    }
    harness.expect(&[
        ("APPEND k x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("SETRANGE k 1048575 yy", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("SETRANGE k 1048575 y", ":1048576"),
        ("GETRANGE k 1048574 -1", "$2 xy"),
        ("LCS k k LEN", "-ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"),
    ]);
}

#[test]
fn several_keys_are_set_all_or_none() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("MSET a 1 b 2 a 3", "+OK"),
        ("MGET a b", "*2 $1 3 $1 2"),
        ("MSETNX c 1 b 2", ":0"),
        ("EXISTS c", ":0"),
        ("MSETNX c 1 d 2", ":1"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
        ("MSETNX a 1 b", "-ERR wrong number of arguments for 'msetnx' command"),
    ]);
    harness.heap.limit_bytes.set(Some(100 << 20));
    harness.heap.used_bytes.set((100 << 20) - (10 << 20));
    let long = vec![b'x'; 6 << 20];
    let reply = harness.run_words(&[b"MSET", b"a", &long, b"b", &long]);
    assert!(reply.starts_with(b"-OOM"), "{:?}", alloc::string::String::from_utf8_lossy(&reply));
    harness.expect(&[("MGET a b", "*2 $1 3 $1 2")]);
}

#[test]
fn nothing_grows_when_memory_is_full() {
    let mut harness = Harness::new();
    harness.expect(&[("SET k 1", "+OK")]);
    harness.store.options.maxmemory = 1 << 20;
    harness.heap.used_bytes.set(2 << 20);
    for request in [
        "SET k 2",
        "SETNX a 1",
        "SETEX a 1 1",
        "PSETEX a 1 1",
        "GETSET k 2",
        "APPEND k 1",
        "INCR k",
        "DECR k",
        "INCRBY k 1",
        "DECRBY k 1",
        "INCRBYFLOAT k 1",
        "SETRANGE k 0 a",
        "MSET a 1",
        "MSETNX a 1",
        "COPY k a",
    ] {
        assert_eq!(harness.run(request), "-OOM command not allowed when used memory > 'maxmemory'.", "{request}");
    }
    harness.expect(&[("GETEX k EX 10", "$1 1"), ("RENAME k l", "+OK"), ("GETDEL l", "$1 1"), ("DBSIZE", ":0")]);
}

#[test]
fn lcs_finds_the_longest_common_subsequence() {
    Harness::new().expect(&[
        ("MSET a ohmytext b mynewtext", "+OK"),
        ("LCS a b", "$6 mytext"),
        ("LCS a b LEN", ":6"),
        ("LCS a b IDX", "*4 $7 matches *2 *2 *2 :4 :7 *2 :5 :8 *2 *2 :2 :3 *2 :0 :1 $3 len :6"),
        ("LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN", "*4 $7 matches *1 *3 *2 :4 :7 *2 :5 :8 :4 $3 len :6"),
        ("LCS a none IDX", "*4 $7 matches *0 $3 len :0"),
        ("LCS a none", "$0"),
        ("LCS a b IDX LEN", "-ERR If you want both the length and indexes, please just use IDX."),
        ("LCS a b MINMATCHLEN", "-ERR syntax error"),
        ("LCS a b MINMATCHLEN x", "-ERR value is not an integer or out of range"),
        ("LCS a b NONSENSE", "-ERR syntax error"),
    ]);
}
