//! `CLUSTER`: the cluster, told to clients and tools.

use super::{Cluster, SLOTS, Shard, slot_of};
use crate::{
    Context, Error, Outcome, args,
    server::help,
    table::{Categories, Command, Flags, Group, Tips},
    text::Text,
};
use alloc::vec::Vec;
use core::fmt::Write;
use kayvee_resp::Request;

const LOOKS: Flags = Flags::ADMIN.union(Flags::STALE);
const CHANGES: Flags = LOOKS.union(Flags::NO_ASYNC_LOADING);
const RESETS: Flags = LOOKS.union(Flags::NOSCRIPT);
const CLIENT: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::FAST);
const CLIENT_ROW: Command = Command { arity: 1, flags: CLIENT, categories: Categories::CONNECTION, ..ROW };
/// Most change who has which slots, or take part in agreeing on it.
const ROW: Command = Command { group: Group::Cluster, handler: Some(fixed), ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "asking", flags: Flags::FAST, handler: Some(agree), ..CLIENT_ROW },
    Command { name: "cluster", arity: -2, handler: None, subcommands: SUBCOMMANDS, ..ROW },
    Command { name: "readonly", handler: Some(agree), ..CLIENT_ROW },
    Command { name: "readwrite", handler: Some(agree), ..CLIENT_ROW },
];

const fn sub(name: &'static str, arity: i16, flags: Flags) -> Command {
    Command { name, arity, flags, ..ROW }
}

/// One that tells something.
const fn tells(command: Command, handler: crate::table::Handler) -> Command {
    Command { handler: Some(handler), ..command }
}

/// One whose replies differ from time to time.
const fn varying(command: Command) -> Command {
    Command { tips: Tips::NONDETERMINISTIC_OUTPUT, ..command }
}

static SUBCOMMANDS: &[Command] = &[
    sub("addslots", -3, CHANGES),
    sub("addslotsrange", -4, CHANGES),
    varying(sub("bumpepoch", 2, CHANGES)),
    varying(tells(sub("count-failure-reports", 3, LOOKS), count_failure_reports)),
    tells(sub("countkeysinslot", 3, Flags::STALE), count_keys_in_slot),
    tells(sub("deliver", 4, CHANGES), deliver),
    sub("delslots", -3, CHANGES),
    sub("delslotsrange", -4, CHANGES),
    sub("failover", -2, CHANGES),
    sub("flushslots", 2, CHANGES),
    sub("forget", 3, CHANGES),
    varying(tells(sub("getkeysinslot", 4, Flags::STALE), get_keys_in_slot)),
    ROW.help(help_text),
    varying(tells(sub("info", 2, Flags::STALE), info)),
    tells(sub("keyslot", 3, Flags::STALE), key_slot),
    varying(tells(sub("links", 2, Flags::STALE), links)),
    sub("meet", -4, CHANGES),
    tells(sub("myid", 2, Flags::STALE), my_id),
    varying(tells(sub("myshardid", 2, Flags::STALE), my_id)),
    varying(tells(sub("nodes", 2, Flags::STALE), nodes)),
    tells(sub("relay", 2, RESETS), relay),
    varying(tells(sub("replicas", 3, LOOKS), replicas)),
    sub("replicate", 3, CHANGES),
    sub("reset", -2, RESETS),
    sub("saveconfig", 2, CHANGES),
    sub("set-config-epoch", 3, CHANGES),
    sub("setslot", -4, CHANGES),
    varying(tells(sub("shards", 2, Flags::STALE), shards)),
    varying(tells(sub("slaves", 3, LOOKS), replicas)),
    varying(tells(sub("slots", 2, Flags::STALE), slots)),
];

/// The cluster, or the error for a store that is in none.
fn cluster_of<'a>(context: &'a Context<'_>) -> Result<&'a Cluster, Error> {
    const DISABLED: Error = Error::text("ERR This instance has cluster support disabled");
    context.store.cluster.as_deref().ok_or(DISABLED)
}

fn fixed(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    Err(Error::text(
        "ERR the shards of this cluster, and which slots they have, are given at the start (cluster-shards)",
    ))
}

fn agree(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    context.reply.ok();
    Ok(())
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    help(context, "CLUSTER", SUBCOMMANDS)
}

/// Kayvee's own: from now on the client is told whatever is published here, to carry it to other shards.
fn relay(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    let slot = context.slot;
    context.session().subscriptions.is_relay = true;
    if let Some(cluster) = context.store.cluster.as_deref_mut() {
        cluster.relays.insert(slot);
    }
    context.reply.ok();
    Ok(())
}

/// Kayvee's own: publishes what was published on another shard.
fn deliver(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    cluster_of(context)?;
    let receivers = crate::pubsub::publish_here(context, &request[2], &request[3]);
    context.reply.integer(receivers as i64);
    Ok(())
}

fn key_slot(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    cluster_of(context)?;
    context.reply.integer(slot_of(&request[2]).into());
    Ok(())
}

fn my_id(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let cluster = cluster_of(context)?;
    let id = cluster.shards[cluster.own].id.clone();
    context.reply.bulk(id.as_bytes());
    Ok(())
}

/// Checks that one of the shards is named.
fn known_shard(context: &Context<'_>, id: &[u8]) -> Outcome {
    match cluster_of(context)?.shards.iter().any(|shard| shard.id.as_bytes() == id) {
        true => Ok(()),
        false => Err(Error::showing("ERR Unknown node ", id, "")),
    }
}

fn replicas(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    known_shard(context, &request[2])?;
    context.reply.array(0);
    Ok(())
}

fn count_failure_reports(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    known_shard(context, &request[2])?;
    context.reply.integer(0);
    Ok(())
}

fn links(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    context.reply.array(0);
    Ok(())
}

fn info(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let cluster = cluster_of(context)?;
    let count = cluster.shards.len();
    let mut text = Text::default();
    let fields: [(&str, usize); 9] = [
        ("cluster_slots_assigned", SLOTS),
        ("cluster_slots_ok", SLOTS),
        ("cluster_slots_pfail", 0),
        ("cluster_slots_fail", 0),
        ("cluster_known_nodes", count),
        ("cluster_size", count),
        ("cluster_current_epoch", count),
        ("cluster_my_epoch", cluster.own + 1),
        ("total_cluster_links_buffer_limit_exceeded", 0),
    ];
    let _ = text.write_str("cluster_state:ok\r\n");
    fields.iter().for_each(|(field, value)| crate::info::line(&mut text, field, value));
    text.reply(&mut context.reply)
}

fn nodes(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let cluster = cluster_of(context)?;
    let mut text = Text::default();
    for (number, Shard { host, port, id }) in cluster.shards.iter().enumerate() {
        let own = if number == cluster.own { "myself," } else { "" };
        let slots = cluster.slots_of(number);
        // There is no bus between them, so it has no port.
        let _ = writeln!(
            text,
            "{id} {host}:{port}@0 {own}master - 0 0 {} connected {}-{}",
            number + 1,
            slots.start,
            slots.end - 1
        );
    }
    text.reply(&mut context.reply)
}

fn slots(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    let Context { store, reply, .. } = context;
    let Some(cluster) = store.cluster.as_deref() else { return Ok(()) };
    reply.array(cluster.shards.len());
    for (number, Shard { host, port, id }) in cluster.shards.iter().enumerate() {
        let slots = cluster.slots_of(number);
        reply.array(3);
        reply.integer(slots.start as i64);
        reply.integer(slots.end as i64 - 1);
        reply.array(4);
        reply.bulk(host.as_bytes());
        reply.integer((*port).into());
        reply.bulk(id.as_bytes());
        reply.array(0);
    }
    Ok(())
}

fn shards(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    cluster_of(context)?;
    let offset = context.store.effects.offset() as i64;
    let Context { store, reply, .. } = context;
    let Some(cluster) = store.cluster.as_deref() else { return Ok(()) };
    reply.array(cluster.shards.len());
    for (number, Shard { host, port, id }) in cluster.shards.iter().enumerate() {
        let slots = cluster.slots_of(number);
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(2);
        reply.integer(slots.start as i64);
        reply.integer(slots.end as i64 - 1);
        reply.bulk(b"nodes");
        reply.array(1);
        reply.map(7);
        let texts = [("id", id.as_str()), ("ip", host), ("endpoint", host), ("role", "master"), ("health", "online")];
        for (field, text) in texts {
            reply.bulk(field.as_bytes());
            reply.bulk(text.as_bytes());
        }
        let numbers =
            [("port", (*port).into()), ("replication-offset", if number == cluster.own { offset } else { 0 })];
        for (field, value) in numbers {
            reply.bulk(field.as_bytes());
            reply.integer(value);
        }
    }
    Ok(())
}

/// Calls `take` with the keys of a slot until it has had enough.
fn for_each_key_in(context: &mut Context<'_>, slot: &[u8], mut take: impl FnMut(&[u8]) -> bool) -> Outcome {
    const NO_SLOT: Error = Error::text("ERR Invalid slot");
    cluster_of(context)?;
    let slot = u16::try_from(args::integer(slot)?).ok().filter(|&slot| usize::from(slot) < SLOTS).ok_or(NO_SLOT)?;
    let now_ms = context.now_ms();
    let db = &mut context.store.dbs[0];
    let (mut cursor, mut is_enough) = (0, false);
    loop {
        cursor = db.scan(cursor, now_ms, |key, _| is_enough = is_enough || slot_of(key) == slot && take(key));
        if cursor == 0 || is_enough {
            return Ok(());
        }
    }
}

fn count_keys_in_slot(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let mut count = 0;
    for_each_key_in(context, &request[2], |_| {
        count += 1;
        false
    })?;
    context.reply.integer(count);
    Ok(())
}

fn get_keys_in_slot(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let most = args::positive(&request[3]).map_err(|_| Error::text("ERR Invalid number of keys"))?;
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut found = Ok(());
    for_each_key_in(context, &request[2], |key| {
        if (keys.len() as u64) < most && found.is_ok() {
            found = args::copied(key).and_then(|key| Ok(args::push(&mut keys, key)?));
        }
        found.is_err() || keys.len() as u64 >= most
    })?;
    found?;
    context.reply.array(keys.len());
    keys.iter().for_each(|key| context.reply.bulk(key));
    Ok(())
}
