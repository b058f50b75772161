//! Where the store's data come from at its start.

use crate::{bell::Bell, host::LinuxHost};
use kayvee_disk::{FileDisk, Spec, Withheld};
use kayvee_server::{Engine, Options};
use mio::{Registry, Token};
use std::io;

/// The token under which the ends of transfers are told.
pub const DISK: Token = Token(usize::MAX - 2);

/// The log's disk: the one that is named, or the one with the usual name where there is to be a log.
pub fn disk(options: &Options) -> io::Result<Option<Spec>> {
    if options.disk.is_empty() {
        let usual = || Spec { path: kayvee_disk::USUAL_NAME.into(), size_bytes: None };
        return Ok(options.appendonly.then(usual));
    }
    let named = |why| io::Error::other(format!("option 'disk \"{}\"': {why}", options.disk));
    Spec::parse(&options.disk).map(Some).map_err(named)
}

/// What a disk tells of the ends of transfers with.
pub fn wake(registry: &Registry) -> io::Result<Box<dyn Fn() + Send>> {
    let bell = Bell::new(registry, DISK)?;
    Ok(Box::new(move || bell.ring()))
}

/// Before the log is driven: sees to it that the disk is that of the log.
pub fn take_new_disk(disk: &mut Option<Box<FileDisk>>, host: &LinuxHost) {
    if let Some(new) = host.take_disk() {
        *disk = Some(new);
    }
}

/// After that: sees to it that the log gets to its place, or is let go of with its disk if it is not wanted any more.
pub fn settle_log(disk: &mut Option<Box<FileDisk>>, engine: &mut Engine) {
    if let Some(open) = disk {
        engine.settle_log(&mut **open);
    }
    if !engine.log_is_open() {
        *disk = None;
    }
}

/// Opens the log on a disk, and has the store be what it says.
pub fn open_log(engine: &mut Engine, spec: &Spec, registry: &Registry) -> io::Result<Box<FileDisk>> {
    let mut disk = FileDisk::open(spec, wake(registry)?).map_err(io::Error::other)?;
    if engine.options().disk.is_empty() {
        disk.remove_left(&spec.path);
    }
    let named = |error| io::Error::other(format!("disk {}: {error}", spec.path.display()));
    // A redis.conf that has a log and names no disk for it is redis-server's, whose data are then taken over once.
    let takes_over = engine.options().disk.is_empty() && disk.is_blank();
    if takes_over && engine.load_before_log().map_err(io::Error::other)? {
        let mut withheld = Withheld::new(&mut disk)?;
        engine.open_log(&mut withheld).map_err(named)?;
        withheld.release()?;
    } else {
        engine.open_log(&mut disk).map_err(named)?;
    }
    Ok(Box::new(disk))
}
