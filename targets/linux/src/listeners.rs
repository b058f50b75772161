//! Sockets that wait for clients.

use crate::sockets::Listening;
use kayvee_server::Options;
use mio::net::{TcpListener, UnixListener};
use nix::libc;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::{
    fs::{self, Permissions},
    io,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    time::Duration,
};

/// How long accepting rests when the system has no room for another connection.
const REST_NS: u64 = 100_000_000;
/// How often the log is told of that.
const TELL_INTERVAL_NS: u64 = 60_000_000_000;

/// A rest of accepting, since the system has no room for another connection.
#[derive(Default)]
pub struct Rest {
    /// When it is over; 0 without one.
    pub until_ns: u64,
    /// The log has been told, and is not told again before this.
    silent_until_ns: u64,
}

impl Rest {
    /// Begins one because of `what` could not be accepted.
    pub fn begin(&mut self, what: &str, error: &io::Error, now_ns: u64) {
        self.until_ns = now_ns + REST_NS;
        if now_ns >= self.silent_until_ns {
            self.silent_until_ns = now_ns + TELL_INTERVAL_NS;
            log::warn!("{what} waits because the system has no room for it: {error}");
        }
    }

    /// Ends it: there may be room.
    pub fn end(&mut self) {
        self.until_ns = 0;
    }
}

/// Whether a connection was not accepted because the system lacks something that others will give back.
pub fn has_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// What a TCP listener is for: a word of `bind`, and a port.
pub type Place = (String, u16);

/// The places of these options; none without a port.
pub fn places(options: &Options) -> Vec<Place> {
    if options.port == 0 { Vec::new() } else { options.bind.iter().map(|word| (word.clone(), options.port)).collect() }
}

/// Listens in these places.
///
/// An address with a `-` before it may be one that this machine does not have, and `*` means every one, as in
/// redis.conf. What is set on these sockets holds for those that they accept, so that accepting takes no further calls.
pub fn bind(places: &[Place], options: &Options) -> io::Result<Vec<(Place, TcpListener)>> {
    let listeners = bind_each(places, |address| listen(address, options))?;
    listeners.iter().for_each(|(_, listener)| set_keepalive(listener, options.tcp_keepalive));
    Ok(listeners)
}

/// Sockets for datagrams in these places, for each of which so many bytes may wait.
pub fn bind_datagrams(places: &[Place], waiting_bytes: usize) -> io::Result<Vec<(Place, UdpSocket)>> {
    bind_each(places, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_recv_buffer_size(waiting_bytes)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    })
}

/// Does the same for the address of each place.
fn bind_each<T>(places: &[Place], bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<Vec<(Place, T)>> {
    let mut bound = Vec::new();
    for (word, port) in places {
        let (optional, name) = match word.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, word.as_str()),
        };
        let name = if name == "*" { "0.0.0.0" } else { name.trim_start_matches("::*") };
        let name = if name.is_empty() { "::" } else { name };
        let result = resolve(name, *port).and_then(&bind);
        match result {
            Ok(socket) => bound.push(((word.clone(), *port), socket)),
            Err(error) if is_unsupported(&error) || (optional && is_unavailable(&error)) => {
                log::debug!("not listening on {name}: {error}");
            }
            Err(error) => {
                let text = format!("cannot listen on {name} port {port}: {error}");
                return Err(io::Error::new(error.kind(), text));
            }
        }
    }
    if bound.is_empty() && !places.is_empty() {
        return Err(io::Error::other("there is no address to listen on; check --bind"));
    }
    Ok(bound)
}

/// Listens on the Unix socket of `unixsocket`, if there is one. A socket that an earlier process left there makes way.
pub fn bind_unix(options: &Options) -> io::Result<Option<Listening>> {
    let path = &options.unixsocket;
    if path.is_empty() {
        return Ok(None);
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {path}: {error}"));
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        fs::remove_file(path).map_err(named)?;
    }
    let listener = UnixListener::bind(path).map_err(named)?;
    if options.unixsocketperm != 0 {
        fs::set_permissions(path, Permissions::from_mode(options.unixsocketperm)).map_err(named)?;
    }
    Ok(Some(Listening::Unix(listener, path.clone())))
}

/// Sets the time after which the kernel probes silent clients that come from now on; 0 for never.
pub fn set_keepalive(listener: &TcpListener, idle_s: u32) {
    let socket = socket2::SockRef::from(listener);
    // As Redis does: three probes a third of that time apart.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(idle_s.into()))
        .with_interval(Duration::from_secs(u64::from(idle_s / 3).max(1)))
        .with_retries(3);
    let result = match idle_s {
        0 => socket.set_keepalive(false),
        _ => socket.set_tcp_keepalive(&keepalive),
    };
    if let Err(error) = result {
        log::warn!("tcp-keepalive {idle_s} could not be set: {error}");
    }
}

fn resolve(name: &str, port: u16) -> io::Result<SocketAddr> {
    let not_found = || io::Error::new(io::ErrorKind::NotFound, "it has no address");
    (name, port).to_socket_addrs()?.next().ok_or_else(not_found)
}

fn listen(address: SocketAddr, options: &Options) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // An address of each family has a socket of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(options.tcp_backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(TcpListener::from_std(socket.into()))
}

fn is_unavailable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EADDRNOTAVAIL)
}

/// Whether the kernel does not know the address family at all, as without IPv6.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EAFNOSUPPORT | libc::EPFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT | libc::ENOPROTOOPT
        )
    )
}
