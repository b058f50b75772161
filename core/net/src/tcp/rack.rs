//! What is lost, by when it was sent (RFC 8985 §6): what left before something that the peer has, and is still missing when
//! that is long enough ago. It finds retransmissions that are lost, and does not take for lost what has only been overtaken.
//!
//! The clock of a connection begins with the first hole that its peer reports, and ends when nothing is on its way any more:
//! who loses nothing pays nothing. Fresh data leave in the order of their numbers, so a few marks say when: that something
//! left earlier than it did is never said of what may be lost, nor later of what has arrived. Retransmissions are written
//! down one by one.

use super::{connection::NEVER_NS, rtt::RoundTrip, scoreboard::Scoreboard, seq::Seq};
use alloc::{boxed::Box, vec::Vec};

/// Marks of fresh data.
const MAX_MARKS: usize = 16;
/// A mark covers no more than this part of a round trip, unless there are too many.
const MARK_PART: u64 = 16;
/// Retransmissions that are remembered: so many in any case, and one for each KiB on its way, up to a bound. Where there are more,
/// those beyond are left to the retransmission timer.
const FEW_RESENT: usize = 64;
const MAX_RESENT: usize = 256;
const RESENT_BYTES: u32 = 1024;
/// How much of a shortest round trip the window for reordering has, and gets with each retransmission that came for nothing
/// (§6.2, step 4).
const WINDOW_PART: u64 = 4;
/// The least that is waited for what may have been overtaken: where round trips take microseconds, queues and processors
/// that share the work put segments out of order by more than a part of one.
const LEAST_WINDOW_NS: u64 = 1_000_000;
/// The window is as at first again after so many recoveries without one (§6.2, step 4).
const WINDOW_RECOVERIES: u8 = 16;

/// Fresh data up to `end`, from the end of the mark before.
#[derive(Clone, Copy, Debug)]
struct Mark {
    end: Seq,
    first_ns: u64,
    last_ns: u64,
}

/// Something that was sent again, and that the peer has not reported yet.
#[derive(Clone, Copy, Debug)]
struct Resent {
    from: Seq,
    to: Seq,
    sent_ns: u64,
    /// Bytes of it that the peer lacked when it was last looked at.
    missing: u32,
    is_lost: bool,
}

/// The clock of a connection.
#[derive(Debug)]
pub(super) struct Rack {
    marks: Vec<Mark>,
    /// In the order in which they left, but for those that are lost.
    resent: Vec<Resent>,
    /// More was sent again than there is room for here.
    is_overfull: bool,
    /// When the latest of what the peer has was sent (`RACK.xmit_ts`), and how long it took (`RACK.rtt`).
    delivered_ns: u64,
    round_trip_ns: u64,
    /// The end of what the peer has (`RACK.fack`), and how much below it was missing.
    reached: Seq,
    missing: u32,
    /// When the congestion window was last reduced for a retransmission that was lost.
    reduced_ns: u64,
}

/// How far segments of a connection may overtake each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    /// They have (`RACK.reordering_seen`), so the number of segments beyond a hole proves nothing.
    pub is_seen: bool,
    /// Parts of the window beyond the first (`RACK.reo_wnd_mult`), and recoveries until they are forgotten
    /// (`RACK.reo_wnd_persist`).
    more_parts: u8,
    recoveries: u8,
    /// The end of the round trip in which one was added (`RACK.dsack_round`).
    widened_to: Option<Seq>,
}

impl Reordering {
    /// How long something may be missing that what was sent later has overtaken (§6.2, step 4). `is_proven` says whether
    /// losses are being mended already, or enough has arrived behind a hole.
    pub fn window_ns(&self, trip: &RoundTrip, is_proven: bool) -> u64 {
        if is_proven && !self.is_seen {
            return 0;
        }
        let parts = 1 + u64::from(self.more_parts);
        (parts * trip.least_ns() / WINDOW_PART).min(trip.smoothed_ns()).max(LEAST_WINDOW_NS)
    }

    /// What was sent again came for nothing.
    pub fn widen(&mut self, una: Seq, nxt: Seq) {
        if self.widened_to.is_none_or(|end| !una.before(end)) {
            self.widened_to = Some(nxt);
            self.more_parts = self.more_parts.saturating_add(1);
            self.recoveries = WINDOW_RECOVERIES;
        }
    }

    /// A recovery is over.
    pub fn recovered(&mut self) {
        self.recoveries = self.recoveries.saturating_sub(1);
        if self.recoveries == 0 {
            self.more_parts = 0;
        }
    }
}

/// What looking for losses has found.
pub(super) struct Losses {
    /// What lies below and is missing is lost, but for what was sent again since.
    pub below: Seq,
    /// Something that was sent again is lost, which left after the congestion window had been reduced.
    pub is_congested: bool,
    /// When to look again.
    pub at_ns: u64,
}

impl Rack {
    /// The clock of a connection that has sent all below `nxt`, the last of it at `sent_ns`. Nothing without memory. When the
    /// rest left is not known, so what is missing waits from the first report on.
    pub fn new(una: Seq, nxt: Seq, sent_ns: u64) -> Option<Box<Rack>> {
        let mut marks = Vec::new();
        marks.try_reserve_exact(MAX_MARKS).ok()?;
        marks.push(Mark { end: nxt, first_ns: sent_ns, last_ns: sent_ns });
        Some(Box::new(Rack {
            marks,
            resent: Vec::new(),
            is_overfull: false,
            delivered_ns: 0,
            round_trip_ns: 0,
            reached: una,
            missing: 0,
            reduced_ns: 0,
        }))
    }

    /// Notes that fresh data up to `end` leave.
    pub fn note_fresh(&mut self, end: Seq, smoothed_ns: u64, now_ns: u64) {
        // What something has arrived of says how long that took: the first mark's time is too short for what leaves later.
        if let Some(last) = self.marks.last_mut()
            && last.first_ns > self.delivered_ns
            && now_ns.saturating_sub(last.first_ns) <= smoothed_ns / MARK_PART
        {
            (last.end, last.last_ns) = (end, now_ns);
            return;
        }
        if self.marks.len() == MAX_MARKS {
            self.marks[1].first_ns = self.marks[0].first_ns;
            self.marks.remove(0);
        }
        self.marks.push(Mark { end, first_ns: now_ns, last_ns: now_ns });
    }

    /// Notes that something leaves again, of so many bytes that are on their way.
    pub fn note_resent(&mut self, from: Seq, to: Seq, way_bytes: u32, now_ns: u64) {
        let missing = to.since(from);
        let most = ((way_bytes / RESENT_BYTES) as usize).clamp(FEW_RESENT, MAX_RESENT);
        if let Some(last) = self.resent.last_mut()
            && last.to == from
            && last.sent_ns == now_ns
            && !last.is_lost
        {
            (last.to, last.missing) = (to, last.missing + missing);
        } else if self.resent.len() < most && self.resent.try_reserve(1).is_ok() {
            self.resent.push(Resent { from, to, sent_ns: now_ns, missing, is_lost: false });
        } else {
            self.is_overfull = true;
        }
    }

    /// Forgets what was sent again: all of it is taken for lost.
    pub fn forget_resent(&mut self, una: Seq, board: &Scoreboard) {
        self.resent.clear();
        self.is_overfull = false;
        self.missing = board.missing(una, self.reached);
    }

    /// Takes in what the peer has now (§6.2, steps 1 to 3), and returns whether something that was sent once has been
    /// overtaken.
    pub fn note_delivered(&mut self, una: Seq, board: &Scoreboard, trip: &RoundTrip, now_ns: u64) -> bool {
        let mut delivered_again = 0;
        for index in 0..self.resent.len() {
            let Resent { from, to, sent_ns, missing, .. } = self.resent[index];
            let missing_now = board.missing(from.max(una), to);
            // After a scoreboard was cleared more may be missing.
            if missing_now < missing {
                delivered_again += missing - missing_now;
                // Sooner than any answer comes, it is what was sent before that has arrived.
                if now_ns.saturating_sub(sent_ns) >= trip.least_ns() {
                    self.advance(sent_ns, now_ns);
                }
            }
            self.resent[index].missing = missing_now;
        }
        self.resent.retain(|resent| resent.missing > 0);
        let delivered = self.missing.saturating_sub(board.missing(una, self.reached));
        let is_overtaken = delivered > delivered_again && !self.is_overfull;
        self.is_overfull &= !self.resent.is_empty();
        let reached = board.end().unwrap_or(una);
        if reached.after(self.reached) {
            self.reached = reached;
            if let Some(mark) = self.marks.iter().find(|mark| !mark.end.before(reached)) {
                self.advance(mark.first_ns, now_ns);
            }
        }
        self.missing = board.missing(una, self.reached);
        let acknowledged = self.marks.iter().take_while(|mark| !mark.end.after(una)).count();
        self.marks.drain(..acknowledged);
        is_overtaken
    }

    fn advance(&mut self, sent_ns: u64, now_ns: u64) {
        if sent_ns > self.delivered_ns {
            (self.delivered_ns, self.round_trip_ns) = (sent_ns, now_ns.saturating_sub(sent_ns));
        }
    }

    /// Looks for what is lost (§6.2, step 5), where frames may overtake each other by so much.
    pub fn find(&mut self, una: Seq, board: &Scoreboard, window_ns: u64, now_ns: u64) -> Losses {
        let patience_ns = self.round_trip_ns + window_ns;
        let mut losses = Losses { below: una, is_congested: false, at_ns: NEVER_NS };
        for resent in self.resent.iter_mut().filter(|resent| !resent.is_lost && resent.sent_ns < self.delivered_ns) {
            let lost_ns = resent.sent_ns + patience_ns;
            resent.is_lost = lost_ns <= now_ns;
            match resent.is_lost {
                true if resent.sent_ns >= self.reduced_ns => {
                    (self.reduced_ns, losses.is_congested) = (now_ns, true);
                }
                true => {}
                false => losses.at_ns = losses.at_ns.min(lost_ns),
            }
        }
        let mut from = una;
        for mark in &self.marks {
            // Fresh data with lower numbers left earlier, or at the same time before.
            let to = if mark.last_ns < self.delivered_ns { mark.end } else { mark.end.min(self.reached) };
            if !from.before(to) || self.delivered_ns == 0 {
                break;
            }
            let lost_ns = mark.last_ns + patience_ns;
            if lost_ns > now_ns && board.next_hole(from, to).is_some() {
                losses.at_ns = losses.at_ns.min(lost_ns);
                break;
            }
            (losses.below, from) = (to, to);
        }
        losses
    }

    /// The first missing bytes of `from..to` that were not sent again.
    pub fn next_unsent(&self, board: &Scoreboard, mut from: Seq, to: Seq) -> Option<(Seq, Seq)> {
        loop {
            let (start, mut end) = board.next_hole(from, to)?;
            let Some(covers) = self.resent.iter().find(|resent| start.within(resent.from, resent.to)) else {
                for resent in self.resent.iter().filter(|resent| resent.from.after(start)) {
                    end = end.min(resent.from);
                }
                return Some((start, end));
            };
            from = covers.to;
        }
    }

    /// Missing bytes of `from..to` that were not sent again.
    pub fn unsent_bytes(&self, board: &Scoreboard, from: Seq, to: Seq) -> u32 {
        let again = self.resent.iter().map(|resent| board.missing(from.max(resent.from), to.min(resent.to))).sum();
        board.missing(from, to).saturating_sub(again)
    }

    /// Bytes that were sent again in vain.
    pub fn lost_bytes(&self) -> u32 {
        self.resent.iter().filter(|resent| resent.is_lost).map(|resent| resent.missing).sum()
    }

    /// The next bytes that were sent again in vain, and the number of what they belong to.
    pub fn next_lost(&self, una: Seq, board: &Scoreboard) -> Option<(usize, (Seq, Seq))> {
        let mut lost = self.resent.iter().enumerate().filter(|(_, resent)| resent.is_lost);
        lost.find_map(|(index, resent)| Some((index, board.next_hole(resent.from.max(una), resent.to)?)))
    }

    /// Notes that lost bytes of this number, up to `to`, are about to leave once more.
    pub fn take_lost(&mut self, index: usize, una: Seq, board: &Scoreboard, to: Seq) {
        let resent = &mut self.resent[index];
        resent.from = to;
        resent.missing = board.missing(to.max(una), resent.to);
        if resent.missing == 0 {
            self.resent.remove(index);
        }
    }
}
