//! Who talks to whom: addresses of either family, and the ports of a connection.

use crate::checksum;
use core::{
    hash::Hasher,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// Whether an address can be that of a single host.
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
}

/// The same of IPv6 (RFC 4291 §2.5.2, §2.5.3, §2.5.5 and §2.7). What maps an IPv4 address is none on a wire.
pub(crate) fn is_host6(address: Ipv6Addr) -> bool {
    let is_mapped = address.to_ipv4_mapped().is_some();
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_mapped)
}

/// The addresses of this station and of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    V4 { own: Ipv4Addr, remote: Ipv4Addr },
    V6 { own: Ipv6Addr, remote: Ipv6Addr },
}

impl Ends {
    pub fn own(&self) -> IpAddr {
        match *self {
            Ends::V4 { own, .. } => own.into(),
            Ends::V6 { own, .. } => own.into(),
        }
    }

    pub fn remote(&self) -> IpAddr {
        match *self {
            Ends::V4 { remote, .. } => remote.into(),
            Ends::V6 { remote, .. } => remote.into(),
        }
    }

    /// Bytes of an internet header without options.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        match self {
            Ends::V4 { .. } => 20,
            Ends::V6 { .. } => 40,
        }
    }

    /// The sum of the pseudo-header (RFC 9293 §3.1, RFC 8200 §8.1), which is the same both ways.
    #[inline]
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> u64 {
        let [a, b] = (len as u16).to_be_bytes();
        let addresses = match self {
            Ends::V4 { own, remote } => checksum::sum(&own.octets()) + checksum::sum(&remote.octets()),
            Ends::V6 { own, remote } => sum6(own, remote),
        };
        addresses + checksum::sum(&[0, protocol, a, b])
    }
}

/// The sum of two addresses, which is not to be begun where they are shorter.
#[inline(never)]
fn sum6(own: &Ipv6Addr, remote: &Ipv6Addr) -> u64 {
    checksum::sum(&own.octets()) + checksum::sum(&remote.octets())
}

/// What tells one connection from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub ends: Ends,
    pub remote_port: u16,
    pub local_port: u16,
}

impl FlowKey {
    /// The peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.ends.remote(), self.remote_port)
    }

    /// The address and port of this station.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.ends.own(), self.local_port)
    }

    /// Gives a keyed hash what it is to depend on. The own address is left out: there are few.
    #[inline]
    pub fn hash(&self, hasher: &mut impl Hasher) {
        let ports = u64::from(self.remote_port) << 16 | u64::from(self.local_port);
        match self.ends {
            Ends::V4 { remote, .. } => hasher.write_u64(u64::from(remote.to_bits()) << 32 | ports),
            Ends::V6 { remote, .. } => {
                let bits = remote.to_bits();
                hasher.write_u64((bits >> 64) as u64);
                hasher.write_u64(bits as u64);
                hasher.write_u64(ports);
            }
        }
    }
}
