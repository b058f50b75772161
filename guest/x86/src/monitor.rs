//! Kayvee's own monitor (`host/vmm`), which has no interrupt controller: a guest sleeps by telling it for how long.
//!
//! It names its port on the boot line. A write of microseconds there returns when a device has something or the time is
//! over. (CPUID would be the place to say what a monitor is, but paravirtual nested KVM lets ring 3 ask the processor
//! itself.)

use crate::port::{self, PORTS_END};

/// The word of the boot line.
const WORD: &[u8] = b"sleep_port=0x";
/// As long as it takes.
const NO_TIMEOUT: u32 = u32::MAX;

/// The port to sleep by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SleepPort(u16);

impl SleepPort {
    /// Looks for it among the machine's words of the boot line.
    pub(crate) fn find(command_line: &[u8]) -> Option<SleepPort> {
        let words = command_line.split(|byte| *byte == b' ').take_while(|word| *word != b"--");
        let digits = words.filter_map(|word| word.strip_prefix(WORD)).next()?;
        let port = u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
        (port < PORTS_END).then_some(SleepPort(port))
    }

    /// Sleeps until a device has something, for so long at most. May end early.
    pub(crate) fn sleep(self, timeout_ns: Option<u64>) {
        // Rounded up: a sleep that ends before its deadline is only followed by another one.
        let timeout_us = timeout_ns.map_or(NO_TIMEOUT, |ns| u32::try_from(ns.div_ceil(1000)).unwrap_or(NO_TIMEOUT - 1));
        // SAFETY: the monitor has named the port for this purpose; it knows no memory.
        unsafe { port::write_u32(self.0, timeout_us) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_of_the_machine_names_the_port() {
        let find = |line: &str| SleepPort::find(line.as_bytes()).map(|port| port.0);
        assert_eq!(find("ip=dhcp sleep_port=0x500 -- --port 1"), Some(0x500));
        for line in
            ["", "sleep_port=0x1000", "sleep_port=0x", "sleep_port=500", "sleep_port=0x-1", "-- sleep_port=0x500"]
        {
            assert_eq!(find(line), None, "{line}");
        }
    }
}
