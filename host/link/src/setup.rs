//! The host's end of a link to a store.

use crate::{
    subnet::{self, Link, Link6},
    sys,
};
use anyhow::Result;
use std::{fs, io};

/// Gives the interface `name`, the host's end of link `number`, its addresses, and switches it on. The store has the
/// Ethernet address `guest_mac`.
pub fn set_up(name: &str, number: u32, guest_mac: [u8; 6]) -> Result<Link> {
    let mut link = subnet::free_link(number)?;
    let ipv6 = Link6::new(number);
    let has_ipv6 = set_up_ipv6(name, ipv6).is_ok();
    sys::bring_up(name, link.host, link.mask())?;
    sys::add_neighbour(name, link.guest, guest_mac)?;
    link.ipv6 = Some(ipv6).filter(|_| has_ipv6);
    Ok(link)
}

/// Fails where the host has no IPv6, which is no error.
fn set_up_ipv6(name: &str, link: Link6) -> io::Result<()> {
    // The host would look for routers on the link, and make itself an address for that, and wake an idle store. Nobody
    // else is there to have its address.
    let quiet = [("addr_gen_mode", "1"), ("router_solicitations", "0"), ("accept_ra", "0"), ("accept_dad", "0")];
    let set = |(setting, value)| fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{setting}"), value);
    quiet.into_iter().try_for_each(set)?;
    sys::switch_on(name)?;
    sys::add_address6(name, link.host, Link6::PREFIX_BITS)
}
