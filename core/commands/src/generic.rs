//! Keys, whatever they hold.

use crate::table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips};

mod expire;
mod keys;
mod object;
pub mod scan;

#[cfg(test)]
mod tests;

const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);

const fn key_range(first: i16, last: i16, flags: KeyFlags) -> Keys {
    Keys::range(first, last, 1, flags)
}

const INSPECTS: &[Keys] = &[key_range(1, 1, KeyFlags::RO)];
const INSPECTS_ALL: &[Keys] = &[key_range(1, -1, KeyFlags::RO)];
const INSPECTS_SECOND: &[Keys] = &[key_range(2, 2, KeyFlags::RO)];
const READS: &[Keys] = &[key_range(1, 1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const REMOVES_ALL: &[Keys] = &[key_range(1, -1, KeyFlags::RM.union(KeyFlags::DELETE))];
const UPDATES: &[Keys] = &[key_range(1, 1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const TAKES: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);

/// What all rows share.
const ROW: Command = Command { categories: Categories::KEYSPACE, group: Group::Generic, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "copy",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[
            key_range(1, 1, KeyFlags::RO.union(KeyFlags::ACCESS)),
            key_range(2, 2, KeyFlags::OW.union(KeyFlags::UPDATE)),
        ],
        handler: Some(keys::copy),
        ..ROW
    },
    Command {
        name: "del",
        tips: Tips::MULTI_SHARD.union(Tips::AGG_SUM),
        arity: -2,
        flags: Flags::WRITE,
        keys: REMOVES_ALL,
        handler: Some(keys::del),
        ..ROW
    },
    Command {
        name: "exists",
        tips: Tips::MULTI_SHARD.union(Tips::AGG_SUM),
        arity: -2,
        flags: READ_FAST,
        keys: INSPECTS_ALL,
        handler: Some(keys::exists),
        ..ROW
    },
    Command { name: "expire", arity: -3, flags: WRITE_FAST, keys: UPDATES, handler: Some(expire::expire), ..ROW },
    Command { name: "expireat", arity: -3, flags: WRITE_FAST, keys: UPDATES, handler: Some(expire::expireat), ..ROW },
    Command { name: "expiretime", arity: 2, flags: READ_FAST, keys: READS, handler: Some(expire::expiretime), ..ROW },
    Command {
        name: "keys",
        tips: Tips::ALL_SHARDS.union(Tips::NONDETERMINISTIC_OUTPUT_ORDER),
        arity: 2,
        flags: Flags::READONLY,
        categories: Categories::KEYSPACE.union(Categories::DANGEROUS),
        handler: Some(scan::keys),
        ..ROW
    },
    Command {
        name: "move",
        arity: 3,
        flags: WRITE_FAST,
        keys: &[key_range(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))],
        handler: Some(keys::move_to_db),
        ..ROW
    },
    Command { name: "object", arity: -2, categories: Categories::NONE, subcommands: OBJECT, ..ROW },
    Command { name: "persist", arity: 2, flags: WRITE_FAST, keys: UPDATES, handler: Some(expire::persist), ..ROW },
    Command { name: "pexpire", arity: -3, flags: WRITE_FAST, keys: UPDATES, handler: Some(expire::pexpire), ..ROW },
    Command { name: "pexpireat", arity: -3, flags: WRITE_FAST, keys: UPDATES, handler: Some(expire::pexpireat), ..ROW },
    Command { name: "pexpiretime", arity: 2, flags: READ_FAST, keys: READS, handler: Some(expire::pexpiretime), ..ROW },
    Command {
        name: "pttl",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        handler: Some(expire::pttl),
        ..ROW
    },
    Command {
        name: "randomkey",
        tips: Tips::ALL_SHARDS.union(Tips::NONDETERMINISTIC_OUTPUT),
        arity: 1,
        flags: Flags::READONLY,
        handler: Some(keys::randomkey),
        ..ROW
    },
    Command {
        name: "rename",
        arity: 3,
        flags: Flags::WRITE,
        keys: &[key_range(1, 1, TAKES), key_range(2, 2, KeyFlags::OW.union(KeyFlags::UPDATE))],
        handler: Some(keys::rename),
        ..ROW
    },
    Command {
        name: "renamenx",
        arity: 3,
        flags: WRITE_FAST,
        keys: &[key_range(1, 1, TAKES), key_range(2, 2, KeyFlags::OW.union(KeyFlags::INSERT))],
        handler: Some(keys::renamenx),
        ..ROW
    },
    Command {
        name: "scan",
        tips: Tips::NONDETERMINISTIC_OUTPUT.union(Tips::SPECIAL_REQUEST),
        arity: -2,
        flags: Flags::READONLY,
        handler: Some(scan::scan),
        ..ROW
    },
    Command {
        name: "touch",
        tips: Tips::MULTI_SHARD.union(Tips::AGG_SUM),
        arity: -2,
        flags: READ_FAST,
        keys: INSPECTS_ALL,
        handler: Some(keys::touch),
        ..ROW
    },
    Command {
        name: "ttl",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        handler: Some(expire::ttl),
        ..ROW
    },
    Command { name: "type", arity: 2, flags: READ_FAST, keys: INSPECTS, handler: Some(keys::type_of), ..ROW },
    Command {
        name: "unlink",
        tips: Tips::MULTI_SHARD.union(Tips::AGG_SUM),
        arity: -2,
        flags: WRITE_FAST,
        keys: REMOVES_ALL,
        handler: Some(keys::del),
        ..ROW
    },
];

static OBJECT: &[Command] = &[
    Command {
        name: "encoding",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        handler: Some(object::encoding),
        ..ROW
    },
    Command {
        name: "freq",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        handler: Some(object::freq),
        ..ROW
    },
    ROW.help(object::help),
    Command {
        name: "idletime",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        handler: Some(object::idletime),
        ..ROW
    },
    Command {
        name: "refcount",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        handler: Some(object::refcount),
        ..ROW
    },
];
