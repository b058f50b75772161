//! The web server's sockets, in the same loop as the store's.

use crate::{
    access_log,
    bell::Bell,
    listeners::{self, Rest, has_no_room},
    open_files::{StoreSockets, WebServer, web_connections},
    site::{self, Sites},
};
use kayvee_disk::FileDisk;
use kayvee_http::{AccessLog, ConnectionId, Fate, Limits, Server};
use kayvee_platform::Now;
use kayvee_server::{Engine, Options};
use kayvee_station::{Crowd, web_buffer_bytes};
use mio::{
    Interest, Registry, Token,
    event::Event,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, SocketAddr},
    path::Path,
    sync::atomic::AtomicBool,
    time::Duration,
};

/// Bytes read from one client in a turn.
const READ_BYTES: usize = 16 << 10;
/// Bytes sent in a turn to all clients together, so that long files do not keep the store's clients waiting ...
const WRITE_BYTES_PER_TURN: usize = 1 << 20;
/// ... and to one of many clients, so that short files do not wait for all of the long ones.
const WRITE_BYTES_PER_CLIENT: usize = 128 << 10;
/// Connections accepted in a turn on each address.
const ACCEPTS_PER_TURN: usize = 1000;

/// What all connections together may hold of requests and responses, where `maxmemory` does not call for less.
const MAX_BUFFER_BYTES: usize = 128 << 20;

/// What is kept of a site on a disk, beside the kernel's page cache.
const CACHED_SITE_BYTES: usize = 16 << 20;

/// What former states of a site may hold together, for clients that take theirs slowly. One may be larger.
const FORMER_SITES_BYTES: usize = 64 << 20;

/// How often the status page is told how things are.
const STATUS_INTERVAL_NS: u64 = 1_000_000_000;

/// Tokens of the web server's listeners and of its connections begin here.
const FIRST_LISTENER: usize = 1 << 33;
const FIRST_CONNECTION: usize = 1 << 34;

/// A client's socket. The kernel tells once of each change, so what it told is kept here.
struct Client {
    stream: TcpStream,
    readable: bool,
    writable: bool,
    /// The peer will send no more: reading goes on to the end.
    hung_up: bool,
    /// The end has been read.
    ended: bool,
    /// It has been told that nothing more will be sent.
    told_end: bool,
    is_active: bool,
    /// When it last sent something, as [`Crowd`] counts.
    busy_period: u64,
}

/// The web server and its sockets.
pub struct Http {
    server: Server,
    /// Each with whether there may be connections to accept.
    listeners: Vec<(TcpListener, bool)>,
    accept_rest: Rest,
    /// What the server's limit of connections was set by.
    store: StoreSockets,
    maxclients: u32,
    clients: Vec<Option<Client>>,
    /// Clients with something to be done in the next turn.
    active: VecDeque<ConnectionId>,
    /// Bytes that may still be sent in this turn, and how many of them to one client.
    unspent_bytes: usize,
    share_bytes: usize,
    crowd: Crowd,
    sites: Option<Sites>,
    /// The disk of a site that stays there.
    disk: Option<FileDisk>,
    log: Option<access_log::AccessLog>,
    /// When the listeners of the status page are told the next time.
    next_status_ns: u64,
    buffer: Box<[u8; READ_BYTES]>,
}

/// Whether the options ask for a web server.
pub fn is_wanted(options: &Options) -> WebServer {
    if options.http_port == 0 { WebServer::None } else { WebServer::Beside }
}

impl Http {
    /// Opens the ports and the site that the options ask for; none if they ask for no web server, and no site if the end is asked
    /// for meanwhile.
    pub fn open(
        options: &Options,
        store: StoreSockets,
        registry: &Registry,
        bell: Token,
        now: Now,
        is_asked_to_end: &AtomicBool,
    ) -> io::Result<Option<Http>> {
        if options.http_port == 0 {
            let places = [&options.site, &options.site_disk, &options.http_keys];
            if options.status || places.iter().any(|place| !place.is_empty()) {
                let names = "'site', 'site-disk', 'http-keys' and 'status'";
                return Err(io::Error::other(format!("options {names} need a port: set 'http-port'")));
            }
            return Ok(None);
        }
        let places: Vec<_> = options.bind.iter().map(|word| (word.clone(), options.http_port)).collect();
        let bound = listeners::bind(&places, options)
            .map_err(|error| io::Error::new(error.kind(), format!("listening on the web server's port: {error}")))?;
        let mut listeners = Vec::with_capacity(bound.len());
        for (index, (_, mut listener)) in bound.into_iter().enumerate() {
            registry.register(&mut listener, Token(FIRST_LISTENER + index), Interest::READABLE)?;
            log::info!("web server ready: {}", listener.local_addr()?);
            listeners.push((listener, true));
        }
        let log = access_log::AccessLog::open(&options.http_access_log)?;
        let access_log = if log.is_some() { AccessLog::Common } else { AccessLog::Off };
        let maxclients = options.maxclients;
        let limits = Limits::new(web_connections(maxclients, store)?, buffer_bytes(options.maxmemory));
        let mut server = Server::new(limits, access_log, now);
        let (mut sites, mut disk) = (None, None);
        if !options.site_disk.is_empty() {
            if !options.site.is_empty() {
                return Err(io::Error::other("options 'site' and 'site-disk' exclude each other"));
            }
            disk = Some(open_disk(&options.site_disk, &mut server, Bell::new(registry, bell)?)?);
        }
        if !options.site.is_empty() {
            let path = Path::new(&options.site);
            let loaded = site::load_unless(is_asked_to_end, path);
            let loaded = loaded.map_err(|error| io::Error::other(format!("site: {error:#}")))?;
            if let Some((site, fingerprint)) = loaded {
                log::info!("site {}: {} paths", path.display(), site.len());
                server.set_site(site);
                sites = Some(Sites::watch(path, fingerprint, Bell::new(registry, bell)?)?);
            }
        }
        let (clients, active) = (Vec::new(), VecDeque::new());
        Ok(Some(Http {
            server,
            listeners,
            accept_rest: Rest::default(),
            store,
            maxclients,
            clients,
            active,
            unspent_bytes: 0,
            share_bytes: 0,
            crowd: Crowd::default(),
            sites,
            disk,
            log,
            next_status_ns: 0,
            buffer: Box::new([0; READ_BYTES]),
        }))
    }

    /// Whether an event is the web server's.
    pub fn owns(token: Token) -> bool {
        (FIRST_LISTENER..FIRST_CONNECTION << 1).contains(&token.0)
    }

    /// When there is something to do, at the latest.
    pub fn next_deadline_ns(&self) -> u64 {
        let status_ns = if self.server.has_listeners() { self.next_status_ns } else { u64::MAX };
        let accept_ns =
            if self.listeners.iter().any(|listener| listener.1) { self.accept_rest.until_ns } else { u64::MAX };
        let deadline_ns = self.server.next_deadline_ns().unwrap_or(u64::MAX).min(status_ns).min(accept_ns);
        if self.active.is_empty() { deadline_ns } else { 0 }
    }

    /// How long to rest so that requests gather.
    pub fn nap(&self) -> Option<Duration> {
        self.crowd.nap()
    }

    /// Notes what the kernel tells.
    pub fn take_event(&mut self, event: &Event) {
        let Token(token) = event.token();
        if token < FIRST_CONNECTION {
            self.listeners[token - FIRST_LISTENER].1 = true;
            return;
        }
        let slot = token - FIRST_CONNECTION;
        let Some(client) = self.clients.get_mut(slot).and_then(Option::as_mut) else { return };
        client.hung_up |= event.is_read_closed() || event.is_error();
        client.readable |= event.is_readable() || client.hung_up;
        client.writable |= event.is_writable();
        self.activate(ConnectionId(slot as u32));
    }

    fn activate(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients[id.0 as usize].as_mut().filter(|client| !client.is_active) {
            client.is_active = true;
            self.active.push_back(id);
        }
    }

    /// One turn: all that has arrived, and all that follows from it.
    pub fn turn(&mut self, engine: &mut Engine, registry: &Registry, now: Now) {
        self.follow_options(engine.options());
        self.server.begin_turn(now, &mut engine.web());
        self.crowd.begin_turn(now);
        while let Some(site) = self.sites.as_ref().and_then(Sites::next) {
            log::info!("the site has changed: {} paths", site.len());
            self.server.replace_site(site, FORMER_SITES_BYTES);
        }
        if let Some(disk) = &mut self.disk {
            self.server.take_from_disk(disk, &mut engine.web());
        }
        self.accept(registry, now.monotonic_ns);
        let active = self.active.len();
        self.unspent_bytes = WRITE_BYTES_PER_TURN;
        self.share_bytes = (WRITE_BYTES_PER_TURN / active.max(1)).max(WRITE_BYTES_PER_CLIENT);
        for _ in 0..active {
            // Who is not reached is the first in the next turn.
            if self.unspent_bytes == 0 {
                break;
            }
            let Some(id) = self.active.pop_front() else { break };
            if let Some(client) = self.clients[id.0 as usize].as_mut() {
                client.is_active = false;
                self.read(id, engine);
                self.write(id, engine);
            }
        }
        self.server.end_turn();
        self.publish_status(engine, now);
        self.write_ready(engine);
        if let Some(disk) = &mut self.disk {
            self.server.read_from_disk(disk);
        }
        if let Some(log) = &self.log {
            log.put(self.server.take_access_log());
        }
    }

    /// Has the server's limits be what the options say by now.
    fn follow_options(&mut self, options: &Options) {
        self.server.set_buffer_bytes(buffer_bytes(options.maxmemory));
        if options.maxclients != self.maxclients {
            self.maxclients = options.maxclients;
            match web_connections(options.maxclients, self.store) {
                Ok(connections) => self.server.set_connections(connections),
                Err(error) => log::warn!("the web server's limit of connections stays: {error}"),
            }
        }
    }

    /// Sends what tells of what has become stable: to be called when the log has been driven.
    pub fn release(&mut self, engine: &mut Engine) {
        if self.server.has_waiting() {
            self.server.release(&mut engine.web());
            self.write_ready(engine);
        }
    }

    fn write_ready(&mut self, engine: &mut Engine) {
        while let Some(id) = self.server.next_ready() {
            self.write(id, engine);
        }
    }

    fn accept(&mut self, registry: &Registry, now_ns: u64) {
        if now_ns < self.accept_rest.until_ns {
            return;
        }
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                let (listener, ready) = &mut self.listeners[index];
                if !*ready {
                    break;
                }
                match listener.accept() {
                    Ok((stream, remote)) => self.admit(stream, remote, registry),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => *ready = false,
                    Err(error) if has_no_room(&error) => {
                        return self.accept_rest.begin("a web connection", &error, now_ns);
                    }
                    // What is wrong with one connection (accept(2) lists network errors) is not with the next.
                    Err(error) => log::debug!("accepting a web connection: {error}"),
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, remote: SocketAddr, registry: &Registry) {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let id = match self.server.connect(remote, remote.ip().is_loopback()) {
            Ok(id) => id,
            Err(refusal) => {
                // It is told if that can be done at once, and closed in any case.
                let _ = stream.write(refusal.0);
                return;
            }
        };
        let slot = id.0 as usize;
        let token = Token(FIRST_CONNECTION + slot);
        if let Err(error) = registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE) {
            log::warn!("a web connection was dropped: {error}");
            self.server.disconnect(id);
            return;
        }
        if self.clients.len() <= slot {
            self.clients.resize_with(slot + 1, || None);
        }
        self.clients[slot] = Some(Client {
            stream,
            readable: false,
            writable: true,
            hung_up: false,
            ended: false,
            told_end: false,
            is_active: false,
            busy_period: 0,
        });
    }

    /// Reads once from a client.
    fn read(&mut self, id: ConnectionId, engine: &mut Engine) {
        let Some(client) = self.clients[id.0 as usize].as_mut() else { return };
        let wants_bytes = matches!(self.server.fate(id), Fate::Open | Fate::EndAfterOutput);
        if !client.readable || client.ended || !wants_bytes {
            return;
        }
        match client.stream.read(&mut self.buffer[..]) {
            Ok(0) => (client.ended, client.readable) = (true, false),
            Ok(len) => {
                // A short read has taken all there was (epoll(7)), except that the end may have come with it.
                client.readable = len == READ_BYTES || client.hung_up;
                self.crowd.serve(&mut client.busy_period);
                self.server.receive(id, &self.buffer[..len], &mut engine.web());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => client.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::debug!("reading from web connection {}: {error}", id.0);
                self.close(id);
            }
        }
    }

    /// Sends what there is to send, and obeys what the server says of the connection.
    fn write(&mut self, id: ConnectionId, engine: &mut Engine) {
        let mut budget = self.share_bytes.min(self.unspent_bytes);
        loop {
            let Some(client) = self.clients[id.0 as usize].as_mut() else { return };
            let fate = self.server.fate(id);
            let [first, second] = self.server.output(id);
            let len = first.len() + second.len();
            if fate == Fate::CloseNow || (len == 0 && client.ended && fate != Fate::Waiting) {
                return self.close(id);
            }
            if len == 0 || !client.writable || budget == 0 {
                return self.rest(id, fate, len);
            }
            let first = &first[..first.len().min(budget)];
            let second = &second[..second.len().min(budget - first.len())];
            let wanted = first.len() + second.len();
            let written = match second {
                [] => client.stream.write(first),
                second => client.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
            };
            match written {
                Ok(sent) => {
                    // A short write has filled the kernel's buffer (epoll(7)): it will tell when there is room.
                    client.writable = sent == wanted;
                    budget -= sent;
                    self.unspent_bytes -= sent;
                    self.server.sent(id, sent, &mut engine.web());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => client.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::debug!("writing to web connection {}: {error}", id.0);
                    return self.close(id);
                }
            }
        }
    }

    /// What is left to do with a connection that could not be sent more.
    fn rest(&mut self, id: ConnectionId, fate: Fate, unsent: usize) {
        let Some(client) = self.clients[id.0 as usize].as_mut() else { return };
        if fate == Fate::EndAfterOutput && unsent == 0 && !client.told_end {
            client.told_end = true;
            // Where that fails the connection is gone, which reading from it will tell.
            let _ = client.stream.shutdown(Shutdown::Write);
        }
        let wants_to_read = client.readable && !matches!(fate, Fate::Paused | Fate::Waiting);
        if wants_to_read || (unsent > 0 && client.writable) {
            self.activate(id);
        }
    }

    fn close(&mut self, id: ConnectionId) {
        self.server.disconnect(id);
        // Closing a socket takes it out of the poll.
        self.clients[id.0 as usize] = None;
        // Its descriptor is free for a connection that waits.
        self.accept_rest.end();
    }

    /// Tells whoever looks at the status page how things are, once a second.
    fn publish_status(&mut self, engine: &mut Engine, now: Now) {
        if self.server.has_listeners() && now.monotonic_ns >= self.next_status_ns {
            self.next_status_ns = now.monotonic_ns + STATUS_INTERVAL_NS;
            let event = engine.web().status_event(self.server.stats());
            self.server.publish(&event, &engine.web());
        }
    }
}

/// What all connections together may hold: what that takes counts as the store's memory, and keys would have to go for it.
fn buffer_bytes(maxmemory: u64) -> usize {
    match usize::try_from(maxmemory) {
        Ok(0) | Err(_) => MAX_BUFFER_BYTES,
        Ok(maxmemory) => web_buffer_bytes(maxmemory).min(MAX_BUFFER_BYTES),
    }
}

/// Opens a site that stays on the disk.
fn open_disk(name: &str, server: &mut Server, bell: Bell) -> io::Result<FileDisk> {
    let mut disk = FileDisk::open_shared(Path::new(name), Box::new(move || bell.ring())).map_err(io::Error::other)?;
    let named = |error| io::Error::other(format!("site {name}: {error}"));
    let site = kayvee_http::open_site_disk(&mut disk).map_err(named)?;
    log::info!("site {name}: {} paths", site.len());
    server.set_site_on_disk(site, CACHED_SITE_BYTES).map_err(named)?;
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{LinuxHost, Reach};
    use kayvee_platform::Clock;
    use kayvee_testing::ports::free_port;
    use mio::{Events, Poll};
    use std::{env, fs, net};

    /// Whoever else is served waits for a turn.
    #[test]
    fn a_turn_is_short_however_many_ask_for_how_much() {
        const CLIENTS: usize = 40;
        const BEGINNING_BYTES: usize = 16 << 10;
        let _alone = crate::sys::tests::MUCH_MEMORY.lock().unwrap();
        let folder = env::temp_dir().join(format!("kayvee-long-pages-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("long.bin"), vec![b'x'; 3 << 20]).unwrap();
        let mut options = Options { http_port: free_port(), bind: vec!["127.0.0.1".into()], ..Options::default() };
        options.site = folder.to_str().unwrap().into();
        let (mut engine, clock, _) = crate::start(options, LinuxHost::new(None, Reach::Own), "epoll").unwrap();
        let mut poll = Poll::new().unwrap();
        let opened = Http::open(
            engine.options(),
            StoreSockets::Own,
            poll.registry(),
            Token(0),
            clock.now(),
            &AtomicBool::new(false),
        );
        let mut http = opened.unwrap().unwrap();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut client = net::TcpStream::connect(("127.0.0.1", engine.options().http_port)).unwrap();
                client.write_all("GET /long.bin HTTP/1.1\r\nHost: h\r\n\r\n".repeat(20).as_bytes()).unwrap();
                client
            })
            .collect();
        let (mut events, mut turns_bytes) = (Events::with_capacity(1000), Vec::new());
        let has_beginning = |client: &net::TcpStream| {
            client.set_nonblocking(true).unwrap();
            client.peek(&mut [0; BEGINNING_BYTES]).is_ok_and(|len| len == BEGINNING_BYTES)
        };
        while !clients.iter().all(has_beginning) {
            let timeout_ns = http.next_deadline_ns().saturating_sub(clock.now().monotonic_ns);
            assert!(turns_bytes.last() != Some(&WRITE_BYTES_PER_TURN) || timeout_ns == 0, "some were not reached");
            poll.poll(&mut events, Some(Duration::from_nanos(timeout_ns))).unwrap();
            events.iter().filter(|event| event.token() != Token(0)).for_each(|event| http.take_event(event));
            let before = http.server.stats().output_bytes;
            http.turn(&mut engine, poll.registry(), clock.now());
            http.release(&mut engine);
            turns_bytes.push((http.server.stats().output_bytes - before) as usize);
            assert!(turns_bytes.iter().all(|bytes| *bytes <= WRITE_BYTES_PER_TURN), "{turns_bytes:?}");
            assert!(turns_bytes.len() < 10_000, "some are never served");
        }
        assert!(turns_bytes.contains(&WRITE_BYTES_PER_TURN), "{turns_bytes:?}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn buffers_are_a_part_of_what_the_store_may_take() {
        for (maxmemory, bytes) in
            [(0, 128 << 20), (1 << 20, 512 << 10), (100 << 20, 3_276_800), (4 << 30, 128 << 20), (u64::MAX, 128 << 20)]
        {
            assert_eq!(buffer_bytes(maxmemory), bytes, "{maxmemory}");
        }
    }
}
