//! The web server on the same network stack as the store.

use crate::{Crowd, Peers};
use alloc::{collections::VecDeque, vec::Vec};
use core::net::SocketAddr;
use kayvee_http::{AccessLog, ConnectionId as WebId, Fate, Limits, Server};
use kayvee_net::{ConnectionId, Event, Stack};
use kayvee_platform::{BlockDevice, Now, earliest};
use kayvee_server::{Engine, Options};

/// How often the status page is told how things are.
const STATUS_INTERVAL_NS: u64 = 1_000_000_000;

/// This part of the memory may be what connections hold of requests and responses, beside the network's buffers.
const BUFFERS_PART: usize = 32;
const MIN_BUFFER_BYTES: usize = 512 << 10;

/// What the web server's connections together may hold of requests and responses, of so much memory.
pub const fn web_buffer_bytes(memory_bytes: usize) -> usize {
    match memory_bytes / BUFFERS_PART {
        0..MIN_BUFFER_BYTES => MIN_BUFFER_BYTES,
        bytes => bytes,
    }
}

/// A client's connection.
#[derive(Clone, Copy)]
struct Client {
    connection: ConnectionId,
    /// The peer has sent its last byte.
    ended: bool,
    /// It is among those that are served in this turn or the next one.
    is_active: bool,
    /// When it last sent something, as [`Crowd`] counts.
    busy_period: u64,
}

/// The web server and its connections.
pub struct Web {
    server: Server,
    port: u16,
    /// By [`WebId`].
    clients: Vec<Option<Client>>,
    /// By [`ConnectionId`].
    ids: Vec<Option<WebId>>,
    /// Clients with something to be done.
    active: VecDeque<WebId>,
    next_status_ns: u64,
}

impl Web {
    /// The web server that the options ask for, if they do, with as many connections as the store has clients, of a stack that
    /// has at most so many, and a machine with so much memory.
    pub fn new(options: &Options, connections: usize, memory_bytes: usize, now: Now) -> Option<Web> {
        if options.http_port == 0 {
            return None;
        }
        let access_log = if options.http_access_log.is_empty() { AccessLog::Off } else { AccessLog::Common };
        let limits = Limits::new(options.maxclients as usize, web_buffer_bytes(memory_bytes));
        let server = Server::new(limits, access_log, now);
        let (clients, ids) = (Vec::with_capacity(connections), Vec::with_capacity(connections));
        let active = VecDeque::with_capacity(connections);
        Some(Web { server, port: options.http_port, clients, ids, active, next_status_ns: 0 })
    }

    /// What serves the site.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Whether responses wait for the log, for the disk, for the next turn or for the end of a pause.
    pub(crate) fn has_waiting(&self) -> bool {
        self.server.has_waiting()
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts a turn.
    pub(crate) fn begin_turn(&mut self, engine: &mut Engine, now: Now) {
        self.server.begin_turn(now, &mut engine.web());
    }

    /// Takes an event that concerns the web server. Returns whether it did.
    pub(crate) fn take_event(
        &mut self,
        event: &Event,
        stack: &mut Stack,
        engine: &Engine,
        peers: Peers,
        now_ns: u64,
    ) -> bool {
        match *event {
            Event::Accepted { connection, remote, local } if local.port() == self.port => {
                if peers.is_beyond_host(remote.ip()) && engine.turns_away(false) {
                    stack.close(connection, now_ns);
                } else {
                    self.admit(connection, remote, peers.has(remote.ip()), stack, now_ns);
                }
                true
            }
            Event::Readable(connection) | Event::Writable(connection) => self.activate(connection),
            Event::EndOfStream(connection) => {
                if let Some(client) = self.id(connection).and_then(|id| self.clients[id.0 as usize].as_mut()) {
                    client.ended = true;
                }
                self.activate(connection)
            }
            Event::Closed(connection) => {
                let id = self.id(connection);
                id.into_iter().for_each(|id| self.forget(id));
                id.is_some()
            }
            _ => false,
        }
    }

    fn admit(&mut self, connection: ConnectionId, remote: SocketAddr, is_local: bool, stack: &mut Stack, now_ns: u64) {
        let id = match self.server.connect(remote, is_local) {
            Ok(id) => id,
            Err(refusal) => {
                stack.send(connection, refusal.0);
                stack.close(connection, now_ns);
                return;
            }
        };
        let grow_to = |len: usize, index: u32| len.max(index as usize + 1);
        self.clients.resize(grow_to(self.clients.len(), id.0), None);
        self.ids.resize(grow_to(self.ids.len(), connection.0), None);
        self.clients[id.0 as usize] = Some(Client { connection, ended: false, is_active: false, busy_period: 0 });
        self.ids[connection.0 as usize] = Some(id);
    }

    fn id(&self, connection: ConnectionId) -> Option<WebId> {
        self.ids.get(connection.0 as usize).copied().flatten()
    }

    /// Has a connection served in this turn. Returns whether it is the web server's.
    fn activate(&mut self, connection: ConnectionId) -> bool {
        let Some(id) = self.id(connection) else { return false };
        if let Some(client) = self.clients[id.0 as usize].as_mut().filter(|client| !client.is_active) {
            client.is_active = true;
            self.active.push_back(id);
        }
        true
    }

    /// Goes on with what the disk of the site has read, and has it read more.
    pub(crate) fn drive_disk(&mut self, disk: &mut dyn BlockDevice, stack: &mut Stack, engine: &mut Engine, now: Now) {
        self.server.take_from_disk(disk, &mut engine.web());
        self.serve_ready(stack, engine, now);
        self.server.read_from_disk(disk);
    }

    /// Sends what tells of what has become stable: to be called when the log has been driven.
    #[inline(never)]
    pub(crate) fn release(&mut self, stack: &mut Stack, engine: &mut Engine, now: Now) {
        self.server.release(&mut engine.web());
        self.serve_ready(stack, engine, now);
    }

    /// Serves all that has something to be done.
    pub(crate) fn turn(&mut self, stack: &mut Stack, engine: &mut Engine, crowd: &mut Crowd, now: Now) {
        for _ in 0..self.active.len() {
            let Some(id) = self.active.pop_front() else { break };
            if let Some(client) = self.clients[id.0 as usize].as_mut() {
                client.is_active = false;
                if !stack.readable(client.connection).is_empty() {
                    crowd.serve(&mut client.busy_period);
                }
                self.serve(id, stack, engine, now.monotonic_ns);
            }
        }
        self.server.end_turn();
        if self.server.has_listeners() && now.monotonic_ns >= self.next_status_ns {
            self.next_status_ns = now.monotonic_ns + STATUS_INTERVAL_NS;
            let event = engine.web().status_event(self.server.stats());
            self.server.publish(&event, &engine.web());
        }
        self.serve_ready(stack, engine, now);
    }

    fn serve_ready(&mut self, stack: &mut Stack, engine: &mut Engine, now: Now) {
        while let Some(id) = self.server.next_ready() {
            self.serve(id, stack, engine, now.monotonic_ns);
        }
    }

    /// The lines of the access log since the last call.
    pub(crate) fn take_access_log(&mut self) -> Vec<u8> {
        self.server.take_access_log()
    }

    /// Closes all connections, once they were sent what there is room for.
    pub(crate) fn end(&mut self, stack: &mut Stack, engine: &mut Engine, now_ns: u64) {
        for slot in 0..self.clients.len() {
            let id = WebId(slot as u32);
            if let Some(Client { connection, .. }) = self.clients[slot] {
                self.send(id, connection, stack, engine);
                stack.close(connection, now_ns);
                self.forget(id);
            }
        }
    }

    /// Takes what a client has sent and sends it what there is for it, as far as there is room, and obeys what the server
    /// says of it.
    fn serve(&mut self, id: WebId, stack: &mut Stack, engine: &mut Engine, now_ns: u64) {
        loop {
            let Some(&Some(Client { connection, ended, .. })) = self.clients.get(id.0 as usize) else { return };
            let is_blocked = !self.send(id, connection, stack, engine);
            let fate = self.server.fate(id);
            let may_be_over = (ended || fate == Fate::EndAfterOutput) && fate != Fate::Waiting;
            if fate == Fate::CloseNow || may_be_over && self.server.output(id)[0].is_empty() {
                // In an orderly way: what comes in after that is acknowledged and dropped by the stack.
                stack.close(connection, now_ns);
                return self.forget(id);
            }
            let bytes = stack.readable(connection);
            if bytes.is_empty() || fate != Fate::Open || is_blocked {
                return;
            }
            let len = bytes.len();
            self.server.receive(id, bytes, &mut engine.web());
            stack.consume(connection, len);
            engine.note_network_buffers(stack.held_bytes());
        }
    }

    /// Sends what there is room for. Returns whether all of it is sent.
    fn send(&mut self, id: WebId, connection: ConnectionId, stack: &mut Stack, engine: &mut Engine) -> bool {
        loop {
            let [first, _] = self.server.output(id);
            let unsent = first.len();
            if unsent == 0 {
                return true;
            }
            let sent = stack.send(connection, first);
            self.server.sent(id, sent, &mut engine.web());
            if sent < unsent {
                return false;
            }
        }
    }

    fn forget(&mut self, id: WebId) {
        self.server.disconnect(id);
        if let Some(client) = self.clients[id.0 as usize].take() {
            self.ids[client.connection.0 as usize] = None;
        }
    }

    /// When there is something to do, at the latest.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let status_ns = self.server.has_listeners().then_some(self.next_status_ns);
        earliest(&[self.server.next_deadline_ns(), status_ns])
    }
}
