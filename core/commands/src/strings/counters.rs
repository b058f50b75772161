//! Strings that are numbers.

use super::long_double::LongDouble;
use super::with_text;
use crate::{Context, Error, Outcome, args};
use kayvee_keyspace::{Expiry, Owned, Value, parse_integer};
use kayvee_resp::Request;

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
    let old = match context.find_to_change(key).map(|found| context.db().value(found)) {
        None => 0,
        Some(Value::Integer(number)) => number,
        Some(Value::Bytes(bytes)) => parse_integer(bytes).ok_or(Error::NOT_INTEGER)?,
    };
    let sum = old.checked_add(increment).ok_or(OVERFLOW)?;
    let now_ms = context.now_ms();
    context.db().set(key, Owned::Integer(sum), Expiry::Keep, now_ms)?;
    context.reply.integer(sum);
    Ok(())
}

pub fn incrbyfloat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let old = match context.find_to_change(key) {
        Some(found) => with_text(context.db().value(found), LongDouble::parse).ok_or(Error::NOT_FLOAT)?,
        None => LongDouble::ZERO,
    };
    let increment = LongDouble::parse(&request[2]).ok_or(Error::NOT_FLOAT)?;
    let sum = old.plus(increment).ok_or(Error::text("ERR increment would produce NaN or Infinity"))?;
    let text = sum.to_text()?;
    context.reply.bulk(&text);
    let now_ms = context.now_ms();
    // Redis leaves even a whole number as text here.
    Ok(context.db().set(key, Owned::Kept(text), Expiry::Keep, now_ms)?)
}
