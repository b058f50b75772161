//! What the processor's thread has done: exits from the guest by cause, and where the time went.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

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
}

impl Cause {
    const ALL: [(Cause, &str); 7] = [
        (Cause::Console, "console"),
        (Cause::Registers, "registers"),
        (Cause::Sleep, "sleep"),
        (Cause::Send, "send"),
        (Cause::Port, "port"),
        (Cause::Nowhere, "nowhere"),
        (Cause::Signal, "signal"),
    ];
}

/// Counters that any thread may read.
#[derive(Debug, Default)]
pub struct Stats {
    exits: [AtomicU64; Cause::ALL.len()],
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
    pub fn add_guest(&self, ns: u64) {
        add(&self.guest_ns, ns);
    }

    /// Adds time asleep.
    pub fn add_idle(&self, ns: u64) {
        add(&self.idle_ns, ns);
    }

    /// Adds time in the monitor.
    pub fn add_host(&self, ns: u64) {
        add(&self.host_ns, ns);
    }

    /// All of it, `name:value` a line as INFO writes.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (cause, name) in Cause::ALL {
            let _ = writeln!(text, "exits_{name}:{}", self.exits[cause as usize].load(Relaxed));
        }
        for (name, ns) in [("guest", &self.guest_ns), ("idle", &self.idle_ns), ("host", &self.host_ns)] {
            let _ = writeln!(text, "time_{name}_us:{}", ns.load(Relaxed) / 1000);
        }
        text
    }
}

/// Only one thread writes.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}
