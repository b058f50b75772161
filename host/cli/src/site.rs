//! `kayvee site`: web sites.

use crate::{args::SitePackArgs, image::Image};
use anyhow::{Context, Result};
use kayvee_http::Site;
use kayvee_site::Effort;
use std::{fs, path::Path, sync::Arc};

/// The image of a site for a guest: packed from a directory, or the file as it is, and checked in any case.
pub fn image(site: &Path) -> Result<Image> {
    let image = if site.is_dir() {
        kayvee_site::pack(site, Effort::Quick)?
    } else {
        fs::read(site).with_context(|| format!("reading {}", site.display()))?
    };
    let site = Site::open(Arc::new(image)).with_context(|| site.display().to_string())?;
    Image::of("site.image", (**site.image()).as_ref())
}

/// Packs a directory into a file.
pub fn pack(args: &SitePackArgs) -> Result<()> {
    let image = kayvee_site::pack(&args.dir, Effort::Best)?;
    let len = image.len();
    let site = Site::open(Arc::new(image)).context("the packed site is not what it should be; please report this")?;
    fs::write(&args.output, (**site.image()).as_ref()).with_context(|| format!("writing {}", args.output.display()))?;
    println!("{}: {} paths, {len} bytes", args.output.display(), site.len());
    Ok(())
}
