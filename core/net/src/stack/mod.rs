//! The stack: what arrives is given to whom it concerns, and what they have to say is sent.

mod egress;
mod ingress;
mod interface;
mod shortage;
mod table;

pub use interface::{Config, ConfigError, ConnectionId, Event, Lease, Take};

use self::table::{Expendable, Slot, enlist};
use crate::{
    control::Control,
    cookies::Cookies,
    ends::{Ends, FlowKey, is_host, is_host6},
    flows::Flows,
    frame::{self, announce},
    ipv6::{Change as Ipv6Change, Ipv6},
    neighbors::Neighbors,
    pool::Pool,
    rate::RateLimit,
    secrets::Secrets,
    slab::Slab,
    tcp::{Change, NEVER_NS, Origin, Owner, Resources, State},
    wheel::Wheel,
};
use alloc::{
    collections::{BTreeSet, VecDeque},
    vec::Vec,
};
use core::net::{IpAddr, SocketAddr};
use kayvee_platform::{
    Addressing, Addressing6, Checksums, FrameDevice, FrameRx, FrameTx, MAX_FRAME_BYTES, NetworkFigures, earliest,
};
use smoltcp::wire::EthernetAddress;

/// Frames taken from the device in one [`Stack::poll`], so that the application gets its turn under any load.
const MAX_FRAMES_PER_POLL: usize = 256;
/// The same after a standstill: all that a card holds, so that peers have had their say before timers have theirs.
const MAX_FRAMES_AFTER_STANDSTILL: usize = 64 * MAX_FRAMES_PER_POLL;
/// A timer that runs out this much too late has run out while the station stood still: it was paused, or its host slept.
const STANDSTILL_NS: u64 = 1_000_000_000;

/// How long a device that cannot send keeps arriving frames from being taken.
const FULL_NS: u64 = 1_000_000;

/// The largest frame takes at most this part of all buffers, so that there is room for one on many connections: 1/64.
const FRAME_SHARE: usize = 64;

/// The ports that connections are opened from (RFC 6335 §6).
const DYNAMIC_PORTS: core::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Resets to those who have no connection, a second.
const RESETS_PER_S: u64 = 1000;
/// ICMP messages that are looked at, a second (RFC 1812 §4.3.2.8 has limits like this for what is sent).
const ICMP_PER_S: u64 = 1000;
/// Handshakes that may be open before SYNs are answered without keeping anything (RFC 4987 §3.6): this many, or this share
/// of all connections where there are few.
const MAX_HALF_OPEN: usize = 512;
const HALF_OPEN_DIVISOR: usize = 4;

/// Leaves everything to the receive buffers.
struct NobodyTakes;

impl Take for NobodyTakes {
    fn take(&mut self, _: ConnectionId, _: &[u8]) -> usize {
        0
    }
}

/// A TCP/IP stack; see the crate's documentation for how to drive it.
pub struct Stack {
    mac: EthernetAddress,
    checksums: Checksums,
    /// The largest packet of the link.
    mtu: u16,
    keepalive_ns: u64,
    lease: Option<Lease>,
    /// The link has yet to be told of the address.
    unannounced: bool,
    address_events: VecDeque<Event>,
    ports: Vec<u16>,
    datagram_ports: Vec<u16>,
    control: Control,
    ipv6: Ipv6,
    neighbors: Neighbors,
    secrets: Secrets,
    resources: Resources,
    slots: Slab<Slot>,
    flows: Flows,
    /// In the [time of connections](Self::own_ns), as all that is kept of them.
    timers: Wheel,
    /// How long the station has stood still in all.
    stood_still_ns: u64,
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
    /// Since when the device could not send at any poll.
    full_since_ns: u64,
    /// Connections whose neighbors' addresses are not known.
    unresolved: VecDeque<u32>,
    /// Connections that could not send for want of memory.
    starved: VecDeque<u32>,
    /// Who is next to give up what has come out of order, while all do.
    next_to_forget: Option<u32>,
    /// When to look again who reads, from when there is hardly any memory left until there is plenty.
    review_ns: u64,
    resets: RateLimit,
    icmp: RateLimit,
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
            return Err(ConfigError::Address(bad.into()));
        }
        if let Addressing6::Static { address, gateway, .. } = config.addressing6
            && let Some(bad) = [Some(address), gateway].into_iter().flatten().find(|address| !is_host6(*address))
        {
            return Err(ConfigError::Address(bad.into()));
        }
        let share_bytes = (config.limits.buffer_bytes / FRAME_SHARE).max(MAX_FRAME_BYTES);
        let mtu = frame::mtu(device.max_frame_bytes().min(share_bytes));
        let secrets = Secrets::new(config.seed);
        let connections = config.limits.connections;
        let mut stack = Stack {
            mac,
            checksums: device.checksums(),
            mtu,
            keepalive_ns: 0,
            lease: None,
            unannounced: false,
            address_events: VecDeque::new(),
            ports: Vec::new(),
            datagram_ports: Vec::new(),
            control: Control::new(config.addressing, mac, config.seed, &mut device.split().1, now_ns),
            ipv6: Ipv6::new(config.addressing6, mac, mtu, now_ns),
            neighbors: Neighbors::new(connections),
            flows: Flows::new(secrets.flows()),
            secrets,
            resources: Resources { pool: Pool::new(config.limits.buffer_bytes), counters: NetworkFigures::default() },
            slots: Slab::new(connections),
            timers: Wheel::new(now_ns),
            stood_still_ns: 0,
            expendable: BTreeSet::new(),
            half_open: 0,
            half_open_limit: (connections / HALF_OPEN_DIVISOR).clamp(1, MAX_HALF_OPEN),
            cookies: Cookies::default(),
            // Where memory is short these cannot grow, so they have their size from the start.
            events: VecDeque::with_capacity(connections),
            egress: VecDeque::with_capacity(connections),
            full_since_ns: NEVER_NS,
            unresolved: VecDeque::with_capacity(connections),
            starved: VecDeque::with_capacity(connections),
            next_to_forget: None,
            review_ns: NEVER_NS,
            resets: RateLimit::new(RESETS_PER_S),
            icmp: RateLimit::new(ICMP_PER_S),
        };
        stack.set_keepalive(config.keepalive_s);
        if let Addressing::Static { address, prefix_bits, gateway } = config.addressing {
            stack.set_lease(Some(Lease { address, prefix_bits, gateway }));
        }
        Ok(stack)
    }

    /// Has its IPv6 addresses at once: on a link to the host that gave them to it, nobody else could have one (RFC 4862 §5.1, a
    /// `DupAddrDetectTransmits` of 0).
    pub fn ask_nobody(&mut self) {
        self.ipv6.ask_nobody();
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
    pub fn connect(&mut self, remote: SocketAddr, now_ns: u64) -> Option<ConnectionId> {
        let (ends, is_host) = match remote.ip() {
            IpAddr::V4(remote) => (Ends::V4 { own: self.lease?.address, remote }, is_host(remote)),
            IpAddr::V6(remote) => (Ends::V6 { own: self.ipv6.source_for(remote, now_ns)?, remote }, is_host6(remote)),
        };
        if !is_host || ends.own() == ends.remote() || remote.port() == 0 {
            return None;
        }
        let to = |local_port: u16| FlowKey { ends, remote_port: remote.port(), local_port };
        let ports = DYNAMIC_PORTS.len() as u16;
        let first = self.secrets.next_port_offset(to(0));
        let flow = (0..ports).find_map(|skipped| {
            let flow = to(DYNAMIC_PORTS.start() + (first.wrapping_add(skipped)) % ports);
            self.is_free(flow).then_some(flow)
        })?;
        if let Some(ended) = self.flows.get(&flow) {
            self.release(ended);
        }
        let slot = self.insert(flow, Origin::Active, self.own_ns(now_ns))?;
        self.resources.counters.opened += 1;
        self.touch_egress(slot);
        Some(ConnectionId(slot))
    }

    /// Whether a connection can be opened for a flow: there is none, or one whose peer has ended it and knows of our end.
    fn is_free(&self, flow: FlowKey) -> bool {
        let connection = self.flows.get(&flow).and_then(|slot| self.slots.get(slot)).map(|slot| &slot.connection);
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

    /// How many entries the lists of those have that wait for something else than a turn.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.unresolved.len() + self.starved.len()
    }

    /// How many those have that wait for the application to ask, or to be sent.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> usize {
        self.events.len().max(self.egress.len())
    }

    /// The station on its IPv6 network.
    #[cfg(test)]
    pub(crate) fn ipv6(&self) -> &Ipv6 {
        &self.ipv6
    }

    /// Bytes that all connections' buffers take together.
    pub fn buffer_bytes(&self) -> usize {
        self.resources.pool.used_bytes()
    }

    /// Bytes of memory that they take, with what is kept for the next ones.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.resources.pool.held_bytes()
    }

    /// Has buffers take no more than this of memory that they have not yet, until the next call.
    #[inline]
    pub fn set_memory_room(&mut self, bytes: u64) {
        self.resources.pool.set_room(bytes);
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
    /// Frames are left in the device when there are very many, so that the application gets its turn, and when it cannot send, so
    /// that no answer is lost; but not for longer than a moment ([`FULL_NS`]): who is at the other end may be unable to send for
    /// the same reason, and one of the two has to receive.
    pub fn poll<D: FrameDevice>(&mut self, device: &mut D, now_ns: u64) {
        self.poll_with(device, &mut NobodyTakes, now_ns);
    }

    /// Like [`poll`](Self::poll), but offers data to the application where the device has put it, so that what it takes is
    /// never copied.
    pub fn poll_with<D: FrameDevice>(&mut self, device: &mut D, take: &mut impl Take, now_ns: u64) {
        let (mut rx, mut tx) = device.split();
        self.full_since_ns = if tx.ready() { NEVER_NS } else { self.full_since_ns.min(now_ns) };
        let is_stuck = now_ns.saturating_sub(self.full_since_ns) >= FULL_NS;
        let is_awake = self.timers.idle_ns(self.own_ns(now_ns)) <= STANDSTILL_NS || !self.stood_still(now_ns);
        for _ in 0..if is_awake { MAX_FRAMES_PER_POLL } else { MAX_FRAMES_AFTER_STANDSTILL } {
            if !(is_stuck || tx.ready())
                || rx.receive(|frame| self.receive_frame(&frame, &mut tx, take, now_ns)).is_none()
            {
                break;
            }
            take.note_buffers(self.held_bytes());
        }
        if let Some(lease) = self.control.run(&mut tx, now_ns) {
            self.set_lease(lease);
        }
        if let Some(lease) = self.lease.filter(|_| self.unannounced) {
            self.unannounced = !announce(&mut tx, self.mac, lease.address);
        }
        while let Some(change) = self.ipv6.run(&mut tx, now_ns) {
            self.note_ipv6(change);
        }
        let own_ns = self.own_ns(now_ns);
        while let Some(slot) = self.timers.pop(own_ns) {
            self.touch_egress(slot);
        }
        tx.flush();
    }

    /// The time of connections: it stands still with the station, so that none ends, and no round trip seems long, because of
    /// time in which nobody asked and nobody listened. Leases and lifetimes of addresses go on.
    #[inline]
    fn own_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.stood_still_ns)
    }

    /// When the next timer runs out, in the time of connections.
    #[inline(never)]
    fn next_timer_ns(&self) -> u64 {
        self.timers.next_deadline_ns().unwrap_or(NEVER_NS).min(self.review_ns)
    }

    /// Whether the station has stood still until now. Then the time of connections is just behind that of the timer that has run out
    /// first: by so much that a station that is slow is not taken for one that stands still. A long sleep with nothing due is none.
    #[cold]
    #[inline(never)]
    fn stood_still(&mut self, now_ns: u64) -> bool {
        let late_ns = self.own_ns(now_ns).saturating_sub(self.next_timer_ns());
        let has_stood = late_ns > STANDSTILL_NS;
        if has_stood {
            self.stood_still_ns += late_ns - STANDSTILL_NS;
        }
        has_stood
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
                let Some(slot) = self.slots.get(number) else { return Event::Closed(connection) };
                let (opened_ns, flow) = (slot.connection.opened_ns, slot.connection.flow);
                self.forget_half_open(opened_ns, number);
                Event::Accepted { connection, remote: flow.remote(), local: flow.local() }
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
        let is_owned = |slot: &&mut Slot| slot.connection.owner == Owner::Application;
        let Some(slot) = self.slots.get_mut(id.0).filter(is_owned) else { return 0 };
        let sent = slot.connection.send(bytes, &mut self.resources.pool);
        if sent > 0 {
            enlist(&mut self.egress, &mut slot.in_egress, id.0);
        }
        if sent < bytes.len() {
            // Others give back the memory that it lacks.
            enlist(&mut self.starved, &mut slot.in_starved, id.0);
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
        let own_ns = self.own_ns(now_ns);
        if let Some((connection, resources)) = self.owned(id) {
            connection.close(own_ns, &mut resources.pool);
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
        let now_ns = self.own_ns(now_ns);
        self.relieve(now_ns);
        while tx.ready()
            && let Some(slot) = self.egress.pop_front()
        {
            if !self.send_segments(slot, &mut tx, now_ns) {
                // Who has more than the device takes is not to keep it from the others.
                self.egress.push_back(slot);
                break;
            }
        }
        self.feed_starved();
        tx.flush();
    }

    /// When the next turn is due even if nothing arrives, in the clock of `now_ns`.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        if !(self.events.is_empty() && self.egress.is_empty() && self.address_events.is_empty()) {
            return Some(0);
        }
        let ipv6_ns = self.ipv6.next_deadline_ns();
        let timer_ns = Some(self.next_timer_ns()).filter(|timer_ns| *timer_ns != NEVER_NS);
        let timer_ns = timer_ns.map(|timer_ns| timer_ns.saturating_add(self.stood_still_ns));
        earliest(&[timer_ns, self.control.next_deadline_ns(), ipv6_ns])
    }

    fn set_lease(&mut self, lease: Option<Lease>) {
        let before = self.lease.map(|lease| lease.address);
        self.lease = lease;
        self.unannounced = lease.is_some();
        self.control.set_address(lease);
        self.neighbors.clear_ipv4();
        self.address_events.push_back(lease.map_or(Event::AddressLost, Event::AddressAcquired));
        if let Some(before) = before.filter(|before| lease.is_none_or(|lease| lease.address != *before)) {
            self.fail_connections_of(before.into());
        }
    }

    #[inline(never)]
    fn note_ipv6(&mut self, change: Ipv6Change) {
        let event = match change {
            Ipv6Change::Acquired { address, prefix_bits } => Event::Address6Acquired { address, prefix_bits },
            Ipv6Change::Lost(address) => {
                self.fail_connections_of(address.into());
                Event::Address6Lost(address)
            }
        };
        self.address_events.push_back(event);
    }

    /// Connections are those of an address.
    #[inline(never)]
    fn fail_connections_of(&mut self, own: IpAddr) {
        for number in 0..self.slots.end() {
            if let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.connection.flow.ends.own() == own) {
                slot.connection.fail(&mut self.resources.pool);
                self.touch_events(number);
                self.touch_egress(number);
            }
        }
    }

    /// The station's own address for connections to `remote`, if it has one.
    pub fn address_for(&self, remote: IpAddr, now_ns: u64) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.lease.map(|lease| lease.address.into()),
            IpAddr::V6(remote) => self.ipv6.source_for(remote, now_ns).map(IpAddr::V6),
        }
    }
}
