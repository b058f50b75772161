//! A coroutine: its stack, and the calls that are under way in it.

use crate::{
    heap::Heap,
    library::{gsub::Gsub, loading::Loading, sort::Sort},
    op::Proto,
    value::{ClosureRef, ThreadRef, UpvalueRef, Value},
};
use alloc::{boxed::Box, rc::Rc, vec::Vec};

/// What happens with the results of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    /// So many of them, or all, go to the stack from here on.
    Store { to: u32, want: u8 },
    /// The truth of the first decides whether the function that called goes on elsewhere.
    Branch { when: bool, to: u32 },
    /// The first replaces two operands of a concatenation that goes on: it goes to register `at`.
    Concat { at: u32 },
    /// The library function below goes on with them.
    Native,
    /// They are the coroutine's results.
    Entry,
}

/// How a library function goes on when what it has called returns.
#[derive(Debug)]
pub(crate) enum Cont {
    Pcall,
    /// With the function that handles errors.
    Xpcall(Value),
    /// The handler of an error has been called.
    Handler,
    /// `tostring` has called `__tostring`.
    ToString,
    /// A loop of `table.foreach`: the table and the key that was visited.
    Foreach(crate::value::TableRef, Value),
    /// A loop of `table.foreachi`: the table, the index that was visited, the last one.
    ForeachIndex(crate::value::TableRef, usize, usize),
    Sort(Box<Sort>),
    Gsub(Box<Gsub>),
    Load(Box<Loading>),
    /// A coroutine has been resumed. `wrap` passes on its errors.
    Resume {
        is_wrapped: bool,
    },
    /// The coroutine has yielded, and goes on with what it is resumed with.
    Yield,
    /// The host executes a function of its own.
    Host,
}

impl Cont {
    fn mark(&self, heap: &mut Heap) {
        match self {
            Cont::Xpcall(handler) => heap.mark(*handler),
            Cont::Foreach(table, key) => {
                heap.mark(Value::Table(*table));
                heap.mark(*key);
            }
            Cont::ForeachIndex(table, ..) => heap.mark(Value::Table(*table)),
            Cont::Sort(sort) => sort.mark(heap),
            Cont::Gsub(gsub) => gsub.mark(heap),
            Cont::Load(loading) => heap.mark(loading.function()),
            Cont::Pcall | Cont::Handler | Cont::ToString | Cont::Resume { .. } | Cont::Yield | Cont::Host => {}
        }
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Lua { closure: ClosureRef, proto: Rc<Proto>, pc: u32 },
    Native(Cont),
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Frame {
    pub work: Work,
    /// Where the function itself is on the stack.
    pub slot: u32,
    /// Its register 0.
    pub base: u32,
    /// The end of what it uses of the stack.
    pub extent: u32,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Status {
    #[default]
    Suspended,
    Running,
    /// It has resumed another one.
    Normal,
    Dead,
}

#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub stack: Vec<Value>,
    /// The end of what a call has left on the stack, or of a library function's arguments and results.
    pub top: usize,
    pub frames: Vec<Frame>,
    /// Variables in the stack that closures share, from the lowest slot to the highest.
    pub open: Vec<UpvalueRef>,
    pub status: Status,
    /// Who has resumed it.
    pub resumer: Option<ThreadRef>,
}

impl Thread {
    pub fn bytes(&self) -> usize {
        self.stack.capacity() * size_of::<Value>()
            + self.frames.capacity() * size_of::<Frame>()
            + self.open.capacity() * size_of::<UpvalueRef>()
    }

    /// Marks all that the thread refers to, and forgets what its stack holds beyond its end.
    pub fn mark(&mut self, heap: &mut Heap) {
        let extent = self.frames.last().map_or(0, |frame| frame.extent as usize);
        let end = extent.max(self.top).min(self.stack.len());
        self.stack[..end].iter().for_each(|value| heap.mark(*value));
        self.stack[end..].fill(Value::Nil);
        for frame in &self.frames {
            match &frame.work {
                Work::Lua { closure, .. } => heap.mark(Value::Function(*closure)),
                Work::Native(cont) => cont.mark(heap),
            }
        }
        self.open.iter().for_each(|upvalue| heap.mark_upvalue(*upvalue));
        if let Some(resumer) = self.resumer {
            heap.mark(Value::Thread(resumer));
        }
    }
}
