//! What a device does that completes checksums and divides large frames into segments (virtio 1.2 §5.1.6).

use kayvee_platform::Completion;
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{EthernetFrame, Ipv4Packet, TcpPacket},
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
        let mut packet = Ipv4Packet::new_unchecked(&mut bytes[ETHERNET_BYTES..]);
        packet.set_total_len((headers.len() - ETHERNET_BYTES + chunk.len()) as u16);
        packet.fill_checksum();
        let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
        let mut tcp = TcpPacket::new_unchecked(packet.payload_mut());
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

/// Whether the checksum of TCP is right: what a device looks at that vouches for it.
pub fn is_right(frame: &[u8]) -> bool {
    let parse = || {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
        let tcp = TcpPacket::new_checked(packet.payload()).ok()?;
        let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
        smoltcp::wire::TcpRepr::parse(&tcp, &from, &to, &ChecksumCapabilities::default()).ok().map(drop)
    };
    parse().is_some()
}
