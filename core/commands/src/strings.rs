//! Strings.

use crate::{
    Context,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips},
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
const ROW: Command = Command { categories: Categories::STRING, group: Group::String, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "append",
        arity: 3,
        flags: GROW_FAST,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::INSERT)),
        handler: Some(ranges::append),
        ..ROW
    },
    Command { name: "decr", arity: 2, flags: GROW_FAST, keys: CHANGES, handler: Some(counters::decr), ..ROW },
    Command { name: "decrby", arity: 3, flags: GROW_FAST, keys: CHANGES, handler: Some(counters::decrby), ..ROW },
    Command { name: "get", arity: 2, flags: READ_FAST, keys: READS, handler: Some(values::get), ..ROW },
    Command {
        name: "getdel",
        arity: 2,
        flags: WRITE_FAST,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE)),
        handler: Some(values::getdel),
        ..ROW
    },
    Command { name: "getex", arity: -2, flags: WRITE_FAST, keys: CHANGES, handler: Some(values::getex), ..ROW },
    Command { name: "getrange", arity: 4, flags: Flags::READONLY, keys: READS, handler: Some(ranges::getrange), ..ROW },
    Command { name: "getset", arity: 3, flags: GROW_FAST, keys: CHANGES, handler: Some(values::getset), ..ROW },
    Command { name: "incr", arity: 2, flags: GROW_FAST, keys: CHANGES, handler: Some(counters::incr), ..ROW },
    Command { name: "incrby", arity: 3, flags: GROW_FAST, keys: CHANGES, handler: Some(counters::incrby), ..ROW },
    Command {
        name: "incrbyfloat",
        arity: 3,
        flags: GROW_FAST,
        keys: CHANGES,
        handler: Some(counters::incrbyfloat),
        ..ROW
    },
    Command { name: "lcs", arity: -3, flags: Flags::READONLY, keys: READS_TWO, handler: Some(lcs::lcs), ..ROW },
    Command {
        name: "mget",
        tips: Tips::MULTI_SHARD,
        arity: -2,
        flags: READ_FAST,
        keys: READS_ALL,
        handler: Some(values::mget),
        ..ROW
    },
    Command {
        name: "mset",
        tips: Tips::MULTI_SHARD.union(Tips::ALL_SUCCEEDED),
        arity: -3,
        flags: GROW,
        keys: &keys(-1, 2, KeyFlags::OW.union(KeyFlags::UPDATE)),
        handler: Some(values::mset),
        ..ROW
    },
    Command {
        name: "msetnx",
        tips: Tips::MULTI_SHARD.union(Tips::AGG_MIN),
        arity: -3,
        flags: GROW,
        keys: &keys(-1, 2, KeyFlags::OW.union(KeyFlags::INSERT)),
        handler: Some(values::msetnx),
        ..ROW
    },
    Command { name: "psetex", arity: 4, flags: GROW, keys: OVERWRITES, handler: Some(values::psetex), ..ROW },
    Command {
        name: "set",
        arity: -3,
        flags: GROW,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE).union(KeyFlags::VARIABLE_FLAGS)),
        find_keys: Some(values::set_keys),
        handler: Some(values::set),
        ..ROW
    },
    Command { name: "setex", arity: 4, flags: GROW, keys: OVERWRITES, handler: Some(values::setex), ..ROW },
    Command { name: "setnx", arity: 3, flags: GROW_FAST, keys: CREATES, handler: Some(values::setnx), ..ROW },
    Command {
        name: "setrange",
        arity: 4,
        flags: GROW,
        keys: &keys(1, 1, KeyFlags::RW.union(KeyFlags::UPDATE)),
        handler: Some(ranges::setrange),
        ..ROW
    },
    Command { name: "strlen", arity: 2, flags: READ_FAST, keys: MEASURES, handler: Some(ranges::strlen), ..ROW },
    Command { name: "substr", arity: 4, flags: Flags::READONLY, keys: READS, handler: Some(ranges::getrange), ..ROW },
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
