//! A pair of virtual Ethernet devices: one end is this host's, the other lies in a network namespace that has no name and
//! nothing else in it.
//!
//! The kernel takes a pair away with the namespace that either end is in, and a namespace with the last descriptor and
//! socket of it. So the pair lives as long as the processes that hold the namespace, in whatever way they end, and there is
//! never anything to clean up.

use crate::{netlink, setup, subnet, sys};
use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};
use std::{
    fs::{self, File},
    io::ErrorKind,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    thread,
};

/// Name of the store's end, alone in its namespace.
const INNER_NAME: &str = "kayvee";
/// Numbers that are tried for the host's end.
const MAX_NUMBER: u32 = 1 << 14;

/// A network namespace, held by a descriptor.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl From<OwnedFd> for Namespace {
    fn from(descriptor: OwnedFd) -> Namespace {
        Namespace(descriptor)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Namespace {
    /// Makes an empty one.
    pub fn create() -> Result<Namespace> {
        let make = || -> Result<Namespace> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(Namespace(File::open("/proc/thread-self/ns/net")?.into()))
        };
        // Only the thread moves there.
        in_thread(make).context("making a network namespace")
    }

    /// Runs `action` in it.
    pub fn enter<R: Send>(&self, action: impl FnOnce() -> Result<R> + Send) -> Result<R> {
        in_thread(|| {
            setns(&self.0, CloneFlags::CLONE_NEWNET).context("entering the network namespace")?;
            action()
        })
    }
}

fn in_thread<R: Send>(action: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    thread::scope(|scope| match scope.spawn(action).join() {
        Ok(result) => result,
        Err(_) => bail!("a thread that was to set up the network has panicked"),
    })
}

/// A pair of devices.
#[derive(Debug)]
pub struct VethPair {
    /// Where the store's end is.
    pub namespace: Namespace,
    /// The addresses: the host's end has its own, the other end is for the store to use.
    pub link: subnet::Link,
    /// The Ethernet address of the store's end.
    pub mac: [u8; 6],
    /// Name of the host's end.
    pub host_name: String,
}

impl VethPair {
    /// Name of the store's end in its namespace.
    pub const INNER_NAME: &str = INNER_NAME;

    /// Makes a pair for packets of at most `mtu` bytes, both ends switched on.
    pub fn create(mtu: u32) -> Result<VethPair> {
        let namespace = Namespace::create()?;
        let (number, host_name) = create_numbered(&namespace)?;
        let mac = switch_inner_on(&namespace, mtu)?;
        let set_up = || {
            sys::set_mtu(&host_name, mtu)?;
            setup::set_up(&host_name, number, mac)
        };
        let link = set_up().with_context(|| format!("setting up {host_name}"))?;
        Ok(VethPair { namespace, link, mac, host_name })
    }
}

/// Makes a pair whose host's end is a port of a bridge, and returns where the other one lies.
pub fn create_port(bridge: &str) -> Result<Namespace> {
    let namespace = Namespace::create()?;
    let (_, host_name) = create_numbered(&namespace)?;
    let set_up = || -> Result<()> {
        let mtu = sys::mtu(bridge)?;
        switch_inner_on(&namespace, mtu)?;
        without_ipv6(&host_name);
        sys::set_mtu(&host_name, mtu)?;
        sys::add_port(bridge, &host_name)?;
        Ok(sys::switch_on(&host_name)?)
    };
    set_up().with_context(|| format!("making {host_name} a port of '{bridge}'"))?;
    Ok(namespace)
}

/// Switches a pair's inner end on, and returns its Ethernet address.
fn switch_inner_on(namespace: &Namespace, mtu: u32) -> Result<[u8; 6]> {
    namespace.enter(|| {
        without_ipv6(INNER_NAME);
        sys::set_mtu(INNER_NAME, mtu)?;
        sys::switch_on(INNER_NAME)?;
        Ok(sys::hardware_address(INNER_NAME)?)
    })
}

/// Makes a pair under the first number that is free, which is the same one that taps are numbered with.
fn create_numbered(namespace: &Namespace) -> Result<(u32, String)> {
    for number in 0..MAX_NUMBER {
        let name = format!("kayvee{number}");
        match netlink::create_veth(&name, INNER_NAME, namespace.as_fd().as_raw_fd()) {
            Ok(()) => return Ok((number, name)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context("making a pair of virtual Ethernet devices"),
        }
    }
    bail!("there are {MAX_NUMBER} interfaces of the name kayvee already")
}

/// The kernel would send router solicitations, and wake an idle store; where it has no IPv6 there is nothing to switch off.
fn without_ipv6(name: &str) {
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
}
