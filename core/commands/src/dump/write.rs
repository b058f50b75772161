//! Values to bytes.

use crate::{Context, Error, double::DoubleText, lists, streams, strings::with_text};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use kayvee_keyspace::{
    BlockLimits, Db, Direction, Found, Group, HashView, IntsetRef, Kind, ListView, PartLimit, SetView, SortedSetView,
    Stream, StreamId, Value,
};
use kayvee_rdb::{Compression, Listpack, Writer, kind, stream};

/// The value at a key as `RESTORE` takes it.
pub fn payload(context: &mut Context<'_>, found: Found) -> Result<Vec<u8>, Error> {
    if context.db().bytes_of(found) as u64 > context.store.data_room_bytes() {
        return Err(Error::OUT_OF_MEMORY);
    }
    let limits = Limits { list: lists::limit(context), stream: streams::block_limits(context) };
    let compression = Compression::On;
    write(context.db(), found, limits, compression)
}

/// How large the parts of values are.
struct Limits {
    list: PartLimit,
    stream: BlockLimits,
}

fn write(db: &Db, found: Found, limits: Limits, compression: Compression) -> Result<Vec<u8>, Error> {
    let written = match db.kind(found) {
        Kind::String => {
            let mut writer = Writer::new(kind::STRING, compression);
            write_value(&mut writer, db.value(found));
            writer.finish()
        }
        Kind::List => write_list(db.list(found), limits.list, compression),
        Kind::Hash => write_hash(db.hash(found), compression),
        Kind::Set => write_set(db.set_at(found), compression),
        Kind::SortedSet => write_sorted_set(db.sorted_set(found), compression),
        Kind::Stream => write_stream(db.stream(found), limits.stream, compression),
    };
    // Only memory can be missing.
    written.map_err(|_| Error::OUT_OF_MEMORY)
}

fn write_value(writer: &mut Writer, value: Value<'_>) {
    match value {
        Value::Integer(number) => writer.integer(number),
        Value::Bytes(text) => writer.text(text),
    }
}

/// A value that is one listpack.
fn write_packed(kind: u8, pack: Listpack, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
    let mut writer = Writer::new(kind, compression);
    writer.text(&pack.finish()?);
    writer.finish()
}

/// A list as parts, each of which is a listpack or one long element.
fn write_list(list: ListView<'_>, limit: PartLimit, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
    const PLAIN: u64 = 1;
    const PACKED: u64 = 2;
    /// Bytes around an entry's text.
    const FRAME: usize = 11;
    let mut parts = Writer::part(compression);
    let mut count = 0;
    let flush = |pack: &mut Listpack, count: &mut u64, parts: &mut Writer| {
        let pack = core::mem::take(pack);
        if !pack.is_empty() {
            parts.len(PACKED);
            parts.text(&pack.finish()?);
            *count += 1;
        }
        Ok::<(), kayvee_rdb::Error>(())
    };
    let mut pack = Listpack::new();
    for element in list.iter() {
        if limit.exceeds(element.len() + FRAME, 1) {
            flush(&mut pack, &mut count, &mut parts)?;
            parts.len(PLAIN);
            parts.text(element);
            count += 1;
            continue;
        }
        if limit.exceeds(pack.len() + element.len() + FRAME, pack.count() + 1) {
            flush(&mut pack, &mut count, &mut parts)?;
        }
        pack.push(element);
    }
    flush(&mut pack, &mut count, &mut parts)?;
    let mut writer = Writer::new(kind::LIST_QUICKLIST_2, compression);
    writer.len(count);
    writer.append(parts);
    writer.finish()
}

fn write_hash(hash: HashView<'_>, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
    if let HashView::Packed(packed) = hash {
        let mut pack = Listpack::new();
        packed.iter().for_each(|text| pack.push(text));
        return write_packed(kind::HASH_LISTPACK, pack, compression);
    }
    let mut writer = Writer::new(kind::HASH, compression);
    writer.len(hash.len() as u64);
    hash.for_each(|field, value| {
        writer.text(field);
        write_value(&mut writer, value);
    });
    writer.finish()
}

fn write_set(set: SetView<'_>, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
    match set {
        SetView::Intset(intset) => write_intset(intset, compression),
        SetView::Packed(packed) => {
            let mut pack = Listpack::new();
            packed.iter().for_each(|text| pack.push(text));
            write_packed(kind::SET_LISTPACK, pack, compression)
        }
        SetView::Table(..) => {
            let mut writer = Writer::new(kind::SET, compression);
            writer.len(set.len() as u64);
            set.for_each(|member| with_text(member, |text| writer.text(text)));
            writer.finish()
        }
    }
}

fn write_intset(intset: IntsetRef<'_>, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
    let numbers = intset.number_bytes();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(8 + numbers.len())?;
    for number in [intset.width(), intset.len()] {
        bytes.extend_from_slice(&(number as u32).to_le_bytes());
    }
    bytes.extend_from_slice(numbers);
    let mut writer = Writer::new(kind::SET_INTSET, compression);
    writer.text(&bytes);
    writer.finish()
}

fn write_sorted_set(set: SortedSetView<'_>, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
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
        return write_packed(kind::ZSET_LISTPACK, pack, compression);
    }
    let mut writer = Writer::new(kind::ZSET_2, compression);
    writer.len(set.len() as u64);
    // The greatest first, as in Redis: each is then the least of those that were loaded.
    set.for_each(0..set.len(), Direction::Backward, |member, score| {
        writer.text(member);
        writer.double(score);
    });
    writer.finish()
}

fn id_of(id: StreamId) -> stream::Id {
    stream::Id { ms: id.ms, seq: id.seq }
}

fn write_stream(value: &Stream, limits: BlockLimits, compression: Compression) -> Result<Vec<u8>, kayvee_rdb::Error> {
    let limit = stream::BlockLimit { bytes: limits.bytes, entries: limits.entries };
    let mut blocks = stream::Blocks::new(limit, compression);
    let mut fields: Vec<(&[u8], &[u8])> = Vec::new();
    let mut result = Ok(());
    value.visit(StreamId::MIN, StreamId::MAX, Direction::Forward, |entry| {
        fields.clear();
        result = fields.try_reserve(entry.len()).map_err(kayvee_rdb::Error::from).and_then(|()| {
            entry.for_each(|name, value| fields.push((name, value)));
            blocks.push(id_of(entry.id()), &fields)
        });
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    result?;
    let mut writer = Writer::new(kind::STREAM_LISTPACKS_3, compression);
    blocks.finish(&mut writer)?;
    writer.stream_head(stream::Head {
        len: value.len(),
        last_id: id_of(value.last_id),
        first_id: id_of(value.first_id()),
        max_deleted_id: id_of(value.max_deleted_id),
        entries_added: value.entries_added,
    });
    writer.len(value.groups().len() as u64);
    value.groups().iter().for_each(|group| write_group(&mut writer, group));
    writer.finish()
}

fn write_group(writer: &mut Writer, group: &Group) {
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
        writer.consumer(consumer.name(), consumer.seen_ms, consumer.active_ms);
        writer.len(consumer.pending_len() as u64);
        consumer.visit_pending(StreamId::MIN, |id| {
            writer.pending_id(id_of(id));
            ControlFlow::Continue(())
        });
    }
}
