//! How much may be on its way: CUBIC (RFC 9438) with the first window of RFC 6928.

/// What is left of the window after a loss (RFC 9438 §4.6).
const BETA: f64 = 0.7;
/// How fast the window grows, in segments per second³ (RFC 9438 §5.1).
const C: f64 = 0.4;
/// Additive increase of the same fairness as Reno's (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Segments by which one acknowledgment lets the window grow at most while it doubles: what is sent at once is not paced (L of
/// RFC 9406 §4.3).
const SLOW_START_SEGMENTS: u32 = 8;
/// A round trip that has become longer by so much of it (RFC 9406 §4.2 and §4.3: between 1/8, 4 ms at least, and 16 ms) says that
/// the window fills a queue.
const LATE_PART: u32 = 8;
const LATE_US: core::ops::RangeInclusive<u32> = 4_000..=16_000;
/// So much slower it grows then, and so many round trips, before it is believed.
const CAUTION: u32 = 4;
const CAUTIOUS_ROUNDS: u8 = 5;
/// No window needs more: the send buffer is smaller.
const MAX_WINDOW: u32 = 1 << 24;

/// HyStart++ (RFC 9406), with one sample a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlowStart {
    Usual,
    /// A round trip has become longer, to this, and stayed so for some more.
    Cautious {
        baseline_us: u32,
        rounds: u8,
    },
}

/// The congestion window of a connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    window: u32,
    slow_start_threshold: u32,
    /// The round trip before.
    round_trip_us: u32,
    /// How the slow start goes.
    start: SlowStart,
    /// Something was held back by the window since it last grew: a window that is not used says nothing of the way
    /// (RFC 9438 §5.8).
    is_limiting: bool,
    /// The window before the last reduction, in segments.
    max: f64,
    /// When growth began after it, and how long it takes to come back to `max`.
    epoch_ns: Option<u64>,
    k_s: f64,
    /// What Reno would have, in segments.
    estimate: f64,
}

impl Congestion {
    /// The window that a connection begins with (RFC 6928 §2).
    pub fn new(segment_bytes: u32) -> Congestion {
        Congestion {
            window: (10 * segment_bytes).min(14_600.max(2 * segment_bytes)),
            slow_start_threshold: MAX_WINDOW,
            round_trip_us: 0,
            start: SlowStart::Usual,
            is_limiting: false,
            max: 0.0,
            epoch_ns: None,
            k_s: 0.0,
            estimate: 0.0,
        }
    }

    #[inline]
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Something could not be sent because of the window.
    #[inline]
    pub fn note_limit(&mut self) {
        self.is_limiting = true;
    }

    /// So many bytes were acknowledged outside of fast recovery.
    #[inline]
    pub fn acknowledged(&mut self, bytes: u32, segment_bytes: u32, round_trip_ns: u64, now_ns: u64) {
        if !core::mem::take(&mut self.is_limiting) {
            return;
        }
        let grown = if self.window < self.slow_start_threshold {
            // RFC 3465 §2.2: by what was acknowledged, as one acknowledgement may stand for several segments.
            let caution = if self.start == SlowStart::Usual { 1 } else { CAUTION };
            self.window + bytes.min(SLOW_START_SEGMENTS * segment_bytes) / caution
        } else {
            self.cubic(bytes, segment_bytes, round_trip_ns, now_ns)
        };
        self.window = grown.min(MAX_WINDOW);
    }

    /// What was sent once took so long there and back. A slow start ends where the way's queue fills up, before it overflows.
    #[inline]
    pub fn note_round_trip(&mut self, took_ns: u64) {
        let took_us = u32::try_from(took_ns / 1000).unwrap_or(u32::MAX);
        let before_us = core::mem::replace(&mut self.round_trip_us, took_us);
        // The first one only (§4.3): one after a loss ends below what the way has carried. And a window that is not full fills no
        // queue: what takes longer then is something else.
        if self.slow_start_threshold < MAX_WINDOW || !self.is_limiting {
            self.start = SlowStart::Usual;
            return;
        }
        self.start = match self.start {
            SlowStart::Usual => {
                let late_us = (before_us / LATE_PART).clamp(*LATE_US.start(), *LATE_US.end());
                match before_us > 0 && took_us >= before_us.saturating_add(late_us) {
                    true => SlowStart::Cautious { baseline_us: took_us, rounds: 0 },
                    false => SlowStart::Usual,
                }
            }
            SlowStart::Cautious { baseline_us, .. } if took_us < baseline_us => SlowStart::Usual,
            SlowStart::Cautious { baseline_us, rounds } => {
                if rounds + 1 == CAUTIOUS_ROUNDS {
                    self.slow_start_threshold = self.window;
                }
                SlowStart::Cautious { baseline_us, rounds: rounds.saturating_add(1) }
            }
        };
    }

    /// RFC 9438 §4.2 to §4.5, in segments.
    fn cubic(&mut self, bytes: u32, segment_bytes: u32, round_trip_ns: u64, now_ns: u64) -> u32 {
        let segment = f64::from(segment_bytes);
        let (window, acknowledged) = (f64::from(self.window) / segment, f64::from(bytes) / segment);
        let epoch_ns = match self.epoch_ns {
            Some(epoch_ns) => epoch_ns,
            None => {
                self.max = self.max.max(window);
                self.k_s = cube_root((self.max - window) / C);
                self.estimate = window;
                *self.epoch_ns.insert(now_ns)
            }
        };
        let at_s = seconds(now_ns.saturating_sub(epoch_ns) + round_trip_ns) - self.k_s;
        let target = (C * at_s * at_s * at_s + self.max).clamp(window, 1.5 * window);
        self.estimate += ALPHA * acknowledged / window;
        let grown = (window + (target - window) / window * acknowledged).max(self.estimate);
        (grown * segment) as u32
    }

    /// A segment was lost (RFC 9438 §4.6 and §4.7). The window goes back to its threshold.
    pub fn lost(&mut self, segment_bytes: u32) {
        let window = f64::from(self.window) / f64::from(segment_bytes);
        self.max = if window < self.max { window * (1.0 + BETA) / 2.0 } else { window };
        self.epoch_ns = None;
        self.start = SlowStart::Usual;
        self.slow_start_threshold = ((f64::from(self.window) * BETA) as u32).max(2 * segment_bytes);
        self.window = self.slow_start_threshold.min(self.window);
    }

    /// The retransmission timer has run out, for the first time or again (RFC 5681 §3.1, RFC 9438 §4.8).
    pub fn timed_out(&mut self, segment_bytes: u32, is_first: bool) {
        if is_first {
            self.lost(segment_bytes);
        }
        self.window = segment_bytes;
    }

    /// Nothing was sent for longer than a timeout (RFC 5681 §4.1).
    pub fn restart(&mut self, segment_bytes: u32) {
        self.window = self.window.min(Congestion::new(segment_bytes).window);
        self.epoch_ns = None;
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// By Newton's method: there is no `cbrt` without a standard library.
fn cube_root(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let mut root = value.max(1.0);
    for _ in 0..64 {
        let next = (2.0 * root + value / (root * root)) / 3.0;
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1460;

    /// A window that is always full, over round trips of 100 ms.
    fn rounds(congestion: &mut Congestion, from: u64, count: u64) {
        for round in from..from + count {
            for _ in 0..congestion.window() / MSS {
                congestion.note_limit();
                congestion.acknowledged(MSS, MSS, 100_000_000, round * 100_000_000);
            }
        }
    }

    #[test]
    fn the_first_window_is_ten_segments_and_doubles() {
        let mut congestion = Congestion::new(MSS);
        assert_eq!(congestion.window(), 10 * MSS, "RFC 6928 §2");
        assert_eq!(Congestion::new(9000).window(), 18_000);
        rounds(&mut congestion, 0, 1);
        assert_eq!(congestion.window(), 20 * MSS, "RFC 5681 §3.1");
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut congestion = Congestion::new(MSS);
        congestion.acknowledged(MSS, MSS, 1, 1);
        assert_eq!(congestion.window(), 10 * MSS);
    }

    /// RFC 9438 §4.2: back at the old window after K = ∛(W_max · (1 − β) / C) seconds, slowest there.
    #[test]
    fn growth_is_cubic_after_a_loss() {
        let mut congestion = Congestion::new(MSS);
        rounds(&mut congestion, 0, 4);
        assert_eq!(congestion.window(), 160 * MSS);
        congestion.lost(MSS);
        assert_eq!(congestion.window(), 112 * MSS, "β = 0.7");
        let k_rounds = (10.0 * cube_root(160.0 * 0.3 / 0.4)) as u64;
        rounds(&mut congestion, 100, k_rounds);
        let at_k = congestion.window() / MSS;
        assert!((154..=161).contains(&at_k), "{at_k}");
        rounds(&mut congestion, 100 + k_rounds, k_rounds);
        assert!(congestion.window() / MSS > 190, "{}", congestion.window() / MSS);
    }

    /// RFC 9406: a window that fills a queue grows by a quarter of what it did, and after five round trips no longer doubles.
    #[test]
    fn a_slow_start_ends_where_the_queue_fills_up() {
        const MS: u64 = 1_000_000;
        fn late(congestion: &mut Congestion, took_ns: u64) {
            congestion.note_limit();
            congestion.note_round_trip(took_ns);
        }
        let mut congestion = Congestion::new(MSS);
        // As long as the window is not full, it does not matter.
        for took_ms in [10, 50, 90, 130, 170, 210, 250, 290] {
            congestion.note_round_trip(took_ms * MS);
        }
        assert_eq!((congestion.slow_start_threshold, congestion.start), (MAX_WINDOW, SlowStart::Usual));
        congestion.note_round_trip(40 * MS);
        for (round, took_ms) in [40, 41, 44, 39, 43].into_iter().enumerate() {
            late(&mut congestion, took_ms * MS);
            rounds(&mut congestion, round as u64, 1);
            assert_eq!(congestion.window(), (20 << round) * MSS, "less than 5 ms longer");
        }
        // Longer once, and then as before: it was something else.
        late(&mut congestion, 60 * MS);
        rounds(&mut congestion, 5, 1);
        assert_eq!(congestion.window(), 400 * MSS);
        late(&mut congestion, 40 * MS);
        rounds(&mut congestion, 6, 1);
        assert_eq!(congestion.window(), 800 * MSS);
        // Longer and longer: five such round trips more, and it is over.
        let mut window = congestion.window();
        for round in 0..6 {
            late(&mut congestion, (60 + 10 * round) * MS);
            assert_eq!(congestion.slow_start_threshold, if round < 5 { MAX_WINDOW } else { window });
            rounds(&mut congestion, 7 + round, 1);
            if round < 5 {
                window += window / MSS * (MSS / CAUTION);
                assert_eq!(congestion.window(), window);
            }
        }
        assert!(congestion.window() < window + window / 10, "{}", congestion.window());
    }

    #[test]
    fn a_timeout_leaves_one_segment() {
        let mut congestion = Congestion::new(MSS);
        congestion.timed_out(MSS, true);
        congestion.timed_out(MSS, false);
        assert_eq!((congestion.window(), congestion.slow_start_threshold), (MSS, 7 * MSS));
    }

    #[test]
    fn cube_roots() {
        for value in [0.0, 0.001, 1.0, 8.0, 120.0, 1e9] {
            let root = cube_root(value);
            assert!((root * root * root - value).abs() <= 1e-9 * value.max(1e-9), "{value} {root}");
        }
    }
}
