//! Ports for servers that tests start.

use std::{
    net::TcpStream,
    ops::Range,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Not among those that Linux gives to clients, or to who asks for any: nobody gets one between the look at it and the
/// server's start.
const PORTS: Range<u16> = 10_000..32_000;
/// So far apart begin processes with neighboring numbers.
const STEP: u32 = 97;

/// A port of this host that nobody listens on, and no other test of this process is given.
///
/// That is found out by connecting: a listener of our own would still be open in a process that another test starts just
/// then, until that runs its program, and a client that took it for the server would be reset.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of so many such ports in a row.
pub fn free_ports(count: u16) -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let starts = u32::from(PORTS.end - PORTS.start - count + 1);
    loop {
        let given = GIVEN.fetch_add(u32::from(count), Ordering::Relaxed);
        let first = PORTS.start + (process::id().wrapping_mul(STEP).wrapping_add(given) % starts) as u16;
        if (first..first + count).all(|port| TcpStream::connect(("127.0.0.1", port)).is_err()) {
            return first;
        }
    }
}
