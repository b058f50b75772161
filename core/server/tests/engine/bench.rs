//! An engine as a target drives it, with a clock and a heap of the test's own.

use kayvee_platform::{Clock, Heap, Now, ProcessorTime};
use kayvee_server::{ClientId, Engine, Environment, Host, NoHost, Options, Peer};
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that goes on by the same time whenever it is read: by none, unless it is told to.
#[derive(Default)]
struct FakeClock {
    monotonic_ns: AtomicU64,
    tick_ns: AtomicU64,
}

impl Clock for FakeClock {
    fn now(&self) -> Now {
        let tick_ns = self.tick_ns.load(Ordering::Relaxed);
        Now { monotonic_ns: self.monotonic_ns.fetch_add(tick_ns, Ordering::Relaxed), unix_us: 0 }
    }

    fn name(&self) -> &'static str {
        "fake"
    }
}

/// A heap whose figures the test sets.
#[derive(Default)]
pub struct FakeHeap {
    pub used: AtomicU64,
    pub limit: AtomicU64,
}

impl Heap for FakeHeap {
    fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
    fn limit_bytes(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit > 0)
    }
    fn resident_bytes(&self) -> u64 {
        self.used_bytes()
    }
    fn allocator(&self) -> &'static str {
        "fake"
    }
}

/// Takes turns until one has an answer to a request. Returns it, its lines in a row.
pub fn answer(request: &str, mut turn: impl FnMut() -> String) -> String {
    let outputs = (0..1000).map(|_| turn());
    let mut answers = outputs.filter(|output| !output.is_empty());
    let answer = answers.next().unwrap_or_else(|| panic!("no answer to {request}"));
    answer.trim_end().replace("\r\n", " ")
}

/// An engine with a clock of its own.
pub struct Bench {
    pub engine: Engine,
    pub heap: &'static FakeHeap,
    clock: &'static FakeClock,
    pub now: Now,
}

impl Bench {
    pub fn new(options: &[&str]) -> Bench {
        Bench::seeded(options, 7)
    }

    /// One that draws other random numbers than those of other seeds.
    pub fn seeded(options: &[&str], seed: u8) -> Bench {
        Bench::with(options, seed, &NoHost)
    }

    /// One with these surroundings.
    pub fn with(options: &[&str], seed: u8, host: &'static dyn Host) -> Bench {
        let heap: &'static FakeHeap = Box::leak(Box::default());
        let clock: &'static FakeClock = Box::leak(Box::default());
        let environment = Environment {
            target: "test",
            os: "none".into(),
            multiplexing: "none",
            process_id: 0,
            clock,
            heap,
            system_memory_bytes: 1 << 30,
            processor_time: ProcessorTime::default,
            monitor: || None,
            host,
            seed: [seed; 32],
        };
        let options = Options::from_args(options.iter().map(|word| word.as_bytes())).unwrap();
        let now = Now { monotonic_ns: 5_000_000_000, unix_us: 1_700_000_000_000_000 };
        clock.monotonic_ns.store(now.monotonic_ns, Ordering::Relaxed);
        let mut bench = Bench { engine: Engine::new(options, environment, now), heap, clock, now };
        bench.engine.begin_turn(now);
        bench
    }

    pub fn advance_ms(&mut self, ms: u64) {
        self.now.monotonic_ns += ms * 1_000_000;
        self.now.unix_us += ms * 1000;
        self.clock.monotonic_ns.fetch_add(ms * 1_000_000, Ordering::Relaxed);
        self.engine.begin_turn(self.now);
    }

    /// Makes every look at the clock take a millisecond.
    pub fn let_time_pass(&mut self) {
        self.clock.tick_ns.store(1_000_000, Ordering::Relaxed);
    }

    pub fn connect(&mut self) -> ClientId {
        self.engine
            .connect(Peer { remote: "10.0.0.9:5000".into(), local: "10.0.0.1:6379".into(), is_local: true })
            .unwrap()
    }

    /// Ends the turn and takes all output of one client.
    pub fn take(&mut self, client: ClientId) -> Vec<u8> {
        self.engine.end_turn();
        while self.engine.next_ready().is_some() {}
        let mut output = Vec::new();
        while !self.engine.output(client).is_empty() {
            let part = self.engine.output(client);
            output.extend_from_slice(part);
            let len = part.len();
            self.engine.sent(client, len);
        }
        output
    }

    pub fn ask(&mut self, client: ClientId, request: &str) -> String {
        self.engine.receive(client, request.as_bytes());
        String::from_utf8(self.take(client)).unwrap()
    }

    /// The same as text.
    pub fn take_text(&mut self, client: ClientId) -> String {
        String::from_utf8(self.take(client)).unwrap()
    }
}
