//! The stack: what arrives is given to whom it concerns, and what they have to say is sent.

use crate::{
    control::Control,
    cookies::{self, Cookies},
    flows::Flows,
    frame::{self, Class, Datagram, FlowKey, Packet, Route, announce, classify, is_host},
    limits::Limits,
    neighbors::{ASK_INTERVAL_NS, Neighbors},
    pool::Pool,
    rate::RateLimit,
    secrets::Secrets,
    slab::Slab,
    tcp::{
        Change, Connection, NEVER_NS, Origin, Owner, Resources, Setup, State, Verdict,
        segment::{Flags, Segment},
        seq::Seq,
    },
    wheel::Wheel,
};
use alloc::{
    collections::{BTreeSet, VecDeque},
    vec::Vec,
};
use core::net::{Ipv4Addr, SocketAddrV4};
use kayvee_platform::{Addressing, Checksums, FrameDevice, FrameRx, FrameTx, NetworkFigures, Received};
use smoltcp::wire::EthernetAddress;

/// Names a connection from [`Event::Accepted`] or [`Stack::connect`] until the application closes it or
/// [`Event::Closed`]. It is a dense index, reused afterwards, by which an application finds its own record of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// Frames taken from the device in one [`Stack::poll`], so that the application gets its turn under any load.
const MAX_FRAMES_PER_POLL: usize = 256;

/// The ports that connections are opened from (RFC 6335 §6).
const DYNAMIC_PORTS: core::ops::RangeInclusive<u16> = 49_152..=65_535;

/// How long a connection that the application has closed may take to end.
const LINGER_NS: u64 = 60 * 1_000_000_000;

/// Resets to those who have no connection, a second.
const RESETS_PER_S: u64 = 1000;
/// ICMP messages that are looked at, a second (RFC 1812 §4.3.2.8 has limits like this for what is sent).
const ICMP_PER_S: u64 = 1000;
/// Timeouts in a row after which a connection's way through the link is asked for again.
const TIMEOUTS_OF_A_DEAD_NEIGHBOR: u32 = 2;
/// Handshakes that may be open before SYNs are answered without keeping anything (RFC 4987 §3.6): this many, or this share
/// of all connections where there are few.
const MAX_HALF_OPEN: usize = 512;
const HALF_OPEN_DIVISOR: usize = 4;
/// Connections without room to send that are looked at in a turn.
const STARVED_PER_TURN: usize = 16;

/// What a stack is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Where its address comes from.
    pub addressing: Addressing,
    /// Bounds on what it takes.
    pub limits: Limits,
    /// Seconds without a segment after which a peer is probed, 0 for never (redis.conf's `tcp-keepalive`). Two
    /// unanswered probes end the connection.
    pub keepalive_s: u32,
    /// From the platform's entropy: initial sequence numbers and the order of hash tables come from it.
    pub seed: u64,
}

/// Why a stack was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The device's Ethernet address is a group address, which no station has.
    HardwareAddress([u8; 6]),
    /// The address or the gateway names no single host.
    Address(Ipv4Addr),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::HardwareAddress(mac) => {
                write!(f, "the network device's address {} is no station's", EthernetAddress(*mac))
            }
            ConfigError::Address(address) => write!(f, "{address} cannot be a host's or a router's address"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// The address that a stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The station's own address.
    pub address: Ipv4Addr,
    /// Length of the network prefix in bits.
    pub prefix_bits: u8,
    /// The default router, if there is one.
    pub gateway: Option<Ipv4Addr>,
}

/// What the application has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The station has an address now, or another one than before, whose connections are lost.
    AddressAcquired(Lease),
    /// The station has no address any more.
    AddressLost,
    /// A peer has connected.
    Accepted {
        /// The new connection.
        connection: ConnectionId,
        /// The peer's address.
        remote: SocketAddrV4,
        /// The address that it connected to.
        local: SocketAddrV4,
    },
    /// There is data to read that was not there at the last such event.
    Readable(ConnectionId),
    /// Half of the send buffer is free again, after a [`Stack::send`] that found no room for all of its bytes.
    Writable(ConnectionId),
    /// The peer has sent its last byte, and all have been read. It can still be sent to.
    EndOfStream(ConnectionId),
    /// The connection was reset or its peer is dead. The application forgets it; there is nothing to close.
    Closed(ConnectionId),
}

/// An application that takes data where the device has put it.
pub trait Take {
    /// Takes data that has arrived in order on a connection that has nothing else to read, and returns how many bytes of
    /// it. The rest is kept, and [`Event::Readable`] follows. The memory is shared with the device.
    fn take(&mut self, connection: ConnectionId, bytes: &[u8]) -> usize;

    /// Takes a UDP datagram for a port that [`Stack::serve_datagrams`] was called with. Its answer, if there is one, goes
    /// into `reply`, and its length is returned.
    fn datagram(&mut self, _port: u16, _remote: SocketAddrV4, _bytes: &[u8], _reply: &mut [u8]) -> Option<usize> {
        None
    }
}

/// Leaves everything to the receive buffers.
struct NobodyTakes;

impl Take for NobodyTakes {
    fn take(&mut self, _: ConnectionId, _: &[u8]) -> usize {
        0
    }
}

/// What the stack keeps of a connection beside its state.
struct Slot {
    connection: Connection,
    /// Where its frames go, and as of which generation of the neighbors that is known.
    way: Option<(u32, EthernetAddress)>,
    /// Whether it waits for the application to ask for its events.
    in_events: bool,
    /// Whether it waits for its segments to be sent.
    in_egress: bool,
    /// Whether it waits for its neighbor's address.
    in_unresolved: bool,
    /// Whether it waits for memory to send.
    in_starved: bool,
}

/// A TCP/IP stack; see the crate's documentation for how to drive it.
pub struct Stack {
    mac: EthernetAddress,
    checksums: Checksums,
    keepalive_ns: u64,
    lease: Option<Lease>,
    /// The link has yet to be told of the address.
    unannounced: bool,
    address_events: VecDeque<Event>,
    ports: Vec<u16>,
    datagram_ports: Vec<u16>,
    control: Control,
    neighbors: Neighbors,
    secrets: Secrets,
    resources: Resources,
    slots: Slab<Slot>,
    flows: Flows,
    timers: Wheel,
    /// Connections that can be given up for new ones, the least dear first.
    expendable: BTreeSet<Expendable>,
    /// How many of these are half-open, and may be.
    half_open: usize,
    half_open_limit: usize,
    cookies: Cookies,
    /// Connections that the application may have to hear of.
    events: VecDeque<u32>,
    /// Connections that may have segments to send or timers to set.
    egress: VecDeque<u32>,
    /// Connections whose neighbors' addresses are not known.
    unresolved: Vec<u32>,
    /// Connections that could not send for want of memory.
    starved: VecDeque<u32>,
    resets: RateLimit,
    icmp: RateLimit,
}

/// Where a segment belongs.
enum Place {
    /// To a connection.
    Connection(u32),
    /// To nothing.
    None,
    /// To a handshake that there are too many of.
    Cookie,
    /// To nothing, or to a connection that nothing was kept of.
    Unclear,
}

/// Why and since when a connection can be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Expendable {
    TimeWait { slot: u32 },
    HalfOpen { opened_ns: u64, slot: u32 },
}

impl Stack {
    /// Makes a stack for the station behind `device`, which is the one to give to it from then on.
    pub fn new<D: FrameDevice>(config: Config, device: &mut D, now_ns: u64) -> Result<Stack, ConfigError> {
        let mac = EthernetAddress(device.mac());
        if !mac.is_unicast() {
            return Err(ConfigError::HardwareAddress(device.mac()));
        }
        if let Addressing::Static { address, gateway, .. } = config.addressing
            && let Some(bad) = [Some(address), gateway].into_iter().flatten().find(|address| !is_host(*address))
        {
            return Err(ConfigError::Address(bad));
        }
        let secrets = Secrets::new(config.seed);
        let connections = config.limits.connections;
        let mut stack = Stack {
            mac,
            checksums: device.checksums(),
            keepalive_ns: 0,
            lease: None,
            unannounced: false,
            address_events: VecDeque::new(),
            ports: Vec::new(),
            datagram_ports: Vec::new(),
            control: Control::new(config.addressing, mac, config.seed, &mut device.split().1, now_ns),
            neighbors: Neighbors::default(),
            flows: Flows::new(secrets.flows()),
            secrets,
            resources: Resources { pool: Pool::new(config.limits.buffer_bytes), counters: NetworkFigures::default() },
            slots: Slab::new(connections),
            timers: Wheel::new(now_ns),
            expendable: BTreeSet::new(),
            half_open: 0,
            half_open_limit: (connections / HALF_OPEN_DIVISOR).clamp(1, MAX_HALF_OPEN),
            cookies: Cookies::default(),
            // Where memory is short these cannot grow, so they have their size from the start.
            events: VecDeque::with_capacity(connections),
            egress: VecDeque::with_capacity(connections),
            unresolved: Vec::with_capacity(connections),
            starved: VecDeque::with_capacity(connections),
            resets: RateLimit::new(RESETS_PER_S),
            icmp: RateLimit::new(ICMP_PER_S),
        };
        stack.set_keepalive(config.keepalive_s);
        if let Addressing::Static { address, prefix_bits, gateway } = config.addressing {
            stack.set_lease(Some(Lease { address, prefix_bits, gateway }));
        }
        Ok(stack)
    }

    /// Accepts connections to `port`. Connections to ports that are not listened on are reset.
    pub fn listen(&mut self, port: u16) {
        assert!(port != 0, "port 0 cannot be connected to (RFC 9293 §3.1)");
        if !self.ports.contains(&port) {
            self.ports.push(port);
        }
    }

    /// Gives UDP datagrams for `port` to [`Take::datagram`].
    pub fn serve_datagrams(&mut self, port: u16) {
        self.datagram_ports.push(port);
    }

    /// Serves no datagrams any more.
    pub fn refuse_datagrams(&mut self) {
        self.datagram_ports.clear();
    }

    /// Opens a connection to `remote`, or returns `None` where there is no room for one, no address of its own to open
    /// it from, or no port.
    ///
    /// [`send`](Self::send) takes bytes once it is established, which [`Event::Writable`] then says as usual;
    /// [`Event::Closed`] says that it was refused or not answered.
    pub fn connect(&mut self, remote: SocketAddrV4, now_ns: u64) -> Option<ConnectionId> {
        let own = self.lease?.address;
        if !is_host(*remote.ip()) || *remote.ip() == own || remote.port() == 0 {
            return None;
        }
        let ports = DYNAMIC_PORTS.len() as u16;
        let first = self.secrets.next_port_offset(remote);
        let flow = (0..ports).find_map(|skipped| {
            let port = DYNAMIC_PORTS.start() + (first.wrapping_add(skipped)) % ports;
            let flow = FlowKey::new(*remote.ip(), remote.port(), port);
            self.is_free(flow).then_some(flow)
        })?;
        if let Some(ended) = self.flows.get(flow) {
            self.release(ended);
        }
        let slot = self.insert(flow, Origin::Active, now_ns)?;
        self.resources.counters.opened += 1;
        self.touch_egress(slot);
        Some(ConnectionId(slot))
    }

    /// Whether a connection can be opened for a flow: there is none, or one whose peer has ended it and knows of our end.
    fn is_free(&self, flow: FlowKey) -> bool {
        let connection = self.flows.get(flow).and_then(|slot| self.slots.get(slot)).map(|slot| &slot.connection);
        connection.is_none_or(|connection| connection.owner == Owner::Nobody && connection.state == State::TimeWait)
    }

    /// Changes [`Config::keepalive_s`] for the connections to come.
    pub fn set_keepalive(&mut self, keepalive_s: u32) {
        self.keepalive_ns = u64::from(keepalive_s) * 1_000_000_000;
    }

    /// The station's address, once it has one.
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// Connections in whatever state, among them those that the application has closed and that have yet to end.
    pub fn connections(&self) -> usize {
        self.slots.len()
    }

    /// Bytes that all connections' buffers take together.
    pub fn buffer_bytes(&self) -> usize {
        self.resources.pool.used_bytes()
    }

    /// Frames taken from the device so far.
    pub fn frames_received(&self) -> u64 {
        self.resources.counters.frames_received
    }

    /// What has happened so far, and what there is now.
    pub fn figures(&self) -> NetworkFigures {
        NetworkFigures {
            connections: self.slots.len() as u64,
            half_open: self.half_open as u64,
            buffer_bytes: self.resources.pool.used_bytes() as u64,
            buffer_limit_bytes: self.resources.pool.limit_bytes() as u64,
            ..self.resources.counters
        }
    }

    /// Takes frames from `device`, answers what needs no application, and collects events for
    /// [`next_event`](Self::next_event).
    ///
    /// Frames are left in the device when it cannot send, so that no answer is lost, and when there are very many, so
    /// that the application gets its turn.
    pub fn poll<D: FrameDevice>(&mut self, device: &mut D, now_ns: u64) {
        self.poll_with(device, &mut NobodyTakes, now_ns);
    }

    /// Like [`poll`](Self::poll), but offers data to the application where the device has put it, so that what it takes is
    /// never copied.
    pub fn poll_with<D: FrameDevice>(&mut self, device: &mut D, take: &mut impl Take, now_ns: u64) {
        let (mut rx, mut tx) = device.split();
        for _ in 0..MAX_FRAMES_PER_POLL {
            if !tx.ready() || rx.receive(|frame| self.receive_frame(&frame, &mut tx, take, now_ns)).is_none() {
                break;
            }
        }
        if let Some(lease) = self.control.run(&mut tx, now_ns) {
            self.set_lease(lease);
        }
        if let Some(lease) = self.lease.filter(|_| self.unannounced) {
            self.unannounced = !announce(&mut tx, self.mac, lease.address);
        }
        while let Some(slot) = self.timers.pop(now_ns) {
            self.touch_egress(slot);
        }
        tx.flush();
    }

    /// The next thing that has happened. All are to be taken before [`flush`](Self::flush).
    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.address_events.pop_front() {
            return Some(event);
        }
        while let Some(&number) = self.events.front() {
            if let Some(slot) = self.slots.get_mut(number) {
                if let Some(change) = slot.connection.next_change(&self.resources.pool) {
                    return Some(self.event(number, change));
                }
                slot.in_events = false;
            }
            self.events.pop_front();
        }
        None
    }

    fn event(&mut self, number: u32, change: Change) -> Event {
        let connection = ConnectionId(number);
        match change {
            Change::Readable => Event::Readable(connection),
            Change::Writable => Event::Writable(connection),
            Change::EndOfStream => Event::EndOfStream(connection),
            Change::Closed => {
                // Now that nobody owns it, it can be released.
                self.touch_egress(number);
                Event::Closed(connection)
            }
            Change::Accepted => {
                let (opened_ns, flow) =
                    self.slots.get(number).map_or((0, FlowKey::new(Ipv4Addr::UNSPECIFIED, 0, 0)), |slot| {
                        (slot.connection.opened_ns, slot.connection.flow)
                    });
                self.forget_half_open(opened_ns, number);
                let own = self.lease.map_or(Ipv4Addr::UNSPECIFIED, |lease| lease.address);
                Event::Accepted {
                    connection,
                    remote: SocketAddrV4::new(flow.remote(), flow.remote_port()),
                    local: SocketAddrV4::new(own, flow.local_port()),
                }
            }
        }
    }

    /// The first run of received bytes that have not been consumed, empty if there are none.
    #[inline]
    pub fn readable(&mut self, connection: ConnectionId) -> &[u8] {
        self.owned(connection).map_or(&[], |(connection, _)| connection.readable())
    }

    /// Gives up the first `len` bytes of what [`readable`](Self::readable) returns.
    #[inline]
    pub fn consume(&mut self, id: ConnectionId, len: usize) {
        if let Some((connection, resources)) = self.owned(id) {
            let len = len.min(connection.readable().len());
            connection.consume(len, &mut resources.pool);
            // The window may open, and the end of the stream may have been reached.
            if connection.is_at_end() {
                self.touch_events(id.0);
            }
            self.touch_egress(id.0);
        }
    }

    /// Queues bytes to be sent and returns how many there was room for. If that were not all,
    /// [`Event::Writable`] follows when there is room again.
    #[inline]
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        let Some((connection, resources)) = self.owned(id) else { return 0 };
        let sent = connection.send(bytes, &mut resources.pool);
        if sent > 0 {
            self.touch_egress(id.0);
        }
        if sent < bytes.len() {
            self.starve(id.0);
        }
        sent
    }

    /// Ends the sending half of a connection once what was queued is sent. What the peer sends can still be read; after
    /// [`Event::EndOfStream`] nothing happens any more, and the application closes the connection.
    pub fn finish(&mut self, id: ConnectionId) {
        if let Some((connection, _)) = self.owned(id) {
            connection.finish();
            self.touch_egress(id.0);
        }
    }

    /// Ends a connection once what was queued is sent. The application is done with it: no event follows, and its id
    /// may be given out again.
    pub fn close(&mut self, id: ConnectionId, now_ns: u64) {
        if let Some((connection, resources)) = self.owned(id) {
            connection.close(now_ns.saturating_add(LINGER_NS), &mut resources.pool);
            self.touch_egress(id.0);
        }
    }

    /// Resets a connection and drops what was queued. The application is done with it, as after
    /// [`close`](Self::close).
    pub fn abort(&mut self, id: ConnectionId) {
        if let Some((connection, resources)) = self.owned(id) {
            connection.abort(&mut resources.pool);
            self.touch_egress(id.0);
        }
    }

    /// Sends what the application queued, acknowledges what it read, and retransmits what is overdue.
    pub fn flush<D: FrameDevice>(&mut self, device: &mut D, now_ns: u64) {
        let (_, mut tx) = device.split();
        while let Some(&slot) = self.egress.front() {
            if !tx.ready() || !self.send_segments(slot, &mut tx, now_ns) {
                break;
            }
            self.egress.pop_front();
        }
        self.feed_starved();
        tx.flush();
    }

    /// When the next turn is due even if nothing arrives, in the clock of `now_ns`.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        if !(self.events.is_empty() && self.egress.is_empty() && self.address_events.is_empty()) {
            return Some(0);
        }
        [self.timers.next_deadline_ns(), self.control.next_deadline_ns()].into_iter().flatten().min()
    }

    /// Handles one frame. Its memory may be shared with the device: headers are copied out of it once, and a device that
    /// changes data behind its checksum could as well have sent other data.
    #[inline]
    fn receive_frame(&mut self, frame: &Received<'_>, tx: &mut impl FrameTx, take: &mut impl Take, now_ns: u64) {
        let bytes = frame.head;
        let own = self.lease.map(|lease| lease.address);
        self.resources.counters.frames_received += 1;
        match classify(frame, self.mac, own) {
            Class::Ignored => {}
            Class::Malformed => self.resources.counters.dropped_malformed += 1,
            Class::Damaged => self.resources.counters.dropped_checksum += 1,
            Class::Tcp(packet) => self.receive_packet(&packet, frame, tx, take, now_ns),
            Class::Udp(packet) => self.receive_datagram(&packet, frame, tx, take, now_ns),
            Class::Arp(packet) => {
                if self.neighbors.on_packet(packet, own, now_ns) {
                    self.touch_unresolved();
                }
                self.control.receive(bytes, tx, now_ns);
            }
            Class::Icmp(message) => {
                if !self.icmp.allows(now_ns) {
                    self.resources.counters.dropped_rate_limit += 1;
                } else if let Some(too_large) = own.and_then(|own| frame::parse_too_large(message, own)) {
                    self.reduce_path_mtu(too_large);
                } else {
                    self.control.receive(bytes, tx, now_ns);
                }
            }
            Class::Other => self.control.receive(bytes, tx, now_ns),
        }
    }

    /// Answers a datagram for a service at once, to where it came from; `smoltcp` sees the others.
    fn receive_datagram(
        &mut self,
        packet: &Packet<'_>,
        frame: &Received<'_>,
        tx: &mut impl FrameTx,
        take: &mut impl Take,
        now_ns: u64,
    ) {
        let Some(own) = self.lease.map(|lease| lease.address) else { return };
        let Datagram { source_port, destination_port, data } =
            match frame::parse_datagram(packet, own, frame, self.checksums) {
                Ok(datagram) => datagram,
                Err(frame::Unusable::Damaged) => return self.resources.counters.dropped_checksum += 1,
                Err(frame::Unusable::Malformed) => return self.resources.counters.dropped_malformed += 1,
            };
        if !self.datagram_ports.contains(&destination_port) {
            return self.control.receive(frame.head, tx, now_ns);
        }
        self.resources.counters.datagrams_received += 1;
        let mut reply = [0; frame::MAX_DATAGRAM_BYTES];
        let remote = SocketAddrV4::new(packet.source, source_port);
        let Some(len) = take.datagram(destination_port, remote, data, &mut reply) else { return };
        let route = Route { mac: self.mac, own, hardware: packet.hardware, remote: packet.source };
        let answer = Datagram { source_port: destination_port, destination_port: source_port, data: &reply[..len] };
        self.resources.counters.datagrams_sent += u64::from(frame::send_datagram(tx, &route, &answer));
    }

    fn reduce_path_mtu(&mut self, (flow, seq, packet_bytes): (FlowKey, u32, u16)) {
        if let Some(number) = self.flows.get(flow)
            && let Some(slot) = self.slots.get_mut(number)
        {
            slot.connection.reduce_path_mtu(packet_bytes, Seq(seq));
            self.touch_egress(number);
        }
    }

    /// Gives a segment to its connection.
    #[inline]
    fn receive_packet(
        &mut self,
        packet: &Packet<'_>,
        frame: &Received<'_>,
        tx: &mut impl FrameTx,
        take: &mut impl Take,
        now_ns: u64,
    ) {
        let Some(own) = self.lease.map(|lease| lease.address) else { return };
        let (segment, payload) = match frame::parse_segment(packet, own, frame, self.checksums) {
            Ok(parsed) => parsed,
            Err(frame::Unusable::Damaged) => return self.resources.counters.dropped_checksum += 1,
            Err(frame::Unusable::Malformed) => return self.resources.counters.dropped_malformed += 1,
        };
        self.resources.counters.segments_received += 1;
        let flow = FlowKey::new(packet.source, segment.source_port, segment.destination_port);
        let payload_bytes = payload.len() + packet.rest_bytes;
        let number = match self.slot_for(flow, &segment, now_ns) {
            Place::Connection(number) => number,
            Place::None => return self.refuse(packet, own, &segment, payload_bytes, tx, now_ns),
            Place::Unclear => return self.resources.counters.dropped_out_of_window += 1,
            Place::Cookie => return self.answer_by_cookie(packet, own, flow, &segment, tx, now_ns),
        };
        let Some(slot) = self.slots.get_mut(number) else { return };
        let mut take = |bytes: &[u8]| take.take(ConnectionId(number), bytes);
        let verdict = if packet.rest_bytes == 0 {
            slot.connection.on_segment(&segment, payload, &mut self.resources, &mut take, now_ns)
        } else {
            let rest = (frame.rest, packet.rest_bytes);
            slot.connection.on_merged(segment, payload, rest, &mut self.resources, &mut take, now_ns)
        };
        self.touch_events(number);
        self.touch_egress(number);
        if verdict == Verdict::Reset {
            self.refuse(packet, own, &segment, payload_bytes, tx, now_ns);
        }
    }

    /// Answers a segment that belongs to nothing (RFC 9293 §3.10.7.1), to where it came from.
    fn refuse(
        &mut self,
        packet: &Packet<'_>,
        own: Ipv4Addr,
        segment: &Segment,
        payload_bytes: usize,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) {
        // A reset must never be answered with a reset (RFC 9293 §3.5.2).
        if segment.flags.has(Flags::RST) {
            return;
        }
        if !self.resets.allows(now_ns) {
            self.resources.counters.dropped_rate_limit += 1;
            return;
        }
        let mut reset = Segment {
            source_port: segment.destination_port,
            destination_port: segment.source_port,
            flags: Flags::RST,
            ..Segment::default()
        };
        if segment.flags.has(Flags::ACK) {
            reset.seq = segment.ack;
        } else {
            reset.flags = Flags::RST | Flags::ACK;
            reset.ack = segment.seq + segment.sequence_len(payload_bytes);
        }
        let route = Route { mac: self.mac, own, hardware: packet.hardware, remote: packet.source };
        if frame::send_segment(tx, &route, &reset, (0, 0), |_, _| {}) {
            self.resources.counters.resets_sent += 1;
            self.resources.counters.segments_sent += 1;
        }
    }

    /// Finds the connection that a segment belongs to, or opens one.
    #[inline]
    fn slot_for(&mut self, flow: FlowKey, segment: &Segment, now_ns: u64) -> Place {
        let opens = segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::RST);
        if let Some(number) = self.flows.get(flow) {
            let Some(slot) = self.slots.get(number) else { return Place::None };
            let gives_way = if opens {
                // The peer has begun anew with the same port (RFC 9293 §3.6.1).
                slot.connection.gives_way_to(segment)
            } else {
                // Of a SYN that came twice, one was answered by a cookie, and that answer was taken.
                slot.connection.owner == Owner::Handshake
                    && slot.connection.has_not_sent(segment.ack)
                    && self.cookies.take(&self.secrets, flow, segment, now_ns).is_some()
            };
            if !gives_way {
                return Place::Connection(number);
            }
            self.release(number);
        }
        self.open(flow, segment, opens, now_ns)
    }

    /// Opens a connection for a segment that there is none for, if it may.
    fn open(&mut self, flow: FlowKey, segment: &Segment, opens: bool, now_ns: u64) -> Place {
        if !self.ports.contains(&flow.local_port()) {
            return Place::None;
        }
        let number = if opens {
            if self.half_open >= self.half_open_limit {
                return Place::Cookie;
            }
            self.insert(flow, Origin::Passive(segment), now_ns)
        } else {
            let Some((syn, iss)) = self.cookies.take(&self.secrets, flow, segment, now_ns) else {
                return if self.cookies.are_out(now_ns) { Place::Unclear } else { Place::None };
            };
            let number = self.insert_with(flow, Origin::Passive(&syn), iss, now_ns);
            if let Some(slot) = number.and_then(|number| self.slots.get_mut(number)) {
                slot.connection.answer_once(&self.resources.pool, now_ns);
                self.resources.counters.cookies_accepted += 1;
            }
            number
        };
        let Some(slot) = number else {
            self.resources.counters.dropped_syns += 1;
            return Place::None;
        };
        self.expendable.insert(Expendable::HalfOpen { opened_ns: now_ns, slot });
        self.half_open += 1;
        Place::Connection(slot)
    }

    /// Answers a SYN and keeps nothing of it.
    fn answer_by_cookie(
        &mut self,
        packet: &Packet<'_>,
        own: Ipv4Addr,
        flow: FlowKey,
        syn: &Segment,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) {
        let iss = self.cookies.give(&self.secrets, flow, syn, now_ns);
        let mut connection = Connection::new(self.setup(flow, iss), Origin::Passive(syn), now_ns);
        let mut answer = connection.answer_once(&self.resources.pool, now_ns);
        if let Some(timestamps) = &mut answer.timestamps {
            timestamps.value = cookies::with_options(timestamps.value, syn);
        }
        let route = Route { mac: self.mac, own, hardware: packet.hardware, remote: packet.source };
        if frame::send_segment(tx, &route, &answer, (0, 0), |_, _| {}) {
            self.resources.counters.cookies_sent += 1;
            self.resources.counters.segments_sent += 1;
        }
    }

    /// Makes a connection, if need be in the place of one that is expendable.
    fn insert(&mut self, flow: FlowKey, origin: Origin<'_>, now_ns: u64) -> Option<u32> {
        let iss = self.secrets.initial_sequence(flow, now_ns);
        self.insert_with(flow, origin, iss, now_ns)
    }

    fn setup(&self, flow: FlowKey, iss: Seq) -> Setup {
        Setup { flow, iss, timestamp_offset: self.secrets.timestamp_offset(flow), keepalive_ns: self.keepalive_ns }
    }

    fn insert_with(&mut self, flow: FlowKey, origin: Origin<'_>, iss: Seq, now_ns: u64) -> Option<u32> {
        while self.slots.is_full() {
            // A flood of SYNs displaces itself, and never a connection that was established.
            match self.expendable.first() {
                Some(&Expendable::TimeWait { slot }) => self.release(slot),
                Some(&Expendable::HalfOpen { slot, .. }) => {
                    self.resources.counters.dropped_half_open += 1;
                    self.release(slot);
                }
                None => {
                    log::debug!("a connection was refused: {} are open", self.slots.len());
                    return None;
                }
            }
        }
        let connection = Connection::new(self.setup(flow, iss), origin, now_ns);
        let slot =
            Slot { connection, way: None, in_events: false, in_egress: false, in_unresolved: false, in_starved: false };
        let number = self.slots.insert(slot);
        let is_in =
            number.is_some_and(|number| self.timers.reserve(self.slots.end()) && self.flows.insert(flow, number));
        if !is_in {
            log::debug!("a connection was refused: no memory for it");
            number.map(|number| self.slots.remove(number));
            return None;
        }
        number
    }

    /// Forgets a connection without a word to its peer.
    fn release(&mut self, number: u32) {
        let Some(mut slot) = self.slots.remove(number) else { return };
        if slot.connection.owner == Owner::Handshake {
            self.forget_half_open(slot.connection.opened_ns, number);
        }
        self.expendable.remove(&Expendable::TimeWait { slot: number });
        self.timers.cancel(number);
        self.flows.remove(slot.connection.flow);
        slot.connection.release_buffers(&mut self.resources.pool);
    }

    fn forget_half_open(&mut self, opened_ns: u64, slot: u32) {
        self.half_open -= usize::from(self.expendable.remove(&Expendable::HalfOpen { opened_ns, slot }));
    }

    /// The application's connection of that id. After [`Event::Closed`] or [`close`](Self::close) there is none.
    #[inline]
    fn owned(&mut self, id: ConnectionId) -> Option<(&mut Connection, &mut Resources)> {
        let connection = &mut self.slots.get_mut(id.0)?.connection;
        (connection.owner == Owner::Application).then_some((connection, &mut self.resources))
    }

    /// Has a connection looked at for events.
    #[inline]
    fn touch_events(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number)
            && !core::mem::replace(&mut slot.in_events, true)
        {
            self.events.push_back(number);
        }
    }

    /// Has a connection looked at for segments to send.
    #[inline]
    fn touch_egress(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number)
            && !core::mem::replace(&mut slot.in_egress, true)
        {
            self.egress.push_back(number);
        }
    }

    /// Has those looked at that wait for their neighbors.
    fn touch_unresolved(&mut self) {
        while let Some(number) = self.unresolved.pop() {
            if let Some(slot) = self.slots.get_mut(number) {
                slot.in_unresolved = false;
            }
            self.touch_egress(number);
        }
    }

    /// Remembers a connection that could not send for want of memory. Others give it back.
    fn starve(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number)
            && !core::mem::replace(&mut slot.in_starved, true)
        {
            self.starved.push_back(number);
        }
    }

    /// Has those looked at that could not send, if they can now.
    fn feed_starved(&mut self) {
        for _ in 0..self.starved.len().min(STARVED_PER_TURN) {
            if !self.resources.pool.has_free() {
                return;
            }
            let Some(number) = self.starved.pop_front() else { return };
            let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.in_starved) else { continue };
            if !slot.connection.waits_for_room() {
                slot.in_starved = false;
            } else if slot.connection.has_room(&self.resources.pool) {
                slot.in_starved = false;
                self.touch_events(number);
            } else {
                self.starved.push_back(number);
            }
        }
    }

    /// Where the frames of a connection go. Where that is not known, the link is asked.
    #[inline]
    fn way(&mut self, number: u32, tx: &mut impl FrameTx, now_ns: u64) -> Option<Route> {
        let lease = self.lease?;
        let slot = self.slots.get_mut(number)?;
        let remote = slot.connection.flow.remote();
        let (mac, own) = (self.mac, lease.address);
        let is_suspect = slot.connection.timeouts_in_a_row() >= TIMEOUTS_OF_A_DEAD_NEIGHBOR;
        if let Some((generation, hardware)) = slot.way
            && generation == self.neighbors.generation()
            && !is_suspect
        {
            return Some(Route { mac, own, hardware, remote });
        }
        let hop = lease.next_hop(remote)?;
        let known = self.neighbors.get(hop);
        if (known.is_none() || is_suspect) && self.neighbors.ask(hop, now_ns) {
            frame::ask(tx, mac, own, hop);
        }
        let hardware = known?;
        slot.way = Some((self.neighbors.generation(), hardware));
        Some(Route { mac, own, hardware, remote })
    }

    /// Sends all that one connection may send now. Returns whether that was all, or the device is full.
    fn send_segments(&mut self, number: u32, tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let Some(slot) = self.slots.get_mut(number) else { return true };
        slot.connection.on_timers(&mut self.resources, now_ns);
        let mut wake_ns = NEVER_NS;
        match self.way(number, tx, now_ns) {
            Some(route) => {
                if !self.send_all(number, &route, tx, now_ns) {
                    return false;
                }
            }
            None => wake_ns = self.await_neighbor(number, now_ns),
        }
        let Some(slot) = self.slots.get_mut(number) else { return true };
        slot.in_egress = false;
        let connection = &mut slot.connection;
        // A reset that has not left by now is for a neighbor whose address is not known, and nobody waits for that.
        let is_given_up = connection.owner == Owner::Nobody && connection.state == State::Closed;
        if is_given_up || connection.is_over() {
            match connection.owner {
                // It ended by a timeout just now, or its application has something left to read.
                Owner::Application => self.touch_events(number),
                Owner::Handshake | Owner::Nobody => self.release(number),
            }
            return true;
        }
        if connection.owner == Owner::Nobody && connection.state == State::TimeWait {
            self.expendable.insert(Expendable::TimeWait { slot: number });
        }
        let deadline_ns = connection.deadline_ns().min(wake_ns);
        if deadline_ns != NEVER_NS {
            self.timers.set(number, deadline_ns);
        }
        true
    }

    /// Sends until there is nothing left or the device is full. Returns whether it was the former.
    #[inline]
    fn send_all(&mut self, number: u32, route: &Route, tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let Some(slot) = self.slots.get_mut(number) else { return true };
        loop {
            if !tx.ready() {
                return false;
            }
            let segment_bytes = slot.connection.segment_bytes();
            let most = if slot.connection.unsent_bytes() > segment_bytes {
                frame::room_for_data(tx, segment_bytes)
            } else {
                segment_bytes
            };
            let Some(next) = slot.connection.next_segment(most, &mut self.resources, now_ns) else { return true };
            self.resources.counters.segments_sent += 1;
            let fill = |at: usize, bytes: &mut [u8]| slot.connection.copy_to(next.offset + at, bytes);
            frame::send_segment(tx, route, &next.segment, (next.len, segment_bytes), fill);
        }
    }

    /// Has a connection wait for its neighbor's address, and says until when at most.
    fn await_neighbor(&mut self, number: u32, now_ns: u64) -> u64 {
        if let Some(slot) = self.slots.get_mut(number)
            && !core::mem::replace(&mut slot.in_unresolved, true)
        {
            self.unresolved.push(number);
        }
        now_ns.saturating_add(ASK_INTERVAL_NS)
    }

    fn set_lease(&mut self, lease: Option<Lease>) {
        let moves = self.lease.map(|lease| lease.address) != lease.map(|lease| lease.address);
        self.lease = lease;
        self.unannounced = lease.is_some();
        self.control.set_address(lease);
        self.neighbors.clear();
        self.address_events.push_back(lease.map_or(Event::AddressLost, Event::AddressAcquired));
        if !moves {
            return;
        }
        // Connections are those of an address.
        for number in 0..self.slots.end() {
            if let Some(slot) = self.slots.get_mut(number) {
                slot.connection.fail(&mut self.resources.pool);
                self.touch_events(number);
                self.touch_egress(number);
            }
        }
    }
}

impl Lease {
    /// Whom to give a packet for `remote` to: the station itself, or the router.
    fn next_hop(&self, remote: Ipv4Addr) -> Option<Ipv4Addr> {
        let differs = self.address.to_bits() ^ remote.to_bits();
        let is_on_link = differs.checked_shr(32 - u32::from(self.prefix_bits.min(32))).unwrap_or(0) == 0;
        if is_on_link { Some(remote) } else { self.gateway }
    }
}
