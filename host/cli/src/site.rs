//! `kayvee site`: web sites.

use crate::{args::SitePackArgs, image::Image};
use anyhow::{Context, Result};
use kayvee_http::Site;
use kayvee_site::Effort;
use std::{fs, path::Path, sync::Arc};

/// The image of a site for a guest: packed from a directory, or the file as it is, and checked in any case.
pub fn image(site: &Path) -> Result<Image> {
    Image::of("site.image", (**kayvee_site::open(site)?.image()).as_ref())
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
