//! Who gets memory when there is hardly any left, and who has to give it back.

use super::Stack;
use crate::tcp::{NEVER_NS, Owner};

/// Connections without room to send that are looked at in a turn.
const STARVED_PER_TURN: usize = 16;
/// Connections that give up in a turn what has come out of order.
const FORGETTING_PER_TURN: u32 = 64;
/// How long a peer may take next to nothing of what it is sent while there is no memory for others.
const PATIENCE_NS: u64 = 2_000_000_000;
/// What it has to take in that time, if there is as much for it.
const LEAST_BYTES: u32 = 2048;

impl Stack {
    /// Has those looked at that could not send, if they can now.
    pub(super) fn feed_starved(&mut self) {
        for _ in 0..self.starved.len().min(STARVED_PER_TURN) {
            if !self.resources.pool.has_free() {
                return;
            }
            let Some(number) = self.starved.pop_front() else { return };
            let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.in_starved) else { continue };
            if !slot.connection.waits_for_room() {
                slot.in_starved = false;
            } else if slot.connection.has_room(&self.resources.pool) {
                slot.in_starved = false;
                self.touch_events(number);
            } else {
                self.starved.push_back(number);
            }
        }
    }

    /// While memory is short, takes back what lies beyond holes, and ends those whose peers take nothing of what they are sent: they
    /// would keep it from all others.
    #[inline]
    pub(super) fn relieve(&mut self, now_ns: u64) {
        if self.next_to_forget.is_some() || !self.resources.pool.has_plenty() {
            self.forget_runs();
        }
        let (pool, review_ns) = (&self.resources.pool, self.review_ns);
        if review_ns == NEVER_NS {
            if pool.is_short() {
                self.review_readers(now_ns);
            }
        } else if pool.has_plenty() {
            self.review_ns = NEVER_NS;
        } else if review_ns <= now_ns {
            self.review_readers(now_ns);
        }
    }

    /// Has some connections give up what has come out of order, and in the turns that follow all others: nobody but their peers
    /// knows when that can be read, and those have it still (RFC 2018 §8).
    #[cold]
    #[inline(never)]
    fn forget_runs(&mut self) {
        let (from, end) = (self.next_to_forget.unwrap_or(0), self.slots.end());
        let to = end.min(from + FORGETTING_PER_TURN);
        for number in from..to {
            if let Some(slot) = self.slots.get_mut(number) {
                self.resources.counters.dropped_memory += slot.connection.give_up_runs(&mut self.resources.pool);
            }
        }
        self.next_to_forget = (to < end).then_some(to);
    }

    #[inline(never)]
    fn review_readers(&mut self, now_ns: u64) {
        let is_first = self.review_ns == NEVER_NS;
        self.review_ns = now_ns.saturating_add(PATIENCE_NS);
        let mut ended = 0;
        for number in 0..self.slots.end() {
            let Some(slot) = self.slots.get_mut(number) else { continue };
            let (connection, pool) = (&mut slot.connection, &mut self.resources.pool);
            let has_read = is_first || slot.expected.is_none_or(|expected| connection.has_acknowledged(expected));
            slot.expected = connection.next_expected(LEAST_BYTES);
            if has_read || pool.has_plenty() {
                continue;
            }
            match connection.owner {
                Owner::Application => connection.give_up(pool),
                Owner::Handshake | Owner::Nobody => connection.abort(pool),
            }
            ended += 1;
            self.touch_egress(number);
        }
        if ended > 0 {
            self.resources.counters.slow_readers_reset += ended;
            log::warn!("net: {ended} connections whose peers read nothing were reset: there was no memory for others");
        }
    }
}
