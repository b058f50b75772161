//! `kayvee`: boots the store on this machine and looks after it.
//!
//! One module a subject: what the user asks for ([`args`], [`store`]), what a guest runs on ([`probe`], [`monitor`], [`qemu`]), how
//! it is reached ([`network`], [`front`], [`listen`], [`carry`]: through the kernel with [`tap`] and [`proxy`], or without rights
//! with [`wire`] and [`usernet`]), what passes on its link ([`record`]), the shards of a cluster and what is published on them ([`shards`], [`relay`]), its life ([`supervise`], [`console`], [`ready`], [`log`], [`instances`]), what its
//! disk holds ([`check`]), and its data's way from and to Redis ([`dump`], on a store in this process, [`embedded`]). System calls that need `unsafe` are in [`sys`]. It depends on `kayvee-server` for the options, the
//! boot line and that store, on `kayvee-net` for the host's end of a wire, and on `kayvee-disk` and `kayvee-log` for disks;
//! a store that serves is another program, or a guest.

mod args;
mod carry;
mod check;
mod console;
mod dump;
mod embedded;
mod front;
mod image;
mod instances;
mod listen;
mod log;
mod monitor;
mod network;
mod probe;
mod proxy;
mod qemu;
mod ready;
mod record;
mod relay;
mod run;
mod shards;
mod site;
mod store;
mod supervise;
mod sys;
mod tap;
mod usernet;
mod wire;

use args::{Cli, Command, LogArgs, LogCommand, SiteCommand};
use clap::Parser;
use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

const STATUS_FAILED: u8 = 1;
const STATUS_USAGE: u8 = 2;

/// Arguments that make no sense.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Server(args) => run::become_server(&args.arguments),
        Command::Ps => instances::ps(),
        Command::Logs(args) => instances::logs(&args.name, args.follow),
        Command::Stop(args) if args.all => instances::stop_all(),
        Command::Stop(args) => instances::stop(&args.names),
        Command::Stats(args) => instances::control(&args.name, "stats"),
        Command::Pause(args) => instances::control(&args.name, "pause"),
        Command::Resume(args) => instances::control(&args.name, "resume"),
        Command::Image(args) => image::write(&args.output),
        Command::Log(LogArgs { command: LogCommand::Check(args) }) => check::check(&args.file),
        Command::Import(args) => dump::import(&args),
        Command::Export(args) => dump::export(&args),
        Command::Site(SiteCommand::Pack(args)) => site::pack(&args),
        Command::Site(SiteCommand::Check(args)) => site::check(&args),
        Command::Monitor(args) => match monitor::run(&args) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kayvee: {error:#}");
            if error.is::<UsageError>() { STATUS_USAGE.into() } else { STATUS_FAILED.into() }
        }
    }
}

/// Says something on the standard output. That nobody reads it is an error here, where it would end this program in `println!`.
pub fn say(words: impl fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{words}")
}

/// Whether whoever read this program's output, such as `head`, has had enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
