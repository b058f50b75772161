//! `EVAL` and its relatives, and `SCRIPT`.

use super::{
    Name, Script, ScriptFlags, api, compile_error,
    functions::FUNCTION_SUBCOMMANDS,
    run::{self, Call, Kind},
};
use crate::{
    Context, Error, Outcome, Store, args,
    server::help,
    table::{Categories, Command, Flags, Group, KeyFlags, Keys, Tips},
};
use alloc::{boxed::Box, vec::Vec};
use kayvee_lua::{Machine, Raise, Value};
use kayvee_resp::Request;
use sha1::{Digest as _, Sha1};

const SCRIPT_FLAGS: Flags = Flags::NOSCRIPT
    .union(Flags::STALE)
    .union(Flags::SKIP_MONITOR)
    .union(Flags::MOVABLEKEYS)
    .union(Flags::NO_MANDATORY_KEYS);
const ANY_KEYS: &[Keys] = &[Keys::counted(2, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))];
const READ_KEYS: &[Keys] = &[Keys::counted(2, KeyFlags::RO.union(KeyFlags::ACCESS))];
const ROW: Command = Command {
    arity: -3,
    flags: SCRIPT_FLAGS.union(Flags::MAY_REPLICATE),
    keys: ANY_KEYS,
    categories: Categories::SCRIPTING,
    group: Group::Scripting,
    ..Command::ROW
};
const READ_ROW: Command = Command { flags: SCRIPT_FLAGS.union(Flags::READONLY), keys: READ_KEYS, ..ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "eval", handler: Some(eval), ..ROW },
    Command { name: "eval_ro", handler: Some(eval_ro), ..READ_ROW },
    Command { name: "evalsha", handler: Some(evalsha), ..ROW },
    Command { name: "evalsha_ro", handler: Some(evalsha_ro), ..READ_ROW },
    Command { name: "fcall", handler: Some(super::functions::fcall), ..ROW },
    Command { name: "fcall_ro", handler: Some(super::functions::fcall_ro), ..READ_ROW },
    Command {
        name: "function",
        arity: -2,
        flags: Flags::NONE,
        keys: &[],
        categories: Categories::NONE,
        subcommands: FUNCTION_SUBCOMMANDS,
        ..ROW
    },
    Command {
        name: "script",
        arity: -2,
        flags: Flags::NONE,
        keys: &[],
        categories: Categories::NONE,
        subcommands: SCRIPT_SUBCOMMANDS,
        ..ROW
    },
];

const SUB_ROW: Command =
    Command { flags: Flags::NOSCRIPT, categories: Categories::SCRIPTING, group: Group::Scripting, ..Command::ROW };

pub static SCRIPT_SUBCOMMANDS: &[Command] = &[
    Command { name: "debug", arity: 3, handler: Some(debug), ..SUB_ROW },
    Command {
        name: "exists",
        arity: -3,
        tips: Tips::ALL_SHARDS.union(Tips::AGG_LOGICAL_AND),
        handler: Some(exists),
        ..SUB_ROW
    },
    Command {
        name: "flush",
        arity: -2,
        tips: Tips::ALL_NODES.union(Tips::ALL_SUCCEEDED),
        handler: Some(flush),
        ..SUB_ROW
    },
    SUB_ROW.help(help_text),
    Command {
        name: "kill",
        arity: 2,
        flags: Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        tips: Tips::ALL_SHARDS.union(Tips::ONE_SUCCEEDED),
        handler: Some(kill),
        ..SUB_ROW
    },
    Command {
        name: "load",
        arity: 3,
        flags: Flags::NOSCRIPT.union(Flags::STALE),
        tips: Tips::ALL_NODES.union(Tips::ALL_SUCCEEDED),
        handler: Some(load),
        ..SUB_ROW
    },
];

/// The name of a script by its text.
pub fn name_of(text: &[u8]) -> Name {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digest = Sha1::digest(text);
    let mut name = [0; 40];
    for (at, byte) in digest.iter().enumerate() {
        name[at * 2] = DIGITS[usize::from(byte >> 4)];
        name[at * 2 + 1] = DIGITS[usize::from(byte & 15)];
    }
    name
}

/// The number of keys behind a script, and where the other arguments begin.
pub fn count_keys(request: Request<'_>) -> Result<usize, Error> {
    checked_count(request, args::integer(&request[2])?)
}

/// Checks a number of keys.
pub fn checked_count(request: Request<'_>, count: i64) -> Result<usize, Error> {
    if count > (request.len() - 3) as i64 {
        return Err(Error::text("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(count).map_err(|_| Error::text("ERR Number of keys can't be negative"))
}

/// Reads the first line of a script that tells its flags. Returns them and where the script itself begins.
pub fn read_shebang(text: &[u8]) -> Result<(ScriptFlags, usize), Error> {
    let mut flags = ScriptFlags::default();
    if !text.starts_with(b"#!") {
        return Ok((flags, 0));
    }
    flags.is_declared = true;
    let Some(end) = text.iter().position(|b| *b == b'\n') else {
        return Err(Error::text("ERR Invalid script shebang"));
    };
    let words =
        kayvee_resp::split_words(&text[..end]).map_err(|_| Error::text("ERR Invalid engine in script shebang"))?;
    let mut words = words.iter().map(Vec::as_slice);
    let engine = words.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(Error::showing("ERR Unexpected engine in script shebang: ", engine, ""));
    }
    for word in words {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err(Error::showing("ERR Unknown lua shebang option: ", word, ""));
        };
        for flag in list.split(|b| *b == b',').filter(|_| !list.is_empty()) {
            set_flag(&mut flags, flag)
                .map_err(|()| Error::showing("ERR Unexpected flag in script shebang: ", flag, ""))?;
        }
    }
    // The line break stays, so that lines are counted from the shebang on.
    Ok((flags, end))
}

/// Notes a flag by its name.
pub fn set_flag(flags: &mut ScriptFlags, name: &[u8]) -> Result<(), ()> {
    match name {
        b"no-writes" => flags.no_writes = true,
        b"allow-oom" => flags.allow_oom = true,
        b"allow-stale" => flags.allow_stale = true,
        b"no-cluster" => flags.no_cluster = true,
        b"allow-cross-slot-keys" => flags.allow_cross_slot_keys = true,
        _ => return Err(()),
    }
    Ok(())
}

impl Store {
    /// The machine for scripts, which is made when the first one comes.
    fn evaluator(&mut self) -> Result<Box<Machine>, Error> {
        match self.scripting.evaluator.take() {
            Some(machine) => Ok(machine),
            None => {
                let mut machine = self.new_machine()?;
                api::install(&mut machine).map_err(|_| Error::OUT_OF_MEMORY)?;
                Ok(machine)
            }
        }
    }

    /// Makes a script known and returns its name.
    fn add_script(&mut self, text: &[u8], is_loaded: bool) -> Result<Name, Error> {
        let name = name_of(text);
        self.scripting.uses += 1;
        let last_used = self.scripting.uses;
        if let Some(script) = self.scripting.scripts.get_mut(&name) {
            script.is_loaded |= is_loaded;
            script.last_used = last_used;
            return Ok(name);
        }
        let (flags, start) = read_shebang(text)?;
        let is_full = self.is_platform_full();
        // It would stay for good.
        if is_full && is_loaded {
            return Err(Error::OUT_OF_MEMORY);
        }
        let mut machine = self.evaluator()?;
        machine.heap.set_limit_bytes(machine.heap.used_bytes().saturating_add(self.script_heap_bytes()));
        let globals = machine.globals();
        let result = match machine.compile(&text[start..], b"@user_script", globals) {
            Ok(function) => {
                let pin = machine.pin(Value::Function(function));
                let script = Script { pin, flags, bytes: text.len(), is_loaded, last_used };
                self.scripting.scripts.insert(name, script);
                Ok(name)
            }
            Err(Raise::OutOfMemory) => Err(Error::OUT_OF_MEMORY),
            Err(raise) => {
                let text = machine.error_text(raise);
                Err(compile_error("ERR Error compiling script (new function): ", &text))
            }
        };
        self.scripting.evaluator = Some(machine);
        self.scripting.bound_cache(is_full);
        result
    }
}

/// The arguments from `from` to `to` as a table of strings.
pub fn table_of(machine: &mut Machine, request: Request<'_>, from: usize, to: usize) -> Result<Value, Raise> {
    let table = machine.heap.table(to - from, 0)?;
    for at in from..to {
        let text = Value::String(machine.heap.string(&request[at])?);
        machine.heap.push(table, text)?;
    }
    Ok(Value::Table(table))
}

fn run_script(context: &mut Context<'_>, request: Request<'_>, name: Name, is_readonly: bool) -> Outcome {
    let keys = count_keys(request)?;
    let scripting = &mut context.store.scripting;
    scripting.uses += 1;
    let Some(script) = scripting.scripts.get_mut(&name) else {
        return Err(Error::text("NOSCRIPT No matching script. Please use EVAL."));
    };
    script.last_used = scripting.uses;
    let (pin, flags) = (script.pin, script.flags);
    run::check_flags(context, flags, is_readonly)?;
    let mut machine = context.store.evaluator()?;
    let function = machine.pinned(pin);
    if set_arguments(&mut machine, request, keys).is_err() {
        context.store.scripting.evaluator = Some(machine);
        return Err(Error::OUT_OF_MEMORY);
    }
    let call = Call { kind: Kind::Script(name), machine, function, arguments: &[], flags, is_readonly };
    run::start(context, request, call)
}

/// Sets the global tables `KEYS` and `ARGV`.
fn set_arguments(machine: &mut Machine, request: Request<'_>, keys: usize) -> Result<(), Raise> {
    let globals = machine.globals();
    let table = table_of(machine, request, 3, 3 + keys)?;
    machine.heap.set_str(globals, "KEYS", table)?;
    let table = table_of(machine, request, 3 + keys, request.len())?;
    Ok(machine.heap.set_str(globals, "ARGV", table)?)
}

fn eval_text(context: &mut Context<'_>, request: Request<'_>, is_readonly: bool) -> Outcome {
    count_keys(request)?;
    let name = context.store.add_script(&request[1], false)?;
    run_script(context, request, name, is_readonly)
}

fn eval(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    eval_text(context, request, false)
}

fn eval_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    eval_text(context, request, true)
}

fn eval_name(context: &mut Context<'_>, request: Request<'_>, is_readonly: bool) -> Outcome {
    let Ok(mut name) = Name::try_from(&request[1]) else {
        return Err(Error::text("NOSCRIPT No matching script. Please use EVAL."));
    };
    name.make_ascii_lowercase();
    run_script(context, request, name, is_readonly)
}

fn evalsha(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    eval_name(context, request, false)
}

fn evalsha_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    eval_name(context, request, true)
}

fn load(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let name = context.store.add_script(&request[2], true)?;
    context.reply.bulk(&name);
    Ok(())
}

fn exists(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.reply.array(request.len() - 2);
    for name in request.from(2) {
        let name = Name::try_from(name.to_ascii_lowercase().as_slice()).ok();
        let is_known = name.is_some_and(|name| context.store.scripting.scripts.contains_key(&name));
        context.reply.integer(is_known.into());
    }
    Ok(())
}

fn flush(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match (request.len(), request.get(2).unwrap_or_default()) {
        (..=2, _) => {}
        (3, how) if args::is(how, "async") || args::is(how, "sync") => {}
        _ => return Err(Error::text("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
    }
    context.store.scripting.forget_scripts();
    context.reply.ok();
    Ok(())
}

fn kill(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    run::kill(context.store, false)?;
    context.reply.ok();
    Ok(())
}

fn debug(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match &request[2] {
        how if ["yes", "sync"].iter().any(|word| args::is(how, word)) => {
            Err(Error::text("ERR there is no debugger for scripts here"))
        }
        how if args::is(how, "no") => {
            context.reply.ok();
            Ok(())
        }
        _ => Err(Error::text("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    }
}

fn help_text(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help(context, "SCRIPT", SCRIPT_SUBCOMMANDS)
}
