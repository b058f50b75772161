//! Values to bytes.

use crate::{Error, Store, double::DoubleText, lists, streams, strings::with_text};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use kayvee_keyspace::{
    BlockLimits, Direction, Found, Group, HashView, IntsetRef, Kind, PartLimit, SetView, SortedSetView, Stream,
    StreamId, Value,
};
use kayvee_rdb::{Compression, Dialect, Listpack, Writer, kind, stream};

/// The value at a key as `RESTORE` takes it.
pub fn payload(store: &Store, db: usize, found: Found, dialect: Dialect) -> Result<Vec<u8>, Error> {
    let mut writer = Writer::new(Compression::On);
    value(store, db, found, &mut writer, dialect)?;
    let has_newer_form = store.dbs[db].first_field_expiry_ms(found).is_some();
    let dialect = if has_newer_form { Dialect::Redis74 } else { dialect };
    writer.finish(dialect).map_err(|_| Error::OUT_OF_MEMORY)
}

/// Writes the value at a key with its type in front. Want of memory may show only when the writer ends.
pub fn value(store: &Store, db: usize, found: Found, writer: &mut Writer, dialect: Dialect) -> Result<(), Error> {
    let options = &store.options;
    let db = &store.dbs[db];
    // It is read when memory is full as well: by clients, by a compaction of the log.
    if db.bytes_of(found) as u64 > store.reply_room_bytes() {
        return Err(Error::OUT_OF_MEMORY);
    }
    let written = match db.kind(found) {
        Kind::String => {
            writer.kind(kind::STRING);
            write_value(writer, db.value(found));
            Ok(())
        }
        Kind::List => write_list(writer, db.list(found).iter(), lists::limit(options)),
        Kind::Hash => write_hash(writer, db.hash_as_stored(found), db.first_field_expiry_ms(found)),
        Kind::Set => write_set(writer, db.set_at(found), dialect),
        Kind::SortedSet => write_sorted_set(writer, db.sorted_set(found)),
        Kind::Stream => {
            let all = Entries { start: StreamId::MIN, end: StreamId::MAX, len: db.stream(found).len() };
            let limits = streams::block_limits(options);
            write_stream(writer, db.stream(found), all, limits, dialect).map(|()| {
                let groups = db.stream(found).groups();
                writer.len(groups.len() as u64);
                groups.iter().for_each(|group| write_group(writer, group, dialect));
            })
        }
    };
    // Only memory can be missing.
    written.map_err(|_| Error::OUT_OF_MEMORY)
}

pub(super) fn write_value(writer: &mut Writer, value: Value<'_>) {
    match value {
        Value::Integer(number) => writer.integer(number),
        Value::Bytes(text) => writer.text(text),
    }
}

/// A value that is one listpack.
fn write_packed(writer: &mut Writer, kind: u8, pack: Listpack) -> Result<(), kayvee_rdb::Error> {
    writer.kind(kind);
    writer.text(&pack.finish()?);
    Ok(())
}

/// A list as parts, each of which is a listpack or one long element.
pub(super) fn write_list<'a>(
    writer: &mut Writer,
    elements: impl Iterator<Item = &'a [u8]>,
    limit: PartLimit,
) -> Result<(), kayvee_rdb::Error> {
    const PLAIN: u64 = 1;
    const PACKED: u64 = 2;
    /// Bytes around an entry's text.
    const FRAME: usize = 11;
    writer.kind(kind::LIST_QUICKLIST_2);
    let start = writer.written();
    let mut count = 0;
    let flush = |pack: &mut Listpack, count: &mut u64, writer: &mut Writer| {
        let pack = core::mem::take(pack);
        if !pack.is_empty() {
            writer.len(PACKED);
            writer.text(&pack.finish()?);
            *count += 1;
        }
        Ok::<(), kayvee_rdb::Error>(())
    };
    let mut pack = Listpack::new();
    for element in elements {
        // Redis takes no long element that is empty, whatever the limit.
        if !element.is_empty() && limit.exceeds(element.len() + FRAME, 1) {
            flush(&mut pack, &mut count, writer)?;
            writer.len(PLAIN);
            writer.text(element);
            count += 1;
            continue;
        }
        if limit.exceeds(pack.len() + element.len() + FRAME, pack.count() + 1) {
            flush(&mut pack, &mut count, writer)?;
        }
        pack.push(element);
    }
    flush(&mut pack, &mut count, writer)?;
    writer.insert(start, |writer| writer.len(count));
    Ok(())
}

/// A field of a hash of whose fields the first expires then, if any does.
pub(super) fn write_field(
    writer: &mut Writer,
    first_ms: Option<u64>,
    (field, value, at_ms): (&[u8], Value<'_>, Option<u64>),
) {
    if let Some(first_ms) = first_ms {
        writer.len(at_ms.map_or(0, |at| at.saturating_sub(first_ms) + 1));
    }
    writer.text(field);
    write_value(writer, value);
}

/// Begins a hash of fields that are not packed; their number follows.
pub(super) fn begin_hash(writer: &mut Writer, first_ms: Option<u64>) {
    match first_ms {
        None => writer.kind(kind::HASH),
        Some(first_ms) => {
            writer.kind(kind::HASH_EXPIRING);
            writer.bytes(&first_ms.to_le_bytes());
        }
    }
}

fn write_hash(writer: &mut Writer, hash: HashView<'_>, first_ms: Option<u64>) -> Result<(), kayvee_rdb::Error> {
    if let HashView::Packed(packed) = hash {
        let mut pack = Listpack::new();
        packed.iter().for_each(|text| pack.push(text));
        return write_packed(writer, kind::HASH_LISTPACK, pack);
    }
    begin_hash(writer, first_ms);
    writer.len(hash.len() as u64);
    hash.for_each(&mut |field, value, at_ms| write_field(writer, first_ms, (field, value, at_ms)));
    Ok(())
}

fn write_set(writer: &mut Writer, set: SetView<'_>, dialect: Dialect) -> Result<(), kayvee_rdb::Error> {
    match set {
        SetView::Intset(intset) => write_intset(writer, intset),
        SetView::Packed(packed) if dialect >= Dialect::Redis72 => {
            let mut pack = Listpack::new();
            packed.iter().for_each(|text| pack.push(text));
            write_packed(writer, kind::SET_LISTPACK, pack)
        }
        SetView::Packed(_) | SetView::Table(..) => {
            writer.kind(kind::SET);
            writer.len(set.len() as u64);
            set.for_each(|member| with_text(member, |text| writer.text(text)));
            Ok(())
        }
    }
}

fn write_intset(writer: &mut Writer, intset: IntsetRef<'_>) -> Result<(), kayvee_rdb::Error> {
    let numbers = intset.number_bytes();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(8 + numbers.len())?;
    for number in [intset.width(), intset.len()] {
        bytes.extend_from_slice(&(number as u32).to_le_bytes());
    }
    bytes.extend_from_slice(numbers);
    writer.kind(kind::SET_INTSET);
    writer.text(&bytes);
    Ok(())
}

fn write_sorted_set(writer: &mut Writer, set: SortedSetView<'_>) -> Result<(), kayvee_rdb::Error> {
    if let SortedSetView::Packed(_) = set {
        let mut pack = Listpack::new();
        set.for_all(|member, score| {
            pack.push(member);
            // A whole number is one, even if it is -0.
            match score as i64 {
                whole if whole as f64 == score && score.abs() <= (i64::MAX / 2) as f64 => pack.push_integer(whole),
                _ => pack.push(DoubleText::shortest(score).as_str().as_bytes()),
            }
        });
        return write_packed(writer, kind::ZSET_LISTPACK, pack);
    }
    writer.kind(kind::ZSET_2);
    writer.len(set.len() as u64);
    // The greatest first, as in Redis: each is then the least of those that were loaded.
    set.for_each(0..set.len(), Direction::Backward, |member, score| {
        writer.text(member);
        writer.double(score);
    });
    Ok(())
}

pub(super) fn id_of(id: StreamId) -> stream::Id {
    stream::Id { ms: id.ms, seq: id.seq }
}

/// Which entries of a stream.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    pub start: StreamId,
    pub end: StreamId,
    /// How many they are.
    pub len: u64,
}

/// Writes a stream without its groups, which follow.
pub(super) fn write_stream(
    writer: &mut Writer,
    value: &Stream,
    which: Entries,
    limits: BlockLimits,
    dialect: Dialect,
) -> Result<(), kayvee_rdb::Error> {
    writer.kind(match dialect {
        Dialect::Redis70 => kind::STREAM_LISTPACKS_2,
        Dialect::Redis72 | Dialect::Redis74 => kind::STREAM_LISTPACKS_3,
    });
    let limit = stream::BlockLimit { bytes: limits.bytes, entries: limits.entries };
    let mut blocks = stream::Blocks::new(limit, writer);
    let mut fields: Vec<(&[u8], &[u8])> = Vec::new();
    let mut result = Ok(());
    value.visit(which.start, which.end, Direction::Forward, |entry| {
        fields.clear();
        result = fields.try_reserve(entry.len()).map_err(kayvee_rdb::Error::from).and_then(|()| {
            entry.for_each(|name, value| fields.push((name, value)));
            blocks.push(id_of(entry.id()), &fields)
        });
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    result?;
    blocks.finish()?;
    writer.stream_head(stream::Head {
        len: which.len,
        last_id: id_of(value.last_id),
        first_id: id_of(value.first_id()),
        max_deleted_id: id_of(value.max_deleted_id),
        entries_added: value.entries_added,
    });
    Ok(())
}

fn write_group(writer: &mut Writer, group: &Group, dialect: Dialect) {
    writer.group(group.name(), id_of(group.last_id), group.entries_read);
    writer.len(group.pending_len() as u64);
    group.visit_pending(StreamId::MIN, |pending| {
        writer.pending(stream::Pending {
            id: id_of(pending.id),
            delivered_ms: pending.delivered_ms,
            deliveries: pending.deliveries,
        });
        ControlFlow::Continue(())
    });
    writer.len(group.consumers().len() as u64);
    for consumer in group.consumers() {
        writer.consumer(consumer.name(), consumer.seen_ms, consumer.active_ms, dialect);
        writer.len(consumer.pending_len() as u64);
        consumer.visit_pending(StreamId::MIN, |id| {
            writer.pending_id(id_of(id));
            ControlFlow::Continue(())
        });
    }
}
