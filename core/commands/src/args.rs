//! Reading arguments.

use crate::Error;
use kayvee_keyspace::parse_integer;

/// A 64-bit integer in canonical form.
pub fn integer(arg: &[u8]) -> Result<i64, Error> {
    parse_integer(arg).ok_or(Error::NOT_INTEGER)
}

/// An integer from a range, or Redis' "out of range" error with its bounds.
pub fn integer_in(arg: &[u8], range: core::ops::RangeInclusive<i64>) -> Result<i64, Error> {
    let number = integer(arg)?;
    if range.contains(&number) { Ok(number) } else { Err(Error::OUT_OF_RANGE) }
}

/// Whether an argument is this keyword, in any case. The keyword is given in lower case.
pub fn is(arg: &[u8], keyword: &str) -> bool {
    arg.eq_ignore_ascii_case(keyword.as_bytes())
}
