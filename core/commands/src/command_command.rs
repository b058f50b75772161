//! `COMMAND` and its subcommands: the command table, told to clients.

use crate::{
    Context, Error, Outcome,
    args::{is, lower_case},
    server::help,
    table::{Categories, Command, Flags, KeyFlags, Keys, all},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::{Request, Writer};

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);
const PER_COMMAND: &str = "O(N) where N is the number of commands asked for";
const ROW: Command = Command {
    arity: -2,
    flags: ANY_TIME,
    categories: Categories::CONNECTION,
    group: "server",
    since: "7.0.0",
    complexity: PER_COMMAND,
    ..Command::ROW
};

pub static SUBCOMMANDS: &[Command] = &[
    Command {
        name: "count",
        arity: 2,
        since: "2.8.13",
        complexity: "O(1)",
        summary: "Returns the number of commands.",
        handler: Some(count),
        ..ROW
    },
    Command {
        name: "docs",
        tips: &["nondeterministic_output_order"],
        summary: "Documents commands.",
        handler: Some(docs),
        ..ROW
    },
    Command {
        name: "getkeys",
        arity: -4,
        since: "2.8.13",
        complexity: "O(N) where N is the number of arguments",
        summary: "Picks the keys out of a command.",
        handler: Some(getkeys),
        ..ROW
    },
    Command {
        name: "getkeysandflags",
        arity: -4,
        complexity: "O(N) where N is the number of arguments",
        summary: "Picks the keys out of a command and says what happens to them.",
        handler: Some(getkeysandflags),
        ..ROW
    },
    Command {
        name: "help",
        arity: 2,
        since: "5.0.0",
        complexity: "O(1)",
        summary: "Explains the subcommands.",
        handler: Some(help_text),
        ..ROW
    },
    Command {
        name: "info",
        tips: &["nondeterministic_output_order"],
        since: "2.8.13",
        summary: "Describes commands.",
        handler: Some(info),
        ..ROW
    },
    Command {
        name: "list",
        tips: &["nondeterministic_output_order"],
        summary: "Lists the names of commands.",
        handler: Some(list),
        ..ROW
    },
];

pub fn all_commands(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    context.reply.array(all().count());
    all().for_each(|command| describe(&mut context.reply, "", command));
    Ok(())
}

fn count(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    context.reply.integer(all().count() as i64);
    Ok(())
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "COMMAND", SUBCOMMANDS);
    Ok(())
}

/// Finds a command, or a subcommand by `container|sub`; with the container's name and a bar in front, if any.
fn by_full_name(context: &Context<'_>, name: &[u8]) -> Option<(String, &'static Command)> {
    let mut parts = name.splitn(2, |&b| b == b'|');
    let container = context.store.commands.find(parts.next()?)?;
    match parts.next() {
        None => Some((String::new(), container)),
        Some(sub) => {
            let sub =
                container.subcommands.iter().find(|candidate| candidate.name.as_bytes().eq_ignore_ascii_case(sub))?;
            Some((format!("{}|", container.name), sub))
        }
    }
}

fn info(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.len() == 2 {
        return all_commands(context, request);
    }
    context.reply.array(request.len() - 2);
    for name in request.from(2) {
        match by_full_name(context, name) {
            Some((prefix, command)) => describe(&mut context.reply, &prefix, command),
            None => context.reply.null_array(),
        }
    }
    Ok(())
}

fn describe(reply: &mut Writer<'_>, prefix: &str, command: &Command) {
    reply.array(10);
    reply.bulk(format!("{prefix}{}", command.name).as_bytes());
    reply.integer(command.arity.into());
    names(reply, command.flags.names());
    // Where several rows are needed, the range spans them all.
    let (first, last) = (command.keys.first(), command.keys.last());
    reply.integer(first.map_or(0, |keys| keys.first).into());
    reply.integer(last.map_or(0, |keys| keys.last).into());
    reply.integer(first.map_or(0, |keys| keys.step).into());
    names(reply, command.all_categories().names());
    reply.set(command.tips.len());
    command.tips.iter().for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.array(command.keys.len());
    command.keys.iter().for_each(|keys| describe_keys(reply, keys));
    reply.array(command.subcommands.len());
    for sub in command.subcommands {
        describe(reply, &format!("{}|", command.name), sub);
    }
}

fn names(reply: &mut Writer<'_>, names: impl Iterator<Item = &'static str> + Clone) {
    reply.set(names.clone().count());
    names.for_each(|name| reply.simple(name));
}

fn describe_keys(reply: &mut Writer<'_>, keys: &Keys) {
    reply.map(3);
    reply.bulk(b"flags");
    names(reply, keys.flags.names());
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(keys.first.into());
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    reply.bulk(b"lastkey");
    // Relative to the first key, unless it counts from the end.
    reply.integer(if keys.last < 0 { keys.last } else { keys.last - keys.first }.into());
    reply.bulk(b"keystep");
    reply.integer(keys.step.into());
    reply.bulk(b"limit");
    reply.integer(0);
}

fn docs(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.len() == 2 {
        context.reply.map(all().count());
        all().for_each(|command| document(&mut context.reply, "", command));
        return Ok(());
    }
    let known = request.from(2).filter(|name| by_full_name(context, name).is_some()).count();
    context.reply.map(known);
    for name in request.from(2) {
        if let Some((prefix, command)) = by_full_name(context, name) {
            document(&mut context.reply, &prefix, command);
        }
    }
    Ok(())
}

fn document(reply: &mut Writer<'_>, prefix: &str, command: &Command) {
    reply.bulk(format!("{prefix}{}", command.name).as_bytes());
    let pairs = 4 + if command.deprecated.is_some() { 3 } else { 0 } + usize::from(!command.subcommands.is_empty());
    reply.map(pairs);
    for (field, text) in [
        ("summary", command.summary),
        ("since", command.since),
        ("group", command.group),
        ("complexity", command.complexity),
    ] {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if let Some((since, replacement)) = command.deprecated {
        reply.bulk(b"doc_flags");
        reply.set(1);
        reply.simple("deprecated");
        for (field, text) in [("deprecated_since", since), ("replaced_by", replacement)] {
            reply.bulk(field.as_bytes());
            reply.bulk(text.as_bytes());
        }
    }
    if !command.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        for sub in command.subcommands {
            document(reply, &format!("{}|", command.name), sub);
        }
    }
}

fn list(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let chosen: Vec<&Command> = match (request.len(), request.get(2), request.get(3)) {
        (2, ..) => all().collect(),
        (5, Some(filterby), Some(kind)) if is(filterby, "filterby") => {
            let value = &request[4];
            match kind {
                // There are no modules, so none has a command.
                _ if is(kind, "module") => Vec::new(),
                _ if is(kind, "aclcat") => {
                    let in_category = |c: &&Command| {
                        c.all_categories().names().any(|name| name.as_bytes()[1..].eq_ignore_ascii_case(value))
                    };
                    all().filter(in_category).collect()
                }
                _ if is(kind, "pattern") => return list_matching(context, value),
                _ => return Err(Error::SYNTAX),
            }
        }
        _ => return Err(Error::SYNTAX),
    };
    context.reply.array(chosen.len());
    chosen.iter().for_each(|command| context.reply.bulk(command.name.as_bytes()));
    Ok(())
}

/// Lists the commands and subcommands whose full names match a pattern.
fn list_matching(context: &mut Context<'_>, pattern: &[u8]) -> Outcome {
    let pattern = lower_case(pattern)?;
    let subcommands =
        |command: &'static Command| command.subcommands.iter().map(move |sub| format!("{}|{}", command.name, sub.name));
    let matching = || {
        let names = all().flat_map(|command| core::iter::once(command.name.into()).chain(subcommands(command)));
        names.filter(|name: &String| crate::glob::matches(&pattern, name.as_bytes()))
    };
    context.reply.array(matching().count());
    matching().for_each(|name| context.reply.bulk(name.as_bytes()));
    Ok(())
}

/// The positions of the keys in a request, with what happens to each.
pub fn keys_of(command: &Command, len: usize) -> impl Iterator<Item = (usize, KeyFlags)> {
    command.keys.iter().flat_map(move |keys| {
        let last = if keys.last < 0 { len as i64 + i64::from(keys.last) } else { i64::from(keys.last) };
        let last = last.min(len as i64 - 1);
        let positions = i64::from(keys.first)..=last;
        positions.step_by(keys.step.max(1) as usize).map(|at| (at as usize, keys.flags))
    })
}

/// The command that stands in a request's arguments from 2 on, if it has keys.
fn inner_command(context: &Context<'_>, request: Request<'_>) -> Result<&'static Command, Error> {
    const INVALID: Error = Error::text("ERR Invalid command specified");
    let container = request.get(2).and_then(|name| context.store.commands.find(name)).ok_or(INVALID)?;
    let command = match request.get(3) {
        Some(name) if !container.subcommands.is_empty() => {
            container.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name)).ok_or(INVALID)?
        }
        _ => container,
    };
    if command.keys.is_empty() {
        return Err(Error::text("ERR The command has no key arguments"));
    }
    if !command.accepts(request.len() - 2) {
        return Err(Error::text("ERR Invalid number of arguments specified for command"));
    }
    Ok(command)
}

/// The positions of that command's keys in the request, with what this very command does with them where its arguments
/// decide.
fn inner_keys(command: &'static Command, request: Request<'_>) -> impl Iterator<Item = (usize, KeyFlags)> {
    let decided = match command.name {
        "set" if request.from(5).any(|arg| is(arg, "get")) => Some(KeyFlags::RW | KeyFlags::ACCESS | KeyFlags::UPDATE),
        "set" => Some(KeyFlags::OW | KeyFlags::UPDATE),
        _ => None,
    };
    keys_of(command, request.len() - 2).map(move |(at, flags)| (at + 2, decided.unwrap_or(flags)))
}

fn getkeys(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let command = inner_command(context, request)?;
    context.reply.array(inner_keys(command, request).count());
    inner_keys(command, request).for_each(|(at, _)| context.reply.bulk(&request[at]));
    Ok(())
}

fn getkeysandflags(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let command = inner_command(context, request)?;
    context.reply.array(inner_keys(command, request).count());
    for (at, flags) in inner_keys(command, request) {
        context.reply.array(2);
        context.reply.bulk(&request[at]);
        names(&mut context.reply, flags.names());
    }
    Ok(())
}
