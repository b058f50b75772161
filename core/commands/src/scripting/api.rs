//! The functions of `redis.*` that scripts call.

use super::{
    convert,
    run::{NO_REPLICAS, Running, raised},
};
use crate::{
    Context, Error, Origin,
    effects::Untold,
    server::REDIS_VERSION,
    table::{Command, Flags},
};
use alloc::{format, vec::Vec};
use kayvee_lua::{Machine, Raise, TableRef, Value};
use kayvee_resp::{Limits, Progress, Protocol, Request, Writer};

/// Functions of the host, by the number that a machine calls them with.
const FUNCTIONS: [(&str, u32); 13] = [
    ("call", CALL),
    ("pcall", PCALL),
    ("log", LOG),
    ("sha1hex", SHA1HEX),
    ("error_reply", ERROR_REPLY),
    ("status_reply", STATUS_REPLY),
    ("setresp", SETRESP),
    ("set_repl", SET_REPL),
    ("acl_check_cmd", ACL_CHECK_CMD),
    ("breakpoint", BREAKPOINT),
    ("debug", DEBUG),
    ("replicate_commands", REPLICATE_COMMANDS),
    ("", MISSING_GLOBAL),
];
const CALL: u32 = 1;
const PCALL: u32 = 2;
const LOG: u32 = 3;
const SHA1HEX: u32 = 4;
const ERROR_REPLY: u32 = 5;
const STATUS_REPLY: u32 = 6;
const SETRESP: u32 = 7;
const SET_REPL: u32 = 8;
const ACL_CHECK_CMD: u32 = 9;
const BREAKPOINT: u32 = 10;
const DEBUG: u32 = 11;
const REPLICATE_COMMANDS: u32 = 12;
const MISSING_GLOBAL: u32 = 13;
/// Called while a library is loaded.
pub const REGISTER_FUNCTION: u32 = 14;

const LOG_LEVELS: [&str; 4] = ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"];
const REPL_NONE: i64 = 0;
const REPL_AOF: i64 = 1;
const REPL_REPLICA: i64 = 2;
const REPL_ALL: i64 = REPL_AOF | REPL_REPLICA;
const REPL_FLAGS: [(&str, i64); 5] = [
    ("REPL_NONE", REPL_NONE),
    ("REPL_AOF", REPL_AOF),
    ("REPL_SLAVE", REPL_REPLICA),
    ("REPL_REPLICA", REPL_REPLICA),
    ("REPL_ALL", REPL_ALL),
];

/// Adds `redis` to a machine's globals, and protects them all.
pub fn install(machine: &mut Machine) -> Result<(), Raise> {
    let api = machine.heap.table(0, 32)?;
    for (name, number) in FUNCTIONS.iter().filter(|(name, _)| !name.is_empty()) {
        let function = machine.host_function(*number);
        machine.heap.set_str(api, name, function)?;
    }
    add_constants(machine, api)?;
    for (name, flag) in REPL_FLAGS {
        machine.heap.set_str(api, name, Value::Number(flag as f64))?;
    }
    let globals = machine.globals();
    machine.heap.set_str(globals, "redis", Value::Table(api))?;
    guard(machine, globals)?;
    machine.protect(globals);
    machine.protect_strings();
    Ok(())
}

/// Makes reading what a table has not an error.
pub fn guard(machine: &mut Machine, table: TableRef) -> Result<(), Raise> {
    let missing = machine.host_function(MISSING_GLOBAL);
    let meta = convert::wrapped(machine, "__index", missing)?;
    machine.heap.set_metatable(table, meta);
    Ok(())
}

/// What a library finds in `redis` while it is loaded.
pub fn loading_api(machine: &mut Machine) -> Result<TableRef, Raise> {
    let api = machine.heap.table(0, 16)?;
    for (name, number) in [("register_function", REGISTER_FUNCTION), ("log", LOG)] {
        let function = machine.host_function(number);
        machine.heap.set_str(api, name, function)?;
    }
    add_constants(machine, api)?;
    guard(machine, api)?;
    Ok(api)
}

fn add_constants(machine: &mut Machine, api: TableRef) -> Result<(), Raise> {
    for (level, name) in LOG_LEVELS.iter().enumerate() {
        machine.heap.set_str(api, name, Value::Number(level as f64))?;
    }
    let version = Value::String(machine.heap.string(REDIS_VERSION.as_bytes())?);
    machine.heap.set_str(api, "REDIS_VERSION", version)?;
    let parts = REDIS_VERSION.split('.').filter_map(|part| part.parse::<u32>().ok());
    let number = parts.fold(0, |number, part| number << 8 | part);
    Ok(machine.heap.set_str(api, "REDIS_VERSION_NUM", Value::Number(number.into()))?)
}

/// An error as a table, as scripts raise and return it.
pub fn error_table(machine: &mut Machine, text: &[u8]) -> Result<Value, Raise> {
    let text = Value::String(machine.heap.string(text)?);
    Ok(Value::Table(convert::wrapped(machine, "err", text)?))
}

/// Executes a function of the host and answers the machine.
pub fn call(context: &mut Context<'_>, running: &mut Running, number: u32) {
    let result = match number {
        CALL | PCALL => {
            let result = call_command(context, running);
            match result {
                // An error is raised by one and returned by the other.
                Ok(value) if number == CALL && is_error(&running.machine, value) => Err(Raise::Value(value)),
                Err(Raise::Value(value)) if number == PCALL => Ok(value),
                result => result,
            }
        }
        SETRESP => setresp(running),
        SET_REPL => set_repl(running),
        ACL_CHECK_CMD => acl_check_cmd(context, running),
        other => common(&mut running.machine, other),
    };
    answer(&mut running.machine, result);
}

fn answer(machine: &mut Machine, result: Result<Value, Raise>) {
    match result {
        Ok(value) => machine.answer(Some(value)),
        Err(raise) => machine.refuse(raise),
    }
}

/// The same while a library is loaded, when there is no script.
pub fn call_while_loading(machine: &mut Machine, number: u32) {
    let result = common(machine, number);
    answer(machine, result);
}

/// Functions that need nothing but the machine.
fn common(machine: &mut Machine, number: u32) -> Result<Value, Raise> {
    match number {
        LOG => log(machine),
        SHA1HEX => sha1hex(machine),
        ERROR_REPLY => Ok(error_reply(machine)?),
        STATUS_REPLY => status_reply(machine),
        REGISTER_FUNCTION => {
            Err(raised(machine, b"ERR redis.register_function can only be called on FUNCTION LOAD command"))
        }
        BREAKPOINT => Ok(Value::Boolean(false)),
        REPLICATE_COMMANDS => Ok(Value::Boolean(true)),
        MISSING_GLOBAL => {
            let name = machine.arguments().get(1).copied().unwrap_or_default();
            let mut text = b"Script attempted to access nonexistent global variable '".to_vec();
            if !machine.append_text(name, &mut text)? {
                text.extend_from_slice(name.type_name().as_bytes());
            }
            text.push(b'\'');
            Err(Raise::Positioned(text))
        }
        _ => Ok(Value::Nil),
    }
}

fn is_error(machine: &Machine, value: Value) -> bool {
    matches!(value, Value::Table(table) if matches!(machine.heap.get_str(table, "err"), Value::String(_)))
}

/// Writes the arguments of `redis.call` as a request.
fn encode_arguments(running: &mut Running) -> Result<(), Raise> {
    let machine = &mut running.machine;
    let arguments = machine.arguments();
    if arguments.is_empty() {
        return Err(raised(machine, b"ERR Please specify at least one argument for this redis lib call"));
    }
    let words = &mut running.words;
    words.clear();
    words.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    let mut number_text = Vec::new();
    let mut is_wrong = false;
    for value in arguments {
        let text = match value {
            Value::String(string) => machine.heap.bytes(*string),
            Value::Number(number) => {
                number_text.clear();
                convert::put_number(*number, &mut number_text);
                &number_text
            }
            _ => {
                is_wrong = true;
                break;
            }
        };
        words.try_reserve(text.len().saturating_add(32)).map_err(|_| Raise::OutOfMemory)?;
        words.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
        words.extend_from_slice(text);
        words.extend_from_slice(b"\r\n");
    }
    if is_wrong {
        return Err(raised(machine, b"ERR Lua redis lib command arguments must be strings or integers"));
    }
    Ok(())
}

/// Executes a command for a script and returns its reply.
fn call_command(context: &mut Context<'_>, running: &mut Running) -> Result<Value, Raise> {
    encode_arguments(running)?;
    let words = core::mem::take(&mut running.words);
    let mut parser = core::mem::take(&mut running.parser);
    parser.reset();
    let is_complete = matches!(parser.parse(&words, Limits::PASSED), Ok(Progress::Complete(_)));
    let mut replies = core::mem::take(&mut running.replies);
    replies.clear();
    let refusal = if is_complete {
        let request = parser.request(&words);
        match admit(context, running, request) {
            Ok(command) => {
                execute(context, running, command, request, &mut replies);
                None
            }
            Err(error) => Some(error),
        }
    } else {
        Some(Error::OUT_OF_MEMORY)
    };
    (running.words, running.parser) = (words, parser);
    let result = match refusal {
        Some(error) => {
            context.store.count_error(&error);
            counted_error(&mut running.machine, &error)
        }
        None => convert::value(&mut running.machine, &replies),
    };
    running.replies = replies;
    // What one large reply took is not kept for the others.
    const KEPT_BYTES: usize = 64 << 10;
    if running.replies.capacity() > KEPT_BYTES {
        running.replies = Vec::new();
    }
    result
}

/// Raises an error that has been counted.
fn counted_error(machine: &mut Machine, error: &Error) -> Result<Value, Raise> {
    let value = error_table(machine, &error.0)?;
    if let Value::Table(table) = value {
        machine.heap.set_str(table, "ignore_error_stats_update", Value::Boolean(true))?;
    }
    Err(Raise::Value(value))
}

/// Finds the command that a script calls, and checks that it may.
fn admit(context: &mut Context<'_>, running: &mut Running, request: Request<'_>) -> Result<&'static Command, Error> {
    let Some(command) = context.store.command_of(request).filter(|command| command.handler.is_some()) else {
        return Err(Error::text("ERR Unknown Redis command called from script"));
    };
    let refused = |context: &mut Context<'_>, error| match context.store.reject(command, error) {
        Err(error) => Err(error),
        Ok(()) => Ok(command),
    };
    if !command.accepts(request.len()) {
        return refused(context, Error::text("ERR Wrong number of args calling Redis command from script"));
    }
    if command.flags.contains(Flags::NOSCRIPT) && !context.store.scripting.allows_all_commands {
        return refused(context, Error::text("ERR This Redis command is not allowed from script"));
    }
    if !command.flags.contains(Flags::STALE) && context.store.refusal_of_stale_data().is_some() {
        return refused(context, Error::text("ERR Can not execute the command on a stale replica"));
    }
    let container = context.store.commands.find(&request[0]).unwrap_or(command);
    let caller = core::mem::replace(&mut context.origin, Origin::Script);
    let permission = context.check_permission(container, command, request);
    context.origin = caller;
    if let Err(error) = permission {
        return refused(context, error);
    }
    let writes = command.flags.contains(Flags::WRITE);
    if running.is_readonly && (writes || command.flags.contains(Flags::MAY_REPLICATE)) {
        return refused(context, Error::text("ERR Write commands are not allowed from read-only scripts."));
    }
    // What a script does is one record, so there has to be room for all of it.
    if writes
        && let Some(error) = {
            let needs_memory = command.flags.contains(Flags::DENYOOM);
            context.store.durable.refusal(&context.store.options, request.bytes_len(), command.name, needs_memory)
        }
    {
        return refused(context, error);
    }
    if writes && context.store.lacks_replicas() {
        return refused(context, NO_REPLICAS);
    }
    if writes
        && !context.is_from_master()
        && let Some(error) = context.store.refusal_of_write()
    {
        return refused(context, error);
    }
    if let Some(error) = context.store.refusal_in_script(command, request, &mut running.keys) {
        return refused(context, error);
    }
    let lacks_memory = running.refuses_memory && !running.has_written;
    let lacks_room =
        (request.bytes_len() + context.store.durable.unit_bytes()) as u64 > context.store.data_room_bytes();
    if command.flags.contains(Flags::DENYOOM) && (lacks_memory || lacks_room) {
        return refused(context, Error::OUT_OF_MEMORY);
    }
    Ok(command)
}

fn execute(
    context: &mut Context<'_>,
    running: &mut Running,
    command: &'static Command,
    request: Request<'_>,
    replies: &mut Vec<u8>,
) {
    let slot = context.slot;
    let caller_db = core::mem::replace(&mut context.session().db, running.db);
    let changes = context.store.changes;
    context.store.effects.keep_from(running.untold);
    let mut called = Context::new(context.store, Writer::new(replies, running.protocol), slot, Origin::Script);
    called.call(command, request);
    if called.reply.failed() {
        called.reply.truncate(0);
        called.reply.error(&Error::OUT_OF_MEMORY.0);
    }
    context.store.effects.keep_from(Untold::default());
    running.has_written |= command.flags.contains(Flags::WRITE) || context.store.changes != changes;
    running.db = core::mem::replace(&mut context.session().db, caller_db);
}

fn text_of(machine: &Machine, value: Value) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    machine.append_text(value, &mut text).ok().filter(|is_text| *is_text).map(|_| text)
}

fn log(machine: &mut Machine) -> Result<Value, Raise> {
    let arguments = machine.arguments().to_vec();
    if arguments.len() < 2 {
        return Err(raised(machine, b"ERR redis.log() requires two arguments or more."));
    }
    let Value::Number(level) = arguments[0] else {
        return Err(raised(machine, b"ERR First argument must be a number (log level)."));
    };
    if !(0.0..LOG_LEVELS.len() as f64).contains(&level) {
        return Err(raised(machine, b"ERR Invalid debug level."));
    }
    let texts: Vec<Vec<u8>> = arguments[1..].iter().filter_map(|value| text_of(machine, *value)).collect();
    let text = texts.join(&b' ');
    let level = [log::Level::Debug, log::Level::Debug, log::Level::Info, log::Level::Warn][level as usize];
    log::log!(level, "{}", alloc::string::String::from_utf8_lossy(&text));
    Ok(Value::Nil)
}

fn sha1hex(machine: &mut Machine) -> Result<Value, Raise> {
    let [value] = machine.arguments() else {
        return Err(raised(machine, b"ERR wrong number of arguments"));
    };
    let text = text_of(machine, *value).unwrap_or_default();
    let name = super::eval::name_of(&text);
    Ok(Value::String(machine.heap.string(&name)?))
}

fn single_text(machine: &Machine) -> Option<Vec<u8>> {
    match machine.arguments() {
        [Value::String(string)] => Some(machine.heap.bytes(*string).to_vec()),
        _ => None,
    }
}

fn error_reply(machine: &mut Machine) -> Result<Value, Raise> {
    let Some(text) = single_text(machine) else {
        return error_table(machine, b"ERR wrong number or type of arguments");
    };
    let text = text.strip_prefix(b"-").unwrap_or(&text);
    // A text without a code gets the general one.
    match text.contains(&b' ') {
        true => error_table(machine, text),
        false => error_table(machine, &[b"ERR ", text].concat()),
    }
}

fn status_reply(machine: &mut Machine) -> Result<Value, Raise> {
    let Some(text) = single_text(machine) else {
        return error_table(machine, b"ERR wrong number or type of arguments");
    };
    let text = Value::String(machine.heap.string(&text)?);
    Ok(Value::Table(convert::wrapped(machine, "ok", text)?))
}

fn setresp(running: &mut Running) -> Result<Value, Raise> {
    let machine = &mut running.machine;
    let [value] = machine.arguments() else {
        return Err(raised(machine, b"ERR redis.setresp() requires one argument."));
    };
    running.protocol = match machine.to_number(*value) {
        Some(2.0) => Protocol::Resp2,
        Some(3.0) => Protocol::Resp3,
        _ => return Err(raised(machine, b"ERR RESP version must be 2 or 3.")),
    };
    Ok(Value::Nil)
}

fn set_repl(running: &mut Running) -> Result<Value, Raise> {
    let machine = &mut running.machine;
    let [value] = machine.arguments() else {
        return Err(raised(machine, b"ERR redis.set_repl() requires two arguments."));
    };
    let flags = machine.to_number(*value).unwrap_or(-1.0) as i64;
    if !(REPL_NONE..=REPL_ALL).contains(&flags) {
        return Err(raised(
            machine,
            b"ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
        ));
    }
    running.untold = Untold { log: flags & REPL_AOF == 0, listeners: flags & REPL_REPLICA == 0 };
    Ok(Value::Nil)
}

fn acl_check_cmd(context: &mut Context<'_>, running: &mut Running) -> Result<Value, Raise> {
    encode_arguments(running)?;
    let words = core::mem::take(&mut running.words);
    let mut parser = core::mem::take(&mut running.parser);
    parser.reset();
    let _ = parser.parse(&words, Limits::PASSED);
    let may_run = context.may_run(parser.request(&words));
    (running.words, running.parser) = (words, parser);
    match may_run {
        Some(may_run) => Ok(Value::Boolean(may_run)),
        None => Err(raised(&mut running.machine, b"ERR Invalid command passed to redis.acl_check_cmd()")),
    }
}
