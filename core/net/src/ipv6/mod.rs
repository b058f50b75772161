//! IPv6 as a server needs it: its addresses (RFC 4862), neighbors and routers (RFC 4861), and ICMPv6 (RFC 4443).
//!
//! An interface's identifier comes from its Ethernet address (RFC 4291, appendix A). RFC 7217 wants a secret that outlives
//! a start, and an image has nothing to keep one in: with another secret each time a server would move at each start, and
//! a hash of the Ethernet address alone hides nothing.

mod groups;
mod header;
mod message;
#[cfg(test)]
mod tests;

pub(crate) use header::{HEADER_BYTES, PROTOCOL_ICMPV6, address_at, classify_ipv6};
pub(crate) use message::solicit;

use self::{
    groups::{Asked, Record, Version},
    message::{
        ALL_NODES, ALL_ROUTERS, ECHO_REPLY, ECHO_REQUEST, MTU, NEIGHBOR_ADVERTISEMENT, NEIGHBOR_SOLICITATION,
        ON_LINK_HOP_LIMIT, OVERRIDE, Options, PACKET_TOO_BIG, PREFIX, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION,
        SOLICITED, SOURCE_LINK_ADDRESS, TARGET_LINK_ADDRESS, about, link_address_option, solicited_node, target_of,
    },
};
use crate::{
    ends::{Ends, is_host6},
    frame::{HOP_LIMIT, Icmpv6, PROTOCOL_TCP, Route, TooLarge, quoted_flow},
    icmp,
    neighbors::{Neighbors, Unknown},
    tcp::NEVER_NS,
};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use kayvee_platform::{Addressing6, FrameTx};
use smoltcp::wire::EthernetAddress;

const SECOND_NS: u64 = 1_000_000_000;
/// Routers that are kept, and of what each of them announces so many prefixes and addresses: one that makes them up leaves
/// room for the others'.
const MAX_ROUTERS: usize = 3;
const MAX_OF_ROUTER: usize = 3;
const MAX_ANNOUNCED: usize = MAX_ROUTERS * MAX_OF_ROUTER;
/// How long another station may take to object to an address (RFC 4861 §10, RETRANS_TIMER).
const OBJECTION_NS: u64 = SECOND_NS;
/// How often and at what intervals routers are asked to announce themselves (RFC 4861 §10).
const MAX_SOLICITATIONS: u8 = 3;
const SOLICITATION_INTERVAL_NS: u64 = 4 * SECOND_NS;
/// What every link carries (RFC 8200 §5), and what one of Ethernet does.
pub(crate) const MIN_MTU: u16 = 1280;
const LINK_LOCAL_PREFIX: u128 = 0xfe80 << 112;
/// Prefixes with room for an interface's identifier (RFC 4291 §2.5.1).
const IDENTIFIER_BITS: u8 = 64;

/// An address that the station has, or wants to have.
#[derive(Clone, Copy, Debug)]
struct Own {
    address: Ipv6Addr,
    prefix_bits: u8,
    stage: Stage,
    /// What is sent first comes from an address that is preferred.
    preferred_until_ns: u64,
    valid_until_ns: u64,
    /// The router that has announced its prefix, if one has.
    router: Option<Ipv6Addr>,
}

/// What is on the link.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    address: Ipv6Addr,
    bits: u8,
    until_ns: u64,
    /// The router that has announced it, if one has.
    router: Option<Ipv6Addr>,
}

/// Whether an address is known to be nobody else's (RFC 4862 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody was asked.
    Wanted,
    /// Whoever has it may object until then.
    Tentative { until_ns: u64 },
    /// It is the station's.
    Assigned,
}

/// The station's addresses.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Vec<Own>);

impl Addresses {
    /// Whether an address is the station's.
    #[inline]
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        self.0.iter().any(|own| own.address == address && own.stage == Stage::Assigned)
    }

    /// Whether the station is in a group, with addresses that are tentative as well.
    #[inline]
    pub fn is_group(&self, group: Ipv6Addr) -> bool {
        let is_asked = |own: &Own| group == ALL_NODES || group == solicited_node(own.address);
        group.is_multicast() && self.0.iter().any(is_asked)
    }
}

/// What is new about addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Acquired { address: Ipv6Addr, prefix_bits: u8 },
    Lost(Ipv6Addr),
}

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing that concerns anything else.
    Done,
    /// A neighbor is known now.
    Resolved,
    /// The way to a peer carries less.
    TooLarge(TooLarge),
}

/// The station on an IPv6 network.
#[derive(Debug)]
pub(crate) struct Ipv6 {
    mac: EthernetAddress,
    /// Routers are believed.
    is_auto: bool,
    addresses: Addresses,
    prefixes: Vec<Prefix>,
    /// The ways out, and until when they are (RFC 4861 §5.1).
    routers: Vec<(Ipv6Addr, u64)>,
    /// The largest packet that the link carries ...
    link_mtu: u16,
    /// ... and that routers want on it.
    mtu: u16,
    solicitations_left: u8,
    solicit_at_ns: u64,
    /// Somebody wants to know the station's groups.
    asked: Option<Asked>,
    deadline_ns: u64,
}

impl Ipv6 {
    #[inline(never)]
    pub fn new(addressing: Addressing6, mac: EthernetAddress, mtu: u16, now_ns: u64) -> Ipv6 {
        let mut ipv6 = Ipv6 {
            mac,
            is_auto: addressing == Addressing6::Auto,
            addresses: Addresses::default(),
            prefixes: Vec::new(),
            routers: Vec::new(),
            link_mtu: mtu,
            mtu,
            solicitations_left: 0,
            solicit_at_ns: NEVER_NS,
            asked: None,
            deadline_ns: NEVER_NS,
        };
        if addressing == Addressing6::Off {
            return ipv6;
        }
        ipv6.want(ipv6.with_identifier(LINK_LOCAL_PREFIX), IDENTIFIER_BITS);
        if let Addressing6::Static { address, prefix_bits, gateway } = addressing {
            ipv6.want(address, prefix_bits);
            ipv6.prefixes.push(Prefix { address, bits: prefix_bits, until_ns: NEVER_NS, router: None });
            ipv6.routers.extend(gateway.map(|gateway| (gateway, NEVER_NS)));
        } else {
            (ipv6.solicitations_left, ipv6.solicit_at_ns) = (MAX_SOLICITATIONS, now_ns);
        }
        ipv6.deadline_ns = now_ns;
        ipv6
    }

    /// Takes the addresses that are wanted now as nobody else's.
    pub fn ask_nobody(&mut self) {
        for own in &mut self.addresses.0 {
            own.stage = Stage::Tentative { until_ns: 0 };
        }
    }

    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Bytes of the largest packet that is sent and received.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// When [`run`](Self::run) has something to do.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns != NEVER_NS).then_some(self.deadline_ns)
    }

    /// The address to connect from (RFC 6724 §5: of the same scope, not deprecated, and with the longest prefix in common).
    #[inline(never)]
    pub fn source_for(&self, remote: Ipv6Addr, now_ns: u64) -> Option<Ipv6Addr> {
        let fits = |own: &&Own| {
            let is_local = own.address.is_unicast_link_local();
            own.stage == Stage::Assigned && is_local == remote.is_unicast_link_local()
        };
        let rank =
            |own: &&Own| (own.preferred_until_ns > now_ns, (own.address.to_bits() ^ remote.to_bits()).leading_zeros());
        self.addresses.0.iter().filter(fits).max_by_key(rank).map(|own| own.address)
    }

    /// Whom to give a packet for `remote` to: the station itself, or a router (RFC 4861 §5.2).
    pub fn next_hop(&self, remote: Ipv6Addr, neighbors: &Neighbors, now_ns: u64) -> Option<Ipv6Addr> {
        let holds = |prefix: &Prefix| prefix.until_ns > now_ns && prefix.contains(remote);
        if remote.is_unicast_link_local() || self.prefixes.iter().any(holds) {
            return Some(remote);
        }
        let routers = self.routers.iter().filter(|(_, until_ns)| *until_ns > now_ns);
        // One that has been asked for and has not answered may be gone (§6.3.6).
        routers.map(|(router, _)| *router).min_by_key(|router| neighbors.awaits((*router).into()))
    }

    /// Does what is due, and returns a change. To be called until there is none.
    #[inline]
    pub fn run(&mut self, tx: &mut impl FrameTx, now_ns: u64) -> Option<Change> {
        if self.deadline_ns > now_ns || !tx.ready() {
            return None;
        }
        self.run_due(tx, now_ns)
    }

    #[inline(never)]
    fn run_due(&mut self, tx: &mut impl FrameTx, now_ns: u64) -> Option<Change> {
        let change = self.advance(tx, now_ns);
        self.solicit_routers(tx, now_ns);
        self.answer_groups(tx, now_ns);
        self.note_deadline();
        change
    }

    fn note_deadline(&mut self) {
        let due = |own: &Own| match own.stage {
            Stage::Wanted => 0,
            Stage::Tentative { until_ns } => until_ns,
            Stage::Assigned => own.valid_until_ns,
        };
        let asked_ns = self.asked.map_or(NEVER_NS, |asked| asked.at_ns);
        self.deadline_ns = self.addresses.0.iter().map(due).fold(self.solicit_at_ns.min(asked_ns), u64::min);
    }

    /// Brings the first address on that has something due.
    fn advance(&mut self, tx: &mut impl FrameTx, now_ns: u64) -> Option<Change> {
        if let Some(at) = self.addresses.0.iter().position(|own| own.valid_until_ns <= now_ns) {
            let own = self.addresses.0.swap_remove(at);
            return (own.stage == Stage::Assigned).then_some(Change::Lost(own.address));
        }
        let sender = self.sender();
        // Twice, as one may be lost (RFC 3810 §9.1), and the second one from an address if there is one (RFC 3590 §4).
        let join = |tx: &mut _, sender, address| {
            groups::report(tx, self.mac, sender, (Version::Two, Record::Joins), [address].into_iter())
        };
        for own in &mut self.addresses.0 {
            match own.stage {
                Stage::Wanted => {
                    join(tx, sender, own.address);
                    // From nobody, and so without an address to answer to (RFC 4862 §5.4.2).
                    let question = about(NEIGHBOR_SOLICITATION, 0, own.address);
                    let group = solicited_node(own.address);
                    if message::send_to_group(tx, self.mac, Ipv6Addr::UNSPECIFIED, group, [&question, &[]]) {
                        own.stage = Stage::Tentative { until_ns: now_ns.saturating_add(OBJECTION_NS) };
                    }
                }
                Stage::Tentative { until_ns } if until_ns <= now_ns => {
                    own.stage = Stage::Assigned;
                    let is_link_local = own.address.is_unicast_link_local();
                    join(tx, if is_link_local { own.address } else { sender }, own.address);
                    // For those that remember another station at it (RFC 4861 §7.2.6).
                    let answer = about(NEIGHBOR_ADVERTISEMENT, OVERRIDE, own.address);
                    let option = link_address_option(TARGET_LINK_ADDRESS, self.mac);
                    message::send_to_group(tx, self.mac, own.address, ALL_NODES, [&answer, &option]);
                    return Some(Change::Acquired { address: own.address, prefix_bits: own.prefix_bits });
                }
                _ => {}
            }
        }
        None
    }

    /// The link's own address, or none yet.
    fn sender(&self) -> Ipv6Addr {
        let assigned = self.addresses.0.iter().filter(|own| own.stage == Stage::Assigned);
        let mut own = assigned.map(|own| own.address).filter(Ipv6Addr::is_unicast_link_local);
        own.next().unwrap_or(Ipv6Addr::UNSPECIFIED)
    }

    /// Tells who has asked which groups the station is in.
    fn answer_groups(&mut self, tx: &mut impl FrameTx, now_ns: u64) {
        let Some(asked) = self.asked.filter(|asked| asked.at_ns <= now_ns) else { return };
        let addresses = self.addresses.0.iter().map(|own| own.address);
        if groups::report(tx, self.mac, self.sender(), (asked.version, Record::IsIn), addresses) {
            self.asked = None;
        }
    }

    /// Somebody asks for groups. All are told of, and what is to be told soon anyway is not told twice.
    fn on_group_query(&mut self, packet: &Icmpv6<'_>, now_ns: u64) {
        let Some(asked) = Asked::read(packet, self.mac, now_ns) else { return };
        let concerns = groups::group_of(packet).is_none_or(|group| self.addresses.is_group(group));
        if concerns && self.asked.is_none_or(|known| asked.at_ns < known.at_ns) {
            self.asked = Some(asked);
        }
    }

    /// Asks routers to announce themselves (RFC 4861 §6.3.7), for the first time before there is an address to ask from.
    fn solicit_routers(&mut self, tx: &mut impl FrameTx, now_ns: u64) {
        if self.solicit_at_ns > now_ns {
            return;
        }
        let question = [ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        let option = link_address_option(SOURCE_LINK_ADDRESS, self.mac);
        let sent = match self.source_for(Ipv6Addr::from_bits(LINK_LOCAL_PREFIX), now_ns) {
            Some(own) => message::send_to_group(tx, self.mac, own, ALL_ROUTERS, [&question, &option]),
            None => message::send_to_group(tx, self.mac, Ipv6Addr::UNSPECIFIED, ALL_ROUTERS, [&question, &[]]),
        };
        if sent {
            self.solicitations_left = self.solicitations_left.saturating_sub(1);
            let next_ns = now_ns.saturating_add(SOLICITATION_INTERVAL_NS);
            self.solicit_at_ns = if self.solicitations_left > 0 { next_ns } else { NEVER_NS };
        }
    }

    /// Takes a message, and answers it.
    #[inline(never)]
    pub fn receive(
        &mut self,
        packet: &Icmpv6<'_>,
        neighbors: &mut Neighbors,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) -> Outcome {
        let &[kind, code, _, _, _, _, _, _, ..] = packet.message else { return Outcome::Done };
        let is_on_link = packet.hop_limit == ON_LINK_HOP_LIMIT && code == 0 && packet.hardware.is_unicast();
        let resolved = match kind {
            PACKET_TOO_BIG => return self.parse_too_large(packet).map_or(Outcome::Done, Outcome::TooLarge),
            ECHO_REQUEST if self.addresses.contains(packet.destination) && is_host6(packet.source) => {
                let answer = [&[ECHO_REPLY, 0, 0, 0], &packet.message[4..]];
                // To where it came from.
                let ends = Ends::V6 { own: packet.destination, remote: packet.source };
                let route = Route { mac: self.mac, hardware: packet.hardware, ends: &ends };
                icmp::send(tx, &route, HOP_LIMIT, answer);
                None
            }
            groups::QUERY => {
                self.on_group_query(packet, now_ns);
                None
            }
            NEIGHBOR_SOLICITATION if is_on_link => self.on_solicitation(packet, neighbors, tx),
            NEIGHBOR_ADVERTISEMENT if is_on_link => self.on_advertisement(packet, neighbors),
            ROUTER_ADVERTISEMENT if is_on_link && self.is_auto => self.on_router(packet, neighbors, now_ns),
            _ => None,
        };
        self.note_deadline();
        if resolved == Some(true) { Outcome::Resolved } else { Outcome::Done }
    }

    /// RFC 8201 §4. What would do less than every link does is nothing that a router says.
    fn parse_too_large(&self, packet: &Icmpv6<'_>) -> Option<TooLarge> {
        let (head, quoted) = packet.message.split_first_chunk::<8>()?;
        let mtu = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        let (ip, tcp) = quoted.split_first_chunk::<HEADER_BYTES>()?;
        let (own, remote) = (address_at(ip, 8), address_at(ip, 24));
        if mtu < u32::from(MIN_MTU) || ip[0] >> 4 != 6 || ip[6] != PROTOCOL_TCP || own != packet.destination {
            return None;
        }
        let (flow, seq) = quoted_flow(Ends::V6 { own, remote }, tcp)?;
        Some(TooLarge { flow, seq, packet_bytes: u16::try_from(mtu).unwrap_or(u16::MAX) })
    }

    /// Somebody asks where an address is (RFC 4861 §7.1.1 and §7.2.3), or whether it may have it (RFC 4862 §5.4.3). Returns
    /// whether a neighbor is known now.
    fn on_solicitation(
        &mut self,
        packet: &Icmpv6<'_>,
        neighbors: &mut Neighbors,
        tx: &mut impl FrameTx,
    ) -> Option<bool> {
        let link_address = Options::behind(packet.message, 24)?.link_address(SOURCE_LINK_ADDRESS);
        let target = target_of(packet.message);
        let is_from_nobody = packet.source.is_unspecified();
        if is_from_nobody && (packet.destination != solicited_node(target) || link_address.is_some()) {
            return None;
        }
        let own = self.addresses.0.iter().find(|own| own.address == target)?;
        if own.stage != Stage::Assigned {
            // A question of its own comes back from a link that loops.
            if is_from_nobody && packet.hardware != self.mac {
                self.give_up(target);
            }
            return None;
        }
        let option = link_address_option(TARGET_LINK_ADDRESS, self.mac);
        if is_from_nobody {
            let answer = about(NEIGHBOR_ADVERTISEMENT, OVERRIDE, target);
            message::send_to_group(tx, self.mac, target, ALL_NODES, [&answer, &option]);
            return None;
        }
        let answer = about(NEIGHBOR_ADVERTISEMENT, SOLICITED | OVERRIDE, target);
        let ends = Ends::V6 { own: target, remote: packet.source };
        let route = Route { mac: self.mac, hardware: link_address.unwrap_or(packet.hardware), ends: &ends };
        icmp::send(tx, &route, ON_LINK_HOP_LIMIT, [&answer, &option]);
        Some(neighbors.learn(packet.source.into(), link_address?, Unknown::Added))
    }

    /// A neighbor says where it is (RFC 4861 §7.1.2 and §7.2.5). Nobody is believed who was not asked.
    fn on_advertisement(&mut self, packet: &Icmpv6<'_>, neighbors: &mut Neighbors) -> Option<bool> {
        let link_address = Options::behind(packet.message, 24)?.link_address(TARGET_LINK_ADDRESS);
        let (target, flags) = (target_of(packet.message), packet.message[4]);
        if !is_host6(target) || packet.destination.is_multicast() && flags & SOLICITED != 0 {
            return None;
        }
        if let Some(own) = self.addresses.0.iter().find(|own| own.address == target) {
            if own.stage != Stage::Assigned && packet.hardware != self.mac {
                self.give_up(target);
            }
            return None;
        }
        let link_address = link_address?;
        let is_elsewhere = neighbors.get(target.into()).is_some_and(|known| known != link_address);
        if is_elsewhere && flags & OVERRIDE == 0 {
            return None;
        }
        Some(neighbors.learn(target.into(), link_address, Unknown::Ignored))
    }

    /// Does without an address that another station has (RFC 4862 §5.4.5).
    fn give_up(&mut self, address: Ipv6Addr) {
        log::warn!("net: {address} is another station's, and not used");
        if address.is_unicast_link_local() {
            // It comes from the Ethernet address, and so do others.
            (self.is_auto, self.solicit_at_ns) = (false, NEVER_NS);
            self.addresses.0.clear();
        }
        self.addresses.0.retain(|own| own.address != address);
    }

    /// A router announces itself (RFC 4861 §6.1.2 and §6.3.4). Returns whether a neighbor is known now.
    fn on_router(&mut self, packet: &Icmpv6<'_>, neighbors: &mut Neighbors, now_ns: u64) -> Option<bool> {
        let options = Options::behind(packet.message, 16)?;
        if !packet.source.is_unicast_link_local() {
            return None;
        }
        let lifetime_s = u16::from_be_bytes([packet.message[6], packet.message[7]]);
        self.note_router(packet.source, until_ns(lifetime_s.into(), now_ns), neighbors, now_ns);
        if lifetime_s > 0 {
            self.solicit_at_ns = NEVER_NS;
        }
        for option in options {
            match (option[0], option.len()) {
                (MTU, 8) => {
                    let mtu = u32::from_be_bytes([option[4], option[5], option[6], option[7]]);
                    if (u32::from(MIN_MTU)..=u32::from(self.link_mtu)).contains(&mtu) {
                        self.mtu = mtu as u16;
                    }
                }
                (PREFIX, 32) => self.on_prefix(option, packet.source, now_ns),
                _ => {}
            }
        }
        let link_address = options.link_address(SOURCE_LINK_ADDRESS)?;
        Some(neighbors.learn(packet.source.into(), link_address, Unknown::Added))
    }

    /// Keeps a router for so long, or not at all (RFC 4861 §6.3.4 and §6.3.5).
    fn note_router(&mut self, router: Ipv6Addr, until_ns: u64, neighbors: &mut Neighbors, now_ns: u64) {
        let known = self.routers.iter_mut().find(|(known, _)| *known == router);
        let is_known = known.map(|known| known.1 = until_ns).is_some();
        let before = self.routers.len();
        self.routers.retain(|(_, until_ns)| *until_ns > now_ns);
        if self.routers.len() < before {
            neighbors.forget_ways();
        }
        if !is_known && until_ns > now_ns && self.routers.len() < MAX_ROUTERS {
            self.routers.push((router, until_ns));
        }
    }

    /// RFC 4861 §6.3.4 for what is on the link, RFC 4862 §5.5.3 for an address.
    fn on_prefix(&mut self, option: &[u8], router: Ipv6Addr, now_ns: u64) {
        const ON_LINK: u8 = 0x80;
        const AUTONOMOUS: u8 = 0x40;
        let seconds = |at: usize| u32::from_be_bytes([option[at], option[at + 1], option[at + 2], option[at + 3]]);
        let (bits, flags, valid_s, preferred_s) = (option[2], option[3], seconds(4), seconds(8));
        let prefix = address_at(option, 16);
        if bits > 128 || prefix.is_unicast_link_local() || prefix.is_multicast() {
            return;
        }
        let valid_until_ns = until_ns(valid_s, now_ns);
        if flags & ON_LINK != 0 {
            self.prefixes.retain(|known| known.until_ns > now_ns);
            let may_add = valid_s > 0 && has_room(self.prefixes.iter().map(|known| known.router), router);
            match self.prefixes.iter_mut().find(|known| known.bits == bits && known.contains(prefix)) {
                Some(known) => known.until_ns = valid_until_ns,
                None if may_add => {
                    let (address, until_ns, router) = (prefix, valid_until_ns, Some(router));
                    self.prefixes.push(Prefix { address, bits, until_ns, router });
                }
                None => {}
            }
        }
        if flags & AUTONOMOUS == 0 || bits != IDENTIFIER_BITS || preferred_s > valid_s {
            return;
        }
        let address = self.with_identifier(prefix.to_bits());
        let preferred_until_ns = until_ns(preferred_s, now_ns);
        let may_want = valid_s > 0 && has_room(self.addresses.0.iter().map(|own| own.router), router);
        match self.addresses.0.iter_mut().find(|own| own.address == address) {
            Some(own) => {
                // A forged lifetime that is short does not end an address soon (§5.5.3 (e)).
                const LEAST_NS: u64 = 2 * 3600 * SECOND_NS;
                own.preferred_until_ns = preferred_until_ns;
                let least_ns = own.valid_until_ns.min(now_ns.saturating_add(LEAST_NS));
                own.valid_until_ns = valid_until_ns.max(least_ns);
            }
            None if may_want => {
                let (stage, router) = (Stage::Wanted, Some(router));
                self.addresses.0.push(Own {
                    address,
                    prefix_bits: bits,
                    stage,
                    preferred_until_ns,
                    valid_until_ns,
                    router,
                });
            }
            None => {}
        }
    }

    /// Wants an address for good.
    fn want(&mut self, address: Ipv6Addr, prefix_bits: u8) {
        self.addresses.0.push(Own {
            address,
            prefix_bits,
            stage: Stage::Wanted,
            preferred_until_ns: NEVER_NS,
            valid_until_ns: NEVER_NS,
            router: None,
        });
    }

    /// The address in a prefix that is this interface's (RFC 4291, appendix A).
    fn with_identifier(&self, prefix: u128) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac.0;
        let identifier = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        Ipv6Addr::from_bits(prefix >> IDENTIFIER_BITS << IDENTIFIER_BITS | u128::from(identifier))
    }
}

/// The end of a lifetime, of which one is infinite (RFC 4861 §4.6.2).
fn until_ns(lifetime_s: u32, now_ns: u64) -> u64 {
    match lifetime_s {
        u32::MAX => NEVER_NS,
        seconds => now_ns.saturating_add(u64::from(seconds) * SECOND_NS),
    }
}

impl Prefix {
    fn contains(&self, address: Ipv6Addr) -> bool {
        (address.to_bits() ^ self.address.to_bits()).checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

/// Whether there is room for one more from a router, beside what these have announced.
fn has_room(routers: impl Iterator<Item = Option<Ipv6Addr>>, router: Ipv6Addr) -> bool {
    let (mut all, mut own) = (0, 0);
    for announced in routers.flatten() {
        all += 1;
        own += usize::from(announced == router);
    }
    all < MAX_ANNOUNCED && own < MAX_OF_ROUTER
}
