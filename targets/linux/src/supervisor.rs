//! Telling systemd that the store serves, which units of `Type=notify` wait for: sd_notify(3).

use kayvee_server::Options;
use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// Where the service manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Tells the service manager that clients are served, if option `supervised` says so.
pub fn tell_ready(options: &Options) {
    let supervised = options.kept.iter().find(|(name, _)| *name == "supervised").map(|(_, value)| &value[..]);
    match (supervised, env::var_os(SOCKET)) {
        (Some(b"systemd" | b"auto"), Some(path)) => {
            if let Err(error) = send(&path) {
                log::warn!("option 'supervised': systemd was not told that the store is ready: {error}");
            }
        }
        (Some(b"systemd"), None) => {
            log::warn!("option 'supervised systemd': {SOCKET} is not set; the unit needs Type=notify");
        }
        (Some(b"upstart"), _) => log::warn!("option 'supervised upstart': Kayvee tells systemd only that it is ready"),
        _ => {}
    }
}

fn send(path: &OsStr) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1\nSTATUS=Ready to accept connections\n", &address)?;
    Ok(())
}
