//! Streams.

use crate::{
    Context, Error, Outcome,
    error::{c_text, shown},
    options::Options,
    table::{Begin, Categories, Command, Find, Flags, Group, KeyFlags, Keys, Tips},
};
use alloc::vec::Vec;
use kayvee_keyspace::{BlockLimits, Decimal, EntryRef, Kind, Stream, StreamId, parse_integer};
use kayvee_resp::{Request, Writer};

mod claim;
mod effects;
mod groups;
mod info;
mod pending;
mod read;
mod write;

#[cfg(test)]
mod tests;

const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const GROW_FAST: Flags = GROW.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);

const READING: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const UPDATING: KeyFlags = KeyFlags::RW.union(KeyFlags::UPDATE);
const DELETING: KeyFlags = KeyFlags::RW.union(KeyFlags::DELETE);

const MEASURES: &[Keys] = &[Keys::one(1, KeyFlags::RO)];
const READS: &[Keys] = &[Keys::one(1, READING)];
const READS_SECOND: &[Keys] = &[Keys::one(2, READING)];
const UPDATES: &[Keys] = &[Keys::one(1, UPDATING)];
const UPDATES_SECOND: &[Keys] = &[Keys::one(2, UPDATING)];
const DELETES: &[Keys] = &[Keys::one(1, DELETING)];
const DELETES_SECOND: &[Keys] = &[Keys::one(2, DELETING)];
const INSERTS_SECOND: &[Keys] = &[Keys::one(2, KeyFlags::RW.union(KeyFlags::INSERT))];

/// The first half of what follows `STREAMS`.
const fn behind_streams(from: i16) -> Keys {
    let find = Find::Range { last: -1, step: 1, limit: 2 };
    Keys { begin: Begin::Keyword("STREAMS", from), find, flags: READING }
}

/// What all rows share.
const ROW: Command = Command { categories: Categories::STREAM, group: Group::Stream, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "xack", arity: -4, flags: WRITE_FAST, keys: UPDATES, handler: Some(pending::xack), ..ROW },
    Command {
        name: "xadd",
        arity: -5,
        flags: GROW_FAST,
        keys: UPDATES,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(write::xadd),
        ..ROW
    },
    Command {
        name: "xautoclaim",
        arity: -6,
        flags: WRITE_FAST,
        keys: DELETES,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(claim::xautoclaim),
        ..ROW
    },
    Command {
        name: "xclaim",
        arity: -6,
        flags: WRITE_FAST,
        keys: UPDATES,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(claim::xclaim),
        ..ROW
    },
    Command { name: "xdel", arity: -3, flags: WRITE_FAST, keys: DELETES, handler: Some(write::xdel), ..ROW },
    Command { name: "xgroup", arity: -2, categories: Categories::NONE, subcommands: XGROUP, ..ROW },
    Command { name: "xinfo", arity: -2, categories: Categories::NONE, subcommands: XINFO, ..ROW },
    Command {
        name: "xlen",
        arity: 2,
        flags: Flags::READONLY.union(Flags::FAST),
        keys: MEASURES,
        handler: Some(read::xlen),
        ..ROW
    },
    Command {
        name: "xpending",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(pending::xpending),
        ..ROW
    },
    Command { name: "xrange", arity: -4, flags: Flags::READONLY, keys: READS, handler: Some(read::xrange), ..ROW },
    Command {
        name: "xread",
        arity: -4,
        flags: Flags::BLOCKING.union(Flags::READONLY).union(Flags::MOVABLEKEYS),
        keys: &[behind_streams(1)],
        handler: Some(read::xread),
        ..ROW
    },
    Command {
        name: "xreadgroup",
        arity: -7,
        flags: Flags::BLOCKING.union(Flags::WRITE).union(Flags::MOVABLEKEYS),
        keys: &[behind_streams(4)],
        handler: Some(read::xreadgroup),
        ..ROW
    },
    Command {
        name: "xrevrange",
        arity: -4,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(read::xrevrange),
        ..ROW
    },
    Command { name: "xsetid", arity: -3, flags: GROW_FAST, keys: UPDATES, handler: Some(write::xsetid), ..ROW },
    Command {
        name: "xtrim",
        arity: -4,
        flags: Flags::WRITE,
        keys: DELETES,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(write::xtrim),
        ..ROW
    },
];

static XGROUP: &[Command] = &[
    Command { name: "create", arity: -5, flags: GROW, keys: INSERTS_SECOND, handler: Some(groups::create), ..ROW },
    Command {
        name: "createconsumer",
        arity: 5,
        flags: GROW,
        keys: INSERTS_SECOND,
        handler: Some(groups::create_consumer),
        ..ROW
    },
    Command {
        name: "delconsumer",
        arity: 5,
        flags: Flags::WRITE,
        keys: DELETES_SECOND,
        handler: Some(groups::delete_consumer),
        ..ROW
    },
    Command {
        name: "destroy",
        arity: 4,
        flags: Flags::WRITE,
        keys: DELETES_SECOND,
        handler: Some(groups::destroy),
        ..ROW
    },
    ROW.help(groups::help),
    Command {
        name: "setid",
        arity: -5,
        flags: Flags::WRITE,
        keys: UPDATES_SECOND,
        handler: Some(groups::set_id),
        ..ROW
    },
];

static XINFO: &[Command] = &[
    Command {
        name: "consumers",
        arity: 4,
        flags: Flags::READONLY,
        keys: READS_SECOND,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(info::consumers),
        ..ROW
    },
    Command {
        name: "groups",
        arity: 3,
        flags: Flags::READONLY,
        keys: READS_SECOND,
        handler: Some(info::groups),
        ..ROW
    },
    ROW.help(info::help),
    Command {
        name: "stream",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS_SECOND,
        handler: Some(info::stream),
        ..ROW
    },
];

/// Where blocks of a stream end, by the `stream-node-max-*` options.
pub fn block_limits(options: &Options) -> BlockLimits {
    BlockLimits { bytes: options.stream_node_max_bytes, entries: options.stream_node_max_entries }
}

/// Longest text of an ID that is looked at.
const ID_LIMIT: usize = 127;

const INVALID_ID: Error = Error::text("ERR Invalid stream ID specified as stream command argument");

/// Reads a number as C's `strtoull` does, which Redis uses for what is no canonical integer: behind spaces and a sign, and
/// wrapping if negative.
fn number(text: &[u8]) -> Option<u64> {
    if let Some(number) = parse_integer(text) {
        return u64::try_from(number).ok();
    }
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = core::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

/// An ID as an argument gives it: its second part may be missing.
#[derive(Clone, Copy)]
struct PartialId {
    ms: u64,
    seq: Option<u64>,
}

impl PartialId {
    fn with(self, missing_seq: u64) -> StreamId {
        StreamId { ms: self.ms, seq: self.seq.unwrap_or(missing_seq) }
    }
}

fn partial_id(arg: &[u8]) -> Result<PartialId, Error> {
    if arg.len() > ID_LIMIT {
        return Err(INVALID_ID);
    }
    // Redis sees a C string.
    let text = arg.split(|&b| b == 0).next().unwrap_or_default();
    let (ms, seq) = match text.iter().position(|&b| b == b'-') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let seq = seq.map(|seq| number(seq).ok_or(INVALID_ID)).transpose()?;
    Ok(PartialId { ms: number(ms).ok_or(INVALID_ID)?, seq })
}

/// An ID whose second part is 0 if it is missing.
fn id(arg: &[u8]) -> Result<StreamId, Error> {
    partial_id(arg).map(|id| id.with(0))
}

/// The same, or `-` and `+` for the lowest and the highest one.
fn id_or_end(arg: &[u8], missing_seq: u64) -> Result<StreamId, Error> {
    match arg.split(|&b| b == 0).next().unwrap_or_default() {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => partial_id(arg).map(|id| id.with(missing_seq)),
    }
}

/// The first ID of a range.
fn range_start(arg: &[u8]) -> Result<StreamId, Error> {
    const INVALID: Error = Error::text("ERR invalid start ID for the interval");
    match arg {
        [b'(', rest @ ..] if !rest.is_empty() => id(rest)?.next().ok_or(INVALID),
        _ => id_or_end(arg, 0),
    }
}

/// The last ID of a range.
fn range_end(arg: &[u8]) -> Result<StreamId, Error> {
    const INVALID: Error = Error::text("ERR invalid end ID for the interval");
    match arg {
        [b'(', rest @ ..] if !rest.is_empty() => partial_id(rest)?.with(u64::MAX).previous().ok_or(INVALID),
        _ => id_or_end(arg, u64::MAX),
    }
}

/// Several IDs.
fn ids<'a>(args: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Vec<StreamId>, Error> {
    let mut ids = Vec::new();
    ids.try_reserve_exact(args.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
    for arg in args {
        ids.push(id(arg)?);
    }
    Ok(ids)
}

/// An ID's text, without the heap.
struct IdText {
    bytes: [u8; 41],
    len: usize,
}

impl IdText {
    fn new(id: StreamId) -> IdText {
        let mut text = IdText { bytes: [0; 41], len: 0 };
        for part in [Decimal::unsigned(id.ms).as_bytes(), b"-", Decimal::unsigned(id.seq).as_bytes()] {
            text.bytes[text.len..text.len + part.len()].copy_from_slice(part);
            text.len += part.len();
        }
        text
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn reply_id(reply: &mut Writer<'_>, id: StreamId) {
    reply.bulk(IdText::new(id).as_bytes());
}

fn reply_entry(reply: &mut Writer<'_>, entry: EntryRef<'_>) {
    reply.array(2);
    reply_id(reply, entry.id());
    reply.array(2 * entry.len());
    entry.for_each(|name, value| {
        reply.bulk(name);
        reply.bulk(value);
    });
}

/// Writes a reply about the stream at a key, if there is one.
fn reply_from(
    context: &mut Context<'_>,
    key: &[u8],
    write: impl FnOnce(&mut Writer<'_>, Option<&Stream>) -> Outcome,
) -> Outcome {
    let found = context.read(key, Kind::Stream)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    write(reply, found.map(|found| store.dbs[index].stream(found)))
}

/// The error about a key or group that is missing.
fn no_group(key: &[u8], group: &[u8], after: &str) -> Error {
    let parts = [b"NOGROUP No such key '", shown(key), b"' or consumer group '", shown(group), b"'", after.as_bytes()];
    Error::of_parts(&parts)
}

/// The error for a subcommand's wrong arguments.
fn wrong_arguments(request: Request<'_>) -> Error {
    const SHOWN_LIMIT: usize = 128;
    let container = c_text(&request[0], SHOWN_LIMIT).to_ascii_uppercase();
    let name = c_text(&request[1], SHOWN_LIMIT);
    let before = b"ERR unknown subcommand or wrong number of arguments for '";
    [before, name, b"'. Try ", &container[..], b" HELP."].concat().into()
}
