//! What a request costs in TCP/IP and engine together, from the received frame to the frame that is sent, as a guest runs
//! them: for `valgrind --tool=callgrind --toggle-collect='*Machine::turn*'`, and nanoseconds by itself.
//!
//! Usage: request_cost [get|set|new] CONNECTIONS PIPELINE TURNS [PAGE_BYTES]. In each turn one in `CONNECTIONS / 50`
//! connections sends a batch: GETs of a missing key, SETs of a key that the connection has set before or of keys that are
//! new, or GETs of the web server for a page of so many bytes.

#[path = "../../core/server/examples/still/mod.rs"]
mod still;

use kayvee_http::{
    AccessLog, Limits as WebLimits, NoPages, Server, Site,
    site::{Builder, File},
};
use kayvee_net::{Addressing, Addressing6, Config, Limits, Stack};
use kayvee_platform::{
    Completion, FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES, MAX_LARGE_FRAME_BYTES, Now, Offloads, Received,
};
use kayvee_server::{Engine, Options};
use kayvee_station::{Peers, Station, Web};
use kayvee_testing::{
    disk::SimulatedDisk,
    network::{
        frames::{self, Client},
        world::{PORT, SERVER},
    },
};
use std::{
    env,
    hint::black_box,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

const BUSY: usize = 50;
/// The memory of the guest whose share of buffers the connections have.
const GUEST_BYTES: usize = 128 << 20;
const GET: &str = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
/// As wrk asks.
const WEB_REQUEST: &str = "GET /index.html HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n\r\n";

/// A card without a device: what is received is in memory, what is sent is forgotten but for the last frame.
struct Card {
    rx: Rx,
    tx: Tx,
}

struct Rx {
    frames: Vec<Vec<u8>>,
    next: usize,
}

struct Tx {
    buffer: Vec<u8>,
    sent: usize,
}

impl FrameDevice for Card {
    type Rx<'a>
        = &'a mut Rx
    where
        Self: 'a;
    type Tx<'a>
        = &'a mut Tx
    where
        Self: 'a;

    fn mac(&self) -> [u8; 6] {
        frames::SERVER_MAC.0
    }

    fn split(&mut self) -> (&mut Rx, &mut Tx) {
        (&mut self.rx, &mut self.tx)
    }
}

impl FrameRx for Rx {
    fn ready(&mut self) -> bool {
        self.next < self.frames.len()
    }

    fn receive<R>(&mut self, consume: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        let frame = self.frames.get(self.next)?;
        self.next += 1;
        Some(consume(Received { head: frame, rest: &[], is_checked: true }))
    }
}

impl FrameTx for Tx {
    fn ready(&mut self) -> bool {
        true
    }

    fn transmit<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        self.sent += 1;
        Some(fill(&mut self.buffer[..len]))
    }

    fn offloads(&self) -> Offloads {
        Offloads { checksum: true, large_frame_bytes: MAX_LARGE_FRAME_BYTES }
    }

    fn room_bytes(&mut self) -> usize {
        MAX_LARGE_FRAME_BYTES
    }

    fn transmit_offloaded(&mut self, len: usize, task: Completion, mut fill: impl FnMut(usize, &mut [u8])) -> bool {
        self.sent += 1;
        black_box(task);
        fill(0, &mut self.buffer[..len]);
        true
    }

    fn flush(&mut self) {}
}

/// A card with a store behind it.
struct Machine {
    card: Card,
    station: Station,
}

impl Machine {
    fn new(connections: usize, site: Option<Site>) -> Machine {
        let rx = Rx { frames: Vec::new(), next: 0 };
        let mut card = Card { rx, tx: Tx { buffer: vec![0; MAX_LARGE_FRAME_BYTES], sent: 0 } };
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let limits = Limits { connections, buffer_bytes: GUEST_BYTES / 4 };
        let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 300, seed: 1 };
        let mut stack = Stack::new(config, &mut card, 0).expect("the configuration is valid");
        stack.listen(PORT);
        let http_port = if site.is_some() { PORT } else { 0 };
        let options = Options { http_port, ..Options::default() };
        let engine = Engine::new(options, still::environment(), Now::default());
        let mut web = Web::new(engine.options(), connections, 1 << 30, Now::default());
        if let Some((web, site)) = web.as_mut().zip(site) {
            web.server().set_site(site);
        }
        Machine { card, station: Station::new(stack, engine, web, Peers::Trusted, connections) }
    }

    #[inline(never)]
    fn turn(&mut self, now_ns: u64) {
        let now = Now { monotonic_ns: now_ns, unix_us: now_ns / 1000 };
        self.station.receive(&mut self.card, now);
        self.station.reply(&mut self.card, None::<&mut SimulatedDisk>, now);
        black_box(self.station.next_deadline_ns());
        self.station.rest(now_ns);
    }

    fn give(&mut self, frames: Vec<Vec<u8>>) {
        self.card.rx = Rx { frames, next: 0 };
        self.card.tx.sent = 0;
    }
}

fn open(machine: &mut Machine, port: u16) -> Client {
    Client::open(port, |frame| {
        machine.give(vec![frame]);
        machine.turn(0);
        (machine.card.tx.sent > 0).then(|| machine.card.tx.buffer[..MAX_FRAME_BYTES].to_vec())
    })
}

/// A site with a page of so many bytes.
fn site(page_bytes: usize) -> Site {
    let file =
        File { content_type: "text/html; charset=utf-8".into(), identity: vec![b'x'; page_bytes], ..File::default() };
    let mut builder = Builder::default();
    builder.page(0, b"/index.html", &file).expect("a page");
    Site::open(Arc::new(builder.finish().expect("an image"))).expect("a site")
}

/// How long the response is.
fn response_bytes(site: Site) -> usize {
    let mut server = Server::new(WebLimits::new(1, 1 << 20), AccessLog::Off, Now::default());
    server.set_site(site);
    let id = server.connect((Ipv4Addr::LOCALHOST, 1025).into(), true).expect("room");
    server.receive(id, WEB_REQUEST.as_bytes(), &mut NoPages);
    server.output(id).concat().len()
}

/// What the store is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    /// SETs of one key for each connection.
    Set,
    /// SETs of one key each.
    New,
}

impl Kind {
    /// A batch of a client's requests, behind so many of others.
    fn batch(self, client: usize, pipeline: usize, before: usize) -> String {
        let set = |key: usize| format!("*3\r\n$3\r\nSET\r\n$12\r\nkey:{key:08}\r\n$3\r\nxxx\r\n");
        match self {
            Kind::Get => GET.repeat(pipeline),
            Kind::Set => set(client).repeat(pipeline),
            Kind::New => (before..before + pipeline).map(set).collect(),
        }
    }
}

fn main() {
    let mut words = env::args().skip(1).peekable();
    let kind = match words.peek().map(String::as_str) {
        Some("get") => Some(Kind::Get),
        Some("set") => Some(Kind::Set),
        Some("new") => Some(Kind::New),
        _ => None,
    };
    let numbers: Vec<usize> =
        words.skip(usize::from(kind.is_some())).map(|word| word.parse().expect("a number")).collect();
    let (connections, pipeline, turns, page_bytes) = match numbers[..] {
        [connections, pipeline, turns] => (connections, pipeline, turns, None),
        [connections, pipeline, turns, page_bytes] => (connections, pipeline, turns, Some(page_bytes)),
        _ => panic!("give connections, pipeline and turns, and the bytes of a page"),
    };
    let site = page_bytes.map(site);
    let reply_bytes = site.clone().map_or(b"$-1\r\n".len(), response_bytes);
    let is_web = site.is_some();
    let mut machine = Machine::new(connections + 8, site);
    machine.give(vec![frames::arp_request(SERVER)]);
    machine.turn(0);
    let mut clients: Vec<Client> = (0..connections).map(|n| open(&mut machine, 1024 + n as u16)).collect();
    let batch = |client: usize, before: usize| match is_web {
        true => WEB_REQUEST.repeat(pipeline),
        false => kind.unwrap_or(Kind::Get).batch(client, pipeline, before),
    };
    let mut elapsed = Duration::ZERO;
    let mut requests = 0;
    for turn in 0..turns {
        let busy = clients.iter_mut().step_by((connections / BUSY).max(1)).take(BUSY).enumerate();
        let frames = busy.map(|(number, client)| {
            let batch = batch(number, requests);
            requests += pipeline;
            client.request(batch.as_bytes(), reply_bytes * pipeline)
        });
        let frames: Vec<_> = frames.collect();
        let count = frames.len();
        machine.give(frames);
        let start = Instant::now();
        machine.turn(1_000_000 + turn as u64 * 100_000);
        elapsed += start.elapsed();
        assert_eq!(machine.card.tx.sent, count, "each batch has one reply, and nothing else is sent");
    }
    println!(
        "{connections} connections, pipeline {pipeline}: {:.1} ns a request",
        elapsed.as_nanos() as f64 / requests as f64
    );
}
