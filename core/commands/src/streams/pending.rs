//! What was delivered to consumers and is not acknowledged.

use super::{ids, no_group, range_end, range_start, reply_from, reply_id};
use crate::{Context, Error, Outcome, args};
use alloc::boxed::Box;
use core::ops::ControlFlow;
use kayvee_keyspace::{Decimal, Direction, Group, Kind, Pending, Stream, StreamId};
use kayvee_resp::{Request, Writer};

pub fn xack(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let found = context.read(key, Kind::Stream)?;
    let found = found.filter(|&found| context.db().stream(found).group(&request[2]).is_some());
    let mut acknowledged = 0;
    if let Some(found) = found {
        // Either all IDs are valid or nothing happens.
        let ids = ids(request.from(3))?;
        let edit = context.edit(key, Some(found), |stream: &mut Box<Stream>, _| {
            let Some(group) = stream.group_mut(&request[2]) else { return Ok(0) };
            Ok(ids.iter().filter(|&&id| group.acknowledge(id)).count())
        })?;
        acknowledged = edit.result;
    }
    context.store.changes += acknowledged as u64;
    context.reply.integer(acknowledged as i64);
    Ok(())
}

/// Which pending entries are asked for.
struct Query<'a> {
    least_idle_ms: i64,
    start: StreamId,
    end: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> Query<'a> {
    /// Reads what follows the group, if anything does.
    fn parse(request: Request<'a>) -> Result<Option<Query<'a>>, Error> {
        if request.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&request.len()) {
            return Err(Error::SYNTAX);
        }
        let mut at = 3;
        let mut least_idle_ms = 0;
        if args::is(&request[3], "idle") {
            least_idle_ms = args::integer(&request[4])?;
            if request.len() < 8 {
                return Err(Error::SYNTAX);
            }
            at += 2;
        }
        let count = args::integer(&request[at + 2])?.max(0) as usize;
        let (start, end) = (range_start(&request[at])?, range_end(&request[at + 1])?);
        Ok(Some(Query { least_idle_ms, start, end, count, consumer: request.get(at + 3) }))
    }
}

pub fn xpending(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let query = Query::parse(request)?;
    let now_ms = context.now_ms();
    reply_from(context, &request[1], |reply, stream| {
        let group = stream.and_then(|stream| stream.group(&request[2]));
        let group = group.ok_or_else(|| no_group(&request[1], &request[2], ""))?;
        match query {
            Some(query) => reply_list(reply, group, &query, now_ms),
            None => reply_summary(reply, group),
        }
        Ok(())
    })
}

fn reply_summary(reply: &mut Writer<'_>, group: &Group) {
    reply.array(4);
    reply.integer(group.pending_len() as i64);
    let ends = group.pending_end(Direction::Forward).zip(group.pending_end(Direction::Backward));
    let Some((first, last)) = ends else {
        reply.null();
        reply.null();
        reply.null_array();
        return;
    };
    reply_id(reply, first.id);
    reply_id(reply, last.id);
    let busy = || group.consumers().filter(|consumer| consumer.pending_len() > 0);
    reply.array(busy().count());
    for consumer in busy() {
        reply.array(2);
        reply.bulk(consumer.name());
        reply.bulk(Decimal::unsigned(consumer.pending_len() as u64).as_bytes());
    }
}

fn reply_list(reply: &mut Writer<'_>, group: &Group, query: &Query<'_>, now_ms: u64) {
    let begin = reply.len();
    let mut written = 0;
    let mut show = |pending: Pending| {
        if written == query.count || pending.id > query.end || reply.failed() {
            return ControlFlow::Break(());
        }
        let idle_ms = now_ms.saturating_sub(pending.delivered_ms) as i64;
        if query.least_idle_ms == 0 || idle_ms >= query.least_idle_ms {
            reply.array(4);
            reply_id(reply, pending.id);
            reply.bulk(group.consumer(pending.consumer).name());
            reply.integer(idle_ms);
            reply.integer(pending.deliveries as i64);
            written += 1;
        }
        ControlFlow::Continue(())
    };
    match query.consumer.map(|name| group.find_consumer(name)) {
        None => group.visit_pending(query.start, show),
        Some(None) => {}
        Some(Some(consumer)) => group.consumer(consumer).visit_pending(query.start, |id| match group.pending(id) {
            Some(pending) => show(pending),
            None => ControlFlow::Continue(()),
        }),
    }
    let head = reply.len();
    reply.array(written);
    reply.move_before(begin, head);
}
