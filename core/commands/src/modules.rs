//! `MODULE`: what a client hears from a store that loads none.

use crate::{
    Error,
    server::help,
    table::{Command, Flags},
};

const ROW: Command = Command { group: "server", ..Command::ROW };
pub static COMMANDS: &[Command] = &[Command {
    name: "module",
    arity: -2,
    since: "4.0.0",
    complexity: "Depends on the subcommand",
    summary: "Commands about modules. Kayvee loads none.",
    subcommands: MODULE_SUBCOMMANDS,
    ..ROW
}];

static MODULE_SUBCOMMANDS: &[Command] = &[
    Command {
        since: "5.0.0",
        ..ROW.help(|context, _| {
            help(context, "MODULE", MODULE_SUBCOMMANDS);
            Ok(())
        })
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
