//! What the processor's thread has done: exits from the guest by cause, and where the time went. The guest is shown a copy.

use crate::{
    memory::{self, Memory},
    sys,
};
use anyhow::{Context, Result};
use kayvee_platform::{MONITOR_PAGE_MAGIC, MonitorFigures};
use kvm_ioctls::VmFd;
use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap, VolatileMemory};

/// Where the guest finds its copy. The direct path's description is in the same large page.
const PAGE: u64 = 0xd000_1000;
const PAGE_BYTES: usize = 4096;
/// Behind those of main memory, before those of the direct path.
const SLOT: u32 = 7;

/// Why the guest was left for the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The console's ports.
    Console,
    /// A device's registers.
    Registers,
    /// It wanted to sleep.
    Sleep,
    /// It wanted frames to be sent at once.
    Send,
    /// Other ports.
    Port,
    /// Addresses where nothing is.
    Nowhere,
    /// A signal to the thread.
    Signal,
    /// A debugger's breakpoint or step.
    Debug,
}

const CAUSES: usize = Cause::Debug as usize + 1;

/// Counters that any thread may read.
#[derive(Debug, Default)]
pub struct Stats {
    exits: [AtomicU64; CAUSES],
    guest_ns: AtomicU64,
    idle_ns: AtomicU64,
    host_ns: AtomicU64,
}

impl Stats {
    /// Counts an exit.
    pub fn count(&self, cause: Cause) {
        add(&self.exits[cause as usize], 1);
    }

    /// Adds time in the guest, including what the kernel does for it there.
    pub fn add_guest(&self, time: Duration) {
        add(&self.guest_ns, time.as_nanos() as u64);
    }

    /// Adds time asleep.
    pub fn add_idle(&self, time: Duration) {
        add(&self.idle_ns, time.as_nanos() as u64);
    }

    /// Adds time in the monitor.
    pub fn add_host(&self, time: Duration) {
        add(&self.host_ns, time.as_nanos() as u64);
    }

    fn figures(&self) -> MonitorFigures {
        let exits = |cause| self.exits[cause as usize].load(Relaxed);
        let us = |ns: &AtomicU64| ns.load(Relaxed) / 1000;
        MonitorFigures {
            exits_console: exits(Cause::Console),
            exits_registers: exits(Cause::Registers),
            exits_sleep: exits(Cause::Sleep),
            exits_send: exits(Cause::Send),
            exits_port: exits(Cause::Port),
            exits_nowhere: exits(Cause::Nowhere),
            exits_signal: exits(Cause::Signal),
            exits_debug: exits(Cause::Debug),
            time_guest_us: us(&self.guest_ns),
            time_idle_us: us(&self.idle_ns),
            time_host_us: us(&self.host_ns),
        }
    }

    /// All of it, `name:value` a line as INFO writes.
    pub fn report(&self) -> String {
        self.figures().each().fold(String::new(), |mut text, (name, _, _, value)| {
            let _ = writeln!(text, "{name}:{value}");
            text
        })
    }
}

/// Only one thread writes.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

/// The guest's copy. What the guest does to it harms nobody else.
pub struct Page {
    region: &'static GuestRegionMmap<()>,
}

impl Page {
    /// Makes it, and maps it into the guest.
    pub fn create(vm: &VmFd) -> Result<Page> {
        let memory = memory::keep(&Memory::from_ranges(&[(GuestAddress(PAGE), PAGE_BYTES)])?);
        memory.write_obj(MONITOR_PAGE_MAGIC.to_le(), GuestAddress(PAGE))?;
        let region = memory.iter().next().expect("one range");
        sys::share_region(vm, SLOT, region).context("mapping the monitor's page")?;
        Ok(Page { region })
    }

    /// What the guest finds it by.
    pub fn boot_word() -> String {
        format!("monitor={PAGE:#x} ")
    }

    /// Brings it up to date.
    pub fn publish(&self, stats: &Stats) {
        let slice = self.region.as_volatile_slice().expect("a region is one slice");
        let places = slice.get_array_ref(size_of::<u64>(), MonitorFigures::COUNT).expect("a page has room for all");
        places.copy_from(&stats.figures().values().map(u64::to_le));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_figure_and_the_guest_sees_it() {
        let stats = Stats::default();
        let causes =
            [Cause::Console, Cause::Registers, Cause::Sleep, Cause::Send, Cause::Port, Cause::Nowhere, Cause::Signal];
        for (count, cause) in causes.into_iter().chain([Cause::Debug]).enumerate() {
            (0..=count).for_each(|_| stats.count(cause));
        }
        stats.add_guest(Duration::from_micros(11));
        stats.add_idle(Duration::from_nanos(12_999));
        stats.add_host(Duration::from_micros(13));
        let expected = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13];
        assert_eq!(stats.figures().values(), expected);
        assert!(stats.report().starts_with("exits_console:1\nexits_registers:2\n"));
        assert!(stats.report().ends_with("time_host_us:13\n"));
        let memory = memory::keep(&Memory::from_ranges(&[(GuestAddress(PAGE), PAGE_BYTES)]).unwrap());
        Page { region: memory.iter().next().unwrap() }.publish(&stats);
        let read: [u64; MonitorFigures::COUNT] = memory.read_obj(GuestAddress(PAGE + 8)).unwrap();
        assert_eq!(read, expected);
    }
}
