//! A store with one client, a clock that stands still and a heap that says what it is told, for tests.

use crate::{Environment, Host, Session, Store, options::Options};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::cell::Cell;
use kayvee_platform::{Clock, Heap, Now, ProcessorTime};
use kayvee_resp::{Limits, Parser, Progress, split_words};

/// When tests begin, in milliseconds since 1970.
pub const START_MS: u64 = 1_600_000_000_000;

/// A clock for where durations do not matter.
pub struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Now {
        Now::default()
    }

    fn name(&self) -> &'static str {
        "still"
    }
}

/// A heap with these figures.
#[derive(Default)]
pub struct FakeHeap {
    pub used_bytes: Cell<u64>,
    pub limit_bytes: Cell<Option<u64>>,
}

impl Heap for FakeHeap {
    fn used_bytes(&self) -> u64 {
        self.used_bytes.get()
    }
    fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes.get()
    }
    fn resident_bytes(&self) -> u64 {
        self.used_bytes.get()
    }
    fn allocator(&self) -> &'static str {
        "fake"
    }
}

pub struct Harness {
    pub store: Store,
    pub heap: &'static FakeHeap,
}

impl Harness {
    pub fn new() -> Harness {
        Harness::on(&crate::NoHost)
    }

    pub fn on(host: &'static dyn Host) -> Harness {
        let heap: &FakeHeap = Box::leak(Box::default());
        let environment = Environment {
            target: "test",
            os: String::new(),
            multiplexing: "none",
            process_id: 0,
            clock: &StillClock,
            heap,
            system_memory_bytes: 1 << 30,
            processor_time: ProcessorTime::default,
            monitor: || None,
            host,
            seed: [3; 32],
        };
        let mut store = Store::new(Options::default(), environment, Now::default());
        store.sessions.push(Some(Box::new(Session::new(1, String::new(), String::new(), true, 0))));
        let mut harness = Harness { store, heap };
        harness.at_ms(START_MS);
        harness
    }

    /// Sets the clock.
    pub fn at_ms(&mut self, unix_ms: u64) {
        self.store.now.unix_us = unix_ms * 1000;
    }

    /// Executes a request and returns the bytes of the reply.
    pub fn run_words(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        let mut parser = Parser::new();
        assert_eq!(parser.parse(&bytes, Limits::PASSED), Ok(Progress::Complete(bytes.len())));
        self.store.execute(0, parser.request(&bytes));
        let output = &mut self.store.sessions[0].as_mut().unwrap().output;
        let mut reply = Vec::new();
        while output.unsent() > 0 {
            reply.extend_from_slice(output.first());
            output.advance(output.first().len());
        }
        reply
    }

    /// Executes a request that is written like an inline one. Line breaks of the reply become spaces.
    pub fn run(&mut self, line: &str) -> String {
        let words = split_words(line.as_bytes()).unwrap();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_ref()).collect();
        String::from_utf8(self.run_words(&words)).unwrap().trim_end().replace("\r\n", " ")
    }

    /// Executes requests, each with the reply that it must have.
    pub fn expect(&mut self, exchanges: &[(&str, &str)]) {
        for (request, reply) in exchanges {
            assert_eq!(self.run(request), *reply, "{request}");
        }
    }
}
