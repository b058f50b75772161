//! `DUMP` and `RESTORE`: values as bytes, in the format of Redis' dump files.

use crate::{
    Context, Error, History, Outcome, Store,
    server::REDIS_VERSION,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_keyspace::{Expiry, Found};
use kayvee_rdb::{
    Checksum, Compression, Dialect, Writer,
    file::{FileWriter, Use},
};
use kayvee_resp::Request;

pub(crate) mod part;
mod restore;
mod write;

pub use restore::{give as give_value, is_about_emptiness, put as load_value};
pub use write::value as write_value;

#[cfg(test)]
mod tests;

/// What all rows share.
const ROW: Command = Command { categories: Categories::KEYSPACE, group: Group::Generic, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "dump",
        arity: 2,
        flags: Flags::READONLY,
        keys: &[Keys::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))],
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(dump),
        ..ROW
    },
    Command {
        name: "restore",
        arity: -4,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE))],
        categories: Categories::KEYSPACE.union(Categories::DANGEROUS),
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
    let db = context.db_index();
    for key in keys(context)? {
        let Some(found) = context.find(&key) else { continue };
        context.store.write_down_key(db, found);
        let mut writer = Writer::new(Compression::On);
        write_value(context.store, db, found, &mut writer, Dialect::Redis72)?;
        let value = writer.into_bytes().map_err(|_| Error::OUT_OF_MEMORY)?;
        let expiry = context.db().expires_ms(found).map_or(Expiry::Never, Expiry::At);
        context.db().remove(found);
        load_value(context.store, db, &key, (value[0], &value[1..]), Some(expiry))?;
    }
    Ok(())
}

/// Writes all data as a dump file, whose bytes `take` gets piece by piece.
pub fn write_file<E: From<Error>>(
    store: &Store,
    dialect: Dialect,
    compression: Compression,
    checksum: Checksum,
    history: Option<&History>,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    /// Bytes of a piece, at least.
    const PIECE_BYTES: usize = 64 << 10;
    let mut file = FileWriter::new(file_dialect(store, dialect), compression, checksum);
    write_about(store, history, &mut file);
    store.scripting.library_texts().for_each(|text| file.function(text));
    // Keys whose time has come are there until somebody is told that they go.
    const NO_TIME: u64 = 0;
    for (index, db) in store.dbs.iter().enumerate().filter(|(_, db)| !db.is_empty()) {
        file.database(index as u64, db.len() as u64, db.volatile_len() as u64);
        let mut cursor = 0;
        loop {
            let mut result = Ok(());
            cursor = db.visit(cursor, NO_TIME, |found| {
                if result.is_ok() {
                    result = write_entry(store, index, found, &mut file, dialect).map_err(E::from);
                }
                if result.is_ok() && file.waiting() >= PIECE_BYTES {
                    result = file.drain(|bytes| take(bytes).map_err(Stop::Other)).map_err(Stop::into);
                }
            });
            result?;
            if cursor == 0 {
                break;
            }
        }
    }
    file.finish(|bytes| take(bytes).map_err(Stop::Other)).map_err(Stop::into)
}

/// The dialect that a file says it has: an older one has no form for hashes of whose fields some expire.
pub fn file_dialect(store: &Store, dialect: Dialect) -> Dialect {
    let has_newer = store.dbs.iter().any(|db| db.expiring_hashes() > 0);
    if has_newer { Dialect::Redis74 } else { dialect }
}

/// Writes the libraries of functions as a dump file without keys.
pub fn write_functions<E: From<Error>>(
    store: &Store,
    dialect: Dialect,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut file = FileWriter::new(dialect, Compression::Off, Checksum::On);
    store.scripting.library_texts().for_each(|text| file.function(text));
    file.finish(|bytes| take(bytes).map_err(Stop::Other)).map_err(Stop::into)
}

/// Why a file was not written.
enum Stop<E> {
    OutOfMemory,
    Other(E),
}

impl<E> From<kayvee_rdb::Error> for Stop<E> {
    fn from(_: kayvee_rdb::Error) -> Stop<E> {
        // Nothing is read that could be corrupt.
        Stop::OutOfMemory
    }
}

impl<E: From<Error>> Stop<E> {
    fn into(self) -> E {
        match self {
            Stop::OutOfMemory => Error::OUT_OF_MEMORY.into(),
            Stop::Other(error) => error,
        }
    }
}

/// Writes what a file says about itself, as Redis' do.
pub fn write_about(store: &Store, history: Option<&History>, file: &mut FileWriter) {
    for (name, text) in [
        ("redis-ver", REDIS_VERSION.into()),
        ("redis-bits", "64".into()),
        ("ctime", format!("{}", store.now.unix_us / 1_000_000)),
        ("used-mem", format!("{}", store.used_bytes())),
    ] {
        file.aux(name, String::as_bytes(&text));
    }
    for (name, text) in history.iter().flat_map(|history| history.fields()) {
        file.aux(name, text.as_bytes());
    }
}

/// Writes a key with its value.
pub fn write_entry(store: &Store, index: usize, found: Found, file: &mut FileWriter, dialect: Dialect) -> Outcome {
    let db = &store.dbs[index];
    let now_ms = store.now.unix_ms();
    let policy = store.options.maxmemory_policy;
    let usage = match policy.measures_use() {
        true if policy.is_lfu() => Use::Frequency(db.frequency(found, now_ms)),
        true => Use::IdleSeconds(db.idle_s(found, now_ms).into()),
        false => Use::Unknown,
    };
    file.entry(db.key(found), db.expires_ms(found), usage, |writer| write_value(store, index, found, writer, dialect))
}

/// The keys of the client's database.
fn keys(context: &mut Context<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let now_ms = context.now_ms();
    let mut cursor = 0;
    let mut result = Ok(());
    loop {
        cursor = context.db().scan(cursor, now_ms, |key, _| {
            let mut copy = Vec::new();
            if result.is_ok() {
                result = copy.try_reserve_exact(key.len()).and_then(|()| keys.try_reserve(1));
            }
            if result.is_ok() {
                copy.extend_from_slice(key);
                keys.push(copy);
            }
        });
        if result.is_err() {
            return Err(Error::OUT_OF_MEMORY);
        }
        if cursor == 0 {
            return Ok(keys);
        }
    }
}

/// The value at a key as a `RESTORE` of Redis 7.0 takes it, and those of newer ones.
pub fn payload_for_older(store: &Store, db: usize, found: Found) -> Result<Vec<u8>, Error> {
    write::payload(store, db, found, Dialect::Redis70)
}

fn dump(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let Some(found) = context.read_any(&request[1]) else {
        context.reply.null();
        return Ok(());
    };
    let payload = write::payload(context.store, context.db_index(), found, Dialect::Redis72)?;
    context.reply.bulk(&payload);
    Ok(())
}
