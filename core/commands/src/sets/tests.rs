use crate::harness::Harness;
use alloc::{format, vec::Vec};

#[test]
fn members_are_added_moved_and_removed() {
    Harness::new().expect(&[
        ("SADD s 3 1 2 1", ":3"),
        ("SMEMBERS s", "*3 $1 1 $1 2 $1 3"),
        ("OBJECT ENCODING s", "$6 intset"),
        ("SADD s x", ":1"),
        ("OBJECT ENCODING s", "$8 listpack"),
        ("SMISMEMBER s 1 x y", "*3 :1 :1 :0"),
        ("SISMEMBER s 01", ":0"),
        ("SMOVE s t 1", ":1"),
        ("SMOVE s t 1", ":0"),
        ("SMOVE s s 2", ":1"),
        ("SMEMBERS t", "*1 $1 1"),
        ("SREM s 2 3 x y", ":3"),
        ("EXISTS s", ":0"),
        ("SMOVE t s 1", ":1"),
        ("EXISTS t", ":0"),
        ("SSCAN s 0", "*2 $1 0 *1 $1 1"),
        ("SET k v", "+OK"),
        ("SMOVE s k 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("SISMEMBER s 1", ":1"),
    ]);
}

#[test]
fn sets_are_compared() {
    Harness::new().expect(&[
        ("SADD a 1 2 3 4", ":4"),
        ("SADD b 3 4 5", ":3"),
        ("SADD c 4 x", ":2"),
        ("SINTER a b c", "*1 $1 4"),
        ("SINTER a none b", "*0"),
        ("SUNION a b c", "*6 $1 1 $1 2 $1 3 $1 4 $1 5 $1 x"),
        ("SUNION none c c", "*2 $1 4 $1 x"),
        ("SDIFF a b c", "*2 $1 1 $1 2"),
        ("SDIFF a a", "*0"),
        ("SDIFF none a", "*0"),
        ("SDIFFSTORE a a b", ":2"),
        ("SMEMBERS a", "*2 $1 1 $1 2"),
        ("SINTERSTORE d a b", ":0"),
        ("SUNIONSTORE d a b", ":5"),
        ("SINTERSTORE d d none", ":0"),
        ("EXISTS d", ":0"),
        ("SINTERCARD 2 b b LIMIT 2", ":2"),
        ("SINTERCARD 2 b b LIMIT 0", ":3"),
        ("SINTERCARD 0 b", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD 2 b b LIMIT -1", "-ERR LIMIT can't be negative"),
        ("SINTERCARD 2 b b LIMIT", "-ERR syntax error"),
        ("SINTERCARD 3 b b", "-ERR Number of keys can't be greater than number of args"),
    ]);
}

/// Large sets against what a model says, in every combination of forms.
#[test]
fn large_sets_are_compared() {
    use alloc::collections::BTreeSet;
    let mut harness = Harness::new();
    let mut rng = fastrand::Rng::with_seed(4);
    for round in 0..30 {
        harness.run("FLUSHALL");
        let sets: Vec<BTreeSet<u32>> = (0..rng.usize(1..5))
            .map(|_| {
                let (len, range) = (rng.usize(1..800), rng.u32(10..1500));
                (0..len).map(|_| rng.u32(..range)).collect()
            })
            .collect();
        let mut keys = Vec::new();
        for (at, set) in sets.iter().enumerate() {
            let prefix = if rng.bool() { "x" } else { "" };
            for member in set {
                harness.run(&format!("SADD s{at} {member}"));
            }
            if !prefix.is_empty() {
                harness.run(&format!("SADD s{at} x"));
                harness.run(&format!("SREM s{at} x"));
            }
            keys.push(format!("s{at}"));
        }
        let keys = keys.join(" ");
        let mut expected = [sets[0].clone(), sets[0].clone(), sets[0].clone()];
        for set in &sets[1..] {
            expected[0].retain(|member| set.contains(member));
            expected[1].extend(set);
            expected[2].retain(|member| !set.contains(member));
        }
        for (command, expected) in ["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"].iter().zip(expected) {
            assert_eq!(harness.run(&format!("{command} d {keys}")), format!(":{}", expected.len()), "round {round}");
            let members: Vec<_> = expected.iter().map(|member| format!("{member}")).collect();
            if !members.is_empty() {
                let all = harness.run(&format!("SMISMEMBER d {}", members.join(" ")));
                assert!(!all.contains(":0"), "round {round}");
            }
            let reply = harness.run(&format!("{} {keys}", &command[..command.len() - 5]));
            assert!(reply.starts_with(&format!("*{}", expected.len())), "round {round}");
        }
    }
}

#[test]
fn random_members_are_popped_and_shown() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("SPOP none", "$-1"),
        ("SPOP none 2", "*0"),
        ("SRANDMEMBER none", "$-1"),
        ("SRANDMEMBER none 2", "*0"),
        ("SADD s a", ":1"),
        ("SRANDMEMBER s -2", "*2 $1 a $1 a"),
        ("SRANDMEMBER s 2", "*1 $1 a"),
        ("SPOP s 0", "*0"),
        ("SPOP s -1", "-ERR value is out of range, must be positive"),
        ("SPOP s 5", "*1 $1 a"),
        ("EXISTS s", ":0"),
    ]);
    for number in 0..1000 {
        harness.run(&format!("SADD s {number}"));
    }
    assert!(harness.run("SPOP s 500").starts_with("*500 "));
    assert_eq!(harness.run("OBJECT ENCODING s"), "$9 hashtable");
    assert!(harness.run("SPOP s 495").starts_with("*495 "));
    assert_eq!((harness.run("SCARD s"), harness.run("OBJECT ENCODING s")), (":5".into(), "$8 listpack".into()));
    for _ in 0..5 {
        assert!(harness.run("SPOP s").starts_with('$'));
    }
    assert_eq!(harness.run("SPOP s"), "$-1");
}
