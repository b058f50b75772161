//! Kayvee as a bootable image: finds the machine's devices, makes the network stack and the store, and runs the loop.
#![no_std]
#![no_main]

extern crate alloc;

mod card;
mod devices;
mod disk;
mod server;
mod sys;

use alloc::{format, string::String, sync::Arc};
use devices::Devices;
use disk::Disk;
use kayvee_http::Site;
use kayvee_net::{Config, Limits, Stack};
use kayvee_platform::{Clock, ProcessorTime};
use kayvee_server::{
    Engine, Environment,
    boot::{self, BootArgs},
};
use kayvee_station::{Peers, Station, Web};
use kayvee_x86::{
    clock::CLOCK,
    console,
    machine::{Machine, Setup},
    power::Status,
};
use server::Server;

/// This part of the memory may hold what was read of a site on a disk.
const SITE_CACHE_PART: usize = 8;

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
    let devices = match devices::find(&mut setup, &args) {
        Ok(devices) => devices,
        Err(why) => setup.machine().refuse(&why),
    };
    let machine = setup.seal();
    if let Some(test) = args.self_test {
        sys::self_test::run(test, sys::layout());
        log::error!("nothing has stopped the self test");
        machine.end(Status::Failed);
    }

    serve(&machine, machine_ns, args, devices)
}

/// Makes the store on this card, and runs it until its end.
fn serve(machine: &Machine, machine_ns: u64, args: BootArgs, devices: Devices) -> ! {
    let Devices { mut card, disk, site_disk, seed } = devices;
    let hypervisor = machine.hypervisor();
    // As many connections are for the web server as for the store, if there is one, so that neither takes the other's.
    let web_bits = u32::from(args.options.http_port != 0);
    let limits = Limits::for_memory(sys::HEAP.total_bytes(), args.options.maxclients.saturating_mul(1 << web_bits));
    let (stack_seed, engine_seed) = seed.split_at(8);
    let config = Config {
        addressing: args.addressing,
        addressing6: args.addressing6,
        limits,
        keepalive_s: args.options.tcp_keepalive,
        seed: u64::from_le_bytes(stack_seed.try_into().expect("8 bytes")),
    };
    let now = machine.clock().now();
    let mut stack = Stack::new(config, &mut card, now.monotonic_ns).unwrap_or_else(|error| machine.refuse(&error));
    if args.peers == boot::Peers::Host {
        stack.ask_nobody();
    }
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
        monitor: sys::monitor::figures,
        host: &kayvee_server::NoHost,
        seed: engine_seed[..32].try_into().expect("32 bytes"),
    };
    let has_log = args.options.appendonly;
    let mut engine = Engine::new(args.options, environment, now);
    engine.limit_clients(limits.clients() as u32 >> web_bits);
    if engine.shutdown().is_some() {
        // What is wrong with them has been said.
        machine.refuse(&"the options");
    }
    engine.note_boot_phase("machine", machine_ns);
    engine.note_boot_phase("devices", now.monotonic_ns);
    let memory_bytes = sys::HEAP.total_bytes() as usize;
    let mut web = Web::new(engine.options(), limits.connections, memory_bytes, now);
    let mut site_disk = site_disk.map(|device| Disk::new(device, machine));
    if let Some(web) = &mut web {
        open_site(web.server(), site_disk.as_mut(), machine).unwrap_or_else(|error| machine.refuse(&error));
    }
    engine.note_boot_phase("site", CLOCK.now().monotonic_ns);
    // It lives until the machine ends, so nothing of it is ever taken apart, and there is no code for that.
    let peers = match args.peers {
        // Who reaches a machine whose only network this is was meant to, unless it is said otherwise.
        boot::Peers::Known => Peers::Trusted,
        boot::Peers::Host => Peers::host(args.addressing, args.addressing6),
        boot::Peers::Strangers => Peers::Strangers,
    };
    let mut station = Station::new(stack, engine, web, peers, limits.connections);
    // Last, since data may take all memory that is left.
    let mut disk = disk.map(|device| Disk::new(device, machine));
    match &mut disk {
        Some(disk) => station.engine().open_log(disk).unwrap_or_else(|error| machine.refuse(&format!("disk: {error}"))),
        None if has_log => machine.refuse(&"option 'appendonly': there is no disk: add -device virtio-blk-device"),
        None => {}
    }
    station.engine().note_boot_phase("data", CLOCK.now().monotonic_ns);
    let mut server = Server::new(machine, card, disk, site_disk, station);
    machine.end(server.run())
}

/// Has the web server serve the site that was loaded beside the image, or that is on a disk.
fn open_site(server: &mut kayvee_http::Server, disk: Option<&mut Disk<'_>>, machine: &Machine) -> Result<(), String> {
    match (machine.boot_module(), disk) {
        (Some(_), Some(_)) => Err("there is a site as boot module and one on a disk: leave one of them out".into()),
        (None, None) => Ok(()),
        (Some(module), None) => {
            let site = Site::open(Arc::new(module)).map_err(|error| format!("boot module: {error}"))?;
            server.set_site(site);
            Ok(())
        }
        (None, Some(disk)) => {
            let cached_bytes = sys::HEAP.total_bytes() as usize / SITE_CACHE_PART;
            let opened = kayvee_http::open_site_disk(disk);
            opened
                .and_then(|site| server.set_site_on_disk(site, cached_bytes))
                .map_err(|error| format!("site disk: {error}"))
        }
    }
}
