//! Tail loss probes (RFC 8985 §7): when the last of what was sent may be lost, something is sent that makes the peer say so,
//! long before the retransmission timer would.
//!
//! Of RACK this takes one consequence and no clock for each segment: a probe leaves two round trips and more after
//! everything else on its way, so once the peer has the probe, what it lacks of the rest is lost (§6.2).

use super::{
    connection::{Connection, NEVER_NS, Recovery, Resources},
    output::Transmission,
    segment::Segment,
    seq::Seq,
};

/// How long a peer is taken to keep the acknowledgment of a single segment (`TLP.max_ack_delay`): Linux' 40 ms and some ...
const ACK_DELAY_NS: u64 = 50_000_000;
/// ... until several probes in a row came for nothing, and from then on what everybody may take. One or two may be due to
/// the loss of what the peer has sent.
const LONG_ACK_DELAY_NS: u64 = 200_000_000;
const MAX_USELESS: u8 = 3;
/// What timers and peers take at least.
const SLACK_NS: u64 = 2_000_000;

/// The probe of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// When it is due (the PTO of §7.2).
    pub at_ns: u64,
    pub is_due: bool,
    /// The end of what was sent when it left, and whether it was sent before (`TLP.end_seq`, `TLP.is_retrans`).
    sent: Option<(Seq, IsRepeated)>,
    /// Probes that came for nothing, since one did not or a timeout found a loss.
    useless: u8,
}

/// What a probe consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsRepeated {
    Yes,
    No,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe { at_ns: NEVER_NS, is_due: false, sent: None, useless: 0 }
    }
}

impl Probe {
    fn ack_delay_ns(&self) -> u64 {
        if self.useless < MAX_USELESS { ACK_DELAY_NS } else { LONG_ACK_DELAY_NS }
    }

    /// There was one too few: the retransmission timer has run out.
    pub fn timed_out(&mut self) {
        self.useless = 0;
        self.cancel();
    }

    /// There is none, and none is on its way.
    pub fn cancel(&mut self) {
        (self.at_ns, self.is_due, self.sent) = (NEVER_NS, false, None);
    }
}

impl Connection {
    /// Starts the timer (§7.2), where there may be a probe: not while losses are being mended or another one is on its way.
    #[inline]
    pub(super) fn schedule_probe(&mut self, now_ns: u64) {
        self.probe.at_ns = NEVER_NS;
        let may = self.sack
            && self.recovery == Recovery::Open
            && self.probe.sent.is_none()
            && self.scoreboard.bytes() == 0
            && self.una != self.nxt
            && !self.is_probing;
        let round_trip_ns = self.trip.smoothed_ns();
        if !may || round_trip_ns == 0 {
            return;
        }
        // A single segment may wait for the peer's own answer, and so may all of a peer's that has shown it.
        let is_single = self.nxt.since(self.una) <= self.segment_bytes;
        let waits = is_single || self.probe.useless == MAX_USELESS;
        let delay_ns = if waits { self.probe.ack_delay_ns() } else { SLACK_NS };
        let at_ns = now_ns.saturating_add(2 * round_trip_ns + delay_ns);
        // Where the retransmission timer is no later, it does the same.
        if at_ns < self.retransmit_at_ns {
            self.probe.at_ns = at_ns;
        }
    }

    /// The probe (§7.3): what was not sent yet, if there is something, else the last segment again.
    #[inline(never)]
    pub(super) fn loss_probe(&mut self, resources: &mut Resources, now_ns: u64) -> Option<Transmission> {
        if self.recovery != Recovery::Open || self.una == self.nxt {
            self.probe.is_due = false;
            return None;
        }
        resources.counters.loss_probes += 1;
        // The retransmission timer runs from here on.
        self.retransmit_at_ns = NEVER_NS;
        let end = self.nxt;
        // So that what follows starts no other one.
        self.probe.sent = Some((end, IsRepeated::No));
        // As long as it is due it does not wait for the congestion window.
        let fresh = self.fresh(self.segment_bytes, &resources.pool, now_ns);
        self.probe.is_due = false;
        if fresh.is_some() {
            self.probe.sent = Some((self.nxt, IsRepeated::No));
            return fresh;
        }
        self.probe.sent = Some((end, IsRepeated::Yes));
        let len = end.since(self.una).min(self.segment_bytes);
        Some(self.again(end - len, len, resources, now_ns))
    }

    /// What an acknowledgment says of the probe (§7.4).
    #[inline]
    pub(super) fn note_probe_answer(&mut self, segment: &Segment) {
        let Some((end, is_repeated)) = self.probe.sent.filter(|(end, _)| !segment.ack.before(*end)) else { return };
        // RFC 2883 §4: what came twice is named first, below what is acknowledged.
        let first = segment.sack.as_slice().first();
        if is_repeated == IsRepeated::Yes && first.is_some_and(|(_, to)| !to.after(segment.ack)) {
            self.probe.useless = (self.probe.useless + 1).min(MAX_USELESS);
        } else if is_repeated == IsRepeated::Yes && segment.ack.after(end) {
            // Nothing came twice, so the probe has mended a loss, which is one all the same.
            self.probe.useless = 0;
            self.congestion.lost(self.segment_bytes);
        } else if is_repeated == IsRepeated::Yes && !(segment.ack == self.una && first.is_none()) {
            // Whether it came for nothing is said later.
            return;
        }
        self.probe.sent = None;
    }

    /// The end of what is lost, since the peer has the probe that left later. `una` if it has not.
    #[inline]
    pub(super) fn lost_below_probe(&self) -> Seq {
        match self.probe.sent {
            Some((end, _)) if self.scoreboard.has(end - 1) => end,
            _ => self.una,
        }
    }
}
