//! Conformance vectors of the web server: `testing/http/vectors.txt` says how they are written.

use kayvee_http::{
    AccessLog, Fate, Limits, NoPages, Server, Site,
    site::{Builder, File},
};
use kayvee_platform::Now;
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

/// The vectors.
pub const VECTORS: &str = include_str!("../http/vectors.txt");
/// When they take place: Tue, 14 Nov 2023 22:13:20 GMT.
pub const UNIX_S: u64 = 1_700_000_000;
/// Where clients come from.
const REMOTE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1025));
/// When their pages were last modified: Sun, 06 Nov 1994 08:49:37 GMT.
const MODIFIED_S: u64 = 784_111_777;

/// One exchange on one connection.
pub struct Vector {
    /// Where it stands in the file.
    pub line: usize,
    /// What the client sends.
    pub request: Vec<u8>,
    /// What the server answers.
    pub responses: Vec<Expected>,
    /// Whether it ends the connection.
    pub ends: bool,
}

impl Vector {
    /// The same when the date is not that of the vectors.
    pub fn at_any_time(mut self) -> Vector {
        self.responses.iter_mut().for_each(|expected| expected.fields.retain(|(name, _)| name != "Date"));
        self
    }
}

/// What is expected of a response.
#[derive(Default)]
pub struct Expected {
    status: u16,
    is_to_head: bool,
    fields: Vec<(String, String)>,
    absent: Vec<String>,
    body: Option<Vec<u8>>,
    part: Option<Vec<u8>>,
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.next() } else { None };
        bytes.push(match escaped {
            None => byte,
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'x') => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).expect("two hexadecimal digits behind \\x")
            }
            Some(other) => panic!("\\{} in a vector", char::from(other)),
        });
    }
    bytes
}

/// Reads the vectors.
pub fn vectors() -> Vec<Vector> {
    let mut vectors: Vec<Vector> = Vec::new();
    let mut current: Option<Vector> = None;
    for (number, line) in VECTORS.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            vectors.extend(current.take());
            continue;
        }
        let vector = current.get_or_insert_with(|| Vector {
            line: number + 1,
            request: Vec::new(),
            responses: Vec::new(),
            ends: false,
        });
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        match mark {
            ">" => vector.request.extend([rest.as_bytes(), b"\r\n"].concat()),
            ">>" => vector.request.extend(unescape(rest)),
            "<" if rest == "end" => vector.ends = true,
            "<" | "<head" => vector.responses.push(Expected {
                status: rest.parse().unwrap_or_else(|_| panic!("line {}: no status", number + 1)),
                is_to_head: mark == "<head",
                ..Expected::default()
            }),
            _ => {
                let expected = vector.responses.last_mut().expect("a response before what it is like");
                match mark {
                    ":" => {
                        let (name, value) = rest.split_once(": ").expect("a name and a value");
                        expected.fields.push((name.into(), value.into()));
                    }
                    "!" => expected.absent.push(rest.into()),
                    "=" => expected.body = Some(unescape(rest)),
                    "~" => expected.part = Some(unescape(rest)),
                    _ => panic!("line {}: '{mark}'", number + 1),
                }
            }
        }
    }
    vectors.extend(current);
    vectors
}

/// Checks all that a server has sent on a connection.
pub fn check(vector: &Vector, mut output: &[u8]) -> Result<(), String> {
    for (index, expected) in vector.responses.iter().enumerate() {
        let context = |what: String| format!("vector at line {}, response {}: {what}", vector.line, index + 1);
        output = check_one(expected, output).map_err(context)?;
    }
    if output.is_empty() {
        return Ok(());
    }
    Err(format!("vector at line {}: more than expected: {}", vector.line, output.escape_ascii()))
}

fn check_one<'a>(expected: &Expected, output: &'a [u8]) -> Result<&'a [u8], String> {
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no whole response")?;
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    if !status_line.starts_with(&format!("HTTP/1.1 {} ", expected.status)) {
        return Err(format!("{} expected: {head}", expected.status));
    }
    let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    let value = |name: &str| {
        let mut values = fields.iter().filter(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1);
        values.next().inspect(|_| assert!(values.next().is_none(), "{name} twice: {head}"))
    };
    for (name, wanted) in &expected.fields {
        if value(name) != Some(wanted) {
            return Err(format!("{name}: {wanted} expected: {head}"));
        }
    }
    if let Some(name) = expected.absent.iter().find(|name| value(name).is_some()) {
        return Err(format!("no {name} expected: {head}"));
    }
    let has_body = !expected.is_to_head && !matches!(expected.status, 204 | 304);
    let length = value("content-length").map(|length| length.parse::<usize>().expect("a length"));
    let len = if has_body { length.ok_or("no Content-Length")? } else { 0 };
    let (body, rest) = output[end + 4..].split_at_checked(len).ok_or("the body is cut off")?;
    if expected.body.as_deref().is_some_and(|wanted| wanted != body) {
        return Err(format!("another body: {}", body.escape_ascii()));
    }
    if expected.part.as_deref().is_some_and(|part| !body.windows(part.len()).any(|window| window == part)) {
        return Err(format!("another body: {}", body.escape_ascii()));
    }
    Ok(rest)
}

/// The site that the vectors ask.
pub fn site() -> Builder {
    let page = |content_type: &str, text: &str| File {
        content_type: content_type.into(),
        identity: text.into(),
        modified_s: MODIFIED_S,
        ..File::default()
    };
    let html = |text: &str| page("text/html; charset=utf-8", text);
    let css = File {
        gzip: Some(b"gzipped".to_vec()),
        brotli: Some(b"brotli".to_vec()),
        cache_control: "public, max-age=31536000, immutable".into(),
        ..page("text/css; charset=utf-8", &"a{color:red}".repeat(1000))
    };
    let mut builder = Builder::default();
    for (root, path, file) in [
        (0, "/", html("<p>home")),
        (0, "/404.html", html("<p>lost")),
        (0, "/page.txt", page("text/plain; charset=utf-8", "0123456789")),
        (0, "/a b.txt", page("text/plain; charset=utf-8", "blank")),
        (0, "/big.css", css),
        (0, "/folder/", html("<p>folder")),
        (1, "/", html("<p>other")),
    ] {
        builder.page(root, path.as_bytes(), &file).expect("a page");
    }
    builder.folder(0, b"/folder").expect("a folder");
    builder.host(b"other.example", 1).expect("a host");
    builder
}

/// Its image.
pub fn site_image() -> Vec<u8> {
    site().finish().expect("a site")
}

/// A server of that site.
pub fn server() -> Server {
    let now = Now { monotonic_ns: 0, unix_us: UNIX_S * 1_000_000 };
    let mut server = Server::new(Limits::new(100, 1 << 20), AccessLog::Common, now);
    server.set_site(Site::open(Arc::new(site_image())).expect("a site"));
    server.begin_turn(now, &mut NoPages);
    server
}

/// Sends pieces on one connection and returns all that comes back, and whether the server ends the connection. It takes at
/// most `step` bytes at a time.
pub fn exchange<'a>(server: &mut Server, pieces: impl IntoIterator<Item = &'a [u8]>, step: usize) -> (Vec<u8>, bool) {
    let id = server.connect(REMOTE, true).expect("room");
    let mut received = Vec::new();
    for piece in pieces {
        server.receive(id, piece, &mut NoPages);
        server.end_turn();
        while let Some(ready) = server.next_ready() {
            loop {
                let output = server.output(ready).concat();
                let len = output.len().min(step);
                received.extend_from_slice(&output[..len]);
                if len == 0 {
                    break;
                }
                server.sent(ready, len, &mut NoPages);
            }
        }
    }
    let ends = server.fate(id) == Fate::EndAfterOutput;
    server.disconnect(id);
    (received, ends)
}
