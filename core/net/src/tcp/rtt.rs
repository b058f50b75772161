//! The retransmission timeout (RFC 6298).

/// The first timeout, before a round trip was measured (§2.1).
const INITIAL_RTO_NS: u64 = 1_000_000_000;
/// The first timeout for data if the handshake needed retransmissions (§5.7).
const FALLBACK_RTO_NS: u64 = 3_000_000_000;
/// §2.4 asks for a second; everybody takes less, as clocks have become finer than the 500 ms it was made for. What counts
/// is to exceed a peer's delayed acknowledgement, which is 40 ms with Linux and at most 200 elsewhere.
const MIN_RTO_NS: u64 = 200_000_000;
/// §2.5: at least 60 seconds.
const MAX_RTO_NS: u64 = 60_000_000_000;
/// The clock's granularity, G: that of the timers.
const GRANULARITY_NS: u64 = 1_000_000;
/// No timeout is doubled more often.
const MAX_BACKOFF: u32 = 10;

/// What is known of a connection's round trips.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    smoothed_ns: u64,
    /// The shortest one.
    least_ns: u64,
    variation_ns: u64,
    timeout_ns: u64,
    backoff: u32,
}

impl RoundTrip {
    pub fn new() -> RoundTrip {
        RoundTrip { smoothed_ns: 0, least_ns: 0, variation_ns: 0, timeout_ns: INITIAL_RTO_NS, backoff: 0 }
    }

    /// The smoothed round-trip time, 0 before the first sample.
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The shortest round trip, 0 before the first sample.
    pub fn least_ns(&self) -> u64 {
        self.least_ns
    }

    /// Takes a sample in that is said by timestamps of something that was sent again (RFC 7323 §4.1). Where an
    /// acknowledgment was lost, the next one tells a time that is too long, so a sample counts for twice the known time
    /// at most: a way that has become longer is still followed, in several steps. Where no time is known, as behind a SYN
    /// cookie, it counts for the first timeout at most.
    pub fn sample_ambiguous(&mut self, sample_ns: u64) {
        match self.smoothed_ns {
            0 => self.sample(sample_ns.min(INITIAL_RTO_NS)),
            smoothed_ns => self.sample(sample_ns.min(2 * smoothed_ns)),
        }
    }

    /// Takes a sample in (§2.2 and §2.3), of something that was sent once. Until there is one the timeout stays doubled
    /// (§5).
    #[inline]
    pub fn sample(&mut self, sample_ns: u64) {
        self.least_ns = if self.least_ns == 0 { sample_ns } else { self.least_ns.min(sample_ns) };
        if self.smoothed_ns == 0 {
            self.smoothed_ns = sample_ns.max(1);
            self.variation_ns = sample_ns / 2;
        } else {
            self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(sample_ns)) / 4;
            self.smoothed_ns = ((7 * self.smoothed_ns + sample_ns) / 8).max(1);
        }
        let timeout_ns = self.smoothed_ns + (4 * self.variation_ns).max(GRANULARITY_NS);
        self.timeout_ns = timeout_ns.clamp(MIN_RTO_NS, MAX_RTO_NS);
        self.backoff = 0;
    }

    /// The timeout as it is now.
    #[inline]
    pub fn timeout_ns(&self) -> u64 {
        (self.timeout_ns << self.backoff).min(MAX_RTO_NS)
    }

    /// Doubles the timeout (§5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// How often it was doubled.
    pub fn backoff(&self) -> u32 {
        self.backoff
    }

    /// The timeouts were for a closed window, which says nothing of the way.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// The handshake is done, and its timer has run out on the way (§5.7).
    pub fn handshake_was_retransmitted(&mut self) {
        *self = RoundTrip { timeout_ns: FALLBACK_RTO_NS, ..RoundTrip::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_timeout_follows_the_round_trips() {
        let mut trip = RoundTrip::new();
        assert_eq!(trip.timeout_ns(), 1000 * MS);
        trip.sample(400 * MS);
        assert_eq!((trip.smoothed_ns(), trip.timeout_ns()), (400 * MS, 1200 * MS), "RFC 6298 §2.2");
        trip.sample(800 * MS);
        // RTTVAR = 3/4 · 200 + 1/4 · 400, SRTT = 7/8 · 400 + 1/8 · 800.
        assert_eq!((trip.smoothed_ns(), trip.timeout_ns()), (450 * MS, (450 + 4 * 250) * MS), "RFC 6298 §2.3");
        (0..100).for_each(|_| trip.sample(MS / 20));
        assert_eq!(trip.timeout_ns(), MIN_RTO_NS);
    }

    #[test]
    fn it_doubles_up_to_a_minute() {
        let mut trip = RoundTrip::new();
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            trip.back_off();
            assert_eq!(trip.timeout_ns(), seconds * 1000 * MS, "RFC 6298 §5.5 and §2.5");
        }
        (0..100).for_each(|_| trip.back_off());
        trip.reset_backoff();
        assert_eq!(trip.timeout_ns(), 1000 * MS);
    }
}
