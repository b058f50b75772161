//! What arriving segments do (RFC 9293 §3.10.7).

use super::{
    ETHERNET_SEGMENT_BYTES,
    connection::{Acknowledge, Connection, LINGER_NS, NEVER_NS, Owner, PeerClock, Recovery, Resources, State},
    output::ACKNOWLEDGE_DELAY_NS,
    rack::Rack,
    scoreboard::DUPLICATE_THRESHOLD,
    segment::{Flags, Segment},
    seq::Seq,
};
use crate::pool::{BLOCK_BYTES, MAX_BLOCKS};

/// TIME-WAIT lasts two maximum segment lifetimes (RFC 9293 §3.4.2) of 30 seconds each, as everybody has them.
const TIME_WAIT_NS: u64 = 60_000_000_000;
/// Answers to segments that are not acceptable and carry nothing, on one connection: RFC 5961 §7 wants a limit.
const CHALLENGE_INTERVAL_NS: u64 = 500_000_000;
/// How long a timestamp is good for comparison (RFC 7323 §5.5).
const TIMESTAMP_LIFETIME_NS: u64 = 24 * 86_400 * 1_000_000_000;
/// Duplicate acknowledgments sent in one turn: enough for any sender to see the loss.
const MAX_DUPLICATES_DUE: u8 = 3;

/// What has come twice is told of as long as it is no older than the largest window.
const OLD_BYTES_MAX: u32 = (MAX_BLOCKS * BLOCK_BYTES) as u32;

/// What came of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Taken,
    /// It belongs to no connection, and whoever sent it should know: answer with a reset.
    Reset,
}

/// Whether a segment is within the window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Acceptable {
    Yes,
    No,
    /// Only what it acknowledges is, as the window is closed (RFC 9293 §3.10.7.4).
    AcknowledgmentOnly,
}

impl Connection {
    /// Takes a segment that the device has merged of several: the data that follows the first piece is in `rest`, so many
    /// bytes of it. Each piece is taken as a segment of its own.
    pub fn on_merged(
        &mut self,
        segment: Segment,
        first: &[u8],
        (rest, mut rest_bytes): (&[&[u8]], usize),
        resources: &mut Resources,
        take: &mut impl FnMut(&[u8]) -> usize,
        now_ns: u64,
    ) -> Verdict {
        let mut part = Segment { flags: segment.flags.without(Flags::FIN), ..segment };
        let mut verdict = self.on_segment(&part, first, resources, take, now_ns);
        part.seq += first.len() as u32;
        for piece in rest {
            let bytes = &piece[..piece.len().min(rest_bytes)];
            rest_bytes -= bytes.len();
            if bytes.is_empty() || verdict == Verdict::Reset {
                break;
            }
            if rest_bytes == 0 {
                part.flags = segment.flags;
            }
            verdict = self.on_segment(&part, bytes, resources, take, now_ns);
            part.seq += bytes.len() as u32;
        }
        verdict
    }

    /// Takes a segment of this connection. Data that comes as it is read is offered to `take` first.
    #[inline]
    pub fn on_segment(
        &mut self,
        segment: &Segment,
        payload: &[u8],
        resources: &mut Resources,
        take: &mut impl FnMut(&[u8]) -> usize,
        now_ns: u64,
    ) -> Verdict {
        match self.state {
            State::Closed => return Verdict::Reset,
            State::SynSent => return self.on_segment_in_syn_sent(segment, resources, now_ns),
            _ => {}
        }
        if self.state == State::SynReceived && segment.flags.has(Flags::SYN) && segment.seq + 1 == self.rcv_nxt {
            if !segment.flags.has(Flags::ACK) {
                // The SYN-ACK was lost, or the SYN came twice.
                self.handshake_due = true;
                return Verdict::Taken;
            }
            // Both sides have opened (RFC 9293 §3.5, figure 7): what is new is the acknowledgment.
            let behind = Segment { seq: segment.seq + 1, flags: segment.flags.without(Flags::SYN), ..*segment };
            // The window of a SYN is never scaled (RFC 7323 §2.2).
            let window_scale = core::mem::take(&mut self.window_scale);
            let verdict = self.on_segment(&behind, payload, resources, take, now_ns);
            self.window_scale = window_scale;
            return verdict;
        }
        let acceptable = match self.is_current(segment, now_ns) {
            true => self.is_acceptable(segment, payload.len()),
            false => Acceptable::No,
        };
        if acceptable == Acceptable::No {
            resources.counters.dropped_out_of_window += 1;
            self.answer_unacceptable(segment, payload, now_ns);
            return Verdict::Taken;
        }
        if segment.flags.has(Flags::RST) {
            self.on_reset(segment, resources, now_ns);
            return Verdict::Taken;
        }
        if segment.flags.has(Flags::SYN) {
            // RFC 5961 §4: a peer that has really begun anew answers this with a reset that is in order.
            self.challenge(now_ns);
            return Verdict::Taken;
        }
        if !segment.flags.has(Flags::ACK) {
            return Verdict::Taken;
        }
        if self.state == State::SynReceived {
            if !segment.ack.after(self.una) || segment.ack.after(self.nxt) {
                return Verdict::Reset;
            }
            self.establish(resources, now_ns);
        } else if segment.ack.after(self.nxt) || segment.ack.before(self.una - self.max_window) {
            // RFC 5961 §5.
            self.challenge(now_ns);
            return Verdict::Taken;
        }
        self.heard_ns = now_ns;
        self.keepalives = 0;
        let next;
        let segment = match acceptable {
            Acceptable::AcknowledgmentOnly => {
                // What comes next is no older than a byte that was not taken.
                next = Segment { seq: self.rcv_nxt, ..*segment };
                &next
            }
            _ => segment,
        };
        self.note_timestamp(segment, now_ns);
        self.on_acknowledgment(segment, payload.len(), resources, now_ns);
        if acceptable == Acceptable::AcknowledgmentOnly {
            // Two sides that have closed their windows would answer each other's answers for ever.
            if segment.sequence_len(payload.len()) > 0 {
                self.acknowledge = Acknowledge::Now;
            }
        } else {
            self.on_data(segment, payload, resources, take, now_ns);
        }
        Verdict::Taken
    }

    /// RFC 9293 §3.10.7.3.
    fn on_segment_in_syn_sent(&mut self, segment: &Segment, resources: &mut Resources, now_ns: u64) -> Verdict {
        let has_ack = segment.flags.has(Flags::ACK);
        // Before the SYN has left, nothing can acknowledge it.
        let acknowledges = has_ack && segment.ack.after(self.iss) && !segment.ack.after(self.nxt);
        if has_ack && !acknowledges {
            return Verdict::Reset;
        }
        if segment.flags.has(Flags::RST) {
            if acknowledges {
                self.fail(&mut resources.pool);
            }
            return Verdict::Taken;
        }
        if !segment.flags.has(Flags::SYN) {
            return Verdict::Taken;
        }
        self.heard_ns = now_ns;
        self.take_syn(segment, now_ns);
        if acknowledges {
            self.establish(resources, now_ns);
            self.una = segment.ack;
            self.window_ack = segment.ack;
            self.acknowledge = Acknowledge::Now;
        } else {
            self.state = State::SynReceived;
            self.handshake_due = true;
        }
        Verdict::Taken
    }

    /// The peer has acknowledged the SYN.
    fn establish(&mut self, resources: &mut Resources, now_ns: u64) {
        self.state = State::Established;
        if self.owner == Owner::Handshake {
            resources.counters.accepted += 1;
        }
        if self.trip.backoff() > 0 {
            // RFC 6298 §5.7 and RFC 5681 §3.1: the network is slow or loses.
            self.trip.handshake_was_retransmitted();
            self.congestion.timed_out(self.segment_bytes, false);
        } else if let Some((_, sent_ns)) = self.timed {
            self.trip.sample(now_ns.saturating_sub(sent_ns));
        }
        self.timed = None;
        self.retransmit_at_ns = NEVER_NS;
        self.unanswered_since_ns = NEVER_NS;
        self.una = self.iss + 1;
        self.lost_below = self.una;
        self.resent_to = self.una;
        if self.finishing {
            self.state = State::FinWait1;
        }
    }

    /// Protection against wrapped sequence numbers (RFC 7323 §5.3, R1).
    #[inline]
    fn is_current(&self, segment: &Segment, now_ns: u64) -> bool {
        let Some(PeerClock { recent, recent_ns }) = self.peer_clock else { return true };
        if segment.flags.has(Flags::RST) {
            return true;
        }
        match segment.timestamps {
            Some(timestamps) => {
                let is_older = (timestamps.value.wrapping_sub(recent) as i32) < 0;
                !is_older || now_ns.saturating_sub(recent_ns) > TIMESTAMP_LIFETIME_NS
            }
            // RFC 7323 §3.2.
            None => false,
        }
    }

    /// RFC 7323 §4.3.
    #[inline]
    fn note_timestamp(&mut self, segment: &Segment, now_ns: u64) {
        if let (Some(clock), Some(timestamps)) = (&mut self.peer_clock, segment.timestamps)
            && !segment.seq.after(self.acknowledged)
        {
            *clock = PeerClock { recent: timestamps.value, recent_ns: now_ns };
        }
    }

    /// RFC 9293 §3.10.7.4, first step.
    #[inline]
    fn is_acceptable(&self, segment: &Segment, payload_bytes: usize) -> Acceptable {
        let len = segment.sequence_len(payload_bytes);
        let (next, right) = (self.rcv_nxt, self.rcv_right);
        let yes = if len == 0 {
            // At the right edge is where a sender stands that has used its window up.
            !segment.seq.before(next) && !segment.seq.after(right)
        } else {
            let last = segment.seq + (len - 1);
            segment.seq.within(next, right) || last.within(next, right)
        };
        match yes {
            true => Acceptable::Yes,
            // Some number what they acknowledge behind the byte with which they have probed.
            false if next == right && segment.seq.since(next) <= 1 => Acceptable::AcknowledgmentOnly,
            false => Acceptable::No,
        }
    }

    /// Tells the sender of a segment that is not acceptable what would be.
    fn answer_unacceptable(&mut self, segment: &Segment, payload: &[u8], now_ns: u64) {
        if segment.flags.has(Flags::RST) {
            return;
        }
        if self.state == State::TimeWait && segment.flags.has(Flags::FIN) {
            self.time_wait_until_ns = now_ns.saturating_add(TIME_WAIT_NS);
        }
        if payload.is_empty() && !segment.flags.has(Flags::FIN) {
            // Two sides that find each other's empty segments wrong would answer each other for ever.
            self.challenge(now_ns);
        } else {
            let end = segment.seq + payload.len() as u32;
            // RFC 2883 §4: what is old, and not so old that it is from another time.
            if !end.after(self.rcv_nxt) && self.rcv_nxt.since(segment.seq) <= OLD_BYTES_MAX && !payload.is_empty() {
                self.twice = Some((segment.seq, end));
            }
            self.acknowledge = Acknowledge::Now;
        }
    }

    /// A challenge ACK (RFC 5961 §3.2, §4.2, §5.2), not too often (§7).
    fn challenge(&mut self, now_ns: u64) {
        if self.challenged_ns == 0 || now_ns.saturating_sub(self.challenged_ns) >= CHALLENGE_INTERVAL_NS {
            self.challenged_ns = now_ns.max(1);
            self.acknowledge = Acknowledge::Now;
        }
    }

    /// RFC 5961 §3.2: a reset counts only if it is exactly in order.
    fn on_reset(&mut self, segment: &Segment, resources: &mut Resources, now_ns: u64) {
        if self.state == State::TimeWait {
            // RFC 1337 §3: it would end the wait that keeps old segments out.
        } else if segment.seq == self.rcv_nxt {
            self.fail(&mut resources.pool);
        } else {
            self.challenge(now_ns);
        }
    }

    /// RFC 9293 §3.10.7.4, fifth step, with RFC 5681 §3.2, RFC 6582 and RFC 6675 §5.
    #[inline]
    fn on_acknowledgment(&mut self, segment: &Segment, payload_bytes: usize, resources: &mut Resources, now_ns: u64) {
        let reports = segment.sack.as_slice();
        let has_reports = self.sack && !reports.is_empty();
        let is_reported = has_reports && self.scoreboard.add(reports, self.una.max(segment.ack), self.nxt);
        let window = u32::from(segment.window) << self.window_scale;
        self.note_probe_answer(segment);
        if has_reports {
            self.take_reports(segment);
        }
        if segment.ack.after(self.una) {
            self.advance(segment, resources, now_ns);
        } else if segment.ack == self.una && self.una != self.nxt {
            let repeats = payload_bytes == 0 && window == self.window && !segment.flags.has(Flags::FIN);
            if if self.sack { is_reported } else { repeats } {
                self.duplicates += 1;
            }
            if self.window == 0 {
                // It is there, and has no room (RFC 9293 §3.8.6.1).
                self.unanswered_since_ns = now_ns;
            }
        }
        self.update_window(segment, window);
        if let Some(rack) = &mut self.rack {
            self.reordering.is_seen |= rack.note_delivered(self.una, &self.scoreboard, &self.trip, now_ns);
        }
        if self.una != self.nxt {
            self.find_losses(resources, now_ns);
        } else {
            self.look_at_ns = NEVER_NS;
            self.rack = None;
        }
    }

    /// Begins to look at when things are sent if there is a hole, and takes in what came twice (RFC 2883 §4).
    #[cold]
    #[inline(never)]
    fn take_reports(&mut self, segment: &Segment) {
        if self.rack.is_none() && self.scoreboard.bytes() > 0 {
            self.rack = Rack::new(self.una, self.nxt, self.sent_ns);
        }
        let twice = match *segment.sack.as_slice() {
            [(_, to), ..] if !to.after(segment.ack) => true,
            [(from, to), (outer_from, outer_to), ..] => !from.before(outer_from) && !to.after(outer_to),
            _ => false,
        };
        if twice {
            self.reordering.widen(self.una, self.nxt);
        }
    }

    /// The peer has more than before.
    #[inline]
    fn advance(&mut self, segment: &Segment, resources: &mut Resources, now_ns: u64) {
        let acknowledged = segment.ack.since(self.una);
        if segment.ack.after(self.tx_base) {
            let count = (segment.ack.since(self.tx_base) as usize).min(self.tx.len());
            self.tx.drop_front(count, &mut resources.pool);
            self.tx_base += count as u32;
        }
        self.una = segment.ack;
        self.resent_to = self.resent_to.max(self.una);
        self.lost_below = self.lost_below.max(self.una);
        self.scoreboard.acknowledge(self.una);
        if core::mem::take(&mut self.is_probing) {
            // What was acknowledged beside the probe was old to a peer that had taken it.
            self.acknowledge = Acknowledge::Now;
        }
        if let Some((seq, sent_ns)) = self.timed
            && !self.una.before(seq)
        {
            self.timed = None;
            let sample_ns = now_ns.saturating_sub(sent_ns);
            self.trip.sample(sample_ns);
            self.congestion.note_round_trip(sample_ns);
        } else if let (Some(timestamps), true) = (segment.timestamps, self.trip.backoff() > 0) {
            let elapsed_ms = self.timestamp(now_ns).wrapping_sub(timestamps.echo);
            self.trip.sample_ambiguous(u64::from(elapsed_ms.clamp(1, 60_000)) * 1_000_000);
        }
        self.recover(acknowledged, now_ns);
        // RFC 6298 §5.2 and §5.3.
        let is_waiting = self.una != self.nxt;
        self.retransmit_at_ns = if is_waiting { now_ns.saturating_add(self.trip.timeout_ns()) } else { NEVER_NS };
        self.unanswered_since_ns = if is_waiting { now_ns } else { NEVER_NS };
        self.schedule_probe(now_ns);
        if self.owner == Owner::Nobody {
            self.linger_until_ns = now_ns.saturating_add(LINGER_NS).min(self.linger_end_ns);
        }
        if self.finishing && self.una.after(self.end_of_data()) {
            self.on_fin_acknowledged(resources, now_ns);
        }
    }

    #[inline]
    fn recover(&mut self, acknowledged: u32, now_ns: u64) {
        let round_trip_ns = self.trip.smoothed_ns();
        match self.recovery {
            Recovery::Open => {
                self.duplicates = 0;
                self.congestion.acknowledged(acknowledged, self.segment_bytes, round_trip_ns, now_ns);
            }
            Recovery::Fast(end) | Recovery::Timeout(end) if !self.una.before(end) => {
                self.recovery = Recovery::Open;
                self.duplicates = 0;
                self.lost_below = self.una;
                self.resent_to = self.una;
                self.reordering.recovered();
            }
            Recovery::Fast(_) if self.sack => {}
            Recovery::Fast(_) => {
                // RFC 6582 §3.2, step 3: the next segment is lost as well.
                self.duplicates = self.duplicates.saturating_sub(acknowledged / self.segment_bytes);
                self.resent_to = self.una;
                self.lost_below = (self.una + self.segment_bytes).min(self.nxt);
                self.resend_now = true;
            }
            Recovery::Timeout(_) => {
                self.congestion.note_limit();
                self.congestion.acknowledged(acknowledged, self.segment_bytes, round_trip_ns, now_ns);
            }
        }
    }

    /// RFC 9293 §3.10.7.4: only what is not older than what the window is known from.
    #[inline]
    fn update_window(&mut self, segment: &Segment, window: u32) {
        let is_newer = self.window_seq.before(segment.seq)
            || self.window_seq == segment.seq && !segment.ack.before(self.window_ack);
        if segment.ack.before(self.una) || !is_newer {
            return;
        }
        let opens = window > self.window;
        let may_be_dropped = self.window == 0 || self.is_beyond_window();
        self.window = window;
        self.max_window = self.max_window.max(window);
        self.window_seq = segment.seq;
        self.window_ack = segment.ack;
        if !opens {
            return;
        }
        if self.una == self.nxt {
            // Whatever waited for the window can go now.
            self.retransmit_at_ns = NEVER_NS;
            self.trip.reset_backoff();
            self.probe_due = false;
        } else if may_be_dropped {
            // The peer had no room for the probe or the FIN, or for what it had told of before.
            self.is_probing = false;
            self.lost_below = self.nxt;
            self.resent_to = self.una;
        }
    }

    /// RFC 5681 §3.2, RFC 6675 §5 and RFC 8985 §6.2.
    #[inline]
    pub(super) fn find_losses(&mut self, resources: &mut Resources, now_ns: u64) {
        if self.duplicates == 0 && self.scoreboard.bytes() == 0 && self.rack.is_none() {
            return;
        }
        // Without memory for the clock there is only the count.
        let is_timed = self.reordering.is_seen && self.rack.is_some();
        let by_count = if is_timed { self.una } else { self.scoreboard.lost_below(self.una, self.segment_bytes) };
        let is_proven = self.recovery != Recovery::Open || by_count.after(self.una);
        let (by_time, is_congested) = self.lost_by_time(is_proven, now_ns);
        let lost_below = by_count.max(self.lost_below_probe()).max(by_time);
        let is_counted = self.duplicates >= DUPLICATE_THRESHOLD && !is_timed;
        let first = (self.una + self.segment_bytes).min(self.nxt);
        let lost_to = if is_counted && !lost_below.after(self.una) { first } else { lost_below };
        // What the last recovery has sent again already is nothing new.
        let is_new = self.recovery == Recovery::Open
            && match &self.rack {
                Some(rack) => rack.next_unsent(&self.scoreboard, self.una, lost_to).is_some(),
                None => lost_to.after(self.una),
            };
        if is_new {
            resources.counters.fast_recoveries += 1;
            self.recovery = Recovery::Fast(self.nxt);
            self.probe.cancel();
            self.congestion.lost(self.segment_bytes);
            self.lost_below = lost_to;
            self.resent_to = self.una;
            self.resend_now = true;
            self.timed = None;
            return;
        }
        if is_congested {
            // RFC 5681 §4.3: the loss of a retransmission is another sign of congestion.
            self.congestion.lost(self.segment_bytes);
            self.resend_now = true;
        }
        if self.recovery != Recovery::Open && self.sack {
            self.lost_below = self.lost_below.max(lost_below);
        }
    }

    /// The end of what is lost by the clock, `una` if nothing is, and whether a retransmission is. Sets the time of the next
    /// look.
    fn lost_by_time(&mut self, is_proven: bool, now_ns: u64) -> (Seq, bool) {
        let Some(rack) = &mut self.rack else { return (self.una, false) };
        let window_ns = self.reordering.window_ns(&self.trip, is_proven);
        let losses = rack.find(self.una, &self.scoreboard, window_ns, now_ns);
        self.look_at_ns = losses.at_ns;
        (losses.below, losses.is_congested)
    }

    fn on_fin_acknowledged(&mut self, resources: &mut Resources, now_ns: u64) {
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.wait_for_old_segments(resources, now_ns),
            State::LastAck => {
                // Its application may have something left to read.
                self.state = State::Closed;
                self.tx.clear(&mut resources.pool);
            }
            _ => {}
        }
    }

    /// TIME-WAIT: what is kept is this and no buffer.
    fn wait_for_old_segments(&mut self, resources: &mut Resources, now_ns: u64) {
        self.state = State::TimeWait;
        self.time_wait_until_ns = now_ns.saturating_add(TIME_WAIT_NS);
        self.retransmit_at_ns = NEVER_NS;
        self.tx.clear(&mut resources.pool);
        self.scoreboard.clear();
    }

    /// RFC 9293 §3.10.7.4, seventh and eighth steps.
    #[inline]
    fn on_data(
        &mut self,
        segment: &Segment,
        payload: &[u8],
        resources: &mut Resources,
        take: &mut impl FnMut(&[u8]) -> usize,
        now_ns: u64,
    ) {
        let has_fin = segment.flags.has(Flags::FIN);
        if payload.is_empty() && !has_fin || self.end_received {
            return;
        }
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            return;
        }
        // What has arrived before, and what is beyond the window, is cut off.
        let mut seq = segment.seq;
        let mut bytes = payload;
        if seq.before(self.rcv_nxt) {
            let known = (self.rcv_nxt.since(seq) as usize).min(bytes.len());
            self.twice = Some((seq, seq + known as u32));
            bytes = &bytes[known..];
            seq += known as u32;
        } else if !bytes.is_empty() && self.rx.has(seq, seq + bytes.len() as u32) {
            self.twice = Some((seq, seq + bytes.len() as u32));
        }
        let room = self.rcv_right.since(seq) as usize;
        let is_cut = bytes.len() > room;
        bytes = &bytes[..bytes.len().min(room)];
        let end = seq + bytes.len() as u32;
        let before = self.rcv_nxt;
        let had_runs = self.rx.has_runs();
        let mut taken = 0;
        if seq == before && !bytes.is_empty() && self.owner == Owner::Application && self.rx.holds_nothing() {
            taken = take(bytes).min(bytes.len());
            self.rcv_nxt += taken as u32;
        }
        if taken < bytes.len() {
            let from = self.rcv_nxt;
            self.rcv_nxt = self.rx.insert(from, seq + taken as u32, &bytes[taken..], &mut resources.pool);
            self.arrived |= self.rcv_nxt != from;
            let is_here = if seq == before { !self.rcv_nxt.before(end) } else { self.rx.has(seq, end) };
            resources.counters.dropped_memory += u64::from(!is_here);
        }
        if has_fin && !is_cut {
            self.peer_fin = Some(end);
        }
        self.acknowledge_data(seq, before, had_runs, now_ns);
        if taken > 0 {
            self.note_read(taken, &mut resources.pool);
            self.offer_window(&resources.pool);
        }
        if self.peer_fin == Some(self.rcv_nxt) {
            self.on_fin(resources, now_ns);
        }
        if self.owner == Owner::Nobody {
            // RFC 1122 §4.2.2.13: one that goes on talking to a connection that is closed learns that nobody listens, once
            // it has all that it was told.
            if self.state == State::FinWait2 && self.rcv_nxt != before {
                return self.abort(&mut resources.pool);
            }
            self.discard_received(&mut resources.pool);
        }
    }

    /// RFC 5681 §4.2: every second full segment is acknowledged, at once, and so is what is out of order.
    #[inline]
    fn acknowledge_data(&mut self, seq: Seq, before: Seq, had_runs: bool, now_ns: u64) {
        if seq.after(before) {
            self.duplicates_due = (self.duplicates_due + 1).min(MAX_DUPLICATES_DUE);
        } else if had_runs || self.rcv_nxt.since(self.acknowledged) >= 2 * ETHERNET_SEGMENT_BYTES {
            self.acknowledge = Acknowledge::Now;
        } else if self.acknowledge == Acknowledge::No {
            self.acknowledge = Acknowledge::Soon;
            self.acknowledge_at_ns = now_ns.saturating_add(ACKNOWLEDGE_DELAY_NS);
        }
    }

    fn on_fin(&mut self, resources: &mut Resources, now_ns: u64) {
        self.rcv_nxt += 1;
        self.rcv_right = self.rcv_right.max(self.rcv_nxt);
        self.end_received = true;
        self.rx.end(&mut resources.pool);
        self.peer_fin = None;
        self.acknowledge = Acknowledge::Now;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait_for_old_segments(resources, now_ns),
            _ => {}
        }
    }

    /// Whether a SYN for the same addresses may begin a new connection in the place of this one (RFC 9293 §3.6.1,
    /// RFC 6191 §2): only if its numbers or its clock are beyond those of the old one, which no application has any more.
    pub fn gives_way_to(&self, syn: &Segment) -> bool {
        let clock_is_newer = match (self.peer_clock, syn.timestamps) {
            (Some(clock), Some(timestamps)) => (timestamps.value.wrapping_sub(clock.recent) as i32) > 0,
            _ => false,
        };
        let is_left = self.state == State::TimeWait && self.owner == Owner::Nobody;
        is_left && (clock_is_newer || syn.seq.after(self.rcv_nxt))
    }
}
