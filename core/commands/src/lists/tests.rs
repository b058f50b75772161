use crate::harness::Harness;
use alloc::format;

#[test]
fn large_lists_are_quicklists_until_they_are_small_again() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("RPUSH k a b", ":2"),
        ("OBJECT ENCODING k", "$8 listpack"),
        ("CONFIG SET list-max-listpack-size 4", "+OK"),
        ("RPUSH k c d", ":4"),
        ("OBJECT ENCODING k", "$8 listpack"),
        // Redis counts the old element as well as the new one.
        ("LSET k 0 A", "+OK"),
        ("OBJECT ENCODING k", "$9 quicklist"),
        ("LPOP k", "$1 A"),
        ("OBJECT ENCODING k", "$9 quicklist"),
        ("RPOP k", "$1 d"),
        ("OBJECT ENCODING k", "$8 listpack"),
        ("LRANGE k 0 -1", "*2 $1 b $1 c"),
        ("CONFIG SET list-max-listpack-size 0", "+OK"),
        ("RPUSH one a", ":1"),
        ("OBJECT ENCODING one", "$9 quicklist"),
        ("CONFIG SET list-max-listpack-size -1", "+OK"),
    ]);
    let long = "x".repeat(3000);
    harness.expect(&[
        (&format!("RPUSH long {long}"), ":1"),
        ("OBJECT ENCODING long", "$8 listpack"),
        (&format!("RPUSH long {long}"), ":2"),
        ("OBJECT ENCODING long", "$9 quicklist"),
        ("LTRIM long 0 0", "+OK"),
        ("LSET long 0 short", "+OK"),
        ("OBJECT ENCODING long", "$8 listpack"),
        ("DEL long", ":1"),
    ]);
}
