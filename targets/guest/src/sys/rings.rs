//! An AF_XDP socket's rings and frames, which the monitor has put into the machine's physical memory.

use alloc::{format, string::String};
use core::{ptr::NonNull, time::Duration};
use kayvee_x86::{clock::CLOCK, machine::Setup, port};
use kayvee_xdp::{
    DESCRIPTION_BYTES, Description, Doorbell, Parts, REST, Ring, RingPlace, Rings, SharedMemory, XdpDevice,
};

/// Where a monitor may put what it shares: main memory is below, or above.
const PLACES: core::ops::Range<u64> = 3 << 30..4 << 30;
/// A monitor's ports that ring 3 can reach.
const PORTS_END: u16 = 0x1000;
/// So much takes the host longer to send than a thread of its own to wake up, which would take the processor that the clients
/// run on.
const MUCH_BYTES: usize = 32 << 10;

/// The ports by which the monitor is told of frames to send.
#[derive(Debug)]
pub struct DoorbellPort {
    /// Wakes up a thread that sends, while this one goes on.
    bell: u16,
    /// Sends in the exit itself, and rests.
    send: u16,
    /// How long the machine is to rest after the frames of this turn are sent.
    rest: Option<Duration>,
}

impl DoorbellPort {
    /// Has the next frames sent in the exit itself, and the machine rest in the same.
    pub fn set_rest(&mut self, rest: Option<Duration>) {
        self.rest = rest;
    }

    fn send_and_rest(&self, rest: Duration) {
        // SAFETY: the monitor has named the port for this purpose; it knows no memory.
        CLOCK.count_notification(|| unsafe { port::write_u32(self.send, rest.as_micros() as u32) });
    }
}

impl Doorbell for DoorbellPort {
    fn ring(&mut self, bytes: usize) -> bool {
        let rest = self.rest.take().or((bytes >= MUCH_BYTES).then_some(Duration::ZERO));
        match rest {
            // SAFETY: the monitor has named the port for this purpose; it knows no memory.
            None => CLOCK.count_notification(|| unsafe { port::write_u8(self.bell, 0) }),
            Some(rest) => self.send_and_rest(rest),
        }
        // The bell only wakes up who sends, and the other way has sent all.
        false
    }

    fn rest(&mut self) {
        self.send_and_rest(REST);
    }
}

/// Takes the socket into use whose description is at this address.
pub fn open(setup: &mut Setup, description_at: u64) -> Result<XdpDevice<DoorbellPort>, String> {
    let page = share(setup, description_at, DESCRIPTION_BYTES as u32)?;
    let description = Description::decode(&page.read()).map_err(|error| format!("{error}"))?;
    let Description { mac, checksums, frame_bytes, max_frame_bytes, doorbell_port: bell, send_port: send, .. } =
        description;
    if bell.max(send) >= PORTS_END {
        return Err(format!("the network's ports {bell:#x} and {send:#x} are out of reach"));
    }
    let frames = share(setup, description.frames_address, description.frames_len)?;
    let [fill, completion, rx, tx] = description.rings;
    let mut ring = |place: RingPlace, of: fn(SharedMemory, _) -> Result<Ring, _>| {
        of(share(setup, place.address, place.len)?, place.layout).map_err(|error| format!("{error}"))
    };
    let rings = Rings {
        fill: ring(fill, Ring::of_addresses)?,
        completion: ring(completion, Ring::of_addresses)?,
        rx: ring(rx, Ring::of_descriptors)?,
        tx: ring(tx, Ring::of_descriptors)?,
    };
    let parts = Parts { mac, checksums, frames, frame_bytes, max_frame_bytes, rings };
    XdpDevice::new(parts, DoorbellPort { bell, send, rest: None }).map_err(|error| format!("{error}"))
}

/// Maps what the monitor shares with this machine.
pub fn share(setup: &mut Setup, address: u64, len: u32) -> Result<SharedMemory, String> {
    let end = address.checked_add(u64::from(len)).filter(|end| *end <= PLACES.end && len > 0);
    let start = NonNull::new(address as *mut u8).filter(|_| end.is_some() && PLACES.contains(&address));
    let start = start.ok_or_else(|| format!("what the monitor shares cannot be at {address:#x}, {len} bytes"))?;
    setup
        .map_shared(address, len.into())
        .map_err(|_| format!("what the monitor shares at {address:#x} cannot be mapped"))?;
    // SAFETY: 1. the range is mapped for reading and writing, and stays so; where the monitor has put nothing there, it
    // reads as zeros or ones. 2. It is no main memory, so nothing else in this program is there; each of the socket's parts
    // is shared once.
    Ok(unsafe { SharedMemory::new(start, len as usize) })
}
