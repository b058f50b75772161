//! Unions, intersections and differences of sorted sets and sets.

use super::Members;
use crate::{Context, Error, EventClass, Outcome, args, double, order, strings::with_text};
use alloc::{format, vec::Vec};
use core::cmp::Ordering;
use kayvee_keyspace::{Db, Expiry, Found, Kind, SetView, SortedSet, SortedSetView, Value, parse_integer};
use kayvee_resp::Request;

/// What is made of several sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// What becomes of the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Reply,
    Store,
    Count,
}

/// How the scores of one member become one.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, score: f64, other: f64) -> f64 {
        match self {
            Aggregate::Sum => not_nan(score + other),
            Aggregate::Min if other < score => other,
            Aggregate::Max if other > score => other,
            Aggregate::Min | Aggregate::Max => score,
        }
    }
}

/// What infinities of both signs leave is zero by convention.
fn not_nan(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// Members that are no sorted set yet, in one vector of bytes.
#[derive(Default)]
pub struct Gathered {
    text: Vec<u8>,
    members: Vec<Member>,
    failed: bool,
}

struct Member {
    start: usize,
    len: usize,
    score: f64,
}

impl Gathered {
    /// Adds a member. From the first one that finds no memory it drops everything.
    pub fn push(&mut self, name: &[u8], score: f64) {
        let reserved = self.text.try_reserve(name.len()).and_then(|()| self.members.try_reserve(1));
        self.failed |= reserved.is_err();
        if !self.failed {
            self.members.push(Member { start: self.text.len(), len: name.len(), score });
            self.text.extend_from_slice(name);
        }
    }

    fn check(&self) -> Outcome {
        if self.failed { Err(Error::OUT_OF_MEMORY) } else { Ok(()) }
    }

    fn name(&self, member: &Member) -> &[u8] {
        &self.text[member.start..member.start + member.len]
    }

    /// Makes one member of those that have the same name, in the order in which they were added.
    fn merge(&mut self, aggregate: Aggregate) {
        // What was added first stands first in the text.
        self.sort_by(|this, a, b| this.name(a).cmp(this.name(b)).then(a.start.cmp(&b.start)));
        let mut members = core::mem::take(&mut self.members);
        members.dedup_by(|later, first| {
            let is_same = self.name(later) == self.name(first);
            if is_same {
                first.score = aggregate.of(first.score, later.score);
            }
            is_same
        });
        self.members = members;
    }

    /// Puts the members in order.
    fn sort(&mut self) {
        self.sort_by(|this, a, b| {
            let by_score = a.score.partial_cmp(&b.score).unwrap_or(Ordering::Equal);
            by_score.then_with(|| this.name(a).cmp(this.name(b)))
        });
    }

    /// Not a closure: sorting is much code, and would be there for each of them.
    fn sort_by(&mut self, compare: fn(&Gathered, &Member, &Member) -> Ordering) {
        let mut members = core::mem::take(&mut self.members);
        members.sort_unstable_by(|a, b| compare(self, a, b));
        self.members = members;
    }

    /// Makes a sorted set of them, in place of whatever is at the key, and replies with their number.
    pub fn store(&self, context: &mut Context<'_>, key: &[u8], class: EventClass, event: &'static str) -> Outcome {
        self.check()?;
        if self.members.is_empty() {
            if let Some(found) = context.find(key) {
                context.remove(key, found);
            }
        } else {
            let (limits, now_ms) = (context.store.options.zset_limits(), context.now_ms());
            let db = context.db();
            let zset = db.build(|zset: &mut SortedSet, records| {
                self.members.iter().try_for_each(|member| zset.set(records, self.name(member), member.score, limits))
            })?;
            db.put(key, zset, Expiry::Never, now_ms)?;
            context.changed(class, event, key);
        }
        context.reply.integer(self.members.len() as i64);
        Ok(())
    }
}

/// One of the sets.
#[derive(Clone, Copy)]
struct Source {
    found: Option<Found>,
    weight: f64,
}

/// A set to read.
#[derive(Clone, Copy)]
enum View<'a> {
    Missing,
    SortedSet(SortedSetView<'a>),
    /// All its members have the score 1.
    Set(SetView<'a>),
}

const SET_SCORE: f64 = 1.0;

impl<'a> View<'a> {
    fn of(db: &'a Db, source: Source) -> View<'a> {
        match source.found {
            None => View::Missing,
            Some(found) if db.kind(found) == Kind::Set => View::Set(db.set_at(found)),
            Some(found) => View::SortedSet(db.sorted_set(found)),
        }
    }

    fn len(self) -> usize {
        match self {
            View::Missing => 0,
            View::SortedSet(zset) => zset.len(),
            View::Set(set) => set.len(),
        }
    }

    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            View::Missing => None,
            View::SortedSet(zset) => zset.score(member),
            View::Set(set) => {
                let member = parse_integer(member).map_or(Value::Bytes(member), Value::Integer);
                set.contains(member).then_some(SET_SCORE)
            }
        }
    }

    fn for_each(self, mut visit: impl FnMut(&[u8], f64)) {
        match self {
            View::Missing => {}
            View::SortedSet(zset) => zset.for_all(&mut visit),
            View::Set(set) => set.for_each(|member| with_text(member, |member| visit(member, SET_SCORE))),
        }
    }
}

/// What is asked for.
struct Query {
    sources: Vec<Source>,
    aggregate: Aggregate,
    with_scores: bool,
    /// Most members that are counted; 0 for all.
    limit: usize,
}

impl Query {
    fn parse(
        context: &mut Context<'_>,
        request: Request<'_>,
        operation: Operation,
        purpose: Purpose,
    ) -> Result<Query, Error> {
        let numkeys_at = if purpose == Purpose::Store { 2 } else { 1 };
        let count = args::integer(&request[numkeys_at])?;
        if count < 1 {
            let name = core::str::from_utf8(&request[0]).unwrap_or_default().to_ascii_lowercase();
            return Err(format!("ERR at least 1 input key is needed for '{name}' command").into());
        }
        let first = numkeys_at + 1;
        let count = usize::try_from(count).ok().filter(|&count| count <= request.len() - first).ok_or(Error::SYNTAX)?;
        let mut sources = Vec::new();
        sources.try_reserve_exact(count).map_err(|_| Error::OUT_OF_MEMORY)?;
        for key in request.from(first).take(count) {
            let found = context.read_any(key);
            if let Some(found) = found
                && !matches!(context.db().kind(found), Kind::SortedSet | Kind::Set)
            {
                return Err(Error::WRONG_TYPE);
            }
            sources.push(Source { found, weight: 1.0 });
        }
        let mut query = Query { sources, aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        query.parse_options(request, first + count, operation, purpose)?;
        Ok(query)
    }

    fn parse_options(
        &mut self,
        request: Request<'_>,
        mut at: usize,
        operation: Operation,
        purpose: Purpose,
    ) -> Outcome {
        const WEIGHT: Error = Error::text("ERR weight value is not a float");
        const LIMIT: Error = Error::text("ERR LIMIT can't be negative");
        let weighs = operation != Operation::Difference && purpose != Purpose::Count;
        while let Some(word) = request.get(at) {
            let remaining = request.len() - at;
            at += 1;
            if weighs && remaining > self.sources.len() && args::is(word, "weights") {
                for (source, weight) in self.sources.iter_mut().zip(request.from(at)) {
                    source.weight = double::parse(weight).ok_or(WEIGHT)?;
                }
                at += self.sources.len();
            } else if weighs && remaining >= 2 && args::is(word, "aggregate") {
                self.aggregate = match &request[at] {
                    word if args::is(word, "sum") => Aggregate::Sum,
                    word if args::is(word, "min") => Aggregate::Min,
                    word if args::is(word, "max") => Aggregate::Max,
                    _ => return Err(Error::SYNTAX),
                };
                at += 1;
            } else if purpose == Purpose::Reply && args::is(word, "withscores") {
                self.with_scores = true;
            } else if purpose == Purpose::Count && remaining >= 2 && args::is(word, "limit") {
                let limit = args::integer(&request[at]).ok().and_then(|limit| usize::try_from(limit).ok());
                self.limit = limit.ok_or(LIMIT)?;
                at += 1;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(())
    }

    /// Finds the members of the result. `limit` of them are enough, if it is not 0.
    fn gather(&self, db: &Db, operation: Operation) -> Result<Gathered, Error> {
        let mut views: Vec<(View<'_>, f64)> = Vec::new();
        views.try_reserve_exact(self.sources.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
        let view = |source: &Source| (View::of(db, *source), source.weight);
        if operation == Operation::Difference {
            views.extend(self.sources.iter().map(view));
        } else {
            // Scores are added up in this order, as in Redis; rounding depends on it.
            let order = order::by_key(self.sources.len(), |at| View::of(db, self.sources[at]).len())?;
            views.extend(order.map(|at| view(&self.sources[at])));
        }
        let mut gathered = Gathered::default();
        match operation {
            Operation::Union => {
                for (view, weight) in views {
                    view.for_each(|member, score| gathered.push(member, not_nan(weight * score)));
                }
                gathered.merge(self.aggregate);
            }
            Operation::Intersection => {
                let (first, others) = views.split_first().expect("there is at least one");
                first.0.for_each(|member, score| {
                    if self.limit > 0 && gathered.members.len() >= self.limit {
                        return;
                    }
                    let total = others.iter().try_fold(not_nan(first.1 * score), |total, (view, weight)| {
                        view.score(member).map(|score| self.aggregate.of(total, score * weight))
                    });
                    total.into_iter().for_each(|total| gathered.push(member, total));
                });
            }
            Operation::Difference => {
                let (first, others) = views.split_first().expect("there is at least one");
                first.0.for_each(|member, score| {
                    if others.iter().all(|(view, _)| view.score(member).is_none()) {
                        gathered.push(member, score);
                    }
                });
            }
        }
        gathered.check()?;
        Ok(gathered)
    }
}

fn combine(context: &mut Context<'_>, request: Request<'_>, operation: Operation, purpose: Purpose) -> Outcome {
    let query = Query::parse(context, request, operation, purpose)?;
    let mut gathered = query.gather(context.db(), operation)?;
    match purpose {
        Purpose::Count => context.reply.integer(gathered.members.len() as i64),
        Purpose::Store => {
            let event = match operation {
                Operation::Union => "zunionstore",
                Operation::Intersection => "zinterstore",
                Operation::Difference => "zdiffstore",
            };
            gathered.sort();
            gathered.store(context, &request[1], EventClass::SORTED_SET, event)?;
        }
        Purpose::Reply => {
            gathered.sort();
            let mut members = Members { reply: &mut context.reply, with_scores: query.with_scores };
            members.begin(gathered.members.len());
            gathered.members.iter().for_each(|member| members.write(gathered.name(member), member.score));
        }
    }
    Ok(())
}

pub fn zunion(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Union, Purpose::Reply)
}

pub fn zinter(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Intersection, Purpose::Reply)
}

pub fn zdiff(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Difference, Purpose::Reply)
}

pub fn zunionstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Union, Purpose::Store)
}

pub fn zinterstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Intersection, Purpose::Store)
}

pub fn zdiffstore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Difference, Purpose::Store)
}

pub fn zintercard(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    combine(context, request, Operation::Intersection, Purpose::Count)
}
