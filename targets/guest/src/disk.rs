//! The disk as the store sees it: a driver, and the machine to sleep on.

use crate::devices::AnyTransport;
use kayvee_platform::{BlockDevice, Clock, Finished, Geometry, Transfer};
use kayvee_virtio::blk::BlkDevice;
use kayvee_x86::machine::Machine;

/// How long [`wait`](Disk::wait) looks for an end before it sleeps. Most flushes take no longer, and to wake up takes
/// about as long.
const POLL_NS: u64 = 200_000;

/// The machine's disk.
pub struct Disk<'a> {
    device: BlkDevice<AnyTransport>,
    machine: &'a Machine,
}

impl<'a> Disk<'a> {
    /// A disk of this machine.
    pub fn new(device: BlkDevice<AnyTransport>, machine: &'a Machine) -> Disk<'a> {
        Disk { device, machine }
    }

    /// Whether a transfer has ended that the store has not been told of.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.device.is_ready()
    }

    /// Whether a transfer is under way.
    pub fn is_busy(&self) -> bool {
        self.device.is_busy()
    }

    /// Lets the end of a transfer end a sleep, as [`BlkDevice::enable_interrupts`] says.
    pub fn enable_interrupts(&mut self) {
        self.device.enable_interrupts();
    }

    /// Goes back to polling.
    pub fn disable_interrupts(&mut self) {
        self.device.disable_interrupts();
    }
}

impl BlockDevice for Disk<'_> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn start(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        self.device.start(transfer)
    }

    fn finished(&mut self) -> Option<Finished> {
        self.device.finished()
    }

    fn wait(&mut self) {
        let clock = self.machine.clock();
        let poll_until_ns = clock.now().monotonic_ns + POLL_NS;
        while self.is_busy() && !self.is_ready() {
            if clock.now().monotonic_ns < poll_until_ns {
                continue;
            }
            self.enable_interrupts();
            // One that ended before the interrupt was on does not raise it.
            if !self.is_ready() {
                self.machine.sleep_until(None);
            }
            self.disable_interrupts();
        }
    }
}
