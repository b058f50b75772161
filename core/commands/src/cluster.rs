//! `CLUSTER`: what a client hears from a store that is in no cluster, whatever it asks.

use crate::{
    Context, Error, Outcome,
    table::{Categories, Command, Flags},
};
use kayvee_resp::Request;

const LOOKS: Flags = Flags::ADMIN.union(Flags::STALE);
const CHANGES: Flags = LOOKS.union(Flags::NO_ASYNC_LOADING);
const RESETS: Flags = LOOKS.union(Flags::NOSCRIPT);
const CLIENT: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::FAST);
const CLIENT_ROW: Command = Command { arity: 1, flags: CLIENT, categories: Categories::CONNECTION, ..ROW };
const ROW: Command = Command { group: "cluster", since: "3.0.0", handler: Some(disabled), ..Command::ROW };

pub static COMMANDS: &[Command] = &[
    Command {
        name: "asking",
        flags: Flags::FAST,
        summary: "Means the next command for a slot that moves.",
        ..CLIENT_ROW
    },
    Command {
        name: "cluster",
        arity: -2,
        complexity: "Depends on the subcommand",
        summary: "Commands about a cluster. Kayvee is in none.",
        handler: None,
        subcommands: SUBCOMMANDS,
        ..ROW
    },
    Command { name: "readonly", summary: "Reads from a cluster's replica.", ..CLIENT_ROW },
    Command { name: "readwrite", summary: "Ends READONLY.", ..CLIENT_ROW },
];

const fn sub(name: &'static str, arity: i16, flags: Flags, since: &'static str, summary: &'static str) -> Command {
    Command { name, arity, flags, since, summary, ..ROW }
}

/// One whose replies differ from time to time.
const fn varying(command: Command) -> Command {
    Command { tips: &["nondeterministic_output"], ..command }
}

static SUBCOMMANDS: &[Command] = &[
    sub("addslots", -3, CHANGES, "3.0.0", "Gives slots to the node."),
    sub("addslotsrange", -4, CHANGES, "7.0.0", "Gives ranges of slots to the node."),
    varying(sub("bumpepoch", 2, CHANGES, "3.0.0", "Raises the epoch of the configuration.")),
    varying(sub("count-failure-reports", 3, LOOKS, "3.0.0", "Counts the nodes that hold another one for dead.")),
    sub("countkeysinslot", 3, Flags::STALE, "3.0.0", "Counts the keys of a slot."),
    sub("delslots", -3, CHANGES, "3.0.0", "Takes slots from the node."),
    sub("delslotsrange", -4, CHANGES, "7.0.0", "Takes ranges of slots from the node."),
    sub("failover", -2, CHANGES, "3.0.0", "Has a replica take its master's place."),
    sub("flushslots", 2, CHANGES, "3.0.0", "Takes all slots from the node."),
    sub("forget", 3, CHANGES, "3.0.0", "Forgets a node."),
    varying(sub("getkeysinslot", 4, Flags::STALE, "3.0.0", "Returns some keys of a slot.")),
    sub("help", 2, Flags::LOADING.union(Flags::STALE), "5.0.0", "Explains the subcommands."),
    varying(sub("info", 2, Flags::STALE, "3.0.0", "Tells of the cluster's state.")),
    sub("keyslot", 3, Flags::STALE, "3.0.0", "Returns the slot of a key."),
    varying(sub("links", 2, Flags::STALE, "7.0.0", "Lists the connections to other nodes.")),
    sub("meet", -4, CHANGES, "3.0.0", "Introduces another node."),
    sub("myid", 2, Flags::STALE, "3.0.0", "Returns the node's name."),
    varying(sub("myshardid", 2, Flags::STALE, "7.2.0", "Returns the name of the node's shard.")),
    varying(sub("nodes", 2, Flags::STALE, "3.0.0", "Lists the nodes.")),
    varying(sub("replicas", 3, LOOKS, "5.0.0", "Lists a master's replicas.")),
    sub("replicate", 3, CHANGES, "3.0.0", "Makes the node a replica of another one."),
    sub("reset", -2, RESETS, "3.0.0", "Makes the node one that knows of no others."),
    sub("saveconfig", 2, CHANGES, "3.0.0", "Writes the configuration to the disk."),
    sub("set-config-epoch", 3, CHANGES, "3.0.0", "Sets the epoch of a node that knows of no others."),
    sub("setslot", -4, CHANGES, "3.0.0", "Says whose a slot is."),
    varying(sub("shards", 2, Flags::STALE, "7.0.0", "Lists the shards with their nodes.")),
    Command {
        deprecated: Some(("5.0.0", "`CLUSTER REPLICAS`")),
        ..varying(sub("slaves", 3, LOOKS, "3.0.0", "Lists a master's replicas."))
    },
    Command {
        deprecated: Some(("7.0.0", "`CLUSTER SHARDS`")),
        ..varying(sub("slots", 2, Flags::STALE, "3.0.0", "Lists who has which slots."))
    },
];

fn disabled(_: &mut Context<'_>, _: Request<'_>) -> Outcome {
    Err(Error::text("ERR This instance has cluster support disabled"))
}
