//! What scripts see: each test runs Lua and compares what it returns.

mod hostile;
mod language;
mod libraries;
mod properties;

use crate::{Event, Limits, Machine, Value};
use alloc::{boxed::Box, string::String, vec::Vec};

pub(crate) const HEAP_BYTES: usize = 64 << 20;

pub(crate) fn machine(heap_bytes: usize) -> Box<Machine> {
    Machine::new(Limits { heap_bytes }, [3, 4]).expect("room for the libraries")
}

/// A value as text: what `tostring` would show of it.
fn shown(machine: &Machine, value: Value) -> String {
    let mut text = Vec::new();
    match value {
        Value::String(string) => text.extend_from_slice(machine.heap.bytes(string)),
        Value::Number(number) => crate::format_number(number, &mut text),
        Value::Boolean(boolean) => return alloc::format!("{boolean}"),
        other => return String::from(other.type_name()),
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Runs a script in slices of so many turns. What it returns, separated by spaces, or `error: ` and its message.
pub(crate) fn run_in(machine: &mut Machine, script: &[u8], budget: u64) -> String {
    let globals = machine.globals();
    let function = match machine.compile(script, b"@t", globals) {
        Ok(function) => function,
        Err(raise) => {
            let value = machine.raise_value(raise);
            return alloc::format!("error: {}", shown(machine, value));
        }
    };
    if let Err(raise) = machine.start(Value::Function(function), &[]) {
        let value = machine.raise_value(raise);
        return alloc::format!("error: {}", shown(machine, value));
    }
    loop {
        match machine.run(budget) {
            Event::Done => {
                let values: Vec<String> = machine.results().iter().map(|value| shown(machine, *value)).collect();
                return values.join(" ");
            }
            Event::Failed(failure) => return alloc::format!("error: {}", shown(machine, failure.value)),
            Event::Host(_) => machine.answer(None),
            Event::Preempted => {}
        }
    }
}

/// Runs a script that ends by itself.
pub(crate) fn run(script: &str) -> String {
    run_in(&mut machine(HEAP_BYTES), script.as_bytes(), u64::MAX)
}

/// Runs scripts and compares what they return, once in one go and once in slices of a single turn.
pub(crate) fn expect(cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        assert_eq!(run(script), *expected, "{script}");
        let mut machine = machine(HEAP_BYTES);
        assert_eq!(run_in(&mut machine, script.as_bytes(), 1), *expected, "in slices: {script}");
    }
}
