//! One TCP connection: `smoltcp`'s socket in a set of its own, and what the stack has to remember beside it.

use crate::{frame::FlowKey, stack::Event};
use alloc::{collections::TryReserveError, vec::Vec};
use core::net::SocketAddrV4;
use smoltcp::{
    iface::{Context, SocketHandle, SocketSet, SocketStorage},
    socket::tcp::{self, CongestionControl, State},
    time::Duration,
    wire::{IpAddress, IpEndpoint},
};

/// Names a connection from [`Event::Accepted`] or [`Stack::connect`](crate::Stack::connect) until the application closes
/// it or [`Event::Closed`]. It is a dense index, reused afterwards, by which an application finds its own record of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// How long a SYN-SENT or SYN-RECEIVED connection waits for the next segment of its handshake. SYNs and SYN-ACKs leave
/// at 0, 1, 3, 7 and 15 seconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a peer may leave data unacknowledged before it counts as dead: R2 of RFC 9293 §3.8.3, at least 100 seconds.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(120);

/// How soon a peer is probed for its window when data waits for it and no other timer runs.
///
/// This should not happen, and it does when an old segment with a window of zero overtakes a newer one: `smoltcp` takes
/// it for the latest (it does not compare SND.WL1 and SND.WL2, RFC 9293 §3.10.7.4), and its retransmission timer ends
/// without setting one for window probes. The price is one probe when a connection falls silent.
const STALLED_PROBE: Duration = Duration::from_secs(5);

/// Who cares for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody yet: its handshake is not complete.
    Handshake,
    /// The application.
    Application,
    /// Nobody any more: the application has closed it, and what is left is to end it in good order.
    Nobody,
}

/// A connection in whatever state.
pub(crate) struct Connection {
    pub sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub flow: FlowKey,
    pub owner: Owner,
    /// When it was opened, for the order in which half-open ones are given up.
    pub opened_ns: u64,
    /// Its entry among the timers, `u64::MAX` if it has none. Never later than its next deadline.
    pub scheduled_ns: u64,
    /// When a connection that nobody owns is cut off, `u64::MAX` before that.
    pub linger_until_ns: u64,
    /// What its buffers take of [`Limits::buffer_bytes`](crate::Limits::buffer_bytes).
    pub buffer_bytes: usize,
    /// Whether it waits for the application to ask for its events.
    pub in_events: bool,
    /// Whether it waits for its segments to be sent.
    pub in_egress: bool,
    /// Data has come since the application was told last.
    arrived: bool,
    /// The peer has ended its sending half.
    end_received: bool,
    /// The application has ended its own.
    finished: bool,
    wants_room: bool,
    /// The interval of keepalive probes while nothing is to be sent.
    keepalive: Option<Duration>,
    end_of_stream_told: bool,
}

impl Connection {
    /// A connection that waits for the SYN of `flow`, with `buffer_bytes` for both directions together.
    pub fn listen(
        flow: FlowKey,
        buffer_bytes: usize,
        keepalive: Option<Duration>,
        now_ns: u64,
    ) -> Result<Connection, TryReserveError> {
        let mut connection = Connection::new(flow, Owner::Handshake, buffer_bytes, keepalive, now_ns)?;
        connection.socket().listen(flow.local_port()).expect("a new socket listens on a port that is not 0");
        Ok(connection)
    }

    /// A connection that sends the SYN of `flow`.
    pub fn connect(
        flow: FlowKey,
        buffer_bytes: usize,
        keepalive: Option<Duration>,
        context: &mut Context,
        now_ns: u64,
    ) -> Result<Connection, TryReserveError> {
        let mut connection = Connection::new(flow, Owner::Application, buffer_bytes, keepalive, now_ns)?;
        let connected = connection.socket().connect(context, flow.remote(), flow.local_port());
        connected.expect("a new socket connects to a host's address and port");
        Ok(connection)
    }

    fn new(
        flow: FlowKey,
        owner: Owner,
        buffer_bytes: usize,
        keepalive: Option<Duration>,
        now_ns: u64,
    ) -> Result<Connection, TryReserveError> {
        let (receive, transmit) = (zeroed(buffer_bytes / 2)?, zeroed(buffer_bytes / 2)?);
        let mut storage = Vec::new();
        storage.try_reserve_exact(1)?;
        storage.push(SocketStorage::EMPTY);
        let mut socket = tcp::Socket::new(tcp::SocketBuffer::new(receive), tcp::SocketBuffer::new(transmit));
        // A reply leaves when it is made, and it carries the acknowledgement of its request.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_congestion_control(CongestionControl::Reno);
        socket.set_timeout(Some(HANDSHAKE_TIMEOUT));
        socket.set_keep_alive(keepalive);
        let mut sockets = SocketSet::new(storage);
        let handle = sockets.add(socket);
        Ok(Connection {
            sockets,
            handle,
            flow,
            owner,
            opened_ns: now_ns,
            scheduled_ns: u64::MAX,
            linger_until_ns: u64::MAX,
            buffer_bytes,
            in_events: false,
            in_egress: false,
            arrived: false,
            end_received: false,
            finished: false,
            wants_room: false,
            keepalive,
            end_of_stream_told: false,
        })
    }

    pub fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub fn state(&self) -> State {
        self.sockets.get::<tcp::Socket>(self.handle).state()
    }

    /// The connection has ended, and its last segment has left.
    pub fn is_over(&mut self) -> bool {
        let socket = self.socket();
        match socket.state() {
            // A RST during the handshake puts the socket back into LISTEN, and a SYN that turned out to be damaged
            // leaves it there.
            State::Listen => true,
            State::Closed => socket.remote_endpoint().is_none(),
            _ => false,
        }
    }

    /// The next thing that the application has to know.
    pub fn next_event(&mut self, id: ConnectionId) -> Option<Event> {
        match self.owner {
            Owner::Handshake => self.accepted(id),
            Owner::Application => self.changed(id),
            Owner::Nobody => None,
        }
    }

    fn accepted(&mut self, connection: ConnectionId) -> Option<Event> {
        let socket = self.socket();
        if matches!(socket.state(), State::Listen | State::SynReceived | State::Closed) {
            return None;
        }
        let (remote, local) = (ipv4(socket.remote_endpoint()?), ipv4(socket.local_endpoint()?));
        self.owner = Owner::Application;
        Some(Event::Accepted { connection, remote, local })
    }

    fn changed(&mut self, connection: ConnectionId) -> Option<Event> {
        let (arrived, wants_room, told) = (self.arrived, self.wants_room, self.end_of_stream_told);
        // Both halves have ended as they should, and what is left is to be read: the application closes it afterwards.
        let in_order = self.finished && self.end_received;
        let socket = self.socket();
        let room = socket.send_capacity() - socket.send_queue();
        if socket.state() == State::SynSent {
            None
        } else if !socket.is_open() && !in_order {
            self.owner = Owner::Nobody;
            Some(Event::Closed(connection))
        } else if arrived && socket.can_recv() {
            self.arrived = false;
            Some(Event::Readable(connection))
        } else if wants_room && room >= socket.send_capacity() / 2 {
            self.wants_room = false;
            Some(Event::Writable(connection))
        } else if !told && !socket.may_recv() {
            self.end_of_stream_told = true;
            Some(Event::EndOfStream(connection))
        } else {
            None
        }
    }

    /// Notes that the socket has been given a segment.
    pub fn note_segment(&mut self) {
        self.arrived = true;
        let state = self.socket().state();
        self.end_received |= matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
    }

    /// Ends the sending half.
    pub fn finish(&mut self) {
        self.finished = true;
        self.socket().close();
    }

    /// Queues what fits of `bytes` and returns how much that was.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let sent = self.socket().send_slice(bytes).unwrap_or(0);
        self.wants_room |= sent < bytes.len();
        sent
    }

    /// Sets when silence means that the peer is dead, before segments are sent.
    ///
    /// `smoltcp` has one timeout, which runs from the last segment that the peer sent. While something is to be
    /// acknowledged it is that of the retransmissions; while nothing is, it counts the keepalive probes that may go
    /// unanswered, or does not run.
    pub fn update_timeout(&mut self) {
        if self.owner == Owner::Handshake || self.socket().state() == State::SynSent {
            return;
        }
        let idle_keepalive = self.keepalive;
        let socket = self.socket();
        let (keepalive, timeout) = match socket.send_queue() {
            // Two probes and half an interval for the answer to the second.
            0 => (idle_keepalive, idle_keepalive.map(|interval| interval * 5 / 2)),
            _ => (Some(STALLED_PROBE), Some(UNACKNOWLEDGED_TIMEOUT)),
        };
        if socket.keep_alive() != keepalive {
            socket.set_keep_alive(keepalive);
        }
        socket.set_timeout(timeout);
    }

    /// Throws away what a peer sends to a connection that nobody reads, so that the peer comes to the end of it.
    pub fn discard_received(&mut self) {
        while self.socket().recv(|bytes| (bytes.len(), bytes.len())).is_ok_and(|len| len > 0) {}
    }
}

fn zeroed(len: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn ipv4(endpoint: IpEndpoint) -> SocketAddrV4 {
    let IpAddress::Ipv4(address) = endpoint.addr;
    SocketAddrV4::new(address, endpoint.port)
}
