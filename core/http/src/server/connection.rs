//! One connection: from bytes to requests, and what becomes of it.

use super::{AccessLog, Limits, Stats};
use crate::{
    body::BodyReader,
    date::DATE_BYTES,
    disk::Chunks,
    log_line,
    output::{Maker, Output},
    pages::{Delivery, Pages},
    request::{self, Persistence, Request},
    respond::{self, Awaits, Context, Outcome, RESPONSE_BYTES, Scratch, Sent},
    site::Site,
    status::Status,
};
use alloc::{collections::TryReserveError, vec::Vec};
use core::{
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
};
use kayvee_platform::Now;

/// Replies to pipelined requests that are gathered before the next request is looked at.
const BATCH_BYTES: usize = 16 << 10;
/// Bytes of the access log that wait to be taken; lines beyond are counted only.
const MAX_LOG_BYTES: usize = 1 << 20;
/// Bytes of pages that are made in a turn, and then one more page: copies and hashes of large ones would keep everybody waiting.
pub(super) const MADE_BYTES_PER_TURN: usize = 1 << 20;
/// The server's own pages may take this part more than all others together, so that clients which take slowly what they have asked
/// for do not keep them from who watches it.
pub(super) const OWN_PART: usize = 8;

/// What a connection waits for, and for how long it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The next request.
    Idle,
    /// The rest of a head.
    Head,
    /// The rest of a body.
    Body,
    /// The disk, for the beginning of a response, the next turn, or the end of a pause.
    Disk,
    /// A client that takes its output, or the disk for the rest of it.
    Sending,
    /// What is published next.
    Streaming,
    /// The client's end, after ours.
    Lingering,
    /// The target, to close it.
    Dead,
}

/// Whether requests are still answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Streaming,
    /// The last response is on its way.
    Ending,
    Dead,
}

/// Whether [`next_ready`](super::Server::next_ready) will name a connection, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    No,
    /// It has output, or another fate.
    ToSend,
    /// It takes input again, too.
    ToRead,
}

pub(super) struct Connection {
    pub(super) remote: SocketAddr,
    /// Whether it comes from where protected mode lets everybody in.
    pub(super) is_local: bool,
    /// Bytes that are not answered yet; they begin where a request begins, or with its body.
    pub(super) input: Vec<u8>,
    /// How much of the head at the start of `input` has been searched for its end.
    pub(super) scanned: usize,
    /// A request that is answered when its body has been read over.
    pub(super) pending: Option<(Vec<u8>, BodyReader)>,
    /// What is to come before anything else can happen.
    pub(super) awaits: Option<Awaits>,
    /// What has to be stable before any more of the output may be sent.
    pub(super) held: Option<u64>,
    /// An empty line was skipped before the next request.
    pub(super) skipped_line: bool,
    /// The value of Authorization with which a stream was asked for; empty without one.
    pub(super) authorization: Vec<u8>,
    pub(super) output: Output,
    pub(super) state: State,
    pub(super) phase: Phase,
    pub(super) deadline_ns: u64,
    pub(super) named: Named,
    /// Its last response is a page of the server's own.
    pub(super) has_own_page: bool,
    /// What its buffers were last counted as, and the page that was made for it.
    pub(super) counted_bytes: usize,
    pub(super) counted_made: (Maker, usize),
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) limits: Limits,
    /// Bytes of pages that may still be made in this turn, but for the last one's, by their [`Maker`].
    pub(super) makes_bytes: [usize; 2],
    /// What the pages take that were made for a client each and are on their way, by their [`Maker`].
    pub(super) made_bytes: [usize; 2],
    pub(super) site: Option<Site>,
    /// What is in memory of the site's bodies if they are on a disk.
    pub(super) chunks: Option<Chunks>,
    pub(super) now: Now,
    pub(super) date: [u8; DATE_BYTES],
    pub(super) stats: Stats,
    pub(super) access_log: AccessLog,
    pub(super) log: Vec<u8>,
    pub(super) scratch: Scratch,
    /// The buffer of a response that has been sent, for the next one.
    pub(super) spare: Vec<u8>,
}

/// What a client's bytes, or its taking ours, have brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    None,
    /// A request was answered, or bytes were sent.
    Answered,
    /// Requests that had waited were looked at.
    Resumed,
}

impl Shared {
    fn context(&mut self) -> Context<'_> {
        self.split((Ipv4Addr::UNSPECIFIED, 0).into(), false).0
    }

    /// What the response to a client is made by, and what it is made in.
    fn split(&mut self, remote: SocketAddr, is_local: bool) -> (Context<'_>, &mut Scratch) {
        let context = Context {
            site: self.site.as_ref(),
            chunks: self.chunks.as_ref(),
            now_s: self.now.unix_us / 1_000_000,
            date: &self.date,
            stats: &self.stats,
            remote,
            is_local,
            may_make_keys: self.makes_bytes[Maker::Keys as usize] > 0,
            made: Cell::new((Maker::Keys, 0)),
            lends_made: {
                let ([keys, own], limit) = (self.made_bytes, self.limits.buffer_bytes);
                let has_room = keys + own < limit;
                [has_room, has_room || own < limit / OWN_PART]
            },
        };
        (context, &mut self.scratch)
    }

    /// Counts and logs the response to a request that begins with `head`, or consists of it.
    pub(super) fn note(&mut self, remote: SocketAddr, head: &[u8], sent: Sent) {
        let class = usize::from(sent.status.0 / 100).clamp(1, 5);
        self.stats.responses[class - 1] += 1;
        if self.access_log == AccessLog::Off {
            return;
        }
        let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
        if self.log.len() >= MAX_LOG_BYTES || self.log.try_reserve(line.len() * 4 + 128).is_err() {
            self.stats.log_lines_lost += 1;
            return;
        }
        log_line::put(&mut self.log, remote.ip(), self.now.unix_us / 1_000_000, line, sent.status, sent.body_bytes);
    }
}

impl Connection {
    pub(super) fn buffered_bytes(&self) -> usize {
        let pending_bytes = self.pending.as_ref().map_or(0, |(head, _)| head.capacity());
        self.input.capacity() + pending_bytes + self.authorization.capacity() + self.output.own_bytes()
    }

    /// The chunk of the site that it waits for.
    pub(super) fn awaited_chunk(&self) -> Option<u64> {
        match self.awaits {
            Some(Awaits::Chunk(chunk)) => Some(chunk),
            _ => None,
        }
    }

    /// Keeps bytes that cannot be answered yet.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        if self.state != State::Open || bytes.is_empty() {
            return;
        }
        if append(&mut self.input, bytes).is_err() {
            self.state = State::Dead;
        }
    }

    /// Answers every complete request at the start of `bytes`, as long as the output has room. Returns how much it used.
    pub(super) fn answer_all(&mut self, bytes: &[u8], shared: &mut Shared, pages: &mut dyn Pages) -> (usize, Progress) {
        let (mut used, mut progress) = (0, Progress::None);
        loop {
            if self.state != State::Open {
                return (bytes.len(), progress);
            }
            let rest = &bytes[used..];
            let is_read = self.pending.as_ref().is_some_and(|(_, reader)| reader.is_done());
            if rest.is_empty() && !is_read || !self.output.takes_more(BATCH_BYTES) || self.awaits.is_some() {
                return (used, progress);
            }
            let step = match &mut self.pending {
                Some((_, reader)) => reader.read(rest).map(|len| Step { len, is_whole: reader.is_done() }),
                // One empty line before a request is a remnant of the one before (RFC 9112 §2.2).
                None if rest.starts_with(b"\r\n") && !self.skipped_line => {
                    self.skipped_line = true;
                    self.scanned = 0;
                    used += 2;
                    continue;
                }
                None => request::find_end(rest, &mut self.scanned)
                    .map(|end| Step { len: end.unwrap_or(0), is_whole: end.is_some() }),
            };
            let answered = step.and_then(|step| {
                used += step.len;
                if !step.is_whole {
                    return Ok(Answered::Incomplete);
                }
                self.scanned = 0;
                self.answer_or_read_body(&rest[..step.len], shared, pages)
            });
            match answered {
                Ok(Answered::Yes) => (progress, self.skipped_line) = (Progress::Answered, false),
                Ok(Answered::AfterBody) => {}
                Ok(Answered::Incomplete) => return (used, progress),
                Ok(Answered::Later { head_bytes }) => return (used - head_bytes, progress),
                Err(_) if self.output.reserve(RESPONSE_BYTES).is_err() => self.state = State::Dead,
                Err(status) => {
                    self.refuse(status, rest, shared);
                }
            }
        }
    }

    /// Answers a request whose head has arrived, or whose body has been read over.
    fn answer_or_read_body(
        &mut self,
        head: &[u8],
        shared: &mut Shared,
        pages: &mut dyn Pages,
    ) -> Result<Answered, Status> {
        if let Some((head, reader)) = self.pending.take() {
            let answered = request::parse(&head, |request| self.answer(request, request.persistence, shared, pages))?;
            if let Answered::Later { .. } = answered {
                self.pending = Some((head, reader));
                return Ok(Answered::Later { head_bytes: 0 });
            }
            return Ok(answered);
        }
        let step = request::parse(head, |request| {
            let reader = BodyReader::new(request.framing)?;
            if reader.is_done() {
                return Ok(Err(self.answer(request, request.persistence, shared, pages)));
            }
            if request.minor_version > 0 && request.values("expect").next().is_some() {
                // The answer does not depend on the body, so it is not asked for; whether it comes all the same cannot
                // be known, so the connection ends (RFC 9110 §10.1.1).
                return Ok(Err(self.answer(request, Persistence::Close, shared, pages)));
            }
            Ok(Ok(reader))
        })??;
        match step {
            Ok(reader) => {
                let mut kept = Vec::new();
                append(&mut kept, head).map_err(|_| Status::SERVICE_UNAVAILABLE)?;
                self.pending = Some((kept, reader));
                Ok(Answered::AfterBody)
            }
            Err(answered) => Ok(answered),
        }
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        persistence: Persistence,
        shared: &mut Shared,
        pages: &mut dyn Pages,
    ) -> Answered {
        // A page may take long to make however little of it is asked for. Whether it is of the server's own is not known yet.
        if shared.makes_bytes[Maker::Server as usize] == 0 {
            self.awaits = Some(Awaits::Turn);
            return Answered::Later { head_bytes: request.head.len() };
        }
        if self.output.begin(&mut shared.spare).is_err() {
            self.state = State::Dead;
            return Answered::Yes;
        }
        let (context, scratch) = shared.split(self.remote, self.is_local);
        let outcome = respond::respond(request, persistence, &context, pages, scratch, &mut self.output);
        let (maker, made_bytes) = context.made.get();
        let makes_bytes = &mut shared.makes_bytes[maker as usize];
        *makes_bytes = makes_bytes.saturating_sub(made_bytes);
        let sent = match outcome {
            Outcome::Sent(sent) => sent,
            Outcome::Awaits(awaited) => {
                self.awaits = Some(awaited);
                return Answered::Later { head_bytes: request.head.len() };
            }
        };
        shared.note(self.remote, request.head, sent);
        self.held = self.held.max(sent.seen);
        self.has_own_page = sent.is_own;
        self.state = match (sent.delivery, sent.persistence) {
            (Delivery::Stream, _) if request.method != request::Method::Head => State::Streaming,
            (_, Persistence::Close) | (Delivery::Stream, _) => State::Ending,
            (Delivery::Whole, Persistence::KeepAlive) => State::Open,
        };
        if self.state == State::Streaming {
            // What lets this client listen has to do so for as long as it does.
            self.is_local = sent.is_local;
            let authorization = request.value("authorization").unwrap_or_default();
            if append(&mut self.authorization, authorization).is_err() {
                self.state = State::Dead;
            }
        }
        Answered::Yes
    }

    pub(super) fn wanted_phase(&self) -> Phase {
        match self.state {
            State::Dead => Phase::Dead,
            State::Streaming => Phase::Streaming,
            _ if self.awaits.is_some() && self.output.is_empty() => Phase::Disk,
            _ if !self.output.is_empty() => Phase::Sending,
            State::Ending => Phase::Lingering,
            State::Open if self.pending.is_some() => Phase::Body,
            State::Open if !self.input.is_empty() => Phase::Head,
            State::Open => Phase::Idle,
        }
    }

    /// Ends a connection that has taken too long; one in the middle of a request is told, and one whose turn has not come.
    pub(super) fn time_out(&mut self, shared: &mut Shared) {
        let status = match (self.phase, self.awaits) {
            (Phase::Head | Phase::Body, _) => Status::REQUEST_TIMEOUT,
            (Phase::Disk, Some(Awaits::Turn | Awaits::Pause)) => Status::SERVICE_UNAVAILABLE,
            _ => {
                self.state = State::Dead;
                return;
            }
        };
        self.awaits = None;
        let input = core::mem::take(&mut self.input);
        self.refuse(status, &input, shared);
    }

    /// Answers what is no request, or none in time: what begins here, or the one whose body is being read.
    fn refuse(&mut self, status: Status, rest: &[u8], shared: &mut Shared) {
        let head = self.pending.as_ref().map_or(rest, |(head, _)| head);
        let sent = respond::refuse(status, head, &shared.context(), &mut self.output);
        shared.note(self.remote, head, sent);
        self.state = State::Ending;
    }
}

/// How far into a request some bytes lead.
struct Step {
    len: usize,
    /// Whether a head or a body has come to its end.
    is_whole: bool,
}

/// Whether a request was answered.
enum Answered {
    Yes,
    /// Its body is to be read over first.
    AfterBody,
    /// Something is to come first. Its head, of so many bytes, is looked at again then.
    Later {
        head_bytes: usize,
    },
    Incomplete,
}

/// Keeps bytes behind others, if there is memory for them.
#[inline(never)]
fn append(kept: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
    kept.try_reserve_exact(bytes.len())?;
    kept.extend_from_slice(bytes);
    Ok(())
}
