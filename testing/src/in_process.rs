//! The engine behind ordinary sockets in this process, for tests that need no more than the core.
//!
//! It is as simple as a server can be: a thread for each connection reads, and one thread runs the engine. What makes a
//! server fast and its memory bounded is the targets' business and tested there.

use kayvee_platform::{Clock, Heap, Now, ProcessorTime};
use kayvee_server::{ClientId, Engine, Environment, Fate, Options, Peer};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        LazyLock,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const READ_CHUNK_BYTES: usize = 64 << 10;

enum Event {
    Connected(TcpStream),
    Received(u64, Vec<u8>),
    Closed(u64),
    Stop,
}

/// A server that ends when this is dropped.
pub struct Server {
    addr: SocketAddr,
    events: Sender<Event>,
    engine: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts on a free port of the loopback interface, with options as redis-server takes them.
    pub fn start(args: &[&str]) -> io::Result<Server> {
        let options = Options::from_args(args.iter().map(|arg| arg.as_bytes()))
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let (events, received) = channel();
        let connections = events.clone();
        // Ends with the first connection that nobody takes any more; see `drop`.
        thread::spawn(move || listener.incoming().flatten().try_for_each(|s| connections.send(Event::Connected(s))));
        let for_readers = events.clone();
        let engine = thread::spawn(move || Turns::new(options, for_readers).run(&received));
        Ok(Server { addr, events, engine: Some(engine) })
    }

    /// `HOST:PORT` to connect to.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(engine) = self.engine.take() {
            let _ = engine.join();
        }
        let _ = TcpStream::connect(self.addr);
    }
}

/// The system's clock.
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Now {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { monotonic_ns: START.elapsed().as_nanos() as u64, unix_us: unix.as_micros() as u64 }
    }

    fn name(&self) -> &'static str {
        "system"
    }
}

/// What the engine is told of the memory: it depends on nothing, so that a run is the same each time.
pub struct FixedHeap;

impl Heap for FixedHeap {
    fn used_bytes(&self) -> u64 {
        8 << 20
    }

    fn limit_bytes(&self) -> Option<u64> {
        None
    }

    fn resident_bytes(&self) -> u64 {
        8 << 20
    }

    fn allocator(&self) -> &'static str {
        "fixed"
    }
}

/// An environment in which everything stands still.
pub fn environment() -> Environment {
    Environment {
        target: "test",
        os: "none".into(),
        multiplexing: "none",
        process_id: 0,
        clock: &RealClock,
        heap: &FixedHeap,
        system_memory_bytes: 1 << 30,
        processor_time: ProcessorTime::default,
        monitor: || None,
        host: &kayvee_commands::NoHost,
        seed: [7; 32],
    }
}

struct Turns {
    engine: Engine,
    streams: HashMap<ClientId, (u64, TcpStream)>,
    clients: HashMap<u64, ClientId>,
    next_serial: u64,
    for_readers: Sender<Event>,
}

impl Turns {
    fn new(options: Options, for_readers: Sender<Event>) -> Turns {
        let engine = Engine::new(options, environment(), RealClock.now());
        Turns { engine, streams: HashMap::new(), clients: HashMap::new(), next_serial: 0, for_readers }
    }

    fn run(mut self, events: &Receiver<Event>) {
        loop {
            let now_ns = RealClock.now().monotonic_ns;
            let patience = match self.engine.next_deadline_ns() {
                Some(deadline_ns) => Duration::from_nanos(deadline_ns.saturating_sub(now_ns)),
                None => Duration::MAX,
            };
            let first = events.recv_timeout(patience);
            self.engine.begin_turn(RealClock.now());
            match first {
                Ok(event) => {
                    for event in std::iter::once(event).chain(std::iter::from_fn(|| events.try_recv().ok())) {
                        if matches!(event, Event::Stop) {
                            return;
                        }
                        self.handle(event);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.engine.end_turn();
            self.send_output();
            if self.engine.shutdown().is_some() {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Connected(stream) => self.connect(stream),
            Event::Received(serial, bytes) => {
                if let Some(&client) = self.clients.get(&serial) {
                    self.engine.receive(client, &bytes);
                }
            }
            Event::Closed(serial) => {
                if let Some(client) = self.clients.remove(&serial) {
                    self.streams.remove(&client);
                    self.engine.disconnect(client);
                }
            }
            Event::Stop => {}
        }
    }

    fn connect(&mut self, mut stream: TcpStream) {
        let (Ok(remote), Ok(local), Ok(mut reading)) = (stream.peer_addr(), stream.local_addr(), stream.try_clone())
        else {
            return;
        };
        let _ = stream.set_nodelay(true);
        let client =
            match self.engine.connect(Peer { remote: remote.to_string(), local: local.to_string(), is_local: true }) {
                Ok(client) => client,
                Err(refusal) => {
                    let _ = stream.write_all(refusal.0);
                    return;
                }
            };
        let serial = self.next_serial;
        self.next_serial += 1;
        self.clients.insert(serial, client);
        self.streams.insert(client, (serial, stream));
        let events = self.for_readers.clone();
        thread::spawn(move || {
            let mut chunk = vec![0; READ_CHUNK_BYTES];
            while let Ok(len @ 1..) = reading.read(&mut chunk) {
                if events.send(Event::Received(serial, chunk[..len].to_vec())).is_err() {
                    return;
                }
            }
            let _ = events.send(Event::Closed(serial));
        });
    }

    fn send_output(&mut self) {
        while let Some(client) = self.engine.next_ready() {
            let Some((serial, stream)) = self.streams.get_mut(&client) else { continue };
            let mut failed = false;
            while !self.engine.output(client).is_empty() {
                let output = self.engine.output(client);
                failed |= stream.write_all(output).is_err();
                let len = output.len();
                self.engine.sent(client, len);
            }
            if failed || matches!(self.engine.fate(client), Fate::CloseAfterOutput | Fate::CloseNow) {
                let _ = stream.shutdown(Shutdown::Both);
                self.clients.remove(serial);
                self.streams.remove(&client);
                self.engine.disconnect(client);
            }
        }
    }
}

/// Clients of an engine that has panicked should hear of it at once.
impl Drop for Turns {
    fn drop(&mut self) {
        for (_, stream) in self.streams.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
