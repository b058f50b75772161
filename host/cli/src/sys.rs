//! System calls that no crate here wraps safely. All `unsafe` of this program is in this file.

use kayvee_link::interface_request;
use nix::{
    errno::Errno,
    libc, poll,
    sys::signal::{SigSet, Signal},
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
    time::{Duration, Instant},
};

const TUN: &str = "/dev/net/tun";

/// What goes through a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Frames as they would be on a wire.
    Plain,
    /// Frames whose checksums and division into segments are left to the other side, each behind a header that says so.
    Offloaded,
}

/// Makes a tap device and returns its open end, whose closing removes the device, and its name. A `%d` in the name is
/// replaced by the kernel with the first free number.
pub fn create_tap(name: &str, frames: Frames) -> io::Result<(File, String)> {
    let tun = OpenOptions::new().read(true).write(true).open(TUN).map_err(|error| {
        // The caller's words say what for.
        io::Error::new(error.kind(), format!("{TUN}: {error}"))
    })?;
    let mut request = interface_request(name)?;
    let header = match frames {
        Frames::Plain => 0,
        Frames::Offloaded => libc::IFF_VNET_HDR,
    };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | header) as i16;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is.
    Errno::result(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    let name = request.ifr_name.iter().take_while(|&&b| b != 0).map(|&b| char::from(b as u8)).collect();
    Ok((tun, name))
}

/// Has a child receive SIGTERM when this process ends in whatever way, inherit descriptors under the same numbers, and
/// live in a process group of its own, so that a terminal's Ctrl-C reaches this process alone.
///
/// The thread that spawns the child has to live as long as the process: the kernel sends the signal when it ends.
pub fn tie_to_this_process(command: &mut Command, inherited: &[RawFd]) {
    command.process_group(0);
    let parent = nix::unistd::getpid();
    let inherited = inherited.to_vec();
    let prepare = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
        // The parent may have ended before the line above.
        if nix::unistd::getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
        for &fd in &inherited {
            // SAFETY: F_SETFD takes an integer and touches no memory; on a number that is not open it fails.
            Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Has a child begin with the signals held back that ask it to end: for one that reads them once it can. Before that, they
/// would end it as a failure.
pub fn hold_signals(command: &mut Command) {
    let mut held = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| held.add(signal));
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe { command.pre_exec(move || held.thread_block().map_err(io::Error::from)) };
}

/// Has a child start a session of its own, away from the terminal of this one.
pub fn leave_session(command: &mut Command) {
    // SAFETY: setsid is a system call that touches no memory.
    unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from)) };
}

/// A descriptor that this process was started with. Each may be taken once.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD takes an integer and touches no memory; on a number that is not open it fails. A further child is
    // not to have it.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: the descriptor is open, and whoever started this process left it for this purpose, so nothing else here
    // owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A handle to one process, which stays that process's when its number is given out again.
pub struct Process(OwnedFd);

impl Process {
    /// Opens the process that has this number now.
    pub fn open(pid: u32) -> io::Result<Process> {
        // SAFETY: pidfd_open takes two integers and touches no memory.
        let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
        // SAFETY: the call has just returned this descriptor, and nothing else owns it.
        Ok(Process(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: the third argument may be null; no other argument is a pointer.
        let sent = unsafe {
            let no_info: *const libc::siginfo_t = std::ptr::null();
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as i32, no_info, 0)
        };
        match Errno::result(sent) {
            Err(Errno::ESRCH) => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }

    /// Waits until the process has ended, and tells whether it did so in time.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        wait_readable(&self.0, limit)
    }
}

/// Waits until a descriptor has something to read, or its end, and tells whether that was in time.
pub fn wait_readable(fd: &impl AsFd, limit: Duration) -> io::Result<bool> {
    wait(fd, poll::PollFlags::POLLIN, limit)
}

/// Waits until nobody is there any more who could read what is written, and tells whether that was in time.
pub fn wait_unread(fd: &impl AsFd, limit: Duration) -> io::Result<bool> {
    // Of that a caller is told always.
    wait(fd, poll::PollFlags::empty(), limit)
}

fn wait(fd: &impl AsFd, what: poll::PollFlags, limit: Duration) -> io::Result<bool> {
    let mut fds = [poll::PollFd::new(fd.as_fd(), what)];
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll::poll(&mut fds, poll::PollTimeout::try_from(left).unwrap_or(poll::PollTimeout::MAX)) {
            // A signal that is caught for somebody else.
            Err(Errno::EINTR) => {}
            result => return Ok(result? > 0),
        }
    }
}

/// Whether this process ignores a signal, as who started it may have wanted.
pub fn is_ignored(signal: Signal) -> io::Result<bool> {
    let mut action = std::mem::MaybeUninit::uninit();
    // SAFETY: without a new action nothing changes; the present one is written where there is room for it.
    Errno::result(unsafe { libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded, so it has written all of it.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}
