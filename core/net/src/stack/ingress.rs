//! What arrives, and to whom it belongs.

use super::{
    ConnectionId, Stack, Take,
    table::{Expendable, enlist, note_expendable},
};
use crate::{
    cookies,
    ends::FlowKey,
    frame::{self, Class, Datagram, Icmpv6, Packet, Route, TooLarge, Unusable, classify},
    icmp::{Unreachable, send_unreachable},
    ipv6::Outcome,
    tcp::{
        Connection, Origin, Owner, Verdict,
        segment::{Flags, Segment},
    },
};
use core::net::SocketAddr;
use kayvee_platform::{FrameTx, MAX_FRAME_BYTES, Received};

/// Where a segment belongs.
enum Place {
    /// To a connection.
    Connection(u32),
    /// To nothing.
    None,
    /// To a handshake that there are too many of.
    Cookie,
    /// To nothing, or to a connection that nothing was kept of.
    Unclear,
}

impl Stack {
    /// Handles one frame. Its memory may be shared with the device: headers are copied out of it once, and a device that
    /// changes data behind its checksum could as well have sent other data.
    #[inline]
    pub(super) fn receive_frame(
        &mut self,
        frame: &Received<'_>,
        tx: &mut impl FrameTx,
        take: &mut impl Take,
        now_ns: u64,
    ) {
        let bytes = frame.head;
        let own = self.lease.map(|lease| lease.address);
        self.resources.counters.frames_received += 1;
        match &classify(frame, self.mac, own, self.ipv6.addresses()) {
            Class::Dhcp(packet) if self.control.is_dhcp_client() => {
                match frame::parse_datagram(packet, frame, self.checksums) {
                    Ok(_) => self.control.receive(bytes, tx, now_ns),
                    Err(unusable) => self.drop_unusable(unusable),
                }
            }
            Class::Dhcp(_) | Class::Ignored => {}
            Class::Malformed => self.resources.counters.dropped_malformed += 1,
            Class::Damaged => self.resources.counters.dropped_checksum += 1,
            Class::Tcp(packet) => self.receive_packet(packet, frame, tx, take, now_ns),
            Class::Udp(packet) => self.receive_datagram(packet, frame, tx, take, now_ns),
            Class::Arp(packet) => {
                if self.neighbors.on_packet(packet, own) {
                    self.touch_unresolved();
                }
                self.control.receive(bytes, tx, now_ns);
            }
            // An answer to it would have no room in a frame.
            Class::Icmp(..) | Class::Icmpv6(_) if bytes.len() > MAX_FRAME_BYTES => {
                self.resources.counters.dropped_malformed += 1;
            }
            Class::Icmp(own, message) => {
                if let Some(too_large) = frame::parse_too_large(message, *own) {
                    self.reduce_path_mtu(too_large);
                } else if !self.icmp.allows(now_ns) {
                    self.resources.counters.dropped_rate_limit += 1;
                } else {
                    self.control.receive(bytes, tx, now_ns);
                }
            }
            Class::Icmpv6(packet) => self.receive_icmpv6(packet, tx, now_ns),
            Class::Unserved(packet) => self.send_unreachable(packet, Unreachable::Protocol, frame, tx, now_ns),
        }
    }

    /// Answers a datagram at once, to where it came from.
    fn receive_datagram(
        &mut self,
        packet: &Packet<'_>,
        frame: &Received<'_>,
        tx: &mut impl FrameTx,
        take: &mut impl Take,
        now_ns: u64,
    ) {
        let Datagram { source_port, destination_port, data } =
            match frame::parse_datagram(packet, frame, self.checksums) {
                Ok(datagram) => datagram,
                Err(unusable) => return self.drop_unusable(unusable),
            };
        if !self.datagram_ports.contains(&destination_port) {
            return self.send_unreachable(packet, Unreachable::Port, frame, tx, now_ns);
        }
        self.resources.counters.datagrams_received += 1;
        let mut reply = [0; frame::MAX_DATAGRAM_BYTES];
        let room = frame::room_for_datagram(&packet.ends, self.mtu(packet.ends));
        let remote = SocketAddr::new(packet.ends.remote(), source_port);
        let Some(len) = take.datagram(destination_port, remote, data, &mut reply[..room]) else { return };
        let answer = Datagram { source_port: destination_port, destination_port: source_port, data: &reply[..len] };
        let sent = frame::send_datagram(tx, &self.way_back(packet), &answer);
        self.resources.counters.datagrams_sent += u64::from(sent);
    }

    /// Tells who sent a packet that nobody takes it, up to a limit (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
    #[inline(never)]
    fn send_unreachable(
        &mut self,
        packet: &Packet<'_>,
        what: Unreachable,
        frame: &Received<'_>,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) {
        if self.icmp.allows(now_ns) {
            send_unreachable(tx, &self.way_back(packet), what, &frame.head[frame::ETHERNET_BYTES..]);
        } else {
            self.resources.counters.dropped_rate_limit += 1;
        }
    }

    fn drop_unusable(&mut self, unusable: Unusable) {
        match unusable {
            Unusable::Damaged => self.resources.counters.dropped_checksum += 1,
            Unusable::Malformed => self.resources.counters.dropped_malformed += 1,
        }
    }

    /// Messages that may come from anywhere are looked at up to a limit.
    #[inline(never)]
    fn receive_icmpv6(&mut self, packet: &Icmpv6<'_>, tx: &mut impl FrameTx, now_ns: u64) {
        if !packet.is_unlimited() && !self.icmp.allows(now_ns) {
            self.resources.counters.dropped_rate_limit += 1;
            return;
        }
        match self.ipv6.receive(packet, &mut self.neighbors, tx, now_ns) {
            Outcome::Done => {}
            Outcome::Resolved => self.touch_unresolved(),
            Outcome::TooLarge(too_large) => self.reduce_path_mtu(too_large),
        }
    }

    fn reduce_path_mtu(&mut self, TooLarge { flow, seq, packet_bytes }: TooLarge) {
        if let Some(number) = self.flows.get(&flow)
            && let Some(slot) = self.slots.get_mut(number)
        {
            slot.connection.reduce_path_mtu(packet_bytes, seq);
            self.touch_egress(number);
        }
    }

    /// Gives a segment to its connection.
    #[inline]
    fn receive_packet(
        &mut self,
        packet: &Packet<'_>,
        frame: &Received<'_>,
        tx: &mut impl FrameTx,
        take: &mut impl Take,
        now_ns: u64,
    ) {
        let mut segment = Segment::default();
        let payload = match frame::parse_segment(packet, frame, self.checksums, &mut segment) {
            Ok(payload) => payload,
            Err(unusable) => return self.drop_unusable(unusable),
        };
        self.resources.counters.segments_received += 1;
        let now_ns = self.own_ns(now_ns);
        let (remote_port, local_port) = (segment.source_port, segment.destination_port);
        let flow = FlowKey { ends: packet.ends, remote_port, local_port };
        let payload_bytes = payload.len() + packet.rest_bytes;
        let known = self.flows.get(&flow).and_then(|number| Some((number, self.slots.get_mut(number)?)));
        let (number, slot) = match known {
            // Nothing but a handshake makes a connection give way.
            Some((number, slot)) if !segment.flags.has(Flags::SYN) && slot.connection.owner != Owner::Handshake => {
                (number, slot)
            }
            _ => {
                let number = match self.slot_for(flow, &segment, now_ns) {
                    Place::Connection(number) => number,
                    Place::None => return self.refuse(packet, &segment, payload_bytes, tx, now_ns),
                    Place::Unclear => return self.resources.counters.dropped_out_of_window += 1,
                    Place::Cookie => return self.answer_by_cookie(packet, flow, &segment, tx, now_ns),
                };
                let Some(slot) = self.slots.get_mut(number) else { return };
                (number, slot)
            }
        };
        let mut take = |bytes: &[u8]| take.take(ConnectionId(number), bytes);
        let verdict = if packet.rest_bytes == 0 {
            slot.connection.on_segment(&segment, payload, &mut self.resources, &mut take, now_ns)
        } else {
            let rest = (frame.rest, packet.rest_bytes);
            slot.connection.on_merged(segment, payload, rest, &mut self.resources, &mut take, now_ns)
        };
        if slot.connection.may_have_changed() {
            enlist(&mut self.events, &mut slot.in_events, number);
        }
        enlist(&mut self.egress, &mut slot.in_egress, number);
        if verdict == Verdict::Reset {
            self.refuse(packet, &segment, payload_bytes, tx, now_ns);
        }
    }

    /// Where the answer to a packet goes: to where it came from.
    fn way_back<'a>(&self, packet: &'a Packet<'_>) -> Route<'a> {
        Route { mac: self.mac, hardware: packet.hardware, ends: &packet.ends }
    }

    /// Answers a segment that belongs to nothing (RFC 9293 §3.10.7.1), to where it came from.
    fn refuse(
        &mut self,
        packet: &Packet<'_>,
        segment: &Segment,
        payload_bytes: usize,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) {
        // A reset must never be answered with a reset (RFC 9293 §3.5.2).
        if segment.flags.has(Flags::RST) {
            return;
        }
        if !self.resets.allows(now_ns) {
            self.resources.counters.dropped_rate_limit += 1;
            return;
        }
        let mut reset = Segment {
            source_port: segment.destination_port,
            destination_port: segment.source_port,
            flags: Flags::RST,
            ..Segment::default()
        };
        if segment.flags.has(Flags::ACK) {
            reset.seq = segment.ack;
        } else {
            reset.flags = Flags::RST | Flags::ACK;
            reset.ack = segment.seq + segment.sequence_len(payload_bytes);
        }
        let route = self.way_back(packet);
        if frame::send_segment(tx, &route, &reset, (0, 0), |_, _| {}) {
            self.resources.counters.resets_sent += 1;
            self.resources.counters.segments_sent += 1;
        }
    }

    /// Finds the connection that a segment belongs to, or opens one.
    #[inline(never)]
    fn slot_for(&mut self, flow: FlowKey, segment: &Segment, now_ns: u64) -> Place {
        let opens = segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::RST);
        if let Some(number) = self.flows.get(&flow) {
            let Some(slot) = self.slots.get(number) else { return Place::None };
            let gives_way = if opens {
                // The peer has begun anew with the same port (RFC 9293 §3.6.1).
                slot.connection.gives_way_to(segment)
            } else {
                // Of a SYN that came twice, one was answered by a cookie, and that answer was taken.
                slot.connection.owner == Owner::Handshake
                    && slot.connection.has_not_sent(segment.ack)
                    && self.cookies.take(&self.secrets, flow, segment, now_ns).is_some()
            };
            if !gives_way {
                return Place::Connection(number);
            }
            self.release(number);
        }
        self.open(flow, segment, opens, now_ns)
    }

    /// Opens a connection for a segment that there is none for, if it may.
    fn open(&mut self, flow: FlowKey, segment: &Segment, opens: bool, now_ns: u64) -> Place {
        if !self.ports.contains(&flow.local_port) {
            return Place::None;
        }
        let number = if opens {
            if self.half_open >= self.half_open_limit {
                return Place::Cookie;
            }
            self.insert(flow, Origin::Passive(segment), now_ns)
        } else {
            let Some((syn, iss)) = self.cookies.take(&self.secrets, flow, segment, now_ns) else {
                return if self.cookies.are_out(now_ns) { Place::Unclear } else { Place::None };
            };
            let number = self.insert_with(flow, Origin::Passive(&syn), iss, now_ns);
            if let Some(slot) = number.and_then(|number| self.slots.get_mut(number)) {
                slot.connection.answer_once(&self.resources.pool, now_ns);
                self.resources.counters.cookies_accepted += 1;
            }
            number
        };
        let Some(slot) = number else {
            self.resources.counters.dropped_syns += 1;
            return Place::None;
        };
        note_expendable(&mut self.expendable, Expendable::HalfOpen { opened_ns: now_ns, slot });
        self.half_open += 1;
        Place::Connection(slot)
    }

    /// Answers a SYN and keeps nothing of it.
    fn answer_by_cookie(
        &mut self,
        packet: &Packet<'_>,
        flow: FlowKey,
        syn: &Segment,
        tx: &mut impl FrameTx,
        now_ns: u64,
    ) {
        let syn = &cookies::what_comes_back(syn);
        let iss = self.cookies.give(&self.secrets, flow, syn, now_ns);
        let mut connection = Connection::new(self.setup(flow, iss), Origin::Passive(syn), now_ns);
        let mut answer = connection.answer_once(&self.resources.pool, now_ns);
        if let Some(timestamps) = &mut answer.timestamps {
            timestamps.value = cookies::with_options(timestamps.value, syn);
        }
        let route = self.way_back(packet);
        if frame::send_segment(tx, &route, &answer, (0, 0), |_, _| {}) {
            self.resources.counters.cookies_sent += 1;
            self.resources.counters.segments_sent += 1;
        }
    }
}
