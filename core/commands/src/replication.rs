//! Copies of the data on other machines: a replica gets all data as a dump file, and from then on every effect.
//!
//! The dump is made in one piece, so there is no partial resynchronisation, and nobody else is served meanwhile.

use crate::{
    Close, Context, Error, Origin, Outcome, Store,
    args::{self, is},
    dump::write_file,
    table::{Command, Flags},
};
use alloc::{format, vec::Vec};
use kayvee_rdb::{Compression, Dialect};
use kayvee_resp::Request;

const SYNC: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING).union(Flags::NO_MULTI);
const ROW: Command = Command { group: "server", flags: SYNC, ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "psync",
        arity: -3,
        since: "2.8.0",
        summary: "Makes the client a replica, which tells what it has already.",
        handler: Some(psync),
        ..ROW
    },
    Command {
        name: "replconf",
        arity: -1,
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE).union(Flags::ALLOW_BUSY),
        since: "3.0.0",
        summary: "Tells about a replica.",
        handler: Some(replconf),
        ..ROW
    },
    Command {
        name: "sync",
        arity: 1,
        since: "1.0.0",
        summary: "Makes the client a replica.",
        handler: Some(|context, _| synchronise(context, "")),
        ..ROW
    },
];

/// A client that gets every effect.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Bytes of the dump that are not sent yet. They count towards no limit of its output.
    pub dump_bytes: usize,
    /// How much of the effects it says that it has.
    pub(crate) acknowledged: u64,
    /// When it said so, in monotonic nanoseconds.
    pub(crate) acknowledged_ns: u64,
}

fn psync(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    let store = &context.store;
    let head = format!("+FULLRESYNC {} {}\r\n", store.run_id, store.effects.offset());
    synchronise(context, &head)
}

fn synchronise(context: &mut Context<'_>, head: &str) -> Outcome {
    if context.origin != Origin::Client {
        return Err(Error::text("ERR This Redis command is not allowed from script"));
    }
    // One that is a replica already has asked twice.
    if context.session().replica.is_some() {
        return Ok(());
    }
    let mut file = Vec::new();
    write_file(context.store, Dialect::Redis72, Compression::Off, |bytes| -> Outcome {
        file.try_reserve(bytes.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
        file.extend_from_slice(bytes);
        Ok(())
    })?;
    context.reply.raw(head.as_bytes());
    context.reply.raw(format!("${}\r\n", file.len()).as_bytes());
    context.reply.raw(&file);
    if context.reply.failed() {
        return Err(Error::OUT_OF_MEMORY);
    }
    let slot = context.slot;
    // What has happened until now is in the file.
    context.store.end_unit();
    context.store.feed_replicas();
    context.store.effects.add_listener();
    context.store.replicas.push(slot);
    let dump_bytes = context.session().output.unsent() + context.reply.len();
    let (acknowledged, acknowledged_ns) = (context.store.effects.offset(), context.store.now.monotonic_ns);
    context.session().replica = Some(Replica { dump_bytes, acknowledged, acknowledged_ns });
    Ok(())
}

fn replconf(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    for at in (1..request.len()).step_by(2) {
        let (option, value) = (&request[at], &request[at + 1]);
        if is(option, "ack") {
            let (acknowledged, now_ns) = (args::integer(value)?.unsigned_abs(), context.store.now.monotonic_ns);
            if let Some(replica) = &mut context.session().replica {
                (replica.acknowledged, replica.acknowledged_ns) = (acknowledged, now_ns);
            }
            // An acknowledgement gets no reply: it would look like an effect.
            return Ok(());
        }
        if is(option, "listening-port") {
            let port = args::integer(value)?;
            context.session().replica_port = u16::try_from(port).map_err(|_| Error::NOT_INTEGER)?;
        }
        let known = ["listening-port", "ip-address", "capa", "getack", "rdb-only", "rdb-filter-only"];
        if !known.iter().any(|name| is(option, name)) {
            return Err(Error::showing("ERR Unrecognized REPLCONF option: ", option, ""));
        }
    }
    context.reply.ok();
    Ok(())
}

impl Store {
    /// Sends the effects of whole units to the replicas. Those that would miss some have to begin anew.
    pub fn feed_replicas(&mut self) {
        if self.effects.is_empty() {
            return;
        }
        let effects = self.effects.take();
        for at in 0..self.replicas.len() {
            let slot = self.replicas[at];
            match &effects {
                Some(effects) => self.send(slot, |writer| writer.raw(effects)),
                None => {
                    if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
                        session.close = Some(Close::Now);
                    }
                    self.touch(slot);
                }
            }
        }
    }

    /// Forgets a replica.
    pub(crate) fn drop_replica(&mut self, slot: u32) {
        if let Some(at) = self.replicas.iter().position(|&replica| replica == slot) {
            self.replicas.swap_remove(at);
            self.effects.remove_listener();
        }
    }
}
