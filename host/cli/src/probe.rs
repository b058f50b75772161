//! Whether KVM works: found out by booting the image under it.
//!
//! That `/dev/kvm` exists, and even that QEMU starts with it, says little: nested and paravirtual KVM fail later, when
//! the guest executes what they do not cover.

use crate::{
    args::Machine,
    console::next_line,
    image::Image,
    monitor,
    qemu::{self, Accelerator, Ending, Guest},
    sys,
};
use anyhow::{Context, Result, anyhow, bail};
use std::{
    fs::File,
    io::{self, BufReader},
    os::fd::RawFd,
    process::{Command, Stdio},
    time::Duration,
};

/// A guest that says nothing for so long will not do better later. The boot itself takes a fraction of a second.
const BOOT_TIMEOUT: Duration = Duration::from_secs(5);
const MEMORY_MIB: u32 = 64;

/// Whether this system has KVM, and this user a right to it.
pub fn device() -> Result<()> {
    let opened = File::options().read(true).write(true).open("/dev/kvm").map(drop);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => anyhow!(error).context("no right to /dev/kvm: mostly its group has it"),
        _ => anyhow!(error).context("/dev/kvm"),
    })
}

/// Boots the image under KVM with QEMU.
pub fn qemu(image: &Image) -> Result<()> {
    let guest = Guest { image, accelerator: Accelerator::Kvm, machine: Machine::Microvm, memory_mib: MEMORY_MIB };
    boot(guest.command(&qemu::find()?, ""), &[image.descriptor()])
}

/// Boots the image under KVM with this program's own monitor.
pub fn own(image: &Image) -> Result<()> {
    let guest = monitor::Guest {
        image,
        module: None,
        memory_mib: MEMORY_MIB,
        boot_line: "",
        network: None,
        disk: None,
        site_disk: None,
        control: None,
        debugger: None,
        record: None,
    };
    let (command, inherited) = guest.command();
    boot(command, &inherited)
}

/// Boots the image without a network device, which it refuses with an exit status of its own: a guest that gets that far
/// has set up its processor and memory and has reached its drivers.
fn boot(mut command: Command, inherited: &[RawFd]) -> Result<()> {
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    sys::tie_to_this_process(&mut command, inherited);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
    // The command holds the pipe's writing end.
    drop(command);

    let process = sys::Process::open(child.id())?;
    let in_time = process.wait(BOOT_TIMEOUT)?;
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    let mut reader = BufReader::new(reader);
    let last_words = std::iter::from_fn(|| next_line(&mut reader)).last().unwrap_or_default();
    match Ending::of(status) {
        _ if !in_time => bail!("a guest did not boot within {} s", BOOT_TIMEOUT.as_secs()),
        Ending::Refused => Ok(()),
        _ if last_words.is_empty() => bail!("the monitor ended with {status}"),
        _ => bail!("{last_words}"),
    }
}
