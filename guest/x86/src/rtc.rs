//! The CMOS clock (MC146818), which knows whole seconds, and how to follow it more closely than that.

use crate::port;
use kayvee_platform::Civil;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;

const SECONDS: u8 = 0x00;
const MINUTES: u8 = 0x02;
const HOURS: u8 = 0x04;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
/// Where PCs keep the century, without a standard that says so.
const CENTURY: u8 = 0x32;

const UPDATE_IN_PROGRESS: u8 = 1 << 7;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;
const AFTERNOON: u8 = 1 << 7;
/// Looks at a clock that is just changing; an update takes 2 ms.
const POLLS_MAX: u32 = 100_000;

const NS_PER_S: u64 = 1_000_000_000;

/// The registers of one reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Registers {
    seconds: u8,
    minutes: u8,
    hours: u8,
    day: u8,
    month: u8,
    year: u8,
    century: u8,
    status_b: u8,
}

fn register(index: u8) -> u8 {
    // SAFETY: the ports are the CMOS clock's, which knows no memory.
    unsafe {
        port::write_u8(INDEX, index);
        port::read_u8(DATA)
    }
}

fn read_registers() -> Option<Registers> {
    (0..POLLS_MAX).find(|_| register(STATUS_A) & UPDATE_IN_PROGRESS == 0)?;
    Some(Registers {
        seconds: register(SECONDS),
        minutes: register(MINUTES),
        hours: register(HOURS),
        day: register(DAY),
        month: register(MONTH),
        year: register(YEAR),
        century: register(CENTURY),
        status_b: register(STATUS_B),
    })
}

/// Reads the clock: seconds since 1970, or `None` where there is no clock.
pub(crate) fn read_cmos() -> Option<u64> {
    const TRIES: u32 = 3;
    let mut last = read_registers()?;
    for _ in 0..TRIES {
        // Two equal readings: no second has begun in between.
        let again = read_registers()?;
        if again == last {
            return again.unix_seconds();
        }
        last = again;
    }
    None
}

impl Registers {
    fn unix_seconds(self) -> Option<u64> {
        let value = |register: u8| -> u32 {
            if self.status_b & BINARY != 0 {
                u32::from(register)
            } else {
                u32::from(register >> 4) * 10 + u32::from(register & 0xf)
            }
        };
        let hour = if self.status_b & HOURS_24 != 0 {
            value(self.hours)
        } else {
            value(self.hours & !AFTERNOON) % 12 + if self.hours & AFTERNOON != 0 { 12 } else { 0 }
        };
        let century = Some(value(self.century)).filter(|century| (20..100).contains(century)).unwrap_or(20);
        let year = Some(value(self.year)).filter(|year| *year < 100)?;
        let [month, day, minute, second] = [self.month, self.day, self.minutes, self.seconds].map(value);
        Civil { year: century * 100 + year, month, day, hour, minute, second }.unix_s()
    }
}

/// Follows a clock of whole seconds: every look at it narrows down when its seconds begin, and so what it would say if
/// it knew fractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// The clock's time minus monotonic time lies between these two.
    low_ns: u64,
    high_ns: u64,
    looked_at_ns: u64,
    /// A true time minus monotonic time, kept until the clock is known precisely enough to be compared with it.
    hint_ns: Option<u64>,
    /// How far the clock is behind the true time. QEMU starts it at a whole second, whatever the time is.
    lag_ns: u64,
}

impl Follower {
    /// Narrower than this it need not be.
    const PRECISE_NS: u64 = 1_000_000;
    /// How far the cycle counter and the clock may drift apart.
    const DRIFT_PPM: u64 = 100;
    /// Time between looks once the clock is known precisely.
    const INTERVAL_NS: u64 = 60 * NS_PER_S;

    /// Starts from a first look.
    pub fn new(monotonic_ns: u64, seconds: u64) -> Follower {
        let low_ns = (seconds * NS_PER_S).saturating_sub(monotonic_ns);
        Follower { low_ns, high_ns: low_ns + NS_PER_S, looked_at_ns: monotonic_ns, hint_ns: None, lag_ns: 0 }
    }

    /// Takes another look.
    pub fn look(&mut self, monotonic_ns: u64, seconds: u64) {
        let drift_ns = (monotonic_ns - self.looked_at_ns) / 1_000_000 * Self::DRIFT_PPM;
        let seen = Follower::new(monotonic_ns, seconds);
        let low_ns = seen.low_ns.max(self.low_ns.saturating_sub(drift_ns));
        let high_ns = seen.high_ns.min(self.high_ns + drift_ns);
        // A clock that was set anew tells nothing about before.
        (self.low_ns, self.high_ns) = if low_ns < high_ns { (low_ns, high_ns) } else { (seen.low_ns, seen.high_ns) };
        self.looked_at_ns = monotonic_ns;
        if self.high_ns - self.low_ns <= Self::PRECISE_NS {
            self.lag_ns = self.plausible_hint_ns().map_or(self.lag_ns, |hint_ns| hint_ns - self.low_ns);
            self.hint_ns = None;
        }
    }

    /// Takes a true time, as an offset from monotonic time.
    pub fn hint(&mut self, unix_offset_ns: u64) {
        self.hint_ns = Some(unix_offset_ns);
    }

    /// The hint, unless the clock is ahead of it or more than a second behind.
    fn plausible_hint_ns(&self) -> Option<u64> {
        self.hint_ns.filter(|hint_ns| (self.low_ns..self.high_ns + NS_PER_S).contains(hint_ns))
    }

    /// Wall-clock time minus monotonic time.
    pub fn unix_offset_ns(&self) -> u64 {
        self.plausible_hint_ns().unwrap_or(self.low_ns + self.lag_ns)
    }

    /// When the next look tells most: half way between the bounds of where a second begins.
    pub fn next_look_ns(&self, now_ns: u64) -> u64 {
        let width = self.high_ns - self.low_ns;
        let earliest = if width > Self::PRECISE_NS { now_ns } else { now_ns + Self::INTERVAL_NS };
        let clock_ns = earliest + self.low_ns + width / 2;
        earliest + (NS_PER_S - clock_ns % NS_PER_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bcd_and_binary_12_and_24_hours() {
        let bcd = Registers {
            seconds: 0x59,
            minutes: 0x34,
            hours: 0x12,
            day: 0x20,
            month: 0x11,
            year: 0x26,
            century: 0x20,
            status_b: HOURS_24,
        };
        let expected = 20_777 * 86_400 + 12 * 3600 + 34 * 60 + 59;
        assert_eq!(bcd.unix_seconds(), Some(expected));
        let binary = Registers {
            seconds: 59,
            minutes: 34,
            hours: 12,
            day: 20,
            month: 11,
            year: 26,
            century: 20,
            status_b: HOURS_24 | BINARY,
        };
        assert_eq!(binary.unix_seconds(), Some(expected));
        assert_eq!(Registers { hours: 0x12 | AFTERNOON, status_b: 0, ..bcd }.unix_seconds(), Some(expected));
        assert_eq!(Registers { hours: 0x12, status_b: 0, ..bcd }.unix_seconds(), Some(expected - 12 * 3600));
    }

    #[test]
    fn a_missing_clock_reads_as_none() {
        let ones = Registers {
            seconds: 255,
            minutes: 255,
            hours: 255,
            day: 255,
            month: 255,
            year: 255,
            century: 255,
            status_b: 255,
        };
        assert_eq!(ones.unix_seconds(), None);
        assert_eq!(Registers::default().unix_seconds(), None);
    }

    /// A clock of whole seconds that is `offset_ns` ahead of monotonic time and drifts by `ppm`.
    fn clock(offset_ns: u64, ppm: u64, monotonic_ns: u64) -> u64 {
        (monotonic_ns + monotonic_ns / 1_000_000 * ppm + offset_ns) / NS_PER_S
    }

    #[test]
    fn looks_narrow_the_offset_down() {
        for offset_ns in [0, 1, 123_456_789, 999_999_999].map(|fraction| 1_800_000_000 * NS_PER_S + fraction) {
            let mut now_ns = 5 * NS_PER_S + 7;
            let mut follower = Follower::new(now_ns, clock(offset_ns, 0, now_ns));
            while follower.high_ns - follower.low_ns > Follower::PRECISE_NS {
                now_ns = follower.next_look_ns(now_ns);
                follower.look(now_ns, clock(offset_ns, 0, now_ns));
                assert!(now_ns < 25 * NS_PER_S, "{offset_ns}: {follower:?}");
            }
            assert!(follower.unix_offset_ns().abs_diff(offset_ns) <= Follower::PRECISE_NS, "{offset_ns}: {follower:?}");
        }
    }

    #[test]
    fn follows_drift_and_steps() {
        let offset_ns = 1_800_000_000 * NS_PER_S + 5;
        let mut now_ns = NS_PER_S;
        let mut follower = Follower::new(now_ns, clock(offset_ns, 50, now_ns));
        for _ in 0..3000 {
            now_ns = follower.next_look_ns(now_ns);
            follower.look(now_ns, clock(offset_ns, 50, now_ns));
        }
        let truth = offset_ns + now_ns / 1_000_000 * 50;
        assert!(follower.unix_offset_ns().abs_diff(truth) < 20_000_000, "{follower:?} {truth}");
        follower.look(now_ns + NS_PER_S, clock(offset_ns + 3600 * NS_PER_S, 50, now_ns));
        assert!(follower.unix_offset_ns().abs_diff(truth + 3600 * NS_PER_S) < 2 * NS_PER_S);
    }

    #[test]
    fn a_hint_makes_up_for_a_lag_of_up_to_a_second() {
        let clock_offset_ns = 1_800_000_000 * NS_PER_S + 400_000_000;
        for (hint_ns, expected_ns) in [
            (clock_offset_ns + 700_000_000, clock_offset_ns + 700_000_000),
            (clock_offset_ns + 60 * NS_PER_S, clock_offset_ns),
            (clock_offset_ns - 60 * NS_PER_S, clock_offset_ns),
        ] {
            let mut now_ns = NS_PER_S;
            let mut follower = Follower::new(now_ns, clock(clock_offset_ns, 0, now_ns));
            follower.hint(hint_ns);
            for _ in 0..30 {
                now_ns = follower.next_look_ns(now_ns);
                follower.look(now_ns, clock(clock_offset_ns, 0, now_ns));
            }
            let offset_ns = follower.unix_offset_ns();
            assert!(offset_ns.abs_diff(expected_ns) < 10_000_000, "{offset_ns} {expected_ns}");
        }
    }
}
