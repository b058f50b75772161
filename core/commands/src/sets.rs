//! Sets.

use crate::{
    strings::with_text,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips},
};
use kayvee_keyspace::Value;
use kayvee_resp::Writer;

mod algebra;
mod basic;
mod random;
#[cfg(test)]
mod tests;

const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);

const MEASURES: &[Keys] = &[Keys::one(1, KeyFlags::RO)];
const READS: &[Keys] = &[Keys::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const READS_ALL: &[Keys] = &[Keys::range(1, -1, 1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const READS_OTHERS: Keys = Keys::range(2, -1, 1, KeyFlags::RO.union(KeyFlags::ACCESS));
const TAKES: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);

/// What all rows share.
const ROW: Command = Command { categories: Categories::SET, group: Group::Set, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "sadd",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST),
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::INSERT))],
        handler: Some(basic::sadd),
        ..ROW
    },
    Command { name: "scard", arity: 2, flags: READ_FAST, keys: MEASURES, handler: Some(basic::scard), ..ROW },
    Command {
        name: "sdiff",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS_ALL,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(algebra::sdiff),
        ..ROW
    },
    Command {
        name: "sdiffstore",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), READS_OTHERS],
        handler: Some(algebra::sdiffstore),
        ..ROW
    },
    Command {
        name: "sinter",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS_ALL,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(algebra::sinter),
        ..ROW
    },
    Command {
        name: "sintercard",
        arity: -3,
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(1, KeyFlags::RO.union(KeyFlags::ACCESS))],
        handler: Some(algebra::sintercard),
        ..ROW
    },
    Command {
        name: "sinterstore",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE)), READS_OTHERS],
        handler: Some(algebra::sinterstore),
        ..ROW
    },
    Command { name: "sismember", arity: 3, flags: READ_FAST, keys: MEASURES, handler: Some(basic::sismember), ..ROW },
    Command {
        name: "smembers",
        arity: 2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(basic::smembers),
        ..ROW
    },
    Command { name: "smismember", arity: -3, flags: READ_FAST, keys: READS, handler: Some(basic::smismember), ..ROW },
    Command {
        name: "smove",
        arity: 4,
        flags: WRITE_FAST,
        keys: &[Keys::one(1, TAKES), Keys::one(2, KeyFlags::RW.union(KeyFlags::INSERT))],
        handler: Some(basic::smove),
        ..ROW
    },
    Command {
        name: "spop",
        arity: -2,
        flags: WRITE_FAST,
        keys: &[Keys::one(1, TAKES)],
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(random::spop),
        ..ROW
    },
    Command {
        name: "srandmember",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(random::srandmember),
        ..ROW
    },
    Command {
        name: "srem",
        arity: -3,
        flags: WRITE_FAST,
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::DELETE))],
        handler: Some(basic::srem),
        ..ROW
    },
    Command {
        name: "sscan",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(basic::sscan),
        ..ROW
    },
    Command {
        name: "sunion",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS_ALL,
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        handler: Some(algebra::sunion),
        ..ROW
    },
    Command {
        name: "sunionstore",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), READS_OTHERS],
        handler: Some(algebra::sunionstore),
        ..ROW
    },
];

/// Writes a member, whatever form it is stored in.
fn bulk(reply: &mut Writer<'_>, member: Value<'_>) {
    with_text(member, |text| reply.bulk(text));
}
