//! What connections send, and where to.

use super::{
    Stack,
    table::{Expendable, enlist, note_expendable},
};
use crate::{
    ends::Ends,
    frame::{self, Route},
    ipv6,
    neighbors::ASK_INTERVAL_NS,
    tcp::{NEVER_NS, Owner, State},
};
use core::net::IpAddr;
use kayvee_platform::FrameTx;

/// Timeouts in a row after which a connection's way through the link is asked for again.
const TIMEOUTS_OF_A_DEAD_NEIGHBOR: u32 = 2;

impl Stack {
    /// Where the frames of a connection go. Where that is not known, the link is asked.
    #[inline]
    fn way(&mut self, number: u32, tx: &mut impl FrameTx, now_ns: u64) -> Option<Route> {
        let slot = self.slots.get_mut(number)?;
        let ends = slot.connection.flow.ends;
        let mac = self.mac;
        let is_suspect = slot.connection.timeouts_in_a_row() >= TIMEOUTS_OF_A_DEAD_NEIGHBOR;
        if let Some((generation, hardware)) = slot.way
            && generation == self.neighbors.generation()
            && !is_suspect
        {
            return Some(Route { mac, hardware, ends });
        }
        let hop: IpAddr = match ends {
            Ends::V4 { remote, .. } => self.lease?.next_hop(remote)?.into(),
            Ends::V6 { remote, .. } => self.ipv6.next_hop(remote, &self.neighbors, now_ns)?.into(),
        };
        let known = self.neighbors.get(hop);
        if (known.is_none() || is_suspect) && self.neighbors.ask(hop, now_ns) {
            match (ends, hop) {
                (Ends::V4 { own, .. }, IpAddr::V4(hop)) => frame::ask(tx, mac, own, hop),
                (Ends::V6 { own, .. }, IpAddr::V6(hop)) => ipv6::solicit(tx, mac, own, hop),
                _ => unreachable!("a hop is of the family of its packets"),
            };
        }
        let hardware = known?;
        slot.way = Some((self.neighbors.generation(), hardware));
        Some(Route { mac, hardware, ends })
    }

    /// Sends all that one connection may send now. Returns whether that was all, or the device is full.
    pub(super) fn send_segments(&mut self, number: u32, tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let Some(slot) = self.slots.get_mut(number) else { return true };
        slot.connection.on_timers(&mut self.resources, now_ns);
        let mut wake_ns = NEVER_NS;
        match self.way(number, tx, now_ns) {
            Some(route) => {
                if !self.send_all(number, &route, tx, now_ns) {
                    return false;
                }
            }
            None => wake_ns = self.await_neighbor(number, now_ns),
        }
        let Some(slot) = self.slots.get_mut(number) else { return true };
        slot.in_egress = false;
        let connection = &mut slot.connection;
        // A reset that has not left by now is for a neighbor whose address is not known, and nobody waits for that.
        let is_given_up = connection.owner == Owner::Nobody && connection.state == State::Closed;
        if is_given_up || connection.is_over() {
            match connection.owner {
                // It ended by a timeout just now, or its application has something left to read.
                Owner::Application => self.touch_events(number),
                Owner::Handshake | Owner::Nobody => self.release(number),
            }
            return true;
        }
        if connection.owner == Owner::Nobody && connection.state == State::TimeWait {
            note_expendable(&mut self.expendable, Expendable::TimeWait { slot: number });
        }
        let deadline_ns = connection.deadline_ns().min(wake_ns);
        if deadline_ns != NEVER_NS {
            self.timers.set(number, deadline_ns);
        }
        true
    }

    /// Sends until there is nothing left or the device is full. Returns whether it was the former.
    #[inline]
    fn send_all(&mut self, number: u32, route: &Route, tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let Some(slot) = self.slots.get_mut(number) else { return true };
        loop {
            if !tx.ready() {
                return false;
            }
            let segment_bytes = slot.connection.segment_bytes();
            let most = if slot.connection.unsent_bytes() > segment_bytes {
                frame::room_for_data(tx, &route.ends, segment_bytes)
            } else {
                segment_bytes
            };
            let Some(next) = slot.connection.next_segment(most, &mut self.resources, now_ns) else { return true };
            self.resources.counters.segments_sent += 1;
            let fill = |at: usize, bytes: &mut [u8]| slot.connection.copy_to(next.offset + at, bytes);
            frame::send_segment(tx, route, &next.segment, (next.len, segment_bytes), fill);
        }
    }

    /// Has a connection wait for its neighbor's address, and says until when at most.
    fn await_neighbor(&mut self, number: u32, now_ns: u64) -> u64 {
        if let Some(slot) = self.slots.get_mut(number) {
            enlist(&mut self.unresolved, &mut slot.in_unresolved, number);
        }
        now_ns.saturating_add(ASK_INTERVAL_NS)
    }
}
