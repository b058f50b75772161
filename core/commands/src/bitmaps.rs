//! Strings as arrays of bits, of which the first is the highest of the first byte.

use crate::{
    Context, Error, args,
    strings::{ranges::grow, with_text},
    table::{Categories, Command, Flags, Group, KeyFlags, Keys},
};
use kayvee_keyspace::{Kind, Value, parse_integer};

mod bits;
mod field;
mod op;
#[cfg(test)]
mod tests;

const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);

const ACCESS: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const CHANGES: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE);
const READS: &[Keys] = &[Keys::one(1, ACCESS)];

/// What all rows share.
const ROW: Command = Command { categories: Categories::BITMAP, group: Group::Bitmap, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "bitcount", arity: -2, flags: Flags::READONLY, keys: READS, handler: Some(bits::bitcount), ..ROW },
    Command {
        name: "bitfield",
        arity: -2,
        flags: GROW,
        keys: &[Keys::one(1, CHANGES.union(KeyFlags::VARIABLE_FLAGS))],
        find_keys: Some(field::keys),
        handler: Some(field::bitfield),
        ..ROW
    },
    Command { name: "bitfield_ro", arity: -2, flags: READ_FAST, keys: READS, handler: Some(field::bitfield_ro), ..ROW },
    Command {
        name: "bitop",
        arity: -4,
        flags: GROW,
        keys: &[Keys::one(2, KeyFlags::OW.union(KeyFlags::UPDATE)), Keys::range(3, -1, 1, ACCESS)],
        handler: Some(op::bitop),
        ..ROW
    },
    Command { name: "bitpos", arity: -3, flags: Flags::READONLY, keys: READS, handler: Some(bits::bitpos), ..ROW },
    Command { name: "getbit", arity: 3, flags: READ_FAST, keys: READS, handler: Some(bits::getbit), ..ROW },
    Command {
        name: "setbit",
        arity: 4,
        flags: GROW,
        keys: &[Keys::one(1, CHANGES)],
        handler: Some(bits::setbit),
        ..ROW
    },
];

const WRONG_OFFSET: Error = Error::text("ERR bit offset is not an integer or out of range");

/// The number of a bit; one behind `#` counts integers of so many bits, where that is allowed.
fn offset(context: &Context<'_>, arg: &[u8], unit_bits: Option<u32>) -> Result<u64, Error> {
    let (digits, unit) = match (unit_bits, arg) {
        (Some(bits), [b'#', digits @ ..]) => (digits, i64::from(bits)),
        _ => (arg, 1),
    };
    let offset = parse_integer(digits).ok_or(WRONG_OFFSET)?.wrapping_mul(unit);
    let offset = u64::try_from(offset).map_err(|_| WRONG_OFFSET)?;
    if offset >> 3 >= context.string_limit_bytes() { Err(WRONG_OFFSET) } else { Ok(offset) }
}

/// The string at a key with room up to this bit, and whether it was made or grew for that.
fn with_room_for<'a>(context: &'a mut Context<'_>, key: &[u8], last_bit: u64) -> Result<(&'a mut [u8], bool), Error> {
    let found = context.find_to_change(key, Kind::String)?;
    let old_len = found.map_or(0, |found| with_text(context.db().value(found), <[u8]>::len));
    let len = old_len.max((last_bit >> 3) as usize + 1);
    Ok((grow(context, key, old_len, len)?, len > old_len))
}

/// Lends the string at a key, which is empty where there is no key.
fn with_string<R>(context: &mut Context<'_>, key: &[u8], use_it: impl FnOnce(&[u8]) -> R) -> Result<R, Error> {
    let found = context.read(key, Kind::String)?;
    Ok(with_text(found.map_or(Value::Bytes(&[]), |found| context.db().value(found)), use_it))
}

/// What a range counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Byte,
    Bit,
}

impl Unit {
    fn parse(arg: &[u8]) -> Result<Unit, Error> {
        match () {
            () if args::is(arg, "byte") => Ok(Unit::Byte),
            () if args::is(arg, "bit") => Ok(Unit::Bit),
            () => Err(Error::SYNTAX),
        }
    }
}
