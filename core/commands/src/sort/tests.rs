use crate::harness::Harness;

#[test]
fn lists_sets_and_sorted_sets_are_sorted() {
    Harness::new().expect(&[
        ("RPUSH l 3 10 -1 2.5", ":4"),
        ("SORT l", "*4 $2 -1 $3 2.5 $1 3 $2 10"),
        ("SORT l DESC LIMIT 1 2", "*2 $1 3 $3 2.5"),
        ("SORT l ALPHA", "*4 $2 -1 $2 10 $3 2.5 $1 3"),
        ("SORT l BY nosort DESC", "*4 $3 2.5 $2 -1 $2 10 $1 3"),
        ("SORT l LIMIT 5 2", "*0"),
        ("SORT l LIMIT 1 -1", "*3 $3 2.5 $1 3 $2 10"),
        ("RPUSH l x", ":5"),
        ("SORT l", "-ERR One or more scores can't be converted into double"),
        ("SORT l ALPHA LIMIT 4 1", "*1 $1 x"),
        ("SORT l LIMIT 1", "-ERR syntax error"),
        ("SORT_RO l STORE d", "-ERR syntax error"),
        ("ZADD z 3 a 1 b 2 c", ":3"),
        ("SORT z ALPHA", "*3 $1 a $1 b $1 c"),
        ("SORT z BY nosort", "*3 $1 b $1 c $1 a"),
        ("SORT z BY nosort DESC", "*3 $1 a $1 c $1 b"),
        ("SORT none", "*0"),
        ("SET s v", "+OK"),
        ("SORT s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ]);
}

#[test]
fn other_keys_give_order_and_content() {
    Harness::new().expect(&[
        ("SADD s 1 2 3", ":3"),
        ("MSET w_1 30 w_2 20 w_3 10", "+OK"),
        ("HSET h_1 f b g 1", ":2"),
        ("HSET h_2 f a", ":1"),
        ("SORT s BY w_*", "*3 $1 3 $1 2 $1 1"),
        ("SORT s BY h_*->f ALPHA", "*3 $1 3 $1 2 $1 1"),
        ("SORT s BY h_*->f ALPHA DESC GET # GET h_*->g", "*6 $1 1 $1 1 $1 2 $-1 $1 3 $-1"),
        ("SORT s GET w_* GET nothing", "*6 $2 30 $-1 $2 20 $-1 $2 10 $-1"),
        ("SORT s BY w_* GET h_*->f STORE d", ":3"),
        ("LRANGE d 0 -1", "*3 $0  $1 a $1 b"),
        ("SORT none STORE d", ":0"),
        ("EXISTS d", ":0"),
        ("COMMAND GETKEYS SORT s BY w_* STORE d", "*2 $1 s $1 d"),
        ("COMMAND GETKEYS SORT s STORE get STORE d", "*2 $1 s $1 d"),
    ]);
}
