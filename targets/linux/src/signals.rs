//! Signals as something to read.

use kayvee_server::Engine;
use mio::{Interest, Registry, Token, net::UnixStream};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    low_level::{exit, pipe},
};
use std::{
    io::{self, Read, Write},
    os::unix::net,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// The exit status where Ctrl-C has come again: it was no clean end.
const INSISTS: i32 = 1;

/// The signals that ask for the end.
pub struct Signals {
    socket: UnixStream,
    /// Whether one of them was that of Ctrl-C.
    interrupted: Arc<AtomicBool>,
    /// Whether one has come, and the end that it asks for has not been called off.
    asked: Arc<AtomicBool>,
    /// Whether the engine has been told.
    is_told: bool,
}

impl Signals {
    /// Catches them from now on, and has them told under a token.
    pub fn catch(registry: &Registry, token: Token) -> io::Result<Signals> {
        let (mut socket, sender) = UnixStream::pair()?;
        let sender = net::UnixStream::from(sender);
        let [interrupted, asked] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(SIGTERM, asked.clone())?;
        pipe::register(SIGTERM, sender.try_clone()?)?;
        watch_interrupts(asked.clone(), interrupted.clone(), sender)?;
        registry.register(&mut socket, token, Interest::READABLE)?;
        // The end of a terminal is not the end of the store: this only keeps the signal from ending the process.
        signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(Signals { socket, interrupted, asked, is_told: false })
    }

    /// Whether one has come, for whoever works for long before they can be [taken](Self::take).
    pub fn asked(&self) -> &AtomicBool {
        &self.asked
    }

    /// Does what those that have come ask for.
    pub fn take(&mut self, engine: &mut Engine) {
        let mut bytes = [0; 16];
        while self.socket.read(&mut bytes).is_ok_and(|len| len > 0) {
            log::info!("Received a signal that asks for the end, scheduling shutdown...");
            let options = engine.options();
            let by_interrupt = self.interrupted.swap(false, Ordering::Relaxed);
            let on = if by_interrupt { options.shutdown_on_sigint } else { options.shutdown_on_sigterm };
            engine.request_shutdown(on);
            self.is_told = true;
        }
    }

    /// Notes when the end has been called off: the next signal is a first one again.
    pub fn settle(&mut self, engine: &Engine) {
        if self.is_told && !engine.is_ending() {
            self.is_told = false;
            self.asked.store(false, Ordering::Relaxed);
        }
    }
}

/// Passes Ctrl-C on, or ends the process where it comes and the end has been asked for, by either signal: what that waits
/// for, replicas or a long save, is not waited for. In a thread, as the other one may be busy with the save, and as what that
/// has written so far is removed, which no handler of a signal may do.
fn watch_interrupts(asked: Arc<AtomicBool>, interrupted: Arc<AtomicBool>, mut told: net::UnixStream) -> io::Result<()> {
    let (mut interrupts, sender) = net::UnixStream::pair()?;
    pipe::register(SIGINT, sender)?;
    let watch = move || {
        while interrupts.read_exact(&mut [0]).is_ok() {
            if asked.swap(true, Ordering::Relaxed) {
                let _removed = kayvee_files::remove_unfinished();
                exit(INSISTS);
            }
            interrupted.store(true, Ordering::Relaxed);
            // Whoever reads it goes only with the process.
            let _ = told.write(&[0]);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}
