//! Ranges of members, by rank, by score and by name.

use super::{Members, reply_from};
use crate::{Context, Error, EventClass, Outcome, args, double, zset::Gathered};
use core::ops::Bound;
use kayvee_keyspace::{Direction, Found, Kind, LexBound, SortedSetView};
use kayvee_resp::Request;

/// What members are asked for.
#[derive(Clone, Copy)]
pub enum Range<'a> {
    /// From a rank to another one; negative ones count from the end.
    Rank(i64, i64),
    #[allow(missing_docs)]
    Score(Bound<f64>, Bound<f64>),
    #[allow(missing_docs)]
    Lex(LexBound<'a>, LexBound<'a>),
}

fn score_bound(arg: &[u8]) -> Result<Bound<f64>, Error> {
    const INVALID: Error = Error::text("ERR min or max is not a float");
    match arg.strip_prefix(b"(") {
        Some(arg) => double::parse_bound(arg).map(Bound::Excluded).ok_or(INVALID),
        None => double::parse_bound(arg).map(Bound::Included).ok_or(INVALID),
    }
}

fn lex_bound(arg: &[u8]) -> Result<LexBound<'_>, Error> {
    match arg {
        // Redis sees a C string here.
        [b'-'] | [b'-', 0, ..] => Ok(LexBound::Least),
        [b'+'] | [b'+', 0, ..] => Ok(LexBound::Greatest),
        [b'(', rest @ ..] => Ok(LexBound::Excluded(rest)),
        [b'[', rest @ ..] => Ok(LexBound::Included(rest)),
        _ => Err(Error::text("ERR min or max not valid string range item")),
    }
}

impl<'a> Range<'a> {
    pub fn by_rank(start: &[u8], stop: &[u8]) -> Result<Range<'a>, Error> {
        Ok(Range::Rank(args::integer(start)?, args::integer(stop)?))
    }

    pub fn by_score(min: &[u8], max: &[u8]) -> Result<Range<'a>, Error> {
        Ok(Range::Score(score_bound(min)?, score_bound(max)?))
    }

    pub fn by_lex(min: &'a [u8], max: &'a [u8]) -> Result<Range<'a>, Error> {
        Ok(Range::Lex(lex_bound(min)?, lex_bound(max)?))
    }

    /// The ranks of the members in it, counted from the lowest score.
    pub fn ranks(self, zset: SortedSetView<'_>) -> core::ops::Range<usize> {
        match self {
            Range::Rank(start, stop) => {
                let len = zset.len() as i64;
                let from_start = |rank: i64| if rank < 0 { len.saturating_add(rank) } else { rank };
                let (start, stop) = (from_start(start).clamp(0, len), from_start(stop).clamp(-1, len - 1));
                start as usize..(stop + 1).max(start) as usize
            }
            Range::Score(min, max) => zset.score_range(min, max),
            Range::Lex(min, max) => zset.lex_range(min, max),
        }
    }
}

/// What kind of range a command is for, where it is not free to choose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Any,
    Rank,
    Score,
    Lex,
}

/// What a range command is asked for.
struct Query<'a> {
    range: Range<'a>,
    direction: Direction,
    offset: i64,
    /// Negative for none.
    limit: i64,
    with_scores: bool,
}

impl<'a> Query<'a> {
    /// Reads the two ends from the argument `at` on, and what follows them.
    fn parse(request: Request<'a>, at: usize, mut by: By, fixed: Option<Direction>) -> Result<Query<'a>, Error> {
        const LIMIT: Error =
            Error::text("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
        const SCORES: Error = Error::text("ERR syntax error, WITHSCORES not supported in combination with BYLEX");
        let stores = at > 2;
        let mut direction = fixed;
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        let mut next = at + 2;
        while let Some(word) = request.get(next) {
            next += 1;
            if !stores && args::is(word, "withscores") {
                with_scores = true;
            } else if args::is(word, "limit") && request.len() >= next + 2 {
                (offset, limit) = (args::integer(&request[next])?, args::integer(&request[next + 1])?);
                next += 2;
            } else if direction.is_none() && args::is(word, "rev") {
                direction = Some(Direction::Backward);
            } else if by == By::Any && args::is(word, "bylex") {
                by = By::Lex;
            } else if by == By::Any && args::is(word, "byscore") {
                by = By::Score;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        let direction = direction.unwrap_or(Direction::Forward);
        if limit != -1 && matches!(by, By::Any | By::Rank) {
            return Err(LIMIT);
        }
        if with_scores && by == By::Lex {
            return Err(SCORES);
        }
        let arg = |at| request.get(at).unwrap_or_default();
        let (first, second) = (arg(at), arg(at + 1));
        // The higher end comes first where the order is reversed.
        let (min, max) = if direction == Direction::Backward { (second, first) } else { (first, second) };
        let range = match by {
            By::Any | By::Rank => Range::by_rank(first, second)?,
            By::Score => Range::by_score(min, max)?,
            By::Lex => Range::by_lex(min, max)?,
        };
        Ok(Query { range, direction, offset, limit, with_scores })
    }

    /// The ranks of the members that are asked for, counted from the lowest score.
    fn ranks(&self, zset: SortedSetView<'_>) -> core::ops::Range<usize> {
        let ranks = self.range.ranks(zset);
        if let Range::Rank(..) = self.range {
            return match self.direction {
                Direction::Forward => ranks,
                Direction::Backward => zset.len() - ranks.end..zset.len() - ranks.start,
            };
        }
        let Ok(offset) = usize::try_from(self.offset) else { return 0..0 };
        let skipped = offset.min(ranks.len());
        let taken = usize::try_from(self.limit).unwrap_or(usize::MAX).min(ranks.len() - skipped);
        match self.direction {
            Direction::Forward => ranks.start + skipped..ranks.start + skipped + taken,
            Direction::Backward => ranks.end - skipped - taken..ranks.end - skipped,
        }
    }
}

fn reply_range(context: &mut Context<'_>, request: Request<'_>, by: By, direction: Option<Direction>) -> Outcome {
    let query = Query::parse(request, 2, by, direction)?;
    reply_from(context, &request[1], |reply, zset| {
        let Some(zset) = zset else { return reply.array(0) };
        let ranks = query.ranks(zset);
        let mut members = Members { reply, with_scores: query.with_scores };
        members.begin(ranks.len());
        zset.for_each(ranks, query.direction, |member, score| members.write(member, score));
    })
}

pub fn zrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_range(context, request, By::Any, None)
}

pub fn zrevrange(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_range(context, request, By::Rank, Some(Direction::Backward))
}

pub fn zrangebyscore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_range(context, request, By::Score, Some(Direction::Forward))
}

pub fn zrevrangebyscore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_range(context, request, By::Score, Some(Direction::Backward))
}

pub fn zrangebylex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_range(context, request, By::Lex, Some(Direction::Forward))
}

pub fn zrevrangebylex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_range(context, request, By::Lex, Some(Direction::Backward))
}

pub fn zrangestore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let query = Query::parse(request, 3, By::Any, None)?;
    let found: Option<Found> = context.read(&request[2], Kind::SortedSet)?;
    let mut gathered = Gathered::default();
    if let Some(found) = found {
        let zset = context.db().sorted_set(found);
        zset.for_each(query.ranks(zset), Direction::Forward, |member, score| gathered.push(member, score));
    }
    gathered.store(context, &request[1], EventClass::SORTED_SET, "zrangestore")
}

pub fn zcount(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    count(context, request, Range::by_score(&request[2], &request[3])?)
}

pub fn zlexcount(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    count(context, request, Range::by_lex(&request[2], &request[3])?)
}

fn count(context: &mut Context<'_>, request: Request<'_>, range: Range<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, zset| reply.integer(zset.map_or(0, |zset| range.ranks(zset).len()) as i64))
}
