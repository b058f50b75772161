//! The bootable image, and where the programs of one build stand.

use anyhow::{Context, Result, bail};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A program that was built together with this one.
pub fn built(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("finding this program's own folder")?;
    let path = own.with_file_name(name);
    if !path.is_file() {
        bail!("{} is missing; build it with `cargo build --release`", path.display());
    }
    Ok(path)
}

/// The image, ready to boot.
pub fn path() -> Result<PathBuf> {
    built("kayvee-guest")
}

/// Writes the image to a file.
pub fn write(output: &Path) -> Result<()> {
    let bytes = fs::copy(path()?, output).with_context(|| format!("writing {}", output.display()))?;
    println!("{}: {} KiB", output.display(), bytes.div_ceil(1024));
    Ok(())
}
