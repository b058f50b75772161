//! Many connections of one pool, and the peers at their other ends, in simulated time.

use super::*;
use crate::pool::BLOCK_BYTES;
use std::collections::VecDeque;

const WAY_NS: u64 = 50_000;
const LARGE_MTU: u16 = 15_346;
const ETHERNET_MTU: u16 = 1500;
/// What a peer sends, and gets back.
const BYTES: usize = 150_000;
/// Bytes to be sent back, above which the application reads no more.
const MAX_BACKLOG: usize = 64 << 10;

/// One end of a connection.
struct Station {
    connection: Connection,
    /// What it sends, and how much of that the connection has taken.
    data: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
}

/// A peer: its packets, its buffers, and what it reads in a millisecond.
#[derive(Clone, Copy, Debug)]
struct Peer {
    mtu: u16,
    pool_bytes: usize,
    bytes_per_ms: usize,
}

impl Peer {
    const GREEDY: Peer = Peer { mtu: LARGE_MTU, pool_bytes: 1 << 20, bytes_per_ms: usize::MAX };
}

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Store,
    Peer,
}

struct Crowd {
    now_ns: u64,
    /// What the store's connections share, and the peers' each for itself.
    shared: Resources,
    own: Vec<Resources>,
    peers: Vec<Peer>,
    /// By peer: the store's end, once its SYN has come, and the peer's.
    pairs: Vec<(Option<Station>, Station)>,
    mtu: u16,
    in_flight: VecDeque<(u64, usize, To, Segment, Vec<u8>)>,
}

fn setup_of(number: usize, mtu: u16, is_store: bool) -> Setup {
    let (store, peer) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let port = 1000 + number as u16;
    let (ends, remote_port, local_port) = match is_store {
        true => (Ends::V4 { own: store, remote: peer }, port, 6379),
        false => (Ends::V4 { own: peer, remote: store }, 6379, port),
    };
    let flow = FlowKey { ends, remote_port, local_port };
    Setup { flow, mtu, iss: Seq(u32::MAX - 50_000), timestamp_offset: 0, keepalive_ns: 0 }
}

fn resources_of(pool_bytes: usize) -> Resources {
    Resources { pool: Pool::new(pool_bytes), ..resources() }
}

impl Station {
    fn new(connection: Connection, data: Vec<u8>) -> Station {
        Station { connection, data, sent: 0, received: vec![] }
    }

    /// Sends back what it reads.
    fn echo(&mut self, pool: &mut Pool) {
        let most = if self.data.len() - self.sent < MAX_BACKLOG { usize::MAX } else { 0 };
        self.work(most, pool);
        self.data.append(&mut self.received);
    }

    /// Reads at most so many bytes, and sends what it may.
    fn work(&mut self, most: usize, pool: &mut Pool) {
        let mut read = 0;
        while read < most && !self.connection.readable().is_empty() {
            let bytes = self.connection.readable();
            let len = bytes.len().min(most - read);
            self.received.extend_from_slice(&bytes[..len]);
            self.connection.consume(len, pool);
            read += len;
        }
        self.sent += self.connection.send(&self.data[self.sent..], pool);
        while self.connection.next_change(pool).is_some() {}
    }

    fn segments(&mut self, resources: &mut Resources, now_ns: u64) -> Vec<(Segment, Vec<u8>)> {
        self.connection.on_timers(resources, now_ns);
        let (mut sent, most) = (vec![], self.connection.segment_bytes());
        while let Some(next) = self.connection.next_segment(most, resources, now_ns) {
            let mut bytes = vec![0; next.len];
            self.connection.copy_to(next.offset, &mut bytes);
            sent.push((next.segment, bytes));
        }
        sent
    }
}

impl Crowd {
    /// A store with packets and buffers of so many bytes, and its peers.
    fn new(mtu: u16, pool_bytes: usize, peers: Vec<Peer>) -> Crowd {
        let data = |number: usize| (0..BYTES).map(|at| (at * 7 + at / 251 + number) as u8).collect();
        let active = |(number, peer): (usize, &Peer)| {
            let connection = Connection::new(setup_of(number, peer.mtu, false), Origin::Active, MS);
            (None, Station::new(connection, data(number)))
        };
        Crowd {
            now_ns: MS,
            shared: resources_of(pool_bytes),
            own: peers.iter().map(|peer| resources_of(peer.pool_bytes)).collect(),
            pairs: peers.iter().enumerate().map(active).collect(),
            peers,
            mtu,
            in_flight: VecDeque::new(),
        }
    }

    fn deliver(&mut self) {
        while let Some((_, number, to, segment, bytes)) = self.in_flight.pop_front_if(|entry| entry.0 <= self.now_ns) {
            let (store, peer) = &mut self.pairs[number];
            let (station, resources) = match (to, store) {
                (To::Peer, _) => (peer, &mut self.own[number]),
                (To::Store, Some(store)) => (store, &mut self.shared),
                (To::Store, none) => {
                    assert!(segment.flags.has(Flags::SYN));
                    let setup = setup_of(number, self.mtu, true);
                    *none = Some(Station::new(Connection::new(setup, Origin::Passive(&segment), self.now_ns), vec![]));
                    continue;
                }
            };
            let verdict = station.connection.on_segment(&segment, &bytes, resources, &mut |_| 0, self.now_ns);
            assert_eq!(verdict, Verdict::Taken);
            // The application has its turn after each frame.
            if let (To::Store, (Some(store), _)) = (to, &mut self.pairs[number]) {
                store.echo(&mut self.shared.pool);
            }
        }
    }

    /// Runs one turn of all stations, and moves on to when something happens next.
    fn step(&mut self) {
        self.deliver();
        for (number, (store, peer)) in self.pairs.iter_mut().enumerate() {
            let mut send = |segments: Vec<(Segment, Vec<u8>)>, to| {
                let frames = segments.into_iter();
                self.in_flight
                    .extend(frames.map(|(segment, bytes)| (self.now_ns + WAY_NS, number, to, segment, bytes)));
            };
            if let Some(store) = store {
                store.echo(&mut self.shared.pool);
                send(store.segments(&mut self.shared, self.now_ns), To::Peer);
            }
            let may_have = self.peers[number].bytes_per_ms.saturating_mul((self.now_ns / MS) as usize);
            let most = may_have.saturating_sub(peer.received.len());
            peer.work(most, &mut self.own[number].pool);
            send(peer.segments(&mut self.own[number], self.now_ns), To::Store);
        }
        let deadlines = self.pairs.iter().flat_map(|(store, peer)| {
            [store.as_ref().map_or(NEVER_NS, |store| store.connection.deadline_ns()), peer.connection.deadline_ns()]
        });
        let mut next_ns =
            deadlines.min().unwrap_or(NEVER_NS).min(self.in_flight.front().map_or(NEVER_NS, |entry| entry.0));
        if self.peers.iter().any(|peer| peer.bytes_per_ms < usize::MAX) {
            next_ns = next_ns.min((self.now_ns / MS + 1) * MS);
        }
        self.now_ns = next_ns.clamp(self.now_ns + 1000, self.now_ns + SECOND);
    }

    /// Runs until each peer has got back what it has sent, and returns after how many milliseconds.
    fn run(&mut self) -> u64 {
        while self.pairs.iter().any(|(_, peer)| peer.received.len() < BYTES) {
            self.step();
            assert!(self.now_ns < 100 * SECOND, "it does not end");
        }
        for (_, peer) in &self.pairs {
            assert!(peer.received == peer.data, "bytes came back changed");
        }
        let end_ms = self.now_ns / MS;
        // What is left are acknowledgments on their way.
        for _ in 0..1000 {
            self.step();
        }
        assert_eq!(self.shared.pool.used_bytes(), 0, "buffers leak");
        assert_eq!(self.shared.pool.granted_bytes(), 0, "windows leak");
        end_ms
    }
}

/// Whatever packets, windows and patience the peers have, and however little memory there is for them all.
#[test]
fn crowds_make_progress_with_little_memory() {
    const MAX_MS: u64 = 1500;
    let slow = Peer { bytes_per_ms: 1000, ..Peer::GREEDY };
    let small = Peer { mtu: 576, ..Peer::GREEDY };
    let ordinary = Peer { mtu: ETHERNET_MTU, ..Peer::GREEDY };
    let narrow = Peer { pool_bytes: 4 * BLOCK_BYTES, ..Peer::GREEDY };
    let kinds: [&[Peer]; 5] =
        [&[Peer::GREEDY], &[slow], &[small], &[narrow], &[Peer::GREEDY, slow, small, ordinary, narrow]];
    for kinds in kinds {
        for (blocks, count) in [(8, 3), (16, 8), (64, 16), (256, 60)] {
            let peers = (0..count).map(|number| kinds[number % kinds.len()]).collect();
            let took_ms = Crowd::new(LARGE_MTU, blocks * BLOCK_BYTES, peers).run();
            assert!(took_ms < MAX_MS, "{count} like {kinds:?} with {blocks} blocks took {took_ms} ms");
        }
    }
}
