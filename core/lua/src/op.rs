//! Instructions of the register machine, and functions made of them.

use crate::value::{StringRef, Value};
use alloc::{rc::Rc, vec::Vec};
use core::cell::Cell;

/// An operand: a register, or with the highest bit set a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rk(pub u16);

const CONSTANT: u16 = 1 << 15;

pub(crate) enum Operand {
    Register(u8),
    Constant(u16),
}

impl Rk {
    pub const LAST_CONSTANT: u32 = (CONSTANT - 1) as u32;

    pub fn register(register: u8) -> Rk {
        Rk(register.into())
    }

    pub fn constant(index: u16) -> Rk {
        Rk(index | CONSTANT)
    }

    #[inline]
    pub fn operand(self) -> Operand {
        if self.0 & CONSTANT == 0 { Operand::Register(self.0 as u8) } else { Operand::Constant(self.0 & !CONSTANT) }
    }
}

/// Results or arguments up to the top of the stack, whose number is known at run time only.
pub(crate) const OPEN: u8 = u8::MAX;

/// An instruction. `a`, `b`, `c` are registers, `k` constants, `to` the index of another instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Move {
        a: u8,
        b: u8,
    },
    LoadK {
        a: u8,
        k: u32,
    },
    /// a to b, inclusive.
    LoadNil {
        a: u8,
        b: u8,
    },
    LoadBool {
        a: u8,
        value: bool,
        skips: bool,
    },
    GetUpvalue {
        a: u8,
        index: u8,
    },
    SetUpvalue {
        a: u8,
        index: u8,
    },
    GetGlobal {
        a: u8,
        k: u32,
    },
    SetGlobal {
        a: u8,
        k: u32,
    },
    GetTable {
        a: u8,
        b: u8,
        c: u8,
    },
    /// With a constant that is a short string.
    GetField {
        a: u8,
        b: u8,
        k: u16,
    },
    /// With any other constant.
    GetConstant {
        a: u8,
        b: u8,
        k: u16,
    },
    SetTable {
        a: u8,
        key: Rk,
        value: Rk,
    },
    /// With a key that is a short string.
    SetField {
        a: u8,
        k: u16,
        value: Rk,
    },
    NewTable {
        a: u8,
        elements: u16,
        fields: u16,
    },
    SelfField {
        a: u8,
        b: u8,
        key: Rk,
    },
    AddRR {
        a: u8,
        b: u8,
        c: u8,
    },
    AddRK {
        a: u8,
        b: u8,
        k: u16,
    },
    SubRR {
        a: u8,
        b: u8,
        c: u8,
    },
    SubRK {
        a: u8,
        b: u8,
        k: u16,
    },
    MulRR {
        a: u8,
        b: u8,
        c: u8,
    },
    MulRK {
        a: u8,
        b: u8,
        k: u16,
    },
    DivRR {
        a: u8,
        b: u8,
        c: u8,
    },
    DivRK {
        a: u8,
        b: u8,
        k: u16,
    },
    ModRR {
        a: u8,
        b: u8,
        c: u8,
    },
    ModRK {
        a: u8,
        b: u8,
        k: u16,
    },
    /// All other arithmetic.
    Arith {
        a: u8,
        op: Arith,
        b: Rk,
        c: Rk,
    },
    Negate {
        a: u8,
        b: u8,
    },
    Not {
        a: u8,
        b: u8,
    },
    Len {
        a: u8,
        b: u8,
    },
    /// a = b .. … .. c
    Concat {
        a: u8,
        b: u8,
        c: u8,
    },
    Jump {
        to: i32,
    },
    /// Jumps if the truth of a is `when`.
    Test {
        a: u8,
        when: bool,
        to: i32,
    },
    /// Jumps if the truth of b is `when`, and copies b to a then.
    TestSet {
        a: u8,
        b: u8,
        when: bool,
        to: i32,
    },
    Equal {
        a: u8,
        b: u8,
        when: bool,
        to: i32,
    },
    EqualK {
        a: u8,
        k: u8,
        when: bool,
        to: i32,
    },
    Less {
        a: u8,
        b: u8,
        when: bool,
        to: i32,
    },
    LessEqual {
        a: u8,
        b: u8,
        when: bool,
        to: i32,
    },
    /// a < constant
    LessK {
        a: u8,
        k: u8,
        when: bool,
        to: i32,
    },
    LessEqualK {
        a: u8,
        k: u8,
        when: bool,
        to: i32,
    },
    /// a > constant
    GreaterK {
        a: u8,
        k: u8,
        when: bool,
        to: i32,
    },
    GreaterEqualK {
        a: u8,
        k: u8,
        when: bool,
        to: i32,
    },
    /// The function in a, with so many arguments behind it; so many results go to a and on.
    Call {
        a: u8,
        arguments: u8,
        results: u8,
    },
    TailCall {
        a: u8,
        arguments: u8,
    },
    Return {
        a: u8,
        results: u8,
    },
    ForPrepare {
        a: u8,
        to: i32,
    },
    ForLoop {
        a: u8,
        to: i32,
    },
    /// Calls the iterator in a with a+1 and a+2; `results` go to a+3 and on.
    ForCall {
        a: u8,
        results: u8,
    },
    /// Ends the loop if a+3 is nil; else it becomes a+2 and the loop goes on at `to`.
    ForTest {
        a: u8,
        to: i32,
    },
    /// Stores `count` values behind a as elements of a, from `first` on.
    SetList {
        a: u8,
        count: u8,
        first: u32,
    },
    /// Ends the sharing of registers from a on with closures.
    Close {
        a: u8,
    },
    Closure {
        a: u8,
        index: u16,
    },
    Varargs {
        a: u8,
        count: u8,
    },
}

impl Op {
    /// The register that gets the instruction's one result, if it computes one.
    pub fn result(&mut self) -> Option<&mut u8> {
        match self {
            Op::Move { a, .. }
            | Op::LoadK { a, .. }
            | Op::LoadBool { a, .. }
            | Op::GetUpvalue { a, .. }
            | Op::GetGlobal { a, .. }
            | Op::GetTable { a, .. }
            | Op::GetField { a, .. }
            | Op::GetConstant { a, .. }
            | Op::NewTable { a, .. }
            | Op::AddRR { a, .. }
            | Op::AddRK { a, .. }
            | Op::SubRR { a, .. }
            | Op::SubRK { a, .. }
            | Op::MulRR { a, .. }
            | Op::MulRK { a, .. }
            | Op::DivRR { a, .. }
            | Op::DivRK { a, .. }
            | Op::ModRR { a, .. }
            | Op::ModRK { a, .. }
            | Op::Arith { a, .. }
            | Op::Negate { a, .. }
            | Op::Not { a, .. }
            | Op::Len { a, .. }
            | Op::Concat { a, .. }
            | Op::Closure { a, .. } => Some(a),
            _ => None,
        }
    }
}

/// Arithmetic operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
}

impl Arith {
    #[inline]
    pub fn apply(self, x: f64, y: f64) -> f64 {
        match self {
            Arith::Add => x + y,
            Arith::Sub => x - y,
            Arith::Mul => x * y,
            Arith::Div => x / y,
            Arith::Mod => modulo(x, y),
            Arith::Pow => libm::pow(x, y),
        }
    }
}

#[inline]
pub(crate) fn modulo(x: f64, y: f64) -> f64 {
    x - floor(x / y) * y
}

/// The greatest integer up to `x`: by way of a machine integer where it fits, which needs no call.
#[inline]
pub(crate) fn floor(x: f64) -> f64 {
    let truncated = x as i64 as f64;
    if libm::fabs(x) >= 4_503_599_627_370_496.0 || x.is_nan() {
        x
    } else if truncated > x {
        truncated - 1.0
    } else if x == 0.0 {
        x
    } else {
        truncated
    }
}

/// Where a closure finds a variable when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// A register of the function that makes it.
    Register(u8),
    /// An upvalue of the function that makes it.
    Upvalue(u8),
}

/// A local variable's name, register and the instructions during which it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub name: StringRef,
    pub from: u32,
    pub to: u32,
}

/// A compiled function.
#[derive(Debug, Default)]
pub(crate) struct Proto {
    pub code: Vec<Op>,
    pub constants: Vec<Value>,
    pub protos: Vec<Rc<Proto>>,
    /// The source line of each instruction.
    pub lines: Vec<u32>,
    pub captures: Vec<Capture>,
    pub upvalue_names: Vec<StringRef>,
    pub locals: Vec<Local>,
    /// What errors call the source.
    pub source: Rc<[u8]>,
    pub line_defined: u32,
    pub parameters: u8,
    pub is_vararg: bool,
    /// Whether extra arguments go to a local table named `arg`, as before Lua 5.1.
    pub needs_arg: bool,
    pub registers: u8,
    /// The collection that has seen it last.
    pub epoch: Cell<u32>,
}

impl Proto {
    pub fn bytes(&self) -> usize {
        size_of::<Proto>()
            + self.code.capacity() * (size_of::<Op>() + size_of::<u32>())
            + self.constants.capacity() * size_of::<Value>()
            + self.protos.capacity() * size_of::<Rc<Proto>>()
            + self.locals.capacity() * size_of::<Local>()
            + self.captures.capacity() * (size_of::<Capture>() + size_of::<StringRef>())
    }

    pub fn names(&self) -> impl Iterator<Item = StringRef> + '_ {
        self.locals.iter().map(|local| local.name).chain(self.upvalue_names.iter().copied())
    }

    /// The name of the local variable that a register holds at an instruction.
    pub fn local_name(&self, register: u8, pc: usize) -> Option<StringRef> {
        let mut left = register;
        for local in &self.locals {
            if local.from as usize > pc {
                break;
            }
            if pc < local.to as usize {
                if left == 0 {
                    return Some(local.name);
                }
                left -= 1;
            }
        }
        None
    }
}

const _: () = assert!(size_of::<Op>() == 8);
