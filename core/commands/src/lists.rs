//! Lists.

use crate::{
    Context, Error, args,
    options::Options,
    table::{Categories, Command, Flags, KeyFlags, Keys},
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
const ROW: Command = Command { categories: Categories::LIST, group: "list", ..Command::ROW };

const AT_ENDS: &str = "O(N) where N is the number of elements added or removed.";
const BY_DISTANCE: &str = "O(N) where N is the distance to the nearer end; O(1) at the ends.";
const PER_KEY: &str = "O(N) where N is the number of keys.";
const OVER_ALL: &str = "O(N) where N is the number of elements that are passed.";

pub static COMMANDS: &[Command] = &[
    Command {
        name: "blmove",
        arity: 6,
        flags: GROW.union(Flags::BLOCKING),
        keys: MOVES,
        since: "6.2.0",
        summary: "Moves an element from an end of one list to an end of another one, and waits for one if there is none.",
        handler: Some(blocking::blmove),
        ..ROW
    },
    Command {
        name: "blmpop",
        arity: -5,
        flags: WAITS.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(2, TAKEN)],
        since: "7.0.0",
        complexity: "O(N+M) where N is the number of keys and M the number of elements returned.",
        summary: "Removes elements from the first of several lists that has any, and waits for one if there is none.",
        handler: Some(blocking::blmpop),
        ..ROW
    },
    Command {
        name: "blpop",
        arity: -3,
        flags: WAITS,
        keys: TAKES_ALL,
        since: "2.0.0",
        complexity: PER_KEY,
        summary: "Removes the head of the first of several lists that has one, and waits for one if there is none.",
        handler: Some(blocking::blpop),
        ..ROW
    },
    Command {
        name: "brpop",
        arity: -3,
        flags: WAITS,
        keys: TAKES_ALL,
        since: "2.0.0",
        complexity: PER_KEY,
        summary: "Removes the tail of the first of several lists that has one, and waits for one if there is none.",
        handler: Some(blocking::brpop),
        ..ROW
    },
    Command {
        name: "brpoplpush",
        deprecated: Some(("6.2.0", "BLMOVE with RIGHT and LEFT")),
        arity: 4,
        flags: GROW.union(Flags::BLOCKING),
        keys: MOVES,
        since: "2.2.0",
        summary: "Moves an element from the tail of one list to the head of another one, and waits for one if there is none.",
        handler: Some(blocking::brpoplpush),
        ..ROW
    },
    Command {
        name: "lindex",
        arity: 3,
        flags: Flags::READONLY,
        keys: READS,
        since: "1.0.0",
        complexity: BY_DISTANCE,
        summary: "Returns the element at an index.",
        handler: Some(elements::lindex),
        ..ROW
    },
    Command {
        name: "linsert",
        arity: 5,
        flags: GROW,
        keys: INSERTS,
        since: "2.2.0",
        complexity: "O(N) where N is the number of elements up to the pivot.",
        summary: "Inserts an element before or after another one.",
        handler: Some(elements::linsert),
        ..ROW
    },
    Command {
        name: "llen",
        arity: 2,
        flags: Flags::READONLY.union(Flags::FAST),
        keys: &[Keys::one(1, KeyFlags::RO)],
        since: "1.0.0",
        summary: "Returns the number of elements.",
        handler: Some(elements::llen),
        ..ROW
    },
    Command {
        name: "lmove",
        arity: 5,
        flags: GROW,
        keys: MOVES,
        since: "6.2.0",
        summary: "Moves an element from an end of one list to an end of another one, and returns it.",
        handler: Some(moves::lmove),
        ..ROW
    },
    Command {
        name: "lmpop",
        arity: -4,
        flags: Flags::WRITE.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(1, TAKEN)],
        since: "7.0.0",
        complexity: "O(N+M) where N is the number of keys and M the number of elements returned.",
        summary: "Removes elements from the first of several lists that has any, and returns them.",
        handler: Some(ends::lmpop),
        ..ROW
    },
    Command {
        name: "lpop",
        arity: -2,
        flags: Flags::WRITE.union(Flags::FAST),
        keys: TAKES,
        since: "1.0.0",
        complexity: AT_ENDS,
        summary: "Removes elements from the head, and returns them.",
        handler: Some(ends::lpop),
        ..ROW
    },
    Command {
        name: "lpos",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS,
        since: "6.0.6",
        complexity: OVER_ALL,
        summary: "Returns the indexes of elements that equal a value.",
        handler: Some(search::lpos),
        ..ROW
    },
    Command {
        name: "lpush",
        arity: -3,
        flags: GROW_FAST,
        keys: INSERTS,
        since: "1.0.0",
        complexity: AT_ENDS,
        summary: "Adds elements at the head, one after the other; a missing list is created.",
        handler: Some(ends::lpush),
        ..ROW
    },
    Command {
        name: "lpushx",
        arity: -3,
        flags: GROW_FAST,
        keys: INSERTS,
        since: "2.2.0",
        complexity: AT_ENDS,
        summary: "Adds elements at the head of a list that exists.",
        handler: Some(ends::lpushx),
        ..ROW
    },
    Command {
        name: "lrange",
        arity: 4,
        flags: Flags::READONLY,
        keys: READS,
        since: "1.0.0",
        complexity: "O(S+N) where S is the distance of the start to the nearer end and N the number of elements returned.",
        summary: "Returns the elements of a range of indexes.",
        handler: Some(elements::lrange),
        ..ROW
    },
    Command {
        name: "lrem",
        arity: 4,
        flags: Flags::WRITE,
        keys: DELETES,
        since: "1.0.0",
        complexity: OVER_ALL,
        summary: "Removes elements that equal a value.",
        handler: Some(elements::lrem),
        ..ROW
    },
    Command {
        name: "lset",
        arity: 4,
        flags: GROW,
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))],
        since: "1.0.0",
        complexity: BY_DISTANCE,
        summary: "Replaces the element at an index.",
        handler: Some(elements::lset),
        ..ROW
    },
    Command {
        name: "ltrim",
        arity: 4,
        flags: Flags::WRITE,
        keys: DELETES,
        since: "1.0.0",
        complexity: AT_ENDS,
        summary: "Removes all elements outside of a range of indexes.",
        handler: Some(elements::ltrim),
        ..ROW
    },
    Command {
        name: "rpop",
        arity: -2,
        flags: Flags::WRITE.union(Flags::FAST),
        keys: TAKES,
        since: "1.0.0",
        complexity: AT_ENDS,
        summary: "Removes elements from the tail, and returns them.",
        handler: Some(ends::rpop),
        ..ROW
    },
    Command {
        name: "rpoplpush",
        deprecated: Some(("6.2.0", "LMOVE with RIGHT and LEFT")),
        arity: 3,
        flags: GROW,
        keys: MOVES,
        since: "1.2.0",
        summary: "Moves an element from the tail of one list to the head of another one, and returns it.",
        handler: Some(moves::rpoplpush),
        ..ROW
    },
    Command {
        name: "rpush",
        arity: -3,
        flags: GROW_FAST,
        keys: INSERTS,
        since: "1.0.0",
        complexity: AT_ENDS,
        summary: "Adds elements at the tail, one after the other; a missing list is created.",
        handler: Some(ends::rpush),
        ..ROW
    },
    Command {
        name: "rpushx",
        arity: -3,
        flags: GROW_FAST,
        keys: INSERTS,
        since: "2.2.0",
        complexity: AT_ENDS,
        summary: "Adds elements at the tail of a list that exists.",
        handler: Some(ends::rpushx),
        ..ROW
    },
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
