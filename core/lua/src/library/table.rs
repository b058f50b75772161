//! The library `table`.

use super::{Functions, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    thread::Cont,
    value::{TableRef, Value},
};
use alloc::{format, vec::Vec};

const FUNCTIONS: &Functions = &[
    ("concat", concat),
    ("foreach", foreach),
    ("foreachi", foreachi),
    ("getn", getn),
    ("insert", insert),
    ("maxn", maxn),
    ("remove", remove),
    ("setn", setn),
    ("sort", super::sort::sort),
];
/// Elements that an insertion moves at most: only a wrong position asks for more than a table has.
const MOVES_LIMIT: i64 = 1 << 26;

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    add_library(machine, "table", FUNCTIONS).map(|_| ())
}

fn getn(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    Ok(Flow::One(Value::Number(machine.heap.len_of(table) as f64)))
}

fn setn(machine: &mut Machine, args: Args) -> NativeResult {
    machine.check_table(args, 0)?;
    Err(Raise::positioned("'setn' is obsolete"))
}

fn maxn(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let table = &machine.heap.tables[table.0];
    let mut max = table.array.iter().rposition(|value| !value.is_nil()).map_or(0.0, |at| (at + 1) as f64);
    for node in table.nodes.iter().filter(|node| !node.value.is_nil()) {
        if let Value::Number(number) = node.key {
            max = f64::max(max, number);
        }
    }
    Ok(Flow::One(Value::Number(max)))
}

fn insert(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let end = machine.heap.len_of(table) as i64 + 1;
    machine.writable(table)?;
    let at = match args.len {
        2 => end,
        3 => machine.check_integer(args, 1)?,
        _ => return Err(Raise::positioned("wrong number of arguments to 'insert'")),
    };
    let value = machine.arg(args, args.len - 1);
    let end = end.max(at);
    if end.saturating_sub(at) > MOVES_LIMIT {
        return Err(Raise::argument(1, "position out of bounds"));
    }
    for to in (at.saturating_add(1)..=end).rev().filter(|to| *to > at) {
        let moved = machine.heap.get(table, Value::Number((to - 1) as f64));
        machine.heap.set(table, Value::Number(to as f64), moved)?;
    }
    machine.heap.set(table, Value::Number(at as f64), value)?;
    Ok(Flow::None)
}

fn remove(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let end = machine.heap.len_of(table) as i64;
    machine.writable(table)?;
    let at = machine.opt_integer(args, 1, end)?;
    if !(1..=end).contains(&at) {
        return Ok(Flow::None);
    }
    let removed = machine.heap.get_index(table, at as usize);
    let array = &mut machine.heap.tables[table.0].array;
    if let Some(part) = array.get_mut(at as usize - 1..end as usize) {
        part.rotate_left(1);
        part[part.len() - 1] = Value::Nil;
        return Ok(Flow::One(removed));
    }
    for to in at..end {
        let moved = machine.heap.get_index(table, to as usize + 1);
        machine.heap.set_index(table, to as usize, moved)?;
    }
    machine.heap.set_index(table, end as usize, Value::Nil)?;
    Ok(Flow::One(removed))
}

fn concat(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let separator = if machine.arg(args, 1).is_nil() { Vec::new() } else { super::string::bytes_of(machine, args, 1)? };
    let from = machine.opt_integer(args, 2, 1)?;
    let to = machine.opt_integer(args, 3, machine.heap.len_of(table) as i64)?;
    let mut text = Vec::new();
    let mut at = from;
    while at <= to {
        let value = machine.heap.get(table, Value::Number(at as f64));
        let len = match value {
            Value::String(string) => machine.heap.bytes(string).len(),
            Value::Number(_) => 32,
            _ => {
                let kind = value.type_name();
                return Err(format!("invalid value ({kind}) at index {at} in table for 'concat'").into());
            }
        };
        machine.reserve(&mut text, len.saturating_add(separator.len()))?;
        machine.append(value, &mut text)?;
        if at < to {
            text.extend_from_slice(&separator);
        }
        let Some(next) = at.checked_add(1) else { break };
        at = next;
    }
    Ok(Flow::One(Value::String(machine.heap.string_from(text)?)))
}

fn check_function(machine: &Machine, args: Args, index: usize) -> Result<Value, Raise> {
    let function = machine.arg(args, index);
    if Machine::is_function(function) { Ok(function) } else { Err(machine.type_expected(args, index, "function")) }
}

fn foreach(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    check_function(machine, args, 1)?;
    foreach_from(machine, table, Value::Nil, machine.arg(args, 1))
}

/// Visits the entry after a key.
fn foreach_from(machine: &mut Machine, table: TableRef, key: Value, function: Value) -> NativeResult {
    match machine.heap.next(table, key) {
        Ok(None) => Ok(Flow::None),
        Ok(Some((key, value))) => {
            // Kept below the call, for the next turn.
            machine.push(function)?;
            machine.push(function)?;
            machine.push(key)?;
            machine.push(value)?;
            Ok(Flow::Call(2, Cont::Foreach(table, key)))
        }
        Err(()) => Err(Raise::positioned("invalid key to 'next'")),
    }
}

pub(crate) fn foreach_proceed(machine: &mut Machine, table: TableRef, key: Value, results: Args) -> NativeResult {
    let first = machine.arg(results, 0);
    if !first.is_nil() {
        return Ok(Flow::One(first));
    }
    machine.thread.top = results.base - 1;
    let function = machine.thread.stack[results.base - 1];
    foreach_from(machine, table, key, function)
}

fn foreachi(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    check_function(machine, args, 1)?;
    let last = machine.heap.len_of(table);
    foreachi_from(machine, table, 1, last, machine.arg(args, 1))
}

fn foreachi_from(machine: &mut Machine, table: TableRef, at: usize, last: usize, function: Value) -> NativeResult {
    if at > last {
        return Ok(Flow::None);
    }
    machine.push(function)?;
    machine.push(function)?;
    machine.push(Value::Number(at as f64))?;
    machine.push(machine.heap.get_index(table, at))?;
    Ok(Flow::Call(2, Cont::ForeachIndex(table, at, last)))
}

pub(crate) fn foreachi_proceed(
    machine: &mut Machine,
    table: TableRef,
    at: usize,
    last: usize,
    results: Args,
) -> NativeResult {
    let first = machine.arg(results, 0);
    if !first.is_nil() {
        return Ok(Flow::One(first));
    }
    machine.thread.top = results.base - 1;
    let function = machine.thread.stack[results.base - 1];
    foreachi_from(machine, table, at + 1, last, function)
}
