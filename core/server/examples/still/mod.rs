//! What the examples run the engine on: nothing of it moves, so that the engine alone is measured.

use kayvee_platform::{Clock, Heap, Now, ProcessorTime};
use kayvee_server::Environment;

/// A clock for where durations do not matter.
struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Now {
        Now::default()
    }

    fn name(&self) -> &'static str {
        "still"
    }
}

struct NoHeap;

impl Heap for NoHeap {
    fn used_bytes(&self) -> u64 {
        0
    }
    fn limit_bytes(&self) -> Option<u64> {
        None
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
    fn allocator(&self) -> &'static str {
        "system"
    }
}

/// An environment that costs nothing.
pub fn environment() -> Environment {
    Environment {
        target: "bench",
        os: String::new(),
        multiplexing: "none",
        process_id: 0,
        clock: &StillClock,
        heap: &NoHeap,
        system_memory_bytes: 1 << 30,
        processor_time: ProcessorTime::default,
        monitor: || None,
        host: &kayvee_commands::NoHost,
        seed: [1; 32],
    }
}
