//! memcached's text protocol over UDP: `get` and `set`, for requests and replies of one datagram each.
//!
//! ```text
//! 0: number of the request, which its reply repeats
//! 2: number of the datagram, 0    4: datagrams of the message, 1    6: reserved, 0
//! 8: text
//! ```
//!
//! A request runs as the command of Redis that does the same, in a session of its own, so that everything that holds of
//! commands holds of it. Keys and values are bytes, any but for blanks and control characters in keys, as memcached has it.

use crate::{ClientId, Engine, Fate};
use alloc::{format, vec::Vec};
use kayvee_platform::DECIMAL_BYTES;

const HEADER_BYTES: usize = 8;
/// memcached's limit.
const MAX_KEY_BYTES: usize = 250;
/// A reply of Redis' that is longer does not fit a datagram.
const MAX_SAID_BYTES: usize = 2048;
/// memcached takes more seconds than these for a time since 1970.
const MAX_RELATIVE_S: i64 = 30 * 86_400;

const END: &[u8] = b"END\r\n";
const STORED: &[u8] = b"STORED\r\n";
const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_DATA: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const FLAGS: &[u8] = b"SERVER_ERROR flags other than 0 are not kept\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for a datagram\r\n";
const NOT_NOW: &[u8] = b"SERVER_ERROR replies have to wait, which datagrams cannot: use TCP\r\n";
const SEVERAL: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";

/// A reply that is being written, of a bounded length.
struct Reply<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Reply<'_> {
    /// Appends what there is room for all of.
    fn put(&mut self, parts: &[&[u8]]) -> Result<(), &'static [u8]> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let room = self.bytes.get_mut(self.len..self.len + len).ok_or(TOO_LARGE)?;
        let mut rest = room;
        for part in parts {
            let (now, later) = rest.split_at_mut(part.len());
            now.copy_from_slice(part);
            rest = later;
        }
        self.len += len;
        Ok(())
    }

    /// Takes back everything but the header, and says this instead.
    fn say_only(&mut self, line: &[u8]) {
        self.len = HEADER_BYTES;
        // The longest line is shorter than any datagram that is answered into.
        let _ = self.put(&[line]);
    }
}

impl Engine {
    /// Answers a datagram of memcached's protocol for `client`, which [`connect`](Self::connect) has given for nothing
    /// else. Returns the length of the reply, or `None` where there is none.
    pub fn memcached_datagram(&mut self, client: ClientId, datagram: &[u8], reply: &mut [u8]) -> Option<usize> {
        let (header, text) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let mut reply = Reply { bytes: reply, len: 0 };
        reply.put(&[&header[..2], &[0, 0, 0, 1, 0, 0]]).ok()?;
        if header[2..6] != [0, 0, 0, 1] {
            reply.say_only(SEVERAL);
            return Some(reply.len);
        }
        match self.memcached_request(client, text, &mut reply) {
            Ok(true) => Some(reply.len),
            Ok(false) => None,
            Err(line) => {
                reply.say_only(&line);
                Some(reply.len)
            }
        }
    }

    /// Runs a request and returns whether its reply is wanted, or the line that says why it was not run.
    fn memcached_request(&mut self, client: ClientId, text: &[u8], reply: &mut Reply<'_>) -> Result<bool, Vec<u8>> {
        let line_end = text.windows(2).position(|pair| pair == b"\r\n").ok_or(&b"ERROR\r\n"[..])?;
        let (line, data) = (&text[..line_end], &text[line_end + 2..]);
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        match words.next() {
            Some(b"get") => {
                let mut keys = words.peekable();
                keys.peek().ok_or(&b"ERROR\r\n"[..])?;
                keys.try_for_each(|key| self.memcached_get(client, key, reply))?;
                reply.put(&[END])?;
                Ok(true)
            }
            Some(b"set") => {
                let words: Vec<&[u8]> = words.take(6).collect();
                let (fields, is_quiet) = match words[..] {
                    [key, flags, expiry, len] => ([key, flags, expiry, len], false),
                    [key, flags, expiry, len, b"noreply"] => ([key, flags, expiry, len], true),
                    _ => return Err(b"ERROR\r\n".to_vec()),
                };
                let stored = self.memcached_set(client, fields, data);
                if is_quiet {
                    return Ok(false);
                }
                stored?;
                reply.put(&[STORED])?;
                Ok(true)
            }
            // So begins a reply, which another service may have been made to send here: to answer it could go on for ever.
            Some([b'A'..=b'Z', ..]) => Ok(false),
            _ => Err(b"ERROR\r\n".to_vec()),
        }
    }

    fn memcached_get(&mut self, client: ClientId, key: &[u8], reply: &mut Reply<'_>) -> Result<(), Vec<u8>> {
        let found = self.run(client, &[b"GET", check_key(key)?])?;
        let Some(value) = bulk(&found) else { return Ok(()) };
        let len = format!(" 0 {}\r\n", value.len());
        Ok(reply.put(&[b"VALUE ", key, len.as_bytes(), value, b"\r\n"])?)
    }

    fn memcached_set(&mut self, client: ClientId, fields: [&[u8]; 4], data: &[u8]) -> Result<(), Vec<u8>> {
        let [key, flags, expiry, len] = fields;
        check_key(key)?;
        let (flags, expiry, len) = (number(flags)?, number(expiry)?, number(len)?);
        if flags != 0 {
            return Err(FLAGS.to_vec());
        }
        let value = usize::try_from(len).ok().and_then(|len| Some((data.get(..len)?, data.get(len..)?)));
        let (value, b"\r\n") = value.ok_or(BAD_DATA)? else { return Err(BAD_DATA.to_vec()) };
        let seconds = format!("{}", expiry.max(1));
        match expiry {
            0 => self.run(client, &[b"SET", key, value])?,
            1..=MAX_RELATIVE_S => self.run(client, &[b"SET", key, value, b"EX", seconds.as_bytes()])?,
            // What has expired already is the beginning of 1970.
            _ => self.run(client, &[b"SET", key, value, b"EXAT", seconds.as_bytes()])?,
        };
        Ok(())
    }

    /// Runs a command and returns its reply, or an error as memcached says it. Whoever is told that it did not run can
    /// rely on that: what could not run at once is forgotten, and the next one does not get its reply.
    fn run(&mut self, client: ClientId, words: &[&[u8]]) -> Result<Vec<u8>, Vec<u8>> {
        if self.holds_replies() || self.fate(client) != Fate::Open {
            return Err(NOT_NOW.to_vec());
        }
        let mut request = Vec::with_capacity(words.iter().map(|word| word.len() + DECIMAL_BYTES + 5).sum());
        kayvee_resp::encode(words.iter().copied(), &mut request).map_err(|_| NOT_NOW.to_vec())?;
        // Whatever it was told since the last request is nobody's reply.
        self.take_said(client);
        self.receive(client, &request);
        let (said, is_too_large) = self.take_said(client);
        if said.is_empty() || self.fate(client) != Fate::Open {
            self.drop_pending(client);
        }
        match said.first() {
            _ if is_too_large => Err(TOO_LARGE.to_vec()),
            None => Err(NOT_NOW.to_vec()),
            Some(b'-') => {
                let message = said[1..].strip_suffix(b"\r\n").unwrap_or(&said[1..]);
                Err([b"SERVER_ERROR ", &message[..message.len().min(500)], b"\r\n"].concat())
            }
            Some(_) => Ok(said),
        }
    }

    /// Takes a client's output, and returns it as far as it is of use and whether that is not all.
    fn take_said(&mut self, client: ClientId) -> (Vec<u8>, bool) {
        let (mut said, mut is_too_large) = (Vec::new(), false);
        while let part = self.output(client)
            && !part.is_empty()
        {
            let len = part.len();
            is_too_large |= said.len() + len > MAX_SAID_BYTES;
            if !is_too_large {
                said.extend_from_slice(part);
            }
            self.sent(client, len);
        }
        (said, is_too_large)
    }
}

/// The bytes of a bulk reply; `None` for a missing one.
fn bulk(reply: &[u8]) -> Option<&[u8]> {
    let line_end = reply.iter().position(|byte| *byte == b'\n')?;
    let len: usize = core::str::from_utf8(reply.get(1..line_end - 1)?).ok()?.parse().ok()?;
    reply.get(line_end + 1..line_end + 1 + len)
}

fn check_key(key: &[u8]) -> Result<&[u8], &'static [u8]> {
    let is_right = key.len() <= MAX_KEY_BYTES && !key.iter().any(u8::is_ascii_control);
    if is_right { Ok(key) } else { Err(BAD_LINE) }
}

fn number(word: &[u8]) -> Result<i64, &'static [u8]> {
    core::str::from_utf8(word).ok().and_then(|text| text.parse().ok()).ok_or(BAD_LINE)
}
