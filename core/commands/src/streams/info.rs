//! `XINFO`: what is known of streams, groups and consumers.

use super::{groups::no_such_group, read::reply_entries, reply_entry, reply_from, reply_id, wrong_arguments};
use crate::{Context, Error, Outcome, args, server::help_lines};
use core::ops::ControlFlow;
use kayvee_keyspace::{Consumer, Direction, Group, Pending, Stream, StreamId};
use kayvee_resp::{Request, Writer};

fn integer(reply: &mut Writer<'_>, name: &str, value: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(value as i64);
}

fn integer_or_null(reply: &mut Writer<'_>, name: &str, value: Option<i64>) {
    reply.bulk(name.as_bytes());
    match value {
        Some(value) => reply.integer(value),
        None => reply.null(),
    }
}

fn text(reply: &mut Writer<'_>, name: &str, value: &[u8]) {
    reply.bulk(name.as_bytes());
    reply.bulk(value);
}

fn stream_id(reply: &mut Writer<'_>, name: &str, id: StreamId) {
    reply.bulk(name.as_bytes());
    reply_id(reply, id);
}

pub fn stream(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    /// Entries that are shown of each list.
    const DEFAULT_COUNT: usize = 10;
    let found = context.read(&request[2], kayvee_keyspace::Kind::Stream)?;
    if found.is_none() {
        return Err(Error::NO_SUCH_KEY);
    }
    let full = match request.len() {
        3 => None,
        4 if args::is(&request[3], "full") => Some(DEFAULT_COUNT),
        6 if args::is(&request[3], "full") && args::is(&request[4], "count") => {
            Some(usize::try_from(args::integer(&request[5])?).unwrap_or(DEFAULT_COUNT))
        }
        _ => return Err(wrong_arguments(request)),
    };
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let Some(stream) = found.map(|found| store.dbs[index].stream(found)) else { return Ok(()) };
    reply.map(if full.is_some() { 9 } else { 10 });
    integer(reply, "length", stream.len());
    // Redis' radix tree has a key for each block; ours has no nodes of its own but one for each.
    integer(reply, "radix-tree-keys", stream.blocks() as u64);
    integer(reply, "radix-tree-nodes", stream.blocks() as u64 + 1);
    stream_id(reply, "last-generated-id", stream.last_id);
    stream_id(reply, "max-deleted-entry-id", stream.max_deleted_id);
    integer(reply, "entries-added", stream.entries_added);
    stream_id(reply, "recorded-first-entry-id", stream.first_id());
    match full {
        Some(count) => reply_full(reply, stream, count),
        None => {
            integer(reply, "groups", stream.groups().len() as u64);
            for (name, direction) in [("first-entry", Direction::Forward), ("last-entry", Direction::Backward)] {
                reply.bulk(name.as_bytes());
                match stream.end(direction) {
                    Some(entry) => reply_entry(reply, entry),
                    None => reply.null(),
                }
            }
        }
    }
    Ok(())
}

fn reply_full(reply: &mut Writer<'_>, stream: &Stream, count: usize) {
    reply.bulk(b"entries");
    reply_entries(reply, stream, StreamId::MIN, StreamId::MAX, Direction::Forward, count);
    reply.bulk(b"groups");
    reply.array(stream.groups().len());
    for group in stream.groups() {
        reply.map(7);
        text(reply, "name", group.name());
        stream_id(reply, "last-delivered-id", group.last_id);
        integer_or_null(reply, "entries-read", group.entries_read.map(|read| read as i64));
        integer_or_null(reply, "lag", stream.lag(group));
        integer(reply, "pel-count", group.pending_len() as u64);
        reply.bulk(b"pending");
        reply.array(shown(group.pending_len(), count));
        let mut left = shown(group.pending_len(), count);
        group.visit_pending(StreamId::MIN, |pending| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            reply.array(4);
            reply_id(reply, pending.id);
            reply.bulk(group.consumer(pending.consumer).name());
            reply_delivery(reply, pending);
            ControlFlow::Continue(())
        });
        reply.bulk(b"consumers");
        reply.array(group.consumers().len());
        group.consumers().for_each(|consumer| reply_full_consumer(reply, group, consumer, count));
    }
}

/// How many of a list are shown; 0 asks for all.
fn shown(len: usize, count: usize) -> usize {
    if count == 0 { len } else { len.min(count) }
}

fn reply_delivery(reply: &mut Writer<'_>, pending: Pending) {
    reply.integer(pending.delivered_ms as i64);
    reply.integer(pending.deliveries as i64);
}

fn reply_full_consumer(reply: &mut Writer<'_>, group: &Group, consumer: &Consumer, count: usize) {
    reply.map(5);
    text(reply, "name", consumer.name());
    integer(reply, "seen-time", consumer.seen_ms);
    reply.bulk(b"active-time");
    reply.integer(consumer.active_ms.map_or(-1, |active| active as i64));
    integer(reply, "pel-count", consumer.pending_len() as u64);
    reply.bulk(b"pending");
    let mut left = shown(consumer.pending_len(), count);
    reply.array(left);
    consumer.visit_pending(StreamId::MIN, |id| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        reply.array(3);
        reply_id(reply, id);
        reply_delivery(reply, group.pending(id).expect("what is pending for a consumer is for its group"));
        ControlFlow::Continue(())
    });
}

pub fn groups(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[2], |reply, stream| {
        let stream = stream.ok_or(Error::NO_SUCH_KEY)?;
        reply.array(stream.groups().len());
        for group in stream.groups() {
            reply.map(6);
            text(reply, "name", group.name());
            integer(reply, "consumers", group.consumers().len() as u64);
            integer(reply, "pending", group.pending_len() as u64);
            stream_id(reply, "last-delivered-id", group.last_id);
            integer_or_null(reply, "entries-read", group.entries_read.map(|read| read as i64));
            integer_or_null(reply, "lag", stream.lag(group));
        }
        Ok(())
    })
}

pub fn consumers(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let now_ms = context.now_ms();
    reply_from(context, &request[2], |reply, stream| {
        let stream = stream.ok_or(Error::NO_SUCH_KEY)?;
        let group = stream.group(&request[3]).ok_or_else(|| no_such_group(&request[2], &request[3]))?;
        reply.array(group.consumers().len());
        for consumer in group.consumers() {
            reply.map(4);
            text(reply, "name", consumer.name());
            integer(reply, "pending", consumer.pending_len() as u64);
            integer(reply, "idle", now_ms.saturating_sub(consumer.seen_ms));
            reply.bulk(b"inactive");
            reply.integer(consumer.active_ms.map_or(-1, |active| now_ms.saturating_sub(active) as i64));
        }
        Ok(())
    })
}

const HELP: [&str; 9] = [
    "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CONSUMERS <key> <groupname>",
    "    List the consumers of the group.",
    "GROUPS <key>",
    "    List the stream's consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]]",
    "    Tell about the stream, with FULL about all of it.",
    "HELP",
    "    Print this help.",
];

pub fn help(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help_lines(context, &HELP)
}
