//! What is left to each thread once the guest may run: no capabilities, and the system calls that its work needs.

use crate::sys::{self, F_SETOWN_EX, F_SETSIG, KICK};
use anyhow::{Context, Result};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// `KVM_RUN`; the only other request of the processor's thread tells a tap what the guest's driver can do.
const KVM_RUN: u64 = 0xae80;

/// What a debugger does besides: registers (`KVM_GET_REGS`, `KVM_SET_REGS`, `KVM_GET_SREGS`, `KVM_GET_FPU`,
/// `KVM_SET_FPU`), addresses (`KVM_TRANSLATE`), breakpoints (`KVM_SET_GUEST_DEBUG`), and waiting or not (`FIONBIO`).
const DEBUGGER_REQUESTS: &[u64] = &[
    KVM_RUN,
    libc::TUNSETOFFLOAD,
    0x8090_ae81,
    0x4090_ae82,
    0x8138_ae83,
    0x81a0_ae8c,
    0x41a0_ae8d,
    0xc018_ae85,
    0x4048_ae9b,
    libc::FIONBIO,
];

/// A thread's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs the guest, answers its exits and sleeps for it.
    Processor,
    /// The same, for a debugger besides.
    DebuggedProcessor,
    /// Carries frames, what is typed, entropy.
    Io,
    /// Carries out the disk's requests.
    Disk,
    /// Answers the control socket.
    Control,
    /// Has the kernel send what the guest has queued, and hands on what is recorded.
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
            // What the guest has queued for its socket, and short writes to its disk.
            Role::Processor => &[libc::SYS_sendto, libc::SYS_pwritev2],
            Role::DebuggedProcessor => {
                &[libc::SYS_sendto, libc::SYS_pwritev2, libc::SYS_recvfrom, libc::SYS_accept4, libc::SYS_setsockopt]
            }
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
            Role::Disk => &[libc::SYS_preadv, libc::SYS_pwritev2, libc::SYS_pwrite64, libc::SYS_fdatasync],
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
        let mut operations = vec![libc::F_GETFD];
        if self == Role::DebuggedProcessor {
            // A connection that signals this thread.
            operations.extend([F_SETOWN_EX, F_SETSIG, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC]);
            rules.push((libc::SYS_gettid, vec![]));
        }
        let rule = |operation: &i32| SeccompRule::new(vec![when(1, SeccompCmpOp::Eq, *operation as u64)?]);
        rules.push((libc::SYS_fcntl, operations.iter().map(rule).collect::<Result<_, _>>()?));
        if self == Role::Control {
            // Tells the processor's thread to leave the guest, and nothing else to anybody.
            let rule = [when(0, SeccompCmpOp::Eq, std::process::id().into())?, when(2, SeccompCmpOp::Eq, KICK as u64)?];
            rules.push((libc::SYS_tgkill, vec![SeccompRule::new(rule.into())?]));
            // Answering must not wait: FIONBIO.
            let is_nonblocking = when(1, SeccompCmpOp::Eq, libc::FIONBIO)?;
            rules.push((libc::SYS_ioctl, vec![SeccompRule::new(vec![is_nonblocking])?]));
        }
        let requests: &[u64] = match self {
            Role::Processor => &[KVM_RUN, libc::TUNSETOFFLOAD],
            Role::DebuggedProcessor => DEBUGGER_REQUESTS,
            _ => &[],
        };
        if !requests.is_empty() {
            let rule = |request| SeccompRule::new(vec![when(1, SeccompCmpOp::Eq, request)?]);
            rules.push((libc::SYS_ioctl, requests.iter().map(|request| rule(*request)).collect::<Result<_, _>>()?));
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
