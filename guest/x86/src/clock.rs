//! The machine's time: the cycle counter, its frequency, and the wall clock.
//!
//! Under KVM the paravirtual clock says all of it. Elsewhere the frequency is what the processor or the hypervisor
//! states, or is measured against a timer of known frequency; the wall clock is the CMOS clock's, followed with the
//! logic of [`rtc`](crate::rtc).

use crate::{
    cpu::{self, Hypervisor},
    interrupts, kvmclock, pit,
    ring0::Ring0,
    rtc::{self, Follower},
};
use core::cell::Cell;
use kayvee_platform::{Clock, Now};

/// The APIC timer of KVM and of QEMU counts nanoseconds, before its divisor.
const APIC_TIMER_HZ: u64 = 1_000_000_000 / interrupts::TIMER_DIVISOR;
/// How long the first measurement of a frequency takes.
const MEASURE_NS: u64 = 1_000_000;
const MEASURE_TICKS: u32 = (MEASURE_NS * APIC_TIMER_HZ / NS_PER_S) as u32;
/// Monotonic time when the cycle counter stood at 0, which is when the machine was switched on. Not 0, so that what was
/// a little earlier can be told.
const POWER_ON_NS: u64 = NS_PER_S;
const NS_PER_S: u64 = 1_000_000_000;
/// Frequencies outside of this are measurements or statements gone wrong.
const PLAUSIBLE_HZ: core::ops::RangeInclusive<u64> = 100_000_000..=20_000_000_000;
/// How often KVM is asked anew how its clock relates to the wall clock, which the host keeps correcting.
const WALL_CLOCK_INTERVAL_NS: u64 = 60 * NS_PER_S;

/// Nanoseconds per cycle, as a fixed-point number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale(u64);

impl Scale {
    const FRACTION_BITS: u32 = 40;

    /// For a counter of this frequency, not 0.
    pub fn from_hz(hz: u64) -> Scale {
        Scale(((u128::from(NS_PER_S) << Self::FRACTION_BITS) / u128::from(hz)) as u64)
    }

    /// For KVM's pair: nanoseconds are `(cycles << shift) * multiplier >> 32`.
    pub fn from_kvm(multiplier: u32, shift: i8) -> Scale {
        let fixed = u64::from(multiplier) << (Self::FRACTION_BITS - 32);
        Scale(if shift < 0 {
            fixed >> shift.unsigned_abs().min(63)
        } else {
            fixed.checked_shl(u32::from(shift.unsigned_abs())).unwrap_or(0)
        })
    }

    /// Nanoseconds that so many cycles take.
    #[inline]
    pub fn to_ns(self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.0)) >> Self::FRACTION_BITS) as u64
    }

    /// The counter's frequency.
    pub fn hz(self) -> u64 {
        ((u128::from(NS_PER_S) << Self::FRACTION_BITS) / u128::from(self.0.max(1))) as u64
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// KVM keeps a page up to date.
    Kvm,
    /// The cycle counter: nanoseconds at a count, and the scale from there.
    Cycles { base_cycles: u64, base_ns: u64, scale: Scale },
}

/// A reading of a timer of known frequency beside one of the cycle counter.
#[derive(Clone, Copy, Debug)]
struct Reading {
    cycles: u64,
    ticks: u32,
}

/// Both clocks of the machine.
pub struct GuestClock {
    source: Cell<Source>,
    /// The start of a measurement that goes on until the timer is used for something else.
    measuring: Cell<Option<Reading>>,
    timer_hz: Cell<u64>,
    /// Monotonic time of the kernel's start.
    start_ns: Cell<u64>,
    latest_ns: Cell<u64>,
    slept_ns: Cell<u64>,
    notifying_ns: Cell<u64>,
    /// Wall-clock time is monotonic time plus this.
    unix_offset_ns: Cell<u64>,
    wall_clock_due_ns: Cell<u64>,
    follower: Cell<Option<Follower>>,
}

// SAFETY: one core runs the image, and interrupt handlers do not read the time.
unsafe impl Sync for GuestClock {}

/// The machine's clock.
pub static CLOCK: GuestClock = GuestClock {
    source: Cell::new(Source::Cycles { base_cycles: 0, base_ns: 0, scale: Scale(0) }),
    measuring: Cell::new(None),
    timer_hz: Cell::new(APIC_TIMER_HZ),
    start_ns: Cell::new(0),
    latest_ns: Cell::new(0),
    slept_ns: Cell::new(0),
    notifying_ns: Cell::new(0),
    unix_offset_ns: Cell::new(0),
    wall_clock_due_ns: Cell::new(0),
    follower: Cell::new(None),
};

/// Why the machine has no usable clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockError {
    hz: u64,
}

impl core::fmt::Display for ClockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the cycle counter's frequency comes out as {} Hz, which cannot be", self.hz)
    }
}

impl GuestClock {
    /// Finds out how time passes here. The local APIC must be initialised.
    pub(crate) fn init(&self, hypervisor: Hypervisor, ring0: Ring0) -> Result<(), ClockError> {
        if hypervisor == Hypervisor::Kvm && kvmclock::init(ring0) {
            self.source.set(Source::Kvm);
            self.unix_offset_ns.set(kvmclock::unix_offset_ns(ring0));
        } else {
            let (hz, reading) = match stated_hz(hypervisor) {
                Some(hz) => (hz, None),
                None if matches!(hypervisor, Hypervisor::Kvm | Hypervisor::Tcg) => {
                    let start = Reading::take();
                    (measure_hz(start), Some(start))
                }
                None => (pit::measure_cycles_hz(), None),
            };
            if !PLAUSIBLE_HZ.contains(&hz) {
                return Err(ClockError { hz });
            }
            self.measuring.set(reading);
            let (base_cycles, scale) = (cpu::cycles(), Scale::from_hz(hz));
            let base_ns = POWER_ON_NS + scale.to_ns(base_cycles);
            self.source.set(Source::Cycles { base_cycles, base_ns, scale });
            if !matches!(hypervisor, Hypervisor::Kvm | Hypervisor::Tcg) {
                self.timer_hz.set(measure_timer_hz(scale));
            }
            match rtc::read_cmos() {
                Some(seconds) => {
                    let follower = Follower::new(self.monotonic_ns(), seconds);
                    self.unix_offset_ns.set(follower.unix_offset_ns());
                    self.wall_clock_due_ns.set(follower.next_look_ns(self.monotonic_ns()));
                    self.follower.set(Some(follower));
                }
                None => {
                    log::warn!("no wall clock: dates start in 1970");
                    self.wall_clock_due_ns.set(u64::MAX);
                }
            }
        }
        self.start_ns.set(self.monotonic_ns());
        Ok(())
    }

    /// Takes the host's time just before it switched the machine on, in microseconds since 1970, where the CMOS clock,
    /// which knows only whole seconds, is all that there is.
    pub fn hint_unix_us(&self, host_start_unix_us: u64) {
        if let Some(mut follower) = self.follower.get() {
            follower.hint(host_start_unix_us.saturating_mul(1000).saturating_sub(POWER_ON_NS));
            self.unix_offset_ns.set(follower.unix_offset_ns());
            self.follower.set(Some(follower));
        }
    }

    /// A call is little beside reading the counter, and this is wanted in many places.
    #[inline(never)]
    fn monotonic_ns(&self) -> u64 {
        let ns = match self.source.get() {
            Source::Kvm => kvmclock::now_ns(),
            Source::Cycles { base_cycles, base_ns, scale } => {
                base_ns + scale.to_ns(cpu::cycles().saturating_sub(base_cycles))
            }
        };
        let ns = ns.max(self.latest_ns.get());
        self.latest_ns.set(ns);
        ns
    }

    /// Nanoseconds since the kernel's start.
    pub fn uptime_ns(&self) -> u64 {
        self.monotonic_ns().saturating_sub(self.start_ns.get())
    }

    /// Nanoseconds since the kernel's start that it did not sleep.
    pub fn busy_ns(&self) -> u64 {
        self.uptime_ns().saturating_sub(self.slept_ns.get())
    }

    /// Calls `sleep` with the time, and counts the time until it returns as slept.
    pub(crate) fn count_sleep(&self, sleep: impl FnOnce(u64)) {
        let start_ns = self.monotonic_ns();
        sleep(start_ns);
        self.slept_ns.set(self.slept_ns.get() + (self.monotonic_ns() - start_ns));
    }

    /// Nanoseconds that [`count_notification`](Self::count_notification) has counted.
    pub fn notifying_ns(&self) -> u64 {
        self.notifying_ns.get()
    }

    /// Calls `notify`, which leaves the machine for the host, and counts the time until it returns.
    #[inline]
    pub fn count_notification<R>(&self, notify: impl FnOnce() -> R) -> R {
        let start_ns = self.monotonic_ns();
        let result = notify();
        self.notifying_ns.set(self.notifying_ns.get() + (self.monotonic_ns() - start_ns));
        result
    }

    /// The frequency of the cycle counter as far as it is known.
    pub fn cycles_hz(&self) -> u64 {
        match self.source.get() {
            Source::Kvm => kvmclock::scale().hz(),
            Source::Cycles { scale, .. } => scale.hz(),
        }
    }

    /// When [`follow_wall_clock`](Self::follow_wall_clock) has something to do.
    pub fn wall_clock_due_ns(&self) -> u64 {
        self.wall_clock_due_ns.get()
    }

    /// Keeps the wall clock true; to be called now and then, at best when [`wall_clock_due_ns`](Self::wall_clock_due_ns)
    /// says.
    pub(crate) fn follow_wall_clock(&self, ring0: Ring0) {
        let now_ns = self.monotonic_ns();
        if now_ns < self.wall_clock_due_ns.get() {
            return;
        }
        if let Source::Kvm = self.source.get() {
            self.unix_offset_ns.set(kvmclock::unix_offset_ns(ring0));
            self.wall_clock_due_ns.set(now_ns + WALL_CLOCK_INTERVAL_NS);
        } else if let (Some(mut follower), Some(seconds)) = (self.follower.get(), rtc::read_cmos()) {
            follower.look(now_ns, seconds);
            self.unix_offset_ns.set(follower.unix_offset_ns());
            self.wall_clock_due_ns.set(follower.next_look_ns(now_ns));
            self.follower.set(Some(follower));
        }
    }

    /// Makes the timer interrupt at `deadline_ns`, or never.
    pub(crate) fn arm_timer(&self, deadline_ns: Option<u64>) {
        self.finish_measuring();
        let Some(deadline_ns) = deadline_ns else { return interrupts::arm_timer(0) };
        let ns = deadline_ns.saturating_sub(self.monotonic_ns());
        let ticks = u128::from(ns) * u128::from(self.timer_hz.get()) / u128::from(NS_PER_S);
        // A deadline beyond the counter's range ends the sleep early, and the caller sleeps again.
        interrupts::arm_timer(u32::try_from(ticks).unwrap_or(u32::MAX).max(1));
    }

    /// Before the timer is needed for a sleep, it has counted since the start: a far better measurement than the first.
    fn finish_measuring(&self) {
        let (Some(start), Source::Cycles { scale, .. }) = (self.measuring.take(), self.source.get()) else { return };
        let end = Reading::take();
        if end.ticks == 0 {
            return; // It has run out: no measurement.
        }
        let hz = frequency(start, end);
        // The first measurement cannot have been off by more than this; another result is a timer that was disturbed.
        if hz.abs_diff(scale.hz()) < scale.hz() / 100 {
            let base_ns = self.monotonic_ns();
            self.source.set(Source::Cycles { base_cycles: cpu::cycles(), base_ns, scale: Scale::from_hz(hz) });
        }
    }
}

impl Clock for GuestClock {
    #[inline]
    fn now(&self) -> Now {
        let monotonic_ns = self.monotonic_ns();
        Now { monotonic_ns, unix_us: (monotonic_ns + self.unix_offset_ns.get()) / 1000 }
    }

    fn name(&self) -> &'static str {
        "cycle counter"
    }
}

/// What the hypervisor or the processor says of the cycle counter.
fn stated_hz(hypervisor: Hypervisor) -> Option<u64> {
    let [max, ..] = cpu::cpuid(cpu::HYPERVISOR_LEAVES, 0);
    match hypervisor {
        // Timing information, as VMware defined the leaf and KVM's monitors fill it: EAX in kHz.
        Hypervisor::Kvm if max >= cpu::HYPERVISOR_LEAVES + 0x10 => {
            Some(u64::from(cpu::cpuid(cpu::HYPERVISOR_LEAVES + 0x10, 0)[0]) * 1000).filter(|hz| *hz != 0)
        }
        // Xen's time leaf: ECX in kHz.
        Hypervisor::Xen => Some(u64::from(cpu::cpuid(cpu::HYPERVISOR_LEAVES + 3, 0)[2]) * 1000).filter(|hz| *hz != 0),
        _ => None,
    }
    .or_else(|| {
        // Intel SDM volume 2, CPUID leaf 15H: crystal frequency times a ratio.
        let [denominator, numerator, crystal_hz, _] =
            if cpu::cpuid(0, 0)[0] >= 0x15 { cpu::cpuid(0x15, 0) } else { [0; 4] };
        (u64::from(crystal_hz) * u64::from(numerator)).checked_div(u64::from(denominator)).filter(|hz| *hz != 0)
    })
}

impl Reading {
    /// The closest pair of several, as an interruption by the host between the two readings falsifies one.
    fn take() -> Reading {
        const TRIES: u32 = 5;
        let one = |_| {
            let before = cpu::cycles();
            let ticks = interrupts::timer_count();
            let after = cpu::cycles();
            (after - before, Reading { cycles: before + (after - before) / 2, ticks })
        };
        (0..TRIES).map(one).min_by_key(|(width, _)| *width).map(|(_, reading)| reading).expect("tries at least once")
    }
}

fn frequency(start: Reading, end: Reading) -> u64 {
    let ticks = u128::from(start.ticks.saturating_sub(end.ticks).max(1));
    (u128::from(end.cycles - start.cycles) * u128::from(APIC_TIMER_HZ) / ticks) as u64
}

/// Measures the cycle counter against the APIC timer.
fn measure_hz(start: Reading) -> u64 {
    // The bound on turns ends this on a machine whose timer stands still; the result is then implausible.
    const TURNS_MAX: u32 = 100_000_000;
    let _ = (0..TURNS_MAX).find(|_| start.ticks.saturating_sub(interrupts::timer_count()) >= MEASURE_TICKS);
    frequency(start, Reading::take())
}

/// Measures the APIC timer against the cycle counter.
fn measure_timer_hz(scale: Scale) -> u64 {
    let start = Reading::take();
    while scale.to_ns(cpu::cycles() - start.cycles) < MEASURE_NS {
        core::hint::spin_loop();
    }
    let end = Reading::take();
    let ticks = u64::from(start.ticks.saturating_sub(end.ticks).max(1));
    (u128::from(ticks) * u128::from(NS_PER_S) / u128::from(scale.to_ns(end.cycles - start.cycles))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_agree_with_exact_arithmetic() {
        for hz in [100_000_000, 999_999_999, 2_596_120_000, 4_000_000_000, 20_000_000_000] {
            let scale = Scale::from_hz(hz);
            for seconds in [1, 60, 86_400, 10 * 365 * 86_400] {
                let ns = scale.to_ns(hz * seconds);
                assert!(ns.abs_diff(seconds * NS_PER_S) <= seconds * 10, "{hz} Hz, {seconds} s: {ns}");
            }
            assert!(scale.hz().abs_diff(hz) <= hz / 1_000_000_000 + 1);
        }
    }

    #[test]
    fn reads_kvms_pairs() {
        // 1 GHz as KVM puts it: a multiplier of one half, shifted by one.
        assert_eq!(Scale::from_kvm(0x8000_0000, 1), Scale::from_hz(NS_PER_S));
        assert_eq!(Scale::from_kvm(0x8000_0000, 0), Scale::from_hz(2 * NS_PER_S));
        assert_eq!(Scale::from_kvm(0x8000_0000, -1), Scale::from_hz(4 * NS_PER_S));
        for shift in [i8::MIN, -64, 64, i8::MAX] {
            let _ = Scale::from_kvm(u32::MAX, shift).to_ns(u64::MAX);
        }
    }

    #[test]
    fn a_longer_measurement_gives_the_frequency() {
        let start = Reading { cycles: 1000, ticks: u32::MAX };
        let end = Reading { cycles: 1000 + 2_600_000_000, ticks: u32::MAX - APIC_TIMER_HZ as u32 };
        assert_eq!(frequency(start, end), 2_600_000_000);
    }
}
