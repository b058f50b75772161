//! What the commands for random members share.

use crate::{Error, Outcome, args};

/// Most bytes of a reply whose length its client chose: as much as one argument may have.
const REPLY_LIMIT_BYTES: usize = 512 << 20;
/// An empty text, the shortest member in a reply: `$0`, and two ends of lines.
const MEMBER_BYTES_MIN: u64 = 6;

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
/// may ask for more than any memory holds, and what cannot fit is not begun: to write up to the limit takes seconds.
pub fn repeat(count: u64, mut write: impl FnMut(u64) -> usize) -> Outcome {
    if count.saturating_mul(MEMBER_BYTES_MIN) > REPLY_LIMIT_BYTES as u64 {
        return Err(Error::OUT_OF_MEMORY);
    }
    let limit = write(0).saturating_add(REPLY_LIMIT_BYTES);
    for number in 1..count {
        if write(number) > limit {
            return Err(Error::OUT_OF_MEMORY);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_fits_is_refused_before_any_of_it_is_written() {
        for count in [REPLY_LIMIT_BYTES as u64 / MEMBER_BYTES_MIN + 1, i64::MAX as u64] {
            assert_eq!(repeat(count, |_| unreachable!("nothing is written")), Err(Error::OUT_OF_MEMORY));
        }
        let mut written = 0;
        let mut write = |number| {
            written = number + 1;
            6 * written as usize
        };
        assert_eq!(repeat(1000, &mut write), Ok(()));
        assert_eq!(written, 1000);
    }
}
