//! Ethernet addresses of stations on the link (RFC 826, RFC 4861), for the segments that the stack sends itself.
//!
//! An entry has no lifetime. It is replaced when its station says otherwise, and asked for again when a connection to it
//! makes no progress (RFC 1122 §2.3.2.1, method 4).

use crate::ends::is_host;
use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr};
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

/// Stations that are known at a time.
const MAX_NEIGHBORS: usize = 512;
/// How often one station is asked for (RFC 1122 §2.3.2.1: at most once a second).
pub(crate) const ASK_INTERVAL_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Neighbor {
    hardware: Option<EthernetAddress>,
    /// When it was heard of, or asked for first.
    since_ns: u64,
    asked_ns: Option<u64>,
}

/// What becomes of a station that was not asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It speaks to us, so we shall speak to it.
    Added,
    Ignored,
}

/// The stations on the link.
#[derive(Debug, Default)]
pub(crate) struct Neighbors {
    stations: BTreeMap<IpAddr, Neighbor>,
    /// Changes whenever an address that was given out may have become wrong.
    generation: u32,
}

impl Neighbors {
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

    /// Whether to ask for a station now. To be followed by the question.
    pub fn ask(&mut self, station: IpAddr, now_ns: u64) -> bool {
        if !self.stations.contains_key(&station) {
            self.make_room();
        }
        let unknown = Neighbor { hardware: None, since_ns: now_ns, asked_ns: None };
        let neighbor = self.stations.entry(station).or_insert(unknown);
        let is_due = neighbor.asked_ns.is_none_or(|asked_ns| now_ns.saturating_sub(asked_ns) >= ASK_INTERVAL_NS);
        if is_due {
            neighbor.asked_ns = Some(now_ns);
        }
        is_due
    }

    /// Takes in an ARP packet that has arrived, and tells whether a station is known now that was not.
    pub fn on_packet(&mut self, packet: &[u8], own: Option<Ipv4Addr>, now_ns: u64) -> bool {
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
        self.learn(station.into(), hardware, unknown, now_ns)
    }

    /// Takes in where a station is, and tells whether that was not known.
    pub fn learn(&mut self, station: IpAddr, hardware: EthernetAddress, unknown: Unknown, now_ns: u64) -> bool {
        if !self.stations.contains_key(&station) {
            // Only one that is asked for takes the place of another: anybody can make stations up that speak to us.
            if unknown == Unknown::Ignored || self.stations.len() >= MAX_NEIGHBORS {
                return false;
            }
        }
        let found = Neighbor { hardware: Some(hardware), since_ns: now_ns, asked_ns: None };
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
        self.stations.retain(|station, _| station.is_ipv6());
        self.generation = self.generation.wrapping_add(1);
    }

    /// Forgets the station that was heard of least recently, those first that were never heard of.
    fn make_room(&mut self) {
        if self.stations.len() < MAX_NEIGHBORS {
            return;
        }
        let age = |(_, neighbor): &(&IpAddr, &Neighbor)| (neighbor.hardware.is_some(), neighbor.since_ns);
        if let Some(oldest) = self.stations.iter().min_by_key(age).map(|(station, _)| *station) {
            self.stations.remove(&oldest);
            self.generation = self.generation.wrapping_add(1);
        }
    }
}
