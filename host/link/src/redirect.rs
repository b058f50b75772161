//! Connections from this host to an address of its own, made to a store's address instead: what a program that carries bytes
//! between the two would do for each of them, the kernel does once, as a socket is connected (`BPF_CGROUP_INET4_CONNECT`).
//!
//! ```text
//! for each rule:
//!      if the address and port that are to be connected to are not the rule's: next rule
//!      if it is not TCP, the socket is bound to an address or interface, or of another network namespace: leave it
//!      bind it to the link to the store; where that fails, leave it
//!      put the store's address and port in their place, and leave it
//! ```
//!
//! Who wants to speak to this host must not speak to another one, whatever becomes of the link: while it is down, the routes to
//! other networks would lead to the store's address as well. A socket that is bound to the link has no other way. Whoever has bound a socket to 127.0.0.1 could not be answered from elsewhere. Another namespace has a loopback of its own.

use crate::{netlink, sys};
use anyhow::{Context, Result};
use kayvee_bpf::{Assembler, Instruction, Kind, loaded_u16, loaded_words, op::*};
use nix::{libc, net::if_::if_nametoindex};
use std::{
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

/// Connections to the first address go to the second one, of the same family.
pub type Rule = (SocketAddr, SocketAddr);

/// Redirected connections, until it is dropped. Those that are left then are broken off: with the link to the store nobody else
/// would tell who has them that it is gone.
#[derive(Debug)]
pub struct Redirect {
    links: Vec<OwnedFd>,
    to: Vec<SocketAddr>,
}

impl Drop for Redirect {
    fn drop(&mut self) {
        self.links.clear();
        for to in &self.to {
            // A kernel without that (`CONFIG_INET_DIAG_DESTROY`) leaves it to time.
            let _ = netlink::break_off(*to);
        }
    }
}

/// Fields of `struct bpf_sock_addr`.
const USER_IP4: i16 = 4;
const USER_IP6: i16 = 8;
const USER_PORT: i16 = 24;
const PROTOCOL: i16 = 36;
const SOCKET: i16 = 64;
/// Fields of `struct bpf_sock`.
const BOUND_INTERFACE: i16 = 0;
const SOURCE_IP4: i16 = 24;
const SOURCE_IP6: i16 = 28;

const IPPROTO_TCP: i32 = 6;
/// Numbers of the helpers.
const SETSOCKOPT: i32 = 49;
const GET_NETNS_COOKIE: i32 = 122;
/// A register that only reads: the end of the program's stack.
const STACK_END: u8 = 10;
/// What lets the connection be made.
const ALLOW: i32 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Rule(usize),
    Bound(usize),
    Allow,
}

/// Where the store is.
struct Target {
    /// Name of the interface that leads there, with zeros behind it, and its number.
    name: [u8; libc::IFNAMSIZ],
    index: i32,
    /// Number of the network namespace.
    cookie: u64,
}

impl Target {
    fn new(interface: &str) -> Result<Target> {
        let cookie = sys::namespace_cookie().context("asking for the network namespace's number")?;
        let index = if_nametoindex(interface).with_context(|| format!("looking for {interface}"))? as i32;
        let mut name = [0; libc::IFNAMSIZ];
        name.iter_mut().zip(interface.bytes()).for_each(|(to, from)| *to = from);
        Ok(Target { name, index, cookie })
    }
}

impl Redirect {
    /// Redirects connections that are made from this network namespace by whoever is in the control groups that this process
    /// sees, which is all of the host outside of containers. They take no other way than by `interface`.
    pub fn new(rules: &[Rule], interface: &str) -> Result<Redirect> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading which file systems are there")?;
        let group = control_groups(&mounts).context("there are no control groups of version 2")?;
        let group = File::open(group).with_context(|| format!("opening {group}"))?;
        let target = Target::new(interface)?;
        let link = |kind| {
            let program = kayvee_bpf::load(kind, &assemble(kind, rules, &target)).context("loading the program")?;
            kayvee_bpf::attach(kind, program.as_fd(), group.as_raw_fd() as u32, 0).context("attaching the program")
        };
        let links = [Kind::Connect4, Kind::Connect6].into_iter().map(link).collect::<Result<_>>()?;
        Ok(Redirect { links, to: rules.iter().map(|&(_, to)| to).collect() })
    }
}

/// Where the control groups of version 2 are mounted, by `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn control_groups(mounts: &str) -> Option<&str> {
    let is_version_2 = |line: &&str| line.split_once(" - ").is_some_and(|(_, rest)| rest.starts_with("cgroup2 "));
    mounts.lines().find(is_version_2)?.split(' ').nth(4)
}

/// An address as loads give it, and where it is for a socket of this kind.
fn words(kind: Kind, address: IpAddr) -> Option<(i16, Vec<i32>)> {
    let (place, octets) = match (kind, address) {
        (Kind::Connect4, IpAddr::V4(address)) => (USER_IP4, address.octets().to_vec()),
        (Kind::Connect4, IpAddr::V6(_)) => return None,
        // By a socket that speaks both.
        (_, IpAddr::V4(address)) => (USER_IP6, address.to_ipv6_mapped().octets().to_vec()),
        (_, IpAddr::V6(address)) => (USER_IP6, address.octets().to_vec()),
    };
    Some((place, loaded_words(&octets).collect()))
}

/// The program; r6 has its argument, r7 the interface that the socket is bound to.
fn assemble(kind: Kind, rules: &[Rule], target: &Target) -> Vec<Instruction> {
    let mut program = Assembler::default();
    let p = &mut program;
    p.put(MOV64_REG, 6, 1, 0, 0);
    for (at, &(from, to)) in rules.iter().enumerate() {
        p.label(Label::Rule(at));
        let next = if at + 1 < rules.len() { Label::Rule(at + 1) } else { Label::Allow };
        let Some(((place, from_words), (_, to_words))) = words(kind, from.ip()).zip(words(kind, to.ip())) else {
            continue;
        };
        let fields = || (place..).step_by(4);
        for (field, word) in fields().zip(from_words).chain([(USER_PORT, loaded_u16(from.port()))]) {
            p.put(LDX_W, 2, 6, field, 0);
            p.jump(JNE32_IMM, 2, 0, word, next);
        }
        p.put(LDX_W, 2, 6, PROTOCOL, 0);
        p.jump(JNE32_IMM, 2, 0, IPPROTO_TCP, Label::Allow);
        p.put(LDX_DW, 3, 6, SOCKET, 0);
        let source = match kind {
            Kind::Connect4 => vec![SOURCE_IP4],
            _ => (SOURCE_IP6..).step_by(4).take(4).collect(),
        };
        for field in source {
            p.put(LDX_W, 2, 3, field, 0);
            p.jump(JNE32_IMM, 2, 0, 0, Label::Allow);
        }
        p.put(LDX_W, 7, 3, BOUND_INTERFACE, 0);
        p.put(MOV64_REG, 1, 6, 0, 0);
        p.put(CALL, 0, 0, 0, GET_NETNS_COOKIE);
        p.load64(2, target.cookie);
        p.jump(JNE_REG, 0, 2, 0, Label::Allow);
        // One that has been here, and tries again.
        p.jump(JEQ_IMM, 7, 0, target.index, Label::Bound(at));
        p.jump(JNE_IMM, 7, 0, 0, Label::Allow);
        bind(p, &target.name);
        p.jump(JNE_IMM, 0, 0, 0, Label::Allow);
        p.label(Label::Bound(at));
        for (field, word) in fields().zip(to_words).chain([(USER_PORT, loaded_u16(to.port()))]) {
            p.put(MOV32_IMM, 2, 0, 0, word);
            p.put(STX_W, 6, 2, field, 0);
        }
        p.jump(JA, 0, 0, 0, Label::Allow);
    }
    p.label(Label::Allow);
    p.put(MOV64_IMM, 0, 0, 0, ALLOW);
    p.put(EXIT, 0, 0, 0, 0);
    program.finish()
}

/// Binds the socket to an interface; r0 has what comes of it, 0 for success. By its name: kernels before Linux 6.1 know no other
/// way here.
fn bind(p: &mut Assembler<Label>, name: &[u8; libc::IFNAMSIZ]) {
    let start = -(name.len() as i16);
    for (part, at) in name.as_chunks::<8>().0.iter().zip((start..).step_by(8)) {
        p.load64(2, u64::from_ne_bytes(*part));
        p.put(STX_DW, STACK_END, 2, at, 0);
    }
    p.put(MOV64_REG, 1, 6, 0, 0);
    p.put(MOV64_IMM, 2, 0, 0, libc::SOL_SOCKET);
    p.put(MOV64_IMM, 3, 0, 0, libc::SO_BINDTODEVICE);
    p.put(MOV64_REG, 4, STACK_END, 0, 0);
    p.put(ADD64_IMM, 4, 0, 0, start.into());
    p.put(MOV64_IMM, 5, 0, 0, name.len() as i32);
    p.put(CALL, 0, 0, 0, SETSOCKOPT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, VethPair};
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
        process::Command,
    };

    #[test]
    fn control_groups_are_found_where_they_are_mounted() {
        let mounts = "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n\
                      31 25 0:27 / /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids\n\
                      32 25 0:28 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup rw\n";
        assert_eq!(control_groups(mounts), Some("/sys/fs/cgroup/unified"));
        assert_eq!(control_groups(&mounts.replace("cgroup2", "cgroup")), None);
    }

    const PORT: u16 = 6379;

    fn v4(last: u8, port: u16) -> SocketAddr {
        (Ipv4Addr::new(127, 0, 0, last), port).into()
    }

    fn is_refused(address: SocketAddr) -> bool {
        TcpStream::connect(address).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    #[test]
    #[ignore = "loads a program into the kernel: needs root"]
    fn connections_arrive_elsewhere() {
        let elsewhere = Namespace::create().unwrap();
        Namespace::create().unwrap().enter(|| redirect_to_another_loopback(&elsewhere)).unwrap();
    }

    fn redirect_to_another_loopback(elsewhere: &Namespace) -> Result<()> {
        sys::switch_on("lo")?;
        let (store, web) = (TcpListener::bind(v4(2, PORT))?, TcpListener::bind(v4(2, 8080))?);
        let other = TcpListener::bind(v4(2, 8081))?;
        let store6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 7000))?;
        let local6 = SocketAddr::from((Ipv6Addr::LOCALHOST, PORT));
        let rules = [(v4(1, PORT), v4(2, PORT)), (local6, store6.local_addr()?), (v4(1, 80), v4(2, 8080))];
        assert!(rules.iter().all(|&(from, _)| is_refused(from)), "nobody listens there");
        let redirect = Redirect::new(&rules, "lo")?;
        let arrives = |client: &Socket, at: &TcpListener| {
            let (_, peer) = at.accept().unwrap();
            assert_eq!(client.local_addr().unwrap().as_socket().unwrap().port(), peer.port());
        };
        for (from, at) in [(v4(1, PORT), &store), (v4(1, 80), &web), (local6, &store6)] {
            arrives(&TcpStream::connect(from)?.into(), at);
        }
        // By a socket that speaks both, as Java's do.
        let by_both = || -> Result<Socket> {
            let both = Socket::new(Domain::IPV6, Type::STREAM, None)?;
            both.connect(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), PORT))))?;
            Ok(both)
        };
        arrives(&by_both()?, &store);
        // One that has been bound to the link before.
        let again = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        again.bind_device(Some(b"lo"))?;
        again.connect(&SockAddr::from(v4(1, PORT)))?;
        arrives(&again, &store);

        assert!(is_refused(v4(1, 8080)) && is_refused(v4(3, PORT)), "no rule is about them");
        let bound = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        bound.bind(&SockAddr::from(v4(1, 0)))?;
        assert!(bound.connect(&SockAddr::from(v4(1, PORT))).is_err(), "what is bound stays where it is");
        let datagrams = UdpSocket::bind(v4(0, 0))?;
        datagrams.connect(v4(1, PORT))?;
        assert_eq!(datagrams.peer_addr()?, v4(1, PORT));
        elsewhere.enter(|| {
            sys::switch_on("lo")?;
            let own = TcpListener::bind(v4(1, PORT))?;
            arrives(&TcpStream::connect(v4(1, PORT))?.into(), &own);
            Ok(())
        })?;
        let left = [TcpStream::connect(v4(1, PORT))?, TcpStream::connect(local6)?, by_both()?.into()];
        let mut unrelated = TcpStream::connect(v4(2, 8081))?;
        drop(redirect);
        for mut broken in left {
            assert_eq!(broken.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionAborted, "{broken:?}");
        }
        let (mut peer, _) = other.accept()?;
        peer.write_all(b"x")?;
        unrelated.read_exact(&mut [0])?;
        assert!(rules.iter().all(|&(from, _)| is_refused(from)), "nothing is left");
        Ok(())
    }
    fn ip(words: &str) {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
    }

    #[test]
    #[ignore = "loads a program into the kernel: needs root"]
    fn connections_go_nowhere_else_while_the_link_is_down() {
        let inside = || {
            sys::switch_on("lo")?;
            let (pair, elsewhere) = (VethPair::create(1500)?, VethPair::create(1500)?);
            ip(&format!("route add default dev {}", elsewhere.host_name));
            ip(&format!("-6 route add default dev {}", elsewhere.host_name));
            let guest6 = pair.link.ipv6.expect("this host has IPv6").guest;
            let local6 = SocketAddr::from((Ipv6Addr::LOCALHOST, PORT));
            let rules = [(v4(1, PORT), (pair.link.guest, PORT).into()), (local6, (guest6, PORT).into())];
            let redirect = Redirect::new(&rules, &pair.host_name)?;
            ip(&format!("link set {} down", pair.host_name));
            for (from, _) in rules {
                let error = TcpStream::connect(from).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{from}: {error}");
            }
            // A link that is not found is no link: whoever listens there serves.
            ip(&format!("link set {} name renamed", pair.host_name));
            assert!(rules.iter().all(|&(from, _)| is_refused(from)));
            drop(redirect);
            Ok(())
        };
        Namespace::create().unwrap().enter(inside).unwrap();
    }
}
