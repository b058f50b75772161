//! `kayvee site`: web sites.

use crate::args::SitePackArgs;
use anyhow::{Context, Result};
use kayvee_http::Site;
use kayvee_site::Effort;
use std::{fs, sync::Arc};

/// Packs a directory into a file.
pub fn pack(args: &SitePackArgs) -> Result<()> {
    let image = kayvee_site::pack(&args.dir, Effort::Best)?;
    let len = image.len();
    let site = Site::open(Arc::new(image)).context("the packed site is not what it should be; please report this")?;
    fs::write(&args.output, (**site.image()).as_ref()).with_context(|| format!("writing {}", args.output.display()))?;
    println!("{}: {} paths, {len} bytes", args.output.display(), site.len());
    Ok(())
}
