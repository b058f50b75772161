//! What has happened so far.

/// Counts since the start. They go up only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken from the device.
    pub frames_received: u64,
    /// TCP segments for this station.
    pub segments_received: u64,
    /// TCP segments sent, retransmissions among them.
    pub segments_sent: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Retransmission timers that ran out.
    pub timeouts: u64,
    /// Losses that were found by what arrived behind them.
    pub fast_recoveries: u64,
    /// Connections that peers opened.
    pub accepted: u64,
    /// Connections that this station opened.
    pub opened: u64,
    /// Resets sent to those who have no connection.
    pub resets_sent: u64,
    /// Packets dropped because their checksum was wrong.
    pub dropped_checksum: u64,
    /// Packets dropped because their headers make no sense, or are of no use here.
    pub dropped_malformed: u64,
    /// Segments outside of the window, old ones among them.
    pub dropped_out_of_window: u64,
    /// SYNs dropped or refused because there was no room.
    pub dropped_syns: u64,
    /// Segments whose data was dropped in part or whole, because there was no memory for it.
    pub dropped_memory: u64,
    /// Answers that were not sent because there were too many of their kind.
    pub dropped_rate_limit: u64,
}
