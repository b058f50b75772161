//! Adding, changing and removing members.

use super::{
    range::{self, Range},
    reply_score,
};
use crate::{Context, Error, EventClass, Outcome, args, double};
use alloc::vec::Vec;
use kayvee_keyspace::{Kind, SortedSet};
use kayvee_resp::Request;

/// `ZADD`'s options.
#[derive(Default)]
pub struct AddOptions {
    if_missing: bool,
    if_present: bool,
    if_greater: bool,
    if_less: bool,
    counts_changed: bool,
    increments: bool,
}

impl AddOptions {
    /// Reads those of the options that a command has, and where they end.
    pub fn parse_words(request: Request<'_>, allowed: &[&str]) -> (AddOptions, usize) {
        let mut options = AddOptions::default();
        let mut at = 2;
        for word in request.from(2) {
            let Some(&name) = allowed.iter().find(|name| args::is(word, name)) else { break };
            match name {
                "nx" => options.if_missing = true,
                "xx" => options.if_present = true,
                "gt" => options.if_greater = true,
                "lt" => options.if_less = true,
                "ch" => options.counts_changed = true,
                _ => options.increments = true,
            }
            at += 1;
        }
        (options, at)
    }

    /// Whether no member could fulfil it.
    pub fn is_contradictory(&self) -> bool {
        self.if_missing && self.if_present
    }

    fn parse(request: Request<'_>) -> Result<(AddOptions, usize), Error> {
        const NX_XX: Error = Error::text("ERR XX and NX options at the same time are not compatible");
        const GT_LT: Error = Error::text("ERR GT, LT, and/or NX options at the same time are not compatible");
        const INCR: Error = Error::text("ERR INCR option supports a single increment-element pair");
        let (options, at) = AddOptions::parse_words(request, &["nx", "xx", "gt", "lt", "ch", "incr"]);
        let rest = request.len() - at;
        if rest == 0 || !rest.is_multiple_of(2) {
            return Err(Error::SYNTAX);
        }
        if options.is_contradictory() {
            return Err(NX_XX);
        }
        let compares = options.if_greater || options.if_less;
        if compares && options.if_missing || options.if_greater && options.if_less {
            return Err(GT_LT);
        }
        if options.increments && rest > 2 {
            return Err(INCR);
        }
        Ok((options, at))
    }

    /// The score that a member gets, if it is to have another one.
    fn decide(&self, old: Option<f64>, score: f64) -> Option<f64> {
        let Some(old) = old else { return (!self.if_present).then_some(score) };
        if self.if_missing {
            return None;
        }
        let new = if self.increments { old + score } else { score };
        let is_refused = self.if_less && new >= old || self.if_greater && new <= old;
        (!is_refused).then_some(new)
    }
}

pub fn zadd(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (options, at) = AddOptions::parse(request)?;
    add(context, request, &options, at)
}

pub fn zincrby(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    add(context, request, &AddOptions { increments: true, ..AddOptions::default() }, 2)
}

/// Adds scores and members, which stand in turn from the argument `at` on.
fn add(context: &mut Context<'_>, request: Request<'_>, options: &AddOptions, at: usize) -> Outcome {
    // Either all scores are valid or nothing happens.
    let mut scores = Vec::new();
    scores.try_reserve_exact((request.len() - at) / 2).map_err(|_| Error::OUT_OF_MEMORY)?;
    for at in (at..request.len()).step_by(2) {
        scores.push(double::parse(&request[at]).ok_or(Error::NOT_FLOAT)?);
    }
    add_scored(context, &request[1], options, &scores, request.from(at + 1).step_by(2))
}

/// What became of the members.
#[derive(Default)]
struct Added {
    added: i64,
    changed: i64,
    /// The last one's score, if it has been decided on.
    score: Option<f64>,
    is_nan: bool,
}

/// Gives members scores, as `ZADD` does.
pub fn add_scored<'a>(
    context: &mut Context<'_>,
    key: &[u8],
    options: &AddOptions,
    scores: &[f64],
    members: impl Iterator<Item = &'a [u8]>,
) -> Outcome {
    const NAN: Error = Error::text("ERR resulting score is not a number (NaN)");
    let found = context.find_to_change(key, Kind::SortedSet)?;
    let limits = context.store.options.zset_limits();
    let edit = context.edit(key, found, |zset: &mut SortedSet, records| {
        let mut done = Added::default();
        for (&score, member) in scores.iter().zip(members) {
            let update = zset.update(records, member, limits, |old| {
                let new = options.decide(old, score);
                done.is_nan |= new.is_some_and(f64::is_nan);
                new.filter(|new| !new.is_nan())
            })?;
            match (update.old, update.new) {
                (None, Some(_)) => done.added += 1,
                (Some(old), Some(new)) if old != new => done.changed += 1,
                _ => {}
            }
            done.score = update.new;
        }
        Ok(done)
    })?;
    let done = edit.result;
    if done.is_nan {
        return Err(NAN);
    }
    if done.added + done.changed > 0 {
        context.changed(EventClass::SORTED_SET, if options.increments { "zincr" } else { "zadd" }, key);
    }
    match done.score {
        Some(score) if options.increments => reply_score(&mut context.reply, score),
        None if options.increments => context.reply.null(),
        _ if options.counts_changed => context.reply.integer(done.added + done.changed),
        _ => context.reply.integer(done.added),
    }
    Ok(())
}

pub fn zrem(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let found = context.find_to_change(key, Kind::SortedSet)?;
    let mut removed = 0;
    if let Some(found) = found {
        let edit = context.edit(key, Some(found), |zset: &mut SortedSet, records| {
            Ok(request.from(2).filter(|member| zset.remove(records, member)).count())
        })?;
        removed = edit.result;
        tell_removed(context, "zrem", key, removed, edit.is_gone);
    }
    context.reply.integer(removed as i64);
    Ok(())
}

fn tell_removed(context: &mut Context<'_>, event: &'static str, key: &[u8], removed: usize, is_gone: bool) {
    if removed > 0 {
        context.shrunk(EventClass::SORTED_SET, event, key, is_gone);
    }
}

pub fn zremrangebyrank(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let range = Range::by_rank(&request[2], &request[3])?;
    remove_range(context, request, range, "zremrangebyrank")
}

pub fn zremrangebyscore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let range = Range::by_score(&request[2], &request[3])?;
    remove_range(context, request, range, "zremrangebyscore")
}

pub fn zremrangebylex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let range = Range::by_lex(&request[2], &request[3])?;
    remove_range(context, request, range, "zremrangebylex")
}

fn remove_range(
    context: &mut Context<'_>,
    request: Request<'_>,
    range: range::Range<'_>,
    event: &'static str,
) -> Outcome {
    let key = &request[1];
    let mut removed = 0;
    if let Some(found) = context.find_to_change(key, Kind::SortedSet)? {
        let ranks = range.ranks(context.db().sorted_set(found));
        removed = ranks.len();
        if removed > 0 {
            let edit = context.edit(key, Some(found), |zset: &mut SortedSet, records| {
                zset.remove_range(records, ranks);
                Ok(())
            })?;
            tell_removed(context, event, key, removed, edit.is_gone);
        }
    }
    context.reply.integer(removed as i64);
    Ok(())
}
