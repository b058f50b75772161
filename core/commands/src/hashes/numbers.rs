//! Fields that are numbers.

use super::{edit, find_to_change};
use crate::{
    Context, Error, EventClass, Outcome, args,
    strings::{counters, with_text},
};
use kayvee_keyspace::{Decimal, Found, Value, parse_integer};
use kayvee_resp::Request;

/// The value of a field, if there is such a field.
fn value_of<'a>(context: &'a mut Context<'_>, found: Option<Found>, field: &[u8]) -> Option<Value<'a>> {
    found.and_then(|found| context.db().hash_as_stored(found).get(field))
}

/// Sets a field, which expires when it would have, and tells it as this event. Returns when it expires.
fn set(
    context: &mut Context<'_>,
    request: Request<'_>,
    found: Option<Found>,
    value: &[u8],
    event: &'static str,
) -> Result<Option<u64>, Error> {
    let limits = context.store.options.hash_limits();
    let (key, field) = (&request[1], &request[2]);
    let (index, mut at_ms) = (context.db_index(), None);
    edit(context.store, index, key, found, &mut |hash, records| {
        at_ms = hash.update(records, field, value, limits)?;
        Ok(())
    })?;
    context.changed(EventClass::HASH, event, key);
    Ok(at_ms)
}

pub fn hincrby(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let increment = args::integer(&request[3])?;
    let found = find_to_change(context, request, 2, 2)?;
    let old = match value_of(context, found, &request[2]) {
        None => 0,
        Some(Value::Integer(number)) => number,
        Some(Value::Bytes(text)) => parse_integer(text).ok_or(Error::text("ERR hash value is not an integer"))?,
    };
    let sum = old.checked_add(increment).ok_or(counters::OVERFLOW)?;
    set(context, request, found, Decimal::new(sum).as_bytes(), "hincrby")?;
    context.reply.integer(sum);
    Ok(())
}

pub fn hincrbyfloat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let parser = counters::FloatParser::new(context);
    let increment = parser.parse(&request[3])?;
    if !increment.is_finite() {
        return Err(Error::text("ERR value is NaN or Infinity"));
    }
    let found = find_to_change(context, request, 2, 2)?;
    let not_float =
        |error| if error == Error::NOT_FLOAT { Error::text("ERR hash value is not a float") } else { error };
    let old = value_of(context, found, &request[2]);
    let old = old.map_or(Ok(counters::LongDouble::ZERO), |value| with_text(value, |text| parser.parse(text)));
    let text = counters::sum_text(old.map_err(not_float)?, increment)?;
    let at_ms = set(context, request, found, &text, "hincrbyfloat")?;
    context.reply.bulk(&text);
    context.effect(&[b"HSET", &request[1], &request[2], &text]);
    if let Some(at_ms) = at_ms {
        let at = Decimal::unsigned(at_ms);
        context.effect(&[b"HPEXPIREAT", &request[1], at.as_bytes(), b"FIELDS", b"1", &request[2]]);
    }
    Ok(())
}
