//! A host at the other end of the wire: plain `smoltcp`, driven the way its documentation says.

use super::wire::End;
use kayvee_platform::{FrameDevice, FrameRx, FrameTx};
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{self, DeviceCapabilities, Medium},
    socket::tcp::{Socket, SocketBuffer},
    time::{Duration, Instant},
    wire::{EthernetAddress, IpAddress, IpCidr},
};
use std::net::IpAddr;

/// A host that opens connections.
pub struct Peer {
    interface: Interface,
    sockets: SocketSet<'static>,
    next_port: u16,
}

impl Peer {
    /// A host with a fixed address behind `device`.
    pub fn new(device: &mut End, address: IpAddr, prefix_bits: u8, seed: u64) -> Peer {
        let mut config = Config::new(EthernetAddress(device.mac()).into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut Adapter(device), Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address_of(address), prefix_bits)).expect("there is room for one address");
        });
        Peer { interface, sockets: SocketSet::new(Vec::new()), next_port: 0 }
    }

    /// Begins to connect to a server.
    pub fn connect(&mut self, server: IpAddr, port: u16, buffer_bytes: usize) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; buffer_bytes]);
        let mut socket = Socket::new(buffer(), buffer());
        // Where it has no timer left for data, a keepalive brings the window update that it waits for.
        socket.set_keep_alive(Some(Duration::from_secs(5)));
        self.next_port = self.next_port % 16_000 + 1;
        socket
            .connect(self.interface.context(), (address_of(server), port), 40_000 + self.next_port)
            .expect("a new socket connects");
        self.sockets.add(socket)
    }

    /// A connection's socket.
    pub fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Forgets a connection.
    pub fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// Receives and sends what there is.
    pub fn poll(&mut self, device: &mut End, now_ns: u64) {
        self.interface.poll(instant(now_ns), &mut Adapter(device), &mut self.sockets);
        device.split().1.flush();
    }

    /// When [`poll`](Self::poll) is due even if nothing arrives.
    pub fn next_deadline_ns(&mut self, now_ns: u64) -> Option<u64> {
        let at = self.interface.poll_at(instant(now_ns), &self.sockets)?;
        Some(at.total_micros().max(0) as u64 * 1000)
    }
}

fn address_of(address: IpAddr) -> IpAddress {
    match address {
        IpAddr::V4(address) => IpAddress::Ipv4(address),
        IpAddr::V6(address) => IpAddress::Ipv6(address),
    }
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

struct Adapter<'a>(&'a mut End);

impl phy::Device for Adapter<'_> {
    type RxToken<'a>
        = RxToken
    where
        Self: 'a;
    type TxToken<'a>
        = TxToken<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(RxToken, TxToken<'_>)> {
        let (rx, tx) = self.0.split();
        if !tx.ready() {
            return None;
        }
        let frame = rx.receive(|frame| frame.head.to_vec())?;
        Some((RxToken(frame), TxToken(self.0)))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        self.0.split().1.ready().then_some(TxToken(self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.0.max_frame_bytes();
        capabilities
    }
}

struct RxToken(Vec<u8>);

impl phy::RxToken for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct TxToken<'a>(&'a mut End);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.split().1.transmit(len, f).expect("the device was ready")
    }
}
