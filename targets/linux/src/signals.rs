//! Signals as something to read.

use kayvee_server::Engine;
use mio::{Interest, Registry, Token, net::UnixStream};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The signals that ask for the end.
pub struct Signals {
    socket: UnixStream,
    /// Whether one of them was that of Ctrl-C.
    interrupted: Arc<AtomicBool>,
}

impl Signals {
    /// Catches them from now on, and has them told under a token.
    pub fn catch(registry: &Registry, token: Token) -> io::Result<Signals> {
        let (mut socket, sender) = UnixStream::pair()?;
        let sender = std::os::fd::OwnedFd::from(std::os::unix::net::UnixStream::from(sender));
        let interrupted = Arc::new(AtomicBool::new(false));
        // Before the wake-up, which is by the order of registering them.
        signal_hook::flag::register(SIGINT, interrupted.clone())?;
        signal_hook::low_level::pipe::register(SIGTERM, sender.try_clone()?)?;
        signal_hook::low_level::pipe::register(SIGINT, sender)?;
        registry.register(&mut socket, token, Interest::READABLE)?;
        // The end of a terminal is not the end of the store: this only keeps the signal from ending the process.
        signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(Signals { socket, interrupted })
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
        }
    }
}
