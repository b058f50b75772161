//! Reading arguments.

use crate::Error;
use kayvee_keyspace::parse_integer;

/// A 64-bit integer in canonical form.
pub fn integer(arg: &[u8]) -> Result<i64, Error> {
    parse_integer(arg).ok_or(Error::NOT_INTEGER)
}

/// Whether an argument is this keyword, in any case. The keyword is given in lower case.
pub fn is(arg: &[u8], keyword: &str) -> bool {
    arg.eq_ignore_ascii_case(keyword.as_bytes())
}
