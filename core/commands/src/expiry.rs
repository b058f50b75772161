//! Times of expiry, as arguments give them.

use crate::{Error, args};
use alloc::format;

/// What a time is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Milliseconds,
}

/// Where a time is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    FromNow,
    SinceEpoch,
}

/// A time of expiry as an argument gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpireTime<'a> {
    pub value: &'a [u8],
    pub unit: Unit,
    pub clock: Clock,
}

impl ExpireTime<'_> {
    /// Milliseconds since 1970, which may lie in the past. `command` is who asks, for the error.
    pub fn unix_ms(self, now_ms: u64, command: &str) -> Result<i64, Error> {
        self.convert(args::integer(self.value)?, now_ms).ok_or_else(|| invalid(command))
    }

    /// The same for commands that take no time of zero or less.
    pub fn positive_ms(self, now_ms: u64, command: &str) -> Result<u64, Error> {
        let value = args::integer(self.value)?;
        let at_ms = if value > 0 { self.convert(value, now_ms) } else { None };
        at_ms.and_then(|at_ms| u64::try_from(at_ms).ok()).ok_or_else(|| invalid(command))
    }

    fn convert(self, value: i64, now_ms: u64) -> Option<i64> {
        let value_ms = match self.unit {
            Unit::Seconds => value.checked_mul(1000)?,
            Unit::Milliseconds => value,
        };
        match self.clock {
            Clock::FromNow => value_ms.checked_add_unsigned(now_ms),
            Clock::SinceEpoch => Some(value_ms),
        }
    }
}

pub fn invalid(command: &str) -> Error {
    format!("ERR invalid expire time in '{command}' command").into()
}
