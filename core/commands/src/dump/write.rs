//! Values to bytes.

use crate::{Context, Error, double::DoubleText, lists, strings::with_text};
use alloc::vec::Vec;
use kayvee_keyspace::{
    Db, Direction, Found, HashView, IntsetRef, Kind, ListView, PartLimit, SetView, SortedSetView, Value,
};
use kayvee_rdb::{Compression, Listpack, Writer, kind};

/// The value at a key as `RESTORE` takes it.
pub fn payload(context: &mut Context<'_>, found: Found) -> Result<Vec<u8>, Error> {
    if context.db().bytes_of(found) as u64 > context.store.data_room_bytes() {
        return Err(Error::OUT_OF_MEMORY);
    }
    let limit = lists::limit(context);
    let compression = Compression::On;
    write(context.db(), found, limit, compression)
}

fn write(db: &Db, found: Found, limit: PartLimit, compression: Compression) -> Result<Vec<u8>, Error> {
    let written = match db.kind(found) {
        Kind::String => {
            let mut writer = Writer::new(kind::STRING, compression);
            write_value(&mut writer, db.value(found));
            writer.finish()
        }
        Kind::List => write_list(db.list(found), limit, compression),
        Kind::Hash => write_hash(db.hash(found), compression),
        Kind::Set => write_set(db.set_at(found), compression),
        Kind::SortedSet => write_sorted_set(db.sorted_set(found), compression),
        Kind::Stream => return Err(Error::text("ERR streams cannot be dumped yet")),
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
