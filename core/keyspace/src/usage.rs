//! How a record remembers its use: in 24 bits, read in one of two ways.
//!
//! ```text
//! recency     seconds of the last use, modulo 2^24 (24)
//! frequency   minutes of the last decay, modulo 2^16 (16) | counter (8)
//! ```
//!
//! The counter is logarithmic: the more often a key was used, the less likely another use counts. It fades while the key
//! is not used. Numbers and rules are those of Redis, so that `lfu-log-factor` and `lfu-decay-time` mean the same.

use crate::HashKey;

/// What records remember of their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsePolicy {
    /// When they were used last.
    Recency,
    /// How often they are used.
    Frequency {
        /// How much less each use counts than the one before.
        log_factor: u32,
        /// In how many minutes without use the counter falls by one; 0 for never.
        decay_minutes: u32,
    },
}

/// The counter of a new key: it must not be the first to go.
const NEW_COUNTER: u8 = 5;
const RECENCY_MASK: u32 = 0x00ff_ffff;

/// Reads and writes what records remember of their use.
pub struct Usage {
    policy: UsePolicy,
    /// Decides which uses count. It comes from the hash's key, so the same uses always count the same.
    rng: fastrand::Rng,
}

impl Usage {
    pub const fn new(hash_key: HashKey) -> Usage {
        Usage { policy: UsePolicy::Recency, rng: fastrand::Rng::with_seed(hash_key.0) }
    }

    pub fn set_policy(&mut self, policy: UsePolicy) {
        self.policy = policy;
    }

    /// The field of a record that is new.
    #[inline]
    pub fn of_new(&self, now_ms: u64) -> u32 {
        match self.policy {
            UsePolicy::Recency => seconds(now_ms),
            UsePolicy::Frequency { .. } => frequency_field(now_ms, NEW_COUNTER),
        }
    }

    /// The field of a record that had `field`, where that matters, and is used now.
    #[inline]
    pub fn after_use(&mut self, field: impl FnOnce() -> u32, now_ms: u64) -> u32 {
        match self.policy {
            UsePolicy::Recency => seconds(now_ms),
            UsePolicy::Frequency { log_factor, decay_minutes } => {
                let counter = faded(field(), decay_minutes, now_ms);
                frequency_field(now_ms, self.incremented(counter, log_factor))
            }
        }
    }

    fn incremented(&mut self, counter: u8, log_factor: u32) -> u8 {
        let above_new = f64::from(counter.saturating_sub(NEW_COUNTER));
        let likelihood = 1.0 / (above_new * f64::from(log_factor) + 1.0);
        counter.saturating_add(u8::from(self.rng.f64() < likelihood))
    }

    /// The field of a record that was used last at this time, where that is what is remembered.
    pub fn of_last_use(&self, last_ms: u64) -> Option<u32> {
        (self.policy == UsePolicy::Recency).then(|| seconds(last_ms))
    }

    /// The field of a record with this counter, where that is what is remembered.
    pub fn of_frequency(&self, counter: u8, now_ms: u64) -> Option<u32> {
        (self.policy != UsePolicy::Recency).then(|| frequency_field(now_ms, counter))
    }

    /// The counter in a field, as it is by now. Where recency is remembered it means nothing.
    pub fn frequency(&self, field: u32, now_ms: u64) -> u8 {
        match self.policy {
            UsePolicy::Recency => 0,
            UsePolicy::Frequency { decay_minutes, .. } => faded(field, decay_minutes, now_ms),
        }
    }

    /// Seconds since the use in a field. Where frequency is remembered it means nothing.
    pub fn idle_s(field: u32, now_ms: u64) -> u32 {
        seconds(now_ms).wrapping_sub(field) & RECENCY_MASK
    }
}

fn seconds(now_ms: u64) -> u32 {
    (now_ms / 1000) as u32 & RECENCY_MASK
}

fn minutes(now_ms: u64) -> u16 {
    (now_ms / 60_000) as u16
}

fn frequency_field(now_ms: u64, counter: u8) -> u32 {
    u32::from(minutes(now_ms)) << 8 | u32::from(counter)
}

fn faded(field: u32, decay_minutes: u32, now_ms: u64) -> u8 {
    let elapsed = u32::from(minutes(now_ms).wrapping_sub((field >> 8) as u16));
    let periods = elapsed.checked_div(decay_minutes).unwrap_or(0);
    (field as u8).saturating_sub(periods.min(u8::MAX.into()) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_survives_the_wrap() {
        let usage = Usage::new(HashKey(1, 2));
        let before_wrap_ms = u64::from(RECENCY_MASK) * 1000;
        let field = usage.of_new(before_wrap_ms);
        assert_eq!(Usage::idle_s(field, before_wrap_ms + 5_000), 5);
    }

    /// The table in redis.conf: with a factor of 10, 100 hits give about 10, 1,000 about 18 and 100,000 about 142.
    #[test]
    fn counters_grow_logarithmically_and_fade() {
        let mut usage = Usage::new(HashKey(7, 2));
        usage.set_policy(UsePolicy::Frequency { log_factor: 10, decay_minutes: 1 });
        let now_ms = 1_600_000_000_000;
        let mut field = usage.of_new(now_ms);
        assert_eq!(usage.frequency(field, now_ms), NEW_COUNTER);
        for (hits, range) in [(100, 8..=13), (900, 15..=21), (99_000, 130..=160)] {
            (0..hits).for_each(|_| field = usage.after_use(|| field, now_ms));
            assert!(range.contains(&usage.frequency(field, now_ms)), "{hits}: {}", usage.frequency(field, now_ms));
        }
        let counter = usage.frequency(field, now_ms);
        assert_eq!(usage.frequency(field, now_ms + 10 * 60_000), counter - 10);
        assert_eq!(usage.frequency(field, now_ms + 1000 * 60_000), 0);
        usage.set_policy(UsePolicy::Frequency { log_factor: 10, decay_minutes: 0 });
        assert_eq!(usage.frequency(field, now_ms + 1000 * 60_000), counter);
    }
}
