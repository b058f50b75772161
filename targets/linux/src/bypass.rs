//! The store on a TCP/IP stack of its own, with frames from an AF_XDP socket: past the kernel's network.

use crate::{
    card::Card, clock::SystemClock, data, host::LinuxHost, http::Http, logger, open_files::StoreSockets,
    signals::Signals, supervisor,
};
use anyhow::{Context, Result, anyhow};
use kayvee_disk::FileDisk;
use kayvee_net::{Config, Limits, Stack};
use kayvee_platform::{Clock, FrameDevice, FrameRx};
use kayvee_server::{Engine, Options};
use kayvee_station::{Peers, Station};
use kayvee_xdp_socket::{Attachment, FRAMES_BYTES, FrameMemory};
use mio::{Events, Poll, Token};
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{sysinfo::sysinfo, time::TimeSpec},
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    path::Path,
    thread,
    time::Duration,
};

/// How long the loop looks for more to do before it sleeps: somewhat longer than it takes to be woken.
const POLL_NS: u64 = 50_000;
/// The same while frames are on their way that the kernel had no memory for.
const SENDING_NS: u64 = 1_000_000;
/// How often signals, the disk and the web server are looked at under load.
const LOOK_INTERVAL_NS: u64 = 1_000_000;
/// Events that are not the card's, taken in a turn.
const EVENTS: usize = 256;

const SIGNALS: Token = Token(usize::MAX - 1);
const SITE: Token = Token(usize::MAX - 3);

/// How the network is reached.
#[derive(Clone, Debug)]
pub struct Network {
    /// To what.
    pub attachment: Attachment,
    /// The file that frames are recorded in.
    pub record: Option<String>,
}

/// The process' own network, its engine, and what else it waits for.
pub struct Server {
    card: Card,
    station: Station,
    clock: &'static SystemClock,
    /// What is not the card.
    poll: Poll,
    signals: Signals,
    disk: Option<Box<FileDisk>>,
    host: &'static LinuxHost,
    http: Option<Http>,
    /// When to look at what is not the card.
    look_due_ns: u64,
}

impl Server {
    /// Attaches an engine to a network.
    pub fn new(
        mut engine: Engine,
        network: &Network,
        clock: &'static SystemClock,
        host: &'static LinuxHost,
    ) -> Result<Server> {
        let poll = Poll::new()?;
        let signals = Signals::catch(poll.registry(), SIGNALS)?;
        host.serve_disks(poll.registry())?;
        let disk = match data::disk(engine.options())? {
            Some(spec) => Some(data::open_log(&mut engine, &spec, poll.registry())?),
            None => None,
        };
        let http =
            Http::open(engine.options(), StoreSockets::Own, poll.registry(), SITE, clock.now(), signals.asked())?;
        let frames = FrameMemory::allocate(FRAMES_BYTES).context("allocating memory for frames")?;
        let place = network.attachment.open(&frames).context("--net")?;
        log::info!("net: {} ({})", place.name, place.socket.how);
        let device = place.socket.into_card(frames)?;
        let mut card = Card::new(device, network.record.as_deref().map(Path::new))?;
        let Options { maxclients, maxmemory, .. } = *engine.options();
        let limits = Limits::for_memory(sysinfo()?.ram_total(), maxclients).beside_data(maxmemory, maxclients);
        engine.limit_clients(limits.clients() as u32);
        let keepalive_s = engine.options().tcp_keepalive;
        let config = Config {
            addressing: place.addressing,
            addressing6: place.addressing6,
            limits,
            keepalive_s,
            seed: u64::from_ne_bytes(crate::random()?),
        };
        let mut stack = Stack::new(config, &mut card, clock.monotonic_ns())?;
        if place.is_own {
            stack.ask_nobody();
        }
        stack.listen(engine.options().port);
        let peers = if place.is_own { Peers::host(place.addressing, place.addressing6) } else { Peers::Strangers };
        // The web server stays with the kernel's sockets.
        let station = Station::new(stack, engine, None, peers, limits.connections);
        Ok(Server { card, station, clock, poll, signals, disk, host, http, look_due_ns: 0 })
    }

    /// Serves until the engine wants to end, and returns the exit status.
    pub fn run(mut self) -> Result<u8> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            self.turn(&mut events)?;
            if let Some(error) = self.card.error() {
                return Err(anyhow!("the AF_XDP socket cannot be used any more: {error}"));
            }
            if let Some(shutdown) = self.station.engine().shutdown() {
                if let Some(disk) = &mut self.disk {
                    self.station.engine().close_log(&mut **disk);
                }
                let clock = self.clock;
                self.station.end(&mut self.card, || clock.monotonic_ns(), |card| card.sender().is_sending());
                return Ok(shutdown.status);
            }
            self.wait()?;
        }
    }

    fn turn(&mut self, events: &mut Events) -> io::Result<()> {
        let now = self.clock.now();
        self.station.receive(&mut self.card, now);
        while let Some((address, prefix_bits)) = self.station.next_address() {
            self.announce(address, prefix_bits);
        }
        if now.monotonic_ns >= self.look_due_ns {
            self.look_due_ns = now.monotonic_ns + LOOK_INTERVAL_NS;
            self.take_events(events)?;
        }
        if let Some(http) = &mut self.http {
            http.turn(self.station.engine(), self.poll.registry(), now);
        }
        data::take_new_disk(&mut self.disk, self.host);
        self.station.reply(&mut self.card, self.disk.as_deref_mut(), now);
        data::settle_log(&mut self.disk, self.station.engine());
        if let Some(http) = &mut self.http {
            http.release(self.station.engine());
        }
        Ok(())
    }

    fn take_events(&mut self, events: &mut Events) -> io::Result<()> {
        match self.poll.poll(events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        self.signals.settle(self.station.engine());
        for event in &*events {
            match event.token() {
                SIGNALS => self.signals.take(self.station.engine()),
                token if Http::owns(token) => {
                    if let Some(http) = &mut self.http {
                        http.take_event(event);
                    }
                }
                // Every turn looks at the disk and for a new site.
                _ => {}
            }
        }
        Ok(())
    }

    fn announce(&mut self, address: IpAddr, prefix_bits: u8) {
        let port = self.station.engine().options().port;
        log::info!("net: {address}/{prefix_bits}");
        logger::fixed(&format!("ready: {}", SocketAddr::new(address, port)));
        log::info!("Ready to accept connections");
        supervisor::tell_ready(self.station.engine().options());
    }

    /// Waits for a frame or for the next deadline: polling at first, then asleep.
    fn wait(&mut self) -> io::Result<()> {
        let idle_ns = self.clock.monotonic_ns();
        self.station.rest(idle_ns);
        if self.station.is_behind() {
            return Ok(());
        }
        if let Some(nap) = self.station.nap() {
            thread::sleep(nap);
        }
        let mut deadline_ns = self.station.next_deadline_ns().unwrap_or(u64::MAX);
        if let Some(http) = &self.http {
            deadline_ns = deadline_ns.min(http.next_deadline_ns());
        }
        while !self.card.split().0.ready() {
            let now_ns = self.clock.monotonic_ns();
            if now_ns >= deadline_ns {
                return Ok(());
            }
            if now_ns >= idle_ns + POLL_NS {
                return self.sleep(deadline_ns, now_ns);
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn sleep(&mut self, deadline_ns: u64, now_ns: u64) -> io::Result<()> {
        let mut deadline_ns = deadline_ns;
        let sender = self.card.sender();
        if sender.is_sending() {
            sender.send_again();
            deadline_ns = deadline_ns.min(now_ns + SENDING_NS);
        }
        let timeout =
            (deadline_ns != u64::MAX).then(|| TimeSpec::from_duration(Duration::from_nanos(deadline_ns - now_ns)));
        let socket = &*self.card.sender().doorbell();
        let mut descriptors = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.poll.registry().as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut descriptors, timeout, None) {
            Err(nix::errno::Errno::EINTR) => {}
            result => drop(result?),
        }
        if descriptors[1].any() == Some(true) {
            self.look_due_ns = 0;
        }
        Ok(())
    }
}
