//! When it pays to let requests gather before they are served.
//!
//! To be woken for each request costs the waker an interrupt of another core and the server a change of context: more
//! than the request. While many clients are busy, a short nap between turns lets their requests gather, and nobody
//! waits for a wake-up. Few clients are never kept waiting.
//!
//! The nap's length was chosen by measuring (docs/benchmarks.md): after a longer one the clients have run out of things to
//! do, and for fewer clients that is sooner.

use core::time::Duration;
use kayvee_platform::Now;

/// The nap grows with the clients ...
const NAP_US_PER_CLIENT: u64 = 2;
/// ... up to this, which is what a request may have to wait.
const MAX_NAP_US: u64 = 90;
/// What the system adds to every sleep, unless told otherwise (prctl(2), PR_SET_TIMERSLACK).
const TIMER_SLACK_US: u64 = 50;
/// Clients that have to be busy within one period.
const MIN_BUSY_CLIENTS: usize = 16;
const PERIOD_NS: u64 = 1_000_000;

/// Counts the clients that are busy.
#[derive(Default)]
pub struct Crowd {
    period: u64,
    /// Clients that sent something in this period, and in the one before.
    busy: usize,
    was_busy: usize,
    served_in_turn: usize,
}

impl Crowd {
    /// A turn begins.
    pub fn begin_turn(&mut self, now: Now) {
        self.served_in_turn = 0;
        let period = now.monotonic_ns / PERIOD_NS;
        if period != self.period {
            self.was_busy = if period == self.period + 1 { self.busy } else { 0 };
            (self.period, self.busy) = (period, 0);
        }
    }

    /// A client has sent something; `last_period` is its own and was last set here.
    pub fn serve(&mut self, last_period: &mut u64) {
        self.served_in_turn += 1;
        if *last_period != self.period {
            *last_period = self.period;
            self.busy += 1;
        }
    }

    /// Whether many clients are busy.
    pub fn is_there(&self) -> bool {
        self.was_busy >= MIN_BUSY_CLIENTS
    }

    /// How long to sleep before the next turn: not at all, unless most of many busy clients have yet to send their next
    /// request, so that none of them waits for the others.
    pub fn nap(&self) -> Option<Duration> {
        let gathers = self.served_in_turn > 0 && self.served_in_turn * 2 < self.was_busy;
        let nap_us = (self.was_busy as u64 * NAP_US_PER_CLIENT).min(MAX_NAP_US);
        let nap = Duration::from_micros(nap_us.saturating_sub(TIMER_SLACK_US).max(1));
        (self.is_there() && gathers).then_some(nap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn at_us(us: u64) -> Now {
        Now { monotonic_ns: us * 1000, unix_us: us }
    }

    /// Has each of `clients` served once in a period, some in each turn, and returns the last turn's nap.
    fn nap_after(clients: usize, in_a_turn: usize) -> Option<Duration> {
        let mut crowd = Crowd::default();
        let mut periods = vec![0; clients];
        for us in 0..4000 {
            crowd.begin_turn(at_us(10_000 + us));
            for turn in 0..in_a_turn {
                crowd.serve(&mut periods[(us as usize * in_a_turn + turn) % clients]);
            }
        }
        crowd.nap()
    }

    #[test]
    fn only_a_crowd_is_kept_waiting() {
        assert_eq!(nap_after(1, 1), None);
        assert_eq!(nap_after(MIN_BUSY_CLIENTS - 1, 1), None);
        assert_eq!(nap_after(MIN_BUSY_CLIENTS, 1), Some(Duration::from_micros(1)));
        assert_eq!(nap_after(50, 20), Some(Duration::from_micros(40)));
        assert_eq!(nap_after(5000, 20), Some(Duration::from_micros(40)));
        assert_eq!(nap_after(50, 25), None, "half of them have their replies at once");
    }

    #[test]
    fn a_quiet_period_ends_it() {
        let mut crowd = Crowd::default();
        crowd.begin_turn(at_us(1000));
        (0..50).for_each(|_| crowd.serve(&mut 0));
        crowd.begin_turn(at_us(2000));
        crowd.serve(&mut 0);
        assert!(crowd.nap().is_some());
        crowd.begin_turn(at_us(2001));
        assert_eq!(crowd.nap(), None, "nobody sent anything");
        crowd.begin_turn(at_us(5000));
        crowd.serve(&mut 0);
        assert_eq!(crowd.nap(), None, "it has been quiet since");
    }
}
