//! `kayvee site`: web sites.

use crate::{
    args::{SiteCheckArgs, SitePackArgs},
    image::Image,
    say, supervise,
};
use anyhow::{Context, Result};
use kayvee_files::Replacement;
use kayvee_site::{Effort, FileSink};
use std::{fs, path::Path};

/// The image of a site for a guest, in memory: packed from a directory, or the file as it is.
pub fn image(site: &Path) -> Result<Image> {
    let image = Image::empty("site.image")?;
    let file = image.file().try_clone()?;
    if site.is_dir() {
        kayvee_site::pack_into(site, Effort::Quick, FileSink::new(file))?.finish().context("packing the site")?;
    } else {
        kayvee_site::check(site)?;
        let mut source = fs::File::open(site).with_context(|| site.display().to_string())?;
        std::io::copy(&mut source, &mut &file).with_context(|| site.display().to_string())?;
    }
    Ok(image)
}

/// Packs a directory into a file.
pub fn pack(args: &SitePackArgs) -> Result<()> {
    supervise::break_off_at_signals()?;
    let named = || format!("writing {}", args.output.display());
    let mut output = Replacement::create(&args.output).with_context(named)?;
    let sink = FileSink::new(output.file().try_clone().with_context(named)?);
    // It is packed again where it lies in the directory itself.
    let own = [output.temporary(), &args.output];
    kayvee_site::pack_without(&own, &args.dir, Effort::Best, sink)?.finish().with_context(named)?;
    output.put_in_place().with_context(named)?;
    print_checked(&args.output)
}

/// Reads a whole image and says whether it is sound.
pub fn check(args: &SiteCheckArgs) -> Result<()> {
    print_checked(&args.file)
}

fn print_checked(image: &Path) -> Result<()> {
    let checked = kayvee_site::check(image)?;
    Ok(say(format_args!("{}: {} paths, {} bytes", image.display(), checked.paths, checked.bytes))?)
}
