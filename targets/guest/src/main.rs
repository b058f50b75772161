//! Kayvee as a bootable image: joins the machine, the network and the store, and runs the loop.
#![no_std]
#![no_main]

extern crate alloc;

mod image;

use kayvee_server::boot::BootArgs;
use kayvee_x86::{console, machine::Setup, power::Status};

/// Runs the store until somebody asks it to end.
fn run(setup: Setup) -> ! {
    console::init(log::LevelFilter::Info);
    let machine = setup.machine();
    let args = match BootArgs::parse(machine.command_line()) {
        Ok(args) => args,
        Err(error) => machine.refuse(&error),
    };
    console::init(args.options.loglevel.filter());
    log::info!(
        "kayvee {} on {}, {} MiB, {} MHz",
        env!("CARGO_PKG_VERSION"),
        machine.hypervisor().name(),
        machine.memory_bytes() >> 20,
        machine.clock().cycles_hz() / 1_000_000
    );
    let machine = setup.seal();
    machine.end(Status::Clean)
}
