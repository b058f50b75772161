//! What a connection sends, and when.

use super::{
    ETHERNET_SEGMENT_BYTES,
    connection::{Acknowledge, Connection, NEVER_NS, OWN_WINDOW_SCALE, Recovery, Resources, State},
    segment::{Flags, Segment, Timestamps},
    seq::Seq,
};
use crate::pool::{BLOCK_BYTES, FIRST_BLOCKS, Pool};

/// How long a SYN-SENT or SYN-RECEIVED connection waits for the next segment of its handshake. SYNs and SYN-ACKs leave
/// at 0, 1, 3, 7 and 15 seconds.
const HANDSHAKE_TIMEOUT_NS: u64 = 20_000_000_000;
/// How long a peer may leave something unanswered before it counts as dead: R2 of RFC 9293 §3.8.3, at least 100 seconds.
const UNANSWERED_TIMEOUT_NS: u64 = 120_000_000_000;
/// How long an acknowledgment waits for data to go with (RFC 9293 §3.8.6.3: less than 500 ms).
pub(super) const ACKNOWLEDGE_DELAY_NS: u64 = 40_000_000;
/// Keepalive probes that may go unanswered. The connection ends half an interval after the last.
const KEEPALIVE_PROBES: u8 = 2;

/// A segment to send: its header, and which bytes of the send queue go with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    pub segment: Segment,
    pub offset: usize,
    pub len: usize,
}

impl Connection {
    /// When [`on_timers`](Self::on_timers) has something to do.
    #[inline]
    pub fn deadline_ns(&self) -> u64 {
        match self.state {
            State::Closed => NEVER_NS,
            State::TimeWait => self.time_wait_until_ns.min(self.acknowledge_at_ns),
            State::SynSent | State::SynReceived => {
                self.retransmit_at_ns.min(self.opened_ns.saturating_add(HANDSHAKE_TIMEOUT_NS))
            }
            _ => {
                let dead_ns = self.unanswered_since_ns.saturating_add(UNANSWERED_TIMEOUT_NS);
                let timers_ns = self.retransmit_at_ns.min(self.acknowledge_at_ns).min(self.linger_until_ns);
                let timers_ns = timers_ns.min(self.probe.at_ns).min(self.look_at_ns);
                timers_ns.min(dead_ns).min(self.keepalive_at_ns())
            }
        }
    }

    /// When the next keepalive probe is due, or the peer dead for want of an answer to the last.
    #[inline]
    fn keepalive_at_ns(&self) -> u64 {
        // RFC 9293 §3.8.4: only where nothing is to be acknowledged.
        if self.keepalive_ns == 0 || self.una != self.nxt {
            return NEVER_NS;
        }
        match self.keepalives {
            0 => self.heard_ns.saturating_add(self.keepalive_ns),
            // Where time has stood still here, the peer has its time to answer all the same.
            KEEPALIVE_PROBES => self.asked_ns.saturating_add(self.keepalive_ns / 2),
            _ => self.asked_ns.saturating_add(self.keepalive_ns),
        }
    }

    /// Does what is due.
    pub fn on_timers(&mut self, resources: &mut Resources, now_ns: u64) {
        match self.state {
            State::Closed => return,
            State::TimeWait if self.time_wait_until_ns <= now_ns => {
                // Its application may have something left to read.
                self.state = State::Closed;
                return;
            }
            State::TimeWait => {}
            State::SynSent | State::SynReceived if self.opened_ns.saturating_add(HANDSHAKE_TIMEOUT_NS) <= now_ns => {
                return self.fail(&mut resources.pool);
            }
            _ if self.unanswered_since_ns.saturating_add(UNANSWERED_TIMEOUT_NS) <= now_ns => {
                return self.fail(&mut resources.pool);
            }
            _ if self.linger_until_ns <= now_ns => return self.abort(&mut resources.pool),
            _ => {}
        }
        if self.acknowledge_at_ns <= now_ns {
            self.acknowledge = Acknowledge::Now;
            self.acknowledge_at_ns = NEVER_NS;
        }
        if self.retransmit_at_ns <= now_ns {
            self.on_retransmission_timeout(resources);
        } else if self.probe.at_ns <= now_ns {
            self.probe.at_ns = NEVER_NS;
            self.probe.is_due = true;
        } else if self.look_at_ns <= now_ns {
            self.look_at_ns = NEVER_NS;
            self.find_losses(resources, now_ns);
        }
        if self.is_synchronized() && self.state != State::TimeWait && self.keepalive_at_ns() <= now_ns {
            if self.keepalives == KEEPALIVE_PROBES {
                return self.fail(&mut resources.pool);
            }
            self.keepalives += 1;
            self.keepalive_due = true;
            self.asked_ns = now_ns;
            // Others have more use of what it was told.
            self.rx.narrow(&mut resources.pool);
        }
    }

    /// RFC 6298 §5.4 to §5.6.
    fn on_retransmission_timeout(&mut self, resources: &mut Resources) {
        self.retransmit_at_ns = NEVER_NS;
        self.probe.timed_out();
        self.timed = None;
        if !self.is_synchronized() {
            self.handshake_due = true;
        } else if self.una == self.nxt {
            // Nothing is on its way because there is no window for it (RFC 9293 §3.8.6.1).
            self.probe_due = true;
        } else {
            resources.counters.timeouts += 1;
            if self.window > 0 {
                let is_first = !matches!(self.recovery, Recovery::Timeout(_));
                self.congestion.timed_out(self.segment_bytes, is_first);
            }
            if self.trip.backoff() > 0 || self.scoreboard.has(self.una) {
                // The peer may have thrown away what it had reported, or shows that it has (RFC 2018 §8).
                self.scoreboard.clear();
            }
            self.look_at_ns = NEVER_NS;
            if let Some(rack) = &mut self.rack {
                rack.forget_resent(self.una, &self.scoreboard);
            }
            self.recovery = Recovery::Timeout(self.nxt);
            self.lost_below = self.nxt;
            self.resent_to = self.una;
            self.duplicates = 0;
            self.resend_now = true;
        }
        self.trip.back_off();
    }

    /// How often timeouts have passed without a sign of the peer since.
    pub fn timeouts_in_a_row(&self) -> u32 {
        self.trip.backoff()
    }

    /// Whether the peer, of which nothing was heard for long, was asked whether it is there and has not answered yet.
    #[inline]
    pub fn awaits_sign_of_life(&self) -> bool {
        self.keepalives > 0
    }

    /// Most bytes of data in a segment on the wire.
    #[inline]
    pub fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Bytes that have not been sent yet.
    #[inline]
    pub fn unsent_bytes(&self) -> u32 {
        let end = self.end_of_data();
        if self.nxt.before(end) { end.since(self.nxt) } else { 0 }
    }

    /// The next segment to send, if there is one, with `most` bytes of data at the most: those of one segment, or a multiple
    /// of that where the device divides what is longer. It counts as sent.
    #[inline]
    pub fn next_segment(&mut self, most: u32, resources: &mut Resources, now_ns: u64) -> Option<Transmission> {
        if self.reset_due {
            self.reset_due = false;
            let flags = Flags::RST | Flags::ACK;
            return Some(self.transmission(self.acceptable_seq(), flags, (0, 0), &resources.pool, now_ns));
        }
        match self.state {
            State::Closed => return None,
            State::SynSent | State::SynReceived => {
                if self.handshake_due {
                    return Some(self.handshake(&resources.pool, now_ns));
                }
            }
            State::TimeWait => {}
            _ => {
                if self.duplicates_due > 0 {
                    self.duplicates_due -= 1;
                    return Some(self.bare(self.acceptable_seq(), &resources.pool, now_ns));
                }
                if self.probe.is_due
                    && let Some(probe) = self.loss_probe(resources, now_ns)
                {
                    return Some(probe);
                }
                let data = self.retransmission(resources, now_ns).or_else(|| self.fresh(most, &resources.pool, now_ns));
                if data.is_some() {
                    return data;
                }
                if core::mem::take(&mut self.keepalive_due) {
                    self.asked_ns = now_ns;
                    // RFC 9293 §3.8.4: a number that the peer has acknowledged makes it answer.
                    return Some(self.bare(self.nxt - 1, &resources.pool, now_ns));
                }
            }
        }
        (self.acknowledge == Acknowledge::Now).then(|| self.bare(self.acceptable_seq(), &resources.pool, now_ns))
    }

    /// Whether [`next_segment`](Self::next_segment) may have another one, after it has had one.
    #[inline]
    pub fn may_have_more(&self) -> bool {
        self.nxt != self.end_of_data()
            || self.finishing
            || self.resent_to != self.lost_below
            || self.rack.is_some()
            || self.duplicates_due > 0
            || self.probe.is_due
            || self.keepalive_due
            || self.handshake_due
            || self.reset_due
            || self.acknowledge == Acknowledge::Now
    }

    /// The number of a segment without data. A probe may lie beyond the peer's window: what came behind it would not be
    /// acceptable to the peer, acknowledgment and window and all, until it has room again (RFC 9293 §3.10.7.4).
    #[inline]
    fn acceptable_seq(&self) -> Seq {
        if self.is_probing || self.is_beyond_window() { self.una + self.window } else { self.nxt }
    }

    /// Whether the peer has less room by now than it had told of. By less than a step of its scale that seems so where it
    /// has not (RFC 7323 §2.4).
    #[inline]
    pub(super) fn is_beyond_window(&self) -> bool {
        let beyond = self.nxt.since(self.una + self.window) as i32;
        beyond >= 1 << self.window_scale
    }

    /// An acknowledgment and nothing else.
    fn bare(&mut self, seq: Seq, pool: &Pool, now_ns: u64) -> Transmission {
        self.transmission(seq, Flags::ACK, (0, 0), pool, now_ns)
    }

    /// The SYN-ACK of a connection that is forgotten once it is sent, or that its answer has brought back.
    pub fn answer_once(&mut self, pool: &Pool, now_ns: u64) -> Segment {
        let transmission = self.handshake(pool, now_ns);
        // What nobody remembers to have sent tells nothing of round trips.
        self.timed = None;
        transmission.segment
    }

    /// SYN or SYN-ACK.
    fn handshake(&mut self, pool: &Pool, now_ns: u64) -> Transmission {
        self.handshake_due = false;
        let is_answer = self.state == State::SynReceived;
        let flags = if is_answer { Flags::SYN | Flags::ACK } else { Flags::SYN };
        let mut transmission = self.transmission(self.iss, flags, (0, 0), pool, now_ns);
        let segment = &mut transmission.segment;
        segment.max_segment_size = Some(self.own_segment_bytes);
        // What the peer's SYN did not offer must not be in the answer (RFC 7323 §2.2 and §3.2, RFC 2018 §2).
        segment.sack_permitted = !is_answer || self.sack;
        segment.window_scale = (!is_answer || self.rcv_scale > 0).then_some(OWN_WINDOW_SCALE);
        if !is_answer {
            segment.ack = Seq(0);
            segment.timestamps = Some(Timestamps { value: self.timestamp(now_ns), echo: 0 });
        }
        if self.nxt == self.iss {
            self.nxt = self.iss + 1;
            self.timed = Some((self.nxt, now_ns));
        }
        self.arm(now_ns);
        transmission
    }

    /// Bytes that are taken to be in the network (RFC 6675 §4, `SetPipe`).
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        let on_their_way = self.nxt.since(self.una) - self.scoreboard.bytes();
        if !self.resent_to.before(self.lost_below) && self.duplicates == 0 && self.rack.is_none() {
            return on_their_way;
        }
        let (from, to) = (self.resent_to.max(self.una), self.lost_below);
        let lost = match &self.rack {
            Some(rack) => rack.lost_bytes() + rack.unsent_bytes(&self.scoreboard, from, to),
            None => self.scoreboard.missing(from, to),
        };
        // Without SACK, each duplicate acknowledgment stands for a segment that has arrived (RFC 6582 §3.2).
        let arrived = if self.sack { 0 } else { self.duplicates.saturating_mul(self.segment_bytes) };
        on_their_way.saturating_sub(lost).saturating_sub(arrived)
    }

    /// Whether the congestion window has room for so many bytes more.
    #[inline]
    fn may_send(&mut self, len: u32) -> bool {
        let pipe = self.pipe();
        let may = pipe == 0 || pipe + len <= self.congestion.window();
        if !may {
            self.congestion.note_limit();
        }
        may
    }

    /// As many of `len` bytes as the congestion window has room for, in whole segments unless they are all there is.
    fn whole_segments(&mut self, len: u32, unsent: u32) -> u32 {
        let room = self.congestion.window().saturating_sub(self.pipe());
        if len <= room && len == unsent {
            return len;
        }
        (len.min(room) / self.segment_bytes).max(1) * self.segment_bytes
    }

    /// The next lost segment.
    #[inline]
    fn retransmission(&mut self, resources: &mut Resources, now_ns: u64) -> Option<Transmission> {
        let lost_again = self.rack.as_ref().and_then(|rack| rack.next_lost(self.una, &self.scoreboard));
        if let Some((index, (from, to))) = lost_again {
            return self.resend(from, to, resources, now_ns, |connection, end| {
                if let Some(rack) = &mut connection.rack {
                    rack.take_lost(index, connection.una, &connection.scoreboard, end);
                }
            });
        }
        if !self.resent_to.before(self.lost_below) {
            return None;
        }
        let (from, to) = (self.resent_to.max(self.una), self.lost_below);
        let next = match &self.rack {
            Some(rack) => rack.next_unsent(&self.scoreboard, from, to),
            None => self.scoreboard.next_hole(from, to),
        };
        let Some((from, to)) = next else {
            self.resent_to = self.lost_below;
            return None;
        };
        self.resend(from, to, resources, now_ns, |connection, end| connection.resent_to = end)
    }

    /// Sends a segment of what is lost again, if it may be sent now: `note` is told of its end.
    fn resend(
        &mut self,
        from: Seq,
        to: Seq,
        resources: &mut Resources,
        now_ns: u64,
        note: impl FnOnce(&mut Connection, Seq),
    ) -> Option<Transmission> {
        let len = to.since(from).min(self.segment_bytes);
        if !core::mem::take(&mut self.resend_now) && !self.may_send(len) {
            return None;
        }
        note(self, from + len);
        Some(self.again(from, len, resources, now_ns))
    }

    /// A segment of what was sent before.
    pub(super) fn again(&mut self, from: Seq, len: u32, resources: &mut Resources, now_ns: u64) -> Transmission {
        resources.counters.retransmissions += 1;
        // An acknowledgment would not tell which of both it is for (RFC 6298 §3).
        self.timed = None;
        if let Some(rack) = &mut self.rack {
            rack.note_resent(from, from + len, self.nxt.since(self.una), now_ns);
        }
        self.data(from, len, &resources.pool, now_ns)
    }

    /// Most bytes of data in a segment now: of large ones, so many that several fit into the send buffer and into the
    /// peer's window. The peer acknowledges every second one of them (RFC 5681 §4.2), and others are on their way then.
    #[inline]
    fn useful_segment_bytes(&self, unsent: u32, pool: &Pool) -> u32 {
        const SEGMENTS: u32 = 4;
        if self.segment_bytes.min(unsent) <= ETHERNET_SEGMENT_BYTES {
            return self.segment_bytes;
        }
        let capacity = self.send_capacity(pool) as u32;
        self.segment_bytes.min((capacity.min(self.max_window) / SEGMENTS).max(ETHERNET_SEGMENT_BYTES))
    }

    /// The next segment that was not sent before.
    #[inline]
    pub(super) fn fresh(&mut self, most: u32, pool: &Pool, now_ns: u64) -> Option<Transmission> {
        if self.has_sent_fin() {
            return None;
        }
        let unsent = self.end_of_data().since(self.nxt);
        if unsent == 0 && !self.finishing {
            return None;
        }
        let right = self.una + self.window;
        let usable = if self.nxt.before(right) { right.since(self.nxt) } else { 0 };
        let segment_bytes = self.useful_segment_bytes(unsent, pool);
        let most = if segment_bytes < self.segment_bytes { segment_bytes } else { most };
        let mut len = unsent.min(most).min(usable);
        // RFC 9293 §3.8.6.2.1: no small segments because of a small window, but for the last. Nothing is held back
        // because of segments on their way (Nagle), as replies have somebody waiting for them.
        let is_silly = len < unsent && len < segment_bytes && (len == 0 || len < self.max_window / 2);
        if is_silly {
            if self.una != self.nxt {
                return None;
            }
            // As no acknowledgment will come, what fills a frame elsewhere does not wait for more.
            if !core::mem::take(&mut self.probe_due) && len < ETHERNET_SEGMENT_BYTES {
                self.arm(now_ns);
                return None;
            }
            // RFC 9293 §3.8.6.1: a byte beyond the window makes the peer tell it.
            self.is_probing = len == 0;
            len = len.max(1);
        }
        if len > self.segment_bytes {
            len = self.whole_segments(len, unsent);
        }
        if !self.probe.is_due && !self.may_send(len) {
            return None;
        }
        if self.una == self.nxt && now_ns.saturating_sub(self.sent_ns) > self.trip.timeout_ns() {
            self.congestion.restart(self.segment_bytes);
        }
        let from = self.nxt;
        // The FIN goes with the last data, and needs no window of its own.
        let fin = u32::from(self.finishing && len == unsent);
        self.nxt += len + fin;
        if let Some(rack) = &mut self.rack {
            rack.note_fresh(self.nxt, self.trip.smoothed_ns(), now_ns);
        }
        if self.timed.is_none() {
            self.timed = Some((self.nxt, now_ns));
        }
        Some(self.data(from, len + fin, pool, now_ns))
    }

    /// A segment of so much of the sequence space, which may end with the FIN.
    #[inline]
    pub(super) fn data(&mut self, from: Seq, len: u32, pool: &Pool, now_ns: u64) -> Transmission {
        self.arm(now_ns);
        self.schedule_probe(now_ns);
        self.sent_ns = now_ns;
        let offset = from.since(self.tx_base) as usize;
        let bytes = (self.tx.len() - offset).min(len as usize);
        let mut flags = Flags::ACK;
        if bytes > 0 && offset + bytes == self.tx.len() {
            flags = flags | Flags::PSH;
        }
        if bytes < len as usize {
            flags = flags | Flags::FIN;
        }
        self.transmission(from, flags, (offset, bytes), pool, now_ns)
    }

    /// Starts the retransmission timer unless it runs (RFC 6298 §5.1).
    #[inline]
    fn arm(&mut self, now_ns: u64) {
        if self.retransmit_at_ns == NEVER_NS {
            self.retransmit_at_ns = now_ns.saturating_add(self.trip.timeout_ns());
        }
        if self.unanswered_since_ns == NEVER_NS && self.una != self.nxt {
            self.unanswered_since_ns = now_ns;
        }
    }

    /// A segment with everything that each has, which acknowledges what has arrived.
    #[inline]
    fn transmission(
        &mut self,
        seq: Seq,
        flags: Flags,
        (offset, len): (usize, usize),
        pool: &Pool,
        now_ns: u64,
    ) -> Transmission {
        let window = self.advertise(flags, pool);
        let mut segment = Segment {
            source_port: self.flow.local_port,
            destination_port: self.flow.remote_port,
            seq,
            ack: self.rcv_nxt,
            flags,
            window,
            ..Segment::default()
        };
        if let Some(clock) = &self.peer_clock {
            segment.timestamps = Some(Timestamps { value: self.timestamp(now_ns), echo: clock.recent });
        }
        let is_answer = len == 0 && !flags.has(Flags::SYN) && !flags.has(Flags::RST);
        if is_answer && self.sack && (self.rx.has_runs() || self.twice.is_some()) {
            let room = if segment.timestamps.is_some() { 3 } else { 4 };
            segment.sack = self.rx.sack_blocks(self.twice, room);
        }
        self.twice = None;
        if flags.has(Flags::ACK) {
            self.acknowledge = Acknowledge::No;
            self.acknowledge_at_ns = NEVER_NS;
            self.acknowledged = self.rcv_nxt;
        }
        Transmission { segment, offset, len }
    }

    /// The clock of RFC 7323 §5.4, in milliseconds.
    #[inline]
    pub(super) fn timestamp(&self, now_ns: u64) -> u32 {
        self.timestamp_offset.wrapping_add((now_ns / 1_000_000) as u32)
    }

    /// Where the right edge of the receive window may be now.
    #[inline]
    fn possible_right(&self, pool: &Pool) -> (Seq, u32) {
        let capacity = self.rx.allowance(pool) * BLOCK_BYTES;
        let most = if self.rcv_scale > 0 { usize::MAX } else { usize::from(u16::MAX) };
        let space = capacity.saturating_sub(self.rx.len()).min(most);
        (self.rcv_nxt + space as u32, capacity as u32)
    }

    /// How far the window opens before it is told: not by a few bytes (RFC 9293 §3.8.6.2.2).
    #[inline]
    fn worthwhile(capacity: u32) -> u32 {
        (capacity / 2).min(ETHERNET_SEGMENT_BYTES)
    }

    /// Whether the peer knows of so much room that what there may be beyond it is not worth telling, whatever the pool has.
    #[inline]
    fn is_told_enough(&self) -> bool {
        const { assert!(FIRST_BLOCKS * BLOCK_BYTES > 2 * u16::MAX as usize + ETHERNET_SEGMENT_BYTES as usize) };
        self.rcv_right.since(self.rcv_nxt) + ETHERNET_SEGMENT_BYTES > self.rx.most_bytes()
    }

    /// The window field of the next segment. The right edge never moves to the left.
    #[inline]
    fn advertise(&mut self, flags: Flags, pool: &Pool) -> u16 {
        if !self.is_told_enough() {
            let (right, capacity) = self.possible_right(pool);
            if right.after(self.rcv_right) && right.since(self.rcv_right) >= Self::worthwhile(capacity) {
                self.rcv_right = right;
            }
        }
        let window = self.rcv_right.since(self.rcv_nxt);
        if flags.has(Flags::SYN) {
            let told = window.min(u32::from(u16::MAX));
            self.rcv_right = self.rcv_nxt + told;
            return told as u16;
        }
        (window >> self.rcv_scale).min(u32::from(u16::MAX)) as u16
    }

    /// Tells the peer of its window if it has become so much larger that the peer should know at once.
    #[inline]
    pub(super) fn offer_window(&mut self, pool: &Pool) {
        if !self.is_synchronized() || self.end_received || self.is_told_enough() {
            return;
        }
        let (right, capacity) = self.possible_right(pool);
        let told = self.rcv_right.since(self.rcv_nxt);
        if right.after(self.rcv_right) {
            let opened = right.since(self.rcv_right);
            // Where the peer has room left, this can wait for data to go with.
            if told < 2 * u32::from(self.own_segment_bytes) && opened >= Self::worthwhile(capacity)
                || opened >= capacity / 2
            {
                self.acknowledge = Acknowledge::Now;
            }
        }
    }
}
