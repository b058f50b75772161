//! Giving a consumer what is pending for others.

use super::{
    effects::{self, Touched},
    id, no_group, range_start, reply_entry, reply_id,
};
use crate::{Context, Error, EventClass, Outcome, args};
use alloc::{boxed::Box, vec::Vec};
use kayvee_keyspace::{Found, Kind, OutOfMemory, Pending, Stream, StreamId};
use kayvee_resp::{Request, Writer};

/// Finds the stream, which must have the group.
fn find_group(context: &mut Context<'_>, request: Request<'_>) -> Result<Found, Error> {
    let found = context.read(&request[1], Kind::Stream)?;
    let found = found.filter(|&found| context.db().stream(found).group(&request[2]).is_some());
    found.ok_or_else(|| no_group(&request[1], &request[2], ""))
}

/// How entries are claimed.
struct Claim {
    least_idle_ms: u64,
    delivered_ms: u64,
    deliveries: Option<u64>,
    /// Claims what is pending for nobody as well.
    force: bool,
    only_ids: bool,
    now_ms: u64,
}

impl Claim {
    /// Claims an entry that is in the stream, and replies with it. Returns whether it could be claimed.
    fn claim(
        &self,
        reply: &mut Writer<'_>,
        stream: &mut Stream,
        group: &[u8],
        consumer: u32,
        id: StreamId,
    ) -> Result<bool, OutOfMemory> {
        let of = stream.group_mut(group).expect("it was found");
        let pending = match of.pending(id) {
            Some(pending) if self.now_ms.saturating_sub(pending.delivered_ms) < self.least_idle_ms => return Ok(false),
            Some(pending) => pending,
            None if self.force => Pending { id, consumer, delivered_ms: 0, deliveries: 1 },
            None => return Ok(false),
        };
        let counted = pending.deliveries.saturating_add(u64::from(!self.only_ids));
        let deliveries = self.deliveries.unwrap_or(counted);
        of.deliver(Pending { id, consumer, delivered_ms: self.delivered_ms, deliveries })?;
        of.consumer_mut(consumer).active_ms = Some(self.now_ms);
        match stream.get(id) {
            Some(entry) if !self.only_ids => reply_entry(reply, entry),
            _ => reply_id(reply, id),
        }
        Ok(true)
    }
}

/// What `XCLAIM` is asked for.
struct Query {
    ids: Vec<StreamId>,
    last_id: StreamId,
    claim: Claim,
}

impl Query {
    fn parse(request: Request<'_>, now_ms: u64) -> Result<Query, Error> {
        const LEAST_IDLE: Error = Error::text("ERR Invalid min-idle-time argument for XCLAIM");
        const IDLE: Error = Error::text("ERR Invalid IDLE option argument for XCLAIM");
        const TIME: Error = Error::text("ERR Invalid TIME option argument for XCLAIM");
        const RETRYCOUNT: Error = Error::text("ERR Invalid RETRYCOUNT option argument for XCLAIM");
        let least_idle_ms = args::integer(&request[4]).map_err(|_| LEAST_IDLE)?.max(0) as u64;
        let mut claim =
            Claim { least_idle_ms, delivered_ms: now_ms, deliveries: None, force: false, only_ids: false, now_ms };
        let mut ids = Vec::new();
        let mut last_id = StreamId::MIN;
        let mut at = 5;
        while let Some(Ok(id)) = request.get(at).map(id) {
            args::push(&mut ids, id)?;
            at += 1;
        }
        // A time that makes no sense is taken for now: clients count from clocks of their own.
        let sane = |time: Option<i64>| time.and_then(|time| u64::try_from(time).ok()).filter(|&time| time <= now_ms);
        while let Some(word) = request.get(at) {
            let value = request.get(at + 1);
            let is = |name| args::is(word, name);
            at += 2;
            match value {
                _ if is("force") || is("justid") => {
                    claim.force |= is("force");
                    claim.only_ids |= is("justid");
                    at -= 1;
                }
                Some(value) if is("idle") => {
                    let idle = args::integer(value).map_err(|_| IDLE)?;
                    claim.delivered_ms = sane((now_ms as i64).checked_sub(idle)).unwrap_or(now_ms);
                }
                Some(value) if is("time") => {
                    let time = args::integer(value).map_err(|_| TIME)?;
                    claim.delivered_ms = sane(Some(time)).unwrap_or(now_ms);
                }
                Some(value) if is("retrycount") => {
                    let count = args::integer(value).map_err(|_| RETRYCOUNT)?;
                    claim.deliveries = u64::try_from(count).ok();
                }
                Some(value) if is("lastid") => last_id = id(value)?,
                _ => return Err(Error::showing("ERR Unrecognized XCLAIM option '", word, "'")),
            }
        }
        Ok(Query { ids, last_id, claim })
    }
}

/// What a claim has done, besides its reply.
struct Done {
    is_new_consumer: bool,
    changes: u64,
    touched: Touched,
}

fn tell(context: &mut Context<'_>, request: Request<'_>, done: &Done) {
    let (key, group, consumer) = (&request[1], &request[2], &request[3]);
    if done.is_new_consumer {
        context.notify(EventClass::STREAM, "xgroup-createconsumer", key);
        effects::tell_consumer(context, key, group, consumer);
    }
    done.touched.tell(context, key, group, consumer);
    context.no_more_effects();
    context.store.changes += done.changes + u64::from(done.is_new_consumer);
}

/// Notes that a consumer asks for something, making it if need be.
fn see_consumer(stream: &mut Stream, group: &[u8], consumer: &[u8], now_ms: u64) -> Result<(u32, bool), OutOfMemory> {
    let of = stream.group_mut(group).expect("it was found");
    let (place, is_new) = of.add_consumer(consumer, now_ms)?;
    of.consumer_mut(place).seen_ms = now_ms;
    Ok((place, is_new))
}

pub fn xclaim(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = find_group(context, request)?;
    let (key, group) = (&request[1], &request[2]);
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let query = Query::parse(request, now_ms)?;
    let mut touched = Touched::new(context);
    let Context { store, reply, .. } = context;
    let edit = store.dbs[index].edit(key, Some(found), now_ms, |stream: &mut Box<Stream>, _| {
        let of = stream.group_mut(group).expect("it was found");
        of.last_id = of.last_id.max(query.last_id);
        let (consumer, is_new_consumer) = see_consumer(stream, group, &request[3], now_ms)?;
        let begin = reply.len();
        let (mut claimed, mut forgotten) = (0, 0);
        for &id in &query.ids {
            let is_changed = if stream.get(id).is_some() {
                let is_claimed = query.claim.claim(reply, stream, group, consumer, id)?;
                claimed += usize::from(is_claimed);
                is_claimed
            } else {
                // What is removed cannot be claimed, and is pending no longer.
                let is_forgotten = stream.group_mut(group).expect("it was found").acknowledge(id);
                forgotten += u64::from(is_forgotten);
                is_forgotten
            };
            if is_changed {
                touched.note(stream, group, id)?;
            }
        }
        let head = reply.len();
        reply.array(claimed);
        reply.move_before(begin, head);
        Ok(Done { is_new_consumer, changes: claimed as u64 + forgotten, touched })
    })?;
    tell(context, request, &edit.result);
    if query.last_id != StreamId::MIN {
        effects::tell_position(context, key, group);
        context.store.changes += 1;
    }
    Ok(())
}

pub fn xautoclaim(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const LEAST_IDLE: Error = Error::text("ERR Invalid min-idle-time argument for XAUTOCLAIM");
    const COUNT: Error = Error::text("ERR COUNT must be > 0");
    /// Pending entries looked at for each one that may be claimed.
    const ATTEMPTS_PER_COUNT: u64 = 10;
    const COUNT_LIMIT: i64 = i64::MAX / 16;
    let least_idle_ms = args::integer(&request[4]).map_err(|_| LEAST_IDLE)?.max(0) as u64;
    let start = range_start(&request[5])?;
    let (mut count, mut only_ids) = (100, false);
    let mut words = request.from(6);
    while let Some(word) = words.next() {
        if args::is(word, "justid") {
            only_ids = true;
        } else if args::is(word, "count")
            && let Some(value) = words.next()
        {
            let value = args::integer(value).ok().filter(|count| (1..=COUNT_LIMIT).contains(count));
            count = value.ok_or(COUNT)? as u64;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    let found = find_group(context, request)?;
    let (key, group) = (&request[1], &request[2]);
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let claim = Claim { least_idle_ms, delivered_ms: now_ms, deliveries: None, force: false, only_ids, now_ms };
    let mut touched = Touched::new(context);
    let Context { store, reply, .. } = context;
    let edit = store.dbs[index].edit(key, Some(found), now_ms, |stream: &mut Box<Stream>, _| {
        let (consumer, is_new_consumer) = see_consumer(stream, group, &request[3], now_ms)?;
        let begin = reply.len();
        let mut gone = Vec::new();
        let mut claimed = 0;
        let mut attempts = count.saturating_mul(ATTEMPTS_PER_COUNT);
        let mut cursor = Some(start);
        let next = |stream: &Stream, cursor: Option<StreamId>| {
            stream.group(group).zip(cursor).and_then(|(of, cursor)| of.next_pending(cursor)).map(|pending| pending.id)
        };
        while attempts > 0
            && claimed + (gone.len() as u64) < count
            && let Some(id) = next(stream, cursor)
        {
            attempts -= 1;
            cursor = id.next();
            if stream.get(id).is_none() {
                stream.group_mut(group).expect("it was found").acknowledge(id);
                args::push(&mut gone, id)?;
            } else if claim.claim(reply, stream, group, consumer, id)? {
                claimed += 1;
            } else {
                continue;
            }
            touched.note(stream, group, id)?;
        }
        let head = reply.len();
        reply.array(3);
        reply_id(reply, next(stream, cursor).unwrap_or(StreamId::MIN));
        reply.array(claimed as usize);
        reply.move_before(begin, head);
        reply.array(gone.len());
        gone.iter().for_each(|&id| reply_id(reply, id));
        Ok(Done { is_new_consumer, changes: claimed + gone.len() as u64, touched })
    })?;
    tell(context, request, &edit.result);
    Ok(())
}
