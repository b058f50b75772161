//! `table.sort`: a merge sort that can wait for Lua functions to compare.

use crate::{
    error::Raise,
    heap::Heap,
    machine::{Args, Flow, Machine, Meta, NativeResult},
    thread::Cont,
    value::{TableRef, Value},
};
use alloc::{boxed::Box, vec::Vec};

/// Comparisons without a call before others get their turn.
const COMPARISONS_AT_ONCE: usize = 1 << 16;

/// A sort in progress. Runs of `width` elements of `from` are merged in pairs to `to`.
#[derive(Debug)]
pub(crate) struct Sort {
    table: TableRef,
    compare: Value,
    from: Vec<Value>,
    to: Vec<Value>,
    width: usize,
    /// Where the two runs that are being merged begin and end, and how far they are merged.
    left: usize,
    middle: usize,
    right: usize,
    end: usize,
    /// Whether a result is to be inverted: `not (y < x)` was asked for.
    is_waiting: bool,
}

impl Sort {
    pub fn mark(&self, heap: &mut Heap) {
        heap.mark(Value::Table(self.table));
        heap.mark(self.compare);
        self.from.iter().chain(&self.to).for_each(|value| heap.mark(*value));
    }

    /// Prepares the merge of the next two runs; tells whether there are any.
    fn next_runs(&mut self) -> bool {
        let len = self.from.len();
        let start = self.end;
        if start >= len {
            // All pairs are merged: the next round merges runs of twice the length.
            core::mem::swap(&mut self.from, &mut self.to);
            self.to.clear();
            self.width = self.width.saturating_mul(2);
            self.end = 0;
            if self.width >= len {
                return false;
            }
            return self.next_runs();
        }
        self.left = start;
        self.middle = start.saturating_add(self.width).min(len);
        self.right = self.middle;
        self.end = self.middle.saturating_add(self.width).min(len);
        true
    }

    /// Takes the next element from the left or the right run.
    fn take(&mut self, from_right: bool) {
        let place = if from_right { &mut self.right } else { &mut self.left };
        self.to.push(self.from[*place]);
        *place += 1;
    }

    /// Takes what is left when one of the runs is empty; tells whether one is.
    fn take_rest(&mut self) -> bool {
        if self.left < self.middle && self.right < self.end {
            return false;
        }
        self.to.extend_from_slice(&self.from[self.left..self.middle]);
        self.to.extend_from_slice(&self.from[self.right..self.end]);
        (self.left, self.right) = (self.middle, self.end);
        true
    }
}

pub(super) fn sort(machine: &mut Machine, args: Args) -> NativeResult {
    let table = machine.check_table(args, 0)?;
    let compare = machine.arg(args, 1);
    if !compare.is_nil() && !Machine::is_function(compare) {
        return Err(machine.type_expected(args, 1, "function"));
    }
    machine.writable(table)?;
    let len = machine.heap.len_of(table);
    if len < 2 {
        return Ok(Flow::None);
    }
    machine.heap.check_room(len.saturating_mul(2 * size_of::<Value>()))?;
    let (mut from, mut to) = (Vec::new(), Vec::new());
    if from.try_reserve_exact(len).is_err() || to.try_reserve_exact(len).is_err() {
        return Err(Raise::OutOfMemory);
    }
    from.extend((1..=len).map(|index| machine.heap.get_index(table, index)));
    let state = Sort { table, compare, from, to, width: 1, left: 0, middle: 0, right: 0, end: 0, is_waiting: false };
    let mut state = Box::new(state);
    state.next_runs();
    run(machine, state)
}

pub(crate) fn proceed(machine: &mut Machine, mut state: Box<Sort>, results: Args) -> NativeResult {
    if core::mem::take(&mut state.is_waiting) {
        let is_less = machine.arg(results, 0).is_truthy();
        state.take(is_less);
        machine.thread.top = results.base;
    }
    run(machine, state)
}

fn run(machine: &mut Machine, mut state: Box<Sort>) -> NativeResult {
    for _ in 0..COMPARISONS_AT_ONCE {
        if state.take_rest() {
            if state.next_runs() {
                continue;
            }
            for (at, value) in state.from.iter().enumerate() {
                machine.heap.set_index(state.table, at + 1, *value)?;
            }
            return Ok(Flow::None);
        }
        // Equal elements keep their order: the right one goes first only if it is less.
        let (x, y) = (state.from[state.right], state.from[state.left]);
        let function = match (state.compare, x, y) {
            (Value::Nil, Value::Number(x), Value::Number(y)) => {
                state.take(x < y);
                continue;
            }
            (Value::Nil, Value::String(x), Value::String(y)) => {
                let is_less = machine.strings_less(x, y);
                state.take(is_less);
                continue;
            }
            (Value::Nil, x, y) => less_method(machine, x, y)?,
            (function, ..) => function,
        };
        machine.push(function)?;
        machine.push(x)?;
        machine.push(y)?;
        state.is_waiting = true;
        return Ok(Flow::Call(2, Cont::Sort(state)));
    }
    Ok(Flow::Again(Cont::Sort(state)))
}

fn less_method(machine: &mut Machine, x: Value, y: Value) -> Result<Value, Raise> {
    let method = machine.metamethod(x, Meta::Lt);
    let other = machine.metamethod(y, Meta::Lt);
    if method.is_nil() || !machine.heap.raw_equal(method, other) {
        return Err(Machine::compare_error(x, y));
    }
    Ok(method)
}
