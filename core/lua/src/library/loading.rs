//! `load` and `loadstring`: source text at run time.

use crate::{
    machine::{Args, Flow, Machine, NativeResult},
    thread::Cont,
    value::Value,
};
use alloc::{boxed::Box, vec::Vec};

/// A text that a function gives piece by piece.
#[derive(Debug)]
pub(crate) struct Loading {
    function: Value,
    source: Vec<u8>,
    text: Vec<u8>,
}

pub(super) fn loadstring(machine: &mut Machine, args: Args) -> NativeResult {
    let text = super::string::bytes_of(machine, args, 0)?;
    let source = if machine.arg(args, 1).is_nil() { text.clone() } else { super::string::bytes_of(machine, args, 1)? };
    finish(machine, &text, &source)
}

fn finish(machine: &mut Machine, text: &[u8], source: &[u8]) -> NativeResult {
    let globals = machine.globals();
    match machine.compile(text, source, globals) {
        Ok(closure) => Ok(Flow::One(Value::Function(closure))),
        Err(raise) => {
            let message = machine.raise_value(raise);
            failed(machine, message)
        }
    }
}

fn failed(machine: &mut Machine, message: Value) -> NativeResult {
    machine.push(Value::Nil)?;
    machine.push(message)?;
    Ok(Flow::Many(2))
}

pub(super) fn load(machine: &mut Machine, args: Args) -> NativeResult {
    let function = machine.arg(args, 0);
    if !Machine::is_function(function) {
        return Err(machine.type_expected(args, 0, "function"));
    }
    let source =
        if machine.arg(args, 1).is_nil() { b"=(load)".to_vec() } else { super::string::bytes_of(machine, args, 1)? };
    machine.push(function)?;
    Ok(Flow::Call(0, Cont::Load(Box::new(Loading { function, source, text: Vec::new() }))))
}

/// Takes the next piece, and asks for another one until there is none.
pub(crate) fn proceed(machine: &mut Machine, mut loading: Box<Loading>, results: Args) -> NativeResult {
    match machine.arg(results, 0) {
        Value::Nil => return finish(machine, &loading.text, &loading.source),
        Value::String(piece) => {
            let len = machine.heap.bytes(piece).len();
            if len == 0 {
                return finish(machine, &loading.text, &loading.source);
            }
            machine.reserve(&mut loading.text, len)?;
            loading.text.extend_from_slice(machine.heap.bytes(piece));
        }
        _ => {
            let message = machine.heap.string(b"reader function must return a string")?;
            return failed(machine, Value::String(message));
        }
    }
    machine.push(loading.function)?;
    Ok(Flow::Call(0, Cont::Load(loading)))
}

impl Loading {
    /// The function that gives the pieces.
    pub(crate) fn function(&self) -> Value {
        self.function
    }
}
