//! `CLUSTER`: what a client hears from a store that is in no cluster, whatever it asks.

use crate::{
    Context, Error, Outcome,
    table::{Categories, Command, Flags, Group, Tips},
};
use kayvee_resp::Request;

const LOOKS: Flags = Flags::ADMIN.union(Flags::STALE);
const CHANGES: Flags = LOOKS.union(Flags::NO_ASYNC_LOADING);
const RESETS: Flags = LOOKS.union(Flags::NOSCRIPT);
const CLIENT: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::FAST);
const CLIENT_ROW: Command = Command { arity: 1, flags: CLIENT, categories: Categories::CONNECTION, ..ROW };
const ROW: Command = Command { group: Group::Cluster, handler: Some(disabled), ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command { name: "asking", flags: Flags::FAST, ..CLIENT_ROW },
    Command { name: "cluster", arity: -2, handler: None, subcommands: SUBCOMMANDS, ..ROW },
    Command { name: "readonly", ..CLIENT_ROW },
    Command { name: "readwrite", ..CLIENT_ROW },
];

const fn sub(name: &'static str, arity: i16, flags: Flags) -> Command {
    Command { name, arity, flags, ..ROW }
}

/// One whose replies differ from time to time.
const fn varying(command: Command) -> Command {
    Command { tips: Tips::NONDETERMINISTIC_OUTPUT, ..command }
}

static SUBCOMMANDS: &[Command] = &[
    sub("addslots", -3, CHANGES),
    sub("addslotsrange", -4, CHANGES),
    varying(sub("bumpepoch", 2, CHANGES)),
    varying(sub("count-failure-reports", 3, LOOKS)),
    sub("countkeysinslot", 3, Flags::STALE),
    sub("delslots", -3, CHANGES),
    sub("delslotsrange", -4, CHANGES),
    sub("failover", -2, CHANGES),
    sub("flushslots", 2, CHANGES),
    sub("forget", 3, CHANGES),
    varying(sub("getkeysinslot", 4, Flags::STALE)),
    sub("help", 2, Flags::LOADING.union(Flags::STALE)),
    varying(sub("info", 2, Flags::STALE)),
    sub("keyslot", 3, Flags::STALE),
    varying(sub("links", 2, Flags::STALE)),
    sub("meet", -4, CHANGES),
    sub("myid", 2, Flags::STALE),
    varying(sub("myshardid", 2, Flags::STALE)),
    varying(sub("nodes", 2, Flags::STALE)),
    varying(sub("replicas", 3, LOOKS)),
    sub("replicate", 3, CHANGES),
    sub("reset", -2, RESETS),
    sub("saveconfig", 2, CHANGES),
    sub("set-config-epoch", 3, CHANGES),
    sub("setslot", -4, CHANGES),
    varying(sub("shards", 2, Flags::STALE)),
    varying(sub("slaves", 3, LOOKS)),
    varying(sub("slots", 2, Flags::STALE)),
];

fn disabled(_: &mut Context<'_>, _: Request<'_>) -> Outcome {
    Err(Error::text("ERR This instance has cluster support disabled"))
}
