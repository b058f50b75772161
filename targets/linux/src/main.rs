//! Kayvee as a Linux process: kernel sockets in the place of the image's own network stack.
#![deny(unsafe_code)]

mod arguments;
mod clock;
mod crowd;
mod listeners;
mod logger;
mod open_files;
mod server;
#[allow(unsafe_code)]
mod sys;

use arguments::Invocation;
use clock::SystemClock;
use kayvee_platform::{Clock, ProcessorTime};
use kayvee_server::{Engine, Environment, Options};
use nix::sys::{
    resource::{Usage, UsageWho, getrusage},
    sysinfo::sysinfo,
};
use std::{
    fs::{self, File},
    io::{self, Read},
    process::ExitCode,
};

fn main() -> ExitCode {
    match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Run(options)) => match run(*options) {
            Ok(status) => ExitCode::from(status),
            Err(error) => {
                log::error!("{error}");
                ExitCode::FAILURE
            }
        },
        Ok(Invocation::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kayvee-linux: {error}");
            eprintln!("Try 'kayvee-linux --help'.");
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal or a client ends it, and returns the exit status.
fn run(mut options: Options) -> io::Result<u8> {
    logger::install(options.loglevel.filter());
    options.maxclients = open_files::reserve(options.maxclients)?;
    let listeners = listeners::bind(&options)?;
    let clock: &'static SystemClock = Box::leak(Box::new(SystemClock::new()));
    let environment = Environment {
        target: "linux",
        os: operating_system(),
        multiplexing: "epoll",
        process_id: std::process::id(),
        clock,
        heap: sys::heap(),
        system_memory_bytes: sysinfo()?.ram_total(),
        processor_time,
        host: &kayvee_commands::NoHost,
        seed: random_seed()?,
    };
    let engine = Engine::new(options, environment, clock.now());
    server::Server::new(engine, listeners, clock)?.run()
}

/// The system's name as `INFO server` shows it.
fn operating_system() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {} {}", release.trim(), std::env::consts::ARCH)
}

fn random_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(seed)
}

fn processor_time() -> ProcessorTime {
    let microseconds = |time: nix::sys::time::TimeVal| time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64;
    let both = |usage: Usage| ProcessorTime {
        user_us: microseconds(usage.user_time()),
        system_us: microseconds(usage.system_time()),
    };
    getrusage(UsageWho::RUSAGE_SELF).map(both).unwrap_or_default()
}
