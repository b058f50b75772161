//! When keys expire.

use crate::{
    Context, Error, EventClass, Outcome, args,
    expiry::{Clock, ExpireTime, Unit},
};
use kayvee_keyspace::Decimal;
use kayvee_resp::Request;

pub fn expire(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Seconds, Clock::FromNow, "expire")
}

pub fn pexpire(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Milliseconds, Clock::FromNow, "pexpire")
}

pub fn expireat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Seconds, Clock::SinceEpoch, "expireat")
}

pub fn pexpireat(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    expire_at(context, request, Unit::Milliseconds, Clock::SinceEpoch, "pexpireat")
}

/// The conditions of the `EXPIRE` family: each option, and whether it was given.
#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(request: Request<'_>) -> Result<Conditions, Error> {
        let mut conditions = Conditions::default();
        for word in request.from(3) {
            let option = match () {
                () if args::is(word, "nx") => &mut conditions.nx,
                () if args::is(word, "xx") => &mut conditions.xx,
                () if args::is(word, "gt") => &mut conditions.gt,
                () if args::is(word, "lt") => &mut conditions.lt,
                () => return Err(Error::showing("ERR Unsupported option ", word, "")),
            };
            *option = true;
        }
        let Conditions { nx, xx, gt, lt } = conditions;
        if nx && (xx || gt || lt) {
            return Err(Error::text("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if gt && lt {
            return Err(Error::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Whether an expiry at `new` may take the place of `old`. A key without one counts as expiring at infinity.
    fn allow(&self, old: Option<u64>, new: i64) -> bool {
        let is_later = old.is_some_and(|old| i128::from(new) > i128::from(old));
        let is_earlier = old.is_none_or(|old| i128::from(new) < i128::from(old));
        (!self.nx || old.is_none()) && (!self.xx || old.is_some()) && (!self.gt || is_later) && (!self.lt || is_earlier)
    }
}

fn expire_at(context: &mut Context<'_>, request: Request<'_>, unit: Unit, clock: Clock, command: &str) -> Outcome {
    let conditions = Conditions::parse(request)?;
    let now_ms = context.now_ms();
    let at_ms = ExpireTime { value: &request[2], unit, clock }.unix_ms(now_ms, command)?;
    let key = &request[1];
    let found = context.find_touched(key);
    let found = found.filter(|&found| conditions.allow(context.db().expires_ms(found), at_ms));
    if let Some(found) = found {
        let at_ms = u64::try_from(at_ms).unwrap_or(0);
        if context.goes_at_once(at_ms) {
            context.remove(key, found);
            context.effect(&[b"DEL", key]);
        } else {
            context.db().set_expires_ms(found, Some(at_ms))?;
            context.changed(EventClass::GENERIC, "expire", key);
            context.effect(&[b"PEXPIREAT", key, Decimal::unsigned(at_ms).as_bytes()]);
        }
    }
    context.reply.integer(found.is_some().into());
    Ok(())
}

pub fn persist(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = context.find_touched(&request[1]);
    let found = found.filter(|&found| context.db().expires_ms(found).is_some());
    if let Some(found) = found {
        context.db().set_expires_ms(found, None)?;
        context.changed(EventClass::GENERIC, "persist", &request[1]);
    }
    context.reply.integer(found.is_some().into());
    Ok(())
}

pub fn ttl(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_time(context, request, |at_ms, now_ms| seconds(at_ms.saturating_sub(now_ms)))
}

pub fn pttl(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_time(context, request, |at_ms, now_ms| at_ms.saturating_sub(now_ms))
}

pub fn expiretime(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_time(context, request, |at_ms, _| seconds(at_ms))
}

pub fn pexpiretime(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_time(context, request, |at_ms, _| at_ms)
}

/// Whole seconds, rounded to the nearest.
fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// Replies with what `shown` makes of a key's expiry and the time now; -1 without an expiry, -2 without a key.
fn reply_with_time(context: &mut Context<'_>, request: Request<'_>, shown: fn(u64, u64) -> u64) -> Outcome {
    let now_ms = context.now_ms();
    let reply = match context.peek(&request[1]) {
        None => -2,
        Some(found) => context.db().expires_ms(found).map_or(-1, |at_ms| shown(at_ms, now_ms) as i64),
    };
    context.reply.integer(reply);
    Ok(())
}
