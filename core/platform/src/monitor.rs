//! What Kayvee's own monitor tells its guest.

use crate::figures::figures;

figures! {
    /// What the monitor has done for its guest since the start: how often it was left, and where the time of its
    /// processor's thread went.
    MonitorFigures {
        /// Exits for the console's ports.
        exits_console: Counter,
        /// Exits for a device's registers.
        exits_registers: Counter,
        /// Exits to sleep.
        exits_sleep: Counter,
        /// Exits to have frames sent at once.
        exits_send: Counter,
        /// Exits for other ports.
        exits_port: Counter,
        /// Exits for addresses where nothing is.
        exits_nowhere: Counter,
        /// Exits because of a signal to the thread.
        exits_signal: Counter,
        /// Exits for a debugger.
        exits_debug: Counter,
        /// Microseconds in the guest, with what the kernel does for it there.
        time_guest_us: Counter,
        /// Microseconds asleep.
        time_idle_us: Counter,
        /// Microseconds in the monitor.
        time_host_us: Counter,
    }
}

/// The page in which the monitor keeps them for the guest: this number, then the figures in the order of the structure,
/// each in eight bytes, little-endian.
pub const MONITOR_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"KVMON\0\0\x01");
