//! Values to JSON.

use super::InvalidNumbers;
use crate::{
    error::Raise,
    library::format::general,
    machine::{Args, Flow, Machine, NativeResult},
    number::format_number,
    value::{TableRef, Value},
};
use alloc::{format, vec::Vec};

/// A table that is being written.
enum Open {
    Array { table: TableRef, next: usize, len: usize },
    Object { table: TableRef, key: Value },
}

pub(super) fn encode(machine: &mut Machine, args: Args) -> NativeResult {
    if args.len != 1 {
        return Err(Raise::argument(0, "expected 1 argument"));
    }
    let mut out = Vec::new();
    let mut open = Vec::new();
    put(machine, machine.arg(args, 0), &mut open, &mut out)?;
    while let Some(last) = open.last_mut() {
        let value = match last {
            Open::Array { table, next, len } => {
                if *next > *len {
                    out.push(b']');
                    open.pop();
                    continue;
                }
                if *next > 1 {
                    out.push(b',');
                }
                *next += 1;
                machine.heap.get_index(*table, *next - 1)
            }
            Open::Object { table, key } => {
                let is_first = key.is_nil();
                let Some((next, value)) = machine.heap.next(*table, *key).ok().flatten() else {
                    out.push(b'}');
                    open.pop();
                    continue;
                };
                *key = next;
                if !is_first {
                    out.push(b',');
                }
                put_key(machine, next, &mut out)?;
                value
            }
        };
        put(machine, value, &mut open, &mut out)?;
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(out)?)))
}

fn refused(value: Value, why: &str) -> Raise {
    format!("Cannot serialise {}: {why}", value.type_name()).into()
}

fn put(machine: &mut Machine, value: Value, open: &mut Vec<Open>, out: &mut Vec<u8>) -> Result<(), Raise> {
    machine.reserve(out, 32)?;
    match value {
        Value::Nil | Value::Light(0) => out.extend_from_slice(b"null"),
        Value::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Value::Number(number) => put_number(machine, number, out)?,
        Value::String(string) => {
            let bytes = machine.heap.bytes(string);
            let len = 2 + bytes.iter().map(|b| escape(*b).map_or(1, |(len, _)| len)).sum::<usize>();
            machine.reserve(out, len)?;
            put_string(machine.heap.bytes(string), out);
        }
        Value::Table(table) => {
            let depth = open.len() + 1;
            if depth > machine.library.cjson.encode_max_depth as usize {
                return Err(format!("Cannot serialise, excessive nesting ({depth})").into());
            }
            open.try_reserve(1).map_err(|_| Raise::OutOfMemory)?;
            let len = array_len(machine, table)?;
            if len > 0 {
                out.push(b'[');
                open.push(Open::Array { table, next: 1, len });
            } else {
                out.push(b'{');
                open.push(Open::Object { table, key: Value::Nil });
            }
        }
        _ => return Err(refused(value, "type not supported")),
    }
    Ok(())
}

/// The length of a table that has the keys of an array only, and enough of them; else 0.
fn array_len(machine: &Machine, table: TableRef) -> Result<usize, Raise> {
    let contents = &machine.heap.tables[table.0];
    let mut items = contents.array.iter().filter(|value| !value.is_nil()).count();
    let mut max = contents.array.iter().rposition(|value| !value.is_nil()).map_or(0, |at| at + 1) as f64;
    for node in contents.nodes.iter().filter(|node| !node.value.is_nil()) {
        match node.key {
            Value::Number(number) if number >= 1.0 && libm::trunc(number) == number => {
                max = max.max(number);
                items += 1;
            }
            _ => return Ok(0),
        }
    }
    let options = &machine.library.cjson;
    let is_sparse = options.sparse_ratio > 0
        && max > items as f64 * f64::from(options.sparse_ratio)
        && max > f64::from(options.sparse_safe);
    if is_sparse && !options.sparse_convert {
        return Err(refused(Value::Table(table), "excessively sparse array"));
    }
    Ok(if is_sparse { 0 } else { max as usize })
}

fn put_key(machine: &mut Machine, key: Value, out: &mut Vec<u8>) -> Result<(), Raise> {
    match key {
        Value::String(_) => put(machine, key, &mut Vec::new(), out)?,
        Value::Number(number) => {
            machine.reserve(out, 32)?;
            out.push(b'"');
            put_number(machine, number, out)?;
            out.push(b'"');
        }
        _ => return Err(refused(key, "table key must be a number or string")),
    }
    out.push(b':');
    Ok(())
}

fn put_number(machine: &Machine, number: f64, out: &mut Vec<u8>) -> Result<(), Raise> {
    let options = &machine.library.cjson;
    if !number.is_finite() {
        match options.encode_invalid {
            InvalidNumbers::Refused => return Err(refused(Value::Number(number), "must not be NaN or Inf")),
            InvalidNumbers::Null => {
                out.extend_from_slice(b"null");
                return Ok(());
            }
            InvalidNumbers::Written if number.is_nan() => {
                out.extend_from_slice(b"nan");
                return Ok(());
            }
            InvalidNumbers::Written => {}
        }
    }
    match options.precision {
        // As everywhere in Lua, which has a short cut for whole numbers.
        14 => format_number(number, out),
        precision => out.extend_from_slice(&general(number, precision as usize)),
    }
    Ok(())
}

/// How a byte is written that cannot stand for itself: its length, and the letter behind the backslash.
fn escape(byte: u8) -> Option<(usize, u8)> {
    match byte {
        b'"' | b'\\' | b'/' => Some((2, byte)),
        8 => Some((2, b'b')),
        9 => Some((2, b't')),
        10 => Some((2, b'n')),
        12 => Some((2, b'f')),
        13 => Some((2, b'r')),
        0..=31 | 127 => Some((6, b'u')),
        _ => None,
    }
}

fn put_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match escape(*byte) {
            None => out.push(*byte),
            Some((2, letter)) => out.extend_from_slice(&[b'\\', letter]),
            Some(_) => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
    }
    out.push(b'"');
}
