//! Going through the keys of a database.

use crate::{
    Context, Error, Outcome, args,
    glob::{Glob, TooComplex},
};
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

/// What a walk over keys has done so far.
#[derive(Default)]
struct Walk {
    examined: u64,
    steps: u64,
    matched: usize,
    failure: Option<Error>,
}

/// Writes the keys of one bucket that match, and returns the next cursor.
fn walk_bucket(context: &mut Context<'_>, cursor: u64, glob: Option<&Glob<'_>>, walk: &mut Walk) -> u64 {
    let (now_ms, index) = (context.now_ms(), context.db_index());
    let Context { store, reply, .. } = context;
    let next = store.dbs[index].scan(cursor, now_ms, |key| {
        walk.examined += 1;
        match glob.map_or(Ok(true), |glob| glob.matches(key, &mut walk.steps)) {
            Ok(true) => {
                walk.matched += 1;
                reply.bulk(key);
            }
            Ok(false) => {}
            Err(error) => walk.failure = Some(error.into()),
        }
    });
    if reply.failed() {
        walk.failure = Some(Error::OUT_OF_MEMORY);
    }
    next
}

pub fn keys(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let glob = Glob::of(&request[1]);
    let mut walk = Walk::default();
    let start = context.reply.len();
    let mut cursor = 0;
    loop {
        cursor = walk_bucket(context, cursor, glob.as_ref(), &mut walk);
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
    /// Whether strings, which is all that there is yet, are asked for.
    strings: bool,
}

impl<'a> ScanOptions<'a> {
    fn parse(request: Request<'a>) -> Result<ScanOptions<'a>, Error> {
        const DEFAULT_COUNT: u64 = 10;
        let mut options = ScanOptions { glob: None, count: DEFAULT_COUNT, strings: true };
        let mut words = request.from(2);
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
                () if args::is(word, "type") => options.strings = args::is(value, "string"),
                () => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}

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
    let options = ScanOptions::parse(request)?;
    let examined_limit = options.count.saturating_mul(SCAN_KEYS_PER_COUNT).min(SCAN_KEYS_LIMIT);
    let mut walk = Walk::default();
    let start = context.reply.len();
    loop {
        let now_ms = context.now_ms();
        context.db().expire_at_cursor(cursor, now_ms)?;
        let before = context.reply.len();
        cursor = walk_bucket(context, cursor, options.glob.as_ref(), &mut walk);
        if let Some(error) = walk.failure {
            return Err(error);
        }
        if !options.strings {
            context.reply.truncate(before);
            walk.matched = 0;
        }
        if cursor == 0
            || walk.matched as u64 >= options.count
            || walk.examined >= examined_limit
            || walk.steps >= SCAN_STEPS_LIMIT
        {
            break;
        }
    }
    let end = context.reply.len();
    context.reply.array(2);
    context.reply.bulk(kayvee_keyspace::Decimal::unsigned(cursor).as_bytes());
    context.reply.array(walk.matched);
    context.reply.move_before(start, end);
    Ok(())
}
