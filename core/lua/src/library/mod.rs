//! The libraries.

mod base;
mod bit;
mod cjson;
mod cmsgpack;
mod coroutine;
mod format;
pub(crate) mod gsub;
pub(crate) mod loading;
mod math;
mod pattern;
pub(crate) mod sort;
mod string;
mod structure;
pub(crate) mod table;

use crate::{
    error::Raise,
    heap::Heap,
    machine::{Args, Machine, Native, NativeFunction},
    number::format_number,
    value::{NativeRef, StringRef, TableRef, Value},
};
use alloc::{format, vec::Vec};

/// `next`, which loops execute without a call.
pub(crate) const NEXT: NativeRef = NativeRef(0);
/// The iterator of `ipairs`, likewise.
pub(crate) const NEXT_INDEX: NativeRef = NativeRef(1);
/// Values that a library function may put on the stack, as in Lua 5.1.
pub(crate) const STACK_LIMIT: usize = 8000;

/// What the libraries remember.
#[derive(Debug, Default)]
pub(crate) struct State {
    memory_error: Option<StringRef>,
    random: math::Random,
    cjson: cjson::Options,
    /// The table `cjson`, whose functions `cjson.new` gives again.
    cjson_table: TableRef,
    /// The native that iterates for `string.gmatch`, and the one that resumes for `coroutine.wrap`.
    gmatch: NativeRef,
    wrapped: NativeRef,
}

impl State {
    pub fn memory_error(&self) -> Value {
        self.memory_error.map_or(Value::Nil, Value::String)
    }

    pub fn mark(&self, heap: &mut Heap) {
        heap.mark(self.memory_error());
        heap.mark(Value::Table(self.cjson_table));
    }
}

type Functions = [(&'static str, NativeFunction)];

/// Makes the global table of a library.
fn add_library(machine: &mut Machine, name: &str, functions: &Functions) -> Result<TableRef, Raise> {
    let table = machine.heap.table(0, functions.len())?;
    add_functions(machine, table, functions)?;
    let globals = machine.globals();
    machine.heap.set_str(globals, name, Value::Table(table))?;
    Ok(table)
}

fn add_functions(machine: &mut Machine, table: TableRef, functions: &Functions) -> Result<(), Raise> {
    for (name, function) in functions {
        let function = machine.add_native(Native::Library(*function));
        machine.heap.set_str(table, name, function)?;
    }
    Ok(())
}

pub(crate) fn open(machine: &mut Machine) -> Result<(), Raise> {
    machine.library.memory_error = Some(machine.heap.string(b"not enough memory")?);
    base::open(machine)?;
    string::open(machine)?;
    table::open(machine)?;
    math::open(machine)?;
    coroutine::open(machine)?;
    cjson::open(machine)?;
    cmsgpack::open(machine)?;
    structure::open(machine)?;
    bit::open(machine)
}

impl Machine {
    /// Starts the sequence of `math.random` again from this seed.
    pub fn seed_random(&mut self, seed: u32) {
        self.library.random = math::Random::seeded(seed);
    }

    fn type_expected(&self, args: Args, index: usize, expected: &str) -> Raise {
        let got = if index < args.len { self.arg(args, index).type_name() } else { "no value" };
        Raise::argument(index, &format!("{expected} expected, got {got}"))
    }

    pub(crate) fn check_any(&self, args: Args, index: usize) -> Result<Value, Raise> {
        if index < args.len { Ok(self.arg(args, index)) } else { Err(Raise::argument(index, "value expected")) }
    }

    pub(crate) fn check_number(&self, args: Args, index: usize) -> Result<f64, Raise> {
        self.to_number(self.arg(args, index)).ok_or_else(|| self.type_expected(args, index, "number"))
    }

    /// A number as C converts it to an integer, but without what C leaves undefined.
    pub(crate) fn check_integer(&self, args: Args, index: usize) -> Result<i64, Raise> {
        Ok(self.check_number(args, index)? as i64)
    }

    pub(crate) fn opt_integer(&self, args: Args, index: usize, default: i64) -> Result<i64, Raise> {
        if self.arg(args, index).is_nil() { Ok(default) } else { self.check_integer(args, index) }
    }

    /// A string, or a number as one.
    pub(crate) fn check_string(&mut self, args: Args, index: usize) -> Result<StringRef, Raise> {
        match self.arg(args, index) {
            Value::String(string) => Ok(string),
            Value::Number(number) => Ok(self.number_string(number)?),
            _ => Err(self.type_expected(args, index, "string")),
        }
    }

    pub(crate) fn check_table(&self, args: Args, index: usize) -> Result<TableRef, Raise> {
        match self.arg(args, index) {
            Value::Table(table) => Ok(table),
            _ => Err(self.type_expected(args, index, "table")),
        }
    }

    pub(crate) fn number_string(&mut self, number: f64) -> Result<StringRef, Raise> {
        let mut text = Vec::new();
        format_number(number, &mut text);
        Ok(self.heap.string(&text)?)
    }

    /// Refuses to build a text that the heap could not take, and finds room for the next part of it.
    pub(crate) fn reserve(&mut self, text: &mut Vec<u8>, more: usize) -> Result<(), Raise> {
        if text.capacity() - text.len() < more {
            self.heap.check_room(text.len().saturating_add(more))?;
            text.try_reserve(more).map_err(|_| Raise::OutOfMemory)?;
        }
        Ok(())
    }
}
