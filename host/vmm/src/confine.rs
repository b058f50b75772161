//! What is left to each thread once the guest may run: no capabilities, and the system calls that its work needs.

use crate::sys;
use anyhow::{Context, Result};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// `KVM_RUN`; the only other request of the processor's thread tells a tap what the guest's driver can do.
const KVM_RUN: u64 = 0xae80;

/// A thread's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs the guest, answers its exits and sleeps for it.
    Processor,
    /// Carries frames, what is typed, entropy.
    Io,
    /// Carries out the disk's requests.
    Disk,
    /// Answers the control socket.
    Control,
    /// Has the kernel send what the guest has queued.
    Doorbell,
}

/// What every thread needs: waiting for each other, memory for what grows, the time, and an end.
const ALL: &[libc::c_long] = &[
    libc::SYS_futex,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_clock_gettime,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_close,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

impl Role {
    fn calls(self) -> &'static [libc::c_long] {
        match self {
            // What the guest has queued for its socket.
            Role::Processor => &[libc::SYS_sendto],
            Role::Io => &[
                libc::SYS_epoll_wait,
                libc::SYS_epoll_ctl,
                libc::SYS_readv,
                libc::SYS_writev,
                libc::SYS_recvfrom,
                libc::SYS_sendto,
            ],
            Role::Control => &[libc::SYS_accept4, libc::SYS_recvfrom, libc::SYS_sendto],
            Role::Doorbell => &[libc::SYS_sendto],
            Role::Disk => &[libc::SYS_preadv, libc::SYS_pwritev2, libc::SYS_fdatasync],
        }
    }

    fn filter(self) -> Result<BpfProgram> {
        let mut rules: Vec<(i64, Vec<SeccompRule>)> =
            ALL.iter().chain(self.calls()).map(|call| (*call, vec![])).collect();
        let when = |argument, op, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
        // Memory for what grows, and nothing that can be executed.
        let no_code = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            rules.push((call, vec![SeccompRule::new(vec![when(2, no_code.clone(), 0)?])?]));
        }
        // What the allocator gives back.
        let not_needed = when(2, SeccompCmpOp::Eq, libc::MADV_DONTNEED as u64)?;
        rules.push((libc::SYS_madvise, vec![SeccompRule::new(vec![not_needed])?]));
        // Builds with assertions ask, before they close a descriptor, whether it is open.
        let is_query = when(1, SeccompCmpOp::Eq, libc::F_GETFD as u64)?;
        rules.push((libc::SYS_fcntl, vec![SeccompRule::new(vec![is_query])?]));
        if self == Role::Processor {
            let requests = [KVM_RUN, libc::TUNSETOFFLOAD];
            let rule = |request| SeccompRule::new(vec![when(1, SeccompCmpOp::Eq, request)?]);
            rules.push((libc::SYS_ioctl, requests.into_iter().map(rule).collect::<Result<_, _>>()?));
        }
        let architecture = TargetArch::x86_64;
        let filter = SeccompFilter::new(
            rules.into_iter().collect(),
            SeccompAction::KillProcess,
            SeccompAction::Allow,
            architecture,
        )?;
        Ok(filter.try_into()?)
    }
}

/// Takes the process' rights; to be called before its threads are started.
pub fn drop_rights() -> Result<()> {
    sys::drop_capabilities().context("giving up this process' rights")
}

/// Leaves the calling thread what its work needs.
pub fn limit(role: Role) -> Result<()> {
    let filter = role.filter().context("making the filter for system calls")?;
    seccompiler::apply_filter(&filter).context("filtering system calls")
}
