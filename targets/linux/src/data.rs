//! Where the store's data come from at its start.

use kayvee_disk::{FileDisk, Spec, Withheld};
use kayvee_server::{Engine, Options};
use mio::{Registry, Token, Waker};
use std::io;

/// The log's disk: the one that is named, or the one with the usual name where there is to be a log.
pub fn disk(options: &Options) -> io::Result<Option<Spec>> {
    if options.disk.is_empty() {
        let usual = || Spec { path: kayvee_disk::USUAL_NAME.into(), size_bytes: None };
        return Ok(options.appendonly.then(usual));
    }
    let named = |why| io::Error::other(format!("option 'disk \"{}\"': {why}", options.disk));
    Spec::parse(&options.disk).map(Some).map_err(named)
}

/// Opens the log on a disk, and has the store be what it says. The ends of transfers are told under a token.
pub fn open_log(engine: &mut Engine, spec: &Spec, registry: &Registry, token: Token) -> io::Result<FileDisk> {
    let waker = Waker::new(registry, token)?;
    let wake = Box::new(move || {
        // It fails where the counter behind it is full, and then the loop is awake.
        let _ = waker.wake();
    });
    let mut disk = FileDisk::open(spec, wake).map_err(io::Error::other)?;
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
    Ok(disk)
}
