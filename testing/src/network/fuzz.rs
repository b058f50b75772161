//! Harnesses that take any bytes, for seeded tests and for fuzzers alike.

use super::{
    wire::{Faults, Wire},
    world::{Client, Family, SERVER6, Traffic, World},
};
use kayvee_net::{Addressing, Addressing6, Config, Event, Limits, Stack};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv6Packet, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};
use std::net::Ipv4Addr;

/// The address of the stack in [`fuzz_frames`], so that a fuzzer's dictionary can hit it.
pub const FUZZ_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Frames that the stack sent.
    pub frames_sent: usize,
    /// Connections that the application got.
    pub accepted: usize,
}

/// Feeds `data` to a stack as a sequence of frames, each as [`with_length`] writes it, behind a byte of flags: 1 for
/// addresses that are asked for, 2 for checksums that are put right, and above them the seconds after which connections are
/// probed. Nothing that comes over a wire may make the stack panic or exceed its limits.
pub fn fuzz_frames(data: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let (&mode, mut rest) = data.split_first().unwrap_or((&0, &[]));
    let mut wire = Wire::new(Faults::NONE, 0);
    let addressing = match mode & 1 {
        0 => Addressing::Static { address: FUZZ_ADDRESS, prefix_bits: 24, gateway: None },
        _ => Addressing::Dhcp,
    };
    let limits = Limits { connections: 8, buffer_bytes: 256 << 10 };
    let addressing6 = match mode & 1 {
        0 => Addressing6::Static { address: SERVER6, prefix_bits: 64, gateway: None },
        _ => Addressing6::Auto,
    };
    let config = Config { addressing, addressing6, limits, keepalive_s: u32::from(mode >> 2), seed: 1 };
    let mut stack = Stack::new(config, &mut wire.server, 0).expect("the configuration is valid");
    stack.listen(6379);
    let mut now_ns = 0;
    while rest.len() > 2 {
        let len = usize::from(u16::from_le_bytes([rest[0], rest[1]])).min(rest.len() - 2);
        let mut frame = rest[2..2 + len].to_vec();
        if mode & 2 != 0 {
            correct_checksums(&mut frame);
        }
        wire.server.inject(frame);
        rest = &rest[2 + len..];
        now_ns += 100_000_000 * u64::from(rest.first().copied().unwrap_or(0));
        rest = rest.get(1..).unwrap_or(&[]);
        turn(&mut stack, &mut wire, now_ns, &mut outcome);
        assert!(stack.connections() <= limits.connections);
        assert!(stack.buffer_bytes() <= limits.buffer_bytes);
    }
    outcome
}

/// A frame for [`fuzz_frames`]: its length in two bytes, little-endian, and the time behind it in tenths of a second.
pub fn with_length(frame: &[u8], tenths: u8) -> Vec<u8> {
    [&(frame.len() as u16).to_le_bytes(), frame, &[tenths]].concat()
}

/// Frames to the stack of a real exchange in which so many bytes are sent to and fro.
///
/// Its wire takes next to no time, so that the SYN arrives within the first tick of the clock that initial sequence numbers come
/// from (RFC 6528 §3): who replays the exchange from the start of time gets the same ones.
pub fn recorded_frames(family: Family, bytes: usize) -> Vec<Vec<u8>> {
    let limits = Limits { connections: 8, buffer_bytes: 64 << 10 };
    let at_once = Faults { min_delay_ns: 500, max_delay_ns: 500, ..Faults::NONE };
    let mut world = World::of(family, at_once, Traffic::BothWaysAtOnce, limits, 1);
    world.wire.record();
    let mut client = Client::open(&mut world, vec![b'x'; bytes]);
    while !client.step(&mut world) {
        world.step();
    }
    world.wire.recorded().to_vec()
}

/// Echoes, as an application that reads and writes.
fn turn(stack: &mut Stack, wire: &mut Wire, now_ns: u64, outcome: &mut Outcome) {
    stack.poll(&mut wire.server, now_ns);
    while let Some(event) = stack.next_event() {
        match event {
            Event::Readable(connection) => {
                let bytes = stack.readable(connection).to_vec();
                let sent = stack.send(connection, &bytes);
                stack.consume(connection, sent);
            }
            Event::EndOfStream(connection) => stack.close(connection, now_ns),
            Event::Accepted { .. } => outcome.accepted += 1,
            _ => {}
        }
    }
    stack.flush(&mut wire.server, now_ns);
    outcome.frames_sent += wire.server.drain_sent().count();
}

/// Makes the checksums of an Ethernet frame right where there is enough of it, so that what was changed inside gets
/// past them.
pub fn correct_checksums(frame: &mut [u8]) {
    let Ok(mut ethernet) = EthernetFrame::new_checked(frame) else { return };
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let Ok(mut ip) = Ipv4Packet::new_checked(ethernet.payload_mut()) else { return };
            ip.fill_checksum();
            let (from, to, protocol) = (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header());
            correct_payload(ip.payload_mut(), protocol, from, to);
        }
        EthernetProtocol::Ipv6 => {
            let Ok(mut ip) = Ipv6Packet::new_checked(ethernet.payload_mut()) else { return };
            let (from, to, protocol) = (ip.src_addr().into(), ip.dst_addr().into(), ip.next_header());
            correct_payload(ip.payload_mut(), protocol, from, to);
        }
        _ => {}
    }
}

fn correct_payload(payload: &mut [u8], protocol: IpProtocol, from: IpAddress, to: IpAddress) {
    match (protocol, from, to) {
        (IpProtocol::Tcp, _, _) => {
            if let Ok(mut tcp) = TcpPacket::new_checked(payload) {
                tcp.fill_checksum(&from, &to);
            }
        }
        (IpProtocol::Udp, _, _) => {
            if let Ok(mut udp) = UdpPacket::new_checked(payload) {
                udp.fill_checksum(&from, &to);
            }
        }
        (IpProtocol::Icmpv6, IpAddress::Ipv6(from), IpAddress::Ipv6(to)) => {
            if let Ok(mut icmp) = Icmpv6Packet::new_checked(payload) {
                icmp.fill_checksum(&from, &to);
            }
        }
        _ => {}
    }
}
