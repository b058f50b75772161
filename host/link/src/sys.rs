//! Requests about interfaces that no crate here wraps safely. All `unsafe` of this crate is in this file.

use nix::{errno::Errno, libc, net::if_::if_nametoindex};
use std::{
    io,
    mem::zeroed,
    net::{Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
};

/// Gives an interface its IPv4 address and mask and switches it on.
pub fn bring_up(name: &str, address: Ipv4Addr, mask: Ipv4Addr) -> io::Result<()> {
    let socket = datagram_socket()?;
    let mut request = interface_request(name)?;
    for (operation, ip) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
        request.ifr_ifru.ifru_addr = socket_address(ip);
        // SAFETY: both operations read one `ifreq` with `ifru_addr` set, which `request` is.
        Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), operation as _, &request) })?;
    }
    switch_on(name)
}

/// Gives an interface an IPv6 address.
pub fn add_address6(name: &str, address: Ipv6Addr, prefix_bits: u8) -> io::Result<()> {
    let request = libc::in6_ifreq {
        ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
        ifr6_prefixlen: prefix_bits.into(),
        ifr6_ifindex: if_nametoindex(name)? as i32,
    };
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None)?;
    // SAFETY: for a socket of this family the operation reads one `in6_ifreq`, which `request` is.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR as _, &request) })?;
    Ok(())
}

/// The number of this thread's network namespace, which no other one has (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn namespace_cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let (socket, mut cookie) = (datagram_socket()?, 0u64);
    let mut len = size_of_val(&cookie) as libc::socklen_t;
    let place = (&raw mut cookie).cast();
    // SAFETY: the option writes up to `len` bytes to `place`, where there are as many, and what it wrote to `len`.
    Errno::result(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, place, &raw mut len)
    })?;
    Ok(cookie)
}

/// Switches an interface on.
pub fn switch_on(name: &str) -> io::Result<()> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the operation reads one `ifreq` with `ifru_flags` set, which `request` is.
    Errno::result(unsafe { libc::ioctl(datagram_socket()?.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) })?;
    Ok(())
}

/// The Ethernet address of an interface.
pub fn hardware_address(name: &str) -> io::Result<[u8; 6]> {
    let mut request = interface_request(name)?;
    // SAFETY: the operation reads and writes one `ifreq`, which `request` is.
    Errno::result(unsafe { libc::ioctl(datagram_socket()?.as_raw_fd(), libc::SIOCGIFHWADDR as _, &mut request) })?;
    // SAFETY: the operation has set `ifru_hwaddr`.
    let bytes = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|index| bytes[index] as u8))
}

/// The largest packet of an interface.
pub fn mtu(name: &str) -> io::Result<u32> {
    let mut request = interface_request(name)?;
    // SAFETY: the operation reads and writes one `ifreq`, which `request` is.
    Errno::result(unsafe { libc::ioctl(datagram_socket()?.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) })?;
    // SAFETY: the operation has set `ifru_mtu`.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// Sets it.
pub fn set_mtu(name: &str, bytes: u32) -> io::Result<()> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_mtu = bytes as libc::c_int;
    // SAFETY: the operation reads one `ifreq` with `ifru_mtu` set, which `request` is.
    Errno::result(unsafe { libc::ioctl(datagram_socket()?.as_raw_fd(), libc::SIOCSIFMTU as _, &request) })?;
    Ok(())
}

/// Whether an interface is a bridge, as its driver calls itself. sysfs shows nothing of other network namespaces.
pub fn is_bridge(interface: &str) -> io::Result<bool> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    /// As `struct ethtool_drvinfo` of linux/ethtool.h.
    #[repr(C)]
    struct Driver {
        command: u32,
        name: [u8; 32],
        rest: [u32; 40],
    }
    let mut driver = Driver { command: ETHTOOL_GDRVINFO, name: [0; 32], rest: [0; 40] };
    let mut request = interface_request(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut driver).cast();
    // SAFETY: the operation reads one `ifreq` with `ifru_data` set, which `request` is, and the command there writes 196 bytes
    // behind it, as many as `driver` has.
    match Errno::result(unsafe { libc::ioctl(datagram_socket()?.as_raw_fd(), libc::SIOCETHTOOL as _, &request) }) {
        Ok(_) => Ok(driver.name.starts_with(b"bridge\0")),
        // It says nothing of itself, as a bridge does.
        Err(Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes an interface a port of a bridge.
pub fn add_port(bridge: &str, port: &str) -> io::Result<()> {
    const SIOCBRADDIF: libc::c_ulong = 0x89a2;
    let mut request = interface_request(bridge)?;
    request.ifr_ifru.ifru_ifindex = if_nametoindex(port)? as libc::c_int;
    // SAFETY: the operation reads one `ifreq` with `ifru_ifindex` set, which `request` is.
    Errno::result(unsafe { libc::ioctl(datagram_socket()?.as_raw_fd(), SIOCBRADDIF as _, &request) })?;
    Ok(())
}

/// Sets how many packets may wait on an interface to be sent.
pub fn set_queue_len(interface: &str, packets: u16) -> io::Result<()> {
    let socket = datagram_socket()?;
    let mut request = interface_request(interface)?;
    // `ifr_qlen` of netdevice(7) is the same integer.
    request.ifr_ifru.ifru_metric = packets.into();
    // SAFETY: the operation reads one `ifreq` with that integer set, which `request` is.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFTXQLEN as _, &request) })?;
    Ok(())
}

/// Enters a neighbour's Ethernet address for good, so that the first packet to it waits for no ARP exchange.
pub fn add_neighbour(interface: &str, address: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
    let socket = datagram_socket()?;
    // SAFETY: `arpreq` is plain data, for which all zeros is a value.
    let mut request: libc::arpreq = unsafe { zeroed() };
    request.arp_pa = socket_address(address);
    request.arp_ha.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in request.arp_ha.sa_data.iter_mut().zip(mac) {
        *to = from as _;
    }
    request.arp_flags = libc::ATF_PERM | libc::ATF_COM;
    for (to, from) in request.arp_dev.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as _;
    }
    // SAFETY: the operation reads one `arpreq`, which `request` is.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSARP as _, &request) })?;
    Ok(())
}

/// Has an interface take the frames of all groups until what is returned is closed. No frame comes to this socket itself.
pub fn hear_groups(interface: &str) -> io::Result<OwnedFd> {
    let socket = socket2::Socket::new(socket2::Domain::PACKET, socket2::Type::RAW, None)?;
    // SAFETY: `packet_mreq` is plain data, for which all zeros is a value.
    let mut membership: libc::packet_mreq = unsafe { zeroed() };
    membership.mr_ifindex = if_nametoindex(interface)? as _;
    membership.mr_type = libc::PACKET_MR_ALLMULTI as _;
    let value: *const libc::packet_mreq = &membership;
    let len = size_of_val(&membership) as _;
    // SAFETY: the option is read from one `packet_mreq`, which `value` points to.
    Errno::result(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, value.cast(), len)
    })?;
    Ok(socket.into())
}

fn datagram_socket() -> io::Result<socket2::Socket> {
    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)
}

/// A request about the interface of this name; an empty one has the kernel choose.
pub fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `ifreq` is plain data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as _;
    }
    Ok(request)
}

fn socket_address(ip: Ipv4Addr) -> libc::sockaddr {
    // `sockaddr_in` behind its family: two bytes of port, then the address in network order.
    let mut data = [0; 14];
    for (to, from) in data[2..].iter_mut().zip(ip.octets()) {
        *to = from as _;
    }
    libc::sockaddr { sa_family: libc::AF_INET as _, sa_data: data }
}

/// A socket that is given a copy of every frame that passes an interface, in either direction, behind a `virtio_net_hdr`. What
/// nobody has read yet takes at most `buffer_bytes`; beyond that it misses frames.
pub fn packet_socket(interface: &str, buffer_bytes: libc::c_int) -> io::Result<socket2::Socket> {
    // No protocol yet, or it would begin with the frames of all interfaces.
    let socket = socket2::Socket::new(socket2::Domain::PACKET, socket2::Type::RAW, None)?;
    let options = [
        (libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1),
        // The limit for those without rights is too small for a burst.
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer_bytes),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1),
    ];
    for (level, name, value) in options {
        let value: *const libc::c_int = &value;
        // SAFETY: these options are read from one `int`, which `value` points to.
        Errno::result(unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, name, value.cast(), size_of::<libc::c_int>() as _)
        })?;
    }
    // SAFETY: `sockaddr_ll` is plain data, for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as _;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = if_nametoindex(interface)? as _;
    let address: *const libc::sockaddr_ll = &address;
    // SAFETY: `address` points to as many bytes of an address of this socket's family as are named.
    Errno::result(unsafe { libc::bind(socket.as_raw_fd(), address.cast(), size_of::<libc::sockaddr_ll>() as _) })?;
    Ok(socket)
}

/// How many frames a packet socket has missed since the last time this was asked.
pub fn missed_packets(socket: &socket2::Socket) -> io::Result<u32> {
    // SAFETY: `tpacket_stats` is plain data, for which all zeros is a value.
    let mut figures: libc::tpacket_stats = unsafe { zeroed() };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let place: *mut libc::tpacket_stats = &mut figures;
    // SAFETY: the option is written to at most `len` bytes, which is what `place` points to.
    Errno::result(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, place.cast(), &mut len)
    })?;
    Ok(figures.tp_drops)
}
