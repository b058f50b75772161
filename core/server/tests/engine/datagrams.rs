//! memcached's protocol, a datagram at a time.

use crate::bench::Bench;

/// What the store answers to a text, behind a header that is looked at here; `None` for nothing.
fn ask(bench: &mut Bench, client: kayvee_server::ClientId, text: &[u8]) -> Option<Vec<u8>> {
    let mut reply = [0xa5; 1472];
    let request = [&[0x12, 0x34, 0, 0, 0, 1, 0, 0], text].concat();
    bench.engine.begin_turn(bench.now);
    let len = bench.engine.memcached_datagram(client, &request, &mut reply)?;
    bench.engine.end_turn();
    assert_eq!(reply[..8], [0x12, 0x34, 0, 0, 0, 1, 0, 0], "the number of the request comes back");
    Some(reply[8..len].to_vec())
}

#[test]
fn values_are_set_and_got() {
    let mut bench = Bench::new(&[]);
    bench.now.unix_us = 1_700_000_000_000_000;
    let (client, other) = (bench.connect(), bench.connect());
    let talk: &[(&[u8], &[u8])] = &[
        (b"get key\r\n", b"END\r\n"),
        (b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n"),
        (b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n"),
        (b"set bytes 0 0 6\r\n\r\n\0\xff \n\r\n", b"STORED\r\n"),
        (b"get key none bytes\r\n", b"VALUE key 0 5\r\nvalue\r\nVALUE bytes 0 6\r\n\r\n\0\xff \n\r\nEND\r\n"),
        (b"set soon 0 100 1\r\nx\r\n", b"STORED\r\n"),
        (b"set gone 0 -1 1\r\nx\r\n", b"STORED\r\n"),
        (b"get gone\r\n", b"END\r\n"),
        (b"set then 0 4000000000 1\r\nx\r\n", b"STORED\r\n"),
        (b"set key 7 0 1\r\nx\r\n", b"SERVER_ERROR flags other than 0 are not kept\r\n"),
        (b"set key 0 0 2\r\nx\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
        (b"set key 0 0 1\r\nxy\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
        (b"set key 0 0 -1\r\n\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
        (b"set key 0 0 99999999999999999999\r\n\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"set key zero 0 1\r\nx\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"set key 0 0\r\nx\r\n", b"ERROR\r\n"),
        (b"get\r\n", b"ERROR\r\n"),
        (b"incr key 1\r\n", b"ERROR\r\n"),
        (b"get key", b"ERROR\r\n"),
        (b"get k\ney\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"", b"ERROR\r\n"),
    ];
    for (request, reply) in talk {
        let said = ask(&mut bench, client, request).expect("a reply");
        assert_eq!(said.escape_ascii().to_string(), reply.escape_ascii().to_string(), "{}", request.escape_ascii());
    }
    assert_eq!(bench.ask(other, "GET key\r\n"), "$5\r\nvalue\r\n");
    assert_eq!(bench.ask(other, "TTL soon\r\n"), ":100\r\n");
    assert_eq!(bench.ask(other, "EXPIRETIME then\r\n"), ":4000000000\r\n");
    for reply in talk.iter().map(|(_, reply)| *reply) {
        assert_eq!(ask(&mut bench, client, reply), None, "a reply is no request");
    }
    assert_eq!(ask(&mut bench, client, b"set key 0 0 1 noreply\r\nz\r\n"), None);
    assert_eq!(bench.ask(other, "GET key\r\n"), "$1\r\nz\r\n");
}

#[test]
fn what_does_not_fit_a_datagram_is_said() {
    let mut bench = Bench::new(&[]);
    let (client, other) = (bench.connect(), bench.connect());
    for len in [1400, 1500, 5000, 1_000_000] {
        bench.ask(other, &format!("SETRANGE long {} x\r\n", len - 1));
        let said = ask(&mut bench, client, b"get long\r\n").unwrap();
        let is_whole = said.starts_with(b"VALUE long 0 1400\r\n");
        assert_eq!(is_whole, len == 1400);
        assert!(is_whole || said == b"SERVER_ERROR object too large for a datagram\r\n", "{len}");
    }
    // The session still answers as before.
    assert_eq!(ask(&mut bench, client, b"set a 0 0 1\r\nb\r\n").unwrap(), b"STORED\r\n");
    let long = [b"get ", &[b'k'; 251][..], b"\r\n"].concat();
    assert_eq!(ask(&mut bench, client, &long).unwrap(), b"CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn redis_errors_are_the_server_s() {
    let mut bench = Bench::new(&[]);
    let (client, other) = (bench.connect(), bench.connect());
    bench.ask(other, "LPUSH list x\r\n");
    let said = ask(&mut bench, client, b"get list\r\n").unwrap();
    assert!(said.starts_with(b"SERVER_ERROR WRONGTYPE") && said.ends_with(b"\r\n"));
    bench.ask(other, "CLIENT PAUSE 1000\r\n");
    let said = ask(&mut bench, client, b"set a 0 0 1\r\nb\r\n").unwrap();
    assert!(said.starts_with(b"SERVER_ERROR"), "{}", said.escape_ascii());
}

#[test]
fn datagrams_that_are_none_of_the_protocol_s_do_no_harm() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    let mut reply = [0; 1472];
    for len in 0..8 {
        assert_eq!(bench.engine.memcached_datagram(client, &vec![0; len], &mut reply), None);
    }
    let mut say = |header: [u8; 8]| {
        let len = bench.engine.memcached_datagram(client, &[&header[..], b"get a\r\n"].concat(), &mut reply).unwrap();
        reply[8..len].to_vec()
    };
    assert_eq!(say([0, 1, 0, 0, 0, 2, 0, 0]), b"SERVER_ERROR multi-packet request not supported\r\n");
    assert_eq!(say([0, 1, 0, 1, 0, 1, 0, 0]), b"SERVER_ERROR multi-packet request not supported\r\n");
    let mut seed = 1u32;
    let mut below = move |limit: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % limit
    };
    for _ in 0..20_000 {
        let letters = b"getset 01\r\n\0k";
        let text: Vec<u8> = (0..below(60)).map(|_| letters[below(letters.len())]).collect();
        let text = [[&b"set k 0 0 "[..], b"get ", b""][below(3)], &text].concat();
        ask(&mut bench, client, &text);
    }
}

#[test]
fn what_was_refused_does_not_run_later() {
    let mut bench = Bench::new(&[]);
    let (client, other) = (bench.connect(), bench.connect());
    let not_now = b"SERVER_ERROR replies have to wait, which datagrams cannot: use TCP\r\n";
    bench.ask(other, "SET b there\r\n");
    bench.ask(other, "CLIENT PAUSE 1000 ALL\r\n");
    for request in [&b"set a 0 0 1\r\nx\r\n"[..], b"get b\r\n", b"set a 0 0 1\r\ny\r\n"] {
        assert_eq!(ask(&mut bench, client, request).unwrap(), not_now);
    }
    bench.advance_ms(1001);
    bench.engine.end_turn();
    assert_eq!(ask(&mut bench, client, b"get a\r\n").unwrap(), b"END\r\n");
    assert_eq!(ask(&mut bench, client, b"get b\r\n").unwrap(), b"VALUE b 0 5\r\nthere\r\nEND\r\n");
    assert_eq!(bench.ask(other, "EXISTS a\r\n"), ":0\r\n");
}
