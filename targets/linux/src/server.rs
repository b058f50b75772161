//! The event loop: sockets on one side, the engine on the other.

use crate::{
    clock::SystemClock,
    data::{self, DISK},
    datagrams::DatagramSockets,
    host::LinuxHost,
    http::Http,
    listeners::{self, Place, Rest, has_no_room},
    logger,
    open_files::StoreSockets,
    signals::Signals,
    sockets::{Listening, Origin, Stream},
    supervisor,
};
use kayvee_disk::{FileDisk, Spec};
use kayvee_platform::Clock;
use kayvee_server::{ClientId, Dial, Engine, Fate, Options, Peer};
use kayvee_station::Crowd;
use mio::{Events, Interest, Poll, Token};
use nix::libc;
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    mem, thread,
    time::Duration,
};

/// Bytes read from one client in a turn. One buffer serves all, so that it stays in the cache.
const READ_BYTES: usize = 64 << 10;
/// Reads from one client in a turn while it sends a long request.
const LONG_READS: usize = 16;
/// Clients whose requests are read before the first of them is executed ...
const GROUP: usize = 16;
/// ... and bytes of each that are. Who has sent more the last time is read from by itself.
const GROUP_READ_BYTES: usize = 4 << 10;
/// Events taken from the kernel in a turn.
const EVENTS: usize = 1024;
/// Connections accepted in a turn on each address, as many as Redis accepts.
const ACCEPTS_PER_TURN: usize = 1000;

/// Tokens from here on are not clients'.
const SIGNALS: Token = Token(usize::MAX - 1);
const SITE: Token = Token(usize::MAX - 3);
const FIRST_LISTENER: usize = 1 << 32;
const FIRST_DATAGRAMS: usize = 1 << 40;

/// A client's socket. The kernel tells once of each change, so what it told is kept here.
struct Client {
    stream: Stream,
    /// There may be bytes to read.
    readable: bool,
    /// The peer will send no more: reading goes on to the end even after a read that took all there was.
    hung_up: bool,
    /// How many bytes were read at once the last time.
    last_read: usize,
    /// The end has been read.
    ended: bool,
    /// The kernel may take more bytes.
    writable: bool,
    /// Waits in the backlog.
    in_backlog: bool,
    /// When it last sent something, as [`Crowd`] counts.
    busy_period: u64,
}

/// Whether the kernel takes bytes for a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writable {
    Yes,
    NotYet,
}

struct Listener {
    socket: Listening,
    /// What it is for, if it listens for TCP.
    place: Option<Place>,
    /// There may be connections to accept.
    ready: bool,
}

/// The process' sockets and its engine.
pub struct Server {
    engine: Engine,
    clock: &'static SystemClock,
    poll: Poll,
    host: &'static LinuxHost,
    /// By token. Those that were closed leave a gap.
    listeners: Vec<Option<Listener>>,
    keepalive_s: u32,
    accept_rest: Rest,
    signals: Signals,
    /// By client id.
    clients: Vec<Option<Client>>,
    /// Clients with bytes to read, of which the kernel will not tell again.
    backlog: VecDeque<ClientId>,
    /// Clients that the kernel has room for again.
    writable: Vec<ClientId>,
    /// Clients that have sent their last byte in this turn.
    ended: Vec<ClientId>,
    crowd: Crowd,
    /// Where the log is, if there is one.
    disk: Option<Box<FileDisk>>,
    /// The web server, if there is one.
    http: Option<Http>,
    /// The services by UDP, if there are any.
    datagrams: Option<DatagramSockets>,
    /// What the clients of a group have sent.
    group: Vec<[u8; GROUP_READ_BYTES]>,
    buffer: Vec<u8>,
}

impl Server {
    /// Puts an engine behind listening sockets.
    pub fn new(
        engine: Engine,
        sockets: Vec<(Option<Place>, Listening)>,
        clock: &'static SystemClock,
        host: &'static LinuxHost,
    ) -> io::Result<Server> {
        let poll = Poll::new()?;
        let signals = Signals::catch(poll.registry(), SIGNALS)?;
        host.serve_disks(poll.registry())?;
        let keepalive_s = engine.options().tcp_keepalive;
        let mut server = Server {
            engine,
            clock,
            poll,
            host,
            listeners: Vec::new(),
            keepalive_s,
            accept_rest: Rest::default(),
            signals,
            clients: Vec::new(),
            backlog: VecDeque::new(),
            writable: Vec::new(),
            ended: Vec::new(),
            crowd: Crowd::default(),
            disk: None,
            http: None,
            datagrams: None,
            group: vec![[0; GROUP_READ_BYTES]; GROUP],
            buffer: vec![0; READ_BYTES],
        };
        for (place, socket) in sockets {
            server.listen(place, socket)?;
        }
        Ok(server)
    }

    /// The store's options.
    pub fn options(&self) -> &Options {
        self.engine.options()
    }

    /// Opens the log on a disk, and has the store be what it says.
    pub fn open_log(&mut self, spec: &Spec) -> io::Result<()> {
        let disk = data::open_log(&mut self.engine, spec, self.poll.registry())?;
        self.disk = Some(disk);
        Ok(())
    }

    /// Opens the web server, if the options ask for one.
    pub fn open_http(&mut self) -> io::Result<()> {
        self.http = Http::open(
            self.engine.options(),
            StoreSockets::Kernel,
            self.poll.registry(),
            SITE,
            self.clock.now(),
            self.signals.asked(),
        )?;
        Ok(())
    }

    /// Opens the sockets for datagrams, if the options ask for some.
    pub fn open_datagrams(&mut self) -> io::Result<()> {
        self.datagrams = DatagramSockets::open(self.engine.options(), self.poll.registry(), FIRST_DATAGRAMS)?;
        Ok(())
    }

    fn listen(&mut self, place: Option<Place>, mut socket: Listening) -> io::Result<()> {
        let token = Token(FIRST_LISTENER + self.listeners.len());
        self.poll.registry().register(&mut socket, token, Interest::READABLE)?;
        self.listeners.push(Some(Listener { socket, place, ready: true }));
        Ok(())
    }

    /// Opens and closes listeners as new options have asked for.
    fn rebind(&mut self) -> io::Result<()> {
        let Some(rebound) = self.host.take_rebound() else { return Ok(()) };
        for listener in &mut self.listeners {
            let is_over = |l: &Listener| l.place.as_ref().is_some_and(|place| !rebound.places.contains(place));
            if listener.as_ref().is_some_and(is_over) {
                *listener = None;
            }
        }
        for (place, socket) in rebound.opened {
            log::info!("ready: {}", socket.local_addr()?);
            self.listen(Some(place), Listening::Tcp(socket))?;
        }
        Ok(())
    }

    /// Serves until the engine wants to end, and returns the exit status.
    pub fn run(mut self) -> io::Result<u8> {
        for listener in self.listeners.iter().flatten() {
            match &listener.socket {
                Listening::Tcp(socket) => logger::awaited(&format!("ready: {}", socket.local_addr()?)),
                Listening::Unix(_, path) => log::info!("The server is now ready to accept connections at {path}"),
            }
        }
        log::info!("Ready to accept connections");
        supervisor::tell_ready(self.engine.options());
        self.engine.note_boot_phase("ready", self.clock.monotonic_ns());
        let mut events = Events::with_capacity(EVENTS);
        loop {
            self.wait(&mut events)?;
            let now = self.clock.now();
            self.engine.begin_turn(now);
            self.crowd.begin_turn(now);
            for event in &events {
                match event.token() {
                    SIGNALS => self.signals.take(&mut self.engine),
                    // Every turn looks at the disk and for a new site.
                    DISK | SITE => {}
                    token if Http::owns(token) => {
                        if let Some(http) = &mut self.http {
                            http.take_event(event);
                        }
                    }
                    Token(token) if token >= FIRST_DATAGRAMS => {
                        if let Some(datagrams) = &mut self.datagrams {
                            datagrams.note(token - FIRST_DATAGRAMS);
                        }
                    }
                    Token(token) if token >= FIRST_LISTENER => {
                        if let Some(listener) = &mut self.listeners[token - FIRST_LISTENER] {
                            listener.ready = true;
                        }
                    }
                    Token(token) => self.take_event(ClientId(token as u32), event),
                }
            }
            self.read_backlog();
            self.accept();
            if let Some(datagrams) = &mut self.datagrams {
                datagrams.turn(&mut self.engine);
            }
            if let Some(http) = &mut self.http {
                http.turn(&mut self.engine, self.poll.registry(), now);
            }
            self.engine.end_turn();
            while let Some(dial) = self.engine.next_dial() {
                self.dial(&dial);
            }
            data::take_new_disk(&mut self.disk, self.host);
            if let Some(disk) = &mut self.disk {
                self.engine.drive_log(&mut **disk);
            }
            data::settle_log(&mut self.disk, &mut self.engine);
            if let Some(http) = &mut self.http {
                http.release(&mut self.engine);
            }
            self.rebind()?;
            self.write();
            self.signals.settle(&self.engine);
            if let Some(shutdown) = self.engine.shutdown() {
                if let Some(disk) = &mut self.disk {
                    self.engine.close_log(&mut **disk);
                }
                return Ok(shutdown.status);
            }
        }
    }

    /// Waits until something is to be done.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let mut deadline_ns = self.engine.next_deadline_ns().unwrap_or(u64::MAX);
        if let Some(http) = &self.http {
            deadline_ns = deadline_ns.min(http.next_deadline_ns());
        }
        if self.listeners.iter().flatten().any(|listener| listener.ready) {
            deadline_ns = deadline_ns.min(self.accept_rest.until_ns);
        }
        let timeout = match deadline_ns {
            _ if !self.backlog.is_empty() => Some(Duration::ZERO),
            _ if self.datagrams.as_ref().is_some_and(DatagramSockets::is_behind) => Some(Duration::ZERO),
            u64::MAX => None,
            _ => Some(Duration::from_nanos(deadline_ns.saturating_sub(self.clock.now().monotonic_ns))),
        };
        if timeout != Some(Duration::ZERO)
            && let Some(nap) = self.crowd.nap().or_else(|| self.http.as_ref()?.nap())
        {
            thread::sleep(nap);
        }
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }

    fn take_event(&mut self, id: ClientId, event: &mio::event::Event) {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        client.hung_up |= event.is_read_closed() || event.is_error();
        if event.is_writable() && !client.writable {
            client.writable = true;
            self.writable.push(id);
        }
        if (event.is_readable() || client.hung_up) && !client.ended {
            client.readable = true;
            self.keep_reading(id);
        }
    }

    /// Reads once from each client that has sent something, by groups.
    fn read_backlog(&mut self) {
        let mut group = mem::take(&mut self.group);
        // Those that are put back meanwhile come behind, and have their turn in the next one.
        let mut left = self.backlog.len();
        let mut ids = [ClientId(0); GROUP];
        while left > 0 {
            let len = left.min(GROUP);
            ids.iter_mut().zip(self.backlog.drain(..len)).for_each(|(place, id)| *place = id);
            self.read_group(&ids[..len], &mut group);
            left -= len;
        }
        self.group = group;
    }

    /// Reads from some clients, and then has the engine execute what they have sent, so that it can look ahead.
    fn read_group(&mut self, ids: &[ClientId], group: &mut [[u8; GROUP_READ_BYTES]]) {
        let mut lens = [0; GROUP];
        for ((id, len), bytes) in ids.iter().zip(&mut lens).zip(&mut *group) {
            let Some(client) = self.clients[id.0 as usize].as_mut() else { continue };
            client.in_backlog = false;
            if client.last_read < GROUP_READ_BYTES {
                *len = self.receive(*id, bytes);
            }
        }
        let sent = ids.iter().zip(lens).zip(&*group).map(|((&id, len), bytes)| (id, &bytes[..len]));
        if ids.len() > 1 {
            self.engine.look_ahead(sent.clone());
        }
        for (id, bytes) in sent {
            if !bytes.is_empty() {
                self.execute(id, bytes);
            }
            let has_more = |client: &Client| client.last_read >= GROUP_READ_BYTES;
            if self.clients[id.0 as usize].as_ref().is_some_and(has_more) || self.engine.expects_more(id) {
                self.read_on(id);
            } else {
                self.read_later(id);
            }
        }
    }

    /// Reads from a client that has much to say, and notes if it is to be read from again: once, or on in the middle of a
    /// long request.
    fn read_on(&mut self, id: ClientId) {
        let mut buffer = mem::take(&mut self.buffer);
        for _ in 0..LONG_READS {
            match self.receive(id, &mut buffer) {
                0 => break,
                len => self.execute(id, &buffer[..len]),
            }
            if !self.engine.expects_more(id) {
                break;
            }
        }
        self.buffer = buffer;
        self.read_later(id);
    }

    /// Has a client read from in the next turn if there is more.
    fn read_later(&mut self, id: ClientId) {
        let client = self.clients[id.0 as usize].as_ref();
        if client.is_some_and(|client| client.readable) && self.engine.fate(id) == Fate::Open {
            self.keep_reading(id);
        }
    }

    /// Reads what a client has sent, as much as there is room for. Returns how much that is.
    fn receive(&mut self, id: ClientId, buffer: &mut [u8]) -> usize {
        let Some(client) = self.clients[id.0 as usize].as_mut() else { return 0 };
        if client.ended || self.engine.fate(id) != Fate::Open {
            return 0;
        }
        match client.stream.read(buffer) {
            Ok(0) => {
                (client.ended, client.readable) = (true, false);
                self.ended.push(id);
            }
            Ok(len) => {
                // A short read has taken all there was (epoll(7)), except that the end may have come with it.
                client.readable = len == buffer.len() || client.hung_up;
                client.last_read = len;
                return len;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => client.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::debug!("reading from client {}: {error}", id.0);
                self.close(id);
            }
        }
        0
    }

    /// Has the engine execute what a client has sent.
    fn execute(&mut self, id: ClientId, bytes: &[u8]) {
        let Some(client) = self.clients[id.0 as usize].as_mut() else { return };
        self.engine.receive(id, bytes);
        self.crowd.serve(&mut client.busy_period);
        // More comes once the peer learns that there is room again.
        client.readable |= self.engine.expects_more(id);
    }

    /// Has a client read from, in the next turn if this one's are being read.
    fn keep_reading(&mut self, id: ClientId) {
        let Some(client) = self.clients[id.0 as usize].as_mut() else { return };
        if !client.in_backlog {
            client.in_backlog = true;
            self.backlog.push_back(id);
        }
    }

    fn accept(&mut self) {
        if self.engine.options().tcp_keepalive != self.keepalive_s {
            self.keepalive_s = self.engine.options().tcp_keepalive;
            for listener in self.listeners.iter().flatten() {
                if let Listening::Tcp(socket) = &listener.socket {
                    listeners::set_keepalive(socket, self.keepalive_s);
                }
            }
        }
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                let Some(listener) = self.listeners[index].as_mut().filter(|listener| listener.ready) else { break };
                if self.accept_rest.until_ns > self.clock.now().monotonic_ns {
                    break;
                }
                match listener.socket.accept() {
                    Ok((stream, origin)) => self.admit(stream, origin),
                    Err(error) => {
                        listener.ready = error.raw_os_error() != Some(libc::EAGAIN);
                        self.accept_failed(&error);
                    }
                }
            }
        }
    }

    fn accept_failed(&mut self, error: &io::Error) {
        if has_no_room(error) {
            self.accept_rest.begin("a connection", error, self.clock.now().monotonic_ns);
        } else if error.raw_os_error() != Some(libc::EAGAIN) {
            // What is wrong with one connection (accept(2) lists network errors) is not with the next.
            log::debug!("accepting a connection: {error}");
        }
    }

    fn admit(&mut self, stream: Stream, Origin { remote, local, is_local }: Origin) {
        let peer = Peer { remote, local, is_local };
        let id = match self.engine.connect(peer) {
            Ok(id) => id,
            Err(refusal) => return refuse(stream, refusal.0),
        };
        self.keep(id, stream, Writable::Yes);
    }

    /// Keeps a client's connection, if the kernel will tell of it.
    fn keep(&mut self, id: ClientId, mut stream: Stream, writable: Writable) {
        let slot = id.0 as usize;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(slot), interest) {
            log::warn!("a connection was dropped: {error}");
            return self.engine.disconnect(id);
        }
        if self.clients.len() <= slot {
            self.clients.resize_with(slot + 1, || None);
        }
        self.clients[slot] = Some(Client {
            stream,
            readable: false,
            last_read: 0,
            hung_up: false,
            ended: false,
            writable: writable == Writable::Yes,
            in_backlog: false,
            busy_period: 0,
        });
    }

    /// Connects to where the engine wants to.
    fn dial(&mut self, dial: &Dial) {
        match Stream::connect(&dial.host, dial.port) {
            Ok((stream, Origin { remote, local, is_local })) => {
                let Some(id) = self.engine.dialed(dial, Peer { remote, local, is_local }) else { return };
                // The kernel tells when it is established.
                self.keep(id, stream, Writable::NotYet);
            }
            Err(error) => self.engine.dial_failed(dial, &error.to_string()),
        }
    }

    /// Sends replies, and obeys what the engine says of the clients.
    fn write(&mut self) {
        while let Some(id) = self.engine.next_ready() {
            self.write_to(id);
        }
        while let Some(id) = self.writable.pop() {
            self.write_to(id);
        }
        while let Some(id) = self.ended.pop() {
            self.write_to(id);
        }
    }

    fn write_to(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let fate = self.engine.fate(id);
        let mut unsent;
        loop {
            let output = self.engine.output(id);
            unsent = output.len();
            if unsent == 0 || !client.writable || fate == Fate::CloseNow {
                break;
            }
            match client.stream.write(output) {
                Ok(len) => {
                    // A short write has filled the kernel's buffer (epoll(7)): it will tell when there is room.
                    client.writable = len == unsent;
                    self.engine.sent(id, len);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => client.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::debug!("writing to client {}: {error}", id.0);
                    return self.close(id);
                }
            }
        }
        match fate {
            Fate::CloseNow => self.close(id),
            Fate::CloseAfterOutput if unsent == 0 => self.close(id),
            // A peer that will send no more may still want what it has asked for.
            _ if client.ended && unsent == 0 && !self.engine.awaits_log(id) => self.close(id),
            Fate::Open if client.readable => self.keep_reading(id),
            _ => {}
        }
    }

    fn close(&mut self, id: ClientId) {
        self.engine.disconnect(id);
        // Closing a socket takes it out of the poll.
        self.clients[id.0 as usize] = None;
        // Its descriptor is free for a connection that waits.
        self.accept_rest.end();
    }
}

/// Tells a client why it is not served.
fn refuse(mut stream: Stream, why: &[u8]) {
    // It is told if that can be done at once, and its requests are read so that closing does not reset the connection
    // before it has read the answer. Whatever fails here, it is closed.
    let _ = stream.write(why);
    let _ = stream.end_sending();
    let _ = stream.read(&mut [0; 1024]);
}
