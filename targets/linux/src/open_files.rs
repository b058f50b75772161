//! The limit on open files, on which the number of clients depends.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

/// Files that the process needs beside its clients', as many as Redis reserves.
const RESERVED_FILES: u64 = 32;
/// Where there are too few files for all, the web server's connections have this part of them at least, and give way to the
/// store's clients down to that.
const WEB_PART: u64 = 4;

/// Whether connections of the web server are open files beside the store's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WebServer {
    None,
    Beside,
}

/// Whether the store's clients are open files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StoreSockets {
    /// They are sockets of the kernel's.
    Kernel,
    /// The store has a network of its own.
    Own,
}

/// Raises the limit on open files for `maxclients` and as many connections of the web server, if there is one, and returns for
/// how many clients it is enough.
pub fn reserve(maxclients: u32, web: WebServer) -> io::Result<u32> {
    let beside = if web == WebServer::Beside { maxclients } else { 0 };
    let wanted = files(maxclients, beside);
    let granted = raise(wanted)?;
    match clients(granted, maxclients, web) {
        0 => Err(io::Error::other(format!(
            "the limit of {granted} open files is not enough; raise it to at least {wanted} ('ulimit -n {wanted}')"
        ))),
        clients if clients < maxclients => {
            log::warn!(
                "maxclients is {clients}, not {maxclients}, because only {granted} files can be open; to have more, \
                 raise the limit ('ulimit -n {wanted}')"
            );
            Ok(clients)
        }
        clients => Ok(clients),
    }
}

/// Raises the limit as far as the web server needs it for `maxclients` connections beside the store's clients, and returns for
/// how many it is enough.
pub fn web_connections(maxclients: u32, store: StoreSockets) -> io::Result<usize> {
    let store_clients = if store == StoreSockets::Kernel { maxclients } else { 0 };
    let wanted = files(store_clients, maxclients);
    let granted = raise(wanted)?;
    let connections = left_for_web(granted, store_clients, maxclients);
    if connections < maxclients {
        log::warn!(
            "the web server has at most {connections} connections, not {maxclients}, because only {granted} files can be open; \
             to have more, raise the limit ('ulimit -n {wanted}')"
        );
    }
    Ok(connections as usize)
}

/// The files that so many clients of the store and of the web server need.
fn files(clients: u32, web_connections: u32) -> u64 {
    u64::from(clients) + u64::from(web_connections) + RESERVED_FILES
}

/// Raises the limit, if it is lower, as far as that can be done, and returns what it is.
fn raise(wanted: u64) -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(soft);
    }
    // Beyond the hard limit takes privileges, up to it does not.
    let granted = [wanted, hard]
        .into_iter()
        .find(|&files| setrlimit(Resource::RLIMIT_NOFILE, files, hard.max(files)).is_ok())
        .unwrap_or(soft);
    Ok(granted)
}

/// How many of `maxclients` clients there are files for.
fn clients(files: u64, maxclients: u32, web: WebServer) -> u32 {
    let room = files.saturating_sub(RESERVED_FILES);
    let room = if web == WebServer::Beside { room - room / WEB_PART } else { room };
    room.min(maxclients.into()) as u32
}

/// How many connections of the web server there are files for beside the store's clients.
fn left_for_web(files: u64, store_clients: u32, maxclients: u32) -> u32 {
    let room = files.saturating_sub(RESERVED_FILES);
    let left = room.saturating_sub(store_clients.into()).max(room / WEB_PART);
    left.min(maxclients.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_web_gives_way_to_the_store() {
        for (files, of_store, of_web) in [
            (20_032, 10_000, 10_000),
            (1 << 20, 10_000, 10_000),
            (20_031, 10_000, 9_999),
            (13_366, 10_000, 3_334),
            (12_032, 9_000, 3_000),
            (64, 24, 8),
            (33, 1, 0),
            (32, 0, 0),
            (0, 0, 0),
        ] {
            let store_clients = clients(files, 10_000, WebServer::Beside);
            assert_eq!((store_clients, left_for_web(files, store_clients, 10_000)), (of_store, of_web), "{files}");
            assert!(u64::from(of_store + of_web) <= files.saturating_sub(RESERVED_FILES), "{files}");
        }
        assert_eq!(clients(64, 10_000, WebServer::None), 32);
        assert_eq!(left_for_web(64, 0, 10_000), 32, "the store has a network of its own");
    }
}
