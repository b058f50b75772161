//! The connection: greeting, authentication, database and protocol.

use crate::{
    Close, Context, Error, Outcome, ReplyMode, acl,
    args::{copied, int, integer, is},
    client, cluster, pubsub,
    server::REDIS_VERSION,
    table::{Categories, Command, Flags, Group, Tips},
    transactions,
};
use alloc::vec::Vec;
use kayvee_resp::{Protocol, Request};

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);
const FIRST_CONTACT: Flags =
    Flags::NOSCRIPT.union(ANY_TIME).union(Flags::FAST).union(Flags::NO_AUTH).union(Flags::ALLOW_BUSY);

const ROW: Command = Command { categories: Categories::CONNECTION, group: Group::Connection, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "auth", arity: -2, flags: FIRST_CONTACT, handler: Some(auth), ..ROW },
    Command { name: "client", arity: -2, categories: Categories::NONE, subcommands: client::SUBCOMMANDS, ..ROW },
    Command { name: "echo", arity: 2, flags: ANY_TIME.union(Flags::FAST), handler: Some(echo), ..ROW },
    Command { name: "hello", arity: -1, flags: FIRST_CONTACT, handler: Some(hello), ..ROW },
    Command {
        name: "ping",
        tips: Tips::ALL_SHARDS.union(Tips::ALL_SUCCEEDED),
        arity: -1,
        flags: Flags::FAST,
        handler: Some(ping),
        ..ROW
    },
    Command { name: "quit", arity: -1, flags: FIRST_CONTACT, handler: Some(quit), ..ROW },
    Command { name: "reset", arity: 1, flags: FIRST_CONTACT, handler: Some(reset), ..ROW },
    Command { name: "select", arity: 2, flags: ANY_TIME.union(Flags::FAST), handler: Some(select), ..ROW },
];

fn ping(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.len() <= 2 && pubsub::pong(context, request.get(1).unwrap_or_default()) {
        return Ok(());
    }
    match (request.len(), request.get(1)) {
        (1, _) => context.reply.simple("PONG"),
        (2, Some(message)) => context.reply.bulk(message),
        _ => return Err(Error::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

fn echo(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    context.reply.bulk(&request[1]);
    Ok(())
}

fn select(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let index = int(&request[1])?;
    let index = usize::try_from(index).ok().filter(|&index| index < context.store.dbs.len());
    let Some(index) = index else {
        context.store.refuse_in_cluster("SELECT is not allowed in cluster mode")?;
        return Err(Error::DB_INDEX);
    };
    context.session().db = index;
    context.reply.ok();
    Ok(())
}

fn quit(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    context.session().close = Some(Close::AfterOutput);
    context.reply.ok();
    Ok(())
}

fn reset(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let session = context.session();
    if session.is_master || session.replica.is_some() {
        return Err(Error::text("ERR can only reset normal client connections"));
    }
    let authenticated = !context.store.acl.needs_login();
    transactions::end(context);
    context.store.stop_listening_at_all(context.slot);
    context.store.stop_tracking(context.slot);
    context.store.stop_monitoring(context.slot);
    let session = context.session();
    session.db = 0;
    session.protocol = Protocol::Resp2;
    session.log_in(acl::DEFAULT, b"default");
    session.authenticated = authenticated;
    session.reply_mode = ReplyMode::On;
    session.no_evict = false;
    session.no_touch = false;
    session.name = Vec::new();
    context.reply.set_protocol(Protocol::Resp2);
    context.reply.simple("RESET");
    Ok(())
}

fn auth(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (user, password) = match request.len() {
        2 if context.store.acl.default_needs_no_password() => {
            return Err(Error::text(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ));
        }
        2 => (&b"default"[..], &request[1]),
        3 => (&request[1], &request[2]),
        _ => return Err(Error::SYNTAX),
    };
    context.log_in(user, password, request)?;
    context.reply.ok();
    Ok(())
}

fn hello(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let protocol = match request.get(1) {
        None => context.reply.protocol(),
        Some(version) => match integer(version) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Err(Error::text("NOPROTO unsupported protocol version")),
            Err(_) => return Err(Error::text("ERR Protocol version is not an integer or out of range")),
        },
    };
    let mut credentials = None;
    let mut name = None;
    let mut at = 2;
    while let Some(option) = request.get(at) {
        if is(option, "auth") && request.len() > at + 2 {
            credentials = Some((&request[at + 1], &request[at + 2]));
            at += 3;
        } else if is(option, "setname") && request.len() > at + 1 {
            name = Some(client::valid_name(&request[at + 1])?);
            at += 2;
        } else {
            return Err(Error::showing("ERR Syntax error in HELLO option '", option, "'"));
        }
    }
    if let Some((user, password)) = credentials {
        context.log_in(user, password, request)?;
    }
    if !context.session().authenticated && context.store.acl.needs_login() {
        return Err(Error::text(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    let session = context.session();
    if let Some(name) = name {
        session.name = copied(name)?;
    }
    session.protocol = protocol;
    let id = session.id;
    let role = if context.store.replication.has_master() { "replica" } else { "master" };
    let reply = &mut context.reply;
    reply.set_protocol(protocol);
    reply.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(id as i64);
    for (field, value) in [("mode", cluster::mode(context.store)), ("role", role)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}
