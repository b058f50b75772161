//! Finding places by where they are.

use super::{
    hash::{Place, Shape},
    place, place_of, reply_distance, reply_place, unit_m,
};
use crate::{Context, Error, EventClass, Outcome, args, double, order, zset::Gathered};
use alloc::{format, vec::Vec};
use core::ops::{Bound, ControlFlow};
use kayvee_keyspace::{Direction, Found, Kind, SortedSetView};
use kayvee_resp::Request;

/// Which command asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Radius,
    RadiusByMember,
    Search,
    SearchStore,
}

/// In which order places are returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    None,
    Nearest,
    Farthest,
}

/// What is asked for.
struct Query<'a> {
    centre: Option<Place>,
    shape: Option<Shape>,
    /// Metres in the unit that distances are given in.
    unit_m: f64,
    order: Order,
    /// Most places that are returned; 0 for all.
    count: usize,
    /// Whether any will do, and not only the nearest.
    any: bool,
    with_distance: bool,
    with_hash: bool,
    with_place: bool,
    store: Option<&'a [u8]>,
    stores_distances: bool,
}

fn number(arg: &[u8], error: &'static str) -> Result<f64, Error> {
    double::parse(arg).ok_or(Error::text(error))
}

fn arg<'a>(request: Request<'a>, at: usize) -> &'a [u8] {
    request.get(at).unwrap_or_default()
}

impl<'a> Query<'a> {
    const NEW: Query<'static> = Query {
        centre: None,
        shape: None,
        unit_m: 1.0,
        order: Order::None,
        count: 0,
        any: false,
        with_distance: false,
        with_hash: false,
        with_place: false,
        store: None,
        stores_distances: false,
    };

    /// Reads a radius and its unit.
    fn set_circle(&mut self, radius: &[u8], unit: &[u8]) -> Outcome {
        let radius = number(radius, "ERR need numeric radius")?;
        if radius < 0.0 {
            return Err(Error::text("ERR radius cannot be negative"));
        }
        self.unit_m = unit_m(unit)?;
        self.shape = Some(Shape::Circle { radius_m: radius * self.unit_m });
        Ok(())
    }

    /// Reads a width, a height and their unit.
    fn set_box(&mut self, width: &[u8], height: &[u8], unit: &[u8]) -> Outcome {
        let width = number(width, "ERR need numeric width")?;
        let height = number(height, "ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(Error::text("ERR height or width cannot be negative"));
        }
        self.unit_m = unit_m(unit)?;
        self.shape = Some(Shape::Box { width_m: width * self.unit_m, height_m: height * self.unit_m });
        Ok(())
    }

    /// Takes the place of a member as the centre. Without a key, any will do: the reply is empty anyway.
    fn set_member(&mut self, zset: Option<SortedSetView<'_>>, member: &[u8]) -> Outcome {
        const UNKNOWN: Error = Error::text("ERR could not decode requested zset member");
        const ANYWHERE: Place = Place { longitude: 0.0, latitude: 0.0 };
        self.centre = Some(if zset.is_some() { place_of(zset, member).ok_or(UNKNOWN)? } else { ANYWHERE });
        Ok(())
    }

    /// Reads what stands before the options, and returns where these begin.
    fn parse_head(
        &mut self,
        request: Request<'a>,
        form: Form,
        zset: Option<SortedSetView<'_>>,
    ) -> Result<usize, Error> {
        match form {
            Form::Radius => {
                self.centre = Some(place(&request[2], &request[3])?);
                self.set_circle(&request[4], &request[5])?;
                Ok(6)
            }
            Form::RadiusByMember => {
                self.set_member(zset, &request[2])?;
                if zset.is_some() {
                    self.set_circle(&request[3], &request[4])?;
                }
                Ok(5)
            }
            Form::Search => Ok(2),
            Form::SearchStore => {
                self.store = request.get(1);
                Ok(3)
            }
        }
    }

    fn parse(
        request: Request<'a>,
        form: Form,
        may_store: bool,
        zset: Option<SortedSetView<'_>>,
    ) -> Result<Query<'a>, Error> {
        let mut query = Query::NEW;
        let mut at = query.parse_head(request, form, zset)?;
        let is_search = matches!(form, Form::Search | Form::SearchStore);
        let (mut has_member, mut has_place) = (false, false);
        while let Some(word) = request.get(at) {
            let left = request.len() - at - 1;
            let is = |name| args::is(word, name);
            at += 1;
            if is("withdist") {
                query.with_distance = true;
            } else if is("withhash") {
                query.with_hash = true;
            } else if is("withcoord") {
                query.with_place = true;
            } else if is("any") {
                query.any = true;
            } else if is("asc") {
                query.order = Order::Nearest;
            } else if is("desc") {
                query.order = Order::Farthest;
            } else if is("count") && left >= 1 {
                let count = args::integer(&request[at])?;
                query.count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(COUNT)?;
                at += 1;
            } else if (is("store") || is("storedist")) && left >= 1 && may_store && !is_search {
                query.store = request.get(at);
                query.stores_distances = is("storedist");
                at += 1;
            } else if is("storedist") && form == Form::SearchStore {
                query.stores_distances = true;
            } else if is("frommember") && left >= 1 && is_search && !has_place {
                query.set_member(zset, &request[at])?;
                has_member = true;
                at += 1;
            } else if is("fromlonlat") && left >= 2 && is_search && !has_member {
                query.centre = Some(place(&request[at], &request[at + 1])?);
                has_place = true;
                at += 2;
            } else if is("byradius") && left >= 2 && is_search && !matches!(query.shape, Some(Shape::Box { .. })) {
                query.set_circle(&request[at], &request[at + 1])?;
                at += 2;
            } else if is("bybox") && left >= 3 && is_search && !matches!(query.shape, Some(Shape::Circle { .. })) {
                query.set_box(&request[at], &request[at + 1], &request[at + 2])?;
                at += 3;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        query.check(arg(request, 0), form)?;
        Ok(query)
    }

    /// Checks what options have to do with each other.
    fn check(&mut self, command: &[u8], form: Form) -> Outcome {
        let is_search = matches!(form, Form::Search | Form::SearchStore);
        if self.store.is_some() && (self.with_distance || self.with_hash || self.with_place) {
            let what = if form == Form::SearchStore { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            return Err(format!("ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options").into());
        }
        if is_search && self.centre.is_none() {
            return Err(Error::showing(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for ",
                command,
                "",
            ));
        }
        if is_search && self.shape.is_none() {
            return Err(Error::showing("ERR exactly one of BYRADIUS and BYBOX can be specified for ", command, ""));
        }
        if self.any && self.count == 0 {
            return Err(Error::text("ERR the ANY argument requires COUNT argument"));
        }
        // Some of all places are the nearest ones, unless any will do.
        if self.count > 0 && self.order == Order::None && !self.any {
            self.order = Order::Nearest;
        }
        Ok(())
    }

    /// Finds the places, in order.
    fn search<'z>(&self, zset: SortedSetView<'z>) -> Result<Vec<Hit<'z>>, Error> {
        let mut hits: Vec<Hit<'z>> = Vec::new();
        let (Some(centre), Some(shape)) = (self.centre, self.shape) else { return Ok(hits) };
        let mut result = Ok(());
        let is_enough = |hits: &Vec<Hit<'_>>| self.any && hits.len() >= self.count;
        for cell in shape.cells(centre) {
            if is_enough(&hits) {
                break;
            }
            let (min, max) = cell.scores();
            let ranks = zset.score_range(Bound::Included(min), Bound::Excluded(max));
            zset.try_for_each(ranks, Direction::Forward, |member, score| {
                let place = Place::of_score(score);
                if let Some(distance_m) = shape.distance_m(centre, place) {
                    if hits.try_reserve(1).is_err() {
                        result = Err(Error::OUT_OF_MEMORY);
                        return ControlFlow::Break(());
                    }
                    hits.push(Hit { member, score, place, distance: distance_m / self.unit_m });
                }
                if is_enough(&hits) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        result?;
        let wanted = if self.count > 0 { self.count.min(hits.len()) } else { hits.len() };
        if self.order == Order::None {
            hits.truncate(wanted);
            return Ok(hits);
        }
        // Distances are not negative, so their bits have their order.
        let farthest = if self.order == Order::Farthest { usize::MAX } else { 0 };
        let order = order::by_key(hits.len(), |at| hits[at].distance.to_bits() as usize ^ farthest)?;
        let mut sorted = Vec::new();
        sorted.try_reserve_exact(wanted).map_err(|_| Error::OUT_OF_MEMORY)?;
        sorted.extend(order.take(wanted).map(|at| hits[at]));
        Ok(sorted)
    }
}

const COUNT: Error = Error::text("ERR COUNT must be > 0");

/// A place that was found.
#[derive(Clone, Copy)]
struct Hit<'a> {
    member: &'a [u8],
    score: f64,
    place: Place,
    /// In the unit that was asked for.
    distance: f64,
}

fn search(context: &mut Context<'_>, request: Request<'_>, form: Form, may_store: bool) -> Outcome {
    let key = arg(request, if form == Form::SearchStore { 2 } else { 1 });
    let found: Option<Found> = context.read(key, Kind::SortedSet)?;
    let zset = found.map(|found| context.db().sorted_set(found));
    let query = Query::parse(request, form, may_store, zset)?;
    let Some(store) = query.store else { return reply(context, found, &query) };
    let mut gathered = Gathered::default();
    if let Some(found) = found {
        for hit in query.search(context.db().sorted_set(found))? {
            gathered.push(hit.member, if query.stores_distances { hit.distance } else { hit.score });
        }
    }
    let event = if form == Form::SearchStore { "geosearchstore" } else { "georadiusstore" };
    gathered.store(context, store, EventClass::SORTED_SET, event)
}

fn reply(context: &mut Context<'_>, found: Option<Found>, query: &Query<'_>) -> Outcome {
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    let hits = match found {
        Some(found) => query.search(store.dbs[index].sorted_set(found))?,
        None => Vec::new(),
    };
    reply.array(hits.len());
    let extras = usize::from(query.with_distance) + usize::from(query.with_hash) + usize::from(query.with_place);
    for hit in hits {
        if extras > 0 {
            reply.array(1 + extras);
        }
        reply.bulk(hit.member);
        if query.with_distance {
            reply_distance(reply, hit.distance);
        }
        if query.with_hash {
            reply.integer(hit.score as i64);
        }
        if query.with_place {
            reply_place(reply, hit.place);
        }
    }
    Ok(())
}

pub fn georadius(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    search(context, request, Form::Radius, true)
}

pub fn georadius_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    search(context, request, Form::Radius, false)
}

pub fn georadiusbymember(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    search(context, request, Form::RadiusByMember, true)
}

pub fn georadiusbymember_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    search(context, request, Form::RadiusByMember, false)
}

pub fn geosearch(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    search(context, request, Form::Search, false)
}

pub fn geosearchstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    search(context, request, Form::SearchStore, false)
}
