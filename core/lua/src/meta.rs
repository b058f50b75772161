//! What instructions do where a fast path does not reach: conversions and metamethods.

use crate::{
    call::Next,
    error::Raise,
    machine::{Machine, Meta},
    number::{format_number, parse_number},
    op::Arith,
    thread::{Then, Work},
    value::{StringRef, TableRef, Value},
};
use alloc::{format, vec::Vec};

/// Steps along a chain of `__index` or `__newindex` tables.
const CHAIN_LIMIT: usize = 100;
pub(crate) const READONLY: &str = "Attempt to modify a readonly table";

impl Arith {
    fn meta(self) -> Meta {
        match self {
            Arith::Add => Meta::Add,
            Arith::Sub => Meta::Sub,
            Arith::Mul => Meta::Mul,
            Arith::Div => Meta::Div,
            Arith::Mod => Meta::Mod,
            Arith::Pow => Meta::Pow,
        }
    }
}

impl Machine {
    /// The metatable of a value.
    pub(crate) fn metatable(&self, value: Value) -> Option<TableRef> {
        match value {
            Value::Table(table) => self.heap.tables[table.0].meta,
            Value::String(_) => self.string_meta,
            _ => None,
        }
    }

    /// A metamethod in a metatable, `nil` if it has none.
    #[inline]
    pub(crate) fn in_metatable(&mut self, meta: TableRef, event: Meta) -> Value {
        let hasher = self.heap.hasher;
        let table = &mut self.heap.tables[meta.0];
        let bit = 1 << event as u32;
        if table.lacks & bit != 0 {
            return Value::Nil;
        }
        let found = table.get_short(hasher, self.meta_names[event as usize]);
        if found.is_nil() {
            self.heap.tables[meta.0].lacks |= bit;
        }
        found
    }

    pub(crate) fn metamethod(&mut self, value: Value, event: Meta) -> Value {
        match self.metatable(value) {
            Some(meta) => self.in_metatable(meta, event),
            None => Value::Nil,
        }
    }

    pub(crate) fn is_function(value: Value) -> bool {
        matches!(value, Value::Function(_) | Value::Native(_) | Value::Bound(_))
    }

    /// Calls a metamethod from the running function.
    fn call_meta(&mut self, method: Value, arguments: &[Value], then: Then) -> Result<Next, Raise> {
        let slot = self.thread.frames.last().map_or(0, |frame| frame.extent as usize);
        self.thread.top = slot;
        self.push(method)?;
        for value in arguments {
            self.push(*value)?;
        }
        self.call(slot, arguments.len(), then)
    }

    /// `object[key]`, to a slot of the stack. The register where the object is, is for the text of an error.
    #[inline(never)]
    pub(crate) fn index(&mut self, object: Value, key: Value, to: usize, register: Option<u8>) -> Result<Next, Raise> {
        let (mut object, mut register) = (object, register);
        for _ in 0..CHAIN_LIMIT {
            let method = match object {
                Value::Table(table) => {
                    let value = self.heap.get(table, key);
                    let method = match self.heap.tables[table.0].meta {
                        Some(meta) if value.is_nil() => self.in_metatable(meta, Meta::Index),
                        _ => Value::Nil,
                    };
                    if method.is_nil() {
                        self.thread.stack[to] = value;
                        return Ok(Next::Run);
                    }
                    method
                }
                _ => {
                    let method = self.metamethod(object, Meta::Index);
                    if method.is_nil() {
                        return Err(self.type_error("index", object, register));
                    }
                    method
                }
            };
            if Self::is_function(method) {
                return self.call_meta(method, &[object, key], Then::Store { to: to as u32, want: 1 });
            }
            (object, register) = (method, None);
        }
        Err(Raise::positioned("loop in gettable"))
    }

    /// `object[key] = value`.
    #[inline(never)]
    pub(crate) fn set_index(
        &mut self,
        object: Value,
        key: Value,
        value: Value,
        register: Option<u8>,
    ) -> Result<Next, Raise> {
        let (mut object, mut register) = (object, register);
        for _ in 0..CHAIN_LIMIT {
            let method = match object {
                Value::Table(table) => {
                    let method = match self.heap.tables[table.0].meta {
                        Some(meta) if self.heap.get(table, key).is_nil() => self.in_metatable(meta, Meta::NewIndex),
                        _ => Value::Nil,
                    };
                    if method.is_nil() {
                        self.writable(table)?;
                        self.heap.set(table, key, value)?;
                        return Ok(Next::Run);
                    }
                    method
                }
                _ => {
                    let method = self.metamethod(object, Meta::NewIndex);
                    if method.is_nil() {
                        return Err(self.type_error("index", object, register));
                    }
                    method
                }
            };
            if Self::is_function(method) {
                return self.call_meta(method, &[object, key, value], Then::Store { to: 0, want: 0 });
            }
            (object, register) = (method, None);
        }
        Err(Raise::positioned("loop in settable"))
    }

    /// Refuses to change a table that is protected.
    pub(crate) fn writable(&self, table: TableRef) -> Result<(), Raise> {
        if self.heap.tables[table.0].is_readonly { Err(Raise::runtime(READONLY)) } else { Ok(()) }
    }

    /// A value as a number, if it is one or a string that says one.
    #[inline]
    pub fn to_number(&self, value: Value) -> Option<f64> {
        match value {
            Value::Number(number) => Some(number),
            Value::String(string) => parse_number(self.heap.bytes(string)),
            _ => None,
        }
    }

    #[inline(never)]
    pub(crate) fn arith(
        &mut self,
        op: Arith,
        operands: [Value; 2],
        registers: [Option<u8>; 2],
        to: usize,
    ) -> Result<Next, Raise> {
        let [x, y] = operands;
        if let (Some(x), Some(y)) = (self.to_number(x), self.to_number(y)) {
            self.thread.stack[to] = Value::Number(op.apply(x, y));
            return Ok(Next::Run);
        }
        let mut method = self.metamethod(x, op.meta());
        if method.is_nil() {
            method = self.metamethod(y, op.meta());
        }
        if method.is_nil() {
            let culprit = if self.to_number(x).is_none() { 0 } else { 1 };
            return Err(self.type_error("perform arithmetic on", operands[culprit], registers[culprit]));
        }
        self.call_meta(method, &operands, Then::Store { to: to as u32, want: 1 })
    }

    pub(crate) fn negate(&mut self, x: Value, register: u8, to: usize) -> Result<Next, Raise> {
        if let Some(x) = self.to_number(x) {
            self.thread.stack[to] = Value::Number(-x);
            return Ok(Next::Run);
        }
        let method = self.metamethod(x, Meta::Unm);
        if method.is_nil() {
            return Err(self.type_error("perform arithmetic on", x, Some(register)));
        }
        self.call_meta(method, &[x, x], Then::Store { to: to as u32, want: 1 })
    }

    pub(crate) fn length(&mut self, x: Value, register: u8, to: usize) -> Result<Next, Raise> {
        let len = match x {
            Value::Table(table) => self.heap.len_of(table),
            Value::String(string) => self.heap.bytes(string).len(),
            _ => return Err(self.type_error("get length of", x, Some(register))),
        };
        self.thread.stack[to] = Value::Number(len as f64);
        Ok(Next::Run)
    }

    /// Ends a comparison: the running function goes on at `to` if the result is `when`.
    fn branch(&mut self, result: bool, when: bool, to: u32) -> Next {
        if result == when
            && let Some(Work::Lua { pc, .. }) = self.thread.frames.last_mut().map(|frame| &mut frame.work)
        {
            *pc = to;
        }
        Next::Run
    }

    #[inline(never)]
    pub(crate) fn equal(&mut self, x: Value, y: Value, when: bool, to: u32) -> Result<Next, Raise> {
        if self.heap.raw_equal(x, y) {
            return Ok(self.branch(true, when, to));
        }
        let method = match (x, y) {
            (Value::Table(_), Value::Table(_)) => self.shared_method(x, y, Meta::Eq),
            _ => Value::Nil,
        };
        if method.is_nil() {
            return Ok(self.branch(false, when, to));
        }
        self.call_meta(method, &[x, y], Then::Branch { when, to })
    }

    /// A metamethod that both operands have.
    fn shared_method(&mut self, x: Value, y: Value, event: Meta) -> Value {
        let method = self.metamethod(x, event);
        let other = self.metamethod(y, event);
        if self.heap.raw_equal(method, other) { method } else { Value::Nil }
    }

    pub(crate) fn strings_less(&self, x: StringRef, y: StringRef) -> bool {
        self.heap.bytes(x) < self.heap.bytes(y)
    }

    /// `x < y`, or `x <= y`.
    #[inline(never)]
    pub(crate) fn less(&mut self, is_strict: bool, x: Value, y: Value, when: bool, to: u32) -> Result<Next, Raise> {
        let result = match (x, y) {
            (Value::Number(x), Value::Number(y)) => {
                if is_strict {
                    x < y
                } else {
                    x <= y
                }
            }
            (Value::String(x), Value::String(y)) => {
                if is_strict {
                    self.strings_less(x, y)
                } else {
                    !self.strings_less(y, x)
                }
            }
            _ => return self.less_by_method(is_strict, x, y, when, to),
        };
        Ok(self.branch(result, when, to))
    }

    fn less_by_method(&mut self, is_strict: bool, x: Value, y: Value, when: bool, to: u32) -> Result<Next, Raise> {
        if x.type_name() == y.type_name() {
            let method = self.shared_method(x, y, if is_strict { Meta::Lt } else { Meta::Le });
            if !method.is_nil() {
                return self.call_meta(method, &[x, y], Then::Branch { when, to });
            }
            // Without `__le`, x <= y is not (y < x).
            let method = if is_strict { Value::Nil } else { self.shared_method(x, y, Meta::Lt) };
            if !method.is_nil() {
                return self.call_meta(method, &[y, x], Then::Branch { when: !when, to });
            }
        }
        Err(Self::compare_error(x, y))
    }

    pub(crate) fn compare_error(x: Value, y: Value) -> Raise {
        let (x, y) = (x.type_name(), y.type_name());
        let text = if x == y {
            format!("attempt to compare two {x} values")
        } else {
            format!("attempt to compare {x} with {y}")
        };
        Raise::Runtime(text.into_bytes())
    }

    /// Appends the text of a string or a number. Tells whether it was one.
    pub(crate) fn append(&self, value: Value, out: &mut Vec<u8>) -> Result<bool, Raise> {
        match value {
            Value::String(string) => {
                let bytes = self.heap.bytes(string);
                out.try_reserve(bytes.len()).map_err(|_| Raise::OutOfMemory)?;
                out.extend_from_slice(bytes);
            }
            Value::Number(number) => format_number(number, out),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn text_len(&self, value: Value) -> Option<usize> {
        match value {
            Value::String(string) => Some(self.heap.bytes(string).len()),
            Value::Number(_) => Some(16),
            _ => None,
        }
    }

    /// Concatenates the values in the slots from `first` to `last` and puts the result into `to`.
    #[inline(never)]
    pub(crate) fn concat(&mut self, first: usize, last: usize, to: usize) -> Result<Next, Raise> {
        let mut last = last;
        while last > first {
            // As many strings and numbers as there are at the end are joined at once.
            let mut from = last + 1;
            let mut len = 0_usize;
            while from > first
                && let Some(more) = self.text_len(self.thread.stack[from - 1])
            {
                len = len.saturating_add(more);
                from -= 1;
            }
            if from >= last {
                return self.concat_by_method(last);
            }
            self.heap.check_room(len)?;
            let mut text = Vec::new();
            text.try_reserve_exact(len).map_err(|_| Raise::OutOfMemory)?;
            for slot in from..=last {
                self.append(self.thread.stack[slot], &mut text)?;
            }
            self.thread.stack[from] = Value::String(self.heap.string_from(text)?);
            last = from;
        }
        self.thread.stack[to] = self.thread.stack[first];
        Ok(Next::Run)
    }

    /// Concatenates two values by a metamethod; the instruction is executed again with its result.
    fn concat_by_method(&mut self, last: usize) -> Result<Next, Raise> {
        let operands = [self.thread.stack[last - 1], self.thread.stack[last]];
        let mut method = self.metamethod(operands[0], Meta::Concat);
        if method.is_nil() {
            method = self.metamethod(operands[1], Meta::Concat);
        }
        if method.is_nil() {
            let culprit = if self.text_len(operands[0]).is_some() { 1 } else { 0 };
            let base = self.thread.frames.last().map_or(0, |frame| frame.base as usize);
            let register = (last - 1 + culprit).checked_sub(base).map(|register| register as u8);
            return Err(self.type_error("concatenate", operands[culprit], register));
        }
        self.call_meta(method, &operands, Then::Concat { at: (last - 1) as u32 })
    }
}
