//! The store on a network, with its log: what only engine, TCP/IP and disk together can get wrong.

#[allow(dead_code)]
#[path = "../../core/server/tests/engine/disk.rs"]
mod disk;
#[path = "../../core/server/examples/still/mod.rs"]
mod still;

use disk::Disk;
use kayvee_net::{Addressing, Addressing6, Config, Limits, Stack};
use kayvee_platform::{Heap, Now};
use kayvee_server::{Engine, Environment, Options};
use kayvee_station::{Peers, Station, Web};
use kayvee_testing::network::{
    frames::Segment,
    peer::Peer,
    wire::{Faults, Wire},
    world::{CLIENT, PORT, SERVER},
};
use smoltcp::{
    iface::SocketHandle,
    socket::tcp::State,
    wire::{TcpControl, TcpPacket},
};
use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU64, Ordering},
};

const TURN_NS: u64 = 100_000;

/// A heap without a limit in which so much is in use as a test says.
#[derive(Default)]
struct SetHeap(AtomicU64);

impl Heap for SetHeap {
    fn used_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn limit_bytes(&self) -> Option<u64> {
        None
    }
    fn resident_bytes(&self) -> u64 {
        self.used_bytes()
    }
    fn allocator(&self) -> &'static str {
        "set"
    }
}

/// A store, its disk, and a host at the other end of its wire.
struct Link {
    wire: Wire,
    station: Station,
    disk: Disk,
    peer: Peer,
    heap: &'static SetHeap,
    now_ns: u64,
}

impl Link {
    fn new(options: &[&str]) -> Link {
        Link::between(options, Peers::Trusted, CLIENT)
    }

    /// One on which a host has this address, for a station that can be reached by these.
    fn between(options: &[&str], peers: Peers, client: Ipv4Addr) -> Link {
        let mut wire = Wire::new(Faults::NONE, 1);
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let limits = Limits { connections: 4, buffer_bytes: 1 << 20 };
        let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 300, seed: 1 };
        let mut stack = Stack::new(config, &mut wire.server, 0).expect("the configuration is valid");
        stack.listen(PORT);
        let options = Options::from_args(options.iter().map(|word| word.as_bytes())).expect("valid options");
        let heap: &'static SetHeap = Box::leak(Box::default());
        let mut engine = Engine::new(options, Environment { heap, ..still::environment() }, Now::default());
        let mut disk = Disk::new(8 << 20);
        engine.open_log(&mut disk).expect("the disk is blank");
        let peer = Peer::new(&mut wire.client, client.into(), 24, 1);
        let web = Web::new(engine.options(), 4, 64 << 20, Now::default());
        Link { wire, station: Station::new(stack, engine, web, peers, 4), disk, peer, heap, now_ns: 0 }
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.now_ns += TURN_NS;
            let now = Now { monotonic_ns: self.now_ns, unix_us: self.now_ns / 1000 };
            self.wire.run(self.now_ns);
            self.station.receive(&mut self.wire.server, now);
            self.station.reply(&mut self.wire.server, Some(&mut self.disk), now);
            self.peer.poll(&mut self.wire.client, self.now_ns);
        }
    }

    /// What a client has received, and the state of its connection.
    fn received(&mut self, client: SocketHandle) -> (String, State) {
        let mut bytes = [0; 4096];
        let socket = self.peer.socket(client);
        let len = if socket.can_recv() { socket.recv_slice(&mut bytes).expect("it can") } else { 0 };
        (String::from_utf8_lossy(&bytes[..len]).into_owned(), socket.state())
    }
}

#[test]
fn whoever_ends_after_asking_is_answered_once_the_log_is_stable() {
    let mut link = Link::new(&["--appendonly", "yes", "--appendfsync", "always"]);
    for requests in [&b"SET a b\r\n"[..], b"SET a b\r\nQUIT\r\n"] {
        let client = link.peer.connect(SERVER.into(), PORT, 4096);
        link.turns(20);
        link.disk.budget = 0;
        let socket = link.peer.socket(client);
        socket.send_slice(requests).expect("it is open");
        socket.close();
        link.turns(100);
        assert_eq!(link.received(client), (String::new(), State::FinWait2), "nothing is stable yet");
        link.disk.budget = usize::MAX;
        link.turns(20);
        let answers = "+OK\r\n".repeat(requests.iter().filter(|byte| **byte == b'\n').count());
        assert_eq!(link.received(client), (answers, State::TimeWait));
    }
}

/// What a client has received after a request to a port.
fn asked(link: &mut Link, port: u16, request: &[u8]) -> (String, State) {
    let client = link.peer.connect(SERVER.into(), port, 4096);
    link.turns(20);
    link.peer.socket(client).send_slice(request).expect("it was open");
    link.turns(100);
    link.received(client)
}

/// On a link that was made for this host, whom it forwards is turned away from the store and from the web server.
#[test]
fn a_link_of_the_host_s_own_is_no_way_for_others() {
    const WEB: u16 = 8080;
    let neighbor = Ipv4Addr::from_bits(CLIENT.to_bits() + 1);
    for (client, mode, is_let_in) in [(CLIENT, "yes", true), (neighbor, "yes", false), (neighbor, "no", true)] {
        let options = ["--protected-mode", mode, "--http-port", "8080"];
        let mut link = Link::between(&options, Peers::Host(Some(CLIENT), None), client);
        let (answer, _) = asked(&mut link, PORT, b"PING\r\n");
        assert!(answer.starts_with(if is_let_in { "+PONG" } else { "-DENIED" }), "{client}, {mode}: {answer}");
        let (page, state) = asked(&mut link, WEB, b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(page.starts_with("HTTP/1.1 "), is_let_in, "{client}, {mode}: {page:?}");
        assert_eq!((page.is_empty(), state == State::Established), (!is_let_in, is_let_in), "{client}, {mode}");
    }
}

/// On a network with strangers a protected store shows them its site alone.
#[test]
fn strangers_see_nothing_of_a_protected_store_on_the_web() {
    for (peers, status) in [(Peers::Trusted, "200"), (Peers::Strangers, "403")] {
        let mut link = Link::between(&["--http-port", "8080"], peers, CLIENT);
        let (page, _) = asked(&mut link, 8080, b"GET /metrics HTTP/1.1\r\nhost: 192.0.2.1\r\n\r\n");
        assert!(page.starts_with(&format!("HTTP/1.1 {status} ")), "{page}");
    }
}

/// What anybody sends is in the network's buffers: no key goes for it and no write is refused, not even in the turn in which it
/// arrives.
#[test]
fn what_strangers_send_does_not_count_as_data() {
    const MAXMEMORY: u64 = 10 << 20;
    const HOARD_BYTES: usize = 30_000;
    let mut link = Link::new(&["--maxmemory", "10mb"]);
    let [client, hoarder] = [(); 2].map(|()| link.peer.connect(SERVER.into(), PORT, 4096));
    link.turns(20);
    let ask = |link: &mut Link, request: &str| {
        link.peer.socket(client).send_slice(request.as_bytes()).expect("it is open");
        link.turns(20);
        link.received(client).0
    };
    let buffers = |info: String| -> u64 {
        let value = info.split("mem_not_counted_for_evict:").nth(1).and_then(|rest| rest.split_whitespace().next());
        value.expect("it is told").parse().expect("a number")
    };
    let before = buffers(ask(&mut link, "INFO memory\r\n"));
    link.heap.0.store(MAXMEMORY + before + HOARD_BYTES as u64 / 2, Ordering::Relaxed);
    assert!(ask(&mut link, "SET a 1\r\n").starts_with("-OOM"));

    // Its first segment is lost, so what follows that has to wait.
    link.peer.socket(hoarder).send_slice(b"x").expect("it is open");
    link.peer.poll(&mut link.wire.client, link.now_ns);
    let lost = link.wire.client.drain_sent().next().expect("it is sent");
    let lost = TcpPacket::new_unchecked(&lost[34..]);
    for at in (1..HOARD_BYTES).step_by(1000) {
        let segment = Segment {
            to: SERVER,
            from_port: lost.src_port(),
            control: TcpControl::None,
            sequence: lost.seq_number() + at,
            acknowledged: Some(lost.ack_number()),
            payload: &[b'x'; 1000],
        };
        link.wire.server.inject(segment.frame());
    }
    link.peer.socket(client).send_slice(b"SET a 1\r\n").expect("it is open");
    link.peer.poll(&mut link.wire.client, link.now_ns);
    link.wire.client.drain_sent().for_each(|frame| link.wire.server.inject(frame));
    link.turns(20);
    assert_eq!(link.received(client).0, "+OK\r\n");

    let held = buffers(ask(&mut link, "INFO memory\r\n")) - before;
    assert!(held >= HOARD_BYTES as u64 / 2, "{held}");
    link.heap.0.store(MAXMEMORY + before + held + (1 << 20), Ordering::Relaxed);
    assert!(ask(&mut link, "SET a 1\r\n").starts_with("-OOM"), "what is beyond that counts");
}
