//! What a store's network is attached to, as users and the processes of one run name it.

use crate::{
    FrameMemory, Socket, Steering, link_mtu,
    socket::{ETHERNET_HEADER_BYTES, shown},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use kayvee_link::{Link6, Namespace, PREFIX_BITS, VethPair};
use kayvee_platform::{Addressing, Addressing6, MIN_FRAME_BYTES};
use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    sys::socket::SockaddrStorage,
};
use std::{
    fmt,
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
};

/// How users write it, for messages.
pub const USAGE: &str =
    "xdp, or xdp:INTERFACE[,ip=ADDRESS/BITS[,gateway=ADDRESS][,ip6=ADDRESS/BITS[,gateway6=ADDRESS]]]";

/// What to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// A link to this host that is made for the store.
    Own,
    /// An interface that is there.
    Interface {
        /// Its name.
        name: String,
        /// The descriptor of its network namespace, if that is not the one of this process: the store's end of a link that
        /// another process has made.
        namespace: Option<RawFd>,
        /// The store's address; without one, DHCP says.
        address: Option<(Ipv4Addr, u8)>,
        /// The router.
        gateway: Option<Ipv4Addr>,
        /// The store's IPv6 addresses.
        addressing6: Addressing6,
    },
}

/// A socket where an attachment has led.
#[derive(Debug)]
pub struct Place {
    /// The socket.
    pub socket: Socket,
    /// Where the store's address comes from.
    pub addressing: Addressing,
    /// Where its IPv6 addresses come from.
    pub addressing6: Addressing6,
    /// Whether the network was made for the store, so that who reaches it was meant to.
    pub is_own: bool,
    /// What it is attached to, in words for the user.
    pub name: String,
}

impl Attachment {
    /// The store's end of a link, for a process that inherits its namespace under the same number.
    pub fn to_pair(pair: &VethPair) -> Attachment {
        Attachment::Interface {
            name: VethPair::INNER_NAME.into(),
            namespace: Some(pair.namespace.as_fd().as_raw_fd()),
            address: Some((pair.link.guest, PREFIX_BITS)),
            gateway: Some(pair.link.host),
            addressing6: pair.link.ipv6.map_or(Addressing6::Off, |Link6 { host, guest }| Addressing6::Static {
                address: guest,
                prefix_bits: Link6::PREFIX_BITS,
                gateway: Some(host),
            }),
        }
    }

    /// Reads what [`Display`](fmt::Display) writes. The error is for the user.
    pub fn parse(text: &str) -> Result<Attachment> {
        let usage = || anyhow!("'{text}' is no network to attach to; write {USAGE}");
        let Some(rest) = text.strip_prefix("xdp:") else {
            return if text == "xdp" { Ok(Attachment::Own) } else { Err(usage()) };
        };
        let mut words = rest.split(',');
        let name = words.next().filter(|name| !name.is_empty()).ok_or_else(usage)?.to_string();
        let (mut namespace, mut address, mut gateway) = (None, None, None);
        let (mut addressing6, mut gateway6) = (Addressing6::Off, None);
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(usage)?;
            match key {
                "ip" => address = Some(parse_address(value).ok_or_else(usage)?),
                "gateway" => gateway = Some(value.parse().map_err(|_| usage())?),
                "ip6" => addressing6 = Addressing6::parse(value).ok_or_else(usage)?,
                "gateway6" => gateway6 = Some(value.parse().map_err(|_| usage())?),
                "namespace" => namespace = Some(value.parse().map_err(|_| usage())?),
                _ => return Err(usage()),
            }
        }
        ensure!(gateway.is_none() || address.is_some(), "'{text}': a gateway needs an address: write {USAGE}");
        if let Addressing6::Static { gateway, .. } = &mut addressing6 {
            *gateway = gateway6;
        } else {
            ensure!(gateway6.is_none(), "'{text}': a gateway needs an address: write {USAGE}");
        }
        Ok(Attachment::Interface { name, namespace, address, gateway, addressing6 })
    }

    /// Opens a socket there, for frames in `frames`.
    pub fn open(&self, frames: &FrameMemory) -> Result<Place> {
        match self {
            Attachment::Own => {
                let pair = VethPair::create(link_mtu())?;
                // The socket holds the namespace from now on.
                let place = Attachment::to_pair(&pair).open(frames)?;
                Ok(Place { name: format!("{}, a link of its own", pair.host_name), ..place })
            }
            Attachment::Interface { name, namespace, address, gateway, addressing6 } => {
                let addressing = match *address {
                    Some((address, prefix_bits)) => Addressing::Static { address, prefix_bits, gateway: *gateway },
                    None => Addressing::Dhcp,
                };
                let (name, is_own, addressing6) = (name.clone(), namespace.is_some(), *addressing6);
                let socket = match namespace {
                    Some(descriptor) => {
                        let path = format!("/proc/self/fd/{descriptor}");
                        let file = File::open(path).context("the network namespace that was to be inherited")?;
                        Namespace::from(OwnedFd::from(file)).enter(|| Socket::open(&name, Steering::All, frames))?
                    }
                    // A bridge would hand over what its ports have put together to more than a frame, which is lost.
                    None if kayvee_link::is_bridge(&name).with_context(|| format!("network interface '{name}'"))? => {
                        check_addresses(&name, *address, addressing6, &addresses_of_host()?)?;
                        let port = kayvee_link::create_port(&name)?;
                        port.enter(|| Socket::open(VethPair::INNER_NAME, Steering::All, frames))?
                    }
                    None => {
                        let mut socket = Socket::open(&name, steering(&name, *address, addressing6)?, frames)?;
                        if addressing6 != Addressing6::Off {
                            socket.hear_groups(&name)?;
                        }
                        socket
                    }
                };
                need_room_for_packets(&name, socket.max_frame_bytes, addressing6)?;
                Ok(Place { socket, addressing, addressing6, is_own, name })
            }
        }
    }
}

/// Refuses an interface whose frames are too small for the protocols that are spoken on it.
fn need_room_for_packets(name: &str, max_frame_bytes: u32, addressing6: Addressing6) -> Result<()> {
    /// What every link of IPv6 carries (RFC 8200 §5).
    const IPV6_MTU: u32 = 1280;
    let mtu = max_frame_bytes - ETHERNET_HEADER_BYTES;
    let least = if addressing6 == Addressing6::Off { MIN_FRAME_BYTES as u32 - ETHERNET_HEADER_BYTES } else { IPV6_MTU };
    ensure!(mtu >= least, "the MTU of '{name}' is {mtu}: the store needs {least} there");
    Ok(())
}

/// An address of this host's.
struct Own {
    interface: String,
    address: IpAddr,
    /// That of everybody on its network.
    broadcast: Option<IpAddr>,
}

fn addresses_of_host() -> Result<Vec<Own>> {
    let ip = |address: SockaddrStorage| {
        let ipv4 = address.as_sockaddr_in().map(|ipv4| ipv4.ip().into());
        ipv4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
    };
    let own = |found: InterfaceAddress| {
        let broadcast = found.broadcast.and_then(ip);
        Some(Own { interface: found.interface_name, address: found.address.and_then(ip)?, broadcast })
    };
    Ok(getifaddrs().context("reading the addresses of this host")?.filter_map(own).collect())
}

/// Which frames of an interface of this host's are the store's.
fn steering(interface: &str, address: Option<(Ipv4Addr, u8)>, addressing6: Addressing6) -> Result<Steering> {
    let of_host = addresses_of_host()?;
    check_addresses(interface, address, addressing6, &of_host)?;
    match address {
        Some(_) if addressing6 == Addressing6::Auto => {
            bail!("what routers announce on '{interface}' is this host's; give the store an address: ip6=ADDRESS/BITS")
        }
        Some((address, _)) => Ok(Steering::Addresses(address, static6(addressing6).map(|(ipv6, _)| ipv6))),
        None => {
            let here = of_host.iter().filter(|own| own.interface == interface).map(|own| own.address);
            match used_as(&here.collect::<Vec<_>>(), &shown(interface)) {
                Some(use_of_host) => bail!(
                    "this host {use_of_host} '{interface}'; give the store an address of its own there: \
                     --net xdp:{interface},ip=ADDRESS/BITS"
                ),
                None => Ok(Steering::All),
            }
        }
    }
}

fn static6(addressing6: Addressing6) -> Option<(Ipv6Addr, u8)> {
    match addressing6 {
        Addressing6::Static { address, prefix_bits, .. } => Some((address, prefix_bits)),
        Addressing6::Off | Addressing6::Auto => None,
    }
}

/// Refuses addresses that the store cannot have.
fn check_addresses(
    interface: &str,
    address: Option<(Ipv4Addr, u8)>,
    addressing6: Addressing6,
    of_host: &[Own],
) -> Result<()> {
    let ipv6 = static6(addressing6).map(|(ip, bits)| (ip.into(), bits));
    for (address, prefix_bits) in address.map(|(ip, bits)| (ip.into(), bits)).into_iter().chain(ipv6) {
        if let Some(why) = unusable(address, prefix_bits, of_host) {
            bail!("{address} is {why}; give the store another one on '{interface}'");
        }
    }
    Ok(())
}

/// Why a store cannot have an address, if it cannot.
fn unusable(address: IpAddr, prefix_bits: u8, of_host: &[Own]) -> Option<String> {
    if let Some(own) = of_host.iter().find(|own| own.address == address) {
        return Some(format!("this host's own address on '{}'", own.interface));
    }
    if let Some(own) = of_host.iter().find(|own| own.broadcast == Some(address)) {
        return Some(format!("the address of all on the network of '{}'", own.interface));
    }
    if address.is_loopback() {
        return Some("an address for within a host".into());
    }
    if address.is_unspecified() || address.is_multicast() {
        return Some("no single station's address".into());
    }
    let IpAddr::V4(ipv4) = address else { return None };
    // The first and the last address of a network are no station's, but for networks of two and of one (RFC 3021).
    let host_bits = u32::MAX.checked_shr(prefix_bits.into()).unwrap_or(0);
    let host = ipv4.to_bits() & host_bits;
    let is_of_all = ipv4.is_broadcast() || host_bits > 1 && (host == 0 || host == host_bits);
    is_of_all.then(|| format!("the address of a network of {prefix_bits} bits, or of all in it"))
}

/// What this host needs an interface for, if it does: it has these addresses there, and `shown` is what sysfs tells.
fn used_as(of_host: &[IpAddr], shown: &Path) -> Option<String> {
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(ipv6) if ipv6.is_unicast_link_local());
    if let Some(first) = of_host.iter().find(|address| !is_link_local(address)) {
        return Some(format!("has the address {first} on"));
    }
    // A bridge or bond that it is part of, or what stands on it: a VLAN's interface, a macvlan.
    let mut links = fs::read_dir(shown).into_iter().flatten();
    let other = links.find_map(|link| Some(link.ok()?.file_name().to_str()?.strip_prefix("upper_")?.to_string()))?;
    Some(format!("has '{other}' on top of"))
}

fn parse_address(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, bits) = text.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok().filter(|bits| *bits <= 32)?))
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attachment::Interface { name, namespace, address, gateway, addressing6 } = self else {
            return f.write_str("xdp");
        };
        write!(f, "xdp:{name}")?;
        if let Some((address, bits)) = address {
            write!(f, ",ip={address}/{bits}")?;
        }
        if let Some(gateway) = gateway {
            write!(f, ",gateway={gateway}")?;
        }
        match addressing6 {
            Addressing6::Off => {}
            Addressing6::Auto => f.write_str(",ip6=auto")?,
            Addressing6::Static { address, prefix_bits, gateway } => {
                write!(f, ",ip6={address}/{prefix_bits}")?;
                if let Some(gateway) = gateway {
                    write!(f, ",gateway6={gateway}")?;
                }
            }
        }
        namespace.map_or(Ok(()), |descriptor| write!(f, ",namespace={descriptor}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FRAMES_BYTES;
    use kayvee_link::Watch;
    use std::{
        env,
        net::UdpSocket,
        process::{self, Command},
        time::{Duration, Instant},
    };

    #[test]
    fn packets_have_room_on_the_interface() {
        let is_refused = |mtu: u32, addressing6| need_room_for_packets("eth0", mtu + 14, addressing6).is_err();
        assert_eq!([575, 576].map(|mtu| is_refused(mtu, Addressing6::Off)), [true, false]);
        assert_eq!([1279, 1280].map(|mtu| is_refused(mtu, Addressing6::Auto)), [true, false]);
    }

    #[test]
    fn an_interface_that_the_host_uses_is_not_the_store_s_alone() {
        let folder = env::temp_dir().join(format!("kayvee-shown-{}", process::id()));
        fs::create_dir_all(folder.join("queues")).unwrap();
        let link_local: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(used_as(&[], &folder), None);
        assert_eq!(used_as(&[link_local], &folder), None);
        for address in ["192.0.2.1", "169.254.1.1", "2001:db8::1", "fd00::1"] {
            let addresses = [link_local, address.parse().unwrap()];
            assert_eq!(used_as(&addresses, &folder).unwrap(), format!("has the address {address} on"));
        }
        // A macvlan or VLAN itself stands on another one.
        fs::create_dir(folder.join("lower_eth0")).unwrap();
        assert_eq!(used_as(&[], &folder), None);
        fs::create_dir(folder.join("upper_br0")).unwrap();
        assert_eq!(used_as(&[], &folder).unwrap(), "has 'br0' on top of");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn addresses_that_are_no_single_station_s_or_the_host_s_are_refused() {
        let own = |interface: &str, address: &str, broadcast: Option<&str>| Own {
            interface: interface.into(),
            address: address.parse().unwrap(),
            broadcast: broadcast.map(|broadcast| broadcast.parse().unwrap()),
        };
        let of_host = [
            own("lo", "127.0.0.1", None),
            own("eth0", "10.99.1.1", Some("10.99.1.255")),
            own("eth1", "2001:db8::1", None),
        ];
        let why = |address: &str, bits| unusable(address.parse().unwrap(), bits, &of_host);
        for (address, bits, words) in [
            ("10.99.1.1", 24, "this host's own address on 'eth0'"),
            ("2001:db8::1", 64, "this host's own address on 'eth1'"),
            ("10.99.1.255", 24, "all on the network of 'eth0'"),
            ("10.99.1.255", 16, "all on the network of 'eth0'"),
            ("127.0.0.1", 8, "'lo'"),
            ("127.0.0.2", 8, "within a host"),
            ("::1", 64, "within a host"),
            ("0.0.0.0", 0, "no single station's"),
            ("239.1.2.3", 24, "no single station's"),
            ("ff02::1", 64, "no single station's"),
            ("192.0.2.0", 24, "of a network of 24 bits"),
            ("192.0.2.127", 25, "of a network of 25 bits"),
            ("192.0.2.3", 30, "of a network of 30 bits"),
            ("255.255.255.255", 32, "of all in it"),
        ] {
            assert!(why(address, bits).is_some_and(|why| why.contains(words)), "{address}/{bits}: {words}");
        }
        for (address, bits) in
            [("10.99.1.2", 24), ("10.99.2.255", 16), ("192.0.2.0", 31), ("192.0.2.255", 32), ("2001:db8::2", 64)]
        {
            assert_eq!(why(address, bits), None, "{address}/{bits}");
        }
    }

    fn ip(words: &str) {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
    }

    /// A macvlan drops frames for groups that nobody has told it of, as cards do.
    #[test]
    #[ignore = "needs root: ./kayvee test"]
    fn questions_to_groups_arrive_where_a_card_drops_others() {
        const GROUPS: u8 = 24;
        let inside = || {
            for words in [
                "link add lower type veth peer name wire",
                "link add link lower name card type macvlan mode bridge",
                "link set lower up",
                "link set wire up",
                "link set card up",
            ] {
                ip(words);
            }
            let host = Ipv4Addr::new(192, 0, 2, 1);
            kayvee_link::bring_up("wire", host, Ipv4Addr::new(255, 255, 255, 0))?;
            let sender = UdpSocket::bind((host, 0))?;
            sender.set_broadcast(true)?;
            let frames = FrameMemory::allocate(FRAMES_BYTES)?;
            for (text, hears) in
                [("xdp:card,ip=192.0.2.7/24,ip6=fd00::7/64", true), ("xdp:card,ip=192.0.2.7/24", false)]
            {
                let place = Attachment::parse(text)?.open(&frames)?;
                let mut watch = Watch::open("card")?;
                for last in 0..GROUPS {
                    sender.send_to(b"", (Ipv4Addr::new(239, 1, 2, last), 9))?;
                }
                sender.send_to(b"", (Ipv4Addr::new(192, 0, 2, 255), 9))?;
                // Some may come anyway, as a macvlan knows groups by a hash of eight bits. The last frame is for all.
                assert_eq!(groups_before_broadcast(&mut watch)? == usize::from(GROUPS), hears, "{text}");
                drop(place);
            }
            Ok(())
        };
        Namespace::create().unwrap().enter(inside).unwrap();
    }

    /// A bridge that the host has an address on gets a port, for as long as the socket is open.
    #[test]
    #[ignore = "needs root: ./kayvee test"]
    fn a_bridge_gets_a_port() {
        let inside = || {
            for words in ["link add bridge type bridge", "address add 192.0.2.1/24 dev bridge", "link set bridge up"] {
                ip(words);
            }
            let ports = || {
                let shown = Command::new("ip").args(["-o", "link", "show", "master", "bridge"]).output().unwrap();
                String::from_utf8(shown.stdout).unwrap().lines().filter(|line| line.contains("LOWER_UP")).count()
            };
            let memories = [FrameMemory::allocate(FRAMES_BYTES)?, FrameMemory::allocate(FRAMES_BYTES)?];
            let [first, second] = ["xdp:bridge,ip=192.0.2.7/24", "xdp:bridge"];
            let places =
                [Attachment::parse(first)?.open(&memories[0])?, Attachment::parse(second)?.open(&memories[1])?];
            assert!(places[0].socket.mac != places[1].socket.mac);
            assert!(
                places
                    .iter()
                    .all(|place| !place.is_own && place.socket.checksums == kayvee_platform::Checksums::Partial)
            );
            assert!(Attachment::parse("xdp:bridge,ip=192.0.2.1/24")?.open(&memories[1]).is_err(), "the host's own");
            assert_eq!(ports(), 2);
            drop(places);
            // The kernel takes namespaces apart in its own time.
            let deadline = Instant::now() + Duration::from_secs(30);
            while ports() > 0 {
                ensure!(Instant::now() < deadline, "the ports stay");
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        };
        Namespace::create().unwrap().enter(inside).unwrap();
    }

    /// How many datagrams to groups pass before one to all.
    fn groups_before_broadcast(watch: &mut Watch) -> Result<usize> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut count = 0;
        loop {
            match watch.take()?.and_then(|seen| seen.frame.get(30..34).map(Vec::from)).as_deref() {
                Some([239, 1, 2, _]) => count += 1,
                Some([192, 0, 2, 255]) => return Ok(count),
                _ => ensure!(Instant::now() < deadline, "no broadcast came"),
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "xdp",
            "xdp:eth0",
            "xdp:eth0,ip=192.0.2.7/24",
            "xdp:a,ip=192.0.2.7/24,gateway=192.0.2.1,namespace=7",
            "xdp:a,ip6=auto",
            "xdp:a,ip=192.0.2.7/24,ip6=2001:db8::7/64,gateway6=fe80::1,namespace=7",
        ] {
            assert_eq!(Attachment::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "tap", "xdp:", "xdp:,ip=1.2.3.4/8", "xdp:e,ip=1.2.3.4", "xdp:e,ip=1.2.3.4/33", "xdp:e,x=1"] {
            assert!(Attachment::parse(text).is_err(), "{text}");
        }
        for text in ["xdp:e,gateway=1.2.3.4", "xdp:e,gateway6=fe80::1", "xdp:e,ip6=auto,gateway6=fe80::1"] {
            assert!(Attachment::parse(text).is_err(), "{text}: a router without an address");
        }
    }
}
