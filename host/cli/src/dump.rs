//! `kayvee import` and `kayvee export`: data from Redis, and back.

use crate::{
    args::{ExportArgs, ImportArgs, RedisVersion},
    embedded, say,
};
use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kayvee_disk::{FileDisk, Spec, Withheld};
use kayvee_server::{CutOff, Dialect, Engine, Error, Loaded, Progress};
use std::{
    fs::{self, File, Metadata},
    io::{self, IsTerminal},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::Instant,
};

/// Where data comes from.
enum Source {
    /// A dump file or an append-only file.
    File(String),
    /// A folder and the manifest in it.
    Folder(String, String),
}

impl Source {
    fn find(path: &Path) -> Result<Source> {
        let text = path.to_str().with_context(|| format!("{}: the name is no UTF-8", path.display()))?;
        let kind = fs::metadata(path).with_context(|| text.to_string())?;
        if !kind.is_dir() {
            return Ok(Source::File(text.into()));
        }
        let mut manifests = Vec::new();
        for entry in fs::read_dir(path).with_context(|| text.to_string())? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if name.ends_with(".manifest") && !name.starts_with("temp-") {
                manifests.push(name);
            }
        }
        match manifests.as_slice() {
            [manifest] => Ok(Source::Folder(text.into(), manifest.clone())),
            [] => bail!("{text} has no *.manifest, so it is no folder of append-only files; name the dump file itself"),
            _ => bail!("{text} has several manifests: {}", manifests.join(", ")),
        }
    }

    fn load(&self, engine: &mut Engine, shown: &Shown) -> Result<Loaded> {
        let mut progress = |path: &str, progress: Progress| shown.step(path, progress);
        let loaded = match self {
            Source::File(path) => engine.load_file(path, CutOff::LeaveOut, &mut progress),
            Source::Folder(dir, manifest) => engine.load_folder(dir, manifest, CutOff::LeaveOut, &mut progress),
        };
        shown.end();
        loaded.map_err(|why| anyhow!(why))
    }
}

/// Where progress is shown: a bar on a terminal, lines elsewhere.
struct Shown {
    bar: ProgressBar,
}

impl Shown {
    fn new() -> Shown {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
        bar.set_style(style.expect("the template is right").progress_chars("=> "));
        Shown { bar }
    }

    fn step(&self, path: &str, progress: Progress) {
        if self.bar.length() != Some(progress.of_bytes) || self.bar.message() != path {
            self.bar.reset();
            self.bar.set_length(progress.of_bytes);
            self.bar.set_message(path.to_string());
            self.line(&format!("reading {path} ({} bytes)", progress.of_bytes));
        }
        self.bar.set_position(progress.bytes);
    }

    /// A line where there is no bar.
    fn line(&self, text: &str) {
        if !io::stderr().is_terminal() {
            eprintln!("kayvee: {text}");
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// What the store or a monitor warns of goes to the standard error.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("kayvee: {}", record.args());
        }
    }

    fn flush(&self) {}
}

pub fn show_warnings() {
    // It is set once a process, so this cannot fail.
    if log::set_logger(&Warnings).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}

/// Writes a Redis' data to a disk.
pub fn import(args: &ImportArgs) -> Result<()> {
    show_warnings();
    let start = Instant::now();
    let source = Source::find(&args.source)?;
    let path = &args.disk.path;
    let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    let refuse = |disk: &mut FileDisk| match args.replace || disk.is_blank() {
        true => Ok(()),
        false => {
            bail!("disk {}: it holds data already; name another one, or add --replace to erase it", path.display())
        }
    };
    // A file that is refused has not grown.
    if path.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        refuse(&mut FileDisk::open(&Spec { path: path.clone(), size_bytes: None }, Box::new(|| {}))?)?;
    }
    // What is there is locked until it is replaced.
    let mut old = path.exists().then(|| FileDisk::open(&args.disk, Box::new(|| {}))).transpose()?;
    old.as_mut().map_or(Ok(()), refuse)?;
    let mut engine = embedded::engine()?;
    let shown = Shown::new();
    // What the disk held is erased only when there is something to take its place.
    let result = source.load(&mut engine, &shown).and_then(|loaded| {
        shown.line("writing the disk");
        match old.as_mut().filter(|_| is_device) {
            // A device's data can only be erased where they are.
            Some(disk) => fill(disk, &mut engine)?,
            None => fill_beside(&args.disk, &mut engine)?,
        }
        Ok(loaded)
    });
    tell(&result?, &engine)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(say(format_args!("imported {} into {} in {seconds:.1} s", args.source.display(), path.display()))?)
}

/// Writes all data to a new file, which is put in its place when it is whole.
fn fill_beside(spec: &Spec, engine: &mut Engine) -> Result<()> {
    let old = spec.path.metadata().ok();
    let mut name = spec.path.file_name().unwrap_or_default().to_os_string();
    name.push(".import");
    let beside = spec.path.with_file_name(name);
    // What an import has left that was killed.
    let _ = fs::remove_file(&beside);
    let filled = make_beside(&beside, spec, old.as_ref())
        .and_then(|spec| FileDisk::open(&spec, Box::new(|| {})).map_err(|error| anyhow!("{error}")))
        .and_then(|mut disk| fill(&mut disk, engine))
        .and_then(|()| Ok(old.map_or(Ok(()), |old| fs::set_permissions(&beside, old.permissions()))?))
        .and_then(|()| Ok(fs::rename(&beside, &spec.path)?));
    if filled.is_err() {
        let _ = fs::remove_file(&beside);
    }
    filled?;
    Ok(kayvee_files::sync_name(&spec.path)?)
}

/// Makes a file for a disk that is like the old one, if there is one: as large, and with as much of that taken from the file
/// system as is named or was taken before.
fn make_beside(beside: &Path, spec: &Spec, old: Option<&Metadata>) -> Result<Spec> {
    /// Of what metadata counts blocks in, whatever the file system's own are.
    const BLOCK_BYTES: u64 = 512;
    let reserved = old.filter(|old| old.blocks() * BLOCK_BYTES >= old.len()).map(Metadata::len);
    let size_bytes = spec.size_bytes.max(reserved);
    if let (None, Some(old)) = (size_bytes, old) {
        File::options().write(true).create_new(true).mode(0o600).open(beside)?.set_len(old.len())?;
    }
    Ok(Spec { path: beside.to_path_buf(), size_bytes })
}

/// Writes all data to a disk.
fn fill(disk: &mut FileDisk, engine: &mut Engine) -> Result<()> {
    let mut disk = Withheld::new(disk)?;
    // What a store holds before it opens a log goes into that.
    engine.open_log(&mut disk).map_err(|error| anyhow!("{error}"))?;
    Ok(disk.release()?)
}

fn tell(loaded: &Loaded, engine: &Engine) -> io::Result<()> {
    if loaded.failed_requests > 0 {
        eprintln!("kayvee: {} requests failed, as they may have done when they were made", loaded.failed_requests);
    }
    if loaded.cut_bytes > 0 {
        eprintln!(
            "kayvee: the last {} bytes are no whole request or transaction; they were left out",
            loaded.cut_bytes
        );
    }
    let databases = engine.databases();
    let keys: usize = databases.iter().map(|(_, keys)| keys).sum();
    let libraries = engine.libraries();
    say(format_args!("{keys} keys in {} databases, {libraries} libraries of functions", databases.len()))?;
    if loaded.requests > 0 {
        say(format_args!("{} requests of append-only files", loaded.requests))?;
    }
    Ok(())
}

/// Writes a disk's data to a dump file.
pub fn export(args: &ExportArgs) -> Result<()> {
    show_warnings();
    let start = Instant::now();
    if is_same_file(&args.disk, &args.output) {
        bail!("{}: it is the disk itself; name another file", args.output.display());
    }
    check_output(&args.output)?;
    let mut disk = FileDisk::open_read_only(&args.disk)?;
    let mut engine = embedded::engine()?;
    engine.read_log(&mut disk).map_err(|error| anyhow!("disk {}: {error}", args.disk.display()))?;
    let written = write_dump(&engine, args.redis_version, &args.output);
    let bytes = written.map_err(|why| anyhow!("{}: {}", args.output.display(), why.0))?;
    let keys: usize = engine.databases().iter().map(|(_, keys)| keys).sum();
    let seconds = start.elapsed().as_secs_f64();
    Ok(say(format_args!("exported {keys} keys into {} ({bytes} bytes) in {seconds:.1} s", args.output.display()))?)
}

/// Refuses to put a file in the place of a device, a pipe or a folder.
pub fn check_output(path: &Path) -> Result<()> {
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        bail!("{}: it is no regular file", path.display());
    }
    Ok(())
}

/// Whether both names lead to one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    place(one).is_some_and(|found| place(other) == Some(found))
}

/// Why a dump was not written.
struct Failure(String);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(String::from_utf8_lossy(&error.0).into_owned())
    }
}

fn write_dump(engine: &Engine, version: RedisVersion, path: &Path) -> Result<u64, Failure> {
    let dialect = match version {
        RedisVersion::V7_0 => Dialect::Redis70,
        RedisVersion::V7_2 => Dialect::Redis72,
    };
    let mut file = kayvee_files::replace(path).map_err(Failure)?;
    let mut bytes = 0;
    engine.export(dialect, |piece| {
        bytes += piece.len() as u64;
        file.write(piece).map_err(Failure)
    })?;
    file.finish().map_err(Failure)?;
    Ok(bytes)
}
