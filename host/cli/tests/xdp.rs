//! The store past the kernel's network, against Linux' own TCP: in network namespaces that end with each test.
//!
//! These tests need root and start processes from the release build, so `./kayvee test` runs them behind it:
//! `cargo build --release && cargo test -p kayvee-cli --test xdp -- --ignored`.

mod built;
mod recording;

use anyhow::Result;
use kayvee_link::{Namespace, VethPair};
use recording::{Packet, TCP, packet, recorded, tcpdump};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(30);
const PORT: u16 = 6379;
/// More than two full segments.
const LARGEST_BYTES: usize = 4500;

/// A `kayvee run`, killed with the test.
struct Store {
    cli: Child,
    _stdout: BufReader<ChildStdout>,
    ready: String,
}

impl Store {
    fn start(net: &str) -> Store {
        Store::start_on("linux", net)
    }

    fn start_on(target: &str, net: &str) -> Store {
        Store::start_with(target, net, "64")
    }

    fn start_with(target: &str, net: &str, memory_mib: &str) -> Store {
        Store::start_recorded(target, net, memory_mib, None)
    }

    fn start_recorded(target: &str, net: &str, memory_mib: &str, file: Option<&Path>) -> Store {
        let mut command = Command::new(built::kayvee());
        command.args(["run", "--target", target, "--net", net]);
        if let Some(file) = file {
            command.arg("--pcap").arg(file);
        }
        if target != "linux" {
            command.args(["--memory", memory_mib]);
        }
        command.args(["--", "--protected-mode", "no"]);
        let mut cli = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(cli.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready: "), "{ready:?}");
        Store { cli, _stdout: stdout, ready }
    }

    /// Its own IPv4 address, of which `ready:` says `also at ADDRESS and ADDRESS6)`, the latter where this host has IPv6.
    fn own_address(&self) -> SocketAddr {
        let (_, rest) = self.ready.split_once("also at ").expect("it has an address");
        rest.split([' ', ')']).next().unwrap().parse().unwrap()
    }

    /// Asks it to end, and waits until it has.
    fn end(&mut self) {
        assert!(Command::new("kill").arg(self.cli.id().to_string()).status().unwrap().success());
        assert!(self.cli.wait().unwrap().success());
    }

    /// Has the system take it away.
    fn kill(&mut self) {
        self.cli.kill().unwrap();
        self.cli.wait().unwrap();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Already killed, in some tests.
        let _ = self.cli.kill();
        let _ = self.cli.wait();
    }
}

/// Runs a test in a namespace of its own.
fn apart(test: impl FnOnce() -> Result<()> + Send) {
    let inside = || {
        kayvee_link::switch_on("lo")?;
        test()
    };
    Namespace::create().unwrap().enter(inside).unwrap();
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Bytes that differ from place to place and from size to size.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ len) as u8).collect()
}

fn echo_request(payload: &[u8]) -> Vec<u8> {
    [format!("*2\r\n$4\r\nECHO\r\n${}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat()
}

/// Has the store send a text back.
fn echo(stream: &mut TcpStream, payload: &[u8]) {
    stream.write_all(&echo_request(payload)).unwrap();
    let expected = [format!("${}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat();
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).unwrap();
    assert!(reply == expected, "{} bytes came back changed", payload.len());
}

/// Names of the interfaces in this thread's namespace.
fn interfaces() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_string())).collect()
}

#[track_caller]
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come true within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn data_of_every_size_comes_back_unchanged() {
    apart(|| {
        let store = Store::start("xdp");
        let mut stream = connect(store.own_address());
        for len in 0..LARGEST_BYTES {
            echo(&mut stream, &pattern(len));
        }
        // Segments that the kernel has cut as it likes, and replies that are longer than any frame.
        let payloads: Vec<Vec<u8>> = (0..400).map(|n| pattern(n * 701 % 65_536)).collect();
        let requests: Vec<u8> = payloads.iter().flat_map(|payload| echo_request(payload)).collect();
        let mut sender = stream.try_clone()?;
        let sending = thread::spawn(move || sender.write_all(&requests).unwrap());
        for payload in &payloads {
            let expected = [format!("${}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat();
            let mut reply = vec![0; expected.len()];
            stream.read_exact(&mut reply)?;
            assert!(reply == expected, "{} bytes came back changed", payload.len());
        }
        sending.join().unwrap();
        // The port of this host leads there, too.
        echo(&mut connect(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))), b"through the proxy");
        Ok(())
    });
}

/// Sends back what it gets, for as long as the client wants.
fn echo_server(listener: &TcpListener) {
    let (mut client, _) = listener.accept().unwrap();
    let mut chunk = vec![0; 65_536];
    while let Ok(len) = client.read(&mut chunk) {
        if len == 0 || client.write_all(&chunk[..len]).is_err() {
            return;
        }
    }
}

/// Has other threads end with this one, in whatever way it ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn the_hosts_traffic_on_a_shared_interface_goes_on() {
    share_an_interface_with(|net| Store::start_on("linux", net));
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn the_hosts_traffic_on_an_interface_shared_with_a_guest_goes_on() {
    if fs::metadata("/dev/kvm").is_err() {
        println!("skipped: there is no /dev/kvm");
        return;
    }
    share_an_interface_with(|net| Store::start_on("kvm", net));
}

/// Addresses on an interface that a store shares with its host.
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const STORE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 7);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const ECHO_PORT: u16 = 7;

/// An interface that a store is to share with its host: this namespace is the client's, the other end of the pair is theirs.
struct Shared {
    pair: VethPair,
    /// The host's own.
    listener: TcpListener,
    ipv6: Ipv6Addr,
    /// What a store is told of it.
    net: String,
}

impl Shared {
    fn create(mtu: u32) -> Result<Shared> {
        let pair = VethPair::create(mtu)?;
        kayvee_link::bring_up(&pair.host_name, CLIENT, MASK)?;
        let listener = pair.namespace.enter(|| {
            kayvee_link::bring_up(VethPair::INNER_NAME, HOST, MASK)?;
            Ok(TcpListener::bind((HOST, ECHO_PORT))?)
        })?;
        let ipv6 = pair.link.ipv6.expect("this host has IPv6").guest;
        let net = format!("xdp:{},ip={STORE}/24,ip6={ipv6}/64", VethPair::INNER_NAME);
        Ok(Shared { pair, listener, ipv6, net })
    }
}

fn share_an_interface_with(start: fn(&str) -> Store) {
    apart(move || {
        let Shared { pair, listener, ipv6, net } = Shared::create(1500)?;
        let start = || pair.namespace.enter(|| Ok(start(&net)));
        let (done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut host = connect((HOST, ECHO_PORT).into());
        thread::scope(|scope| -> Result<()> {
            scope.spawn(|| echo_server(&listener));
            let (done, rounds) = (&done, &rounds);
            let _end = End(done);
            let traffic = scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let sent = pattern(1 + rounds.load(Ordering::Relaxed) * 997 % 20_000);
                    host.write_all(&sent).unwrap();
                    let mut back = vec![0; sent.len()];
                    host.read_exact(&mut back).unwrap();
                    assert!(back == sent);
                    rounds.fetch_add(1, Ordering::Release);
                }
            });
            let goes_on = || {
                let before = rounds.load(Ordering::Acquire);
                wait_until("more of the host's traffic", || rounds.load(Ordering::Acquire) > before + 20);
            };
            goes_on();
            for _ in 0..3 {
                let mut store = start()?;
                let mut stream = connect((STORE, PORT).into());
                (0..LARGEST_BYTES).step_by(7).for_each(|len| echo(&mut stream, &pattern(len)));
                let mut stream = connect((ipv6, PORT).into());
                (0..LARGEST_BYTES).step_by(7).for_each(|len| echo(&mut stream, &pattern(len)));
                goes_on();
                store.kill();
                goes_on();
            }
            done.store(true, Ordering::Release);
            traffic.join().expect("the host's traffic is undisturbed");
            Ok(())
        })
    });
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn all_frames_of_a_guest_on_an_interface_are_recorded_and_no_others() {
    if fs::metadata("/dev/kvm").is_err() {
        println!("skipped: there is no /dev/kvm");
        return;
    }
    // Frames as on a wire, and such as lie in several places and leave their checksums to the card.
    apart(|| record_on_an_interface(1500));
    apart(|| record_on_an_interface(kayvee_xdp_socket::link_mtu()));
}

fn record_on_an_interface(mtu: u32) -> Result<()> {
    const VALUE_BYTES: usize = 1 << 20;
    const CLIENTS: usize = 8;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [file, value] = [format!("interface-{mtu}.pcap"), format!("value-{mtu}")].map(|name| folder.join(name));
    fs::write(&value, pattern(VALUE_BYTES))?;
    let Shared { pair, listener, ipv6, net } = Shared::create(mtu)?;
    let mut store = pair.namespace.enter(|| Ok(Store::start_recorded("kvm", &net, "64", Some(&file))))?;
    let stores: [IpAddr; 2] = [STORE.into(), ipv6.into()];
    for (key, address) in ["four", "six"].into_iter().zip(stores) {
        let redis_cli = |words: &[&str], input: Stdio| {
            let mut command = Command::new("redis-cli");
            command.args(["-h", &address.to_string(), "-p", &PORT.to_string()]).args(words).stdin(input);
            command.output().unwrap().stdout
        };
        assert_eq!(redis_cli(&["-x", "set", key], fs::File::open(&value)?.into()), b"OK\n");
        assert!(redis_cli(&["get", key], Stdio::null()).strip_suffix(b"\n") == Some(&pattern(VALUE_BYTES)));
    }
    // Several at once, beside what the host has on its own address.
    let payloads = |number: usize| (0..100).map(move |round| pattern(round * 61 + number));
    thread::scope(|scope| {
        scope.spawn(|| echo_server(&listener));
        for number in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = connect((stores[number % 2], PORT).into());
                payloads(number).for_each(|payload| echo(&mut stream, &payload));
            });
        }
        let mut host = connect((HOST, ECHO_PORT).into());
        for sent in (1..100).map(|round| pattern(round * 101)) {
            host.write_all(&sent).unwrap();
            host.read_exact(&mut vec![0; sent.len()]).unwrap();
        }
    });
    store.end();

    let frames = recorded(&file);
    let largest = frames.iter().map(Vec::len).max().unwrap();
    assert!(
        if mtu == 1500 { largest == 1514 } else { (30_000..=14 + mtu as usize).contains(&largest) },
        "{largest} bytes"
    );
    for frame in &frames {
        match packet(frame) {
            Some(packet) => assert!(!packet.ends.contains(&HOST.into()), "the host's own"),
            None => assert!(frame.windows(4).any(|part| part == STORE.octets()), "{frame:x?}"),
        }
    }
    let mut streams = streams(&frames);
    assert_eq!(streams.len(), 2 * (2 * stores.len() + CLIENTS));
    let bulk = |payload: &[u8]| [format!("${}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat();
    let mut need = |address: IpAddr, requests: Vec<u8>, replies: Vec<u8>| {
        let (&ends, _) = streams
            .iter()
            .find(|(ends, stream)| ends[1] == (address, PORT).into() && **stream == requests)
            .expect("requests as they were sent");
        assert!(streams.remove(&[ends[1], ends[0]]).unwrap() == replies, "{} bytes of replies", replies.len());
        streams.remove(&ends);
    };
    for number in 0..CLIENTS {
        let requests: Vec<u8> = payloads(number).flat_map(|payload| echo_request(&payload)).collect();
        need(stores[number % 2], requests, payloads(number).flat_map(|payload| bulk(&payload)).collect());
    }
    let value_bulk = bulk(&pattern(VALUE_BYTES));
    for (key, address) in [("four", stores[0]), ("six", stores[1])] {
        let key = bulk(key.as_bytes());
        need(address, [b"*3\r\n$3\r\nset\r\n".as_slice(), &key, &value_bulk].concat(), b"+OK\r\n".to_vec());
        need(address, [b"*2\r\n$3\r\nget\r\n".as_slice(), &key].concat(), value_bulk.clone());
    }
    let read = tcpdump(&file, &["-v"]);
    assert!(read.contains("(correct)") && !read.contains("incorrect") && read.contains("ARP"));
    fs::remove_file(value)?;
    Ok(fs::remove_file(file)?)
}

/// One direction of a connection.
#[derive(Default)]
struct Stream {
    /// Number of the first byte of data, told by the SYN, and of the end, told by the FIN.
    start: Option<u32>,
    end: Option<u32>,
    /// Data by number.
    pieces: BTreeMap<u32, Vec<u8>>,
}

/// All that both sides of each connection have sent, by sender and receiver, from the first byte to the end.
pub fn streams(frames: &[Vec<u8>]) -> BTreeMap<[SocketAddr; 2], Vec<u8>> {
    let mut streams: BTreeMap<_, Stream> = BTreeMap::new();
    for Packet { ends, carried: tcp, .. } in
        frames.iter().filter_map(|frame| packet(frame)).filter(|packet| packet.protocol == TCP)
    {
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let ends = [SocketAddr::new(ends[0], port(0)), SocketAddr::new(ends[1], port(2))];
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let (data, [is_end, is_start]) =
            (&tcp[usize::from(tcp[12] >> 4) * 4..], [1, 2].map(|flag| tcp[13] & flag != 0));
        let stream = streams.entry(ends).or_default();
        if is_start {
            stream.start = Some(seq.wrapping_add(1));
        }
        // What is sent again may be more.
        let piece = stream.pieces.entry(seq).or_default();
        if data.len() > piece.len() {
            *piece = data.to_vec();
        }
        if is_end {
            stream.end = Some(seq.wrapping_add(data.len() as u32));
        }
    }
    streams.into_iter().map(|(ends, stream)| (ends, stream.join(&ends))).collect()
}

impl Stream {
    /// The data, without a gap.
    fn join(self, ends: &[SocketAddr; 2]) -> Vec<u8> {
        let start = self.start.unwrap_or_else(|| panic!("{ends:?} without a beginning"));
        let end = self.end.unwrap_or_else(|| panic!("{ends:?} without an end"));
        // By their distance from the start, as numbers come round to 0.
        let pieces = self.pieces.iter().filter(|(_, data)| !data.is_empty());
        let pieces: BTreeMap<u32, &Vec<u8>> = pieces.map(|(seq, data)| (seq.wrapping_sub(start), data)).collect();
        let mut joined = Vec::new();
        for (at, data) in pieces {
            // What was sent again begins before.
            let known = joined.len().checked_sub(at as usize).unwrap_or_else(|| panic!("{ends:?}: a gap before {at}"));
            joined.extend(data.iter().skip(known));
        }
        assert_eq!(joined.len(), end.wrapping_sub(start) as usize, "{ends:?}: the end is missing");
        joined
    }
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn ten_clients_can_want_much_of_a_small_guest_at_once() {
    const MEMORY_MIB: &str = "6";
    if fs::metadata("/dev/kvm").is_err() {
        println!("skipped: there is no /dev/kvm");
        return;
    }
    apart(|| {
        let store = Store::start_with("kvm", "xdp", MEMORY_MIB);
        let value = pattern(100 << 10);
        let bulk = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        let set = [b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n".as_slice(), &bulk].concat();
        let exchanges = [(set.as_slice(), b"+OK\r\n".as_slice()), (b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", &bulk)];
        for (request, expected) in exchanges.into_iter().cycle().take(12) {
            thread::scope(|scope| {
                for mut client in (0..10).map(|_| connect(store.own_address())) {
                    scope.spawn(move || {
                        for _ in 0..50 {
                            client.write_all(request).unwrap();
                            let mut reply = vec![0; expected.len()];
                            client.read_exact(&mut reply).unwrap();
                            assert!(reply == expected, "{}", reply[..60.min(reply.len())].escape_ascii());
                        }
                    });
                }
            });
        }
        Ok(())
    });
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn stores_that_are_killed_leave_nothing_behind() {
    // A thousand with `./kayvee test --long`.
    let kills = env::var("KAYVEE_KILLS").map_or(100, |kills| kills.parse().expect("a number"));
    static KILLS: AtomicUsize = AtomicUsize::new(0);
    KILLS.store(kills, Ordering::Relaxed);
    apart(|| {
        for _ in 0..KILLS.load(Ordering::Relaxed) {
            let mut store = Store::start("xdp");
            echo(&mut connect(store.own_address()), b"alive");
            store.kill();
        }
        wait_until("the end of all interfaces", || interfaces() == ["lo"]);
        // What is left of the last run does not stand in the way of the next.
        echo(&mut connect(Store::start("xdp").own_address()), b"alive");
        Ok(())
    });
}

#[test]
#[ignore = "needs root: ./kayvee test"]
fn what_cannot_be_attached_to_is_refused_with_the_reason() {
    apart(|| {
        let pair = VethPair::create(1500)?;
        let refused = |net: &str| {
            let output =
                Command::new(built::kayvee()).args(["run", "--target", "linux", "--net", net]).output().unwrap();
            assert!(!output.status.success(), "{net}");
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
        };
        let own = pair.link.host;
        assert!(refused("xdp:nothere,ip=192.0.2.1/24").contains("network interface 'nothere'"));
        assert!(refused(&format!("xdp:{}", pair.host_name)).contains("give the store an address of its own there"));
        assert!(refused(&format!("xdp:{},ip={own}/30", pair.host_name)).contains("this host's own address"));
        let broadcast = Ipv4Addr::from(own.to_bits() | 3);
        assert!(refused(&format!("xdp:{},ip={broadcast}/16", pair.host_name)).contains("the address of all on"));
        assert!(refused(&format!("xdp:{},ip=127.0.0.1/8", pair.host_name)).contains("this host's own address on 'lo'"));
        assert!(refused("xdp:").contains("write xdp, or xdp:INTERFACE"));
        Ok(())
    });
}
