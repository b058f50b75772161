//! `OBJECT`: how values are stored and used.

use crate::{Context, Error, Outcome, options::Options, server::help_lines};
use kayvee_keyspace::{Found, Kind, Value};
use kayvee_resp::Request;

/// Redis shares one object among all uses of a number below this, and shows [`SHARED`] as its count of references.
const SHARED_INTEGERS: i64 = 10_000;
const SHARED: i64 = i32::MAX as i64;

const NO_LFU: Error = Error::text(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
     policies at runtime LRU and LFU data will take some time to adjust.",
);

const NO_LRU: Error = Error::text(
    "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at \
     runtime LRU and LFU data will take some time to adjust.",
);

/// Finds the key that is asked about, or replies that there is none.
fn find(context: &mut Context<'_>, request: Request<'_>) -> Option<Found> {
    let found = context.find(&request[2]);
    match found {
        Some(_) => context.store.stats.keyspace_hits += 1,
        // A miss that no event tells of, as in Redis.
        None => {
            context.store.stats.keyspace_misses += 1;
            context.reply.null();
        }
    }
    found
}

pub fn encoding(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if let Some(found) = find(context, request) {
        let name = context.db().encoding(found).name();
        context.reply.bulk(name.as_bytes());
    }
    Ok(())
}

pub fn refcount(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if let Some(found) = find(context, request) {
        let db = context.db();
        let is_shared = db.kind(found) == Kind::String && matches!(db.value(found), Value::Integer(0..SHARED_INTEGERS));
        let Options { maxmemory, maxmemory_policy: policy, .. } = context.store.options;
        // What is known of the use of an object would be known of all uses of the number.
        let may_share = maxmemory == 0 || !policy.measures_use();
        let count = if is_shared && may_share { SHARED } else { 1 };
        context.reply.integer(count);
    }
    Ok(())
}

pub fn idletime(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if let Some(found) = find(context, request) {
        if context.store.options.maxmemory_policy.is_lfu() {
            return Err(NO_LRU);
        }
        let now_ms = context.now_ms();
        let idle_s = context.db().idle_s(found, now_ms);
        context.reply.integer(idle_s.into());
    }
    Ok(())
}

pub fn freq(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if let Some(found) = find(context, request) {
        if !context.store.options.maxmemory_policy.is_lfu() {
            return Err(NO_LFU);
        }
        let now_ms = context.now_ms();
        let frequency = context.db().frequency(found, now_ms);
        context.reply.integer(frequency.into());
    }
    Ok(())
}

const HELP: [&str; 11] = [
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the name of the form in which the value at <key> is stored.",
    "FREQ <key>",
    "    Return how often <key> is used, on a logarithmic scale. Only under an LFU maxmemory-policy.",
    "IDLETIME <key>",
    "    Return for how many seconds <key> has not been used.",
    "REFCOUNT <key>",
    "    Return the number of references to the value at <key>.",
    "HELP",
    "    Print this help.",
];

pub fn help(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help_lines(context, &HELP)
}
