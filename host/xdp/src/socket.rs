//! An AF_XDP socket with its rings, and the program that steers frames to it.

pub use crate::sys::RingMapping;
use crate::{
    program::{self, Steering},
    sys::{self, FrameMemory, Frames, RingKind},
};
use anyhow::{Context, Result, bail, ensure};
use kayvee_bpf::{Kind, MAP_TYPE_XSKMAP};
use kayvee_platform::Checksums;
use kayvee_xdp::{Doorbell, MAX_PIECES, METADATA_BYTES, Parts, REST, Ring, Rings, XdpDevice};
use nix::net::if_::if_nametoindex;
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// By the card's driver, before the kernel has made a packet of the frame.
    Driver,
    /// By the kernel, for cards whose drivers cannot.
    Generic,
}

/// A place for a frame: the smallest that the kernel takes, with room for its headroom and a frame ...
const FRAME_BYTES: u32 = 2048;
/// ... and the largest, for the pieces of large ones.
const LARGE_FRAME_BYTES: u32 = 4096;
/// Memory for the frames of a store: 2,048 places, or twice as many smaller ones.
pub const FRAMES_BYTES: usize = 8 << 20;
/// The largest packet of a link of the store's own, where the kernel carries frames in pieces: as many places as it sends a
/// frame from, less what it keeps free in each of what arrives.
const LINK_MTU: u32 = MAX_PIECES as u32 * (LARGE_FRAME_BYTES - HEADROOM_BYTES) - ETHERNET_HEADER_BYTES;
/// What the kernel keeps free before what it receives (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: u32 = 256;
/// The largest packet of other links, unless theirs are smaller.
const ETHERNET_MTU: u32 = 1500;
pub(crate) const ETHERNET_HEADER_BYTES: u32 = 14;
/// The queue that is used. A card with several would deliver some of the frames to the others.
const QUEUE: u32 = 0;
/// How long an interface may take to be free again, and how often to ask.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY_INTERVAL: Duration = Duration::from_millis(2);
/// Bytes of frames that may be under way between the tx ring and the interface.
const SEND_BUFFER_BYTES: u32 = 4 << 20;

/// An open socket. Closing it, in whatever way, also detaches the program.
#[derive(Debug)]
pub struct Socket {
    sender: Sender,
    /// Fill, completion, rx and tx ring.
    pub rings: [RingMapping; 4],
    /// Bytes of the place of each frame, or of a piece of one.
    pub frame_bytes: u32,
    /// The largest frame that is sent or received.
    pub max_frame_bytes: u32,
    /// The interface's Ethernet address, which is the store's.
    pub mac: [u8; 6],
    /// Whether who sends to it may leave checksums undone.
    pub checksums: Checksums,
    /// How frames come and go, in words for the user.
    pub how: &'static str,
}

/// Makes the system call for what is in the tx ring, and keeps the socket open.
#[derive(Debug)]
pub struct Sender {
    fd: OwnedFd,
    /// The attached program; the map and the program itself live as long as that.
    _link: OwnedFd,
    /// What has the interface take groups' frames.
    _groups: Option<OwnedFd>,
}

impl Socket {
    /// Opens a socket on an interface of this thread's network namespace, for frames in `frames`.
    pub fn open(interface: &str, steering: Steering, frames: &FrameMemory) -> Result<Socket> {
        let index = if_nametoindex(interface).with_context(|| format!("network interface '{interface}'"))?;
        let mac = kayvee_link::hardware_address(interface)?;
        need_one_queue(interface)?;
        let fd = sys::open_socket().context("opening an AF_XDP socket")?;
        let socket = fd.as_fd();
        let checksums = checksums(interface);
        let mtu = kayvee_link::mtu(interface).context("reading the interface's MTU")?;
        // A card's driver would have to carry these by itself, and few do.
        let wants_large = mtu > ETHERNET_MTU && checksums == Checksums::Partial;
        let (sort, frame_bytes, max_frame_bytes) = if wants_large && register_large(socket, frames).is_ok() {
            (Frames::Large, LARGE_FRAME_BYTES, mtu.min(LINK_MTU) + ETHERNET_HEADER_BYTES)
        } else {
            register(socket, frames)?;
            (Frames::Plain, FRAME_BYTES, mtu.min(ETHERNET_MTU) + ETHERNET_HEADER_BYTES)
        };
        // Each place for a frame has an entry in every ring that it can be in.
        let entries = (frames.len() / frame_bytes as usize).next_power_of_two() as u32;
        let ring = |kind| sys::make_ring(socket, kind, entries).with_context(|| format!("making the {kind:?} ring"));
        let rings = [ring(RingKind::Fill)?, ring(RingKind::Completion)?, ring(RingKind::Rx)?, ring(RingKind::Tx)?];
        sys::widen(socket, entries, SEND_BUFFER_BYTES);
        let (map, program) = load(steering, sort)?;
        let (link, mode) = when_free(|| attach(program.as_fd(), index))
            .with_context(|| format!("attaching the XDP program to '{interface}'"))?;
        when_free(|| sys::bind(socket, index, QUEUE, sort)).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                anyhow::anyhow!("queue {QUEUE} of '{interface}' is in use by another AF_XDP socket")
            }
            _ => anyhow::Error::from(error).context(format!("binding to queue {QUEUE} of '{interface}'")),
        })?;
        kayvee_bpf::update_map(map.as_fd(), QUEUE, socket.as_raw_fd() as u32)
            .context("entering the socket into the map")?;
        let how = match (sys::is_zero_copy(socket)?, mode) {
            (true, _) => "without copying",
            (false, Mode::Driver) => "copied by its driver",
            (false, Mode::Generic) => "copied by the kernel",
        };
        let sender = Sender { fd, _link: link, _groups: None };
        Ok(Socket { sender, rings, frame_bytes, max_frame_bytes, mac, checksums, how })
    }

    /// Has the interface take the frames of all groups, as the store is in some of which the kernel does not know: neighbors ask
    /// for an IPv6 address in one (RFC 4861 §7.2.2), and cards, and devices that stand on others, drop those that nobody wants.
    pub fn hear_groups(&mut self, interface: &str) -> Result<()> {
        let groups = kayvee_link::hear_groups(interface);
        self.sender._groups = Some(groups.with_context(|| format!("hearing the groups of '{interface}'"))?);
        Ok(())
    }

    /// A network card of this process, over the memory that the socket was opened with.
    pub fn into_card(self, frames: FrameMemory) -> Result<XdpDevice<Sender>> {
        let [fill, completion, rx, tx] = self.rings;
        let layouts = [fill.layout, completion.layout, rx.layout, tx.layout];
        let rings = Rings {
            fill: Ring::of_addresses(fill.share(), layouts[0])?,
            completion: Ring::of_addresses(completion.share(), layouts[1])?,
            rx: Ring::of_descriptors(rx.share(), layouts[2])?,
            tx: Ring::of_descriptors(tx.share(), layouts[3])?,
        };
        let Socket { mac, checksums, frame_bytes, max_frame_bytes, .. } = self;
        let parts = Parts { mac, checksums, frames: frames.share(), frame_bytes, max_frame_bytes, rings };
        Ok(XdpDevice::new(parts, self.sender)?)
    }

    /// As [`Sender::send`].
    pub fn send(&self) -> bool {
        self.sender.send()
    }
}

impl Sender {
    /// Has the kernel send what is in the tx ring. What it could not take remains there. Returns whether another call may send
    /// more of it.
    pub fn send(&self) -> bool {
        match sys::send(self.as_fd()) {
            Ok(()) => false,
            // EAGAIN: so many were sent as the kernel sends at once, or there is no room for more. EBUSY: the interface has
            // dropped one, and takes the next ones perhaps. Callers are bounded.
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Doorbell for Sender {
    fn ring(&mut self, _: usize) -> bool {
        self.send()
    }

    fn rest(&mut self) {
        thread::sleep(REST);
    }
}

/// Whether this process may open sockets, with their frames, and load the program, on a kernel that has both and lets a guest
/// have the rings. Nothing is attached or bound: a queue is free again only some time after its socket is closed.
pub fn probe() -> Result<()> {
    let socket = sys::open_socket().context("opening an AF_XDP socket")?;
    register(socket.as_fd(), &FrameMemory::allocate(FRAMES_BYTES)?)?;
    let ring = sys::make_ring(socket.as_fd(), RingKind::Fill, (FRAMES_BYTES / FRAME_BYTES as usize) as u32);
    need_ring_for_guests(&ring.context("making a ring")?)?;
    load(Steering::All, Frames::Plain).map(drop)
}

/// Refuses a ring that KVM would not map.
pub fn need_ring_for_guests(ring: &RingMapping) -> Result<()> {
    ensure!(ring.suits_guests(), "this kernel's AF_XDP rings cannot be mapped into a guest: that takes Linux 6.3");
    Ok(())
}

/// Loads the program, with a map for the socket that it steers frames to.
fn load(steering: Steering, frames: Frames) -> Result<(OwnedFd, OwnedFd)> {
    let map = kayvee_bpf::create_map(MAP_TYPE_XSKMAP, QUEUE + 1).context("making the XDP program's map")?;
    let kind = if frames == Frames::Large { Kind::XdpFrags } else { Kind::Xdp };
    let program = kayvee_bpf::load(kind, &program::assemble(steering, map.as_raw_fd()));
    Ok((map, program.context("loading the XDP program")?))
}

/// Registers memory for frames in pieces, which newer kernels carry (Linux 6.11).
fn register_large(socket: BorrowedFd<'_>, frames: &FrameMemory) -> io::Result<()> {
    sys::register_frames(socket, frames, LARGE_FRAME_BYTES, METADATA_BYTES)
}

/// The largest packet of a link that is made for a store.
pub fn link_mtu() -> u32 {
    let register = || register_large(sys::open_socket()?.as_fd(), &FrameMemory::allocate(LARGE_FRAME_BYTES as usize)?);
    if register().is_ok() { LINK_MTU } else { ETHERNET_MTU }
}

/// The kernel keeps the memory from being moved, which has a limit for those without rights.
fn register(socket: BorrowedFd<'_>, frames: &FrameMemory) -> Result<()> {
    sys::register_frames(socket, frames, FRAME_BYTES, 0).map_err(|error| match error.raw_os_error() {
        Some(nix::libc::ENOBUFS) => {
            anyhow::Error::from(io::Error::from(io::ErrorKind::PermissionDenied)).context(format!(
                "the frames take {} KiB of locked memory, more than this user may have (ulimit -l)",
                frames.len() >> 10
            ))
        }
        _ => anyhow::Error::from(error).context("registering the memory of the frames"),
    })
}

/// Waits for what another socket may hold for a moment longer: a store that was killed ends in good order first, and the
/// kernel gives its queue back only when the last packets on their way through it are gone, and tells nobody.
fn when_free<R>(take: impl Fn() -> io::Result<R>) -> io::Result<R> {
    let give_up = Instant::now() + BUSY_TIMEOUT;
    loop {
        match take() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < give_up => {
                thread::sleep(BUSY_INTERVAL);
            }
            result => return result,
        }
    }
}

fn attach(program: BorrowedFd<'_>, interface: u32) -> io::Result<(OwnedFd, Mode)> {
    const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
    const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
    match kayvee_bpf::attach(Kind::Xdp, program, interface, XDP_FLAGS_DRV_MODE) {
        Ok(link) => Ok((link, Mode::Driver)),
        Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => {
            kayvee_bpf::attach(Kind::Xdp, program, interface, XDP_FLAGS_SKB_MODE).map(|link| (link, Mode::Generic))
        }
        Err(error) => Err(error),
    }
}

/// What sysfs tells of an interface; nothing of one in a namespace of its own, of which it shows nothing.
pub(crate) fn shown(interface: &str) -> std::path::PathBuf {
    Path::new("/sys/class/net").join(interface)
}

fn need_one_queue(interface: &str) -> Result<()> {
    let Ok(queues) = fs::read_dir(shown(interface).join("queues")) else { return Ok(()) };
    let names = queues.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    match names.filter(|name| name.starts_with("rx-")).count() {
        0 | 1 => Ok(()),
        count => bail!(
            "'{interface}' spreads frames over {count} queues, and only one can be read; set it to one with: \
             ethtool -L {interface} combined 1"
        ),
    }
}

/// An interface without a device behind it carries what this machine's kernel sends.
fn checksums(interface: &str) -> Checksums {
    if shown(interface).join("device").exists() { Checksums::Complete } else { Checksums::Partial }
}
