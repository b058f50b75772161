//! What the commands for random members share.

use crate::{Error, Outcome, args};

/// Most bytes of a reply whose length its client chose: as much as one argument may have.
const REPLY_LIMIT_BYTES: usize = 512 << 20;

/// A number of random members: positive for different ones, negative for any.
pub fn count(arg: &[u8]) -> Result<i64, Error> {
    const OUT_OF_RANGE: Error =
        Error::text("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
    match args::integer(arg)? {
        i64::MIN => Err(OUT_OF_RANGE),
        count => Ok(count),
    }
}

/// Writes so many members, each of which may come again. `write` writes one and returns the length of all replies: a client
/// may ask for more than any memory holds.
pub fn repeat(count: u64, mut write: impl FnMut(u64) -> usize) -> Outcome {
    let limit = write(0).saturating_add(REPLY_LIMIT_BYTES);
    for number in 1..count {
        if write(number) > limit {
            return Err(Error::OUT_OF_MEMORY);
        }
    }
    Ok(())
}
