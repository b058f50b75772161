//! `kayvee import` and `kayvee export`: data from Redis, and back.

use crate::{
    args::{ExportArgs, ImportArgs, RedisVersion},
    embedded, say, supervise,
};
use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kayvee_disk::{FileDisk, Place, Spec, Withheld};
use kayvee_files::Replacement;
use kayvee_platform::WriteFile;
use kayvee_server::{CutOff, Dialect, Engine, Error, Loaded, Progress};
use std::{
    fs,
    io::{self, IsTerminal},
    os::unix::fs::{FileTypeExt, MetadataExt},
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
        let mut is_empty = true;
        let mut progress = |path: &str, progress: Progress| {
            is_empty = false;
            shown.step(path, progress);
        };
        let loaded = match self {
            Source::File(path) => engine.load_file(path, CutOff::LeaveOut, &mut progress),
            Source::Folder(dir, manifest) => engine.load_folder(dir, manifest, CutOff::LeaveOut, &mut progress),
        };
        shown.end();
        let loaded = loaded.map_err(|why| anyhow!(why))?;
        match self {
            // Of a folder, the manifest says that there is nothing yet.
            Source::File(path) if is_empty && loaded.cut_bytes == 0 => {
                bail!("{path}: it is empty, or a pipe; name a dump file or an append-only file")
            }
            _ => Ok(loaded),
        }
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
    supervise::break_off_at_signals()?;
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
    // What is there is locked until it is replaced, and so is the place of what is not.
    let is_there = is_device || path.metadata().is_ok_and(|metadata| metadata.len() > 0);
    let mut old = is_there.then(|| FileDisk::open(&args.disk, Box::new(|| {}))).transpose()?;
    let _place = (!is_there).then(|| Place::take(path)).transpose()?;
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

/// Writes all data to a new file, which is put in its place when it is whole. It is like the old one, if there is one: as large,
/// and with as much of that taken from the file system as is named or was taken before.
fn fill_beside(spec: &Spec, engine: &mut Engine) -> Result<()> {
    /// Of what metadata counts blocks in, whatever the file system's own are.
    const BLOCK_BYTES: u64 = 512;
    // A link stays.
    let path = fs::canonicalize(&spec.path)?;
    // What an import has left that was killed.
    kayvee_files::remove_left(&path);
    let mut file = Replacement::create(&path).with_context(|| format!("disk {}", path.display()))?;
    let mut size_bytes = spec.size_bytes;
    let old = path.metadata()?;
    // A file that was made for its place alone says nothing.
    if old.len() > 0 {
        let is_reserved = old.blocks() * BLOCK_BYTES >= old.len();
        size_bytes = size_bytes.max(is_reserved.then_some(old.len()));
        if size_bytes.is_none() {
            file.file().set_len(old.len())?;
        }
    }
    let beside = Spec { path: file.temporary().to_path_buf(), size_bytes };
    fill(&mut FileDisk::open(&beside, Box::new(|| {}))?, engine)?;
    Ok(file.put_in_place()?)
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
    supervise::break_off_at_signals()?;
    let start = Instant::now();
    if is_same_file(&args.disk, &args.output) {
        bail!("{}: it is the disk itself; name another file", args.output.display());
    }
    let named = |why: String| anyhow!("{}: {why}", args.output.display());
    // What cannot be written is not waited for.
    let file = kayvee_files::replace(&args.output).map_err(named)?;
    let mut disk = FileDisk::open_read_only(&args.disk)?;
    let mut engine = embedded::engine()?;
    engine.read_log(&mut disk).map_err(|error| anyhow!("disk {}: {error}", args.disk.display()))?;
    let oldest = engine.oldest_dialect();
    let dialect = args.redis_version.map_or(oldest, RedisVersion::dialect);
    if dialect < oldest {
        bail!("fields of hashes expire, which older ones than Redis 7.4 do not know: --redis-version 7.4");
    }
    let bytes = write_dump(&engine, dialect, file).map_err(|why| named(why.0))?;
    let keys: usize = engine.databases().iter().map(|(_, keys)| keys).sum();
    let seconds = start.elapsed().as_secs_f64();
    Ok(say(format_args!("exported {keys} keys into {} ({bytes} bytes) in {seconds:.1} s", args.output.display()))?)
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

impl RedisVersion {
    fn dialect(self) -> Dialect {
        match self {
            RedisVersion::V7_0 => Dialect::Redis70,
            RedisVersion::V7_2 => Dialect::Redis72,
            RedisVersion::V7_4 => Dialect::Redis74,
        }
    }
}

fn write_dump(engine: &Engine, dialect: Dialect, mut file: Box<dyn WriteFile>) -> Result<u64, Failure> {
    let mut bytes = 0;
    engine.export(dialect, |piece| {
        bytes += piece.len() as u64;
        file.write(piece).map_err(Failure)
    })?;
    file.finish().map_err(Failure)?;
    Ok(bytes)
}
