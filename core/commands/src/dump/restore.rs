//! Bytes to values.

use crate::{Context, Error, EventClass, Outcome, Store, args, double, lists, streams};
use alloc::{boxed::Box, vec::Vec};
use kayvee_keyspace::{
    BlockLimits, Collection, Db, Decimal, Expiry, FIELD_EXPIRY_LIMIT_MS, Found, Hash, List, ListEnd, OutOfMemory,
    Owned, Packed, Pending, Records, Set, SortedSet, Stream, StreamId, Value,
};
use kayvee_platform::Heap;
use kayvee_rdb::{Elements, Object, Score, Scored, kind};
use kayvee_resp::Request;

const BAD_FORMAT: Error = Error::text("ERR Bad data format");
const EMPTY: Error = Error::text("ERR the collection is empty");

/// Whether a value was refused for being a collection without members: old versions of Redis left such ones in their files.
#[inline(never)]
pub fn is_about_emptiness(error: &Error) -> bool {
    *error == EMPTY
}

struct Options {
    replaces: bool,
    /// Whether the time to live is a time since 1970.
    is_absolute: bool,
    idle_s: Option<u64>,
    /// How often the key is used, on Redis' logarithmic scale.
    frequency: Option<u8>,
}

impl Options {
    fn parse(request: Request<'_>) -> Result<Options, Error> {
        const BAD_IDLE: Error = Error::text("ERR Invalid IDLETIME value, must be >= 0");
        const BAD_FREQUENCY: Error = Error::text("ERR Invalid FREQ value, must be >= 0 and <= 255");
        let mut options = Options { replaces: false, is_absolute: false, idle_s: None, frequency: None };
        let mut words = request.from(4);
        while let Some(word) = words.next() {
            match () {
                () if args::is(word, "replace") => options.replaces = true,
                () if args::is(word, "absttl") => options.is_absolute = true,
                () if args::is(word, "idletime") && options.frequency.is_none() => {
                    let idle_s = args::integer(words.next().ok_or(Error::SYNTAX)?)?;
                    options.idle_s = Some(u64::try_from(idle_s).map_err(|_| BAD_IDLE)?);
                }
                () if args::is(word, "freq") && options.idle_s.is_none() => {
                    let frequency = args::integer(words.next().ok_or(Error::SYNTAX)?)?;
                    options.frequency = Some(u8::try_from(frequency).map_err(|_| BAD_FREQUENCY)?);
                }
                () => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}

pub fn restore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (key, payload) = (&request[1], &request[3]);
    let options = Options::parse(request)?;
    let old = context.find(key);
    if old.is_some() && !options.replaces {
        return Err(Error::text("BUSYKEY Target key name already exists."));
    }
    let ttl = u64::try_from(args::integer(&request[2])?);
    let ttl = ttl.map_err(|_| Error::text("ERR Invalid TTL value, must be >= 0"))?;
    let value = kayvee_rdb::open(payload, context.store.dump_checksum);
    let value = value.ok_or(Error::text("ERR DUMP payload version or checksum are wrong"))?;
    let now_ms = context.now_ms();
    let expires_ms = match ttl {
        0 => None,
        at if options.is_absolute => Some(at),
        ttl => Some(ttl.checked_add(now_ms).filter(|at| i64::try_from(*at).is_ok()).unwrap_or(i64::MAX as u64)),
    };
    let is_late = expires_ms.is_some_and(|at| context.goes_at_once(at));
    let expiry = expires_ms.map_or(Expiry::Never, Expiry::At);
    let db = context.db_index();
    let (kind, value) = value.split_first().ok_or(BAD_FORMAT)?;
    let put = put(context.store, db, key, (*kind, value), if is_late { None } else { Some(expiry) });
    put.map_err(|error| if is_about_emptiness(&error) { BAD_FORMAT } else { error })?;
    if is_late {
        if let Some(found) = context.find(key) {
            context.effect(&[b"DEL", key]);
            context.remove(key, found);
        }
    } else {
        if let Some(found) = context.find(key) {
            if let Some(idle_s) = options.idle_s {
                context.db().set_last_use(found, now_ms.saturating_sub(idle_s.saturating_mul(1000)));
            }
            if let Some(frequency) = options.frequency {
                context.db().set_frequency(found, frequency, now_ms);
            }
        }
        if let Some(at) = expires_ms
            && !options.is_absolute
        {
            let at = Decimal::unsigned(at);
            let words = [&b"RESTORE"[..], key, at.as_bytes(), payload];
            let words: Vec<&[u8]> = words.into_iter().chain(request.from(4)).chain([&b"ABSTTL"[..]]).collect();
            context.effect(&words);
        }
        context.changed(EventClass::GENERIC, "restore", key);
    }
    context.reply.ok();
    Ok(())
}

/// Why nothing could be made of a value.
enum Failure {
    Corrupt,
    OutOfMemory,
}

impl From<kayvee_rdb::Error> for Failure {
    fn from(error: kayvee_rdb::Error) -> Failure {
        match error {
            kayvee_rdb::Error::Corrupt | kayvee_rdb::Error::Short { .. } => Failure::Corrupt,
            kayvee_rdb::Error::OutOfMemory => Failure::OutOfMemory,
        }
    }
}

impl From<OutOfMemory> for Failure {
    fn from(_: OutOfMemory) -> Failure {
        Failure::OutOfMemory
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Corrupt => {
                log::debug!("a value is not restored: its integrity check failed");
                BAD_FORMAT
            }
            Failure::OutOfMemory => Error::OUT_OF_MEMORY,
        }
    }
}

/// What may be used up while a value is made: a few bytes may stand for many.
struct Room {
    heap: &'static dyn Heap,
    limit_bytes: u64,
    /// Elements until the next look.
    countdown: u32,
}

impl Room {
    fn of(store: &Store) -> Room {
        let heap = store.environment.heap;
        Room { heap, limit_bytes: heap.used_bytes().saturating_add(store.data_room_bytes()), countdown: 0 }
    }

    fn check(&mut self) -> Result<(), Failure> {
        const PERIOD: u32 = 256;
        self.countdown = self.countdown.checked_sub(1).unwrap_or(PERIOD);
        if self.countdown == PERIOD && self.heap.used_bytes() > self.limit_bytes {
            return Err(Failure::OutOfMemory);
        }
        Ok(())
    }
}

/// Gives a key a value, or only reads the value if there is no use for it.
pub fn put(store: &mut Store, db: usize, key: &[u8], value: (u8, &[u8]), expiry: Option<Expiry>) -> Outcome {
    give(store, db, key, value, expiry, None)
}

/// Gives a key a value; or merges a collection, a part of a larger one, with what is there of that kind. A list's part then
/// stands at an index.
pub fn give(
    store: &mut Store,
    db: usize,
    key: &[u8],
    (kind, value): (u8, &[u8]),
    expiry: Option<Expiry>,
    merge_at: Option<usize>,
) -> Outcome {
    let object = kayvee_rdb::read_as(kind, value).map_err(Failure::from)?;
    let mut room = Room::of(store);
    let now_ms = store.now.unix_ms();
    let (options, db) = (&store.options, &mut store.dbs[db]);
    let merged = merge_at.and_then(|index| Some((db.find_any(key)?, index)));
    let place = Place { db, key, expiry, now_ms, merged: merged.map(|(found, _)| found), is_part: merge_at.is_some() };
    // A part may repeat what is there, or itself.
    let is_part = place.is_part;
    match object {
        Object::String(text) => {
            if let Some(expiry) = expiry {
                place.db.set(key, Owned::Text(text.as_bytes()), expiry, now_ms)?;
            }
            Ok(())
        }
        Object::List(elements) => {
            let limit = lists::limit(options);
            build(place, |list: &mut List, _| {
                let mut part = List::default();
                elements.for_each(|element| {
                    room.check()?;
                    Ok::<(), Failure>(part.push(ListEnd::Back, core::iter::once(element), limit)?)
                })?;
                match merged {
                    None => *list = part,
                    Some((_, index)) if index <= list.view().len() => list.splice(index, part, limit)?,
                    Some(_) => return Err(Failure::Corrupt),
                }
                Ok(())
            })
        }
        Object::Set(elements) => {
            let (limits, is_packed) = (options.set_limits(), kind == kind::SET_LISTPACK);
            build(place, |set: &mut Set, records| {
                if is_packed {
                    *set = Set::Packed(Packed::new());
                }
                fill(&elements, &mut room, |member| Ok(set.add(records, Value::Bytes(member), limits)? || is_part))
            })
        }
        Object::Hash(pairs) => {
            let limits = options.hash_limits();
            build(place, |hash: &mut Hash, records| {
                pairs.for_each_field(&mut |field, value, at_ms| {
                    room.check()?;
                    let is_right = hash.set(records, field, value, limits)? || is_part;
                    if !is_right || at_ms.is_some_and(|at| at > FIELD_EXPIRY_LIMIT_MS) {
                        return Err(Failure::Corrupt);
                    }
                    Ok(hash.expire(records, field, at_ms)?)
                })
            })
        }
        Object::Stream(mut value) => {
            let limits = streams::block_limits(options);
            build(place, |stream: &mut Box<Stream>, _| {
                let mut part = Stream::default();
                fill_stream(&mut part, &mut value, &mut room, limits)?;
                match merged {
                    None => **stream = part,
                    Some(_) if stream.is_behind(&part) => stream.merge(part)?,
                    Some(_) => return Err(Failure::Corrupt),
                }
                Ok(())
            })
        }
        Object::SortedSet(scored) => {
            let limits = options.zset_limits();
            build(place, |set: &mut SortedSet, records| {
                fill_sorted(&scored, &mut room, |member, score| {
                    if !is_part && set.view(records).score(member).is_some() {
                        return Err(Failure::Corrupt);
                    }
                    Ok(set.set(records, member, score, limits)?)
                })
            })
        }
    }
}

/// Adds elements, each of which must be new.
fn fill(
    elements: &Elements<'_>,
    room: &mut Room,
    mut add: impl FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    elements.for_each(|element| {
        room.check()?;
        if add(element)? { Ok(()) } else { Err(Failure::Corrupt) }
    })
}

fn fill_sorted(
    scored: &Scored<'_>,
    room: &mut Room,
    mut add: impl FnMut(&[u8], f64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    scored.for_each(|member, score| {
        room.check()?;
        let score = match score {
            Score::Number(number) => Some(number).filter(|number| !number.is_nan()),
            Score::Text(text) => double::parse(text),
        };
        add(member, score.ok_or(Failure::Corrupt)?)
    })
}

fn stream_id(id: kayvee_rdb::stream::Id) -> StreamId {
    StreamId { ms: id.ms, seq: id.seq }
}

fn fill_stream(
    stream: &mut Stream,
    value: &mut kayvee_rdb::stream::Stream<'_>,
    room: &mut Room,
    limits: BlockLimits,
) -> Result<(), Failure> {
    let mut texts = Vec::new();
    value.entries(|id, fields| {
        room.check()?;
        // One behind the other, since numbers have no text of their own.
        texts.clear();
        let mut ends = Vec::new();
        ends.try_reserve_exact(fields.len()).map_err(kayvee_rdb::Error::from)?;
        for field in fields {
            field.with_text(|text| {
                texts.try_reserve(text.len()).map_err(kayvee_rdb::Error::from)?;
                texts.extend_from_slice(text);
                ends.push(texts.len());
                Ok::<(), Failure>(())
            })?;
        }
        let text = |at: usize| &texts[at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]];
        let pairs = (0..ends.len() / 2).map(|pair| (text(2 * pair), text(2 * pair + 1)));
        Ok::<(), Failure>(stream.append(stream_id(id), pairs, limits)?)
    })?;
    let head = value.head()?;
    if head.len != stream.len() || stream_id(head.last_id) < stream.last_id {
        return Err(Failure::Corrupt);
    }
    (stream.last_id, stream.max_deleted_id) = (stream_id(head.last_id), stream_id(head.max_deleted_id));
    stream.entries_added = head.entries_added;
    for _ in 0..value.count()? {
        fill_group(stream, value, room)?;
    }
    Ok(())
}

fn fill_group(stream: &mut Stream, value: &mut kayvee_rdb::stream::Stream<'_>, room: &mut Room) -> Result<(), Failure> {
    let read = value.group()?;
    // They come in order: any other order would take long to put right.
    let is_behind = stream.groups().last().is_none_or(|last| last.name() < read.name.as_bytes());
    let last_id = stream_id(read.last_id);
    let entries_read = if value.has_entries_read() { read.entries_read } else { stream.entries_until(last_id) };
    if !is_behind || !stream.add_group(read.name.as_bytes(), last_id, entries_read)? {
        return Err(Failure::Corrupt);
    }
    let group = stream.group_mut(read.name.as_bytes()).expect("it was just added");
    // In order, each with its consumer, once that is known.
    let mut pending: Vec<(kayvee_rdb::stream::Pending, Option<u32>)> = Vec::new();
    for _ in 0..value.count()? {
        room.check()?;
        let next = value.pending()?;
        if pending.last().is_some_and(|(last, _)| last.id >= next.id) {
            return Err(Failure::Corrupt);
        }
        pending.try_reserve(1).map_err(kayvee_rdb::Error::from)?;
        pending.push((next, None));
    }
    for _ in 0..value.count()? {
        room.check()?;
        let read = value.consumer()?;
        if group.consumers().next_back().is_some_and(|last| last.name() >= read.name.as_bytes()) {
            return Err(Failure::Corrupt);
        }
        let (place, _) = group.add_consumer(read.name.as_bytes(), read.seen_ms)?;
        group.consumer_mut(place).active_ms = read.active_ms;
        for _ in 0..value.count()? {
            let id = value.pending_id()?;
            let at = pending.binary_search_by(|(pending, _)| pending.id.cmp(&id)).map_err(|_| Failure::Corrupt)?;
            if pending[at].1.replace(place).is_some() {
                return Err(Failure::Corrupt);
            }
        }
    }
    for (pending, consumer) in pending {
        group.deliver(Pending {
            id: stream_id(pending.id),
            consumer: consumer.ok_or(Failure::Corrupt)?,
            delivered_ms: pending.delivered_ms,
            deliveries: pending.deliveries,
        })?;
    }
    Ok(())
}

/// Where a value goes.
struct Place<'a> {
    db: &'a mut Db,
    key: &'a [u8],
    expiry: Option<Expiry>,
    now_ms: u64,
    /// What it is merged with.
    merged: Option<Found>,
    /// Whether it is a part, which may have no members.
    is_part: bool,
}

/// Makes a collection, which must have members, for a key.
fn build<C: Collection>(place: Place<'_>, make: impl FnOnce(&mut C, &mut Records) -> Result<(), Failure>) -> Outcome {
    let mut failure = Failure::OutOfMemory;
    let make = |collection: &mut C, records: &mut Records| {
        make(collection, records).map_err(|error| {
            failure = error;
            OutOfMemory
        })
    };
    if let Some(found) = place.merged {
        if place.db.kind(found) != C::KIND {
            return Err(BAD_FORMAT);
        }
        place.db.edit(place.key, Some(found), place.now_ms, make).map_err(|_| failure)?;
        let found = place.db.find_any(place.key);
        if let (Some(found), Some(expiry)) = (found, place.expiry) {
            let expires_ms = if let Expiry::At(at_ms) = expiry { Some(at_ms) } else { None };
            place.db.set_expires_ms(found, expires_ms)?;
        }
        return Ok(());
    }
    let made = place.db.build(make);
    let collection = made.map_err(|_| failure)?;
    let is_empty = collection.is_empty();
    if is_empty && !place.is_part {
        return Err(EMPTY);
    }
    match place.expiry.filter(|_| !is_empty) {
        Some(expiry) => place.db.put(place.key, collection, expiry, place.now_ms)?,
        None => place.db.drop_built(collection),
    }
    Ok(())
}
