//! Elements by index or value.

use super::{edit, find, index, range, read};
use crate::{Context, Error, EventClass, Outcome, args};
use kayvee_keyspace::{ListEnd, Side};
use kayvee_resp::Request;

pub fn llen(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = read(context, &request[1])?;
    let len = found.map_or(0, |found| context.db().list(found).len());
    context.reply.integer(len as i64);
    Ok(())
}

pub fn lindex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(found) = read(context, &request[1])? else {
        context.reply.null();
        return Ok(());
    };
    let at = args::integer(&request[2])?;
    let db = context.db_index();
    let list = context.store.dbs[db].list(found);
    match index(at, list.len()).and_then(|at| list.get(at)) {
        Some(text) => context.reply.bulk(text),
        None => context.reply.null(),
    }
    Ok(())
}

pub fn lset(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const NO_SUCH_INDEX: Error = Error::text("ERR index out of range");
    let key = &request[1];
    let found = find(context, key)?.ok_or(Error::NO_SUCH_KEY)?;
    let at = args::integer(&request[2])?;
    let at = index(at, context.db().list(found).len()).ok_or(NO_SUCH_INDEX)?;
    let edit = edit(context, key, Some(found), |list, limit| list.set(at, &request[3], limit))?;
    if !edit.result {
        return Err(NO_SUCH_INDEX);
    }
    context.reply.ok();
    context.changed(EventClass::LIST, "lset", key);
    Ok(())
}

pub fn lrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (start, last) = (args::integer(&request[2])?, args::integer(&request[3])?);
    let Some(found) = read(context, &request[1])? else {
        context.reply.array(0);
        return Ok(());
    };
    let db = context.db_index();
    let list = context.store.dbs[db].list(found);
    let range = range(start, last, list.len());
    context.reply.array(range.len());
    list.iter_from(range.start, ListEnd::Front).take(range.len()).for_each(|text| context.reply.bulk(text));
    Ok(())
}

pub fn linsert(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let side = match &request[2] {
        word if args::is(word, "before") => Side::Before,
        word if args::is(word, "after") => Side::After,
        _ => return Err(Error::SYNTAX),
    };
    let key = &request[1];
    let Some(found) = find(context, key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let edit = edit(context, key, Some(found), |list, limit| {
        let inserted = list.insert(&request[3], side, &request[4], limit)?;
        Ok(inserted.then_some(list.view().len()))
    })?;
    match edit.result {
        Some(len) => {
            context.reply.integer(len as i64);
            context.changed(EventClass::LIST, "linsert", key);
        }
        None => context.reply.integer(-1),
    }
    Ok(())
}

pub fn lrem(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let (from, count) = match args::integer(&request[2])? {
        0 => (ListEnd::Front, usize::MAX),
        count @ 1.. => (ListEnd::Front, count as usize),
        count => (ListEnd::Back, count.unsigned_abs() as usize),
    };
    let Some(found) = find(context, key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let edit = edit(context, key, Some(found), |list, limit| Ok(list.remove(&request[3], from, count, limit)))?;
    context.reply.integer(edit.result as i64);
    if edit.result > 0 {
        context.shrunk(EventClass::LIST, "lrem", key, edit.is_gone);
    }
    Ok(())
}

pub fn ltrim(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let (start, last) = (args::integer(&request[2])?, args::integer(&request[3])?);
    if let Some(found) = find(context, key)? {
        let edit = edit(context, key, Some(found), |list, limit| {
            list.trim(range(start, last, list.view().len()), limit);
            Ok(())
        })?;
        context.shrunk(EventClass::LIST, "ltrim", key, edit.is_gone);
    }
    context.reply.ok();
    Ok(())
}
