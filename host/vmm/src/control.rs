//! The control socket: a line with one word asks, and the answer ends with the connection.
//!
//! One thread serves a few clients at a time, and each for a short time only: whoever connects and says nothing keeps
//! nobody else from being heard.

use crate::{
    confine::{self, Role},
    machine::{Ending, lock},
    stats::Stats,
    sys::{self, ProcessorThread},
    wake::Wake,
};
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io::{ErrorKind, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{Condvar, Mutex},
    time::{Duration, Instant},
};

/// A longer question is none.
const QUESTION_BYTES_MAX: usize = 64;
/// So many are served at a time; more wait to be accepted.
const CLIENTS_MAX: usize = 8;
/// Within this time a client has to have asked.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Where there was no descriptor or no memory for one that has connected, it is tried again after this time.
const ACCEPT_INTERVAL: Duration = Duration::from_secs(1);
/// A guest stands still within microseconds of being told to; longer than this it takes where the host has no time for it.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the processor may run, and whether it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Motion {
    #[default]
    Running,
    /// It has been told to stand still.
    Asked,
    /// It stands still until it is told otherwise.
    Standing,
}

/// Has the processor stand still.
#[derive(Debug, Default)]
pub struct Pause {
    motion: Mutex<Motion>,
    changed: Condvar,
}

impl Pause {
    /// Returns when the processor may run, which is at once unless somebody has it wait.
    pub fn pass(&self) {
        let mut motion = lock(&self.motion);
        if *motion == Motion::Asked {
            *motion = Motion::Standing;
            self.changed.notify_all();
        }
        // A thread that panics with it would have ended the process.
        drop(self.changed.wait_while(motion, |motion| *motion != Motion::Running));
    }

    /// Has the processor stand still, telling it by `kick`. Returns whether it does, after some time at most; if not, it runs on.
    fn stop(&self, kick: impl FnOnce()) -> bool {
        let mut motion = lock(&self.motion);
        if *motion == Motion::Running {
            *motion = Motion::Asked;
        }
        kick();
        let waited = self.changed.wait_timeout_while(motion, PAUSE_TIMEOUT, |motion| *motion == Motion::Asked);
        let (mut motion, _) = waited.expect("no thread panics while it holds this");
        if *motion == Motion::Asked {
            // Whoever asked is told that it failed, and nobody would expect that it stands still later.
            *motion = Motion::Running;
        }
        *motion == Motion::Standing
    }

    /// Has it go on.
    pub fn go_on(&self) {
        *lock(&self.motion) = Motion::Running;
        self.changed.notify_all();
    }

    fn state(&self) -> &'static str {
        match *lock(&self.motion) {
            Motion::Running => "running",
            Motion::Asked => "about to pause",
            Motion::Standing => "paused",
        }
    }
}

/// What can be asked about and ordered.
pub struct Controlled<'a> {
    /// The processor's permission to run ...
    pub pause: &'a Pause,
    /// ... its thread, once it has begun ...
    pub thread: &'a std::sync::OnceLock<ProcessorThread>,
    /// ... and what wakes it up.
    pub wake: &'a Wake,
    /// What it has done.
    pub stats: &'a Stats,
}

/// One that has connected and not asked yet.
struct Client {
    stream: UnixStream,
    question: Vec<u8>,
    deadline: Instant,
}

/// Those that have connected.
#[derive(Default)]
struct Clients {
    heard: Vec<Client>,
    /// None is accepted before.
    accepts_from: Option<Instant>,
}

/// Answers those that connect.
pub fn run(listener: &UnixListener, controlled: &Controlled<'_>) -> Result<Ending> {
    sys::set_nonblocking(listener)?;
    confine::limit(Role::Control)?;
    let mut clients = Clients::default();
    loop {
        serve(listener, &mut clients, controlled)?;
    }
}

/// Waits for something to happen, and does what follows.
fn serve(listener: &UnixListener, clients: &mut Clients, controlled: &Controlled<'_>) -> Result<()> {
    let Clients { heard: clients, accepts_from } = clients;
    let began = Instant::now();
    accepts_from.take_if(|from| *from <= began);
    let mut fds: Vec<_> = clients.iter().map(|client| PollFd::new(client.stream.as_fd(), PollFlags::POLLIN)).collect();
    if clients.len() < CLIENTS_MAX && accepts_from.is_none() {
        fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
    }
    let first_deadline = clients.iter().map(|client| client.deadline).chain(*accepts_from).min();
    let timeout = first_deadline.map_or(PollTimeout::NONE, |deadline| {
        let ms = deadline.saturating_duration_since(began).as_millis() + 1;
        PollTimeout::from(ms.min(CLIENT_TIMEOUT.as_millis()) as u16)
    });
    match poll(&mut fds, timeout) {
        Err(nix::errno::Errno::EINTR) => return Ok(()),
        result => result.context("waiting at the control socket")?,
    };
    let is_ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
    let now = Instant::now();
    let mut ready = is_ready.iter();
    clients.retain_mut(|client| {
        let is_ready = ready.next().is_some_and(|ready| *ready);
        if is_ready { client.hear(controlled).is_ok_and(|asked| !asked) } else { now < client.deadline }
    });
    // The listener's place is behind those of all clients.
    if ready.next() == Some(&true) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                clients.push(Client { stream, question: Vec::new(), deadline: now + CLIENT_TIMEOUT });
            }
            // Gone again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            // Too many descriptors are open: it is nothing that others could not be heard for, but it stays for a while.
            Err(error) => {
                log::warn!("the control socket: {error}");
                *accepts_from = Some(now + ACCEPT_INTERVAL);
            }
        }
    }
    Ok(())
}

impl Client {
    /// Reads what there is, and answers a whole question. Returns whether there was one.
    fn hear(&mut self, controlled: &Controlled<'_>) -> std::io::Result<bool> {
        let mut bytes = [0; QUESTION_BYTES_MAX];
        let len = match self.stream.read(&mut bytes[self.question.len()..]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(false),
            result => result?,
        };
        self.question.extend_from_slice(&bytes[self.question.len()..][..len]);
        let is_whole = len == 0 || self.question.ends_with(b"\n") || self.question.len() == QUESTION_BYTES_MAX;
        if is_whole {
            let answer = controlled.answer(self.question.trim_ascii_end());
            // It has room for all of it; whoever goes away before the answer does not want it.
            self.stream.write_all(answer.as_bytes())?;
        }
        Ok(is_whole)
    }
}

impl Controlled<'_> {
    fn answer(&self, question: &[u8]) -> String {
        match question {
            b"pause" => {
                let kick = || {
                    if let Some(thread) = self.thread.get() {
                        thread.kick();
                    }
                    // One that sleeps.
                    self.wake.raise();
                };
                if !self.pause.stop(kick) {
                    return format!("error: the guest does not stand still within {} s\n", PAUSE_TIMEOUT.as_secs());
                }
            }
            b"resume" => self.pause.go_on(),
            b"stats" => {}
            _ => return "error: ask for stats, pause or resume\n".into(),
        }
        format!("state:{}\n{}", self.pause.state(), self.stats.report())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::{fd::AsRawFd, linux::net::SocketAddrExt},
        sync::{
            Arc, OnceLock,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    /// A control socket without a guest, whose thread is left alone in the end.
    fn start(pause: &Arc<Pause>) -> std::os::unix::net::SocketAddr {
        let other = UnixStream::pair().unwrap();
        let name = format!("kayvee-control-{}-{}", std::process::id(), other.0.as_raw_fd());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let pause = pause.clone();
        thread::spawn(move || {
            let _kept = other;
            let (wake, stats, thread) = (Wake::new().unwrap(), Stats::default(), OnceLock::new());
            let controlled = Controlled { pause: &pause, thread: &thread, wake: &wake, stats: &stats };
            let mut clients = Clients::default();
            loop {
                serve(&listener, &mut clients, &controlled).unwrap();
            }
        });
        address
    }

    fn ask(address: &std::os::unix::net::SocketAddr, question: &str) -> String {
        let mut socket = UnixStream::connect_addr(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(question.as_bytes()).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn answers_what_is_asked_when_the_processor_stands_still() {
        let pause = Arc::new(Pause::default());
        pause.pass();
        let address = start(&pause);
        assert!(ask(&address, "stats\n").starts_with("state:running\nexits_console:0\n"));
        // Nobody runs.
        assert!(ask(&address, "pause\n").starts_with("error: the guest does not stand still"));
        assert!(ask(&address, "stats\n").starts_with("state:running\n"));
        // Nor does who runs later stand still for it.
        pause.pass();
        let other = pause.clone();
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = ended.clone();
        let processor = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                other.pass();
            }
        });
        assert!(ask(&address, "pause\n").starts_with("state:paused\n"));
        ended.store(true, Ordering::Relaxed);
        assert!(!processor.is_finished());
        assert!(ask(&address, "resume\n").starts_with("state:running\n"));
        processor.join().unwrap();
        assert!(ask(&address, "what\n").starts_with("error"));
        assert!(ask(&address, &"x".repeat(QUESTION_BYTES_MAX)).starts_with("error"));
    }

    #[test]
    fn where_nobody_can_be_accepted_that_is_tried_now_and_then() {
        let (pause, stats, thread) = (Pause::default(), Stats::default(), OnceLock::new());
        let wake = Wake::new().unwrap();
        let controlled = Controlled { pause: &pause, thread: &thread, wake: &wake, stats: &stats };
        // A socket that is ready, and accepts nobody.
        let (socket, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"x").unwrap();
        let listener = UnixListener::from(std::os::fd::OwnedFd::from(socket));
        let mut clients = Clients::default();
        let began = Instant::now();
        serve(&listener, &mut clients, &controlled).unwrap();
        assert!(clients.accepts_from.is_some_and(|from| from >= began + ACCEPT_INTERVAL));
        // Those who were accepted before are heard meanwhile.
        let (stream, mut asks) = UnixStream::pair().unwrap();
        clients.heard.push(Client { stream, question: Vec::new(), deadline: Instant::now() + CLIENT_TIMEOUT });
        asks.write_all(b"stats\n").unwrap();
        serve(&listener, &mut clients, &controlled).unwrap();
        let mut text = String::new();
        asks.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("state:running\n"));
        serve(&listener, &mut clients, &controlled).unwrap();
        assert!(began.elapsed() >= ACCEPT_INTERVAL, "it waits");
        let from = clients.accepts_from;
        serve(&listener, &mut clients, &controlled).unwrap();
        assert!(clients.accepts_from > from, "it is tried again");
    }

    #[test]
    fn those_who_say_nothing_keep_nobody_waiting_for_long() {
        let pause = Arc::new(Pause::default());
        let address = start(&pause);
        let mut one = UnixStream::connect_addr(&address).unwrap();
        one.write_all(b"sta").unwrap();
        assert!(ask(&address, "stats\n").starts_with("state:running\n"));
        // As many as there are places, and some: the next one waits until the first are sent away.
        let silent: Vec<_> = (0..CLIENTS_MAX + 2).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
        assert!(ask(&address, "stats\n").starts_with("state:running\n"));
        one.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(one.read(&mut [0; 8]).unwrap(), 0, "the connection was closed");
        drop(silent);
    }
}
