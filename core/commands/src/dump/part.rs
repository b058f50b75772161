//! Parts of large collections: each is the value of a collection of its own, which is merged with what is there of the key.

use super::write::{Entries, begin_hash, id_of, write_field, write_list, write_stream};
use crate::{Error, Outcome, Store, lists, streams, strings::with_text};
use core::ops::{ControlFlow, Range};
use kayvee_keyspace::{
    Db, Direction, Found, Group, HashView, Kind, ListEnd, ListView, SetView, SortedSetView, StreamId, Value,
    parse_integer,
};
use kayvee_rdb::{Dialect, Writer, kind, stream};

const DIALECT: Dialect = Dialect::Redis72;

/// So many bytes of a string count as a member.
pub const TEXT_MEMBER_BYTES: usize = 512;

/// A string's bytes, unless it is a number, which is short.
pub fn text(db: &Db, found: Found) -> &[u8] {
    match db.value(found) {
        Value::Bytes(text) => text,
        Value::Integer(_) => &[],
    }
}

/// How many members there are that are written one by one: none, where all lie in one piece that is written as such.
pub fn members(db: &Db, found: Found) -> usize {
    match db.kind(found) {
        Kind::String => text(db, found).len() / TEXT_MEMBER_BYTES,
        Kind::List => match db.list(found) {
            ListView::Packed(_) => 0,
            list @ ListView::Parts(_) => list.len(),
        },
        Kind::Hash => match db.hash_as_stored(found) {
            HashView::Packed(_) => 0,
            hash @ HashView::Table(..) => hash.len(),
        },
        Kind::Set => match db.set_at(found) {
            SetView::Intset(_) | SetView::Packed(_) => 0,
            set @ SetView::Table(..) => set.len(),
        },
        Kind::SortedSet => match db.sorted_set(found) {
            SortedSetView::Packed(_) => 0,
            set @ SortedSetView::Table(..) => set.len(),
        },
        Kind::Stream => {
            let stream = db.stream(found);
            stream.len() as usize + stream.groups().iter().map(Group::pending_len).sum::<usize>()
        }
    }
}

/// Members that are written as they are found, behind their number.
struct Members<'a> {
    writer: &'a mut Writer,
    start: usize,
    count: u64,
    /// When the first field of a hash expires.
    first_ms: Option<u64>,
}

impl<'a> Members<'a> {
    /// Begins with members of a hash, set or sorted set.
    fn begin(writer: &'a mut Writer, db: &Db, found: Found) -> Members<'a> {
        let first_ms = db.first_field_expiry_ms(found);
        match db.kind(found) {
            Kind::Hash => begin_hash(writer, first_ms),
            Kind::Set => writer.kind(kind::SET),
            _ => writer.kind(kind::ZSET_2),
        }
        Members { start: writer.written(), writer, count: 0, first_ms }
    }

    fn scored(&mut self, member: &[u8], score: f64) {
        self.writer.text(member);
        self.writer.double(score);
        self.count += 1;
    }

    fn field(&mut self, field: &[u8], value: Value<'_>, at_ms: Option<u64>) {
        write_field(self.writer, self.first_ms, (field, value, at_ms));
        self.count += 1;
    }

    fn member(&mut self, member: Value<'_>) {
        with_text(member, |text| self.writer.text(text));
        self.count += 1;
    }

    fn end(self) -> u64 {
        let count = self.count;
        self.writer.insert(self.start, |writer| writer.len(count));
        count
    }
}

/// Writes some members of a hash, set or sorted set, from a cursor on. Returns how many and the next cursor.
pub fn write_scanned(db: &Db, found: Found, mut cursor: u64, least: usize, writer: &mut Writer) -> (u64, u64) {
    let mut members = Members::begin(writer, db, found);
    loop {
        cursor = match db.kind(found) {
            Kind::Hash => {
                db.hash_as_stored(found).scan(cursor, &mut |field, value, at_ms| members.field(field, value, at_ms))
            }
            Kind::Set => db.set_at(found).scan(cursor, |member| members.member(member)),
            _ => db.sorted_set(found).scan(cursor, |member, score| members.scored(member, score)),
        };
        if cursor == 0 || members.count >= least as u64 {
            return (members.end(), cursor);
        }
    }
}

/// Writes those of these members that a hash, set or sorted set has. Returns how many.
pub fn write_named<'n>(db: &Db, found: Found, names: impl Iterator<Item = &'n [u8]>, writer: &mut Writer) -> u64 {
    let mut members = Members::begin(writer, db, found);
    for name in names {
        match db.kind(found) {
            Kind::Hash => {
                let hash = db.hash_as_stored(found);
                if let Some((value, at_ms)) = hash.get(name).zip(hash.expiry(name)) {
                    members.field(name, value, at_ms);
                }
            }
            Kind::Set => {
                let member = parse_integer(name).map_or(Value::Bytes(name), Value::Integer);
                if db.set_at(found).contains(member) {
                    members.member(member);
                }
            }
            _ => {
                if let Some(score) = db.sorted_set(found).score(name) {
                    members.scored(name, score);
                }
            }
        }
    }
    members.end()
}

/// Writes the members of a sorted set that have these ranks.
pub fn write_ranks(db: &Db, found: Found, ranks: Range<usize>, writer: &mut Writer) -> u64 {
    let mut members = Members::begin(writer, db, found);
    db.sorted_set(found).for_each(ranks, Direction::Forward, |member, score| members.scored(member, score));
    members.end()
}

impl Store {
    /// Writes some elements of a list.
    pub(crate) fn write_elements(&self, db: usize, found: Found, which: Range<usize>, writer: &mut Writer) -> Outcome {
        let elements = self.dbs[db].list(found).iter_from(which.start, ListEnd::Front).take(which.len());
        write_list(writer, elements, lists::limit(&self.options)).map_err(|_| Error::OUT_OF_MEMORY)
    }

    /// Writes entries of a stream, from the start of a block to below an ID, all groups without what is pending if they are
    /// wanted, and what is known of the stream.
    pub(crate) fn write_entries(
        &self,
        db: usize,
        found: Found,
        (start, below): (Option<StreamId>, Option<StreamId>),
        wants_groups: bool,
        writer: &mut Writer,
    ) -> Outcome {
        let value = self.dbs[db].stream(found);
        let end = below.map_or(Some(StreamId::MAX), StreamId::previous);
        let which = match (start, end) {
            (Some(start), Some(end)) => {
                let mut len = 0;
                value.visit(start, end, Direction::Forward, |_| {
                    len += 1;
                    ControlFlow::Continue(())
                });
                Entries { start, end, len }
            }
            _ => Entries { start: StreamId::MAX, end: StreamId::MIN, len: 0 },
        };
        let limits = streams::block_limits(&self.options);
        write_stream(writer, value, which, limits, DIALECT).map_err(|_| Error::OUT_OF_MEMORY)?;
        let groups = if wants_groups { value.groups() } else { &[] };
        writer.len(groups.len() as u64);
        groups.iter().for_each(|group| write_group_part(writer, group, None));
        Ok(())
    }

    /// Writes up to so many entries that are pending in a group, from an ID on, as a stream without entries. Returns the ID
    /// to go on from, if there is more.
    pub(crate) fn write_pending(
        &self,
        db: usize,
        found: Found,
        (group, start): (&Group, StreamId),
        most: usize,
        writer: &mut Writer,
    ) -> Result<Option<StreamId>, Error> {
        let none = Entries { start: StreamId::MAX, end: StreamId::MIN, len: 0 };
        let limits = streams::block_limits(&self.options);
        write_stream(writer, self.dbs[db].stream(found), none, limits, DIALECT).map_err(|_| Error::OUT_OF_MEMORY)?;
        let (mut count, mut end, mut next) = (0, start, None);
        group.visit_pending(start, |pending| {
            if count == most {
                next = Some(pending.id);
                return ControlFlow::Break(());
            }
            (count, end) = (count + 1, pending.id);
            ControlFlow::Continue(())
        });
        writer.len(1);
        write_group_part(writer, group, Some((start, end)));
        Ok(next)
    }
}

/// Writes a group with all its consumers and none of its pending entries, or with those of them whose IDs are in a range
/// and their consumers.
fn write_group_part(writer: &mut Writer, group: &Group, range: Option<(StreamId, StreamId)>) {
    let is_within = |id: StreamId| range.is_some_and(|(_, end)| id <= end);
    let start = range.map_or(StreamId::MAX, |(start, _)| start);
    writer.group(group.name(), id_of(group.last_id), group.entries_read);
    let (at, mut count) = (writer.written(), 0);
    group.visit_pending(start, |pending| {
        if !is_within(pending.id) {
            return ControlFlow::Break(());
        }
        let (id, delivered_ms, deliveries) = (id_of(pending.id), pending.delivered_ms, pending.deliveries);
        writer.pending(stream::Pending { id, delivered_ms, deliveries });
        count += 1;
        ControlFlow::Continue(())
    });
    writer.insert(at, |writer| writer.len(count));
    let (at, mut consumers) = (writer.written(), 0);
    for consumer in group.consumers() {
        let mut has_some = false;
        consumer.visit_pending(start, |id| {
            has_some = is_within(id);
            ControlFlow::Break(())
        });
        if range.is_some() && !has_some {
            continue;
        }
        consumers += 1;
        writer.consumer(consumer.name(), consumer.seen_ms, consumer.active_ms, DIALECT);
        let (at, mut count) = (writer.written(), 0);
        consumer.visit_pending(start, |id| {
            if !is_within(id) {
                return ControlFlow::Break(());
            }
            writer.pending_id(id_of(id));
            count += 1;
            ControlFlow::Continue(())
        });
        writer.insert(at, |writer| writer.len(count));
    }
    writer.insert(at, |writer| writer.len(consumers));
}
