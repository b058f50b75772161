//! What the application and the stack say to each other.

use crate::limits::Limits;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use kayvee_platform::{Addressing, Addressing6};
use smoltcp::wire::EthernetAddress;

/// Names a connection from [`Event::Accepted`] or [`Stack::connect`] until the application closes it or
/// [`Event::Closed`]. It is a dense index, reused afterwards, by which an application finds its own record of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// What a stack is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Where its address comes from.
    pub addressing: Addressing,
    /// Where its IPv6 addresses come from.
    pub addressing6: Addressing6,
    /// Bounds on what it takes.
    pub limits: Limits,
    /// Seconds without a segment after which a peer is probed, 0 for never (redis.conf's `tcp-keepalive`). Two
    /// unanswered probes end the connection.
    pub keepalive_s: u32,
    /// From the platform's entropy: initial sequence numbers and the order of hash tables come from it.
    pub seed: u64,
}

/// Why a stack was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The device's Ethernet address is a group address, which no station has.
    HardwareAddress([u8; 6]),
    /// The address or the gateway names no single host.
    Address(IpAddr),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::HardwareAddress(mac) => {
                write!(f, "the network device's address {} is no station's", EthernetAddress(*mac))
            }
            ConfigError::Address(address) => write!(f, "{address} cannot be a host's or a router's address"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// The IPv4 address that a stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The station's own address.
    pub address: Ipv4Addr,
    /// Length of the network prefix in bits.
    pub prefix_bits: u8,
    /// The default router, if there is one.
    pub gateway: Option<Ipv4Addr>,
}

/// What the application has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The station has an IPv4 address now, or another one than before, whose connections are lost.
    AddressAcquired(Lease),
    /// The station has no IPv4 address any more.
    AddressLost,
    /// The station has an IPv6 address, maybe beside others.
    Address6Acquired {
        /// The address, which may be one of this link only.
        address: Ipv6Addr,
        /// Length of the network prefix in bits.
        prefix_bits: u8,
    },
    /// One of the station's IPv6 addresses is over, and its connections are lost.
    Address6Lost(Ipv6Addr),
    /// A peer has connected.
    Accepted {
        /// The new connection.
        connection: ConnectionId,
        /// The peer's address.
        remote: SocketAddr,
        /// The address that it connected to.
        local: SocketAddr,
    },
    /// There is data to read that was not there at the last such event.
    Readable(ConnectionId),
    /// Half of the send buffer is free again, after a [`Stack::send`] that found no room for all of its bytes.
    Writable(ConnectionId),
    /// The peer has sent its last byte, and all have been read. It can still be sent to.
    EndOfStream(ConnectionId),
    /// The connection was reset or its peer is dead. The application forgets it; there is nothing to close.
    Closed(ConnectionId),
}

/// An application that takes data where the device has put it.
pub trait Take {
    /// Takes data that has arrived in order on a connection that has nothing else to read, and returns how many bytes of
    /// it. The rest is kept, and [`Event::Readable`] follows. The memory is shared with the device.
    fn take(&mut self, connection: ConnectionId, bytes: &[u8]) -> usize;

    /// Is told after each frame what [`Stack::held_bytes`] returns, which the frames of one turn may change by much.
    #[inline]
    fn note_buffers(&mut self, _bytes: usize) {}

    /// Takes a UDP datagram for a port that [`Stack::serve_datagrams`] was called with. Its answer, if there is one, goes
    /// into `reply`, and its length is returned.
    fn datagram(&mut self, _port: u16, _remote: SocketAddr, _bytes: &[u8], _reply: &mut [u8]) -> Option<usize> {
        None
    }
}

impl Lease {
    /// Whom to give a packet for `remote` to: the station itself, or the router.
    pub(crate) fn next_hop(&self, remote: Ipv4Addr) -> Option<Ipv4Addr> {
        let differs = self.address.to_bits() ^ remote.to_bits();
        let is_on_link = differs.checked_shr(32 - u32::from(self.prefix_bits.min(32))).unwrap_or(0) == 0;
        if is_on_link { Some(remote) } else { self.gateway }
    }
}
