//! What the web server shows of the store, and to whom.

use crate::bench::Bench;
use kayvee_http::{PageRequest, Pages, Stats};
use std::sync::atomic::Ordering;

/// The statuses of the pages for operators, for somebody who says to be this.
fn statuses(bench: &mut Bench, authorization: Option<&str>) -> [u16; 3] {
    let authorization = authorization.map(str::as_bytes);
    ["/metrics", "/_/status", "/_/status/events"].map(|path| {
        let request = PageRequest { path: path.as_bytes(), authorization, is_local: true, stats: &Stats::default() };
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
        let request = |path| PageRequest { path, authorization: None, is_local: false, stats: &stats };
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
            let request =
                PageRequest { path: path.as_bytes(), authorization: None, is_local: true, stats: &Stats::default() };
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
    let request = PageRequest { path: b"/k", authorization: None, is_local: true, stats: &Stats::default() };
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
