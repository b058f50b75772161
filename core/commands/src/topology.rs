//! Commands about other servers and about modules: what a client that asks gets to hear from a store that stands alone.

use crate::{
    Context, Error, Outcome,
    server::help,
    table::{Categories, Command, Flags},
};
use kayvee_resp::Request;

const CLUSTER_CLIENT: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::FAST);
const ROW: Command = Command { group: "server", ..Command::ROW };
const CLUSTER_ROW: Command = Command {
    arity: 1,
    flags: CLUSTER_CLIENT,
    categories: Categories::CONNECTION,
    group: "cluster",
    since: "3.0.0",
    handler: Some(no_cluster),
    ..Command::ROW
};

pub static COMMANDS: &[Command] = &[
    Command {
        name: "asking",
        flags: Flags::FAST,
        summary: "Means the next command for a slot that moves.",
        ..CLUSTER_ROW
    },
    Command {
        name: "cluster",
        arity: -2,
        flags: Flags::NONE,
        categories: Categories::NONE,
        complexity: "Depends on the subcommand",
        summary: "Commands about a cluster. Kayvee is in none.",
        ..CLUSTER_ROW
    },
    Command {
        name: "module",
        arity: -2,
        since: "4.0.0",
        complexity: "Depends on the subcommand",
        summary: "Commands about modules. Kayvee loads none.",
        subcommands: MODULE_SUBCOMMANDS,
        ..ROW
    },
    Command { name: "readonly", summary: "Reads from a cluster's replica.", ..CLUSTER_ROW },
    Command { name: "readwrite", summary: "Ends READONLY.", ..CLUSTER_ROW },
];

static MODULE_SUBCOMMANDS: &[Command] = &[
    Command {
        name: "help",
        arity: 2,
        flags: Flags::LOADING.union(Flags::STALE),
        since: "5.0.0",
        summary: "Explains the subcommands.",
        handler: Some(|context, _| {
            help(context, "MODULE", MODULE_SUBCOMMANDS);
            Ok(())
        }),
        ..ROW
    },
    Command {
        name: "list",
        arity: 2,
        flags: Flags::ADMIN.union(Flags::NOSCRIPT),
        since: "4.0.0",
        complexity: "O(N) where N is the number of modules",
        summary: "Lists the modules that are loaded: none.",
        tips: &["nondeterministic_output_order"],
        handler: Some(|context, _| {
            context.reply.array(0);
            Ok(())
        }),
        ..ROW
    },
    Command {
        name: "load",
        arity: -3,
        flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING),
        since: "4.0.0",
        summary: "Loads a module. Kayvee runs no foreign machine code.",
        handler: Some(|_, _| Err(Error::text("ERR MODULE command not allowed. Kayvee loads no modules."))),
        ..ROW
    },
];

fn no_cluster(_: &mut Context<'_>, _: Request<'_>) -> Outcome {
    Err(Error::text("ERR This instance has cluster support disabled"))
}
