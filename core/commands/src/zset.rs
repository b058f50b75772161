//! Sorted sets.

use crate::{
    Context, Error, Outcome, args,
    double::DoubleText,
    generic::scan::scan_members,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips},
};
use kayvee_keyspace::{Kind, SortedSetView};
use kayvee_resp::{Protocol, Request, Writer};

mod combine;
mod pop;
mod random;
mod range;
mod update;

pub use combine::Gathered;
pub use update::{AddOptions, add_scored};

const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);
const GROW_FAST: Flags = WRITE_FAST.union(Flags::DENYOOM);
const STORE_COUNTED: Flags = Flags::WRITE.union(Flags::DENYOOM).union(Flags::MOVABLEKEYS);

const READING: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const TAKING: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);

const MEASURES: &[Keys] = &[Keys::one(1, KeyFlags::RO)];
const READS: &[Keys] = &[Keys::one(1, READING)];
const READS_COUNTED: &[Keys] = &[Keys::counted(1, READING)];
const UPDATES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const DELETES: &[Keys] = &[Keys::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const TAKES: &[Keys] = &[Keys::one(1, TAKING)];
const COMBINES: &[Keys] = &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), Keys::counted(2, READING)];

/// What all rows share.
const ROW: Command = Command { categories: Categories::SORTED_SET, group: Group::SortedSet, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "bzmpop",
        arity: -5,
        flags: Flags::WRITE.union(Flags::BLOCKING).union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(2, TAKING)],
        handler: Some(pop::bzmpop),
        ..ROW
    },
    Command {
        name: "bzpopmax",
        arity: -3,
        flags: WRITE_FAST.union(Flags::NOSCRIPT).union(Flags::BLOCKING),
        keys: &[Keys::range(1, -2, 1, TAKING)],
        handler: Some(pop::bzpopmax),
        ..ROW
    },
    Command {
        name: "bzpopmin",
        arity: -3,
        flags: WRITE_FAST.union(Flags::NOSCRIPT).union(Flags::BLOCKING),
        keys: &[Keys::range(1, -2, 1, TAKING)],
        handler: Some(pop::bzpopmin),
        ..ROW
    },
    Command { name: "zadd", arity: -4, flags: GROW_FAST, keys: UPDATES, handler: Some(update::zadd), ..ROW },
    Command { name: "zcard", arity: 2, flags: READ_FAST, keys: MEASURES, handler: Some(zcard), ..ROW },
    Command { name: "zcount", arity: 4, flags: READ_FAST, keys: READS, handler: Some(range::zcount), ..ROW },
    Command {
        name: "zdiff",
        arity: -3,
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: READS_COUNTED,
        handler: Some(combine::zdiff),
        ..ROW
    },
    Command {
        name: "zdiffstore",
        arity: -4,
        flags: STORE_COUNTED,
        keys: COMBINES,
        handler: Some(combine::zdiffstore),
        ..ROW
    },
    Command {
        name: "zincrby",
        arity: 4,
        flags: GROW_FAST,
        keys: &[Keys::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))],
        handler: Some(update::zincrby),
        ..ROW
    },
    Command {
        name: "zinter",
        arity: -3,
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: READS_COUNTED,
        handler: Some(combine::zinter),
        ..ROW
    },
    Command {
        name: "zintercard",
        arity: -3,
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: READS_COUNTED,
        handler: Some(combine::zintercard),
        ..ROW
    },
    Command {
        name: "zinterstore",
        arity: -4,
        flags: STORE_COUNTED,
        keys: COMBINES,
        handler: Some(combine::zinterstore),
        ..ROW
    },
    Command { name: "zlexcount", arity: 4, flags: READ_FAST, keys: READS, handler: Some(range::zlexcount), ..ROW },
    Command {
        name: "zmpop",
        arity: -4,
        flags: Flags::WRITE.union(Flags::MOVABLEKEYS),
        keys: &[Keys::counted(1, TAKING)],
        handler: Some(pop::zmpop),
        ..ROW
    },
    Command { name: "zmscore", arity: -3, flags: READ_FAST, keys: READS, handler: Some(zmscore), ..ROW },
    Command { name: "zpopmax", arity: -2, flags: WRITE_FAST, keys: TAKES, handler: Some(pop::zpopmax), ..ROW },
    Command { name: "zpopmin", arity: -2, flags: WRITE_FAST, keys: TAKES, handler: Some(pop::zpopmin), ..ROW },
    Command {
        name: "zrandmember",
        arity: -2,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(random::zrandmember),
        ..ROW
    },
    Command { name: "zrange", arity: -4, flags: Flags::READONLY, keys: READS, handler: Some(range::zrange), ..ROW },
    Command {
        name: "zrangebylex",
        arity: -4,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(range::zrangebylex),
        ..ROW
    },
    Command {
        name: "zrangebyscore",
        arity: -4,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(range::zrangebyscore),
        ..ROW
    },
    Command {
        name: "zrangestore",
        arity: -5,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: &[Keys::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), Keys::one(2, KeyFlags::RO.union(KeyFlags::ACCESS))],
        handler: Some(range::zrangestore),
        ..ROW
    },
    Command { name: "zrank", arity: -3, flags: READ_FAST, keys: READS, handler: Some(zrank), ..ROW },
    Command { name: "zrem", arity: -3, flags: WRITE_FAST, keys: DELETES, handler: Some(update::zrem), ..ROW },
    Command {
        name: "zremrangebylex",
        arity: 4,
        flags: Flags::WRITE,
        keys: DELETES,
        handler: Some(update::zremrangebylex),
        ..ROW
    },
    Command {
        name: "zremrangebyrank",
        arity: 4,
        flags: Flags::WRITE,
        keys: DELETES,
        handler: Some(update::zremrangebyrank),
        ..ROW
    },
    Command {
        name: "zremrangebyscore",
        arity: 4,
        flags: Flags::WRITE,
        keys: DELETES,
        handler: Some(update::zremrangebyscore),
        ..ROW
    },
    Command {
        name: "zrevrange",
        arity: -4,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(range::zrevrange),
        ..ROW
    },
    Command {
        name: "zrevrangebylex",
        arity: -4,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(range::zrevrangebylex),
        ..ROW
    },
    Command {
        name: "zrevrangebyscore",
        arity: -4,
        flags: Flags::READONLY,
        keys: READS,
        handler: Some(range::zrevrangebyscore),
        ..ROW
    },
    Command { name: "zrevrank", arity: -3, flags: READ_FAST, keys: READS, handler: Some(zrevrank), ..ROW },
    Command {
        name: "zscan",
        arity: -3,
        flags: Flags::READONLY,
        keys: READS,
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        handler: Some(zscan),
        ..ROW
    },
    Command { name: "zscore", arity: 3, flags: READ_FAST, keys: READS, handler: Some(zscore), ..ROW },
    Command {
        name: "zunion",
        arity: -3,
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: READS_COUNTED,
        handler: Some(combine::zunion),
        ..ROW
    },
    Command {
        name: "zunionstore",
        arity: -4,
        flags: STORE_COUNTED,
        keys: COMBINES,
        handler: Some(combine::zunionstore),
        ..ROW
    },
];

fn reply_score(reply: &mut Writer<'_>, score: f64) {
    reply.double(DoubleText::shortest(score).as_str());
}

/// Writes a reply about the sorted set at a key, if there is one.
pub fn reply_from(
    context: &mut Context<'_>,
    key: &[u8],
    write: impl FnOnce(&mut Writer<'_>, Option<SortedSetView<'_>>),
) -> Outcome {
    let found = context.read(key, Kind::SortedSet)?;
    let index = context.db_index();
    let Context { store, reply, .. } = context;
    write(reply, found.map(|found| store.dbs[index].sorted_set(found)));
    Ok(())
}

/// Writes members one by one, perhaps with their scores; these are pairs in RESP3.
struct Members<'a, 'b> {
    reply: &'a mut Writer<'b>,
    with_scores: bool,
}

impl Members<'_, '_> {
    /// The head of the reply.
    fn begin(&mut self, len: usize) {
        let is_flat = self.with_scores && self.reply.protocol() == Protocol::Resp2;
        self.reply.array(if is_flat { 2 * len } else { len });
    }

    fn write(&mut self, member: &[u8], score: f64) {
        if self.with_scores && self.reply.protocol() == Protocol::Resp3 {
            self.reply.array(2);
        }
        self.reply.bulk(member);
        if self.with_scores {
            reply_score(self.reply, score);
        }
    }
}

fn zcard(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, zset| reply.integer(zset.map_or(0, SortedSetView::len) as i64))
}

fn zscore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, zset| match zset.and_then(|zset| zset.score(&request[2])) {
        Some(score) => reply_score(reply, score),
        None => reply.null(),
    })
}

fn zmscore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_from(context, &request[1], |reply, zset| {
        reply.array(request.len() - 2);
        for member in request.from(2) {
            match zset.and_then(|zset| zset.score(member)) {
                Some(score) => reply_score(reply, score),
                None => reply.null(),
            }
        }
    })
}

fn zrank(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_rank(context, request, "zrank", |_, rank| rank)
}

fn zrevrank(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    reply_rank(context, request, "zrevrank", |len, rank| len - 1 - rank)
}

fn reply_rank(
    context: &mut Context<'_>,
    request: Request<'_>,
    command: &str,
    counted: fn(usize, usize) -> usize,
) -> Outcome {
    let with_score = match request.get(3) {
        _ if request.len() > 4 => return Err(args::wrong_arity(command)),
        Some(word) if args::is(word, "withscore") => true,
        Some(_) => return Err(Error::SYNTAX),
        None => false,
    };
    reply_from(context, &request[1], |reply, zset| {
        let found =
            zset.and_then(|zset| zset.rank(&request[2]).map(|(rank, score)| (counted(zset.len(), rank), score)));
        match found {
            Some((rank, score)) if with_score => {
                reply.array(2);
                reply.integer(rank as i64);
                reply_score(reply, score);
            }
            Some((rank, _)) => reply.integer(rank as i64),
            None if with_score => reply.null_array(),
            None => reply.null(),
        }
    })
}

fn zscan(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    scan_members(context, request, Kind::SortedSet, |db, found, _, cursor, visit| {
        let zset = db.sorted_set(found);
        // Redis shows the text that a listpack holds, but prints a skiplist's score with all its digits.
        let text = match zset {
            SortedSetView::Packed(_) => DoubleText::shortest,
            SortedSetView::Table(..) => DoubleText::precise,
        };
        zset.scan(cursor, |member, score| visit(member, Some(text(score).as_str().as_bytes())))
    })
}
