//! Strings.

use crate::{
    Context,
    table::{Categories, Command, Flags, KeyFlags, Keys},
};
use kayvee_keyspace::{Decimal, Found, Value};

pub mod counters;
mod lcs;
mod long_double;
pub mod ranges;
mod values;

#[cfg(test)]
mod tests;

const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);
const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const GROW_FAST: Flags = GROW.union(Flags::FAST);

const fn keys(last: i16, step: i16, flags: KeyFlags) -> [Keys; 1] {
    [Keys::range(1, last, step, flags)]
}

const READS: &[Keys] = &keys(1, 1, KeyFlags::RO.union(KeyFlags::ACCESS));
const READS_ALL: &[Keys] = &keys(-1, 1, KeyFlags::RO.union(KeyFlags::ACCESS));
const READS_TWO: &[Keys] = &keys(2, 1, KeyFlags::RO.union(KeyFlags::ACCESS));
const MEASURES: &[Keys] = &keys(1, 1, KeyFlags::RO);
const OVERWRITES: &[Keys] = &keys(1, 1, KeyFlags::OW.union(KeyFlags::UPDATE));
const CREATES: &[Keys] = &keys(1, 1, KeyFlags::OW.union(KeyFlags::INSERT));
const CHANGES: &[Keys] = &keys(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE));

/// What all rows share.
const ROW: Command = Command { categories: Categories::STRING, group: "string", ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "append",
        arity: 3,
        flags: GROW_FAST,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::INSERT)),
        since: "2.0.0",
        complexity: "O(1) amortized, if the appended value is small: room is kept behind the string.",
        summary: "Adds bytes to the end of a string, or creates it.",
        handler: Some(ranges::append),
        ..ROW
    },
    Command {
        name: "decr",
        arity: 2,
        flags: GROW_FAST,
        keys: CHANGES,
        since: "1.0.0",
        summary: "Subtracts one from the integer at a key; a missing key counts as 0.",
        handler: Some(counters::decr),
        ..ROW
    },
    Command {
        name: "decrby",
        arity: 3,
        flags: GROW_FAST,
        keys: CHANGES,
        since: "1.0.0",
        summary: "Subtracts a number from the integer at a key; a missing key counts as 0.",
        handler: Some(counters::decrby),
        ..ROW
    },
    Command {
        name: "get",
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        since: "1.0.0",
        summary: "Returns the string at a key.",
        handler: Some(values::get),
        ..ROW
    },
    Command {
        name: "getdel",
        arity: 2,
        flags: WRITE_FAST,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE)),
        since: "6.2.0",
        summary: "Returns the string at a key and removes the key.",
        handler: Some(values::getdel),
        ..ROW
    },
    Command {
        name: "getex",
        arity: -2,
        flags: WRITE_FAST,
        keys: CHANGES,
        since: "6.2.0",
        summary: "Returns the string at a key and changes when the key expires.",
        handler: Some(values::getex),
        ..ROW
    },
    Command {
        name: "getrange",
        arity: 4,
        flags: Flags::READONLY,
        keys: READS,
        since: "2.4.0",
        complexity: "O(N) where N is the length of the returned string.",
        summary: "Returns part of a string.",
        handler: Some(ranges::getrange),
        ..ROW
    },
    Command {
        name: "getset",
        deprecated: Some(("6.2.0", "SET with GET")),
        arity: 3,
        flags: GROW_FAST,
        keys: CHANGES,
        since: "1.0.0",
        summary: "Sets a string and returns what was there before.",
        handler: Some(values::getset),
        ..ROW
    },
    Command {
        name: "incr",
        arity: 2,
        flags: GROW_FAST,
        keys: CHANGES,
        since: "1.0.0",
        summary: "Adds one to the integer at a key; a missing key counts as 0.",
        handler: Some(counters::incr),
        ..ROW
    },
    Command {
        name: "incrby",
        arity: 3,
        flags: GROW_FAST,
        keys: CHANGES,
        since: "1.0.0",
        summary: "Adds a number to the integer at a key; a missing key counts as 0.",
        handler: Some(counters::incrby),
        ..ROW
    },
    Command {
        name: "incrbyfloat",
        arity: 3,
        flags: GROW_FAST,
        keys: CHANGES,
        since: "2.6.0",
        summary: "Adds a floating-point number to the number at a key; a missing key counts as 0.",
        handler: Some(counters::incrbyfloat),
        ..ROW
    },
    Command {
        name: "lcs",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS_TWO,
        since: "7.0.0",
        complexity: "O(N*M) where N and M are the lengths of the two strings.",
        summary: "Finds the longest common subsequence of two strings.",
        handler: Some(lcs::lcs),
        ..ROW
    },
    Command {
        name: "mget",
        tips: &["request_policy:multi_shard"],
        arity: -2,
        flags: READ_FAST,
        keys: READS_ALL,
        since: "1.0.0",
        complexity: "O(N) where N is the number of keys.",
        summary: "Returns the strings at several keys.",
        handler: Some(values::mget),
        ..ROW
    },
    Command {
        name: "mset",
        tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
        arity: -3,
        flags: GROW,
        keys: &keys(-1, 2, KeyFlags::OW.union(KeyFlags::UPDATE)),
        since: "1.0.1",
        complexity: "O(N) where N is the number of keys.",
        summary: "Sets several keys at once.",
        handler: Some(values::mset),
        ..ROW
    },
    Command {
        name: "msetnx",
        tips: &["request_policy:multi_shard", "response_policy:agg_min"],
        arity: -3,
        flags: GROW,
        keys: &keys(-1, 2, KeyFlags::OW.union(KeyFlags::INSERT)),
        since: "1.0.1",
        complexity: "O(N) where N is the number of keys.",
        summary: "Sets several keys at once, if none of them exists.",
        handler: Some(values::msetnx),
        ..ROW
    },
    Command {
        name: "psetex",
        deprecated: Some(("2.6.12", "SET with PX")),
        arity: 4,
        flags: GROW,
        keys: OVERWRITES,
        since: "2.6.0",
        summary: "Sets a string that expires after some milliseconds.",
        handler: Some(values::psetex),
        ..ROW
    },
    Command {
        name: "set",
        arity: -3,
        flags: GROW,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE).union(KeyFlags::VARIABLE_FLAGS)),
        since: "1.0.0",
        summary: "Sets a string, whatever the key held before.",
        find_keys: Some(values::set_keys),
        handler: Some(values::set),
        ..ROW
    },
    Command {
        name: "setex",
        deprecated: Some(("2.6.12", "SET with EX")),
        arity: 4,
        flags: GROW,
        keys: OVERWRITES,
        since: "2.0.0",
        summary: "Sets a string that expires after some seconds.",
        handler: Some(values::setex),
        ..ROW
    },
    Command {
        name: "setnx",
        deprecated: Some(("2.6.12", "SET with NX")),
        arity: 3,
        flags: GROW_FAST,
        keys: CREATES,
        since: "1.0.0",
        summary: "Sets a string, if the key does not exist.",
        handler: Some(values::setnx),
        ..ROW
    },
    Command {
        name: "setrange",
        arity: 4,
        flags: GROW,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::UPDATE)),
        since: "2.2.0",
        complexity: "O(M) where M is the length of the new part, and of what the string grows by.",
        summary: "Overwrites part of a string, filling it up with zero bytes as far as needed.",
        handler: Some(ranges::setrange),
        ..ROW
    },
    Command {
        name: "strlen",
        arity: 2,
        flags: READ_FAST,
        keys: MEASURES,
        since: "2.2.0",
        summary: "Returns the length of a string.",
        handler: Some(ranges::strlen),
        ..ROW
    },
    Command {
        name: "substr",
        deprecated: Some(("2.0.0", "GETRANGE")),
        arity: 4,
        flags: Flags::READONLY,
        keys: READS,
        since: "1.0.0",
        complexity: "O(N) where N is the length of the returned string.",
        summary: "Returns part of a string; an older name of GETRANGE.",
        handler: Some(ranges::getrange),
        ..ROW
    },
];

/// Lends a string's bytes, whatever form it is stored in.
pub fn with_text<R>(value: Value<'_>, use_it: impl FnOnce(&[u8]) -> R) -> R {
    match value {
        Value::Bytes(bytes) => use_it(bytes),
        Value::Integer(number) => use_it(Decimal::new(number).as_bytes()),
    }
}

/// Replies with the string at a key.
pub fn reply_with(context: &mut Context<'_>, found: Found) {
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    with_text(store.dbs[index].value(found), |text| reply.bulk(text));
}
