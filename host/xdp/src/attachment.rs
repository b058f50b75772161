//! What a store's network is attached to, as users and the processes of one run name it.

use crate::{FrameMemory, Socket, Steering};
use anyhow::{Context, Result, anyhow, bail, ensure};
use kayvee_link::{Namespace, PREFIX_BITS, VethPair};
use kayvee_platform::Addressing;
use nix::ifaddrs::getifaddrs;
use std::{
    fmt,
    fs::File,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

/// How users write it, for messages.
pub const USAGE: &str = "xdp, or xdp:INTERFACE[,ip=ADDRESS/BITS[,gateway=ADDRESS]]";

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
    },
}

/// A socket where an attachment has led.
#[derive(Debug)]
pub struct Place {
    /// The socket.
    pub socket: Socket,
    /// Where the store's address comes from.
    pub addressing: Addressing,
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
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(usage)?;
            match key {
                "ip" => address = Some(parse_address(value).ok_or_else(usage)?),
                "gateway" => gateway = Some(value.parse().map_err(|_| usage())?),
                "namespace" => namespace = Some(value.parse().map_err(|_| usage())?),
                _ => return Err(usage()),
            }
        }
        ensure!(gateway.is_none() || address.is_some(), "'{text}': a gateway needs an address: write {USAGE}");
        Ok(Attachment::Interface { name, namespace, address, gateway })
    }

    /// Opens a socket there, for frames in `frames`.
    pub fn open(&self, frames: &FrameMemory) -> Result<Place> {
        match self {
            Attachment::Own => {
                let pair = VethPair::create()?;
                // The socket holds the namespace from now on.
                let place = Attachment::to_pair(&pair).open(frames)?;
                Ok(Place { name: format!("{}, a link of its own", pair.host_name), ..place })
            }
            Attachment::Interface { name, namespace, address, gateway } => {
                let addressing = match *address {
                    Some((address, prefix_bits)) => Addressing::Static { address, prefix_bits, gateway: *gateway },
                    None => Addressing::Dhcp,
                };
                let (name, is_own) = (name.clone(), namespace.is_some());
                let socket = match namespace {
                    Some(descriptor) => {
                        let path = format!("/proc/self/fd/{descriptor}");
                        let file = File::open(path).context("the network namespace that was to be inherited")?;
                        Namespace::from(OwnedFd::from(file)).enter(|| Socket::open(&name, Steering::All, frames))?
                    }
                    None => Socket::open(&name, steering(&name, *address)?, frames)?,
                };
                Ok(Place { socket, addressing, is_own, name })
            }
        }
    }
}

/// Which frames of an interface of this host's are the store's.
fn steering(interface: &str, address: Option<(Ipv4Addr, u8)>) -> Result<Steering> {
    let addresses = getifaddrs().context("reading the addresses of this host")?;
    let of_host: Vec<Ipv4Addr> = addresses
        .filter(|found| found.interface_name == interface)
        .filter_map(|found| Some(found.address?.as_sockaddr_in()?.ip()))
        .collect();
    match address {
        Some((address, _)) if of_host.contains(&address) => {
            bail!("{address} is this host's own address on '{interface}'; give the store another one")
        }
        Some((address, _)) => Ok(Steering::Address(address)),
        None => match of_host.first() {
            Some(first) => bail!(
                "this host has the address {first} on '{interface}'; give the store one of its own there: \
                 --net xdp:{interface},ip=ADDRESS/BITS"
            ),
            None => Ok(Steering::All),
        },
    }
}

fn parse_address(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, bits) = text.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok().filter(|bits| *bits <= 32)?))
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attachment::Interface { name, namespace, address, gateway } = self else { return f.write_str("xdp") };
        write!(f, "xdp:{name}")?;
        if let Some((address, bits)) = address {
            write!(f, ",ip={address}/{bits}")?;
        }
        if let Some(gateway) = gateway {
            write!(f, ",gateway={gateway}")?;
        }
        namespace.map_or(Ok(()), |descriptor| write!(f, ",namespace={descriptor}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in
            ["xdp", "xdp:eth0", "xdp:eth0,ip=192.0.2.7/24", "xdp:a,ip=192.0.2.7/24,gateway=192.0.2.1,namespace=7"]
        {
            assert_eq!(Attachment::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "tap", "xdp:", "xdp:,ip=1.2.3.4/8", "xdp:e,ip=1.2.3.4", "xdp:e,ip=1.2.3.4/33", "xdp:e,x=1"] {
            assert!(Attachment::parse(text).is_err(), "{text}");
        }
        assert!(Attachment::parse("xdp:e,gateway=1.2.3.4").is_err(), "a router without an address");
    }
}
