//! QEMU: its command line, and what the ways in which it ends mean. Both are documented in `docs/boot.md`.

use crate::{args::Machine, image::Image, network::End};
use anyhow::{Result, anyhow};
use kayvee_disk::Prepared;
use std::{
    env,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

const PROGRAM: &str = "qemu-system-x86_64";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor, by KVM.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accelerator {
    /// Its name for the user.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "TCG",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Accelerator::Kvm => &["-accel", "kvm", "-cpu", "host,-arch-capabilities"],
            // One possible processor would have QEMU drop the guest's memory barriers.
            Accelerator::Tcg => &["-accel", "tcg", "-cpu", "max", "-smp", "1,maxcpus=2"],
        }
    }
}

/// Everything about a guest but its network.
pub struct Guest<'a> {
    /// The bootable image.
    pub image: &'a Image,
    /// What executes it.
    pub accelerator: Accelerator,
    /// The machine around it.
    pub machine: Machine,
    /// Its memory.
    pub memory_mib: u32,
}

/// Finds QEMU.
pub fn find() -> Result<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file()).ok_or_else(|| {
        let packages = "apt: qemu-system-x86, dnf: qemu-system-x86-core, apk: qemu-system-x86_64, pacman: \
            qemu-system-x86, zypper: qemu-x86";
        anyhow!("{PROGRAM} is not installed ({packages})")
    })
}

impl Guest<'_> {
    /// The command for this guest without a network.
    pub fn command(&self, qemu: &Path, boot_line: &str) -> Command {
        let mut command = Command::new(qemu);
        let machine: &[&str] = match self.machine {
            Machine::Microvm => {
                &["-M", "microvm,acpi=off,rtc=on,pit=off,pic=off", "-global", "virtio-mmio.force-legacy=false"]
            }
            Machine::Q35 => &["-M", "q35"],
        };
        command.args(machine).args(self.accelerator.arguments());
        command.args(["-m", &self.memory_mib.to_string(), "-append", boot_line]).args(["-kernel", &self.image.path()]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        command
    }

    /// Adds the guest's disk to its command.
    ///
    /// The guest decides what is flushed and when, past this host's page cache, which would only copy what the guest has
    /// in memory already. Threads carry out the requests: of QEMU's three ways the one that every build has, and as quick
    /// as the others. An error is the guest's to handle: by default QEMU would stop it when there is no space left.
    pub fn add_disk(&self, command: &mut Command, path: &Path, disk: Prepared) {
        self.add_drive(command, "d0", path, disk, "");
    }

    /// Adds a disk with the guest's site, which the guest can only read, by way of this host's page cache.
    pub fn add_site_disk(&self, command: &mut Command, path: &Path, is_device: bool) {
        self.add_drive(command, "d1", path, Prepared { is_device, is_direct: false }, ",read-only=on");
    }

    fn add_drive(&self, command: &mut Command, name: &str, path: &Path, disk: Prepared, more: &str) {
        let mut node = OsString::from(format!("driver=raw,node-name={name}{more},file.filename="));
        node.push(value(path));
        let driver = if disk.is_device { "host_device" } else { "file" };
        let direct = if disk.is_direct { "on" } else { "off" };
        node.push(format!(",file.driver={driver},file.aio=threads,cache.direct={direct},cache.no-flush=off"));
        let device = match self.machine {
            Machine::Microvm => "virtio-blk-device",
            Machine::Q35 => "virtio-blk-pci,disable-legacy=on",
        };
        command.arg("-blockdev").arg(node);
        command.args(["-device", &format!("{device},drive={name},werror=report,rerror=report")]);
    }

    /// Adds the guest's network device to its command.
    pub fn add_network(&self, command: &mut Command, end: &End) {
        let (netdev, mac) = end.netdev();
        let device = match self.machine {
            Machine::Microvm => format!("virtio-net-device,netdev=n0,mac={mac}"),
            Machine::Q35 => format!("virtio-net-pci,netdev=n0,mac={mac},disable-legacy=on,romfile="),
        };
        command.args(["-netdev", &netdev, "-device", &device]);
    }

    /// Has what the image finds as its boot module loaded.
    pub fn add_module(&self, command: &mut Command, module: &Image) {
        command.args(["-initrd", &module.path()]);
    }

    /// Lets gdb attach, on this port of this host.
    pub fn add_debugger(&self, command: &mut Command, port: u16) {
        command.args(["-gdb", &format!("tcp:127.0.0.1:{port}")]);
    }

    /// Has every frame to and from the guest recorded.
    pub fn add_record(&self, command: &mut Command, file: &Path) {
        let mut filter = OsString::from("filter-dump,id=f0,netdev=n0,file=");
        filter.push(value(file));
        command.arg("-object").arg(filter);
    }
}

/// A path within an argument: QEMU reads a doubled comma as one that belongs to the value.
fn value(path: &Path) -> OsString {
    let doubled = |b: &u8| [*b; 2].into_iter().take(1 + usize::from(*b == b','));
    OsString::from_vec(path.as_os_str().as_bytes().iter().flat_map(doubled).collect())
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By a client's SHUTDOWN or a signal.
    Clean,
    /// It could not start.
    Refused,
    /// A panic or an exception.
    Crashed,
    /// A shutdown that was asked for with a failing status.
    ShutDownFailing,
    /// The monitor failed or was killed.
    Monitor(ExitStatus),
}

impl Ending {
    /// Reads a monitor's exit status: this program's own ends as QEMU does.
    pub fn of(status: ExitStatus) -> Ending {
        match status.code() {
            Some(0) => Ending::Clean,
            Some(3) => Ending::Refused,
            Some(5) => Ending::Crashed,
            Some(7) => Ending::ShutDownFailing,
            _ => Ending::Monitor(status),
        }
    }

    /// What to tell the user of an ending that was not clean.
    pub fn failure(self) -> Option<String> {
        match self {
            Ending::Clean => None,
            Ending::Refused => Some("the guest refused to start; its last lines say why".into()),
            Ending::Crashed => Some("the guest crashed; its last lines have the cause and the backtrace".into()),
            Ending::ShutDownFailing => Some("the guest shut down with a failing status".into()),
            Ending::Monitor(status) => Some(format!("the monitor ended with {status}")),
        }
    }
}
