//! What `smoltcp` does: answer ARP and ICMP echo, and be a DHCP client.

use crate::{ends::is_host, phy::FrameIo, stack::Lease};
use alloc::vec::Vec;
use kayvee_platform::{Addressing, FrameTx, MAX_FRAME_BYTES};
use smoltcp::{
    iface::{self, Interface, SocketHandle, SocketSet},
    socket::dhcpv4,
    time::{Duration, Instant},
    wire::{EthernetAddress, IpCidr, Ipv4Cidr},
};

/// First wait for a DHCP server's offer or acknowledgement. A machine that boots in milliseconds is often there before
/// its link is, and RFC 2131 §4.1 leaves the interval to the client.
const DHCP_RETRY: Duration = Duration::from_secs(1);
/// How long after it has begun to look for an address it may begin anew, at first and, where each time leads to none, at the
/// most (RFC 2131 §4.1): a server that refuses what it has offered, or whose leases last no time, would have it ask as fast as that
/// answers.
const REST_NS: u64 = 1_000_000_000;
const MAX_REST_NS: u64 = 64_000_000_000;
/// When a client wants its turn that begins to look for an address.
const BEGINNING_NS: u64 = 0;
/// A client that wants to be served at once although it had nothing to send is served again after this long.
const RETRY_NS: u64 = 1_000_000;

/// All that is no connection.
pub(crate) struct Control {
    interface: Interface,
    sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    deadline_ns: u64,
    /// How long it rests next, and until when it does.
    rest_ns: u64,
    rest_until_ns: u64,
    lease: Option<Lease>,
}

impl Control {
    pub fn new(addressing: Addressing, mac: EthernetAddress, seed: u64, tx: &mut impl FrameTx, now_ns: u64) -> Control {
        let mut config = iface::Config::new(mac.into());
        config.random_seed = seed;
        let interface = Interface::new(config, &mut FrameIo { received: None, tx }, instant(now_ns));
        let mut sockets = SocketSet::new(Vec::new());
        let dhcp = (addressing == Addressing::Dhcp).then(|| {
            let mut socket = dhcpv4::Socket::new();
            let mut retry = socket.get_retry_config();
            retry.discover_timeout = DHCP_RETRY;
            retry.initial_request_timeout = DHCP_RETRY;
            socket.set_retry_config(retry);
            // It begins with the event that it has no address.
            let _ = socket.poll();
            sockets.add(socket)
        });
        let deadline_ns = if dhcp.is_some() { now_ns } else { u64::MAX };
        Control { interface, sockets, dhcp, deadline_ns, rest_ns: REST_NS, rest_until_ns: 0, lease: None }
    }

    /// Whether it wants what DHCP servers send.
    pub fn is_dhcp_client(&self) -> bool {
        self.dhcp.is_some()
    }

    /// Takes a frame.
    pub fn receive(&mut self, frame: &[u8], tx: &mut impl FrameTx, now_ns: u64) {
        // The device may share the memory that it lends: it is read once, into memory of our own.
        let mut buffer = [0; MAX_FRAME_BYTES];
        let Some(copy) = buffer.get_mut(..frame.len()) else {
            return log::debug!("a frame of more than {MAX_FRAME_BYTES} bytes was dropped");
        };
        copy.copy_from_slice(frame);
        let mut io = FrameIo { received: Some(copy), tx };
        self.interface.poll_ingress_single(instant(now_ns), &mut io, &mut self.sockets);
        if self.dhcp.is_some() {
            self.deadline_ns = 0;
        }
    }

    /// Gives the DHCP client its turn, and returns the address that it has got or lost.
    pub fn run(&mut self, tx: &mut impl FrameTx, now_ns: u64) -> Option<Option<Lease>> {
        let dhcp = self.dhcp?;
        if self.deadline_ns > now_ns || !tx.ready() {
            return None;
        }
        let begins = self.client_due_ns(now_ns) == BEGINNING_NS;
        if !begins || self.rest_until_ns <= now_ns {
            if begins {
                self.rest_until_ns = now_ns.saturating_add(self.rest_ns);
                self.rest_ns = (2 * self.rest_ns).min(MAX_REST_NS);
            }
            let mut io = FrameIo { received: None, tx };
            self.interface.poll_egress(instant(now_ns), &mut io, &mut self.sockets);
        }
        let lease = match self.sockets.get_mut::<dhcpv4::Socket>(dhcp).poll() {
            Some(dhcpv4::Event::Configured(config)) => {
                self.rest_ns = REST_NS;
                Some(Some(Lease {
                    address: config.address.address(),
                    prefix_bits: config.address.prefix_len(),
                    // A server may send anything; a router that is no host would be looked for in vain.
                    gateway: config.router.filter(|router| is_host(*router)),
                }))
            }
            Some(dhcpv4::Event::Deconfigured) => Some(None),
            None => None,
        };
        let due_ns = match self.client_due_ns(now_ns) {
            BEGINNING_NS => self.rest_until_ns,
            due_ns => due_ns,
        };
        self.deadline_ns = due_ns.max(now_ns.saturating_add(RETRY_NS));
        lease.filter(|lease| *lease != self.lease)
    }

    /// When the DHCP client wants its turn.
    #[inline(never)]
    fn client_due_ns(&mut self, now_ns: u64) -> u64 {
        self.interface.poll_at(instant(now_ns), &self.sockets).map_or(u64::MAX, nanoseconds)
    }

    /// When [`run`](Self::run) has something to do.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        (self.deadline_ns != u64::MAX).then_some(self.deadline_ns)
    }

    pub fn set_address(&mut self, lease: Option<Lease>) {
        self.lease = lease;
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            if let Some(lease) = lease {
                let pushed = addresses.push(IpCidr::Ipv4(Ipv4Cidr::new(lease.address, lease.prefix_bits)));
                debug_assert!(pushed.is_ok(), "there is room for one address");
            }
        });
        let routes = self.interface.routes_mut();
        routes.remove_default_ipv4_route();
        if let Some(gateway) = lease.and_then(|lease| lease.gateway) {
            let added = routes.add_default_ipv4_route(gateway);
            debug_assert!(added.is_ok(), "there is room for one route");
        }
        if self.dhcp.is_some() {
            self.deadline_ns = 0;
        }
    }
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000) as i64)
}

fn nanoseconds(at: Instant) -> u64 {
    (at.total_micros().max(0) as u64).saturating_mul(1000)
}
