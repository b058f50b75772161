//! The system's clocks.

use kayvee_platform::{Clock, Now};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time since the start of the process, and wall-clock time.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn name(&self) -> &'static str {
        "POSIX clock_gettime"
    }

    fn now(&self) -> Now {
        Now {
            monotonic_ns: self.start.elapsed().as_nanos() as u64,
            // A clock before 1970 is not set.
            unix_us: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64,
        }
    }
}
