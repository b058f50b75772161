//! Code generation for one function: registers, constants, jump lists, and expressions whose code is put off until it is
//! known where their value goes.

use crate::{
    op::{Arith, Capture, OPEN, Op, Proto, Rk},
    value::{StringRef, Value},
};
use alloc::{collections::BTreeMap, vec::Vec};

/// Registers that a function may use.
pub(crate) const REGISTERS_LIMIT: usize = 250;
/// Ends a list of jumps.
pub(crate) const NO_JUMP: i32 = -1;
/// In a test whose value is not known to be needed.
const NO_REGISTER: u8 = u8::MAX;
const TOO_COMPLEX: &str = "function or expression too complex";
const CODE_LIMIT: usize = 1 << 24;

/// What an expression is until its code is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Void,
    Nil,
    True,
    False,
    Constant(u32),
    Number(f64),
    Local(u8),
    Upvalue(u8),
    Global(u32),
    Indexed {
        table: u8,
        key: Rk,
    },
    /// A comparison at this instruction, which jumps if it is true.
    Jump(i32),
    /// The instruction can put its result anywhere.
    Relocatable(i32),
    Register(u8),
    Call(i32),
    Varargs(i32),
}

/// An expression, and the jumps out of it that are taken when it is true, and when it is false.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expr {
    pub kind: Kind,
    pub if_true: i32,
    pub if_false: i32,
}

impl Expr {
    pub fn new(kind: Kind) -> Expr {
        Expr { kind, if_true: NO_JUMP, if_false: NO_JUMP }
    }

    fn has_jumps(&self) -> bool {
        self.if_true != self.if_false
    }

    fn numeral(&self) -> Option<f64> {
        match self.kind {
            Kind::Number(number) if self.if_true == NO_JUMP && self.if_false == NO_JUMP => Some(number),
            _ => None,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.kind, Kind::Call(_) | Kind::Varargs(_))
    }
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Arith(Arith),
    Concat,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Negate,
    Not,
    Len,
}

/// A block of statements.
#[derive(Debug)]
pub(crate) struct Block {
    /// Jumps out of this loop.
    pub breaks: i32,
    /// Variables that are visible outside.
    pub active: usize,
    /// Whether a closure has captured a variable of the block.
    pub is_captured: bool,
    pub is_loop: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConstantKey {
    Nil,
    Boolean(bool),
    Number(u64),
    String(StringRef),
}

/// A function that is being compiled.
#[derive(Debug, Default)]
pub(crate) struct Function {
    pub proto: Proto,
    pub blocks: Vec<Block>,
    /// The visible variables, by their place in the list of all: the position is the register.
    pub active: Vec<usize>,
    pub free: usize,
    /// The instruction that a jump goes to last, as far as it is known.
    last_target: i32,
    constants: BTreeMap<ConstantKey, u32>,
    /// The line of the code that comes.
    pub line: u32,
    /// Why the code is not to be used.
    pub error: Option<&'static str>,
}

impl Function {
    pub fn pc(&self) -> i32 {
        self.proto.code.len() as i32
    }

    pub fn emit(&mut self, op: Op) -> i32 {
        if self.proto.code.len() >= CODE_LIMIT {
            self.error = Some("function too long");
            return 0;
        }
        self.proto.code.push(op);
        self.proto.lines.push(self.line);
        self.pc() - 1
    }

    pub fn at(&mut self, pc: i32) -> &mut Op {
        &mut self.proto.code[pc as usize]
    }

    /// Gives the last instruction another line.
    pub fn fix_line(&mut self, line: u32) {
        if let Some(last) = self.proto.lines.last_mut() {
            *last = line;
        }
    }

    // Registers

    pub fn check_registers(&mut self, count: usize) {
        let needed = self.free + count;
        if needed > REGISTERS_LIMIT {
            self.error = Some(TOO_COMPLEX);
        }
        self.proto.registers = self.proto.registers.max(needed.min(REGISTERS_LIMIT) as u8);
    }

    pub fn reserve(&mut self, count: usize) {
        self.check_registers(count);
        self.free = (self.free + count).min(REGISTERS_LIMIT);
    }

    fn last_register(&self) -> u8 {
        self.free.saturating_sub(1) as u8
    }

    fn free_register(&mut self, register: u8) {
        if usize::from(register) >= self.active.len() && usize::from(register) + 1 == self.free {
            self.free -= 1;
        }
    }

    fn free_rk(&mut self, rk: Rk) {
        if let crate::op::Operand::Register(register) = rk.operand() {
            self.free_register(register);
        }
    }

    pub fn free_expr(&mut self, expr: &Expr) {
        if let Kind::Register(register) = expr.kind {
            self.free_register(register);
        }
    }

    // Constants

    fn constant(&mut self, key: ConstantKey, value: Value) -> u32 {
        let next = self.proto.constants.len() as u32;
        let index = *self.constants.entry(key).or_insert(next);
        if index == next {
            self.proto.constants.push(value);
        }
        index
    }

    pub fn string_constant(&mut self, string: StringRef) -> u32 {
        self.constant(ConstantKey::String(string), Value::String(string))
    }

    fn number_constant(&mut self, number: f64) -> u32 {
        self.constant(ConstantKey::Number(number.to_bits()), Value::Number(number))
    }

    // Jumps

    fn target(&mut self, pc: i32) -> &mut i32 {
        match self.at(pc) {
            Op::Jump { to }
            | Op::Test { to, .. }
            | Op::TestSet { to, .. }
            | Op::Equal { to, .. }
            | Op::EqualK { to, .. }
            | Op::Less { to, .. }
            | Op::LessEqual { to, .. }
            | Op::LessK { to, .. }
            | Op::LessEqualK { to, .. }
            | Op::GreaterK { to, .. }
            | Op::GreaterEqualK { to, .. }
            | Op::ForPrepare { to, .. }
            | Op::ForLoop { to, .. }
            | Op::ForTest { to, .. } => to,
            _ => unreachable!("a list of jumps holds jumps"),
        }
    }

    pub fn jump(&mut self) -> i32 {
        self.emit(Op::Jump { to: NO_JUMP })
    }

    /// The next instruction, which a jump will go to.
    pub fn label(&mut self) -> i32 {
        self.last_target = self.pc();
        self.last_target
    }

    /// Appends list `more` to `list`.
    pub fn join(&mut self, list: &mut i32, more: i32) {
        if more == NO_JUMP || self.error.is_some() {
            return;
        }
        if *list == NO_JUMP {
            *list = more;
            return;
        }
        let mut last = *list;
        loop {
            let next = *self.target(last);
            if next == NO_JUMP {
                break;
            }
            last = next;
        }
        *self.target(last) = more;
    }

    pub fn patch(&mut self, list: i32, to: i32) {
        self.patch_values(list, to, NO_REGISTER, to);
    }

    pub fn patch_to_here(&mut self, list: i32) {
        let here = self.label();
        self.patch(list, here);
    }

    /// Makes tests of a list that give a value put it into `register` and go to `with_value`, and all others go to
    /// `without`.
    fn patch_values(&mut self, mut list: i32, with_value: i32, register: u8, without: i32) {
        while list != NO_JUMP && self.error.is_none() {
            let to = if self.set_test_register(list, register) { with_value } else { without };
            list = core::mem::replace(self.target(list), to);
        }
    }

    fn set_test_register(&mut self, pc: i32, register: u8) -> bool {
        let Op::TestSet { b, when, to, .. } = *self.at(pc) else { return false };
        *self.at(pc) = if register == NO_REGISTER || register == b {
            Op::Test { a: b, when, to }
        } else {
            Op::TestSet { a: register, b, when, to }
        };
        true
    }

    fn needs_value(&mut self, mut list: i32) -> bool {
        while list != NO_JUMP && self.error.is_none() {
            if !matches!(self.at(list), Op::TestSet { .. }) {
                return true;
            }
            list = *self.target(list);
        }
        false
    }

    fn drop_values(&mut self, mut list: i32) {
        while list != NO_JUMP && self.error.is_none() {
            self.set_test_register(list, NO_REGISTER);
            list = *self.target(list);
        }
    }

    // Expressions

    pub fn nil(&mut self, from: u8, count: usize) {
        if count == 0 {
            return;
        }
        let last = from.saturating_add((count - 1).min(u8::MAX.into()) as u8);
        if self.pc() > self.last_target
            && let Some(Op::LoadNil { a, b }) = self.proto.code.last_mut()
            && *a <= from
            && from <= b.saturating_add(1)
        {
            *b = (*b).max(last);
            return;
        }
        self.emit(Op::LoadNil { a: from, b: last });
    }

    /// Makes a call or `...` give so many results, or all.
    pub fn set_results(&mut self, expr: &Expr, count: u8) {
        if self.error.is_some() {
            return;
        }
        match expr.kind {
            Kind::Call(pc) => {
                if let Op::Call { results, .. } = self.at(pc) {
                    *results = count;
                }
            }
            Kind::Varargs(pc) => {
                let free = self.free as u8;
                if let Op::Varargs { a, count: wanted } = self.at(pc) {
                    (*a, *wanted) = (free, count);
                }
                self.reserve(1);
            }
            _ => {}
        }
    }

    pub fn set_open(&mut self, expr: &Expr) {
        self.set_results(expr, OPEN);
    }

    pub fn set_one_result(&mut self, expr: &mut Expr) {
        if self.error.is_some() {
            return;
        }
        match expr.kind {
            Kind::Call(pc) => {
                if let Op::Call { a, .. } = *self.at(pc) {
                    expr.kind = Kind::Register(a);
                }
            }
            Kind::Varargs(pc) => {
                if let Op::Varargs { count, .. } = self.at(pc) {
                    *count = 1;
                }
                expr.kind = Kind::Relocatable(pc);
            }
            _ => {}
        }
    }

    /// Makes sure that the expression is no variable any more.
    pub fn discharge(&mut self, expr: &mut Expr) {
        expr.kind = match expr.kind {
            Kind::Local(register) => Kind::Register(register),
            Kind::Upvalue(index) => Kind::Relocatable(self.emit(Op::GetUpvalue { a: 0, index })),
            Kind::Global(k) => Kind::Relocatable(self.emit(Op::GetGlobal { a: 0, k })),
            Kind::Indexed { table, key } => {
                self.free_rk(key);
                self.free_register(table);
                Kind::Relocatable(self.get_indexed(table, key))
            }
            Kind::Call(_) | Kind::Varargs(_) => return self.set_one_result(expr),
            other => other,
        };
    }

    fn get_indexed(&mut self, table: u8, key: Rk) -> i32 {
        let op = match key.operand() {
            crate::op::Operand::Register(c) => Op::GetTable { a: 0, b: table, c },
            crate::op::Operand::Constant(k) if self.is_short_string(k) => Op::GetField { a: 0, b: table, k },
            crate::op::Operand::Constant(k) => Op::GetConstant { a: 0, b: table, k },
        };
        self.emit(op)
    }

    fn is_short_string(&self, k: u16) -> bool {
        matches!(self.proto.constants[usize::from(k)], Value::String(string) if !string.is_long())
    }

    fn relocate(&mut self, pc: i32, register: u8) {
        if self.error.is_some() {
            return;
        }
        match self.at(pc) {
            Op::Varargs { a, .. } => *a = register,
            // Each of them is made for the register that it is to fill.
            Op::Move { .. } | Op::LoadK { .. } | Op::LoadBool { .. } => {
                unreachable!("the operation cannot put its result elsewhere")
            }
            op => match op.result() {
                Some(a) => *a = register,
                None => unreachable!("the operation has no result"),
            },
        }
    }

    fn discharge_to(&mut self, expr: &mut Expr, register: u8) {
        self.discharge(expr);
        match expr.kind {
            Kind::Nil => self.nil(register, 1),
            Kind::True | Kind::False => {
                let value = expr.kind == Kind::True;
                self.emit(Op::LoadBool { a: register, value, skips: false });
            }
            Kind::Constant(k) => _ = self.emit(Op::LoadK { a: register, k }),
            Kind::Number(number) => {
                let k = self.number_constant(number);
                self.emit(Op::LoadK { a: register, k });
            }
            Kind::Relocatable(pc) => self.relocate(pc, register),
            Kind::Register(from) => {
                if from != register {
                    self.emit(Op::Move { a: register, b: from });
                }
            }
            _ => return,
        }
        expr.kind = Kind::Register(register);
    }

    fn discharge_anywhere(&mut self, expr: &mut Expr) {
        if !matches!(expr.kind, Kind::Register(_)) {
            self.reserve(1);
            let register = self.last_register();
            self.discharge_to(expr, register);
        }
    }

    /// Puts the value of the whole expression into a register.
    pub fn put_into(&mut self, expr: &mut Expr, register: u8) {
        self.discharge_to(expr, register);
        if let Kind::Jump(pc) = expr.kind {
            self.join(&mut expr.if_true, pc);
        }
        if expr.has_jumps() {
            let (mut load_false, mut load_true) = (NO_JUMP, NO_JUMP);
            if self.needs_value(expr.if_true) || self.needs_value(expr.if_false) {
                let past = if matches!(expr.kind, Kind::Jump(_)) { NO_JUMP } else { self.jump() };
                self.label();
                load_false = self.emit(Op::LoadBool { a: register, value: false, skips: true });
                self.label();
                load_true = self.emit(Op::LoadBool { a: register, value: true, skips: false });
                self.patch_to_here(past);
            }
            let end = self.label();
            self.patch_values(expr.if_false, end, register, load_false);
            self.patch_values(expr.if_true, end, register, load_true);
        }
        *expr = Expr::new(Kind::Register(register));
    }

    pub fn put_into_next(&mut self, expr: &mut Expr) {
        self.discharge(expr);
        self.free_expr(expr);
        self.reserve(1);
        let register = self.last_register();
        self.put_into(expr, register);
    }

    pub fn put_anywhere(&mut self, expr: &mut Expr) -> u8 {
        self.discharge(expr);
        if let Kind::Register(register) = expr.kind {
            if !expr.has_jumps() {
                return register;
            }
            if usize::from(register) >= self.active.len() {
                self.put_into(expr, register);
                return register;
            }
        }
        self.put_into_next(expr);
        match expr.kind {
            Kind::Register(register) => register,
            _ => 0,
        }
    }

    pub fn settle(&mut self, expr: &mut Expr) {
        if expr.has_jumps() {
            self.put_anywhere(expr);
        } else {
            self.discharge(expr);
        }
    }

    /// As an operand: a constant where it is one, else a register.
    pub fn operand_of(&mut self, expr: &mut Expr) -> Rk {
        self.settle(expr);
        if !expr.has_jumps() {
            let k = match expr.kind {
                Kind::Nil => Some(self.constant(ConstantKey::Nil, Value::Nil)),
                Kind::True => Some(self.constant(ConstantKey::Boolean(true), Value::Boolean(true))),
                Kind::False => Some(self.constant(ConstantKey::Boolean(false), Value::Boolean(false))),
                Kind::Number(number) => Some(self.number_constant(number)),
                Kind::Constant(k) => Some(k),
                _ => None,
            };
            if let Some(k) = k.filter(|k| *k <= Rk::LAST_CONSTANT) {
                expr.kind = Kind::Constant(k);
                return Rk::constant(k as u16);
            }
        }
        Rk::register(self.put_anywhere(expr))
    }

    /// Assigns an expression to a variable.
    pub fn store(&mut self, variable: &Expr, value: &mut Expr) {
        match variable.kind {
            Kind::Local(register) => {
                self.free_expr(value);
                return self.put_into(value, register);
            }
            Kind::Upvalue(index) => {
                let a = self.put_anywhere(value);
                self.emit(Op::SetUpvalue { a, index });
            }
            Kind::Global(k) => {
                let a = self.put_anywhere(value);
                self.emit(Op::SetGlobal { a, k });
            }
            Kind::Indexed { table, key } => {
                let value = self.operand_of(value);
                let op = match key.operand() {
                    crate::op::Operand::Constant(k) if self.is_short_string(k) => Op::SetField { a: table, k, value },
                    _ => Op::SetTable { a: table, key, value },
                };
                self.emit(op);
            }
            _ => {}
        }
        self.free_expr(value);
    }

    /// Puts a table's method and the table itself into two registers.
    pub fn method(&mut self, object: &mut Expr, name: &mut Expr) {
        let b = self.put_anywhere(object);
        self.free_expr(object);
        let a = self.free as u8;
        self.reserve(2);
        let key = self.operand_of(name);
        self.emit(Op::SelfField { a, b, key });
        self.free_expr(name);
        *object = Expr::new(Kind::Register(a));
    }

    pub fn index(&mut self, table: &mut Expr, key: &mut Expr) {
        let key = self.operand_of(key);
        if let Kind::Register(table_register) = table.kind {
            table.kind = Kind::Indexed { table: table_register, key };
        }
    }

    // Conditions

    fn invert(&mut self, pc: i32) {
        if self.error.is_some() {
            return;
        }
        match self.at(pc) {
            Op::Equal { when, .. }
            | Op::EqualK { when, .. }
            | Op::Less { when, .. }
            | Op::LessEqual { when, .. }
            | Op::LessK { when, .. }
            | Op::LessEqualK { when, .. }
            | Op::GreaterK { when, .. }
            | Op::GreaterEqualK { when, .. } => *when = !*when,
            _ => unreachable!("it is a comparison"),
        }
    }

    fn jump_when(&mut self, expr: &mut Expr, when: bool) -> i32 {
        if let Kind::Relocatable(pc) = expr.kind
            && self.error.is_none()
            && let Op::Not { b, .. } = *self.at(pc)
        {
            // The test does the negation.
            self.proto.code.pop();
            self.proto.lines.pop();
            return self.emit(Op::Test { a: b, when: !when, to: NO_JUMP });
        }
        self.discharge_anywhere(expr);
        self.free_expr(expr);
        let Kind::Register(b) = expr.kind else { return NO_JUMP };
        self.emit(Op::TestSet { a: NO_REGISTER, b, when, to: NO_JUMP })
    }

    /// Goes on if the expression is true, and jumps if it is false.
    pub fn go_if_true(&mut self, expr: &mut Expr) {
        self.discharge(expr);
        let pc = match expr.kind {
            Kind::Constant(_) | Kind::Number(_) | Kind::True => NO_JUMP,
            Kind::Jump(pc) => {
                self.invert(pc);
                pc
            }
            _ => self.jump_when(expr, false),
        };
        self.join(&mut expr.if_false, pc);
        self.patch_to_here(expr.if_true);
        expr.if_true = NO_JUMP;
    }

    /// Goes on if the expression is false, and jumps if it is true.
    fn go_if_false(&mut self, expr: &mut Expr) {
        self.discharge(expr);
        let pc = match expr.kind {
            Kind::Nil | Kind::False => NO_JUMP,
            Kind::Jump(pc) => pc,
            _ => self.jump_when(expr, true),
        };
        self.join(&mut expr.if_true, pc);
        self.patch_to_here(expr.if_false);
        expr.if_false = NO_JUMP;
    }

    // Operators

    pub fn unary(&mut self, op: Unary, expr: &mut Expr) {
        match op {
            Unary::Negate => {
                if let Some(number) = expr.numeral() {
                    expr.kind = Kind::Number(-number);
                    return;
                }
                let b = self.put_anywhere(expr);
                self.free_expr(expr);
                *expr = Expr::new(Kind::Relocatable(self.emit(Op::Negate { a: 0, b })));
            }
            Unary::Len => {
                let b = self.put_anywhere(expr);
                self.free_expr(expr);
                *expr = Expr::new(Kind::Relocatable(self.emit(Op::Len { a: 0, b })));
            }
            Unary::Not => self.not(expr),
        }
    }

    fn not(&mut self, expr: &mut Expr) {
        self.discharge(expr);
        match expr.kind {
            Kind::Nil | Kind::False => expr.kind = Kind::True,
            Kind::Constant(_) | Kind::Number(_) | Kind::True => expr.kind = Kind::False,
            Kind::Jump(pc) => self.invert(pc),
            _ => {
                self.discharge_anywhere(expr);
                self.free_expr(expr);
                if let Kind::Register(b) = expr.kind {
                    expr.kind = Kind::Relocatable(self.emit(Op::Not { a: 0, b }));
                }
            }
        }
        core::mem::swap(&mut expr.if_true, &mut expr.if_false);
        self.drop_values(expr.if_true);
        self.drop_values(expr.if_false);
    }

    /// What has to happen to the left operand before the right one is read.
    pub fn prepare_left(&mut self, op: Binary, expr: &mut Expr) {
        match op {
            Binary::And => self.go_if_true(expr),
            Binary::Or => self.go_if_false(expr),
            Binary::Concat => self.put_into_next(expr),
            Binary::Arith(_) if expr.numeral().is_some() => {}
            _ => _ = self.operand_of(expr),
        }
    }

    pub fn binary(&mut self, op: Binary, left: &mut Expr, right: &mut Expr, line: u32) {
        match op {
            Binary::And => {
                self.discharge(right);
                self.join(&mut right.if_false, left.if_false);
                *left = *right;
            }
            Binary::Or => {
                self.discharge(right);
                self.join(&mut right.if_true, left.if_true);
                *left = *right;
            }
            Binary::Concat => self.concat(left, right, line),
            Binary::Arith(op) => self.arith(op, left, right, line),
            Binary::Equal => self.equal(true, left, right, line),
            Binary::NotEqual => self.equal(false, left, right, line),
            Binary::Less | Binary::LessEqual => self.less(op == Binary::Less, left, right, line),
            Binary::Greater | Binary::GreaterEqual => {
                let mut swapped = *right;
                self.less_swapped(op == Binary::Greater, &mut swapped, left, line);
            }
        }
    }

    fn concat(&mut self, left: &mut Expr, right: &mut Expr, line: u32) {
        self.settle(right);
        if let (Kind::Relocatable(pc), Kind::Register(first)) = (right.kind, left.kind)
            && self.error.is_none()
            && let Op::Concat { b, .. } = self.at(pc)
        {
            *b = first;
            self.free_expr(left);
            *left = Expr::new(Kind::Relocatable(pc));
            return;
        }
        self.put_into_next(right);
        let (Kind::Register(b), Kind::Register(c)) = (left.kind, right.kind) else { return };
        self.free_expr(right);
        self.free_expr(left);
        *left = Expr::new(Kind::Relocatable(self.emit(Op::Concat { a: 0, b, c })));
        self.fix_line(line);
    }

    fn arith(&mut self, op: Arith, left: &mut Expr, right: &mut Expr, line: u32) {
        if let (Some(x), Some(y)) = (left.numeral(), right.numeral()) {
            let result = op.apply(x, y);
            if !(result.is_nan() || y == 0.0 && matches!(op, Arith::Div | Arith::Mod)) {
                left.kind = Kind::Number(result);
                return;
            }
        }
        let c = self.operand_of(right);
        let b = self.operand_of(left);
        self.free_two(b, c);
        use crate::op::Operand::{Constant, Register};
        let a = 0;
        let code = match (op, b.operand(), c.operand()) {
            (Arith::Add, Register(b), Register(c)) => Op::AddRR { a, b, c },
            (Arith::Add, Register(b), Constant(k)) => Op::AddRK { a, b, k },
            (Arith::Sub, Register(b), Register(c)) => Op::SubRR { a, b, c },
            (Arith::Sub, Register(b), Constant(k)) => Op::SubRK { a, b, k },
            (Arith::Mul, Register(b), Register(c)) => Op::MulRR { a, b, c },
            (Arith::Mul, Register(b), Constant(k)) => Op::MulRK { a, b, k },
            (Arith::Div, Register(b), Register(c)) => Op::DivRR { a, b, c },
            (Arith::Div, Register(b), Constant(k)) => Op::DivRK { a, b, k },
            (Arith::Mod, Register(b), Register(c)) => Op::ModRR { a, b, c },
            (Arith::Mod, Register(b), Constant(k)) => Op::ModRK { a, b, k },
            _ => Op::Arith { a, op, b, c },
        };
        *left = Expr::new(Kind::Relocatable(self.emit(code)));
        self.fix_line(line);
    }

    /// Frees two operands, the one in the higher register first.
    fn free_two(&mut self, b: Rk, c: Rk) {
        use crate::op::Operand::Register;
        match (b.operand(), c.operand()) {
            (Register(x), Register(y)) if x > y => {
                self.free_register(x);
                self.free_register(y);
            }
            _ => {
                self.free_rk(c);
                self.free_rk(b);
            }
        }
    }

    /// The operand in a register, which a comparison needs unless it is a constant with a small index.
    fn comparand(&mut self, expr: &mut Expr) -> Result<u8, u8> {
        let rk = self.operand_of(expr);
        match rk.operand() {
            crate::op::Operand::Constant(k) if k <= u8::MAX.into() => Err(k as u8),
            _ => Ok(self.put_anywhere(expr)),
        }
    }

    fn equal(&mut self, when: bool, left: &mut Expr, right: &mut Expr, line: u32) {
        let c = self.comparand(right);
        let b = self.comparand(left);
        let to = NO_JUMP;
        let pc = match (b, c) {
            (Ok(a), Ok(b)) => {
                self.free_two(Rk::register(a), Rk::register(b));
                self.emit(Op::Equal { a, b, when, to })
            }
            (Ok(a), Err(k)) | (Err(k), Ok(a)) => {
                self.free_register(a);
                self.emit(Op::EqualK { a, k, when, to })
            }
            (Err(_), Err(k)) => {
                let a = self.put_anywhere(left);
                self.free_register(a);
                self.emit(Op::EqualK { a, k, when, to })
            }
        };
        *left = Expr::new(Kind::Jump(pc));
        self.fix_line(line);
    }

    fn less(&mut self, is_strict: bool, left: &mut Expr, right: &mut Expr, line: u32) {
        let c = self.comparand(right);
        let b = self.comparand(left);
        let pc = self.compare(is_strict, left, b, c);
        *left = Expr::new(Kind::Jump(pc));
        self.fix_line(line);
    }

    /// `left > right` as `right < left`; the result goes to `right`, which was written first.
    fn less_swapped(&mut self, is_strict: bool, left: &mut Expr, right: &mut Expr, line: u32) {
        let b = self.comparand(left);
        let c = self.comparand(right);
        let pc = self.compare(is_strict, left, b, c);
        *right = Expr::new(Kind::Jump(pc));
        self.fix_line(line);
    }

    fn compare(&mut self, is_strict: bool, left: &mut Expr, b: Result<u8, u8>, c: Result<u8, u8>) -> i32 {
        let (when, to) = (true, NO_JUMP);
        match (b, c) {
            (Ok(a), Ok(b)) => {
                self.free_two(Rk::register(a), Rk::register(b));
                let op = if is_strict { Op::Less { a, b, when, to } } else { Op::LessEqual { a, b, when, to } };
                self.emit(op)
            }
            (Err(k), Ok(a)) => {
                self.free_register(a);
                let op = if is_strict { Op::GreaterK { a, k, when, to } } else { Op::GreaterEqualK { a, k, when, to } };
                self.emit(op)
            }
            (b, Err(k)) => {
                let a = b.unwrap_or_else(|_| self.put_anywhere(left));
                self.free_register(a);
                let op = if is_strict { Op::LessK { a, k, when, to } } else { Op::LessEqualK { a, k, when, to } };
                self.emit(op)
            }
        }
    }

    // Variables

    pub fn declare_local(&mut self, name: StringRef) -> usize {
        self.proto.locals.push(crate::op::Local { name, from: 0, to: 0 });
        self.proto.locals.len() - 1
    }

    /// Makes the last declared variables visible.
    pub fn activate(&mut self, count: usize) {
        let from = self.pc() as u32;
        let first = self.proto.locals.len() - count;
        for at in first..self.proto.locals.len() {
            self.proto.locals[at].from = from;
            self.active.push(at);
        }
    }

    pub fn deactivate(&mut self, left: usize) {
        let to = self.pc() as u32;
        for at in self.active.drain(left..) {
            self.proto.locals[at].to = to;
        }
    }

    pub fn find_local(&self, name: StringRef) -> Option<u8> {
        let at = self.active.iter().rposition(|at| self.proto.locals[*at].name == name)?;
        Some(at as u8)
    }

    pub fn capture(&mut self, name: StringRef, capture: Capture) -> u8 {
        const UPVALUES_LIMIT: usize = 60;
        if let Some(at) = self.proto.captures.iter().position(|found| *found == capture) {
            return at as u8;
        }
        if self.proto.captures.len() >= UPVALUES_LIMIT {
            self.error = Some("upvalues");
            return 0;
        }
        self.proto.captures.push(capture);
        self.proto.upvalue_names.push(name);
        (self.proto.captures.len() - 1) as u8
    }
}
