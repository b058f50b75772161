//! Packs a directory into a site image: what the files are, which variants are shorter, which rules hold.
//!
//! The same files with the same times make the same image. It depends on `kayvee-http` for the format; whatever serves
//! the image needs nothing from here.
#![forbid(unsafe_code)]

mod image;
mod rules;

pub use image::{FileSink, check};

use anyhow::{Context, Result, bail};
use brotli::enc::BrotliEncoderParams;
use flate2::{Compression, GzBuilder};
use kayvee_http::site::{Builder, File, Sink};
use rules::Rules;
use std::{
    env, fs,
    io::Write,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

/// The file of rules at the top of a site. It is not part of the site.
const RULES_FILE: &str = ".kayvee-site";
/// The only name with a dot at its start that is public (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";
/// Folders in folders; more is a mistake.
const MAX_DEPTH: usize = 64;
/// Files and folders that are looked at, by each path to them.
const MAX_ENTRIES: usize = 1 << 20;
/// Those among them that lie behind more than one link: a few links to folders with links make more paths than anybody can
/// wait for.
const MAX_BEHIND_LINKS: usize = 1 << 16;
/// Files shorter than this gain nothing from compression: they fit in one packet with their head.
const MIN_COMPRESSED_BYTES: usize = 256;

/// How thoroughly pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As short as can be: packed once, served often.
    Best,
    /// Quickly: packed whenever a file has changed.
    Quick,
}

/// A file of the site.
struct Source {
    file: PathBuf,
    /// From the top of the site, with a slash before it.
    path: Vec<u8>,
    /// Since 1970.
    modified: Duration,
    state: State,
}

/// What tells a file, and a state of it, from others. Names, sizes and times of modification may be those of what was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Seconds and nanoseconds: when the content was changed, and when anything of the file was, which nobody can set.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Source {
    fn new(file: PathBuf, path: Vec<u8>, metadata: &fs::Metadata) -> Result<Self> {
        let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let state = State {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        Ok(Self { file, path, modified, state })
    }
}

/// Packs a directory in memory.
pub fn pack(dir: &Path, effort: Effort) -> Result<Vec<u8>> {
    pack_into(dir, effort, Vec::new())
}

/// Packs a directory. Only one of its files is in memory at a time.
pub fn pack_into<S: Sink>(dir: &Path, effort: Effort, sink: S) -> Result<S> {
    pack_without(&[], dir, effort, sink)
}

/// Packs a directory without these files, wherever they are linked to: the image itself may lie there.
pub fn pack_without<S: Sink>(left_out: &[&Path], dir: &Path, effort: Effort, sink: S) -> Result<S> {
    // What is not there cannot be packed.
    let left_out: Vec<_> = left_out.iter().filter_map(|file| fs::metadata(file).ok()).collect();
    let is_left_out =
        |state: &State| left_out.iter().any(|file| (file.dev(), file.ino()) == (state.device, state.inode));
    let rules = read_rules(&dir.join(RULES_FILE))?;
    let Walk { mut sources, folders, .. } = Walk::through(dir)?;
    sources.retain(|source| !is_left_out(&source.state));
    if sources.is_empty() {
        bail!("{} has no files to serve; files whose names start with a dot are left out", dir.display());
    }
    let mut builder = Builder::new(sink);
    for (root, host) in rules.hosts() {
        builder.host(host.as_bytes(), root)?;
    }
    rules.check_folders(&folders).with_context(|| dir.join(RULES_FILE).display().to_string())?;
    for path in &folders {
        let (root, path) = rules.place(path);
        if !path.is_empty() {
            builder.folder(root, path)?;
        }
    }
    for source in &sources {
        let page = page(source, &rules, effort)?;
        let (root, path) = rules.place(&source.path);
        let name = || format!("packing {}", source.file.display());
        if let Some(folder) = rules.index_folder(path) {
            // The first of the names of indexes wins where a folder has several.
            let first = rules.indexes().iter().find(|index| {
                let candidate = source.file.with_file_name(index);
                candidate.is_file()
            });
            if first.is_some_and(|first| source.file.file_name().is_some_and(|name| name == first.as_str())) {
                builder.page(root, folder, &page).with_context(name)?;
            }
        }
        builder.page(root, path, &page).with_context(name)?;
    }
    Ok(builder.finish()?)
}

fn read_rules(file: &Path) -> Result<Rules> {
    let reading = || format!("reading {}", file.display());
    match fs::metadata(file) {
        Ok(found) if found.is_file() => {}
        // It could keep whoever reads it waiting for ever.
        Ok(_) => bail!("{} is no regular file", file.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Rules::default()),
        Err(error) => return Err(error).with_context(reading),
    }
    let text = fs::read(file).with_context(reading)?;
    Rules::parse(&text).with_context(|| file.display().to_string())
}

/// The image of a site to be served, in no more memory than it needs: of a directory, which is packed quickly, or one that was
/// packed before.
pub fn image(site: &Path) -> Result<Vec<u8>> {
    let found = metadata(site)?;
    let mut image = match () {
        () if found.is_dir() => pack(site, Effort::Quick)?,
        () if found.is_file() => fs::read(site).with_context(|| format!("reading {}", site.display()))?,
        () => bail!("{} is neither a directory nor a regular file", site.display()),
    };
    image.shrink_to_fit();
    Ok(image)
}

/// What tells one state of a directory from another: which files are where, and their times and sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(Vec<(Vec<u8>, State)>);

/// The state of a directory or of an image, for whoever wants to know when to pack it again.
pub fn fingerprint(site: &Path) -> Result<Fingerprint> {
    let found = metadata(site)?;
    let mut sources = Vec::new();
    if found.is_dir() {
        sources = Walk::through(site)?.sources;
        let rules = site.join(RULES_FILE);
        if rules.exists() {
            sources.push(Source::new(rules.clone(), RULES_FILE.into(), &metadata(&rules)?)?);
        }
    } else {
        sources.push(Source::new(site.to_path_buf(), Vec::new(), &found)?);
    }
    Ok(Fingerprint(sources.into_iter().map(|source| (source.path, source.state)).collect()))
}

fn metadata(file: &Path) -> Result<fs::Metadata> {
    fs::metadata(file).with_context(|| format!("{}", file.display()))
}

/// What there is in a directory, with what links in it lead to, wherever that is.
#[derive(Default)]
struct Walk {
    sources: Vec<Source>,
    folders: Vec<Vec<u8>>,
    /// The folders that it is in now, as the system tells them apart.
    within: Vec<(u64, u64)>,
    entries: usize,
    behind_links: usize,
}

impl Walk {
    fn through(dir: &Path) -> Result<Walk> {
        let mut walk = Walk::default();
        walk.visit(dir, b"", &metadata(dir)?, 0)?;
        Ok(walk)
    }

    fn visit(&mut self, dir: &Path, path: &[u8], found: &fs::Metadata, links: usize) -> Result<()> {
        let identity = (found.dev(), found.ino());
        if self.within.contains(&identity) {
            bail!("{} is a link to a folder that it lies in", dir.display());
        }
        if self.within.len() > MAX_DEPTH {
            bail!("{} lies more than {MAX_DEPTH} folders deep", dir.display());
        }
        self.within.push(identity);
        let listing = || format!("reading {}", dir.display());
        let entries = fs::read_dir(dir).with_context(listing)?.collect::<Result<Vec<_>, _>>();
        let mut entries = entries.with_context(listing)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        self.entries += entries.len();
        self.behind_links += if links > 1 { entries.len() } else { 0 };
        if self.entries > MAX_ENTRIES {
            bail!(
                "{}: there are more than {MAX_ENTRIES} files and folders, counted by each path to them",
                dir.display()
            );
        }
        if self.behind_links > MAX_BEHIND_LINKS {
            bail!(
                "{}: more than {MAX_BEHIND_LINKS} files and folders lie behind links in folders that links lead to",
                dir.display()
            );
        }
        for entry in entries {
            let name = entry.file_name();
            let name = name.as_bytes();
            if name.starts_with(b".") && name != WELL_KNOWN {
                continue;
            }
            let file = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let found = match fs::metadata(&file) {
                // A link that leads nowhere, or a file that has just been removed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                found => found.with_context(|| format!("{}", file.display()))?,
            };
            let path = [path, b"/", name].concat();
            if found.is_dir() {
                self.visit(&file, &path, &found, links + usize::from(is_link))?;
                self.folders.push(path);
            } else if found.is_file() {
                self.sources.push(Source::new(file, path, &found)?);
            }
        }
        self.within.pop();
        Ok(())
    }
}

fn page(source: &Source, rules: &Rules, effort: Effort) -> Result<File> {
    let identity = fs::read(&source.file).with_context(|| format!("reading {}", source.file.display()))?;
    let content_type = rules.content_type(&source.path).map_or_else(|| guess_type(&source.file), str::to_string);
    let (mut gzip_body, mut brotli_body) = (None, None);
    if identity.len() >= MIN_COMPRESSED_BYTES && is_compressible(&content_type) {
        let is_shorter = |body: &Vec<u8>| body.len() < identity.len() / 10 * 9;
        gzip_body = Some(gzip(&identity, effort)?).filter(is_shorter);
        brotli_body = Some(brotli(&identity, effort)?).filter(is_shorter);
    }
    let modified_s = source.modified.as_secs();
    Ok(File {
        content_type,
        cache_control: rules.cache_control(&source.path).unwrap_or_default().to_string(),
        modified_s: source_date_epoch()?.map_or(modified_s, |latest_s| modified_s.min(latest_s)),
        identity,
        gzip: gzip_body,
        brotli: brotli_body,
    })
}

/// The latest time that an image of reproducible builds may show (reproducible-builds.org, SOURCE_DATE_EPOCH).
fn source_date_epoch() -> Result<Option<u64>> {
    let Some(value) = env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let seconds = value.to_str().and_then(|value| value.parse().ok());
    Ok(Some(seconds.context("SOURCE_DATE_EPOCH is not a number of seconds since 1970")?))
}

/// The media type of a file by its name, with the character set of texts.
fn guess_type(file: &Path) -> String {
    let mime = mime_guess::from_path(file).first_or_octet_stream();
    let essence = mime.essence_str();
    let is_text = mime.type_() == "text" || matches!(essence, "application/javascript" | "application/manifest+json");
    // What browsers expect since RFC 9239.
    let essence = if essence == "application/javascript" { "text/javascript" } else { essence };
    if is_text { format!("{essence}; charset=utf-8") } else { essence.to_string() }
}

fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.starts_with("text/")
        || essence.ends_with("+xml")
        || essence.ends_with("+json")
        || [
            "application/json",
            "application/xml",
            "application/javascript",
            "application/wasm",
            "application/vnd.ms-fontobject",
            "font/ttf",
            "font/otf",
            "image/bmp",
            "image/x-icon",
        ]
        .contains(&essence)
}

fn gzip(bytes: &[u8], effort: Effort) -> Result<Vec<u8>> {
    let level = if effort == Effort::Best { Compression::best() } else { Compression::fast() };
    // No name, no time, no system: the same bytes for the same page.
    let mut encoder = GzBuilder::new().operating_system(255).write(Vec::new(), level);
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn brotli(bytes: &[u8], effort: Effort) -> Result<Vec<u8>> {
    let quality = if effort == Effort::Best { 11 } else { 4 };
    let parameters = BrotliEncoderParams { quality, size_hint: bytes.len(), ..BrotliEncoderParams::default() };
    let mut body = Vec::new();
    brotli::BrotliCompress(&mut &bytes[..], &mut body, &parameters)?;
    Ok(body)
}

#[cfg(test)]
mod tests;
