/// The smallest buffers that a connection gets, both directions together: 4 KiB each, near three full segments.
pub const MIN_CONNECTION_BUFFER_BYTES: usize = 8 << 10;

/// The largest, both directions together. 64 KiB each is what a window holds without scaling.
pub const MAX_CONNECTION_BUFFER_BYTES: usize = 128 << 10;

/// Connections accepted beyond those that the application serves, so that it can tell the others why it does not.
const SPARE_CONNECTIONS: usize = 32;

/// A new connection gets this share of the buffer memory that is still free, 1/32, so that many can still come.
const SHARE_DIVISOR: usize = 32;

/// Bounds on what a [`Stack`](crate::Stack) takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at a time, in whatever state.
    pub connections: usize,
    /// Most bytes in all connections' buffers together. They are taken as connections come, not beforehand.
    pub buffer_bytes: usize,
}

impl Limits {
    /// Limits for a machine with `memory_bytes` for the whole program, of which the buffers may take a quarter, and an
    /// application that serves at most `clients`.
    ///
    /// Half of the buffer memory is kept for smallest buffers, which bounds the number of connections: 250 in 16 MiB
    /// and 1,000 in 64 MiB. The other half goes to those that come first, who thus get larger ones.
    pub fn for_memory(memory_bytes: u64, clients: u32) -> Limits {
        let buffer_bytes = usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX);
        let affordable = (buffer_bytes / 2 / MIN_CONNECTION_BUFFER_BYTES).max(1);
        let wanted = (clients as usize).saturating_add(SPARE_CONNECTIONS);
        Limits { connections: wanted.min(affordable), buffer_bytes }
    }

    /// How many clients the application can serve such that some connections are left to refuse others on.
    pub fn clients(&self) -> usize {
        self.connections.saturating_sub(SPARE_CONNECTIONS.min(self.connections / 2)).max(1)
    }

    /// Bytes of buffers for one more connection, or `None` if there is no room for it.
    pub(crate) fn share(&self, open_connections: usize, used_bytes: usize) -> Option<usize> {
        let to_come = self.connections.checked_sub(open_connections + 1)?;
        let free = self.buffer_bytes.checked_sub(used_bytes)?;
        if free < MIN_CONNECTION_BUFFER_BYTES {
            return None;
        }
        let unreserved = free.saturating_sub(to_come.saturating_mul(MIN_CONNECTION_BUFFER_BYTES));
        let share = (unreserved / SHARE_DIVISOR).clamp(MIN_CONNECTION_BUFFER_BYTES, MAX_CONNECTION_BUFFER_BYTES);
        // Whole KiB in each direction.
        Some(share & !0x7ff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens as many connections as there can be and returns their buffers' sizes.
    fn fill(limits: Limits) -> alloc::vec::Vec<usize> {
        let mut shares = alloc::vec::Vec::new();
        while let Some(share) = limits.share(shares.len(), shares.iter().sum()) {
            shares.push(share);
        }
        assert!(shares.iter().sum::<usize>() <= limits.buffer_bytes);
        shares
    }

    #[test]
    fn every_connection_within_the_limit_gets_buffers() {
        for (mib, clients) in [(1, 10), (16, 50), (16, 10_000), (64, 1000), (64, 10_000), (1024, 10_000), (8192, 1)] {
            let limits = Limits::for_memory(mib << 20, clients);
            assert_eq!(fill(limits).len(), limits.connections, "{mib} MiB");
        }
    }

    #[test]
    fn small_guests_serve_what_is_asked_of_them() {
        assert!(Limits::for_memory(14 << 20, 10_000).clients() >= 50);
        assert!(Limits::for_memory(64 << 20, 1000).connections > 1000 - 24);
        let shares = fill(Limits::for_memory(14 << 20, 10_000));
        assert!(shares[..50].iter().all(|&share| share >= 2 * MIN_CONNECTION_BUFFER_BYTES), "{shares:?}");
    }

    #[test]
    fn no_room_is_no_share() {
        let limits = Limits { connections: 2, buffer_bytes: MIN_CONNECTION_BUFFER_BYTES };
        assert_eq!(limits.share(0, 0), Some(MIN_CONNECTION_BUFFER_BYTES));
        assert_eq!(limits.share(1, MIN_CONNECTION_BUFFER_BYTES), None);
        assert_eq!(limits.share(2, 0), None);
    }
}
