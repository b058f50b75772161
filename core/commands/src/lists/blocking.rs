//! The commands that wait for a list to have elements.

use super::{
    end,
    ends::{Several, pop_name, take},
    find,
    moves::move_element,
};
use crate::{
    Context, Outcome,
    blocking::{OnTimeout, Patience, timeout_ns},
};
use kayvee_keyspace::{Kind, ListEnd};
use kayvee_resp::Request;

fn patience(timeout_ns: Option<u64>) -> Patience {
    Patience { kind: Some(Kind::List), timeout_ns, on_timeout: OnTimeout::NullArray }
}

pub fn blpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    pop(context, request, ListEnd::Front)
}

pub fn brpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    pop(context, request, ListEnd::Back)
}

fn pop(context: &mut Context<'_>, request: Request<'_>, end: ListEnd) -> Outcome {
    let last = request.len() - 1;
    let timeout_ns = timeout_ns(&request[last])?;
    let keys = request.first(last).skip(1);
    for key in keys.from(0) {
        if let Some(found) = find(context, key)? {
            context.reply.array(2);
            context.reply.bulk(key);
            take(context, key, found, end, 1)?;
            context.effect(&[pop_name(end), key]);
            return Ok(());
        }
    }
    context.block(request.from(0), keys.from(0), patience(timeout_ns))
}

pub fn blmpop(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let timeout_ns = timeout_ns(&request[1])?;
    let several = Several::parse(request.skip(2))?;
    if several.serve(context)? {
        return Ok(());
    }
    context.block(request.from(0), several.keys.from(0), patience(timeout_ns))
}

pub fn blmove(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (from, to) = (end(&request[3])?, end(&request[4])?);
    move_or_wait(context, request, from, to)
}

pub fn brpoplpush(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    move_or_wait(context, request, ListEnd::Back, ListEnd::Front)
}

fn move_or_wait(context: &mut Context<'_>, request: Request<'_>, from: ListEnd, to: ListEnd) -> Outcome {
    let timeout_ns = timeout_ns(&request[request.len() - 1])?;
    let source = &request[1];
    match find(context, source)? {
        Some(found) => {
            let target = &request[2];
            move_element(context, (source, from), found, (target, to))?;
            match request.len() {
                4 => context.effect(&[b"RPOPLPUSH", source, target]),
                _ => context.effect(&[b"LMOVE", source, target, &request[3], &request[4]]),
            }
            Ok(())
        }
        // As in Redis, one that may not wait finds a null here, and one that has waited for too long a null array.
        None if !context.may_block() => {
            context.reply.null();
            Ok(())
        }
        None => context.block(request.from(0), request.first(2).from(1), patience(timeout_ns)),
    }
}
