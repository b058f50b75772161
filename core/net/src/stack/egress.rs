//! What connections send, and where to.

use super::{
    Stack,
    table::{Expendable, Slot, enlist, note_expendable},
};
use crate::{
    ends::Ends,
    frame::{self, Route},
    ipv6,
    neighbors::ASK_INTERVAL_NS,
    tcp::{Connection, NEVER_NS, Owner, Resources, State},
};
use core::net::IpAddr;
use kayvee_platform::FrameTx;
use smoltcp::wire::EthernetAddress;

/// Timeouts in a row after which a connection's way through the link is asked for again.
const TIMEOUTS_OF_A_DEAD_NEIGHBOR: u32 = 2;

impl Stack {
    /// Where on the link the frames of a connection go that has no [way](Slot::known_way). Where that is not known, the link is
    /// asked.
    #[inline(never)]
    fn find_way(&mut self, number: u32, tx: &mut impl FrameTx, now_ns: u64) -> Option<EthernetAddress> {
        let slot = self.slots.get_mut(number)?;
        let ends = slot.connection.flow.ends;
        let mac = self.mac;
        let is_suspect = slot.is_suspect();
        let hop: IpAddr = match ends {
            Ends::V4 { remote, .. } => self.lease?.next_hop(remote)?.into(),
            Ends::V6 { remote, .. } => {
                let clock_ns = now_ns.saturating_add(self.stood_still_ns);
                self.ipv6.next_hop(remote, &self.neighbors, clock_ns)?.into()
            }
        };
        if (is_suspect || self.neighbors.get(hop).is_none()) && self.neighbors.ask(hop, now_ns) {
            match (ends, hop) {
                (Ends::V4 { own, .. }, IpAddr::V4(hop)) => frame::ask(tx, mac, own, hop),
                (Ends::V6 { own, .. }, IpAddr::V6(hop)) => ipv6::solicit(tx, mac, own, hop),
                _ => unreachable!("a hop is of the family of its packets"),
            };
        }
        let hardware = self.neighbors.get(hop)?;
        slot.way = Some((self.neighbors.generation(), hardware));
        Some(hardware)
    }

    /// Sends all that one connection may send now. Returns whether that was all, or the device is full.
    pub(super) fn send_segments(&mut self, number: u32, tx: &mut impl FrameTx, now_ns: u64) -> bool {
        let Some(mut slot) = self.slots.get_mut(number) else { return true };
        slot.connection.on_timers(&mut self.resources, now_ns);
        let mut hardware = slot.known_way(self.neighbors.generation());
        if hardware.is_none() {
            hardware = self.find_way(number, tx, now_ns);
            let Some(again) = self.slots.get_mut(number) else { return true };
            slot = again;
        }
        let mut wake_ns = NEVER_NS;
        match hardware {
            Some(hardware) => {
                if !slot.connection.send_all((self.mac, hardware), &mut self.resources, tx, now_ns) {
                    return false;
                }
            }
            None => {
                // Its neighbor's address is waited for, and until then at most.
                enlist(&mut self.unresolved, &mut slot.in_unresolved, number);
                wake_ns = now_ns.saturating_add(ASK_INTERVAL_NS);
            }
        }
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
        if connection.owner == Owner::Nobody && matches!(connection.state, State::FinWait2 | State::TimeWait) {
            note_expendable(&mut self.expendable, Expendable::Ended { slot: number });
        }
        let deadline_ns = connection.deadline_ns().min(wake_ns);
        if deadline_ns != NEVER_NS {
            self.timers.set(number, deadline_ns);
        }
        true
    }
}

impl Slot {
    /// Whether it may be that nothing arrives where its frames go.
    #[inline]
    fn is_suspect(&self) -> bool {
        self.connection.timeouts_in_a_row() >= TIMEOUTS_OF_A_DEAD_NEIGHBOR || self.connection.awaits_sign_of_life()
    }

    /// Where on the link its frames go, if that is known in this generation of the neighbors and not in doubt.
    #[inline]
    fn known_way(&self, generation: u32) -> Option<EthernetAddress> {
        let (known_in, hardware) = self.way?;
        (known_in == generation && !self.is_suspect()).then_some(hardware)
    }
}

impl Connection {
    /// Sends until there is nothing left or the device is full. Returns whether it was the former.
    #[inline]
    fn send_all(
        &mut self,
        (mac, hardware): (EthernetAddress, EthernetAddress),
        resources: &mut Resources,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) -> bool {
        loop {
            if !tx.ready() {
                return false;
            }
            let segment_bytes = self.segment_bytes();
            let most = if self.unsent_bytes() > segment_bytes {
                frame::room_for_data(tx, &self.flow.ends, segment_bytes)
            } else {
                segment_bytes
            };
            let next = self.next_segment(most, resources, now_ns);
            let Some(next) = &next else { return true };
            resources.counters.segments_sent += 1;
            let route = Route { mac, hardware, ends: &self.flow.ends };
            let fill = |at: usize, bytes: &mut [u8]| self.copy_to(next.offset + at, bytes);
            frame::send_segment(tx, &route, &next.segment, (next.len, segment_bytes), fill);
            if !self.may_have_more() {
                return true;
            }
        }
    }
}
