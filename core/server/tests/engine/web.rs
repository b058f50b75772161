//! What the web server shows of the store, and to whom.

use crate::bench::Bench;
use kayvee_http::{AccessLog, Fate, Limits, PageRequest, Pages, Server, Stats};
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::atomic::Ordering,
};

/// Where who asks comes from.
pub const REMOTE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1025));

/// The statuses of the pages for operators, for somebody who says to be this.
fn statuses(bench: &mut Bench, authorization: Option<&str>) -> [u16; 3] {
    let authorization = authorization.map(str::as_bytes);
    ["/metrics", "/_/status", "/_/status/events"].map(|path| {
        let request = PageRequest {
            path: path.as_bytes(),
            authorization,
            remote: REMOTE,
            is_local: true,
            stats: &Stats::default(),
        };
        bench.engine.web().reserved(&request).expect("it is there").status
    })
}

#[test]
fn users_see_what_they_may_ask_for() {
    const SEEN: [u16; 3] = [200; 3];
    const REFUSED: [u16; 3] = [401; 3];
    let mut bench = Bench::new(&["--status", "yes"]);
    assert_eq!(statuses(&mut bench, None), SEEN);
    let client = bench.connect();
    let rules = "\
        ACL SETUSER nobody on >p\r\nACL SETUSER prometheus on >p +info\r\nACL SETUSER operator on >p +info +slowlog|get\r\n\
        ACL SETUSER gone >p +@all\r\nACL SETUSER default >pw\r\n";
    assert_eq!(bench.ask(client, rules), "+OK\r\n".repeat(5));
    for (says, name, expected) in [
        (None, "nobody at all", REFUSED),
        (Some("Basic ZGVmYXVsdDpwdw=="), "default:pw", SEEN),
        (Some("Basic OnB3"), ":pw", SEEN),
        (Some("Basic ZGVmYXVsdDpw"), "default:p", REFUSED),
        (Some("Basic bm9ib2R5OnA="), "nobody:p", REFUSED),
        (Some("Basic cHJvbWV0aGV1czpw"), "prometheus:p", [200, 401, 401]),
        (Some("Basic b3BlcmF0b3I6cA=="), "operator:p", SEEN),
        (Some("Basic Z29uZTpw"), "gone:p", REFUSED),
    ] {
        assert_eq!(statuses(&mut bench, says), expected, "{name}");
    }
    // The default user needs no password, but may not do all.
    assert_eq!(bench.ask(client, "ACL SETUSER default nopass -@all +acl\r\n"), "+OK\r\n");
    assert_eq!(statuses(&mut bench, None), REFUSED);
    assert_eq!(statuses(&mut bench, Some("Basic b3BlcmF0b3I6cA==")), SEEN);
}

/// What a command is called, or that nobody can call it, gives no leave to anybody, and takes none.
#[test]
fn renamed_commands_are_whose_they_were() {
    let hidden = ["--rename-command", "INFO", ""];
    let renamed = ["--rename-command", "SLOWLOG", "x"];
    for words in [&hidden[..], &renamed, &[hidden, renamed].concat()] {
        let mut bench = Bench::new(&[&["--status", "yes"], words].concat());
        assert_eq!(statuses(&mut bench, None), [200; 3], "{words:?}");
        let client = bench.connect();
        let rules = "\
            ACL SETUSER nobody on >p\r\nACL SETUSER prometheus on >p +@all -slowlog\r\nACL SETUSER operator on >p +@all\r\n\
            ACL SETUSER default >pw -@all +acl\r\n";
        assert_eq!(bench.ask(client, rules), "+OK\r\n".repeat(4));
        for (says, name, expected) in [
            (None, "nobody at all", [401; 3]),
            (Some("Basic ZGVmYXVsdDpwdw=="), "default:pw", [401; 3]),
            (Some("Basic bm9ib2R5OnA="), "nobody:p", [401; 3]),
            (Some("Basic cHJvbWV0aGV1czpw"), "prometheus:p", [200, 401, 401]),
            (Some("Basic b3BlcmF0b3I6cA=="), "operator:p", [200; 3]),
        ] {
            assert_eq!(statuses(&mut bench, says), expected, "{words:?} {name}");
        }
    }
}

/// Who would be turned away from the store sees nothing of it on the web.
#[test]
fn protected_mode_covers_pages() {
    let stats = Stats::default();
    let mut bench = Bench::new(&["--status", "yes", "--http-keys", "page:"]);
    let client = bench.connect();
    bench.ask(client, "SET page:k v\r\n");
    for (command, own, key, goes_on) in [
        ("PING", 403, 403, false),
        ("CONFIG SET requirepass pw", 401, 200, false),
        ("CONFIG SET requirepass ''", 403, 403, false),
        ("CONFIG SET protected-mode no", 200, 200, true),
    ] {
        bench.ask(client, &format!("{command}\r\n"));
        let mut web = bench.engine.web();
        let request = |path| PageRequest { path, authorization: None, remote: REMOTE, is_local: false, stats: &stats };
        let reserved = [&b"/metrics"[..], b"/_/status", b"/_/status/events", b"/healthz"]
            .map(|path| web.reserved(&request(path)).expect("it is there").status);
        assert_eq!(reserved, [own, own, own, 200], "{command}");
        assert_eq!(web.missing(&request(b"/k")).map(|page| page.status), Some(key), "{command}");
        assert_eq!(web.farewell(b"", false).is_none(), goes_on, "{command}");
        assert!(web.reserved(&request(b"/of-the-site")).is_none());
    }
}

/// What lets somebody in once does not for ever.
#[test]
fn listeners_may_listen_as_long_as_they_may_ask() {
    let mut bench = Bench::new(&["--status", "yes"]);
    let client = bench.connect();
    let password = b"Basic OnB3".as_slice();
    for (command, password_is_right, none_is_needed) in [
        ("PING", true, true),
        ("CONFIG SET requirepass pw", true, false),
        ("CONFIG SET requirepass other", false, false),
        ("ACL SETUSER default resetpass >pw", true, false),
        ("ACL SETUSER default -slowlog", false, false),
        ("ACL SETUSER default nopass +@all", true, true),
    ] {
        bench.ask(client, &format!("{command}\r\n"));
        let web = bench.engine.web();
        let goes_on = [password, b""].map(|authorization| web.farewell(authorization, true).is_none());
        assert_eq!(goes_on, [password_is_right, none_is_needed], "{command}");
    }
}

/// The copy of a value for a page leaves alone what everything else needs to go on.
#[test]
fn a_key_is_no_page_where_its_copy_takes_the_last_memory() {
    let mut bench = Bench::new(&["--http-keys", "page:"]);
    let client = bench.connect();
    let large = format!("SET page:large {}\r\nSET page:small x\r\n", "x".repeat(10_000));
    assert_eq!(bench.ask(client, &large), "+OK\r\n+OK\r\n");
    bench.heap.limit.store(16 << 20, Ordering::Relaxed);
    let mut statuses = |free_bytes: u64| {
        bench.heap.used.store((16 << 20) - free_bytes, Ordering::Relaxed);
        ["/large", "/small"].map(|path| {
            let request = PageRequest {
                path: path.as_bytes(),
                authorization: None,
                remote: REMOTE,
                is_local: true,
                stats: &Stats::default(),
            };
            bench.engine.web().missing(&request).expect("it is there").status
        })
    };
    let half_of_reserve = 512 << 10;
    assert_eq!(statuses(half_of_reserve + 10_000), [200, 200]);
    assert_eq!(statuses(half_of_reserve + 9_999), [503, 200]);
    assert_eq!(statuses(half_of_reserve), [503, 503]);
}

/// The status of a key's page, and whether it may be kept.
pub fn key_page(bench: &mut Bench) -> (u16, &'static str) {
    let request =
        PageRequest { path: b"/k", authorization: None, remote: REMOTE, is_local: true, stats: &Stats::default() };
    bench.engine.web().missing(&request).map_or((404, ""), |page| (page.status, page.cache_control))
}

/// What half a script has done is shown to nobody.
#[test]
fn a_key_is_no_page_while_a_slow_script_runs() {
    let mut bench = Bench::new(&["--http-keys", "page:", "--busy-reply-threshold", "5"]);
    bench.let_time_pass();
    let [slow, other] = [bench.connect(), bench.connect()];
    let script =
        "EVAL \"redis.call('SET', 'page:k', 'half') for i = 1, 3e6 do end redis.call('SET', 'page:k', 'all')\" 0\r\n";
    assert_eq!(bench.ask(slow, script), "");
    assert!(bench.ask(other, "GET page:k\r\n").starts_with("-BUSY "));
    assert_eq!(key_page(&mut bench), (503, "no-store"));
    let reply = (0..10_000).find_map(|_| {
        bench.advance_ms(1);
        Some(bench.take_text(slow)).filter(|reply| !reply.is_empty())
    });
    assert_eq!(reply.as_deref(), Some("$-1\r\n"));
    assert_eq!(key_page(&mut bench), (200, "no-cache"));
}

/// Who did not get in is in `ACL LOG`, as if it had sent `AUTH`; who said no name, or may not see what it asks for, is not.
#[test]
fn failed_logins_are_noted() {
    let mut bench = Bench::new(&["--status", "yes", "--requirepass", "pw"]);
    let client = bench.connect();
    assert_eq!(bench.ask(client, "AUTH pw\r\nACL SETUSER nobody on >p\r\n"), "+OK\r\n+OK\r\n");
    for says in [None, Some("Basic OnB3"), Some("Basic bm9ib2R5OnA="), Some("Bearer x"), Some("Basic eA==")] {
        statuses(&mut bench, says);
    }
    assert_eq!(bench.ask(client, "ACL LOG\r\n"), "*0\r\n");
    assert_eq!(statuses(&mut bench, Some("Basic ZGVmYXVsdDpwYXNz")), [401; 3], "default:pass");
    let log = bench.ask(client, "ACL LOG\r\n");
    let words: Vec<&str> = log.split("\r\n").filter(|word| !word.starts_with('$')).collect();
    let start = "*1 *20 count :3 reason auth context toplevel object AUTH username default age-seconds";
    assert!(words.join(" ").starts_with(start), "{words:?}");
    let client_info = words.iter().find(|word| word.starts_with("id=")).expect("it is there");
    assert!(client_info.starts_with("id=0 addr=192.0.2.1:1025 laddr= fd=-1 name= age=0 idle=0 flags=N db=0 "));
    assert!(client_info.contains(" cmd=auth user=default "), "{client_info}");
    // Where nobody needs a password, a wrong one is none.
    bench.ask(client, "ACL LOG RESET\r\nCONFIG SET requirepass ''\r\n");
    assert_eq!(statuses(&mut bench, Some("Basic ZGVmYXVsdDpwYXNz")), [200; 3]);
    assert_eq!(bench.ask(client, "ACL LOG\r\n"), "*0\r\n");
}

/// What a pause promises holds for whoever asks by the web: nothing is answered from keys while all clients are paused, and no
/// key goes while nothing may change.
#[test]
fn pages_of_keys_wait_for_the_end_of_a_pause() {
    const REQUESTS: &[u8] =
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /k HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut bench = Bench::new(&["--http-keys", "page:"]);
    let mut server = Server::new(Limits::new(10, 1 << 20), AccessLog::Off, bench.now);
    let client = bench.connect();
    bench.ask(client, "SET page:k before\r\nSET page:gone v PX 10\r\n");
    let id = server.connect(REMOTE, true).unwrap();
    let taken = |bench: &mut Bench, server: &mut Server| {
        bench.engine.end_turn();
        server.release(&mut bench.engine.web());
        let text = String::from_utf8(server.output(id).concat()).unwrap();
        server.sent(id, text.len(), &mut bench.engine.web());
        text
    };
    for (pause, ends) in [("CLIENT PAUSE 100", ""), ("CLIENT PAUSE 100000 ALL", "CLIENT UNPAUSE\r\n")] {
        assert_eq!(bench.ask(client, &format!("{pause}\r\n")), "+OK\r\n");
        server.begin_turn(bench.now, &mut bench.engine.web());
        server.receive(id, REQUESTS, &mut bench.engine.web());
        assert!(taken(&mut bench, &mut server).ends_with("\r\n\r\nok\n"), "{pause}");
        bench.advance_ms(99);
        server.begin_turn(bench.now, &mut bench.engine.web());
        assert_eq!((taken(&mut bench, &mut server).as_str(), server.fate(id)), ("", Fate::Waiting), "{pause}");
        bench.advance_ms(1);
        server.begin_turn(bench.now, &mut bench.engine.web());
        bench.engine.receive(client, ends.as_bytes());
        assert!(taken(&mut bench, &mut server).ends_with("\r\n\r\nbefore"), "{pause}");
        assert_eq!(server.fate(id), Fate::Open);
    }
    bench.take(client);
    // Reading goes on.
    bench.ask(client, "SET page:gone v PX 10\r\nCLIENT PAUSE 1000 WRITE\r\n");
    bench.advance_ms(50);
    server.begin_turn(bench.now, &mut bench.engine.web());
    server.receive(id, b"GET /k HTTP/1.1\r\nHost: localhost\r\n\r\n", &mut bench.engine.web());
    assert!(taken(&mut bench, &mut server).ends_with("\r\n\r\nbefore"));
    server.receive(id, b"GET /gone HTTP/1.1\r\nHost: localhost\r\n\r\n", &mut bench.engine.web());
    assert!(taken(&mut bench, &mut server).starts_with("HTTP/1.1 404 "));
    assert_eq!(bench.ask(client, "DBSIZE\r\n"), ":2\r\n", "it stays, hidden");
    // Without pages of keys there is nothing to wait for.
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    bench.ask(client, "CLIENT PAUSE 1000\r\n");
    assert!(!bench.engine.web().are_paused());
}

/// Prometheus adds up what several commands have in the same bucket, so all have all buckets.
#[test]
fn histograms_have_the_same_buckets() {
    let mut bench = Bench::new(&[]);
    let client = bench.connect();
    bench.ask(client, "SET a 1\r\nGET a\r\nGET a\r\n");
    let text = metrics(&mut bench);
    for (command, calls) in [("set", 1), ("get", 2)] {
        let start = format!("kayvee_command_duration_seconds_bucket{{command=\"{command}\",le=\"");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&*start)?.split_once("\"} "));
        let (bounds, counts): (Vec<&str>, Vec<u64>) =
            lines.map(|(bound, count)| (bound, count.parse::<u64>().expect("a number"))).unzip();
        let expected = [
            "0.000001023",
            "0.000004095",
            "0.000016383",
            "0.000065535",
            "0.000262143",
            "0.001048575",
            "0.004194303",
            "0.016777215",
            "0.067108863",
            "0.268435455",
            "+Inf",
        ];
        assert_eq!(bounds, expected, "{command}");
        assert!(counts.is_sorted() && counts.last() == Some(&calls), "{command}: {counts:?}");
    }
}

/// A sum divided by a count is how long a call took, whichever calls were tracked.
#[test]
fn durations_are_added_up_for_the_calls_that_are_counted() {
    let sum_and_count = |bench: &mut Bench| {
        let text = metrics(bench);
        ["sum", "count"].map(|name| {
            let start = format!("kayvee_command_duration_seconds_{name}{{command=\"get\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&*start)?.parse::<f64>().ok()).expect("a number")
        })
    };
    let mut bench = Bench::new(&[]);
    bench.let_time_pass();
    let client = bench.connect();
    bench.ask(client, "GET a\r\nGET a\r\nCONFIG SET latency-tracking no\r\n");
    let [sum, count] = sum_and_count(&mut bench);
    assert!(sum > 0.0 && count == 2.0, "{sum} {count}");
    bench.ask(client, "GET a\r\nGET a\r\nECHO x\r\n");
    assert_eq!(sum_and_count(&mut bench), [sum, count]);
    bench.ask(client, "CONFIG SET latency-tracking yes\r\nGET a\r\nECHO x\r\n");
    let [later_sum, later_count] = sum_and_count(&mut bench);
    assert!(later_sum > sum && later_count == 3.0, "{later_sum} {later_count}");
    // Where none was tracked all are counted.
    let mut bench = Bench::new(&["--latency-tracking", "no"]);
    bench.let_time_pass();
    let client = bench.connect();
    bench.ask(client, "GET a\r\nGET a\r\nECHO x\r\n");
    let [sum, count] = sum_and_count(&mut bench);
    assert!(sum > 0.0 && count == 2.0, "{sum} {count}");
}

fn metrics(bench: &mut Bench) -> String {
    let stats = Stats::default();
    let request = PageRequest { path: b"/metrics", authorization: None, remote: REMOTE, is_local: true, stats: &stats };
    let page = bench.engine.web().reserved(&request).expect("it is there");
    String::from_utf8((*page.body).as_ref().to_vec()).expect("text")
}

/// The status page shows words as they are, and says where they are no text.
#[test]
fn slow_commands_are_shown_as_text() {
    let mut bench = Bench::new(&["--slowlog-log-slower-than", "0"]);
    let client = bench.connect();
    bench.ask(client, "*2\r\n$4\r\nECHO\r\n$7\r\n\u{e9}\"\u{20ac}\n\r\n");
    let event = String::from_utf8(bench.engine.web().status_event(&Stats::default())).expect("text");
    assert!(event.contains("[\"ECHO \u{e9}\\u0022\u{20ac}\\u000a \","), "{event}");
}
