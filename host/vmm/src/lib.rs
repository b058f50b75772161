//! A small virtual machine monitor on KVM: memory, one processor, PVH boot, a serial console, an exit device, and
//! virtio devices over memory-mapped registers for network, disk and entropy.
//!
//! It runs Kayvee's image and nothing else needs to run on it, so it has no firmware, no PCI and no interrupt controller:
//! a guest that has nothing to do writes to the *sleep port* how long it may wait, and the processor's own thread blocks
//! in one system call until a device has something or the time is over ([`wake`]).
//!
//! The guest is hostile. Whatever it writes to registers, rings and descriptors is an allegation; memory is reached through
//! `vm-memory` alone, which knows what the guest has. A device that is given nonsense stops and says so in its status
//! register. Nothing that a guest does ends the monitor but the exit device, a reset, or an instruction that KVM cannot run.
//!
//! Everything it works with comes in as open descriptors: it opens nothing but `/dev/kvm`, and once the guest is to run,
//! each thread may make only the system calls that it needs ([`confine`]).
#![deny(unsafe_code)]

mod boot;
mod confine;
mod console;
mod control;
mod cpu;
mod debug;
mod devices;
mod direct;
#[doc(hidden)]
pub mod hostile;
mod io;
mod machine;
mod memory;
mod stats;
mod sys;
mod tape;
mod transport;
mod wake;

pub use devices::net::{Backend, Network};
pub use direct::DirectNetwork;
pub use machine::{Config, Disk, Ending, run};
