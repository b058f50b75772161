//! The store as a station of a network: the bytes of `kayvee-net`'s connections go to `kayvee-server`'s engine, and its
//! replies back. Those to the web server's port go to `kayvee-http`'s [`Web`] in the same way.
//!
//! What drives it owns the card, the disk and the clock, and sleeps; a guest and a Linux process differ in these only. A
//! turn is [`Station::receive`], whatever else the target serves with the same engine, and [`Station::reply`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod crowd;
mod datagrams;
#[cfg(test)]
mod tests;
mod web;

pub use crowd::Crowd;
pub use datagrams::Datagrams;
pub use web::{Web, web_buffer_bytes};

use alloc::{collections::VecDeque, string::ToString, vec::Vec};
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use kayvee_net::{ConnectionId, Event, Stack, Take};
use kayvee_platform::{Addressing, Addressing6, BlockDevice, FrameDevice, FrameRx, NetworkFigures, Now, earliest};
use kayvee_server::{ClientId, Dial, Engine, Fate, Peer};

/// At the end, clients' last replies and the ends of their connections get this long to be sent ...
const LINGER_NS: u64 = 500_000_000;
/// ... unless nothing has arrived or left for so long.
const LINGER_QUIET_NS: u64 = 20_000_000;

/// So much of what a client has sent before is read in a turn: what came behind a hole may be a hundred thousand requests.
const READ_BYTES_MAX: usize = 256 << 10;

/// Who can reach the station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Only who was meant to: the network was made for it.
    Trusted,
    /// This host, which has these addresses on a link that was made for it. What it forwards for others is from strangers.
    Host(Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// Whoever is on a network that it shares with others: without a password, protected mode turns them away.
    Strangers,
}

impl Peers {
    /// The host that has given the station its addresses: its router.
    pub fn host(addressing: Addressing, addressing6: Addressing6) -> Peers {
        let ipv4 = if let Addressing::Static { gateway, .. } = addressing { gateway } else { None };
        let ipv6 = if let Addressing6::Static { gateway, .. } = addressing6 { gateway } else { None };
        Peers::Host(ipv4, ipv6)
    }

    /// Whether who has this address counts as on the store's own machine.
    fn has(&self, remote: IpAddr) -> bool {
        match (self, remote) {
            (Peers::Trusted, _) => true,
            (Peers::Host(ipv4, _), IpAddr::V4(remote)) => *ipv4 == Some(remote),
            (Peers::Host(_, ipv6), IpAddr::V6(remote)) => *ipv6 == Some(remote),
            (Peers::Strangers, _) => false,
        }
    }

    /// Whether who has this address is beyond the host that the link was made for.
    fn is_beyond_host(&self, remote: IpAddr) -> bool {
        matches!(self, Peers::Host(..)) && !self.has(remote)
    }
}

/// A client's connection.
#[derive(Clone, Copy)]
struct Client {
    connection: ConnectionId,
    /// There may be bytes to read that the engine did not want so far.
    unread: bool,
    /// The peer has sent its last byte.
    ended: bool,
    /// When it last sent something, as [`Crowd`] counts.
    busy_period: u64,
}

/// What turns have cost in which frames arrived: what the network and its requests take of the processor.
#[derive(Default)]
struct Busy {
    turns: u64,
    turns_ns: u64,
    /// When the last of these turns began, until it is over.
    since_ns: Option<u64>,
    /// Frames that had arrived by then.
    frames: u64,
}

impl Busy {
    /// Notes that so many frames have arrived, in a turn that began at `now_ns`.
    fn note(&mut self, frames: u64, now_ns: u64) {
        if frames != self.frames {
            self.frames = frames;
            self.since_ns.get_or_insert(now_ns);
        }
    }

    /// Notes that there is nothing to do any more.
    fn end(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.since_ns.take() {
            self.turns += 1;
            self.turns_ns += now_ns - since_ns;
        }
    }
}

/// Requests that lie whole where the card has put them are executed there.
struct InPlace<'a> {
    engine: &'a mut Engine,
    datagrams: &'a mut Datagrams,
    peers: Peers,
    clients: &'a mut [Option<Client>],
    ids: &'a [Option<ClientId>],
    crowd: &'a mut Crowd,
}

impl Take for InPlace<'_> {
    #[inline]
    fn take(&mut self, connection: ConnectionId, bytes: &[u8]) -> usize {
        let Some(id) = self.ids.get(connection.0 as usize).copied().flatten() else { return 0 };
        let Some(client) = self.clients[id.0 as usize].as_mut().filter(|client| !client.unread) else { return 0 };
        if self.engine.fate(id) != Fate::Open {
            return 0;
        }
        self.crowd.serve(&mut client.busy_period);
        self.engine.receive(id, bytes);
        bytes.len()
    }

    #[inline]
    fn note_buffers(&mut self, bytes: usize) {
        self.engine.note_network_buffers(bytes);
    }

    fn datagram(&mut self, port: u16, remote: SocketAddr, bytes: &[u8], reply: &mut [u8]) -> Option<usize> {
        let is_local = self.peers.has(remote.ip());
        self.datagrams.answer(self.engine, is_local, port, remote.port(), bytes, reply)
    }
}

/// The store on a network.
pub struct Station {
    stack: Stack,
    engine: Engine,
    /// The web server, if there is one.
    web: Option<Web>,
    /// By [`ClientId`].
    clients: Vec<Option<Client>>,
    /// By [`ConnectionId`].
    ids: Vec<Option<ClientId>>,
    /// Clients to write to although the engine does not name them: there is room again, or their end has come.
    writable: Vec<ClientId>,
    /// Clients to read from in the next turn although nothing arrives.
    unread: Vec<ClientId>,
    peers: Peers,
    datagrams: Datagrams,
    crowd: Crowd,
    busy: Busy,
    /// Addresses that the station has got, for its operator to be told.
    addresses: VecDeque<(IpAddr, u8)>,
}

impl Station {
    /// Joins an engine, a web server and a stack that has at most so many connections.
    pub fn new(mut stack: Stack, engine: Engine, web: Option<Web>, peers: Peers, connections: usize) -> Station {
        web.iter().for_each(|web| stack.listen(web.port()));
        // Where memory is short these cannot grow, so they have their size from the start. In a turn a client can become
        // writable and end.
        let (clients, ids) = (Vec::with_capacity(connections), Vec::with_capacity(connections));
        let (writable, unread) = (Vec::with_capacity(2 * connections), Vec::with_capacity(connections));
        let datagrams = Datagrams::new(engine.options());
        datagrams.ports().for_each(|port| stack.serve_datagrams(port));
        let (crowd, busy) = (Crowd::default(), Busy::default());
        let addresses = VecDeque::new();
        Station { stack, engine, web, clients, ids, writable, unread, peers, datagrams, crowd, busy, addresses }
    }

    /// The store.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Whether the next turn has something to do already.
    #[inline]
    pub fn is_behind(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Whether many clients are busy.
    pub fn is_crowded(&self) -> bool {
        self.crowd.is_there()
    }

    /// How long to rest after this turn's replies, so that requests of many busy clients gather; as [`Crowd::nap`].
    pub fn nap(&self) -> Option<Duration> {
        self.crowd.nap()
    }

    /// When the next turn is due even if nothing arrives.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let web_ns = self.web.as_ref().and_then(Web::next_deadline_ns);
        earliest(&[self.stack.next_deadline_ns(), self.engine.next_deadline_ns(), web_ns])
    }

    /// The next address that the station has got, but for those of its link, and the length of its prefix.
    pub fn next_address(&mut self) -> Option<(IpAddr, u8)> {
        self.addresses.pop_front()
    }

    /// The first half of a turn: all that has arrived.
    pub fn receive(&mut self, card: &mut impl FrameDevice, now: Now) {
        self.engine.begin_turn(now);
        self.crowd.begin_turn(now);
        self.web.iter_mut().for_each(|web| web.begin_turn(&mut self.engine, now));
        self.engine.set_network(self.figures(card));
        self.note_buffers();
        self.stack.set_memory_room(self.engine.network_room_bytes());
        self.poll(card, now.monotonic_ns);
        self.busy.note(self.stack.frames_received(), now.monotonic_ns);
        for index in 0..self.unread.len() {
            self.read(self.unread[index]);
        }
        self.unread.clear();
        while let Some(event) = self.stack.next_event() {
            let (engine, peers) = (&self.engine, self.peers);
            let is_web = |web: &mut Web| web.take_event(&event, &mut self.stack, engine, peers, now.monotonic_ns);
            if !self.web.as_mut().is_some_and(is_web) {
                self.take_event(event, now.monotonic_ns);
            }
        }
        if let Some(web) = &mut self.web {
            web.turn(&mut self.stack, &mut self.engine, &mut self.crowd, now);
        }
    }

    /// Has the web server's site read from its disk, if it has one: to be called between the halves of a turn.
    #[inline(never)]
    pub fn drive_site(&mut self, disk: &mut dyn BlockDevice, now: Now) {
        if let Some(web) = &mut self.web {
            web.drive_disk(disk, &mut self.stack, &mut self.engine, now);
        }
    }

    /// The second half: all that follows from it.
    pub fn reply(&mut self, card: &mut impl FrameDevice, disk: Option<&mut impl BlockDevice>, now: Now) {
        self.note_buffers();
        self.engine.end_turn();
        while let Some(dial) = self.engine.next_dial() {
            self.dial(&dial, now.monotonic_ns);
        }
        if let Some(disk) = disk {
            self.engine.drive_log(disk);
        }
        if let Some(web) = self.web.as_mut().filter(|web| web.has_waiting()) {
            web.release(&mut self.stack, &mut self.engine, now);
        }
        while let Some(id) = self.engine.next_ready() {
            self.write(id, now.monotonic_ns);
        }
        while let Some(id) = self.writable.pop() {
            self.write(id, now.monotonic_ns);
        }
        self.stack.set_keepalive(self.engine.options().tcp_keepalive);
        self.stack.flush(card, now.monotonic_ns);
    }

    /// The lines of the web server's access log since the last call.
    pub fn take_access_log(&mut self) -> Vec<u8> {
        self.web.as_mut().map_or_else(Vec::new, Web::take_access_log)
    }

    /// The turns are over for now: who drives this begins to wait.
    pub fn rest(&mut self, now_ns: u64) {
        self.busy.end(now_ns);
    }

    /// Takes frames from the card. Both callers share the one copy of all that is made of the stack for it.
    #[inline(never)]
    fn poll(&mut self, card: &mut impl FrameDevice, now_ns: u64) {
        let mut take = InPlace {
            engine: &mut self.engine,
            datagrams: &mut self.datagrams,
            peers: self.peers,
            clients: &mut self.clients,
            ids: &self.ids,
            crowd: &mut self.crowd,
        };
        self.stack.poll_with(card, &mut take, now_ns);
    }

    /// Tells the store what the network's buffers take, which is no data: before what may make room for data.
    fn note_buffers(&mut self) {
        self.engine.note_network_buffers(self.stack.held_bytes());
    }

    /// What the network has done before this turn.
    fn figures(&self, card: &impl FrameDevice) -> NetworkFigures {
        let mut figures = self.stack.figures();
        (figures.turns, figures.turns_ns) = (self.busy.turns, self.busy.turns_ns);
        card.put_figures(&mut figures);
        figures
    }

    fn take_event(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::AddressAcquired(lease) => self.addresses.push_back((lease.address.into(), lease.prefix_bits)),
            Event::Address6Acquired { address, .. } if address.is_unicast_link_local() => {}
            Event::Address6Acquired { address, prefix_bits } => self.addresses.push_back((address.into(), prefix_bits)),
            Event::AddressLost => log::warn!("net: the address is lost"),
            Event::Address6Lost(address) => log::warn!("net: {address} is lost"),
            Event::Accepted { connection, remote, local } => {
                let is_local = self.peers.has(remote.ip());
                let peer = Peer { remote: remote.to_string(), local: local.to_string(), is_local };
                match self.engine.connect(peer) {
                    Ok(id) => self.admit(id, connection),
                    Err(refusal) => {
                        self.stack.send(connection, refusal.0);
                        self.stack.close(connection, now_ns);
                    }
                }
            }
            Event::Readable(connection) => {
                if let Some(id) = self.id(connection) {
                    self.read(id);
                }
            }
            Event::Writable(connection) => self.writable.extend(self.id(connection)),
            Event::EndOfStream(connection) => {
                if let Some(id) = self.id(connection) {
                    if let Some(client) = self.client(id) {
                        client.ended = true;
                    }
                    self.writable.push(id);
                }
            }
            Event::Closed(connection) => {
                if let Some(id) = self.id(connection) {
                    self.forget(id);
                }
            }
        }
    }

    fn admit(&mut self, id: ClientId, connection: ConnectionId) {
        let grow_to = |len: usize, index: u32| len.max(index as usize + 1);
        self.clients.resize(grow_to(self.clients.len(), id.0), None);
        self.ids.resize(grow_to(self.ids.len(), connection.0), None);
        self.clients[id.0 as usize] = Some(Client { connection, unread: false, ended: false, busy_period: 0 });
        self.ids[connection.0 as usize] = Some(id);
    }

    /// Connects to where the engine wants to. There is nobody here to ask for the address of a name.
    fn dial(&mut self, dial: &Dial, now_ns: u64) {
        let Ok(address) = dial.host.parse() else {
            return self.engine.dial_failed(dial, "names are not looked up here: give an address");
        };
        let remote = SocketAddr::new(address, dial.port);
        let own = self.stack.address_for(address, now_ns);
        let (Some(own), Some(connection)) = (own, self.stack.connect(remote, now_ns)) else {
            return self.engine.dial_failed(dial, "there is no address to connect from, or no room for a connection");
        };
        let peer = Peer { remote: remote.to_string(), local: own.to_string(), is_local: true };
        match self.engine.dialed(dial, peer) {
            Some(id) => self.admit(id, connection),
            None => self.stack.close(connection, now_ns),
        }
    }

    fn id(&self, connection: ConnectionId) -> Option<ClientId> {
        self.ids.get(connection.0 as usize).copied().flatten()
    }

    fn client(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(id.0 as usize)?.as_mut()
    }

    /// Gives the engine all that has arrived from a client, or as much as it wants and does not keep the others waiting.
    fn read(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        client.unread = false;
        let mut read_bytes = 0;
        loop {
            let bytes = self.stack.readable(client.connection);
            if bytes.is_empty() {
                return;
            }
            if read_bytes >= READ_BYTES_MAX {
                client.unread = true;
                return self.writable.push(id);
            }
            if self.engine.fate(id) != Fate::Open {
                client.unread = true;
                return;
            }
            let len = bytes.len();
            self.crowd.serve(&mut client.busy_period);
            self.engine.receive(id, bytes);
            self.stack.consume(client.connection, len);
            self.engine.note_network_buffers(self.stack.held_bytes());
            read_bytes += len;
        }
    }

    /// Sends a client what there is for it and room for, and obeys what the engine says of it.
    fn write(&mut self, id: ClientId, now_ns: u64) {
        let Some(&mut Client { connection, unread, ended, .. }) = self.client(id) else { return };
        let fate = self.engine.fate(id);
        if fate == Fate::CloseNow {
            // In an orderly way: a client's library takes a reset for a failure.
            self.stack.close(connection, now_ns);
            return self.forget(id);
        }
        let unsent = self.send(id, connection);
        // A peer that will send no more may still want what it has asked for.
        let is_answered = ended && !self.engine.awaits_log(id);
        if unsent == 0 && (is_answered || fate == Fate::CloseAfterOutput) {
            self.stack.close(connection, now_ns);
            self.forget(id);
        } else if fate == Fate::Open && unread {
            if let Some(client) = self.client(id) {
                client.unread = false;
            }
            self.unread.push(id);
        }
    }

    /// Sends what there is room for. Returns how much is left at least: nothing only if all is sent.
    fn send(&mut self, id: ClientId, connection: ConnectionId) -> usize {
        loop {
            let output = self.engine.output(id);
            let unsent = output.len();
            if unsent == 0 {
                return 0;
            }
            let sent = self.stack.send(connection, output);
            let has_more = self.engine.sent(id, sent);
            if sent < unsent || !has_more {
                return unsent - sent;
            }
        }
    }

    fn forget(&mut self, id: ClientId) {
        self.engine.disconnect(id);
        if let Some(client) = self.clients[id.0 as usize].take() {
            self.ids[client.connection.0 as usize] = None;
        }
    }

    /// Ends all connections in good order, as far as their peers take part. `is_sending` says whether the card holds
    /// frames that have not left.
    pub fn end<C: FrameDevice>(&mut self, card: &mut C, now_ns: impl Fn() -> u64, is_sending: impl Fn(&mut C) -> bool) {
        let start_ns = now_ns();
        let mut active_ns = start_ns;
        // They would change what nothing writes to the log any more.
        self.stack.refuse_datagrams();
        for index in 0..self.clients.len() {
            let id = ClientId(index as u32);
            if let Some(&mut Client { connection, .. }) = self.client(id) {
                self.send(id, connection);
                self.stack.close(connection, start_ns);
                self.forget(id);
            }
        }
        if let Some(web) = &mut self.web {
            web.end(&mut self.stack, &mut self.engine, start_ns);
        }
        loop {
            let now_ns = now_ns();
            if card.split().0.ready() || is_sending(card) {
                active_ns = now_ns;
            }
            if now_ns >= active_ns + LINGER_QUIET_NS || now_ns >= start_ns + LINGER_NS {
                return;
            }
            self.poll(card, now_ns);
            while self.stack.next_event().is_some() {}
            self.stack.flush(card, now_ns);
        }
    }
}
