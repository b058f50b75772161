//! Strings that are numbers.

pub use super::long_double::LongDouble;
use super::with_text;
use crate::{Context, Error, EventClass, Outcome, args};
use alloc::vec::Vec;
use kayvee_keyspace::{Expiry, Kind, Owned, Value, parse_integer};
use kayvee_resp::Request;

/// Texts of numbers up to this length are parsed with the memory that small allocations always have.
const SHORT_TEXT_BYTES: usize = 256;
/// What parsing the longest one takes at most.
const LONG_TEXT_MEMORY_BYTES: u64 = 64 << 10;

pub const OVERFLOW: Error = Error::text("ERR increment or decrement would overflow");

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

/// Reads floating-point numbers as far as there is memory for that.
pub struct FloatParser {
    has_room: bool,
}

impl FloatParser {
    pub fn new(context: &Context<'_>) -> FloatParser {
        FloatParser { has_room: context.store.has_room_for(LONG_TEXT_MEMORY_BYTES) }
    }

    pub fn parse(&self, text: &[u8]) -> Result<LongDouble, Error> {
        if text.len() > SHORT_TEXT_BYTES && !self.has_room {
            return Err(Error::OUT_OF_MEMORY);
        }
        LongDouble::parse(text).ok_or(Error::NOT_FLOAT)
    }
}

/// The sum of two numbers as text.
pub fn sum_text(old: LongDouble, increment: LongDouble) -> Result<Vec<u8>, Error> {
    let sum = old.plus(increment).ok_or(Error::text("ERR increment would produce NaN or Infinity"))?;
    Ok(sum.to_text()?)
}

pub fn incrbyfloat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let parser = FloatParser::new(context);
    let old = match context.find_to_change(key, Kind::String)? {
        Some(found) => with_text(context.db().value(found), |text| parser.parse(text))?,
        None => LongDouble::ZERO,
    };
    let increment = parser.parse(&request[2])?;
    let text = sum_text(old, increment)?;
    context.reply.bulk(&text);
    let now_ms = context.now_ms();
    // Redis leaves even a whole number as text here.
    let told = if context.effects_are_wanted() { args::copied(&text)? } else { Vec::new() };
    context.db().set(key, Owned::Kept(text), Expiry::Keep, now_ms)?;
    context.effect(&[b"SET", key, &told, b"KEEPTTL"]);
    context.changed(EventClass::STRING, "incrbyfloat", key);
    Ok(())
}
