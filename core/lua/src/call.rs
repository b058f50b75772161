//! Calls, returns, errors and coroutines.
//!
//! Rust's stack does not grow with Lua's: every call is a [`Frame`], and a library function that calls Lua says how it
//! goes on ([`Cont`]) instead of waiting. So a machine can stop anywhere between two instructions and go on later.

use crate::{
    error::Raise,
    heap::Upvalue,
    library,
    machine::{Args, Event, Failure, Flow, Machine, Meta, Native},
    op::OPEN,
    thread::{Cont, Frame, Status, Then, Thread, Work},
    value::{ClosureRef, NativeRef, ThreadRef, UpvalueRef, Value},
};
use alloc::vec::Vec;

/// Calls that may be under way in one coroutine, as in Lua 5.1.
const FRAMES_LIMIT: usize = 20_000;
/// Coroutines that may have resumed one another, as in Lua 5.1.
const RESUMES_LIMIT: usize = 200;
/// Registers that instructions can name.
pub(crate) const WINDOW: usize = 256;

/// How the interpreter goes on.
#[derive(Debug)]
pub(crate) enum Next {
    Run,
    Exit(Event),
}

impl Machine {
    /// Runs what was started, or goes on with it, for about so many instructions.
    pub fn run(&mut self, budget: u64) -> Event {
        self.budget = budget.clamp(1, i64::MAX as u64) as i64;
        let mut step = match self.answer.take() {
            Some(answer) => self.take_answer(answer),
            None => Ok(Next::Run),
        };
        loop {
            step = match step {
                Ok(Next::Exit(event)) => return event,
                Ok(Next::Run) => self.execute(),
                Err(raise) => match self.unwind(raise) {
                    Ok(next) => next,
                    Err(failure) => return Event::Failed(failure),
                },
            };
        }
    }

    fn take_answer(&mut self, answer: Result<Flow, Raise>) -> Result<Next, Raise> {
        let Some(frame) = self.thread.frames.pop() else { return Ok(Next::Run) };
        self.finish(answer?, frame.slot as usize, frame.then)
    }

    /// Calls the function in a slot with so many arguments behind it.
    #[inline]
    pub(crate) fn call(&mut self, slot: usize, count: usize, then: Then) -> Result<Next, Raise> {
        if let Value::Function(closure) = self.thread.stack[slot] {
            self.push_lua(closure, slot, count, then)?;
            return Ok(Next::Run);
        }
        let (native, count) = self.callee(slot, count)?;
        match native {
            Callee::Lua(closure) => self.push_lua(closure, slot, count, then).map(|()| Next::Run),
            Callee::Native(native) => {
                let flow = self.call_native(native, slot, count)?;
                self.finish(flow, slot, then)
            }
        }
    }

    /// What is called by a slot. Where it is an object with `__call`, that takes its place and it becomes an argument.
    fn callee(&mut self, slot: usize, count: usize) -> Result<(Callee, usize), Raise> {
        match self.thread.stack[slot] {
            Value::Function(closure) => Ok((Callee::Lua(closure), count)),
            Value::Native(native) => Ok((Callee::Native(native), count)),
            Value::Bound(bound) => Ok((Callee::Native(self.heap.bounds[bound.0].native), count)),
            object => {
                let method = self.metamethod(object, Meta::Call);
                if !Self::is_function(method) {
                    return Err(self.call_error(slot, object));
                }
                self.thread.top = slot + 1 + count;
                self.push(Value::Nil)?;
                self.thread.stack.copy_within(slot..slot + 1 + count, slot + 1);
                self.thread.stack[slot] = method;
                self.callee(slot, count + 1)
            }
        }
    }

    fn call_native(&mut self, native: NativeRef, slot: usize, count: usize) -> Result<Flow, Raise> {
        self.thread.top = slot + 1 + count;
        match self.natives[native.0 as usize] {
            Native::Library(function) => function(self, Args { base: slot + 1, len: count }).map_err(Raise::in_library),
            Native::Host(number) => Ok(Flow::Host(number)),
        }
    }

    fn push_frame(&mut self, frame: Frame) -> Result<(), Raise> {
        if self.thread.frames.len() == self.thread.frames.capacity() {
            let more = self.thread.frames.len().max(8);
            self.heap.charge(more * size_of::<Frame>())?;
            self.thread.frames.try_reserve_exact(more).map_err(|_| Raise::OutOfMemory)?;
        }
        if self.thread.frames.len() >= FRAMES_LIMIT {
            return Err(Raise::positioned("stack overflow"));
        }
        self.thread.frames.push(frame);
        Ok(())
    }

    pub(crate) fn push_lua(&mut self, closure: ClosureRef, slot: usize, count: usize, then: Then) -> Result<(), Raise> {
        let proto = self.heap.closures[closure.0].proto.clone();
        let parameters = usize::from(proto.parameters);
        let base = if proto.is_vararg { slot + 1 + count.max(parameters) } else { slot + 1 };
        if base + WINDOW > self.thread.stack.len() {
            self.grow_stack(base + WINDOW)?;
        }
        let stack = &mut self.thread.stack;
        if count < parameters {
            stack[slot + 1 + count..slot + 1 + parameters].fill(Value::Nil);
        }
        if proto.is_vararg {
            // The fixed arguments move up, the others stay below the registers.
            stack.copy_within(slot + 1..slot + 1 + parameters, base);
            stack[base + parameters] = Value::Nil;
            if proto.needs_arg {
                self.make_arg(slot + 1 + parameters, count.saturating_sub(parameters), base + parameters)?;
            }
        }
        let extent = (base + usize::from(proto.registers)) as u32;
        let work = Work::Lua { closure, proto, pc: 0 };
        self.push_frame(Frame { work, slot: slot as u32, base: base as u32, extent, then })
    }

    /// Makes the table `arg` of extra arguments, as functions of Lua 5.0 expect it.
    fn make_arg(&mut self, from: usize, count: usize, to: usize) -> Result<(), Raise> {
        let table = self.heap.table(count, 1)?;
        for at in 0..count {
            self.heap.set_index(table, at + 1, self.thread.stack[from + at])?;
        }
        self.heap.set_str(table, "n", Value::Number(count as f64))?;
        self.thread.stack[to] = Value::Table(table);
        Ok(())
    }

    /// The results on the top of the stack, by their slots.
    fn results_of(&mut self, flow: Flow, slot: usize) -> (usize, usize) {
        match flow {
            Flow::One(value) => {
                self.thread.stack[slot] = value;
                (slot, 1)
            }
            Flow::Many(count) => (self.thread.top - count, count),
            _ => (self.thread.top, 0),
        }
    }

    /// Does what a library function or the end of a Lua function asks for, until a Lua function runs or the host has to
    /// do something.
    pub(crate) fn finish(&mut self, flow: Flow, slot: usize, then: Then) -> Result<Next, Raise> {
        let (mut flow, mut slot, mut then) = (flow, slot, then);
        loop {
            match flow {
                Flow::None | Flow::One(_) | Flow::Many(_) => {
                    let (from, count) = self.results_of(flow, slot);
                    match then {
                        Then::Native => {
                            let Some(frame) = self.thread.frames.pop() else { return Ok(Next::Run) };
                            self.move_results(from, count, slot);
                            let Work::Native(cont) = frame.work else { return Ok(Next::Run) };
                            (slot, then, flow) =
                                (frame.slot as usize, frame.then, self.proceed(cont, Args { base: slot, len: count })?);
                        }
                        Then::Entry => match self.thread.resumer {
                            None => {
                                self.move_results(from, count, 0);
                                return Ok(Next::Exit(Event::Done));
                            }
                            Some(resumer) => {
                                self.thread.status = Status::Dead;
                                (flow, slot, then) = self.back_to(resumer, from, count)?;
                            }
                        },
                        _ => return self.deliver(from, count, then),
                    }
                }
                Flow::Call(count, cont) => {
                    let callee = self.thread.top - count - 1;
                    self.push_native(cont, slot, callee, then)?;
                    (slot, then) = (callee, Then::Native);
                    match self.callee(slot, count)? {
                        (Callee::Lua(closure), count) => {
                            self.push_lua(closure, slot, count, then)?;
                            return Ok(Next::Run);
                        }
                        (Callee::Native(native), count) => flow = self.call_native(native, slot, count)?,
                    }
                }
                Flow::Resume { thread, count, is_wrapped } => {
                    self.push_native(Cont::Resume { is_wrapped }, slot, self.thread.top, then)?;
                    match self.resume(thread, count)? {
                        Some((next_flow, next_slot, next_then)) => {
                            (flow, slot, then) = (next_flow, next_slot, next_then);
                        }
                        None => return Ok(Next::Run),
                    }
                }
                Flow::Yield => {
                    let Some(resumer) = self.thread.resumer else {
                        return Err(Raise::positioned("attempt to yield across metamethod/C-call boundary"));
                    };
                    let count = self.thread.top - slot - 1;
                    self.push_native(Cont::Yield, slot, self.thread.top, then)?;
                    self.thread.status = Status::Suspended;
                    (flow, slot, then) = self.back_to(resumer, slot + 1, count)?;
                }
                Flow::Host(number) => {
                    self.arguments = Args { base: slot + 1, len: self.thread.top - slot - 1 };
                    self.push_native(Cont::Host, slot, self.thread.top, then)?;
                    return Ok(Next::Exit(Event::Host(number)));
                }
                Flow::Again(cont) => {
                    self.push_native(cont, slot, self.thread.top, then)?;
                    return Ok(Next::Run);
                }
            }
        }
    }

    fn push_native(&mut self, cont: Cont, slot: usize, extent: usize, then: Then) -> Result<(), Raise> {
        let (slot, base, extent) = (slot as u32, slot as u32 + 1, extent as u32);
        self.push_frame(Frame { work: Work::Native(cont), slot, base, extent, then })
    }

    fn move_results(&mut self, from: usize, count: usize, to: usize) {
        self.thread.stack.copy_within(from..from + count, to);
        self.thread.top = to + count;
    }

    /// Gives results to the Lua function that waits for them.
    fn deliver(&mut self, from: usize, count: usize, then: Then) -> Result<Next, Raise> {
        match then {
            Then::Store { to, want: OPEN } => {
                let to = to as usize;
                let end = to + count;
                if end > self.thread.stack.len() {
                    self.grow_stack(end)?;
                }
                self.move_results(from, count, to);
            }
            Then::Store { to, want } => {
                let (to, want) = (to as usize, usize::from(want));
                let given = count.min(want);
                self.thread.stack.copy_within(from..from + given, to);
                self.thread.stack[to + given..to + want].fill(Value::Nil);
            }
            Then::Branch { when, to } => {
                let result = count > 0 && self.thread.stack[from].is_truthy();
                if let Some(Frame { work: Work::Lua { pc, .. }, .. }) = self.thread.frames.last_mut()
                    && result == when
                {
                    *pc = to;
                }
            }
            Then::Concat { at } => {
                self.thread.stack[at as usize] = if count > 0 { self.thread.stack[from] } else { Value::Nil };
                // The instruction is executed once more, from here on.
                self.concat_from = Some(at as usize);
                if let Some(Frame { work: Work::Lua { pc, .. }, .. }) = self.thread.frames.last_mut() {
                    *pc -= 1;
                }
            }
            Then::Native | Then::Entry => unreachable!("these are handled where calls finish"),
        }
        Ok(Next::Run)
    }

    /// Goes on with a library function that was given the others' turn.
    pub(crate) fn proceed_again(&mut self) -> Result<Next, Raise> {
        let Some(frame) = self.thread.frames.pop() else { return Ok(Next::Run) };
        let Work::Native(cont) = frame.work else { return Ok(Next::Run) };
        let (slot, top) = (frame.slot as usize, frame.extent as usize);
        self.thread.top = top;
        let flow = self.proceed(cont, Args { base: top, len: 0 })?;
        self.finish(flow, slot, frame.then)
    }

    /// Goes on with a library function; the arguments are the results of what it has called.
    fn proceed(&mut self, cont: Cont, results: Args) -> Result<Flow, Raise> {
        let flow = match cont {
            Cont::Pcall | Cont::Xpcall(_) => {
                self.push(Value::Nil)?;
                let Args { base, len } = results;
                self.thread.stack.copy_within(base..base + len, base + 1);
                self.thread.stack[base] = Value::Boolean(true);
                Ok(Flow::Many(len + 1))
            }
            Cont::Handler => {
                let value = self.arg(results, 0);
                self.push(Value::Boolean(false))?;
                self.push(value)?;
                Ok(Flow::Many(2))
            }
            Cont::Yield | Cont::Host | Cont::Resume { .. } => Ok(Flow::Many(results.len)),
            Cont::ToString => Ok(Flow::One(self.arg(results, 0))),
            Cont::Foreach(table, key) => library::table::foreach_proceed(self, table, key, results),
            Cont::ForeachIndex(table, at, last) => library::table::foreachi_proceed(self, table, at, last, results),
            Cont::Sort(sort) => library::sort::proceed(self, sort, results),
            Cont::Gsub(gsub) => library::gsub::proceed(self, gsub, results),
            Cont::Load(loading) => library::loading::proceed(self, loading, results),
        };
        flow.map_err(Raise::in_library)
    }

    // Errors

    /// The value of an error, with its place in front if it is to have one.
    pub(crate) fn raise_value(&mut self, raise: Raise) -> Value {
        let text = match raise {
            Raise::Value(value) => return value,
            Raise::OutOfMemory => return self.library.memory_error(),
            Raise::Message(text) => text,
            Raise::Positioned(text) | Raise::Runtime(text) => [self.position(1), text].concat(),
            Raise::Argument(index, text) => {
                let text = self.argument_error(index, &text);
                [self.position(1), text].concat()
            }
        };
        match self.heap.string_from(text) {
            Ok(string) => Value::String(string),
            Err(_) => self.library.memory_error(),
        }
    }

    /// Ends calls until one that catches the error, and goes on there.
    fn unwind(&mut self, raise: Raise) -> Result<Result<Next, Raise>, Failure> {
        let mut place = self.running_place();
        let mut value = self.raise_value(raise);
        self.concat_from = None;
        loop {
            while let Some(frame) = self.thread.frames.pop() {
                let slot = frame.slot as usize;
                match frame.work {
                    Work::Native(Cont::Pcall) => {
                        let value = self.unwrapped(value);
                        return Ok(self.caught(value, slot, frame.then));
                    }
                    Work::Native(Cont::Handler) => {
                        let text = self.heap.string(b"error in error handling");
                        value = text.map_or(self.library.memory_error(), Value::String);
                        return Ok(self.caught(value, slot, frame.then));
                    }
                    Work::Native(Cont::Xpcall(handler)) => {
                        self.close_upvalues(slot);
                        self.thread.top = slot + 1;
                        let pushed = self.push(handler).and_then(|()| self.push(value));
                        let flow = pushed.map(|()| Flow::Call(1, Cont::Handler));
                        return Ok(flow.and_then(|flow| self.finish(flow, slot, frame.then)));
                    }
                    _ => {}
                }
            }
            self.close_upvalues(0);
            let Some(resumer) = self.thread.resumer else {
                self.thread.top = 0;
                return Err(Failure { value, place });
            };
            self.thread.status = Status::Dead;
            self.thread = Thread { status: Status::Dead, ..Thread::default() };
            self.leave_for(resumer);
            let Some(frame) = self.thread.frames.pop() else { continue };
            let slot = frame.slot as usize;
            if !matches!(frame.work, Work::Native(Cont::Resume { is_wrapped: true })) {
                return Ok(self.caught(value, slot, frame.then));
            }
            if let Value::String(string) = value {
                let text = [self.position(1), self.heap.bytes(string).to_vec()].concat();
                value = self.heap.string_from(text).map_or(self.library.memory_error(), Value::String);
            }
            place = self.running_place();
        }
    }

    /// What `pcall` returns of an error: of a table with an `err` that text, as in Redis.
    fn unwrapped(&self, value: Value) -> Value {
        match value {
            Value::Table(table) => match self.heap.get_str(table, "err") {
                text @ (Value::String(_) | Value::Number(_)) => text,
                _ => value,
            },
            _ => value,
        }
    }

    /// Returns `false` and an error value from a protected call.
    fn caught(&mut self, value: Value, slot: usize, then: Then) -> Result<Next, Raise> {
        self.close_upvalues(slot);
        self.thread.top = slot;
        self.push(Value::Boolean(false))?;
        self.push(value)?;
        self.finish(Flow::Many(2), slot, then)
    }

    // Coroutines

    pub(crate) fn switch_to(&mut self, thread: ThreadRef) {
        let next = core::mem::take(&mut self.heap.threads[thread.0]);
        self.heap.threads[self.current.0] = core::mem::replace(&mut self.thread, next);
        self.current = thread;
    }

    fn leave_for(&mut self, resumer: ThreadRef) {
        self.thread.resumer = None;
        self.switch_to(resumer);
        self.thread.status = Status::Running;
        self.resumes -= 1;
    }

    /// Moves values from the running coroutine to the one that has resumed it, and goes on there.
    fn back_to(&mut self, resumer: ThreadRef, from: usize, count: usize) -> Result<(Flow, usize, Then), Raise> {
        let values = self.thread.stack[from..from + count].to_vec();
        if self.thread.status == Status::Dead {
            self.thread.stack = Vec::new();
            self.thread.top = 0;
        }
        self.leave_for(resumer);
        let Some(frame) = self.thread.frames.pop() else { return Ok((Flow::None, 0, Then::Entry)) };
        let is_wrapped = matches!(frame.work, Work::Native(Cont::Resume { is_wrapped: true }));
        self.thread.top = frame.slot as usize + 1;
        if !is_wrapped {
            self.push(Value::Boolean(true))?;
        }
        for value in &values {
            self.push(*value)?;
        }
        Ok((Flow::Many(count + usize::from(!is_wrapped)), frame.slot as usize, frame.then))
    }

    /// Enters a coroutine with so many values from the top of the stack. `None` if a Lua function begins to run.
    fn resume(&mut self, thread: ThreadRef, count: usize) -> Result<Option<(Flow, usize, Then)>, Raise> {
        if self.resumes >= RESUMES_LIMIT {
            self.thread.frames.pop();
            return Err(Raise::positioned("C stack overflow"));
        }
        let top = self.thread.top;
        let values = self.thread.stack[top - count..top].to_vec();
        let resumer = self.current;
        self.thread.status = Status::Normal;
        self.switch_to(thread);
        self.resumes += 1;
        self.thread.resumer = Some(resumer);
        self.thread.status = Status::Running;
        match self.thread.frames.pop() {
            Some(frame) => {
                self.thread.top = frame.slot as usize + 1;
                for value in &values {
                    self.push(*value)?;
                }
                Ok(Some((Flow::Many(count), frame.slot as usize, frame.then)))
            }
            None => {
                for value in &values {
                    self.push(*value)?;
                }
                match self.callee(0, count)? {
                    (Callee::Lua(closure), count) => {
                        self.push_lua(closure, 0, count, Then::Entry)?;
                        Ok(None)
                    }
                    (Callee::Native(native), count) => {
                        let flow = self.call_native(native, 0, count)?;
                        Ok(Some((flow, 0, Then::Entry)))
                    }
                }
            }
        }
    }

    // Variables that closures share

    pub(crate) fn share(&mut self, slot: usize) -> Result<UpvalueRef, Raise> {
        let slot_of = |machine: &Machine, upvalue: UpvalueRef| match machine.heap.upvalues[upvalue.0] {
            Upvalue::Open { slot, .. } => slot as usize,
            Upvalue::Closed(_) => 0,
        };
        let mut at = self.thread.open.len();
        while at > 0 {
            let found = slot_of(self, self.thread.open[at - 1]);
            if found == slot {
                return Ok(self.thread.open[at - 1]);
            }
            if found < slot {
                break;
            }
            at -= 1;
        }
        let upvalue = self.heap.upvalue(Upvalue::Open { thread: self.current, slot: slot as u32 })?;
        self.thread.open.try_reserve(1).map_err(|_| Raise::OutOfMemory)?;
        self.thread.open.insert(at, upvalue);
        Ok(upvalue)
    }

    /// Ends the sharing of slots from `level` on: their variables get a place of their own.
    #[inline]
    pub(crate) fn close_upvalues(&mut self, level: usize) {
        while let Some(upvalue) = self.thread.open.last() {
            let Upvalue::Open { slot, .. } = self.heap.upvalues[upvalue.0] else { break };
            if (slot as usize) < level {
                break;
            }
            self.heap.upvalues[upvalue.0] = Upvalue::Closed(self.thread.stack[slot as usize]);
            self.thread.open.pop();
        }
    }

    #[inline]
    pub(crate) fn upvalue(&self, upvalue: UpvalueRef) -> Value {
        match self.heap.upvalues[upvalue.0] {
            Upvalue::Closed(value) => value,
            Upvalue::Open { thread, slot } if thread == self.current => self.thread.stack[slot as usize],
            Upvalue::Open { thread, slot } => self.heap.threads[thread.0].stack[slot as usize],
        }
    }

    pub(crate) fn set_upvalue(&mut self, upvalue: UpvalueRef, value: Value) {
        match self.heap.upvalues[upvalue.0] {
            Upvalue::Closed(_) => self.heap.upvalues[upvalue.0] = Upvalue::Closed(value),
            Upvalue::Open { thread, slot } if thread == self.current => self.thread.stack[slot as usize] = value,
            Upvalue::Open { thread, slot } => self.heap.threads[thread.0].stack[slot as usize] = value,
        }
    }
}

enum Callee {
    Lua(ClosureRef),
    Native(NativeRef),
}
