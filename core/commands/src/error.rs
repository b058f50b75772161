use alloc::{borrow::Cow, string::String, vec::Vec};
use kayvee_keyspace::OutOfMemory;

/// Most bytes of a client's argument that an error shows.
const SHOWN_LIMIT: usize = 64 << 10;

/// An error reply: its text, with the code in front. It may show arguments, so it need not be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub Cow<'static, [u8]>);

/// What a command returns: either it has written its reply, or it has written nothing and this error is the reply.
pub type Outcome = Result<(), Error>;

#[allow(missing_docs)]
impl Error {
    pub const SYNTAX: Error = Error::text("ERR syntax error");
    pub const NOT_INTEGER: Error = Error::text("ERR value is not an integer or out of range");
    pub const NOT_FLOAT: Error = Error::text("ERR value is not a valid float");
    pub const NO_SUCH_KEY: Error = Error::text("ERR no such key");
    pub const OUT_OF_RANGE: Error = Error::text("ERR value is out of range");
    pub const DB_INDEX: Error = Error::text("ERR DB index is out of range");
    pub const OUT_OF_MEMORY: Error = Error::text("OOM command not allowed when used memory > 'maxmemory'.");
    pub const WRONG_TYPE: Error = Error::text("WRONGTYPE Operation against a key holding the wrong kind of value");
    pub const NO_AUTH: Error = Error::text("NOAUTH Authentication required.");
    pub const STRING_TOO_LONG: Error = Error::text("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

    /// An error of fixed text.
    pub const fn text(text: &'static str) -> Error {
        Error(Cow::Borrowed(text.as_bytes()))
    }

    /// An error that shows an argument between two texts as C's `%s` would: up to a zero byte, and no line break at the
    /// end of it all.
    pub fn showing(before: &str, arg: &[u8], after: &str) -> Error {
        Error::of_parts(&[before.as_bytes(), shown(arg), after.as_bytes()])
    }

    /// An error of several parts, without line breaks at its end. It may be too long for the memory that is left.
    pub fn of_parts(parts: &[&[u8]]) -> Error {
        let mut text = Vec::new();
        if text.try_reserve_exact(parts.iter().map(|part| part.len()).sum()).is_err() {
            return Error::OUT_OF_MEMORY;
        }
        parts.iter().for_each(|part| text.extend_from_slice(part));
        while matches!(text.last(), Some(b'\r' | b'\n')) {
            text.pop();
        }
        text.into()
    }
}

/// What an error shows of an argument by C's `%s`.
pub fn shown(arg: &[u8]) -> &[u8] {
    c_text(arg, SHOWN_LIMIT)
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Error {
    fn from(text: Vec<u8>) -> Error {
        Error(Cow::Owned(text))
    }
}

/// What C would show of an argument by `%.LIMITs`.
pub fn c_text(arg: &[u8], limit: usize) -> &[u8] {
    let shown = &arg[..arg.len().min(limit)];
    shown.split(|&b| b == 0).next().unwrap_or_default()
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Error {
        Error::OUT_OF_MEMORY
    }
}
