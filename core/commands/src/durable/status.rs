//! What `INFO persistence` tells of the log.

use super::Durable;

/// How saving has gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// How long the last compaction took, in seconds; -1 before the first one.
    pub last_duration_s: i64,
    /// Whether the last one came to its end.
    pub last_succeeded: bool,
    /// How many came to their end, and how many have failed since.
    pub succeeded: u64,
    pub ended: u64,
    pub failures_in_a_row: u64,
}

impl Default for Status {
    fn default() -> Status {
        Status { last_duration_s: -1, last_succeeded: true, succeeded: 0, ended: 0, failures_in_a_row: 0 }
    }
}

impl Status {
    pub(super) fn failed(&mut self) {
        self.last_succeeded = false;
        self.failures_in_a_row += 1;
        self.ended += 1;
    }

    pub(super) fn succeeded(&mut self, took_s: u64) {
        (self.last_succeeded, self.failures_in_a_row) = (true, 0);
        self.succeeded += 1;
        self.ended += 1;
        self.last_duration_s = took_s as i64;
    }
}

/// What the log is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Bytes that it takes of the disk, and that it took after the last compaction.
    pub used_bytes: u64,
    pub base_bytes: u64,
    /// Bytes that it can have, and that effects can still take.
    pub size_bytes: u64,
    pub room_bytes: u64,
    /// Whether something is not on stable storage yet.
    pub is_behind: bool,
    /// What the device was made to do.
    pub flushes: u64,
    pub written_bytes: u64,
}

impl Durable {
    /// What the log is like, if there is one.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let log = self.log.as_ref()?;
        Some(Figures {
            used_bytes: log.used_bytes(),
            base_bytes: self.base_bytes,
            size_bytes: log.size_bytes(),
            room_bytes: log.room_bytes(),
            is_behind: log.durable() < log.appended(),
            flushes: log.counters().flushes,
            written_bytes: log.counters().written_bytes,
        })
    }
}
