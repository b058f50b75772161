//! Sockets of both kinds, TCP and Unix, as one type each.

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, ToSocketAddrs},
};

/// A socket that waits for clients.
pub enum Listening {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket at this path.
    Unix(UnixListener, String),
}

/// A client's socket.
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

/// Where a client comes from, in Redis' words.
pub struct Origin {
    /// Its address, or the path of the socket.
    pub remote: String,
    /// The address that it connected to, or the same path.
    pub local: String,
    /// Whether it is on this machine.
    pub is_local: bool,
}

impl Listening {
    /// Takes the next client that waits.
    pub fn accept(&self) -> io::Result<(Stream, Origin)> {
        match self {
            Listening::Tcp(listener) => {
                let (stream, remote) = listener.accept()?;
                let origin = tcp_origin(&stream, remote);
                Ok((Stream::Tcp(stream), origin))
            }
            Listening::Unix(listener, path) => {
                let (stream, _) = listener.accept()?;
                let name = format!("{path}:0");
                Ok((Stream::Unix(stream), Origin { remote: name.clone(), local: name, is_local: true }))
            }
        }
    }
}

fn tcp_origin(stream: &TcpStream, remote: SocketAddr) -> Origin {
    let local = stream.local_addr().map(|address| address.to_string()).unwrap_or_default();
    Origin { remote: remote.to_string(), local, is_local: remote.ip().to_canonical().is_loopback() }
}

impl Stream {
    /// Begins to connect. A name is looked up before that.
    pub fn connect(host: &str, port: u16) -> io::Result<(Stream, Origin)> {
        let addresses = (host, port).to_socket_addrs()?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        for address in addresses {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let origin = tcp_origin(&stream, address);
                    return Ok((Stream::Tcp(stream), origin));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says that nothing more will be sent.
    pub fn end_sending(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

macro_rules! pass_source_on {
    ($type:ident: $($pattern:pat => $socket:ident),+) => {
        impl Source for $type {
            fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
                match self { $($pattern => $socket.register(registry, token, interests)),+ }
            }
            fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
                match self { $($pattern => $socket.reregister(registry, token, interests)),+ }
            }
            fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
                match self { $($pattern => $socket.deregister(registry)),+ }
            }
        }
    };
}

pass_source_on!(Listening: Listening::Tcp(socket) => socket, Listening::Unix(socket, _) => socket);
pass_source_on!(Stream: Stream::Tcp(socket) => socket, Stream::Unix(socket) => socket);
