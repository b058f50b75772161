//! The store on a network, with its log: what only engine, TCP/IP and disk together can get wrong.

#[allow(dead_code)]
#[path = "../../core/server/tests/engine/disk.rs"]
mod disk;
#[path = "../../core/server/examples/still/mod.rs"]
mod still;

use disk::Disk;
use kayvee_net::{Addressing, Addressing6, Config, Limits, Stack};
use kayvee_platform::Now;
use kayvee_server::{Engine, Options};
use kayvee_station::{Peers, Station};
use kayvee_testing::network::{
    peer::Peer,
    wire::{Faults, Wire},
    world::{CLIENT, PORT, SERVER},
};
use smoltcp::{iface::SocketHandle, socket::tcp::State};

const TURN_NS: u64 = 100_000;

/// A store, its disk, and a host at the other end of its wire.
struct Link {
    wire: Wire,
    station: Station,
    disk: Disk,
    peer: Peer,
    now_ns: u64,
}

impl Link {
    fn new(options: &[&str]) -> Link {
        let mut wire = Wire::new(Faults::NONE, 1);
        let addressing = Addressing::Static { address: SERVER, prefix_bits: 24, gateway: None };
        let limits = Limits { connections: 4, buffer_bytes: 1 << 20 };
        let config = Config { addressing, addressing6: Addressing6::Off, limits, keepalive_s: 300, seed: 1 };
        let mut stack = Stack::new(config, &mut wire.server, 0).expect("the configuration is valid");
        stack.listen(PORT);
        let options = Options::from_args(options.iter().map(|word| word.as_bytes())).expect("valid options");
        let mut engine = Engine::new(options, still::environment(), Now::default());
        let mut disk = Disk::new(8 << 20);
        engine.open_log(&mut disk).expect("the disk is blank");
        let peer = Peer::new(&mut wire.client, CLIENT.into(), 24, 1);
        Link { wire, station: Station::new(stack, engine, None, Peers::Trusted, 4), disk, peer, now_ns: 0 }
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
        let mut bytes = [0; 100];
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
