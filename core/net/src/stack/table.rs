//! The connections that there are, and the lists that they wait in.

use super::{ConnectionId, Stack};
use crate::{
    ends::{Ends, FlowKey},
    tcp::{Connection, Origin, Owner, Resources, Setup, seq::Seq},
};
use alloc::collections::{BTreeSet, VecDeque};
use smoltcp::wire::EthernetAddress;

/// What the stack keeps of a connection beside its state.
pub(super) struct Slot {
    pub connection: Connection,
    /// Where its frames go, and as of which generation of the neighbors that is known.
    pub way: Option<(u32, EthernetAddress)>,
    /// Whether it waits for the application to ask for its events.
    pub in_events: bool,
    /// Whether it waits for its segments to be sent.
    pub in_egress: bool,
    /// Whether it waits for its neighbor's address.
    pub in_unresolved: bool,
    /// Whether it waits for memory to send.
    pub in_starved: bool,
    /// What its peer has to acknowledge while memory is short, or it ends.
    pub expected: Option<Seq>,
}

/// Puts a connection into a list, unless it is there.
#[inline]
pub(super) fn enlist(list: &mut VecDeque<u32>, is_in: &mut bool, number: u32) {
    if !core::mem::replace(is_in, true) {
        list.push_back(number);
    }
}

/// Why and since when a connection can be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expendable {
    /// In TIME-WAIT, or closed by the application and acknowledged as a whole: its peer may never end it.
    Ended {
        slot: u32,
    },
    HalfOpen {
        opened_ns: u64,
        slot: u32,
    },
}

/// Notes what may be displaced. What changes a tree is large: it is in the image once.
#[inline(never)]
pub(super) fn note_expendable(expendable: &mut BTreeSet<Expendable>, one: Expendable) {
    expendable.insert(one);
}

#[inline(never)]
fn forget_expendable(expendable: &mut BTreeSet<Expendable>, one: &Expendable) -> bool {
    expendable.remove(one)
}

impl Stack {
    /// Makes a connection, if need be in the place of one that is expendable.
    pub(super) fn insert(&mut self, flow: FlowKey, origin: Origin<'_>, now_ns: u64) -> Option<u32> {
        let iss = self.secrets.initial_sequence(flow, now_ns);
        self.insert_with(flow, origin, iss, now_ns)
    }

    /// Bytes of the largest packet that the link carries between these two.
    pub(super) fn mtu(&self, ends: Ends) -> u16 {
        match ends {
            Ends::V4 { .. } => self.mtu,
            Ends::V6 { .. } => self.ipv6.mtu(),
        }
    }

    pub(super) fn setup(&self, flow: FlowKey, iss: Seq) -> Setup {
        let mtu = self.mtu(flow.ends);
        Setup { flow, mtu, iss, timestamp_offset: self.secrets.timestamp_offset(flow), keepalive_ns: self.keepalive_ns }
    }

    pub(super) fn insert_with(&mut self, flow: FlowKey, origin: Origin<'_>, iss: Seq, now_ns: u64) -> Option<u32> {
        while self.slots.is_full() {
            // A flood of SYNs displaces itself, and never a connection that was established.
            match self.expendable.first() {
                Some(&Expendable::Ended { slot }) => self.release(slot),
                Some(&Expendable::HalfOpen { slot, .. }) => {
                    self.resources.counters.dropped_half_open += 1;
                    self.release(slot);
                }
                None => {
                    log::debug!("a connection was refused: {} are open", self.slots.len());
                    return None;
                }
            }
        }
        let connection = Connection::new(self.setup(flow, iss), origin, now_ns);
        let slot = Slot {
            connection,
            way: None,
            in_events: false,
            in_egress: false,
            in_unresolved: false,
            in_starved: false,
            expected: None,
        };
        let number = self.slots.insert(slot);
        let is_in =
            number.is_some_and(|number| self.timers.reserve(self.slots.end()) && self.flows.insert(flow, number));
        if !is_in {
            log::debug!("a connection was refused: no memory for it");
            number.map(|number| self.slots.remove(number));
            return None;
        }
        number
    }

    /// Forgets a connection without a word to its peer.
    pub(super) fn release(&mut self, number: u32) {
        let Some(mut slot) = self.slots.remove(number) else { return };
        if slot.connection.owner == Owner::Handshake {
            self.forget_half_open(slot.connection.opened_ns, number);
        }
        forget_expendable(&mut self.expendable, &Expendable::Ended { slot: number });
        self.timers.cancel(number);
        self.flows.remove(slot.connection.flow);
        // These may not be gone through for long, while connections come and go.
        for (list, is_in) in [
            (&mut self.events, slot.in_events),
            (&mut self.egress, slot.in_egress),
            (&mut self.unresolved, slot.in_unresolved),
            (&mut self.starved, slot.in_starved),
        ] {
            if is_in && let Some(at) = list.iter().position(|other| *other == number) {
                list.swap_remove_back(at);
            }
        }
        slot.connection.release_buffers(&mut self.resources.pool);
    }

    pub(super) fn forget_half_open(&mut self, opened_ns: u64, slot: u32) {
        let was_there = forget_expendable(&mut self.expendable, &Expendable::HalfOpen { opened_ns, slot });
        self.half_open -= usize::from(was_there);
    }

    /// The application's connection of that id. After [`Event::Closed`] or [`close`](Self::close) there is none.
    #[inline]
    pub(super) fn owned(&mut self, id: ConnectionId) -> Option<(&mut Connection, &mut Resources)> {
        let connection = &mut self.slots.get_mut(id.0)?.connection;
        (connection.owner == Owner::Application).then_some((connection, &mut self.resources))
    }

    /// Has a connection looked at for events.
    #[inline]
    pub(super) fn touch_events(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number) {
            enlist(&mut self.events, &mut slot.in_events, number);
        }
    }

    /// Has a connection looked at for segments to send.
    #[inline]
    pub(super) fn touch_egress(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number) {
            enlist(&mut self.egress, &mut slot.in_egress, number);
        }
    }

    /// Has those looked at that wait for their neighbors.
    pub(super) fn touch_unresolved(&mut self) {
        while let Some(number) = self.unresolved.pop_front() {
            if let Some(slot) = self.slots.get_mut(number) {
                slot.in_unresolved = false;
            }
            self.touch_egress(number);
        }
    }
}
