//! One shard of a cluster, as clients see it.

use crate::bench::Bench;

const SHARDS: &str = "10.0.0.1:7000 10.0.0.2:7001 ::1:7002";

/// The shard of this number out of three.
fn shard(number: &str) -> Bench {
    Bench::new(&["--cluster-shards", SHARDS, "--cluster-shard", number])
}

#[test]
fn clients_are_sent_to_the_shard_that_has_a_key() {
    let mut bench = shard("0");
    let client = bench.connect();
    // The slots of the specification's example, and of names with braces.
    for (key, slot) in [("123456789", 12739), ("foo", 12182), ("{foo}.x", 12182), ("x{foo}", 12182), ("bar", 5061)] {
        assert_eq!(bench.ask(client, &format!("CLUSTER KEYSLOT {key}\r\n")), format!(":{slot}\r\n"), "{key}");
    }
    for (key, same) in [("{}foo", "{}foo"), ("{foo", "{foo"), ("{{a}b}", "{a"), ("{a}{b}", "a")] {
        let [first, second] = [key, same].map(|key| bench.ask(client, &format!("CLUSTER KEYSLOT {key}\r\n")));
        assert_eq!(first, second);
    }
    assert_eq!(bench.ask(client, "SET bar 1\r\n"), "+OK\r\n");
    assert_eq!(bench.ask(client, "SET foo 1\r\n"), "-MOVED 12182 ::1:7002\r\n");
    assert_eq!(bench.ask(client, "GET hello\r\n"), "$-1\r\n");
    assert_eq!(bench.ask(client, "GET b\r\nGET bar\r\nGET foo\r\n"), "$-1\r\n$1\r\n1\r\n-MOVED 12182 ::1:7002\r\n");
    assert_eq!(bench.ask(client, "MGET bar foo\r\n"), "-CROSSSLOT Keys in request don't hash to the same slot\r\n");
    assert_eq!(bench.ask(client, "MSET {bar}a 1 {bar}b 2\r\n"), "+OK\r\n");
    for (store, goes) in [
        ("STORE {bar}x STORE b", false),
        ("STORE b STOREDIST {bar}x", true),
        ("STORE STOREDIST COUNT 1", false),
        ("STOREDIST STORE", false),
    ] {
        let reply = bench.ask(client, &format!("GEORADIUS {{bar}}g 1 1 10 km {store}\r\n"));
        assert_eq!(reply.starts_with("-CROSSSLOT"), !goes, "{store}: {reply}");
        let reply = bench.ask(client, &format!("GEORADIUSBYMEMBER {{bar}}g m 10 km {store}\r\n"));
        assert_eq!(reply.starts_with("-CROSSSLOT"), !goes, "{store}: {reply}");
    }
    assert_eq!(bench.ask(client, "SSUBSCRIBE foo\r\n"), "-MOVED 12182 ::1:7002\r\n");
    assert_eq!(bench.ask(client, "PING\r\nDBSIZE\r\nSELECT 0\r\n"), "+PONG\r\n:3\r\n+OK\r\n");
    assert_eq!(bench.ask(client, "SELECT 1\r\n"), "-ERR SELECT is not allowed in cluster mode\r\n");
    // As redis-server 7.0.15 says it.
    let copying = "ERR Copying to another database is not allowed in cluster mode";
    bench.ask(client, "SET bar x\r\n");
    for (request, error) in [
        ("MOVE bar 0", "ERR MOVE is not allowed in cluster mode"),
        ("MOVE bar x", "ERR MOVE is not allowed in cluster mode"),
        ("COPY bar {bar}2 DB 1", copying),
        ("COPY bar bar DB 15", copying),
        ("COPY {bar}none {bar}2 DB 1", copying),
        ("COPY bar {bar}2 DB 1 x", "ERR syntax error"),
        ("COPY bar {bar}2 DB 16", "ERR DB index is out of range"),
        ("COPY bar {bar}2 DB -1", "ERR DB index is out of range"),
        ("COPY bar bar DB 0", "ERR source and destination objects are the same"),
        ("COPY bar b DB 1", "CROSSSLOT Keys in request don't hash to the same slot"),
    ] {
        assert_eq!(bench.ask(client, &format!("{request}\r\n")), format!("-{error}\r\n"), "{request}");
    }
    assert_eq!(bench.ask(client, "COPY bar {bar}2 DB 0\r\n"), ":1\r\n");
    assert_eq!(bench.ask(client, "ASKING\r\nREADONLY\r\nREADWRITE\r\n"), "+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(bench.ask(client, "SORT bar BY w_*\r\n"), "-ERR BY and GET options of SORT denied in cluster mode\r\n");
}

/// Each slot has exactly one shard, whatever their number, and all shards say the same.
#[test]
fn every_slot_has_one_shard() {
    let texts = ["0", "1", "2"].map(|number| {
        let mut bench = shard(number);
        let client = bench.connect();
        let nodes = bench.ask(client, "CLUSTER NODES\r\n");
        let own = nodes.lines().find(|line| line.contains("myself")).unwrap();
        let id = bench.ask(client, "CLUSTER MYID\r\n");
        assert_eq!(own.split(' ').next(), id.lines().nth(1), "{nodes}");
        assert!(bench.ask(client, "CLUSTER INFO\r\n").contains("cluster_size:3\r\n"));
        assert!(bench.ask(client, "INFO\r\n").contains("cluster_enabled:1\r\n"));
        assert!(bench.ask(client, "HELLO 2\r\n").contains("\r\ncluster\r\n"));
        [nodes.replace("myself,", ""), bench.ask(client, "CLUSTER SLOTS\r\n")]
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:#?}");
    let [nodes, slots] = &texts[0];
    for range in ["0-5460", "5461-10921", "10922-16383"] {
        assert!(nodes.contains(&format!("connected {range}\n")), "{nodes}");
    }
    assert!(slots.starts_with("*3\r\n*3\r\n:0\r\n:5460\r\n*4\r\n$8\r\n10.0.0.1\r\n:7000\r\n$40\r\n"), "{slots}");
    for count in [1, 2, 7, 100, 1000] {
        let shards: Vec<String> = (1..=count).map(|port| format!("h:{port}")).collect();
        let mut bench = Bench::new(&["--cluster-shards", &shards.join(" "), "--cluster-shard", "0"]);
        let client = bench.connect();
        let nodes = bench.ask(client, "CLUSTER NODES\r\n");
        let ranges = nodes.lines().filter_map(|line| line.rsplit_once("connected ")?.1.split_once('-'));
        let mut next = 0;
        for (first, last) in ranges {
            assert_eq!(first.parse(), Ok(next));
            next = last.parse::<u32>().unwrap() + 1;
        }
        assert_eq!(next, 16_384, "{count}");
    }
}

#[test]
fn transactions_and_scripts_stay_in_one_slot() {
    const CROSS: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    let mut bench = shard("0");
    let client = bench.connect();
    // `bar` is in slot 5061 and `b` in 3300, both here.
    assert_eq!(bench.ask(client, "MULTI\r\nSET bar 1\r\nSET b 1\r\n"), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(
        bench.ask(client, "EXEC\r\nEXISTS bar\r\nEXEC\r\n"),
        [CROSS, ":0\r\n-ERR EXEC without MULTI\r\n"].concat()
    );
    assert_eq!(
        bench.ask(client, "MULTI\r\nSET foo 1\r\nEXEC\r\n").lines().last(),
        Some("-EXECABORT Transaction discarded because of previous errors.")
    );
    assert_eq!(bench.ask(client, "MULTI\r\nSET bar 1\r\nPING\r\nINCR bar\r\nEXEC\r\n").lines().last(), Some(":2"));
    assert_eq!(bench.ask(client, "EVAL \"return redis.call('GET', KEYS[1])\" 1 foo\r\n"), "-MOVED 12182 ::1:7002\r\n");
    let eval = |bench: &mut Bench, head: &str, script: &str, keys: &str| {
        let text = format!("{head}{script}");
        let len = text.len();
        let words: Vec<&str> = keys.split(' ').collect();
        let rest: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        bench.ask(client, &format!("*{}\r\n$4\r\nEVAL\r\n${len}\r\n{text}\r\n{rest}", 2 + words.len()))
    };
    let elsewhere = "Script attempted to access a non local key in a cluster node";
    let cross = "Script attempted to access keys that do not hash to the same slot";
    let reply = eval(&mut bench, "", "return redis.call('GET', 'foo')", "0");
    assert!(reply.contains(elsewhere), "{reply}");
    // Scripts without a first line that declares them may go from slot to slot, as in Redis.
    assert_eq!(eval(&mut bench, "", "redis.call('GET', 'b') return redis.call('GET', 'bar')", "0"), "$1\r\n2\r\n");
    let reply = eval(&mut bench, "#!lua\n", "redis.call('GET', 'b') return redis.call('GET', 'bar')", "0");
    assert!(reply.contains(cross), "{reply}");
    let reply = eval(&mut bench, "#!lua\n", "return redis.call('GET', 'b')", "1 bar");
    assert!(reply.contains(cross), "{reply}");
    let reply = eval(&mut bench, "#!lua flags=allow-cross-slot-keys\n", "return redis.call('EXISTS', 'b')", "1 bar");
    assert_eq!(reply, ":0\r\n");
    let reply = eval(&mut bench, "", "return redis.call('EXISTS', 'b', 'bar')", "0");
    assert!(reply.contains(cross), "{reply}");
    let reply = eval(&mut bench, "#!lua flags=no-cluster\n", "return 1", "0");
    assert_eq!(reply, "-ERR Can not run script on cluster, 'no-cluster' flag is set.\r\n");
}

#[test]
fn what_is_published_reaches_those_who_carry_it_once() {
    let mut bench = shard("1");
    let [relay, listener, publisher] = [bench.connect(), bench.connect(), bench.connect()];
    assert_eq!(bench.ask(relay, "CLUSTER RELAY\r\n"), "+OK\r\n");
    bench.ask(listener, "SUBSCRIBE news\r\n");
    let message = "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nhi\r\n";
    assert_eq!(bench.ask(publisher, "PUBLISH news hi\r\n"), ":1\r\n", "those who carry it do not count");
    assert_eq!((bench.take_text(relay), bench.take_text(listener)), (message.into(), message.into()));
    assert_eq!(bench.ask(publisher, "EVAL \"return redis.call('PUBLISH', 'news', 'hi')\" 0\r\n"), ":1\r\n");
    assert_eq!((bench.take_text(relay), bench.take_text(listener)), (message.into(), message.into()));
    // What comes from another shard goes to nobody else, and neither do keyspace events and a shard's own channels.
    assert_eq!(bench.ask(publisher, "CLUSTER DELIVER news hi\r\n"), ":1\r\n");
    assert_eq!((bench.take_text(relay), bench.take_text(listener)), (String::new(), message.into()));
    bench.ask(publisher, "CONFIG SET notify-keyspace-events KEA\r\nSET hello1 1\r\nSPUBLISH hello1 x\r\n");
    assert_eq!(bench.take_text(relay), "");
    // It may ask for other things as well, and is forgotten with its connection.
    assert_eq!(bench.ask(relay, "PING\r\nRESET\r\n"), "+PONG\r\n+RESET\r\n");
    assert_eq!(bench.ask(publisher, "PUBLISH news hi\r\n"), ":1\r\n");
    assert_eq!(bench.take_text(relay), "");
    bench.ask(relay, "CLUSTER RELAY\r\n");
    bench.engine.disconnect(relay);
    assert_eq!(bench.ask(publisher, "PUBLISH news hi\r\n"), ":1\r\n");
}

#[test]
fn keys_of_a_slot_are_told() {
    let mut bench = shard("0");
    let client = bench.connect();
    bench.ask(client, "MSET {bar}1 x {bar}2 x {bar}3 x\r\nSET b x\r\n");
    assert_eq!(bench.ask(client, "CLUSTER COUNTKEYSINSLOT 5061\r\n"), ":3\r\n");
    assert_eq!(bench.ask(client, "CLUSTER GETKEYSINSLOT 3300 10\r\n"), "*1\r\n$1\r\nb\r\n");
    assert!(bench.ask(client, "CLUSTER GETKEYSINSLOT 5061 2\r\n").starts_with("*2\r\n"));
    assert_eq!(bench.ask(client, "CLUSTER GETKEYSINSLOT 5061 0\r\n"), "*0\r\n");
    assert_eq!(bench.ask(client, "CLUSTER COUNTKEYSINSLOT 16384\r\n"), "-ERR Invalid slot\r\n");
    assert_eq!(bench.ask(client, "CLUSTER GETKEYSINSLOT 1 -1\r\n"), "-ERR Invalid number of keys\r\n");
    assert!(bench.ask(client, "CLUSTER ADDSLOTS 1\r\n").starts_with("-ERR the shards of this cluster"));
    assert!(bench.ask(client, "CLUSTER REPLICAS x\r\n").starts_with("-ERR Unknown node x"));
}

#[test]
fn options_that_make_no_cluster_are_refused() {
    let refused = |words: &[&str]| kayvee_server::Options::from_args(words.iter().map(|word| word.as_bytes())).is_err();
    for shards in ["x", "x:", ":1", "x:0", "x:65536", "a b:1", "x/y:1"] {
        assert!(refused(&["--cluster-shards", shards]), "{shards}");
    }
    for words in [
        ["--cluster-shards", "x:1", "--cluster-enabled", "yes"],
        ["--cluster-enabled", "yes", "--cluster-shards", "x:1"],
    ] {
        assert!(Bench::new(&words).engine.shutdown().is_none());
    }
    assert!(Bench::new(&["--cluster-enabled", "yes"]).engine.shutdown().is_some());
    // Which one it is can be wrong in either order, so it is seen at the start.
    let bench = Bench::new(&["--cluster-shards", "x:1 y:2", "--cluster-shard", "2"]);
    assert_eq!(bench.engine.shutdown().map(|shutdown| shutdown.status), Some(1));
    // Whoever is sent to it would be sent to itself.
    let bench = Bench::new(&["--cluster-shards", "x:1 y:2 x:1"]);
    assert_eq!(bench.engine.shutdown().map(|shutdown| shutdown.status), Some(1));
}

/// A shard that took all keys of another store would have many that nobody asks it for, and not start again.
#[test]
fn a_shard_follows_nobody() {
    let mut bench = shard("0");
    let client = bench.connect();
    for (request, why) in [
        ("REPLICAOF 10.0.0.9 1", "REPLICAOF not allowed in cluster mode."),
        ("SLAVEOF NO ONE", "REPLICAOF not allowed in cluster mode."),
        ("FAILOVER", "FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."),
        ("SWAPDB 0 0", "SWAPDB is not allowed in cluster mode"),
    ] {
        assert_eq!(bench.ask(client, &format!("{request}\r\n")), format!("-ERR {why}\r\n"));
    }
    let options = ["--cluster-shards", SHARDS, "--replicaof", "10.0.0.9 1"];
    assert_eq!(Bench::new(&options).engine.shutdown().map(|shutdown| shutdown.status), Some(1));
}
