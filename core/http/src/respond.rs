//! From a request to its response.

use crate::{
    Bytes, Stats,
    conditions::{self, Validators},
    date::{self, DATE_BYTES},
    disk::{Chunks, Lookup},
    encoding::{self, Coding},
    heads::Heads,
    log_line::hex,
    output::{Maker, Output, Source},
    pages::{Delivery, Page, PageRequest, Pages},
    path,
    range::{self, Wanted},
    request::{Method, Persistence, Request},
    site::{DEFAULT_ROOT, Entry, Found, Place, Site},
    status::Status,
};
use alloc::{collections::TryReserveError, vec::Vec};
use core::{cell::Cell, net::SocketAddr, ops::Range};
use kayvee_platform::Decimal;
use xxhash_rust::xxh3::xxh3_64;

/// A body up to here is copied behind its head, so that both leave at once; a longer one is lent.
pub const COPIED_BYTES: usize = 4 << 10;
/// What a head takes, and an error's page.
pub const RESPONSE_BYTES: usize = 1 << 10;
const ALLOW: &[u8] = b"\r\nAllow: GET, HEAD, OPTIONS";

/// What all responses of a turn share.
pub struct Context<'a> {
    pub site: Option<&'a Site>,
    /// What is in memory of a site on a disk.
    pub chunks: Option<&'a Chunks>,
    pub now_s: u64,
    pub date: &'a [u8; DATE_BYTES],
    pub stats: &'a Stats,
    /// Where the client is, and whether protected mode lets everybody in from there.
    pub remote: SocketAddr,
    pub is_local: bool,
    /// Whether a page may be made of a key in this turn.
    pub may_make_keys: bool,
    /// Bytes of the page that was made for the request, however few of them are sent.
    pub made: Cell<(Maker, usize)>,
    /// Whether another page may be made that does not leave with its head, by its [`Maker`].
    pub lends_made: [bool; 2],
}

/// Buffers for paths and names that have to be changed before they are looked up, and what can be used again of responses.
#[derive(Default)]
pub struct Scratch {
    path: Vec<u8>,
    host: Vec<u8>,
    pub heads: Heads,
}

impl Scratch {
    /// Makes room for a request's.
    fn reserve(&mut self, request: &Request<'_>) -> Result<(), TryReserveError> {
        self.path.clear();
        self.host.clear();
        let (path_bytes, host_bytes) = (request.target.path.len(), request.host.len());
        if path_bytes > self.path.capacity() || host_bytes > self.host.capacity() {
            self.path.try_reserve(path_bytes)?;
            self.host.try_reserve(host_bytes)?;
        }
        Ok(())
    }
}

/// What has been sent, for the log, and what becomes of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub status: Status,
    pub body_bytes: u64,
    pub persistence: Persistence,
    pub delivery: Delivery,
    /// What has to be stable before it may be sent, as [`Pages::seen`] says.
    pub seen: Option<u64>,
    /// It is a page of the server's own.
    pub is_own: bool,
    /// Whether protected mode lets everybody in who asks so.
    pub is_local: bool,
}

/// What a page is made of, wherever it comes from.
struct Representation<'a> {
    status: Status,
    /// The bytes that it is among; none if they are on the disk.
    bytes: Option<&'a Bytes>,
    range: Range<u64>,
    origin: Origin<'a>,
    coding: Coding,
    /// Whether other clients get another variant.
    varies: bool,
    /// The hash in the entity tag; none for what has no validators.
    tag: Option<u64>,
    modified_s: Option<u64>,
    delivery: Delivery,
    /// The key of what its head is in every response, if it is.
    head_key: Option<usize>,
}

/// Where a page comes from, and the texts of its fields.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Site(Entry<'a>),
    Made(&'a Page, Maker),
}

impl<'a> Representation<'a> {
    fn content_type(&self) -> &'a [u8] {
        match self.origin {
            Origin::Site(entry) => entry.content_type(),
            Origin::Made(page, _) => page.content_type.as_bytes(),
        }
    }

    fn cache_control(&self) -> &'a [u8] {
        match self.origin {
            Origin::Site(entry) => entry.cache_control(),
            Origin::Made(page, _) => page.cache_control.as_bytes(),
        }
    }

    fn challenge(&self) -> &'a [u8] {
        match self.origin {
            Origin::Site(_) => b"",
            Origin::Made(page, _) => page.challenge.as_bytes(),
        }
    }

    /// Its entity tag, with its quotes; empty without one.
    fn etag(&self) -> ([u8; 21], usize) {
        self.tag.map_or(([0; 21], 0), |tag| etag(tag, self.coding))
    }

    /// What is lent of it.
    #[inline(never)]
    fn source(&self) -> Source {
        match (self.bytes.cloned(), self.origin) {
            (None, _) => Source::Disk,
            (Some(bytes), Origin::Site(_)) => Source::Memory(bytes),
            (Some(bytes), Origin::Made(_, Maker::Keys)) => Source::Made(bytes),
            (Some(bytes), Origin::Made(_, Maker::Server)) => Source::Own(bytes),
        }
    }
}

/// A response as it is written.
struct Writer<'a> {
    output: &'a mut Output,
    context: &'a Context<'a>,
    method: Method,
    minor_version: u8,
    persistence: Persistence,
    seen: Option<u64>,
    is_own: bool,
    is_local: bool,
}

/// What has come of a request.
pub enum Outcome {
    /// Its response is in the output.
    Sent(Sent),
    /// Nothing yet: it is to be answered when this has come.
    Awaits(Awaits),
}

/// What a connection cannot go on without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// A chunk of the site, to be read.
    Chunk(u64),
    /// The next turn, which its request is put off to.
    Turn,
    /// The end of a pause.
    Pause,
}

impl From<Sent> for Outcome {
    fn from(sent: Sent) -> Outcome {
        Outcome::Sent(sent)
    }
}

/// Answers a request.
pub fn respond(
    request: &Request<'_>,
    persistence: Persistence,
    context: &Context<'_>,
    pages: &mut dyn Pages,
    scratch: &mut Scratch,
    output: &mut Output,
) -> Outcome {
    let (method, minor_version) = (request.method, request.minor_version);
    let is_local = context.is_local;
    let mut writer =
        Writer { output, context, method, minor_version, persistence, seen: None, is_own: false, is_local };
    if scratch.reserve(request).is_err() {
        return writer.error(Status::SERVICE_UNAVAILABLE, b"").into();
    }
    // RFC 9112 §3.2: the field has to be a host also where the target names another one.
    let is_sound =
        request.target.authority.is_none() || request.values("host").all(|host| path::checked_host(host).is_some());
    let Scratch { path: path_buffer, host: host_buffer, heads } = scratch;
    let Some(host) = path::host_name(request.host, host_buffer).filter(|_| is_sound) else {
        return writer.error(Status::BAD_REQUEST, b"").into();
    };
    match method {
        Method::NotAllowed => return writer.error(Status::METHOD_NOT_ALLOWED, ALLOW).into(),
        Method::Unknown => return writer.error(Status::NOT_IMPLEMENTED, ALLOW).into(),
        _ => {}
    }
    // The only expectation there is (RFC 9110 §10.1.1).
    let is_met = |member: &[u8]| member.is_empty() || member.eq_ignore_ascii_case(b"100-continue");
    let are_met = |value: &[u8]| value.split(|byte| *byte == b',').all(|member| is_met(member.trim_ascii()));
    if !request.values("expect").all(are_met) {
        return writer.error(Status::EXPECTATION_FAILED, b"").into();
    }
    if method == Method::Options {
        writer.head(Status::NO_CONTENT);
        writer.put(ALLOW);
        return writer.end_without_body(Status::NO_CONTENT).into();
    }
    let Some(path) = path::normalize(&request.target, path_buffer) else {
        return writer.error(Status::BAD_REQUEST, b"").into();
    };
    let found = context.site.map(|site| (site, site.root(host)));
    let is_own_host = path::is_fixed_host(host) || found.is_some_and(|(_, root)| root != DEFAULT_ROOT);
    let Context { remote, stats, .. } = *context;
    let is_local = is_local && is_own_host;
    writer.is_local = is_local;
    let page_request = PageRequest { path, authorization: request.value("authorization"), remote, is_local, stats };
    if let Some(page) = pages.reserved(&page_request) {
        // What anybody may have gives nobody more room.
        writer.is_own = page.status == 200;
        return writer.represent(request, made(&page, Maker::Server, context), heads);
    }
    if let Some((site, root)) = found {
        match site.find(root, path) {
            Some(Found::Page(entry)) => {
                return writer.represent(request, packed(request, context, site, entry, Status::OK), heads);
            }
            Some(Found::Folder) => return writer.redirect(path, request.target.query).into(),
            None => {}
        }
    }
    if !context.may_make_keys {
        return Outcome::Awaits(Awaits::Turn);
    }
    if pages.are_paused() {
        return Outcome::Awaits(Awaits::Pause);
    }
    let page = pages.missing(&page_request);
    writer.seen = pages.seen();
    if let Some(page) = page {
        return writer.represent(request, made(&page, Maker::Keys, context), heads);
    }
    let own = found.and_then(|(site, root)| Some((site, site.not_found_page(root)?)));
    match own {
        Some((site, entry)) => {
            writer.represent(request, packed(request, context, site, entry, Status::NOT_FOUND), heads)
        }
        None => writer.error(Status::NOT_FOUND, b"").into(),
    }
}

/// Answers what is no request, or none in time, by what has come of its head, and ends the connection.
pub fn refuse(status: Status, head: &[u8], context: &Context<'_>, output: &mut Output) -> Sent {
    // Whatever else is wrong with it, HEAD is answered without a body (RFC 9110 §9.3.2).
    let method = if head.starts_with(b"HEAD ") { Method::Head } else { Method::Get };
    let (persistence, is_local) = (Persistence::Close, context.is_local);
    let minor_version = 1;
    let mut writer =
        Writer { output, context, method, minor_version, persistence, seen: None, is_own: false, is_local };
    writer.error(status, b"")
}

fn packed<'a>(
    request: &Request<'_>,
    context: &Context<'_>,
    site: &'a Site,
    entry: Entry<'a>,
    status: Status,
) -> Representation<'a> {
    let varies = entry.varies();
    let coding =
        if varies { encoding::choose(request.values("accept-encoding"), entry.lengths()) } else { Coding::Identity };
    let validates = status == Status::OK;
    let (bytes, range) = match site.place() {
        Place::Memory => {
            let (bytes, range) = site.lend(entry.body(coding));
            (Some(bytes), range.start as u64..range.end as u64)
        }
        Place::Disk => (None, entry.body(coding)),
    };
    let modified_s = entry.modified_s();
    Representation {
        status,
        bytes,
        range,
        origin: Origin::Site(entry),
        coding,
        varies,
        tag: validates.then_some(entry.tag()),
        // A date in the future would make caches believe in tomorrow (RFC 9110 §8.8.2.1).
        modified_s: validates.then_some(modified_s.min(context.now_s)),
        delivery: Delivery::Whole,
        head_key: (validates && modified_s <= context.now_s)
            .then_some(entry.index() as usize * Coding::ALL.len() + coding as usize),
    }
}

#[inline(never)]
fn made<'a>(page: &'a Page, maker: Maker, context: &Context<'_>) -> Representation<'a> {
    let validates = page.status == 200 && page.delivery == Delivery::Whole;
    let body = (*page.body).as_ref();
    context.made.set((maker, body.len()));
    Representation {
        status: Status(page.status),
        bytes: Some(&page.body),
        range: 0..body.len() as u64,
        origin: Origin::Made(page, maker),
        coding: Coding::Identity,
        varies: false,
        tag: validates.then(|| xxh3_64(body)),
        modified_s: None,
        delivery: page.delivery,
        head_key: None,
    }
}

/// A hash in digits.
fn tag_digits(tag: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (index, digit) in digits.iter_mut().enumerate() {
        *digit = hex((tag >> (60 - 4 * index)) as u8);
    }
    digits
}

fn etag(tag: u64, coding: Coding) -> ([u8; 21], usize) {
    let mut text = [b'"'; 21];
    text[1..17].copy_from_slice(&tag_digits(tag));
    let suffix = coding.tag_suffix().as_bytes();
    text[17..17 + suffix.len()].copy_from_slice(suffix);
    (text, 18 + suffix.len())
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.output.put(bytes);
    }

    /// A field unless its value is empty. The name stands between the end of the line before and the value: heads are made
    /// of as few pieces as can be.
    fn field(&mut self, name: &str, value: &[u8]) {
        if !value.is_empty() {
            self.put(name.as_bytes());
            self.put(value);
        }
    }

    /// The status line, and the fields that every response has.
    fn head(&mut self, status: Status) {
        if status == Status::OK {
            self.put(b"HTTP/1.1 200 OK\r\nDate: ");
        } else {
            self.put(b"HTTP/1.1 ");
            self.put(Decimal::unsigned(status.0.into()).as_bytes());
            self.put(b" ");
            self.put(status.reason().as_bytes());
            self.put(b"\r\nDate: ");
        }
        self.put(self.context.date);
        match (self.persistence, self.minor_version) {
            (Persistence::Close, _) => self.put(b"\r\nConnection: close"),
            (Persistence::KeepAlive, 0) => self.put(b"\r\nConnection: keep-alive"),
            (Persistence::KeepAlive, _) => {}
        }
    }

    fn length(&mut self, length: u64) {
        self.field("\r\nContent-Length: ", Decimal::unsigned(length).as_bytes());
    }

    fn end(&mut self) {
        self.put(b"\r\n\r\n");
    }

    fn sent(&self, status: Status, body_bytes: u64) -> Sent {
        let body_bytes = if self.method == Method::Head { 0 } else { body_bytes };
        let Writer { persistence, seen, is_own, is_local, .. } = *self;
        Sent { status, body_bytes, persistence, delivery: Delivery::Whole, seen, is_own, is_local }
    }

    fn end_without_body(&mut self, status: Status) -> Sent {
        self.end();
        self.sent(status, 0)
    }

    /// A page of the server's own about an error, or about where a page is.
    fn error(&mut self, status: Status, fields: &[u8]) -> Sent {
        let code = Decimal::unsigned(status.0.into());
        let reason = status.reason().as_bytes();
        let parts: [&[u8]; 9] = [
            b"<!doctype html><meta charset=utf-8><title>",
            code.as_bytes(),
            b" ",
            reason,
            b"</title><h1>",
            code.as_bytes(),
            b" ",
            reason,
            b"</h1>\n",
        ];
        let len = parts.iter().map(|part| part.len()).sum::<usize>() as u64;
        self.head(status);
        self.put(fields);
        self.put(b"\r\nContent-Type: text/html; charset=utf-8");
        self.length(len);
        self.end();
        if self.method != Method::Head {
            parts.iter().for_each(|part| self.put(part));
        }
        self.sent(status, len)
    }

    /// Sends whoever asked for a folder without the slash at its end there (RFC 9110 §15.4.2), with the query.
    fn redirect(&mut self, path: &[u8], query: &[u8]) -> Sent {
        const NAME: &[u8] = b"\r\nLocation: ";
        let mut location = Vec::new();
        let most_bytes = NAME.len() + 3 * path.len() + query.len() + 1;
        if location.try_reserve_exact(most_bytes).is_err() || self.output.reserve(most_bytes + COPIED_BYTES).is_err() {
            return self.error(Status::SERVICE_UNAVAILABLE, b"");
        }
        location.extend_from_slice(NAME);
        // A second slash would name a host (RFC 3986 §4.2).
        let extra_slashes = path.iter().take_while(|byte| **byte == b'/').count().saturating_sub(1);
        for &byte in &path[extra_slashes..] {
            if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte) {
                location.push(byte);
            } else {
                location.extend([b'%', hex(byte >> 4).to_ascii_uppercase(), hex(byte).to_ascii_uppercase()]);
            }
        }
        location.push(b'/');
        location.extend_from_slice(query);
        self.error(Status::MOVED_PERMANENTLY, &location)
    }

    /// What is wanted of a page, or the response that its conditions call for instead.
    #[inline(never)]
    fn select(&mut self, request: &Request<'_>, page: &Representation<'_>) -> Result<Wanted, Sent> {
        let (etag, etag_len) = page.etag();
        let validators = Validators { etag: &etag[..etag_len], modified_s: page.modified_s };
        match conditions::evaluate(request, &validators, self.context.now_s) {
            Some(Status::NOT_MODIFIED) => {
                self.head(Status::NOT_MODIFIED);
                self.validators(page);
                return Err(self.end_without_body(Status::NOT_MODIFIED));
            }
            Some(status) => return Err(self.error(status, b"")),
            None => {}
        }
        // A range is asked for with GET alone (§14.2).
        match request.value("range").filter(|_| self.method == Method::Get) {
            Some(range) if conditions::range_counts(request, &validators, self.context.now_s) => {
                Ok(range::parse(range, page.range.end - page.range.start))
            }
            _ => Ok(Wanted::Whole),
        }
    }

    fn represent(&mut self, request: &Request<'_>, page: Representation<'_>, heads: &mut Heads) -> Outcome {
        let len = page.range.end - page.range.start;
        let mut wanted = Wanted::Whole;
        if page.tag.is_some() && request.may_be_selective() {
            match self.select(request, &page) {
                Ok(selected) => wanted = selected,
                Err(sent) => return sent.into(),
            }
        }
        let first = match &wanted {
            Wanted::Whole => page.range.clone(),
            Wanted::Parts(parts) => within(&page, &parts[0]),
            Wanted::Unsatisfiable => 0..0,
        };
        // Once the head is sent there is no way to say that the page cannot be read.
        if page.bytes.is_none()
            && self.method != Method::Head
            && !first.is_empty()
            && let Some(chunks) = self.context.chunks
        {
            let chunk = Chunks::chunk_of(first.start);
            match chunks.look(chunk) {
                Lookup::Ready(_) => {}
                Lookup::Missing => return Outcome::Awaits(Awaits::Chunk(chunk)),
                Lookup::Failed => return self.error(Status::INTERNAL_SERVER_ERROR, b"").into(),
            }
        }
        let may_lend = match page.origin {
            Origin::Made(_, maker) => self.context.lends_made[maker as usize],
            Origin::Site(_) => true,
        };
        if len > COPIED_BYTES as u64 && !may_lend {
            return self.error(Status::SERVICE_UNAVAILABLE, b"").into();
        }
        let sent = match wanted {
            Wanted::Whole => self.whole(&page, heads),
            Wanted::Unsatisfiable => {
                let content_range = [b"\r\nContent-Range: bytes */", Decimal::unsigned(len).as_bytes()].concat();
                self.error(Status::RANGE_NOT_SATISFIABLE, &content_range)
            }
            Wanted::Parts(parts) if parts.len() == 1 => self.one_part(&page, parts[0].clone()),
            Wanted::Parts(parts) => self.parts(&page, &parts),
        };
        sent.into()
    }

    /// The fields that a client's cache goes by (RFC 9110 §15.4.5).
    fn validators(&mut self, page: &Representation<'_>) {
        let (etag, etag_len) = page.etag();
        self.field("\r\nETag: ", &etag[..etag_len]);
        self.field("\r\nCache-Control: ", page.cache_control());
        if page.varies {
            self.put(b"\r\nVary: Accept-Encoding");
        }
    }

    #[inline(never)]
    fn fields(&mut self, page: &Representation<'_>) {
        self.validators(page);
        if let Some(modified_s) = page.modified_s {
            self.field("\r\nLast-Modified: ", &date::format(modified_s));
        }
        self.field("\r\nContent-Encoding: ", page.coding.name().unwrap_or_default().as_bytes());
        self.field("\r\nWWW-Authenticate: ", page.challenge());
        if page.tag.is_some() {
            self.put(b"\r\nAccept-Ranges: bytes");
        }
    }

    fn whole(&mut self, page: &Representation<'_>, heads: &mut Heads) -> Sent {
        if page.delivery == Delivery::Stream {
            // Without a length the end of the connection is the end of the page (RFC 9112 §6.3).
            self.persistence = Persistence::Close;
        }
        self.head(page.status);
        let len = page.range.end - page.range.start;
        if let Some(fields) = page.head_key.and_then(|key| heads.get(key)) {
            self.put(fields);
        } else {
            let start = self.output.own_len();
            self.fields(page);
            self.field("\r\nContent-Type: ", page.content_type());
            if page.delivery == Delivery::Whole {
                self.length(len);
            }
            self.end();
            if let Some(key) = page.head_key {
                heads.keep(key, self.output.own_since(start));
            }
        }
        self.body(page, page.range.clone());
        Sent { delivery: page.delivery, ..self.sent(page.status, len) }
    }

    fn one_part(&mut self, page: &Representation<'_>, part: Range<u64>) -> Sent {
        self.head(Status::PARTIAL_CONTENT);
        self.fields(page);
        self.field("\r\nContent-Type: ", page.content_type());
        self.put(&content_range(&part, page.range.end - page.range.start));
        let len = part.end - part.start;
        self.length(len);
        self.end();
        self.body(page, within(page, &part));
        self.sent(Status::PARTIAL_CONTENT, len)
    }

    /// Several parts (RFC 9110 §14.6). The boundary is the hash of the page, which the page does not contain.
    fn parts(&mut self, page: &Representation<'_>, parts: &[Range<u64>]) -> Sent {
        let boundary = tag_digits(page.tag.unwrap_or_default());
        let heads: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| {
                let content_range = content_range(part, page.range.end - page.range.start);
                let name: &[u8] = if page.content_type().is_empty() { b"" } else { b"\r\nContent-Type: " };
                [b"\r\n--", &boundary[..], name, page.content_type(), &content_range, b"\r\n\r\n"].concat()
            })
            .collect();
        let end = [b"\r\n--", &boundary[..], b"--\r\n"].concat();
        let heads_len: usize = heads.iter().map(Vec::len).sum();
        let bodies_len: u64 = parts.iter().map(|part| part.end - part.start).sum();
        let len = heads_len as u64 + bodies_len + end.len() as u64;
        // Each may be short enough to be copied.
        if self
            .output
            .reserve(len.min((heads_len + parts.len() * COPIED_BYTES) as u64) as usize + RESPONSE_BYTES)
            .is_err()
        {
            return self.error(Status::SERVICE_UNAVAILABLE, b"");
        }
        self.head(Status::PARTIAL_CONTENT);
        self.fields(page);
        self.field("\r\nContent-Type: multipart/byteranges; boundary=", &boundary);
        self.length(len);
        self.end();
        for (part, head) in parts.iter().zip(&heads) {
            self.put(head);
            self.body(page, within(page, part));
        }
        self.put(&end);
        self.sent(Status::PARTIAL_CONTENT, len)
    }

    fn body(&mut self, page: &Representation<'_>, range: Range<u64>) {
        if self.method == Method::Head {
            return;
        }
        let len = range.end - range.start;
        if len > COPIED_BYTES as u64 || self.output.reserve(len as usize).is_err() {
            return self.output.lend(page.source(), range);
        }
        let bytes = match page.bytes {
            Some(bytes) => &(**bytes).as_ref()[range.start as usize..range.end as usize],
            None => self.context.chunks.map_or(&[][..], |chunks| chunks.beginning(&range)),
        };
        match bytes.len() as u64 == len {
            true => self.output.put(bytes),
            false => self.output.lend(page.source(), range),
        }
    }
}

fn content_range(part: &Range<u64>, len: u64) -> Vec<u8> {
    let [first, last, len] = [part.start, part.end - 1, len].map(Decimal::unsigned);
    [b"\r\nContent-Range: bytes ", first.as_bytes(), b"-", last.as_bytes(), b"/", len.as_bytes()].concat()
}

/// Where a part of a page lies.
fn within(page: &Representation<'_>, part: &Range<u64>) -> Range<u64> {
    page.range.start + part.start..page.range.start + part.end
}
