//! `COMMAND` and its subcommands: the command table, told to clients.

use crate::{
    Context, Error, Outcome,
    args::{is, lower_case},
    arguments,
    documentation::{self, Documentation},
    server::help,
    table::{Begin, Categories, Command, Find, Flags, Group, KeyAt, Keys, Tips, all},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::{Request, Writer};

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);
const ROW: Command =
    Command { arity: -2, flags: ANY_TIME, categories: Categories::CONNECTION, group: Group::Server, ..Command::ROW };

pub static SUBCOMMANDS: &[Command] = &[
    Command { name: "count", arity: 2, handler: Some(count), ..ROW },
    Command { name: "docs", tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER, handler: Some(docs), ..ROW },
    Command { name: "getkeys", arity: -4, handler: Some(getkeys), ..ROW },
    Command { name: "getkeysandflags", arity: -4, handler: Some(getkeysandflags), ..ROW },
    ROW.help(help_text),
    Command { name: "info", tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER, handler: Some(info), ..ROW },
    Command { name: "list", tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER, handler: Some(list), ..ROW },
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
    help(context, "COMMAND", SUBCOMMANDS)
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
            None => context.reply.null(),
        }
    }
    Ok(())
}

fn describe(reply: &mut Writer<'_>, prefix: &str, command: &Command) {
    reply.array(10);
    reply.bulk(format!("{prefix}{}", command.name).as_bytes());
    reply.integer(command.arity.into());
    // Redis keeps this one to itself.
    names(reply, command.flags.names().filter(|name| *name != "may_replicate"));
    legacy_range(command).into_iter().for_each(|number| reply.integer(number));
    names(reply, command.all_categories().names());
    reply.set(command.tips.names().count());
    command.tips.names().for_each(|tip| reply.bulk(tip.as_bytes()));
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

/// The first key, the last one and the step between them, by the rows that are plain ranges: one range that spans them.
fn legacy_range(command: &Command) -> [i64; 3] {
    let mut all: Option<[i64; 3]> = None;
    for keys in command.keys {
        let (Begin::Index(first), Find::Range { last, step, limit: 0 }) = (keys.begin, keys.find) else { continue };
        let last = if last < 0 { last } else { first + last };
        let [first, last, step] = [first, last, step].map(i64::from);
        all = Some(match all {
            None => [first, last, step],
            Some([start, ..]) => [start.min(first), last, step],
        });
    }
    all.unwrap_or_default()
}

fn describe_keys(reply: &mut Writer<'_>, keys: &Keys) {
    reply.map(3);
    reply.bulk(b"flags");
    names(reply, keys.flags.names());
    reply.bulk(b"begin_search");
    match keys.begin {
        Begin::Index(at) => spec(reply, "index", &[("index", at)]),
        Begin::Keyword(word, from) => {
            reply.map(2);
            reply.bulk(b"type");
            reply.bulk(b"keyword");
            reply.bulk(b"spec");
            reply.map(2);
            reply.bulk(b"keyword");
            reply.bulk(word.as_bytes());
            reply.bulk(b"startfrom");
            reply.integer(from.into());
        }
        Begin::Unknown => spec(reply, "unknown", &[]),
    }
    reply.bulk(b"find_keys");
    match keys.find {
        Find::Range { last, step, limit } => {
            spec(reply, "range", &[("lastkey", last), ("keystep", step), ("limit", limit)]);
        }
        Find::Counted { at, first, step } => {
            spec(reply, "keynum", &[("keynumidx", at), ("firstkey", first), ("keystep", step)]);
        }
        Find::Unknown => spec(reply, "unknown", &[]),
    }
}

fn spec(reply: &mut Writer<'_>, kind: &str, numbers: &[(&str, i16)]) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind.as_bytes());
    reply.bulk(b"spec");
    reply.map(numbers.len());
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer((*number).into());
    }
}

fn docs(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let text = documentation::text()?;
    let documentation = Documentation::new(&text)?;
    if request.len() == 2 {
        context.reply.map(all().count());
        all().for_each(|command| document(&mut context.reply, &documentation, "", command));
        return Ok(());
    }
    let known = request.from(2).filter(|name| by_full_name(context, name).is_some()).count();
    context.reply.map(known);
    for name in request.from(2) {
        if let Some((prefix, command)) = by_full_name(context, name) {
            document(&mut context.reply, &documentation, &prefix, command);
        }
    }
    Ok(())
}

fn document(reply: &mut Writer<'_>, documentation: &Documentation<'_>, prefix: &str, command: &Command) {
    let full_name = format!("{prefix}{}", command.name);
    reply.bulk(full_name.as_bytes());
    let entry = documentation.of(&full_name);
    let deprecation = if entry.deprecated.is_some() { 3 } else { 0 };
    let optional = usize::from(entry.arguments.is_some()) + usize::from(!command.subcommands.is_empty());
    let pairs = 4 + deprecation + optional;
    reply.map(pairs);
    for (field, text) in [
        ("summary", entry.summary),
        ("since", entry.since),
        ("group", command.group.name()),
        ("complexity", entry.complexity),
    ] {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if let Some((since, replacement)) = entry.deprecated {
        reply.bulk(b"doc_flags");
        reply.set(1);
        reply.simple("deprecated");
        for (field, text) in [("deprecated_since", since), ("replaced_by", replacement)] {
            reply.bulk(field.as_bytes());
            reply.bulk(text.as_bytes());
        }
    }
    if let Some(arguments) = entry.arguments {
        reply.bulk(b"arguments");
        arguments::write(reply, arguments);
    }
    if !command.subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(command.subcommands.len());
        for sub in command.subcommands {
            document(reply, documentation, &format!("{}|", command.name), sub);
        }
    }
}

/// Which commands `COMMAND LIST` lists.
enum Chosen<'a> {
    All,
    None,
    InCategory(&'a [u8]),
    Matching(Vec<u8>),
}

impl Chosen<'_> {
    fn has(&self, name: &str, command: &Command) -> bool {
        match self {
            Chosen::All => true,
            Chosen::None => false,
            Chosen::InCategory(wanted) => {
                command.all_categories().names().any(|name| name.as_bytes()[1..].eq_ignore_ascii_case(wanted))
            }
            Chosen::Matching(pattern) => crate::glob::matches(pattern, name.as_bytes()),
        }
    }
}

fn list(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let chosen = match (request.len(), request.get(2), request.get(3)) {
        (2, ..) => Chosen::All,
        (5, Some(filterby), Some(kind)) if is(filterby, "filterby") => match kind {
            // There are no modules, so none has a command.
            _ if is(kind, "module") => Chosen::None,
            _ if is(kind, "aclcat") => Chosen::InCategory(&request[4]),
            _ if is(kind, "pattern") => Chosen::Matching(lower_case(&request[4])?),
            _ => return Err(Error::SYNTAX),
        },
        _ => return Err(Error::SYNTAX),
    };
    // One by one: collecting them would take one large piece of memory.
    let for_each_chosen = |take: &mut dyn FnMut(&str)| {
        for command in all() {
            if chosen.has(command.name, command) {
                take(command.name);
            }
            for sub in command.subcommands {
                let name = format!("{}|{}", command.name, sub.name);
                if chosen.has(&name, sub) {
                    take(&name);
                }
            }
        }
    };
    let mut count = 0;
    for_each_chosen(&mut |_| count += 1);
    context.reply.array(count);
    for_each_chosen(&mut |name| context.reply.bulk(name.as_bytes()));
    Ok(())
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
    if command.keys.is_empty() && command.find_keys.is_none() {
        return Err(Error::text("ERR The command has no key arguments"));
    }
    if !command.accepts(request.len() - 2) {
        return Err(Error::text("ERR Invalid number of arguments specified for command"));
    }
    Ok(command)
}

/// The places of that command's keys in what follows the first two arguments.
fn inner_keys(command: &'static Command, inner: Request<'_>) -> Result<Vec<KeyAt>, Error> {
    command.keys_in(inner).ok_or(Error::text("ERR Invalid arguments specified for command"))
}

fn getkeys(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let command = inner_command(context, request)?;
    let inner = request.skip(2);
    let keys = inner_keys(command, inner)?;
    context.reply.array(keys.len());
    keys.iter().for_each(|(at, _)| context.reply.bulk(&inner[*at]));
    Ok(())
}

fn getkeysandflags(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let command = inner_command(context, request)?;
    let inner = request.skip(2);
    let keys = inner_keys(command, inner)?;
    context.reply.array(keys.len());
    for (at, flags) in keys {
        context.reply.array(2);
        context.reply.bulk(&inner[at]);
        names(&mut context.reply, flags.names());
    }
    Ok(())
}
