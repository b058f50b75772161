//! Whole strings: reading and setting them.

use super::reply_with;
use crate::{
    Context, Error, EventClass, Outcome, args,
    expiry::{Clock, ExpireTime, Unit},
    table::{KeyAt, KeyFlags},
};
use alloc::vec::Vec;
use kayvee_keyspace::{Decimal, Expiry, Found, Kind};
use kayvee_resp::Request;

pub fn get(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_read(context, &request[1]).map(|_| ())
}

/// Replies with the string at a key, or with nothing.
#[inline(always)]
fn reply_with_read(context: &mut Context<'_>, key: &[u8]) -> Result<Option<Found>, Error> {
    let found = context.read(key, Kind::String)?;
    match found {
        Some(found) => reply_with(context, found),
        None => context.reply.null(),
    }
    Ok(found)
}

/// Checks that the reply has found memory so far: one that has not must not cost the value that it was to show.
fn check_reply(context: &Context<'_>) -> Outcome {
    if context.reply.failed() { Err(Error::OUT_OF_MEMORY) } else { Ok(()) }
}

pub fn mget(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.reply.array(request.len() - 1);
    for key in request.from(1) {
        // What is no string counts as missing here.
        if reply_with_read(context, key).is_err() {
            context.reply.null();
        }
        check_reply(context)?;
    }
    Ok(())
}

/// Sets a key's string to the argument at `at`.
fn put(context: &mut Context<'_>, key: &[u8], request: Request<'_>, at: usize, expiry: Expiry) -> Outcome {
    context.set_argument(key, request, at, expiry)?;
    context.changed(EventClass::STRING, "set", key);
    if let Expiry::At(at_ms) = expiry {
        context.notify(EventClass::GENERIC, "expire", key);
        context.effect(&[b"SET", key, &request[at], b"PXAT", Decimal::unsigned(at_ms).as_bytes()]);
    }
    Ok(())
}

/// Under which condition `SET` sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    IfMissing,
    IfPresent,
}

/// What happens to a key's expiry, before the time is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime<'a> {
    /// As the command does without an option.
    Default,
    /// `KEEPTTL`
    Keep,
    /// `PERSIST`
    Forever,
    /// `EX`, `PX`, `EXAT`, `PXAT`
    Until(ExpireTime<'a>),
}

impl<'a> Lifetime<'a> {
    /// Takes one option that sets a time, together with its value. The same option may come again, no other one.
    fn then(self, word: &[u8], value: Option<&'a [u8]>) -> Result<Lifetime<'a>, Error> {
        const KINDS: [(&str, Unit, Clock); 4] = [
            ("ex", Unit::Seconds, Clock::FromNow),
            ("px", Unit::Milliseconds, Clock::FromNow),
            ("exat", Unit::Seconds, Clock::SinceEpoch),
            ("pxat", Unit::Milliseconds, Clock::SinceEpoch),
        ];
        let kind = KINDS.into_iter().find(|(name, ..)| args::is(word, name));
        let (Some((_, unit, clock)), Some(value)) = (kind, value) else { return Err(Error::SYNTAX) };
        match self {
            Lifetime::Default => {}
            Lifetime::Until(time) if (time.unit, time.clock) == (unit, clock) => {}
            _ => return Err(Error::SYNTAX),
        }
        Ok(Lifetime::Until(ExpireTime { value, unit, clock }))
    }
}

struct SetOptions<'a> {
    condition: Condition,
    get: bool,
    lifetime: Lifetime<'a>,
}

impl<'a> SetOptions<'a> {
    fn parse(request: Request<'a>) -> Result<SetOptions<'a>, Error> {
        let mut options = SetOptions { condition: Condition::Always, get: false, lifetime: Lifetime::Default };
        let mut words = request.from(3);
        while let Some(word) = words.next() {
            let is = |keyword| args::is(word, keyword);
            if is("nx") && options.condition != Condition::IfPresent {
                options.condition = Condition::IfMissing;
            } else if is("xx") && options.condition != Condition::IfMissing {
                options.condition = Condition::IfPresent;
            } else if is("get") {
                options.get = true;
            } else if is("keepttl") && matches!(options.lifetime, Lifetime::Default | Lifetime::Keep) {
                options.lifetime = Lifetime::Keep;
            } else {
                options.lifetime = options.lifetime.then(word, words.next())?;
            }
        }
        Ok(options)
    }
}

/// What `SET` does to its key depends on whether the old value is asked for.
pub fn set_keys(request: Request<'_>) -> Option<Vec<KeyAt>> {
    let reads = request.from(3).any(|arg| args::is(arg, "get"));
    let flags = if reads { KeyFlags::RW | KeyFlags::ACCESS } else { KeyFlags::OW };
    request.get(1).map(|_| Vec::from([(1, flags | KeyFlags::UPDATE)]))
}

pub fn set(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (key, value) = (&request[1], &request[2]);
    if request.len() == 3 {
        put(context, key, request, 2, Expiry::Never)?;
        context.reply.ok();
        return Ok(());
    }
    let options = SetOptions::parse(request)?;
    let expiry = match options.lifetime {
        Lifetime::Default | Lifetime::Forever => Expiry::Never,
        Lifetime::Keep => Expiry::Keep,
        Lifetime::Until(time) => Expiry::At(time.positive_ms(context.now_ms(), "set")?),
    };
    let found = if options.get { reply_with_read(context, key)? } else { context.find_touched(key) };
    let refused = match options.condition {
        Condition::Always => false,
        Condition::IfMissing => found.is_some(),
        Condition::IfPresent => found.is_none(),
    };
    if refused {
        if !options.get {
            context.reply.null();
        }
        return Ok(());
    }
    check_reply(context)?;
    put(context, key, request, 2, expiry)?;
    if options.get {
        match expiry {
            Expiry::Never => context.effect(&[b"SET", key, value]),
            Expiry::Keep => context.effect(&[b"SET", key, value, b"KEEPTTL"]),
            Expiry::At(_) => {}
        }
    } else {
        context.reply.ok();
    }
    Ok(())
}

pub fn setnx(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let is_new = context.find_touched(&request[1]).is_none();
    if is_new {
        put(context, &request[1], request, 2, Expiry::Never)?;
    }
    context.reply.integer(is_new.into());
    Ok(())
}

pub fn setex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    set_for(context, request, Unit::Seconds, "setex")
}

pub fn psetex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    set_for(context, request, Unit::Milliseconds, "psetex")
}

fn set_for(context: &mut Context<'_>, request: Request<'_>, unit: Unit, command: &str) -> Outcome {
    let time = ExpireTime { value: &request[2], unit, clock: Clock::FromNow };
    let expiry = Expiry::At(time.positive_ms(context.now_ms(), command)?);
    put(context, &request[1], request, 3, expiry)?;
    context.reply.ok();
    Ok(())
}

pub fn getset(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_with_read(context, &request[1])?;
    check_reply(context)?;
    put(context, &request[1], request, 2, Expiry::Never)?;
    context.effect(&[b"SET", &request[1], &request[2]]);
    Ok(())
}

pub fn getdel(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if let Some(found) = reply_with_read(context, &request[1])? {
        check_reply(context)?;
        context.remove(&request[1], found);
        context.effect(&[b"DEL", &request[1]]);
    }
    Ok(())
}

pub fn getex(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let mut lifetime = Lifetime::Default;
    let mut words = request.from(2);
    while let Some(word) = words.next() {
        lifetime = if args::is(word, "persist") && matches!(lifetime, Lifetime::Default | Lifetime::Forever) {
            Lifetime::Forever
        } else {
            lifetime.then(word, words.next())?
        };
    }
    let Some(found) = context.read(&request[1], Kind::String)? else {
        context.reply.null();
        return Ok(());
    };
    let now_ms = context.now_ms();
    let until_ms = match lifetime {
        Lifetime::Until(time) => Some(time.positive_ms(now_ms, "getex")?),
        _ => None,
    };
    reply_with(context, found);
    match until_ms {
        Some(at_ms) if context.goes_at_once(at_ms) => {
            check_reply(context)?;
            context.remove(&request[1], found);
            context.effect(&[b"DEL", &request[1]]);
        }
        Some(at_ms) => {
            context.db().set_expires_ms(found, Some(at_ms))?;
            context.changed(EventClass::GENERIC, "expire", &request[1]);
            context.effect(&[b"PEXPIREAT", &request[1], Decimal::unsigned(at_ms).as_bytes()]);
        }
        None if lifetime == Lifetime::Forever && context.db().expires_ms(found).is_some() => {
            context.db().set_expires_ms(found, None)?;
            context.changed(EventClass::GENERIC, "persist", &request[1]);
            context.effect(&[b"PERSIST", &request[1]]);
        }
        None => {}
    }
    Ok(())
}

pub fn mset(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    check_pairs(context, request, "mset")?;
    set_pairs(context, request)?;
    context.reply.ok();
    Ok(())
}

pub fn msetnx(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    check_pairs(context, request, "msetnx")?;
    let is_new = request.from(1).step_by(2).all(|key| context.find_touched(key).is_none());
    if is_new {
        set_pairs(context, request)?;
    }
    context.reply.integer(is_new.into());
    Ok(())
}

/// Checks that every key has a value, and that there is memory for all of them, since either all are set or none.
fn check_pairs(context: &mut Context<'_>, request: Request<'_>, command: &str) -> Outcome {
    /// What a key takes beyond its bytes at most: header, expiry, rounding, index, and an object of its own.
    const PER_PAIR_BYTES: usize = 256;
    if request.len().is_multiple_of(2) {
        return Err(args::wrong_arity(command));
    }
    let bytes: usize = request.from(1).map(|arg| arg.len() + PER_PAIR_BYTES).sum();
    if bytes as u64 <= context.store.data_room_bytes() { Ok(()) } else { Err(Error::OUT_OF_MEMORY) }
}

fn set_pairs(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    for at in (1..request.len()).step_by(2) {
        put(context, &request[at], request, at + 1, Expiry::Never)?;
    }
    Ok(())
}
