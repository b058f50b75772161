use core::net::Ipv4Addr;

/// How a machine gets its network address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// From a DHCP server.
    Dhcp,
    /// Fixed by its operator.
    Static {
        /// The machine's own address.
        address: Ipv4Addr,
        /// Length of the network prefix, 0 to 32 bits.
        prefix_bits: u8,
        /// The default router, if there is one.
        gateway: Option<Ipv4Addr>,
    },
}
