//! Kayvee as a Linux process: kernel sockets in the place of the image's own network stack.
#![deny(unsafe_code)]

mod access_log;
mod arguments;
mod bell;
mod bypass;
mod card;
mod clock;
mod data;
mod datagrams;
mod host;
mod http;
mod listeners;
mod logger;
mod open_files;
mod server;
mod signals;
mod site;
mod sockets;
mod supervisor;
#[allow(unsafe_code)]
mod sys;

use anyhow::{Result, bail};
use arguments::{Invocation, Run};
use bypass::Network;
use clock::SystemClock;
use host::{LinuxHost, Reach};
use kayvee_platform::{Clock, ProcessorTime};
use kayvee_server::{Engine, Environment, Options};
use nix::{
    sys::{
        resource::{Usage, UsageWho, getrusage},
        sysinfo::sysinfo,
    },
    unistd::daemon,
};
use sockets::Listening;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    sys::keep_freed_memory();
    match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Run(Run { mut options, config_file, network })) => {
            // The log file's name counts from there, so these errors have no log to go to.
            if let Err(error) = enter_folder(&mut options).and_then(|()| open_log(&options)) {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            run(*options, config_file, network).map_or_else(
                |error| {
                    log::error!("{error:#}");
                    ExitCode::FAILURE
                },
                ExitCode::from,
            )
        }
        Ok(Invocation::Print(text)) => {
            match io::stdout().write_all(text.as_bytes()) {
                // Whoever reads it may have had enough.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                }
                _ => ExitCode::SUCCESS,
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Goes to the folder that option `dir` names.
fn enter_folder(options: &mut Options) -> Result<(), String> {
    if !options.dir.is_empty() {
        let named = |error: io::Error| format!("option 'dir \"{}\"': {}", options.dir, kayvee_files::plain(&error));
        std::env::set_current_dir(&options.dir).map_err(named)?;
    }
    options.dir = host::current_dir();
    Ok(())
}

/// Begins to log, where that can be done.
fn open_log(options: &Options) -> Result<(), String> {
    let opened = logger::install(options.loglevel.filter(), &options.logfile);
    opened.map_err(|error| format!("Can't open the log file: {}", kayvee_files::plain(&error)))
}

/// Options that are taken so that redis.conf can stay as it is, and whose effect somebody could miss.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("aof-timestamp-enabled", "the log has no timestamps"),
    ("bind-source-addr", "the system chooses the address that connections to a master come from"),
    ("io-threads", "one thread serves all clients"),
    ("oom-score-adj", "the service manager can set it: OOMScoreAdjust= of systemd"),
    ("socket-mark-id", "packets are not marked"),
    ("syslog-enabled", "the log goes to 'logfile', or the standard output"),
];

fn warn_of_what_has_no_effect(options: &Options) {
    for (name, instead) in WITHOUT_EFFECT {
        if options.kept.iter().any(|(kept, _)| *kept == name) {
            log::warn!("option '{name}' has no effect here: {instead}");
        }
    }
}

/// Serves until a signal or a client ends it, and returns the exit status.
fn run(mut options: Options, config_file: Option<String>, network: Option<Network>) -> Result<u8> {
    if options.daemonize {
        if options.pidfile.is_empty() {
            options.pidfile = DAEMON_PID_FILE.into();
        }
        daemon(true, false)?;
    }
    logger::raw(&banner(&options));
    if let Some(file) = &config_file {
        log::info!("Configuration loaded from {file}");
    }
    warn_of_what_has_no_effect(&options);
    let pid_file = PidFile::write(&options.pidfile);
    let status = match network {
        Some(network) => serve_past_the_kernel(options, config_file, &network),
        None => serve(options, config_file),
    };
    drop(pid_file);
    log::warn!("Kayvee is now ready to exit, bye bye...");
    status
}

/// Serves on the kernel's sockets.
fn serve(mut options: Options, config_file: Option<String>) -> Result<u8> {
    options.maxclients = open_files::reserve(options.maxclients, http::is_wanted(&options))?;
    let places = listeners::places(&options);
    let sockets = listeners::bind(&places, &options).map_err(|error| {
        let text = format!("Failed listening on port {} (TCP), aborting: {error}", options.port);
        io::Error::new(error.kind(), text)
    })?;
    let mut sockets: Vec<_> = sockets.into_iter().map(|(place, tcp)| (Some(place), Listening::Tcp(tcp))).collect();
    sockets.extend(listeners::bind_unix(&options)?.map(|unix| (None, unix)));
    if sockets.is_empty() {
        bail!("without a port or an address in bind, and without a unixsocket, there is nothing to listen on");
    }
    let host = LinuxHost::new(config_file, Reach::Kernel(places));
    let unix_socket = options.unixsocket.clone();
    let (engine, clock, host) = start(options, host, "epoll")?;
    let mut server = server::Server::new(engine, sockets, clock, host)?;
    if let Some(disk) = data::disk(server.options())? {
        server.open_log(&disk)?;
    }
    server.open_http()?;
    server.open_datagrams()?;
    let status = server.run();
    if !unix_socket.is_empty() {
        // Somebody may have removed it already.
        let _ = fs::remove_file(unix_socket);
    }
    Ok(status?)
}

/// Serves on a network of the store's own.
fn serve_past_the_kernel(options: Options, config_file: Option<String>, network: &Network) -> Result<u8> {
    if !options.unixsocket.is_empty() {
        bail!("option 'unixsocket': a store with --net has no sockets of the kernel's; leave one of them out");
    }
    if options.port == 0 {
        bail!("option 'port': a store with --net needs one");
    }
    let (engine, clock, host) = start(options, LinuxHost::new(config_file, Reach::Own), "AF_XDP")?;
    bypass::Server::new(engine, network, clock, host)?.run()
}

/// Makes the store, with the data of its file if it has no disk.
fn start(
    options: Options,
    host: LinuxHost,
    multiplexing: &'static str,
) -> Result<(Engine, &'static SystemClock, &'static LinuxHost)> {
    let host: &'static LinuxHost = Box::leak(Box::new(host));
    let clock: &'static SystemClock = Box::leak(Box::new(SystemClock::new()));
    let environment = Environment {
        target: "linux",
        os: operating_system(),
        multiplexing,
        process_id: std::process::id(),
        clock,
        heap: sys::heap(),
        system_memory_bytes: sysinfo()?.ram_total(),
        processor_time,
        monitor: || None,
        host,
        seed: random()?,
    };
    let mut engine = Engine::new(options, environment, clock.now());
    if engine.shutdown().is_some() {
        // What is wrong with the options has been said, and is found before data are read, which may take long.
        bail!("the store does not start with these options");
    }
    log::info!("Server initialized");
    if data::disk(engine.options())?.is_none() {
        engine.load_at_start().map_err(io::Error::other)?;
    }
    engine.note_boot_phase("data", clock.monotonic_ns());
    Ok((engine, clock, host))
}

/// Where redis-server in the background leaves its number, unless told otherwise.
const DAEMON_PID_FILE: &str = "/var/run/redis.pid";

/// Says what is starting, whatever the log level is.
fn banner(options: &Options) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let pid = std::process::id();
    format!("{pid}:C Kayvee {version} is starting: a Redis-compatible store, Port: {}, PID: {pid}\n", options.port)
}

/// The file with this process' number, removed with this value.
struct PidFile(Option<String>);

impl PidFile {
    fn write(path: &str) -> PidFile {
        if path.is_empty() {
            return PidFile(None);
        }
        match fs::write(path, format!("{}\n", std::process::id())) {
            Ok(()) => PidFile(Some(path.into())),
            Err(error) => {
                log::warn!("pidfile {path} could not be written: {error}");
                PidFile(None)
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Somebody may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
}

/// The system's name as `INFO server` shows it.
fn operating_system() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {} {}", release.trim(), std::env::consts::ARCH)
}

/// Random bytes that nobody can predict.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut seed = [0; N];
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
