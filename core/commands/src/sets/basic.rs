//! Members of single sets.

use super::bulk;
use crate::{Context, EventClass, Outcome, generic::scan::scan_members, strings::with_text};
use kayvee_keyspace::{Kind, Set, SetView, Value};
use kayvee_resp::{Request, Writer};

/// Replies from the set at a key, which is `None` where there is no key.
fn reply_from(
    context: &mut Context<'_>,
    key: &[u8],
    write: impl FnOnce(&mut Writer<'_>, Option<SetView<'_>>),
) -> Outcome {
    let found = context.read(key, Kind::Set)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    write(reply, found.map(|found| store.dbs[index].set_at(found)));
    Ok(())
}

pub fn sadd(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let found = context.find_to_change(key, Kind::Set)?;
    let limits = context.store.options.set_limits();
    let edit = context.edit(key, found, |set: &mut Set, records| {
        set.prepare(records, &request[2], request.len() - 2, limits)?;
        let mut added = 0;
        for member in request.from(2) {
            added += i64::from(set.add(records, Value::Bytes(member), limits)?);
        }
        Ok(added)
    })?;
    if edit.result > 0 {
        context.changed(EventClass::SET, "sadd", key);
    }
    context.reply.integer(edit.result);
    Ok(())
}

pub fn srem(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let mut removed = 0;
    if let Some(found) = context.find_to_change(key, Kind::Set)? {
        let edit = context.edit(key, Some(found), |set: &mut Set, records| {
            Ok(request.from(2).filter(|member| set.remove(records, Value::Bytes(member))).count())
        })?;
        removed = edit.result;
        if removed > 0 {
            context.shrunk(EventClass::SET, "srem", key, edit.is_gone);
        }
    }
    context.reply.integer(removed as i64);
    Ok(())
}

pub fn smove(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (from, to, member) = (&request[1], &request[2], Value::Bytes(&request[3]));
    let Some(source) = context.find_to_change(from, Kind::Set)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let target = context.find_to_change(to, Kind::Set)?;
    let is_there = context.db().set_at(source).contains(member);
    if is_there && from != to {
        // It is added first: if there is no memory for that, it is still where it was.
        let (db, limits) = (context.db_index(), context.store.options.set_limits());
        let added = context.edit(to, target, |set: &mut Set, records| set.add(records, member, limits))?.result;
        let source = context.find(from);
        let left = context.edit(from, source, |set: &mut Set, records| Ok(set.remove(records, member)))?;
        // What is told of the set that it leaves comes before what is told of a set that is new.
        context.notify(EventClass::SET, "srem", from);
        if left.is_gone {
            context.notify(EventClass::GENERIC, "del", from);
        }
        context.store.changed(db, from);
        if added {
            context.changed(EventClass::SET, "sadd", to);
        }
    }
    context.reply.integer(is_there.into());
    Ok(())
}

pub fn scard(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, set| reply.integer(set.map_or(0, SetView::len) as i64))
}

pub fn sismember(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, set| {
        reply.integer(set.is_some_and(|set| set.contains(Value::Bytes(&request[2]))).into());
    })
}

pub fn smismember(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, set| {
        reply.array(request.len() - 2);
        for member in request.from(2) {
            reply.integer(set.is_some_and(|set| set.contains(Value::Bytes(member))).into());
        }
    })
}

pub fn smembers(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, set| {
        reply.set(set.map_or(0, SetView::len));
        set.into_iter().for_each(|set| set.for_each(|member| bulk(reply, member)));
    })
}

pub fn sscan(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    scan_members(context, request, Kind::Set, |db, found, _, cursor, visit| {
        db.set_at(found).scan(cursor, |member| with_text(member, |text| visit(text, None)))
    })
}
