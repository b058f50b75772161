//! `string.gsub`.

use super::pattern::{Capture, Found, Matcher, steps_for};
use crate::{
    error::Raise,
    heap::Heap,
    machine::{Args, Flow, Machine, Meta, NativeResult},
    number::format_number,
    thread::Cont,
    value::{StringRef, TableRef, Value},
};
use alloc::{boxed::Box, format, vec::Vec};

/// A substitution in progress.
#[derive(Debug)]
pub(crate) struct Gsub {
    subject: StringRef,
    pattern: StringRef,
    replacement: Value,
    out: Vec<u8>,
    /// How much of the subject is done with.
    at: usize,
    count: usize,
    limit: usize,
    /// The match that is being replaced.
    matched: Option<(usize, usize)>,
    steps_left: usize,
}

impl Gsub {
    pub fn mark(&self, heap: &mut Heap) {
        heap.mark(Value::String(self.subject));
        heap.mark(Value::String(self.pattern));
        heap.mark(self.replacement);
    }
}

pub(super) fn gsub(machine: &mut Machine, args: Args) -> NativeResult {
    let subject = machine.check_string(args, 0)?;
    let pattern = machine.check_string(args, 1)?;
    let replacement = match machine.arg(args, 2) {
        Value::Number(_) => Value::String(machine.check_string(args, 2)?),
        value @ (Value::String(_) | Value::Table(_)) => value,
        value if Machine::is_function(value) => value,
        _ => return Err(machine.type_expected(args, 2, "string/function/table")),
    };
    let len = machine.heap.bytes(subject).len();
    let limit = machine.opt_integer(args, 3, len as i64 + 1)?.max(0) as usize;
    let steps_left = steps_for(len);
    let state =
        Gsub { subject, pattern, replacement, out: Vec::new(), at: 0, count: 0, limit, matched: None, steps_left };
    run(machine, Box::new(state))
}

pub(crate) fn proceed(machine: &mut Machine, mut state: Box<Gsub>, results: Args) -> NativeResult {
    let value = machine.arg(results, 0);
    add_value(machine, &mut state, value)?;
    run(machine, state)
}

/// Appends a part of the subject.
fn copy(machine: &mut Machine, state: &mut Gsub, start: usize, end: usize) -> Result<(), Raise> {
    machine.reserve(&mut state.out, end - start)?;
    state.out.extend_from_slice(&machine.heap.bytes(state.subject)[start..end]);
    Ok(())
}

fn add_value(machine: &mut Machine, state: &mut Gsub, value: Value) -> Result<(), Raise> {
    let (start, end) = state.matched.unwrap_or_default();
    match value {
        Value::Nil | Value::Boolean(false) => copy(machine, state, start, end),
        Value::String(_) | Value::Number(_) => {
            if let Value::String(string) = value {
                let len = machine.heap.bytes(string).len();
                machine.reserve(&mut state.out, len)?;
            }
            machine.append(value, &mut state.out).map(|_| ())
        }
        _ => Err(format!("invalid replacement value (a {})", value.type_name()).into()),
    }
}

fn run(machine: &mut Machine, mut state: Box<Gsub>) -> NativeResult {
    let len = machine.heap.bytes(state.subject).len();
    let is_anchored = machine.heap.bytes(state.pattern).first() == Some(&b'^');
    loop {
        if let Some((start, end)) = state.matched.take() {
            if end > start {
                state.at = end;
            } else if state.at < len {
                // An empty match must not be found again.
                let at = state.at;
                copy(machine, &mut state, at, at + 1)?;
                state.at += 1;
            } else {
                break;
            }
            if is_anchored {
                break;
            }
        }
        if state.count >= state.limit {
            break;
        }
        let (text, pattern) = (machine.heap.bytes(state.subject), machine.heap.bytes(state.pattern));
        let mut matcher = Matcher::with_steps(text, pattern, state.steps_left);
        let found = if is_anchored { matcher.find_here(state.at, 1) } else { matcher.find(state.at) };
        state.steps_left = matcher.steps_left();
        let Some(found) = found.map_err(Raise::positioned)? else { break };
        let from = state.at;
        copy(machine, &mut state, from, found.start)?;
        state.at = found.start;
        state.count += 1;
        state.matched = Some((found.start, found.end));
        if let Some(count) = replace(machine, &mut state, &found)? {
            return Ok(Flow::Call(count, Cont::Gsub(state)));
        }
    }
    let from = state.at;
    copy(machine, &mut state, from, len)?;
    let text = machine.heap.string_from(core::mem::take(&mut state.out))?;
    machine.push(Value::String(text))?;
    machine.push(Value::Number(state.count as f64))?;
    Ok(Flow::Many(2))
}

/// Appends the replacement of a match, or prepares the call that gives it: then the number of its arguments is returned.
fn replace(machine: &mut Machine, state: &mut Gsub, found: &Found) -> Result<Option<usize>, Raise> {
    match state.replacement {
        Value::String(template) => expand(machine, state, template, found).map(|()| None),
        Value::Table(table) => {
            let capture = found.capture(0).map_err(Raise::positioned)?;
            let key = machine.capture_value(state.subject, capture)?;
            let (value, method) = look_up(machine, table, key)?;
            if method.is_nil() {
                return add_value(machine, state, value).map(|()| None);
            }
            machine.push(method)?;
            machine.push(value)?;
            machine.push(key)?;
            Ok(Some(2))
        }
        function => {
            machine.push(function)?;
            machine.push_captures(state.subject, found, true).map(Some)
        }
    }
}

/// A field along the chain of `__index` tables; or the function that gives it, with the table that it is called for.
fn look_up(machine: &mut Machine, table: TableRef, key: Value) -> Result<(Value, Value), Raise> {
    const CHAIN_LIMIT: usize = 100;
    let mut table = table;
    for _ in 0..CHAIN_LIMIT {
        let value = machine.heap.get(table, key);
        let method = if value.is_nil() { machine.metamethod(Value::Table(table), Meta::Index) } else { Value::Nil };
        match method {
            Value::Nil => return Ok((value, Value::Nil)),
            Value::Table(next) => table = next,
            method => return Ok((Value::Table(table), method)),
        }
    }
    Err(Raise::positioned("loop in gettable"))
}

/// Appends a replacement text, in which `%1` stands for a capture.
fn expand(machine: &mut Machine, state: &mut Gsub, template: StringRef, found: &Found) -> Result<(), Raise> {
    let len = machine.heap.bytes(template).len();
    let mut at = 0;
    while at < len {
        let rest = &machine.heap.bytes(template)[at..];
        let plain = rest.iter().position(|b| *b == b'%').unwrap_or(rest.len());
        if plain > 0 {
            machine.reserve(&mut state.out, plain)?;
            state.out.extend_from_slice(&machine.heap.bytes(template)[at..at + plain]);
            at += plain;
            continue;
        }
        let digit = rest.get(1).copied();
        at += 2;
        match digit {
            Some(b'0') => copy(machine, state, found.start, found.end)?,
            Some(digit @ b'1'..=b'9') => match found.capture(usize::from(digit - b'1')).map_err(Raise::positioned)? {
                Capture::Text(start, end) => copy(machine, state, start, end)?,
                Capture::Position(at) => format_number((at + 1) as f64, &mut state.out),
                Capture::Open(_) => return Err(Raise::positioned("unfinished capture")),
            },
            Some(other) => {
                machine.reserve(&mut state.out, 1)?;
                state.out.push(other);
            }
            // C's Lua copies the zero byte that ends the string.
            None => state.out.push(0),
        }
    }
    Ok(())
}
