//! Hashes.

use crate::{
    Context, Error, EventClass, Outcome, Store, args,
    generic::scan::scan_members,
    strings::with_text,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips},
};
use kayvee_keyspace::{Found, Hash, HashView, Kind, OutOfMemory, Records, Value};
use kayvee_resp::{Request, Writer};

mod expire;
mod numbers;
mod random;
#[cfg(test)]
mod tests;

const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);
const GROW_FAST: Flags = WRITE_FAST.union(Flags::DENYOOM);

const MEASURES: &[Keys] = &[Keys::one(1, KeyFlags::RO)];
const READS: &[Keys] = &[Keys::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const UPDATES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const INSERTS: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::INSERT))];
const CHANGES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))];
const DELETES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];

/// What all rows share.
const ROW: Command = Command { categories: Categories::HASH, group: Group::Hash, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "hdel", arity: -3, flags: WRITE_FAST, keys: DELETES, handler: Some(hdel), ..ROW },
    Command { name: "hexists", arity: 3, flags: READ_FAST, keys: MEASURES, handler: Some(hexists), ..ROW },
    Command { name: "hexpire", arity: -6, flags: GROW_FAST, keys: UPDATES, handler: Some(expire::hexpire), ..ROW },
    Command { name: "hexpireat", arity: -6, flags: GROW_FAST, keys: UPDATES, handler: Some(expire::hexpireat), ..ROW },
    Command {
        name: "hexpiretime",
        arity: -5,
        flags: READ_FAST,
        keys: READS,
        handler: Some(expire::hexpiretime),
        ..ROW
    },
    Command { name: "hget", arity: 3, flags: READ_FAST, keys: READS, handler: Some(hget), ..ROW },
    Command {
        name: "hgetall",
        arity: 2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(hgetall),
        ..ROW
    },
    Command { name: "hincrby", arity: 4, flags: GROW_FAST, keys: CHANGES, handler: Some(numbers::hincrby), ..ROW },
    Command {
        name: "hincrbyfloat",
        arity: 4,
        flags: GROW_FAST,
        keys: CHANGES,
        handler: Some(numbers::hincrbyfloat),
        ..ROW
    },
    Command {
        name: "hkeys",
        arity: 2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(hkeys),
        ..ROW
    },
    Command { name: "hlen", arity: 2, flags: READ_FAST, keys: MEASURES, handler: Some(hlen), ..ROW },
    Command { name: "hmget", arity: -3, flags: READ_FAST, keys: READS, handler: Some(hmget), ..ROW },
    Command { name: "hmset", arity: -4, flags: GROW_FAST, keys: UPDATES, handler: Some(hmset), ..ROW },
    Command { name: "hpersist", arity: -5, flags: WRITE_FAST, keys: UPDATES, handler: Some(expire::hpersist), ..ROW },
    Command { name: "hpexpire", arity: -6, flags: GROW_FAST, keys: UPDATES, handler: Some(expire::hpexpire), ..ROW },
    Command {
        name: "hpexpireat",
        arity: -6,
        flags: GROW_FAST,
        keys: UPDATES,
        handler: Some(expire::hpexpireat),
        ..ROW
    },
    Command {
        name: "hpexpiretime",
        arity: -5,
        flags: READ_FAST,
        keys: READS,
        handler: Some(expire::hpexpiretime),
        ..ROW
    },
    Command {
        name: "hpttl",
        arity: -5,
        flags: READ_FAST,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(expire::hpttl),
        ..ROW
    },
    Command {
        name: "hrandfield",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(random::hrandfield),
        ..ROW
    },
    Command {
        name: "hscan",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(hscan),
        ..ROW
    },
    Command { name: "hset", arity: -4, flags: GROW_FAST, keys: UPDATES, handler: Some(hset), ..ROW },
    Command { name: "hsetnx", arity: 4, flags: GROW_FAST, keys: INSERTS, handler: Some(hsetnx), ..ROW },
    Command { name: "hstrlen", arity: 3, flags: READ_FAST, keys: MEASURES, handler: Some(hstrlen), ..ROW },
    Command {
        name: "httl",
        arity: -5,
        flags: READ_FAST,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(expire::httl),
        ..ROW
    },
    Command {
        name: "hvals",
        arity: 2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(hvals),
        ..ROW
    },
];

/// Writes a value as a string, whatever form it is stored in.
fn bulk(reply: &mut Writer<'_>, value: Value<'_>) {
    with_text(value, |text| reply.bulk(text));
}

/// Replies from the hash at a key, which is `None` where there is no key.
fn reply_from(
    context: &mut Context<'_>,
    key: &[u8],
    write: impl FnOnce(&mut Writer<'_>, Option<HashView<'_>>),
) -> Outcome {
    let found = context.read(key, Kind::Hash)?;
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let Context { store, reply, .. } = context;
    write(reply, found.map(|found| store.dbs[index].hash(found, now_ms)));
    Ok(())
}

/// Whether fields of any hash expire.
#[inline(always)]
fn any_expires(context: &Context<'_>) -> bool {
    context.store.dbs.as_slice()[context.db_index()].expiring_hashes() > 0
}

/// Finds a hash of which a request changes fields: every `step`th word `from` this one on. Those of them whose time has come
/// are deleted before, so that copies of the data do the same with the same, whatever their time is.
fn find_to_change(
    context: &mut Context<'_>,
    request: Request<'_>,
    from: usize,
    step: usize,
) -> Result<Option<Found>, Error> {
    let found = context.find_to_change(&request[1], Kind::Hash)?;
    if any_expires(context) { without_due(context, request, found, (from, step)) } else { Ok(found) }
}

#[cold]
fn without_due(
    context: &mut Context<'_>,
    request: Request<'_>,
    found: Option<Found>,
    (from, step): (usize, usize),
) -> Result<Option<Found>, Error> {
    let Some(found) = found else { return Ok(None) };
    let (db, now_ms) = (context.db_index(), context.now_ms());
    let first_ms = context.db().first_field_expiry_ms(found);
    if first_ms.is_none_or(|at| at >= now_ms) || context.db().shows_expired {
        return Ok(Some(found));
    }
    let mut at = from;
    let mut fields = core::iter::from_fn(|| {
        at += step;
        request.get(at - step)
    });
    let (_, is_gone) = context.store.delete_due(db, found, &mut fields)?;
    Ok((!is_gone).then_some(found))
}

/// Changes a hash, or makes one; see [`kayvee_keyspace::Db::edit`]. Returns whether it is gone.
#[inline(never)]
fn edit(
    store: &mut Store,
    db: usize,
    key: &[u8],
    found: Option<Found>,
    change: &mut dyn FnMut(&mut Hash, &mut Records) -> Result<(), OutOfMemory>,
) -> Result<bool, OutOfMemory> {
    let now_ms = store.now.unix_ms();
    Ok(store.dbs[db].edit(key, found, now_ms, change)?.is_gone)
}

/// Sets the fields that follow the key. Returns how many are new.
fn set_all(context: &mut Context<'_>, request: Request<'_>, command: &str) -> Result<i64, Error> {
    if !request.len().is_multiple_of(2) {
        return Err(args::wrong_arity(command));
    }
    let key = &request[1];
    let mut found = context.find_to_change(key, Kind::Hash)?;
    if any_expires(context) {
        found = without_due(context, request, found, (2, 2))?;
    }
    let limits = context.store.options.hash_limits();
    let edit = context.edit(key, found, |hash: &mut Hash, records| {
        let mut words = request.from(2);
        let mut added = 0;
        while let (Some(field), Some(value)) = (words.next(), words.next()) {
            added += i64::from(hash.set(records, field, value, limits)?);
        }
        Ok(added)
    })?;
    context.changed(EventClass::HASH, "hset", key);
    Ok(edit.result)
}

fn hset(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let added = set_all(context, request, "hset")?;
    context.reply.integer(added);
    Ok(())
}

fn hmset(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    set_all(context, request, "hmset")?;
    context.reply.ok();
    Ok(())
}

fn hsetnx(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let found = find_to_change(context, request, 2, 2)?;
    let is_there = found.is_some_and(|found| context.db().hash_as_stored(found).contains(&request[2]));
    if !is_there {
        let limits = context.store.options.hash_limits();
        let index = context.db_index();
        edit(context.store, index, key, found, &mut |hash, records| {
            hash.set(records, &request[2], &request[3], limits).map(drop)
        })?;
        context.changed(EventClass::HASH, "hset", key);
    }
    context.reply.integer((!is_there).into());
    Ok(())
}

fn hget(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| match hash.and_then(|hash| hash.get(&request[2])) {
        Some(value) => bulk(reply, value),
        None => reply.null(),
    })
}

fn hmget(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| {
        reply.array(request.len() - 2);
        for field in request.from(2) {
            match hash.and_then(|hash| hash.get(field)) {
                Some(value) => bulk(reply, value),
                None => reply.null(),
            }
        }
    })
}

fn hgetall(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| {
        reply.map(hash.map_or(0, HashView::len));
        hash.into_iter().for_each(|hash| {
            hash.for_each(&mut |field, value, _| {
                reply.bulk(field);
                bulk(reply, value);
            });
        });
    })
}

fn hkeys(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| {
        reply.array(hash.map_or(0, HashView::len));
        hash.into_iter().for_each(|hash| hash.for_each(&mut |field, _, _| reply.bulk(field)));
    })
}

fn hvals(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| {
        reply.array(hash.map_or(0, HashView::len));
        hash.into_iter().for_each(|hash| hash.for_each(&mut |_, value, _| bulk(reply, value)));
    })
}

fn hlen(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| reply.integer(hash.map_or(0, HashView::len) as i64))
}

fn hexists(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| {
        reply.integer(hash.is_some_and(|hash| hash.contains(&request[2])).into());
    })
}

fn hstrlen(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, hash| {
        let value = hash.and_then(|hash| hash.get(&request[2]));
        reply.integer(value.map_or(0, |value| with_text(value, <[u8]>::len)) as i64);
    })
}

fn hdel(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let mut removed = 0;
    if let Some(found) = find_to_change(context, request, 2, 1)? {
        let index = context.db_index();
        let is_gone = edit(context.store, index, key, Some(found), &mut |hash, records| {
            removed = request.from(2).filter(|field| hash.remove(records, field)).count();
            Ok(())
        })?;
        if removed > 0 {
            context.shrunk(EventClass::HASH, "hdel", key, is_gone);
        }
    }
    context.reply.integer(removed as i64);
    Ok(())
}

fn hscan(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    scan_members(context, request, Kind::Hash, |db, found, now_ms, cursor, visit| {
        db.hash(found, now_ms).scan(cursor, &mut |field, value, _| with_text(value, |text| visit(field, Some(text))))
    })
}
