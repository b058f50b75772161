//! Bodies of requests, which are read over: no method here has a use for one (RFC 9110 §9.3.1).

use crate::{request::Framing, status::Status};

/// Bytes of a body, with its framing, that are read over. Beyond that, closing the connection costs less.
const MAX_BODY_BYTES: u64 = 1 << 20;
/// Bytes of a chunk's extensions, and of the trailer section.
const MAX_EXTENSION_BYTES: u32 = 256;
const MAX_TRAILER_BYTES: u32 = 4 << 10;
/// Digits of a chunk's size: more than any that is within the limit.
const MAX_SIZE_DIGITS: u32 = 8;

/// Reads over one body, in pieces that may end anywhere.
#[derive(Debug)]
pub struct BodyReader {
    state: State,
    read_bytes: u64,
}

/// What the next byte is part of (RFC 9112 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length { left: u64 },
    Size { size: u64, digits: u32 },
    Extension { size: u64, bytes: u32 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart { bytes: u32 },
    Trailer { bytes: u32 },
    TrailerLf { bytes: u32 },
    FinalLf,
    Done,
}

impl BodyReader {
    /// A reader of a body with this framing, or why it is not read.
    pub fn new(framing: Framing) -> Result<BodyReader, Status> {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) if length > MAX_BODY_BYTES => return Err(Status::CONTENT_TOO_LARGE),
            Framing::Length(length) => State::Length { left: length },
            Framing::Chunked => State::Size { size: 0, digits: 0 },
        };
        Ok(BodyReader { state, read_bytes: 0 })
    }

    /// Whether the body has come to its end.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Reads over what belongs to the body, and says how much that is.
    pub fn read(&mut self, bytes: &[u8]) -> Result<usize, Status> {
        let mut used = 0;
        while used < bytes.len() && !self.is_done() {
            let before = used;
            self.state = match self.state {
                State::Length { left } => {
                    let len = left.min((bytes.len() - used) as u64);
                    used += len as usize;
                    if len == left { State::Done } else { State::Length { left: left - len } }
                }
                State::Data { left } => {
                    let len = left.min((bytes.len() - used) as u64);
                    used += len as usize;
                    if len == left { State::DataCr } else { State::Data { left: left - len } }
                }
                framing => {
                    used += 1;
                    next(framing, bytes[used - 1]).ok_or(Status::BAD_REQUEST)?
                }
            };
            self.read_bytes += (used - before) as u64;
            if self.read_bytes > MAX_BODY_BYTES {
                return Err(Status::CONTENT_TOO_LARGE);
            }
        }
        Ok(used)
    }
}

/// The state behind one byte of a chunked body's framing; none if it does not belong there.
fn next(state: State, byte: u8) -> Option<State> {
    let is_text = byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    Some(match (state, byte) {
        (State::Size { size, digits }, _) if byte.is_ascii_hexdigit() => {
            let digit = u64::from(char::from(byte).to_digit(16)?);
            (digits < MAX_SIZE_DIGITS).then_some(State::Size { size: size << 4 | digit, digits: digits + 1 })?
        }
        (State::Size { size, digits: 1.. }, b'\r') | (State::Extension { size, .. }, b'\r') => State::SizeEnd { size },
        (State::Size { size, digits: 1.. }, b';') => State::Extension { size, bytes: 0 },
        (State::Extension { size, bytes }, _) if is_text && bytes < MAX_EXTENSION_BYTES => {
            State::Extension { size, bytes: bytes + 1 }
        }
        (State::SizeEnd { size: 0 }, b'\n') => State::TrailerStart { bytes: 0 },
        (State::SizeEnd { size }, b'\n') => State::Data { left: size },
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size { size: 0, digits: 0 },
        (State::TrailerStart { .. }, b'\r') => State::FinalLf,
        (State::TrailerStart { .. }, b' ' | b'\t') => return None,
        (State::Trailer { bytes }, b'\r') => State::TrailerLf { bytes },
        (State::TrailerStart { bytes } | State::Trailer { bytes }, _) if is_text && bytes < MAX_TRAILER_BYTES => {
            State::Trailer { bytes: bytes + 1 }
        }
        (State::TrailerLf { bytes }, b'\n') => State::TrailerStart { bytes },
        (State::FinalLf, b'\n') => State::Done,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::String};

    /// Reads a body in two pieces, with something behind it, and returns what is left.
    fn read(framing: Framing, body: &str) -> Result<String, Status> {
        let mut result = None;
        for at in 0..=body.len() {
            let mut reader = BodyReader::new(framing)?;
            let mut used = 0;
            let mut outcome = Ok(());
            for end in [at, body.len()] {
                match reader.read(&body.as_bytes()[used..end]) {
                    Ok(len) => used += len,
                    Err(status) => outcome = outcome.and(Err(status)),
                }
                if outcome.is_err() {
                    break;
                }
            }
            let this = outcome.map(|()| format!("{}|{}", reader.is_done(), &body[used..]));
            assert_eq!(result.get_or_insert_with(|| this.clone()), &this, "split at {at}: {body:?}");
        }
        result.expect("at least one split")
    }

    #[test]
    fn a_length_is_read_over() {
        assert_eq!(read(Framing::Length(5), "helloGET"), Ok("true|GET".into()));
        assert_eq!(read(Framing::Length(5), "hell"), Ok("false|".into()));
        assert_eq!(read(Framing::Length(0), "GET"), Ok("true|GET".into()));
        assert_eq!(read(Framing::None, "GET"), Ok("true|GET".into()));
        assert_eq!(read(Framing::Length(MAX_BODY_BYTES + 1), ""), Err(Status::CONTENT_TOO_LARGE));
    }

    #[test]
    fn chunks_are_read_over() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "05\r\nhello\r\n00\r\n\r\n",
            "a;name=value\r\n0123456789\r\n0;x\r\n\r\n",
            "1\r\n\n\r\n1\r\n\r\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n",
        ] {
            assert_eq!(read(Framing::Chunked, &[body, "GET"].concat()), Ok("true|GET".into()), "{body:?}");
        }
        assert_eq!(read(Framing::Chunked, "5\r\nhel"), Ok("false|".into()));
    }

    #[test]
    fn bad_chunking_is_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\na\r\n",
            "0x1\r\na\r\n",
            " 1\r\na\r\n",
            "1 \r\na\r\n",
            "1\na\r\n",
            "1\r\nab\r\n",
            "1\r\na\n",
            "1\r\na\r\r\n",
            "0\r\n\n",
            "0\n\r\n",
            "0\r\nX: y\n\r\n",
            "0\r\n X: y\r\n\r\n",
            "0\r\nX: \0\r\n\r\n",
            "1;\0\r\n",
            "1;a\nb\r\n",
            "100000000\r\n",
            "000000001\r\n",
        ] {
            assert_eq!(read(Framing::Chunked, body), Err(Status::BAD_REQUEST), "{body:?}");
        }
        let long = "x".repeat(5000);
        assert_eq!(read(Framing::Chunked, &format!("1;{long}\r\n")), Err(Status::BAD_REQUEST));
        assert_eq!(read(Framing::Chunked, &format!("0\r\nX: {long}\r\n\r\n")), Err(Status::BAD_REQUEST));
        let mut reader = BodyReader::new(Framing::Chunked).expect("a reader");
        let data = [b"ffffffff\r\n".as_slice(), &[b'x'; 2 << 20]].concat();
        assert_eq!(reader.read(&data), Err(Status::CONTENT_TOO_LARGE));
    }
}
