//! Subnets of two addresses that nothing on this host uses.

use anyhow::{Context, Result, anyhow};
use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    net::{Ipv4Addr, Ipv6Addr},
};

/// Private networks (RFC 1918) whose /30 subnets are handed out; a subnet that the host has a route to is left alone,
/// and its counterpart in the next network taken.
const NETWORKS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(172, 30, 0, 0), Ipv4Addr::new(10, 213, 0, 0), Ipv4Addr::new(10, 87, 0, 0)];
const NETWORK_BITS: u32 = 16;
/// Length of a link's prefix.
pub const PREFIX_BITS: u8 = 30;
const SUBNET_BITS: u32 = PREFIX_BITS as u32;
const SUBNETS_PER_NETWORK: u32 = 1 << (SUBNET_BITS - NETWORK_BITS);

/// The two ends' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// This side.
    pub host: Ipv4Addr,
    /// The store's side.
    pub guest: Ipv4Addr,
    /// The same of IPv6, where this host has that.
    pub ipv6: Option<Link6>,
}

/// The two ends' IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link6 {
    /// This side.
    pub host: Ipv6Addr,
    /// The store's side.
    pub guest: Ipv6Addr,
}

impl Link6 {
    /// Length of a link's prefix.
    pub const PREFIX_BITS: u8 = 64;

    /// A unique local prefix (RFC 4193 §3.2): the same for a link of this number each time, and one that other hosts hardly
    /// have.
    pub fn new(number: u32) -> Link6 {
        // It is secret, and no more than a hash of it may be seen (machine-id(5)).
        Link6::of_machine(&fs::read("/etc/machine-id").unwrap_or_default(), number)
    }

    fn of_machine(machine: &[u8], number: u32) -> Link6 {
        let mut hasher = DefaultHasher::new();
        hasher.write(b"kayvee");
        hasher.write(machine);
        let global_id = u128::from(hasher.finish() >> 24);
        let prefix = 0xfd << 120 | global_id << 80 | u128::from(number & 0xffff) << 64;
        Link6 { host: Ipv6Addr::from_bits(prefix | 1), guest: Ipv6Addr::from_bits(prefix | 2) }
    }
}

impl Link {
    /// The network's mask.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(mask(SUBNET_BITS))
    }
}

/// A subnet for the interface of this number that this host has no route to.
pub fn free_link(number: u32) -> Result<Link> {
    let routes = fs::read_to_string("/proc/thread-self/net/route").context("reading the routes of this host")?;
    choose(number, &parse_routes(&routes)).ok_or_else(|| {
        anyhow!("this host has routes to every network that a guest could use: {NETWORKS:?} with {NETWORK_BITS} bits")
    })
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

fn choose(number: u32, routes: &[Route]) -> Option<Link> {
    let offset = (number % SUBNETS_PER_NETWORK) << (32 - SUBNET_BITS);
    let subnet = NETWORKS.iter().map(|network| network.to_bits() + offset).find(|subnet| {
        // Two prefixes overlap where they agree in all the bits that both have.
        !routes.iter().any(|route| (subnet ^ route.network) & route.mask & mask(SUBNET_BITS) == 0)
    })?;
    Some(Link { host: Ipv4Addr::from_bits(subnet + 1), guest: Ipv4Addr::from_bits(subnet + 2), ipv6: None })
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
        let first = choose(0, &[]).unwrap();
        assert_eq!((first.host, first.guest), (Ipv4Addr::new(172, 30, 0, 1), Ipv4Addr::new(172, 30, 0, 2)));
        let own = Route { network: first.host.to_bits() & mask(30), mask: mask(30) };
        assert_eq!(choose(0, &[own]).unwrap().guest, Ipv4Addr::new(10, 213, 0, 2));
        assert_eq!(choose(1, &[own]).unwrap().guest, Ipv4Addr::new(172, 30, 0, 6));
        let wide = [[172, 16, 0, 0], [10, 0, 0, 0]].map(|ip| Ipv4Addr::from(ip).to_bits());
        assert_eq!(choose(7, &[Route { network: wide[0], mask: mask(12) }]).unwrap().guest.octets()[..2], [10, 213]);
        assert_eq!(choose(7, &wide.map(|network| Route { network, mask: mask(8) })), None);
    }

    #[test]
    fn prefixes_are_local_and_each_link_s_own() {
        let [first, again, second, elsewhere] =
            [(b"a", 0), (b"a", 0), (b"a", 1), (b"b", 0)].map(|(machine, number)| Link6::of_machine(machine, number));
        assert_eq!(first, again);
        let prefix = |link: Link6| (link.host.to_bits() >> 64, link.guest.to_bits() >> 64);
        assert_eq!(prefix(first).0, prefix(first).1);
        assert!(prefix(first) != prefix(second) && prefix(first) != prefix(elsewhere));
        assert!(first.guest.is_unique_local() && first.guest.octets()[0] == 0xfd);
    }

    #[test]
    fn links_of_different_taps_differ() {
        let links: std::collections::HashSet<_> = (0..1000).map(|n| choose(n, &[]).unwrap().guest).collect();
        assert_eq!(links.len(), 1000);
    }
}
