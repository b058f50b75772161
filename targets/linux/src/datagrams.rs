//! The services by UDP on the kernel's sockets: many datagrams in each system call.

use crate::{listeners, sys};
use kayvee_server::{Engine, Options};
use kayvee_station::Datagrams;
use mio::{Interest, Registry, Token, net::UdpSocket};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg},
};
use socket2::SockAddr;
use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
};

/// Datagrams received and sent with one system call.
const BATCH: usize = 64;
/// Batches from one socket in a turn, so that the other clients get theirs.
const BATCHES_PER_TURN: usize = 8;
/// The longest datagram that is answered, and the longest answer: what Ethernet carries in one frame.
const DATAGRAM_BYTES: usize = 1472;
/// What may wait in the kernel; it may allow less.
const WAITING_BYTES: usize = 4 << 20;

/// A socket and the port that it serves.
struct Socket {
    socket: UdpSocket,
    port: u16,
    /// There may be datagrams. The kernel tells once of each change.
    ready: bool,
}

/// Memory for one batch.
struct Batch {
    received: MultiHeaders<SockaddrStorage>,
    requests: [[u8; DATAGRAM_BYTES]; BATCH],
    replies: [[u8; DATAGRAM_BYTES]; BATCH],
}

/// The sockets of the services.
pub struct DatagramSockets {
    sockets: Vec<Socket>,
    services: Datagrams,
    batch: Box<Batch>,
}

impl DatagramSockets {
    /// Binds the sockets that the options ask for, if any, and registers them under tokens from `first` on.
    pub fn open(options: &Options, registry: &Registry, first: usize) -> io::Result<Option<DatagramSockets>> {
        let services = Datagrams::new(options);
        let places: Vec<_> =
            services.ports().flat_map(|port| options.bind.iter().map(move |word| (word.clone(), port))).collect();
        if places.is_empty() {
            return Ok(None);
        }
        let mut sockets = Vec::new();
        for ((_, port), socket) in listeners::bind_datagrams(&places, WAITING_BYTES)? {
            let mut socket = UdpSocket::from_std(socket);
            registry.register(&mut socket, Token(first + sockets.len()), Interest::READABLE)?;
            sockets.push(Socket { socket, port, ready: true });
        }
        let batch = Batch {
            received: MultiHeaders::preallocate(BATCH, None),
            requests: [[0; DATAGRAM_BYTES]; BATCH],
            replies: [[0; DATAGRAM_BYTES]; BATCH],
        };
        Ok(Some(DatagramSockets { sockets, services, batch: Box::new(batch) }))
    }

    /// Notes that a socket has datagrams: the one of this number.
    pub fn note(&mut self, number: usize) {
        if let Some(socket) = self.sockets.get_mut(number) {
            socket.ready = true;
        }
    }

    /// Whether the next turn has something to do already.
    pub fn is_behind(&self) -> bool {
        self.sockets.iter().any(|socket| socket.ready)
    }

    /// Answers what has arrived, or as much of it as a turn has time for.
    pub fn turn(&mut self, engine: &mut Engine) {
        let DatagramSockets { sockets, services, batch } = self;
        for Socket { socket, port, ready } in sockets {
            for _ in 0..BATCHES_PER_TURN {
                if !*ready {
                    break;
                }
                let answer = |from: &Origin, bytes: &[u8], reply: &mut [u8]| {
                    services.answer(engine, from.is_local, *port, from.address.port(), bytes, reply)
                };
                *ready = batch.answer(socket, answer);
            }
        }
    }
}

/// Where a datagram comes from.
struct Origin {
    address: SocketAddr,
    is_local: bool,
}

impl Origin {
    fn of(address: &SockaddrStorage) -> Option<Origin> {
        let address = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => SocketAddr::V4((*v4).into()),
            (_, Some(v6)) => SocketAddr::V6((*v6).into()),
            _ => return None,
        };
        Some(Origin { address, is_local: address.ip().to_canonical().is_loopback() })
    }
}

impl Batch {
    /// Receives a batch, and sends the answers. Returns whether there may be more.
    fn answer(
        &mut self,
        socket: &UdpSocket,
        mut answer: impl FnMut(&Origin, &[u8], &mut [u8]) -> Option<usize>,
    ) -> bool {
        let Batch { received, requests, replies } = self;
        let mut slices = requests.each_mut().map(|request| [IoSliceMut::new(request)]);
        let messages = match recvmmsg(socket.as_raw_fd(), received, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
            Ok(messages) => messages,
            Err(Errno::EAGAIN) => return false,
            // An interruption; or what became of an answer to somebody who has gone, which is told once.
            Err(error) => {
                log::debug!("receiving datagrams: {error}");
                return true;
            }
        };
        let (mut count, mut answered) = (0, [const { None }; BATCH]);
        let mut arrived = 0;
        for message in messages {
            arrived += 1;
            let bytes = message.iovs().next().unwrap_or_default();
            let Some(address) = message.address.filter(|_| !message.flags.contains(MsgFlags::MSG_TRUNC)) else {
                continue;
            };
            let Some(origin) = Origin::of(&address) else { continue };
            if let Some(len) = answer(&origin, bytes, &mut replies[count]) {
                answered[count] = Some((SockAddr::from(origin.address), len));
                count += 1;
            }
        }
        let replies = answered.iter().flatten().zip(&*replies).map(|((to, len), reply)| (to, &reply[..*len]));
        send_all(socket, &replies.collect::<Vec<_>>());
        arrived == BATCH
    }
}

/// Sends datagrams. What the kernel has no room for is lost, as datagrams may be, and so is what it cannot send to where it is
/// to go, which keeps nothing behind it back.
fn send_all(socket: impl AsFd, mut datagrams: &[(&SockAddr, &[u8])]) {
    while !datagrams.is_empty() {
        let done = match sys::send_datagrams(socket.as_fd(), datagrams) {
            Ok(sent) => sent,
            Err(error) => {
                log::debug!("sending datagrams: {error}");
                let error = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
                if matches!(error, Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) {
                    return;
                }
                // It is the first of them that has failed (sendmmsg(2)).
                1
            }
        };
        datagrams = &datagrams[done..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket as StdSocket;

    #[test]
    fn one_that_cannot_be_sent_keeps_no_other_back() {
        let [from, to] = [(); 2].map(|()| StdSocket::bind("127.0.0.1:0").unwrap());
        let good = to.local_addr().unwrap();
        // No datagram goes to port 0, or from IPv4 to IPv6.
        let bad = [SocketAddr::from(([127, 0, 0, 1], 0)), "[::1]:7".parse().unwrap()];
        let addresses = [bad[0], good, bad[1], bad[0], good, good, bad[1]].map(SockAddr::from);
        let texts = [b"0", b"1", b"2", b"3", b"4", b"5", b"6"];
        let datagrams: Vec<_> = addresses.iter().zip(texts).map(|(to, text)| (to, &text[..])).collect();
        send_all(&from, &datagrams);
        to.set_nonblocking(true).unwrap();
        let mut buffer = [0; 8];
        let arrived: Vec<u8> = std::iter::from_fn(|| to.recv(&mut buffer).ok().map(|_| buffer[0])).collect();
        assert_eq!(arrived, b"145");
    }
}
