//! The TCP engine against Linux' own, over a wire with faults.
//!
//! Makes a network namespace with a tap device in it, whose other end is a stack in this process, and lets clients of
//! this host's kernel send data there and want it back. The wire between loses, duplicates, reorders and damages frames
//! by a seed. Needs root, `ip` and `socat`.

use kayvee_net::{Addressing, Addressing6, Config, ConnectionId, Event, Limits, Stack};
use kayvee_testing::{
    network::wire::{Faults, Wire},
    random::Random,
};
use std::{
    collections::HashMap,
    env,
    error::Error,
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::{Child, Command, ExitCode},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

const USAGE: &str = "\
The TCP engine against Linux' own, over a wire with faults, in a network namespace.

Usage: linux_peer [--loss PERCENT] [--bytes N] [--requests N] [--clients N] [--family 4|6] [--seed N]

Each client sends N bytes and wants them back, or with --requests N small requests, each after the answer to the last.
";

const LINUX: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const OWN: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const LINUX6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const PORT: u16 = 7;
/// A request and its answer.
const REQUEST_BYTES: usize = 100;
/// The tap device's frames and some more.
const FRAME_BYTES: usize = 2048;
/// A connection on which nothing arrives for so long has failed: the stack counts a peer as dead sooner.
const STALL: Duration = Duration::from_secs(130);

/// What to do.
#[derive(Clone, Debug)]
struct Run {
    loss_percent: usize,
    bytes: usize,
    requests: usize,
    clients: usize,
    family: u8,
    seed: u64,
}

impl Run {
    /// Where the stack listens.
    fn server(&self) -> SocketAddr {
        let address = if self.family == 6 { IpAddr::V6(OWN6) } else { IpAddr::V4(OWN) };
        SocketAddr::new(address, PORT)
    }
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    match parse().and_then(|(run, inside)| if inside { exchange(&run) } else { in_namespace() }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linux_peer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the arguments say, and whether this is the process in the namespace.
fn parse() -> Result<(Run, bool)> {
    let mut run = Run { loss_percent: 5, bytes: 2_000_000, requests: 0, clients: 4, family: 4, seed: 1 };
    let (mut args, mut inside) = (env::args().skip(1), false);
    while let Some(name) = args.next() {
        if name == "--inside" {
            inside = true;
            continue;
        }
        let value = args.next().ok_or(USAGE)?;
        match name.as_str() {
            "--loss" => run.loss_percent = value.parse()?,
            "--bytes" => run.bytes = value.parse()?,
            "--requests" => run.requests = value.parse()?,
            "--family" => run.family = value.parse()?,
            "--clients" => run.clients = value.parse()?,
            "--seed" => run.seed = value.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok((run, inside))
}

/// Runs this program again, in a namespace of its own that ends with it.
fn in_namespace() -> Result<()> {
    let name = format!("kayvee-peer-{}", std::process::id());
    let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status();
    if !ip(&["netns", "add", &name])?.success() {
        return Err("a network namespace cannot be made: this needs root and iproute2".into());
    }
    let status = Command::new("ip")
        .args(["netns", "exec", &name])
        .arg(env::current_exe()?)
        .args(env::args().skip(1))
        .arg("--inside")
        .status();
    ip(&["netns", "del", &name])?;
    if status?.success() { Ok(()) } else { Err("the exchange failed".into()) }
}

/// The tap device, as datagrams of a frame each that socat carries.
struct Tap {
    socket: UnixDatagram,
    folder: PathBuf,
    socat: Child,
}

impl Tap {
    fn open() -> Result<Tap> {
        let folder = env::temp_dir().join(format!("kayvee-peer-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let (own, other) = (folder.join("own"), folder.join("tap"));
        let socket = UnixDatagram::bind(&own)?;
        let socat = Command::new("socat")
            .arg(format!("TUN:{LINUX}/24,tun-type=tap,tun-name=tap0,iff-no-pi,up"))
            .arg(format!("UNIX-SENDTO:{},bind={}", own.display(), other.display()))
            .spawn()
            .map_err(|error| format!("socat does not start: {error}"))?;
        let tap = Tap { socket, folder, socat };
        let start = Instant::now();
        while let Err(error) = tap.socket.connect(&other) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(format!("socat does not open its socket: {error}").into());
            }
            thread::yield_now();
        }
        let address = format!("{LINUX6}/64");
        let ip = Command::new("ip").args(["-6", "addr", "add", &address, "dev", "tap0", "nodad"]).status()?;
        if !ip.success() {
            return Err("the tap device gets no IPv6 address".into());
        }
        Ok(tap)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing left to do.
        let _ = self.socat.kill();
        let _ = self.socat.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The stack's side: sends back what it gets as it gets it.
struct Echo {
    stack: Stack,
    wire: Wire,
    tap: Tap,
    started: Instant,
    /// What is read and not sent back, and whether the client has ended.
    pending: HashMap<ConnectionId, (Vec<u8>, bool)>,
    failed: usize,
}

impl Echo {
    fn new(run: &Run) -> Result<Echo> {
        let faults = Faults {
            loss_per_mille: 10 * run.loss_percent,
            duplication_per_mille: 5,
            corruption_per_mille: 2,
            forgery_per_mille: 0,
            min_delay_ns: 500_000,
            max_delay_ns: 1_500_000,
            bottleneck: None,
        };
        let mut wire = Wire::new(faults, run.seed);
        let addressing = Addressing::Static { address: OWN, prefix_bits: 24, gateway: None };
        let addressing6 = Addressing6::Static { address: OWN6, prefix_bits: 64, gateway: None };
        let limits = Limits { connections: 2 * run.clients, buffer_bytes: 16 << 20 };
        let config = Config { addressing, addressing6, limits, keepalive_s: 0, seed: run.seed };
        let mut stack = Stack::new(config, &mut wire.server, 0)?;
        stack.listen(PORT);
        Ok(Echo { stack, wire, tap: Tap::open()?, started: Instant::now(), pending: HashMap::new(), failed: 0 })
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Carries frames until `done`.
    fn run(&mut self, done: impl Fn() -> bool) -> Result<()> {
        let mut frame = [0; FRAME_BYTES];
        while !done() {
            let now_ns = self.now_ns();
            let due = [self.wire.next_arrival_ns(), self.stack.next_deadline_ns()].into_iter().flatten().min();
            let wait_ns = due.unwrap_or(u64::MAX).saturating_sub(now_ns).clamp(10_000, 50_000_000);
            self.tap.socket.set_read_timeout(Some(Duration::from_nanos(wait_ns)))?;
            match self.tap.socket.recv(&mut frame) {
                Ok(len) => self.wire.client.send(frame[..len].to_vec()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            let now_ns = self.now_ns();
            self.wire.run(now_ns);
            self.turn(now_ns);
            self.wire.run(now_ns);
            while let Some(frame) = self.wire.client.receive() {
                self.tap.socket.send(&frame)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) {
        self.stack.poll(&mut self.wire.server, now_ns);
        while let Some(event) = self.stack.next_event() {
            match event {
                Event::Accepted { connection, .. } => drop(self.pending.insert(connection, (Vec::new(), false))),
                Event::EndOfStream(connection) => {
                    if let Some(pending) = self.pending.get_mut(&connection) {
                        pending.1 = true;
                    }
                }
                Event::Closed(connection) => {
                    self.pending.remove(&connection);
                    self.failed += 1;
                }
                _ => {}
            }
        }
        let stack = &mut self.stack;
        self.pending.retain(|&connection, (bytes, ended)| {
            while bytes.len() < 1 << 20 && !stack.readable(connection).is_empty() {
                let len = stack.readable(connection).len();
                bytes.extend_from_slice(stack.readable(connection));
                stack.consume(connection, len);
            }
            let sent = stack.send(connection, bytes);
            bytes.drain(..sent);
            let is_done = *ended && bytes.is_empty();
            if is_done {
                stack.close(connection, now_ns);
            }
            !is_done
        });
        self.stack.flush(&mut self.wire.server, now_ns);
    }
}

/// A client of this host's kernel: sends and wants back the same.
fn client(server: SocketAddr, seed: u64, bytes: usize) -> Result<()> {
    let data = Random::new(seed).bytes(bytes);
    let mut stream = connect(server)?;
    let mut sender = stream.try_clone()?;
    let copy = data.clone();
    let sending = thread::spawn(move || sender.write_all(&copy).and_then(|()| sender.shutdown(Shutdown::Write)));
    let mut received = Vec::with_capacity(bytes);
    stream.read_to_end(&mut received)?;
    sending.join().map_err(|_| "the sender panicked")??;
    if received == data {
        Ok(())
    } else {
        Err(format!("{} of {bytes} bytes came back, or changed", received.len()).into())
    }
}

fn connect(server: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A client that waits for each answer. Returns how long these took.
fn requester(server: SocketAddr, seed: u64, requests: usize) -> Result<Vec<Duration>> {
    let mut random = Random::new(seed);
    let mut stream = connect(server)?;
    let request = |_| {
        let data = random.bytes(REQUEST_BYTES);
        let mut answer = [0; REQUEST_BYTES];
        let start = Instant::now();
        stream.write_all(&data)?;
        stream.read_exact(&mut answer)?;
        if answer == data[..] { Ok(start.elapsed()) } else { Err("an answer is wrong".into()) }
    };
    (0..requests).map(request).collect()
}

fn exchange(run: &Run) -> Result<()> {
    let mut echo = Echo::new(run)?;
    let (seed, bytes) = (run.seed, run.bytes);
    let remaining = AtomicUsize::new(run.clients);
    let start = Instant::now();
    let server = run.server();
    let outcome: Result<Vec<Vec<Duration>>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..run.clients as u64)
            .map(|number| {
                let remaining = &remaining;
                scope.spawn(move || {
                    let seed = seed.wrapping_mul(1000) + number;
                    let result = match run.requests {
                        0 => client(server, seed, bytes).map(|()| Vec::new()),
                        requests => requester(server, seed, requests),
                    };
                    remaining.fetch_sub(1, Ordering::Release);
                    result
                })
            })
            .collect();
        echo.run(|| remaining.load(Ordering::Acquire) == 0)?;
        clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked")?).collect()
    });
    if run.requests > 0 {
        return report_requests(run, outcome?.concat(), &echo);
    }
    let megabits = (2 * 8 * run.bytes * run.clients) as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!(
        "{run:?}: {:.1} s, {megabits:.1} Mbit/s in both directions, {:?}",
        start.elapsed().as_secs_f64(),
        echo.stack.figures()
    );
    outcome?;
    check(&echo)
}

/// Says how long answers took.
fn report_requests(run: &Run, mut took: Vec<Duration>, echo: &Echo) -> Result<()> {
    took.sort();
    let at = |per_mille: usize| took[(took.len() - 1) * per_mille / 1000];
    let total: Duration = took.iter().sum();
    let (mean, figures) = (total / took.len() as u32, echo.stack.figures());
    println!(
        "{run:?}: mean {mean:.1?}, p50 {:.1?}, p90 {:.1?}, p99 {:.1?}, longest {:.1?}, {figures:?}",
        at(500),
        at(900),
        at(990),
        at(1000)
    );
    check(echo)
}

fn check(echo: &Echo) -> Result<()> {
    if echo.failed > 0 {
        return Err(format!("{} connections failed on the stack's side", echo.failed).into());
    }
    Ok(())
}
