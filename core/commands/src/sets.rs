//! Sets.

use crate::{
    strings::with_text,
    table::{Categories, Command, Flags, KeyFlags, Keys},
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
const ROW: Command = Command { categories: Categories::SET, group: "set", ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "sadd",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST),
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::INSERT))],
        since: "1.0.0",
        complexity: "O(1) for each member.",
        summary: "Adds members to a set, and creates the set where there is none.",
        handler: Some(basic::sadd),
        ..ROW
    },
    Command {
        name: "scard",
        arity: 2,
        flags: READ_FAST,
        keys: MEASURES,
        since: "1.0.0",
        summary: "Returns the number of members of a set.",
        handler: Some(basic::scard),
        ..ROW
    },
    Command {
        name: "sdiff",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS_ALL,
        since: "1.0.0",
        complexity: "O(N) where N is the number of members of all sets, or of the first one times the number of sets if that is less.",
        summary: "Returns the members of the first set that are in none of the others.",
        tips: &["nondeterministic_output_order"],
        handler: Some(algebra::sdiff),
        ..ROW
    },
    Command {
        name: "sdiffstore",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), READS_OTHERS],
        since: "1.0.0",
        complexity: "O(N) where N is the number of members of all sets, or of the first one times the number of sets if that is less.",
        summary: "Stores the members of the first set that are in none of the others.",
        handler: Some(algebra::sdiffstore),
        ..ROW
    },
    Command {
        name: "sinter",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS_ALL,
        since: "1.0.0",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        summary: "Returns the members that all the sets have in common.",
        tips: &["nondeterministic_output_order"],
        handler: Some(algebra::sinter),
        ..ROW
    },
    Command {
        name: "sintercard",
        arity: -3,
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(1, KeyFlags::RO.union(KeyFlags::ACCESS))],
        since: "7.0.0",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        summary: "Counts the members that all the sets have in common.",
        handler: Some(algebra::sintercard),
        ..ROW
    },
    Command {
        name: "sinterstore",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE)), READS_OTHERS],
        since: "1.0.0",
        complexity: "O(N*M) where N is the size of the smallest set and M the number of sets.",
        summary: "Stores the members that all the sets have in common.",
        handler: Some(algebra::sinterstore),
        ..ROW
    },
    Command {
        name: "sismember",
        arity: 3,
        flags: READ_FAST,
        keys: MEASURES,
        since: "1.0.0",
        summary: "Tells whether a set has a member.",
        handler: Some(basic::sismember),
        ..ROW
    },
    Command {
        name: "smembers",
        arity: 2,
        flags: Flags::READONLY,
        keys: READS,
        since: "1.0.0",
        complexity: "O(N) where N is the size of the set.",
        summary: "Returns all members of a set.",
        tips: &["nondeterministic_output_order"],
        handler: Some(basic::smembers),
        ..ROW
    },
    Command {
        name: "smismember",
        arity: -3,
        flags: READ_FAST,
        keys: READS,
        since: "6.2.0",
        complexity: "O(N) where N is the number of members asked for.",
        summary: "Tells of several members whether a set has them.",
        handler: Some(basic::smismember),
        ..ROW
    },
    Command {
        name: "smove",
        arity: 4,
        flags: WRITE_FAST,
        keys: &[Keys::one(1, TAKES), Keys::one(2, KeyFlags::RW.union(KeyFlags::INSERT))],
        since: "1.0.0",
        summary: "Moves a member from one set to another.",
        handler: Some(basic::smove),
        ..ROW
    },
    Command {
        name: "spop",
        arity: -2,
        flags: WRITE_FAST,
        keys: &[Keys::one(1, TAKES)],
        since: "1.0.0",
        complexity: "O(N) where N is the number of members that are removed.",
        summary: "Removes random members of a set and returns them.",
        tips: &["nondeterministic_output"],
        handler: Some(random::spop),
        ..ROW
    },
    Command {
        name: "srandmember",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS,
        since: "1.0.0",
        complexity: "O(N) where N is the number of returned members, or the size of the set if most of it is returned.",
        summary: "Returns random members of a set.",
        tips: &["nondeterministic_output"],
        handler: Some(random::srandmember),
        ..ROW
    },
    Command {
        name: "srem",
        arity: -3,
        flags: WRITE_FAST,
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::DELETE))],
        since: "1.0.0",
        complexity: "O(N) where N is the number of members.",
        summary: "Removes members of a set, and the set with the last of them.",
        handler: Some(basic::srem),
        ..ROW
    },
    Command {
        name: "sscan",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS,
        since: "2.8.0",
        complexity: "O(1) for every call, O(N) for all of N members.",
        summary: "Goes through the members of a set bit by bit.",
        tips: &["nondeterministic_output"],
        handler: Some(basic::sscan),
        ..ROW
    },
    Command {
        name: "sunion",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS_ALL,
        since: "1.0.0",
        complexity: "O(N) where N is the number of members of all sets.",
        summary: "Returns the members that any of the sets has.",
        tips: &["nondeterministic_output_order"],
        handler: Some(algebra::sunion),
        ..ROW
    },
    Command {
        name: "sunionstore",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), READS_OTHERS],
        since: "1.0.0",
        complexity: "O(N) where N is the number of members of all sets.",
        summary: "Stores the members that any of the sets has.",
        handler: Some(algebra::sunionstore),
        ..ROW
    },
];

/// Writes a member, whatever form it is stored in.
fn bulk(reply: &mut Writer<'_>, member: Value<'_>) {
    with_text(member, |text| reply.bulk(text));
}
