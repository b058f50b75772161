//! `SLOWLOG`: the calls that took long.

use crate::{
    Context, Error, Outcome, Store, args,
    server::help,
    table::{Command, Flags, Group, Tips},
};
use alloc::{collections::VecDeque, string::String, vec::Vec};
use kayvee_resp::Request;

/// Entries that `SLOWLOG GET` returns when it is not told how many.
const DEFAULT_ENTRIES: usize = 10;

/// A call that took long.
struct Entry {
    id: u64,
    unix_s: u64,
    took_us: u64,
    arguments: Vec<Vec<u8>>,
    remote: String,
    client_name: Vec<u8>,
}

/// The calls that took long, the newest first.
#[derive(Default)]
pub struct SlowLog {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl SlowLog {
    /// The newest calls: their first words, and how many microseconds they took.
    pub fn newest(&self, count: usize) -> impl Iterator<Item = (&[Vec<u8>], u64)> {
        self.entries.iter().take(count).map(|entry| (entry.arguments.as_slice(), entry.took_us))
    }
}

const ROW: Command =
    Command { flags: Flags::ADMIN.union(Flags::LOADING).union(Flags::STALE), group: Group::Server, ..Command::ROW };

pub static SUBCOMMANDS: &[Command] = &[
    Command {
        name: "get",
        arity: -2,
        tips: Tips::ALL_NODES.union(Tips::NONDETERMINISTIC_OUTPUT),
        handler: Some(get),
        ..ROW
    },
    ROW.help(help_text),
    Command {
        name: "len",
        arity: 2,
        tips: Tips::ALL_NODES.union(Tips::AGG_SUM).union(Tips::NONDETERMINISTIC_OUTPUT),
        handler: Some(len),
        ..ROW
    },
    Command { name: "reset", arity: 2, tips: Tips::ALL_NODES.union(Tips::ALL_SUCCEEDED), handler: Some(reset), ..ROW },
];

impl Store {
    /// Keeps a call, of the client in `slot`, that took long.
    pub(crate) fn add_to_slow_log(&mut self, slot: u32, arguments: Vec<Vec<u8>>, took_us: u64) {
        let limit = self.options.slowlog_max_len as usize;
        let Some(session) = self.sessions[slot as usize].as_deref() else { return };
        let (remote, client_name) = (session.remote.clone(), args::copied(&session.name).unwrap_or_default());
        let unix_s = self.now.unix_us / 1_000_000;
        let log = &mut self.slow_log;
        if log.entries.try_reserve(1).is_ok() {
            log.entries.push_front(Entry { id: log.next_id, unix_s, took_us, arguments, remote, client_name });
            log.next_id += 1;
        }
        log.entries.truncate(limit);
    }
}

fn get(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let mut count = DEFAULT_ENTRIES;
    match request.len() {
        2 => {}
        3 => {
            const OUT_OF_RANGE: Error = Error::text("ERR count should be greater than or equal to -1");
            count = match args::integer(&request[2]).map_err(|_| OUT_OF_RANGE)? {
                -1 => usize::MAX,
                number => usize::try_from(number).map_err(|_| OUT_OF_RANGE)?,
            };
        }
        _ => return Err(args::wrong_arity("slowlog|get")),
    }
    let Context { store, reply, .. } = context;
    reply.array(store.slow_log.entries.len().min(count));
    for entry in store.slow_log.entries.iter().take(count) {
        reply.array(6);
        reply.integer(entry.id as i64);
        reply.integer(entry.unix_s as i64);
        reply.integer(entry.took_us as i64);
        reply.array(entry.arguments.len());
        entry.arguments.iter().for_each(|argument| reply.bulk(argument));
        reply.bulk(entry.remote.as_bytes());
        reply.bulk(&entry.client_name);
    }
    Ok(())
}

fn len(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let len = context.store.slow_log.entries.len();
    context.reply.integer(len as i64);
    Ok(())
}

fn reset(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    context.store.slow_log.entries = VecDeque::new();
    context.reply.ok();
    Ok(())
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "SLOWLOG", SUBCOMMANDS)
}
