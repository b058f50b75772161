//! Going through the keys of a database.

use crate::{
    Context, Error, Outcome, args,
    glob::{Glob, TooComplex},
};
use kayvee_keyspace::{Db, Decimal, Found, Kind};
use kayvee_resp::Request;

/// Most keys that one call of `SCAN` looks at, and most steps that its pattern takes on them: nobody may wait long,
/// whatever `COUNT` asks for. It only ends a call early, between two buckets of the index.
const SCAN_KEYS_LIMIT: u64 = 5_000;
const SCAN_STEPS_LIMIT: u64 = 4_000_000;
/// Keys looked at for each one that is asked for, when few of them match.
const SCAN_KEYS_PER_COUNT: u64 = 10;

const TOO_COMPLEX: Error = Error::text("ERR pattern takes too many steps to match a key of this length");

impl From<TooComplex> for Error {
    fn from(_: TooComplex) -> Error {
        TOO_COMPLEX
    }
}

/// What a walk over keys or members has done so far.
#[derive(Default)]
struct Walk {
    examined: u64,
    steps: u64,
    matched: usize,
    failure: Option<Error>,
}

impl Walk {
    /// Notes that a name was looked at, and tells whether it matches.
    fn matches(&mut self, name: &[u8], glob: Option<&Glob<'_>>) -> bool {
        self.examined += 1;
        match glob.map_or(Ok(true), |glob| glob.matches(name, &mut self.steps)) {
            Ok(matches) => matches,
            Err(error) => {
                self.failure = Some(error.into());
                false
            }
        }
    }

    /// Whether a call that asks for `count` names has done enough.
    fn has_enough(&self, count: u64) -> bool {
        let examined_limit = count.saturating_mul(SCAN_KEYS_PER_COUNT).min(SCAN_KEYS_LIMIT);
        self.matched as u64 >= count || self.examined >= examined_limit || self.steps >= SCAN_STEPS_LIMIT
    }
}

/// Writes the keys of one bucket that match, and returns the next cursor.
fn walk_bucket(context: &mut Context<'_>, cursor: u64, options: &ScanOptions<'_>, walk: &mut Walk) -> u64 {
    let (now_ms, index) = (context.now_ms(), context.db_index());
    let Context { store, reply, .. } = context;
    let next = store.dbs[index].scan(cursor, now_ms, |key, kind| {
        if walk.matches(key, options.glob.as_ref()) && options.kind.is_none_or(|wanted| wanted == Some(kind)) {
            walk.matched += 1;
            reply.bulk(key);
        }
    });
    if reply.failed() {
        walk.failure = Some(Error::OUT_OF_MEMORY);
    }
    next
}

pub fn keys(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let options = ScanOptions { glob: Glob::of(&request[1]), ..ScanOptions::default() };
    let mut walk = Walk::default();
    let start = context.reply.len();
    let mut cursor = 0;
    loop {
        cursor = walk_bucket(context, cursor, &options, &mut walk);
        if let Some(error) = walk.failure {
            return Err(error);
        }
        if cursor == 0 {
            break;
        }
    }
    let end = context.reply.len();
    context.reply.array(walk.matched);
    context.reply.move_before(start, end);
    Ok(())
}

struct ScanOptions<'a> {
    glob: Option<Glob<'a>>,
    count: u64,
    /// What kind of value the keys have that are asked for; no key has one that does not exist.
    kind: Option<Option<Kind>>,
}

impl Default for ScanOptions<'_> {
    fn default() -> Self {
        const DEFAULT_COUNT: u64 = 10;
        ScanOptions { glob: None, count: DEFAULT_COUNT, kind: None }
    }
}

impl<'a> ScanOptions<'a> {
    /// Reads the options from an argument on.
    fn parse(request: Request<'a>, from: usize) -> Result<ScanOptions<'a>, Error> {
        let mut options = ScanOptions::default();
        let mut words = request.from(from);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(Error::SYNTAX)?;
            match () {
                () if args::is(word, "match") => options.glob = Glob::of(value),
                () if args::is(word, "count") => {
                    options.count = u64::try_from(args::integer(value)?).map_err(|_| Error::SYNTAX)?;
                    if options.count == 0 {
                        return Err(Error::SYNTAX);
                    }
                }
                () if args::is(word, "type") && from == KEYS_FROM => {
                    options.kind = Some(Kind::ALL.into_iter().find(|kind| args::is(value, kind.name())));
                }
                () => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}

/// The first option of `SCAN`, and of those who go through one key's members.
const KEYS_FROM: usize = 2;
const MEMBERS_FROM: usize = 3;

/// Reads a cursor as C's `strtoul` does, which Redis uses: up to a zero byte, with a sign, and wrapping if negative.
fn parse_cursor(arg: &[u8]) -> Result<u64, Error> {
    const INVALID: Error = Error::text("ERR invalid cursor");
    let text = arg.split(|&b| b == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Ok(0);
    }
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if !digits.first().is_some_and(u8::is_ascii_digit) {
        return Err(INVALID);
    }
    let digits = core::str::from_utf8(digits).map_err(|_| INVALID)?;
    let cursor: u64 = digits.parse().map_err(|_| INVALID)?;
    Ok(if is_negative { cursor.wrapping_neg() } else { cursor })
}

pub fn scan(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let mut cursor = parse_cursor(&request[1])?;
    let options = ScanOptions::parse(request, KEYS_FROM)?;
    let mut walk = Walk::default();
    let start = context.reply.len();
    loop {
        let now_ms = context.now_ms();
        context.db().expire_at_cursor(cursor, now_ms)?;
        cursor = walk_bucket(context, cursor, &options, &mut walk);
        if let Some(error) = walk.failure {
            return Err(error);
        }
        if cursor == 0 || walk.has_enough(options.count) {
            break;
        }
    }
    write_head(context, start, cursor, walk.matched);
    Ok(())
}

fn write_head(context: &mut Context<'_>, start: usize, cursor: u64, elements: usize) {
    let end = context.reply.len();
    context.reply.array(2);
    context.reply.bulk(Decimal::unsigned(cursor).as_bytes());
    context.reply.array(elements);
    context.reply.move_before(start, end);
}

/// Receives a member's name and what goes with it, if anything does.
pub type VisitMember<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>);

/// Goes through the members of a key of this kind. `scan` visits some of them, by the time now and from a cursor on, and
/// returns the next cursor.
pub fn scan_members(
    context: &mut Context<'_>,
    request: Request<'_>,
    kind: Kind,
    scan: fn(&Db, Found, u64, u64, VisitMember<'_>) -> u64,
) -> Outcome {
    let mut cursor = parse_cursor(&request[2])?;
    let start = context.reply.len();
    let Some(found) = context.read(&request[1], kind)? else {
        write_head(context, start, 0, 0);
        return Ok(());
    };
    let options = ScanOptions::parse(request, MEMBERS_FROM)?;
    let (index, now_ms) = (context.db_index(), context.now_ms());
    let Context { store, reply, .. } = context;
    let mut walk = Walk::default();
    loop {
        cursor = scan(&store.dbs[index], found, now_ms, cursor, &mut |member, value| {
            if walk.matches(member, options.glob.as_ref()) {
                walk.matched += 1;
                reply.bulk(member);
                if let Some(value) = value {
                    walk.matched += 1;
                    reply.bulk(value);
                }
            }
        });
        if reply.failed() {
            walk.failure = Some(Error::OUT_OF_MEMORY);
        }
        if let Some(error) = walk.failure {
            return Err(error);
        }
        if cursor == 0 || walk.has_enough(options.count) {
            break;
        }
    }
    write_head(context, start, cursor, walk.matched);
    Ok(())
}
