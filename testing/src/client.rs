//! A RESP2 and RESP3 client that hides nothing: replies keep the type they had on the wire.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// How long a reply may take before a test calls the server stuck.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The deepest nesting of a reply that is read.
const MAX_DEPTH: usize = 32;
const READ_CHUNK_BYTES: usize = 64 << 10;

/// A reply as it stood on the wire.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+OK`
    Simple(Vec<u8>),
    /// `-ERR …`
    Error(Vec<u8>),
    /// `:1`
    Integer(i64),
    /// `$3`
    Bulk(Vec<u8>),
    /// `$-1` in RESP2, `_` in RESP3.
    Null,
    /// `*-1` in RESP2.
    NullArray,
    /// `*2`
    Array(Vec<Reply>),
    /// `%1`
    Map(Vec<(Reply, Reply)>),
    /// `~1`
    Set(Vec<Reply>),
    /// `>1`
    Push(Vec<Reply>),
    /// `,3.14`
    Double(Vec<u8>),
    /// `#t`
    Boolean(bool),
    /// `(123`
    BigNumber(Vec<u8>),
    /// `=7 txt:abc`: the three letters of the format, and the text.
    Verbatim([u8; 3], Vec<u8>),
}

impl Reply {
    /// The text of a reply that has one.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Simple(b) | Reply::Error(b) | Reply::Bulk(b) | Reply::Double(b) | Reply::BigNumber(b) => Some(b),
            Reply::Verbatim(_, b) => Some(b),
            _ => None,
        }
    }

    /// The value of an integer reply.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Reply::Integer(n) => Some(*n),
            _ => None,
        }
    }

    /// The elements of an array, a set or a push.
    pub fn items(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => Some(items),
            _ => None,
        }
    }
}

/// Writes a word so that the vectors' reader reads it back.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for &b in bytes {
        match b {
            b'"' | b'\\' => out.extend(['\\', b as char]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b' '..=b'~' => out.push(b as char),
            _ => out.push_str(&format!("\\x{b:02x}")),
        }
    }
    out.push('"');
    out
}

fn one_line(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| (b' '..=b'~').contains(b)) && !bytes.ends_with(b" ")
}

/// The notation of the conformance vectors.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, open: &str, items: &[Reply]| {
            let items: Vec<String> = items.iter().map(nested).collect();
            write!(f, "{open}{}]", items.join(" "))
        };
        match self {
            Reply::Simple(b) if one_line(b) => write!(f, "+{}", String::from_utf8_lossy(b)),
            Reply::Error(b) if one_line(b) => write!(f, "-{}", String::from_utf8_lossy(b)),
            Reply::Simple(b) => write!(f, "+{}", quoted(b)),
            Reply::Error(b) => write!(f, "-{}", quoted(b)),
            Reply::Integer(n) => write!(f, ":{n}"),
            Reply::Bulk(b) => write!(f, "{}", quoted(b)),
            Reply::Null => write!(f, "nil"),
            Reply::NullArray => write!(f, "nil-array"),
            Reply::Array(items) => list(f, "[", items),
            Reply::Set(items) => list(f, "~[", items),
            Reply::Push(items) => list(f, ">[", items),
            Reply::Map(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("{} {}", nested(k), nested(v))).collect();
                write!(f, "{{{}}}", pairs.join(" "))
            }
            Reply::Double(b) => write!(f, ",{}", String::from_utf8_lossy(b)),
            Reply::Boolean(b) => write!(f, "#{}", if *b { 't' } else { 'f' }),
            Reply::BigNumber(b) => write!(f, "({}", String::from_utf8_lossy(b)),
            Reply::Verbatim(format, b) => write!(f, "={}", quoted(&[format.as_slice(), b":", b].concat())),
        }
    }
}

/// Simple strings and errors run to the end of the line, except inside of something else.
fn nested(reply: &Reply) -> String {
    match reply {
        Reply::Simple(b) => format!("+{}", quoted(b)),
        Reply::Error(b) => format!("-{}", quoted(b)),
        other => other.to_string(),
    }
}

/// Writes one request as an array of bulk strings.
pub fn encode<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed reply: {what}"))
}

/// Reads replies from a stream of bytes.
pub struct ReplyReader<R> {
    source: R,
    chunk: Box<[u8]>,
    received: Vec<u8>,
    consumed: usize,
}

impl<R: Read> ReplyReader<R> {
    /// Starts at the beginning of a reply.
    pub fn new(source: R) -> ReplyReader<R> {
        ReplyReader { source, chunk: vec![0; READ_CHUNK_BYTES].into(), received: Vec::new(), consumed: 0 }
    }

    /// What has been received and not read yet.
    pub fn pending(&self) -> &[u8] {
        &self.received[self.consumed..]
    }

    /// Waits for one whole reply. An end of the stream is [`io::ErrorKind::UnexpectedEof`].
    pub fn read_reply(&mut self) -> io::Result<Reply> {
        self.read_value(0)
    }

    fn read_more(&mut self) -> io::Result<()> {
        if self.consumed > READ_CHUNK_BYTES {
            self.received.drain(..self.consumed);
            self.consumed = 0;
        }
        match self.source.read(&mut self.chunk) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(n) => {
                self.received.extend_from_slice(&self.chunk[..n]);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no reply within {} s, so far {}", REPLY_TIMEOUT.as_secs(), quoted(self.pending())),
            )),
            Err(e) => Err(e),
        }
    }

    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut scanned = 0;
        loop {
            if let Some(at) = self.pending()[scanned..].windows(2).position(|w| w == b"\r\n") {
                let line = self.pending()[..scanned + at].to_vec();
                self.consumed += line.len() + 2;
                return Ok(line);
            }
            scanned = self.pending().len().saturating_sub(1);
            self.read_more()?;
        }
    }

    fn read_exact(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.pending().len() < len + 2 {
            self.read_more()?;
        }
        let bytes = self.pending()[..len].to_vec();
        if &self.pending()[len..len + 2] != b"\r\n" {
            return Err(malformed("no line end behind a bulk string"));
        }
        self.consumed += len + 2;
        Ok(bytes)
    }

    fn read_values(&mut self, count: i64, depth: usize) -> io::Result<Vec<Reply>> {
        (0..count).map(|_| self.read_value(depth + 1)).collect()
    }

    fn read_value(&mut self, depth: usize) -> io::Result<Reply> {
        if depth > MAX_DEPTH {
            return Err(malformed("nested too deeply"));
        }
        let line = self.read_line()?;
        let Some((&kind, rest)) = line.split_first() else {
            return Err(malformed("an empty line"));
        };
        let number = || {
            std::str::from_utf8(rest)
                .ok()
                .and_then(|s| s.parse::<i64>().ok())
                .ok_or_else(|| malformed(&format!("not a number in {}", quoted(&line))))
        };
        Ok(match kind {
            b'+' => Reply::Simple(rest.to_vec()),
            b'-' => Reply::Error(rest.to_vec()),
            b':' => Reply::Integer(number()?),
            b'_' if rest.is_empty() => Reply::Null,
            b',' => Reply::Double(rest.to_vec()),
            b'(' => Reply::BigNumber(rest.to_vec()),
            b'#' if rest == b"t" || rest == b"f" => Reply::Boolean(rest == b"t"),
            b'$' if rest == b"-1" => Reply::Null,
            b'*' if rest == b"-1" => Reply::NullArray,
            b'$' => Reply::Bulk(self.read_exact(number()? as usize)?),
            b'=' => {
                let bytes = self.read_exact(number()? as usize)?;
                match bytes.split_at_checked(4) {
                    Some(([a, b, c, b':'], text)) => Reply::Verbatim([*a, *b, *c], text.to_vec()),
                    _ => return Err(malformed("a verbatim string without its format")),
                }
            }
            b'*' => Reply::Array(self.read_values(number()?, depth)?),
            b'~' => Reply::Set(self.read_values(number()?, depth)?),
            b'>' => Reply::Push(self.read_values(number()?, depth)?),
            b'%' => {
                let mut pairs = Vec::new();
                for _ in 0..number()? {
                    pairs.push((self.read_value(depth + 1)?, self.read_value(depth + 1)?));
                }
                Reply::Map(pairs)
            }
            _ => return Err(malformed(&quoted(&line))),
        })
    }
}

/// A connection.
pub struct Client {
    replies: ReplyReader<TcpStream>,
}

impl Client {
    /// Connects, and retries nothing.
    pub fn connect(addr: &str) -> io::Result<Client> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, format!("{addr}: no such address"));
        for addr in addr.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, REPLY_TIMEOUT) {
                Ok(stream) => return Client::from_stream(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Takes over a connection that exists already.
    pub fn from_stream(stream: TcpStream) -> io::Result<Client> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Client { replies: ReplyReader::new(stream) })
    }

    /// Connects and authenticates when there is a password.
    pub fn connect_with(addr: &str, password: Option<&str>) -> io::Result<Client> {
        let mut client = Client::connect(addr)?;
        if let Some(password) = password {
            let reply = client.call(&["AUTH", password])?;
            if reply != Reply::Simple(b"OK".to_vec()) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("AUTH: {reply}")));
            }
        }
        Ok(client)
    }

    /// The socket below, for tests that misbehave.
    pub fn stream(&self) -> &TcpStream {
        &self.replies.source
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.replies.source.write_all(bytes)
    }

    /// Sends one request and waits for its reply.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        self.send(&encode(words))?;
        self.read_reply()
    }

    /// Waits for one whole reply. An end of the stream is [`io::ErrorKind::UnexpectedEof`].
    pub fn read_reply(&mut self) -> io::Result<Reply> {
        self.replies.read_reply()
    }

    /// Waits until the server closes the connection; anything that it still sends is an error.
    pub fn expect_closed(&mut self) -> io::Result<()> {
        if !self.replies.pending().is_empty() {
            return Err(malformed(&format!("expected the end of the stream, got {}", quoted(self.replies.pending()))));
        }
        match self.replies.read_more() {
            Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => {
                Err(malformed(&format!("expected the end of the stream, got {}", quoted(self.replies.pending()))))
            }
        }
    }
}
