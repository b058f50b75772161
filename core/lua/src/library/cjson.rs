//! The library `cjson`. Neither direction recurses, so the limits on nesting are the only ones.

mod decode;
mod encode;

use super::{Functions, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    value::{TableRef, Value},
};
use alloc::format;

const FUNCTIONS: &Functions = &[
    ("encode", encode::encode),
    ("decode", decode::decode),
    ("encode_sparse_array", encode_sparse_array),
    ("encode_max_depth", |m, a| integer(m, a, |options| &mut options.encode_max_depth, i32::MAX)),
    ("decode_max_depth", |m, a| integer(m, a, |options| &mut options.decode_max_depth, i32::MAX)),
    ("encode_number_precision", |m, a| integer(m, a, |options| &mut options.precision, 14)),
    ("encode_keep_buffer", encode_keep_buffer),
    ("encode_invalid_numbers", |m, a| invalid_numbers(m, a, true)),
    ("decode_invalid_numbers", |m, a| invalid_numbers(m, a, false)),
    ("new", new),
];

/// What to do with infinities and NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InvalidNumbers {
    Refused,
    Written,
    Null,
}

#[derive(Debug)]
pub(super) struct Options {
    sparse_convert: bool,
    sparse_ratio: i32,
    sparse_safe: i32,
    encode_max_depth: i32,
    decode_max_depth: i32,
    precision: i32,
    keep_buffer: bool,
    encode_invalid: InvalidNumbers,
    decode_invalid: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_max_depth: 1000,
            decode_max_depth: 1000,
            precision: 14,
            keep_buffer: true,
            encode_invalid: InvalidNumbers::Refused,
            decode_invalid: true,
        }
    }
}

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    let table = add_library(machine, "cjson", FUNCTIONS)?;
    machine.library.cjson_table = table;
    add_constants(machine, table)
}

fn add_constants(machine: &mut Machine, table: TableRef) -> Result<(), Raise> {
    machine.heap.set_str(table, "null", Value::Light(0))?;
    for (field, text) in [("_NAME", "cjson"), ("_VERSION", "2.1.0")] {
        let text = machine.heap.string(text.as_bytes())?;
        machine.heap.set_str(table, field, Value::String(text))?;
    }
    Ok(())
}

/// A table with the same functions again. Options are the same for all.
fn new(machine: &mut Machine, _: Args) -> NativeResult {
    let original = machine.library.cjson_table;
    let table = machine.heap.table(0, FUNCTIONS.len() + 3)?;
    let mut key = Value::Nil;
    while let Ok(Some((next, value))) = machine.heap.next(original, key) {
        key = next;
        machine.heap.set(table, key, value)?;
    }
    Ok(Flow::One(Value::Table(table)))
}

fn limit_arguments(args: Args, limit: usize) -> Result<(), Raise> {
    if args.len > limit { Err(Raise::argument(limit, "found too many arguments")) } else { Ok(()) }
}

fn checked_integer(
    machine: &Machine,
    args: Args,
    index: usize,
    min: i32,
    max: i32,
    default: i32,
) -> Result<i32, Raise> {
    if machine.arg(args, index).is_nil() {
        return Ok(default);
    }
    let value = machine.check_integer(args, index)?;
    match i32::try_from(value) {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(Raise::argument(index, &format!("expected integer between {min} and {max}"))),
    }
}

fn integer(machine: &mut Machine, args: Args, option: fn(&mut Options) -> &mut i32, max: i32) -> NativeResult {
    limit_arguments(args, 1)?;
    let current = *option(&mut machine.library.cjson);
    let value = checked_integer(machine, args, 0, 1, max, current)?;
    *option(&mut machine.library.cjson) = value;
    Ok(Flow::One(Value::Number(value.into())))
}

fn encode_sparse_array(machine: &mut Machine, args: Args) -> NativeResult {
    limit_arguments(args, 3)?;
    let Options { sparse_convert, sparse_ratio, sparse_safe, .. } = machine.library.cjson;
    let convert = if machine.arg(args, 0).is_nil() { sparse_convert } else { switch(machine, args, sparse_convert)? };
    let ratio = checked_integer(machine, args, 1, 0, i32::MAX, sparse_ratio)?;
    let safe = checked_integer(machine, args, 2, 0, i32::MAX, sparse_safe)?;
    let options = &mut machine.library.cjson;
    (options.sparse_convert, options.sparse_ratio, options.sparse_safe) = (convert, ratio, safe);
    machine.push(Value::Boolean(convert))?;
    machine.push(Value::Number(ratio.into()))?;
    machine.push(Value::Number(safe.into()))?;
    Ok(Flow::Many(3))
}

/// A truth value, or `off` and `on`.
fn switch(machine: &mut Machine, args: Args, default: bool) -> Result<bool, Raise> {
    match machine.arg(args, 0) {
        Value::Nil => Ok(default),
        Value::Boolean(value) => Ok(value),
        _ => Ok(word(machine, args, &["off", "on"])? == 1),
    }
}

/// The position of a word in a list.
fn word(machine: &mut Machine, args: Args, words: &[&str]) -> Result<usize, Raise> {
    let string = machine.check_string(args, 0)?;
    let bytes = machine.heap.bytes(string);
    words.iter().position(|word| word.as_bytes() == bytes).ok_or_else(|| {
        let text = [b"invalid option '", bytes, b"'"].concat();
        Raise::Argument(0, text)
    })
}

fn encode_keep_buffer(machine: &mut Machine, args: Args) -> NativeResult {
    limit_arguments(args, 1)?;
    machine.library.cjson.keep_buffer = switch(machine, args, machine.library.cjson.keep_buffer)?;
    Ok(Flow::One(Value::Boolean(machine.library.cjson.keep_buffer)))
}

fn invalid_numbers(machine: &mut Machine, args: Args, is_encode: bool) -> NativeResult {
    limit_arguments(args, 1)?;
    if !is_encode {
        machine.library.cjson.decode_invalid = switch(machine, args, machine.library.cjson.decode_invalid)?;
        return Ok(Flow::One(Value::Boolean(machine.library.cjson.decode_invalid)));
    }
    let value = match machine.arg(args, 0) {
        Value::Nil => machine.library.cjson.encode_invalid,
        Value::Boolean(false) => InvalidNumbers::Refused,
        Value::Boolean(true) => InvalidNumbers::Written,
        _ => match word(machine, args, &["off", "on", "null"])? {
            0 => InvalidNumbers::Refused,
            1 => InvalidNumbers::Written,
            _ => InvalidNumbers::Null,
        },
    };
    machine.library.cjson.encode_invalid = value;
    Ok(Flow::One(match value {
        InvalidNumbers::Refused => Value::Boolean(false),
        InvalidNumbers::Written => Value::Boolean(true),
        InvalidNumbers::Null => Value::String(machine.heap.string(b"null")?),
    }))
}
