//! Large collections and long strings are written down in parts, between which they may change.
//!
//! What a replay has of such a collection is the true one, less the members that are not written yet. Before a command
//! runs that does something else to what is there then than to all of it, the members that it depends on are written down
//! (`Need`). Most commands name their members, or depend on those at an end; what depends on all of a collection
//! (`SORT`, `RENAME`, `LINSERT` …) has all of it written down.
//!
//! | kind | order of the parts | what is written at a moment |
//! | --- | --- | --- |
//! | hash, set, sorted set | that of `SCAN` | what a part has had or a command has added since: a part may repeat members |
//! | list | from the head on | some elements at each end, which [`Written`] counts |
//! | stream | from the newest block back, then what is pending | the newest entries |
//!
//! The first part of a string makes it as long as it is, and the others are effects that do nothing to a string that is whole:
//! `SETRANGE`. A command that changes a string depends on all of it.

use crate::{
    Store, args,
    dump::part,
    durable::{
        append::{Gathered, head},
        unit::{self, Sink as _},
    },
    table::Command,
};
use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;
use kayvee_keyspace::{Db, Decimal, Found, Kind as ValueKind, ListEnd, StreamId, Value, Written};
use kayvee_log::{Kind, RecordError};
use kayvee_rdb::{Compression, Writer};
use kayvee_resp::Request;

/// Members of a part, about.
const PART_MEMBERS: usize = 128;
/// A collection with more members is written down in parts.
const LARGE_MEMBERS: usize = 16 * PART_MEMBERS;
/// So many collections may be written in parts side by side: the one that the walk is at, and those that commands have used
/// before the walk came to them. Others are written at once.
const SLICED_LIMIT: usize = 256;

/// How large a collection and a part are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub part_members: usize,
    pub large_members: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { part_members: PART_MEMBERS, large_members: LARGE_MEMBERS }
    }
}

/// A collection of which a part is written.
pub(super) struct Sliced {
    pub db: usize,
    key: Box<[u8]>,
    kind: ValueKind,
    at: Place,
}

/// Where the next part begins.
enum Place {
    /// Of a hash, set or sorted set: a cursor.
    Cursor(u64),
    /// Of a string: at this byte.
    Byte(usize),
    /// Of a list: where its [`Written`] says.
    Elements,
    /// Of a stream: below this entry, or at the end.
    Below(Option<StreamId>),
    /// What is pending in the group of this name or the next one, from an entry on.
    Pending(Vec<u8>, StreamId),
}

/// What a command depends on of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing: it does the same to the members that are there, whichever they are.
    Nothing,
    /// Members that the request names from this word on.
    Named(usize),
    /// So many members at the beginning and at the end.
    Ends(usize, usize),
    Whole,
}

/// From what of a request that follows.
#[derive(Clone, Copy)]
enum Rule {
    Nothing,
    Named(usize),
    /// So many members at each end as this word says, if there is one.
    Count(usize),
    /// As many as the last word says, behind `COUNT`.
    LastCount,
    /// Those that these two words reach, from the end that each of them counts from.
    Range,
    /// Members by their names alone: where scores differ, these say what lies between two of them only if all are there.
    Between,
    First,
}

/// Commands of a kind of value; others depend on all of it.
const RULES: &[(Option<ValueKind>, Rule, &str)] = &[
    (None, Rule::Nothing, "expire pexpire expireat pexpireat persist"),
    (Some(ValueKind::Hash), Rule::Nothing, "hset hmset hsetnx hdel hexpire hpexpire hexpireat hpexpireat hpersist"),
    (Some(ValueKind::Hash), Rule::Named(2), "hincrby hincrbyfloat"),
    (Some(ValueKind::Set), Rule::Nothing, "sadd srem spop"),
    (Some(ValueKind::Set), Rule::Named(3), "smove"),
    (Some(ValueKind::SortedSet), Rule::Nothing, "zrem zremrangebyscore"),
    (Some(ValueKind::SortedSet), Rule::Between, "zremrangebylex"),
    (Some(ValueKind::SortedSet), Rule::Named(2), "zadd zincrby geoadd"),
    (Some(ValueKind::SortedSet), Rule::Count(2), "zpopmin zpopmax"),
    (Some(ValueKind::SortedSet), Rule::Count(usize::MAX), "bzpopmin bzpopmax"),
    (Some(ValueKind::SortedSet), Rule::LastCount, "zmpop bzmpop"),
    (Some(ValueKind::SortedSet), Rule::Range, "zremrangebyrank"),
    (Some(ValueKind::List), Rule::First, "lpush rpush lpushx rpushx"),
    (Some(ValueKind::List), Rule::Count(2), "lpop rpop"),
    (Some(ValueKind::List), Rule::Count(usize::MAX), "blpop brpop lmove blmove rpoplpush brpoplpush"),
    (Some(ValueKind::List), Rule::LastCount, "lmpop blmpop"),
    (Some(ValueKind::List), Rule::Range, "ltrim"),
    (Some(ValueKind::Stream), Rule::Nothing, "xadd xdel xtrim xsetid xgroup xreadgroup xautoclaim xclaim xack"),
];

fn need(db: &Db, found: Found, command: &Command, request: Request<'_>) -> Need {
    let kind = db.kind(found);
    let suits = |&&(of, _, names): &&(Option<ValueKind>, Rule, &str)| {
        of.is_none_or(|of| of == kind) && names.split(' ').any(|name| name == command.name)
    };
    let ends = |at: usize| {
        let count = request.get(at).and_then(|word| args::integer(word).ok()).unwrap_or(1).max(1) as usize;
        Need::Ends(count, count)
    };
    if kind == ValueKind::List && command.name == "lset" {
        return reach([request.get(2), None]);
    }
    match RULES.iter().find(suits).map(|(_, rule, _)| *rule) {
        None => Need::Whole,
        Some(Rule::Between) if !db.sorted_set(found).has_one_score() => Need::Whole,
        Some(Rule::Nothing | Rule::Between) => Need::Nothing,
        Some(Rule::Named(from)) => Need::Named(from),
        Some(Rule::Count(at)) => ends(at),
        Some(Rule::LastCount) => match request.len().checked_sub(2).filter(|&at| args::is(&request[at], "count")) {
            Some(at) => ends(at + 1),
            None => ends(usize::MAX),
        },
        Some(Rule::Range) => reach([request.get(2), request.get(3)]),
        Some(Rule::First) => Need::Ends(1, 0),
    }
}

/// What these indices reach, from the end that each of them counts from.
fn reach(indices: [Option<&[u8]>; 2]) -> Need {
    let (mut front, mut back) = (0, 0);
    for index in indices.into_iter().flatten().filter_map(|word| args::integer(word).ok()) {
        match usize::try_from(index) {
            Ok(index) => front = front.max(index.saturating_add(1)),
            Err(_) => back = back.max(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX)),
        }
    }
    Need::Ends(front, back)
}

impl Store {
    /// Whether a collection is to be written down in parts.
    pub(super) fn is_large(&self, db: usize, found: Found) -> bool {
        let durable = &self.durable;
        part::members(&self.dbs[db], found) > durable.sizes.large_members && durable.sliced.len() < SLICED_LIMIT
    }

    /// Begins to write a collection down in parts: with the first one.
    pub(super) fn begin_parts(&mut self, db: usize, found: Found) -> Result<(), RecordError> {
        let kind = self.dbs[db].kind(found);
        let key = args::copied(self.dbs[db].key(found)).map_err(|_| RecordError::OutOfMemory)?;
        let at = match kind {
            ValueKind::String => Place::Byte(0),
            ValueKind::List => Place::Elements,
            ValueKind::Stream => Place::Below(None),
            _ => Place::Cursor(0),
        };
        self.durable.sliced.try_reserve(1).map_err(|_| RecordError::OutOfMemory)?;
        self.durable.sliced.push(Sliced { db, key: key.into(), kind, at });
        self.dbs[db].mark_partial(found);
        if kind == ValueKind::List {
            self.dbs[db].set_list_written(found, Some(Written::default()));
        }
        self.write_part(self.durable.sliced.len() - 1)
    }

    /// Writes a part of the collection that has waited longest. Returns whether there was one.
    pub(super) fn write_next_part(&mut self) -> Result<bool, RecordError> {
        if self.durable.sliced.is_empty() {
            return Ok(false);
        }
        self.write_part(0).map(|()| true)
    }

    /// The collection that parts are written of, unless it is gone.
    fn sliced(&self, at: usize) -> Option<Found> {
        let Sliced { db, ref key, kind, .. } = self.durable.sliced[at];
        let db = &self.dbs[db];
        db.find_any(key).filter(|&found| db.is_partial(found) && db.kind(found) == kind)
    }

    /// Writes a part of a collection, and forgets it if that was the last one.
    fn write_part(&mut self, at: usize) -> Result<(), RecordError> {
        let Some(found) = self.sliced(at) else {
            self.durable.sliced.remove(at);
            return Ok(());
        };
        let db = self.durable.sliced[at].db;
        let most = self.durable.sizes.part_members;
        match self.durable.sliced[at].at {
            Place::Cursor(cursor) => {
                let (count, next) = self.with_writer(|store, writer| {
                    Ok(part::write_scanned(&store.dbs[db], found, cursor, most, writer))
                })?;
                // The last one may have no members, and says when the key expires: a replay that had none of them left was without
                // the key, and so without that.
                if count > 0 || next == 0 {
                    self.append_part(db, found, 0, Kind::STATE)?;
                }
                self.go_on(at, found, (next != 0).then_some(Place::Cursor(next)));
            }
            Place::Byte(start) => {
                let len = part::text(&self.dbs[db], found).len();
                let end = len.min(start + most * part::TEXT_MEMBER_BYTES);
                self.append_text(db, found, start..end)?;
                self.go_on(at, found, (end < len).then_some(Place::Byte(end)));
            }
            Place::Elements => {
                let is_done = self.write_elements_at(db, found, ListEnd::Front, most)?;
                self.go_on(at, found, (!is_done).then_some(Place::Elements));
            }
            Place::Below(below) => {
                let start = self.dbs[db].stream(found).block_before(below);
                self.with_writer(|store, writer| {
                    store.write_entries(db, found, (start, below), below.is_none(), writer)
                })?;
                self.append_part(db, found, 0, Kind::STATE)?;
                // The last one has no entries: it tells once more what is known of the stream.
                let next = start.map_or(Place::Pending(Vec::new(), StreamId::MIN), |start| Place::Below(Some(start)));
                self.go_on(at, found, Some(next));
            }
            Place::Pending(..) => return self.write_pending_part(at, db, found, most),
        }
        Ok(())
    }

    /// Writes what is pending in a group of a stream.
    fn write_pending_part(&mut self, at: usize, db: usize, found: Found, most: usize) -> Result<(), RecordError> {
        let mut next = None;
        self.with_writer(|store, writer| {
            let Place::Pending(name, start) = &store.durable.sliced[at].at else { return Ok(()) };
            let groups = store.dbs[db].stream(found).groups();
            let rank = groups.partition_point(|group| group.name() < name.as_slice());
            let Some(group) = groups.get(rank) else { return Ok(()) };
            let start = if group.name() == name.as_slice() { *start } else { StreamId::MIN };
            let rest = store.write_pending(db, found, (group, start), most, writer)?;
            let mut name = args::copied(group.name())?;
            if rest.is_none() {
                // The least name behind this one.
                args::push(&mut name, 0)?;
            }
            next = Some(Place::Pending(name, rest.unwrap_or(StreamId::MIN)));
            Ok(())
        })?;
        if next.is_some() {
            self.append_part(db, found, 0, Kind::STATE)?;
        }
        self.go_on(at, found, next);
        Ok(())
    }

    /// Notes where the next part begins, or that there is none.
    fn go_on(&mut self, at: usize, found: Found, next: Option<Place>) {
        if let Some(next) = next {
            self.durable.sliced[at].at = next;
            return;
        }
        let Sliced { db, kind, .. } = self.durable.sliced.remove(at);
        if kind == ValueKind::List {
            self.dbs[db].set_list_written(found, None);
        }
        self.dbs[db].mark(found);
        self.durable.note_written_down();
    }

    /// Writes elements of a list: the next ones from an end that are not written. Returns whether there were no more.
    fn write_elements_at(&mut self, db: usize, found: Found, end: ListEnd, most: usize) -> Result<bool, RecordError> {
        let len = self.dbs[db].list(found).len();
        // A list that has become small is written whole.
        let written = self.dbs[db].list_written(found);
        let Written { front, back } = written.unwrap_or_default();
        let middle = front..len - back.min(len);
        let count = middle.len().min(most);
        if count == 0 {
            return Ok(true);
        }
        let (which, after) = match end {
            ListEnd::Front => (front..front + count, Written { front: front + count, back }),
            ListEnd::Back => (middle.end - count..middle.end, Written { front, back: back + count }),
        };
        self.with_writer(|store, writer| store.write_elements(db, found, which, writer))?;
        self.append_part(db, found, front, Kind::STATE)?;
        self.dbs[db].set_list_written(found, Some(after));
        Ok(count == middle.len())
    }

    /// Fills the writer for parts.
    fn with_writer<R>(
        &mut self,
        fill: impl FnOnce(&Store, &mut Writer) -> Result<R, crate::Error>,
    ) -> Result<R, RecordError> {
        let mut writer = core::mem::replace(&mut self.durable.writer, Writer::new(Compression::Off));
        writer.clear();
        let filled = fill(self, &mut writer);
        let is_whole = writer.so_far().is_ok();
        self.durable.writer = writer;
        filled.ok().filter(|_| is_whole).ok_or(RecordError::OutOfMemory)
    }

    /// Appends the part in the writer. What is running has its effects in a unit: then it belongs there, in its order.
    fn append_part(&mut self, db: usize, found: Found, index: usize, kind: Kind) -> Result<(), RecordError> {
        let now_ms = self.now.unix_ms();
        let Store { durable, dbs, .. } = self;
        let writer = core::mem::replace(&mut durable.writer, Writer::new(Compression::Off));
        let (head, value) = (head(&dbs[db], found), writer.so_far().unwrap_or_default());
        let appended = if durable.unit_swaps || durable.has_unit() {
            durable.gather(now_ms, db, |sink| unit::write_part(sink, head, index, value));
            Ok(())
        } else {
            durable.append(kind, now_ms, |writing| {
                if db != 0 {
                    unit::write_database(writing, db);
                }
                unit::write_part(writing, head, index, value);
            })
        };
        durable.writer = writer;
        appended
    }

    /// Appends these bytes of a string.
    fn append_text(&mut self, db: usize, found: Found, which: Range<usize>) -> Result<(), RecordError> {
        let now_ms = self.now.unix_ms();
        let Store { durable, dbs, .. } = self;
        let (head, text) = (head(&dbs[db], found), part::text(&dbs[db], found));
        let mut items = Gathered::default();
        unit::write_database(&mut items, db);
        if head.expires_ms.is_some_and(|at| at < now_ms) {
            // A replay finds it as well.
            unit::write_from_master(&mut items);
        }
        let (mut from, mut piece) = (which.start, &text[which]);
        if from == 0 {
            unit::write_string(&mut items, head, Value::Bytes(piece));
            (from, piece) = (text.len() - 1, &text[text.len() - 1..]);
        }
        let from = Decimal::unsigned(from as u64);
        unit::write_command(&mut items, b"SETRANGE", [head.key, from.as_bytes(), piece].iter().copied());
        let items = items.bytes()?;
        if durable.unit_swaps || durable.has_unit() {
            durable.gather(now_ms, db, |sink| sink.put(items));
            return Ok(());
        }
        durable.append_bytes(Kind::STATE, now_ms, items)
    }

    /// Whether parts of a collection are being written.
    pub(super) fn is_sliced(&self, db: usize, found: Found) -> bool {
        self.durable.sliced.iter().any(|sliced| is_same(sliced, &self.dbs, db, found))
    }

    /// Gets a collection ready for a command: what the command depends on of it is written down.
    pub(super) fn write_needed(
        &mut self,
        db: usize,
        found: Found,
        what: Option<(&'static Command, Request<'_>)>,
    ) -> Result<(), RecordError> {
        let Some(at) = self.durable.sliced.iter().position(|sliced| is_same(sliced, &self.dbs, db, found)) else {
            return Ok(());
        };
        let kind = self.dbs[db].kind(found);
        match what.map_or(Need::Whole, |(command, request)| need(&self.dbs[db], found, command, request)) {
            Need::Nothing => {}
            Need::Named(from) => {
                let Some((_, request)) = what else { return Ok(()) };
                self.write_extra(db, found, |db, writer| part::write_named(db, found, request.from(from), writer))?;
            }
            Need::Ends(front, back) if kind == ValueKind::List => self.write_ends(db, found, front, back)?,
            Need::Ends(front, back) => {
                let len = part::members(&self.dbs[db], found);
                for ranks in [0..front.min(len), len - back.min(len)..len] {
                    self.write_extra(db, found, |db, writer| part::write_ranks(db, found, ranks, writer))?;
                }
            }
            Need::Whole => {
                // It goes on with the same collection, as the others keep their order.
                while self.durable.sliced.get(at).is_some_and(|sliced| is_same(sliced, &self.dbs, db, found)) {
                    self.write_part(at)?;
                }
            }
        }
        Ok(())
    }

    /// Writes members that the walk will write as well, or has written: they may not use the room that is kept for it.
    fn write_extra(
        &mut self,
        db: usize,
        found: Found,
        write: impl FnOnce(&Db, &mut Writer) -> u64,
    ) -> Result<(), RecordError> {
        let count = self.with_writer(|store, writer| Ok(write(&store.dbs[db], writer)))?;
        if count > 0 { self.append_part(db, found, 0, Kind::EFFECTS) } else { Ok(()) }
    }

    /// Sees to it that so many elements at the ends of a list are written, or all.
    fn write_ends(&mut self, db: usize, found: Found, front: usize, back: usize) -> Result<(), RecordError> {
        let least = self.durable.sizes.part_members;
        for (end, count) in [(ListEnd::Front, front), (ListEnd::Back, back)] {
            while let Some(written) = self.dbs[db].list_written(found) {
                let has = if end == ListEnd::Front { written.front } else { written.back };
                let is_enough = has >= count || (end == ListEnd::Front && count == 1 && written.back > 0 && back == 0);
                if is_enough || self.write_elements_at(db, found, end, least)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Forgets which collections are written in part.
    pub(super) fn forget_parts(&mut self) {
        for at in 0..self.durable.sliced.len() {
            if let Some(found) = self.sliced(at).filter(|_| self.durable.sliced[at].kind == ValueKind::List) {
                self.dbs[self.durable.sliced[at].db].set_list_written(found, None);
            }
        }
        self.durable.sliced.clear();
    }

    /// Sets how large parts are, and what is written in parts: for tests, in which nothing is large.
    pub fn set_part_sizes(&mut self, part_members: usize, large_members: usize) {
        self.durable.sizes = Sizes { part_members, large_members };
    }
}

fn is_same(sliced: &Sliced, dbs: &[Db], db: usize, found: Found) -> bool {
    sliced.db == db && *sliced.key == *dbs[db].key(found)
}
