//! The thread that carries frames, what is typed and entropy, and hears of signals and of the end.

use crate::{
    console::{END_OF_INPUT, Port, Typed, type_into},
    control::Pause,
    devices::{
        entropy::Source,
        net::{Card, RX, TX, Worked},
    },
    machine::{Plugged, clear, lock},
    memory::Memory,
    transport::Broken,
    wake::Wake,
};
use anyhow::{Context, Result};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        signalfd::SignalFd,
    },
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Mutex,
    time::{Duration, Instant},
};
use virtio_queue::Queue;

/// How long a guest that is asked to end may take for that.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon a guest that has not read what was typed is looked at again.
const TYPING_INTERVAL_MS: u16 = 50;

/// What there is to hear of, as numbers for epoll.
mod heard {
    pub const END: u64 = 0;
    pub const SIGNAL: u64 = 1;
    pub const TYPING: u64 = 2;
    pub const FRAMES: u64 = 3;
    pub const RECEIVE_KICK: u64 = 4;
    pub const SEND_KICK: u64 = 5;
    pub const ENTROPY_KICK: u64 = 6;
    /// How many there are.
    pub const ALL: usize = 7;
}

/// The network card, and the descriptor that says when it has something to do.
struct Plug<'a> {
    card: &'a Plugged<Card>,
    network: OwnedFd,
    /// What of the descriptor is waited for.
    interest: EpollFlags,
}

/// All that the thread looks after.
pub struct Io<'a> {
    epoll: Epoll,
    signals: &'a SignalFd,
    /// When the machine ends though its guest has not, which was asked to.
    ends_at: Option<Instant>,
    console: &'a Mutex<Port>,
    /// A guest that is asked to end has to run for that.
    pause: &'a Pause,
    keyboard: File,
    typed: Typed,
    plug: Option<Plug<'a>>,
    entropy: &'a Plugged<Source>,
    wake: &'a Wake,
    /// The card has more to do although nothing will be heard of it.
    again: bool,
}

impl<'a> Io<'a> {
    /// Prepares to wait. The end is what `ended` has to tell.
    pub fn new(
        ended: BorrowedFd<'_>,
        signals: &'a SignalFd,
        console: &'a Mutex<Port>,
        pause: &'a Pause,
        card: Option<&'a Plugged<Card>>,
        entropy: &'a Plugged<Source>,
        wake: &'a Wake,
    ) -> Result<Io<'a>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let add = |fd: BorrowedFd<'_>, what| epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, what));
        add(ended, heard::END)?;
        add(signals.as_fd(), heard::SIGNAL)?;
        // The standard input's own buffer would keep from epoll what it has.
        let keyboard = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let typed = match add(keyboard.as_fd(), heard::TYPING) {
            Ok(()) => Typed::Passed,
            // A file, or nothing at all: nobody types.
            Err(Errno::EPERM) => Typed::End,
            Err(error) => return Err(error.into()),
        };
        add(entropy.kicks[0].as_fd(), heard::ENTROPY_KICK)?;
        let plug = card.map(|card| -> Result<Plug<'_>> {
            add(card.kicks[RX].as_fd(), heard::RECEIVE_KICK)?;
            add(card.kicks[TX].as_fd(), heard::SEND_KICK)?;
            let network = lock(&card.device).model().descriptor().try_clone_to_owned()?;
            add(network.as_fd(), heard::FRAMES)?;
            Ok(Plug { card, network, interest: EpollFlags::EPOLLIN })
        });
        Ok(Io {
            plug: plug.transpose()?,
            epoll,
            signals,
            ends_at: None,
            console,
            pause,
            keyboard,
            typed,
            entropy,
            wake,
            again: false,
        })
    }

    /// Works until the end.
    pub fn run(&mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); heard::ALL];
        loop {
            self.follow_interest()?;
            let timeout = match self.typed {
                _ if self.again => EpollTimeout::ZERO,
                Typed::NoRoom => EpollTimeout::from(TYPING_INTERVAL_MS),
                Typed::Passed | Typed::AsksToEnd | Typed::End => EpollTimeout::NONE,
            };
            let timeout = match self.ends_at.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(()),
                Some(left) if timeout == EpollTimeout::NONE => {
                    EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
                }
                _ => timeout,
            };
            let count = match self.epoll.wait(&mut events, timeout) {
                Err(Errno::EINTR) => 0,
                result => result.context("waiting for devices")?,
            };
            if std::mem::take(&mut self.again) {
                self.receive();
                self.send();
            }
            if self.typed == Typed::NoRoom {
                self.read_keyboard()?;
            }
            for event in &events[..count] {
                match event.data() {
                    heard::END => return Ok(()),
                    heard::SIGNAL => self.ask_to_end()?,
                    heard::TYPING if is_watched(self.typed) => self.read_keyboard()?,
                    heard::FRAMES => {
                        self.receive();
                        if event.events().contains(EpollFlags::EPOLLOUT) {
                            self.send();
                        }
                    }
                    heard::RECEIVE_KICK => self.kicked(RX, Self::receive),
                    heard::SEND_KICK => self.kicked(TX, Self::send),
                    heard::ENTROPY_KICK => self.answer_entropy(),
                    _ => {}
                }
            }
        }
    }

    /// Has the guest end in good order: its clients are told, and what it has to write is written.
    fn ask_to_end(&mut self) -> Result<()> {
        self.signals.read_signal()?;
        // A command that is killed sends the signal once for each of its threads, as they end (`PR_SET_PDEATHSIG`).
        if self.ends_at.is_none() {
            // One that reads nothing has no room, and is not waited for.
            let is_asked = lock(self.console).enqueue_raw_bytes(&[END_OF_INPUT]).is_ok();
            self.pause.go_on();
            self.ends_at = Some(Instant::now() + if is_asked { END_TIMEOUT } else { Duration::ZERO });
        }
        Ok(())
    }

    /// Has the network heard of when the card can do something with it, and not else.
    fn follow_interest(&mut self) -> Result<()> {
        let Some(plug) = &mut self.plug else { return Ok(()) };
        let (receives, sends) = lock(&plug.card.device).model().interest();
        let flags = [(receives, EpollFlags::EPOLLIN), (sends, EpollFlags::EPOLLOUT)];
        let interest = flags.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, flag)| flag).collect();
        if interest == plug.interest {
            return Ok(());
        }
        let mut event = EpollEvent::new(interest, heard::FRAMES);
        match (plug.interest.is_empty(), interest.is_empty()) {
            // A descriptor whose other end is gone tells of it whether that is wanted or not.
            (_, true) => self.epoll.delete(&plug.network)?,
            (true, false) => self.epoll.add(&plug.network, event)?,
            (false, false) => self.epoll.modify(&plug.network, &mut event)?,
        }
        plug.interest = interest;
        Ok(())
    }

    fn kicked(&mut self, queue: usize, work: fn(&mut Self)) {
        if let Some(plug) = &self.plug {
            clear(&plug.card.kicks[queue]);
            work(self);
        }
    }

    fn receive(&mut self) {
        self.work(|card, queues, memory| card.receive(&mut queues[RX], memory));
    }

    fn send(&mut self) {
        self.work(|card, queues, memory| card.send(&mut queues[TX], memory));
    }

    fn work(&mut self, work: impl FnOnce(&mut Card, &mut [Queue], &Memory) -> Result<Worked, Broken>) {
        let Some(plug) = &self.plug else { return };
        let Some(worked) = lock(&plug.card.device).carry(work) else { return };
        self.again |= worked.again;
        if worked.wake {
            self.wake.raise();
        }
    }

    fn read_keyboard(&mut self) -> Result<()> {
        let before = self.typed;
        self.typed = type_into(&mut lock(self.console), &mut self.keyboard);
        if self.typed == Typed::AsksToEnd {
            self.pause.go_on();
        }
        match (is_watched(before), is_watched(self.typed)) {
            (true, false) => self.epoll.delete(&self.keyboard)?,
            (false, true) => self.epoll.add(&self.keyboard, EpollEvent::new(EpollFlags::EPOLLIN, heard::TYPING))?,
            _ => {}
        }
        Ok(())
    }

    fn answer_entropy(&mut self) {
        clear(&self.entropy.kicks[0]);
        let answered = lock(&self.entropy.device).work(|source, queues, memory| source.answer(&mut queues[0], memory));
        let Some(Worked { wake, again }) = answered else { return };
        if wake {
            self.wake.raise();
        }
        if again {
            // It is read above, so it is far from full.
            let _ = self.entropy.kicks[0].write(1);
        }
    }
}

/// Whether more may be typed, and passed on.
fn is_watched(typed: Typed) -> bool {
    matches!(typed, Typed::Passed | Typed::AsksToEnd)
}
