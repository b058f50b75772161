//! `FUNCTION`, `FCALL` and `FCALL_RO`.

use super::{
    eval::{checked_count, table_of},
    library::read_shebang,
    payload,
    run::{self, Call, Kind},
};
use crate::{
    Context, Error, Outcome, args, glob_matches,
    server::{help, unknown_use},
    table::{Categories, Command, Flags, Group, Tips},
    transactions::for_each_request,
};
use alloc::vec::Vec;
use kayvee_lua::Raise;
use kayvee_resp::Request;

const ROW: Command =
    Command { flags: Flags::NOSCRIPT, categories: Categories::SCRIPTING, group: Group::Scripting, ..Command::ROW };
const ALL: Tips = Tips::ALL_SHARDS.union(Tips::ALL_SUCCEEDED);

pub static FUNCTION_SUBCOMMANDS: &[Command] = &[
    Command {
        name: "delete",
        arity: 3,
        flags: Flags::NOSCRIPT.union(Flags::WRITE),
        tips: ALL,
        handler: Some(delete),
        ..ROW
    },
    Command { name: "dump", arity: 2, handler: Some(dump), ..ROW },
    Command {
        name: "flush",
        arity: -2,
        flags: Flags::NOSCRIPT.union(Flags::WRITE),
        tips: ALL,
        handler: Some(flush),
        ..ROW
    },
    ROW.help(help_text),
    Command {
        name: "kill",
        arity: 2,
        flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        tips: Tips::ALL_SHARDS.union(Tips::ONE_SUCCEEDED),
        handler: Some(kill),
        ..ROW
    },
    Command { name: "list", arity: -2, tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER, handler: Some(list), ..ROW },
    Command {
        name: "load",
        arity: -3,
        flags: Flags::NOSCRIPT.union(Flags::WRITE).union(Flags::DENYOOM),
        tips: ALL,
        handler: Some(load),
        ..ROW
    },
    Command {
        name: "restore",
        arity: -3,
        flags: Flags::NOSCRIPT.union(Flags::WRITE).union(Flags::DENYOOM),
        tips: ALL,
        handler: Some(restore),
        ..ROW
    },
    Command {
        name: "stats",
        arity: 2,
        flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        tips: Tips::NONDETERMINISTIC_OUTPUT.union(Tips::ALL_SHARDS).union(Tips::SPECIAL_RESPONSE),
        handler: Some(stats),
        ..ROW
    },
];

fn call(context: &mut Context<'_>, request: Request<'_>, is_readonly: bool) -> Outcome {
    let Some(function) = context.store.scripting.libraries.find(&request[1]) else {
        return Err(Error::text("ERR Function not found"));
    };
    let (name, pin, flags) = (function.name.clone(), function.pin, function.flags);
    let count = args::integer(&request[2]).map_err(|_| Error::text("ERR Bad number of keys provided"))?;
    let keys = checked_count(request, count)?;
    run::check_flags(context, flags, is_readonly)?;
    let mut machine = context.store.function_machine()?;
    let arguments = (|| -> Result<_, Raise> {
        let keys_table = table_of(&mut machine, request, 3, 3 + keys)?;
        Ok([keys_table, table_of(&mut machine, request, 3 + keys, request.len())?])
    })();
    let Ok(arguments) = arguments else {
        context.store.scripting.libraries.machine = Some(machine);
        return Err(Error::OUT_OF_MEMORY);
    };
    let function = machine.pinned(pin);
    let call = Call { kind: Kind::Function(name), machine, function, arguments: &arguments, flags, is_readonly };
    run::start(context, request, call)
}

pub(super) fn fcall(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    call(context, request, false)
}

pub(super) fn fcall_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    call(context, request, true)
}

fn load(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let last = request.len() - 1;
    let mut replace = false;
    for option in request.first(last).from(2) {
        if !args::is(option, "replace") {
            return Err(Error::showing("ERR Unknown option given: ", option, ""));
        }
        replace = true;
    }
    let name = context.store.load_library(&request[last], replace)?;
    context.store.changes += 1;
    context.reply.bulk(&name);
    Ok(())
}

fn delete(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if !context.store.scripting.libraries.remove(&request[2]) {
        return Err(Error::text("ERR Library not found"));
    }
    context.store.changes += 1;
    context.reply.ok();
    Ok(())
}

fn flush(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match request.get(2) {
        _ if request.len() > 3 => return Err(unknown_use(request, "FUNCTION")),
        None => {}
        Some(how) if args::is(how, "async") || args::is(how, "sync") => {}
        Some(_) => return Err(Error::text("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")),
    }
    context.store.scripting.libraries.clear();
    context.store.changes += 1;
    context.reply.ok();
    Ok(())
}

fn kill(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    run::kill(context.store, true)?;
    context.reply.ok();
    Ok(())
}

fn list(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (mut with_text, mut pattern) = (false, None);
    let mut words = request.from(2);
    while let Some(word) = words.next() {
        if args::is(word, "withcode") && !with_text {
            with_text = true;
        } else if args::is(word, "libraryname") && pattern.is_none() {
            pattern = Some(words.next().ok_or(Error::text("ERR library name argument was not given"))?);
        } else {
            return Err(Error::showing("ERR Unknown argument ", word, ""));
        }
    }
    let libraries = &context.store.scripting.libraries.by_name;
    let chosen: Vec<_> = libraries
        .iter()
        .filter(|(name, _)| {
            pattern.is_none_or(|pattern| glob_matches(&pattern.to_ascii_lowercase(), &name.to_ascii_lowercase()))
        })
        .collect();
    let reply = &mut context.reply;
    reply.array(chosen.len());
    for (name, library) in chosen {
        reply.map(if with_text { 4 } else { 3 });
        reply.bulk(b"library_name");
        reply.bulk(name);
        reply.bulk(b"engine");
        reply.bulk(b"LUA");
        reply.bulk(b"functions");
        reply.array(library.functions.len());
        for function in &library.functions {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(&function.name);
            reply.bulk(b"description");
            match &function.description {
                Some(description) => reply.bulk(description),
                None => reply.null(),
            }
            reply.bulk(b"flags");
            reply.set(function.flag_names.len());
            function.flag_names.iter().for_each(|name| reply.simple(name));
        }
        if with_text {
            reply.bulk(b"library_code");
            reply.bulk(&library.text);
        }
    }
    Ok(())
}

fn stats(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let (libraries, functions) = context.store.scripting.library_counts();
    let reply = &mut context.reply;
    reply.map(2);
    reply.bulk(b"running_script");
    match run::describe(context.store) {
        None => reply.null(),
        Some((name, request, duration_ms)) => {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(name);
            reply.bulk(b"command");
            for_each_request(request, |request| {
                reply.array(request.len());
                request.from(0).for_each(|word| reply.bulk(word));
            });
            reply.bulk(b"duration_ms");
            reply.integer(duration_ms as i64);
        }
    }
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.integer(libraries as i64);
    reply.bulk(b"functions_count");
    reply.integer(functions as i64);
    Ok(())
}

fn dump(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let texts = context.store.scripting.libraries.by_name.values().map(|library| library.text.as_slice());
    let payload = payload::write(texts)?;
    context.reply.bulk(&payload);
    Ok(())
}

fn restore(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.len() > 4 {
        return Err(unknown_use(request, "FUNCTION"));
    }
    let policy = match request.get(3) {
        None => Policy::Append,
        Some(word) if args::is(word, "append") => Policy::Append,
        Some(word) if args::is(word, "replace") => Policy::Replace,
        Some(word) if args::is(word, "flush") => Policy::Flush,
        Some(_) => {
            return Err(Error::text(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let texts = payload::read(&request[2], context.store.dump_checksum)?;
    // What was there is kept aside: it comes back if something is wrong.
    let kept = payload::texts(context.store.scripting.libraries.by_name.values().map(|library| &library.text[..]));
    let libraries = &mut context.store.scripting.libraries;
    if policy == Policy::Flush {
        libraries.clear();
    }
    // All that is replaced goes first: functions may have moved from one library to another.
    for (name, _) in texts.iter().filter_map(|text| read_shebang(text).ok()) {
        if policy == Policy::Replace {
            libraries.remove(&name);
        } else if libraries.by_name.contains_key(&name) {
            return Err(Error::showing("ERR Library ", &name, " already exists"));
        }
    }
    for text in &texts {
        if let Err(error) = context.store.load_library(text, false) {
            context.store.scripting.libraries.clear();
            for text in &kept {
                // It was loaded before.
                let _ = context.store.load_library(text, true);
            }
            return Err(error);
        }
    }
    context.store.changes += 1;
    context.reply.ok();
    Ok(())
}

/// What happens to the libraries that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Append,
    Replace,
    Flush,
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "FUNCTION", FUNCTION_SUBCOMMANDS)
}
