//! Connections from this host to an address of its own, made to a store's address instead: what a program that carries bytes
//! between the two would do for each of them, the kernel does once, as a socket is connected (`BPF_CGROUP_INET4_CONNECT`).
//!
//! ```text
//! for each rule:
//!      if the address and port that are to be connected to are not the rule's: next rule
//!      if it is not TCP, the socket is bound to an address or interface, or of another network namespace: leave it
//!      put the store's address and port in their place, and leave it
//! ```
//!
//! Whoever has bound a socket to 127.0.0.1 could not be answered from elsewhere. Another namespace has a loopback of its own.

use crate::{netlink, sys};
use anyhow::{Context, Result};
use kayvee_bpf::{Assembler, Instruction, Kind, loaded_u16, loaded_words, op::*};
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
/// Number of the helper.
const GET_NETNS_COOKIE: i32 = 122;
/// What lets the connection be made.
const ALLOW: i32 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Rule(usize),
    Allow,
}

impl Redirect {
    /// Redirects connections that are made from this network namespace by whoever is in the control groups that this process
    /// sees, which is all of the host outside of containers.
    pub fn new(rules: &[Rule]) -> Result<Redirect> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading which file systems are there")?;
        let group = control_groups(&mounts).context("there are no control groups of version 2")?;
        let group = File::open(group).with_context(|| format!("opening {group}"))?;
        let cookie = sys::namespace_cookie().context("asking for the network namespace's number")?;
        let link = |kind| {
            let program = kayvee_bpf::load(kind, &assemble(kind, rules, cookie)).context("loading the program")?;
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

/// The program; r6 has its argument.
fn assemble(kind: Kind, rules: &[Rule], cookie: u64) -> Vec<Instruction> {
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
        for field in source.into_iter().chain([BOUND_INTERFACE]) {
            p.put(LDX_W, 2, 3, field, 0);
            p.jump(JNE32_IMM, 2, 0, 0, Label::Allow);
        }
        p.put(MOV64_REG, 1, 6, 0, 0);
        p.put(CALL, 0, 0, 0, GET_NETNS_COOKIE);
        p.load64(2, cookie);
        p.jump(JNE_REG, 0, 2, 0, Label::Allow);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
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
        let redirect = Redirect::new(&rules)?;
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
}
