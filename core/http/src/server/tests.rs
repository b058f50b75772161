use super::*;
use crate::{
    Delivery, NoPages, Page, PageRequest,
    respond::{COPIED_BYTES, RESPONSE_BYTES},
    site::{Builder, File},
};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
};
use core::net::{Ipv4Addr, SocketAddrV4};

const REMOTE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1025));
const GET: &[u8] = b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n";
const BIG_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 1 << 20;

fn at(seconds: u64) -> Now {
    Now { monotonic_ns: seconds * SECOND_NS, unix_us: seconds * 1_000_000 }
}

fn server(limits: Limits) -> Server {
    let mut builder = Builder::default();
    let page = |len: usize| File { identity: (0..len).map(|index| index as u8).collect(), ..File::default() };
    builder.page(0, b"/big", &page(BIG_BYTES)).expect("a page");
    builder.page(0, b"/small", &page(100)).expect("a page");
    builder.page(0, b"/copied", &page(COPIED_BYTES)).expect("a page");
    let mut server = Server::new(limits, AccessLog::Off, at(0));
    server.set_site(Site::open(Arc::new(builder.finish().expect("an image"))).expect("a site"));
    server
}

/// Lets time pass in steps of a second, and returns when a connection's fate is no longer to stay.
fn ends_at(server: &mut Server, id: ConnectionId, mut each: impl FnMut(&mut Server, u64)) -> u64 {
    for second in 1..1000 {
        server.begin_turn(at(second), &mut NoPages);
        each(server, second);
        server.end_turn();
        if matches!(server.fate(id), Fate::CloseNow | Fate::EndAfterOutput) {
            return second;
        }
        assert!(server.next_deadline_ns().is_some_and(|deadline| deadline > second * SECOND_NS));
    }
    panic!("it stays for ever")
}

fn text(server: &Server, id: ConnectionId) -> String {
    String::from_utf8_lossy(&server.output(id).concat()).into_owned()
}

#[test]
fn an_idle_connection_ends_without_a_word() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    assert_eq!(server.next_deadline_ns(), None);
    let id = server.connect(REMOTE, true).expect("room");
    assert_eq!(ends_at(&mut server, id, |_, _| ()), 60);
    assert_eq!(text(&server, id), "");
    assert_eq!(server.fate(id), Fate::CloseNow);
}

#[test]
fn a_slow_head_is_told_however_often_a_byte_comes() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    let ends = ends_at(&mut server, id, |server, second| {
        if second >= 5 {
            server.receive(id, &GET[second as usize - 5..][..1], &mut NoPages);
        }
    });
    assert_eq!(ends, 15);
    assert!(text(&server, id).starts_with("HTTP/1.1 408 "));
    // Once that is sent, the client has a moment to end the connection as well.
    let len = server.output(id).concat().len();
    server.sent(id, len, &mut NoPages);
    assert_eq!(server.fate(id), Fate::EndAfterOutput);
    server.receive(id, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", &mut NoPages);
    assert_eq!(text(&server, id), "", "what comes now is dropped");
    for second in 16..19 {
        server.begin_turn(at(second), &mut NoPages);
        server.end_turn();
    }
    assert_eq!(server.fate(id), Fate::CloseNow);
}

/// RFC 9110 §9.3.2: whatever is wrong with it.
#[test]
fn head_is_answered_without_a_body() {
    let answer = |head: &str, waits: bool| {
        let mut server = server(Limits::new(10, BUFFER_BYTES));
        let id = server.connect(REMOTE, true).expect("room");
        server.receive(id, head.as_bytes(), &mut Paused(true));
        if waits {
            ends_at(&mut server, id, |_, _| ());
        }
        assert_eq!(server.fate(id), Fate::EndAfterOutput, "{head}");
        text(&server, id)
    };
    for (rest, status, waits) in [
        (" /small HTTP/1.1\r\n\r\n", 400, false),
        (" /small HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\n\r\n", 413, false),
        (" /small HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx", 400, false),
        (" /small HTTP/1.1\r\nHost:", 408, true),
        (" /small HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n", 408, true),
        (" /made HTTP/1.1\r\nHost: h\r\n\r\n", 503, true),
    ] {
        let [to_get, to_head] = ["GET", "HEAD"].map(|method| answer(&[method, rest].concat(), waits));
        assert!(to_get.starts_with(&format!("HTTP/1.1 {status} ")), "{rest}: {to_get}");
        let fields = to_get.split_once("\r\n\r\n").map(|(fields, _)| [fields, "\r\n\r\n"].concat());
        assert_eq!(Some(to_head), fields, "{rest}");
        assert!(to_get.ends_with("</h1>\n"), "{rest}: {to_get}");
    }
}

#[test]
fn a_slow_body_is_told() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, b"GET /small HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n", &mut NoPages);
    assert_eq!(ends_at(&mut server, id, |server, _| server.receive(id, b"x", &mut NoPages)), 10);
    assert!(text(&server, id).starts_with("HTTP/1.1 408 "));
}

#[test]
fn a_client_that_takes_nothing_ends() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, GET, &mut NoPages);
    let ends = ends_at(&mut server, id, |server, second| {
        if second == 20 {
            server.sent(id, 1, &mut NoPages);
        }
    });
    assert_eq!(ends, 50, "30 s after the last byte");
    assert_eq!(server.output(id).concat().len(), 0);
}

#[test]
fn requests_keep_a_connection_alive() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    let ends = ends_at(&mut server, id, |server, second| {
        if second % 50 == 0 && second <= 200 {
            server.receive(id, b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n", &mut NoPages);
            let len = server.output(id).concat().len();
            server.sent(id, len, &mut NoPages);
        }
    });
    assert_eq!(ends, 260);
}

#[test]
fn connections_are_limited_and_their_places_used_again() {
    let mut server = server(Limits::new(2, BUFFER_BYTES));
    let first = server.connect(REMOTE, true).expect("room");
    server.connect(REMOTE, true).expect("room");
    assert!(server.connect(REMOTE, true).expect_err("full").0.starts_with(b"HTTP/1.1 503 "));
    server.disconnect(first);
    assert_eq!(server.connect(REMOTE, true), Ok(first));
    assert_eq!(server.stats().connections_rejected, 1);
}

/// Pipelined requests for a large page are held until the one before is sent; nothing is copied.
#[test]
fn pipelined_requests_take_little_memory() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, &GET.repeat(100), &mut NoPages);
    let connection = server.connections[0].as_deref().expect("a connection");
    assert!(connection.input.capacity() <= GET.len() * 100);
    assert_eq!(server.fate(id), Fate::Paused);
    let image = server.shared.site.as_ref().expect("a site").lend(0..0).0.clone();
    let image_bytes = (*image).as_ref().as_ptr_range();
    let mut bodies = 0;
    let mut total = 0;
    loop {
        let [first, second] = server.output(id);
        if first.is_empty() {
            break;
        }
        for part in [first, second] {
            bodies += usize::from(part.len() == BIG_BYTES && image_bytes.contains(&part.as_ptr()));
        }
        let len = first.len() + second.len();
        total += len;
        server.sent(id, len, &mut NoPages);
    }
    assert_eq!(bodies, 100);
    assert!(total > 100 * BIG_BYTES);
    assert_eq!(server.fate(id), Fate::Open);
    assert!(server.next_ready().is_some(), "it is to be read from again");
}

#[test]
fn a_client_that_takes_nothing_is_named_once() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, GET, &mut NoPages);
    assert_eq!(server.next_ready(), Some(id));
    server.sent(id, 0, &mut NoPages);
    server.sent(id, 10, &mut NoPages);
    assert_eq!(server.next_ready(), None, "it would be asked again and again");
}

#[test]
fn a_reply_on_its_way_is_finished_from_its_own_site() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, GET, &mut NoPages);
    let before = server.output(id).concat();
    server.set_site(Site::open(Arc::new(Builder::default().finish().expect("an image"))).expect("a site"));
    assert_eq!(server.output(id).concat(), before);
    server.sent(id, before.len(), &mut NoPages);
    server.receive(id, GET, &mut NoPages);
    assert!(text(&server, id).starts_with("HTTP/1.1 404 "));
}

struct Stream;

impl Pages for Stream {
    fn reserved(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        let (status, delivery) = match request.path {
            b"/stream" => (200, Delivery::Stream),
            b"/own" => (200, Delivery::Whole),
            b"/secret" => (401, Delivery::Whole),
            _ => return None,
        };
        Some(Page {
            status,
            content_type: "text/plain",
            cache_control: "no-store",
            challenge: if status == 401 { "Basic realm=\"x\"" } else { "" },
            body: Arc::new(b"first\n".to_vec()),
            delivery,
        })
    }

    fn missing(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        None
    }
}

#[test]
fn listeners_get_what_is_published() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let id = server.connect(REMOTE, true).expect("room");
    assert!(!server.has_listeners());
    server.receive(id, b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n", &mut Stream);
    assert!(server.has_listeners());
    let head = text(&server, id);
    assert!(head.contains("Connection: close\r\n") && head.ends_with("\r\n\r\nfirst\n"), "{head}");
    assert!(!head.contains("Content-Length"));
    server.sent(id, head.len(), &mut Stream);
    server.publish(b"second\n", &Stream);
    assert_eq!(text(&server, id), "second\n");
    // Who does not listen misses what is said, and is ended.
    for _ in 0..100 {
        server.publish(&[b'x'; 4096], &Stream);
    }
    assert!(server.output(id).concat().len() <= MAX_STREAM_BYTES + 4096);
    assert_eq!(ends_at(&mut server, id, |server, _| server.publish(b"x", &Stream)), 30);
    assert!(!server.has_listeners());
    server.disconnect(id);
    assert!(!server.has_listeners());
}

/// As [`Stream`], for nobody but some.
struct Guarded(&'static [u8]);

impl Pages for Guarded {
    fn reserved(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        Stream.reserved(request)
    }

    fn missing(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        None
    }

    fn farewell(&self, authorization: &[u8], is_local: bool) -> Option<&'static [u8]> {
        (authorization != self.0 || !is_local).then_some(b"bye\n")
    }
}

#[test]
fn listeners_who_may_no_longer_listen_are_ended() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let mut pages = Guarded(b"one");
    let requests = [
        "Host: localhost\r\nAuthorization: one\r\n",
        "Host: localhost\r\nAuthorization: two\r\n",
        "Host: localhost\r\n",
        "Host: rebound.example\r\nAuthorization: one\r\n",
    ];
    let ids = requests.map(|fields| {
        let id = server.connect(REMOTE, true).expect("room");
        server.receive(id, format!("GET /stream HTTP/1.1\r\n{fields}\r\n").as_bytes(), &mut pages);
        let len = server.output(id).concat().len();
        server.sent(id, len, &mut pages);
        id
    });
    server.publish(b"second\n", &pages);
    assert_eq!(ids.map(|id| text(&server, id)), ["second\n", "bye\n", "bye\n", "bye\n"]);
    let ends = Fate::EndAfterOutput;
    assert_eq!(ids.map(|id| server.fate(id)), [Fate::Open, ends, ends, ends]);
    // What is on its way comes first.
    server.publish(b"third\n", &Guarded(b"two"));
    assert_eq!((text(&server, ids[0]).as_str(), server.fate(ids[0])), ("second\nbye\n", Fate::EndAfterOutput));
    assert!(!server.has_listeners());
    ids.iter().for_each(|id| server.disconnect(*id));
    assert_eq!(server.buffered_bytes, 0);
}

#[test]
fn made_pages_have_validators_and_challenges() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let mut ask = |path: &str, field: &str| {
        let id = server.connect(REMOTE, true).expect("room");
        server.receive(id, format!("GET {path} HTTP/1.1\r\nHost: h\r\n{field}\r\n").as_bytes(), &mut Stream);
        let reply = text(&server, id);
        server.disconnect(id);
        reply
    };
    let reply = ask("/own", "");
    let etag = reply.split("\r\n").find(|line| line.starts_with("ETag: ")).expect("a tag").to_string();
    assert!(ask("/own", &format!("If-None-Match: {}\r\n", &etag[6..])).starts_with("HTTP/1.1 304 "));
    let refused = ask("/secret", "");
    assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("WWW-Authenticate: Basic realm=\"x\"\r\n"));
    assert!(!refused.contains("ETag"));
}

struct Large;

impl Large {
    fn page(bytes: usize) -> Page {
        Page {
            status: 200,
            content_type: "text/plain",
            cache_control: "",
            challenge: "",
            body: Arc::new(alloc::vec![b'x'; bytes]),
            delivery: Delivery::Whole,
        }
    }
}

impl Pages for Large {
    fn reserved(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        let bytes = match request.path {
            b"/own" => BUFFER_BYTES / OWN_PART / 2,
            b"/healthz" => 3,
            _ => return None,
        };
        Some(Large::page(bytes))
    }

    fn missing(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        Some(Large::page(BUFFER_BYTES / 4))
    }
}

/// Pages of [`Large`], and how many were made.
struct Counted(usize);

impl Pages for Counted {
    fn reserved(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        None
    }

    fn missing(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        self.0 += 1;
        Large.missing(request)
    }
}

/// Requests that get little of large pages are cheap to send, and dear to answer: they take no more of a turn than others do,
/// whoever sends them and however many, and keep nobody from his turn.
#[test]
fn few_large_pages_are_made_in_a_turn() {
    const HEAD: &[u8] = b"HEAD /made HTTP/1.1\r\nHost: h\r\n\r\n";
    const PART: &[u8] = b"GET /made HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0\r\n\r\n";
    const WITH_BODY: &[u8] = b"GET /made HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx";
    const PER_TURN: usize = 4 * MADE_BYTES_PER_TURN / BUFFER_BYTES;
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let mut pages = Counted(0);
    let ids = [(); 3].map(|()| server.connect(REMOTE, true).expect("room"));
    let requests = [HEAD.repeat(40), PART.repeat(8), WITH_BODY.to_vec()];
    for (id, requests) in ids.iter().zip(&requests) {
        server.receive(*id, requests, &mut pages);
    }
    assert_eq!(pages.0, PER_TURN);
    assert_eq!(ids.map(|id| server.fate(id)), [Fate::Waiting; 3]);
    let (mut replies, mut ended) = ([0; 3], [0; 3]);
    for turn in 1.. {
        while let Some(id) = server.next_ready() {
            let slot = id.0 as usize;
            while !server.output(id)[0].is_empty() {
                let text = server.output(id).concat();
                replies[slot] += String::from_utf8_lossy(&text).matches("HTTP/1.1 20").count();
                server.sent(id, text.len(), &mut pages);
            }
            if server.fate(id) == Fate::Open {
                ended[slot] = turn;
            }
        }
        server.end_turn();
        assert_eq!(pages.0, (turn * PER_TURN).min(49));
        if ended.iter().all(|turn| *turn > 0) {
            break;
        }
        assert_eq!(server.next_deadline_ns(), Some(0), "the next turn begins at once");
        server.begin_turn(at(0), &mut pages);
    }
    assert_eq!(replies, [40, 8, 1]);
    assert!(ended[2] < ended[1] && ended[1] < ended[0] && ended[0] == 13, "{ended:?}");
    assert!(!server.has_waiting() && server.next_deadline_ns() > Some(0));
}

/// While as much is made of keys as a turn has room for, only such pages wait, and who has waited too long is told.
#[test]
fn nothing_else_waits_for_pages_of_keys() {
    let mut server = server(Limits::new(100, BUFFER_BYTES));
    let pages = &mut Large;
    let ids = [(); 40].map(|()| server.connect(REMOTE, true).expect("room"));
    for id in ids {
        server.receive(id, &b"HEAD /made HTTP/1.1\r\nHost: h\r\n\r\n".repeat(8), pages);
    }
    for path in ["/healthz", "/small", "/big"] {
        let id = server.connect(REMOTE, true).expect("room");
        server.receive(id, format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes(), pages);
        assert!(text(&server, id).starts_with("HTTP/1.1 200 "), "{path}");
        server.disconnect(id);
    }
    // One of them takes a whole turn.
    let last = ids[39];
    let told = (1..100).find(|second| {
        assert_eq!(server.fate(last), Fate::Waiting);
        server.begin_turn(at(*second), pages);
        server.end_turn();
        !text(&server, last).is_empty()
    });
    assert_eq!(told, Some(30));
    assert!(text(&server, last).starts_with("HTTP/1.1 503 ") && server.fate(last) == Fate::EndAfterOutput);
    // The server's own have a bound as well.
    server.begin_turn(at(31), pages);
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, &b"HEAD /own HTTP/1.1\r\nHost: h\r\n\r\n".repeat(40), pages);
    assert_eq!(text(&server, id).matches("HTTP/1.1 200 ").count(), 2 * OWN_PART * MADE_BYTES_PER_TURN / BUFFER_BYTES);
    assert_eq!(server.fate(id), Fate::Waiting);
}

#[test]
fn what_may_be_held_changes_for_who_comes_next() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let mut ask = |bytes: usize| {
        server.set_buffer_bytes(bytes);
        let id = server.connect(REMOTE, true).expect("room");
        server.receive(id, b"GET /made HTTP/1.1\r\nHost: h\r\n\r\n", &mut Large);
        text(&server, id)[..13].to_string()
    };
    let asked = [BUFFER_BYTES, BUFFER_BYTES / 8, BUFFER_BYTES].map(&mut ask);
    assert_eq!(asked, ["HTTP/1.1 200 ", "HTTP/1.1 503 ", "HTTP/1.1 200 "]);
}

/// A page that is made for one client is in memory once for each: clients that take nothing get no more of them, others are
/// served as before.
#[test]
fn pages_that_were_made_are_bounded() {
    let mut server = server(Limits::new(100, BUFFER_BYTES));
    let made = b"GET /made HTTP/1.1\r\nHost: h\r\n\r\n";
    let ids: Vec<_> = (0..10).map(|_| server.connect(REMOTE, true).expect("room")).collect();
    for (number, id) in ids.iter().enumerate() {
        server.begin_turn(at(0), &mut Large);
        server.receive(*id, made, &mut Large);
        let status = if number < 4 { "HTTP/1.1 200 " } else { "HTTP/1.1 503 " };
        assert!(text(&server, *id).starts_with(status), "{number}");
    }
    let take = |server: &mut Server, id| {
        let len = server.output(id).concat().len();
        server.sent(id, len, &mut Large);
    };
    ids[4..].iter().for_each(|id| take(&mut server, *id));
    server.receive(ids[4], b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n", &mut Large);
    assert!(text(&server, ids[4]).starts_with("HTTP/1.1 200 "), "what the site lends takes no memory");
    // Room comes back when such a page is sent, and when its client goes.
    take(&mut server, ids[0]);
    server.disconnect(ids[1]);
    for (number, status) in [(5, "HTTP/1.1 200 "), (6, "HTTP/1.1 200 "), (7, "HTTP/1.1 503 ")] {
        server.begin_turn(at(0), &mut Large);
        server.receive(ids[number], made, &mut Large);
        assert!(text(&server, ids[number]).starts_with(status), "{number}");
    }
    ids.iter().for_each(|id| server.disconnect(*id));
    assert_eq!(server.shared.made_bytes, [0; 2]);
}

/// Who watches the server is served while clients that take nothing hold what they may, of pages and of buffers.
#[test]
fn the_servers_own_pages_have_room_of_their_own() {
    const OWN: &[u8] = b"GET /own HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut server = server(Limits::new(1_000, BUFFER_BYTES));
    let ask = |server: &mut Server, request: &[u8]| {
        let id = server.connect(REMOTE, true).expect("room");
        server.begin_turn(at(0), &mut Large);
        server.receive(id, request, &mut Large);
        (id, text(server, id).get(..13).unwrap_or_default().to_string())
    };
    for _ in 0..4 {
        ask(&mut server, b"GET /made HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    assert_eq!(server.shared.made_bytes, [BUFFER_BYTES, 0]);
    let served = "HTTP/1.1 200 ";
    let [(first, one), (_, two), (_, three)] = [(); 3].map(|()| ask(&mut server, OWN));
    assert_eq!([one.as_str(), &two, &three], [served, served, "HTTP/1.1 503 "], "it is bounded as well");
    server.disconnect(first);
    assert_eq!(ask(&mut server, OWN).1, served);
    // Nobody else is let into what is left of the buffers.
    let copied = b"GET /copied HTTP/1.1\r\nHost: h\r\n\r\n";
    let held = (0..300).filter(|_| !ask(&mut server, copied).1.is_empty()).count();
    let least_bytes = BUFFER_BYTES - 2 * (COPIED_BYTES + RESPONSE_BYTES);
    assert!(held > 50 && server.buffered_bytes > least_bytes && held < 250, "{held}");
    assert_eq!(ask(&mut server, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").1, served);
    assert_eq!(ask(&mut server, copied).1, "");
    let watched = (0..300).filter(|_| !ask(&mut server, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n").1.is_empty());
    assert!(watched.count() <= BUFFER_BYTES / OWN_PART / RESPONSE_BYTES);
    assert!(server.buffered_bytes <= BUFFER_BYTES + BUFFER_BYTES / OWN_PART);
}

/// Heads that never end, and clients that take nothing, hold so much and no more; others are served.
#[test]
fn all_buffers_together_are_bounded() {
    const CONNECTIONS: usize = 2_000;
    let mut server = server(Limits::new(CONNECTIONS, BUFFER_BYTES));
    let head = [b"GET /small HTTP/1.1\r\nHost: h\r\nX: ".as_slice(), &[b'x'; 8 << 10]].concat();
    let small = b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut dead = 0;
    for number in 1..CONNECTIONS {
        let id = server.connect(REMOTE, true).expect("room");
        match number % 2 {
            0 => server.receive(id, &head, &mut NoPages),
            _ => server.receive(id, &small.repeat(100), &mut NoPages),
        }
        dead += usize::from(server.fate(id) == Fate::CloseNow);
        let held: usize = server.connections.iter().flatten().map(|connection| connection.buffered_bytes()).sum();
        assert_eq!(held, server.buffered_bytes);
        assert!(held <= BUFFER_BYTES, "{held} bytes");
    }
    assert!(dead > CONNECTIONS / 2 && server.stats().buffers_refused == dead as u64);
    for slot in 0..CONNECTIONS as u32 - 1 {
        server.disconnect(ConnectionId(slot));
    }
    assert_eq!(server.buffered_bytes, 0);
    let id = server.connect(REMOTE, true).expect("room");
    server.receive(id, small, &mut NoPages);
    assert!(text(&server, id).starts_with("HTTP/1.1 200 OK"));
}

/// Pages that may not be asked for now.
struct Paused(bool);

impl Pages for Paused {
    fn reserved(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        Large.reserved(request)
    }

    fn missing(&mut self, _: &PageRequest<'_>) -> Option<Page> {
        assert!(!self.0, "nobody may ask");
        Some(Large::page(1))
    }

    fn are_paused(&self) -> bool {
        self.0
    }
}

/// Who waits for the end of a pause waits in the order of its requests, and not for ever.
#[test]
fn pages_that_are_paused_wait() {
    let mut server = server(Limits::new(10, BUFFER_BYTES));
    let [waiting, other] = [(); 2].map(|()| server.connect(REMOTE, true).expect("room"));
    let request = |path| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    server.receive(waiting, [request("/made"), request("/small")].concat().as_bytes(), &mut Paused(true));
    server.receive(other, [request("/small"), request("/healthz")].concat().as_bytes(), &mut Paused(true));
    assert_eq!((text(&server, waiting).as_str(), server.fate(waiting)), ("", Fate::Waiting));
    assert_eq!(text(&server, other).matches("HTTP/1.1 200 ").count(), 2, "the site and own pages go on");
    server.release(&mut Paused(true));
    assert!(server.has_waiting() && server.next_deadline_ns() > Some(0));
    server.release(&mut Paused(false));
    assert_eq!(server.next_ready(), Some(other));
    assert_eq!(server.next_ready(), Some(waiting));
    assert!(text(&server, waiting).contains("\r\n\r\nxHTTP/1.1 200 ") && !server.has_waiting());
    server.disconnect(waiting);
    // What waits may go.
    let gone = server.connect(REMOTE, true).expect("room");
    server.receive(gone, request("/made").as_bytes(), &mut Paused(true));
    server.disconnect(gone);
    server.release(&mut Paused(false));
    assert!(!server.has_waiting());
    let late = server.connect(REMOTE, true).expect("room");
    server.receive(late, request("/made").as_bytes(), &mut Paused(true));
    assert_eq!(ends_at(&mut server, late, |server, _| server.release(&mut Paused(true))), 30);
    assert!(text(&server, late).starts_with("HTTP/1.1 503 "));
}

/// An image that can be told to be there.
struct Traced {
    bytes: Vec<u8>,
    _images: Arc<()>,
}

impl AsRef<[u8]> for Traced {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Who takes slowly what a site had that changes often holds some of its versions in memory, and never gets of two of them.
#[test]
fn former_sites_are_bounded() {
    for (former_bytes, kept) in [(0, 1), (2 * BIG_BYTES + BIG_BYTES / 2, 2), (usize::MAX, 5)] {
        let images = Arc::new(());
        let mut server = Server::new(Limits::new(10, BUFFER_BYTES), AccessLog::Off, at(0));
        let ids: Vec<_> = (0..6)
            .map(|version| {
                let mut builder = Builder::default();
                let page = |len| File { identity: [version].repeat(len), ..File::default() };
                builder.page(0, b"/big", &page(BIG_BYTES)).expect("a page");
                builder.page(0, b"/small", &page(10)).expect("a page");
                let image = Traced { bytes: builder.finish().expect("an image"), _images: images.clone() };
                server.replace_site(Site::open(Arc::new(image)).expect("a site"), former_bytes);
                let id = server.connect(REMOTE, true).expect("room");
                server.receive(id, GET, &mut NoPages);
                id
            })
            .collect();
        let (cut, whole) = ids.split_at(ids.len() - 1 - kept);
        assert_eq!(Arc::strong_count(&images) - 1, 1 + kept, "{former_bytes}");
        assert_eq!(server.stats().buffers_refused, cut.len() as u64);
        let named: Vec<_> = core::iter::from_fn(|| server.next_ready()).collect();
        assert!(cut.iter().all(|id| named.contains(id) && server.fate(*id) == Fate::CloseNow));
        for (version, id) in (0..).zip(&ids).filter(|(_, id)| whole.contains(id)) {
            let mut received = Vec::new();
            while !server.output(*id)[0].is_empty() {
                let both = server.output(*id).concat();
                server.sent(*id, both.len(), &mut NoPages);
                received.extend(both);
            }
            let body = &received[received.len() - BIG_BYTES..];
            assert!(body.iter().all(|byte| *byte == version), "{former_bytes} {version}");
            server.receive(*id, b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n", &mut NoPages);
            assert!(text(&server, *id).ends_with(&"\u{5}".repeat(10)), "what is asked now is of the last one");
        }
        assert_eq!(Arc::strong_count(&images) - 1, 1, "what nobody reads is gone");
    }
}

/// A page whose time is to come counts as modified now, in conditions as in what is told.
#[test]
fn a_page_of_tomorrow_is_modified_now() {
    let mut builder = Builder::default();
    let page = File { identity: b"x".into(), modified_s: 5000, ..File::default() };
    builder.page(0, b"/x", &page).expect("a page");
    let mut server = Server::new(Limits::new(1, BUFFER_BYTES), AccessLog::Off, at(1000));
    server.set_site(Site::open(Arc::new(builder.finish().expect("an image"))).expect("a site"));
    let id = server.connect(REMOTE, true).expect("room");
    for (field, status) in [("If-Modified-Since", 304), ("If-Unmodified-Since", 200)] {
        let date = String::from_utf8(crate::date::format(1000).to_vec()).expect("text");
        let request = format!("GET /x HTTP/1.1\r\nHost: h\r\n{field}: {date}\r\n\r\n");
        server.receive(id, request.as_bytes(), &mut NoPages);
        let answer = text(&server, id);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{field}: {answer}");
        let len = server.output(id).concat().len();
        server.sent(id, len, &mut NoPages);
    }
}

/// Asks once, and has the response sent.
fn asked(server: &mut Server, id: ConnectionId, request: &str) -> String {
    server.receive(id, request.as_bytes(), &mut NoPages);
    let response = text(server, id);
    server.sent(id, server.output(id).concat().len(), &mut NoPages);
    response
}

#[test]
fn a_head_that_was_kept_is_the_head_that_was_written() {
    let site = |cache_control: &str| {
        let mut builder = Builder::default();
        let compressed = File {
            content_type: "text/plain".into(),
            cache_control: cache_control.into(),
            identity: b"as it is".into(),
            gzip: Some(b"gzip".into()),
            brotli: Some(b"br".into()),
            modified_s: 50,
        };
        builder.page(0, b"/page", &compressed).expect("a page");
        builder.page(0, b"/404.html", &compressed).expect("a page");
        for index in 0..100 {
            let page = File { identity: format!("{index}").into(), ..File::default() };
            builder.page(0, format!("/{index}").as_bytes(), &page).expect("a page");
        }
        Site::open(Arc::new(builder.finish().expect("an image"))).expect("a site")
    };
    let requests: Vec<String> = ["GET /page", "HEAD /page", "GET /404.html", "GET /none", "GET /7", "GET /71"]
        .iter()
        .flat_map(|line| {
            [
                format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n"),
                format!("{line} HTTP/1.1\r\nhOST: h\r\naccept-encoding: gzip\r\n\r\n"),
                format!("{line} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: br\r\nCookie: a\r\n\r\n"),
                format!("{line} HTTP/1.1\r\nHost: h\r\nRange: bytes=1-\r\n\r\n"),
                format!("{line} HTTP/1.1\r\nHost: h\r\nIf-None-Match: *\r\n\r\n"),
                format!("{line} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
            ]
        })
        .chain((0..100).map(|index| format!("GET /{index} HTTP/1.1\r\nHost: h\r\n\r\n")))
        .collect();
    // Back and forth: what is modified later is modified now, whatever was kept.
    for (second, cache_control) in [(100, "no-cache"), (40, "no-cache"), (100, "no-cache"), (100, "public")] {
        let fresh: Vec<String> = requests
            .iter()
            .map(|request| {
                let mut server = Server::new(Limits::new(1, BUFFER_BYTES), AccessLog::Off, at(second));
                server.set_site(site(cache_control));
                let id = server.connect(REMOTE, true).expect("room");
                asked(&mut server, id, request)
            })
            .collect();
        assert!(fresh[0].contains(cache_control), "{}", fresh[0]);
        let modified = format!("\r\nLast-Modified: {}\r\n", String::from_utf8_lossy(&date::format(second.min(50))));
        assert!(fresh[0].contains(&modified), "{}", fresh[0]);
        let mut server = Server::new(Limits::new(1, BUFFER_BYTES), AccessLog::Off, at(100));
        server.set_site(site("before"));
        let id = server.connect(REMOTE, true).expect("room");
        requests.iter().for_each(|request| drop(asked(&mut server, id, request)));
        server.set_site(site(cache_control));
        for _ in 0..2 {
            server.begin_turn(at(100), &mut NoPages);
            requests.iter().for_each(|request| drop(asked(&mut server, id, request)));
            server.begin_turn(at(second), &mut NoPages);
            for (request, fresh) in requests.iter().zip(&fresh) {
                assert_eq!(asked(&mut server, id, request), *fresh, "{request}");
            }
        }
    }
}
