//! Adding and removing elements at the ends.

use super::{edit, end, find, pop_event, push_event};
use crate::{Context, Error, EventClass, Outcome, args};
use kayvee_keyspace::{Decimal, Found, ListEnd};
use kayvee_resp::Request;

const NOT_POSITIVE: Error = Error::text("ERR value is out of range, must be positive");

pub fn lpush(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = find(context, &request[1])?;
    push(context, request, found, ListEnd::Front)
}

pub fn rpush(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = find(context, &request[1])?;
    push(context, request, found, ListEnd::Back)
}

pub fn lpushx(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    push_to_existing(context, request, ListEnd::Front)
}

pub fn rpushx(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    push_to_existing(context, request, ListEnd::Back)
}

fn push_to_existing(context: &mut Context<'_>, request: Request<'_>, end: ListEnd) -> Outcome {
    match find(context, &request[1])? {
        Some(found) => push(context, request, Some(found), end),
        None => {
            context.reply.integer(0);
            Ok(())
        }
    }
}

fn push(context: &mut Context<'_>, request: Request<'_>, found: Option<Found>, end: ListEnd) -> Outcome {
    let key = &request[1];
    let edit = edit(context, key, found, |list, limit| {
        list.push(end, request.from(2), limit)?;
        Ok(list.view().len())
    })?;
    context.reply.integer(edit.result as i64);
    context.shrunk(EventClass::LIST, push_event(end), key, edit.is_gone);
    Ok(())
}

pub fn lpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    pop(context, request, ListEnd::Front)
}

pub fn rpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    pop(context, request, ListEnd::Back)
}

fn pop(context: &mut Context<'_>, request: Request<'_>, end: ListEnd) -> Outcome {
    let key = &request[1];
    let count = match request.get(2) {
        _ if request.len() > 3 => return Err(args::wrong_arity(if end == ListEnd::Front { "lpop" } else { "rpop" })),
        Some(count) => {
            let count = args::integer(count).map_err(|_| NOT_POSITIVE)?;
            Some(usize::try_from(count).map_err(|_| NOT_POSITIVE)?)
        }
        None => None,
    };
    match (find(context, key)?, count) {
        (None, None) => context.reply.null(),
        (None, Some(_)) => context.reply.null_array(),
        (Some(found), None) => take(context, key, found, end, 1)?,
        (Some(_), Some(0)) => context.reply.array(0),
        (Some(found), Some(count)) => take_several(context, key, found, end, count)?,
    }
    Ok(())
}

/// Removes `count` elements, which are as many as there are at most, and replies with each of them.
pub fn take(context: &mut Context<'_>, key: &[u8], found: Found, end: ListEnd, count: usize) -> Outcome {
    let db = context.db_index();
    let list = context.store.dbs[db].list(found);
    let first = if end == ListEnd::Front { 0 } else { list.len() - 1 };
    list.iter_from(first, end).take(count).for_each(|text| context.reply.bulk(text));
    // What finds no memory for its reply must stay.
    if context.reply.failed() {
        return Err(Error::OUT_OF_MEMORY);
    }
    let edit = edit(context, key, Some(found), |list, limit| {
        list.pop(end, count, limit);
        Ok(())
    })?;
    context.shrunk(EventClass::LIST, pop_event(end), key, edit.is_gone);
    Ok(())
}

/// Removes up to `count` elements and replies with an array of them.
pub fn take_several(context: &mut Context<'_>, key: &[u8], found: Found, end: ListEnd, count: usize) -> Outcome {
    let count = count.min(context.db().list(found).len());
    context.reply.array(count);
    take(context, key, found, end, count)
}

/// The command that takes elements off this end.
pub fn pop_name(end: ListEnd) -> &'static [u8] {
    match end {
        ListEnd::Front => b"LPOP",
        ListEnd::Back => b"RPOP",
    }
}

/// What `LMPOP` asks for: its keys, at which end, and how many elements.
pub struct Several<'a> {
    pub keys: Request<'a>,
    pub end: ListEnd,
    pub count: usize,
}

impl<'a> Several<'a> {
    /// Reads `numkeys key … LEFT|RIGHT [COUNT count]`.
    pub fn parse(request: Request<'a>) -> Result<Several<'a>, Error> {
        const NO_KEYS: Error = Error::text("ERR numkeys should be greater than 0");
        const NO_COUNT: Error = Error::text("ERR count should be greater than 0");
        let positive = |arg: &[u8], error: Error| match args::integer(arg).ok().and_then(|n| usize::try_from(n).ok()) {
            Some(number) if number > 0 => Ok(number),
            _ => Err(error),
        };
        let keys = positive(&request[0], NO_KEYS)?;
        let options = keys.checked_add(1).ok_or(Error::SYNTAX)?;
        let end = end(request.get(options).ok_or(Error::SYNTAX)?)?;
        let mut count = None;
        let mut words = request.from(options + 1);
        while let Some(word) = words.next() {
            match words.next() {
                Some(number) if args::is(word, "count") && count.is_none() => count = Some(positive(number, NO_COUNT)?),
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(Several { keys: request.skip(1).first(keys), end, count: count.unwrap_or(1) })
    }

    /// Takes elements from the first key that has any. Returns whether there was one.
    pub fn serve(&self, context: &mut Context<'_>) -> Result<bool, Error> {
        for key in self.keys.from(0) {
            if let Some(found) = find(context, key)? {
                context.reply.array(2);
                context.reply.bulk(key);
                let count = self.count.min(context.db().list(found).len());
                take_several(context, key, found, self.end, count)?;
                context.effect(&[pop_name(self.end), key, Decimal::unsigned(count as u64).as_bytes()]);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

pub fn lmpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let several = Several::parse(request.skip(1))?;
    if !several.serve(context)? {
        context.reply.null_array();
    }
    Ok(())
}
