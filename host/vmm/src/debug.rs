//! A debugger's stub: gdb's remote protocol over TCP, in the processor's own thread.
//!
//! The kernel signals that thread when the debugger connects or says something, which takes it out of the guest; so the
//! guest runs as fast as without a debugger until there is one. Breakpoints are the processor's own four, so nothing is
//! written into the guest's code.
//!
//! Paravirtual nested KVM hands the traps of steps and breakpoints to the guest, which would take them for a crash of its
//! own. There the debugger is refused both, and can look at the guest, stop it and let it go on.

use crate::{
    machine::{Ending, Processor, Turn},
    sys,
};
use anyhow::{Context, Result};
use gdbstub::{
    common::Signal,
    conn::ConnectionExt,
    stub::{
        DisconnectReason, GdbStub, SingleThreadStopReason,
        run_blocking::{BlockingEventLoop, Event, WaitForStopReasonError},
    },
    target::{
        Target, TargetError, TargetResult,
        ext::{
            base::{
                BaseOps,
                singlethread::{
                    SingleThreadBase, SingleThreadResume, SingleThreadResumeOps, SingleThreadSingleStep,
                    SingleThreadSingleStepOps,
                },
            },
            breakpoints::{Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, SwBreakpoint, SwBreakpointOps},
        },
    },
};
use gdbstub_arch::x86::{X86_64_SSE, reg::X86_64CoreRegs};
use kvm_bindings::{KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, kvm_guest_debug};
use std::{
    io::{self, ErrorKind},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
};
use vm_memory::{Bytes, GuestAddress};

/// Breakpoints that a processor has.
const BREAKPOINTS_MAX: usize = 4;
/// Bits of the debug registers (Intel SDM volume 3, §17.2).
const STATUS_STEP: u64 = 1 << 14;
const STATUS_BREAKPOINTS: u64 = 0xf;
const CONTROL_FIXED: u64 = 1 << 10;
const PAGE_BYTES: u64 = 4096;
/// The KVM that runs ring 3 without the processor's help.
const PARAVIRTUAL_KVM: &str = "/sys/module/kvm_pvm";

/// The guest as a debugger sees it.
struct Debugged<'a> {
    processor: &'a mut Processor,
    traps: Traps,
    breakpoints: Vec<u64>,
    is_stepping: bool,
    ending: Option<Ending>,
}

/// Who gets the traps of steps and breakpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traps {
    /// The debugger.
    Debugger,
    /// The guest itself, whatever KVM is asked for.
    Guest,
}

/// Where debuggers connect.
pub struct Stub {
    listener: TcpListener,
    traps: Traps,
}

impl Stub {
    /// Prepares to serve those who connect there.
    pub fn new(listener: TcpListener) -> io::Result<Stub> {
        sys::set_nonblocking(&listener)?;
        let traps = if Path::new(PARAVIRTUAL_KVM).exists() { Traps::Guest } else { Traps::Debugger };
        Ok(Stub { listener, traps })
    }
}

/// Runs the guest until its end, for debuggers that come and go.
pub fn run(processor: &mut Processor, stub: &Stub) -> Result<Ending> {
    let Stub { listener, traps } = stub;
    sys::signal_when_readable(listener).context("listening for debuggers")?;
    // Whoever comes ends a sleep.
    let watched = || Ok::<_, io::Error>(Some(listener.as_fd().try_clone_to_owned()?));
    processor.board().set_debugger(watched()?);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some(ending) = serve(processor, *traps, stream)? {
                    return Ok(ending);
                }
                processor.board().set_debugger(watched()?);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => log::warn!("a debugger that could not be accepted: {error}"),
        }
        if let Turn::Ends(ending) = processor.turn()? {
            return Ok(ending);
        }
    }
}

/// Serves one debugger, until it goes or the guest ends.
fn serve(processor: &mut Processor, traps: Traps, stream: TcpStream) -> Result<Option<Ending>> {
    stream.set_nonblocking(false)?;
    sys::signal_when_readable(&stream)?;
    processor.board().set_debugger(Some(stream.as_fd().try_clone_to_owned()?));
    if traps == Traps::Guest {
        log::warn!("a debugger has no steps and breakpoints here: {PARAVIRTUAL_KVM} hands their traps to the guest");
    }
    let mut debugged = Debugged { processor, traps, breakpoints: Vec::new(), is_stepping: false, ending: None };
    let result = GdbStub::new(stream).run_blocking::<Loop>(&mut debugged);
    let ending = debugged.ending.take();
    // The guest goes on without breakpoints.
    debugged.breakpoints.clear();
    debugged.is_stepping = false;
    debugged.set_debug()?;
    match result {
        _ if ending.is_some() => return Ok(ending),
        Ok(DisconnectReason::Kill) => return Ok(Some(Ending::Clean)),
        Ok(_) => {}
        // The guest's own failure; everything else is the debugger's, or its connection's.
        Err(error) if error.is_target_error() => {
            return Err(error.into_target_error().expect("it is one"));
        }
        Err(error) => log::warn!("the debugger: {error}"),
    }
    Ok(None)
}

impl Debugged<'_> {
    /// Puts breakpoints and stepping into force.
    fn set_debug(&mut self) -> Result<()> {
        let mut debug = kvm_guest_debug::default();
        if !self.breakpoints.is_empty() || self.is_stepping {
            debug.control = KVM_GUESTDBG_ENABLE;
        }
        if self.is_stepping {
            debug.control |= KVM_GUESTDBG_SINGLESTEP;
        }
        if !self.breakpoints.is_empty() {
            debug.control |= KVM_GUESTDBG_USE_HW_BP;
            debug.arch.debugreg[7] = CONTROL_FIXED;
        }
        for (number, address) in self.breakpoints.iter().enumerate() {
            debug.arch.debugreg[number] = *address;
            // Enabled in every task; kind and length 0 are for instructions.
            debug.arch.debugreg[7] |= 2 << (2 * number);
        }
        self.processor.vcpu().set_guest_debug(&debug).context("KVM sets no breakpoints or steps here")
    }

    fn add_breakpoint(&mut self, address: u64) -> bool {
        let has_room = self.traps == Traps::Debugger && self.breakpoints.len() < BREAKPOINTS_MAX;
        if has_room {
            self.breakpoints.push(address);
        }
        has_room
    }

    fn remove_breakpoint(&mut self, address: u64) -> bool {
        let found = self.breakpoints.iter().position(|known| *known == address);
        found.map(|index| self.breakpoints.swap_remove(index)).is_some()
    }

    /// The parts of a range of the guest's virtual memory: offset, physical address, and length.
    fn pages(&self, start: u64, len: usize) -> impl Iterator<Item = Option<(usize, GuestAddress, usize)>> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let rest = len.checked_sub(done).filter(|rest| *rest > 0)?;
            let at = start.checked_add(done as u64);
            let Some(at) = at else {
                done = len;
                return Some(None);
            };
            let part = rest.min((PAGE_BYTES - at % PAGE_BYTES) as usize);
            let translation = self.processor.vcpu().translate_gva(at).ok().filter(|found| found.valid != 0);
            let from = done;
            done += part;
            Some(translation.map(|found| (from, GuestAddress(found.physical_address), part)))
        })
    }
}

impl Target for Debugged<'_> {
    type Arch = X86_64_SSE;
    type Error = anyhow::Error;

    fn base_ops(&mut self) -> BaseOps<'_, X86_64_SSE, anyhow::Error> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadBase for Debugged<'_> {
    fn read_registers(&mut self, to: &mut X86_64CoreRegs) -> TargetResult<(), Self> {
        let vcpu = self.processor.vcpu();
        let regs = vcpu.get_regs().map_err(|error| TargetError::Fatal(error.into()))?;
        let special = vcpu.get_sregs().map_err(|error| TargetError::Fatal(error.into()))?;
        let fpu = vcpu.get_fpu().map_err(|error| TargetError::Fatal(error.into()))?;
        to.regs = [
            regs.rax, regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8, regs.r9, regs.r10,
            regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ];
        (to.rip, to.eflags) = (regs.rip, regs.rflags as u32);
        let segments = [special.cs, special.ss, special.ds, special.es, special.fs, special.gs];
        let [cs, ss, ds, es, fs, gs] = segments.map(|segment| u32::from(segment.selector));
        (to.segments.cs, to.segments.ss, to.segments.ds) = (cs, ss, ds);
        (to.segments.es, to.segments.fs, to.segments.gs) = (es, fs, gs);
        for (to, from) in to.st.iter_mut().zip(fpu.fpr) {
            to.copy_from_slice(&from[..10]);
        }
        (to.fpu.fctrl, to.fpu.fstat, to.fpu.ftag) = (fpu.fcw.into(), fpu.fsw.into(), fpu.ftwx.into());
        to.fpu.fop = fpu.last_opcode.into();
        (to.fpu.fioff, to.fpu.fooff) = (fpu.last_ip as u32, fpu.last_dp as u32);
        (to.xmm, to.mxcsr) = (fpu.xmm.map(u128::from_le_bytes), fpu.mxcsr);
        Ok(())
    }

    /// General registers, flags and those for floating numbers; the rest stays as it is.
    fn write_registers(&mut self, from: &X86_64CoreRegs) -> TargetResult<(), Self> {
        let vcpu = self.processor.vcpu();
        let mut regs = vcpu.get_regs().map_err(|error| TargetError::Fatal(error.into()))?;
        let mut fpu = vcpu.get_fpu().map_err(|error| TargetError::Fatal(error.into()))?;
        [
            regs.rax, regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8, regs.r9, regs.r10,
            regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ] = from.regs;
        (regs.rip, regs.rflags) = (from.rip, from.eflags.into());
        (fpu.xmm, fpu.mxcsr) = (from.xmm.map(u128::to_le_bytes), from.mxcsr);
        for (to, from) in fpu.fpr.iter_mut().zip(from.st) {
            to[..10].copy_from_slice(&from);
        }
        // KVM takes no values that a processor would not.
        vcpu.set_fpu(&fpu).and_then(|()| vcpu.set_regs(&regs)).map_err(|_| TargetError::NonFatal)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8]) -> TargetResult<usize, Self> {
        let memory = self.processor.board().memory();
        let mut read = 0;
        for page in self.pages(start, data.len()) {
            let Some((at, address, len)) = page else { break };
            if memory.read_slice(&mut data[at..at + len], address).is_err() {
                break;
            }
            read = at + len;
        }
        if read == 0 { Err(TargetError::NonFatal) } else { Ok(read) }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8]) -> TargetResult<(), Self> {
        let memory = self.processor.board().memory();
        // All of it is there, or nothing is written.
        let pages: Option<Vec<_>> = self.pages(start, data.len()).collect();
        let pages = pages.ok_or(TargetError::NonFatal)?;
        for (at, address, len) in pages {
            memory.write_slice(&data[at..at + len], address).map_err(|_| TargetError::NonFatal)?;
        }
        Ok(())
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadResume for Debugged<'_> {
    fn resume(&mut self, _signal: Option<Signal>) -> Result<()> {
        self.is_stepping = false;
        self.set_debug()
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        if self.traps == Traps::Debugger { Some(self) } else { None }
    }
}

impl SingleThreadSingleStep for Debugged<'_> {
    fn step(&mut self, _signal: Option<Signal>) -> Result<()> {
        self.is_stepping = true;
        self.set_debug()
    }
}

impl Breakpoints for Debugged<'_> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Debugged<'_> {
    fn add_sw_breakpoint(&mut self, address: u64, _bytes: usize) -> TargetResult<bool, Self> {
        Ok(self.add_breakpoint(address))
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _bytes: usize) -> TargetResult<bool, Self> {
        Ok(self.remove_breakpoint(address))
    }
}

impl HwBreakpoint for Debugged<'_> {
    fn add_hw_breakpoint(&mut self, address: u64, _bytes: usize) -> TargetResult<bool, Self> {
        Ok(self.add_breakpoint(address))
    }

    fn remove_hw_breakpoint(&mut self, address: u64, _bytes: usize) -> TargetResult<bool, Self> {
        Ok(self.remove_breakpoint(address))
    }
}

/// Lets the guest run between two stops.
struct Loop<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> BlockingEventLoop for Loop<'a> {
    type Target = Debugged<'a>;
    type Connection = TcpStream;
    type StopReason = SingleThreadStopReason<u64>;

    fn wait_for_stop_reason(
        target: &mut Debugged<'a>,
        connection: &mut TcpStream,
    ) -> Result<Event<Self::StopReason>, WaitForStopReasonError<anyhow::Error, io::Error>> {
        loop {
            // Before each entry: what has been said since sends a signal, which keeps the guest from being entered.
            if connection.peek().map_err(WaitForStopReasonError::Connection)?.is_some() {
                let byte = ConnectionExt::read(connection).map_err(WaitForStopReasonError::Connection)?;
                return Ok(Event::IncomingData(byte));
            }
            match target.processor.turn().map_err(WaitForStopReasonError::Target)? {
                Turn::Goes => {}
                Turn::Stops(status) => {
                    let is_step = target.is_stepping && status & STATUS_STEP != 0 && status & STATUS_BREAKPOINTS == 0;
                    let reason =
                        if is_step { SingleThreadStopReason::DoneStep } else { SingleThreadStopReason::HwBreak(()) };
                    return Ok(Event::TargetStopped(reason));
                }
                Turn::Ends(ending) => {
                    let reason = match ending {
                        Ending::Exit(status) => SingleThreadStopReason::Exited(status),
                        Ending::Clean => SingleThreadStopReason::Exited(0),
                        Ending::Failed(_) => SingleThreadStopReason::Terminated(Signal::SIGABRT),
                    };
                    target.ending = Some(ending);
                    return Ok(Event::TargetStopped(reason));
                }
            }
        }
    }

    fn on_interrupt(_target: &mut Debugged<'a>) -> Result<Option<Self::StopReason>> {
        Ok(Some(SingleThreadStopReason::Signal(Signal::SIGINT)))
    }
}
