//! One store from its start to its end: its console, its readiness, the signals to this process, and how it ended.

use crate::{console, log::Log, sys};
use anyhow::{Context, Result, anyhow};
use nix::sys::signal::Signal;
use signal_hook::{consts, iterator::Signals, low_level::emulate_default_handler};
use std::{
    io::{self, Write},
    os::{fd::RawFd, unix::process::ExitStatusExt},
    process::{ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A slow machine that emulates the guest still boots it in a few seconds. One that has much data to read says so meanwhile,
/// and may take as long as that goes on.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a store may take to end in good order: to write what is not on its disk yet, wait for replicas, save a file.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// A store that takes longer than this to end keeps its user waiting, who is told why.
pub const STOP_NOTICE: Duration = Duration::from_secs(3);
/// How long one may take that is to end at once.
const INSIST_TIMEOUT: Duration = Duration::from_secs(1);
/// How soon a signal is heeded while this program does something itself.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

/// What happens in a run.
pub enum Event {
    /// This process received this signal, which asks it to end.
    Signal(i32),
    /// The store takes its data from a disk or a file.
    Progress,
    /// The store accepts connections.
    Listening,
    /// It has, or has not, answered.
    Answered(Result<()>),
    /// What carries its connections has failed.
    CarrierFailed(io::Error),
    /// It has ended.
    Ended(io::Result<ExitStatus>),
}

/// Carries a store's connections until the system fails it.
pub type Carry = Box<dyn FnOnce() -> io::Result<()> + Send>;
/// Proves that a store answers.
pub type Prove = Box<dyn FnOnce() -> Result<()> + Send>;

/// A store to run.
pub struct Run {
    /// What starts it.
    pub command: Command,
    /// The descriptors that it inherits.
    pub inherited: Vec<RawFd>,
    /// What carries its connections, from when it accepts them on, if the host's kernel does not.
    pub carry: Option<Carry>,
    /// Proves that it answers, once its console says that it accepts connections.
    pub prove: Prove,
    /// Tells the user that it does.
    pub announce: Box<dyn FnOnce() -> Result<()>>,
    /// How to ask it to end.
    pub end: End,
}

/// How a store that serves is asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By a signal to its process.
    Signal,
    /// By Ctrl-D on its console: what a signal ends is the machine, and the store in it would not know.
    Console,
}

/// How a run came to its end.
pub struct Outcome {
    /// The store's exit status.
    pub status: ExitStatus,
    /// Why it was ended, where it did not end by itself and nobody asked for it.
    pub failure: Option<anyhow::Error>,
}

/// The signals that ask this process to end, held back from now on until a run takes them. The end of a terminal does not,
/// where `nohup` has said so.
pub fn catch_signals() -> Result<Signals> {
    let hangup = (!sys::is_ignored(Signal::SIGHUP)?).then_some(consts::SIGHUP);
    Signals::new([consts::SIGINT, consts::SIGTERM].into_iter().chain(hangup)).context("catching signals")
}

/// From now on a signal that asks this process to end removes what it has not finished and tells the user, before it does what it
/// always does.
pub fn break_off_at_signals() -> Result<()> {
    let mut asking = Vec::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        if !sys::is_ignored(signal)? {
            asking.push(signal as i32);
        }
    }
    let mut signals = Signals::new(asking).context("catching signals")?;
    let break_off = move || {
        for signal in signals.forever() {
            let _removed = kayvee_files::remove_unfinished();
            // The terminal may be gone.
            let _ = writeln!(io::stderr(), "kayvee: broken off");
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(break_off).map(drop).context("starting a thread for signals")
}

/// Does what takes long, unless a signal asks this process to end meanwhile: then it is left alone, to end with the process.
pub fn unless_asked_to_end<T: Send + 'static>(
    signals: &mut Signals,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let (sender, done) = mpsc::channel();
    // Nobody waits for it any more when the process ends.
    let work = move || drop(sender.send(work()));
    thread::Builder::new().spawn(work).context("starting a thread")?;
    loop {
        match done.recv_timeout(SIGNAL_INTERVAL) {
            Err(mpsc::RecvTimeoutError::Timeout) if signals.pending().next().is_none() => {}
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            result => return Ok(Some(result?)),
        }
    }
}

/// Starts a store and stays with it until it has ended.
pub fn supervise(run: Run, log: Arc<Log>, mut signals: Signals) -> Result<Outcome> {
    let Run { mut command, inherited, carry, prove, announce, end } = run;
    let (sender, events) = mpsc::channel();
    let (reader, writer) = io::pipe()?;
    let input = if end == End::Console { Stdio::piped() } else { Stdio::null() };
    command.stdin(input).stdout(writer.try_clone()?).stderr(writer);
    sys::tie_to_this_process(&mut command, &inherited);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
    // It holds the writing end of the console's pipe.
    drop(command);
    let process = sys::Process::open(child.id())?;
    let keyboard = child.stdin.take();
    let console = console::follow(reader, log.clone(), sender.clone());
    let ended = sender.clone();
    thread::spawn(move || ended.send(Event::Ended(child.wait())));
    let signalled = sender.clone();
    thread::spawn(move || signals.forever().try_for_each(|signal| signalled.send(Event::Signal(signal))));

    let mut supervision = Supervision {
        process,
        log,
        keyboard,
        sender,
        carry,
        prove: Some(prove),
        announce: Some(announce),
        failure: None,
        phase: Phase::Boot,
        is_cut_short: false,
    };
    let mut deadline = Some(Instant::now() + BOOT_TIMEOUT);
    let mut status = loop {
        let event = match deadline {
            Some(deadline) => events.recv_timeout(deadline.saturating_duration_since(Instant::now())),
            None => events.recv().map_err(mpsc::RecvTimeoutError::from),
        };
        let phase = supervision.phase;
        let goes_on = phase == Phase::Boot && matches!(event, Ok(Event::Progress));
        match event {
            Ok(Event::Ended(status)) => break status?,
            Ok(event) => supervision.handle(event)?,
            Err(_) => supervision.time_out()?,
        }
        if goes_on || supervision.phase != phase {
            deadline = supervision.phase.limit().map(|limit| Instant::now() + limit);
        }
    };
    // The console's last lines come before the verdict on them.
    let _ = console.join();
    // A store that has not come so far as to know signals has nothing that it could end in good order.
    if supervision.is_cut_short && status.signal() == Some(consts::SIGTERM) {
        status = ExitStatus::default();
    }
    if supervision.phase == Phase::Boot && status.success() {
        supervision.failure = Some(anyhow!("the store ended before it answered"));
    }
    Ok(Outcome { status, failure: supervision.failure })
}

struct Supervision {
    process: sys::Process,
    log: Arc<Log>,
    /// Where Ctrl-D asks it to end.
    keyboard: Option<ChildStdin>,
    sender: mpsc::Sender<Event>,
    carry: Option<Box<dyn FnOnce() -> io::Result<()> + Send>>,
    prove: Option<Box<dyn FnOnce() -> Result<()> + Send>>,
    announce: Option<Box<dyn FnOnce() -> Result<()>>>,
    failure: Option<anyhow::Error>,
    phase: Phase,
    /// Whether somebody asked it to end before it answered.
    is_cut_short: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Boot,
    Serve,
    /// It is asked to end.
    Stop,
    /// It was, and takes so long that the user was told.
    SlowStop,
    /// It is told to wait for nothing, and to remove what it has half written.
    Insist,
    Kill,
}

impl Phase {
    fn limit(self) -> Option<Duration> {
        match self {
            Phase::Boot => Some(BOOT_TIMEOUT),
            Phase::Serve | Phase::Kill => None,
            Phase::Stop => Some(STOP_NOTICE),
            Phase::SlowStop => Some(STOP_TIMEOUT - STOP_NOTICE),
            Phase::Insist => Some(INSIST_TIMEOUT),
        }
    }
}

impl Supervision {
    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Listening => {
                if let Some(carry) = self.carry.take() {
                    let sender = self.sender.clone();
                    thread::spawn(move || carry().map_err(|error| sender.send(Event::CarrierFailed(error))));
                }
                if let Some(prove) = self.prove.take() {
                    let sender = self.sender.clone();
                    thread::spawn(move || sender.send(Event::Answered(prove())));
                }
                Ok(())
            }
            Event::Answered(Ok(())) if self.phase == Phase::Boot => {
                self.phase = Phase::Serve;
                let announced = self.announce.take().map_or(Ok(()), |announce| announce());
                announced.or_else(|error| self.fail(error))
            }
            // A store that ends breaks off what asks it; why it does, its own last words and status say.
            Event::Answered(Err(_)) if self.phase == Phase::Boot && self.process.wait(INSIST_TIMEOUT)? => Ok(()),
            Event::Answered(Err(error)) if self.phase == Phase::Boot => self.fail(error),
            Event::Signal(signal) => match self.phase {
                Phase::Boot => {
                    self.is_cut_short = true;
                    self.end(Signal::SIGTERM)
                }
                Phase::Serve => self.ask_to_end(),
                // Programs repeat the others, which is no reason to lose anything.
                _ if signal != consts::SIGINT => Ok(()),
                // A guest leaves no files behind.
                Phase::Stop | Phase::SlowStop if self.keyboard.is_none() => self.end(Signal::SIGINT),
                Phase::Stop | Phase::SlowStop | Phase::Insist | Phase::Kill => self.end(Signal::SIGKILL),
            },
            Event::CarrierFailed(error) => self.fail(anyhow!(error).context("carrying the guest's connections")),
            Event::Progress | Event::Answered(_) | Event::Ended(_) => Ok(()),
        }
    }

    fn time_out(&mut self) -> Result<()> {
        if self.phase == Phase::Stop {
            let left = (STOP_TIMEOUT - STOP_NOTICE).as_secs();
            self.log.line(&format!(
                "kayvee: the store is still ending: it may be saving data, or waiting for replicas. It is killed in {left} s; \
                 Ctrl-C ends it now"
            ));
            self.phase = Phase::SlowStop;
            return Ok(());
        }
        if self.phase == Phase::SlowStop {
            self.failure.get_or_insert_with(|| anyhow!("it did not end within {} s", STOP_TIMEOUT.as_secs()));
            return self.end(Signal::SIGKILL);
        }
        if self.phase == Phase::Insist {
            return self.end(Signal::SIGKILL);
        }
        self.fail(anyhow!("the store did not answer within {} s", BOOT_TIMEOUT.as_secs()))
    }

    fn fail(&mut self, error: anyhow::Error) -> Result<()> {
        self.failure = Some(error);
        self.end(Signal::SIGTERM)
    }

    /// Has the store end in good order, with all that it has to write.
    fn ask_to_end(&mut self) -> Result<()> {
        const CTRL_D: &[u8] = b"\x04";
        let is_asked = self.keyboard.as_mut().is_some_and(|keyboard| keyboard.write_all(CTRL_D).is_ok());
        if !is_asked {
            return self.end(Signal::SIGTERM);
        }
        self.phase = Phase::Stop;
        Ok(())
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        self.phase = match signal {
            Signal::SIGKILL => Phase::Kill,
            Signal::SIGINT => Phase::Insist,
            _ => Phase::Stop,
        };
        // That it has ended just now its own event says next.
        Ok(self.process.signal(signal)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only who presses Ctrl-C once more wants a guest to end at once.
    #[test]
    fn signals_that_are_repeated_do_not_kill() {
        let mut guest = Command::new("sleep").arg("60").stdin(Stdio::piped()).spawn().unwrap();
        let mut supervision = Supervision {
            process: sys::Process::open(guest.id()).unwrap(),
            log: Arc::new(Log::Terminal),
            keyboard: guest.stdin.take(),
            sender: mpsc::channel().0,
            carry: None,
            prove: None,
            announce: None,
            failure: None,
            phase: Phase::Serve,
            is_cut_short: false,
        };
        for signal in [consts::SIGTERM, consts::SIGTERM, consts::SIGHUP] {
            supervision.handle(Event::Signal(signal)).unwrap();
            assert!(supervision.phase == Phase::Stop);
        }
        supervision.handle(Event::Signal(consts::SIGINT)).unwrap();
        assert_eq!(guest.wait().unwrap().signal(), Some(consts::SIGKILL));
    }
}
