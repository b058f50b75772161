//! Taking the first or last members.

use super::{Members, reply_score};
use crate::{
    Context, Error, EventClass, Outcome, args,
    blocking::{self, OnTimeout, Patience},
};
use core::ops::Range;
use kayvee_keyspace::{Decimal, Direction, Found, Kind, SortedSet};
use kayvee_resp::Request;

/// How many members are taken, and how the reply shows them.
#[derive(Clone, Copy)]
enum Form {
    /// One: member and score.
    One,
    /// So many: members with scores, in pairs in RESP3.
    Many(usize),
    /// One of the key, whose name comes first, then member and score.
    NamedOne,
    /// So many of the key, whose name comes first: pairs.
    Named(usize),
}

pub fn zpopmin(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    pop(context, request, Direction::Forward)
}

pub fn zpopmax(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    pop(context, request, Direction::Backward)
}

fn pop(context: &mut Context<'_>, request: Request<'_>, direction: Direction) -> Outcome {
    const NOT_POSITIVE: Error = Error::text("ERR value is out of range, must be positive");
    let form = match request.get(2) {
        _ if request.len() > 3 => return Err(Error::SYNTAX),
        Some(count) => {
            let count = args::integer(count).ok().and_then(|count| usize::try_from(count).ok());
            Form::Many(count.ok_or(NOT_POSITIVE)?)
        }
        None => Form::One,
    };
    match context.find_to_change(&request[1], Kind::SortedSet)? {
        Some(found) => take(context, &request[1], found, direction, form),
        None => {
            context.reply.array(0);
            Ok(())
        }
    }
}

/// Takes members off one end and replies with them.
fn take(context: &mut Context<'_>, key: &[u8], found: Found, direction: Direction, form: Form) -> Outcome {
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let zset = store.dbs[index].sorted_set(found);
    let count = match form {
        Form::One | Form::NamedOne => 1,
        Form::Many(count) | Form::Named(count) => count.min(zset.len()),
    };
    let ranks = match direction {
        Direction::Forward => 0..count,
        Direction::Backward => zset.len() - count..zset.len(),
    };
    match form {
        Form::One | Form::NamedOne => {
            if let Form::NamedOne = form {
                reply.array(3);
                reply.bulk(key);
            } else {
                reply.array(2);
            }
            zset.for_each(ranks.clone(), direction, |member, score| {
                reply.bulk(member);
                reply_score(reply, score);
            });
        }
        Form::Many(_) => {
            let mut members = Members { reply, with_scores: true };
            members.begin(count);
            zset.for_each(ranks.clone(), direction, |member, score| members.write(member, score));
        }
        Form::Named(_) => {
            reply.array(2);
            reply.bulk(key);
            reply.array(count);
            zset.for_each(ranks.clone(), direction, |member, score| {
                reply.array(2);
                reply.bulk(member);
                reply_score(reply, score);
            });
        }
    }
    if reply.failed() {
        return Err(Error::OUT_OF_MEMORY);
    }
    if count == 0 {
        return Ok(());
    }
    let edit = context.edit(key, Some(found), |zset: &mut SortedSet, records| {
        zset.remove_range(records, ranks);
        Ok(())
    })?;
    let event = if direction == Direction::Forward { "zpopmin" } else { "zpopmax" };
    context.shrunk(EventClass::SORTED_SET, event, key, edit.is_gone);
    let name: &[u8] = if direction == Direction::Forward { b"ZPOPMIN" } else { b"ZPOPMAX" };
    match form {
        Form::One | Form::NamedOne => context.effect(&[name, key]),
        Form::Many(_) | Form::Named(_) => context.effect(&[name, key, Decimal::unsigned(count as u64).as_bytes()]),
    }
    Ok(())
}

/// What `ZMPOP` and `BZMPOP` are asked for.
struct ManyKeys {
    keys: Range<usize>,
    direction: Direction,
    count: usize,
}

impl ManyKeys {
    /// Reads the arguments from the number of keys on.
    fn parse(request: Request<'_>, at: usize) -> Result<ManyKeys, Error> {
        const NUMKEYS: Error = Error::text("ERR numkeys should be greater than 0");
        const COUNT: Error = Error::text("ERR count should be greater than 0");
        let positive = |arg: &[u8]| args::integer(arg).ok().filter(|&number| number > 0);
        let keys = positive(&request[at]).ok_or(NUMKEYS)?;
        let end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(at + 1)).ok_or(Error::SYNTAX)?;
        let direction = match request.get(end) {
            Some(word) if args::is(word, "min") => Direction::Forward,
            Some(word) if args::is(word, "max") => Direction::Backward,
            _ => return Err(Error::SYNTAX),
        };
        let count = match (request.get(end + 1), request.get(end + 2)) {
            (None, _) => 1,
            (Some(word), Some(count)) if args::is(word, "count") => {
                let count = positive(count).ok_or(COUNT)?;
                if request.len() > end + 3 {
                    return Err(Error::SYNTAX);
                }
                count as usize
            }
            _ => return Err(Error::SYNTAX),
        };
        Ok(ManyKeys { keys: at + 1..end, direction, count })
    }
}

/// Takes members of the first of these keys that has any. Returns whether one had.
fn take_first(
    context: &mut Context<'_>,
    request: Request<'_>,
    keys: Range<usize>,
    direction: Direction,
    form: Form,
) -> Result<bool, Error> {
    for key in request.from(keys.start).take(keys.len()) {
        if let Some(found) = context.find_to_change(key, Kind::SortedSet)? {
            take(context, key, found, direction, form)?;
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn zmpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let query = ManyKeys::parse(request, 1)?;
    if !take_first(context, request, query.keys, query.direction, Form::Named(query.count))? {
        context.reply.null_array();
    }
    Ok(())
}

/// The same, waiting where none of the keys has members.
fn take_or_wait(
    context: &mut Context<'_>,
    request: Request<'_>,
    keys: Range<usize>,
    direction: Direction,
    form: Form,
    timeout_ns: Option<u64>,
) -> Outcome {
    if take_first(context, request, keys.clone(), direction, form)? {
        return Ok(());
    }
    let patience = Patience { kind: Some(Kind::SortedSet), timeout_ns, on_timeout: OnTimeout::NullArray };
    context.block(request.from(0), request.from(keys.start).take(keys.len()), patience)
}

pub fn bzpopmin(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    wait_and_pop(context, request, Direction::Forward)
}

pub fn bzpopmax(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    wait_and_pop(context, request, Direction::Backward)
}

fn wait_and_pop(context: &mut Context<'_>, request: Request<'_>, direction: Direction) -> Outcome {
    let last = request.len() - 1;
    let timeout_ns = blocking::timeout_ns(&request[last])?;
    take_or_wait(context, request, 1..last, direction, Form::NamedOne, timeout_ns)
}

pub fn bzmpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let query = ManyKeys::parse(request, 2)?;
    let timeout_ns = blocking::timeout_ns(&request[1])?;
    take_or_wait(context, request, query.keys, query.direction, Form::Named(query.count), timeout_ns)
}
