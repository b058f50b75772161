//! The one request that needs rtnetlink(7): a pair of virtual Ethernet devices. The crates that speak all of rtnetlink need
//! an asynchronous runtime or switch on features that the image must not have; this is one message.

use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read},
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
}
