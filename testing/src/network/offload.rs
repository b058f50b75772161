//! What a device does that completes checksums and divides large frames into segments (virtio 1.2 §5.1.6).

use kayvee_platform::Completion;
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{EthernetFrame, EthernetProtocol, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket},
};

const ETHERNET_BYTES: usize = 14;

/// Puts the checksum where the driver has left the sum of the pseudo-header.
pub fn complete(frame: &mut [u8], task: Completion) {
    let (start, at) = (usize::from(task.checksum_start), usize::from(task.checksum_start + task.checksum_offset));
    let sum = checksum(&frame[start..]);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The segments of a large frame whose checksum is complete.
pub fn divide(frame: &[u8], task: Completion) -> Vec<Vec<u8>> {
    if task.segment_bytes == 0 {
        return vec![frame.to_vec()];
    }
    let (headers, data) = frame.split_at(usize::from(task.header_bytes));
    assert!(data.len() > usize::from(task.segment_bytes), "a frame of one segment is not to be divided");
    let chunks = data.chunks(usize::from(task.segment_bytes));
    let count = chunks.len();
    let segment = |(number, chunk): (usize, &[u8])| {
        let mut bytes = [headers, chunk].concat();
        let (from, to) = set_length(&mut bytes[ETHERNET_BYTES..]);
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[usize::from(task.checksum_start)..]);
        tcp.set_seq_number(tcp.seq_number() + number * usize::from(task.segment_bytes));
        if number + 1 < count {
            tcp.set_fin(false);
            tcp.set_psh(false);
        }
        tcp.fill_checksum(&from, &to);
        bytes
    };
    chunks.enumerate().map(segment).collect()
}

/// Makes the length in an internet header that of its packet, and returns the packet's addresses.
fn set_length(packet: &mut [u8]) -> (IpAddress, IpAddress) {
    let len = packet.len() as u16;
    if packet[0] >> 4 == 6 {
        let mut packet = Ipv6Packet::new_unchecked(packet);
        packet.set_payload_len(len - 40);
        return (packet.src_addr().into(), packet.dst_addr().into());
    }
    let mut packet = Ipv4Packet::new_unchecked(packet);
    packet.set_total_len(len);
    packet.fill_checksum();
    (packet.src_addr().into(), packet.dst_addr().into())
}

/// Whether the checksum of TCP is right: what a device looks at that vouches for it.
pub fn is_right(frame: &[u8]) -> bool {
    let parse = || {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let (from, to, payload): (IpAddress, IpAddress, _) = if ethernet.ethertype() == EthernetProtocol::Ipv6 {
            let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            (packet.src_addr().into(), packet.dst_addr().into(), packet.payload())
        } else {
            let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
            (packet.src_addr().into(), packet.dst_addr().into(), packet.payload())
        };
        let tcp = TcpPacket::new_checked(payload).ok()?;
        smoltcp::wire::TcpRepr::parse(&tcp, &from, &to, &ChecksumCapabilities::default()).ok().map(drop)
    };
    parse().is_some()
}
