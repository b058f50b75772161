//! Combining strings bit by bit.

use super::with_string;
use crate::{Context, Error, EventClass, Outcome, args};
use alloc::vec::Vec;
use kayvee_keyspace::{Expiry, Owned};
use kayvee_resp::Request;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
}

impl Operation {
    fn parse(arg: &[u8]) -> Result<Operation, Error> {
        const NAMES: [(&str, Operation); 4] =
            [("and", Operation::And), ("or", Operation::Or), ("xor", Operation::Xor), ("not", Operation::Not)];
        NAMES.iter().find(|(name, _)| args::is(arg, name)).map(|(_, operation)| *operation).ok_or(Error::SYNTAX)
    }
}

pub fn bitop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let operation = Operation::parse(&request[1])?;
    if operation == Operation::Not && request.len() != 4 {
        return Err(Error::text("ERR BITOP NOT must be called with a single source key."));
    }
    let mut len = 0;
    for key in request.from(3) {
        len = len.max(with_string(context, key, <[u8]>::len)?);
    }
    let target = &request[2];
    if len == 0 {
        if let Some(found) = context.find(target) {
            context.remove(target, found);
        }
    } else {
        let result = combined(context, request, operation, len)?;
        let now_ms = context.now_ms();
        context.db().set(target, Owned::Raw(result), Expiry::Never, now_ms)?;
        context.changed(EventClass::STRING, "set", target);
    }
    context.reply.integer(len as i64);
    Ok(())
}

fn combined(
    context: &mut Context<'_>,
    request: Request<'_>,
    operation: Operation,
    len: usize,
) -> Result<Vec<u8>, Error> {
    if len as u64 > context.store.data_room_bytes() {
        return Err(Error::OUT_OF_MEMORY);
    }
    let mut result = Vec::new();
    result.try_reserve_exact(len).map_err(|_| Error::OUT_OF_MEMORY)?;
    let index = context.db_index();
    for (at, key) in request.from(3).enumerate() {
        // They were looked for already, which counted as a hit or miss.
        let found = context.find(key);
        let value = found.map(|found| context.store.dbs[index].value(found));
        let value = value.unwrap_or(kayvee_keyspace::Value::Bytes(&[]));
        crate::strings::with_text(value, |bytes| {
            if at == 0 {
                result.extend_from_slice(bytes);
                result.resize(len, 0);
                return;
            }
            let (common, rest) = result.split_at_mut(bytes.len());
            let pairs = common.iter_mut().zip(bytes);
            match operation {
                Operation::And => {
                    pairs.for_each(|(to, byte)| *to &= byte);
                    rest.fill(0);
                }
                Operation::Or => pairs.for_each(|(to, byte)| *to |= byte),
                Operation::Xor => pairs.for_each(|(to, byte)| *to ^= byte),
                Operation::Not => unreachable!("it has one source"),
            }
        });
    }
    if operation == Operation::Not {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    Ok(result)
}
