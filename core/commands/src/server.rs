//! The server as a whole: configuration, figures, databases, the end.

use crate::{
    Context, Error, Outcome, Store,
    args::{int, is, lower_case},
    command_command, debug,
    documentation::{self, Documentation},
    info, latency, memory,
    options::{self, OPTIONS, OptionError, OptionSpec, Options, Property},
    slowlog,
    store::Stats,
    table::{Categories, Command, Flags, Group, Tips},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::Request;

/// The version of Redis whose commands and replies these are.
pub const REDIS_VERSION: &str = "7.2.4";

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);
const ADMIN: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(ANY_TIME);
const ROW: Command = Command { group: Group::Server, ..Command::ROW };
const WHOLE_KEYSPACE: Categories = Categories::KEYSPACE.union(Categories::DANGEROUS);

pub static COMMANDS: &[Command] = &[
    Command {
        name: "command",
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
        arity: -1,
        flags: ANY_TIME,
        categories: Categories::CONNECTION,
        handler: Some(command_command::all_commands),
        subcommands: command_command::SUBCOMMANDS,
        ..ROW
    },
    Command { name: "config", arity: -2, subcommands: CONFIG, ..ROW },
    Command {
        name: "dbsize",
        tips: Tips::ALL_SHARDS.union(Tips::AGG_SUM),
        arity: 1,
        flags: Flags::READONLY.union(Flags::FAST),
        categories: Categories::KEYSPACE,
        handler: Some(dbsize),
        ..ROW
    },
    Command { name: "debug", arity: -2, flags: ADMIN, handler: Some(debug::debug), ..ROW },
    Command {
        name: "flushall",
        tips: Tips::ALL_SHARDS.union(Tips::ALL_SUCCEEDED),
        arity: -1,
        flags: Flags::WRITE,
        categories: WHOLE_KEYSPACE,
        handler: Some(flushall),
        ..ROW
    },
    Command {
        name: "flushdb",
        tips: Tips::ALL_SHARDS.union(Tips::ALL_SUCCEEDED),
        arity: -1,
        flags: Flags::WRITE,
        categories: WHOLE_KEYSPACE,
        handler: Some(flushdb),
        ..ROW
    },
    Command {
        name: "info",
        tips: Tips::NONDETERMINISTIC_OUTPUT.union(Tips::ALL_SHARDS).union(Tips::SPECIAL_RESPONSE),
        arity: -1,
        flags: ANY_TIME,
        categories: Categories::DANGEROUS,
        handler: Some(info::info),
        ..ROW
    },
    Command { name: "latency", arity: -2, subcommands: latency::SUBCOMMANDS, ..ROW },
    Command { name: "lolwut", arity: -1, flags: Flags::READONLY.union(Flags::FAST), handler: Some(lolwut), ..ROW },
    Command { name: "memory", arity: -2, subcommands: memory::SUBCOMMANDS, ..ROW },
    Command { name: "monitor", arity: 1, flags: ADMIN, handler: Some(|context, _| context.monitor()), ..ROW },
    Command {
        name: "role",
        arity: 1,
        flags: Flags::NOSCRIPT.union(ANY_TIME).union(Flags::FAST),
        categories: Categories::ADMIN.union(Categories::DANGEROUS),
        handler: Some(crate::replication::role),
        ..ROW
    },
    Command {
        name: "shutdown",
        arity: -1,
        flags: ADMIN.union(Flags::NO_MULTI).union(Flags::ALLOW_BUSY),
        handler: Some(crate::shutdown::shutdown),
        ..ROW
    },
    Command { name: "slowlog", arity: -2, subcommands: slowlog::SUBCOMMANDS, ..ROW },
    Command {
        name: "swapdb",
        arity: 3,
        flags: Flags::WRITE.union(Flags::FAST),
        categories: WHOLE_KEYSPACE,
        handler: Some(swapdb),
        ..ROW
    },
    Command {
        name: "time",
        tips: Tips::NONDETERMINISTIC_OUTPUT,
        arity: 1,
        flags: ANY_TIME.union(Flags::FAST),
        handler: Some(time),
        ..ROW
    },
];

static CONFIG: &[Command] = &[
    Command { name: "get", arity: -3, flags: ADMIN, handler: Some(config_get), ..ROW },
    ROW.help(config_help),
    Command { name: "resetstat", arity: 2, flags: ADMIN, handler: Some(config_resetstat), ..ROW },
    Command { name: "rewrite", arity: 2, flags: ADMIN, handler: Some(config_rewrite), ..ROW },
    Command {
        name: "set",
        tips: Tips::ALL_NODES.union(Tips::ALL_SUCCEEDED),
        arity: -4,
        flags: ADMIN,
        handler: Some(config_set),
        ..ROW
    },
];

/// Writes a container's help: a line for each subcommand and one for what it does.
pub fn help(context: &mut Context<'_>, container: &str, subcommands: &[Command]) -> Outcome {
    let text = documentation::text()?;
    let documentation = Documentation::new(&text)?;
    let reply = &mut context.reply;
    reply.array(subcommands.len() * 2 + 1);
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    let prefix = container.to_ascii_lowercase();
    for sub in subcommands {
        reply.simple(&sub.name.to_ascii_uppercase());
        reply.simple(&format!("    {}", documentation.of(&format!("{prefix}|{}", sub.name)).summary));
    }
    Ok(())
}

/// Writes the help of a container whose subcommands have arguments of their own.
pub fn help_lines(context: &mut Context<'_>, lines: &[&str]) -> Outcome {
    context.reply.array(lines.len());
    lines.iter().for_each(|line| context.reply.simple(line));
    Ok(())
}

fn dbsize(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let len = context.db().len();
    context.reply.integer(len as i64);
    Ok(())
}

/// The error for a known subcommand that is used in a wrong way.
pub fn unknown_use(request: Request<'_>, container: &str) -> Error {
    let after = format!("'. Try {container} HELP.");
    Error::showing("ERR unknown subcommand or wrong number of arguments for '", &request[1], &after)
}

/// Checks the one option of the flushing commands. In both ways the keys are gone at once, and their memory
/// comes back bit by bit.
fn check_flush_option(request: Request<'_>) -> Outcome {
    match (request.len(), request.get(1)) {
        (1, _) => Ok(()),
        (2, Some(how)) if is(how, "async") || is(how, "sync") => Ok(()),
        _ => Err(Error::SYNTAX),
    }
}

fn flushdb(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    check_flush_option(request)?;
    let db = context.db_index();
    context.store.flush(db);
    context.store.invalidate_all();
    context.reply.ok();
    Ok(())
}

fn flushall(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    check_flush_option(request)?;
    context.store.flush_all();
    context.store.save_flush();
    context.reply.ok();
    Ok(())
}

fn swapdb(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.store.refuse_in_cluster("SWAPDB is not allowed in cluster mode")?;
    let first = int(&request[1]).map_err(|_| Error::text("ERR invalid first DB index"))?;
    let second = int(&request[2]).map_err(|_| Error::text("ERR invalid second DB index"))?;
    let index =
        |number: i32| usize::try_from(number).ok().filter(|&n| n < context.store.dbs.len()).ok_or(Error::DB_INDEX);
    let (first, second) = (index(first)?, index(second)?);
    context.store.swap(first, second);
    context.reply.ok();
    Ok(())
}

fn time(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let unix_us = context.store.now.unix_us;
    context.reply.array(2);
    context.reply.bulk(format!("{}", unix_us / 1_000_000).as_bytes());
    context.reply.bulk(format!("{}", unix_us % 1_000_000).as_bytes());
    Ok(())
}

fn lolwut(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let mut art = String::new();
    for row in 0..8 {
        for column in 0..32 {
            // A ridge line whose height is drawn anew each time.
            let height = context.store.rng.u32(..8);
            art.push(if height >= 7 - row { if column % 7 == row % 7 { '*' } else { '#' } } else { ' ' });
        }
        art.push('\n');
    }
    art.push_str(&format!("Kayvee {}, Redis ver. {REDIS_VERSION}\n", env!("CARGO_PKG_VERSION")));
    context.reply.verbatim(b"txt", art.as_bytes());
    Ok(())
}

fn config_get(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let is_pattern = |name: &[u8]| name.iter().any(|b| b"*?[".contains(b));
    let mut found: Vec<(&[u8], &OptionSpec)> = Vec::new();
    // Names that are written in different ways count as different ones.
    let most = (OPTIONS.len() * 2).saturating_add(request.len());
    found.try_reserve_exact(most).map_err(|_| Error::OUT_OF_MEMORY)?;
    for asked in request.from(2) {
        if !is_pattern(asked) {
            // A name that is no pattern comes back as it was written.
            if let Some(spec) = OptionSpec::find(asked).filter(|_| found.iter().all(|(name, _)| *name != asked)) {
                found.push((asked, spec));
            }
            continue;
        }
        let pattern = lower_case(asked)?;
        for spec in OPTIONS.iter().filter(|spec| !spec.has(Property::Hidden)) {
            for name in core::iter::once(spec.name).chain(spec.alias).map(str::as_bytes) {
                if crate::glob::matches(&pattern, name) && found.iter().all(|(known, _)| *known != name) {
                    found.push((name, spec));
                }
            }
        }
    }
    context.reply.map(found.len());
    for (name, spec) in found {
        context.reply.bulk(name);
        context.reply.bulk(&spec.get(&context.store.options));
    }
    Ok(())
}

fn config_set(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if !request.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    let is_local = context.session().is_local();
    let store = &mut *context.store;
    let pairs = || (2..request.len()).step_by(2).map(|at| (&request[at], &request[at + 1]));
    let failed = |name: &[u8], reason: &str| -> Error {
        let reason = format!("') - {reason}");
        Error::showing("ERR CONFIG SET failed (possibly related to argument '", name, &reason)
    };
    let mut specs: Vec<&OptionSpec> = Vec::new();
    for (name, _) in pairs() {
        let Some(spec) = OptionSpec::find(name) else {
            if options::is_of_tls(name) {
                return Err(failed(name, options::NO_TLS));
            }
            return Err(Error::showing("ERR Unknown option or number of arguments for CONFIG SET - '", name, "'"));
        };
        if spec.has(Property::AtStart) {
            return Err(failed(name, "can't set immutable config"));
        }
        if spec.has(Property::Protected) && !store.options.enable_protected_configs.permits(is_local) {
            return Err(failed(name, "can't set protected config"));
        }
        if specs.iter().any(|known| core::ptr::eq(*known, spec)) {
            return Err(failed(name, "duplicate parameter"));
        }
        specs.push(spec);
    }
    let mut options = store.options.clone();
    for (spec, (_, value)) in specs.iter().zip(pairs()) {
        spec.set(&mut options, value).map_err(|reason| failed(spec.name.as_bytes(), &reason))?;
    }
    if options.appendonly && !store.options.appendonly {
        store.need_log(&options.dir).map_err(|reason| failed(b"appendonly", &reason))?;
    }
    check_clients(store, &options)
        .and_then(|()| store.environment.host.apply(&store.options, &mut options))
        .map_err(|error| failed(error.name.as_bytes(), &error.reason))?;
    log::set_max_level(options.loglevel.filter());
    if options.requirepass != store.options.requirepass {
        store.set_default_password(&options.requirepass);
    }
    let shrinks = options.maxmemory != 0 && options.maxmemory != store.options.maxmemory;
    let was_logging = store.options.appendonly;
    store.options = options;
    store.apply_log_options(was_logging);
    store.apply_use_policy();
    if shrinks && store.is_full() {
        // The turn's end makes room: nobody has to send a command for that.
        store.eviction_since_ns.get_or_insert(store.now.monotonic_ns);
    }
    context.reply.ok();
    Ok(())
}

/// Refuses more clients than a network of our own can serve, whose limits are fixed at its start.
fn check_clients(store: &Store, options: &Options) -> Result<(), OptionError> {
    if options.maxclients > store.options.maxclients && options.maxclients > store.most_clients {
        return Err(OptionError::too_many_clients(store.most_clients));
    }
    Ok(())
}

fn config_resetstat(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let (peak_bytes, freed_values_before) = (context.store.stats.peak_bytes, context.store.freed_values());
    context.store.stats = Stats { peak_bytes, freed_values_before, ..Stats::default() };
    context.store.end_timing();
    context.store.calls.clear();
    context.reply.ok();
    Ok(())
}

fn config_rewrite(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    rewrite_config(context, false)
}

/// Writes the options in force to the configuration file; with `everything`, those at their defaults as well.
pub fn rewrite_config(context: &mut Context<'_>, everything: bool) -> Outcome {
    let host = context.store.environment.host;
    let Some(path) = host.config_file() else {
        return Err(Error::text("ERR The server is running without a config file"));
    };
    // Who has removed the file wants a new one.
    let old = host.read_file(path).unwrap_or_default();
    let mut now = context.store.options.clone();
    if now.aclfile.is_empty() {
        now.users = context.store.acl.definitions();
    }
    let new = options::rewritten(&old, &now, everything);
    if let Err(why) = host.write_file(path, &new) {
        log::warn!("CONFIG REWRITE failed: {why}");
        return Err(format!("ERR Rewriting config file: {why}").into());
    }
    log::warn!("CONFIG REWRITE executed with success.");
    context.reply.ok();
    Ok(())
}

fn config_help(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "CONFIG", CONFIG)
}
