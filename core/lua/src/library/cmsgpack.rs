//! The library `cmsgpack`: MessagePack. Nothing here recurses with the nesting of data.

use super::{Functions, STACK_LIMIT, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    value::{StringRef, TableRef, Value},
};
use alloc::{format, vec::Vec};

const FUNCTIONS: &Functions = &[
    ("pack", pack),
    ("unpack", |m, a| {
        let text = m.check_string(a, 0)?;
        unpack_values(m, text, None, 0)
    }),
    ("unpack_one", |m, a| {
        let text = m.check_string(a, 0)?;
        let offset = m.opt_integer(a, 1, 0)?;
        unpack_values(m, text, Some(1), offset)
    }),
    ("unpack_limit", |m, a| {
        let text = m.check_string(a, 0)?;
        let limit = m.check_integer(a, 1)?;
        let offset = m.opt_integer(a, 2, 0)?;
        unpack_values(m, text, Some(limit), offset)
    }),
];
/// Tables that are nested deeper are packed as nil.
const PACK_DEPTH: usize = 16;
/// Tables that may be open while data are unpacked.
const UNPACK_DEPTH: usize = 4000;

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    let table = add_library(machine, "cmsgpack", FUNCTIONS)?;
    for (field, text) in [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo"),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ] {
        let text = machine.heap.string(text.as_bytes())?;
        machine.heap.set_str(table, field, Value::String(text))?;
    }
    Ok(())
}

/// A table that is being written.
enum Open {
    Array { table: TableRef, next: usize, len: usize },
    Map { table: TableRef, key: Value },
}

fn pack(machine: &mut Machine, args: Args) -> NativeResult {
    if args.len == 0 {
        // The arguments are counted from 1 there: this one is before the first.
        return Err(Raise::positioned("bad argument #0 to 'pack' (MessagePack pack needs input.)"));
    }
    let mut out = Vec::new();
    for index in 0..args.len {
        let mut open = Vec::new();
        put(machine, machine.arg(args, index), &mut open, &mut out)?;
        while let Some(last) = open.last_mut() {
            match last {
                Open::Array { next, len, .. } if *next > *len => _ = open.pop(),
                Open::Array { table, next, .. } => {
                    *next += 1;
                    let value = machine.heap.get_index(*table, *next - 1);
                    put(machine, value, &mut open, &mut out)?;
                }
                Open::Map { table, key } => match machine.heap.next(*table, *key).ok().flatten() {
                    None => _ = open.pop(),
                    Some((next, value)) => {
                        *key = next;
                        put(machine, next, &mut open, &mut out)?;
                        put(machine, value, &mut open, &mut out)?;
                    }
                },
            }
        }
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(out)?)))
}

/// Appends a head: the code for lengths that fit into 8, 16 or 32 bits, and the length.
fn put_len(out: &mut Vec<u8>, len: usize, codes: [Option<u8>; 3]) {
    match (codes, u8::try_from(len), u16::try_from(len)) {
        ([Some(code), ..], Ok(len), _) => out.extend_from_slice(&[code, len]),
        ([_, Some(code), _], _, Ok(len)) => {
            out.push(code);
            out.extend_from_slice(&len.to_be_bytes());
        }
        ([_, _, code], ..) => {
            out.push(code.unwrap_or_default());
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn put(machine: &mut Machine, value: Value, open: &mut Vec<Open>, out: &mut Vec<u8>) -> Result<(), Raise> {
    machine.reserve(out, 16)?;
    match value {
        Value::String(string) => {
            let len = machine.heap.bytes(string).len();
            machine.reserve(out, len.saturating_add(5))?;
            match len {
                0..=31 => out.push(0xa0 | len as u8),
                _ => put_len(out, len, [Some(0xd9), Some(0xda), Some(0xdb)]),
            }
            out.extend_from_slice(machine.heap.bytes(string));
        }
        Value::Boolean(value) => out.push(if value { 0xc3 } else { 0xc2 }),
        Value::Number(number) => put_number(number, out),
        Value::Table(table) if open.len() < PACK_DEPTH => put_table(machine, table, open, out)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn put_table(machine: &Machine, table: TableRef, open: &mut Vec<Open>, out: &mut Vec<u8>) -> Result<(), Raise> {
    let contents = &machine.heap.tables[table.0];
    let mut count = contents.array.iter().filter(|value| !value.is_nil()).count();
    let mut max = contents.array.iter().rposition(|value| !value.is_nil()).map_or(0, |at| at + 1) as f64;
    let mut is_array = true;
    for node in contents.nodes.iter().filter(|node| !node.value.is_nil()) {
        count += 1;
        match node.key {
            Value::Number(number) if number > 0.0 && libm::trunc(number) == number => max = max.max(number),
            _ => is_array = false,
        }
    }
    open.try_reserve(1).map_err(|_| Raise::OutOfMemory)?;
    if is_array && max == count as f64 {
        match count {
            0..=15 => out.push(0x90 | count as u8),
            _ => put_len(out, count, [None, Some(0xdc), Some(0xdd)]),
        }
        open.push(Open::Array { table, next: 1, len: count });
    } else {
        match count {
            0..=15 => out.push(0x80 | count as u8),
            _ => put_len(out, count, [None, Some(0xde), Some(0xdf)]),
        }
        open.push(Open::Map { table, key: Value::Nil });
    }
    Ok(())
}

fn put_number(number: f64, out: &mut Vec<u8>) {
    const INTEGERS: core::ops::Range<f64> = -9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0;
    if !(libm::trunc(number) == number && INTEGERS.contains(&number)) {
        let single = number as f32;
        if f64::from(single) == number {
            out.push(0xca);
            out.extend_from_slice(&single.to_be_bytes());
        } else {
            out.push(0xcb);
            out.extend_from_slice(&number.to_be_bytes());
        }
        return;
    }
    let integer = number as i64;
    let bytes = integer.to_be_bytes();
    let (code, len) = match integer {
        -32..=127 => return out.push(integer as u8),
        128..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -128..=-33 => (0xd0, 1),
        -0x8000..=-129 => (0xd1, 2),
        -0x8000_0000..=-0x8001 => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out.push(code);
    out.extend_from_slice(&bytes[8 - len..]);
}

/// A table that is being filled: how many values are still to come, and the key that waits for its value.
struct Filling {
    table: TableRef,
    left: usize,
    len: usize,
    key: Option<Value>,
    is_map: bool,
}

enum Item {
    Value(Value),
    Table { len: usize, is_map: bool },
}

fn missing() -> Raise {
    Raise::positioned("Missing bytes in input.")
}

fn unpack_values(machine: &mut Machine, text: StringRef, limit: Option<i64>, offset: i64) -> NativeResult {
    let len = machine.heap.bytes(text).len();
    let wanted = limit.unwrap_or(0);
    if offset < 0 || wanted < 0 {
        // It shows the length of the input in place of the limit, as the original does.
        let text = format!("Invalid request to unpack with offset of {offset} and limit of {len}.");
        return Err(text.into());
    }
    if offset > len as i64 {
        return Err(format!("Start offset {offset} greater than input length {len}.").into());
    }
    let limit = match wanted {
        0 => usize::MAX,
        wanted => wanted as usize,
    };
    let is_partial = wanted > 0;
    let mut at = offset as usize;
    let mut values = Vec::new();
    while at < len && values.len() < limit {
        if values.len() >= STACK_LIMIT - 8 {
            return Err(Raise::positioned("stack overflow (too many values)"));
        }
        values.push(unpack(machine, text, &mut at)?);
    }
    if is_partial {
        machine.push(Value::Number(if at == len { -1.0 } else { at as f64 }))?;
    }
    for value in &values {
        machine.push(*value)?;
    }
    Ok(Flow::Many(values.len() + usize::from(is_partial)))
}

/// Reads a value with all that is in it.
fn unpack(machine: &mut Machine, text: StringRef, at: &mut usize) -> Result<Value, Raise> {
    let mut open: Vec<Filling> = Vec::new();
    loop {
        let mut value = match item(machine, text, at)? {
            Item::Value(value) => value,
            Item::Table { len, is_map } => {
                if open.len() >= UNPACK_DEPTH {
                    let kind = if is_map { "hash" } else { "array" };
                    return Err(format!("stack overflow (in function mp_decode_to_lua_{kind})").into());
                }
                let table = machine.heap.table(0, 0)?;
                if len > 0 {
                    open.try_reserve(1).map_err(|_| Raise::OutOfMemory)?;
                    open.push(Filling { table, left: len, len: 0, key: None, is_map });
                    continue;
                }
                Value::Table(table)
            }
        };
        // A complete value: it may complete the tables that it is in.
        loop {
            let Some(filling) = open.last_mut() else { return Ok(value) };
            if filling.is_map && filling.key.is_none() {
                filling.key = Some(value);
                break;
            }
            match filling.key.take() {
                Some(key) => machine.heap.set(filling.table, key, value)?,
                None => {
                    filling.len += 1;
                    machine.heap.set_index(filling.table, filling.len, value)?;
                }
            }
            filling.left -= 1;
            if filling.left > 0 {
                break;
            }
            value = Value::Table(filling.table);
            open.pop();
        }
    }
}

/// Reads a value, or the head of a table.
fn item(machine: &mut Machine, text: StringRef, at: &mut usize) -> Result<Item, Raise> {
    let bytes = machine.heap.bytes(text);
    let code = *bytes.get(*at).ok_or_else(missing)?;
    *at += 1;
    let rest = &bytes[*at..];
    let field = |len: usize| -> Result<u64, Raise> {
        Ok(rest.get(..len).ok_or_else(missing)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // Lengths and numbers of 1, 2, 4 or 8 bytes, by the last bits of the code.
    let (number, used) = match code {
        0xcc..=0xcf => ((field(1 << (code - 0xcc))? as f64), 1 << (code - 0xcc)),
        0xd0..=0xd3 => {
            let len = 1 << (code - 0xd0);
            let unused = 64 - 8 * len as u32;
            (((field(len)? << unused) as i64 >> unused) as f64, len)
        }
        0xca => (f32::from_bits(field(4)? as u32).into(), 4),
        0xcb => (f64::from_bits(field(8)?), 8),
        0x00..=0x7f => (code.into(), 0),
        0xe0..=0xff => ((code as i8).into(), 0),
        0xc0 => return Ok(Item::Value(Value::Nil)),
        0xc2 | 0xc3 => return Ok(Item::Value(Value::Boolean(code == 0xc3))),
        0xa0..=0xbf => return string(machine, text, at, usize::from(code & 31), 0),
        0xd9 => return string(machine, text, at, field(1)? as usize, 1),
        0xda => return string(machine, text, at, field(2)? as usize, 2),
        0xdb => return string(machine, text, at, field(4)? as usize, 4),
        0x90..=0x9f => return Ok(Item::Table { len: usize::from(code & 15), is_map: false }),
        0x80..=0x8f => return Ok(Item::Table { len: usize::from(code & 15), is_map: true }),
        0xdc..=0xdf => {
            let len_bytes = if code & 1 == 0 { 2 } else { 4 };
            let len = field(len_bytes)? as usize;
            *at += len_bytes;
            return Ok(Item::Table { len, is_map: code >= 0xde });
        }
        _ => return Err(Raise::positioned("Bad data format in input.")),
    };
    *at += used;
    Ok(Item::Value(Value::Number(number)))
}

fn string(machine: &mut Machine, text: StringRef, at: &mut usize, len: usize, len_bytes: usize) -> Result<Item, Raise> {
    let from = *at + len_bytes;
    let part = machine.heap.bytes(text).get(from..from + len).ok_or_else(missing)?.to_vec();
    *at = from + len;
    Ok(Item::Value(Value::String(machine.heap.string_from(part)?)))
}
