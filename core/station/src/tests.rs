extern crate std;

use super::{Crowd, Datagrams, InPlace, Peers};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use kayvee_net::Take;
use kayvee_platform::{Addressing, Addressing6, Clock, Heap, Now, ProcessorTime};
use kayvee_server::{ClientId, Engine, Environment, NoHost, Options, Peer};
use std::{format, string::String, vec::Vec};

const ECHO_PORT: u16 = 2007;
const MEMCACHED_PORT: u16 = 11211;
const HOST: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
const NEIGHBOR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const NOW: Now = Now { monotonic_ns: 5_000_000_000, unix_us: 1_700_000_000_000_000 };

/// A clock that stands still, and a heap without a limit.
struct Still;

impl Clock for Still {
    fn now(&self) -> Now {
        NOW
    }
    fn name(&self) -> &'static str {
        "still"
    }
}

impl Heap for Still {
    fn used_bytes(&self) -> u64 {
        0
    }
    fn limit_bytes(&self) -> Option<u64> {
        None
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
    fn allocator(&self) -> &'static str {
        "none"
    }
}

fn engine(options: &[&str]) -> Engine {
    let environment = Environment {
        target: "test",
        os: "none".into(),
        multiplexing: "none",
        process_id: 0,
        clock: &Still,
        heap: &Still,
        system_memory_bytes: 1 << 30,
        processor_time: ProcessorTime::default,
        monitor: || None,
        host: &NoHost,
        seed: [7; 32],
    };
    let mut options = Options::from_args(options.iter().map(|word| word.as_bytes())).unwrap();
    (options.udp_echo_port, options.udp_memcached_port) = (ECHO_PORT, MEMCACHED_PORT);
    Engine::new(options, environment, NOW)
}

/// The services, and who can reach them.
struct Services(Datagrams, Peers);

fn datagrams(engine: &Engine, peers: Peers) -> Services {
    Services(Datagrams::new(engine.options()), peers)
}

/// What comes back from a port for a datagram that says it is from `remote_port` of the host.
fn send(engine: &mut Engine, services: &mut Services, port: u16, remote_port: u16, text: &str) -> Option<String> {
    send_from(HOST, engine, services, port, remote_port, text)
}

/// The same for one from another address.
fn send_from(
    remote: Ipv4Addr,
    engine: &mut Engine,
    Services(datagrams, peers): &mut Services,
    port: u16,
    remote_port: u16,
    text: &str,
) -> Option<String> {
    let (crowd, peers) = (&mut Crowd::default(), *peers);
    let mut in_place = InPlace { engine, datagrams, peers, clients: &mut [], ids: &[], crowd };
    let datagram = format!("\0\0\0\0\0\x01\0\0{text}");
    let mut reply = [0; 1472];
    let remote = SocketAddr::new(remote.into(), remote_port);
    let len = in_place.datagram(port, remote, datagram.as_bytes(), &mut reply)?;
    Some(String::from_utf8(Vec::from(&reply[8..len])).unwrap())
}

fn get(engine: &mut Engine, datagrams: &mut Services) -> Option<String> {
    send(engine, datagrams, MEMCACHED_PORT, 5000, "get a\r\n")
}

fn local_client(engine: &mut Engine) -> ClientId {
    engine.connect(Peer { remote: "local:1".into(), local: "local:2".into(), is_local: true }).unwrap()
}

#[test]
fn services_are_not_made_to_answer_each_other() {
    let engine = &mut engine(&[]);
    let datagrams = &mut datagrams(engine, Peers::Trusted);
    for port in [ECHO_PORT, MEMCACHED_PORT] {
        for remote_port in [0, 7, 1023, ECHO_PORT, MEMCACHED_PORT] {
            assert_eq!(send(engine, datagrams, port, remote_port, "get a\r\n"), None, "{remote_port} to {port}");
        }
        assert!(send(engine, datagrams, port, 1024, "get a\r\n").is_some());
    }
    // Of two such services at other ports.
    assert_eq!(send(engine, datagrams, MEMCACHED_PORT, 1024, "ERROR\r\n"), None);
}

#[test]
fn each_datagram_is_let_in_by_the_rules_of_its_time() {
    let engine = &mut engine(&[]);
    let datagrams = &mut datagrams(engine, Peers::Trusted);
    let client = local_client(engine);
    assert_eq!(get(engine, datagrams).unwrap(), "END\r\n");
    engine.receive(client, b"CONFIG SET requirepass secret\r\n");
    assert!(get(engine, datagrams).unwrap().starts_with("SERVER_ERROR NOAUTH"));
    engine.receive(client, b"CONFIG SET requirepass ''\r\n");
    assert_eq!(get(engine, datagrams).unwrap(), "END\r\n");
}

#[test]
fn protected_mode_that_is_switched_on_turns_strangers_away() {
    let engine = &mut engine(&["--protected-mode", "no"]);
    let datagrams = &mut datagrams(engine, Peers::Strangers);
    let client = local_client(engine);
    assert_eq!(get(engine, datagrams).unwrap(), "END\r\n");
    engine.receive(client, b"CONFIG SET protected-mode yes\r\n");
    assert_eq!(get(engine, datagrams), None);
    engine.receive(client, b"CONFIG SET protected-mode no\r\n");
    assert_eq!(get(engine, datagrams).unwrap(), "END\r\n");
}

/// Of what comes by a host, only what is its own is from the store's machine.
#[test]
fn whom_the_host_forwards_is_a_stranger() {
    let host6 = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1);
    let (address, address6) = (Ipv4Addr::new(172, 30, 0, 2), Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2));
    let addressing = |gateway| Addressing::Static { address, prefix_bits: 30, gateway };
    let addressing6 = |gateway| Addressing6::Static { address: address6, prefix_bits: 64, gateway };
    let peers = Peers::host(addressing(Some(HOST)), addressing6(Some(host6)));
    for (remote, is_local) in
        [(HOST.into(), true), (NEIGHBOR.into(), false), (host6.into(), true), (IpAddr::from(address6), false)]
    {
        assert_eq!((peers.has(remote), peers.is_beyond_host(remote)), (is_local, !is_local), "{remote}");
        assert!(Peers::Trusted.has(remote) && !Peers::Strangers.has(remote));
        assert!(!Peers::Strangers.is_beyond_host(remote), "an interface's web server is for its network");
    }
    for peers in [Peers::host(addressing(None), addressing6(None)), Peers::host(Addressing::Dhcp, Addressing6::Auto)] {
        assert!(!peers.has(HOST.into()) && !peers.has(host6.into()));
    }

    let engine = &mut engine(&[]);
    let services = &mut datagrams(engine, peers);
    let request = "get a\r\n";
    let ask = |remote, engine: &mut Engine, services: &mut Services| {
        send_from(remote, engine, services, MEMCACHED_PORT, 5000, request)
    };
    for _ in 0..2 {
        assert_eq!(ask(HOST, engine, services).unwrap(), "END\r\n");
        assert_eq!(ask(NEIGHBOR, engine, services), None);
    }
    let client = local_client(engine);
    engine.receive(client, b"CONFIG SET protected-mode no\r\n");
    assert_eq!(ask(NEIGHBOR, engine, services).unwrap(), "END\r\n");
    engine.receive(client, b"CONFIG SET protected-mode yes\r\n");
    assert_eq!(ask(NEIGHBOR, engine, services), None);
    assert_eq!(ask(HOST, engine, services).unwrap(), "END\r\n");
}
