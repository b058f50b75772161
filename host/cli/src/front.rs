//! Where clients of this host find a store that has a network address of its own: listeners at the host's addresses, and the
//! ways from there to the store.

use crate::{
    listen,
    proxy::{Settings, WebPort},
    store::{self, Store},
};
use anyhow::{Context, Result};
use kayvee_link::{Link, Redirect};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

/// Connections beyond the store's limit that are carried, for the store to say why it does not serve them.
const REFUSED_CONNECTIONS: u64 = 64;
/// The client's socket and the guest's.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Descriptors that are not the connections'.
const RESERVED_DESCRIPTORS: u64 = 64;

/// The ports at this host's addresses.
pub struct Front {
    /// The store's, then the web server's.
    pub listeners: Vec<TcpListener>,
    /// How a client on this host reaches the store.
    pub address: SocketAddr,
    /// Where the web server listens, if there is one.
    pub web: Option<SocketAddr>,
    /// The number of its first listener.
    first_web: usize,
}

impl Front {
    /// Listens, so that a port in use is known before anything is started.
    pub fn open(store: &Store) -> Result<Front> {
        let listen = |port, option| listen::listen(&store.listen_addresses(port)?, store.options().tcp_backlog, option);
        let mut listeners = listen(store.options().port, "--port")?;
        let address = store::reachable(listeners[0].local_addr()?);
        let first_web = listeners.len();
        if store.options().http_port != 0 {
            listeners.extend(listen(store.options().http_port, "--http-port")?);
        }
        let web = listeners.get(first_web).map(TcpListener::local_addr).transpose()?;
        Ok(Front { listeners, address, web, first_web })
    }

    /// Leaves the web server's port to the process that serves it, and returns its address.
    pub fn leave_web(&mut self) -> Option<SocketAddr> {
        self.listeners.truncate(self.first_web);
        self.web.take()
    }

    /// How connections are carried to the store at this address, to which this interface leads if one does.
    pub fn settings(&self, store: &Store, guest: Ipv4Addr, interface: Option<&str>) -> Result<Settings> {
        let keepalive_s = Some(store.options().tcp_keepalive).filter(|&seconds| seconds > 0);
        Ok(Settings {
            guest: SocketAddr::new(guest.into(), self.address.port()),
            interface: interface.map(String::from),
            web: self.web.map(|web| WebPort { first_listener: self.first_web, port: web.port() }),
            max_connections: max_connections(store)?,
            keepalive: keepalive_s.map(|seconds| Duration::from_secs(seconds.into())),
        })
    }

    /// Has the kernel make connections from here to the loopback's listeners to the store at the other end of the link, so that
    /// nobody has to carry them.
    pub fn redirect(&self, link: Link, interface: &str) -> Result<Redirect> {
        let mut rules = Vec::new();
        for listener in &self.listeners {
            let from = store::reachable(listener.local_addr()?);
            let to: Option<IpAddr> = match from {
                SocketAddr::V4(_) => Some(link.guest.into()),
                SocketAddr::V6(_) => link.ipv6.map(|ipv6| ipv6.guest.into()),
            };
            let to = to.filter(|_| from.ip().is_loopback());
            rules.extend(to.map(|to| (from, SocketAddr::new(to, from.port()))));
        }
        Redirect::new(&rules, interface)
    }
}

/// How many connections may be carried: those that the store serves and some that it refuses with a reason, as far as
/// there are descriptors. Allows this process all that it may have.
fn max_connections(store: &Store) -> Result<usize> {
    let (_, descriptors) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, descriptors).context("raising the limit of open files")?;
    let wanted = u64::from(store.options().maxclients) + REFUSED_CONNECTIONS;
    Ok(wanted.min(descriptors.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_CONNECTION) as usize)
}
