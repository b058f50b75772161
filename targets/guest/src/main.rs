//! Kayvee as a bootable image: finds the machine's devices, makes the network stack and the store, and runs the loop.
#![no_std]
#![no_main]

extern crate alloc;

mod card;
mod devices;
mod disk;
mod server;
mod sys;

use alloc::{format, sync::Arc};
use card::Card;
use devices::AnyTransport;
use disk::Disk;
use kayvee_http::Site;
use kayvee_net::{Config, Limits, Stack};
use kayvee_platform::{Clock, ProcessorTime};
use kayvee_server::{Engine, Environment, boot::BootArgs};
use kayvee_station::{Peers, Station, Web};
use kayvee_virtio::blk::BlkDevice;
use kayvee_x86::{
    clock::CLOCK,
    console,
    machine::{Machine, Setup},
    power::Status,
};
use server::Server;

/// Runs the store until somebody asks it to end.
fn run(mut setup: Setup) -> ! {
    let command_line = setup.machine().command_line();
    let args = BootArgs::parse(command_line).unwrap_or_else(|error| setup.machine().refuse(&error));
    console::init(args.options.loglevel.filter());
    let (hypervisor, memory_bytes) = (setup.machine().hypervisor(), setup.machine().memory_bytes());
    let machine_ns = CLOCK.now().monotonic_ns;
    log::info!("kayvee {} on {}, {} MiB", env!("CARGO_PKG_VERSION"), hypervisor.name(), memory_bytes >> 20);
    if let Some(host_time_us) = args.host_time_us {
        CLOCK.hint_unix_us(host_time_us);
    }
    let devices::Devices { card, disk, seed } = match devices::find(&mut setup, &args.virtio_mmio, args.xdp) {
        Ok(devices) => devices,
        Err(why) => setup.machine().refuse(&why),
    };
    let machine = setup.seal();
    if let Some(test) = args.self_test {
        sys::self_test::run(test, sys::layout());
        log::error!("nothing has stopped the self test");
        machine.end(Status::Failed);
    }

    serve(&machine, machine_ns, args, card, disk, &seed)
}

/// Makes the store on this card, and runs it until its end.
fn serve(
    machine: &Machine,
    machine_ns: u64,
    mut args: BootArgs,
    mut card: Card,
    disk: Option<BlkDevice<AnyTransport>>,
    seed: &[u8; 48],
) -> ! {
    let hypervisor = machine.hypervisor();
    let limits = Limits::for_memory(sys::HEAP.total_bytes(), args.options.maxclients);
    args.options.maxclients = args.options.maxclients.min(limits.clients() as u32);
    let (stack_seed, engine_seed) = seed.split_at(8);
    let config = Config {
        addressing: args.addressing,
        limits,
        keepalive_s: args.options.tcp_keepalive,
        seed: u64::from_le_bytes(stack_seed.try_into().expect("8 bytes")),
    };
    let now = machine.clock().now();
    let mut stack = Stack::new(config, &mut card, now.monotonic_ns).unwrap_or_else(|error| machine.refuse(&error));
    stack.listen(args.options.port);
    let environment = Environment {
        target: hypervisor.name(),
        os: format!("none ({} guest)", hypervisor.name()),
        multiplexing: "polling",
        process_id: 0,
        clock: &CLOCK,
        heap: &sys::HEAP,
        system_memory_bytes: sys::HEAP.total_bytes(),
        processor_time: || ProcessorTime { user_us: CLOCK.busy_ns() / 1000, system_us: 0 },
        host: &kayvee_server::NoHost,
        seed: engine_seed[..32].try_into().expect("32 bytes"),
    };
    let has_log = args.options.appendonly;
    let mut engine = Engine::new(args.options, environment, now);
    engine.note_boot_phase("machine", machine_ns);
    engine.note_boot_phase("devices", now.monotonic_ns);
    let mut disk = disk.map(|device| Disk::new(device, machine));
    match &mut disk {
        Some(disk) => engine.open_log(disk).unwrap_or_else(|error| machine.refuse(&format!("disk: {error}"))),
        None if has_log => machine.refuse(&"option 'appendonly': there is no disk: add -device virtio-blk-device"),
        None => {}
    }
    engine.note_boot_phase("data", CLOCK.now().monotonic_ns);
    let site = machine.boot_module().map(|module| Site::open(Arc::new(module)));
    let site = site.transpose().unwrap_or_else(|error| machine.refuse(&format!("boot module: {error}")));
    engine.note_boot_phase("site", CLOCK.now().monotonic_ns);
    let web = Web::new(engine.options(), site, limits.connections, now);
    // It lives until the machine ends, so nothing of it is ever taken apart, and there is no code for that.
    // Who reaches a machine whose only network this is was meant to.
    let station = Station::new(stack, engine, web, Peers::Trusted, limits.connections);
    let mut server = Server::new(machine, card, disk, station);
    machine.end(server.run())
}
