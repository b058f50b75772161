//! Ports for servers that tests start.

use std::{
    net::TcpListener,
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
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    loop {
        let number = process::id().wrapping_mul(STEP).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count;
        let port = PORTS.start + number as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
