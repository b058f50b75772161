//! Reading entries.

use super::{
    IdText,
    effects::{self, Touched},
    id, no_group, range_end, range_start, reply_entry, reply_from, reply_id,
};
use crate::{
    Context, Error, EventClass, Origin, Outcome, args,
    blocking::{self, OnTimeout, Patience},
};
use alloc::{boxed::Box, vec::Vec};
use core::ops::ControlFlow;
use kayvee_keyspace::{Direction, Group, Kind, OutOfMemory, Pending, Stream, StreamId};
use kayvee_resp::{Protocol, Request, Writer};

pub fn xlen(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, stream| {
        reply.integer(stream.map_or(0, Stream::len) as i64);
        Ok(())
    })
}

pub fn xrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (start, end) = (range_start(&request[2])?, range_end(&request[3])?);
    reply_range(context, request, start, end, Direction::Forward)
}

pub fn xrevrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (start, end) = (range_start(&request[3])?, range_end(&request[2])?);
    reply_range(context, request, start, end, Direction::Backward)
}

fn reply_range(
    context: &mut Context<'_>,
    request: Request<'_>,
    start: StreamId,
    end: StreamId,
    direction: Direction,
) -> Outcome {
    let mut count = None;
    let mut words = request.from(4);
    while let Some(word) = words.next() {
        let value = words.next().filter(|_| args::is(word, "count")).ok_or(Error::SYNTAX)?;
        // -1 is what Redis takes for no number.
        count = Some(args::integer(value)?.max(0) as usize);
    }
    reply_from(context, &request[1], |reply, stream| {
        match (stream, count) {
            (None, _) => reply.array(0),
            (Some(_), Some(0)) => reply.null_array(),
            (Some(stream), count) => _ = reply_entries(reply, stream, start, end, direction, count.unwrap_or(0)),
        }
        Ok(())
    })
}

/// Writes an array of entries, at most `count` of them if that is not 0.
pub fn reply_entries(
    reply: &mut Writer<'_>,
    stream: &Stream,
    start: StreamId,
    end: StreamId,
    direction: Direction,
    count: usize,
) -> usize {
    let begin = reply.len();
    let mut written = 0;
    stream.visit(start, end, direction, |entry| {
        reply_entry(reply, entry);
        written += 1;
        if written == count || reply.failed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let head = reply.len();
    reply.array(written);
    reply.move_before(begin, head);
    written
}

/// What `XREAD` and `XREADGROUP` are asked for.
struct Query<'a> {
    /// For how long to wait, if at all.
    patience_ns: Option<Option<u64>>,
    /// Most entries of each stream; 0 for all.
    count: usize,
    group: Option<(&'a [u8], &'a [u8])>,
    no_ack: bool,
    /// Where the keys begin, and how many there are.
    keys_at: usize,
    streams: usize,
    /// From where on each stream is read.
    after: Vec<After>,
}

/// From where on a stream is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Id(StreamId),
    /// What no consumer of the group has got yet.
    Delivered,
}

impl<'a> Query<'a> {
    fn parse(context: &Context<'_>, request: Request<'a>) -> Result<Query<'a>, Error> {
        const UNBALANCED: Error =
            Error::text("ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.");
        const GROUP: Error =
            Error::text("ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.");
        const NOACK: Error =
            Error::text("ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.");
        let is_group_read = request.get(0).is_some_and(|name| args::is(name, "xreadgroup"));
        let mut query = Query {
            patience_ns: None,
            count: 0,
            group: None,
            no_ack: false,
            keys_at: 0,
            streams: 0,
            after: Vec::new(),
        };
        let mut at = 1;
        while let Some(word) = request.get(at) {
            let left = request.len() - at - 1;
            let is = |name| args::is(word, name);
            if is("block") && left >= 1 {
                if context.origin == Origin::Script {
                    let name = request.get(0).unwrap_or_default();
                    return Err(Error::showing("ERR ", name, " command is not allowed with BLOCK option from scripts"));
                }
                query.patience_ns = Some(blocking::timeout_ms(&request[at + 1])?);
                at += 2;
            } else if is("count") && left >= 1 {
                query.count = args::integer(&request[at + 1])?.max(0) as usize;
                at += 2;
            } else if is("streams") && left >= 1 {
                if !left.is_multiple_of(2) {
                    return Err(UNBALANCED);
                }
                (query.keys_at, query.streams) = (at + 1, left / 2);
                break;
            } else if is("group") && left >= 2 {
                if !is_group_read {
                    return Err(GROUP);
                }
                query.group = request.get(at + 1).zip(request.get(at + 2));
                at += 3;
            } else if is("noack") {
                if !is_group_read {
                    return Err(NOACK);
                }
                query.no_ack = true;
                at += 1;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        if query.streams == 0 {
            return Err(Error::SYNTAX);
        }
        if is_group_read && query.group.is_none() {
            return Err(Error::text("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(query)
    }

    fn keys(&self, request: Request<'a>) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        request.from(self.keys_at).take(self.streams)
    }

    /// Reads the IDs, with what they mean for the streams as they are.
    fn resolve(&mut self, context: &mut Context<'_>, request: Request<'a>) -> Outcome {
        const DOLLAR: Error = Error::text(
            "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by \
             specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.",
        );
        const GREATER: Error = Error::text(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        );
        self.after.try_reserve_exact(self.streams).map_err(|_| Error::OUT_OF_MEMORY)?;
        for (key, arg) in self.keys(request).zip(request.from(self.keys_at + self.streams)) {
            let found = context.read(key, Kind::Stream)?;
            let stream = found.map(|found| context.db().stream(found));
            if let Some((group, _)) = self.group
                && stream.and_then(|stream| stream.group(group)).is_none()
            {
                return Err(no_group(key, group, " in XREADGROUP with GROUP option"));
            }
            self.after.push(match (arg, self.group) {
                (b"$", Some(_)) => return Err(DOLLAR),
                (b"$", None) => After::Id(stream.map_or(StreamId::MIN, |stream| stream.last_id)),
                (b">", Some(_)) => After::Delivered,
                (b">", None) => return Err(GREATER),
                _ => match id(arg)? {
                    // So it is in Redis.
                    StreamId::MAX if self.group.is_some() => After::Delivered,
                    id => After::Id(id),
                },
            });
        }
        Ok(())
    }
}

pub fn xread(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let mut query = Query::parse(context, request)?;
    query.resolve(context, request)?;
    let begin = context.reply.len();
    let mut served = 0;
    for (at, key) in query.keys(request).enumerate() {
        let is_served = match query.group {
            Some((group, consumer)) => read_for_group(context, key, &query, query.after[at], group, consumer)?,
            None => read_plainly(context, key, &query, query.after[at]),
        };
        served += usize::from(is_served);
    }
    if served > 0 {
        let head = context.reply.len();
        match context.reply.protocol() {
            Protocol::Resp2 => context.reply.array(served),
            Protocol::Resp3 => context.reply.map(served),
        }
        context.reply.move_before(begin, head);
        return Ok(());
    }
    match query.patience_ns {
        Some(timeout_ns) => wait(context, request, &query, timeout_ns),
        None => {
            context.reply.null_array();
            Ok(())
        }
    }
}

/// Waits for entries, with `$` replaced by what it means now.
fn wait(context: &mut Context<'_>, request: Request<'_>, query: &Query<'_>, timeout_ns: Option<u64>) -> Outcome {
    let ids_at = query.keys_at + query.streams;
    let mut texts: Vec<Option<IdText>> = Vec::new();
    for (after, arg) in query.after.iter().zip(request.from(ids_at)) {
        args::push(
            &mut texts,
            match after {
                After::Id(id) if arg == b"$" => Some(IdText::new(*id)),
                _ => None,
            },
        )?;
    }
    let words = (0..request.len()).map(|at| {
        let text = at.checked_sub(ids_at).and_then(|at| texts[at].as_ref());
        text.map_or(request.get(at).unwrap_or_default(), IdText::as_bytes)
    });
    // A group may vanish: that is told to those who wait for it.
    let kind = if query.group.is_some() { None } else { Some(Kind::Stream) };
    let patience = Patience { kind, timeout_ns, on_timeout: OnTimeout::NullArray };
    context.block(words, query.keys(request), patience)
}

/// Writes what stands before the entries of one stream.
fn reply_key(reply: &mut Writer<'_>, key: &[u8]) {
    if reply.protocol() == Protocol::Resp2 {
        reply.array(2);
    }
    reply.bulk(key);
}

/// Replies with the entries behind an ID. Returns whether there are any.
fn read_plainly(context: &mut Context<'_>, key: &[u8], query: &Query<'_>, after: After) -> bool {
    let (Some(found), After::Id(after)) = (context.find(key), after) else { return false };
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let stream = store.dbs[index].stream(found);
    let Some(start) = after.next() else { return false };
    if stream.end(Direction::Backward).is_none_or(|last| last.id() <= after) {
        return false;
    }
    reply_key(reply, key);
    reply_entries(reply, stream, start, StreamId::MAX, Direction::Forward, query.count);
    true
}

/// The same for a consumer of a group.
fn read_for_group(
    context: &mut Context<'_>,
    key: &[u8],
    query: &Query<'_>,
    after: After,
    group: &[u8],
    consumer: &[u8],
) -> Result<bool, Error> {
    let Some(found) = context.find(key) else { return Ok(false) };
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let mut delivery = Delivery { group, consumer: 0, query, now_ms, touched: Touched::new(context) };
    let Context { store, reply, .. } = context;
    let edit = store.dbs[index].edit(key, Some(found), now_ms, |stream: &mut Box<Stream>, _| {
        let Some(of) = stream.group_mut(group) else { return Ok((false, Served::Nothing)) };
        let (place, is_new) = of.add_consumer(consumer, now_ms)?;
        of.consumer_mut(place).seen_ms = now_ms;
        delivery.consumer = place;
        let last_delivered = of.last_id;
        let served = match after {
            After::Id(id) => {
                reply_key(reply, key);
                delivery.reply_history(reply, stream, id)?;
                Served::History
            }
            After::Delivered if stream.end(Direction::Backward).is_some_and(|last| last.id() > last_delivered) => {
                reply_key(reply, key);
                delivery.deliver(reply, stream, last_delivered)?;
                Served::New
            }
            After::Delivered => Served::Nothing,
        };
        Ok((is_new, served))
    })?;
    let (is_new, served) = edit.result;
    if is_new {
        context.notify(EventClass::STREAM, "xgroup-createconsumer", key);
        effects::tell_consumer(context, key, group, consumer);
    }
    delivery.touched.tell(context, key, group, consumer);
    if served == Served::New {
        effects::tell_position(context, key, group);
    }
    context.no_more_effects();
    context.store.changes += u64::from(is_new || served != Served::Nothing);
    Ok(served != Served::Nothing)
}

/// What a consumer of a group has got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    Nothing,
    History,
    New,
}

/// To whom entries are delivered, and how.
struct Delivery<'a> {
    group: &'a [u8],
    consumer: u32,
    query: &'a Query<'a>,
    now_ms: u64,
    touched: Touched,
}

impl Delivery<'_> {
    fn group_of<'s>(&self, stream: &'s mut Stream) -> &'s mut Group {
        stream.group_mut(self.group).expect("it was found")
    }

    /// Replies with what is pending for the consumer behind an ID.
    fn reply_history(
        &mut self,
        reply: &mut Writer<'_>,
        stream: &mut Stream,
        after: StreamId,
    ) -> Result<(), OutOfMemory> {
        let mut ids = Vec::new();
        let mut result = Ok(());
        let start = after.next().unwrap_or(StreamId::MIN);
        self.group_of(stream).consumer(self.consumer).visit_pending(start, |id| {
            result = args::push(&mut ids, id);
            if result.is_err() || ids.len() == self.query.count {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        result?;
        reply.array(ids.len());
        for id in ids {
            let Some(entry) = stream.get(id) else {
                // It was removed meanwhile.
                reply.array(2);
                reply_id(reply, id);
                reply.null_array();
                continue;
            };
            reply_entry(reply, entry);
            let of = self.group_of(stream);
            if let Some(pending) = of.pending(id) {
                let deliveries = pending.deliveries.saturating_add(1);
                of.deliver(Pending { delivered_ms: self.now_ms, deliveries, ..pending })?;
                self.touched.note(stream, self.group, id)?;
            }
        }
        Ok(())
    }

    /// Replies with entries that the group has not got yet, and notes that the consumer has them.
    fn deliver(&mut self, reply: &mut Writer<'_>, stream: &mut Stream, after: StreamId) -> Result<(), OutOfMemory> {
        let start = after.next().unwrap_or(StreamId::MAX);
        let written = reply_entries(reply, stream, start, StreamId::MAX, Direction::Forward, self.query.count);
        if reply.failed() {
            return Err(OutOfMemory);
        }
        let mut ids = Vec::new();
        ids.try_reserve_exact(written)?;
        stream.visit(start, StreamId::MAX, Direction::Forward, |entry| {
            ids.push(entry.id());
            if ids.len() == written { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        for id in ids {
            stream.note_read(self.group, id);
            if !self.query.no_ack {
                let (consumer, delivered_ms) = (self.consumer, self.now_ms);
                let of = self.group_of(stream);
                of.deliver(Pending { id, consumer, delivered_ms, deliveries: 1 })?;
                of.consumer_mut(consumer).active_ms = Some(delivered_ms);
                self.touched.note(stream, self.group, id)?;
            }
        }
        Ok(())
    }
}

pub fn xreadgroup(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    xread(context, request)
}
