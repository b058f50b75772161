//! The bootable image, and where the programs of one build stand.

use crate::say;
use anyhow::{Context, Result, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    env,
    fs::{self, File},
    io::Write,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
};

/// The guest as the linker leaves it.
const LINKED: &str = "kayvee-guest";

/// The bootable image in memory, so that there is no file of it to be outdated or not writable.
pub struct Image(File);

impl Image {
    /// Packs the image.
    pub fn pack() -> Result<Image> {
        Image::of("kayvee.elf", &packed()?)
    }

    /// A file in memory with these bytes.
    pub fn of(name: &str, bytes: &[u8]) -> Result<Image> {
        let image = Image::empty(name)?;
        image.file().write_all(bytes)?;
        Ok(image)
    }

    /// A file in memory that has nothing yet.
    pub fn empty(name: &str) -> Result<Image> {
        let file = memfd_create(name, MFdFlags::MFD_CLOEXEC).context("making a file in memory")?;
        Ok(Image(File::from(file)))
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// The descriptor for a child to inherit, under the same number.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The path by which such a child opens it.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.descriptor())
    }
}

/// A program that was built together with this one.
pub fn built(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("finding this program's own folder")?;
    let path = own.with_file_name(name);
    if !path.is_file() {
        bail!("{} is missing; build it with `cargo build --release`", path.display());
    }
    Ok(path)
}

/// Writes the image to a file.
pub fn write(output: &Path) -> Result<()> {
    let image = packed()?;
    fs::write(output, &image).with_context(|| format!("writing {}", output.display()))?;
    let size_kib = image.len().div_ceil(1024);
    Ok(say(format_args!("{}: {size_kib} KiB; docs/boot.md says how to boot it", output.display()))?)
}

fn packed() -> Result<Vec<u8>> {
    let linked = built(LINKED)?;
    let bytes = fs::read(&linked).with_context(|| format!("reading {}", linked.display()))?;
    kayvee_image::pack(&bytes).with_context(|| format!("packing {}", linked.display()))
}
