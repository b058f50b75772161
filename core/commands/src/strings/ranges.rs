//! Parts of strings.

use super::with_text;
use crate::{Context, Error, EventClass, Outcome, args};
use kayvee_keyspace::{Expiry, Kind, Owned, Value};
use kayvee_resp::Request;

/// Length of the string at a key, or `None` where there is no key.
fn len_at(context: &mut Context<'_>, key: &[u8]) -> Result<Option<usize>, Error> {
    let found = context.find_to_change(key, Kind::String)?;
    Ok(found.map(|found| with_text(context.db().value(found), <[u8]>::len)))
}

/// Most bytes that are set aside behind a string that has grown, as in Redis.
const SPARE_LIMIT_BYTES: usize = 1 << 20;

/// Makes the string at a key longer, with room for more where memory is not short.
pub fn grow<'a>(context: &'a mut Context<'_>, key: &[u8], old_len: usize, len: usize) -> Result<&'a mut [u8], Error> {
    let room = context.store.data_room_bytes();
    let growth = (len - old_len) as u64;
    if growth > room {
        return Err(Error::OUT_OF_MEMORY);
    }
    let spare = len.min(SPARE_LIMIT_BYTES);
    let spare = if growth.saturating_add(spare as u64) > room { 0 } else { spare };
    let now_ms = context.now_ms();
    Ok(context.db().resize(key, len, spare, now_ms)?)
}

fn check_len(context: &Context<'_>, start: usize, len: usize) -> Result<usize, Error> {
    let end = start.checked_add(len).ok_or(Error::STRING_TOO_LONG)?;
    if end as u64 > context.string_limit_bytes() { Err(Error::STRING_TOO_LONG) } else { Ok(end) }
}

pub fn append(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (key, suffix) = (&request[1], &request[2]);
    let now_ms = context.now_ms();
    let len = match len_at(context, key)? {
        None => {
            context.db().set(key, Owned::Text(suffix), Expiry::Never, now_ms)?;
            suffix.len()
        }
        Some(old_len) => {
            let len = check_len(context, old_len, suffix.len())?;
            grow(context, key, old_len, len)?[old_len..].copy_from_slice(suffix);
            len
        }
    };
    context.changed(EventClass::STRING, "append", key);
    context.reply.integer(len as i64);
    Ok(())
}

pub fn setrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (key, part) = (&request[1], &request[3]);
    let Ok(offset) = usize::try_from(args::integer(&request[2])?) else {
        return Err(Error::text("ERR offset is out of range"));
    };
    let old_len = len_at(context, key)?.unwrap_or(0);
    if part.is_empty() {
        context.reply.integer(old_len as i64);
        return Ok(());
    }
    let end = check_len(context, offset, part.len())?;
    let len = old_len.max(end);
    grow(context, key, old_len, len)?[offset..end].copy_from_slice(part);
    context.changed(EventClass::STRING, "setrange", key);
    context.reply.integer(len as i64);
    Ok(())
}

pub fn getrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (start, end) = (args::integer(&request[2])?, args::integer(&request[3])?);
    let found = context.read(&request[1], Kind::String)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let value = found.map_or(Value::Bytes(&[]), |found| store.dbs[index].value(found));
    with_text(value, |text| reply.bulk(range_of(text, start, end)));
    Ok(())
}

/// The bytes from `start` to `end`, both included; negative numbers count from the end.
fn range_of(text: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let len = text.len() as i64;
    let absolute = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (absolute(start), absolute(end).min(len - 1));
    if start > end { &[] } else { &text[start as usize..=end as usize] }
}

pub fn strlen(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let len = match context.read(&request[1], Kind::String)? {
        Some(found) => with_text(context.db().value(found), <[u8]>::len),
        None => 0,
    };
    context.reply.integer(len as i64);
    Ok(())
}
