//! Reading arguments.

use crate::Error;
use alloc::{format, vec::Vec};
use kayvee_keyspace::{OutOfMemory, parse_integer};

/// A 64-bit integer in canonical form.
pub fn integer(arg: &[u8]) -> Result<i64, Error> {
    parse_integer(arg).ok_or(Error::NOT_INTEGER)
}

/// A C `int`, with Redis' error for one that is an integer but not an `int`.
pub fn int(arg: &[u8]) -> Result<i32, Error> {
    const OUT_OF_RANGE: Error = Error::text("ERR value is out of range, value must between -2147483648 and 2147483647");
    integer(arg)?.try_into().map_err(|_| OUT_OF_RANGE)
}

/// An integer that is not negative, with Redis' error for all else.
pub fn positive(arg: &[u8]) -> Result<u64, Error> {
    const NOT_POSITIVE: Error = Error::text("ERR value is out of range, must be positive");
    parse_integer(arg).and_then(|number| u64::try_from(number).ok()).ok_or(NOT_POSITIVE)
}

/// Whether an argument is this keyword, in any case. The keyword is given in lower case.
pub fn is(arg: &[u8], keyword: &str) -> bool {
    arg.eq_ignore_ascii_case(keyword.as_bytes())
}

/// A copy of an argument, which may be too long for the memory that is left.
pub fn copied(arg: &[u8]) -> Result<Vec<u8>, Error> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(arg.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
    copy.extend_from_slice(arg);
    Ok(copy)
}

/// The same in lower case.
pub fn lower_case(arg: &[u8]) -> Result<Vec<u8>, Error> {
    let mut copy = copied(arg)?;
    copy.make_ascii_lowercase();
    Ok(copy)
}

/// The error for a request that has too few or too many arguments. A subcommand's name is `container|name`.
pub fn wrong_arity(command: &str) -> Error {
    format!("ERR wrong number of arguments for '{command}' command").into()
}

/// Adds an element, if there is memory for it.
pub fn push<T>(elements: &mut Vec<T>, element: T) -> Result<(), OutOfMemory> {
    elements.try_reserve(1)?;
    elements.push(element);
    Ok(())
}
