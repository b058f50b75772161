//! Random members.

use super::bulk;
use crate::{Context, Error, EventClass, Outcome, args, random};
use alloc::vec::Vec;
use kayvee_keyspace::{Found, Kind, Set, Value};
use kayvee_resp::{Request, Writer, bulk_strings};

pub fn srandmember(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(count) = request.get(2) else { return one(context, &request[1]) };
    if request.len() > 3 {
        return Err(Error::SYNTAX);
    }
    let count = random::count(count)?;
    let Some(found) = context.read(&request[1], Kind::Set)? else {
        context.reply.array(0);
        return Ok(());
    };
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let set = store.dbs[index].set_at(found);
    if count < 0 {
        let count = count.unsigned_abs();
        reply.array(count as usize);
        return random::repeat(count, |_| {
            set.random(&mut store.rng).into_iter().for_each(|member| bulk(reply, member));
            reply.len()
        });
    }
    reply.array((count as usize).min(set.len()));
    Ok(set.sample(&mut store.rng, count as usize, |member| bulk(reply, member))?)
}

fn one(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    let found = context.read(key, Kind::Set)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    match found.and_then(|found| store.dbs[index].set_at(found).random(&mut store.rng)) {
        Some(member) => bulk(reply, member),
        None => reply.null(),
    }
    Ok(())
}

pub fn spop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let Some(count) = request.get(2) else { return pop_one(context, key) };
    if request.len() > 3 {
        return Err(Error::SYNTAX);
    }
    let count = args::positive(count)?;
    let found = context.find_to_change(key, Kind::Set)?;
    let Some(found) = found.filter(|_| count > 0) else {
        context.reply.set(0);
        return Ok(());
    };
    let start = context.reply.len();
    let is_gone = pop_many(context, key, found, count as usize, start)?;
    if is_gone {
        context.effect(&[b"DEL", key]);
    } else {
        tell_popped(context, key, start, 0);
    }
    context.shrunk(EventClass::SET, "spop", key, is_gone);
    Ok(())
}

fn pop_one(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    let Some(found) = context.find_to_change(key, Kind::Set)? else {
        context.reply.null();
        return Ok(());
    };
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let start = context.reply.len();
    let Context { store, reply, .. } = &mut *context;
    let edit = store.dbs[index].edit(key, Some(found), now_ms, |set: &mut Set, records| {
        Ok(set.pop(records, &mut store.rng, |member| show(reply, member)))
    })?;
    edit.result.ok_or(Error::OUT_OF_MEMORY)?;
    tell_popped(context, key, start, 0);
    context.shrunk(EventClass::SET, "spop", key, edit.is_gone);
    Ok(())
}

/// Writes a member, unless there is no memory for that: it must stay then.
fn show(reply: &mut Writer<'_>, member: Value<'_>) -> Option<()> {
    bulk(reply, member);
    (!reply.failed()).then_some(())
}

/// Tells that the members that the reply shows from `start` on were removed, but for the first `kept`.
fn tell_popped(context: &mut Context<'_>, key: &[u8], start: usize, kept: usize) {
    /// As many as Redis names in one command.
    const BATCH: usize = 1024;
    if !context.effects_are_wanted() {
        return;
    }
    let Context { store, reply, .. } = context;
    let db = store.sessions[context.slot as usize].as_ref().map_or(0, |session| session.db);
    let members: Vec<&[u8]> = bulk_strings(reply.since(start)).skip(kept).collect();
    for batch in members.chunks(BATCH) {
        let words: Vec<&[u8]> = [&b"SREM"[..], key].into_iter().chain(batch.iter().copied()).collect();
        store.tell(db, &words);
    }
}

/// Removes `count` members, which are the reply, from `start` on. Returns whether the key went with them.
fn pop_many(context: &mut Context<'_>, key: &[u8], found: Found, count: usize, start: usize) -> Result<bool, Error> {
    /// When so few stay behind, by this factor, Redis makes a new set of them, which may be a compact one.
    const MOVE_FACTOR: usize = 5;
    let (index, now_ms, limits) = (context.db_index(), context.now_ms(), context.store.options.set_limits());
    let Context { store, reply, .. } = context;
    let db = &mut store.dbs[index];
    let set = db.set_at(found);
    let len = set.len();
    reply.set(count.min(len));
    if count >= len {
        set.for_each(|member| bulk(reply, member));
        // What finds no memory for its reply must stay.
        if reply.failed() {
            return Err(Error::OUT_OF_MEMORY);
        }
        db.remove(found);
        return Ok(true);
    }
    let edit = db.edit(key, Some(found), now_ms, |set: &mut Set, records| {
        if (0..count).any(|_| set.pop(records, &mut store.rng, |member| show(reply, member)).is_none()) {
            // The reply will be an error: what stands in it goes back to where it has just come from.
            let goes_back = |member: &&[u8]| set.add(records, Value::Bytes(member), limits).is_ok();
            return Ok(bulk_strings(reply.since(start)).take_while(goes_back).count());
        }
        if (len - count) * MOVE_FACTOR <= count {
            // It may stay as it is where there is no memory for that.
            let _ = set.repack(records, limits);
        }
        Ok(count)
    })?;
    if context.reply.failed() {
        tell_popped(context, key, start, edit.result);
        return Err(Error::OUT_OF_MEMORY);
    }
    Ok(false)
}
