//! Kayvee's own monitor as a child of this program: the command that starts it, and what that child does. All that it
//! works with it inherits as descriptors.

use crate::{
    args::MonitorArgs,
    dump::show_warnings,
    image::Image,
    network::{self, End},
    sys,
};
use anyhow::{Context, Result};
use kayvee_files::Recorder;
use kayvee_vmm::{Backend, Config, DirectNetwork, Disk, Ending, Network};
use kayvee_xdp_socket::Attachment;
use std::{
    fs::File,
    net::TcpListener,
    os::fd::{AsRawFd, RawFd},
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, ExitCode},
};

/// The monitor's own failure, as QEMU has it.
const STATUS_FAILED: u8 = 1;

/// A guest to start.
pub struct Guest<'a> {
    /// The bootable image.
    pub image: &'a Image,
    /// What is loaded beside it, if anything is.
    pub module: Option<&'a Image>,
    /// Its memory.
    pub memory_mib: u32,
    /// What it is told.
    pub boot_line: &'a str,
    /// Its network, if it has one.
    pub network: Option<&'a End>,
    /// Its disk, if it has one, opened and locked.
    pub disk: Option<&'a File>,
    /// The disk with its site, if it has one.
    pub site_disk: Option<&'a File>,
    /// Where it is controlled from, if it is.
    pub control: Option<&'a UnixListener>,
    /// Where debuggers connect, if they may.
    pub debugger: Option<&'a TcpListener>,
    /// Where its frames are recorded, if they are.
    pub record: Option<&'a File>,
}

impl Guest<'_> {
    /// The command that runs it, and the descriptors that this inherits.
    pub fn command(&self) -> (Command, Vec<RawFd>) {
        let mut command = Command::new("/proc/self/exe");
        let mut inherited = vec![self.image.descriptor()];
        command.args(["monitor", "--memory", &self.memory_mib.to_string()]);
        command.args(["--image", &self.image.descriptor().to_string()]);
        if let Some(module) = self.module {
            command.args(["--module", &module.descriptor().to_string()]);
            inherited.push(module.descriptor());
        }
        if let Some(end) = self.network {
            let descriptor = end.descriptor();
            let number = descriptor.unwrap_or_default().to_string();
            match end {
                End::Tap(_, mac) => command.args(["--tap", &number, "--mac", &network::mac_text(*mac)]),
                End::Stream(_, mac) => command.args(["--stream", &number, "--mac", &network::mac_text(*mac)]),
                End::Direct(pair) => command.args(["--xdp", &Attachment::to_pair(pair).to_string()]),
                End::Interface(attachment) => command.args(["--xdp", &attachment.to_string()]),
            };
            inherited.extend(descriptor);
        }
        for (option, disk) in [("--disk", self.disk), ("--site-disk", self.site_disk)] {
            if let Some(disk) = disk {
                command.args([option, &disk.as_raw_fd().to_string()]);
                inherited.push(disk.as_raw_fd());
            }
        }
        if let Some(control) = self.control {
            command.args(["--control", &control.as_raw_fd().to_string()]);
            inherited.push(control.as_raw_fd());
        }
        if let Some(record) = self.record {
            command.args(["--record", &record.as_raw_fd().to_string()]);
            inherited.push(record.as_raw_fd());
        }
        if let Some(debugger) = self.debugger {
            command.args(["--debugger", &debugger.as_raw_fd().to_string()]);
            inherited.push(debugger.as_raw_fd());
        }
        command.args(["--boot-line", self.boot_line]);
        sys::hold_signals(&mut command);
        (command, inherited)
    }
}

/// Is the monitor, in the child.
pub fn run(args: &MonitorArgs) -> Result<ExitCode> {
    show_warnings();
    let network = match (args.tap, args.stream) {
        (Some(tap), _) => Some(Backend::tap(inherit(tap)?).context("the tap device")?),
        (None, Some(stream)) => Some(Backend::stream(UnixStream::from(sys::inherited(stream)?))?),
        (None, None) => None,
    };
    let mut recorder = args.record.map(inherit).transpose()?.map(Recorder::begin).transpose().context("--pcap")?;
    let config = Config {
        image: inherit(args.image)?,
        module: args.module.map(inherit).transpose()?,
        memory_bytes: u64::from(args.memory) << 20,
        boot_line: args.boot_line.clone(),
        network: network.map(|backend| Network { backend, mac: args.mac.0, recorder: recorder.take() }),
        direct: args.xdp.clone().map(|attachment| DirectNetwork { attachment, recorder: recorder.take() }),
        control: args.control.map(sys::inherited).transpose()?.map(UnixListener::from),
        debugger: args.debugger.map(sys::inherited).transpose()?.map(TcpListener::from),
        disk: args.disk.map(inherit).transpose()?.map(Disk::new).transpose().context("the disk")?,
        site_disk: args.site_disk.map(inherit).transpose()?.map(Disk::new).transpose().context("the site's disk")?,
    };
    match kayvee_vmm::run(config)? {
        Ending::Clean => Ok(ExitCode::SUCCESS),
        Ending::Exit(status) => Ok(status.into()),
        Ending::Failed(error) => {
            eprintln!("kayvee: {error:#}");
            Ok(STATUS_FAILED.into())
        }
    }
}

fn inherit(fd: RawFd) -> Result<File> {
    Ok(sys::inherited(fd)?.into())
}
