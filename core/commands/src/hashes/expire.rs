//! When fields expire.

use super::{edit, find_to_change};
use crate::{
    Context, Error, EventClass, Outcome, Store, args,
    expiry::{Clock, ExpireTime, Unit, invalid},
};
use alloc::vec::Vec;
use kayvee_keyspace::{Decimal, FIELD_EXPIRY_LIMIT_MS, Found, Kind};
use kayvee_resp::Request;

/// What is replied for a field.
const NO_FIELD: i64 = -2;
const NO_EXPIRY: i64 = -1;
const CONDITION_NOT_MET: i64 = 0;
const CHANGED: i64 = 1;
const DELETED: i64 = 2;

pub fn hexpire(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Seconds, Clock::FromNow, "hexpire")
}

pub fn hpexpire(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Milliseconds, Clock::FromNow, "hpexpire")
}

pub fn hexpireat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Seconds, Clock::SinceEpoch, "hexpireat")
}

pub fn hpexpireat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Milliseconds, Clock::SinceEpoch, "hpexpireat")
}

pub fn httl(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_times(context, request, Unit::Seconds, Clock::FromNow)
}

pub fn hpttl(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_times(context, request, Unit::Milliseconds, Clock::FromNow)
}

pub fn hexpiretime(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_times(context, request, Unit::Seconds, Clock::SinceEpoch)
}

pub fn hpexpiretime(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_times(context, request, Unit::Milliseconds, Clock::SinceEpoch)
}

/// Reads `FIELDS` and the number of fields at `at`. Returns where the fields begin, which are all that follows.
#[inline(never)]
fn fields_behind(request: Request<'_>, at: usize, not_positive: &'static str) -> Result<usize, Error> {
    if !args::is(&request[at], "fields") {
        return Err(Error::text("ERR Mandatory argument FIELDS is missing or not at the right position"));
    }
    match args::integer(&request[at + 1]) {
        Ok(count) if count > 0 && count as usize == request.len() - at - 2 => Ok(at + 2),
        Ok(count) if count > 0 => Err(Error::text("ERR The `numfields` parameter must match the number of arguments")),
        _ => Err(Error::text(not_positive)),
    }
}

/// Whether a key has a hash, or nothing. That is asked before anything else.
#[inline(never)]
fn check_kind(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    match context.find(key) {
        Some(found) if context.db().kind(found) != Kind::Hash => Err(Error::WRONG_TYPE),
        _ => Ok(()),
    }
}

const COUNT_NOT_POSITIVE: &str = "ERR Number of fields must be a positive integer";

fn expire_at(context: &mut Context<'_>, request: Request<'_>, unit: Unit, clock: Clock, command: &str) -> Outcome {
    let key = &request[1];
    check_kind(context, key)?;
    let now_ms = context.now_ms();
    if args::integer(&request[2])? < 0 {
        return Err(Error::text("ERR invalid expire time, must be >= 0"));
    }
    let at_ms = ExpireTime { value: &request[2], unit, clock }.unix_ms(now_ms, command)? as u64;
    if at_ms > FIELD_EXPIRY_LIMIT_MS {
        return Err(invalid(command));
    }
    let condition = [Condition::Nx, Condition::Xx, Condition::Gt, Condition::Lt]
        .into_iter()
        .zip(["nx", "xx", "gt", "lt"])
        .find(|(_, name)| args::is(&request[3], name));
    let at = if condition.is_some() { 4 } else { 3 };
    let from = fields_behind(request, at, "ERR Parameter `numFields` should be greater than 0")?;
    let text = Decimal::unsigned(at_ms);
    // Fields that a master has given a time go when it says so.
    let (result, event, effect): (_, _, &[&[u8]]) = match at_ms <= now_ms && !context.db().shows_expired {
        true => (DELETED, "hexpired", &[b"HDEL", key]),
        false => (CHANGED, "hexpire", &[b"HPEXPIREAT", key, text.as_bytes(), b"FIELDS", b""]),
    };
    let condition = condition.map_or(Condition::None, |(condition, _)| condition);
    Change { from, at_ms: Some(at_ms), condition, results: [CONDITION_NOT_MET, result], event, effect }
        .make(context, request)
}

pub fn hpersist(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    check_kind(context, key)?;
    let from = fields_behind(request, 2, COUNT_NOT_POSITIVE)?;
    let effect: &[&[u8]] = &[b"HPERSIST", key, b"FIELDS", b""];
    let (condition, results, event) = (Condition::Xx, [NO_EXPIRY, CHANGED], "hpersist");
    Change { from, at_ms: None, condition, results, event, effect }.make(context, request)
}

/// When a field's time may be changed.
#[derive(Clone, Copy)]
enum Condition {
    None,
    Nx,
    Xx,
    Gt,
    Lt,
}

impl Condition {
    /// Whether a field that has expired at `old` may expire at `new` from now on. Without an expiry it counts as expiring at
    /// infinity.
    fn allows(self, old: Option<u64>, new: Option<u64>) -> bool {
        match self {
            Condition::None => true,
            Condition::Nx => old.is_none(),
            Condition::Xx => old.is_some(),
            Condition::Gt => old.is_some() && new > old,
            Condition::Lt => old.is_none() || new < old,
        }
    }
}

/// A change of when the fields expire that follow in a request.
struct Change<'a> {
    from: usize,
    at_ms: Option<u64>,
    condition: Condition,
    /// What is replied for a field where the condition is not met, and where it is, which says what is done as well.
    results: [i64; 2],
    event: &'static str,
    /// What it is told as, with the fields behind it. Behind `FIELDS`, their number takes the last word's place.
    effect: &'a [&'a [u8]],
}

impl Change<'_> {
    /// Makes it, and replies with what has become of each field.
    fn make(self, context: &mut Context<'_>, request: Request<'_>) -> Outcome {
        let Change { from, at_ms, condition, results, event, effect } = self;
        let key = &request[1];
        let mut told: Vec<&[u8]> = Vec::new();
        told.try_reserve_exact(effect.len() + request.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
        told.extend_from_slice(effect);
        let found = find_to_change(context, request, from, 1)?;
        let index = context.db_index();
        let Context { store, reply, .. } = &mut *context;
        reply.array(request.len() - from);
        let mut outcome = Ok(());
        let is_gone = match found {
            None => {
                request.from(from).for_each(|_| reply.integer(NO_FIELD));
                false
            }
            Some(found) => {
                edit(store, index, key, Some(found), &mut |hash, records| {
                    for field in request.from(from) {
                        let old = hash.view(records).expiry(field);
                        let result = old.map_or(NO_FIELD, |old| results[usize::from(condition.allows(old, at_ms))]);
                        match result {
                            // What has been done until then is told, whatever comes of the rest.
                            CHANGED => outcome = hash.expire(records, field, at_ms),
                            DELETED => _ = hash.remove(records, field),
                            _ => {}
                        }
                        if outcome.is_err() {
                            break;
                        }
                        if result >= CHANGED {
                            told.push(field);
                        }
                        reply.integer(result);
                    }
                    Ok(())
                })?
            }
        };
        let count = Decimal::unsigned((told.len() - effect.len()) as u64);
        if told.len() > effect.len() {
            if let [.., b"FIELDS", _] = effect {
                told[effect.len() - 1] = count.as_bytes();
            }
            context.shrunk(EventClass::HASH, event, key, is_gone);
            context.effect(&told);
        }
        context.no_more_effects();
        Ok(outcome?)
    }
}

/// Replies with when fields expire.
fn reply_with_times(context: &mut Context<'_>, request: Request<'_>, unit: Unit, clock: Clock) -> Outcome {
    let found = context.read(&request[1], Kind::Hash)?;
    let from = fields_behind(request, 2, COUNT_NOT_POSITIVE)?;
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let Context { store, reply, .. } = context;
    let hash = found.map(|found| store.dbs[index].hash(found, now_ms));
    let since_ms = if clock == Clock::FromNow { now_ms } else { 0 };
    reply.array(request.len() - from);
    for field in request.from(from) {
        reply.integer(match hash.and_then(|hash| hash.expiry(field)) {
            None => NO_FIELD,
            Some(None) => NO_EXPIRY,
            Some(Some(at_ms)) => {
                let ms = at_ms.saturating_sub(since_ms);
                (if unit == Unit::Seconds { ms.div_ceil(1000) } else { ms }) as i64
            }
        });
    }
    Ok(())
}

impl Store {
    /// Deletes those of these fields of a hash whose time has come. Returns how many, and whether the key is gone with them.
    pub(super) fn delete_due(
        &mut self,
        db: usize,
        found: Found,
        fields: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(usize, bool), Error> {
        const EFFECT: &[u8] = b"HDEL";
        let now_ms = self.now.unix_ms();
        let key = args::copied(self.dbs[db].key(found))?;
        let mut effect: Vec<&[u8]> = Vec::new();
        effect.try_reserve(2).map_err(|_| Error::OUT_OF_MEMORY)?;
        effect.extend([EFFECT, &key]);
        let is_gone = edit(self, db, &key, Some(found), &mut |hash, records| {
            for field in &mut *fields {
                let at_ms = hash.view(records).expiry(field).flatten();
                // What there is no memory to tell of stays, hidden.
                if at_ms.is_some_and(|at| at < now_ms) && args::push(&mut effect, field).is_ok() {
                    hash.remove(records, field);
                }
            }
            Ok(())
        })?;
        let count = effect.len() - 2;
        if count > 0 {
            self.stats.expired_fields += count as u64;
            self.effect(db, &effect);
            // Whoever finds a field expired has not changed it.
            self.tracking.is_expiring = true;
            self.changed(db, &key);
            self.notify(EventClass::HASH, "hexpired", db, &key);
            if is_gone {
                self.notify(EventClass::GENERIC, "del", db, &key);
            }
            self.tracking.is_expiring = false;
        }
        Ok((count, is_gone))
    }

    /// Looks at about `limit` hashes and fields of a database, and deletes the fields whose time has come. Returns whether there
    /// is probably more to do.
    #[inline(never)]
    pub fn expire_fields(&mut self, db: usize, limit: usize) -> bool {
        let now_ms = self.now.unix_ms();
        let (mut left, mut deleted) = (limit, 0);
        while left > 0 {
            let (examined, due) = self.dbs[db].due_hash(now_ms, left);
            left = left.saturating_sub(examined);
            let Some(found) = due else { break };
            let names = self.dbs[db].due_fields(found, now_ms).unwrap_or_default();
            match self.delete_due(db, found, &mut names.iter().map(Vec::as_slice)) {
                Ok((count, _)) if count > 0 => (left, deleted) = (left.saturating_sub(count), deleted + count),
                // Without memory there is another turn to try.
                _ => break,
            }
        }
        // Above a tenth it pays to look on.
        left == 0 && deleted * 10 > limit
    }
}
