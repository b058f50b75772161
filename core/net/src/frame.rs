//! One frame at a time between a [`FrameDevice`](kayvee_platform::FrameDevice) and `smoltcp`, and to whom it belongs.

use core::net::Ipv4Addr;
use kayvee_platform::{FrameTx, MAX_FRAME_BYTES};
use smoltcp::{
    phy::{self, Device, DeviceCapabilities, Medium},
    time::Instant,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol,
        Ipv4Packet, TcpPacket,
    },
};

/// `smoltcp`'s device for the handling of one received frame, or of none, with replies going straight to the device.
pub(crate) struct FrameIo<'a, T> {
    pub received: Option<&'a [u8]>,
    pub tx: &'a mut T,
}

impl<T: FrameTx> Device for FrameIo<'_, T> {
    type RxToken<'b>
        = RxToken<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = TxToken<'b, T>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_, T>)> {
        let frame = self.received.take()?;
        Some((RxToken(frame), TxToken(self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_, T>> {
        self.tx.ready().then_some(TxToken(self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// What `smoltcp` has to know of every device here.
pub(crate) fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ethernet;
    capabilities.max_transmission_unit = MAX_FRAME_BYTES;
    capabilities
}

pub(crate) struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(crate) struct TxToken<'a, T>(&'a mut T);

impl<T: FrameTx> phy::TxToken for TxToken<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut fill = Some(f);
        let sent = self.0.transmit(len, |buffer| fill.take().map(|f| f(buffer)));
        match (sent.flatten(), fill) {
            (Some(result), _) => result,
            // The device was ready and yet took nothing. A network may lose frames, so this one is lost.
            (None, Some(f)) => f(&mut [0; MAX_FRAME_BYTES][..len]),
            (None, None) => unreachable!("the device called `fill` and returned nothing"),
        }
    }
}

/// Tells the link that `address` is at `mac` now, for those that remember another station at it (RFC 5227 §2.3).
/// Returns whether the device had room for that.
pub(crate) fn announce(tx: &mut impl FrameTx, mac: EthernetAddress, address: Ipv4Addr) -> bool {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: address,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: address,
    };
    let ethernet =
        EthernetRepr { src_addr: mac, dst_addr: EthernetAddress::BROADCAST, ethertype: EthernetProtocol::Arp };
    let sent = tx.transmit(ethernet.buffer_len() + arp.buffer_len(), |buffer| {
        let mut frame = EthernetFrame::new_unchecked(buffer);
        ethernet.emit(&mut frame);
        arp.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
    });
    sent.is_some()
}

/// Whether an address can be that of a single host.
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
}

/// The addresses that tell one connection from another: remote address and port, local port. The local address is
/// always the station's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey(u64);

impl FlowKey {
    pub fn new(remote: Ipv4Addr, remote_port: u16, local_port: u16) -> FlowKey {
        FlowKey(u64::from(u32::from(remote)) << 32 | u64::from(remote_port) << 16 | u64::from(local_port))
    }

    /// The peer's address and port.
    pub fn remote(self) -> (Ipv4Addr, u16) {
        (Ipv4Addr::from_bits((self.0 >> 32) as u32), (self.0 >> 16) as u16)
    }

    /// The port of this station.
    pub fn local_port(self) -> u16 {
        self.0 as u16
    }
}

/// Whom a received frame concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A TCP segment to the station's own address.
    Tcp {
        flow: FlowKey,
        /// SYN without ACK or RST: it may open a connection.
        opens: bool,
    },
    /// An answer to an address query of ours may be in it.
    ArpReply,
    /// Anything else that the interface should see: ARP requests, ICMP, DHCP.
    Other,
    /// Nothing for this station, or malformed.
    Ignored,
}

/// Sorts a frame by its headers. Checksums are not looked at: whoever handles the frame does.
pub(crate) fn classify(frame: &[u8], own_address: Option<Ipv4Addr>) -> Class {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Class::Ignored };
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => classify_ipv4(ethernet.payload(), own_address),
        EthernetProtocol::Arp => match ArpPacket::new_checked(ethernet.payload()) {
            Ok(arp) if arp.operation() == ArpOperation::Reply => Class::ArpReply,
            Ok(_) => Class::Other,
            Err(_) => Class::Ignored,
        },
        _ => Class::Ignored,
    }
}

fn classify_ipv4(packet: &[u8], own_address: Option<Ipv4Addr>) -> Class {
    let Ok(ip) = Ipv4Packet::new_checked(packet) else { return Class::Ignored };
    // A fragment has no use on its own, and none of the senders here needs them: TCP sends what fits.
    if ip.more_frags() || ip.frag_offset() != 0 {
        return Class::Ignored;
    }
    // RFC 1122 §3.2.1.3: nothing is ever answered to an address that names no single host.
    let source = ip.src_addr();
    if !is_host(source) {
        return Class::Ignored;
    }
    if ip.next_header() != IpProtocol::Tcp {
        return Class::Other;
    }
    if Some(ip.dst_addr()) != own_address {
        return Class::Ignored;
    }
    let Ok(tcp) = TcpPacket::new_checked(ip.payload()) else { return Class::Ignored };
    Class::Tcp {
        flow: FlowKey::new(source, tcp.src_port(), tcp.dst_port()),
        opens: tcp.syn() && !tcp.ack() && !tcp.rst(),
    }
}
