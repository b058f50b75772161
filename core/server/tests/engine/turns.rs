//! Turns, clients that come and go, limits, pauses, memory that runs out.

use crate::bench::Bench;
use kayvee_server::{ClientId, Fate, Peer, Refusal};
use std::sync::atomic::Ordering;

#[test]
fn any_split_of_a_stream_gives_the_same_replies() {
    let stream = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\nGET k\r\n\r\n*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\nNOSUCH x\r\n";
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    bench.engine.receive(client, stream);
    let expected = bench.take(client);
    assert!(expected.ends_with(b"with args beginning with: 'x' \r\n"), "{}", expected.escape_ascii());
    for at in 0..=stream.len() {
        let client = bench.connect();
        bench.engine.receive(client, &stream[..at]);
        bench.engine.receive(client, &stream[at..]);
        assert_eq!(bench.take(client), expected, "split at {at}");
        bench.engine.disconnect(client);
    }
    let client = bench.connect();
    stream.chunks(1).for_each(|byte| bench.engine.receive(client, byte));
    assert_eq!(bench.take(client), expected);
}

/// With so many keys that those of the next requests are fetched from memory ahead.
#[test]
fn requests_about_many_keys_are_answered_in_their_order() {
    const KEYS: usize = 50_000;
    let mut bench = Bench::new(&["--enable-debug-command", "yes"]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, &format!("DEBUG POPULATE {KEYS} key\r\n")), "+OK\r\n");
    let encoded = |words: &[&str]| {
        let arguments: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{arguments}", words.len())
    };
    let (mut stream, mut expected) = (String::new(), String::new());
    for at in (0..KEYS + 1000).step_by(97) {
        let key = format!("key:{at}");
        let value =
            |at: usize| if at < KEYS { encoded(&[&format!("value:{at}")])[4..].into() } else { "$-1\r\n".to_string() };
        stream += &encoded(&["GET", &key]);
        expected += &value(at);
        match at % 7 {
            0 => {
                let keys = (at..at + 300).map(|at| format!("key:{at}")).collect::<Vec<_>>();
                let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
                stream += &encoded(&words);
                expected += &format!("*300\r\n{}", (at..at + 300).map(value).collect::<String>());
            }
            1 => (stream, expected) = (stream + "EXISTS key:1 key:x key:2 key:3\r\n", expected + ":3\r\n"),
            2 => {
                (stream, expected) =
                    (stream + &encoded(&["DEL", &key, "key:x"]), expected + &format!(":{}\r\n", u8::from(at < KEYS)))
            }
            3 => {
                (stream, expected) = (
                    stream + &encoded(&["MSET", &key, "a", &key, "b"]) + &encoded(&["GET", &key]),
                    expected + "+OK\r\n$1\r\nb\r\n",
                )
            }
            4 => {
                (stream, expected) = (
                    stream + &encoded(&["PING"]) + &encoded(&["GET"]),
                    expected + "+PONG\r\n-ERR wrong number of arguments for 'get' command\r\n",
                )
            }
            5 => {
                (stream, expected) = (
                    stream + &encoded(&["SET", "key:x", &key]) + &encoded(&["GETDEL", "key:x"]),
                    expected + "+OK\r\n" + &encoded(&[&key])[4..],
                )
            }
            _ => {
                (stream, expected) = (
                    stream + &encoded(&["SELECT", "1"]) + &encoded(&["GET", &key]) + &encoded(&["SELECT", "0"]),
                    expected + "+OK\r\n$-1\r\n+OK\r\n",
                )
            }
        }
    }
    bench.engine.receive(client, stream.as_bytes());
    let replies = String::from_utf8(bench.take(client)).unwrap();
    let first_apart = replies.lines().zip(expected.lines()).position(|(is, wanted)| is != wanted);
    assert_eq!((first_apart, replies.len()), (None, expected.len()));
}

#[test]
fn a_thousand_clients_and_a_refusal() {
    let mut bench = Bench::new(&["--maxclients", "1000"]);
    let clients: Vec<ClientId> = (0..1000).map(|_| bench.connect()).collect();
    assert_eq!(bench.engine.connect(Peer::default()), Err(Refusal(b"-ERR max number of clients reached\r\n")));
    for &client in &clients {
        bench.engine.receive(client, b"PING\r\n");
    }
    bench.engine.end_turn();
    let mut ready = std::iter::from_fn(|| bench.engine.next_ready()).collect::<Vec<_>>();
    ready.sort();
    assert_eq!(ready, clients);
    assert!(clients.iter().all(|&client| bench.engine.output(client) == b"+PONG\r\n"));
    bench.engine.disconnect(clients[500]);
    assert_eq!(bench.connect(), clients[500], "the slot is used again");
}

/// A network of our own has room for so many, and what cannot be is not promised.
#[test]
fn no_more_clients_than_the_network_can_serve() {
    let mut bench = Bench::new(&["--maxclients", "1000"]);
    bench.engine.limit_clients(2000);
    let client = bench.connect();
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to \
                   handle the specified number of clients, try with 2000\r\n";
    for (clients, answer) in [("2001", refused), ("2000", "+OK\r\n"), ("5", "+OK\r\n"), ("2001", refused)] {
        assert_eq!(bench.ask(client, &format!("CONFIG SET maxclients {clients}\r\n")), answer, "{clients}");
    }
    bench.engine.limit_clients(3);
    assert_eq!(bench.ask(client, "CONFIG GET maxclients\r\n"), "*2\r\n$10\r\nmaxclients\r\n$1\r\n3\r\n");
}

#[test]
fn output_may_leave_in_any_pieces() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    let mut received = Vec::new();
    for round in 1..200 {
        bench.engine.receive(client, format!("ECHO {}\r\n", "x".repeat(round)).as_bytes());
        bench.engine.end_turn();
        let some = bench.engine.output(client).len() * (round % 5) / 4;
        received.extend_from_slice(&bench.engine.output(client)[..some]);
        bench.engine.sent(client, some);
    }
    received.extend(bench.take(client));
    let expected: String = (1..200).map(|n| format!("${n}\r\n{}\r\n", "x".repeat(n))).collect();
    assert!(received == expected.into_bytes());
}

#[test]
fn a_protocol_error_ends_the_connection_after_its_reply() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, "*1\r\n$x\r\nPING\r\n"), "-ERR Protocol error: invalid bulk length\r\n");
    assert_eq!(bench.engine.fate(client), Fate::CloseAfterOutput);
    assert_eq!(bench.ask(client, "PING\r\n"), "");
}

#[test]
fn quit_and_kill() {
    let mut bench = Bench::new(&[]);
    let (a, b) = (bench.connect(), bench.connect());
    assert_eq!(bench.ask(a, "CLIENT KILL ID 2\r\n"), ":1\r\n");
    assert_eq!(bench.engine.fate(b), Fate::CloseNow);
    assert_eq!(bench.ask(a, "QUIT\r\nPING\r\n"), "+OK\r\n");
    assert_eq!(bench.engine.fate(a), Fate::CloseAfterOutput);
}

#[test]
fn a_client_is_killed_once() {
    let mut bench = Bench::new(&[]);
    let (killer, _other) = (bench.connect(), bench.connect());
    let kills = "CLIENT KILL TYPE normal\r\nCLIENT KILL TYPE normal\r\n";
    assert_eq!(bench.ask(killer, kills), ":1\r\n:0\r\n");
}

#[test]
fn a_soft_limit_without_end_is_no_limit() {
    let mut bench = Bench::new(&["--client-output-buffer-limit", "normal 0 1 18446744073709551615"]);
    let client = bench.connect();
    bench.engine.receive(client, b"PING\r\n");
    bench.advance_ms(5000);
    bench.engine.receive(client, b"PING\r\n");
    assert_eq!(bench.engine.fate(client), Fate::Open);
}

#[test]
fn a_tiny_limit_on_clients_memory_can_be_taken_back() {
    let mut bench = Bench::new(&["--maxmemory-clients", "1"]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, "CONFIG SET maxmemory-clients 0\r\n"), "+OK\r\n");
    assert_eq!(bench.engine.fate(client), Fate::Open);
}

#[test]
fn a_long_request_is_not_copied_for_each_of_its_pieces() {
    let arguments = [b"*4\r\n$4\r\nMSET\r\n$1\r\nk\r\n$2000000\r\n".to_vec(), vec![b'x'; 2_000_000]].concat();
    let many_arguments = [b"*500000\r\n".to_vec(), b"$1\r\nx\r\n".repeat(200_000)].concat();
    for request in [arguments, many_arguments] {
        let mut bench = Bench::new(&[]);
        let (client, observer) = (bench.connect(), bench.connect());
        let mut capacities = Vec::new();
        for piece in request.chunks(4000) {
            bench.engine.receive(client, piece);
            let line = bench.ask(observer, "CLIENT LIST ID 1\r\n");
            let field = |name: &str| -> usize {
                let value = line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap();
                value.parse().unwrap()
            };
            capacities.push(field("qbuf=") + field("qbuf-free="));
        }
        let growths = capacities.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(growths < 20, "{growths}");
    }
}

#[test]
fn authentication_comes_first() {
    let mut bench = Bench::new(&["--requirepass", "secret"]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, "GET k\r\n"), "-NOAUTH Authentication required.\r\n");
    assert!(bench.ask(client, "AUTH wrong\r\n").starts_with("-WRONGPASS"));
    assert!(bench.ask(client, "HELLO 3\r\n").starts_with("-NOAUTH HELLO must"));
    assert!(bench.ask(client, "HELLO 3 AUTH default secret SETNAME me\r\n").starts_with("%7\r\n"));
    assert_eq!(bench.ask(client, "GET k\r\n"), "_\r\n");
    assert_eq!(bench.ask(client, "CLIENT GETNAME\r\n"), "$2\r\nme\r\n");
}

#[test]
fn a_setting_lets_nobody_in_who_has_not_said_who_he_is() {
    let mut bench = Bench::new(&[]);
    let admin = bench.connect();
    assert_eq!(bench.ask(admin, "ACL SETUSER default >secret\r\n"), "+OK\r\n");
    let client = bench.connect();
    assert_eq!(bench.ask(client, "GET k\r\n"), "-NOAUTH Authentication required.\r\n");
    assert_eq!(bench.ask(admin, "CONFIG SET maxmemory-samples 5\r\n"), "+OK\r\n");
    assert_eq!(bench.ask(client, "GET k\r\n"), "-NOAUTH Authentication required.\r\n");
}

/// Free memory of 64 MiB, whose reserve is 4 MiB.
fn leave_kib(bench: &Bench, free_kib: u64) {
    bench.heap.limit.store(64 << 20, Ordering::Relaxed);
    bench.heap.used.store((64 << 20) - (free_kib << 10), Ordering::Relaxed);
}

#[test]
fn copies_are_called_back_when_memory_is_short() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    bench.ask(client, "HELLO 3\r\nCLIENT TRACKING ON\r\n");
    leave_kib(&bench, (3 << 10) + 1);
    for key in 0..10 {
        assert_eq!(bench.ask(client, &format!("GET {key}\r\n")), "_\r\n");
    }
    leave_kib(&bench, 3 << 10);
    let replies: Vec<_> = (10..16).map(|key| bench.ask(client, &format!("GET {key}\r\n"))).collect();
    let called_back = replies.iter().map(|reply| reply.matches("invalidate").count()).collect::<Vec<_>>();
    assert_eq!(called_back, [2; 6], "{replies:?}");
    assert!(bench.ask(client, "INFO stats\r\n").contains("tracking_total_keys:4\r\n"));
}

#[test]
fn scripts_that_would_stay_are_refused_when_memory_is_full() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    for number in 0..6 {
        bench.ask(client, &format!("EVAL \"return {number}\" 0\r\n"));
    }
    leave_kib(&bench, 4 << 10);
    assert!(bench.ask(client, "SCRIPT LOAD \"return 10\"\r\n").starts_with("$40\r\n"));
    leave_kib(&bench, (4 << 10) - 1);
    assert!(bench.ask(client, "SCRIPT LOAD \"return 11\"\r\n").starts_with("-OOM "));
    assert!(bench.ask(client, "SCRIPT LOAD \"return 10\"\r\n").starts_with("$40\r\n"), "it is there");
    // What frees memory may be a script: those of before make way.
    assert_eq!(bench.ask(client, "EVAL \"return 20\" 0\r\n"), ":20\r\n");
    assert_eq!(bench.ask(client, "EVAL \"return 21\" 0\r\n"), ":21\r\n");
    assert!(bench.ask(client, "INFO memory\r\n").contains("number_of_cached_scripts:5\r\n"));
}

#[test]
fn a_pause_holds_requests_back_and_loses_none() {
    let mut bench = Bench::new(&[]);
    let (a, b) = (bench.connect(), bench.connect());
    assert_eq!(bench.ask(a, "CLIENT PAUSE 100 WRITE\r\n"), "+OK\r\n");
    assert_eq!(bench.ask(b, "GET k\r\nSET k v\r\nGET k\r\n"), "$-1\r\n");
    assert_eq!(bench.engine.fate(b), Fate::Paused);
    assert_eq!(bench.ask(b, "GET k\r\n"), "");
    assert_eq!(bench.engine.next_deadline_ns(), Some(bench.now.monotonic_ns + 100_000_000));
    bench.advance_ms(100);
    bench.engine.end_turn();
    assert_eq!(bench.engine.next_ready(), Some(b));
    assert_eq!(bench.engine.output(b), b"+OK\r\n$1\r\nv\r\n$1\r\nv\r\n");
    assert_eq!(bench.engine.fate(b), Fate::Open);
}

#[test]
fn client_reply_off_and_skip() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, "CLIENT REPLY OFF\r\nPING\r\nCLIENT REPLY ON\r\nPING\r\n"), "+OK\r\n+PONG\r\n");
    assert_eq!(bench.ask(client, "CLIENT REPLY SKIP\r\nPING a\r\nPING b\r\n"), "$1\r\nb\r\n");
}

#[test]
fn keys_expire_without_being_asked_for() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    for n in 0..1000 {
        assert_eq!(bench.ask(client, &format!("SET k{n} v PX 50\r\n")), "+OK\r\n");
    }
    let deadline = bench.engine.next_deadline_ns().unwrap();
    assert!(deadline <= bench.now.monotonic_ns + 100_000_000);
    for _ in 0..20 {
        bench.advance_ms(100);
        bench.engine.end_turn();
    }
    assert_eq!(bench.ask(client, "DBSIZE\r\n"), ":0\r\n");
    assert!(bench.ask(client, "INFO stats\r\n").contains("expired_keys:1000\r\n"));
    assert_eq!(bench.engine.next_deadline_ns(), None, "nothing to wake up for");
}

#[test]
fn fields_expire_without_being_asked_for_and_are_told_of() {
    let mut bench = Bench::new(&["--notify-keyspace-events", "Khg"]);
    let (client, listener) = (bench.connect(), bench.connect());
    bench.ask(listener, "SUBSCRIBE __keyspace@0__:h\r\n");
    let events = |bench: &mut Bench, request: &str| {
        bench.ask(client, request);
        let told = bench.take_text(listener);
        let lines = told.split("\r\n").skip(6).step_by(7);
        lines.map(String::from).collect::<Vec<_>>().join(" ")
    };
    for (request, told) in [
        ("HSET h a 1 b 2 c 3\r\n", "hset"),
        ("HEXPIRE h 100 FIELDS 2 a none\r\n", "hexpire"),
        ("HEXPIRE h 100 NX FIELDS 1 a\r\n", ""),
        ("HPERSIST h FIELDS 2 a b\r\n", "hpersist"),
        ("HEXPIRE h 0 FIELDS 1 a\r\n", "hexpired"),
        ("HPEXPIRE h 50 FIELDS 2 b c\r\n", "hexpire"),
    ] {
        assert_eq!(events(&mut bench, request), told, "{request}");
    }
    let deadline = bench.engine.next_deadline_ns().unwrap();
    assert!(deadline <= bench.now.monotonic_ns + 100_000_000);
    for _ in 0..20 {
        bench.advance_ms(100);
        bench.engine.end_turn();
    }
    assert_eq!(events(&mut bench, "PING\r\n"), "hexpired del");
    assert_eq!(bench.ask(client, "DBSIZE\r\n"), ":0\r\n");
    assert!(bench.ask(client, "INFO stats\r\n").contains("expired_subkeys:2\r\n"));
    bench.engine.disconnect(listener);
    assert_eq!(bench.engine.next_deadline_ns(), None, "nothing to wake up for");
}

#[test]
fn maxmemory_refuses_writes_and_serves_reads() {
    let mut bench = Bench::new(&["--maxmemory", "1mb"]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, "SET k v\r\n"), "+OK\r\n");
    bench.heap.used.store(2 << 20, Ordering::Relaxed);
    assert_eq!(bench.ask(client, "SET k w\r\n"), "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    assert_eq!(bench.ask(client, "GET k\r\n"), "$1\r\nv\r\n");
    assert_eq!(bench.ask(client, "DEL k\r\n"), ":1\r\n");
}

#[test]
fn the_platform_limit_counts_like_maxmemory_and_guards_a_reserve() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    bench.heap.limit.store(16 << 20, Ordering::Relaxed);
    bench.heap.used.store((15 << 20) - 100, Ordering::Relaxed);
    assert_eq!(bench.ask(client, "SET k v\r\n"), "+OK\r\n");
    // A single value must not take the reserve either.
    let long = "x".repeat(100);
    let refused =
        [format!("SET l {long}"), format!("APPEND k {long}"), "SETRANGE k 200 x".into(), format!("MSET a {long}")];
    for request in refused {
        assert!(bench.ask(client, &format!("{request}\r\n")).starts_with("-OOM"), "{request}");
    }
    assert_eq!(bench.ask(client, "SETRANGE k 50 x\r\n"), ":51\r\n");
    bench.heap.used.store((15 << 20) - 40, Ordering::Relaxed);
    assert!(bench.ask(client, "COPY k l\r\n").starts_with("-OOM"));
    bench.heap.used.store((15 << 20) + 1, Ordering::Relaxed);
    assert!(bench.ask(client, "SET k v\r\n").starts_with("-OOM"));
    bench.heap.used.store(16 << 20, Ordering::Relaxed);
    assert!(bench.engine.connect(Peer::default()).is_err(), "no memory for another client");
    assert_eq!(bench.ask(client, "PING\r\n"), "+PONG\r\n");
}

#[test]
fn buffers_are_bounded() {
    let mut bench =
        Bench::new(&["--client-query-buffer-limit", "1mb", "--client-output-buffer-limit", "normal 1mb 0 0"]);
    let client = bench.connect();
    bench.engine.receive(client, b"*1\r\n$2000000\r\n");
    for _ in 0..20 {
        bench.engine.receive(client, &[b'x'; 100_000]);
    }
    bench.engine.end_turn();
    assert_eq!(bench.engine.fate(client), Fate::CloseNow);

    let client = bench.connect();
    let request = format!("ECHO {}\r\n", "x".repeat(60_000));
    for _ in 0..10 {
        bench.engine.receive(client, request.as_bytes());
    }
    assert_eq!(bench.engine.fate(client), Fate::Open);
    for _ in 0..10 {
        bench.engine.receive(client, request.as_bytes());
    }
    assert_eq!(bench.engine.fate(client), Fate::CloseNow);
}

#[test]
fn the_largest_client_goes_first_when_buffers_take_too_much() {
    let mut bench = Bench::new(&["--maxmemory-clients", "1mb"]);
    let (small, large) = (bench.connect(), bench.connect());
    for _ in 0..3 {
        bench.engine.receive(small, format!("ECHO {}\r\n", "x".repeat(60_000)).as_bytes());
    }
    for _ in 0..16 {
        bench.engine.receive(large, format!("ECHO {}\r\n", "x".repeat(60_000)).as_bytes());
    }
    bench.engine.end_turn();
    assert_eq!((bench.engine.fate(small), bench.engine.fate(large)), (Fate::Open, Fate::CloseNow));
}

/// What a client tells of itself can be long, too.
#[test]
fn all_of_a_client_s_names_count_as_its_memory() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    let long = "n".repeat(50_000);
    bench.ask(client, &format!("ACL SETUSER {long} on nopass +@all ~*\r\n"));
    let memory_bytes = |bench: &mut Bench| {
        let line = bench.ask(client, "CLIENT INFO\r\n");
        let shown = line.split_once(" tot-mem=").and_then(|(_, rest)| rest.split(' ').next());
        shown.unwrap().parse::<usize>().unwrap()
    };
    let mut before = memory_bytes(&mut bench);
    for (request, password) in
        [("CLIENT SETNAME", ""), ("CLIENT SETINFO lib-name", ""), ("CLIENT SETINFO lib-ver", ""), ("AUTH", "x")]
    {
        assert_eq!(bench.ask(client, &format!("{request} {long} {password}\r\n")), "+OK\r\n");
        let now = memory_bytes(&mut bench);
        assert!(now >= before + long.len() - "default".len(), "{request}: {before} and {now}");
        before = now;
    }
}

/// Who came while a password was needed is no stranger once none is.
#[test]
fn limits_of_strangers_end_with_the_password() {
    let mut bench = Bench::new(&["--requirepass", "secret"]);
    let [early, admin] = [bench.connect(), bench.connect()];
    assert_eq!(bench.ask(admin, "AUTH secret\r\nCONFIG SET requirepass ''\r\n"), "+OK\r\n+OK\r\n");
    let value = "v".repeat(20_000);
    assert_eq!(bench.ask(early, &format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000\r\n{value}\r\n")), "+OK\r\n");
    assert_eq!(bench.ask(early, &format!("*12\r\n$3\r\nDEL\r\n{}", "$1\r\nk\r\n".repeat(11))), ":1\r\n");
}

/// To drop a replica would cost a dump: it has a limit of its own.
#[test]
fn replicas_are_spared_when_buffers_take_too_much() {
    let mut bench = Bench::new(&["--maxmemory-clients", "1mb"]);
    let (client, replica) = (bench.connect(), bench.connect());
    bench.engine.receive(replica, b"SYNC\r\n");
    bench.take(replica);
    for _ in 0..30 {
        bench.ask(client, &format!("SET k {}\r\n", "x".repeat(60_000)));
    }
    bench.heap.used.store((1 << 30) - 1, Ordering::Relaxed);
    bench.heap.limit.store(1 << 30, Ordering::Relaxed);
    bench.engine.end_turn();
    assert_eq!((bench.engine.fate(client), bench.engine.fate(replica)), (Fate::Open, Fate::Open));
}

#[test]
fn idle_clients_are_disconnected() {
    let mut bench = Bench::new(&["--timeout", "10"]);
    let (idle, busy) = (bench.connect(), bench.connect());
    for _ in 0..12 {
        bench.advance_ms(1000);
        bench.engine.receive(busy, b"PING\r\n");
        bench.engine.end_turn();
    }
    assert_eq!((bench.engine.fate(idle), bench.engine.fate(busy)), (Fate::CloseNow, Fate::Open));
}

#[test]
fn shutdown() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    assert!(bench.engine.shutdown().is_none());
    assert!(bench.ask(client, "SHUTDOWN SAVE\r\n").starts_with("-ERR"));
    assert_eq!(bench.ask(client, "SHUTDOWN NOSAVE\r\n"), "");
    assert_eq!(bench.engine.shutdown().unwrap().status, 0);
}

/// A replica's dump may be of any size; the effects behind it have the limit of replicas.
#[test]
fn a_replica_that_reads_too_slowly_is_dropped() {
    let limits = "replica 100kb 50kb 10 normal 1mb 0 0";
    let mut bench = Bench::new(&["--client-output-buffer-limit", limits, "--timeout", "60"]);
    let (client, replica) = (bench.connect(), bench.connect());
    let set = format!("SET k {}\r\n", "x".repeat(40_000));
    for key in 0..10 {
        bench.ask(client, &set.replace('k', &format!("k{key}")));
    }
    bench.engine.receive(replica, b"REPLCONF listening-port 6380\r\nSYNC\r\n");
    assert_eq!(bench.ask(client, &set), "+OK\r\n");
    let info = bench.ask(client, "INFO replication\r\n");
    assert!(info.contains("slave0:ip=10.0.0.9,port=6380,state=send_bulk,offset=0,lag=0\r\n"), "{info}");
    assert!(bench.take(replica).len() > 440_000);

    // It says nothing for long, and lives.
    bench.advance_ms(70_000);
    bench.engine.receive(client, b"PING\r\n");
    bench.engine.end_turn();
    assert_eq!((bench.engine.fate(client), bench.engine.fate(replica)), (Fate::Open, Fate::Open));
    bench.engine.receive(replica, b"REPLCONF ACK 40123\r\n");
    bench.advance_ms(2000);
    let info = bench.ask(client, "INFO replication\r\n");
    assert!(info.contains("state=online,offset=40123,lag=2\r\n"), "{info}");

    for _ in 0..2 {
        bench.ask(client, &set);
    }
    assert_eq!(bench.engine.fate(replica), Fate::Open);
    assert!(bench.engine.next_deadline_ns().is_some(), "somebody looks at soft limits");
    bench.advance_ms(11_000);
    bench.engine.end_turn();
    assert_eq!(bench.engine.fate(replica), Fate::CloseNow);
}

/// Quick commands are timed together, and a slow one among them reaches the slow log nevertheless.
#[test]
fn a_slow_call_among_quick_ones_is_logged() {
    let mut bench = Bench::new(&["--slowlog-log-slower-than", "1000", "--proto-max-bulk-len", "1mb"]);
    let client = bench.connect();
    bench.ask(client, &format!("SET long {}\r\n", "x".repeat(50_000)));
    bench.ask(client, "SET short x\r\nSLOWLOG RESET\r\n");
    bench.let_time_pass();
    bench.ask(client, "GET short\r\nGET short\r\nGET long\r\nGET short\r\n");
    let log = bench.ask(client, "SLOWLOG GET\r\n");
    assert!(log.contains("$3\r\nGET\r\n$4\r\nlong\r\n"), "{log}");
    assert!(!log.contains("GET\r\n$5\r\nshort"), "{log}");
    // What was slow though nothing of it was long is one of those that were timed together.
    bench.ask(client, "SLOWLOG RESET\r\n");
    bench.ask(client, "GET short\r\nGET short\r\nGET short\r\n");
    let log = bench.ask(client, "SLOWLOG GET\r\n");
    assert!(log.contains("*2\r\n$3\r\nget\r\n$20\r\n... (one of 3 calls)\r\n"), "{log}");
    // One with many arguments is timed for itself.
    bench.ask(client, "SLOWLOG RESET\r\n");
    bench.ask(client, &format!("SADD s{}\r\n", " m".repeat(100)));
    let log = bench.ask(client, "SLOWLOG GET\r\n");
    assert!(log.contains("$4\r\nSADD\r\n$1\r\ns\r\n"), "{log}");
}

/// What a replica gets says what was done, not what was asked for.
#[test]
fn effects_count_and_name_what_was_taken() {
    let mut bench = Bench::new(&[]);
    let (client, replica) = (bench.connect(), bench.connect());
    bench.ask(client, "RPUSH l a b c\r\nSADD s m\r\nSADD t m n\r\n");
    bench.engine.receive(replica, b"SYNC\r\n");
    bench.take(replica);
    for (request, effect) in [
        ("LMPOP 1 l LEFT COUNT 10", "*3\r\n$4\r\nLPOP\r\n$1\r\nl\r\n$1\r\n3\r\n"),
        ("SPOP s", "*3\r\n$4\r\nSREM\r\n$1\r\ns\r\n$1\r\nm\r\n"),
        ("SPOP t 2", "*2\r\n$3\r\nDEL\r\n$1\r\nt\r\n"),
    ] {
        bench.ask(client, &format!("{request}\r\n"));
        let told = bench.take_text(replica);
        assert!(told.ends_with(effect), "{request}: {told}");
    }
}

/// What a client does not read takes about as much memory as it is long, and comes in the order in which it was written.
#[test]
fn unread_replies_take_no_more_than_their_length() {
    let mut bench = Bench::new(&[]);
    let (client, observer) = (bench.connect(), bench.connect());
    let value = "x".repeat(10_000);
    bench.engine.receive(client, format!("SET k {value}\r\n").as_bytes());
    let mut expected = "+OK\r\n".to_string();
    for number in 0..2000 {
        bench.engine.receive(client, format!("GET k\r\nECHO {number}\r\n").as_bytes());
        let digits = number.to_string().len();
        expected += &format!("$10000\r\n{value}\r\n${digits}\r\n{number}\r\n");
    }
    let line = bench.ask(observer, "CLIENT LIST ID 1\r\n");
    let field =
        |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap().parse::<usize>().unwrap();
    assert_eq!(field("obl="), expected.len());
    assert!(field("omem=") < expected.len() + 200_000 && field("oll=") > 100, "{line}");
    assert!(bench.take_text(client) == expected);
}

/// Copies are called back to make room for others: not those of the same key over and over.
#[test]
fn any_key_is_forgotten_where_clients_read_too_many() {
    let mut bench = Bench::new(&["--tracking-table-max-keys", "3"]);
    let client = bench.connect();
    bench.ask(client, "HELLO 3\r\nCLIENT TRACKING ON\r\nMSET a 1 b 1 c 1 d 1\r\nGET a\r\nGET b\r\nGET c\r\n");
    let forgotten: String = "dabcd"
        .chars()
        .map(|key| {
            let told = bench.ask(client, &format!("GET {key}\r\n"));
            told.lines().last().unwrap_or_default().to_string()
        })
        .collect();
    assert_eq!(forgotten, "abcda");
}
