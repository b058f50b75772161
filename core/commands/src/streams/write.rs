//! Adding and removing entries.

use super::{INVALID_ID, PartialId, effects, id, ids, partial_id, reply_id};
use crate::{Context, Error, EventClass, Outcome, args};
use alloc::boxed::Box;
use kayvee_keyspace::{Keep, Kind, Stream, StreamId, Trim};
use kayvee_resp::Request;

const TOO_SMALL: Error =
    Error::text("ERR The ID specified in XADD is equal or smaller than the target stream top item");
const ZERO: Error = Error::text("ERR The ID specified in XADD must be greater than 0-0");
const EXHAUSTED: Error = Error::text("ERR The stream has exhausted the last possible ID, unable to add more items");

/// The ID of a new entry.
#[derive(Clone, Copy)]
enum NewId {
    /// `*`
    Auto,
    /// `ms-*`
    AutoSeq(u64),
    Given(StreamId),
}

impl NewId {
    fn parse(arg: &[u8]) -> Result<NewId, Error> {
        match arg.strip_suffix(b"-*") {
            _ if arg == b"*" => Ok(NewId::Auto),
            Some(ms) => match partial_id(ms)? {
                PartialId { ms, seq: None } => Ok(NewId::AutoSeq(ms)),
                _ => Err(INVALID_ID),
            },
            None => id(arg).map(NewId::Given),
        }
    }

    /// The ID behind a stream's last one, if there is one.
    fn choose(self, last: StreamId, now_ms: u64) -> Option<StreamId> {
        let new = match self {
            NewId::Auto if now_ms > last.ms => StreamId { ms: now_ms, seq: 0 },
            NewId::Auto => last.next()?,
            NewId::AutoSeq(ms) if ms == last.ms => StreamId { ms, seq: last.seq.checked_add(1)? },
            NewId::AutoSeq(ms) => StreamId { ms, seq: 0 },
            NewId::Given(id) => id,
        };
        (new > last).then_some(new)
    }
}

/// The options of `XADD` and `XTRIM`.
#[derive(Default)]
struct WriteOptions {
    keep: Option<Keep>,
    roughly: bool,
    limit: Option<u64>,
    only_existing: bool,
    /// Behind the options.
    end: usize,
}

impl WriteOptions {
    /// Reads them; `XADD`'s end at the ID.
    fn parse(context: &Context<'_>, request: Request<'_>, is_add: bool) -> Result<WriteOptions, Error> {
        const LIMIT: Error = Error::text("ERR The LIMIT argument must be >= 0.");
        let mut options = WriteOptions::default();
        let mut at = 2;
        while let Some(word) = request.get(at) {
            let left = request.len() - at - 1;
            let is = |name| args::is(word, name);
            if is_add && word == b"*" {
                break;
            } else if (is("maxlen") || is("minid")) && left >= 1 {
                at = options.parse_keep(request, at, is("maxlen"))?;
            } else if is("limit") && left >= 1 {
                let limit = args::integer(&request[at + 1])?;
                options.limit = Some(u64::try_from(limit).map_err(|_| LIMIT)?);
                at += 2;
            } else if is_add && is("nomkstream") {
                options.only_existing = true;
                at += 1;
            } else if is_add {
                NewId::parse(word)?;
                break;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        options.end = at;
        // Redis hands on what it has done roughly as `=` with the limit left in, which it goes by no more.
        if context.was_accepted() && options.keep.is_some() {
            options.limit = None;
        }
        options.check(is_add)?;
        Ok(options)
    }

    /// Reads what is kept, from the word on that tells by what, and returns where the next option begins.
    fn parse_keep(&mut self, request: Request<'_>, at: usize, by_len: bool) -> Result<usize, Error> {
        const BOTH: Error =
            Error::text("ERR syntax error, MAXLEN and MINID options at the same time are not compatible");
        const MAXLEN: Error = Error::text("ERR The MAXLEN argument must be >= 0.");
        if self.keep.is_some() {
            return Err(BOTH);
        }
        let has_sign = request.len() - at > 2 && matches!(&request[at + 1], b"~" | b"=");
        self.roughly = has_sign && &request[at + 1] == b"~";
        let value_at = at + 1 + usize::from(has_sign);
        let value = &request[value_at];
        self.keep = Some(match by_len {
            true => Keep::Last(u64::try_from(args::integer(value)?).map_err(|_| MAXLEN)?),
            false => Keep::From(id(value)?),
        });
        Ok(value_at + 1)
    }

    fn check(&self, is_add: bool) -> Outcome {
        const UNUSED: Error =
            Error::text("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy");
        const NO_STRATEGY: Error = Error::text("ERR syntax error, XTRIM must be called with a trimming strategy");
        const EXACT: Error = Error::text("ERR syntax error, LIMIT cannot be used without the special ~ option");
        match (self.keep, self.limit) {
            (None, Some(1..)) => Err(UNUSED),
            (None, _) if !is_add => Err(NO_STRATEGY),
            (_, Some(_)) if !self.roughly => Err(EXACT),
            _ => Ok(()),
        }
    }

    /// How a stream is to be trimmed. What is done roughly is bounded, so that nobody waits long.
    fn trim(&self, node_entries: u64) -> Option<Trim> {
        const BLOCKS: u64 = 100;
        const DEFAULT_LIMIT: u64 = 10_000;
        const GREATEST_LIMIT: u64 = 1_000_000;
        let default = match node_entries.saturating_mul(BLOCKS) {
            0 => DEFAULT_LIMIT,
            limit => limit.min(GREATEST_LIMIT),
        };
        self.keep.map(|keep| match self.roughly {
            true => Trim::Roughly(keep, self.limit.unwrap_or(default)),
            false => Trim::Exactly(keep),
        })
    }
}

pub fn xadd(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let options = WriteOptions::parse(context, request, true)?;
    let first = options.end + 1;
    let fields = request.len().saturating_sub(first);
    if fields < 2 || !fields.is_multiple_of(2) {
        return Err(args::wrong_arity("xadd"));
    }
    let new_id = NewId::parse(&request[options.end])?;
    if matches!(new_id, NewId::Given(StreamId::MIN)) {
        return Err(ZERO);
    }
    let key = &request[1];
    let found = context.find_to_change(key, Kind::Stream)?;
    if found.is_none() && options.only_existing {
        context.reply.null();
        return Ok(());
    }
    let last = found.map_or(StreamId::MIN, |found| context.db().stream(found).last_id);
    if last == StreamId::MAX {
        return Err(EXHAUSTED);
    }
    let id = new_id.choose(last, context.now_ms()).ok_or(TOO_SMALL)?;
    let limits = super::block_limits(&context.store.options);
    let trim = options.trim(limits.entries);
    let arg = move |at| request.get(at).unwrap_or_default();
    let pairs = (0..fields / 2).map(move |pair| (arg(first + 2 * pair), arg(first + 2 * pair + 1)));
    let edit = context.edit(key, found, |stream: &mut Box<Stream>, _| {
        stream.append(id, pairs, limits)?;
        let removed = trim.map_or(0, |trim| stream.trim(trim));
        Ok((removed > 0).then_some(stream.len()))
    })?;
    reply_id(&mut context.reply, id);
    context.changed(EventClass::STREAM, "xadd", key);
    if edit.result.is_some() {
        context.notify(EventClass::STREAM, "xtrim", key);
    }
    effects::tell_added(context, request, first, id, edit.result);
    Ok(())
}

pub fn xtrim(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let options = WriteOptions::parse(context, request, false)?;
    let key = &request[1];
    let trim = options.trim(context.store.options.stream_node_max_entries);
    let mut removed = 0;
    if let (Some(found), Some(trim)) = (context.find_to_change(key, Kind::Stream)?, trim) {
        let edit =
            context.edit(key, Some(found), |stream: &mut Box<Stream>, _| Ok((stream.trim(trim), stream.len())))?;
        removed = edit.result.0;
        if removed > 0 {
            context.changed(EventClass::STREAM, "xtrim", key);
            effects::tell_trimmed(context, key, edit.result.1);
        }
    }
    context.reply.integer(removed as i64);
    Ok(())
}

pub fn xdel(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let key = &request[1];
    let mut removed = 0;
    if let Some(found) = context.find_to_change(key, Kind::Stream)? {
        let ids = ids(request.from(2))?;
        let edit = context.edit(key, Some(found), |stream: &mut Box<Stream>, _| {
            Ok(ids.iter().filter(|&&id| stream.remove(id)).count())
        })?;
        removed = edit.result;
        if removed > 0 {
            context.changed(EventClass::STREAM, "xdel", key);
        }
    }
    context.reply.integer(removed as i64);
    Ok(())
}

pub fn xsetid(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const ADDED: Error = Error::text("ERR entries_added must be positive");
    const BELOW_DELETED: Error =
        Error::text("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id");
    const BELOW_TOP: Error = Error::text("ERR The ID specified in XSETID is smaller than the target stream top item");
    const BELOW_LEN: Error =
        Error::text("ERR The entries_added specified in XSETID is smaller than the target stream length");
    let last_id = id(&request[2])?;
    let (mut added, mut max_deleted_id) = (None, StreamId::MIN);
    let mut words = request.from(3);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(Error::SYNTAX)?;
        if args::is(word, "entriesadded") {
            added = Some(u64::try_from(args::integer(value)?).map_err(|_| ADDED)?);
        } else if args::is(word, "maxdeletedid") {
            max_deleted_id = id(value)?;
            if last_id < max_deleted_id {
                return Err(BELOW_DELETED);
            }
        } else {
            return Err(Error::SYNTAX);
        }
    }
    let key = &request[1];
    let found = context.find_to_change(key, Kind::Stream)?.ok_or(Error::NO_SUCH_KEY)?;
    let stream = context.db().stream(found);
    if !stream.is_empty() {
        if stream.end(kayvee_keyspace::Direction::Backward).is_some_and(|top| last_id < top.id()) {
            return Err(BELOW_TOP);
        }
        if added.is_some_and(|added| stream.len() > added) {
            return Err(BELOW_LEN);
        }
    }
    context.edit(key, Some(found), |stream: &mut Box<Stream>, _| {
        stream.last_id = last_id;
        stream.entries_added = added.unwrap_or(stream.entries_added);
        if max_deleted_id != StreamId::MIN {
            stream.max_deleted_id = max_deleted_id;
        }
        Ok(())
    })?;
    context.reply.ok();
    context.changed(EventClass::STREAM, "xsetid", key);
    Ok(())
}
