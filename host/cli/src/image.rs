//! The bootable image, and where the programs of one build stand.

use anyhow::{Context, Result, bail};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The guest as the linker leaves it, and as it boots.
const LINKED: &str = "kayvee-guest";
const PACKED: &str = "kayvee.elf";

/// A program that was built together with this one.
pub fn built(name: &str) -> Result<PathBuf> {
    let path = own_program()?.with_file_name(name);
    if !path.is_file() {
        bail!("{} is missing; build it with `cargo build --release`", path.display());
    }
    Ok(path)
}

/// The image, ready to boot: packed once for every build.
pub fn path() -> Result<PathBuf> {
    let linked = built(LINKED)?;
    let packed = linked.with_file_name(PACKED);
    // This program holds the packer, so a newer one packs anew.
    let sources = [changed(&linked)?, changed(&own_program()?)?];
    if !changed(&packed).is_ok_and(|packed| sources.iter().all(|source| *source < packed)) {
        // Whoever boots the image meanwhile sees the old one or the new one, never half of it.
        let draft = linked.with_file_name(format!("{PACKED}.{}", std::process::id()));
        fs::write(&draft, pack(&linked)?)
            .and_then(|()| fs::rename(&draft, &packed))
            .with_context(|| format!("writing {}", packed.display()))?;
    }
    Ok(packed)
}

/// Writes the image to a file.
pub fn write(output: &Path) -> Result<()> {
    let image = pack(&built(LINKED)?)?;
    fs::write(output, &image).with_context(|| format!("writing {}", output.display()))?;
    println!("{}: {} KiB; docs/boot.md says how to boot it", output.display(), image.len().div_ceil(1024));
    Ok(())
}

fn pack(linked: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(linked).with_context(|| format!("reading {}", linked.display()))?;
    kayvee_image::pack(&bytes).with_context(|| format!("packing {}", linked.display()))
}

fn own_program() -> Result<PathBuf> {
    env::current_exe().context("finding this program's own folder")
}

fn changed(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}
