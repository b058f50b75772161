//! Whether KVM works: found out by booting the image under it.
//!
//! That `/dev/kvm` exists, and even that QEMU starts with it, says little: nested and paravirtual KVM fail later, when
//! the guest executes what they do not cover.

use crate::{
    args::Machine,
    console::next_line,
    image::Image,
    qemu::{self, Accelerator, Ending, Guest},
    sys,
};
use anyhow::{Context, Result, bail};
use std::{
    io::{self, BufReader},
    process::Stdio,
    time::Duration,
};

/// A guest that says nothing for so long will not do better later. The boot itself takes a fraction of a second.
const BOOT_TIMEOUT: Duration = Duration::from_secs(5);
const MEMORY_MIB: u32 = 64;

/// Boots the image under KVM without a network device, which it refuses with an exit status of its own: a guest that
/// gets that far has set up its processor and memory and has reached its drivers.
pub fn kvm(image: &Image) -> Result<()> {
    let guest = Guest { image, accelerator: Accelerator::Kvm, machine: Machine::Microvm, memory_mib: MEMORY_MIB };
    let (reader, writer) = io::pipe()?;
    let mut command = guest.command(&qemu::find()?, "");
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    sys::tie_to_this_process(&mut command, &[image.descriptor()]);
    let mut child = command.spawn().context("starting QEMU")?;
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
        _ if last_words.is_empty() => bail!("QEMU ended with {status}"),
        _ => bail!("{last_words}"),
    }
}
