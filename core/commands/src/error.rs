use alloc::{borrow::Cow, string::String};
use kayvee_keyspace::OutOfMemory;

/// An error reply: its text, with the code in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub Cow<'static, str>);

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
        Error(Cow::Borrowed(text))
    }
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(Cow::Owned(text))
    }
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Error {
        Error::OUT_OF_MEMORY
    }
}
