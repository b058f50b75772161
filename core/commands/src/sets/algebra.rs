//! What sets have in common, or not.

use super::bulk;
use crate::{Context, Error, EventClass, Outcome, args, order};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use kayvee_keyspace::{Expiry, Found, Kind, Member, OutOfMemory, Records, Set, SetLimits};
use kayvee_resp::Request;

pub fn sinter(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Sources { found, has_all, .. } = find_all(context, request.from(1))?;
    if !has_all {
        context.reply.set(0);
        return Ok(());
    }
    let start = context.reply.len();
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let count = store.dbs[index].with_sets(&found, |sets, records| {
        let mut count = 0;
        for_each_common(sets, records, |records, member| {
            bulk(reply, member.value(records));
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(count)
    })?;
    let end = reply.len();
    reply.set(count);
    reply.move_before(start, end);
    Ok(())
}

pub fn sintercard(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const NO_KEYS: Error = Error::text("ERR numkeys should be greater than 0");
    const NEGATIVE_LIMIT: Error = Error::text("ERR LIMIT can't be negative");
    let keys = args::integer(&request[1]).ok().filter(|&keys| keys > 0).ok_or(NO_KEYS)?;
    if keys > request.len() as i64 - 2 {
        return Err(Error::text("ERR Number of keys can't be greater than number of args"));
    }
    let keys = keys as usize;
    let mut limit = 0;
    let mut words = request.from(2 + keys);
    while let Some(word) = words.next() {
        let value = words.next().filter(|_| args::is(word, "limit")).ok_or(Error::SYNTAX)?;
        limit = args::integer(value).ok().filter(|&limit| limit >= 0).ok_or(NEGATIVE_LIMIT)?;
    }
    let Sources { found, has_all, .. } = find_all(context, request.from(2).take(keys))?;
    let mut count = 0;
    if has_all {
        context.db().with_sets(&found, |sets, records| {
            for_each_common(sets, records, |_, _| {
                count += 1;
                Ok(if count == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })
        })?;
    }
    context.reply.integer(count);
    Ok(())
}

pub fn sinterstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Sources { mut found, has_all, .. } = find_all(context, request.from(2))?;
    if !has_all {
        found.clear();
    }
    let limits = context.store.options.set_limits();
    let set = context.db().with_sets(&found, |sets, records| {
        build(records, |set, records| {
            let mut buffer = Vec::new();
            for_each_common(sets, records, |records, member| {
                set.add_from(records, member, &mut buffer, limits)?;
                Ok(ControlFlow::Continue(()))
            })
        })
    })?;
    store(context, &request[1], set, "sinterstore")
}

pub fn sunion(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with(context, request, union)
}

pub fn sunionstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    store_of(context, request, union, "sunionstore")
}

pub fn sdiff(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with(context, request, difference)
}

pub fn sdiffstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    store_of(context, request, difference, "sdiffstore")
}

/// Sets that are to be worked on.
#[derive(Default)]
struct Sources {
    /// Those that are there.
    found: Vec<Found>,
    /// Whether the first one is there.
    has_first: bool,
    /// Whether all of them are.
    has_all: bool,
}

/// Finds the sets at keys.
fn find_all<'a>(context: &mut Context<'_>, keys: impl Iterator<Item = &'a [u8]>) -> Result<Sources, Error> {
    let mut sources = Sources { found: Vec::new(), has_first: false, has_all: true };
    for (at, key) in keys.enumerate() {
        // Finding a key may remove an expired one, but never moves another one.
        let Some(found) = context.read(key, Kind::Set)? else {
            sources.has_all = false;
            continue;
        };
        sources.has_first |= at == 0;
        sources.found.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
        sources.found.push(found);
    }
    Ok(sources)
}

/// Makes a set, of which nothing stays if that fails.
fn build(
    records: &mut Records,
    fill: impl FnOnce(&mut Set, &mut Records) -> Result<(), OutOfMemory>,
) -> Result<Set, OutOfMemory> {
    let mut set = Set::default();
    match fill(&mut set, records) {
        Ok(()) => Ok(set),
        Err(error) => {
            set.free(records);
            Err(error)
        }
    }
}

/// Sets by their size.
fn smallest_first<'a>(sets: &[&'a Set]) -> Result<Vec<&'a Set>, OutOfMemory> {
    let mut sorted = Vec::new();
    sorted.try_reserve_exact(sets.len())?;
    sorted.extend(order::by_key(sets.len(), |at| sets[at].len())?.map(|at| sets[at]));
    Ok(sorted)
}

/// Calls `visit` with each member that all sets have, beginning with the smallest set.
fn for_each_common(
    sets: &[&Set],
    records: &mut Records,
    mut visit: impl FnMut(&mut Records, Member<'_>) -> Result<ControlFlow<()>, OutOfMemory>,
) -> Result<(), OutOfMemory> {
    let sorted = smallest_first(sets)?;
    let Some((smallest, others)) = sorted.split_first() else { return Ok(()) };
    for member in smallest.members() {
        let has = |set: &&Set| core::ptr::eq(*set, *smallest) || set.contains(records, member.value(records));
        if others.iter().all(has) && visit(records, member)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// What makes a set of others. The first one may be missing.
type Operation = fn(&mut Set, &mut Records, Option<&Set>, &[&Set], SetLimits) -> Result<(), OutOfMemory>;

fn union(
    result: &mut Set,
    records: &mut Records,
    first: Option<&Set>,
    others: &[&Set],
    limits: SetLimits,
) -> Result<(), OutOfMemory> {
    let mut buffer = Vec::new();
    for set in first.iter().chain(others) {
        for member in set.members() {
            result.add_from(records, member, &mut buffer, limits)?;
        }
    }
    Ok(())
}

fn difference(
    result: &mut Set,
    records: &mut Records,
    first: Option<&Set>,
    others: &[&Set],
    limits: SetLimits,
) -> Result<(), OutOfMemory> {
    let Some(first) = first else { return Ok(()) };
    if others.iter().any(|other| core::ptr::eq(*other, first)) {
        return Ok(());
    }
    let mut buffer = Vec::new();
    // Either each member of the first set is looked for in all others, or all members of the others are taken out of a
    // copy of the first. The former often ends early.
    let searches = first.len() * (others.len() + 1) / 2;
    let removals = first.len() + others.iter().map(|set| set.len()).sum::<usize>();
    if searches <= removals {
        let mut sorted = smallest_first(others)?;
        sorted.reverse();
        for member in first.members() {
            if !sorted.iter().any(|set| set.contains(records, member.value(records))) {
                result.add_from(records, member, &mut buffer, limits)?;
            }
        }
        return Ok(());
    }
    for member in first.members() {
        result.add_from(records, member, &mut buffer, limits)?;
    }
    for set in others {
        for member in set.members() {
            result.remove_from(records, member, &mut buffer)?;
        }
        if result.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Makes a set of those whose keys begin at an argument.
fn operate(context: &mut Context<'_>, request: Request<'_>, from: usize, operation: Operation) -> Result<Set, Error> {
    let Sources { found, has_first, .. } = find_all(context, request.from(from))?;
    let limits = context.store.options.set_limits();
    Ok(context.db().with_sets(&found, |sets, records| {
        let (first, others) = match sets {
            [first, others @ ..] if has_first => (Some(*first), others),
            others => (None, others),
        };
        build(records, |set, records| operation(set, records, first, others, limits))
    })?)
}

fn reply_with(context: &mut Context<'_>, request: Request<'_>, operation: Operation) -> Outcome {
    let set = operate(context, request, 1, operation)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let db = &mut store.dbs[index];
    reply.set(set.len());
    set.view(db.records()).for_each(|member| bulk(reply, member));
    db.drop_built(set);
    Ok(())
}

fn store_of(context: &mut Context<'_>, request: Request<'_>, operation: Operation, event: &'static str) -> Outcome {
    let set = operate(context, request, 2, operation)?;
    store(context, &request[1], set, event)
}

/// Gives a key a set, or removes it if that is empty.
fn store(context: &mut Context<'_>, key: &[u8], set: Set, event: &'static str) -> Outcome {
    let len = set.len();
    if len == 0 {
        if let Some(found) = context.find(key) {
            context.remove(key, found);
        }
    } else {
        let now_ms = context.now_ms();
        context.db().put(key, set, Expiry::Never, now_ms)?;
        context.changed(EventClass::SET, event, key);
    }
    context.reply.integer(len as i64);
    Ok(())
}
