//! Being a replica of a master that the test speaks for, which sends what it should and what it should not.

use super::chain::peer;
use crate::{bench::Bench, disk::Disk, web::key_page};
use kayvee_server::{ClientId, Fate};

const HISTORY: &str = "0123456789012345678901234567890123456789";

/// A replica, its user, and its connection to a master that the test speaks for.
fn replica_of_a_stranger() -> (Bench, ClientId, ClientId) {
    let mut bench = Bench::new(&["--enable-debug-command", "yes"]);
    let (user, link) = follow_a_stranger(&mut bench);
    (bench, user, link)
}

fn follow_a_stranger(bench: &mut Bench) -> (ClientId, ClientId) {
    let user = bench.connect();
    bench.ask(user, "REPLICAOF 10.0.0.1 6379\r\n");
    let dial = bench.engine.next_dial().expect("it has a master");
    let link = bench.engine.dialed(&dial, peer(1)).expect("it was asked for");
    (user, link)
}

/// A replica hides a key whose time has come already when its master gives it that time, and keeps it until the master says
/// that it goes, or that it stays.
#[test]
fn keys_of_a_replica_go_when_the_master_says_so() {
    let (mut bench, user, link) = replica_of_a_stranger();
    let greeting = format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n");
    bench.engine.receive(link, greeting.as_bytes());
    assert!(bench.ask(user, "INFO replication\r\n").contains("master_link_status:up"));
    bench.ask(user, "CONFIG SET replica-read-only no\r\n");
    for given in ["SET k v\r\nPEXPIREAT k 1000", "SET k v\r\nEXPIREAT k -5", "SET k v\r\nGETEX k PXAT 1000"] {
        for (by, is_master) in [(link, true), (user, false)] {
            bench.ask(by, &format!("{given}\r\n"));
            assert_eq!(bench.ask(user, "GET k\r\nDBSIZE\r\n"), "$-1\r\n:1\r\n", "{given}, by the master: {is_master}");
            bench.ask(link, "PERSIST k\r\n");
            assert_eq!(bench.ask(user, "GET k\r\n"), "$1\r\nv\r\n", "{given}, by the master: {is_master}");
            bench.ask(link, &format!("{given}\r\nDEL k\r\n"));
            assert_eq!(bench.ask(user, "DBSIZE\r\n"), ":0\r\n");
        }
    }
    bench.ask(link, "SET k v\r\n");
    bench.engine.receive(user, b"DUMP k\r\n");
    let dump = bench.take(user);
    bench.engine.receive(link, b"DEL k\r\n*5\r\n$7\r\nRESTORE\r\n$1\r\nk\r\n$4\r\n1000\r\n");
    bench.engine.receive(link, &[&dump[..], b"$6\r\nABSTTL\r\n"].concat());
    assert_eq!(bench.ask(user, "GET k\r\nDBSIZE\r\n"), "$-1\r\n:1\r\n");
}

/// What a client has given a time to live goes by itself; not what a master sends anew under the same name.
#[test]
fn keys_of_a_replica_are_the_master_s_after_it_has_sent_all() {
    let (mut bench, user, link) = replica_of_a_stranger();
    bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
    let given = "CONFIG SET replica-read-only no\r\nSET k v PX 3000\r\n";
    assert_eq!(bench.ask(user, given), "+OK\r\n+OK\r\n");
    let pass = |bench: &mut Bench| {
        bench.advance_ms(2000);
        bench.ask(user, "PING\r\n");
    };
    (0..2).for_each(|_| pass(&mut bench));
    assert_eq!(bench.ask(user, &format!("DBSIZE\r\n{given}")), ":0\r\n+OK\r\n+OK\r\n");
    bench.engine.disconnect(link);
    pass(&mut bench);
    let dial = bench.engine.next_dial().expect("it asks its master again");
    let link = bench.engine.dialed(&dial, peer(2)).expect("it was asked for");
    bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+FULLRESYNC {HISTORY} 5\r\n").as_bytes());
    let dump = b"REDIS0011\xfe\x00\xfc\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01k\x01w\xff\0\0\0\0\0\0\0\0";
    bench.engine.receive(link, &[format!("${}\r\n", dump.len()).as_bytes(), dump].concat());
    assert!(bench.ask(user, "INFO replication\r\n").contains("master_link_status:up"));
    pass(&mut bench);
    assert_eq!(
        bench.ask(user, "GET k\r\nDBSIZE\r\n"),
        "$-1\r\n:1\r\n",
        "it is hidden until the master says that it goes"
    );
}

/// Where a client is told that the data are old, or still to come, a page is not shown, and not said to be missing.
#[test]
fn keys_are_no_pages_while_a_replica_has_no_good_data() {
    const NOT_NOW: (u16, &str) = (503, "no-store");
    const SHOWN: (u16, &str) = (200, "no-cache");
    let mut bench = Bench::new(&["--http-keys", "page:"]);
    let user = bench.connect();
    bench.ask(user, "SET page:k old\r\n");
    let (_, link) = follow_a_stranger(&mut bench);
    assert_eq!(key_page(&mut bench), SHOWN);
    bench.ask(user, "CONFIG SET replica-serve-stale-data no\r\n");
    assert!(bench.ask(user, "GET page:k\r\n").starts_with("-MASTERDOWN "));
    assert_eq!(key_page(&mut bench), NOT_NOW);
    bench.ask(user, "CONFIG SET replica-serve-stale-data yes\r\n");
    bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+FULLRESYNC {HISTORY} 5\r\n").as_bytes());
    let dump = b"REDIS0011\x00\x06page:k\x03new\xff\0\0\0\0\0\0\0\0";
    bench.engine.receive(link, &[format!("${}\r\n", dump.len()).as_bytes(), &dump[..12]].concat());
    assert!(bench.ask(user, "GET page:k\r\n").starts_with("-LOADING "));
    assert_eq!(key_page(&mut bench), NOT_NOW);
    bench.engine.receive(link, &dump[12..]);
    assert_eq!(bench.ask(user, "GET page:k\r\n"), "$3\r\nnew\r\n");
    assert_eq!(key_page(&mut bench), SHOWN);
}

/// What a replica's log says is the same without the master: of keys whose time is over, too, which the master has kept, or
/// a client of a writable replica has found missing.
#[test]
fn the_log_of_a_replica_says_what_the_master_has_kept() {
    for (said, then) in [
        ("SET k v\r\nPEXPIREAT k 1000\r\nPERSIST k", "v"),
        ("SET k v\r\nEXPIREAT k -5\r\nPERSIST k", "v"),
        ("SET k v PXAT 1000\r\nSET k w XX KEEPTTL\r\nEXPIREAT k 4000000000", "w"),
        ("SET k v PXAT 1000\r\nMULTI\r\nGETEX k PXAT 2000\r\nAPPEND k w\r\nEXEC\r\nPERSIST k", "vw"),
        ("SET k 1\r\nGETEX k PXAT 1000\r\nINCR k\r\nPERSIST k", "2"),
        ("SET o v PXAT 1000\r\nRENAME o k\r\nCOPY k o\r\nPERSIST k", "v"),
        (
            "HSET h f v\r\nHPEXPIREAT h 1000 FIELDS 1 f\r\nHPERSIST h FIELDS 1 f\r\nEVAL \"return redis.call('set', 'k', 'v')\" 0",
            "v",
        ),
        ("SET k v PXAT 1000\r\nDEL k\r\nSET k w NX", "w"),
        ("SET k v PXAT 1000;SET k w NX;STRLEN k", "w"),
        ("SET k v PXAT 1000;SETRANGE o 0 x\r\nBITOP OR o k;PERSIST k", "v"),
        ("SET k v PXAT 1000;DEL k;SET k w NX", "w"),
    ] {
        let options = ["--enable-debug-command", "yes", "--appendonly", "yes"];
        let (mut bench, mut disk) = (Bench::new(&options), Disk::new(8 << 20));
        bench.engine.open_log(&mut disk).expect("the disk is blank");
        let (user, link) = follow_a_stranger(&mut bench);
        bench.ask(user, "CONFIG SET replica-read-only no\r\n");
        bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
        // What the master and a client say in turns.
        for (at, said) in said.split(';').enumerate() {
            bench.ask([link, user][at % 2], &format!("{said}\r\n"));
        }
        for _ in 0..100 {
            bench.advance_ms(20);
            bench.engine.drive_log(&mut disk);
        }
        let digest = |bench: &mut Bench| {
            let user = bench.connect();
            bench.ask(user, "GET k\r\nDEBUG DIGEST\r\nHGETALL h\r\n")
        };
        let whole = digest(&mut bench);
        let mut again = Bench::new(&options);
        again.engine.open_log(&mut disk.copy()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(digest(&mut again), whole, "{said}");
        assert!(whole.contains(&format!("\r\n{then}\r\n")), "{said}: {whole}");
    }
}

/// Whatever a master answers, clients are served, and the connection is given up or goes on.
#[test]
fn a_master_that_answers_anything() {
    const PIECES: &[&[u8]] = &[
        b"+PONG\r\n",
        b"+OK\r\n",
        b"\n",
        b" \r\n",
        b"-ERR x\r\n",
        b"+FULLRESYNC ",
        HISTORY.as_bytes(),
        b" ",
        b"18446744073709551615",
        b"4611686018427387903",
        b"-1",
        b"\r\n",
        b"$EOF:",
        b"$18446744073709551615\r\n",
        b"$0\r\n",
        b"$-1\r\n",
        b"$10\r\n",
        b"REDIS0011",
        b"\xfe\x00",
        b"\xfe\x0f",
        b"\xfb\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00",
        b"\x00\x01k\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xff",
        b"\x00\x01k\x01v",
        b"+CONTINUE\r\n",
        b"+CONTINUE ",
        b"*1\r\n$4\r\nPING\r\n",
        b"\xfa\x0erepl-stream-db\x0299",
        b"*3\r\n$3\r\nSET\r\n",
        b"\xf5\x05hello",
    ];
    let greeting = ["+PONG", "+OK", "+OK", &format!("+FULLRESYNC {HISTORY} 5"), &format!("$EOF:{HISTORY}")];
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut bench, user, link) = replica_of_a_stranger();
        for line in &greeting[..rng.usize(..=greeting.len())] {
            bench.engine.receive(link, format!("{line}\r\n").as_bytes());
        }
        for _ in 0..rng.usize(1..12) {
            bench.engine.receive(link, PIECES[rng.usize(..PIECES.len())]);
            bench.take(link);
        }
        bench.advance_ms(1100);
        bench.take(user);
        let loads = bench.ask(user, "INFO persistence\r\n").contains("loading:1");
        let expected = if loads { "-LOADING Redis is loading the dataset in memory\r\n" } else { "+PONG\r\n" };
        assert_eq!(bench.ask(user, "PING\r\n"), expected, "seed {seed}");
        bench.engine.disconnect(link);
        assert_eq!(bench.ask(user, "REPLICAOF NO ONE\r\nSET k v\r\n"), "+OK\r\n+OK\r\n", "seed {seed}");
    }
}

/// A master says by empty lines that it is alive: many take no longer than few.
#[test]
fn lines_of_a_master_that_say_nothing() {
    let (mut bench, _, link) = replica_of_a_stranger();
    bench.engine.receive(link, &b" \r\n".repeat(1 << 20));
    bench.engine.receive(link, b"+PONG\r\n\n\n+OK\r\n\r\n+OK\r\n");
    assert!(String::from_utf8(bench.take(link)).unwrap().ends_with("PSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"));
}

/// What a master has no business to send, and what it may: requests by words, and bytes that are none. `DEBUG PANIC` and `DEBUG
/// SLEEP` are not among them: they do what they are for wherever the operator lets anybody use DEBUG.
const REQUESTS: &str = "\
PING|SET k v|SET k v PXAT 1|INCR n|APPEND n x|LPUSH l a b c|HSET h f v|SADD s a b|ZADD z 1 m|XADD x * f v|DEL k l|GET k|\
SELECT 999|SELECT -1|SELECT 1|SELECT|MOVE k 99|SWAPDB 0 99|COPY k k2 DB 99|FLUSHALL|\
MULTI|MULTI|MULTI|EXEC|EXEC|DISCARD|WATCH k|UNWATCH|MULTI now|NOSUCH a b c|SET k|SET|GETSET|\
BLPOP none 0|BLMOVE none l LEFT LEFT 0|BZPOPMIN none 0|XREAD BLOCK 0 STREAMS none $|WAIT 5 0|WAITAOF 1 1 0|\
SUBSCRIBE c|PSUBSCRIBE *|SSUBSCRIBE c|UNSUBSCRIBE|PUBLISH c m|MONITOR|HELLO 3|HELLO 2|HELLO 9|RESET|QUIT|AUTH a b|\
CLIENT REPLY ON|CLIENT REPLY SKIP|CLIENT TRACKING ON BCAST|CLIENT NO-EVICT ON|CLIENT SETNAME m|CLIENT LIST|CLIENT INFO|\
CLIENT KILL TYPE master|CLIENT KILL TYPE normal|CLIENT KILL TYPE replica|CLIENT PAUSE 5|CLIENT UNPAUSE|CLIENT UNBLOCK 1|\
REPLICAOF NO ONE|REPLICAOF 10.0.0.7 1|REPLICAOF 10.0.0.1 6379|FAILOVER|FAILOVER ABORT|ROLE|\
PSYNC ? -1|PSYNC ? -1 FAILOVER|SYNC|REPLCONF GETACK *|REPLCONF ACK -5|REPLCONF ACK 99999999|REPLCONF capa eof|REPLCONF x|\
SHUTDOWN|SHUTDOWN NOSAVE|SHUTDOWN NOW FORCE|SHUTDOWN ABORT|SAVE|BGSAVE|BGREWRITEAOF|LASTSAVE|INFO|DEBUG JMAP|DEBUG CHANGE-REPL-ID|DEBUG RELOAD|DEBUG LOADAOF|DEBUG POPULATE 9|\
RESTORE k 0 x|RESTORE k 0 x REPLACE ABSTTL|DUMP k|MIGRATE 10.0.0.8 1 k 0 100|OBJECT FREQ k|MEMORY USAGE k|\
EVAL return(redis.call('SET','k','v')) 0|EVAL redis.call('SELECT',99) 0|EVAL redis.call('MULTI') 0|EVAL x( 0|FCALL f 0|\
SCRIPT FLUSH|SCRIPT KILL|FUNCTION DELETE x|FUNCTION RESTORE x|SORT l STORE k|SETRANGE k 99999999999 x|SETBIT k 100000 1|\
LPOP l 99999999999|SRANDMEMBER s -9223372036854775808|EXPIRE k -1|PEXPIREAT k 1|GETEX h PXAT 1|HPEXPIREAT h 1 FIELDS 1 f|\
CONFIG SET repl-backlog-size 1|CONFIG SET maxmemory 1|CONFIG SET maxmemory 0|CONFIG SET databases 1|CLUSTER SLOTS|LATENCY DOCTOR";

const BYTES: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\0",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2147483647\r\n",
    b"*2147483648\r\n",
    b"*99999999999999999999\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n",
    b"*2\r\n$-1\r\n",
    b"*1\r\n*1\r\n*1\r\n",
    b"$5\r\nhello\r\n",
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":5\r\n",
    b"\"unbalanced\r\n",
    b"$EOF:",
];

/// Whatever a master sends in place of effects, the store neither fails nor keeps more than that takes, serves its clients, and
/// can be made to do without that master.
#[test]
fn a_master_that_sends_anything() {
    let requests: Vec<&str> = REQUESTS.split('|').collect();
    let mut still_masters = 0;
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut bench, user, link) = replica_of_a_stranger();
        bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
        let mut stream = Vec::new();
        for _ in 0..rng.usize(1..40) {
            match rng.u8(..20) {
                0 => stream.extend_from_slice(BYTES[rng.usize(..BYTES.len())]),
                1 => stream.extend_from_slice(&vec![rng.u8(..); rng.usize(..100_000)]),
                2..10 => stream.extend([requests[rng.usize(..requests.len())], "\r\n"].concat().bytes()),
                _ => {
                    let words: Vec<&str> = requests[rng.usize(..requests.len())].split(' ').collect();
                    stream.extend(format!("*{}\r\n", words.len()).bytes());
                    words.iter().for_each(|word| stream.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
                }
            }
        }
        let mut rest = &stream[..];
        while !rest.is_empty() && bench.engine.fate(link) == Fate::Open {
            let (piece, behind) = rest.split_at(rng.usize(1..=rest.len()));
            bench.engine.receive(link, piece);
            let sent = bench.take(link);
            // It may follow its own replica, and gets no more back than it sends.
            assert!(sent.len() < stream.len() + (64 << 10), "seed {seed}: {} bytes are sent to it", sent.len());
            bench.advance_ms(rng.u64(..300));
            rest = behind;
        }
        // Until each of the pauses that it has asked for is over.
        for _ in 0..40 {
            bench.advance_ms(30);
            bench.take(user);
        }
        let kept = |list: String| {
            let of_master = list.lines().find(|line| line.contains(" flags=M"))?;
            of_master.split(" tot-mem=").nth(1)?.split(' ').next()?.parse::<usize>().ok()
        };
        assert!(bench.engine.shutdown().is_none(), "seed {seed}: it ends");
        let late = bench.connect();
        assert_eq!(bench.ask(late, "PING\r\n"), "+PONG\r\n", "seed {seed}");
        let kept = kept(bench.ask(late, "CLIENT LIST\r\n"));
        still_masters += u32::from(kept.is_some());
        let kept = kept.unwrap_or(0);
        assert!(kept < 4 * stream.len() + (64 << 10), "seed {seed}: {kept} of {} bytes", stream.len());
        assert_eq!(bench.ask(late, "REPLICAOF NO ONE\r\n"), "+OK\r\n", "seed {seed}");
        assert_ne!(bench.engine.fate(link), Fate::Open, "seed {seed}");
        bench.engine.disconnect(link);
        // It may have asked for that, once it was a replica.
        bench.ask(late, "FAILOVER ABORT\r\n");
        assert_eq!(bench.ask(late, "CONFIG SET maxmemory 0\r\nSET k v\r\n"), "+OK\r\n+OK\r\n", "seed {seed}");
    }
    assert!(still_masters > 50, "most are given up for nonsense, not all");
}

/// A master that does not read gets nothing that it could leave unread: no replies, whatever it asks for.
#[test]
fn a_master_gets_no_replies() {
    let (mut bench, user, link) = replica_of_a_stranger();
    bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
    bench.take(link);
    assert_eq!(bench.ask(link, "CLIENT REPLY ON\r\nRESET\r\nCLIENT REPLY SKIP\r\nPING\r\nINFO\r\nNOSUCH\r\n"), "");
    assert_eq!(bench.ask(link, "SELECT 1\r\nRESET\r\nSET k v\r\n"), "");
    assert_eq!(bench.ask(user, "SELECT 1\r\nGET k\r\n"), "+OK\r\n$1\r\nv\r\n", "it is no usual client");
}

/// Redis sends `MAXLEN ~ 1 LIMIT 10` as `MAXLEN = 1 LIMIT 10`, with the length that it came to.
#[test]
fn what_a_master_has_trimmed_roughly_is_taken() {
    let (mut bench, user, link) = replica_of_a_stranger();
    bench.engine.receive(link, format!("+PONG\r\n+OK\r\n+OK\r\n+CONTINUE {HISTORY}\r\n").as_bytes());
    for request in [
        "XADD s MAXLEN = 1 LIMIT 10 1-1 f v",
        "XADD s MINID = 1-1 LIMIT 10 2-1 f v",
        "XADD t 1-1 f v",
        "MULTI",
        "XADD t 2-1 f v",
        "XTRIM t MAXLEN = 1 LIMIT 10",
        "EXEC",
        "XADD u 1-1 f v",
        "XTRIM u MINID = 2 LIMIT 10",
    ] {
        bench.ask(link, &format!("{request}\r\n"));
    }
    assert_eq!(bench.ask(user, "XLEN s\r\nXLEN t\r\nXLEN u\r\n"), ":2\r\n:1\r\n:0\r\n");
}

/// A transfer in which nothing comes any more ends, and so does one that goes on for ever when somebody says so.
#[test]
fn a_master_that_never_comes_to_the_end_of_its_dump() {
    let greeting = format!("+PONG\r\n+OK\r\n+OK\r\n+FULLRESYNC {HISTORY} 5\r\n$EOF:{HISTORY}\r\nREDIS0011");
    const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";
    let pass = |bench: &mut Bench, seconds| {
        for _ in 0..seconds {
            let due_ns = bench.engine.next_deadline_ns().expect("it looks at the time");
            assert!(due_ns <= bench.now.monotonic_ns + 1_000_000_000);
            bench.advance_ms(1000);
            bench.engine.end_turn();
        }
    };
    let (mut bench, user, link) = replica_of_a_stranger();
    bench.engine.receive(link, greeting.as_bytes());
    pass(&mut bench, 59);
    assert_eq!(bench.ask(user, "PING\r\n"), LOADING);
    pass(&mut bench, 3);
    assert_eq!(bench.ask(user, "PING\r\nDBSIZE\r\n"), "+PONG\r\n:0\r\n");
    assert_ne!(bench.engine.fate(link), Fate::Open);
    bench.engine.disconnect(link);
    pass(&mut bench, 1);
    let dial = bench.engine.next_dial().expect("it tries again");
    // Bytes of an endless string, some each minute.
    let link = bench.engine.dialed(&dial, peer(1)).expect("it was asked for");
    bench.engine.receive(link, greeting.as_bytes());
    bench.engine.receive(link, b"\x00\x01k\x80\x10\x00\x00\x00");
    for _ in 0..100 {
        pass(&mut bench, 50);
        bench.engine.receive(link, b"x");
        assert_eq!(bench.ask(user, "PING\r\n"), LOADING);
    }
    assert_eq!(bench.ask(user, "REPLICAOF NO ONE\r\nSET k v\r\nDBSIZE\r\n"), "+OK\r\n+OK\r\n:1\r\n");
    assert_ne!(bench.engine.fate(link), Fate::Open);
}
