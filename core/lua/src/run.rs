//! The interpreter's loop.

use crate::{
    call::{Next, WINDOW},
    error::Raise,
    heap::{Closure, Heap, Upvalue},
    machine::{Event, Flow, Machine, Meta},
    op::{Arith, Capture, OPEN, Op, Operand, Proto, Rk, floor},
    thread::{Frame, Then, Work},
    value::{StringRef, TableRef, Value},
};
use alloc::{rc::Rc, vec::Vec};

type Registers = [Value; WINDOW];

#[inline]
fn window(stack: &mut [Value], base: usize) -> &mut Registers {
    (&mut stack[base..base + WINDOW]).try_into().expect("a running function has all registers that instructions name")
}

#[inline]
fn rk(registers: &Registers, proto: &Proto, operand: Rk) -> Value {
    match operand.operand() {
        Operand::Register(register) => registers[usize::from(register)],
        Operand::Constant(k) => proto.constants[usize::from(k)],
    }
}

fn register_of(operand: Rk) -> Option<u8> {
    match operand.operand() {
        Operand::Register(register) => Some(register),
        Operand::Constant(_) => None,
    }
}

/// An element or field of a table that is there, or that no metamethod stands in for.
#[inline]
fn fast_get(heap: &Heap, table: TableRef, key: Value) -> Option<Value> {
    let value = heap.get(table, key);
    (!value.is_nil() || heap.tables[table.0].meta.is_none()).then_some(value)
}

/// An element or field of a table, or of those that its metatable names by `__index`. `None` if that takes a call, or if
/// there is no end of it.
#[inline(never)]
fn chained_get(heap: &Heap, index: StringRef, table: TableRef, key: Value) -> Option<Value> {
    const CHAIN_LIMIT: usize = 10;
    let mut table = table;
    for _ in 0..CHAIN_LIMIT {
        let value = heap.get(table, key);
        if !value.is_nil() {
            return Some(value);
        }
        let Some(meta) = heap.tables[table.0].meta else { return Some(Value::Nil) };
        match heap.tables[meta.0].get_short(heap.hasher, index) {
            Value::Table(next) => table = next,
            Value::Nil => return Some(Value::Nil),
            _ => return None,
        }
    }
    None
}

/// Sets an element or field that is there already; tells whether it could.
#[inline]
fn fast_set(heap: &mut Heap, table: TableRef, key: Value, value: Value) -> bool {
    let hasher = heap.hasher;
    let table = &mut heap.tables[table.0];
    if table.is_readonly {
        return false;
    }
    let has_meta = table.meta.is_some();
    let place = match key {
        Value::Number(number) => table.element_mut(number),
        Value::String(string) if !string.is_long() => {
            table.lacks = 0;
            table.short_mut(hasher, string)
        }
        _ => None,
    };
    match place {
        Some(place) if !has_meta || !place.is_nil() => {
            *place = value;
            true
        }
        _ => false,
    }
}

/// Numbers of a comparison or of arithmetic, or the slow path.
macro_rules! arith {
    ($machine:ident, $registers:ident, $save:ident, $a:ident, $x:expr, $y:expr, $names:expr, $op:expr, $fast:expr) => {{
        let (x, y) = ($x, $y);
        if let (Value::Number(x), Value::Number(y)) = (x, y) {
            $registers[usize::from($a)] = Value::Number($fast(x, y));
            continue;
        }
        let to = $save!() + usize::from($a);
        $machine.arith($op, [x, y], $names, to)
    }};
}

macro_rules! compare {
    ($machine:ident, $pc:ident, $save:ident, $x:expr, $y:expr, $when:ident, $to:ident, $is_strict:expr, $fast:expr) => {{
        let (x, y) = ($x, $y);
        if let (Value::Number(x), Value::Number(y)) = (x, y) {
            if $fast(&x, &y) == $when {
                $pc = $to as usize;
            }
            continue;
        }
        $save!();
        $machine.less($is_strict, x, y, $when, $to as u32)
    }};
}

impl Machine {
    /// Runs the innermost call until the host has to do something.
    pub(crate) fn execute(&mut self) -> Result<Next, Raise> {
        loop {
            let step = match self.thread.frames.last() {
                Some(Frame { work: Work::Lua { .. }, .. }) => self.interpret()?,
                Some(_) => {
                    self.budget -= 1;
                    if self.budget < 0 {
                        return Ok(Next::Exit(Event::Preempted));
                    }
                    self.proceed_again()?
                }
                None => return Ok(Next::Exit(Event::Done)),
            };
            if let Next::Exit(_) = step {
                return Ok(step);
            }
        }
    }

    fn interpret(&mut self) -> Result<Next, Raise> {
        'frame: loop {
            let Some(Frame { work: Work::Lua { closure, proto, pc }, base, .. }) = self.thread.frames.last() else {
                return Ok(Next::Run);
            };
            let (closure, mut pc, base) = (*closure, *pc as usize, *base as usize);
            let proto = Rc::clone(proto);
            let code = &proto.code[..];
            let constants = &proto.constants[..];
            let heap = &mut self.heap;
            let index_name = self.meta_names[Meta::Index as usize];
            let registers = window(&mut self.thread.stack, base);
            macro_rules! save {
                () => {{
                    if let Some(Frame { work: Work::Lua { pc: saved, .. }, .. }) = self.thread.frames.last_mut() {
                        *saved = pc as u32;
                    }
                    base
                }};
            }
            macro_rules! r {
                ($register:expr) => {
                    registers[usize::from($register)]
                };
            }
            // Counts a turn of a loop or a call, where the host may want to look in. So many instructions are done again.
            macro_rules! count {
                ($back:expr) => {
                    self.budget -= 1;
                    if self.budget < 0 {
                        pc -= $back;
                        save!();
                        return Ok(Next::Exit(Event::Preempted));
                    }
                };
            }
            let step = loop {
                let op = code[pc];
                pc += 1;
                break match op {
                    Op::Move { a, b } => {
                        r!(a) = r!(b);
                        continue;
                    }
                    Op::LoadK { a, k } => {
                        r!(a) = constants[k as usize];
                        continue;
                    }
                    Op::LoadNil { a, b } => {
                        registers[usize::from(a)..=usize::from(b)].fill(Value::Nil);
                        continue;
                    }
                    Op::LoadBool { a, value, skips } => {
                        r!(a) = Value::Boolean(value);
                        pc += usize::from(skips);
                        continue;
                    }
                    Op::GetUpvalue { a, index } => {
                        let upvalue = heap.closures[closure.0].upvalues[usize::from(index)];
                        if let Upvalue::Closed(value) = heap.upvalues[upvalue.0] {
                            r!(a) = value;
                            continue;
                        }
                        save!();
                        let value = self.upvalue(upvalue);
                        self.thread.stack[base + usize::from(a)] = value;
                        Ok(Next::Run)
                    }
                    Op::SetUpvalue { a, index } => {
                        let upvalue = heap.closures[closure.0].upvalues[usize::from(index)];
                        let value = r!(a);
                        if let Upvalue::Closed(place) = &mut heap.upvalues[upvalue.0] {
                            *place = value;
                            continue;
                        }
                        save!();
                        self.set_upvalue(upvalue, value);
                        Ok(Next::Run)
                    }
                    Op::GetGlobal { a, k } => {
                        let env = heap.closures[closure.0].env;
                        let key = constants[k as usize];
                        if let Some(value) = fast_get(heap, env, key) {
                            r!(a) = value;
                            continue;
                        }
                        let to = save!() + usize::from(a);
                        self.index(Value::Table(env), key, to, None)
                    }
                    Op::SetGlobal { a, k } => {
                        let env = heap.closures[closure.0].env;
                        let (key, value) = (constants[k as usize], r!(a));
                        if fast_set(heap, env, key, value) {
                            continue;
                        }
                        save!();
                        self.set_index(Value::Table(env), key, value, None)
                    }
                    Op::GetTable { a, b, c } => {
                        let (object, key) = (r!(b), r!(c));
                        if let Value::Table(table) = object
                            && let Some(value) = fast_get(heap, table, key)
                        {
                            r!(a) = value;
                            continue;
                        }
                        let to = save!() + usize::from(a);
                        self.index(object, key, to, Some(b))
                    }
                    Op::GetField { a, b, k } => {
                        let (object, key) = (r!(b), constants[usize::from(k)]);
                        if let (Value::Table(at), Value::String(name)) = (object, key) {
                            let table = &heap.tables[at.0];
                            let value = table.get_short(heap.hasher, name);
                            if !value.is_nil() || table.meta.is_none() {
                                r!(a) = value;
                                continue;
                            }
                            if let Some(value) = chained_get(heap, index_name, at, key) {
                                r!(a) = value;
                                continue;
                            }
                        }
                        let to = save!() + usize::from(a);
                        self.index(object, key, to, Some(b))
                    }
                    Op::GetConstant { a, b, k } => {
                        let (object, key) = (r!(b), constants[usize::from(k)]);
                        if let Value::Table(table) = object
                            && let Some(value) = fast_get(heap, table, key)
                        {
                            r!(a) = value;
                            continue;
                        }
                        let to = save!() + usize::from(a);
                        self.index(object, key, to, Some(b))
                    }
                    Op::SetTable { a, key, value } => {
                        let (object, key, value) = (r!(a), rk(registers, &proto, key), rk(registers, &proto, value));
                        if let Value::Table(table) = object
                            && fast_set(heap, table, key, value)
                        {
                            continue;
                        }
                        save!();
                        self.set_index(object, key, value, Some(a))
                    }
                    Op::SetField { a, k, value } => {
                        let (object, key) = (r!(a), constants[usize::from(k)]);
                        let value = rk(registers, &proto, value);
                        if let Value::Table(table) = object
                            && fast_set(heap, table, key, value)
                        {
                            continue;
                        }
                        save!();
                        self.set_index(object, key, value, Some(a))
                    }
                    Op::NewTable { a, elements, fields } => {
                        save!();
                        self.new_table(base + usize::from(a), elements.into(), fields.into())
                    }
                    Op::SelfField { a, b, key } => {
                        let (object, key) = (r!(b), rk(registers, &proto, key));
                        r!(a + 1) = object;
                        if let Value::Table(table) = object
                            && let Some(value) = chained_get(heap, index_name, table, key)
                        {
                            r!(a) = value;
                            continue;
                        }
                        let to = save!() + usize::from(a);
                        self.index(object, key, to, Some(b))
                    }
                    Op::AddRR { a, b, c } => {
                        let names = [Some(b), Some(c)];
                        arith!(self, registers, save, a, r!(b), r!(c), names, Arith::Add, |x, y| x + y)
                    }
                    Op::AddRK { a, b, k } => {
                        let y = constants[usize::from(k)];
                        arith!(self, registers, save, a, r!(b), y, [Some(b), None], Arith::Add, |x, y| x + y)
                    }
                    Op::SubRR { a, b, c } => {
                        let names = [Some(b), Some(c)];
                        arith!(self, registers, save, a, r!(b), r!(c), names, Arith::Sub, |x, y| x - y)
                    }
                    Op::SubRK { a, b, k } => {
                        let y = constants[usize::from(k)];
                        arith!(self, registers, save, a, r!(b), y, [Some(b), None], Arith::Sub, |x, y| x - y)
                    }
                    Op::MulRR { a, b, c } => {
                        let names = [Some(b), Some(c)];
                        arith!(self, registers, save, a, r!(b), r!(c), names, Arith::Mul, |x, y| x * y)
                    }
                    Op::MulRK { a, b, k } => {
                        let y = constants[usize::from(k)];
                        arith!(self, registers, save, a, r!(b), y, [Some(b), None], Arith::Mul, |x, y| x * y)
                    }
                    Op::DivRR { a, b, c } => {
                        let names = [Some(b), Some(c)];
                        arith!(self, registers, save, a, r!(b), r!(c), names, Arith::Div, |x, y| x / y)
                    }
                    Op::DivRK { a, b, k } => {
                        let y = constants[usize::from(k)];
                        arith!(self, registers, save, a, r!(b), y, [Some(b), None], Arith::Div, |x, y| x / y)
                    }
                    Op::ModRR { a, b, c } => {
                        let names = [Some(b), Some(c)];
                        let fast = |x: f64, y: f64| x - floor(x / y) * y;
                        arith!(self, registers, save, a, r!(b), r!(c), names, Arith::Mod, fast)
                    }
                    Op::ModRK { a, b, k } => {
                        let y = constants[usize::from(k)];
                        let fast = |x: f64, y: f64| x - floor(x / y) * y;
                        arith!(self, registers, save, a, r!(b), y, [Some(b), None], Arith::Mod, fast)
                    }
                    Op::Arith { a, op, b, c } => {
                        let operands = [rk(registers, &proto, b), rk(registers, &proto, c)];
                        let to = save!() + usize::from(a);
                        self.arith(op, operands, [register_of(b), register_of(c)], to)
                    }
                    Op::Negate { a, b } => {
                        if let Value::Number(number) = r!(b) {
                            r!(a) = Value::Number(-number);
                            continue;
                        }
                        let x = r!(b);
                        let to = save!() + usize::from(a);
                        self.negate(x, b, to)
                    }
                    Op::Not { a, b } => {
                        r!(a) = Value::Boolean(!r!(b).is_truthy());
                        continue;
                    }
                    Op::Len { a, b } => {
                        if let Value::Table(table) = r!(b) {
                            r!(a) = Value::Number(heap.len_of(table) as f64);
                            continue;
                        }
                        let x = r!(b);
                        let to = save!() + usize::from(a);
                        self.length(x, b, to)
                    }
                    Op::Concat { a, b, c } => {
                        save!();
                        let last = self.concat_from.take().unwrap_or(base + usize::from(c));
                        self.collect_if_due(base + usize::from(c) + 1);
                        self.concat(base + usize::from(b), last, base + usize::from(a))
                    }
                    Op::Jump { to } => {
                        if (to as usize) < pc {
                            count!(1);
                        }
                        pc = to as usize;
                        continue;
                    }
                    Op::Test { a, when, to } => {
                        if r!(a).is_truthy() == when {
                            pc = to as usize;
                        }
                        continue;
                    }
                    Op::TestSet { a, b, when, to } => {
                        if r!(b).is_truthy() == when {
                            r!(a) = r!(b);
                            pc = to as usize;
                        }
                        continue;
                    }
                    Op::Equal { a, b, when, to } => {
                        let (x, y) = (r!(a), r!(b));
                        if !matches!((x, y), (Value::Table(_), Value::Table(_))) {
                            if heap.raw_equal(x, y) == when {
                                pc = to as usize;
                            }
                            continue;
                        }
                        save!();
                        self.equal(x, y, when, to as u32)
                    }
                    Op::EqualK { a, k, when, to } => {
                        if heap.raw_equal(r!(a), constants[usize::from(k)]) == when {
                            pc = to as usize;
                        }
                        continue;
                    }
                    Op::Less { a, b, when, to } => {
                        compare!(self, pc, save, r!(a), r!(b), when, to, true, f64::lt)
                    }
                    Op::LessEqual { a, b, when, to } => {
                        compare!(self, pc, save, r!(a), r!(b), when, to, false, f64::le)
                    }
                    Op::LessK { a, k, when, to } => {
                        compare!(self, pc, save, r!(a), constants[usize::from(k)], when, to, true, f64::lt)
                    }
                    Op::LessEqualK { a, k, when, to } => {
                        compare!(self, pc, save, r!(a), constants[usize::from(k)], when, to, false, f64::le)
                    }
                    Op::GreaterK { a, k, when, to } => {
                        compare!(self, pc, save, constants[usize::from(k)], r!(a), when, to, true, f64::lt)
                    }
                    Op::GreaterEqualK { a, k, when, to } => {
                        compare!(self, pc, save, constants[usize::from(k)], r!(a), when, to, false, f64::le)
                    }
                    Op::Call { a, arguments, results } => {
                        count!(1);
                        save!();
                        let slot = base + usize::from(a);
                        let count = if arguments == OPEN { self.thread.top - slot - 1 } else { usize::from(arguments) };
                        let then = Then::Store { to: slot as u32, want: results };
                        if let Value::Function(closure) = self.thread.stack[slot] {
                            self.push_lua(closure, slot, count, then)?;
                            continue 'frame;
                        }
                        let step = self.call(slot, count, then);
                        if results != OPEN {
                            self.collect_if_due(0);
                        }
                        step
                    }
                    Op::TailCall { a, arguments } => {
                        count!(1);
                        save!();
                        self.tail_call(base, base + usize::from(a), arguments)
                    }
                    Op::Return { a, results } => {
                        let from = base + usize::from(a);
                        let count = if results == OPEN { self.thread.top - from } else { usize::from(results) };
                        if !self.thread.open.is_empty() {
                            self.close_upvalues(base);
                        }
                        let Some(frame) = self.thread.frames.pop() else { return Ok(Next::Run) };
                        if let Then::Store { to, want: 1 } = frame.then {
                            self.thread.stack[to as usize] =
                                if count > 0 { self.thread.stack[from] } else { Value::Nil };
                            continue 'frame;
                        }
                        self.thread.top = from + count;
                        self.finish(Flow::Many(count), frame.slot as usize, frame.then)
                    }
                    Op::ForPrepare { a, to } => {
                        save!();
                        self.prepare_for(base + usize::from(a), to as u32)
                    }
                    Op::ForLoop { a, to } => {
                        if let (Value::Number(index), Value::Number(limit), Value::Number(step)) =
                            (r!(a), r!(a + 1), r!(a + 2))
                        {
                            let index = index + step;
                            if if step > 0.0 { index <= limit } else { limit <= index } {
                                r!(a) = Value::Number(index);
                                r!(a + 3) = Value::Number(index);
                                pc = to as usize;
                                count!(0);
                            }
                        }
                        continue;
                    }
                    Op::ForCall { a, results } => {
                        if let (Value::Native(native), Value::Table(table)) = (r!(a), r!(a + 1)) {
                            let key = r!(a + 2);
                            if native == crate::library::NEXT && results <= 2 {
                                match heap.next(table, key) {
                                    Ok(entry) => {
                                        let (key, value) = entry.unwrap_or_default();
                                        r!(a + 3) = key;
                                        r!(a + 4) = value;
                                        continue;
                                    }
                                    Err(()) => {
                                        save!();
                                        return Err(Raise::positioned("invalid key to 'next'"));
                                    }
                                }
                            }
                            if native == crate::library::NEXT_INDEX
                                && results <= 2
                                && let Value::Number(index) = key
                            {
                                let value = heap.get(table, Value::Number(index + 1.0));
                                r!(a + 3) = if value.is_nil() { Value::Nil } else { Value::Number(index + 1.0) };
                                r!(a + 4) = value;
                                continue;
                            }
                        }
                        save!();
                        let slot = base + usize::from(a);
                        self.thread.stack.copy_within(slot..slot + 3, slot + 3);
                        self.call(slot + 3, 2, Then::Store { to: slot as u32 + 3, want: results })
                    }
                    Op::ForTest { a, to } => {
                        let key = r!(a + 3);
                        if !key.is_nil() {
                            r!(a + 2) = key;
                            pc = to as usize;
                            count!(0);
                        }
                        continue;
                    }
                    Op::SetList { a, count, first } => {
                        save!();
                        let slot = base + usize::from(a);
                        let count = if count == OPEN { self.thread.top - slot - 1 } else { usize::from(count) };
                        self.set_list(slot, count, first as usize)
                    }
                    Op::Close { a } => {
                        save!();
                        self.close_upvalues(base + usize::from(a));
                        Ok(Next::Run)
                    }
                    Op::Closure { a, index } => {
                        save!();
                        self.make_closure(base, a, usize::from(index))
                    }
                    Op::Varargs { a, count } => {
                        save!();
                        self.varargs(base, base + usize::from(a), count)
                    }
                };
            };
            if let exit @ Next::Exit(_) = step? {
                return Ok(exit);
            }
        }
    }

    /// Collects garbage if it is time. The stack is in use at least up to `top`.
    #[inline]
    fn collect_if_due(&mut self, top: usize) {
        if self.heap.is_collection_due() {
            self.thread.top = top;
            self.collect();
        }
    }

    #[inline(never)]
    fn new_table(&mut self, to: usize, elements: usize, fields: usize) -> Result<Next, Raise> {
        self.collect_if_due(0);
        self.thread.stack[to] = Value::Table(self.heap.table(elements, fields)?);
        Ok(Next::Run)
    }

    #[inline(never)]
    fn tail_call(&mut self, base: usize, slot: usize, arguments: u8) -> Result<Next, Raise> {
        let count = if arguments == OPEN { self.thread.top - slot - 1 } else { usize::from(arguments) };
        let Value::Function(closure) = self.thread.stack[slot] else {
            // What is no Lua function is called as usual; the return that follows passes its results on.
            return self.call(slot, count, Then::Store { to: slot as u32, want: OPEN });
        };
        self.close_upvalues(base);
        let Some(frame) = self.thread.frames.pop() else { return Ok(Next::Run) };
        let to = frame.slot as usize;
        self.thread.stack.copy_within(slot..slot + 1 + count, to);
        self.push_lua(closure, to, count, frame.then)?;
        Ok(Next::Run)
    }

    #[inline(never)]
    fn prepare_for(&mut self, slot: usize, to: u32) -> Result<Next, Raise> {
        const WHAT: [&str; 3] = ["'for' initial value", "'for' limit", "'for' step"];
        for (at, what) in WHAT.iter().enumerate() {
            let Some(number) = self.to_number(self.thread.stack[slot + at]) else {
                return Err(alloc::format!("{what} must be a number").into());
            };
            self.thread.stack[slot + at] = Value::Number(number);
        }
        if let (Value::Number(first), Value::Number(step)) = (self.thread.stack[slot], self.thread.stack[slot + 2]) {
            self.thread.stack[slot] = Value::Number(first - step);
        }
        if let Some(Frame { work: Work::Lua { pc, .. }, .. }) = self.thread.frames.last_mut() {
            *pc = to;
        }
        Ok(Next::Run)
    }

    #[inline(never)]
    fn set_list(&mut self, slot: usize, count: usize, first: usize) -> Result<Next, Raise> {
        let Value::Table(table) = self.thread.stack[slot] else { return Ok(Next::Run) };
        for at in 0..count {
            let value = self.thread.stack[slot + 1 + at];
            let len = self.heap.tables[table.0].array.len();
            // A hole is part of the array, so that the length is found as in C's Lua.
            if len == first + at - 1 {
                self.heap.push(table, value)?;
            } else {
                self.heap.set_index(table, first + at, value)?;
            }
        }
        Ok(Next::Run)
    }

    #[inline(never)]
    fn make_closure(&mut self, base: usize, a: u8, index: usize) -> Result<Next, Raise> {
        self.collect_if_due(0);
        let Some(Frame { work: Work::Lua { closure, proto, .. }, .. }) = self.thread.frames.last() else {
            return Ok(Next::Run);
        };
        let closure = *closure;
        let proto = Rc::clone(&proto.protos[index]);
        let mut upvalues = Vec::new();
        upvalues.try_reserve_exact(proto.captures.len()).map_err(|_| Raise::OutOfMemory)?;
        for capture in &proto.captures {
            upvalues.push(match capture {
                Capture::Register(register) => self.share(base + usize::from(*register))?,
                Capture::Upvalue(index) => self.heap.closures[closure.0].upvalues[usize::from(*index)],
            });
        }
        let env = self.heap.closures[closure.0].env;
        let made = self.heap.closure(Closure { proto, upvalues: upvalues.into_boxed_slice(), env })?;
        self.thread.stack[base + usize::from(a)] = Value::Function(made);
        Ok(Next::Run)
    }

    #[inline(never)]
    fn varargs(&mut self, base: usize, to: usize, count: u8) -> Result<Next, Raise> {
        let Some(Frame { work: Work::Lua { proto, .. }, slot, .. }) = self.thread.frames.last() else {
            return Ok(Next::Run);
        };
        let from = *slot as usize + 1 + usize::from(proto.parameters);
        let given = base - from;
        let wanted = if count == OPEN { given } else { usize::from(count) };
        if to + wanted.max(WINDOW) > self.thread.stack.len() {
            self.grow_stack(to + wanted.max(WINDOW))?;
        }
        let copied = given.min(wanted);
        self.thread.stack.copy_within(from..from + copied, to);
        self.thread.stack[to + copied..to + wanted].fill(Value::Nil);
        if count == OPEN {
            self.thread.top = to + wanted;
        }
        Ok(Next::Run)
    }
}
