//! Strings that are numbers.

use super::long_double::LongDouble;
use super::with_text;
use crate::{Context, Error, EventClass, Outcome, args};
use kayvee_keyspace::{Expiry, Kind, Owned, Value, parse_integer};
use kayvee_resp::Request;

/// Texts of numbers up to this length are parsed with the memory that small allocations always have.
const SHORT_TEXT_BYTES: usize = 256;
/// What parsing the longest one takes at most.
const LONG_TEXT_MEMORY_BYTES: u64 = 64 << 10;

const OVERFLOW: Error = Error::text("ERR increment or decrement would overflow");

pub fn incr(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    add(context, &request[1], 1)
}

pub fn decr(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    add(context, &request[1], -1)
}

pub fn incrby(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    add(context, &request[1], args::integer(&request[2])?)
}

pub fn decrby(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let decrement = args::integer(&request[2])?;
    add(context, &request[1], decrement.checked_neg().ok_or(Error::text("ERR decrement would overflow"))?)
}

fn add(context: &mut Context<'_>, key: &[u8], increment: i64) -> Outcome {
    let old = match context.find_to_change(key, Kind::String)?.map(|found| context.db().value(found)) {
        None => 0,
        Some(Value::Integer(number)) => number,
        Some(Value::Bytes(bytes)) => parse_integer(bytes).ok_or(Error::NOT_INTEGER)?,
    };
    let sum = old.checked_add(increment).ok_or(OVERFLOW)?;
    let now_ms = context.now_ms();
    context.db().set(key, Owned::Integer(sum), Expiry::Keep, now_ms)?;
    context.changed(EventClass::STRING, "incrby", key);
    context.reply.integer(sum);
    Ok(())
}

pub fn incrbyfloat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let has_room = context.store.has_room_for(LONG_TEXT_MEMORY_BYTES);
    let parse = |text: &[u8]| match LongDouble::parse {
        _ if text.len() > SHORT_TEXT_BYTES && !has_room => Err(Error::OUT_OF_MEMORY),
        parse => parse(text).ok_or(Error::NOT_FLOAT),
    };
    let old = match context.find_to_change(key, Kind::String)? {
        Some(found) => with_text(context.db().value(found), parse)?,
        None => LongDouble::ZERO,
    };
    let increment = parse(&request[2])?;
    let sum = old.plus(increment).ok_or(Error::text("ERR increment would produce NaN or Infinity"))?;
    let text = sum.to_text()?;
    context.reply.bulk(&text);
    let now_ms = context.now_ms();
    // Redis leaves even a whole number as text here.
    context.db().set(key, Owned::Kept(text), Expiry::Keep, now_ms)?;
    context.changed(EventClass::STRING, "incrbyfloat", key);
    Ok(())
}
