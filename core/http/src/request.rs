//! Request heads (RFC 9112 §2 to §6): found in a stream whose pieces may end anywhere, and checked before anything is
//! believed. Whatever two recipients could read differently is refused, because that is how requests are smuggled.

use crate::{
    path::{self, Target},
    status::Status,
};
use core::mem::MaybeUninit;
use httparse::Header;

/// Bytes of a head, with the empty line that ends it.
pub const MAX_HEAD_BYTES: usize = 16 << 10;
/// Bytes of a request line.
pub const MAX_LINE_BYTES: usize = 8 << 10;
/// Fields of a head.
pub const MAX_FIELDS: usize = 64;

/// What a client asks for. Names of methods are case-sensitive (RFC 9110 §9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Options,
    /// A method that exists, but not here.
    NotAllowed,
    /// Any other word.
    Unknown,
}

impl Method {
    fn new(name: &str) -> Method {
        match name {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "OPTIONS" => Method::Options,
            "POST" | "PUT" | "DELETE" | "PATCH" | "TRACE" | "CONNECT" => Method::NotAllowed,
            _ => Method::Unknown,
        }
    }
}

/// How a request's body is delimited (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// Whether the connection goes on after this request (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    KeepAlive,
    Close,
}

/// A checked head.
pub struct Request<'a> {
    pub method: Method,
    /// All bytes of it.
    pub head: &'a [u8],
    pub target: Target<'a>,
    /// 0 or 1, behind `HTTP/1.`.
    pub minor_version: u8,
    pub framing: Framing,
    pub persistence: Persistence,
    /// The value of Host, or the authority of an absolute target, which comes before it (RFC 9112 §3.2.2).
    pub host: &'a [u8],
    fields: Fields<'a>,
}

/// The fields of a head.
#[derive(Clone, Copy)]
struct Fields<'a> {
    all: &'a [Header<'a>],
    /// A bit for each length of a name that is among them: most names that are asked for are not there.
    lengths: u64,
}

impl<'a> Fields<'a> {
    fn new(all: &'a [Header<'a>]) -> Fields<'a> {
        let lengths = all.iter().fold(0, |lengths, field| lengths | length_bit(field.name));
        Fields { all, lengths }
    }

    /// Whether a field of this name may be there.
    #[inline]
    fn may_have(self, name: &str) -> bool {
        self.lengths & length_bit(name) != 0
    }

    fn values(self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let all = if self.may_have(name) { self.all } else { &[] };
        all.iter().filter(move |field| is_named(field, name)).map(|field| field.value)
    }
}

/// Whether a field has this name, which is in small letters. No byte of a name stands for another than its capital so.
fn is_named(field: &Header<'_>, name: &str) -> bool {
    let (bytes, wanted) = (field.name.as_bytes(), name.as_bytes());
    if bytes.len() != wanted.len() {
        return false;
    }
    for index in 0..bytes.len() {
        if bytes[index] | 0x20 != wanted[index] {
            return false;
        }
    }
    true
}

const fn length_bit(name: &str) -> u64 {
    1 << (name.len() & 63)
}

/// Names of fields that ask for a page under a condition, or for a part of it.
const SELECTIVE: u64 = length_bit("if-match")
    | length_bit("if-none-match")
    | length_bit("if-modified-since")
    | length_bit("if-unmodified-since")
    | length_bit("if-range")
    | length_bit("range");

impl<'a> Request<'a> {
    /// All values of a field, in their order.
    pub fn values(&self, name: &'static str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.fields.values(name)
    }

    /// The value of a field that stands there once; one that is there several times means nothing.
    #[inline]
    pub fn value(&self, name: &'static str) -> Option<&'a [u8]> {
        if self.fields.may_have(name) { self.only_value(name) } else { None }
    }

    /// Whether it may have conditions (RFC 9110 §13.1) or ask for a range (§14.2).
    pub fn may_be_selective(&self) -> bool {
        self.fields.lengths & SELECTIVE != 0
    }

    #[inline(never)]
    fn only_value(&self, name: &'static str) -> Option<&'a [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }
}

/// Looks for the end of a head that starts with `bytes`. What has been looked at is noted in `scanned`, so that a head in
/// many pieces is not searched again for each of them.
pub fn find_end(bytes: &[u8], scanned: &mut usize) -> Result<Option<usize>, Status> {
    let mut line_start = *scanned;
    let mut found = None;
    for newline in memchr::memchr_iter(b'\n', &bytes[*scanned..]) {
        let end = *scanned + newline;
        // Some take a bare LF for the end of a line and some do not (RFC 9112 §2.2).
        if end == 0 || bytes[end - 1] != b'\r' {
            return Err(Status::BAD_REQUEST);
        }
        if line_start == 0 && end >= MAX_LINE_BYTES {
            return Err(Status::URI_TOO_LONG);
        }
        if end - line_start == 1 {
            found = Some(end + 1);
            break;
        }
        line_start = end + 1;
    }
    *scanned = line_start;
    match found {
        Some(end) if end <= MAX_HEAD_BYTES => Ok(Some(end)),
        None if line_start == 0 && bytes.len() > MAX_LINE_BYTES => Err(Status::URI_TOO_LONG),
        None if bytes.len() < MAX_HEAD_BYTES => Ok(None),
        _ => Err(Status::FIELDS_TOO_LARGE),
    }
}

/// Parses and checks a whole head, and lends the request to `respond`.
pub fn parse<R>(head: &[u8], respond: impl FnOnce(&Request<'_>) -> R) -> Result<R, Status> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(head, &mut fields) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Status::FIELDS_TOO_LARGE),
        Err(httparse::Error::Version) => return Err(version_error(head)),
        _ => return Err(Status::BAD_REQUEST),
    }
    let (Some(method), Some(target), Some(minor_version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Status::BAD_REQUEST);
    };
    let method = Method::new(method);
    let fields = Fields::new(parsed.headers);
    let target = path::split(target.as_bytes())
        .filter(|target| target.path != b"*" || method == Method::Options)
        // The target of CONNECT is a host and a port, and there is no way through here.
        .or((method == Method::NotAllowed).then_some(path::ASTERISK))
        .ok_or(Status::BAD_REQUEST)?;
    let framing = framing(fields, minor_version)?;
    let host = host(fields, &target, minor_version)?;
    let persistence = persistence(fields, minor_version);
    Ok(respond(&Request { method, head, target, minor_version, framing, persistence, host, fields }))
}

/// What is wrong with a request line whose version is not understood.
fn version_error(head: &[u8]) -> Status {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (version, more) = (words.nth(2).unwrap_or_default(), words.next());
    match version {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if more.is_none() && major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Status::VERSION_NOT_SUPPORTED
        }
        _ => Status::BAD_REQUEST,
    }
}

/// RFC 9112 §6.3, and stricter where it permits: one length, in digits alone, never beside a transfer coding.
fn framing(fields: Fields<'_>, minor_version: u8) -> Result<Framing, Status> {
    if !fields.may_have("content-length") && !fields.may_have("transfer-encoding") {
        return Ok(Framing::None);
    }
    let mut lengths = fields.values("content-length");
    let mut codings = fields.values("transfer-encoding");
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(Framing::None),
        (Some(length), None) if lengths.next().is_none() => {
            let digits = !length.is_empty() && length.len() <= 19 && length.iter().all(u8::is_ascii_digit);
            let value = core::str::from_utf8(length).ok().filter(|_| digits).and_then(|length| length.parse().ok());
            value.map(Framing::Length).ok_or(Status::BAD_REQUEST)
        }
        // A client of HTTP/1.0 knows no transfer codings: a proxy has passed on what it has not understood (§6.1).
        (None, Some(coding)) if codings.next().is_none() && minor_version > 0 => {
            if coding.eq_ignore_ascii_case(b"chunked") {
                return Ok(Framing::Chunked);
            }
            // Other codings may stand before chunked, which is the last one and stands there once.
            let mut names = coding.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            let ends_chunked = names.next().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
            let known = |name: &[u8]| {
                ["gzip", "x-gzip", "deflate", "compress", "x-compress"]
                    .iter()
                    .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
            };
            Err(if ends_chunked && names.all(known) { Status::NOT_IMPLEMENTED } else { Status::BAD_REQUEST })
        }
        _ => Err(Status::BAD_REQUEST),
    }
}

/// RFC 9112 §3.2: HTTP/1.1 has exactly one Host, whatever the target says.
fn host<'a>(fields: Fields<'a>, target: &Target<'a>, minor_version: u8) -> Result<&'a [u8], Status> {
    let mut hosts = fields.values("host");
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Ok(target.authority.unwrap_or(host)),
        (None, None) if minor_version == 0 => Ok(target.authority.unwrap_or_default()),
        _ => Err(Status::BAD_REQUEST),
    }
}

fn persistence(fields: Fields<'_>, minor_version: u8) -> Persistence {
    let options = fields.values("connection").flat_map(|value| value.split(|byte| *byte == b','));
    let (mut close, mut keep_alive) = (false, false);
    for option in options.map(<[u8]>::trim_ascii) {
        close |= option.eq_ignore_ascii_case(b"close");
        keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
    }
    if !close && (minor_version > 0 || keep_alive) { Persistence::KeepAlive } else { Persistence::Close }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> Result<(), Status> {
        let mut scanned = 0;
        let end = find_end(head.as_bytes(), &mut scanned)?;
        parse(&head.as_bytes()[..end.expect("a whole head")], |_| ())
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (head, wanted) in [
            // Bare LF (RFC 9112 §2.2), alone, and where a lenient reader would see the end of the head.
            ("GET / HTTP/1.1\nHost: h\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\n\n", 400),
            // Bare CR.
            ("GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400),
            ("GET /\r HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            // A folded line (§5.2), and a blank before the first field (§2.2).
            ("GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n\tb\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400),
            // A blank between name and colon (§5.1), no name, no colon.
            ("GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nX\u{e9}: y\r\n\r\n", 400),
            // NUL and other control characters (RFC 9110 §5.5).
            ("GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nX: a\x01b\r\n\r\n", 400),
            ("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            // The request line (§3): single blanks, visible characters, a version.
            ("GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET /  HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET / HTTP/1.1 \r\nHost: h\r\n\r\n", 400),
            ("GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET /\u{e9} HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET /\r\nHost: h\r\n\r\n", 400),
            ("GET\r\n\r\n", 400),
            ("G@T / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET / http/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET / HTTP/1\r\nHost: h\r\n\r\n", 400),
            ("GET / HTTP/1.10\r\nHost: h\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
            ("GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505),
            ("PRI * HTTP/2.0\r\n\r\n", 505),
            ("GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            // Host (§3.2): one, whatever the target says.
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
            ("GET http://h/ HTTP/1.1\r\n\r\n", 400),
            // Lengths (§6.2, §6.3).
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1 1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
            // Transfer codings (§6.1): alone, once, chunked last, not from HTTP/1.0.
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
            ("GET / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ] {
            assert_eq!(status(head), Err(Status(wanted)), "{head:?}");
        }
    }

    #[test]
    fn what_is_unusual_but_clear_is_taken() {
        for head in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nhOST:h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: \t h \t \r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nX: \u{e9}\r\n\r\n",
            "GET http://h HTTP/1.1\r\nHost: other\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
            "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 007\r\n\r\n",
        ] {
            assert_eq!(status(head), Ok(()), "{head:?}");
        }
    }

    #[test]
    fn lengths_are_limited() {
        let long = |bytes| "x".repeat(bytes);
        let with_field = |bytes| status(&head_with(&long(bytes)));
        assert_eq!(with_field(MAX_HEAD_BYTES - 38), Ok(()));
        assert_eq!(with_field(MAX_HEAD_BYTES), Err(Status::FIELDS_TOO_LARGE));
        let with_target = |bytes| status(&["GET /", &long(bytes), " HTTP/1.1\r\nHost: h\r\n\r\n"].concat());
        assert_eq!(with_target(MAX_LINE_BYTES - 16), Ok(()));
        assert_eq!(with_target(MAX_LINE_BYTES), Err(Status::URI_TOO_LONG));
        let with_fields =
            |count| status(&["GET / HTTP/1.1\r\nHost: h\r\n", &"X: y\r\n".repeat(count), "\r\n"].concat());
        assert_eq!(with_fields(MAX_FIELDS - 1), Ok(()));
        assert_eq!(with_fields(MAX_FIELDS), Err(Status::FIELDS_TOO_LARGE));
        // Without an end as well.
        assert_eq!(find_end(long(MAX_LINE_BYTES + 1).as_bytes(), &mut 0), Err(Status::URI_TOO_LONG));
        let endless = ["GET / HTTP/1.1\r\nX: ", &long(MAX_HEAD_BYTES)].concat();
        assert_eq!(find_end(endless.as_bytes(), &mut 0), Err(Status::FIELDS_TOO_LARGE));
    }

    fn head_with(value: &str) -> alloc::string::String {
        ["GET / HTTP/1.1\r\nHost: h\r\nX: ", value, "\r\n\r\n"].concat()
    }

    #[test]
    fn an_end_is_found_however_the_head_is_split() {
        let head = b"GET / HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\nGET /";
        for first in 0..head.len() {
            for second in first..=head.len() {
                let mut scanned = 0;
                let mut found = None;
                for len in [first, second, head.len()] {
                    found = found.or(find_end(&head[..len], &mut scanned).expect("a good head"));
                }
                assert_eq!(found, Some(head.len() - 5));
            }
        }
    }

    #[test]
    fn connections_persist_by_version_and_option() {
        for (version, connection, wanted) in [
            ("1.1", "", Persistence::KeepAlive),
            ("1.1", "Connection: close\r\n", Persistence::Close),
            ("1.1", "Connection: Upgrade, Close\r\n", Persistence::Close),
            ("1.1", "Connection: x\r\nConnection: close\r\n", Persistence::Close),
            ("1.0", "", Persistence::Close),
            ("1.0", "Connection: Keep-Alive\r\n", Persistence::KeepAlive),
            ("1.0", "Connection: keep-alive, close\r\n", Persistence::Close),
        ] {
            let head = ["GET / HTTP/", version, "\r\nHost: h\r\n", connection, "\r\n"].concat();
            assert_eq!(parse(head.as_bytes(), |request| request.persistence), Ok(wanted), "{head:?}");
        }
    }
}
