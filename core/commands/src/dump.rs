//! `DUMP` and `RESTORE`: values as bytes, in the format of Redis' dump files.

use crate::{
    Context, Outcome,
    table::{Categories, Command, Flags, KeyFlags, Keys},
};
use kayvee_resp::Request;

mod restore;
mod write;

#[cfg(test)]
mod tests;

/// What all rows share.
const ROW: Command = Command { categories: Categories::KEYSPACE, group: "generic", ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "dump",
        arity: 2,
        flags: Flags::READONLY,
        keys: &[Keys::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))],
        since: "2.6.0",
        complexity: "O(N) where N is the size of the value.",
        summary: "Returns the value at a key as bytes that RESTORE takes.",
        tips: &["nondeterministic_output"],
        handler: Some(dump),
        ..ROW
    },
    Command {
        name: "restore",
        arity: -4,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE))],
        categories: Categories::KEYSPACE.union(Categories::DANGEROUS),
        since: "2.6.0",
        complexity: "O(N) where N is the size of the value; O(N*log(N)) for sorted sets.",
        summary: "Makes a key of the bytes that DUMP gave.",
        handler: Some(restore::restore),
        ..ROW
    },
];

fn dump(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(found) = context.read_any(&request[1]) else {
        context.reply.null();
        return Ok(());
    };
    let payload = write::payload(context, found)?;
    context.reply.bulk(&payload);
    Ok(())
}
