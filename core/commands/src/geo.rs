//! Places on earth: sorted sets whose scores are places.

use crate::{
    Context, Error, Outcome, args,
    double::{self, DoubleText},
    table::{Begin, Categories, Command, Find, Flags, Group, KeyAt, KeyFlags, Keys},
    zset::{AddOptions, add_scored, reply_from},
};
use alloc::{format, vec, vec::Vec};
use hash::{Place, STEP_LIMIT};
use kayvee_keyspace::{Decimal, SortedSetView};
use kayvee_resp::{Request, Writer};

mod hash;
mod search;

const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);

const READING: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const OVERWRITING: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);

const READS: &[Keys] = &[Keys::one(1, READING)];
const UPDATES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const STORES: &[Keys] = &[Keys::one(1, OVERWRITING), Keys::one(2, READING)];

/// The key behind an option that stores the result.
const fn storing(option: &'static str, from: i16) -> Keys {
    let find = Find::Range { last: 0, step: 1, limit: 0 };
    Keys { begin: Begin::Keyword(option, from), find, flags: OVERWRITING }
}

/// The keys that the request names. Of several options that store the result the last one does.
fn radius_keys(request: Request<'_>) -> Option<Vec<KeyAt>> {
    const OPTIONS_FROM: usize = 5;
    let (mut store, mut at) = (None, OPTIONS_FROM);
    while at + 1 < request.len() {
        let is_storing = args::is(&request[at], "store") || args::is(&request[at], "storedist");
        at += 1;
        if is_storing {
            // Its key may have an option's name.
            store = Some((at, OVERWRITING));
            at += 1;
        }
    }
    let mut found = vec![(1, READING)];
    found.extend(store);
    Some(found)
}

/// What all rows share.
const ROW: Command = Command { categories: Categories::GEO, group: Group::Geo, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "geoadd", arity: -5, flags: GROW, keys: UPDATES, handler: Some(geoadd), ..ROW },
    Command { name: "geodist", arity: -4, flags: Flags::READONLY, keys: READS, handler: Some(geodist), ..ROW },
    Command { name: "geohash", arity: -2, flags: Flags::READONLY, keys: READS, handler: Some(geohash), ..ROW },
    Command { name: "geopos", arity: -2, flags: Flags::READONLY, keys: READS, handler: Some(geopos), ..ROW },
    Command {
        name: "georadius",
        arity: -6,
        flags: GROW.union(Flags::MOVABLEKEYS),
        keys: &[Keys::one(1, READING), storing("STORE", 6), storing("STOREDIST", 6)],
        find_keys: Some(radius_keys),
        handler: Some(search::georadius),
        ..ROW
    },
    Command {
        name: "georadius_ro",
        arity: -6,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(search::georadius_ro),
        ..ROW
    },
    Command {
        name: "georadiusbymember",
        arity: -5,
        flags: GROW.union(Flags::MOVABLEKEYS),
        keys: &[Keys::one(1, READING), storing("STORE", 5), storing("STOREDIST", 5)],
        find_keys: Some(radius_keys),
        handler: Some(search::georadiusbymember),
        ..ROW
    },
    Command {
        name: "georadiusbymember_ro",
        arity: -5,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(search::georadiusbymember_ro),
        ..ROW
    },
    Command {
        name: "geosearch",
        arity: -7,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(search::geosearch),
        ..ROW
    },
    Command {
        name: "geosearchstore",
        arity: -8,
        flags: GROW,
        keys: STORES,
        handler: Some(search::geosearchstore),
        ..ROW
    },
];

/// Reads a longitude and a latitude.
fn place(longitude: &[u8], latitude: &[u8]) -> Result<Place, Error> {
    let number = |arg| double::parse(arg).ok_or(Error::NOT_FLOAT);
    let place = Place { longitude: number(longitude)?, latitude: number(latitude)? };
    if place.is_valid() {
        return Ok(place);
    }
    Err(format!("ERR invalid longitude,latitude pair {:.6},{:.6}", place.longitude, place.latitude).into())
}

/// How many metres a unit has.
fn unit_m(arg: &[u8]) -> Result<f64, Error> {
    const UNITS: [(&str, f64); 4] = [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)];
    let unit = UNITS.into_iter().find(|(name, _)| args::is(arg, name));
    unit.map(|(_, m)| m).ok_or(Error::text("ERR unsupported unit provided. please use M, KM, FT, MI"))
}

/// Writes a distance with four digits behind the point, rounded as C does by default.
fn reply_distance(reply: &mut Writer<'_>, distance: f64) {
    const PARTS: u64 = 10_000;
    let parts = libm::rint(distance * PARTS as f64) as u64;
    let mut text = [0; 32];
    let whole = Decimal::unsigned(parts / PARTS);
    let len = whole.as_bytes().len();
    text[..len].copy_from_slice(whole.as_bytes());
    text[len] = b'.';
    let mut rest = parts % PARTS;
    for digit in text[len + 1..len + 5].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    reply.bulk(&text[..len + 5]);
}

fn reply_place(reply: &mut Writer<'_>, place: Place) {
    reply.array(2);
    for number in [place.longitude, place.latitude] {
        reply.double(DoubleText::plain(number).as_str());
    }
}

fn geoadd(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (options, at) = AddOptions::parse_words(request, &["nx", "xx", "ch"]);
    let count = request.len() - at;
    if count == 0 || !count.is_multiple_of(3) || options.is_contradictory() {
        return Err(Error::SYNTAX);
    }
    let mut scores = Vec::new();
    scores.try_reserve_exact(count / 3).map_err(|_| Error::OUT_OF_MEMORY)?;
    for at in (at..request.len()).step_by(3) {
        let place = place(&request[at], &request[at + 1])?;
        scores.push(hash::encode(place, STEP_LIMIT).score() as f64);
    }
    add_scored(context, &request[1], &options, &scores, request.from(at + 2).step_by(3))
}

fn place_of(zset: Option<SortedSetView<'_>>, member: &[u8]) -> Option<Place> {
    zset.and_then(|zset| zset.score(member)).map(Place::of_score)
}

fn geopos(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, zset| {
        reply.array(request.len() - 2);
        for member in request.from(2) {
            match place_of(zset, member) {
                Some(place) => reply_place(reply, place),
                None => reply.null_array(),
            }
        }
    })
}

fn geohash(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, zset| {
        reply.array(request.len() - 2);
        for member in request.from(2) {
            match place_of(zset, member) {
                Some(place) => reply.bulk(&hash::text(place)),
                None => reply.null(),
            }
        }
    })
}

fn geodist(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let unit = match request.get(4) {
        _ if request.len() > 5 => return Err(Error::SYNTAX),
        Some(unit) => unit_m(unit)?,
        None => 1.0,
    };
    reply_from(context, &request[1], |reply, zset| match (place_of(zset, &request[2]), place_of(zset, &request[3])) {
        (Some(a), Some(b)) => reply_distance(reply, hash::distance_m(a, b) / unit),
        _ => reply.null(),
    })
}
