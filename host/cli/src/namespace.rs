//! A network namespace of this process's own, which needs no rights on most systems.
//!
//! A socket belongs to the namespace in which it was made: what listened before entering goes on listening on the
//! host, while everything made afterwards, the tap among it, is in the new one.

use crate::tap::{Tap, TapError};
use anyhow::{Context, Result, bail};
use nix::{
    sched::{CloneFlags, unshare},
    unistd::{getegid, geteuid},
};
use std::{
    fs,
    process::{Command, Stdio},
};

/// The hidden command that does [`enter_with_tap`] and ends.
pub const TRIAL_COMMAND: &str = "try-namespace";

/// Moves this process into a namespace of its own and makes a tap there.
pub fn enter_with_tap() -> Result<Tap> {
    enter()?;
    Tap::create().map_err(|error| match error {
        TapError::Failed(error) => error,
        TapError::NotAllowed(error) => anyhow::Error::from(error).context("making a tap device in a network namespace"),
    })
}

/// Moves this process into a new user and network namespace. It has all rights in there, and keeps its user and group,
/// so a program that it starts has none.
///
/// The kernel refuses this to a process with more than one thread.
fn enter() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
    // Without rights a group may be mapped only once setgroups(2) is given up; see user_namespaces(7).
    fs::write("/proc/self/setgroups", "deny").context("giving up setgroups")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1")).context("mapping the user")?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1")).context("mapping the group")?;
    Ok(())
}

/// Whether entering a namespace and making a tap in it works for this user: tried in a process that ends afterwards,
/// because some systems allow the first and then refuse the second, and there is no way back.
pub fn try_out() -> Result<()> {
    let trial = Command::new("/proc/self/exe").arg(TRIAL_COMMAND).stdin(Stdio::null()).output();
    let trial = trial.context("starting a trial")?;
    if !trial.status.success() {
        let text = String::from_utf8_lossy(&trial.stderr);
        bail!("{}", text.trim().trim_start_matches("kayvee: "));
    }
    Ok(())
}
