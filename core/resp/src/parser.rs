use alloc::{collections::TryReserveError, vec::Vec};

use crate::words::{next_word, split_word};

/// Longest inline request, and longest line that announces a count or length (Redis' `PROTO_INLINE_MAX_SIZE`).
pub const INLINE_LIMIT_BYTES: usize = 64 << 10;
/// Most arguments of one request. They take memory only as they come, so this says nothing of how much.
const ARGUMENTS_LIMIT: i64 = i32::MAX as i64;
/// Most arguments, and longest one, from a client that has yet to authenticate: it must not fill our memory.
const UNAUTHENTICATED_ARGUMENTS_LIMIT: usize = 10;
const UNAUTHENTICATED_BULK_LIMIT_BYTES: u64 = 16 << 10;
/// More than stands before a request's first argument, but for numbers with thousands of zeros before them.
const LONG_PREFIX_BYTES: usize = 64;
/// Arguments behind a long one that may be [moved ahead](Parser::move_head): as many as `SET` has options, with their values.
const BEHIND_LONG_MAX: usize = 4;
/// What the longest argument may have at least, so that every length of three digits is within the limits.
const SHORT_BULK_BYTES: u64 = 999;

/// What a request may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest argument in bytes.
    pub bulk_bytes: u64,
    /// Whether the client has authenticated, or need not.
    pub authenticated: bool,
    /// Bytes of memory that there are for where the arguments lie.
    pub room_bytes: u64,
}

impl Limits {
    /// For what was within its limits before: as much as anybody could ever send.
    pub const PASSED: Limits = Limits { bulk_bytes: i64::MAX as u64, authenticated: true, room_bytes: u64::MAX };
}

/// Bytes that are not a request. The connection cannot go on, since nobody knows where the next request starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// An inline request or a line that does not end.
    TooBigInline,
    /// A count of arguments that does not end.
    TooBigMultibulkCount,
    /// A length line that does not end.
    TooBigBulkCount,
    /// Not a number of arguments, or too many.
    InvalidMultibulkLength,
    /// Too many arguments before authentication.
    UnauthenticatedMultibulkLength,
    /// Something other than `$` before an argument.
    ExpectedDollar(u8),
    /// Not a length, or too long.
    InvalidBulkLength,
    /// Too long before authentication.
    UnauthenticatedBulkLength,
    /// An inline request whose quotes do not close.
    UnbalancedQuotes,
    /// There is no memory to take the request apart.
    OutOfMemory,
}

impl ProtocolError {
    /// What is wrong, as Redis says it. The byte that stands where a dollar should is shown as it is.
    pub fn message(&self) -> Vec<u8> {
        let text: &[u8] = match self {
            ProtocolError::TooBigInline => b"too big inline request",
            ProtocolError::TooBigMultibulkCount => b"too big mbulk count string",
            ProtocolError::TooBigBulkCount => b"too big bulk count string",
            ProtocolError::InvalidMultibulkLength => b"invalid multibulk length",
            ProtocolError::UnauthenticatedMultibulkLength => b"unauthenticated multibulk length",
            ProtocolError::ExpectedDollar(got) => return [b"expected '$', got '", &[*got][..], b"'"].concat(),
            ProtocolError::InvalidBulkLength => b"invalid bulk length",
            ProtocolError::UnauthenticatedBulkLength => b"unauthenticated bulk length",
            ProtocolError::UnbalancedQuotes => b"unbalanced quotes in request",
            ProtocolError::OutOfMemory => b"not enough memory for the request",
        };
        text.to_vec()
    }
}

impl core::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.message().escape_ascii())
    }
}

/// One argument's place in the request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: usize,
    end: usize,
}

/// A complete request: its arguments, the first of which is the command's name.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Request<'a> {
    /// Number of arguments, the name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Bytes from the first argument to the end of the last one, as they were sent.
    pub fn bytes_len(&self) -> usize {
        let (Some(first), Some(last)) = (self.spans.first(), self.spans.last()) else { return 0 };
        match first.start < LONG_PREFIX_BYTES {
            true => last.end - first.start,
            false => self.moved_bytes_len(*first, *last),
        }
    }

    /// The same where an argument may lie ahead of the first one.
    #[inline(never)]
    fn moved_bytes_len(&self, first: Span, last: Span) -> usize {
        match self.spans.iter().find(|span| span.start == 0) {
            Some(ahead) if *ahead == last => ahead.end + self.bytes.len() - first.start,
            Some(ahead) => ahead.end + 2 + last.end - first.start,
            None => last.end - first.start,
        }
    }

    /// Whether the argument at `at` lies at the beginning of the request's buffer, where [`Parser::move_head`] has it.
    pub fn is_ahead(&self, at: usize) -> bool {
        at > 0 && self.spans.get(at).is_some_and(|span| span.start == 0)
    }

    /// The request that the arguments from `at` on make.
    pub fn skip(self, at: usize) -> Request<'a> {
        Request { bytes: self.bytes, spans: self.spans.get(at..).unwrap_or_default() }
    }

    /// The request that the first `len` arguments make.
    pub fn first(self, len: usize) -> Request<'a> {
        Request { bytes: self.bytes, spans: self.spans.get(..len).unwrap_or(self.spans) }
    }

    /// Writes the request, as clients send it, behind what `out` holds.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
        crate::encode(self.from(0), out)
    }

    /// Whether there is no argument at all: an empty line, which is ignored.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `at`, if there is one.
    #[inline(always)]
    pub fn get(&self, at: usize) -> Option<&'a [u8]> {
        self.spans.get(at).map(|span| &self.bytes[span.start..span.end])
    }

    /// All arguments from `at` on.
    pub fn from(&self, at: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone + use<'a> {
        let bytes = self.bytes;
        self.spans.get(at..).unwrap_or_default().iter().map(move |span| &bytes[span.start..span.end])
    }
}

impl core::ops::Index<usize> for Request<'_> {
    type Output = [u8];

    #[inline(always)]
    fn index(&self, at: usize) -> &[u8] {
        let span = self.spans[at];
        &self.bytes[span.start..span.end]
    }
}

/// Where the arguments lie of a request that was not read by a [`Parser`].
#[derive(Default)]
pub struct Places {
    spans: Vec<Span>,
}

impl Places {
    /// Forgets the arguments.
    pub fn clear(&mut self) {
        self.spans.clear();
    }

    /// Adds an argument.
    pub fn push(&mut self, place: core::ops::Range<usize>) -> Result<(), TryReserveError> {
        self.spans.try_reserve(1)?;
        self.spans.push(Span { start: place.start, end: place.end });
        Ok(())
    }

    /// The request whose arguments lie in `bytes`, all of them.
    pub fn request<'a>(&'a self, bytes: &'a [u8]) -> Request<'a> {
        assert!(self.spans.iter().all(|span| span.start <= span.end && span.end <= bytes.len()));
        Request { bytes, spans: &self.spans }
    }
}

/// How far a call to [`Parser::parse`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A request is complete and ends at this offset. [`Parser::request`] gives it.
    Complete(usize),
    /// More bytes are needed. When an argument's length is known, that many bytes in all at least.
    Partial {
        /// The least length of the request as far as it can be told.
        at_least: usize,
    },
}

/// The state of one request that may arrive in any number of pieces.
///
/// It is given the request's bytes from the beginning each time, and goes on where it stopped.
#[derive(Default)]
pub struct Parser {
    /// Offset of the first byte that is not parsed yet.
    at: usize,
    /// Arguments that are still to come; `None` before their count is known.
    missing: Option<usize>,
    /// Length of the argument that is being read.
    bulk_len: Option<usize>,
    spans: Vec<Span>,
    /// The arguments of an inline request, unquoted and in a row.
    inline: Vec<u8>,
    is_inline: bool,
}

/// Spans that are kept allocated between requests.
const KEPT_SPANS: usize = 1024;

impl Parser {
    /// A parser at the start of a request.
    pub const fn new() -> Parser {
        Parser { at: 0, missing: None, bulk_len: None, spans: Vec::new(), inline: Vec::new(), is_inline: false }
    }

    /// Gets ready for the next request.
    #[inline]
    pub fn reset(&mut self) {
        (self.at, self.missing, self.bulk_len, self.is_inline) = (0, None, None, false);
        self.spans.clear();
        if self.spans.capacity() > KEPT_SPANS {
            self.spans = Vec::new();
        }
        if self.inline.capacity() > 0 {
            self.inline = Vec::new();
        }
    }

    /// Whether a request has begun.
    pub fn is_busy(&self) -> bool {
        self.missing.is_some()
    }

    /// Bytes of memory that the places of the arguments take.
    pub fn places_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// Where the argument lies that is being read, once its length is known.
    pub fn argument(&self) -> Option<core::ops::Range<usize>> {
        self.bulk_len.map(|len| self.at..self.at + len)
    }

    /// Whether [`move_head`](Self::move_head) can be called once that argument is complete: it is one of the last.
    pub fn may_move_head(&self) -> bool {
        let behind = self.missing.and_then(|missing| missing.checked_sub(1));
        let is_near_the_end = behind.is_some_and(|behind| behind <= BEHIND_LONG_MAX);
        is_near_the_end && self.bulk_len.is_some() && self.spans.len() < self.spans.capacity()
    }

    /// Goes on in a buffer that holds the argument that is [being read](Self::argument), complete and with the line's end behind
    /// it, and behind that what came before. What follows the argument belongs behind these.
    pub fn move_head(&mut self) {
        let (Some(argument), Some(missing)) = (self.argument(), self.missing) else { return };
        let moved = argument.len() + 2;
        for span in &mut self.spans {
            (span.start, span.end) = (span.start + moved, span.end + moved);
        }
        self.spans.push(Span { start: 0, end: argument.len() });
        (self.at, self.missing, self.bulk_len) = (argument.start + moved, missing.checked_sub(1), None);
    }

    /// The request that [`parse`](Self::parse) completed, over the same bytes.
    #[inline]
    pub fn request<'a>(&'a self, bytes: &'a [u8]) -> Request<'a> {
        Request { bytes: if self.is_inline { &self.inline } else { bytes }, spans: &self.spans }
    }

    /// Parses on. `bytes` begins where the request begins, and holds at least what it held the last time.
    #[inline]
    pub fn parse(&mut self, bytes: &[u8], limits: Limits) -> Result<Progress, ProtocolError> {
        if bytes.is_empty() && self.missing.is_none() {
            return Ok(Progress::Partial { at_least: 1 });
        }
        if self.missing.is_none() && limits.bulk_bytes >= SHORT_BULK_BYTES {
            if let Some(end) = self.parse_short(bytes) {
                return Ok(Progress::Complete(end));
            }
            self.spans.clear();
        }
        self.parse_any(bytes, limits)
    }

    /// Parses a request that is there as a whole and that any client may send, with numbers of three digits at most:
    /// nearly all are like that. Returns where it ends, or nothing if it is another one, right or wrong.
    fn parse_short(&mut self, bytes: &[u8]) -> Option<usize> {
        walk_short(bytes, |span| self.push(span).ok())
    }

    /// Parses on, whatever it is.
    fn parse_any(&mut self, bytes: &[u8], limits: Limits) -> Result<Progress, ProtocolError> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => match bytes.first() {
                None => return Ok(Progress::Partial { at_least: 1 }),
                Some(b'*') => match self.parse_count(bytes, limits)? {
                    Some(count) => count,
                    None => return Ok(Progress::Partial { at_least: bytes.len() + 1 }),
                },
                Some(_) => return self.parse_inline(bytes),
            },
        };
        while missing > 0 {
            let len = match self.bulk_len {
                Some(len) => len,
                None => match self.parse_bulk_len(bytes, limits)? {
                    Some(len) => len,
                    None => {
                        self.missing = Some(missing);
                        return Ok(Progress::Partial { at_least: bytes.len() + 1 });
                    }
                },
            };
            let end = self.at + len;
            if bytes.len() < end + 2 {
                (self.missing, self.bulk_len) = (Some(missing), Some(len));
                return Ok(Progress::Partial { at_least: end + 2 });
            }
            if self.spans.len() == self.spans.capacity() && self.grown_bytes() > limits.room_bytes {
                return Err(ProtocolError::OutOfMemory);
            }
            self.push(Span { start: self.at, end })?;
            self.at = end + 2;
            self.bulk_len = None;
            missing -= 1;
        }
        Ok(Progress::Complete(self.at))
    }

    /// Bytes that the places of the arguments will take when they have to grow, or nothing as long as they are few.
    fn grown_bytes(&self) -> u64 {
        match self.spans.capacity() {
            ..=KEPT_SPANS => 0,
            many => 2 * (many * size_of::<Span>()) as u64,
        }
    }

    #[inline]
    fn push(&mut self, span: Span) -> Result<(), ProtocolError> {
        if self.spans.len() == self.spans.capacity() {
            self.spans.try_reserve(1).map_err(|_| ProtocolError::OutOfMemory)?;
        }
        self.spans.push(span);
        Ok(())
    }

    fn parse_count(&mut self, bytes: &[u8], limits: Limits) -> Result<Option<usize>, ProtocolError> {
        let Some((number, end)) = parse_line(bytes, 1, ProtocolError::TooBigMultibulkCount)? else { return Ok(None) };
        let count = number.filter(|&n| n <= ARGUMENTS_LIMIT).ok_or(ProtocolError::InvalidMultibulkLength)?;
        if count > UNAUTHENTICATED_ARGUMENTS_LIMIT as i64 && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        self.at = end;
        // A count of zero or less is an empty request.
        Ok(Some(count.max(0) as usize))
    }

    fn parse_bulk_len(&mut self, bytes: &[u8], limits: Limits) -> Result<Option<usize>, ProtocolError> {
        match bytes.get(self.at) {
            None => return Ok(None),
            Some(b'$') => {}
            // What is wrong shows only when the line is complete, as in Redis.
            Some(&got) => {
                return match parse_line(bytes, self.at, ProtocolError::TooBigBulkCount)? {
                    None => Ok(None),
                    Some(_) => Err(ProtocolError::ExpectedDollar(got)),
                };
            }
        }
        let Some((number, end)) = parse_line(bytes, self.at + 1, ProtocolError::TooBigBulkCount)? else {
            return Ok(None);
        };
        let len = number.and_then(|n| u64::try_from(n).ok()).filter(|&n| n <= limits.bulk_bytes);
        let len = len.ok_or(ProtocolError::InvalidBulkLength)?;
        if len > UNAUTHENTICATED_BULK_LIMIT_BYTES && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        self.at = end;
        Ok(Some(len as usize))
    }

    fn parse_inline(&mut self, bytes: &[u8]) -> Result<Progress, ProtocolError> {
        // Searching goes on where the last call ended, so that a line that comes byte by byte costs its length once.
        let newline = bytes.iter().skip(self.at).position(|&b| b == b'\n').map(|i| i + self.at);
        let Some(newline) = newline else {
            self.at = bytes.len();
            if bytes.len() > INLINE_LIMIT_BYTES {
                return Err(ProtocolError::TooBigInline);
            }
            return Ok(Progress::Partial { at_least: bytes.len() + 1 });
        };
        if newline > INLINE_LIMIT_BYTES {
            return Err(ProtocolError::TooBigInline);
        }
        let line = &bytes[..newline];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.inline.try_reserve_exact(line.len()).map_err(|_| ProtocolError::OutOfMemory)?;
        let mut rest = line;
        while let Some(word_at) = next_word(rest) {
            let start = self.inline.len();
            rest = split_word(&rest[word_at..], &mut self.inline).map_err(|_| ProtocolError::UnbalancedQuotes)?;
            self.push(Span { start, end: self.inline.len() })?;
        }
        self.is_inline = true;
        self.at = newline + 1;
        Ok(Progress::Complete(self.at))
    }
}

/// Goes over the arguments of a request that is there as a whole, as [`Parser::parse_short`] takes it, until `visit` wants no
/// more. Returns where it ends.
#[inline]
fn walk_short(bytes: &[u8], mut visit: impl FnMut(Span) -> Option<()>) -> Option<usize> {
    let (count, mut at) = parse_short_line(bytes, b'*')?;
    if count > UNAUTHENTICATED_ARGUMENTS_LIMIT {
        return None;
    }
    for _ in 0..count {
        let (len, line_len) = parse_short_line(bytes.get(at..)?, b'$')?;
        let start = at + line_len;
        let end = start + len;
        if bytes.len() < end + 2 {
            return None;
        }
        visit(Span { start, end })?;
        at = end + 2;
    }
    Some(at)
}

/// The three arguments behind the command's name, empty where there are fewer, of each of the short requests at the start of
/// `bytes`, up to the first one that is none or is not there as a whole. Whether they are right is not asked.
pub fn first_arguments(mut bytes: &[u8]) -> impl Iterator<Item = [&[u8]; 3]> {
    core::iter::from_fn(move || {
        let mut place = [Span { start: 0, end: 0 }; 4];
        let mut at = 0;
        let end = walk_short(bytes, |span| {
            if let Some(place) = place.get_mut(at) {
                *place = span;
            }
            at += 1;
            Some(())
        })?;
        let [_, arguments @ ..] = place.map(|place| &bytes[place.start..place.end]);
        bytes = &bytes[end..];
        Some(arguments)
    })
}

/// Reads a line of a mark and a number of up to three digits at the start of `bytes`. Returns the number and the line's
/// length. At least two more bytes follow every line.
#[inline]
fn parse_short_line(bytes: &[u8], mark: u8) -> Option<(usize, usize)> {
    let line = bytes.first_chunk::<6>()?;
    let digit = |at: usize| usize::from(line[at].wrapping_sub(b'0'));
    let (first, second, third) = (digit(1), digit(2), digit(3));
    if line[0] != mark || first > 9 {
        return None;
    }
    if line[2] == b'\r' {
        return Some((first, 4));
    }
    if first == 0 || second > 9 {
        return None;
    }
    let number = first * 10 + second;
    if line[3] == b'\r' {
        return Some((number, 5));
    }
    (third <= 9 && line[4] == b'\r').then_some((number * 10 + third, 6))
}

/// Reads a number up to CR LF from `start` on. Returns it, or `None` in its place if it is not one, with the offset
/// behind the line; or `None` if the line is not complete.
#[inline]
fn parse_line(
    bytes: &[u8],
    start: usize,
    too_long: ProtocolError,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let rest = &bytes[start..];
    let window = &rest[..rest.len().min(INLINE_LIMIT_BYTES)];
    // Nearly all lines are a few digits long, so a plain loop beats a vectorised search.
    let Some(cr) = window.iter().position(|&b| b == b'\r') else {
        return if rest.len() >= INLINE_LIMIT_BYTES { Err(too_long) } else { Ok(None) };
    };
    // Redis takes whatever follows the CR for the LF.
    if rest.len() < cr + 2 {
        return Ok(None);
    }
    Ok(Some((parse_number(&rest[..cr]), start + cr + 2)))
}

/// Redis' `string2ll`: an optional minus, no leading zeros, 64 bits.
#[inline]
fn parse_number(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 || (digits[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut number: i64 = 0;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(i64::from(digit))?;
    }
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    const LIMITS: Limits = Limits { bulk_bytes: 1 << 20, ..Limits::PASSED };

    type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

    /// Parses a whole stream that arrives in the given pieces.
    fn parse_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
        let (mut parser, mut buffer, mut requests) = (Parser::new(), Vec::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match parser.parse(&buffer, LIMITS) {
                    Ok(Progress::Complete(len)) => {
                        requests.push(parser.request(&buffer).from(0).map(<[u8]>::to_vec).collect());
                        parser.reset();
                        buffer.drain(..len);
                    }
                    Ok(Progress::Partial { at_least }) => {
                        assert!(at_least > buffer.len());
                        break;
                    }
                    Err(error) => return (requests, Some(error)),
                }
            }
        }
        (requests, None)
    }

    const STREAMS: &[&[u8]] = &[
        b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\nPING\r\n\r\nset \"a b\" 'c'\n*0\r\n*-1\r\n*1\r\n$1\r\nx\r\n",
        b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$5\r\n\x00\xff*$\n\r\nGET x\r\n",
        b"*x\r\n",
        b"*2147483648\r\n",
        b"*1\r\n:3\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$1048577\r\n",
        b"*1\r\n$01\r\n",
        b"PING\r\nset \"a\r\n",
    ];

    #[test]
    fn usual_requests_are_parsed_as_all_others_are() {
        const ODD: [&[u8]; 12] = [
            b"*0\r\n", b"*02\r\n", b"*-1\r\n", b"*1\rX", b"*:\r\n", b"$03\r\n", b"$-1\r\n", b"$1\rX", b"\r\n", b"a",
            b"*", b"$",
        ];
        let seed = 5;
        let mut rng = fastrand::Rng::with_seed(seed);
        let limits = Limits { bulk_bytes: SHORT_BULK_BYTES, authenticated: false, ..LIMITS };
        let mut complete = 0;
        for round in 0..20_000 {
            let count = rng.usize(..13);
            let mut pieces = vec![format!("*{count}\r\n").into_bytes()];
            for _ in 0..count {
                let len = [0, 1, 9, 10, 99, 100, 999, 1000][rng.usize(..8)];
                pieces.extend([format!("${len}\r\n").into_bytes(), vec![b'x'; len], b"\r\n".to_vec()]);
            }
            if rng.bool() {
                let at = rng.usize(..pieces.len());
                pieces[at] = ODD[rng.usize(..ODD.len())].to_vec();
            }
            let mut bytes = pieces.concat();
            if rng.u8(..4) == 0 {
                bytes.truncate(rng.usize(..bytes.len()));
            }
            let (mut usual, mut any) = (Parser::new(), Parser::new());
            let results = [usual.parse(&bytes, limits), any.parse_any(&bytes, limits)];
            let context = || format!("seed {seed}, round {round}: {}", bytes.escape_ascii());
            assert_eq!(results[0], results[1], "{}", context());
            assert_eq!(usual.spans, any.spans, "{}", context());
            complete += usize::from(matches!(results[0], Ok(Progress::Complete(_))));
        }
        assert!(complete > 1000, "{complete}");
    }

    #[test]
    fn any_split_gives_the_same_requests() {
        for stream in STREAMS {
            let whole = parse_pieces(core::iter::once(*stream));
            for at in 0..=stream.len() {
                let (a, b) = stream.split_at(at);
                assert_eq!(parse_pieces([a, b].into_iter()), whole, "{stream:?} at {at}");
            }
            assert_eq!(parse_pieces(stream.chunks(1)), whole, "{stream:?} byte by byte");
        }
    }

    /// However much of a stream is there, the requests behind which a look ahead goes are those that the parser finds.
    #[test]
    fn a_look_ahead_sees_what_the_parser_will() {
        for stream in STREAMS {
            let (requests, _) = parse_pieces(core::iter::once(*stream));
            for at in 0..=stream.len() {
                let seen: Vec<[&[u8]; 3]> = first_arguments(&stream[..at]).collect();
                let arguments =
                    |request: &Vec<Vec<u8>>| [1, 2, 3].map(|at| request.get(at).cloned().unwrap_or_default());
                assert!(requests.iter().map(arguments).take(seen.len()).eq(seen), "{stream:?} up to {at}");
            }
        }
        let keys =
            first_arguments(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$2\r\nbc\r\n$1\r\nv\r\nGET d\r\n");
        assert!(keys.eq([[&b"a"[..], b"", b""], [b"bc", b"v", b""]]));
    }

    #[test]
    fn reads_requests() {
        let (requests, error) = parse_pieces(core::iter::once(STREAMS[0]));
        assert_eq!(error, None);
        let lens: Vec<usize> = requests.iter().map(Vec::len).collect();
        assert_eq!(lens, [1, 2, 1, 0, 3, 0, 0, 1]);
        assert_eq!(requests[4], [b"set".to_vec(), b"a b".to_vec(), b"c".to_vec()]);
    }

    #[test]
    fn errors_are_those_of_redis() {
        for (stream, message) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*2147483648\r\n", "invalid multibulk length"),
            (b"*1\r\n:3\r\n", "expected '$', got ':'"),
            (b"*1\r\n$x\r\n", "invalid bulk length"),
            (b"*1\r\n\r\n", "expected '$', got '\r'"),
            (b"set 'a\r\n", "unbalanced quotes in request"),
            (&vec![b'a'; INLINE_LIMIT_BYTES + 1], "too big inline request"),
            (&[b"*".to_vec(), vec![b'1'; INLINE_LIMIT_BYTES]].concat(), "too big mbulk count string"),
            (&[b"*1\r\n$".to_vec(), vec![b'1'; INLINE_LIMIT_BYTES]].concat(), "too big bulk count string"),
        ] {
            let (_, error) = parse_pieces(core::iter::once(stream));
            assert_eq!(error.unwrap().message(), message.as_bytes());
        }
    }

    #[test]
    fn strangers_get_less() {
        let limits = Limits { authenticated: false, ..LIMITS };
        assert_eq!(Parser::new().parse(b"*11\r\n", limits), Err(ProtocolError::UnauthenticatedMultibulkLength));
        assert_eq!(Parser::new().parse(b"*1\r\n$16385\r\n", limits), Err(ProtocolError::UnauthenticatedBulkLength));
    }

    /// Memory is taken for what has come, not for what is announced, and no more than there is.
    #[test]
    fn arguments_take_memory_as_they_come() {
        const COUNT: usize = (1 << 20) + 1;
        let mut sent = b"*2147483647\r\n".to_vec();
        let mut parser = Parser::new();
        assert!(matches!(parser.parse(&sent, LIMITS), Ok(Progress::Partial { .. })));
        assert_eq!(parser.places_bytes(), 0);
        sent = [format!("*{COUNT}\r\n").into_bytes(), b"$0\r\n\r\n".repeat(COUNT)].concat();
        let mut parser = Parser::new();
        assert_eq!(parser.parse(&sent, LIMITS), Ok(Progress::Complete(sent.len())));
        assert_eq!(parser.request(&sent).len(), COUNT);
        let limits = Limits { room_bytes: 1 << 20, ..LIMITS };
        let mut parser = Parser::new();
        assert_eq!(parser.parse(&sent, limits), Err(ProtocolError::OutOfMemory));
        assert!(parser.places_bytes() <= 1 << 20);
    }

    #[test]
    fn a_long_argument_tells_how_much_is_missing() {
        let mut parser = Parser::new();
        assert_eq!(parser.parse(b"*1\r\n$1000\r\nabc", LIMITS), Ok(Progress::Partial { at_least: 11 + 1002 }));
    }

    #[test]
    fn an_argument_that_is_moved_ahead_leaves_the_request_as_it_is() {
        let value = [b'v'; 100];
        for options in ["", "$2\r\nEX\r\n$2\r\n60\r\n"] {
            let head = format!("*{}\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\n", 3 + options.len() / 8);
            let (mut usual, mut moved) = (Parser::new(), Parser::new());
            let sent = [head.as_bytes(), &value, b"\r\n", options.as_bytes()].concat();
            assert_eq!(usual.parse(&sent, LIMITS), Ok(Progress::Complete(sent.len())));
            assert!(matches!(moved.parse(head.as_bytes(), LIMITS), Ok(Progress::Partial { .. })));
            assert!(moved.may_move_head());
            moved.move_head();
            let buffer = [&value, &b"\r\n"[..], head.as_bytes(), options.as_bytes()].concat();
            for len in value.len() + 2 + head.len()..buffer.len() {
                assert!(
                    matches!(moved.parse(&buffer[..len], LIMITS), Ok(Progress::Partial { at_least }) if at_least > len)
                );
            }
            assert_eq!(moved.parse(&buffer, LIMITS), Ok(Progress::Complete(buffer.len())));
            let (usual, moved) = (usual.request(&sent), moved.request(&buffer));
            assert!(usual.from(0).eq(moved.from(0)) && moved.is_ahead(2) && !usual.is_ahead(2));
            assert!((0..usual.len()).filter(|&at| at != 2).all(|at| !moved.is_ahead(at)));
            assert_eq!(moved.bytes_len(), usual.bytes_len());
        }
    }
}
