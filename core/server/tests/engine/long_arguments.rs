//! Requests with an argument that is so long that it has a buffer of its own, which becomes the value.

use crate::bench::Bench;
use kayvee_server::ClientId;

const DEBUG: &[&str] = &["--enable-debug-command", "yes"];
/// From this length on an argument is long.
const LONG: usize = 32 << 10;

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend([format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat());
    }
    bytes
}

fn long(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = [LONG - 1, LONG, LONG + 1, 3 * LONG + rng.usize(..100)][rng.usize(..4)];
    vec![rng.u8(..); len]
}

/// Some request about one of a few keys, mostly with a long argument.
fn some_request(rng: &mut fastrand::Rng) -> Vec<u8> {
    const SCRIPT: &[u8] = b"redis.call('set', KEYS[1], ARGV[1]); return redis.call('append', KEYS[1], 'x')";
    let (a, b) = (long(rng), long(rng));
    let key = [&b"k"[..], b"l", &[b'm'; 300]][rng.usize(..3)];
    let words: &[&[u8]] = match rng.u8(..24) {
        0..=4 => &[b"SET", key, &a],
        5 => &[b"SET", key, &a, b"GET"],
        6 => match rng.u8(..6) {
            0 => &[b"SET", key, &a, b"EX", b"1000"],
            1 => &[b"SET", key, &a, b"EX", b"0"],
            2 => &[b"SET", key, &a, b"NX", b"GET", b"PX", b"100000"],
            3 => &[b"SET", key, &a, b"XX", b"KEEPTTL", b"GET", b"GET", b"GET"],
            4 => &[b"SET", key, &a, b"EX", &b],
            _ => &[b"SET", key, &a, &b, b"100"],
        },
        7 => &[b"SETEX", key, b"1000", &a],
        8 => &[b"PSETEX", key, b"0", &a],
        9 => &[b"SETNX", key, &a],
        10 => &[b"GETSET", key, &a],
        11 => &[b"MSET", key, &a, b"k", &b],
        12 => &[b"APPEND", key, &a],
        13 => &[b"HSET", b"h", b"f", &a],
        14 => &[b"EVAL", SCRIPT, b"1", key, &a],
        15 => &[b"NOSUCH", key, &a],
        16 => &[b"SET", &a],
        17 => &[b"GET", &a],
        18 => &[b"MULTI"],
        19 => &[b"EXEC"],
        20 => &[b"GET", key],
        21 => &[b"STRLEN", key],
        22 => &[b"DEL", key],
        _ => &[b"OBJECT", b"ENCODING", key],
    };
    request(words)
}

fn digest(bench: &mut Bench) -> String {
    let client = bench.connect();
    bench.ask(client, "DEBUG DIGEST\r\n")
}

#[test]
fn however_they_come_they_do_the_same() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let requests: Vec<_> = (0..30).map(|_| some_request(&mut rng)).collect();
        let (mut whole, mut split) = (Bench::new(DEBUG), Bench::new(DEBUG));
        let client = whole.connect();
        let mut expected = Vec::new();
        for request in &requests {
            whole.engine.receive(client, request);
            expected.extend(whole.take(client));
        }
        let client = split.connect();
        let stream = requests.concat();
        let (mut rest, mut replies) = (&stream[..], Vec::new());
        while !rest.is_empty() {
            let most = [3, 100, 5_000, LONG, 5 * LONG][rng.usize(..5)];
            let (piece, behind) = rest.split_at(rng.usize(1..=most).min(rest.len()));
            split.engine.receive(client, piece);
            replies.extend(split.take(client));
            rest = behind;
        }
        assert!(replies == expected, "seed {seed}: the replies differ");
        assert_eq!(digest(&mut split), digest(&mut whole), "seed {seed}");
    }
}

#[test]
fn a_split_at_any_byte_of_the_frame_makes_no_difference() {
    let value = [b'v'; LONG];
    let mut bench = Bench::new(&[]);
    let expected = [b"+OK\r\n", &request(&[&value])[4..], b"+PONG\r\n"].concat();
    for options in [&[][..], &[&b"EX"[..], b"100"]] {
        let set = request(&[&[&b"SET"[..], b"k", &value], options].concat());
        let stream = [set, request(&[b"GET", b"k"]), b"PING\r\n".to_vec()].concat();
        let value_at = stream.iter().position(|&byte| byte == b'v').unwrap();
        let frame = (0..value_at + 3).chain(value_at + LONG - 3..=stream.len());
        for (first, second) in frame.clone().flat_map(|first| [first, LONG].map(|second| (first, second))) {
            let (first, second) = (first.min(second), first.max(second));
            let client = bench.connect();
            for piece in [&stream[..first], &stream[first..second], &stream[second..]] {
                bench.engine.receive(client, piece);
            }
            assert!(bench.take(client) == expected, "split at {first} and {second}");
            bench.engine.disconnect(client);
        }
    }
}

/// Sends a request that sets `k` to a long string of one letter, in three pieces.
fn set_in_three(bench: &mut Bench, client: ClientId, letter: u8, options: &[&[u8]]) {
    let stream = request(&[&[&b"SET"[..], b"k", &[letter; LONG]], options].concat());
    for piece in [&stream[..LONG / 2], &stream[LONG / 2..stream.len() - 3], &stream[stream.len() - 3..]] {
        bench.engine.receive(client, piece);
    }
}

#[test]
fn one_that_is_held_back_runs_later_and_in_its_order() {
    let mut bench = Bench::new(&[]);
    let (paused, other) = (bench.connect(), bench.connect());
    assert_eq!(bench.ask(other, "CLIENT PAUSE 100 WRITE\r\n"), "+OK\r\n");
    set_in_three(&mut bench, paused, b'a', &[]);
    bench.engine.receive(paused, b"STRLEN k\r\n");
    set_in_three(&mut bench, paused, b'b', &[b"XX", b"KEEPTTL"]);
    bench.engine.receive(paused, b"GETRANGE k 0 1\r\n");
    assert_eq!(bench.take_text(paused), "");
    assert_eq!(bench.ask(other, "EXISTS k\r\n"), ":0\r\n");
    bench.advance_ms(101);
    bench.engine.end_turn();
    assert_eq!(bench.take_text(paused), "+OK\r\n:32768\r\n+OK\r\n$2\r\nbb\r\n");
}

#[test]
fn one_whose_options_are_held_back_runs_later() {
    let mut bench = Bench::new(&[]);
    let (paused, other) = (bench.connect(), bench.connect());
    assert_eq!(bench.ask(other, "CLIENT PAUSE 100 WRITE\r\n"), "+OK\r\n");
    set_in_three(&mut bench, paused, b'a', &[b"PX", b"500", b"NX", b"GET"]);
    bench.engine.receive(paused, b"PTTL k\r\n");
    assert_eq!(bench.take_text(paused), "");
    bench.advance_ms(101);
    bench.engine.end_turn();
    assert_eq!(bench.take_text(paused), "$-1\r\n:500\r\n");
    assert_eq!(bench.ask(other, "STRLEN k\r\n"), ":32768\r\n");
}

#[test]
fn who_listens_sees_the_request() {
    let mut bench = Bench::new(&["--notify-keyspace-events", "KA"]);
    let (setter, monitor, listener) = (bench.connect(), bench.connect(), bench.connect());
    assert_eq!(bench.ask(monitor, "MONITOR\r\n"), "+OK\r\n");
    bench.ask(listener, "PSUBSCRIBE *\r\n");
    for (options, shown) in [(&[][..], ""), (&[&b"GET"[..], b"KEEPTTL"], " \"GET\" \"KEEPTTL\"")] {
        set_in_three(&mut bench, setter, b'a', options);
        bench.take(setter);
        assert!(bench.take_text(listener).ends_with("$16\r\n__keyspace@0__:k\r\n$3\r\nset\r\n"));
        let seen = bench.take_text(monitor);
        let expected = format!("\"SET\" \"k\" \"{}\"{shown}\r\n", "a".repeat(LONG));
        assert!(seen.ends_with(&expected), "{} bytes", seen.len());
    }
}

#[test]
fn a_client_that_goes_in_the_middle_leaves_nothing() {
    let mut bench = Bench::new(&[]);
    let (gone, other) = (bench.connect(), bench.connect());
    let stream = request(&[b"SET", b"k", &[b'a'; LONG]]);
    bench.engine.receive(gone, &stream[..LONG]);
    assert!(bench.ask(other, "CLIENT LIST\r\n").contains(&format!(" qbuf={} ", LONG - 28)));
    bench.engine.disconnect(gone);
    let next = bench.connect();
    assert_eq!(next, gone);
    assert_eq!(bench.ask(next, "EXISTS k\r\n"), ":0\r\n");
}

/// However the pieces are cut, and whatever came before, a value takes little more memory than it needs.
#[test]
fn a_value_takes_no_more_memory_than_it_needs() {
    let mut bench = Bench::new(&[]);
    let others = b"STRLEN k\r\n".repeat(20_000);
    let options: [&[&[u8]]; 2] = [&[], &[b"PX", b"100000", b"GET"]];
    for (len, options) in [LONG, 2 * LONG, 100_000].into_iter().flat_map(|len| options.map(|options| (len, options))) {
        let value = vec![b'v'; len];
        let stream = request(&[&[&b"SET"[..], b"k", &value], options].concat());
        for (at, is_paused) in [(28, false), (1000, false), (4096, false), (LONG / 2, false), (1000, true)] {
            let (client, other) = (bench.connect(), bench.connect());
            if is_paused {
                bench.ask(other, "CLIENT PAUSE 10 ALL\r\n");
                bench.engine.receive(client, &others);
            }
            bench.engine.receive(client, &stream[..at]);
            bench.advance_ms(20);
            bench.engine.end_turn();
            bench.engine.receive(client, &stream[at..]);
            assert!(bench.take_text(client).ends_with("\r\n"));
            let usage: usize = bench.ask(other, "MEMORY USAGE k\r\n")[1..].trim_end().parse().unwrap();
            assert!((len..len + len / 8 + 200).contains(&usage), "{usage} bytes for {len}, cut at {at}");
        }
    }
}
