//! A plain HTTP client that shows what came.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

/// How long an answer may take before a test calls the server stuck.
const TIMEOUT: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 64 << 10;

/// A response.
pub struct Response {
    /// The status code.
    pub status: u16,
    fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// A field's value.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1.as_str())
    }

    /// Whether a field has this value.
    pub fn has(&self, name: &str, value: &str) -> bool {
        self.value(name) == Some(value)
    }
}

/// A connection.
pub struct Http {
    stream: TcpStream,
    received: Vec<u8>,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

impl Http {
    /// Connects, and retries nothing.
    pub fn connect(addr: &str) -> io::Result<Http> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Http { stream, received: Vec::new() })
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that nothing more will be sent.
    pub fn end_of_sending(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn read_more(&mut self) -> io::Result<usize> {
        let len = self.received.len();
        self.received.resize(len + READ_BYTES, 0);
        let result = self.stream.read(&mut self.received[len..]);
        self.received.truncate(len + result.as_ref().map_or(0, |read| *read));
        result
    }

    /// Everything until the server ends the connection.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        while self.read_more()? > 0 {}
        Ok(std::mem::take(&mut self.received))
    }

    /// Everything until these bytes, with them.
    pub fn read_until(&mut self, mark: &[u8]) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let found = self.received[searched..].windows(mark.len()).position(|window| window == mark);
            if let Some(at) = found {
                let rest = self.received.split_off(searched + at + mark.len());
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            searched = self.received.len().saturating_sub(mark.len() - 1);
            if self.read_more()? == 0 {
                return Err(malformed(&format!("the connection ends with {}", self.received.escape_ascii())));
            }
        }
    }

    /// Waits for a whole response that has a length.
    pub fn response(&mut self) -> io::Result<Response> {
        let head = String::from_utf8(self.read_until(b"\r\n\r\n")?).map_err(|_| malformed("a head that is no text"))?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| malformed(&head))?;
        let fields = lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into()));
        let mut response = Response { status, fields: fields.collect(), body: Vec::new() };
        let len: usize = match response.value("content-length") {
            _ if matches!(status, 204 | 304) => 0,
            Some(len) => len.parse().map_err(|_| malformed(&head))?,
            None => return Err(malformed(&head)),
        };
        while self.received.len() < len {
            if self.read_more()? == 0 {
                return Err(malformed(&format!("a body of {} bytes instead of {len}", self.received.len())));
            }
        }
        let rest = self.received.split_off(len);
        response.body = std::mem::replace(&mut self.received, rest);
        Ok(response)
    }

    /// Asks for a path, with fields beside Host.
    pub fn get(&mut self, path: &str, fields: &[(&str, &str)]) -> io::Result<Response> {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes())?;
        self.response()
    }
}
