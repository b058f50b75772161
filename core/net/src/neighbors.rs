//! Ethernet addresses of stations on the link (RFC 826, RFC 4861), for the segments that the stack sends itself.
//!
//! An entry has no lifetime. It is replaced when its station says otherwise, and asked for again when a connection to it
//! makes no progress (RFC 1122 §2.3.2.1, method 4). One that does not answer then is not known any more (RFC 4861 §7.3.3).

use crate::ends::is_host;
use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr};
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

/// Stations that are known or asked for at a time: as many as there may be connections, within these bounds.
const LEAST_NEIGHBORS: usize = 512;
const MOST_NEIGHBORS: usize = 16_384;
/// The part of them that is forgotten at a time, at least: all are looked at for that.
const FORGOTTEN_DIVISOR: usize = 8;
/// How often one station is asked for (RFC 1122 §2.3.2.1: at most once a second).
pub(crate) const ASK_INTERVAL_NS: u64 = 1_000_000_000;
/// How long a station that is asked for may be silent until it is forgotten where it was (RFC 4861 §10,
/// `MAX_UNICAST_SOLICIT` times `RETRANS_TIMER`).
const SILENCE_NS: u64 = 3 * ASK_INTERVAL_NS;
/// A question that was not answered counts no more when none has followed for so long: whoever still wants the answer asks again
/// before that.
const FORGIVEN_NS: u64 = 300 * ASK_INTERVAL_NS;

#[derive(Clone, Copy, Debug)]
struct Neighbor {
    hardware: Option<EthernetAddress>,
    /// When it was asked for, for the first and for the last time since it was heard of.
    asked_ns: Option<(u64, u64)>,
}

/// What becomes of a station that was not asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It speaks to us, so we shall speak to it.
    Added,
    Ignored,
}

/// The stations on the link.
#[derive(Debug)]
pub(crate) struct Neighbors {
    stations: BTreeMap<IpAddr, Neighbor>,
    most: usize,
    /// Changes whenever an address that was given out may have become wrong.
    generation: u32,
}

impl Neighbors {
    /// For so many connections.
    pub fn new(connections: usize) -> Neighbors {
        let most = connections.clamp(LEAST_NEIGHBORS, MOST_NEIGHBORS);
        Neighbors { stations: BTreeMap::new(), most, generation: 0 }
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Where a station is, if that is known.
    pub fn get(&self, station: IpAddr) -> Option<EthernetAddress> {
        self.stations.get(&station)?.hardware
    }

    /// Whether a station has been asked for and has not answered yet.
    pub fn awaits(&self, station: IpAddr) -> bool {
        self.stations.get(&station).is_some_and(|neighbor| neighbor.asked_ns.is_some())
    }

    /// Has all that has found its way find it again.
    pub fn forget_ways(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Whether to ask for a station now. To be followed by the question. Where one is that has long been silent is not known
    /// any more: then whatever answers is believed, as somebody who speaks for a station that has moved (RFC 4861 §7.2.5).
    pub fn ask(&mut self, station: IpAddr, now_ns: u64) -> bool {
        if self.stations.len() >= self.most && !self.stations.contains_key(&station) {
            self.make_room(now_ns);
        }
        let neighbor = self.stations.entry(station).or_insert(Neighbor { hardware: None, asked_ns: None });
        let Some((since_ns, last_ns)) = &mut neighbor.asked_ns else {
            neighbor.asked_ns = Some((now_ns, now_ns));
            return true;
        };
        if now_ns.saturating_sub(*last_ns) < ASK_INTERVAL_NS {
            return false;
        }
        if now_ns.saturating_sub(*last_ns) >= FORGIVEN_NS {
            *since_ns = now_ns;
        }
        *last_ns = now_ns;
        if now_ns.saturating_sub(*since_ns) >= SILENCE_NS && neighbor.hardware.take().is_some() {
            // All that goes there finds out now, not each by its own losses.
            self.generation = self.generation.wrapping_add(1);
        }
        true
    }

    /// Takes in an ARP packet that has arrived, and tells whether a station is known now that was not.
    pub fn on_packet(&mut self, packet: &[u8], own: Option<Ipv4Addr>) -> bool {
        let Ok(packet) = ArpPacket::new_checked(packet) else { return false };
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: hardware,
            source_protocol_addr: station,
            target_protocol_addr: target,
            ..
        }) = ArpRepr::parse(&packet)
        else {
            return false;
        };
        if !hardware.is_unicast() || !is_host(station) || Some(station) == own {
            return false;
        }
        // RFC 826: what is known already is updated by any packet; a new station is of use only if it speaks to us.
        let is_for_us = operation == ArpOperation::Request && Some(target) == own;
        let unknown = if is_for_us { Unknown::Added } else { Unknown::Ignored };
        self.learn(station.into(), hardware, unknown)
    }

    /// Takes in where a station is, and tells whether that was not known.
    pub fn learn(&mut self, station: IpAddr, hardware: EthernetAddress, unknown: Unknown) -> bool {
        if !self.stations.contains_key(&station) {
            // Only one that is asked for takes the place of another: anybody can make stations up that speak to us.
            if unknown == Unknown::Ignored || self.stations.len() >= self.most {
                return false;
            }
        }
        let found = Neighbor { hardware: Some(hardware), asked_ns: None };
        match self.stations.insert(station, found).map(|known| known.hardware) {
            Some(Some(known)) if known == hardware => false,
            Some(Some(_)) => {
                self.generation = self.generation.wrapping_add(1);
                true
            }
            _ => true,
        }
    }

    /// Forgets all stations of IPv4: the link or the own address is another one.
    pub fn clear_ipv4(&mut self) {
        self.keep(&|station, _| station.is_ipv6());
        self.generation = self.generation.wrapping_add(1);
    }

    /// Forgets those that do not answer. If these are few, those that are known: connections to them know the way. Those that
    /// were asked for a moment ago, whose answer would not be listened to, only if there is hardly anybody else.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, now_ns: u64) {
        let enough = self.most - self.most / FORGOTTEN_DIVISOR;
        self.keep(&|_, neighbor| {
            let is_new = |(_, last_ns)| now_ns.saturating_sub(last_ns) < ASK_INTERVAL_NS;
            neighbor.hardware.is_some() || neighbor.asked_ns.is_some_and(is_new)
        });
        if self.stations.len() > enough {
            self.keep(&|_, neighbor| neighbor.hardware.is_none());
        }
        if self.stations.len() > enough {
            self.stations = BTreeMap::new();
        }
    }

    #[inline(never)]
    fn keep(&mut self, is_kept: &dyn Fn(&IpAddr, &Neighbor) -> bool) {
        self.stations.retain(|station, neighbor| is_kept(station, neighbor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    /// A table for a thousand connections, that many of which are to stations that are known.
    fn known(count: u32) -> Neighbors {
        let mut neighbors = Neighbors::new(1000);
        for number in 0..count {
            assert!(neighbors.ask(station(number), 0));
            assert!(neighbors.learn(station(number), EthernetAddress([2, 0, 0, 0, 0, 1]), Unknown::Ignored));
        }
        assert!((0..count).all(|number| neighbors.get(station(number)).is_some()));
        neighbors
    }

    #[test]
    fn who_was_asked_for_is_listened_to_and_ways_stay() {
        let mut neighbors = known(1000);
        let generation = neighbors.generation();
        for number in 1000..1900 {
            assert!(neighbors.ask(station(number), 1));
        }
        assert!((1000..1900).all(|number| neighbors.awaits(station(number))));
        assert!((1000..1900).all(|number| !neighbors.ask(station(number), ASK_INTERVAL_NS)), "once a second");
        for number in 2000..20_000 {
            neighbors.ask(station(number), ASK_INTERVAL_NS);
            assert!(neighbors.stations.len() <= 1000);
        }
        assert_eq!(neighbors.generation(), generation, "nobody has moved");
    }

    /// RFC 4861 §7.3.3: what was known of a station counts until it has been silent for three questions.
    #[test]
    fn who_does_not_answer_is_forgotten() {
        let mut neighbors = known(2);
        for second in 1..=4 {
            assert!(neighbors.get(station(0)).is_some(), "{second}");
            assert!(neighbors.ask(station(0), second * ASK_INTERVAL_NS));
            assert!(!neighbors.ask(station(0), second * ASK_INTERVAL_NS + 1));
            // Who answers stays.
            assert!(neighbors.ask(station(1), second * ASK_INTERVAL_NS));
            assert!(!neighbors.learn(station(1), EthernetAddress([2, 0, 0, 0, 0, 1]), Unknown::Ignored));
        }
        assert!(neighbors.get(station(0)).is_none() && neighbors.get(station(1)).is_some());
        assert!(neighbors.awaits(station(0)));
        assert!(neighbors.ask(station(0), 5 * ASK_INTERVAL_NS));
        assert!(neighbors.learn(station(0), EthernetAddress([2, 0, 0, 0, 0, 2]), Unknown::Ignored));
    }

    #[test]
    fn who_does_not_answer_makes_way_for_others() {
        let mut neighbors = known(500);
        (500..1000).for_each(|number| assert!(neighbors.ask(station(number), 0)));
        assert!(neighbors.ask(station(1000), ASK_INTERVAL_NS));
        assert!((0..500).all(|number| neighbors.get(station(number)).is_some()));
        assert_eq!(neighbors.stations.len(), 501);
    }
}
