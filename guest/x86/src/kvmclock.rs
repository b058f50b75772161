//! KVM's paravirtual clock (Linux `Documentation/virt/kvm/x86/msr.rst`): the host keeps a page up to date from which the
//! guest computes nanoseconds since its boot, and says on request how that relates to the wall clock.

use crate::{
    clock::Scale,
    cpu,
    ring0::{MSR_KVM_SYSTEM_TIME, MSR_KVM_WALL_CLOCK, Ring0},
};
use core::{
    cell::UnsafeCell,
    sync::atomic::{Ordering, compiler_fence},
};

/// `struct pvclock_vcpu_time_info`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TimeInfo {
    version: u32,
    padding: u32,
    cycles: u64,
    ns: u64,
    multiplier: u32,
    shift: i8,
    flags: u8,
    padding_2: [u8; 2],
}

/// `struct pvclock_wall_clock`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct WallClock {
    version: u32,
    seconds: u32,
    ns: u32,
}

#[repr(transparent)]
struct WrittenByHost<T>(UnsafeCell<T>);

// SAFETY: one core runs the image; the host's writes are met with volatile reads and version checks.
unsafe impl<T> Sync for WrittenByHost<T> {}

static TIME_INFO: WrittenByHost<TimeInfo> = WrittenByHost(UnsafeCell::new(TimeInfo {
    version: 0,
    padding: 0,
    cycles: 0,
    ns: 0,
    multiplier: 0,
    shift: 0,
    flags: 0,
    padding_2: [0; 2],
}));
static WALL_CLOCK: WrittenByHost<WallClock> =
    WrittenByHost(UnsafeCell::new(WallClock { version: 0, seconds: 0, ns: 0 }));

/// Bit 0 of the register's value: switched on.
const ENABLED: u64 = 1;
/// Readings of a page that the host is just changing; it never takes long.
const READS_MAX: u32 = 1_000_000;

/// Switches the clock on, if KVM has it.
pub(crate) fn init(ring0: Ring0) -> bool {
    const FEATURE_CLOCKSOURCE_2: u32 = 1 << 3;
    let [max, ..] = cpu::cpuid(cpu::HYPERVISOR_LEAVES, 0);
    // Old versions of KVM leave the highest leaf at 0 and mean 0x40000001.
    if (max != 0 && max < cpu::HYPERVISOR_LEAVES + 1)
        || cpu::cpuid(cpu::HYPERVISOR_LEAVES + 1, 0)[0] & FEATURE_CLOCKSOURCE_2 == 0
    {
        return false;
    }
    let page = TIME_INFO.0.get() as u64;
    ring0.write_msr(MSR_KVM_SYSTEM_TIME, page | ENABLED) && read_time_info().multiplier != 0
}

fn read_time_info() -> TimeInfo {
    for _ in 0..READS_MAX {
        // SAFETY: the static lives for ever; a torn copy is found out by the version, which is odd during a change.
        unsafe {
            let page = TIME_INFO.0.get();
            let version = (&raw const (*page).version).read_volatile();
            compiler_fence(Ordering::SeqCst);
            let info = page.read_volatile();
            compiler_fence(Ordering::SeqCst);
            if version & 1 == 0 && version == (&raw const (*page).version).read_volatile() {
                return info;
            }
        }
    }
    panic!("KVM has stopped in the middle of an update of its clock");
}

/// Nanoseconds since the machine's boot.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let info = read_time_info();
    let cycles = cpu::cycles().saturating_sub(info.cycles);
    info.ns + Scale::from_kvm(info.multiplier, info.shift).to_ns(cycles)
}

/// The scale of the cycle counter.
pub(crate) fn scale() -> Scale {
    let info = read_time_info();
    Scale::from_kvm(info.multiplier, info.shift)
}

/// The wall-clock time at which the clock stood at 0, in nanoseconds since 1970.
pub(crate) fn unix_offset_ns(ring0: Ring0) -> u64 {
    ring0.write_msr(MSR_KVM_WALL_CLOCK, WALL_CLOCK.0.get() as u64);
    // SAFETY: the host has written the static before the call returned, and writes it at no other time.
    let wall_clock = unsafe { WALL_CLOCK.0.get().read_volatile() };
    u64::from(wall_clock.seconds) * 1_000_000_000 + u64::from(wall_clock.ns)
}
