//! Lists.

use crate::{
    Context, Error, args,
    options::Options,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys},
};
use kayvee_keyspace::{Edit, Found, Kind, List, ListEnd, PartLimit};

mod blocking;
mod elements;
mod ends;
mod moves;
mod search;

#[cfg(test)]
mod tests;

const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const GROW_FAST: Flags = GROW.union(Flags::FAST);
const WAITS: Flags = Flags::WRITE.union(Flags::BLOCKING);

const READS: &[Keys] = &[Keys::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const INSERTS: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::INSERT))];
const DELETES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const TAKEN: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);
const TAKES_ALL: &[Keys] = &[Keys::range(1, -2, 1, TAKEN)];
const TAKES: &[Keys] = &[Keys::one(1, TAKEN)];
const MOVES: &[Keys] = &[Keys::one(1, TAKEN), Keys::one(2, KeyFlags::RW.union(KeyFlags::INSERT))];

/// What all rows share.
const ROW: Command = Command { categories: Categories::LIST, group: Group::List, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "blmove",
        arity: 6,
        flags: GROW.union(Flags::BLOCKING),
        keys: MOVES,
        handler: Some(blocking::blmove),
        ..ROW
    },
    Command {
        name: "blmpop",
        arity: -5,
        flags: WAITS.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(2, TAKEN)],
        handler: Some(blocking::blmpop),
        ..ROW
    },
    Command { name: "blpop", arity: -3, flags: WAITS, keys: TAKES_ALL, handler: Some(blocking::blpop), ..ROW },
    Command { name: "brpop", arity: -3, flags: WAITS, keys: TAKES_ALL, handler: Some(blocking::brpop), ..ROW },
    Command {
        name: "brpoplpush",
        arity: 4,
        flags: GROW.union(Flags::BLOCKING),
        keys: MOVES,
        handler: Some(blocking::brpoplpush),
        ..ROW
    },
    Command { name: "lindex", arity: 3, flags: Flags::READONLY, keys: READS, handler: Some(elements::lindex), ..ROW },
    Command { name: "linsert", arity: 5, flags: GROW, keys: INSERTS, handler: Some(elements::linsert), ..ROW },
    Command {
        name: "llen",
        arity: 2,
        flags: Flags::READONLY.union(Flags::FAST),
        keys: &[Keys::one(1, KeyFlags::RO)],
        handler: Some(elements::llen),
        ..ROW
    },
    Command { name: "lmove", arity: 5, flags: GROW, keys: MOVES, handler: Some(moves::lmove), ..ROW },
    Command {
        name: "lmpop",
        arity: -4,
        flags: Flags::WRITE.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(1, TAKEN)],
        handler: Some(ends::lmpop),
        ..ROW
    },
    Command {
        name: "lpop",
        arity: -2,
        flags: Flags::WRITE.union(Flags::FAST),
        keys: TAKES,
        handler: Some(ends::lpop),
        ..ROW
    },
    Command { name: "lpos", arity: -3, flags: Flags::READONLY, keys: READS, handler: Some(search::lpos), ..ROW },
    Command { name: "lpush", arity: -3, flags: GROW_FAST, keys: INSERTS, handler: Some(ends::lpush), ..ROW },
    Command { name: "lpushx", arity: -3, flags: GROW_FAST, keys: INSERTS, handler: Some(ends::lpushx), ..ROW },
    Command { name: "lrange", arity: 4, flags: Flags::READONLY, keys: READS, handler: Some(elements::lrange), ..ROW },
    Command { name: "lrem", arity: 4, flags: Flags::WRITE, keys: DELETES, handler: Some(elements::lrem), ..ROW },
    Command {
        name: "lset",
        arity: 4,
        flags: GROW,
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))],
        handler: Some(elements::lset),
        ..ROW
    },
    Command { name: "ltrim", arity: 4, flags: Flags::WRITE, keys: DELETES, handler: Some(elements::ltrim), ..ROW },
    Command {
        name: "rpop",
        arity: -2,
        flags: Flags::WRITE.union(Flags::FAST),
        keys: TAKES,
        handler: Some(ends::rpop),
        ..ROW
    },
    Command { name: "rpoplpush", arity: 3, flags: GROW, keys: MOVES, handler: Some(moves::rpoplpush), ..ROW },
    Command { name: "rpush", arity: -3, flags: GROW_FAST, keys: INSERTS, handler: Some(ends::rpush), ..ROW },
    Command { name: "rpushx", arity: -3, flags: GROW_FAST, keys: INSERTS, handler: Some(ends::rpushx), ..ROW },
];

/// How large a part of a list may be, by `list-max-listpack-size`.
pub fn limit(options: &Options) -> PartLimit {
    const LEVELS: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
    match options.list_max_listpack_size {
        size @ 0.. => PartLimit::Entries(size as usize),
        level => PartLimit::Bytes(LEVELS[level.unsigned_abs().min(LEVELS.len() as u32) as usize - 1]),
    }
}

/// Reads `LEFT` or `RIGHT`.
fn end(arg: &[u8]) -> Result<ListEnd, Error> {
    match arg {
        arg if args::is(arg, "left") => Ok(ListEnd::Front),
        arg if args::is(arg, "right") => Ok(ListEnd::Back),
        _ => Err(Error::SYNTAX),
    }
}

fn push_event(end: ListEnd) -> &'static str {
    match end {
        ListEnd::Front => "lpush",
        ListEnd::Back => "rpush",
    }
}

fn pop_event(end: ListEnd) -> &'static str {
    match end {
        ListEnd::Front => "lpop",
        ListEnd::Back => "rpop",
    }
}

/// The elements that an index, from the end if negative, and another one enclose.
fn range(start: i64, last: i64, len: usize) -> core::ops::Range<usize> {
    let len = len as i64;
    let from_end = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let start = from_end(start).max(0);
    let end = from_end(last).min(len - 1) + 1;
    if start < end { start as usize..end as usize } else { 0..0 }
}

/// The index of an element that may be counted from the end.
fn index(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(index).ok()
}

/// Changes the list that was found, and tells of it if it is gone.
fn edit<R>(
    context: &mut Context<'_>,
    key: &[u8],
    found: Option<Found>,
    change: impl FnOnce(&mut List, PartLimit) -> Result<R, kayvee_keyspace::OutOfMemory>,
) -> Result<Edit<R>, Error> {
    let limit = limit(&context.store.options);
    context.edit(key, found, |list: &mut List, _| change(list, limit))
}

/// Finds a list for reading.
fn read(context: &mut Context<'_>, key: &[u8]) -> Result<Option<Found>, Error> {
    context.read(key, Kind::List)
}

/// Finds a list for changing it.
fn find(context: &mut Context<'_>, key: &[u8]) -> Result<Option<Found>, Error> {
    context.find_to_change(key, Kind::List)
}
