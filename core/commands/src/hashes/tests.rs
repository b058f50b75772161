use crate::harness::Harness;

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
        (
            "HRANDFIELD h -9223372036854775808",
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
    ]);
}
