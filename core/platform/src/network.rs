//! What a network stack of our own counts.

use crate::figures::figures;

figures! {
    /// What a network stack of our own and its device have done since the start, and what they hold now.
    NetworkFigures {
        /// Turns in which frames arrived.
        turns: Counter,
        /// Nanoseconds that these turns took.
        turns_ns: Counter,
        /// Of these, nanoseconds until the host had been told of frames to send, and its rest where it has one.
        notifying_ns: Counter,
        /// Frequency of the processor's cycle counter, in which guests count what a request takes.
        cycles_hz: Gauge,
        /// Frames taken from the device.
        frames_received: Counter,
        /// Frames given to the device.
        frames_sent: Counter,
        /// Times that the device was told of frames or free buffers.
        notifications: Counter,
        /// TCP segments for this station; those that the device has merged count as one.
        segments_received: Counter,
        /// TCP segments sent, retransmissions among them; one that the device divides counts as one.
        segments_sent: Counter,
        /// UDP datagrams for the services of this station.
        datagrams_received: Counter,
        /// UDP datagrams sent.
        datagrams_sent: Counter,
        /// Segments sent again.
        retransmissions: Counter,
        /// Retransmission timers that ran out.
        timeouts: Counter,
        /// Segments sent to learn whether the last ones are lost.
        loss_probes: Counter,
        /// Losses that were found by what arrived behind them.
        fast_recoveries: Counter,
        /// Connections that peers opened.
        accepted: Counter,
        /// Connections that this station opened.
        opened: Counter,
        /// Resets sent to those who have no connection.
        resets_sent: Counter,
        /// Packets dropped because their checksum was wrong.
        dropped_checksum: Counter,
        /// Packets dropped because their headers make no sense, or are of no use here.
        dropped_malformed: Counter,
        /// Segments outside of the window, old ones among them.
        dropped_out_of_window: Counter,
        /// SYNs dropped or refused because there was no room.
        dropped_syns: Counter,
        /// Half-open connections given up for others.
        dropped_half_open: Counter,
        /// Connections that were reset because their peers read nothing while there was no memory left.
        slow_readers_reset: Counter,
        /// SYNs that were answered without keeping anything, because of a flood.
        cookies_sent: Counter,
        /// Connections that began with such an answer.
        cookies_accepted: Counter,
        /// Segments whose data was dropped in part or whole, because there was no memory for it, or given up again for others.
        dropped_memory: Counter,
        /// Answers that were not sent because there were too many of their kind.
        dropped_rate_limit: Counter,
        /// Connections in whatever state.
        connections: Gauge,
        /// Connections whose handshake is not complete.
        half_open: Gauge,
        /// Bytes that all connections' buffers take.
        buffer_bytes: Gauge,
        /// Bytes that they may take.
        buffer_limit_bytes: Gauge,
        /// Whether the device computes checksums of what is sent.
        offload_checksum: Gauge,
        /// Bytes of the largest frame that the device divides into segments, or 0.
        offload_segmentation: Gauge,
        /// Whether the device may merge segments that it has received.
        offload_merging: Gauge,
    }
}
