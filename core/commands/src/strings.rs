//! Strings.

use crate::{
    Context, Outcome,
    table::{Categories, Command, Flags, KeyFlags, Keys},
};
use kayvee_keyspace::Value;
use kayvee_resp::Request;

pub static COMMANDS: &[Command] = &[Command {
    name: "get",
    arity: 2,
    flags: Flags::READONLY.union(Flags::FAST),
    keys: &[Keys { first: 1, last: 1, step: 1, flags: KeyFlags::RO.union(KeyFlags::ACCESS) }],
    categories: Categories::STRING,
    group: "string",
    since: "1.0.0",
    summary: "Returns the string stored at a key.",
    handler: Some(get),
    ..Command::ROW
}];

fn get(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    match context.read(&request[1]) {
        None => context.reply.null(),
        Some(found) => {
            let index = context.db_index();
            match context.store.dbs[index].value(found) {
                Value::Bytes(bytes) => context.reply.bulk(bytes),
                Value::Integer(number) => context.reply.bulk(kayvee_keyspace::Decimal::new(number).as_bytes()),
            }
        }
    }
    Ok(())
}
