//! Clients that have to go because there is too little memory for all.

use super::{ClientId, Connection, Engine};
use alloc::{collections::BinaryHeap, vec::Vec};
use kayvee_commands::{ClientType, Close, Output, Pending, Session};

/// Clients that take less are never dropped for want of memory: it would not help. One without buffers takes half of it.
const EVICTION_FLOOR_BYTES: usize = 8 << 10;
/// Clients that are dropped in a turn at the most: each is looked for among all.
const EVICTIONS_PER_TURN: usize = 64;

/// Whether a client's memory counts, and may be taken. To drop a replica or a master would cost a dump; they have limits
/// of their own.
fn is_limited(session: &Session) -> bool {
    matches!(ClientType::of(session), ClientType::Normal | ClientType::Subscriber)
}

impl Engine {
    /// Notes how much a client takes by now.
    #[inline]
    pub(super) fn weigh(&mut self, slot: u32) {
        if self.clients_bytes > 0 || self.store.clients_memory_limit_bytes().is_some() {
            self.weigh_now(slot);
        }
    }

    #[cold]
    fn weigh_now(&mut self, slot: u32) {
        if self.store.clients_memory_limit_bytes().is_none() {
            self.weights.fill(0);
            (self.clients_bytes, self.limit_known) = (0, None);
            return;
        }
        let session = self.store.sessions[slot as usize].as_deref();
        let counted = session.filter(|session| session.close != Some(Close::Now) && is_limited(session));
        let bytes = counted.map_or(0, |session| session.memory_bytes() as u64);
        self.clients_bytes = self.clients_bytes + bytes - self.weights[slot as usize];
        self.weights[slot as usize] = bytes;
    }

    /// Notes how much a client takes while it is being served.
    pub(super) fn note_pending(&mut self, slot: u32, connection: &Connection) {
        if let Some(session) = self.store.sessions[slot as usize].as_deref_mut() {
            session.pending = connection.pending();
        }
        self.weigh(slot);
    }

    /// Whether clients have to make way. Where memory is full it pays to look at all of them, once a turn.
    #[inline]
    pub(super) fn clients_take_too_much(&self) -> bool {
        let limit = self.store.clients_memory_limit_bytes();
        let may_look = || self.clients_weighed_ns != self.store.now.monotonic_ns && self.store.is_full();
        limit.is_some_and(|bytes| self.clients_bytes > bytes || limit != self.limit_known || may_look())
    }

    /// Whether so little memory is left that small allocations, which cannot fail gracefully, are in danger.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.store.reply_room_bytes() == 0
    }

    /// Ends the connections that take the most memory while all together take more than `maxmemory-clients`.
    pub(super) fn limit_clients_memory(&mut self) {
        self.limit_known = self.store.clients_memory_limit_bytes();
        let Some(limit) = self.limit_known else { return };
        let now_ns = self.store.now.monotonic_ns;
        // Those that are spared may take more than the limit: who else is there has been dropped already in this turn.
        if self.evicted_in_vain_ns == now_ns {
            return;
        }
        self.clients_weighed_ns = now_ns;
        (0..self.connections.len() as u32).for_each(|slot| self.weigh_now(slot));
        let mut candidates: Vec<(u64, u32)> = Vec::new();
        if self.clients_bytes <= limit || candidates.try_reserve_exact(self.store.clients).is_err() {
            return;
        }
        candidates.extend(self.evictable().map(|(slot, _)| (self.weights[slot as usize], slot)));
        let mut candidates = BinaryHeap::from(candidates);
        while let Some((_, slot)) = candidates.pop() {
            if self.clients_bytes <= limit {
                return;
            }
            self.evict_client(slot);
            self.weigh_now(slot);
        }
        if self.clients_bytes > limit {
            self.evicted_in_vain_ns = now_ns;
        }
    }

    /// Ends the connections with the largest buffers while hardly any memory is left.
    pub(super) fn relieve_memory(&mut self) {
        for _ in 0..EVICTIONS_PER_TURN {
            if !self.is_short_of_memory() {
                return;
            }
            let largest = self.evictable().max_by_key(|(_, session)| session.memory_bytes());
            let worthwhile = largest.filter(|(_, session)| session.memory_bytes() >= EVICTION_FLOOR_BYTES);
            let Some((slot, _)) = worthwhile else { return };
            self.evict_client(slot);
        }
    }

    fn evictable(&self) -> impl Iterator<Item = (u32, &Session)> {
        let may_go = |session: &&Session| session.close != Some(Close::Now) && !session.no_evict && is_limited(session);
        let slots = (0u32..).zip(&self.store.sessions);
        slots.filter_map(move |(slot, session)| session.as_deref().filter(may_go).map(|session| (slot, session)))
    }

    fn evict_client(&mut self, slot: u32) {
        let may_log = self.may_log();
        let Some(session) = self.store.sessions[slot as usize].as_deref_mut() else { return };
        if may_log {
            let bytes = session.memory_bytes();
            log::warn!("closing client {} at {}: its {bytes} bytes of buffers are needed", session.id, session.remote);
        }
        session.close = Some(Close::Now);
        // Its memory is needed now. The buffers of the one that is being served go when that is done.
        if let Some(connection) = self.connections[slot as usize].as_deref_mut() {
            connection.forget_requests();
            (session.output, session.pending) = (Output::default(), Pending::default());
        }
        self.store.stats.evicted_clients += 1;
        self.mark_ready(ClientId(slot));
    }
}
