use core::net::{Ipv4Addr, Ipv6Addr};

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

/// How a machine gets its IPv6 addresses, beside the one that is good on its link only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing6 {
    /// It has none at all, nor the one of its link.
    Off,
    /// From what routers announce (RFC 4862).
    Auto,
    /// Fixed by its operator. What routers announce is not listened to.
    Static {
        /// The machine's own address.
        address: Ipv6Addr,
        /// Length of the network prefix, 0 to 128 bits.
        prefix_bits: u8,
        /// The default router, if there is one.
        gateway: Option<Ipv6Addr>,
    },
}

impl Addressing6 {
    /// Reads `off`, `auto` or `ADDRESS/BITS`.
    pub fn parse(text: &str) -> Option<Addressing6> {
        match text {
            "off" => Some(Addressing6::Off),
            "auto" => Some(Addressing6::Auto),
            _ => {
                let (address, bits) = text.split_once('/')?;
                let prefix_bits = bits.parse().ok().filter(|bits| *bits <= 128)?;
                Some(Addressing6::Static { address: address.parse().ok()?, prefix_bits, gateway: None })
            }
        }
    }
}
