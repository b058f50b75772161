//! `DUMP` and `RESTORE`: values as bytes, in the format of Redis' dump files.

use crate::{
    Context, Outcome,
    table::{Categories, Command, Flags, KeyFlags, Keys},
};
use alloc::vec::Vec;
use kayvee_keyspace::Expiry;
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

/// `DEBUG RELOAD`: writes each value in the form of a dump and makes it anew from that, as saving and loading all data
/// would.
pub fn reload(context: &mut Context<'_>) -> Outcome {
    let own_db = context.db_index();
    let mut outcome = Ok(());
    for index in 0..context.store.dbs.len() {
        context.session().db = index;
        outcome = outcome.and_then(|()| reload_db(context));
    }
    context.session().db = own_db;
    outcome
}

fn reload_db(context: &mut Context<'_>) -> Outcome {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let now_ms = context.now_ms();
    let mut cursor = 0;
    loop {
        cursor = context.db().scan(cursor, now_ms, |key, _| keys.push(key.to_vec()));
        if cursor == 0 {
            break;
        }
    }
    for key in keys {
        let Some(found) = context.find(&key) else { continue };
        let value = write::payload(context, found)?;
        let expiry = context.db().expires_ms(found).map_or(Expiry::Never, Expiry::At);
        context.db().remove(found);
        restore::put(context, &key, &value, Some(expiry))?;
    }
    Ok(())
}

fn dump(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(found) = context.read_any(&request[1]) else {
        context.reply.null();
        return Ok(());
    };
    let payload = write::payload(context, found)?;
    context.reply.bulk(&payload);
    Ok(())
}
