//! A web server whose site lies on a disk that is larger than what it keeps of it: slow, in any order, failing, damaged.

use kayvee_http::{
    AccessLog, ConnectionId, Fate, Limits, NoPages, Server, open_site_disk,
    site::{Builder, CHUNK_BYTES, File, HEADER_BYTES},
};
use kayvee_platform::Now;
use kayvee_testing::{
    disk::{Faults, SimulatedDisk},
    random::Random,
};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

const REMOTE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1025));
const FILES: usize = 60;
/// The least that a server keeps: four chunks.
const CACHED_BYTES: usize = 1;
const CLIENTS: usize = 40;
const SEEDS: u64 = 20;

fn content(index: usize) -> Vec<u8> {
    let mut random = Random::new(index as u64);
    // Some shorter than what is copied behind a head, some of several chunks.
    let len = random.below([100, 4096, 3 * CHUNK_BYTES, 100_000][index % 4]) + 1;
    (0..len).map(|_| random.next_u64() as u8).collect()
}

fn image() -> Vec<u8> {
    let mut builder = Builder::default();
    for index in 0..FILES {
        let file = File { identity: content(index), ..File::default() };
        builder.page(0, format!("/{index}").as_bytes(), &file).expect("a page");
    }
    builder.finish().expect("an image")
}

fn server(disk: &mut SimulatedDisk) -> Server {
    let now = Now { monotonic_ns: 0, unix_us: 0 };
    let mut server = Server::new(Limits::new(CLIENTS, 1 << 20), AccessLog::Off, now);
    let site = open_site_disk(disk).expect("a site");
    server.set_site_on_disk(site, CACHED_BYTES).expect("memory for it");
    server
}

/// A client, which asks for one file after the other and takes as many bytes at a time as it likes.
struct Client {
    id: ConnectionId,
    asked: Option<usize>,
    received: Vec<u8>,
}

/// What a client has come to.
#[derive(Debug, Default)]
struct Counts {
    whole: usize,
    errors: usize,
    cut_off: usize,
}

impl Client {
    fn new(server: &mut Server) -> Client {
        Client { id: server.connect(REMOTE, true).expect("room"), asked: None, received: Vec::new() }
    }

    /// Asks, or takes what there is. The bytes must be those of the file.
    fn step(&mut self, server: &mut Server, random: &mut Random, counts: &mut Counts) {
        let Some(index) = self.asked else {
            let index = random.below(FILES);
            // A request with a body takes another way through the server.
            let body = ["", "Content-Length: 3\r\n"][random.below(2)];
            server.receive(self.id, format!("GET /{index} HTTP/1.1\r\nHost: h\r\n{body}\r\n").as_bytes(), &mut NoPages);
            if !body.is_empty() {
                server.receive(self.id, b"abc", &mut NoPages);
            }
            self.asked = Some(index);
            return;
        };
        let output = server.output(self.id).concat();
        let len = output.len().min(random.below(30_000));
        self.received.extend_from_slice(&output[..len]);
        server.sent(self.id, len, &mut NoPages);
        let head_end = self.received.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        match server.fate(self.id) {
            Fate::CloseNow => {
                counts.cut_off += 1;
                let body = head_end.map_or(&[][..], |end| &self.received[end..]);
                assert!(content(index).starts_with(body), "what came is the beginning of the file");
                server.disconnect(self.id);
                *self = Client::new(server);
            }
            Fate::Waiting => assert!(server.output(self.id).concat().is_empty() || len < output.len()),
            _ => {
                let Some(end) = head_end.filter(|_| server.output(self.id)[0].is_empty()) else { return };
                if self.received.starts_with(b"HTTP/1.1 500 ") {
                    counts.errors += 1;
                } else {
                    assert!(self.received.starts_with(b"HTTP/1.1 200 "), "{}", self.received.escape_ascii());
                    assert!(self.received[end..] == content(index), "file {index}");
                    counts.whole += 1;
                }
                (self.asked, self.received) = (None, Vec::new());
            }
        }
    }
}

/// Lets clients ask in any order, some of which leave in the middle, while the disk works as it likes.
fn run(disk: &mut SimulatedDisk, faults: Faults, seed: u64) -> Counts {
    let mut random = Random::new(seed);
    let mut server = server(disk);
    disk.faults = faults;
    let mut counts = Counts::default();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::new(&mut server)).collect();
    for _ in 0..1_500 {
        server.take_from_disk(disk, &mut NoPages);
        for _ in 0..random.below(8) {
            let at = random.below(CLIENTS);
            if random.below(100) == 0 {
                server.disconnect(clients[at].id);
                clients[at] = Client::new(&mut server);
            }
            clients[at].step(&mut server, &mut random, &mut counts);
        }
        server.end_turn();
        while server.next_ready().is_some() {}
        server.read_from_disk(disk);
        for _ in 0..random.below(4) {
            disk.work();
        }
    }
    counts
}

#[test]
fn every_byte_arrives_however_slow_the_disk_and_the_clients_are() {
    let image = image();
    for seed in 0..SEEDS {
        let counts = run(&mut SimulatedDisk::with(image.clone(), seed), Faults::NONE, seed);
        assert!(counts.whole > 100 && counts.errors + counts.cut_off == 0, "seed {seed}: {counts:?}");
    }
}

/// Some chunks of the medium are damaged, and reads fail now and then: no wrong byte reaches a client.
#[test]
fn a_disk_that_fails_costs_the_responses_that_it_has_failed() {
    let image = image();
    let mut total = Counts::default();
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let mut disk = SimulatedDisk::with(image.clone(), seed);
        disk.damage(|bytes| {
            for _ in 0..5 {
                let at = HEADER_BYTES + random.below(bytes.len() - 10 * HEADER_BYTES);
                bytes[at] ^= 1;
            }
        });
        let counts = run(&mut disk, Faults { read_one_in: 20, ..Faults::NONE }, seed);
        assert!(counts.whole > 50, "seed {seed}: {counts:?}");
        total.errors += counts.errors;
        total.cut_off += counts.cut_off;
    }
    assert!(total.errors > 0 && total.cut_off > 0, "both ends are seen: {total:?}");
}

#[test]
fn what_is_no_site_is_refused() {
    let image = image();
    for at in [0, 8, 40, image.len() - 5000] {
        let mut disk = SimulatedDisk::with(image.clone(), 1);
        disk.damage(|bytes| bytes[at] ^= 1);
        assert!(open_site_disk(&mut disk).is_err(), "byte {at}");
    }
    assert!(open_site_disk(&mut SimulatedDisk::new(1 << 20, 1)).is_err(), "a blank disk");
    let cut = image[..image.len() - 4096].to_vec();
    assert!(open_site_disk(&mut SimulatedDisk::with(cut, 1)).is_err(), "the end is missing");
    let mut failing = SimulatedDisk::with(image, 1);
    failing.faults = Faults { read_one_in: 1, ..Faults::NONE };
    assert!(open_site_disk(&mut failing).is_err(), "it cannot be read");
}
