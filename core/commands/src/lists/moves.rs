//! Moving elements from list to list.

use super::{edit, end, find, pop_event, push_event};
use crate::{Context, EventClass, Outcome, args};
use kayvee_keyspace::{Found, ListEnd};
use kayvee_resp::Request;

pub fn lmove(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (from, to) = (end(&request[3])?, end(&request[4])?);
    move_or_null(context, request, from, to)
}

pub fn rpoplpush(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    move_or_null(context, request, ListEnd::Back, ListEnd::Front)
}

fn move_or_null(context: &mut Context<'_>, request: Request<'_>, from: ListEnd, to: ListEnd) -> Outcome {
    let source = &request[1];
    match find(context, source)? {
        Some(found) => move_element(context, (source, from), found, (&request[2], to))?,
        None => context.reply.null(),
    }
    Ok(())
}

/// Moves an element from an end of the list that was found to an end of another one, and replies with it.
pub fn move_element(
    context: &mut Context<'_>,
    (source, from): (&[u8], ListEnd),
    found: Found,
    (target, to): (&[u8], ListEnd),
) -> Outcome {
    let there = find(context, target)?;
    let list = context.db().list(found);
    let index = if from == ListEnd::Front { 0 } else { list.len() - 1 };
    let text = args::copied(list.get(index).expect("a list has elements"))?;
    let is_gone = if source == target {
        let edit = edit(context, source, Some(found), |list, limit| {
            // Adding first leaves the list as it was, if there is no memory for it.
            list.push(to, core::iter::once(text.as_slice()), limit)?;
            if from != to || list.view().len() > 1 {
                list.pop(from, 1, limit);
            }
            Ok(())
        })?;
        context.changed(EventClass::LIST, push_event(to), target);
        edit.is_gone
    } else {
        edit(context, target, there, |list, limit| list.push(to, core::iter::once(text.as_slice()), limit))?;
        context.changed(EventClass::LIST, push_event(to), target);
        // The change of the other list may have moved this one.
        let found = context.find(source);
        let edit = edit(context, source, found, |list, limit| {
            list.pop(from, 1, limit);
            Ok(())
        })?;
        edit.is_gone
    };
    context.reply.bulk(&text);
    context.shrunk(EventClass::LIST, pop_event(from), source, is_gone);
    Ok(())
}
