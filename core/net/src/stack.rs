use crate::{
    connection::{Connection, ConnectionId, Owner},
    frame::{Class, FlowKey, FrameIo, announce, classify, is_host},
    limits::Limits,
};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};
use core::net::{Ipv4Addr, SocketAddrV4};
use kayvee_platform::{Addressing, FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES};
use smoltcp::{
    iface::{self, Interface, PollResult, SocketHandle, SocketSet},
    socket::{dhcpv4, tcp::State},
    time::{Duration, Instant},
    wire::{EthernetAddress, IpCidr, Ipv4Cidr},
};

/// Frames taken from the device in one [`Stack::poll`], so that the application gets its turn under any load.
const MAX_FRAMES_PER_POLL: usize = 256;

/// The ports that connections are opened from (RFC 6335 §6).
const DYNAMIC_PORTS: core::ops::RangeInclusive<u16> = 49_152..=65_535;

/// How long a connection that the application has closed may take to end.
const LINGER_NS: u64 = 60 * 1_000_000_000;

/// A socket that wants to be served at once although it had nothing to send is served again after this long.
const RETRY_NS: u64 = 1_000_000;

/// First wait for a DHCP server's offer or acknowledgement. A machine that boots in milliseconds is often there before
/// its link is, and RFC 2131 §4.1 leaves the interval to the client.
const DHCP_RETRY: Duration = Duration::from_secs(1);

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
    /// From the platform's entropy: initial sequence numbers come from it.
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

/// A TCP/IP stack; see the crate's documentation for how to drive it.
pub struct Stack {
    interface: Interface,
    mac: EthernetAddress,
    config: Config,
    keepalive: Option<Duration>,
    lease: Option<Lease>,
    /// The link has yet to be told of the address.
    unannounced: bool,
    address_events: VecDeque<Event>,
    ports: Vec<u16>,
    /// How far into [`DYNAMIC_PORTS`] the next connection's search for a port begins.
    ports_used: u16,
    /// What is no connection: the DHCP client, and whom ARP and ICMP are answered for.
    control: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    control_deadline_ns: u64,
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    flows: BTreeMap<FlowKey, u32>,
    /// Deadlines of connections, at most one for each.
    timers: BTreeSet<(u64, u32)>,
    /// Connections that can be given up for new ones, the least dear first.
    expendable: BTreeSet<Expendable>,
    buffer_bytes_used: usize,
    /// Connections that the application may have to hear of.
    events: VecDeque<u32>,
    /// Connections that may have segments to send or timers to set.
    egress: VecDeque<u32>,
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
        let mut interface_config = iface::Config::new(mac.into());
        interface_config.random_seed = config.seed;
        let mut io = FrameIo { received: None, tx: device.split().1 };
        let interface = Interface::new(interface_config, &mut io, instant(now_ns));
        let mut control = SocketSet::new(Vec::new());
        let dhcp = (config.addressing == Addressing::Dhcp).then(|| {
            let mut socket = dhcpv4::Socket::new();
            let mut retry = socket.get_retry_config();
            retry.discover_timeout = DHCP_RETRY;
            retry.initial_request_timeout = DHCP_RETRY;
            socket.set_retry_config(retry);
            control.add(socket)
        });
        let mut stack = Stack {
            interface,
            mac,
            config,
            keepalive: None,
            lease: None,
            unannounced: false,
            address_events: VecDeque::new(),
            ports: Vec::new(),
            ports_used: 0,
            control,
            dhcp,
            control_deadline_ns: now_ns,
            // Where memory is short these cannot grow, so they have their size from the start.
            slots: Vec::with_capacity(config.limits.connections),
            free: Vec::with_capacity(config.limits.connections),
            flows: BTreeMap::new(),
            timers: BTreeSet::new(),
            expendable: BTreeSet::new(),
            buffer_bytes_used: 0,
            events: VecDeque::with_capacity(config.limits.connections),
            egress: VecDeque::with_capacity(config.limits.connections),
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

    /// Opens a connection to `remote`, or returns `None` where there is no room for one, no address of its own to open
    /// it from, or no port.
    ///
    /// [`send`](Self::send) takes bytes once it is established, which [`Event::Writable`] then says as usual;
    /// [`Event::Closed`] says that it was refused or not answered.
    pub fn connect(&mut self, remote: SocketAddrV4, now_ns: u64) -> Option<ConnectionId> {
        self.lease?;
        if !is_host(*remote.ip()) || remote.port() == 0 {
            return None;
        }
        let ports = DYNAMIC_PORTS.len() as u16;
        let flow = (0..ports).find_map(|skipped| {
            let port = DYNAMIC_PORTS.start() + (self.ports_used.wrapping_add(skipped)) % ports;
            let flow = FlowKey::new(*remote.ip(), remote.port(), port);
            self.is_free(flow).then_some(flow)
        })?;
        if let Some(&ended) = self.flows.get(&flow) {
            self.release(ended);
        }
        self.ports_used = (flow.local_port() - DYNAMIC_PORTS.start() + 1) % ports;
        let share = self.make_room()?;
        let context = self.interface.context();
        let connection = Connection::connect(flow, share, self.keepalive, context, now_ns).ok()?;
        let slot = self.insert(connection);
        self.touch_egress(slot);
        Some(ConnectionId(slot))
    }

    /// Whether a connection can be opened for a flow: there is none, or one whose peer has ended it and knows of our end.
    fn is_free(&self, flow: FlowKey) -> bool {
        let connection = self.flows.get(&flow).and_then(|&slot| self.slots[slot as usize].as_ref());
        connection.is_none_or(|connection| connection.owner == Owner::Nobody && connection.state() == State::TimeWait)
    }

    /// Changes [`Config::keepalive_s`] for the connections to come.
    pub fn set_keepalive(&mut self, keepalive_s: u32) {
        self.keepalive = (keepalive_s > 0).then(|| Duration::from_secs(keepalive_s.into()));
    }

    /// The station's address, once it has one.
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// Connections in whatever state, among them those that the application has closed and that have yet to end.
    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    /// Bytes that all connections' buffers take together.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes_used
    }

    /// Takes frames from `device`, answers what needs no application, and collects events for
    /// [`next_event`](Self::next_event).
    ///
    /// Frames are left in the device when it cannot send, so that no answer is lost, and when there are very many, so
    /// that the application gets its turn.
    pub fn poll<D: FrameDevice>(&mut self, device: &mut D, now_ns: u64) {
        let (rx, tx) = device.split();
        // The device shares the memory that it lends: frames are read once, into memory that is the stack's own.
        let mut buffer = [0; MAX_FRAME_BYTES];
        let mut neighbors_changed = false;
        for _ in 0..MAX_FRAMES_PER_POLL {
            if !tx.ready() {
                break;
            }
            let received = rx.receive(|frame| {
                let copy = buffer.get_mut(..frame.len())?;
                copy.copy_from_slice(frame);
                Some(frame.len())
            });
            match received {
                None => break,
                Some(None) => log::debug!("a frame of more than {MAX_FRAME_BYTES} bytes was dropped"),
                Some(Some(len)) => neighbors_changed |= self.receive_frame(&buffer[..len], tx, now_ns),
            }
        }
        if neighbors_changed {
            // Some connection may have waited for this address. Such frames are rare.
            self.touch_all();
        }
        self.run_control(tx, now_ns);
        if let Some(lease) = self.lease.filter(|_| self.unannounced) {
            self.unannounced = !announce(tx, self.mac, lease.address);
        }
        while let Some(&(due_ns, slot)) = self.timers.first()
            && due_ns <= now_ns
        {
            self.timers.pop_first();
            if let Some(connection) = self.connection(slot) {
                connection.scheduled_ns = u64::MAX;
            }
            self.touch(slot);
        }
        tx.flush();
    }

    /// The next thing that has happened. All are to be taken before [`flush`](Self::flush).
    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.address_events.pop_front() {
            return Some(event);
        }
        while let Some(&slot) = self.events.front() {
            if let Some(connection) = self.slots[slot as usize].as_mut() {
                if let Some(event) = connection.next_event(ConnectionId(slot)) {
                    match event {
                        Event::Accepted { .. } => {
                            let opened_ns = connection.opened_ns;
                            self.expendable.remove(&Expendable::HalfOpen { opened_ns, slot });
                        }
                        // Now that nobody owns it, it can be released.
                        Event::Closed(_) => self.touch_egress(slot),
                        _ => {}
                    }
                    return Some(event);
                }
                connection.in_events = false;
            }
            self.events.pop_front();
        }
        None
    }

    /// The first run of received bytes that have not been consumed, empty if there are none.
    pub fn readable(&mut self, connection: ConnectionId) -> &[u8] {
        match self.owned(connection) {
            Some(connection) => connection.socket().peek(usize::MAX).unwrap_or(&[]),
            None => &[],
        }
    }

    /// Gives up the first `len` bytes of what [`readable`](Self::readable) returns.
    pub fn consume(&mut self, connection: ConnectionId, len: usize) {
        if let Some(owned) = self.owned(connection) {
            let consumed = owned.socket().recv(|bytes| (len.min(bytes.len()), ()));
            debug_assert!(consumed.is_ok() || len == 0, "consumed bytes that were not readable");
            // The window may open, and the end of the stream may have been reached.
            if owned.socket().may_recv() {
                self.touch_egress(connection.0);
            } else {
                self.touch(connection.0);
            }
        }
    }

    /// Queues bytes to be sent and returns how many there was room for. If that were not all,
    /// [`Event::Writable`] follows when there is room again.
    pub fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> usize {
        let sent = self.owned(connection).map_or(0, |owned| owned.send(bytes));
        if sent > 0 {
            self.touch_egress(connection.0);
        }
        sent
    }

    /// Ends the sending half of a connection once what was queued is sent. What the peer sends can still be read; after
    /// [`Event::EndOfStream`] nothing happens any more, and the application closes the connection.
    pub fn finish(&mut self, connection: ConnectionId) {
        if let Some(owned) = self.owned(connection) {
            owned.finish();
            self.touch_egress(connection.0);
        }
    }

    /// Ends a connection once what was queued is sent. The application is done with it: no event follows, and its id
    /// may be given out again.
    pub fn close(&mut self, connection: ConnectionId, now_ns: u64) {
        if let Some(owned) = self.owned(connection) {
            owned.socket().close();
            owned.owner = Owner::Nobody;
            owned.linger_until_ns = now_ns.saturating_add(LINGER_NS);
            self.touch_egress(connection.0);
        }
    }

    /// Resets a connection and drops what was queued. The application is done with it, as after
    /// [`close`](Self::close).
    pub fn abort(&mut self, connection: ConnectionId) {
        if let Some(owned) = self.owned(connection) {
            owned.socket().abort();
            owned.owner = Owner::Nobody;
            self.touch_egress(connection.0);
        }
    }

    /// Sends what the application queued, acknowledges what it read, and retransmits what is overdue.
    pub fn flush<D: FrameDevice>(&mut self, device: &mut D, now_ns: u64) {
        let (_, tx) = device.split();
        while let Some(&slot) = self.egress.front() {
            if !tx.ready() {
                break;
            }
            if self.send_segments(slot, tx, now_ns) {
                self.egress.pop_front();
            }
        }
        tx.flush();
    }

    /// When the next turn is due even if nothing arrives, in the clock of `now_ns`.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        if !(self.events.is_empty() && self.egress.is_empty() && self.address_events.is_empty()) {
            return Some(0);
        }
        let timer_ns = self.timers.first().map_or(u64::MAX, |&(due_ns, _)| due_ns);
        Some(timer_ns.min(self.control_deadline_ns)).filter(|&deadline_ns| deadline_ns != u64::MAX)
    }

    /// Handles one frame and tells whether addresses of neighbors may have come with it.
    fn receive_frame(&mut self, frame: &[u8], tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let class = classify(frame, self.lease.map(|lease| lease.address));
        let mut io = FrameIo { received: Some(frame), tx };
        let now = instant(now_ns);
        match class {
            Class::Ignored => {}
            Class::ArpReply | Class::Other => {
                self.interface.poll_ingress_single(now, &mut io, &mut self.control);
                self.control_deadline_ns = 0;
            }
            Class::Tcp { flow, opens } => match self.slot_for(flow, opens, now_ns) {
                Some(slot) => {
                    if let Some(connection) = self.slots[slot as usize].as_mut() {
                        self.interface.poll_ingress_single(now, &mut io, &mut connection.sockets);
                        connection.note_segment();
                    }
                    self.touch(slot);
                }
                // No connection, and none that could be opened: without a socket the answer is a RST.
                None => {
                    self.interface.poll_ingress_single(now, &mut io, &mut self.control);
                }
            },
        }
        class == Class::ArpReply
    }

    /// Finds the connection that a segment belongs to, or opens one.
    fn slot_for(&mut self, flow: FlowKey, opens: bool, now_ns: u64) -> Option<u32> {
        if let Some(&slot) = self.flows.get(&flow) {
            let in_time_wait = opens && self.connection(slot)?.socket().state() == State::TimeWait;
            if !in_time_wait {
                return Some(slot);
            }
            // The peer has begun anew with the same port (RFC 9293 §3.6.1).
            self.release(slot);
        }
        if !opens || !self.ports.contains(&flow.local_port()) {
            return None;
        }
        self.open(flow, now_ns)
    }

    /// Makes a connection for a SYN.
    fn open(&mut self, flow: FlowKey, now_ns: u64) -> Option<u32> {
        let share = self.make_room()?;
        let connection = Connection::listen(flow, share, self.keepalive, now_ns)
            .inspect_err(|_| log::debug!("a connection was refused: no memory for its {share} bytes of buffers"))
            .ok()?;
        let slot = self.insert(connection);
        self.expendable.insert(Expendable::HalfOpen { opened_ns: now_ns, slot });
        Some(slot)
    }

    /// Finds room for one more connection, if need be in the place of one that is expendable, and returns the bytes of
    /// its buffers.
    fn make_room(&mut self) -> Option<usize> {
        loop {
            match (self.config.limits.share(self.flows.len(), self.buffer_bytes_used), self.expendable.first()) {
                (Some(share), _) => return Some(share),
                // A flood of SYNs displaces itself, and never a connection that was established.
                (None, Some(&(Expendable::TimeWait { slot } | Expendable::HalfOpen { slot, .. }))) => {
                    self.release(slot)
                }
                (None, None) => {
                    log::debug!("a connection was refused: {} are open", self.flows.len());
                    return None;
                }
            }
        }
    }

    fn insert(&mut self, connection: Connection) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.buffer_bytes_used += connection.buffer_bytes;
        self.flows.insert(connection.flow, slot);
        self.slots[slot as usize] = Some(connection);
        slot
    }

    /// Forgets a connection without a word to its peer.
    fn release(&mut self, slot: u32) {
        let Some(connection) = self.slots[slot as usize].take() else { return };
        if connection.owner == Owner::Handshake {
            self.expendable.remove(&Expendable::HalfOpen { opened_ns: connection.opened_ns, slot });
        }
        self.expendable.remove(&Expendable::TimeWait { slot });
        self.timers.remove(&(connection.scheduled_ns, slot));
        self.flows.remove(&connection.flow);
        self.buffer_bytes_used -= connection.buffer_bytes;
        self.free.push(slot);
    }

    fn connection(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The application's connection of that id. After [`Event::Closed`] or [`close`](Self::close) there is none.
    fn owned(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connection(id.0).filter(|connection| connection.owner == Owner::Application)
    }

    /// Has a connection looked at for events and for segments to send.
    fn touch(&mut self, slot: u32) {
        self.touch_events(slot);
        self.touch_egress(slot);
    }

    /// Has a connection looked at for events.
    fn touch_events(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot as usize).and_then(Option::as_mut)
            && !core::mem::replace(&mut connection.in_events, true)
        {
            self.events.push_back(slot);
        }
    }

    /// Has a connection looked at for segments to send.
    fn touch_egress(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot as usize).and_then(Option::as_mut)
            && !core::mem::replace(&mut connection.in_egress, true)
        {
            self.egress.push_back(slot);
        }
    }

    fn touch_all(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            self.touch(slot);
        }
    }

    /// Sends all that one connection may send now. Returns whether that was all, or the device is full.
    fn send_segments(&mut self, slot: u32, tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let Some(connection) = self.slots[slot as usize].as_mut() else { return true };
        let now = instant(now_ns);
        if connection.owner == Owner::Nobody {
            connection.discard_received();
            if connection.linger_until_ns <= now_ns {
                connection.socket().abort();
            }
        }
        connection.update_timeout();
        loop {
            if !tx.ready() {
                return false;
            }
            let mut io = FrameIo { received: None, tx };
            if self.interface.poll_egress(now, &mut io, &mut connection.sockets) == PollResult::None {
                break;
            }
        }
        connection.in_egress = false;
        // A reset that has not left by now is for a neighbor whose address is not known, and nobody waits for that.
        let given_up = connection.owner == Owner::Nobody && connection.socket().state() == State::Closed;
        if given_up || connection.is_over() {
            match connection.owner {
                // It ended by a timeout just now: the application has to hear of it first.
                Owner::Application => self.touch_events(slot),
                Owner::Handshake | Owner::Nobody => self.release(slot),
            }
            return true;
        }
        if connection.owner == Owner::Nobody && connection.socket().state() == State::TimeWait {
            self.expendable.insert(Expendable::TimeWait { slot });
        }
        let at = self.interface.poll_at(now, &connection.sockets);
        let mut deadline_ns = at.map_or(u64::MAX, |at| nanoseconds(at).max(now_ns.saturating_add(RETRY_NS)));
        deadline_ns = deadline_ns.min(connection.linger_until_ns);
        // A timer that is too early is left where it is: it fires for nothing once and is set anew, which is cheaper
        // than moving it with every segment.
        if deadline_ns < connection.scheduled_ns {
            self.timers.remove(&(connection.scheduled_ns, slot));
            connection.scheduled_ns = deadline_ns;
            self.timers.insert((deadline_ns, slot));
        }
        true
    }

    /// Gives the DHCP client its turn and takes over the address that it has got.
    fn run_control(&mut self, tx: &mut impl FrameTx, now_ns: u64) {
        let Some(dhcp) = self.dhcp else {
            self.control_deadline_ns = u64::MAX;
            return;
        };
        if self.control_deadline_ns > now_ns || !tx.ready() {
            return;
        }
        let mut io = FrameIo { received: None, tx };
        self.interface.poll_egress(instant(now_ns), &mut io, &mut self.control);
        let lease = match self.control.get_mut::<dhcpv4::Socket>(dhcp).poll() {
            Some(dhcpv4::Event::Configured(config)) => Some(Some(Lease {
                address: config.address.address(),
                prefix_bits: config.address.prefix_len(),
                // A server may send anything; a router that is no host would be looked for in vain.
                gateway: config.router.filter(|router| is_host(*router)),
            })),
            Some(dhcpv4::Event::Deconfigured) => Some(None),
            None => None,
        };
        if let Some(lease) = lease
            && lease != self.lease
        {
            self.set_lease(lease);
        }
        let deadline = self.interface.poll_at(instant(now_ns), &self.control);
        self.control_deadline_ns = deadline.map_or(u64::MAX, |at| nanoseconds(at).max(now_ns.saturating_add(RETRY_NS)));
    }

    fn set_lease(&mut self, lease: Option<Lease>) {
        self.lease = lease;
        self.unannounced = lease.is_some();
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            if let Some(lease) = lease {
                let pushed = addresses.push(IpCidr::Ipv4(Ipv4Cidr::new(lease.address, lease.prefix_bits)));
                debug_assert!(pushed.is_ok(), "there is room for one address");
            }
        });
        let routes = self.interface.routes_mut();
        routes.remove_default_ipv4_route();
        if let Some(gateway) = lease.and_then(|lease| lease.gateway) {
            let added = routes.add_default_ipv4_route(gateway);
            debug_assert!(added.is_ok(), "there is room for one route");
        }
        self.address_events.push_back(lease.map_or(Event::AddressLost, Event::AddressAcquired));
        // Connections of another address than this one end when they are looked at.
        self.touch_all();
    }
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

fn nanoseconds(at: Instant) -> u64 {
    (at.total_micros().max(0) as u64).saturating_mul(1000)
}
