//! The machine: a heap, the running coroutine, and what the host sees of it.

use crate::{
    error::Raise,
    heap::{Closure, Heap},
    library, parser,
    thread::{Cont, Status, Then, Thread},
    value::{ClosureRef, NativeRef, StringRef, TableRef, ThreadRef, Value},
};
use alloc::{boxed::Box, vec::Vec};

/// Metamethods, and other fields that are looked up often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Meta {
    Index,
    NewIndex,
    Call,
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Unm,
    Eq,
    Lt,
    Le,
    Concat,
    ToString,
    Metatable,
    Mode,
}

const META_NAMES: [&str; 17] = [
    "__index",
    "__newindex",
    "__call",
    "__add",
    "__sub",
    "__mul",
    "__div",
    "__mod",
    "__pow",
    "__unm",
    "__eq",
    "__lt",
    "__le",
    "__concat",
    "__tostring",
    "__metatable",
    "__mode",
];

/// The arguments of a library function: where they are on the stack.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    pub(crate) base: usize,
    /// How many there are.
    pub len: usize,
}

/// What a library function wants next.
#[derive(Debug)]
pub(crate) enum Flow {
    /// To return nothing.
    None,
    /// To return a value.
    One(Value),
    /// To return so many values on the top of the stack.
    Many(usize),
    /// To call a function that is on the stack with so many arguments behind it, and to go on so then.
    Call(usize, Cont),
    /// To go on so after others had their turn.
    Again(Cont),
    /// To resume a coroutine with so many values on the top of the stack.
    Resume { thread: ThreadRef, count: usize, is_wrapped: bool },
    /// To return its arguments to who has resumed the coroutine.
    Yield,
    /// To let the host go on.
    Host(u32),
}

pub(crate) type NativeResult = Result<Flow, Raise>;
pub(crate) type NativeFunction = fn(&mut Machine, Args) -> NativeResult;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Native {
    Library(NativeFunction),
    /// A function of the host, by the number that the host has given it.
    Host(u32),
}

/// Why [`Machine::run`] has returned.
#[derive(Debug)]
pub enum Event {
    /// The function has returned: [`Machine::results`].
    Done,
    /// The function has failed.
    Failed(Failure),
    /// The script has called this function of the host, with [`Machine::arguments`]. The host answers by
    /// [`Machine::answer`] or [`Machine::refuse`], then runs on.
    Host(u32),
    /// The budget is used up.
    Preempted,
}

/// An error that no script has caught.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The error value.
    pub value: Value,
    /// Where it was raised: the source's name as it was given, and the line. Without it no Lua function was running.
    pub place: Option<(Vec<u8>, u32)>,
}

/// Slots of the stack that a machine keeps between two scripts.
const KEPT_SLOTS: usize = 4096;

/// Bounds of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that all objects may take.
    pub heap_bytes: usize,
}

/// A Lua machine.
#[derive(Debug)]
pub struct Machine {
    /// All objects.
    pub heap: Heap,
    /// The running coroutine, whose place on the heap is empty meanwhile.
    pub(crate) thread: Thread,
    pub(crate) current: ThreadRef,
    pub(crate) main: ThreadRef,
    pub(crate) natives: Vec<Native>,
    globals: TableRef,
    pub(crate) string_meta: Option<TableRef>,
    pub(crate) meta_names: Vec<StringRef>,
    pub(crate) budget: i64,
    pins: Vec<Value>,
    /// Where the error that is on its way was raised.
    pub(crate) place: Option<(Vec<u8>, u32)>,
    pub(crate) arguments: Args,
    /// Coroutines that wait for one that they have resumed.
    pub(crate) resumes: usize,
    /// Where a concatenation goes on that is executed again after a metamethod.
    pub(crate) concat_from: Option<usize>,
    /// What the host has answered to the call of its function.
    pub(crate) answer: Option<NativeResult>,
    pub(crate) library: library::State,
}

impl Machine {
    /// A machine with the standard libraries. The seed guards its hash tables.
    pub fn new(limits: Limits, seed: [u64; 2]) -> Result<Box<Machine>, Raise> {
        let mut heap = Heap::new(limits.heap_bytes, seed);
        let globals = heap.table(0, 32)?;
        let main = heap.thread(Thread::default())?;
        let mut meta_names = Vec::new();
        for name in META_NAMES {
            meta_names.push(heap.string(name.as_bytes())?);
        }
        let mut machine = Box::new(Machine {
            heap,
            thread: Thread::default(),
            current: main,
            main,
            natives: Vec::new(),
            globals,
            string_meta: None,
            meta_names,
            budget: 0,
            pins: Vec::new(),
            place: None,
            arguments: Args { base: 0, len: 0 },
            resumes: 0,
            concat_from: None,
            answer: None,
            library: library::State::default(),
        });
        library::open(&mut machine)?;
        Ok(machine)
    }

    /// The table of global variables.
    pub fn globals(&self) -> TableRef {
        self.globals
    }

    /// Keeps a value from being freed. Returns the number to give it back by.
    pub fn pin(&mut self, value: Value) -> usize {
        match self.pins.iter().position(|pin| pin.is_nil()) {
            Some(free) => {
                self.pins[free] = value;
                free
            }
            None => {
                self.pins.push(value);
                self.pins.len() - 1
            }
        }
    }

    /// A value that is kept.
    pub fn pinned(&self, pin: usize) -> Value {
        self.pins.get(pin).copied().unwrap_or_default()
    }

    /// Lets a value go.
    pub fn unpin(&mut self, pin: usize) {
        if let Some(value) = self.pins.get_mut(pin) {
            *value = Value::Nil;
        }
    }

    /// Compiles a source text, whose name stands in errors, into a function with these global variables.
    pub fn compile(&mut self, text: &[u8], source: &[u8], env: TableRef) -> Result<ClosureRef, Raise> {
        let proto = parser::compile(&mut self.heap, text, source)?;
        Ok(self.heap.closure(Closure { proto, upvalues: Box::default(), env })?)
    }

    /// A function that calls the host with a number.
    pub fn host_function(&mut self, number: u32) -> Value {
        self.add_native(Native::Host(number))
    }

    pub(crate) fn add_native(&mut self, native: Native) -> Value {
        self.natives.push(native);
        Value::Native(NativeRef(self.natives.len() as u32 - 1))
    }

    /// Prepares the call of a function, which begins with [`run`](Self::run). Whatever was running is forgotten.
    pub fn start(&mut self, function: Value, arguments: &[Value]) -> Result<(), Raise> {
        self.reset();
        self.thread.status = Status::Running;
        self.push(function)?;
        for value in arguments {
            self.push(*value)?;
        }
        self.budget = i64::MAX;
        // A function of the host would have to be called by a function: nobody waits for its call yet.
        if !matches!(function, Value::Function(_)) {
            return Err(Raise::positioned("only a function that is written in Lua can be started"));
        }
        if self.heap.is_collection_due() {
            self.collect();
        }
        self.call(0, arguments.len(), Then::Entry).map(|_| ())
    }

    /// Forgets whatever was running.
    pub fn reset(&mut self) {
        if self.current != self.main {
            // The coroutine that ran stays suspended for ever: it is dead.
            self.thread = Thread::default();
            self.thread.status = Status::Dead;
            self.switch_to(self.main);
        }
        self.close_upvalues(0);
        self.thread.frames.clear();
        // What one deep recursion has taken is not kept for the scripts to come.
        if self.thread.stack.len() > KEPT_SLOTS {
            self.thread.stack = Vec::new();
            self.thread.frames = Vec::new();
        }
        self.thread.top = 0;
        self.thread.resumer = None;
        self.resumes = 0;
        self.place = None;
        self.concat_from = None;
        self.answer = None;
    }

    /// What the function has returned.
    pub fn results(&self) -> &[Value] {
        &self.thread.stack[..self.thread.top]
    }

    /// The arguments of the host's function that the script has called.
    pub fn arguments(&self) -> &[Value] {
        &self.thread.stack[self.arguments.base..self.arguments.base + self.arguments.len]
    }

    /// Returns a value from the host's function that was called.
    pub fn answer(&mut self, value: Option<Value>) {
        let flow = value.map_or(Flow::None, Flow::One);
        self.answer = Some(Ok(flow));
    }

    /// Raises an error in the host's function that was called.
    pub fn refuse(&mut self, raise: Raise) {
        self.answer = Some(Err(raise));
    }

    /// The text of an error as a script would see it.
    pub fn error_text(&mut self, raise: Raise) -> Vec<u8> {
        let value = self.raise_value(raise);
        let mut text = Vec::new();
        match self.append(value, &mut text) {
            Ok(true) => text,
            _ => value.type_name().into(),
        }
    }

    /// Where the script is: its source's name and line.
    pub fn place(&self) -> Option<(Vec<u8>, u32)> {
        self.running_place()
    }

    /// Appends the text of a string or a number, as `..` does. Tells whether it was one.
    pub fn append_text(&self, value: Value, out: &mut Vec<u8>) -> Result<bool, Raise> {
        self.append(value, out)
    }

    /// Makes a table and all tables in it unchangeable for scripts, with those that are their metatables.
    pub fn protect(&mut self, table: TableRef) {
        let mut left = Vec::from([table]);
        while let Some(table) = left.pop() {
            let contents = &mut self.heap.tables[table.0];
            if core::mem::replace(&mut contents.is_readonly, true) {
                continue;
            }
            left.extend(contents.meta);
            let values = contents.array.iter().chain(contents.nodes.iter().map(|node| &node.value));
            left.extend(values.filter_map(|value| match value {
                Value::Table(inner) => Some(*inner),
                _ => None,
            }));
        }
    }

    /// Makes the strings' metatable unchangeable for scripts.
    pub fn protect_strings(&mut self) {
        if let Some(meta) = self.string_meta {
            self.protect(meta);
        }
    }

    /// Frees what is not in use. Values that only the host knows go too, unless they are pinned.
    pub fn collect(&mut self) {
        let heap = &mut self.heap;
        heap.begin_collection();
        self.thread.mark(heap);
        heap.mark(Value::Thread(self.current));
        heap.mark(Value::Thread(self.main));
        heap.mark(Value::Table(self.globals));
        if let Some(meta) = self.string_meta {
            heap.mark(Value::Table(meta));
        }
        self.meta_names.iter().for_each(|name| heap.mark(Value::String(*name)));
        self.pins.iter().for_each(|value| heap.mark(*value));
        self.library.mark(heap);
        heap.propagate(self.meta_names[Meta::Mode as usize]);
        heap.sweep();
        heap.account(self.thread.bytes());
    }

    // The stack, for library functions

    pub(crate) fn push(&mut self, value: Value) -> Result<(), Raise> {
        if self.thread.top >= self.thread.stack.len() {
            self.grow_stack(self.thread.top + 1)?;
        }
        self.thread.stack[self.thread.top] = value;
        self.thread.top += 1;
        Ok(())
    }

    /// Makes the stack at least so long.
    #[inline(never)]
    pub(crate) fn grow_stack(&mut self, len: usize) -> Result<(), Raise> {
        let more = (len + len / 2).next_multiple_of(64) - self.thread.stack.len();
        self.heap.charge(more * size_of::<Value>())?;
        self.thread.stack.try_reserve_exact(more).map_err(|_| Raise::OutOfMemory)?;
        self.thread.stack.resize(self.thread.stack.len() + more, Value::Nil);
        Ok(())
    }

    /// An argument, counted from 0: `nil` if it is missing.
    #[inline]
    pub(crate) fn arg(&self, args: Args, index: usize) -> Value {
        if index < args.len { self.thread.stack[args.base + index] } else { Value::Nil }
    }
}
