/// One reading of both clocks, taken together at the start of a turn of the event loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since an arbitrary start; never goes back.
    pub monotonic_ns: u64,
    /// Microseconds since 1970-01-01 00:00 UTC; may be stepped when the wall clock is corrected.
    pub unix_us: u64,
}

impl Now {
    /// Milliseconds since 1970-01-01 00:00 UTC, the unit of key expiry.
    pub fn unix_ms(&self) -> u64 {
        self.unix_us / 1000
    }
}

/// The time, as the platform knows it.
pub trait Clock {
    /// Reads both clocks.
    fn now(&self) -> Now;

    /// Reads the monotonic clock alone, for measuring durations.
    fn monotonic_ns(&self) -> u64 {
        self.now().monotonic_ns
    }

    /// What the monotonic clock is, for `INFO server`.
    fn name(&self) -> &'static str;
}

/// Processor time that the program has used since it started, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    /// In its own code.
    pub user_us: u64,
    /// In the kernel on its behalf.
    pub system_us: u64,
}

/// The earliest of several times, of which some may never come.
#[inline(never)]
pub fn earliest(times: &[Option<u64>]) -> Option<u64> {
    times.iter().copied().flatten().min()
}
