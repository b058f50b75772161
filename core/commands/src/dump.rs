//! `DUMP` and `RESTORE`: values as bytes, in the format of Redis' dump files.

use crate::{
    Context, Error, Outcome,
    table::{Categories, Command, Flags, KeyFlags, Keys},
};
use alloc::{format, vec::Vec};
use kayvee_keyspace::Expiry;
use kayvee_rdb::{Compression, FOOTER, VERSION, Writer};
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
    for key in keys(context) {
        let Some(found) = context.find(&key) else { continue };
        let value = write::payload(context, found)?;
        let expiry = context.db().expires_ms(found).map_or(Expiry::Never, Expiry::At);
        context.db().remove(found);
        restore::put(context, &key, &value, Some(expiry))?;
    }
    Ok(())
}

/// All data as a dump file, as Redis loads it.
pub fn snapshot(context: &mut Context<'_>) -> Result<Vec<u8>, Error> {
    const SELECT_DB: u8 = 0xfe;
    const EXPIRY_MS: u8 = 0xfc;
    const FUNCTION: u8 = 0xf5;
    let mut file = Writer::part(Compression::Off);
    file.bytes(format!("REDIS{VERSION:04}").as_bytes());
    for library in context.store.scripting.library_texts() {
        file.bytes(&[FUNCTION]);
        file.text(library);
    }
    let own_db = context.db_index();
    let mut written = Ok(());
    for index in 0..context.store.dbs.len() {
        if context.store.dbs[index].is_empty() {
            continue;
        }
        file.bytes(&[SELECT_DB]);
        file.len(index as u64);
        context.session().db = index;
        for key in keys(context) {
            let Some(found) = context.find(&key) else { continue };
            if let Some(at_ms) = context.db().expires_ms(found) {
                file.bytes(&[EXPIRY_MS]);
                file.bytes(&at_ms.to_le_bytes());
            }
            match write::payload(context, found) {
                Ok(payload) => {
                    file.bytes(&payload[..1]);
                    file.text(&key);
                    file.bytes(&payload[1..payload.len() - FOOTER]);
                }
                Err(error) => written = Err(error),
            }
        }
    }
    context.session().db = own_db;
    written?;
    file.finish_file().map_err(|_| Error::OUT_OF_MEMORY)
}

/// The keys of the client's database.
fn keys(context: &mut Context<'_>) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let now_ms = context.now_ms();
    let mut cursor = 0;
    loop {
        cursor = context.db().scan(cursor, now_ms, |key, _| keys.push(key.to_vec()));
        if cursor == 0 {
            return keys;
        }
    }
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
