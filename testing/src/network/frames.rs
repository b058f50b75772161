//! Frames made by hand, for tests that are a station themselves.

use super::world::{CLIENT, PORT, SERVER};
use smoltcp::{
    phy::ChecksumCapabilities,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet,
        Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
        TcpTimestampRepr, UdpPacket, UdpRepr,
    },
};
use std::net::Ipv4Addr;

/// Where TCP begins in a frame of IPv4 without options, and where its options do.
const TCP_AT: usize = 34;
const TCP_OPTIONS_AT: usize = TCP_AT + 20;
/// Timestamps with their padding.
const TIMESTAMP_BYTES: usize = 12;
const TCP_NO_OPERATION: u8 = 1;

/// The Ethernet address of the wire's server end.
pub const SERVER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
/// The Ethernet address of the wire's client end.
pub const CLIENT_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);

/// What a TCP segment from the client says.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    /// The address that it goes to.
    pub to: Ipv4Addr,
    /// The client's port.
    pub from_port: u16,
    /// SYN, FIN, RST or none of them.
    pub control: TcpControl,
    /// The number of its first byte.
    pub sequence: TcpSeqNumber,
    /// The next byte that the client expects, if it is an acknowledgement.
    pub acknowledged: Option<TcpSeqNumber>,
    /// Its data.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// The segment in its frame.
    pub fn frame(&self) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: self.from_port,
            dst_port: PORT,
            control: self.control,
            seq_number: self.sequence,
            ack_number: self.acknowledged,
            window_len: 60_000,
            window_scale: None,
            max_seg_size: (self.control == TcpControl::Syn).then_some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: self.payload,
        };
        tcp_frame(self.to, &tcp)
    }
}

/// A TCP segment from the client.
pub fn tcp_frame(to: Ipv4Addr, tcp: &TcpRepr<'_>) -> Vec<u8> {
    ipv4_frame(to, IpProtocol::Tcp, tcp.buffer_len(), |bytes| {
        let (from, to) = (IpAddress::Ipv4(CLIENT), IpAddress::Ipv4(to));
        tcp.emit(&mut TcpPacket::new_unchecked(bytes), &from, &to, &ChecksumCapabilities::default());
    })
}

/// A client of the server that answers nothing and knows what to expect. Its segments have the options of Linux' own.
pub struct Client {
    port: u16,
    /// The next byte that it sends, and the next that it receives.
    sequence: TcpSeqNumber,
    acknowledged: TcpSeqNumber,
}

impl Client {
    /// Opens a connection. `exchange` gives the server a frame and returns what it sent last.
    pub fn open(port: u16, mut exchange: impl FnMut(Vec<u8>) -> Option<Vec<u8>>) -> Client {
        let mut client = Client { port, sequence: TcpSeqNumber(1000), acknowledged: TcpSeqNumber(0) };
        let reply = exchange(client.frame(TcpControl::Syn, None, &[])).expect("a SYN is answered");
        client.sequence += 1;
        client.acknowledged = syn_ack_sequence(&reply).expect("a SYN is accepted") + 1;
        exchange(client.frame(TcpControl::None, Some(client.acknowledged), &[]));
        client
    }

    /// A request, after which so many bytes of a reply are expected.
    pub fn request(&mut self, bytes: &[u8], reply_bytes: usize) -> Vec<u8> {
        let frame = self.frame(TcpControl::Psh, Some(self.acknowledged), bytes);
        self.sequence += bytes.len();
        self.acknowledged += reply_bytes;
        frame
    }

    fn frame(&self, control: TcpControl, acknowledged: Option<TcpSeqNumber>, payload: &[u8]) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: self.port,
            dst_port: PORT,
            control,
            seq_number: self.sequence,
            ack_number: acknowledged,
            window_len: if control == TcpControl::Syn { 64_240 } else { 502 },
            window_scale: (control == TcpControl::Syn).then_some(7),
            max_seg_size: (control == TcpControl::Syn).then_some(1460),
            sack_permitted: control == TcpControl::Syn,
            sack_ranges: [None; 3],
            timestamp: Some(TcpTimestampRepr { tsval: 1, tsecr: 0 }),
            payload,
        };
        let mut frame = tcp_frame(SERVER, &tcp);
        if control != TcpControl::Syn {
            // Padding goes before the timestamps (RFC 7323 appendix A).
            frame[TCP_OPTIONS_AT..][..TIMESTAMP_BYTES].rotate_right(2);
            frame[TCP_OPTIONS_AT..][..2].fill(TCP_NO_OPERATION);
            let (from, to) = (IpAddress::Ipv4(CLIENT), IpAddress::Ipv4(SERVER));
            TcpPacket::new_unchecked(&mut frame[TCP_AT..]).fill_checksum(&from, &to);
        }
        frame
    }
}

/// The sequence number of a TCP segment if it is a SYN with an acknowledgement.
pub fn syn_ack_sequence(frame: &[u8]) -> Option<TcpSeqNumber> {
    tcp_of(frame).filter(|tcp| tcp.syn() && tcp.ack()).map(|tcp| tcp.seq_number())
}

/// The TCP segment in a frame, if there is one.
pub fn tcp_of(frame: &[u8]) -> Option<TcpPacket<&[u8]>> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let ip = Ipv4Packet::new_checked(ethernet.payload()).ok().filter(|ip| ip.next_header() == IpProtocol::Tcp)?;
    TcpPacket::new_checked(ip.payload()).ok()
}

/// The client asks who has an address, by which it makes itself known.
pub fn arp_request(who: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: CLIENT_MAC,
        source_protocol_addr: CLIENT,
        target_hardware_addr: EthernetAddress::BROADCAST,
        target_protocol_addr: who,
    };
    ethernet_frame(EthernetProtocol::Arp, arp.buffer_len(), |bytes| arp.emit(&mut ArpPacket::new_unchecked(bytes)))
}

/// A station's answer to an address query.
pub fn arp_reply(mac: EthernetAddress, address: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: mac,
        source_protocol_addr: address,
        target_hardware_addr: SERVER_MAC,
        target_protocol_addr: to,
    };
    ethernet_frame(EthernetProtocol::Arp, arp.buffer_len(), |bytes| arp.emit(&mut ArpPacket::new_unchecked(bytes)))
}

/// An ICMP echo request from the client.
pub fn echo_request(to: Ipv4Addr) -> Vec<u8> {
    let icmp = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: b"ping" };
    ipv4_frame(to, IpProtocol::Icmp, icmp.buffer_len(), |bytes| {
        icmp.emit(&mut Icmpv4Packet::new_unchecked(bytes), &ChecksumCapabilities::default());
    })
}

/// A UDP datagram from the client.
pub fn datagram(to: Ipv4Addr, from_port: u16, to_port: u16, data: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: from_port, dst_port: to_port };
    ipv4_frame(to, IpProtocol::Udp, udp.header_len() + data.len(), |bytes| {
        let (from, to) = (IpAddress::Ipv4(CLIENT), IpAddress::Ipv4(to));
        let put = |payload: &mut [u8]| payload.copy_from_slice(data);
        let mut packet = UdpPacket::new_unchecked(bytes);
        udp.emit(&mut packet, &from, &to, data.len(), put, &ChecksumCapabilities::default());
    })
}

fn ipv4_frame(to: Ipv4Addr, next_header: IpProtocol, len: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ip = Ipv4Repr { src_addr: CLIENT, dst_addr: to, next_header, payload_len: len, hop_limit: 64 };
    ethernet_frame(EthernetProtocol::Ipv4, ip.buffer_len() + len, |bytes| {
        let mut packet = Ipv4Packet::new_unchecked(bytes);
        ip.emit(&mut packet, &ChecksumCapabilities::default());
        fill(packet.payload_mut());
    })
}

fn ethernet_frame(ethertype: EthernetProtocol, len: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; EthernetFrame::<&[u8]>::buffer_len(len)];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes);
    EthernetRepr { src_addr: CLIENT_MAC, dst_addr: SERVER_MAC, ethertype }.emit(&mut frame);
    fill(frame.payload_mut());
    bytes
}
