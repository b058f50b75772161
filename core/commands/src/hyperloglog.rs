//! HyperLogLogs: how many different elements were seen, told from 16,384 small registers within 1 %.
//!
//! One is a string, whose bytes are those of Redis: an application may read it by `GET` and give it to another server.

use crate::{
    Context, Error, EventClass, Outcome,
    strings::with_text,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys},
};
use alloc::vec::Vec;
use kayvee_keyspace::{Expiry, Found, Kind, OutOfMemory, Owned};
use kayvee_resp::Request;
use registers::{Corrupt, Encoding, REGISTERS};

mod debug;
mod estimate;
mod registers;
mod sparse;
#[cfg(test)]
mod tests;

const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);

/// What all rows share.
const ROW: Command = Command { categories: Categories::HYPERLOGLOG, group: Group::Hyperloglog, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "pfadd",
        arity: -2,
        flags: GROW.union(Flags::FAST),
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::INSERT))],
        handler: Some(pfadd),
        ..ROW
    },
    Command {
        name: "pfcount",
        arity: -2,
        flags: Flags::READONLY.union(Flags::MAY_REPLICATE),
        keys: &[Keys::range(1, -1, 1, KeyFlags::RW.union(KeyFlags::ACCESS))],
        handler: Some(pfcount),
        ..ROW
    },
    Command {
        name: "pfdebug",
        arity: 3,
        flags: GROW.union(Flags::ADMIN),
        keys: &[Keys::one(2, KeyFlags::RW.union(KeyFlags::ACCESS))],
        handler: Some(debug::pfdebug),
        ..ROW
    },
    Command {
        name: "pfmerge",
        arity: -2,
        flags: GROW,
        keys: &[
            Keys::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::INSERT)),
            Keys::range(2, -1, 1, KeyFlags::RO.union(KeyFlags::ACCESS)),
        ],
        handler: Some(pfmerge),
        ..ROW
    },
    Command { name: "pfselftest", arity: 1, flags: Flags::ADMIN, keys: &[], handler: Some(debug::pfselftest), ..ROW },
];

const NOT_ONE: Error = Error::text("WRONGTYPE Key is not a valid HyperLogLog string value.");

impl From<Corrupt> for Error {
    fn from(_: Corrupt) -> Error {
        Error::text("INVALIDOBJ Corrupted HLL object detected")
    }
}

/// Lends the HyperLogLog at a key.
fn with_bytes<R>(context: &mut Context<'_>, found: Found, use_it: impl FnOnce(&[u8]) -> R) -> Result<R, Error> {
    with_text(context.db().value(found), |bytes| match registers::encoding(bytes) {
        Some(_) => Ok(use_it(bytes)),
        None => Err(NOT_ONE),
    })
}

/// A copy of the HyperLogLog at a key, or a new one.
fn copied(context: &mut Context<'_>, found: Option<Found>) -> Result<Vec<u8>, Error> {
    let Some(found) = found else { return Ok(sparse::empty()) };
    with_bytes(context, found, |bytes| {
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len()).map_err(|_| OutOfMemory)?;
        copy.extend_from_slice(bytes);
        Ok(copy)
    })?
}

/// Registers that have seen nothing.
fn no_registers() -> Result<Vec<u8>, OutOfMemory> {
    let mut registers = Vec::new();
    registers.try_reserve_exact(REGISTERS)?;
    registers.resize(REGISTERS, 0);
    Ok(registers)
}

fn store(context: &mut Context<'_>, key: &[u8], bytes: Vec<u8>) -> Outcome {
    let now_ms = context.now_ms();
    Ok(context.db().set(key, Owned::Raw(bytes), Expiry::Keep, now_ms)?)
}

fn pfadd(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let found = context.find_to_change(key, Kind::String)?;
    let dense_len = match found {
        Some(found) => with_bytes(context, found, |bytes| {
            (registers::encoding(bytes) == Some(Encoding::Dense)).then_some(bytes.len())
        })?,
        None => None,
    };
    let changed = match dense_len {
        Some(len) => {
            let now_ms = context.now_ms();
            let bytes = context.db().resize(key, len, 0, now_ms)?;
            add_all(request, |index, count| Ok(registers::raise_dense(bytes, index, count)))?
        }
        None => {
            let limit = context.store.options.hll_sparse_max_bytes as usize;
            let mut bytes = copied(context, found)?;
            let raised = add_all(request, |index, count| registers::raise(&mut bytes, index, count, limit))?;
            let changed = raised || found.is_none();
            if changed {
                // Even of a new one, as in Redis.
                registers::forget_count(&mut bytes);
                store(context, key, bytes)?;
            }
            changed
        }
    };
    if changed {
        context.changed(EventClass::STRING, "pfadd", key);
    }
    context.reply.integer(changed.into());
    Ok(())
}

/// Raises the registers of all elements. Returns whether any changed.
fn add_all(request: Request<'_>, mut raise: impl FnMut(usize, u8) -> Result<bool, Error>) -> Result<bool, Error> {
    let mut changed = false;
    for element in request.from(2) {
        let (index, count) = registers::register_of(element);
        changed |= raise(index, count)?;
    }
    Ok(changed)
}

fn pfcount(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let count = if request.len() == 2 {
        count_one(context, &request[1])?
    } else {
        let mut highest = no_registers()?;
        for key in request.from(1) {
            if let Some(found) = context.read(key, Kind::String)? {
                with_bytes(context, found, |bytes| registers::merge(bytes, &mut highest))??;
            }
        }
        estimate::estimate(&registers::histogram(highest.iter().map(|register| (1, *register))))
    };
    context.reply.integer(count as i64);
    Ok(())
}

/// The count that a HyperLogLog keeps, or a new one, which it keeps then.
fn count_one(context: &mut Context<'_>, key: &[u8]) -> Result<u64, Error> {
    let Some(found) = context.read(key, Kind::String)? else { return Ok(0) };
    let (kept, len) = with_bytes(context, found, |bytes| (registers::kept_count(bytes), bytes.len()))?;
    if let Some(count) = kept {
        return Ok(count);
    }
    let count = with_bytes(context, found, estimate::count)??;
    let now_ms = context.now_ms();
    registers::keep_count(context.db().resize(key, len, 0, now_ms)?, count);
    // The count is a part of the value.
    context.effect(&[b"PFCOUNT", key]);
    let db = context.db_index();
    context.store.changed(db, key);
    Ok(count)
}

fn pfmerge(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let mut highest = no_registers()?;
    let mut is_dense = false;
    for source in request.from(1) {
        if let Some(found) = context.read(source, Kind::String)? {
            with_bytes(context, found, |bytes| {
                is_dense |= registers::encoding(bytes) == Some(Encoding::Dense);
                registers::merge(bytes, &mut highest)
            })??;
        }
    }
    let found = context.find_to_change(key, Kind::String)?;
    let mut bytes = copied(context, found)?;
    if is_dense {
        registers::make_dense(&mut bytes)?;
    }
    let limit = context.store.options.hll_sparse_max_bytes as usize;
    for (index, count) in highest.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        registers::raise(&mut bytes, index, count, limit)?;
    }
    registers::forget_count(&mut bytes);
    store(context, key, bytes)?;
    context.changed(EventClass::STRING, "pfadd", key);
    context.reply.ok();
    Ok(())
}
