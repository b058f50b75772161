//! What `--pcap` has recorded, read back.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    process::Command,
};

const ETHERNET_BYTES: usize = 14;
pub const TCP: u8 = 6;

/// The frames of a file in libpcap's format (of this machine's byte order), Ethernet being its link.
pub fn recorded(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1));
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        frames.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// What tcpdump reads in a file.
pub fn tcpdump(path: &Path, words: &[&str]) -> String {
    let output = Command::new("tcpdump").args(["-nn", "-r"]).arg(path).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a packet carries, and from whom to whom.
pub struct Packet<'a> {
    pub ends: [IpAddr; 2],
    pub protocol: u8,
    pub carried: &'a [u8],
}

/// The packet of a frame, whose checksums are right, or nothing for ARP.
pub fn packet(frame: &[u8]) -> Option<Packet<'_>> {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let packet = match frame[12..14] {
        [8, 0] => {
            assert_eq!(internet_sum(&frame[14..34]), 0xffff, "the header of IPv4: {frame:x?}");
            let address = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into();
            let carried = &frame[34..ETHERNET_BYTES + word(16)];
            Packet { ends: [address(26), address(30)], protocol: frame[23], carried }
        }
        [8, 6] => return None,
        [0x86, 0xdd] => {
            let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap()).into();
            Packet { ends: [address(22), address(38)], protocol: frame[20], carried: &frame[54..54 + word(18)] }
        }
        _ => panic!("{frame:x?}"),
    };
    packet.check();
    Some(packet)
}

impl Packet<'_> {
    /// That the checksum of what it carries is right.
    fn check(&self) {
        /// TCP, and ICMPv6. The host's own reports of groups stand behind a header of options.
        const CHECKED: [u8; 2] = [TCP, 58];
        let &Packet { ends, protocol, carried } = self;
        if CHECKED.contains(&protocol) {
            // RFC 9293 §3.1, RFC 8200 §8.1: addresses, protocol and length are part of it.
            let octets = ends.map(|end| match end {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            });
            let covered =
                [&octets.concat()[..], &[0, protocol], &(carried.len() as u16).to_be_bytes(), carried].concat();
            assert_eq!(internet_sum(&covered), 0xffff, "protocol {protocol}: {carried:x?}");
        }
    }
}

/// RFC 1071: all ones where a checksum is right.
fn internet_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}
