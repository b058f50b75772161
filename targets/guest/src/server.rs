//! The loop: frames to the network stack, its bytes to the engine, replies back, and sleep when there is nothing to do.

use crate::{devices::Card, disk::Disk};
use alloc::{string::ToString, vec::Vec};
use kayvee_net::{ConnectionId, Event, Lease, Stack};
use kayvee_platform::{Clock, FrameDevice, FrameRx, NetworkFigures};
use kayvee_server::{ClientId, Engine, Fate, Peer};
use kayvee_x86::{console, machine::Machine, power::Status};

/// How long the loop looks for more to do before it sleeps. Going to sleep and waking up costs an interrupt and several
/// exits to the hypervisor; a busy client's next request is nearly always here sooner.
const POLL_NS: u64 = 100_000;
/// The same while the disk writes: a flush takes some 100 µs.
const DISK_POLL_NS: u64 = 300_000;
/// At the end, clients' last replies and the ends of their connections get this long to be sent ...
const LINGER_NS: u64 = 500_000_000;
/// ... unless nothing has arrived or left for so long.
const LINGER_QUIET_NS: u64 = 20_000_000;
/// A sleep while the card still holds frames to send: it does not interrupt when it has sent them.
const SENDING_NS: u64 = 1_000_000;

/// So long after something has happened the console is looked at: it may have been what happened. To look costs an exit to
/// the hypervisor.
const CONSOLE_NS: u64 = 100_000_000;

/// A client's connection.
#[derive(Clone, Copy)]
struct Client {
    connection: ConnectionId,
    /// There may be bytes to read that the engine did not want so far.
    unread: bool,
    /// The peer has sent its last byte.
    ended: bool,
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

/// The store on the network.
pub struct Server<'a> {
    machine: &'a Machine,
    card: Card,
    disk: Option<Disk<'a>>,
    stack: Stack,
    engine: Engine,
    /// By [`ClientId`].
    clients: Vec<Option<Client>>,
    /// By [`ConnectionId`].
    ids: Vec<Option<ClientId>>,
    /// Clients to write to although the engine does not name them: there is room again, or their end has come.
    writable: Vec<ClientId>,
    /// Clients to read from in the next turn although nothing arrives.
    unread: Vec<ClientId>,
    /// When to look at the console.
    console_due_ns: Option<u64>,
    busy: Busy,
}

impl<'a> Server<'a> {
    /// Joins the parts, for a stack that has at most so many connections.
    pub fn new(
        machine: &'a Machine,
        card: Card,
        disk: Option<Disk<'a>>,
        stack: Stack,
        engine: Engine,
        connections: usize,
    ) -> Server<'a> {
        // Where memory is short these cannot grow, so they have their size from the start. In a turn a client can become
        // writable and end.
        let (clients, ids) = (Vec::with_capacity(connections), Vec::with_capacity(connections));
        let (writable, unread) = (Vec::with_capacity(2 * connections), Vec::with_capacity(connections));
        Server {
            machine,
            card,
            disk,
            stack,
            engine,
            clients,
            ids,
            writable,
            unread,
            console_due_ns: None,
            busy: Busy::default(),
        }
    }

    /// Serves until a client asks for the end, and returns how it came.
    pub fn run(&mut self) -> Status {
        // CONFIG SET changes it from now on.
        log::set_max_level(self.engine.options().loglevel.filter());
        loop {
            self.turn();
            if let Some(error) = self.card.error() {
                log::error!("the network card cannot be used any more: {error}");
                return Status::Failed;
            }
            if let Some(shutdown) = self.engine.shutdown() {
                self.linger();
                return if shutdown.status == 0 { Status::Clean } else { Status::Failed };
            }
            self.wait();
        }
    }

    /// One turn: all that has arrived, and all that follows from it.
    fn turn(&mut self) {
        let now = self.machine.clock().now();
        if now.monotonic_ns >= self.machine.clock().wall_clock_due_ns() {
            self.machine.follow_wall_clock();
        }
        self.look_at_console(now.monotonic_ns);
        self.stack.poll(&mut self.card, now.monotonic_ns);
        self.engine.begin_turn(now);
        let figures = self.figures(now.monotonic_ns);
        self.engine.set_network(figures);
        for index in 0..self.unread.len() {
            self.read(self.unread[index]);
        }
        self.unread.clear();
        while let Some(event) = self.stack.next_event() {
            self.take_event(event, now.monotonic_ns);
        }
        self.engine.end_turn();
        if let Some(disk) = &mut self.disk {
            self.engine.drive_log(disk);
        }
        while let Some(id) = self.engine.next_ready() {
            self.write(id, now.monotonic_ns);
        }
        while let Some(id) = self.writable.pop() {
            self.write(id, now.monotonic_ns);
        }
        self.stack.set_keepalive(self.engine.options().tcp_keepalive);
        self.stack.flush(&mut self.card, now.monotonic_ns);
    }

    /// What the network has done, in a turn that began at `now_ns`.
    fn figures(&mut self, now_ns: u64) -> NetworkFigures {
        let mut figures = self.stack.figures();
        if figures.frames_received > self.busy.frames && self.busy.since_ns.is_none() {
            self.busy.since_ns = Some(now_ns);
        }
        self.busy.frames = figures.frames_received;
        (figures.turns, figures.turns_ns) = (self.busy.turns, self.busy.turns_ns);
        self.card.put_figures(&mut figures);
        figures
    }

    /// Ctrl-D on the console asks for the end, as a signal asks a process.
    fn look_at_console(&mut self, now_ns: u64) {
        match self.console_due_ns {
            None => self.console_due_ns = Some(now_ns + CONSOLE_NS),
            Some(due_ns) if now_ns >= due_ns => {
                self.console_due_ns = None;
                if self.machine.is_asked_to_end() {
                    let on = self.engine.options().shutdown_on_sigterm;
                    self.engine.request_shutdown(on);
                }
            }
            Some(_) => {}
        }
    }

    fn take_event(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::AddressAcquired(lease) => self.announce(lease),
            Event::AddressLost => log::warn!("net: the address is lost"),
            Event::Accepted { connection, remote, local } => {
                // Who reaches a machine whose only network this is was meant to.
                let peer = Peer { remote: remote.to_string(), local: local.to_string(), is_local: true };
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

    fn announce(&self, lease: Lease) {
        console::fixed_line(format_args!("net: {}/{}", lease.address, lease.prefix_bits));
        console::fixed_line(format_args!("ready: {}:{}", lease.address, self.engine.options().port));
    }

    fn admit(&mut self, id: ClientId, connection: ConnectionId) {
        let grow_to = |len: usize, index: u32| len.max(index as usize + 1);
        self.clients.resize(grow_to(self.clients.len(), id.0), None);
        self.ids.resize(grow_to(self.ids.len(), connection.0), None);
        self.clients[id.0 as usize] = Some(Client { connection, unread: false, ended: false });
        self.ids[connection.0 as usize] = Some(id);
    }

    fn id(&self, connection: ConnectionId) -> Option<ClientId> {
        self.ids.get(connection.0 as usize).copied().flatten()
    }

    fn client(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(id.0 as usize)?.as_mut()
    }

    /// Gives the engine all that has arrived from a client, or as much as it wants.
    fn read(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        client.unread = false;
        loop {
            let bytes = self.stack.readable(client.connection);
            if bytes.is_empty() {
                return;
            }
            if self.engine.fate(id) != Fate::Open {
                client.unread = true;
                return;
            }
            let len = bytes.len();
            self.engine.receive(id, bytes);
            self.stack.consume(client.connection, len);
        }
    }

    /// Sends a client what there is for it and room for, and obeys what the engine says of it.
    fn write(&mut self, id: ClientId, now_ns: u64) {
        let Some(&mut Client { connection, unread, ended }) = self.client(id) else { return };
        let fate = self.engine.fate(id);
        if fate == Fate::CloseNow {
            // In an orderly way: a client's library takes a reset for a failure.
            self.stack.close(connection, now_ns);
            return self.forget(id);
        }
        let unsent = self.send(id, connection);
        if unsent == 0 && (ended || fate == Fate::CloseAfterOutput) {
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
            self.engine.sent(id, sent);
            if sent < unsent {
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

    /// Waits for a frame or for the next deadline: polling at first, then asleep.
    fn wait(&mut self) {
        if !self.unread.is_empty() {
            return;
        }
        let clock = self.machine.clock();
        let deadlines = [self.stack.next_deadline_ns(), self.engine.next_deadline_ns(), self.console_due_ns];
        let deadline_ns = deadlines.into_iter().flatten().min().unwrap_or(u64::MAX).min(clock.wall_clock_due_ns());
        let idle_ns = clock.now().monotonic_ns;
        if let Some(since_ns) = self.busy.since_ns.take() {
            self.busy.turns += 1;
            self.busy.turns_ns += idle_ns - since_ns;
        }
        let poll_until_ns = idle_ns + self.poll_ns();
        while !self.is_ready() {
            let now_ns = clock.now().monotonic_ns;
            if now_ns >= deadline_ns {
                return;
            }
            if now_ns >= poll_until_ns {
                return self.sleep(deadline_ns, now_ns);
            }
        }
    }

    /// Whether a device has something for the next turn.
    #[inline]
    fn is_ready(&mut self) -> bool {
        self.card.split().0.ready() || self.disk.as_ref().is_some_and(Disk::is_ready)
    }

    /// How long to poll: longer while clients wait for the disk, whose end is near.
    fn poll_ns(&self) -> u64 {
        if self.disk.as_ref().is_some_and(Disk::is_busy) { DISK_POLL_NS } else { POLL_NS }
    }

    fn sleep(&mut self, deadline_ns: u64, now_ns: u64) {
        let deadline_ns = if self.card.is_sending() { deadline_ns.min(now_ns + SENDING_NS) } else { deadline_ns };
        self.card.enable_interrupts();
        self.disk.iter_mut().for_each(Disk::enable_interrupts);
        // What came before its interrupt was on does not raise it; what comes from here on ends the sleep.
        if !self.is_ready() {
            self.machine.sleep_until(Some(deadline_ns).filter(|deadline_ns| *deadline_ns != u64::MAX));
        }
        self.card.disable_interrupts();
        self.disk.iter_mut().for_each(Disk::disable_interrupts);
    }

    /// Ends all connections in good order, as far as their peers take part.
    fn linger(&mut self) {
        let clock = self.machine.clock();
        let start_ns = clock.now().monotonic_ns;
        let mut active_ns = start_ns;
        for index in 0..self.clients.len() {
            let id = ClientId(index as u32);
            if let Some(&mut Client { connection, .. }) = self.client(id) {
                self.send(id, connection);
                self.stack.close(connection, start_ns);
                self.forget(id);
            }
        }
        loop {
            let now_ns = clock.now().monotonic_ns;
            if self.card.split().0.ready() || self.card.is_sending() {
                active_ns = now_ns;
            }
            if now_ns >= active_ns + LINGER_QUIET_NS || now_ns >= start_ns + LINGER_NS {
                return;
            }
            self.stack.poll(&mut self.card, now_ns);
            while self.stack.next_event().is_some() {}
            self.stack.flush(&mut self.card, now_ns);
        }
    }
}
