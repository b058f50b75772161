use crate::table::Command;

pub static COMMANDS: &[Command] = &[];
