//! `MODULE`: what a client hears from a store that loads none.

use crate::{
    Error,
    server::help,
    table::{Command, Flags, Group, Tips},
};

const ROW: Command = Command { group: Group::Server, ..Command::ROW };
pub static COMMANDS: &[Command] = &[Command { name: "module", arity: -2, subcommands: MODULE_SUBCOMMANDS, ..ROW }];

static MODULE_SUBCOMMANDS: &[Command] = &[
    ROW.help(|context, _| help(context, "MODULE", MODULE_SUBCOMMANDS)),
    Command {
        name: "list",
        arity: 2,
        flags: Flags::ADMIN.union(Flags::NOSCRIPT),
        tips: Tips::NONDETERMINISTIC_OUTPUT_ORDER,
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
        handler: Some(|_, _| Err(Error::text("ERR MODULE command not allowed. Kayvee loads no modules."))),
        ..ROW
    },
];
