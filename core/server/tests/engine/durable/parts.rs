//! Collections that are written down in parts: whatever is done to one meanwhile, a start finds the same.

use super::{ALWAYS, Durable};
use crate::disk::Disk;

/// Collections are large from the third member on.
const SMALL: &[&str] = &[
    "--hash-max-listpack-entries",
    "2",
    "--set-max-listpack-entries",
    "2",
    "--set-max-intset-entries",
    "2",
    "--zset-max-listpack-entries",
    "2",
    "--list-max-listpack-size",
    "2",
    "--stream-node-max-entries",
    "2",
];

/// Turns between the begin of a compaction and what is done: one more than it takes to its end.
const TURNS: std::ops::Range<usize> = 0..8;

/// What is done to a key of any kind.
const ANY: &[&str] = &[
    "PING",
    "EXPIRE k 5000",
    "EXPIRE k 50 NX",
    "EXPIRE k 5000 XX",
    "EXPIRE k 5000 GT",
    "EXPIRE k 50 LT",
    "EXPIREAT k 1",
    "PEXPIRE k 1",
    "PERSIST k",
    "RENAME k other",
    "RENAMENX k other",
    "RENAME o k",
    "COPY k other",
    "COPY o k REPLACE",
    "COPY o k DB 1",
    "COPY k o DB 1",
    "MOVE k 1",
    "DEL k",
    "COPY k other\r\nUNLINK k\r\nRENAME other k",
    "SET k v",
    "MSET k v",
    "SET k v\r\nCOPY o k REPLACE",
    "FLUSHDB",
    "SWAPDB 0 1\r\nSELECT 1\r\nEXPIRE k 5000",
    "EVAL \"redis.call('RESTORE', 'k', 0, redis.call('DUMP', 'o'), 'REPLACE')\" 0",
];

/// What is done to a key of a kind while it is written down.
struct Case {
    /// Makes `k` and `o`.
    made: &'static [&'static str],
    /// What has gone before, in the same turn. `{x}` is a member, `{rest}` are all others, and `{y}` is one of these.
    before: &'static [&'static str],
    members: &'static [&'static str],
    meanwhile: &'static [&'static str],
    /// Shows what the digest does not.
    shown: &'static [&'static str],
}

impl Case {
    fn run(&self) {
        for before in self.before {
            for meanwhile in ANY.iter().chain(self.meanwhile) {
                if !before.contains("{rest}") {
                    let turns = if before.is_empty() { TURNS } else { 2..5 };
                    turns.for_each(|turns| self.try_one(before, &self.named(meanwhile, 0), turns));
                    continue;
                }
                // Some of these are written by then, and some are not.
                for at in 0..self.members.len() {
                    self.try_one(&self.named(before, at), &self.named(meanwhile, at), 2 + at % 3);
                }
            }
        }
    }

    /// A request about this member and another one.
    fn named(&self, request: &str, at: usize) -> String {
        let members = self.members;
        let rest: Vec<&str> = members.iter().filter(|member| **member != members[at]).copied().collect();
        let other = members[(at + 3) % members.len()];
        request.replace("{rest}", &rest.join(" ")).replace("{x}", members[at]).replace("{y}", other)
    }

    fn try_one(&self, before: &str, meanwhile: &str, turns: usize) {
        let options = [ALWAYS, SMALL].concat();
        let mut one = Durable::new(&options, Disk::new(1 << 20));
        one.bench.engine.set_part_sizes(2, 3);
        for request in self.made {
            one.ask(request);
        }
        one.ask("PEXPIRE k 900000");
        one.bench.let_time_pass();
        one.send(one.client, "BGREWRITEAOF");
        (0..turns).for_each(|_| one.turn());
        // As one unit or as several.
        let is_one = turns % 3 == 1;
        let requests = [if is_one { "MULTI" } else { "" }, before, meanwhile, if is_one { "EXEC" } else { "" }];
        one.send(one.client, &requests.join("\r\n"));
        one.turn();
        one.client = one.bench.connect();
        // Whether the replay begins before the compaction or with it.
        for _ in 0..2 {
            let state = self.state(&mut one);
            let mut two = one.reopened(&options);
            assert_eq!(self.state(&mut two), state, "{before}, {meanwhile} after {turns} turns");
            (0..50).for_each(|_| one.turn());
        }
    }

    /// What all data come to.
    fn state(&self, durable: &mut Durable) -> Vec<String> {
        let shown = ["DEBUG DIGEST", "PEXPIRETIME k", "PEXPIRETIME other"].iter().chain(self.shown);
        shown.map(|request| durable.ask(request)).collect()
    }
}

#[test]
fn sorted_sets_are_written_down_in_parts() {
    Case {
        made: &["ZADD k 5 a 3 b 8 c 1 d 7 e 2 f 6 g 4 5", "ZADD o 3 b 9 z 1 y 4 x"],
        before: &["", "ZREM k {rest}", "ZREM k {rest}\r\nZADD k 9 {y}\r\nZREM k {x}", "ZREM k {rest}\r\nEXPIRE k 5000"],
        members: &["a", "b", "c", "d", "e", "f", "g", "5"],
        meanwhile: &[
            "ZADD k 9 {y}\r\nZREM k {x}",
            "ZADD k GT 5 {x} 6 {x}",
            "ZADD k 5 5",
            "ZADD k XX 50 {x} 7 new",
            "ZADD k NX 50 {x} 7 new",
            "ZADD k LT CH -5 {x} 9 {y}",
            "ZADD k INCR 2 {x}",
            "ZINCRBY k 5 5",
            "ZINCRBY k 5 {y}",
            "GEOADD k 1 1 {x} 2 2 {x}",
            "ZREM k {x}",
            "ZREMRANGEBYRANK k 0 1",
            "ZREMRANGEBYRANK k -2 -1",
            "ZREMRANGEBYRANK k 1 -2",
            "ZREMRANGEBYSCORE k 2 (6",
            "ZREMRANGEBYLEX k [b (f",
            "ZREMRANGEBYLEX k - (c",
            "ZREMRANGEBYLEX k (a +",
            "ZPOPMIN k",
            "ZPOPMAX k 3",
            "ZMPOP 1 k MIN COUNT 2",
            "BZPOPMIN k 0",
            "BZMPOP 0 1 k MAX COUNT 3",
            "ZUNIONSTORE k 2 k o",
            "ZINTERSTORE k 2 k o",
            "ZDIFFSTORE k 2 k o",
            "ZDIFFSTORE o 2 o k",
            "ZRANGESTORE k k 1 3",
            "ZRANGESTORE o k [b (f BYLEX",
            "SORT k ALPHA STORE k",
            "SORT k ALPHA STORE o",
            "DEL k\r\nZADD k 1 q 2 r 3 s 4 t",
        ],
        shown: &[],
    }
    .run();
}

/// A search by name finds the same if all members have the same score, whichever are there.
#[test]
fn sorted_sets_of_one_score_are_written_down_in_parts() {
    Case {
        made: &["ZADD k 0 a 0 b 0 c 0 d 0 e 0 f 0 g", "ZADD o 0 a 0 b 0 x"],
        before: &["", "ZREM k {rest}"],
        members: &["a", "b", "c", "d", "e", "f", "g"],
        meanwhile: &["ZREMRANGEBYLEX k [b (f", "ZREMRANGEBYLEX k - (c", "ZADD k 1 a\r\nZREMRANGEBYLEX k (a +"],
        shown: &[],
    }
    .run();
}

#[test]
fn sets_are_written_down_in_parts() {
    Case {
        made: &["SADD k a b c d e f g 5", "SADD o a b x y"],
        before: &["", "SREM k {rest}", "SREM k {rest}\r\nSADD k {y}\r\nSREM k {x}"],
        members: &["a", "b", "c", "d", "e", "f", "g", "5"],
        meanwhile: &[
            "SADD k {y}\r\nSREM k {x}",
            "SADD k {x} {y} new",
            "SREM k {x}",
            "SPOP k",
            "SPOP k 3",
            "SPOP k 100",
            "SMOVE k o {x}",
            "SMOVE o k x",
            "SMOVE o k a",
            "SMOVE k k {x}",
            "SINTERSTORE k k o",
            "SUNIONSTORE k k o",
            "SDIFFSTORE k k o",
            "SUNIONSTORE o k o",
            "SORT k ALPHA STORE k",
            "SORT k ALPHA STORE o",
            "DEL k\r\nSADD k q r s t",
        ],
        shown: &[],
    }
    .run();
}

#[test]
fn hashes_are_written_down_in_parts() {
    Case {
        made: &[
            "HSET k a 1 b 2 c 3 d 4 e 5 f 6 g 7 5 8",
            "HSET o a 1 b 2 x 3 y 4",
            "HPEXPIRE k 800000 FIELDS 4 a c e 5",
            "HPEXPIRE o 800000 FIELDS 1 x",
        ],
        before: &[
            "",
            "HDEL k {rest}",
            "HDEL k {rest}\r\nHSET k {y} 9\r\nHEXPIRE k 700 FIELDS 1 {y}\r\nHDEL k {x}",
            "HDEL k {rest}\r\nHPERSIST k FIELDS 1 {x}",
        ],
        members: &["a", "b", "c", "d", "e", "f", "g", "5"],
        meanwhile: &[
            "HSET k {y} 5\r\nHDEL k {x}",
            "HSET k {x} 5 {y} 6 new 7",
            "HSETNX k {x} 6",
            "HSETNX k {y} 6",
            "HDEL k {x}",
            "HINCRBY k {x} 5",
            "HINCRBY k {y} 5",
            "HINCRBY k 5 5",
            "HINCRBYFLOAT k {x} 0.5",
            "HEXPIRE k 5000 FIELDS 2 {x} {y}",
            "HEXPIRE k 5000 NX FIELDS 2 {x} {y}",
            "HEXPIRE k 5000 XX FIELDS 2 {x} {y}",
            "HEXPIRE k 5000 GT FIELDS 2 {x} {y}",
            "HEXPIRE k 50 LT FIELDS 2 {x} {y}",
            "HPEXPIREAT k 1 FIELDS 1 {x}",
            "HPEXPIRE k 1 FIELDS 2 {x} {y}",
            "HPERSIST k FIELDS 2 {x} {y}",
            "DEL k\r\nHSET k q 1 r 2 s 3 t 4",
        ],
        shown: &["HPEXPIRETIME k FIELDS 9 a b c d e f g 5 new"],
    }
    .run();
}

#[test]
fn lists_are_written_down_in_parts() {
    Case {
        made: &["RPUSH k a b c d e f d g", "RPUSH o a b c d x"],
        before: &["", "LPOP k 5", "RPOP k 5", "LTRIM k 3 3", "LPUSH k new\r\nRPUSH k new"],
        members: &["a", "b", "c", "d", "e", "f", "d", "g"],
        meanwhile: &[
            "LPUSH k x y",
            "RPUSH k x y",
            "LPUSHX k x",
            "RPUSHX k x",
            "LPOP k",
            "RPOP k 3",
            "LPOP k 7",
            "LMPOP 1 k RIGHT COUNT 3",
            "BLPOP k 0",
            "BLMPOP 0 1 k LEFT COUNT 2",
            "LMOVE k k LEFT RIGHT",
            "LMOVE o k RIGHT LEFT",
            "LMOVE k o RIGHT LEFT",
            "RPOPLPUSH k k",
            "BRPOPLPUSH k o 0",
            "BLMOVE o k LEFT RIGHT 0",
            "LTRIM k 1 -2",
            "LTRIM k 0 2",
            "LTRIM k -3 -1",
            "LTRIM k 2 4",
            "LTRIM k -6 5",
            "LSET k 0 x",
            "LSET k -1 x",
            "LSET k 3 x",
            "LSET k -4 x",
            "LINSERT k BEFORE d x",
            "LINSERT k AFTER d x",
            "LREM k 1 d",
            "LREM k -1 d",
            "SORT k ALPHA STORE k",
            "SORT k ALPHA STORE o",
            "SORT o ALPHA STORE k",
            "DEL k\r\nRPUSH k q r s t",
        ],
        shown: &[],
    }
    .run();
}

#[test]
fn streams_are_written_down_in_parts() {
    Case {
        made: &[
            "XADD k 1-1 f v",
            "XADD k 1-2 f v",
            "XADD k 1-3 f v",
            "XADD k 1-4 f v",
            "XADD k 1-5 f v",
            "XADD k 1-6 f v",
            "XADD k 1-7 f v",
            "XADD k 1-8 f v",
            "XADD o 1-1 f v",
            "XGROUP CREATE k g 0",
            "XREADGROUP GROUP g c COUNT 6 STREAMS k >",
            "XACK k g 1-2",
        ],
        before: &["", "XDEL k 1-1 1-2 1-8", "XTRIM k MAXLEN 1", "XTRIM k MAXLEN 0", "XGROUP CREATE k h 1-3"],
        members: &["1-1"],
        meanwhile: &[
            "XADD k 9-1 f v",
            "XADD k MAXLEN 3 9-1 f v",
            "XADD k MINID 1-4 9-1 f v",
            "XDEL k 1-2 1-7",
            "XTRIM k MAXLEN 2",
            "XTRIM k MINID 1-5",
            "XSETID k 20-0",
            "XSETID k 20-0 ENTRIESADDED 100 MAXDELETEDID 1-8",
            "XGROUP CREATE k i $",
            "XGROUP CREATE k i 1-3 ENTRIESREAD 3",
            "XGROUP SETID k g 1-2",
            "XGROUP DESTROY k g",
            "XGROUP CREATECONSUMER k g d",
            "XGROUP DELCONSUMER k g c",
            "XREADGROUP GROUP g d COUNT 1 STREAMS k >",
            "XREADGROUP GROUP g d NOACK STREAMS k >",
            "XREADGROUP GROUP g c STREAMS k 0",
            "XACK k g 1-1 1-3 1-6",
            "XCLAIM k g d 0 1-1 1-3",
            "XCLAIM k g d 0 1-8 FORCE",
            "XCLAIM k g d 0 1-5 JUSTID",
            "XAUTOCLAIM k g d 0 0 COUNT 2",
            "XDEL k 1-3\r\nXCLAIM k g d 0 1-3 1-4",
            "XDEL k 1-1\r\nXAUTOCLAIM k g d 0 0",
            "XGROUP DESTROY k g\r\nXGROUP CREATE k g 0\r\nXREADGROUP GROUP g c COUNT 2 STREAMS k >",
            "DEL k\r\nXADD k 1-1 f v",
        ],
        shown: &[
            "XINFO GROUPS k",
            "XPENDING k g - + 100",
            "EVAL \"local s = redis.call('XINFO', 'STREAM', 'k') return cjson.encode({s[2], s[8], s[10], s[12]})\" 0",
        ],
    }
    .run();
}
