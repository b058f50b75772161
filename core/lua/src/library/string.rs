//! The library `string`.

use super::{
    Functions, STACK_LIMIT, add_library,
    pattern::{Capture, Found, Matcher, find_plain, is_plain},
};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, Native, NativeResult},
    value::{StringRef, Value},
};
use alloc::vec::Vec;

const FUNCTIONS: &Functions = &[
    ("byte", byte),
    ("char", char),
    ("dump", dump),
    ("find", find),
    ("format", super::format::format),
    ("gfind", gmatch),
    ("gmatch", gmatch),
    ("gsub", super::gsub::gsub),
    ("len", len),
    ("lower", lower),
    ("match", match_),
    ("rep", rep),
    ("reverse", reverse),
    ("sub", sub),
    ("upper", upper),
];

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    let table = add_library(machine, "string", FUNCTIONS)?;
    let meta = machine.heap.table(0, 1)?;
    machine.heap.set_str(meta, "__index", Value::Table(table))?;
    machine.string_meta = Some(meta);
    if let Value::Native(native) = machine.add_native(Native::Library(gmatch_next)) {
        machine.library.gmatch = native;
    }
    Ok(())
}

/// A copy of an argument's bytes.
pub(super) fn bytes_of(machine: &mut Machine, args: Args, index: usize) -> Result<Vec<u8>, Raise> {
    let string = machine.check_string(args, index)?;
    let bytes = machine.heap.bytes(string);
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Raise::OutOfMemory)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// A position that may count from the end.
fn position(position: i64, len: usize) -> i64 {
    if position >= 0 { position } else { position.saturating_add(len as i64 + 1).max(0) }
}

fn len(machine: &mut Machine, args: Args) -> NativeResult {
    let string = machine.check_string(args, 0)?;
    Ok(Flow::One(Value::Number(machine.heap.bytes(string).len() as f64)))
}

fn sub(machine: &mut Machine, args: Args) -> NativeResult {
    let string = machine.check_string(args, 0)?;
    let len = machine.heap.bytes(string).len();
    let from = position(machine.check_integer(args, 1)?, len).max(1) as usize;
    let to = position(machine.opt_integer(args, 2, -1)?, len).min(len as i64) as usize;
    if from > to {
        return Ok(Flow::One(Value::String(machine.heap.string(b"")?)));
    }
    if from == 1 && to == len {
        return Ok(Flow::One(Value::String(string)));
    }
    let mut part = Vec::new();
    machine.reserve(&mut part, to - from + 1)?;
    part.extend_from_slice(&machine.heap.bytes(string)[from - 1..to]);
    Ok(Flow::One(Value::String(machine.heap.string_from(part)?)))
}

fn mapped(machine: &mut Machine, args: Args, map: fn(&mut [u8])) -> NativeResult {
    let string = machine.check_string(args, 0)?;
    let mut bytes = Vec::new();
    machine.reserve(&mut bytes, machine.heap.bytes(string).len())?;
    bytes.extend_from_slice(machine.heap.bytes(string));
    map(&mut bytes);
    Ok(Flow::One(Value::String(machine.heap.string_from(bytes)?)))
}

fn lower(machine: &mut Machine, args: Args) -> NativeResult {
    mapped(machine, args, <[u8]>::make_ascii_lowercase)
}

fn upper(machine: &mut Machine, args: Args) -> NativeResult {
    mapped(machine, args, <[u8]>::make_ascii_uppercase)
}

fn reverse(machine: &mut Machine, args: Args) -> NativeResult {
    mapped(machine, args, <[u8]>::reverse)
}

fn rep(machine: &mut Machine, args: Args) -> NativeResult {
    let string = machine.check_string(args, 0)?;
    let count = machine.check_integer(args, 1)?.max(0) as usize;
    let len = machine.heap.bytes(string).len().saturating_mul(count);
    let mut text = Vec::new();
    machine.reserve(&mut text, len)?;
    if len > 0 {
        let bytes = machine.heap.bytes(string);
        for _ in 0..count {
            text.extend_from_slice(bytes);
        }
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(text)?)))
}

fn byte(machine: &mut Machine, args: Args) -> NativeResult {
    let string = machine.check_string(args, 0)?;
    let len = machine.heap.bytes(string).len();
    let first = machine.opt_integer(args, 1, 1)?;
    let from = position(first, len).max(1);
    let to = position(machine.opt_integer(args, 2, position(first, len))?, len).min(len as i64);
    if from > to {
        return Ok(Flow::None);
    }
    let count = (to - from + 1) as usize;
    if count + args.len > STACK_LIMIT {
        return Err(Raise::positioned("string slice too long"));
    }
    for at in from - 1..to {
        let byte = machine.heap.bytes(string)[at as usize];
        machine.push(Value::Number(byte.into()))?;
    }
    Ok(Flow::Many(count))
}

fn char(machine: &mut Machine, args: Args) -> NativeResult {
    let mut text = Vec::new();
    for index in 0..args.len {
        let code = machine.check_integer(args, index)?;
        text.push(u8::try_from(code).map_err(|_| Raise::argument(index, "invalid value"))?);
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(text)?)))
}

fn dump(machine: &mut Machine, args: Args) -> NativeResult {
    if !Machine::is_function(machine.arg(args, 0)) {
        return Err(machine.type_expected(args, 0, "function"));
    }
    // There is no bytecode to take away: only the mark that it begins with, which nothing here loads.
    Ok(Flow::One(Value::String(machine.heap.string(b"\x1bLua")?)))
}

impl Machine {
    /// The value of a capture.
    pub(super) fn capture_value(&mut self, subject: StringRef, capture: Capture) -> Result<Value, Raise> {
        match capture {
            Capture::Text(start, end) => {
                let mut text = Vec::new();
                self.reserve(&mut text, end - start)?;
                text.extend_from_slice(&self.heap.bytes(subject)[start..end]);
                Ok(Value::String(self.heap.string_from(text)?))
            }
            Capture::Position(at) => Ok(Value::Number((at + 1) as f64)),
            Capture::Open(_) => Err(Raise::positioned("unfinished capture")),
        }
    }

    /// Pushes all captures of a match; the whole match if it has none and that is wanted.
    pub(super) fn push_captures(&mut self, subject: StringRef, found: &Found, or_whole: bool) -> Result<usize, Raise> {
        let count = if or_whole { found.captures().len().max(1) } else { found.captures().len() };
        for index in 0..count {
            let capture = found.capture(index).map_err(Raise::positioned)?;
            let value = self.capture_value(subject, capture)?;
            self.push(value)?;
        }
        Ok(count)
    }
}

/// The subject, the pattern and where the search begins, or `None` behind the end.
fn search(machine: &mut Machine, args: Args) -> Result<(StringRef, StringRef, usize), Raise> {
    let subject = machine.check_string(args, 0)?;
    let pattern = machine.check_string(args, 1)?;
    let len = machine.heap.bytes(subject).len();
    let start = position(machine.opt_integer(args, 2, 1)?, len) - 1;
    Ok((subject, pattern, start.clamp(0, len as i64) as usize))
}

fn find(machine: &mut Machine, args: Args) -> NativeResult {
    let (subject, pattern, start) = search(machine, args)?;
    let (text, bytes) = (machine.heap.bytes(subject), machine.heap.bytes(pattern));
    if machine.arg(args, 3).is_truthy() || is_plain(bytes) {
        let Some(at) = find_plain(text, bytes, start).map_err(Raise::positioned)? else {
            return Ok(Flow::One(Value::Nil));
        };
        let end = at + bytes.len();
        machine.push(Value::Number((at + 1) as f64))?;
        machine.push(Value::Number(end as f64))?;
        return Ok(Flow::Many(2));
    }
    let Some(found) = Matcher::new(text, bytes).find(start).map_err(Raise::positioned)? else {
        return Ok(Flow::One(Value::Nil));
    };
    machine.push(Value::Number((found.start + 1) as f64))?;
    machine.push(Value::Number(found.end as f64))?;
    Ok(Flow::Many(2 + machine.push_captures(subject, &found, false)?))
}

fn match_(machine: &mut Machine, args: Args) -> NativeResult {
    let (subject, pattern, start) = search(machine, args)?;
    let mut matcher = Matcher::new(machine.heap.bytes(subject), machine.heap.bytes(pattern));
    match matcher.find(start).map_err(Raise::positioned)? {
        Some(found) => Ok(Flow::Many(machine.push_captures(subject, &found, true)?)),
        None => Ok(Flow::One(Value::Nil)),
    }
}

fn gmatch(machine: &mut Machine, args: Args) -> NativeResult {
    let subject = machine.check_string(args, 0)?;
    let pattern = machine.check_string(args, 1)?;
    let values = [Value::String(subject), Value::String(pattern), Value::Number(0.0)];
    let bound = machine.heap.bound(machine.library.gmatch, values)?;
    Ok(Flow::One(Value::Bound(bound)))
}

fn gmatch_next(machine: &mut Machine, args: Args) -> NativeResult {
    let Value::Bound(bound) = machine.thread.stack[args.base - 1] else { return Ok(Flow::None) };
    let [Value::String(subject), Value::String(pattern), Value::Number(from)] = machine.heap.bounds[bound.0].values
    else {
        return Ok(Flow::None);
    };
    let (text, pattern) = (machine.heap.bytes(subject), machine.heap.bytes(pattern));
    let mut matcher = Matcher::new(text, pattern);
    for start in from as usize..=text.len() {
        if let Some(found) = matcher.find_here(start, 0).map_err(Raise::positioned)? {
            // An empty match must not be found again.
            let next = if found.end == found.start { found.end + 1 } else { found.end };
            machine.heap.bounds[bound.0].values[2] = Value::Number(next as f64);
            return Ok(Flow::Many(machine.push_captures(subject, &found, true)?));
        }
    }
    machine.heap.bounds[bound.0].values[2] = Value::Number((text.len() + 1) as f64);
    Ok(Flow::One(Value::Nil))
}
