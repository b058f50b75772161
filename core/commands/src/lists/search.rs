//! `LPOS`.

use super::read;
use crate::{Context, Error, Outcome, args};
use kayvee_keyspace::ListEnd;
use kayvee_resp::Request;

/// Which of the elements that equal the value are wanted.
struct Wanted {
    from: ListEnd,
    /// From this one on; the first is 1.
    rank: u64,
    /// So many; 0 for all. Without it, one that is returned alone.
    count: Option<u64>,
    /// Elements that are looked at; 0 for all.
    limit: u64,
}

impl Wanted {
    fn parse(request: Request<'_>) -> Result<Wanted, Error> {
        const NO_RANK: Error = Error::text(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
        );
        const RANK_RANGE: Error =
            Error::text("ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807");
        const NEGATIVE_COUNT: Error = Error::text("ERR COUNT can't be negative");
        const NEGATIVE_LIMIT: Error = Error::text("ERR MAXLEN can't be negative");
        let not_negative = |arg: &[u8], error: Error| {
            args::integer(arg).ok().and_then(|number| u64::try_from(number).ok()).ok_or(error)
        };
        let mut wanted = Wanted { from: ListEnd::Front, rank: 1, count: None, limit: 0 };
        let mut words = request.from(3);
        while let Some(word) = words.next() {
            match (word, words.next()) {
                (word, Some(arg)) if args::is(word, "rank") => match args::integer(arg)? {
                    0 => return Err(NO_RANK),
                    i64::MIN => return Err(RANK_RANGE),
                    rank => {
                        wanted.from = if rank > 0 { ListEnd::Front } else { ListEnd::Back };
                        wanted.rank = rank.unsigned_abs();
                    }
                },
                (word, Some(arg)) if args::is(word, "count") => {
                    wanted.count = Some(not_negative(arg, NEGATIVE_COUNT)?);
                }
                (word, Some(arg)) if args::is(word, "maxlen") => wanted.limit = not_negative(arg, NEGATIVE_LIMIT)?,
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(wanted)
    }
}

pub fn lpos(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let wanted = Wanted::parse(request)?;
    let found = read(context, &request[1])?;
    let db = context.db_index();
    let Context { store, reply, .. } = context;
    let list = found.map(|found| store.dbs[db].list(found));
    let len = list.map_or(0, |list| list.len());
    let looked_at = if wanted.limit == 0 { len } else { len.min(usize::try_from(wanted.limit).unwrap_or(len)) };
    let first = if wanted.from == ListEnd::Front { 0 } else { len.saturating_sub(1) };
    let elements = list.into_iter().flat_map(|list| list.iter_from(first, wanted.from)).take(looked_at);
    let rank = usize::try_from(wanted.rank).unwrap_or(usize::MAX);
    let equal = elements.enumerate().filter(|(_, text)| **text == request[2]).skip(rank - 1);
    let mut indexes = equal.map(|(at, _)| if wanted.from == ListEnd::Front { at } else { len - 1 - at } as i64);
    let Some(count) = wanted.count else {
        match indexes.next() {
            Some(index) => reply.integer(index),
            None => reply.null(),
        }
        return Ok(());
    };
    let most = if count == 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
    let start = reply.len();
    let mut found = 0;
    for index in indexes.take(most) {
        reply.integer(index);
        found += 1;
    }
    let end = reply.len();
    reply.array(found);
    reply.move_before(start, end);
    Ok(())
}
