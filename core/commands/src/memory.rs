//! `MEMORY`: where the bytes are.

use crate::{
    Context, Error, Outcome, Session, Store,
    args::{integer, is},
    server::help,
    table::{Command, Flags, Group, KeyFlags, Keys, Tips},
    text::Text,
};
use alloc::{format, string::String};
use core::fmt::Write;
use kayvee_resp::Request;

const ROW: Command = Command { group: Group::Server, ..Command::ROW };

pub static SUBCOMMANDS: &[Command] = &[
    Command {
        name: "doctor",
        arity: 2,
        tips: Tips::NONDETERMINISTIC_OUTPUT.union(Tips::ALL_SHARDS).union(Tips::SPECIAL_RESPONSE),
        handler: Some(doctor),
        ..ROW
    },
    ROW.help(help_text),
    Command {
        name: "malloc-stats",
        arity: 2,
        tips: Tips::NONDETERMINISTIC_OUTPUT.union(Tips::ALL_SHARDS).union(Tips::SPECIAL_RESPONSE),
        handler: Some(malloc_stats),
        ..ROW
    },
    Command { name: "purge", arity: 2, tips: Tips::ALL_SHARDS.union(Tips::ALL_SUCCEEDED), handler: Some(purge), ..ROW },
    Command {
        name: "stats",
        arity: 2,
        tips: Tips::NONDETERMINISTIC_OUTPUT.union(Tips::ALL_SHARDS).union(Tips::SPECIAL_RESPONSE),
        handler: Some(stats),
        ..ROW
    },
    Command {
        name: "usage",
        arity: -3,
        flags: Flags::READONLY,
        keys: &[Keys::one(2, KeyFlags::RO)],
        handler: Some(usage),
        ..ROW
    },
];

/// What memory is used for, in bytes.
pub struct Figures {
    pub used: u64,
    pub peak: u64,
    pub resident: u64,
    pub startup: u64,
    /// The buffers of all clients, and those of replicas among them.
    pub clients: u64,
    pub replicas: u64,
    /// All that is no data: clients, indexes, and the network's buffers.
    pub overhead: u64,
    pub dataset: u64,
    pub keys: u64,
}

impl Figures {
    /// Those of this moment.
    pub fn of(store: &Store) -> Figures {
        let heap = store.environment.heap;
        let used = store.used_bytes();
        // What is kept for replicas alone is theirs, as long as there are any.
        let excess = if store.replicas.is_empty() { 0 } else { store.replica_excess_bytes() };
        let clients = store.all_sessions().map(Session::memory_bytes).sum::<usize>() as u64 + excess;
        let indexes = store.dbs.iter().map(|db| db.overhead_bytes() - db.free_bytes()).sum::<usize>() as u64;
        let buffers = store.replication.backlog_bytes() + store.network_buffers_bytes;
        let overhead = store.startup_bytes + clients + indexes + buffers - excess;
        Figures {
            used,
            peak: store.stats.peak_bytes.max(used),
            resident: heap.resident_bytes(),
            startup: store.startup_bytes,
            clients,
            replicas: store.each_replica_session().map(Session::memory_bytes).sum::<usize>() as u64 + excess,
            overhead,
            dataset: used.saturating_sub(overhead),
            keys: store.all_keys() as u64,
        }
    }

    /// The share of the data in what came since the start.
    pub fn dataset_percent(&self) -> f64 {
        percent(self.dataset, self.used.saturating_sub(self.startup)).min(100.0)
    }

    /// What the system has given for each byte that is used.
    pub fn fragmentation(&self) -> f64 {
        self.resident as f64 / self.used.max(1) as f64
    }
}

/// How many percent of `whole` a part is.
pub fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn doctor(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    const SMALL_BYTES: u64 = 5 << 20;
    const MUCH_PER_CLIENT_BYTES: u64 = 200 << 10;
    let figures = Figures::of(context.store);
    let store = &*context.store;
    let mut text = Text::default();
    // What finds no memory fails the whole text.
    if figures.used < SMALL_BYTES {
        let _ = writeln!(text, "There is so little data that its figures say nothing. Ask again when there is more.");
        return text.reply(&mut context.reply);
    }
    let mut is_fine = true;
    let mut advise = |advice: String| {
        is_fine = false;
        let _ = writeln!(text, "* {advice}");
    };
    if figures.peak > figures.used / 2 * 3 {
        advise(format!(
            "There was a peak: {} bytes were used once, {} are now. What the system has given since may stay with the \
             process for a while.",
            figures.peak, figures.used
        ));
    }
    if figures.fragmentation() > 1.4 && figures.resident - figures.used > 10 << 20 {
        advise(format!(
            "The system has given {:.2} times the bytes that are used: after many changes of sizes the allocator has \
             gaps. They are filled with new data; a restart closes them.",
            figures.fragmentation()
        ));
    }
    let clients = store.clients.max(1) as u64;
    if figures.clients / clients > MUCH_PER_CLIENT_BYTES {
        advise(format!(
            "Clients take {} bytes each on average: some do not read their replies, or send large requests. CLIENT LIST \
             shows which; client-output-buffer-limit and maxmemory-clients bound them.",
            figures.clients / clients
        ));
    }
    if let Some(limit) = store.memory_limit_bytes()
        && figures.used > limit / 10 * 9
    {
        advise(format!("{} of {limit} bytes are used: little is left.", figures.used));
    }
    if is_fine {
        let _ = writeln!(text, "Nothing is amiss.");
    }
    text.reply(&mut context.reply)
}

fn malloc_stats(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let heap = context.store.environment.heap;
    let mut text = Text::default();
    // What finds no memory fails the whole text.
    let _ = writeln!(text, "allocator: {}", heap.allocator());
    let _ = writeln!(text, "allocated: {}", heap.used_bytes());
    let _ = writeln!(text, "resident: {}", heap.resident_bytes());
    if let Some(limit) = heap.limit_bytes() {
        let _ = writeln!(text, "limit: {limit}");
    }
    text.reply(&mut context.reply)
}

/// Nothing is kept back that could be given: the allocator returns large pieces as they become free.
fn purge(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    context.reply.ok();
    Ok(())
}

fn stats(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let figures = Figures::of(context.store);
    let Context { store, reply, .. } = context;
    let dbs = || store.dbs.iter().enumerate().filter(|(_, db)| !db.is_empty());
    let bytes_per_key = figures.used.saturating_sub(figures.startup).checked_div(figures.keys).unwrap_or(0);
    let numbers = [
        ("peak.allocated", figures.peak),
        ("total.allocated", figures.used),
        ("startup.allocated", figures.startup),
        ("replication.backlog", store.replication.backlog_bytes() - store.replica_excess_bytes()),
        ("clients.slaves", figures.replicas),
        ("clients.normal", figures.clients - figures.replicas),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("overhead.total", figures.overhead),
        ("keys.count", figures.keys),
        ("keys.bytes-per-key", bytes_per_key),
        ("dataset.bytes", figures.dataset),
        ("allocator.allocated", figures.used),
        ("allocator.active", figures.resident),
        ("allocator.resident", figures.resident),
        ("fragmentation.bytes", figures.resident.saturating_sub(figures.used)),
    ];
    let shares = [
        ("dataset.percentage", figures.dataset_percent()),
        ("peak.percentage", percent(figures.used, figures.peak)),
        ("fragmentation", figures.fragmentation()),
    ];
    reply.map(numbers.len() + shares.len() + dbs().count());
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(number as i64);
    }
    for (name, share) in shares {
        reply.bulk(name.as_bytes());
        reply.double(&format!("{share}"));
    }
    for (index, db) in dbs() {
        reply.bulk(format!("db.{index}").as_bytes());
        reply.map(1);
        reply.bulk(b"overhead.hashtable.main");
        reply.integer(db.overhead_bytes() as i64);
    }
    Ok(())
}

fn usage(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(3)) {
        (3, _) => {}
        // The number of samples matters for collections only.
        (5, Some(word)) if is(word, "samples") => {
            if integer(&request[4])? < 0 {
                return Err(Error::SYNTAX);
            }
        }
        _ => return Err(Error::SYNTAX),
    }
    match context.find(&request[2]) {
        Some(found) => {
            let bytes = context.db().bytes_of(found);
            context.reply.integer(bytes as i64);
        }
        None => context.reply.null(),
    }
    Ok(())
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "MEMORY", SUBCOMMANDS)
}
