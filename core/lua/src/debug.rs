//! Where code runs and what its variables are called, for the texts of errors.

use crate::{
    error::Raise,
    lexer::shown_source,
    machine::Machine,
    op::{Op, Operand, Proto},
    thread::{Frame, Work},
    value::{StringRef, Value},
};
use alloc::{format, vec::Vec};

/// Names that a moved value is followed through.
const MOVES_LIMIT: usize = 50;

impl Machine {
    /// The running function's proto and instruction, if it is written in Lua.
    fn running(&self) -> Option<(&Frame, &Proto, usize)> {
        let frame = self.thread.frames.last()?;
        match &frame.work {
            Work::Lua { proto, pc, .. } => Some((frame, proto, (*pc as usize).saturating_sub(1))),
            Work::Native(_) => None,
        }
    }

    /// The place of the function at a level in front of an error's text, `1` being the running one.
    pub(crate) fn position(&self, level: usize) -> Vec<u8> {
        let frames = &self.thread.frames;
        let frame = frames.len().checked_sub(level).and_then(|at| frames.get(at));
        match frame.map(|frame| &frame.work) {
            Some(Work::Lua { proto, pc, .. }) => {
                let line = proto.lines.get((*pc as usize).saturating_sub(1)).copied().unwrap_or(0);
                let mut text = shown_source(&proto.source);
                text.extend_from_slice(format!(":{line}: ").as_bytes());
                text
            }
            _ => Vec::new(),
        }
    }

    /// The source and line of the innermost function that is written in Lua.
    pub(crate) fn running_place(&self) -> Option<(Vec<u8>, u32)> {
        self.thread.frames.iter().rev().find_map(|frame| match &frame.work {
            Work::Lua { proto, pc, .. } => {
                let line = proto.lines.get((*pc as usize).saturating_sub(1)).copied().unwrap_or(0);
                Some((proto.source.to_vec(), line))
            }
            Work::Native(_) => None,
        })
    }

    /// An operation that a value's type does not have.
    #[inline(never)]
    pub(crate) fn type_error(&self, operation: &str, value: Value, register: Option<u8>) -> Raise {
        let kind = value.type_name();
        let named = self.running().and_then(|(_, proto, pc)| name_of(proto, pc, register?));
        let mut text = format!("attempt to {operation} ").into_bytes();
        match named {
            Some((what, name)) => {
                text.extend_from_slice(what.as_bytes());
                text.extend_from_slice(b" '");
                text.extend_from_slice(name.map_or(b"?", |name| self.heap.bytes(name)));
                text.extend_from_slice(format!("' (a {kind} value)").as_bytes());
            }
            None => text.extend_from_slice(format!("a {kind} value").as_bytes()),
        }
        Raise::Positioned(text)
    }

    /// A call of what is no function.
    pub(crate) fn call_error(&self, slot: usize, value: Value) -> Raise {
        let register = self.running().and_then(|(frame, proto, pc)| {
            let a = called_register(proto, pc)?;
            (frame.base as usize + usize::from(a) == slot).then_some(a)
        });
        self.type_error("call", value, register)
    }

    /// The text for a wrong argument of the library function that the running function has called.
    pub(crate) fn argument_error(&self, index: usize, text: &[u8]) -> Vec<u8> {
        let named = self.running().and_then(|(_, proto, pc)| name_of(proto, pc, called_register(proto, pc)?));
        let (what, name): (&str, &[u8]) = match named {
            Some((what, Some(name))) => (what, self.heap.bytes(name)),
            _ => ("", b"?"),
        };
        let mut out = Vec::new();
        let shown = if what == "method" { index } else { index + 1 };
        if what == "method" && index == 0 {
            out.extend_from_slice(b"calling '");
            out.extend_from_slice(name);
            out.extend_from_slice(b"' on bad self (");
        } else {
            out.extend_from_slice(format!("bad argument #{shown} to '").as_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(b"' (");
        }
        out.extend_from_slice(text);
        out.push(b')');
        out
    }
}

fn called_register(proto: &Proto, pc: usize) -> Option<u8> {
    match proto.code.get(pc)? {
        Op::Call { a, .. } | Op::TailCall { a, .. } | Op::ForCall { a, .. } => Some(*a),
        _ => None,
    }
}

/// What the value in a register is called at an instruction: its kind, and its name unless that is not a constant.
fn name_of(proto: &Proto, pc: usize, register: u8) -> Option<(&'static str, Option<StringRef>)> {
    let (mut pc, mut register) = (pc, register);
    for _ in 0..MOVES_LIMIT {
        if let Some(name) = proto.local_name(register, pc) {
            return Some(("local", Some(name)));
        }
        pc = setter(proto, pc, register)?;
        let string = |k: usize| match proto.constants.get(k) {
            Some(Value::String(string)) => Some(*string),
            _ => None,
        };
        match proto.code[pc] {
            Op::GetGlobal { k, .. } => return Some(("global", string(k as usize))),
            Op::GetUpvalue { index, .. } => {
                return Some(("upvalue", proto.upvalue_names.get(usize::from(index)).copied()));
            }
            Op::GetField { k, .. } | Op::GetConstant { k, .. } => return Some(("field", string(k.into()))),
            Op::GetTable { .. } => return Some(("field", None)),
            Op::SelfField { key, .. } => {
                let name = match key.operand() {
                    Operand::Constant(k) => string(k.into()),
                    Operand::Register(_) => None,
                };
                return Some(("method", name));
            }
            Op::Move { a, b } if b < a => register = b,
            _ => return None,
        }
    }
    None
}

/// The instruction before `last` that has put the value into a register, if no jump leads around it.
fn setter(proto: &Proto, last: usize, register: u8) -> Option<usize> {
    let (mut found, mut jump_to) = (None, 0);
    for (pc, op) in proto.code.iter().enumerate().take(last) {
        let mut jumps = None;
        let is_set = match *op {
            Op::LoadNil { a, b } => (a..=b).contains(&register),
            Op::ForCall { a, .. } => register >= a.saturating_add(3),
            Op::Call { a, .. } | Op::TailCall { a, .. } => register >= a,
            Op::SelfField { a, .. } => register == a || register == a.saturating_add(1),
            Op::Varargs { a, .. } => register >= a,
            Op::ForPrepare { a, to } | Op::ForLoop { a, to } => {
                jumps = Some(to);
                (a..=a.saturating_add(3)).contains(&register)
            }
            Op::ForTest { a, to } => {
                jumps = Some(to);
                register == a.saturating_add(2)
            }
            Op::TestSet { a, to, .. } => {
                jumps = Some(to);
                register == a
            }
            Op::Jump { to }
            | Op::Test { to, .. }
            | Op::Equal { to, .. }
            | Op::EqualK { to, .. }
            | Op::Less { to, .. }
            | Op::LessEqual { to, .. }
            | Op::LessK { to, .. }
            | Op::LessEqualK { to, .. }
            | Op::GreaterK { to, .. }
            | Op::GreaterEqualK { to, .. } => {
                jumps = Some(to);
                false
            }
            mut op => op.result().is_some_and(|a| *a == register),
        };
        if let Some(to) = jumps.map(|to| to as usize)
            && to > pc
            && to <= last
        {
            jump_to = jump_to.max(to);
        }
        if is_set {
            found = (pc >= jump_to).then_some(pc);
        }
    }
    found
}
