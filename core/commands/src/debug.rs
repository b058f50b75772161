//! `DEBUG`, as far as it is harmless: what is needed to test clients, and the server's own last moments.

use crate::{
    Context, Error, Origin, Outcome,
    args::{copied, integer, is, lower_case},
    digest, dump,
    error::c_text,
    options::parse_memory,
    server::rewrite_config,
};
use alloc::{format, vec::Vec};
use kayvee_keyspace::{Expiry, Kind, Owned, Value};
use kayvee_rdb::Checksum;
use kayvee_resp::Request;

const HELP: &[(&str, &str)] = &[
    ("CHANGE-REPL-ID", "Takes another name for the history of the data."),
    ("CONFIG-REWRITE-FORCE-ALL", "Writes all options to the configuration file, even those at their defaults."),
    ("DIGEST", "Returns a number that is the same for the same data."),
    ("DIGEST-VALUE <key> [<key> ...]", "Returns such a number for each value."),
    ("ERROR <message>", "Replies with this error."),
    ("LOADAOF", "Takes all data back from the log on the disk, as a start does."),
    ("LOG <message>", "Writes a line to the log."),
    ("OBJECT <key>", "Shows how a value is stored."),
    ("PANIC", "Ends the server as a bug would."),
    ("PAUSE-CRON <0|1>", "Stops what happens in the background, or lets it go on."),
    ("POPULATE <count> [<prefix>] [<size>]", "Makes keys that are not there yet."),
    ("PROTOCOL <type>", "Replies with a value of each kind of the protocol."),
    (
        "QUICKLIST-PACKED-THRESHOLD <size>",
        "Takes a size in bytes. It changes nothing: long elements need no other form.",
    ),
    ("RELOAD [NOSAVE]", "Makes all values anew from their dumps, or takes all data from the dump file."),
    ("REPLICATE <command>", "Sends a command to the replicas and runs it nowhere else."),
    (
        "REPLYBUFFER <PEAK-RESET-TIME <NEVER|RESET|milliseconds>|RESIZING <0|1>>",
        "Changes nothing: no client has a buffer of fixed size.",
    ),
    ("SET-ACTIVE-EXPIRE <0|1>", "Switches the search for expired keys off or on."),
    ("SET-SKIP-CHECKSUM-VALIDATION <0|1>", "Lets RESTORE take payloads whose checksum is wrong, or no longer."),
    ("SLEEP <seconds>", "Does nothing for a time, and serves nobody."),
    ("STRINGMATCH-LEN <len> <pattern>", "Matches a string of this many letters against a pattern."),
    ("HELP", "Prints this help."),
];

pub fn debug(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let is_local = context.session().is_local();
    let allowed = context.store.options.enable_debug_command.permits(is_local);
    if !allowed {
        return Err(Error::text(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.",
        ));
    }
    match (&request[1], request.len()) {
        (sub, 2) if is(sub, "config-rewrite-force-all") => return rewrite_config(context, true),
        (sub, 2) if is(sub, "digest") => return digest::of_everything(context),
        (sub, 3..) if is(sub, "digest-value") => return digest::of_values(context, request),
        (sub, 3) if is(sub, "error") => return Err(Error::showing("", &request[2], "")),
        (sub, 2) if is(sub, "loadaof") => return context.load_from_log(request),
        (sub, 3) if is(sub, "log") => {
            log::warn!("DEBUG LOG: {}", request[2].escape_ascii());
            context.reply.ok();
        }
        (sub, 3) if is(sub, "object") => return object(context, &request[2]),
        (sub, 2) if is(sub, "panic") => panic!("DEBUG PANIC"),
        (sub, 3..=5) if is(sub, "populate") => return populate(context, request),
        (sub, 3) if is(sub, "protocol") => return protocol(context, &request[2]),
        (sub, 3) if is(sub, "quicklist-packed-threshold") => {
            const RANGE: Error = Error::text("ERR argument must be a memory value bigger than 1 and smaller than 4gb");
            let bytes = parse_memory(&request[2]).filter(|bytes| *bytes < 1 << 32);
            bytes.ok_or(RANGE)?;
            context.reply.ok();
        }
        (sub, 3) if is(sub, "pause-cron") => {
            context.store.pauses_cron = integer(&request[2])? != 0;
            context.reply.ok();
        }
        (sub, _) if is(sub, "reload") => {
            let has = |word: &str| request.from(2).any(|option| is(option, word));
            let is_known = |option: &[u8]| ["nosave", "noflush", "merge"].iter().any(|word| is(option, word));
            if !request.from(2).all(is_known) {
                return Err(Error::text("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."));
            }
            const NOT_LOADED: Error = Error::text("ERR Error trying to load the RDB dump, check server logs.");
            // What is there already cannot be loaded once more.
            if has("noflush") && !has("merge") {
                return Err(NOT_LOADED);
            }
            let store = &mut context.store;
            // A log that has every change would miss this one.
            let from_file = has("nosave") && !has("noflush") && store.environment.host.has_files();
            if from_file && !store.effects.are_logged {
                store.reload_from_dump().map_err(|why| {
                    log::warn!("DEBUG RELOAD NOSAVE: {why}");
                    NOT_LOADED
                })?;
            } else {
                dump::reload(context)?;
            }
            context.reply.ok();
        }
        (sub, 3..) if is(sub, "replicate") => {
            let words: Vec<&[u8]> = request.from(2).collect();
            context.store.tell_replicas(&words);
            context.reply.ok();
        }
        (sub, 4) if is(sub, "replybuffer") => {
            match (&request[2], &request[3]) {
                (what, time) if is(what, "peak-reset-time") && (is(time, "never") || is(time, "reset")) => {}
                (what, number) if is(what, "peak-reset-time") || is(what, "resizing") => _ = integer(number)?,
                _ => return Err(Error::SYNTAX),
            }
            context.reply.ok();
        }
        (sub, 2) if is(sub, "change-repl-id") => {
            context.store.change_history();
            context.reply.ok();
        }
        (sub, 3) if is(sub, "set-active-expire") => {
            context.store.active_expiry = integer(&request[2])? != 0;
            context.reply.ok();
        }
        (sub, 3) if is(sub, "set-skip-checksum-validation") => {
            let is_skipped = integer(&request[2])? != 0;
            context.store.dump_checksum = if is_skipped { Checksum::Off } else { Checksum::On };
            context.reply.ok();
        }
        (sub, 3) if is(sub, "set-disable-deny-scripts") => {
            context.store.scripting.allows_all_commands = integer(&request[2])? != 0;
            context.reply.ok();
        }
        (sub, 3) if is(sub, "sleep") => return sleep(context, &request[2]),
        (sub, 4) if is(sub, "stringmatch-len") => {
            const LEN_LIMIT: i64 = 1 << 20;
            let len = integer(&request[2])?;
            if !(0..=LEN_LIMIT).contains(&len) {
                return Err(Error::OUT_OF_RANGE);
            }
            let mut text = Vec::new();
            text.try_reserve_exact(len as usize).map_err(|_| Error::OUT_OF_MEMORY)?;
            text.resize(len as usize, b'a');
            context.reply.integer(crate::glob::matches(&request[3], &text).into());
        }
        (sub, 2) if is(sub, "help") => help(context),
        (sub, _) => {
            let shown = c_text(sub, 128);
            let rest = "'. Try DEBUG HELP.";
            return Err(Error::showing("ERR unknown subcommand or wrong number of arguments for '", shown, rest));
        }
    }
    Ok(())
}

fn help(context: &mut Context<'_>) {
    context.reply.array(HELP.len() * 2 + 1);
    context.reply.simple("DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    for (usage, what) in HELP {
        context.reply.simple(usage);
        context.reply.simple(&format!("    {what}"));
    }
}

/// Bytes of a value in Redis' dump format, uncompressed.
fn serialized_len(value: Value<'_>) -> usize {
    match value {
        Value::Integer(number) if i8::try_from(number).is_ok() => 2,
        Value::Integer(number) if i16::try_from(number).is_ok() => 3,
        Value::Integer(number) if i32::try_from(number).is_ok() => 5,
        Value::Integer(number) => 1 + kayvee_keyspace::Decimal::new(number).as_bytes().len(),
        Value::Bytes(bytes) => {
            let header = match bytes.len() {
                0..64 => 1,
                64..16384 => 2,
                _ => 5,
            };
            header + bytes.len()
        }
    }
}

fn object(context: &mut Context<'_>, key: &[u8]) -> Outcome {
    // An expired key that nobody has looked for is still there.
    let found = context.db().find(key, 0).ok_or(Error::NO_SUCH_KEY)?;
    let now_ms = context.now_ms();
    let db = context.db();
    let idle_s = db.idle_s(found, now_ms);
    let lru = (now_ms / 1000) as u32 & 0x00ff_ffff;
    let line = format!(
        "Value at:{:#x} refcount:1 encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{idle_s}",
        db.place_of(found),
        db.encoding(found).name(),
        match db.kind(found) {
            Kind::String => serialized_len(db.value(found)),
            _ => db.bytes_of(found),
        },
        lru.wrapping_sub(idle_s) & 0x00ff_ffff,
    );
    context.reply.simple(&line);
    Ok(())
}

fn populate(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let not_negative = |arg: &[u8]| {
        let number = integer(arg).ok().and_then(|number| u64::try_from(number).ok());
        number.ok_or(Error::text("ERR value is out of range, must be positive"))
    };
    let count = not_negative(&request[2])?;
    let prefix = request.get(3).unwrap_or(b"key");
    let size = request.get(4).map_or(Ok(0), not_negative)?;
    if size > context.store.options.bulk_limit_bytes() {
        return Err(Error::STRING_TOO_LONG);
    }
    let size = size as usize;
    let now_ms = context.now_ms();
    for number in 0..count {
        if context.store.is_full() {
            return Err(Error::OUT_OF_MEMORY);
        }
        let mut key = copied(prefix)?;
        let suffix = format!(":{number}");
        key.try_reserve(suffix.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
        key.extend_from_slice(suffix.as_bytes());
        if context.find(&key).is_some() {
            continue;
        }
        let mut value = format!("value:{number}").into_bytes();
        if size > 0 {
            value.try_reserve(size.saturating_sub(value.len())).map_err(|_| Error::OUT_OF_MEMORY)?;
            value.resize(size, 0);
        }
        context.db().set(&key, Owned::Text(&value), Expiry::Never, now_ms)?;
        context.effect(&[b"SET", &key, &value]);
    }
    context.reply.ok();
    Ok(())
}

/// Waits on the processor: a client that asks for this wants the server to be busy.
fn sleep(context: &mut Context<'_>, seconds: &[u8]) -> Outcome {
    const LIMIT_S: f64 = 3600.0;
    let seconds: Option<f64> = core::str::from_utf8(seconds).ok().and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|s| (0.0..=LIMIT_S).contains(s)).ok_or(Error::OUT_OF_RANGE)?;
    let clock = context.store.environment.clock;
    let until_ns = clock.monotonic_ns() + (seconds * 1e9) as u64;
    while clock.monotonic_ns() < until_ns {
        core::hint::spin_loop();
    }
    // Who is served behind it is served later. In a script no time passes.
    if context.origin != Origin::Script {
        context.store.now = clock.now();
    }
    context.reply.ok();
    Ok(())
}

fn protocol(context: &mut Context<'_>, kind: &[u8]) -> Outcome {
    let reply = &mut context.reply;
    match lower_case(kind)?.as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12345),
        b"double" => reply.double("3.141"),
        b"bignum" => reply.big_number("1234567999999999999999999999999999999"),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"map" => {
            reply.map(3);
            for number in 0..3 {
                reply.integer(number);
                reply.boolean(number == 1);
            }
        }
        b"attrib" => {
            if reply.attribute(1) {
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" => {
            if !reply.push(2) {
                return Err(Error::text("ERR RESP2 is not supported by this command"));
            }
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"verbatim" => reply.verbatim(b"txt", b"This is a verbatim\nstring"),
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        _ => {
            return Err(Error::text(
                "ERR Wrong protocol type name. Please use one of the following: string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}
