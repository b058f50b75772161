//! The limit on open files, on which the number of clients depends.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

/// Files that the process needs beside its clients', as many as Redis reserves.
const RESERVED_FILES: u64 = 32;

/// Raises the limit on open files for `maxclients`, and returns for how many clients it is enough.
pub fn reserve(maxclients: u32) -> io::Result<u32> {
    let wanted = u64::from(maxclients) + RESERVED_FILES;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(maxclients);
    }
    // Beyond the hard limit takes privileges, up to it does not.
    let granted = [wanted, hard]
        .into_iter()
        .find(|&files| setrlimit(Resource::RLIMIT_NOFILE, files, hard.max(files)).is_ok())
        .unwrap_or(soft);
    match granted.checked_sub(RESERVED_FILES) {
        None | Some(0) => Err(io::Error::other(format!(
            "the limit of {granted} open files is not enough; raise it to at least {wanted} ('ulimit -n {wanted}')"
        ))),
        Some(clients) if clients < u64::from(maxclients) => {
            log::warn!(
                "maxclients is {clients}, not {maxclients}, because only {granted} files can be open; to have more, \
                 raise the limit ('ulimit -n {wanted}')"
            );
            Ok(clients as u32)
        }
        Some(_) => Ok(maxclients),
    }
}
