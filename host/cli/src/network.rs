//! How a guest is reached: by what means this user has.

use crate::{
    args::Net,
    namespace,
    store::{Absent, Listen, reachable},
    tap::{Tap, TapError},
};
use anyhow::{Context, Result, anyhow, bail};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
};

/// A way to the guest.
pub enum Network {
    /// A tap in this host's network: the guest has an address here, and the proxy carries the port.
    Tap(Tap),
    /// A tap in a namespace of this process's own: only the proxy reaches the guest.
    Namespace {
        /// The tap.
        tap: Tap,
        /// A socket of the host's, to try the port as a client of the host does.
        front: Socket,
    },
    /// QEMU's own network stack, which listens on the host by itself.
    Qemu {
        /// Why not something faster.
        why: String,
    },
}

/// Listens on the host's addresses, so that a port in use is known before anything boots.
pub fn listen(addresses: &[Listen], backlog: u32) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for listen in addresses {
        match bind(listen.address, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if listen.absent == Absent::Skip && is_absent(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let address = listen.address;
                bail!("{address} is in use by another program; stop that one, or choose another port with --port")
            }
            Err(error) => return Err(error).with_context(|| format!("listening on {}", listen.address)),
        }
    }
    if listeners.is_empty() {
        bail!("no address to listen on; give --bind one that this host has");
    }
    Ok(listeners)
}

fn bind(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // As redis-server does: connections of an earlier run that are in TIME_WAIT do not hold the port.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

fn is_absent(error: &io::Error) -> bool {
    const NO_SUCH_FAMILY: i32 = nix::errno::Errno::EAFNOSUPPORT as i32;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

impl Network {
    /// Opens a way to a guest, the fastest that `wanted` and this user's rights allow.
    pub fn open(wanted: Net, listeners: &[TcpListener]) -> Result<Network> {
        if wanted != Net::User {
            match Tap::create() {
                Ok(tap) => return Ok(Network::Tap(tap)),
                Err(TapError::Failed(error)) => return Err(error),
                Err(TapError::NotAllowed(error)) if wanted == Net::Tap => {
                    let help = "run as root, or with --net user, which needs no rights";
                    return Err(anyhow!(error).context(format!("no right to make a tap device: {help}")));
                }
                Err(TapError::NotAllowed(_)) => {}
            }
        }
        match namespace::try_out() {
            Ok(()) => Network::in_namespace(listeners),
            Err(error) => Ok(Network::Qemu { why: format!("{error:#}") }),
        }
    }

    fn in_namespace(listeners: &[TcpListener]) -> Result<Network> {
        let address = listeners[0].local_addr()?;
        let front = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        let tap = namespace::enter_with_tap()?;
        Ok(Network::Namespace { tap, front })
    }

    /// The tap, where there is one.
    pub fn tap(&self) -> Option<&Tap> {
        match self {
            Network::Tap(tap) | Network::Namespace { tap, .. } => Some(tap),
            Network::Qemu { .. } => None,
        }
    }

    /// Connects to the host's port as a client of the host does.
    pub fn connect_to_front(&self, listen: SocketAddr) -> Result<TcpStream> {
        let address = reachable(listen);
        match self {
            Network::Namespace { front, .. } => {
                let front = front.try_clone()?;
                front.connect(&SockAddr::from(address)).with_context(|| format!("connecting to {address}"))?;
                Ok(front.into())
            }
            _ => TcpStream::connect(address).with_context(|| format!("connecting to {address}")),
        }
    }
}
