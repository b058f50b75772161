//! The host's listening sockets: bound before anything boots, accepted from by whatever carries connections.

use crate::store::{Absent, Listen};
use anyhow::{Context, Result, bail};
use mio::{
    Interest, Registry, Token,
    net::{TcpListener, TcpStream},
};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    time::Duration,
};

/// Listens on the host's addresses, so that a port in use is known before anything boots. It was chosen with this option.
pub fn listen(addresses: &[Listen], backlog: u32, option: &str) -> Result<Vec<std::net::TcpListener>> {
    let mut listeners = Vec::new();
    for listen in addresses {
        match bind(listen.address, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if listen.absent == Absent::Skip && is_absent(&error) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let address = listen.address;
                bail!("{address} is in use by another program; stop that one, or choose another port with {option}")
            }
            Err(error) => return Err(error).with_context(|| format!("listening on {}", listen.address)),
        }
    }
    if listeners.is_empty() {
        bail!("no address to listen on; give --bind one that this host has");
    }
    Ok(listeners)
}

fn bind(address: SocketAddr, backlog: u32) -> io::Result<std::net::TcpListener> {
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
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

/// Listening sockets in an event loop, under the tokens from 0 on.
pub struct Listeners {
    sockets: Vec<(TcpListener, Waiting)>,
    keepalive: Option<Duration>,
}

/// Whether a listener may have connections to accept: readiness is reported once, when it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    None,
    Some,
}

impl Listeners {
    /// Takes listening sockets into an event loop. Clients that are silent for as long as `keepalive` are probed.
    pub fn new(
        sockets: Vec<std::net::TcpListener>,
        keepalive: Option<Duration>,
        registry: &Registry,
    ) -> io::Result<Listeners> {
        let mut listeners = Vec::with_capacity(sockets.len());
        for (number, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let mut socket = TcpListener::from_std(socket);
            registry.register(&mut socket, Token(number), Interest::READABLE)?;
            listeners.push((socket, Waiting::None));
        }
        Ok(Listeners { sockets: listeners, keepalive })
    }

    /// How many tokens they take.
    pub fn tokens(&self) -> usize {
        self.sockets.len()
    }

    /// Notes that an event came for listener `number`.
    pub fn note(&mut self, number: usize) {
        self.sockets[number].1 = Waiting::Some;
    }

    /// The next connection that waits, and the number of its listener. A limit is kept by not asking: connections wait in
    /// the kernel meanwhile.
    pub fn accept(&mut self) -> Option<(TcpStream, usize)> {
        let numbered = self.sockets.iter_mut().enumerate();
        for (number, (socket, waiting)) in numbered.filter(|(_, (_, waiting))| *waiting == Waiting::Some) {
            loop {
                match socket.accept().and_then(|(client, _)| prepare(client, self.keepalive)) {
                    Ok(client) => return Some((client, number)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => *waiting = Waiting::None,
                    // A client that has gone meanwhile.
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    // Descriptors have run out, say: the next connection's event tries again.
                    Err(_) => *waiting = Waiting::None,
                }
                break;
            }
        }
        None
    }
}

fn prepare(client: TcpStream, keepalive: Option<Duration>) -> io::Result<TcpStream> {
    client.set_nodelay(true)?;
    if let Some(idle) = keepalive {
        SockRef::from(&client).set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))?;
    }
    Ok(client)
}
