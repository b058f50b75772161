//! What operators see of each call: how long it took, and, with `MONITOR`, the call itself.

use crate::{
    Context, Error, Origin, Outcome, Store, args,
    latency::Histogram,
    store::Calls,
    table::{Categories, Command, Flags},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::fmt::Write;
use kayvee_resp::{Request, quoted};

/// A slow log that wants to know of shorter calls than this has each of them timed for itself.
const ALONE_BELOW_US: i64 = 1000;
/// Calls that are timed together at most: few enough for a slow one to stand out.
const TOGETHER_LIMIT: u64 = 64;
/// A request of more words than this, or a request or reply of more bytes, takes time of its own.
const LONG_WORDS: usize = 64;
const LONG_BYTES: usize = 16 << 10;
/// What is shown instead of a secret.
const REDACTED: &[u8] = b"(redacted)";

/// Calls of one command that are timed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// The command, by its place in the list of calls.
    at: usize,
    since_ns: u64,
    calls: u64,
    /// The client that sent them.
    slot: u32,
}

/// How a call is timed.
enum Timing {
    /// With its neighbours, which are of the same command.
    Together,
    /// For itself, since then.
    Alone(u64),
}

impl Store {
    /// Counts for a command, which are made on its first call.
    fn calls_of(&mut self, command: &'static Command) -> usize {
        match self.calls.iter().position(|(counted, _)| core::ptr::eq(*counted, command)) {
            Some(at) => at,
            None => {
                self.calls.push((command, Calls::default()));
                self.calls.len() - 1
            }
        }
    }

    /// Counts a command that may not run.
    pub(crate) fn reject(&mut self, command: &'static Command, error: Error) -> Outcome {
        let at = self.calls_of(command);
        self.calls[at].1.rejected += 1;
        Err(error)
    }

    /// Counts a command that was blocked and ends without running again.
    pub(crate) fn count_unblocked(&mut self, command: &'static Command, error: Option<&Error>) {
        let at = self.calls_of(command);
        let calls = &mut self.calls[at].1;
        calls.calls += 1;
        calls.failed += u64::from(error.is_some());
        if self.options.latency_tracking {
            self.calls[at].1.note_duration(0, 1, 0);
        }
        if let Some(error) = error {
            self.count_error(error);
        }
    }

    /// Starts the timing of a call, and says where its counts are. Quick commands that follow each other are timed together:
    /// reading the clock for each of many pipelined requests would cost as much as they do.
    #[inline]
    fn begin_call(&mut self, command: &'static Command, request: Request<'_>, slot: u32) -> (usize, Timing) {
        let is_short = request.len() <= LONG_WORDS && request.bytes_len() <= LONG_BYTES;
        if is_short
            && let Some(timed) = &mut self.timed
            && timed.calls < TOGETHER_LIMIT
            && core::ptr::eq(self.calls.as_slice()[timed.at].0, command)
        {
            timed.calls += 1;
            return (timed.at, Timing::Together);
        }
        self.begin_timing(command, is_short, slot)
    }

    #[inline(never)]
    fn begin_timing(&mut self, command: &'static Command, is_short: bool, slot: u32) -> (usize, Timing) {
        self.end_timing();
        let at = self.calls_of(command);
        let since_ns = self.environment.clock.monotonic_ns();
        let is_quick = command.flags.contains(Flags::FAST) || command.categories.contains(Categories::STRING);
        let slow_us = self.options.slowlog_log_slower_than;
        if is_short && is_quick && !(0..ALONE_BELOW_US).contains(&slow_us) {
            self.timed = Some(Timed { at, since_ns, calls: 1, slot });
            return (at, Timing::Together);
        }
        (at, Timing::Alone(since_ns))
    }

    /// Ends the timing of calls that were timed together. If they took long, the slow log learns that one of them did.
    #[inline(always)]
    pub fn end_timing(&mut self) {
        if self.timed.is_some() {
            self.end_timed();
        }
    }

    #[inline(never)]
    fn end_timed(&mut self) {
        let Some((command, timed, took_us)) = self.take_timing() else { return };
        if self.is_slow(command, took_us) {
            let mut words = Vec::from([command.name.as_bytes().to_vec()]);
            if timed.calls > 1 {
                words.push(format!("... (one of {} calls)", timed.calls).into_bytes());
            }
            self.add_to_slow_log(timed.slot, words, took_us);
        }
    }

    /// Whether the slow log wants to know of a call that took so long.
    fn is_slow(&self, command: &Command, took_us: u64) -> bool {
        let slow_us = u64::try_from(self.options.slowlog_log_slower_than);
        slow_us.is_ok_and(|slow_us| took_us >= slow_us) && !command.flags.contains(Flags::SKIP_SLOWLOG)
    }

    /// Counts the time of the calls that were timed together. Returns it in microseconds.
    #[inline(always)]
    fn take_timing(&mut self) -> Option<(&'static Command, Timed, u64)> {
        let timed = self.timed.take()?;
        let took_ns = self.environment.clock.monotonic_ns().saturating_sub(timed.since_ns);
        let (command, calls) = self.calls.get_mut(timed.at)?;
        calls.total_ns += took_ns;
        let each_ns = took_ns / timed.calls;
        if self.options.latency_tracking {
            calls.note_duration(each_ns, timed.calls, took_ns);
        }
        let command = *command;
        if self.monitors_latency() {
            self.note_latency(event_of(command), each_ns);
        }
        Some((command, timed, took_ns / 1000))
    }

    /// Whether anybody uses `MONITOR`.
    #[inline]
    pub(crate) fn is_monitored(&self) -> bool {
        !self.monitors.is_empty()
    }

    /// Ends a client's `MONITOR`.
    pub(crate) fn stop_monitoring(&mut self, slot: u32) {
        if let Some(session) = self.sessions[slot as usize].as_deref_mut().filter(|session| session.is_monitor) {
            session.is_monitor = false;
            self.monitors.retain(|&monitor| monitor != slot);
        }
    }
}

/// The event that a call's duration belongs to, as `LATENCY` names it.
fn event_of(command: &Command) -> &'static str {
    if command.flags.contains(Flags::FAST) { "fast-command" } else { "command" }
}

impl Calls {
    fn note_duration(&mut self, each_ns: u64, calls: u64, total_ns: u64) {
        // Without memory for it there are no percentiles, and nothing else is amiss.
        if self.histogram.is_none()
            && let Ok(histogram) = Histogram::new()
        {
            self.histogram = Some(Box::new(histogram));
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.record(each_ns, calls, total_ns);
        }
    }
}

impl Context<'_> {
    /// Runs a command that was admitted, writes its reply and notes what operators want to know.
    pub fn call(&mut self, command: &'static Command, request: Request<'_>) {
        // What a script calls is shown behind the script.
        let shown_first = command.flags.contains(Flags::SKIP_MONITOR);
        if shown_first && self.store.is_monitored() {
            self.tell_monitors(command, request);
        }
        self.call_unseen(command, request);
        let hidden = shown_first || command.flags.contains(Flags::ADMIN) || self.origin == Origin::Retry;
        if !hidden && self.store.is_monitored() {
            self.tell_monitors(command, request);
        }
        if self.store.tracking.is_in_use() {
            self.remember_reads(command, request);
        }
    }

    /// The same where there is nobody who uses `MONITOR` or keeps copies.
    #[inline]
    pub(crate) fn call_unseen(&mut self, command: &'static Command, request: Request<'_>) {
        let start = self.reply.len();
        let handler = command.handler.expect("only containers lack one, and they were not admitted");
        let (at, timing) = self.store.begin_call(command, request, self.slot);
        let outcome = self.run(command, request, handler);
        match timing {
            Timing::Alone(since_ns) => {
                self.store.end_timing();
                self.note_call(command, request, since_ns);
            }
            // The time of all is this one's, as good as.
            Timing::Together if self.reply.len() - start > LONG_BYTES => self.note_long_reply(command, request),
            Timing::Together => {}
        }
        // It is counted when it has its reply.
        if !self.is_blocked {
            let calls = match self.store.calls.get_mut(at) {
                Some((counted, calls)) if core::ptr::eq(*counted, command) => calls,
                // CONFIG RESETSTAT has emptied the list.
                _ => {
                    let at = self.store.calls_of(command);
                    &mut self.store.calls.as_mut_slice()[at].1
                }
            };
            calls.calls += 1;
            calls.failed += u64::from(outcome.is_err() || self.has_failed);
        }
        self.has_failed = false;
        if let Err(error) = outcome {
            self.fail(start, &error);
        }
    }

    /// Notes how long a call took that was timed for itself.
    #[inline(never)]
    fn note_call(&mut self, command: &'static Command, request: Request<'_>, since_ns: u64) {
        let store = &mut *self.store;
        let took_ns = store.environment.clock.monotonic_ns().saturating_sub(since_ns);
        let at = store.calls_of(command);
        let calls = &mut store.calls[at].1;
        calls.total_ns += took_ns;
        if !self.is_blocked && store.options.latency_tracking {
            calls.note_duration(took_ns, 1, took_ns);
        }
        store.note_latency(event_of(command), took_ns);
        if store.is_slow(command, took_ns / 1000) && !self.is_blocked {
            store.add_to_slow_log(self.slot, abridged(command, request), took_ns / 1000);
        }
    }

    /// Ends the timing of calls with one that has a long reply.
    #[cold]
    fn note_long_reply(&mut self, command: &'static Command, request: Request<'_>) {
        if let Some((_, _, took_us)) = self.store.take_timing()
            && self.store.is_slow(command, took_us)
        {
            self.store.add_to_slow_log(self.slot, abridged(command, request), took_us);
        }
    }

    /// Shows a request to the clients that use `MONITOR`.
    pub(crate) fn tell_monitors(&mut self, command: &Command, request: Request<'_>) {
        let unix_us = self.store.environment.clock.now().unix_us;
        let db = self.db_index();
        let from = match self.origin {
            Origin::Script => "lua",
            _ => &self.session().remote,
        };
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(line, "{}.{:06} [{db} {}{from}]", unix_us / 1_000_000, unix_us % 1_000_000, unix_mark(from));
        for at in 0..request.len() {
            let text = shown(command, request, at);
            // Its worst form takes four bytes for one, and a space and two quotes.
            if line.try_reserve(text.len().saturating_mul(4) + 3).is_err() {
                break;
            }
            let _ = write!(line, " {}", quoted(text));
        }
        for index in 0..self.store.monitors.len() {
            self.store.send(self.store.monitors[index], |writer| writer.simple(&line));
        }
    }

    /// `MONITOR`: shows the client every request from now on.
    pub fn monitor(&mut self) -> Outcome {
        if !self.may_block() {
            return Err(Error::text("ERR MONITOR isn't allowed for DENY BLOCKING client"));
        }
        if !self.session().is_monitor {
            self.store.monitors.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
            self.store.monitors.push(self.slot);
            self.session().is_monitor = true;
        }
        self.reply.ok();
        Ok(())
    }
}

/// A client on a Unix socket is shown as such.
fn unix_mark(from: &str) -> &'static str {
    if from.starts_with('/') { "unix:" } else { "" }
}

/// An argument as logs may show it.
pub fn shown<'r>(command: &Command, request: Request<'r>, at: usize) -> &'r [u8] {
    if is_secret(command, request, at) { REDACTED } else { request.get(at).unwrap_or_default() }
}

/// Whether an argument is a secret.
fn is_secret(command: &Command, request: Request<'_>, at: usize) -> bool {
    let word = |back: usize, keyword: &str| at > back && args::is(&request[at - back], keyword);
    match command.name {
        "auth" => at >= 1,
        "hello" => word(1, "auth") || word(2, "auth"),
        "migrate" => word(1, "auth") || word(1, "auth2") || word(2, "auth2"),
        "setuser" => at >= 2,
        "set" if args::is(&request[0], "config") => {
            let option = (at >= 3 && at % 2 == 1).then(|| crate::options::OptionSpec::find(&request[at - 1])).flatten();
            option.is_some_and(|option| option.has(crate::options::Property::Sensitive))
        }
        _ => false,
    }
}

/// The arguments of a request as the slow log keeps them: not too many, and none too long.
pub fn abridged(command: &Command, request: Request<'_>) -> Vec<Vec<u8>> {
    const ARGUMENTS_LIMIT: usize = 32;
    const ARGUMENT_LIMIT_BYTES: usize = 128;
    let len = request.len();
    let whole = if len > ARGUMENTS_LIMIT { ARGUMENTS_LIMIT - 1 } else { len };
    let abridge = |at: usize| {
        let text = shown(command, request, at);
        let kept = &text[..text.len().min(ARGUMENT_LIMIT_BYTES)];
        match text.len() - kept.len() {
            0 => kept.to_vec(),
            more => [kept, format!("... ({more} more bytes)").as_bytes()].concat(),
        }
    };
    let mut words: Vec<Vec<u8>> = (0..whole).map(abridge).collect();
    if len > whole {
        words.push(format!("... ({} more arguments)", len - whole).into_bytes());
    }
    words
}
