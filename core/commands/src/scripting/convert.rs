//! Replies to Lua values, and Lua values to replies. Neither recurses with the nesting of what it converts.

use crate::{Error, double::DoubleText, error::c_text};
use alloc::{format, vec::Vec};
use kayvee_lua::{Machine, Raise, TableRef, Value};
use kayvee_resp::{Protocol, Writer};

/// Tables in tables that a reply may show.
const DEPTH_LIMIT: usize = 2000;

/// A table that is being written.
enum Open {
    Array(TableRef, usize, usize),
    /// The key that was written last, and whether its value follows.
    Map(TableRef, Value, bool),
    Set(TableRef, Value),
}

/// The errors that a script has returned.
#[derive(Default)]
pub struct Errors {
    /// Those that have not been counted yet.
    pub uncounted: Vec<Error>,
    /// Whether there are any.
    pub is_any: bool,
}

/// Writes what a script has returned.
pub fn reply(machine: &mut Machine, value: Value, reply: &mut Writer<'_>, script_protocol: Protocol) -> Errors {
    let mut open: Vec<Open> = Vec::new();
    let mut errors = Errors::default();
    put(machine, value, reply, script_protocol, &mut open, &mut errors);
    while let Some(last) = open.last_mut() {
        let next = match last {
            Open::Array(_, next, len) if *next > *len => None,
            Open::Array(table, next, _) => {
                *next += 1;
                Some(machine.heap.get_index(*table, *next - 1))
            }
            Open::Map(table, key, is_value_next) => {
                if *is_value_next {
                    *is_value_next = false;
                    Some(machine.heap.get(*table, *key))
                } else {
                    let entry = machine.heap.next(*table, *key).ok().flatten();
                    entry.map(|(next, _)| {
                        (*key, *is_value_next) = (next, true);
                        next
                    })
                }
            }
            Open::Set(table, key) => {
                let entry = machine.heap.next(*table, *key).ok().flatten();
                entry.map(|(next, _)| {
                    *key = next;
                    next
                })
            }
        };
        match next {
            Some(value) => put(machine, value, reply, script_protocol, &mut open, &mut errors),
            None => _ = open.pop(),
        }
    }
    errors
}

fn put(
    machine: &mut Machine,
    value: Value,
    reply: &mut Writer<'_>,
    script_protocol: Protocol,
    open: &mut Vec<Open>,
    errors: &mut Errors,
) {
    match value {
        Value::String(string) => reply.bulk(machine.heap.bytes(string)),
        // What does not fit, and NaN, is the least number, as x86 converts it: the bound is 2^63.
        Value::Number(number) if !(..9_223_372_036_854_775_808.0).contains(&number) => reply.integer(i64::MIN),
        Value::Number(number) => reply.integer(number as i64),
        Value::Boolean(truth) if script_protocol == Protocol::Resp3 => reply.boolean(truth),
        Value::Boolean(true) => reply.integer(1),
        Value::Table(_) if open.len() >= DEPTH_LIMIT => reply.error(b"ERR reached lua stack limit"),
        Value::Table(table) => put_table(machine, table, reply, open, errors),
        _ => reply.null(),
    }
}

fn put_table(
    machine: &mut Machine,
    table: TableRef,
    reply: &mut Writer<'_>,
    open: &mut Vec<Open>,
    errors: &mut Errors,
) {
    if let Some(text) = text_field(machine, table, "err") {
        let text = c_text(&text, usize::MAX).to_vec();
        reply.error(&text);
        errors.is_any = true;
        if !machine.heap.get_str(table, "ignore_error_stats_update").is_truthy() {
            errors.uncounted.push(text.into());
        }
        return;
    }
    if let Some(text) = text_field(machine, table, "ok") {
        return reply.raw(&[b"+", &in_one_line(c_text(&text, usize::MAX))[..], b"\r\n"].concat());
    }
    if let Value::Number(number) = machine.heap.get_str(table, "double") {
        return reply.double(DoubleText::shortest(number).as_str());
    }
    if let Value::Table(map) = machine.heap.get_str(table, "map") {
        reply.map(count(machine, map));
        return open.push(Open::Map(map, Value::Nil, false));
    }
    if let Value::Table(set) = machine.heap.get_str(table, "set") {
        reply.set(count(machine, set));
        return open.push(Open::Set(set, Value::Nil));
    }
    if let Some(text) = text_field(machine, table, "big_number") {
        return reply.big_number(&alloc::string::String::from_utf8_lossy(&in_one_line(&text)));
    }
    if let Value::Table(verbatim) = machine.heap.get_str(table, "verbatim_string")
        && let (Some(text), Some(format)) =
            (text_field(machine, verbatim, "string"), text_field(machine, verbatim, "format"))
    {
        let mut kind = *b"   ";
        kind.iter_mut().zip(&format).for_each(|(to, from)| *to = *from);
        return reply.verbatim(&kind, &text);
    }
    let mut len = 0;
    while !machine.heap.get_index(table, len + 1).is_nil() {
        len += 1;
    }
    reply.array(len);
    open.push(Open::Array(table, 1, len));
}

fn text_field(machine: &Machine, table: TableRef, name: &str) -> Option<Vec<u8>> {
    match machine.heap.get_str(table, name) {
        Value::String(string) => Some(machine.heap.bytes(string).to_vec()),
        _ => None,
    }
}

fn in_one_line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect()
}

fn count(machine: &Machine, table: TableRef) -> usize {
    let (mut count, mut key) = (0, Value::Nil);
    while let Ok(Some((next, _))) = machine.heap.next(table, key) {
        (key, count) = (next, count + 1);
    }
    count
}

/// A container whose elements follow.
struct Filling {
    /// What the elements go to, and the value that the container becomes.
    table: TableRef,
    whole: Value,
    left: usize,
    kind: Container,
    key: Option<Value>,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Array,
    Map,
    Set,
    /// What comes before a reply and is about it: dropped.
    Attribute,
}

/// Reads a reply that a command has written.
pub fn value(machine: &mut Machine, bytes: &[u8]) -> Result<Value, Raise> {
    let mut at = 0;
    let mut open: Vec<Filling> = Vec::new();
    loop {
        let mut value = match item(machine, bytes, &mut at)? {
            Item::Value(value) => value,
            Item::Container(kind, len) => {
                let table = machine.heap.table(0, 0)?;
                let whole = match kind {
                    Container::Array | Container::Attribute => Value::Table(table),
                    Container::Map => Value::Table(wrapped(machine, "map", Value::Table(table))?),
                    Container::Set => Value::Table(wrapped(machine, "set", Value::Table(table))?),
                };
                let left = if matches!(kind, Container::Map | Container::Attribute) { len * 2 } else { len };
                if left > 0 {
                    open.push(Filling { table, whole, left, kind, key: None, len: 0 });
                    continue;
                }
                whole
            }
        };
        // A complete value: it may complete what it is in.
        loop {
            let Some(filling) = open.last_mut() else { return Ok(value) };
            fill(machine, filling, value)?;
            filling.left -= 1;
            if filling.left > 0 {
                break;
            }
            value = filling.whole;
            let is_dropped = filling.kind == Container::Attribute;
            open.pop();
            if is_dropped {
                break;
            }
        }
    }
}

fn fill(machine: &mut Machine, filling: &mut Filling, value: Value) -> Result<(), Raise> {
    match filling.kind {
        Container::Array => {
            filling.len += 1;
            machine.heap.set_index(filling.table, filling.len, value)?;
        }
        Container::Set => set(machine, filling.table, value, Value::Boolean(true))?,
        Container::Map => match filling.key.take() {
            None => filling.key = Some(value),
            Some(key) => set(machine, filling.table, key, value)?,
        },
        Container::Attribute => {}
    }
    Ok(())
}

/// Sets a field, unless its key cannot be one.
fn set(machine: &mut Machine, table: TableRef, key: Value, value: Value) -> Result<(), Raise> {
    if matches!(key, Value::Nil) || matches!(key, Value::Number(number) if number.is_nan()) {
        return Ok(());
    }
    Ok(machine.heap.set_field(table, key, value)?)
}

/// A table with one field.
pub fn wrapped(machine: &mut Machine, name: &str, value: Value) -> Result<TableRef, Raise> {
    let table = machine.heap.table(0, 1)?;
    machine.heap.set_str(table, name, value)?;
    Ok(table)
}

enum Item {
    Value(Value),
    Container(Container, usize),
}

fn item(machine: &mut Machine, bytes: &[u8], at: &mut usize) -> Result<Item, Raise> {
    let rest = bytes.get(*at..).unwrap_or_default();
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(Item::Value(Value::Nil)) };
    let (kind, line) = rest[..end].split_first().unwrap_or((&b'_', b""));
    *at += end + 2;
    let number = || core::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    let value = match kind {
        b'+' => {
            let text = Value::String(machine.heap.string(line)?);
            Value::Table(wrapped(machine, "ok", text)?)
        }
        b'-' => {
            let text = Value::String(machine.heap.string(line)?);
            let table = wrapped(machine, "err", text)?;
            // The command that has failed has been counted as such.
            machine.heap.set_str(table, "ignore_error_stats_update", Value::Boolean(true))?;
            Value::Table(table)
        }
        b':' => Value::Number(number() as f64),
        b'$' | b'=' if number() >= 0 => {
            let len = number() as usize;
            let text = bytes.get(*at..*at + len).unwrap_or_default();
            *at += len + 2;
            if *kind == b'=' { verbatim(machine, text)? } else { Value::String(machine.heap.string(text)?) }
        }
        b'$' => Value::Boolean(false),
        b'*' if number() < 0 => Value::Boolean(false),
        b'*' | b'>' => return Ok(Item::Container(Container::Array, number() as usize)),
        b'%' => return Ok(Item::Container(Container::Map, number() as usize)),
        b'~' => return Ok(Item::Container(Container::Set, number() as usize)),
        b'|' => return Ok(Item::Container(Container::Attribute, number() as usize)),
        b'#' => Value::Boolean(line == b"t"),
        b',' => {
            let number = kayvee_lua::parse_number(line).unwrap_or(f64::NAN);
            Value::Table(wrapped(machine, "double", Value::Number(number))?)
        }
        b'(' => {
            let text = Value::String(machine.heap.string(line)?);
            Value::Table(wrapped(machine, "big_number", text)?)
        }
        _ => Value::Nil,
    };
    Ok(Item::Value(value))
}

fn verbatim(machine: &mut Machine, text: &[u8]) -> Result<Value, Raise> {
    let format = Value::String(machine.heap.string(text.get(..3).unwrap_or_default())?);
    let string = Value::String(machine.heap.string(text.get(4..).unwrap_or_default())?);
    let table = wrapped(machine, "format", format)?;
    machine.heap.set_str(table, "string", string)?;
    Ok(Value::Table(wrapped(machine, "verbatim_string", Value::Table(table))?))
}

/// A number as an argument of a command.
pub fn put_number(number: f64, out: &mut Vec<u8>) {
    const DIGITS: usize = 17;
    if number as i64 as f64 == number && number.abs() < 1e15 && !(number == 0.0 && number.is_sign_negative()) {
        out.extend_from_slice(format!("{}", number as i64).as_bytes());
    } else {
        kayvee_lua::format_digits(number, DIGITS, out);
    }
}
