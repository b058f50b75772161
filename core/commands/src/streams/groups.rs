//! `XGROUP`: making, changing and removing groups.

use super::{id, id_or_end, wrong_arguments};
use crate::{Context, Error, EventClass, Outcome, args, error::shown, server::help_lines};
use alloc::boxed::Box;
use kayvee_keyspace::{Found, Kind, Stream, StreamId};
use kayvee_resp::Request;

/// The options of `CREATE` and `SETID`.
struct GroupOptions {
    makes_stream: bool,
    entries_read: Option<u64>,
}

impl GroupOptions {
    fn parse(request: Request<'_>, may_make_stream: bool) -> Result<GroupOptions, Error> {
        const READ: Error = Error::text("ERR value for ENTRIESREAD must be positive or -1");
        let mut options = GroupOptions { makes_stream: false, entries_read: None };
        let mut words = request.from(5);
        while let Some(word) = words.next() {
            if may_make_stream && args::is(word, "mkstream") {
                options.makes_stream = true;
            } else if args::is(word, "entriesread")
                && let Some(value) = words.next()
            {
                options.entries_read = match args::integer(value)? {
                    -1 => None,
                    read => Some(u64::try_from(read).map_err(|_| READ)?),
                };
            } else {
                return Err(wrong_arguments(request));
            }
        }
        Ok(options)
    }
}

/// The stream that a subcommand is about.
fn find(context: &mut Context<'_>, request: Request<'_>) -> Result<Option<Found>, Error> {
    context.find_to_change(&request[2], Kind::Stream)
}

const NO_KEY: Error = Error::text(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to \
     create an empty stream automatically.",
);

/// The same, which must have the group.
fn find_group(context: &mut Context<'_>, request: Request<'_>) -> Result<Found, Error> {
    let found = find(context, request)?.ok_or(NO_KEY)?;
    match context.db().stream(found).group(&request[3]) {
        Some(_) => Ok(found),
        None => Err(no_such_group(&request[2], &request[3])),
    }
}

pub fn no_such_group(key: &[u8], group: &[u8]) -> Error {
    Error::of_parts(&[b"NOGROUP No such consumer group '", shown(group), b"' for key name '", shown(key), b"'"])
}

pub fn create(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    const BUSY: Error = Error::text("BUSYGROUP Consumer Group name already exists");
    let options = GroupOptions::parse(request, true)?;
    let found = find(context, request)?;
    if found.is_none() && !options.makes_stream {
        return Err(NO_KEY);
    }
    // Each option once, as many words as that makes.
    if request.len() > 8 {
        return Err(wrong_arguments(request));
    }
    let key = &request[2];
    let last_id = match &request[4] {
        b"$" => found.map_or(StreamId::MIN, |found| context.db().stream(found).last_id),
        arg => id(arg)?,
    };
    let edit = context
        .edit(key, found, |stream: &mut Box<Stream>, _| stream.add_group(&request[3], last_id, options.entries_read))?;
    if !edit.result {
        return Err(BUSY);
    }
    context.reply.ok();
    context.changed(EventClass::STREAM, "xgroup-create", key);
    Ok(())
}

pub fn set_id(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let options = GroupOptions::parse(request, false)?;
    let found = find_group(context, request)?;
    if request.len() > 7 {
        return Err(wrong_arguments(request));
    }
    let last_id = match &request[4] {
        b"$" => context.db().stream(found).last_id,
        arg => id_or_end(arg, 0)?,
    };
    context.edit(&request[2], Some(found), |stream: &mut Box<Stream>, _| {
        if let Some(group) = stream.group_mut(&request[3]) {
            (group.last_id, group.entries_read) = (last_id, options.entries_read);
        }
        Ok(())
    })?;
    context.reply.ok();
    context.changed(EventClass::STREAM, "xgroup-setid", &request[2]);
    Ok(())
}

pub fn destroy(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = find(context, request)?.ok_or(NO_KEY)?;
    let edit =
        context.edit(&request[2], Some(found), |stream: &mut Box<Stream>, _| Ok(stream.remove_group(&request[3])))?;
    context.reply.integer(edit.result.into());
    if edit.result {
        context.changed(EventClass::STREAM, "xgroup-destroy", &request[2]);
    }
    Ok(())
}

pub fn create_consumer(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = find_group(context, request)?;
    let now_ms = context.now_ms();
    let edit = context.edit(&request[2], Some(found), |stream: &mut Box<Stream>, _| {
        let Some(group) = stream.group_mut(&request[3]) else { return Ok(false) };
        group.add_consumer(&request[4], now_ms).map(|(_, is_new)| is_new)
    })?;
    context.reply.integer(edit.result.into());
    if edit.result {
        context.notify(EventClass::STREAM, "xgroup-createconsumer", &request[2]);
        context.store.changes += 1;
    }
    Ok(())
}

pub fn delete_consumer(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let found = find_group(context, request)?;
    let edit = context.edit(&request[2], Some(found), |stream: &mut Box<Stream>, _| {
        Ok(stream.group_mut(&request[3]).and_then(|group| group.remove_consumer(&request[4])))
    })?;
    context.reply.integer(edit.result.unwrap_or(0) as i64);
    if edit.result.is_some() {
        context.notify(EventClass::STREAM, "xgroup-delconsumer", &request[2]);
        context.store.changes += 1;
    }
    Ok(())
}

const HELP: [&str; 17] = [
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Make a consumer group that reads on from an ID, or from the end. Options are:",
    "    * MKSTREAM",
    "      Make an empty stream if there is none.",
    "    * ENTRIESREAD <count>",
    "      How many entries count as read by the group.",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Make a consumer in the group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove a consumer, with what is pending for it.",
    "DESTROY <key> <groupname>",
    "    Remove the group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD <count>]",
    "    Let the group read on from an ID.",
    "HELP",
    "    Print this help.",
];

pub fn help(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    help_lines(context, &HELP)
}
