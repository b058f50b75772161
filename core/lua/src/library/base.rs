//! The basic functions.

use super::{Functions, NEXT, NEXT_INDEX, STACK_LIMIT, add_functions};
use crate::{
    error::Raise,
    library::loading,
    machine::{Args, Flow, Machine, Meta, Native, NativeResult},
    number::is_space,
    thread::Cont,
    value::{TableRef, Value},
};
use alloc::{format, vec::Vec};

const FUNCTIONS: &Functions = &[
    ("assert", assert),
    ("collectgarbage", collectgarbage),
    ("error", error),
    ("gcinfo", gcinfo),
    ("getmetatable", getmetatable),
    ("ipairs", ipairs),
    ("load", loading::load),
    ("loadstring", loading::loadstring),
    ("pairs", pairs),
    ("pcall", pcall),
    ("rawequal", rawequal),
    ("rawget", rawget),
    ("rawset", rawset),
    ("select", select),
    ("setmetatable", setmetatable),
    ("tonumber", tonumber),
    ("tostring", tostring),
    ("type", type_of),
    ("unpack", unpack),
    ("xpcall", xpcall),
];

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    let globals = machine.globals();
    let next_function = machine.add_native(Native::Library(next));
    let next_index = machine.add_native(Native::Library(next_index));
    assert!(matches!((next_function, next_index), (Value::Native(NEXT), Value::Native(NEXT_INDEX))));
    machine.heap.set_str(globals, "next", next_function)?;
    add_functions(machine, globals, FUNCTIONS)?;
    machine.heap.set_str(globals, "_G", Value::Table(globals))?;
    let version = machine.heap.string(b"Lua 5.1")?;
    Ok(machine.heap.set_str(globals, "_VERSION", Value::String(version))?)
}

fn assert(machine: &mut Machine, args: Args) -> NativeResult {
    if machine.check_any(args, 0)?.is_truthy() {
        return Ok(Flow::Many(args.len));
    }
    if args.len < 2 || machine.arg(args, 1).is_nil() {
        return Err(Raise::positioned("assertion failed!"));
    }
    let message = machine.check_string(args, 1)?;
    Err(Raise::Positioned(machine.heap.bytes(message).to_vec()))
}

fn collectgarbage(machine: &mut Machine, args: Args) -> NativeResult {
    let option =
        if machine.arg(args, 0).is_nil() { b"collect".to_vec() } else { super::string::bytes_of(machine, args, 0)? };
    let argument = machine.opt_integer(args, 1, 0)?;
    let _ = argument;
    let result = match &option[..] {
        b"collect" => {
            machine.collect();
            Value::Number(0.0)
        }
        b"count" => Value::Number(machine.heap.used_bytes() as f64 / 1024.0),
        b"step" => {
            machine.collect();
            Value::Boolean(true)
        }
        b"stop" | b"restart" => Value::Number(0.0),
        b"setpause" | b"setstepmul" => Value::Number(200.0),
        _ => {
            let text = [b"invalid option '", &option[..], b"'"].concat();
            return Err(Raise::Argument(0, text));
        }
    };
    Ok(Flow::One(result))
}

fn gcinfo(machine: &mut Machine, _: Args) -> NativeResult {
    Ok(Flow::One(Value::Number((machine.heap.used_bytes() / 1024) as f64)))
}

fn error(machine: &mut Machine, args: Args) -> NativeResult {
    let level = machine.opt_integer(args, 1, 1)?;
    let value = machine.arg(args, 0);
    if let (Value::String(_) | Value::Number(_), Ok(level @ 1..)) = (value, usize::try_from(level)) {
        let mut text = machine.position(level);
        machine.append(value, &mut text)?;
        return Err(Raise::Message(text));
    }
    Err(Raise::Value(value))
}

fn getmetatable(machine: &mut Machine, args: Args) -> NativeResult {
    let value = machine.check_any(args, 0)?;
    let Some(meta) = machine.metatable(value) else { return Ok(Flow::One(Value::Nil)) };
    let shown = machine.in_metatable(meta, Meta::Metatable);
    Ok(Flow::One(if shown.is_nil() { Value::Table(meta) } else { shown }))
}

fn setmetatable(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let meta = match machine.arg(args, 1) {
        Value::Table(meta) => Some(meta),
        Value::Nil if args.len > 1 => None,
        _ => return Err(Raise::argument(1, "nil or table expected")),
    };
    if let Some(old) = machine.heap.tables[table.0].meta
        && !machine.in_metatable(old, Meta::Metatable).is_nil()
    {
        return Err(Raise::positioned("cannot change a protected metatable"));
    }
    machine.writable(table)?;
    machine.heap.tables[table.0].meta = meta;
    Ok(Flow::One(Value::Table(table)))
}

fn pairs(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    machine.push(Value::Native(NEXT))?;
    machine.push(Value::Table(table))?;
    machine.push(Value::Nil)?;
    Ok(Flow::Many(3))
}

fn ipairs(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    machine.push(Value::Native(NEXT_INDEX))?;
    machine.push(Value::Table(table))?;
    machine.push(Value::Number(0.0))?;
    Ok(Flow::Many(3))
}

fn next(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    match machine.heap.next(table, machine.arg(args, 1)) {
        Ok(Some((key, value))) => {
            machine.push(key)?;
            machine.push(value)?;
            Ok(Flow::Many(2))
        }
        Ok(None) => Ok(Flow::One(Value::Nil)),
        Err(()) => Err(Raise::positioned("invalid key to 'next'")),
    }
}

fn next_index(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let index = machine.check_number(args, 1)? + 1.0;
    let value = machine.heap.get(table, Value::Number(index));
    if value.is_nil() {
        return Ok(Flow::None);
    }
    machine.push(Value::Number(index))?;
    machine.push(value)?;
    Ok(Flow::Many(2))
}

fn pcall(machine: &mut Machine, args: Args) -> NativeResult {
    machine.check_any(args, 0)?;
    Ok(Flow::Call(args.len - 1, Cont::Pcall))
}

fn xpcall(machine: &mut Machine, args: Args) -> NativeResult {
    machine.check_any(args, 1)?;
    let (function, handler) = (machine.arg(args, 0), machine.arg(args, 1));
    machine.push(function)?;
    Ok(Flow::Call(0, Cont::Xpcall(handler)))
}

fn rawequal(machine: &mut Machine, args: Args) -> NativeResult {
    let (a, b) = (machine.check_any(args, 0)?, machine.check_any(args, 1)?);
    Ok(Flow::One(Value::Boolean(machine.heap.raw_equal(a, b))))
}

fn rawget(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let key = machine.check_any(args, 1)?;
    Ok(Flow::One(machine.heap.get(table, key)))
}

fn rawset(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let (key, value) = (machine.check_any(args, 1)?, machine.check_any(args, 2)?);
    machine.writable(table)?;
    machine.heap.set(table, key, value)?;
    Ok(Flow::One(Value::Table(table)))
}

fn select(machine: &mut Machine, args: Args) -> NativeResult {
    if let Value::String(string) = machine.arg(args, 0)
        && machine.heap.bytes(string).first() == Some(&b'#')
    {
        return Ok(Flow::One(Value::Number((args.len - 1) as f64)));
    }
    let index = machine.check_integer(args, 0)?;
    let len = args.len as i64;
    let from = if index < 0 { len.saturating_add(index) } else { index.min(len) };
    if from < 1 {
        return Err(Raise::argument(0, "index out of range"));
    }
    Ok(Flow::Many((len - from) as usize))
}

fn type_of(machine: &mut Machine, args: Args) -> NativeResult {
    let name = machine.check_any(args, 0)?.type_name();
    Ok(Flow::One(Value::String(machine.heap.string(name.as_bytes())?)))
}

fn tostring(machine: &mut Machine, args: Args) -> NativeResult {
    let value = machine.check_any(args, 0)?;
    let method = machine.metamethod(value, Meta::ToString);
    if !method.is_nil() {
        machine.push(method)?;
        machine.push(value)?;
        return Ok(Flow::Call(1, Cont::ToString));
    }
    if let Value::String(_) = value {
        return Ok(Flow::One(value));
    }
    let mut text = Vec::new();
    if !machine.append(value, &mut text)? {
        text = describe(value);
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(text)?)))
}

/// What `tostring` shows of a value that is neither a number nor a string.
fn describe(value: Value) -> Vec<u8> {
    let identity = match value {
        Value::Nil => return b"nil".to_vec(),
        Value::Boolean(boolean) => return format!("{boolean}").into_bytes(),
        Value::Light(0) => return b"userdata: (nil)".to_vec(),
        Value::Light(number) => number,
        Value::Table(TableRef(index)) => index,
        Value::Function(closure) => closure.0,
        Value::Native(native) => native.0 | 1 << 30,
        Value::Bound(bound) => bound.0 | 1 << 31,
        Value::Thread(thread) => thread.0,
        Value::Number(_) | Value::String(_) => 0,
    };
    // Sixteen bytes each, as if these were addresses.
    format!("{}: {:#014x}", value.type_name(), 0x5500_0000_0000 + u64::from(identity) * 16).into_bytes()
}

fn tonumber(machine: &mut Machine, args: Args) -> NativeResult {
    let base = machine.opt_integer(args, 1, 10)?;
    if base == 10 {
        let value = machine.check_any(args, 0)?;
        return Ok(Flow::One(machine.to_number(value).map_or(Value::Nil, Value::Number)));
    }
    let string = machine.check_string(args, 0)?;
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return Err(Raise::argument(1, "base out of range"));
    };
    let number = parse_in_base(machine.heap.bytes(string), base);
    Ok(Flow::One(number.map_or(Value::Nil, Value::Number)))
}

/// C's `strtoul` of a whole text.
fn parse_in_base(text: &[u8], base: u32) -> Option<f64> {
    let start = text.iter().position(|b| !is_space(*b)).unwrap_or(text.len());
    let (is_negative, mut rest) = match &text[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if let (16, [b'0', b'x' | b'X', digits @ ..]) = (base, rest)
        && digits.first().is_some_and(u8::is_ascii_hexdigit)
    {
        rest = digits;
    }
    let len = rest.iter().take_while(|b| (**b as char).is_digit(base)).count();
    if len == 0 || !rest[len..].iter().all(|b| is_space(*b)) {
        return None;
    }
    let digits = rest[..len].iter().filter_map(|b| (*b as char).to_digit(base));
    let magnitude = digits.fold(0_u64, |sum, digit| sum.saturating_mul(base.into()).saturating_add(digit.into()));
    Some(if is_negative { magnitude.wrapping_neg() } else { magnitude } as f64)
}

fn unpack(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let from = machine.opt_integer(args, 1, 1)?;
    let to = machine.opt_integer(args, 2, machine.heap.len_of(table) as i64)?;
    if from > to {
        return Ok(Flow::None);
    }
    let count = i128::from(to) - i128::from(from) + 1;
    if count + args.len as i128 > STACK_LIMIT as i128 {
        return Err(Raise::positioned("too many results to unpack"));
    }
    for index in from..=to {
        let value = machine.heap.get(table, Value::Number(index as f64));
        machine.push(value)?;
    }
    Ok(Flow::Many(count as usize))
}
