//! The direct path: an AF_XDP socket whose frames and rings lie in the guest's memory, so that frames come and go without
//! this program.
//!
//! The guest's driver works the rings itself, against the kernel. It finds them by a page that describes them; it rings a
//! doorbell when the kernel wants to be told of frames to send, and sleeps in a `ppoll` that has the socket among its
//! descriptors. What a guest writes into the rings the kernel checks: it can lose its own frames and send any on its own
//! link, and reach nothing but the memory of the frames.
//!
//! Where frames are recorded, the guest has two rings of its own in place of the socket's ([`Tape`]), and this program hands on
//! what stands in them: when the guest has frames sent, when it sleeps, and when some have arrived.

use crate::{
    confine::{self, Role},
    machine::{Ending, clear, lock},
    memory::{self, Memory},
    sys,
    tape::{Tape, ring_memory},
    wake::Wake,
};
use anyhow::{Context, Result};
use kayvee_files::Recorder;
use kayvee_xdp::{Description, RingPlace};
use kayvee_xdp_socket::{Attachment, FRAMES_BYTES, FrameMemory, Socket, need_ring_for_guests};
use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Mutex,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// Where the description is; frames and rings follow, each from a multiple of [`PLACE_BYTES`] on.
const DESCRIPTION: u64 = 0xd000_0000;
const PLACE_BYTES: u64 = 2 << 20;
/// How often the kernel is asked at a time to send what is in the ring.
const SENDS_MAX: usize = 64;
/// The devices' registers begin behind this.
const PLACES_END: u64 = 0xfe00_0000;
const PAGE_BYTES: u64 = 4096;
/// The first memory slot; those of main memory are below.
const FIRST_SLOT: u32 = 8;
/// Of fill, completion, rx and tx ring, those of which the guest has others where its frames are recorded.
const RELAYED_RINGS: [usize; 2] = [2, 3];
/// A write of any size to this port has the frames in the tx ring sent.
const DOORBELL_PORT: u16 = 0x510;
/// A write here, of microseconds, has them sent before it ends, and then rests for so long.
pub const SEND_PORT: u16 = 0x514;

/// A network whose socket the guest works itself.
pub struct DirectNetwork {
    /// What the socket is attached to, in the words of [`Attachment`].
    pub attachment: String,
    /// Where all frames are recorded, if they are, with their checksums.
    pub recorder: Option<Recorder>,
}

/// The guest's own way to the network.
pub struct Direct {
    socket: &'static Socket,
    doorbell: EventFd,
    tape: Option<Mutex<Tape>>,
}

impl Direct {
    /// Opens a socket as `network` says and maps it into the guest.
    pub fn open(vm: &VmFd, network: DirectNetwork) -> Result<Direct> {
        let DirectNetwork { attachment, recorder } = network;
        // For ever: the guest reaches both as long as it lives, which is as long as this process does.
        let frames: &'static FrameMemory = Box::leak(Box::new(FrameMemory::allocate(FRAMES_BYTES)?));
        let socket = Attachment::parse(&attachment)?.open(frames).context("the guest's AF_XDP socket")?.socket;
        let socket: &'static Socket = Box::leak(Box::new(socket));
        let mut slots = Slots { next_slot: FIRST_SLOT, next: DESCRIPTION + PLACE_BYTES };
        let (slot, frames_address) = slots.take(frames.len());
        sys::share_frames(vm, slot, frames_address, frames).context("mapping the frames")?;
        let mut rings = [RingPlace::default(); 4];
        let mut relayed = Vec::new();
        for (number, (place, ring)) in rings.iter_mut().zip(&socket.rings).enumerate() {
            need_ring_for_guests(ring)?;
            let (slot, address) = slots.take(ring.len());
            if recorder.is_some() && RELAYED_RINGS.contains(&number) {
                let region = ring_memory(address, ring.len())?;
                sys::share_region(vm, slot, region).context("mapping a ring of its own")?;
                relayed.push(region);
            } else {
                sys::share_ring(vm, slot, address, ring).context("mapping a ring")?;
            }
            *place = RingPlace { address, len: ring.len() as u32, layout: ring.layout };
        }
        let tape = match (recorder, &relayed[..]) {
            (Some(recorder), &[rx, tx]) => Some(Mutex::new(Tape::begin(recorder, socket, frames, [rx, tx])?)),
            _ => None,
        };
        let description = Description {
            mac: socket.mac,
            checksums: socket.checksums,
            frames_address,
            frames_len: frames.len() as u32,
            frame_bytes: socket.frame_bytes,
            max_frame_bytes: socket.max_frame_bytes,
            rings,
            doorbell_port: DOORBELL_PORT,
            send_port: SEND_PORT,
        };
        describe(vm, slots.next_slot, &description.encode()).context("mapping their description")?;
        // With a record it is not all that its thread waits for.
        let waits = if tape.is_some() { EfdFlags::EFD_NONBLOCK } else { EfdFlags::empty() };
        let doorbell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | waits)?;
        vm.register_ioevent(&sys::for_kvm(&doorbell)?, &IoEventAddress::Pio(DOORBELL_PORT.into()), NoDatamatch)
            .context("hanging up the doorbell")?;
        Ok(Direct { socket, doorbell, tape })
    }

    /// What the guest finds it by.
    pub fn boot_word() -> String {
        format!("xdp={DESCRIPTION:#x} ")
    }

    /// The descriptor that ends a sleep when a frame has come.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends what the guest has queued, in the thread of its processor: where many frames leave together, that costs less
    /// than the processor time that another thread takes from the clients.
    pub fn send(&self) -> Result<()> {
        if self.tape.is_none() {
            self.call();
        }
        self.pass().map(drop)
    }

    fn call(&self) {
        // A kernel before 6.17 sends some frames at a time. Where it has no memory for more, the guest asks again.
        let _ = (0..SENDS_MAX).all(|_| self.socket.send());
    }

    /// Where frames are recorded, hands on those that have arrived and those to be sent. Returns whether any have arrived.
    pub fn pass(&self) -> Result<bool> {
        self.tape.as_ref().map_or(Ok(false), |tape| lock(tape).pass(|| self.call()))
    }

    /// Answers the doorbell: one system call for all frames that the guest has queued since the last one. Where frames are
    /// recorded, also what arrives.
    pub fn run(&self, wake: &Wake) -> Result<Ending> {
        confine::limit(Role::Doorbell)?;
        while self.tape.is_none() {
            self.doorbell.read().context("waiting at the doorbell")?;
            self.call();
        }
        loop {
            sys::wait_any(self.doorbell.as_fd(), &[self.socket()], None).context("waiting at the doorbell")?;
            clear(&self.doorbell);
            if self.pass()? {
                // The guest may sleep: it does not wait for the socket's ring alone.
                wake.raise();
            }
        }
    }
}

/// Finds places in the guest's physical memory.
struct Slots {
    next_slot: u32,
    next: u64,
}

impl Slots {
    /// A memory slot and an address for so many bytes.
    fn take(&mut self, len: usize) -> (u32, u64) {
        let (slot, address) = (self.next_slot, self.next);
        self.next = (address + len as u64).next_multiple_of(PLACE_BYTES);
        assert!(self.next <= PLACES_END, "what is mapped fits below the devices");
        self.next_slot += 1;
        (slot, address)
    }
}

fn describe(vm: &VmFd, slot: u32, description: &[u8]) -> Result<()> {
    let page = memory::keep(&Memory::from_ranges(&[(GuestAddress(DESCRIPTION), PAGE_BYTES as usize)])?);
    page.write_slice(description, GuestAddress(DESCRIPTION))?;
    sys::share_region(vm, slot, page.iter().next().expect("one range"))
}
