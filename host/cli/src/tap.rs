//! A tap device of one guest's own: a link of two addresses between this host and the guest.

use crate::sys;
use anyhow::{Context, Result, anyhow};
use std::{fs, fs::File, io, net::Ipv4Addr};

/// `%d` becomes the first number that no other tap of this name has, so it also numbers the subnets without a lock.
const NAME: &str = "kayvee%d";

/// Private networks (RFC 1918) whose /30 subnets are handed out; a subnet that the host has a route to is left alone,
/// and its counterpart in the next network taken.
const NETWORKS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(172, 30, 0, 0), Ipv4Addr::new(10, 213, 0, 0), Ipv4Addr::new(10, 87, 0, 0)];
const NETWORK_BITS: u32 = 16;
/// Length of a link's prefix.
pub const PREFIX_BITS: u8 = 30;
/// Packets that wait for the guest at most. With the kernel's 1,000, thousands of clients that send at once lose packets
/// before the guest has seen them, and wait seconds for their retransmission.
const QUEUE_PACKETS: u16 = 8192;
const SUBNET_BITS: u32 = PREFIX_BITS as u32;
const SUBNETS_PER_NETWORK: u32 = 1 << (SUBNET_BITS - NETWORK_BITS);

/// The two ends' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// This side.
    pub host: Ipv4Addr,
    /// The guest's side.
    pub guest: Ipv4Addr,
    /// The guest's Ethernet address.
    pub guest_mac: [u8; 6],
}

/// A tap device, which disappears when its last open end is closed: here and in QEMU.
pub struct Tap {
    /// The open end, for QEMU.
    pub end: File,
    /// The addresses.
    pub link: Link,
}

/// Why there is no tap.
pub enum TapError {
    /// This process may not make one.
    NotAllowed(io::Error),
    /// It may, but it went wrong.
    Failed(anyhow::Error),
}

impl Tap {
    /// Makes a tap and switches it on.
    pub fn create() -> Result<Tap, TapError> {
        let (end, name) = sys::create_tap(NAME).map_err(TapError::NotAllowed)?;
        let link = configure(&name).with_context(|| format!("setting up {name}")).map_err(TapError::Failed)?;
        Ok(Tap { end, link })
    }
}

fn configure(name: &str) -> Result<Link> {
    let number = name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse()?;
    let routes = fs::read_to_string("/proc/self/net/route").context("reading the routes of this host")?;
    let link = free_link(number, &parse_routes(&routes)).ok_or_else(|| {
        anyhow!("this host has routes to every network that a guest could use: {NETWORKS:?} with {NETWORK_BITS} bits")
    })?;
    // The host would send router solicitations into the link, and wake an idle guest; where it has no IPv6 there is
    // nothing to switch off.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    sys::set_queue_len(name, QUEUE_PACKETS)?;
    sys::bring_up(name, link.host, Ipv4Addr::from_bits(mask(SUBNET_BITS)))?;
    sys::add_neighbour(name, link.guest, link.guest_mac)?;
    Ok(link)
}

/// A destination of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    network: u32,
    mask: u32,
}

/// Reads the kernel's table: a line of headings, then one line a route with its columns separated by tabs; addresses
/// are hexadecimal numbers in the machine's byte order. Default routes are left out.
fn parse_routes(table: &str) -> Vec<Route> {
    let number = |column: Option<&&str>| u32::from_str_radix(column?, 16).ok().map(u32::from_be);
    let rows = table.lines().skip(1).map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    rows.filter_map(|row| Some(Route { network: number(row.get(1))?, mask: number(row.get(7))? }))
        .filter(|route| route.mask != 0)
        .collect()
}

fn free_link(number: u32, routes: &[Route]) -> Option<Link> {
    let offset = (number % SUBNETS_PER_NETWORK) << (32 - SUBNET_BITS);
    let subnet = NETWORKS.iter().map(|network| network.to_bits() + offset).find(|subnet| {
        // Two prefixes overlap where they agree in all the bits that both have.
        !routes.iter().any(|route| (subnet ^ route.network) & route.mask & mask(SUBNET_BITS) == 0)
    })?;
    let [.., high, low] = number.to_be_bytes();
    Some(Link {
        host: Ipv4Addr::from_bits(subnet + 1),
        guest: Ipv4Addr::from_bits(subnet + 2),
        // QEMU's own prefix, locally administered.
        guest_mac: [0x52, 0x54, 0, 0x6b, high, low],
    })
}

fn mask(bits: u32) -> u32 {
    u32::MAX << (32 - bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        kayvee0\t00001EAC\t00000000\t0001\t0\t0\t0\tFCFFFFFF\t0\t0\t0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn reads_the_kernel_s_table() {
        let network = Ipv4Addr::new(172, 30, 0, 0).to_bits();
        assert_eq!(parse_routes(TABLE), [Route { network, mask: mask(30) }]);
        assert_eq!(parse_routes(""), []);
    }

    #[test]
    fn a_link_avoids_the_host_s_routes() {
        let first = free_link(0, &[]).unwrap();
        assert_eq!((first.host, first.guest), (Ipv4Addr::new(172, 30, 0, 1), Ipv4Addr::new(172, 30, 0, 2)));
        let own = Route { network: first.host.to_bits() & mask(30), mask: mask(30) };
        assert_eq!(free_link(0, &[own]).unwrap().guest, Ipv4Addr::new(10, 213, 0, 2));
        assert_eq!(free_link(1, &[own]).unwrap().guest, Ipv4Addr::new(172, 30, 0, 6));
        let wide = [[172, 16, 0, 0], [10, 0, 0, 0]].map(|ip| Ipv4Addr::from(ip).to_bits());
        assert_eq!(free_link(7, &[Route { network: wide[0], mask: mask(12) }]).unwrap().guest.octets()[..2], [10, 213]);
        assert_eq!(free_link(7, &wide.map(|network| Route { network, mask: mask(8) })), None);
    }

    #[test]
    fn links_of_different_taps_differ() {
        let links: std::collections::HashSet<_> = (0..1000).map(|n| free_link(n, &[]).unwrap().guest).collect();
        assert_eq!(links.len(), 1000);
    }
}
