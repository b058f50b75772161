//! The requests that need netlink(7): a pair of virtual Ethernet devices, by rtnetlink(7), and connections to be broken off, by
//! sock_diag(7). The crates that speak all of either need an asynchronous runtime or switch on features that the image must
//! not have; these are three messages.

use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::RawFd,
};

const HEADER_BYTES: usize = 16;
const INTERFACE_BYTES: usize = 16;

/// A message under construction: a header, then attributes, which may lie in each other.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Message {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Message(bytes)
    }

    /// `struct ifinfomsg` that names no interface.
    fn interface(&mut self) {
        self.0.extend([0; INTERFACE_BYTES]);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |message| message.0.extend(value));
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        let at = self.0.len();
        self.0.extend([0; 4]);
        fill(self);
        let len = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        self.0[at + 2..at + 4].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Makes a pair: `name` here, `peer_name` in the namespace that the descriptor names. The error is `AlreadyExists` where
/// there is an interface of that name.
pub fn create_veth(name: &str, peer_name: &str, namespace: RawFd) -> io::Result<()> {
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(libc::NETLINK_ROUTE)))?;
    socket.send(&veth_message(name, peer_name, namespace))?;
    let mut reply = [0; 4096];
    let len = (&socket).read(&mut reply)?;
    parse_acknowledgment(&reply[..len])
}

fn veth_message(name: &str, peer_name: &str, namespace: RawFd) -> Vec<u8> {
    const VETH_INFO_PEER: u16 = 1;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = Message::new(libc::RTM_NEWLINK, flags as u16);
    message.interface();
    message.attribute(libc::IFLA_IFNAME, &terminated(name));
    message.nested(libc::IFLA_LINKINFO, |info| {
        info.attribute(libc::IFLA_INFO_KIND, b"veth");
        info.nested(libc::IFLA_INFO_DATA, |data| {
            data.nested(VETH_INFO_PEER, |peer| {
                peer.interface();
                peer.attribute(libc::IFLA_IFNAME, &terminated(peer_name));
                peer.attribute(libc::IFLA_NET_NS_FD, &namespace.to_ne_bytes());
            });
        });
    });
    message.finish()
}

/// `struct inet_diag_sockid`: ports, addresses, interface and cookie, by which the kernel knows a socket.
const SOCKET_BYTES: usize = 48;
/// Where it is in `struct inet_diag_msg`.
const SOCKET_AT: usize = 4;

/// Breaks off all TCP connections of this network namespace to an address: who has one reads an error.
pub fn break_off(to: SocketAddr) -> io::Result<()> {
    const NETLINK_SOCK_DIAG: i32 = 4;
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const SOCK_DESTROY: u16 = 21;
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
    // Sockets that speak both families reach IPv4 addresses, too.
    for family in [libc::AF_INET, libc::AF_INET6] {
        let all = about_socket(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP, family, &[0; SOCKET_BYTES]);
        socket.send(&all)?;
        let mut found = Vec::new();
        let mut reply = vec![0; 32 << 10];
        loop {
            let len = (&socket).read(&mut reply)?;
            if let Answers::AllSeen = read_sockets(&reply[..len], family, to, &mut found)? {
                break;
            }
        }
        for id in found {
            socket.send(&about_socket(SOCK_DESTROY, libc::NLM_F_ACK, family, &id))?;
            let len = (&socket).read(&mut reply)?;
            match parse_acknowledgment(&reply[..len]) {
                // It has ended by itself.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(())
}

fn about_socket(kind: u16, flags: i32, family: i32, id: &[u8; SOCKET_BYTES]) -> Vec<u8> {
    let mut message = Message::new(kind, (libc::NLM_F_REQUEST | flags) as u16);
    message.0.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // In any state.
    message.0.extend(u32::MAX.to_ne_bytes());
    message.0.extend(id);
    message.finish()
}

/// Whether more messages come.
enum Answers {
    More,
    AllSeen,
}

/// Notes what leads to an address among the sockets in a message.
fn read_sockets(
    mut messages: &[u8],
    family: i32,
    to: SocketAddr,
    found: &mut Vec<[u8; SOCKET_BYTES]>,
) -> io::Result<Answers> {
    while let Some(header) = messages.first_chunk::<HEADER_BYTES>() {
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let message = messages.get(..len).filter(|message| message.len() >= HEADER_BYTES);
        let message = message.ok_or(io::ErrorKind::InvalidData)?;
        match i32::from(u16::from_ne_bytes([header[4], header[5]])) {
            libc::NLMSG_DONE => return Ok(Answers::AllSeen),
            libc::NLMSG_ERROR => parse_acknowledgment(message)?,
            _ => {
                let id = message.get(HEADER_BYTES + SOCKET_AT..).and_then(|rest| rest.first_chunk());
                let id: &[u8; SOCKET_BYTES] = id.ok_or(io::ErrorKind::InvalidData)?;
                if peer_of(id, family) == to {
                    found.push(*id);
                }
            }
        }
        messages = messages.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Answers::More)
}

/// The other end of a socket's connection.
fn peer_of(id: &[u8; SOCKET_BYTES], family: i32) -> SocketAddr {
    let ip: [u8; 16] = id[20..36].try_into().expect("16 bytes");
    let ip = match family {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3])),
        _ => Ipv6Addr::from(ip).to_canonical(),
    };
    SocketAddr::new(ip, u16::from_be_bytes([id[2], id[3]]))
}

fn terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0"].concat()
}

/// Reads the answer: an error number behind the header, 0 for success.
fn parse_acknowledgment(reply: &[u8]) -> io::Result<()> {
    let number = reply.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|bytes| bytes.try_into().ok());
    let kind = reply.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    match (kind, number.map(i32::from_ne_bytes)) {
        (Some(kind), Some(0)) if i32::from(kind) == libc::NLMSG_ERROR => Ok(()),
        (Some(kind), Some(number)) if i32::from(kind) == libc::NLMSG_ERROR => {
            Err(io::Error::from_raw_os_error(number.wrapping_neg()))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is not an acknowledgment")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kayvee_testing::{
        network::{SeedReport, seeds},
        random::Random,
    };

    #[test]
    fn lengths_cover_what_lies_in_an_attribute() {
        let message = veth_message("kayvee0", "store", 7);
        assert_eq!(message.len() % 4, 0);
        assert_eq!(u32::from_ne_bytes(message[..4].try_into().unwrap()) as usize, message.len());
        let attribute = |at: usize| {
            let number = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
            (usize::from(number(at)), number(at + 2))
        };
        assert_eq!(attribute(32), (4 + 8, libc::IFLA_IFNAME));
        assert_eq!(attribute(44), (message.len() - 44, libc::IFLA_LINKINFO));
        assert_eq!(attribute(48), (4 + 4, libc::IFLA_INFO_KIND));
        assert_eq!(attribute(56), (message.len() - 56, libc::IFLA_INFO_DATA));
    }

    #[test]
    fn errors_are_the_system_s() {
        let reply = |kind: i32, number: i32| {
            let mut bytes = vec![0; 36];
            bytes[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
            bytes[16..20].copy_from_slice(&number.to_ne_bytes());
            parse_acknowledgment(&bytes)
        };
        assert!(reply(libc::NLMSG_ERROR, 0).is_ok());
        let exists = reply(libc::NLMSG_ERROR, -libc::EEXIST).unwrap_err();
        assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
        assert!(reply(3, 0).is_err() && parse_acknowledgment(&[]).is_err());
    }

    const SOCK_DIAG_BY_FAMILY: i32 = 20;
    /// `struct inet_diag_msg`.
    const DIAG_BYTES: usize = 72;

    fn answer(kind: i32, body: &[u8]) -> Vec<u8> {
        let mut message = Message::new(kind as u16, 0);
        message.0.extend(body);
        message.finish()
    }

    /// What the kernel tells of a socket with this peer.
    fn told_of(to: SocketAddr, random: &mut Random) -> Vec<u8> {
        let mut body = random.bytes(DIAG_BYTES);
        body[SOCKET_AT + 2..SOCKET_AT + 4].copy_from_slice(&to.port().to_be_bytes());
        match to.ip() {
            IpAddr::V4(ip) => body[SOCKET_AT + 20..SOCKET_AT + 24].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => body[SOCKET_AT + 20..SOCKET_AT + 36].copy_from_slice(&ip.octets()),
        }
        answer(SOCK_DIAG_BY_FAMILY, &body)
    }

    #[test]
    fn the_sockets_that_lead_to_an_address_are_found_wherever_answers_are_cut() {
        for (family, to) in [(libc::AF_INET, "127.0.0.1:6379"), (libc::AF_INET6, "[fd00::2]:6379")] {
            let to: SocketAddr = to.parse().unwrap();
            let mut random = Random::new(1);
            let other = SocketAddr::new(to.ip(), 6380);
            let sockets = [to, other, to].map(|peer| told_of(peer, &mut random));
            let id = |socket: &Vec<u8>| socket[HEADER_BYTES + SOCKET_AT..][..SOCKET_BYTES].to_vec();
            let [first, second] = [id(&sockets[0]), id(&sockets[2])];
            let answers = [sockets.concat(), answer(libc::NLMSG_DONE, &[0; 4])].concat();
            let one = sockets[0].len();
            for len in 0..=answers.len() {
                let mut found = Vec::new();
                let result = read_sockets(&answers[..len], family, to, &mut found);
                let whole = (len / one).min(3);
                assert_eq!(found.concat(), [&first[..], &[], &second][..whole].concat(), "{len} bytes");
                match result {
                    Ok(Answers::AllSeen) => assert_eq!(len, answers.len()),
                    // A piece that is shorter than a header is passed over.
                    Ok(Answers::More) => assert!(len - whole * one < HEADER_BYTES, "{len} bytes"),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidData),
                }
            }
        }
    }

    #[test]
    fn any_answer_is_read_or_refused() {
        let to: SocketAddr = "127.0.0.1:6379".parse().unwrap();
        for seed in seeds(50) {
            let _report = SeedReport(seed);
            let mut random = Random::new(seed);
            let mut answers = Vec::new();
            for _ in 0..random.below(4) {
                let len = random.below(100);
                let body = random.bytes(len);
                answers.extend(match random.below(5) {
                    0 => body,
                    1 => answer(libc::NLMSG_ERROR, &body),
                    2 => answer(random.below(30) as i32, &body),
                    _ => told_of(to, &mut random),
                });
            }
            for _ in 0..random.below(4) {
                let at = random.below(answers.len() + 1);
                // Lengths as well, to numbers that make the next message begin anywhere.
                answers.splice(
                    at..(at + 4).min(answers.len()),
                    (random.next_u64() as u32 >> random.below(32)).to_ne_bytes(),
                );
            }
            for len in 0..=answers.len() {
                let mut found = Vec::new();
                let _ = read_sockets(&answers[..len], libc::AF_INET, to, &mut found);
                assert!(found.len() * (HEADER_BYTES + SOCKET_AT + SOCKET_BYTES) <= len, "more than was said");
                let _ = parse_acknowledgment(&answers[..len]);
            }
        }
    }
}
