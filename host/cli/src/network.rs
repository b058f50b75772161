//! How a guest is reached: by what means this user has.

use crate::{
    args::Net,
    proxy::{Proxy, Settings},
    sys::Frames,
    tap::{Tap, TapError},
    usernet::{self, Usernet},
};
use anyhow::{Context, Result, anyhow};
use kayvee_link::{Link, Link6, VethPair};
use kayvee_platform::Addressing6;
use kayvee_xdp_socket::Attachment;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd, RawFd},
    os::unix::net::UnixStream,
};

/// A way to the guest.
pub enum Network {
    /// A tap in this host's network: the guest has an address here, and the proxy carries the port.
    Tap(Tap),
    /// A stack in this process, for which no rights are needed: the guest is reached by the port only.
    User,
    /// A link of its own, at whose other end the guest works an AF_XDP socket's rings itself: as with a tap, the guest has
    /// an address here.
    Direct(VethPair),
}

/// Where a guest is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The guest's address.
    pub guest: Ipv4Addr,
    /// The other end of its link.
    pub gateway: Ipv4Addr,
    /// Length of their common prefix.
    pub prefix_bits: u8,
    /// The same of IPv6, if the guest has that.
    pub ipv6: Option<Link6>,
}

/// What carries the port to the guest.
pub enum Carrier {
    /// Through the kernel.
    Proxy(Box<Proxy>),
    /// Through the stack in this process.
    Usernet(Box<Usernet>),
}

/// The guest's end of the network, for its monitor; a descriptor's disappears when its last copy is closed.
pub enum End {
    /// A tap device, and the Ethernet address of the guest's card.
    Tap(std::fs::File, [u8; 6]),
    /// A stream of frames, and the same.
    Stream(UnixStream, [u8; 6]),
    /// The other end of a link, in a network namespace of its own.
    Direct(VethPair),
    /// An interface of this host, which the monitor attaches to.
    Interface(Attachment),
}

impl Network {
    /// Opens a way to a guest, the best that `wanted` and this user's rights allow.
    pub fn open(wanted: &Net, frames: Frames) -> Result<Network> {
        if *wanted == Net::User {
            return Ok(Network::User);
        }
        match Tap::create(frames) {
            Ok(tap) => Ok(Network::Tap(tap)),
            Err(TapError::Failed(error)) => Err(error),
            Err(TapError::NotAllowed(_)) if *wanted == Net::Auto => Ok(Network::User),
            Err(TapError::NotAllowed(error)) => {
                let help = "run as root, or with --net user, which needs no rights";
                Err(anyhow!(error).context(format!("no right to make a tap device: {help}")))
            }
        }
    }

    /// Makes a link to a guest that works an AF_XDP socket, having seen that there can be one.
    pub fn direct() -> Result<Network> {
        let make = || {
            kayvee_xdp_socket::probe()?;
            VethPair::create(kayvee_xdp_socket::link_mtu()).context("making a link")
        };
        Ok(Network::Direct(make().map_err(with_advice)?))
    }

    /// Where the guest is in it.
    pub fn place(&self) -> Place {
        match self {
            Network::Tap(tap) => Place::on(tap.link),
            Network::Direct(pair) => Place::on(pair.link),
            Network::User => {
                Place { guest: usernet::GUEST, gateway: usernet::HOST, prefix_bits: usernet::PREFIX_BITS, ipv6: None }
            }
        }
    }

    /// The link on which this host reaches the guest by its addresses, if there is one.
    pub fn link(&self) -> Option<Link> {
        match self {
            Network::Tap(tap) => Some(tap.link),
            Network::Direct(pair) => Some(pair.link),
            Network::User => None,
        }
    }

    /// Name of the interface that leads there.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Network::Tap(tap) => Some(&tap.name),
            Network::Direct(pair) => Some(&pair.host_name),
            Network::User => None,
        }
    }

    /// Makes what carries the listeners' port to the guest, and QEMU's end of the network.
    pub fn carrier(self, listeners: Vec<TcpListener>, settings: Settings) -> Result<(Carrier, End)> {
        match self {
            Network::Tap(tap) => {
                let end = End::Tap(tap.end, tap.guest_mac);
                Ok((Carrier::Proxy(Box::new(Proxy::new(listeners, settings)?)), end))
            }
            Network::Direct(pair) => {
                Ok((Carrier::Proxy(Box::new(Proxy::new(listeners, settings)?)), End::Direct(pair)))
            }
            Network::User => {
                let (usernet, end) = Usernet::new(listeners, settings)?;
                Ok((Carrier::Usernet(Box::new(usernet)), End::Stream(end, usernet::GUEST_MAC)))
            }
        }
    }
}

/// Where a store on a link answers, for the user.
pub fn addresses(link: Link, port: u16) -> String {
    let ipv4 = SocketAddr::new(link.guest.into(), port);
    match link.ipv6 {
        Some(ipv6) => format!("{ipv4} and {}", SocketAddr::new(ipv6.guest.into(), port)),
        None => ipv4.to_string(),
    }
}

/// The machine words of the boot line that are about IPv6.
pub fn ipv6_words(addressing6: Addressing6) -> String {
    match addressing6 {
        Addressing6::Off => "ip6=off".into(),
        Addressing6::Auto => "ip6=auto".into(),
        Addressing6::Static { address, prefix_bits, gateway } => {
            let gateway = gateway.map(|gateway| format!(" gateway6={gateway}")).unwrap_or_default();
            format!("ip6={address}/{prefix_bits}{gateway}")
        }
    }
}

impl Place {
    /// At the other end of a link.
    fn on(link: Link) -> Place {
        let Link { host: gateway, guest, ipv6 } = link;
        Place { guest, gateway, prefix_bits: kayvee_link::PREFIX_BITS, ipv6 }
    }

    /// The machine words of the boot line.
    pub fn boot_words(&self) -> String {
        let ipv6 = self.ipv6.map_or(Addressing6::Off, |Link6 { host, guest }| Addressing6::Static {
            address: guest,
            prefix_bits: Link6::PREFIX_BITS,
            gateway: Some(host),
        });
        format!("ip={}/{} gateway={} {} peers=host", self.guest, self.prefix_bits, self.gateway, ipv6_words(ipv6))
    }
}

impl Carrier {
    /// Carries connections until the system fails it.
    pub fn run(self) -> io::Result<()> {
        match self {
            Carrier::Proxy(proxy) => proxy.run(),
            Carrier::Usernet(usernet) => usernet.run(),
        }
    }
}

impl End {
    /// The descriptor that the monitor inherits, if it does not open what it needs by itself.
    pub fn descriptor(&self) -> Option<RawFd> {
        match self {
            End::Tap(end, _) => Some(end.as_raw_fd()),
            End::Stream(end, _) => Some(end.as_raw_fd()),
            End::Direct(pair) => Some(pair.namespace.as_fd().as_raw_fd()),
            End::Interface(_) => None,
        }
    }

    /// QEMU's `-netdev` for it, and the Ethernet address of the guest's card.
    pub fn netdev(&self) -> (String, String) {
        match self {
            End::Tap(end, mac) => (format!("tap,id=n0,fd={},vhost=off", end.as_raw_fd()), mac_text(*mac)),
            End::Stream(end, mac) => (format!("socket,id=n0,fd={}", end.as_raw_fd()), mac_text(*mac)),
            End::Direct(_) | End::Interface(_) => unreachable!("only this program's monitor is given such a network"),
        }
    }
}

/// An Ethernet address as it is written.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Says what to do about an AF_XDP socket that this user may not have.
pub fn with_advice(error: anyhow::Error) -> anyhow::Error {
    if kayvee_xdp_socket::is_not_allowed(&error) {
        error.context("no right to an AF_XDP socket: run as root, or without --net xdp")
    } else {
        error
    }
}
