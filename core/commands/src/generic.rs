//! Keys, whatever they hold.

use crate::table::{Categories, Command, Flags, KeyFlags, Keys};

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
const ROW: Command = Command { categories: Categories::KEYSPACE, group: "generic", ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "copy",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[
            key_range(1, 1, KeyFlags::RO.union(KeyFlags::ACCESS)),
            key_range(2, 2, KeyFlags::OW.union(KeyFlags::UPDATE)),
        ],
        since: "6.2.0",
        complexity: "O(1) for strings.",
        summary: "Copies a key's value and expiry to another key.",
        handler: Some(keys::copy),
        ..ROW
    },
    Command {
        name: "del",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        arity: -2,
        flags: Flags::WRITE,
        keys: REMOVES_ALL,
        since: "1.0.0",
        complexity: "O(N) where N is the number of keys.",
        summary: "Removes keys.",
        handler: Some(keys::del),
        ..ROW
    },
    Command {
        name: "exists",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        arity: -2,
        flags: READ_FAST,
        keys: INSPECTS_ALL,
        since: "1.0.0",
        complexity: "O(N) where N is the number of keys.",
        summary: "Counts those of the keys that exist.",
        handler: Some(keys::exists),
        ..ROW
    },
    Command {
        name: "expire",
        arity: -3,
        flags: WRITE_FAST,
        keys: UPDATES,
        since: "1.0.0",
        summary: "Lets a key expire after some seconds.",
        handler: Some(expire::expire),
        ..ROW
    },
    Command {
        name: "expireat",
        arity: -3,
        flags: WRITE_FAST,
        keys: UPDATES,
        since: "1.2.0",
        summary: "Lets a key expire at a Unix time in seconds.",
        handler: Some(expire::expireat),
        ..ROW
    },
    Command {
        name: "expiretime",
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        since: "7.0.0",
        summary: "Returns the Unix time in seconds at which a key expires.",
        handler: Some(expire::expiretime),
        ..ROW
    },
    Command {
        name: "keys",
        tips: &["request_policy:all_shards", "nondeterministic_output_order"],
        arity: 2,
        flags: Flags::READONLY,
        categories: Categories::KEYSPACE.union(Categories::DANGEROUS),
        since: "1.0.0",
        complexity: "O(N) where N is the number of keys in the database.",
        summary: "Returns all keys that match a pattern, in one reply.",
        handler: Some(scan::keys),
        ..ROW
    },
    Command {
        name: "move",
        arity: 3,
        flags: WRITE_FAST,
        keys: &[key_range(1, 1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))],
        since: "1.0.0",
        summary: "Moves a key to another database.",
        handler: Some(keys::move_to_db),
        ..ROW
    },
    Command {
        name: "object",
        arity: -2,
        categories: Categories::NONE,
        since: "2.2.3",
        complexity: "Depends on subcommand.",
        summary: "Tells how values are stored and used.",
        subcommands: OBJECT,
        ..ROW
    },
    Command {
        name: "persist",
        arity: 2,
        flags: WRITE_FAST,
        keys: UPDATES,
        since: "2.2.0",
        summary: "Lets a key stay that would have expired.",
        handler: Some(expire::persist),
        ..ROW
    },
    Command {
        name: "pexpire",
        arity: -3,
        flags: WRITE_FAST,
        keys: UPDATES,
        since: "2.6.0",
        summary: "Lets a key expire after some milliseconds.",
        handler: Some(expire::pexpire),
        ..ROW
    },
    Command {
        name: "pexpireat",
        arity: -3,
        flags: WRITE_FAST,
        keys: UPDATES,
        since: "2.6.0",
        summary: "Lets a key expire at a Unix time in milliseconds.",
        handler: Some(expire::pexpireat),
        ..ROW
    },
    Command {
        name: "pexpiretime",
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        since: "7.0.0",
        summary: "Returns the Unix time in milliseconds at which a key expires.",
        handler: Some(expire::pexpiretime),
        ..ROW
    },
    Command {
        name: "pttl",
        tips: &["nondeterministic_output"],
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        since: "2.6.0",
        summary: "Returns how many milliseconds a key has left.",
        handler: Some(expire::pttl),
        ..ROW
    },
    Command {
        name: "randomkey",
        tips: &["request_policy:all_shards", "nondeterministic_output"],
        arity: 1,
        flags: Flags::READONLY,
        since: "1.0.0",
        summary: "Returns some key of the database.",
        handler: Some(keys::randomkey),
        ..ROW
    },
    Command {
        name: "rename",
        arity: 3,
        flags: Flags::WRITE,
        keys: &[key_range(1, 1, TAKES), key_range(2, 2, KeyFlags::OW.union(KeyFlags::UPDATE))],
        since: "1.0.0",
        summary: "Gives a key another name, replacing whatever has that name.",
        handler: Some(keys::rename),
        ..ROW
    },
    Command {
        name: "renamenx",
        arity: 3,
        flags: WRITE_FAST,
        keys: &[key_range(1, 1, TAKES), key_range(2, 2, KeyFlags::OW.union(KeyFlags::INSERT))],
        since: "1.0.0",
        summary: "Gives a key another name, if nothing has that name.",
        handler: Some(keys::renamenx),
        ..ROW
    },
    Command {
        name: "scan",
        tips: &["nondeterministic_output", "request_policy:special"],
        arity: -2,
        flags: Flags::READONLY,
        since: "2.8.0",
        complexity: "O(1) for a call, O(N) for all calls that it takes to go through N keys.",
        summary: "Goes through the keys of the database, some at each call.",
        handler: Some(scan::scan),
        ..ROW
    },
    Command {
        name: "touch",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        arity: -2,
        flags: READ_FAST,
        keys: INSPECTS_ALL,
        since: "3.2.1",
        complexity: "O(N) where N is the number of keys.",
        summary: "Notes a use of keys and counts those that exist.",
        handler: Some(keys::touch),
        ..ROW
    },
    Command {
        name: "ttl",
        tips: &["nondeterministic_output"],
        arity: 2,
        flags: READ_FAST,
        keys: READS,
        since: "1.0.0",
        summary: "Returns how many seconds a key has left.",
        handler: Some(expire::ttl),
        ..ROW
    },
    Command {
        name: "type",
        arity: 2,
        flags: READ_FAST,
        keys: INSPECTS,
        since: "1.0.0",
        summary: "Returns the type of a key's value.",
        handler: Some(keys::type_of),
        ..ROW
    },
    Command {
        name: "unlink",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
        arity: -2,
        flags: WRITE_FAST,
        keys: REMOVES_ALL,
        since: "4.0.0",
        complexity: "O(N) where N is the number of keys.",
        summary: "Removes keys, leaving it to the background to free what is large.",
        handler: Some(keys::del),
        ..ROW
    },
];

static OBJECT: &[Command] = &[
    Command {
        name: "encoding",
        tips: &["nondeterministic_output"],
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        since: "2.2.3",
        summary: "Returns the name of the form in which a value is stored.",
        handler: Some(object::encoding),
        ..ROW
    },
    Command {
        name: "freq",
        tips: &["nondeterministic_output"],
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        since: "4.0.0",
        summary: "Returns how often a value is used, on a logarithmic scale.",
        handler: Some(object::freq),
        ..ROW
    },
    Command { since: "6.2.0", ..ROW.help(object::help) },
    Command {
        name: "idletime",
        tips: &["nondeterministic_output"],
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        since: "2.2.3",
        summary: "Returns for how many seconds a value has not been used.",
        handler: Some(object::idletime),
        ..ROW
    },
    Command {
        name: "refcount",
        tips: &["nondeterministic_output"],
        arity: 3,
        flags: Flags::READONLY,
        keys: INSPECTS_SECOND,
        since: "2.2.3",
        summary: "Returns the number of references to a value.",
        handler: Some(object::refcount),
        ..ROW
    },
];
