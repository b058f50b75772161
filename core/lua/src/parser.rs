//! Statements. One pass from tokens to code; expressions are in [`expression`].

mod expression;

use crate::{
    code::{Block, Expr, Function, Kind, NO_JUMP},
    error::Raise,
    heap::Heap,
    lexer::{Lexer, Token, shown_source},
    op::{Capture, OPEN, Op, Proto},
    value::StringRef,
};
use alloc::{format, rc::Rc, string::String, vec, vec::Vec};

/// How deep statements and expressions nest: 200 operators, as in Lua 5.1. What takes more of Rust's stack counts for
/// more, so that all of it together takes less than 100 KiB.
const DEPTH_LIMIT: usize = 200;
const BLOCK_DEPTH: usize = 2;
/// Local variables of one function.
const LOCALS_LIMIT: usize = 200;
/// Bytes of code and tables that a byte of source may come to, roughly: what has no room after that is refused before.
const BYTES_PER_SOURCE_BYTE: usize = 16;

/// Compiles a source text. The closure of the result has no upvalues.
pub(crate) fn compile(heap: &mut Heap, text: &[u8], source: &[u8]) -> Result<Rc<Proto>, Raise> {
    heap.check_room(text.len().saturating_mul(BYTES_PER_SOURCE_BYTE))?;
    let shared: Rc<[u8]> = source.into();
    let mut parser = Parser { lexer: Lexer::new(text, source), heap, functions: Vec::new(), source: shared, depth: 0 };
    parser.open_function(0);
    parser.function().proto.is_vararg = true;
    parser.advance()?;
    parser.chunk()?;
    if parser.lexer.token != Token::End {
        return Err(parser.expected("<eof>"));
    }
    parser.close_function()
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    heap: &'a mut Heap,
    /// The function that is being compiled, after those that it is in.
    functions: Vec<Function>,
    source: Rc<[u8]>,
    depth: usize,
}

/// What ends a block of statements.
fn ends_block(token: Token) -> bool {
    matches!(token, Token::End | Token::Word("else" | "elseif" | "end" | "until"))
}

impl Parser<'_> {
    fn function(&mut self) -> &mut Function {
        let line = self.lexer.last_line;
        let function = self.functions.last_mut().expect("a function is open while its text is read");
        function.line = line;
        function
    }

    fn advance(&mut self) -> Result<(), Raise> {
        self.lexer.advance(self.heap)
    }

    fn is(&self, word: &str) -> bool {
        self.lexer.is(word)
    }

    /// Goes past a word if it is there.
    fn accept(&mut self, word: &str) -> Result<bool, Raise> {
        let found = self.is(word);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn error(&self, message: &str) -> Raise {
        self.lexer.error(self.heap, message)
    }

    fn expected(&self, what: &str) -> Raise {
        self.error(&format!("'{what}' expected"))
    }

    fn expect(&mut self, word: &str) -> Result<(), Raise> {
        if self.accept(word)? { Ok(()) } else { Err(self.expected(word)) }
    }

    /// Expects what closes something that was opened at a line.
    fn expect_closing(&mut self, word: &str, opening: &str, line: u32) -> Result<(), Raise> {
        if self.accept(word)? {
            return Ok(());
        }
        if line == self.lexer.line {
            return Err(self.expected(word));
        }
        Err(self.error(&format!("'{word}' expected (to close '{opening}' at line {line})")))
    }

    fn name(&mut self) -> Result<StringRef, Raise> {
        let Token::Name(name) = self.lexer.token else { return Err(self.error("'<name>' expected")) };
        self.advance()?;
        Ok(name)
    }

    fn enter(&mut self, depth: usize) -> Result<(), Raise> {
        self.depth += depth;
        if self.depth > DEPTH_LIMIT {
            return Err(self.lexer.error_without_token("chunk has too many syntax levels"));
        }
        Ok(())
    }

    fn leave(&mut self, depth: usize) {
        self.depth -= depth;
    }

    /// An error for what a function has too many of.
    fn too_many(&self, what: &str, limit: usize) -> Raise {
        let line = self.functions.last().map_or(0, |function| function.proto.line_defined);
        let place = if line == 0 { String::from("main function") } else { format!("function at line {line}") };
        let mut text = shown_source(self.lexer.source);
        text.extend_from_slice(format!(":{}: {place} has more than {limit} {what}", self.lexer.line).as_bytes());
        Raise::Message(text)
    }

    /// Passes on what the code generator has to complain about.
    fn check_code(&mut self) -> Result<(), Raise> {
        match self.function().error {
            None => Ok(()),
            Some("upvalues") => Err(self.too_many("upvalues", 60)),
            Some(message) => Err(self.error(message)),
        }
    }

    // Functions

    #[inline(never)]
    fn open_function(&mut self, line: u32) {
        let mut function = Function::default();
        function.proto.source = self.source.clone();
        function.proto.line_defined = line;
        function.proto.registers = 2;
        self.functions.push(function);
        self.open_block(false);
    }

    #[inline(never)]
    fn close_function(&mut self) -> Result<Rc<Proto>, Raise> {
        self.close_block();
        self.function().emit(Op::Return { a: 0, results: 0 });
        self.check_code()?;
        let mut proto = self.functions.pop().map(|function| function.proto).unwrap_or_default();
        proto.code.shrink_to_fit();
        proto.lines.shrink_to_fit();
        proto.constants.shrink_to_fit();
        self.heap.charge(proto.bytes())?;
        Ok(Rc::new(proto))
    }

    fn declare(&mut self, name: StringRef) {
        self.function().declare_local(name);
    }

    fn check_locals(&mut self, more: usize) -> Result<(), Raise> {
        if self.function().active.len() + more > LOCALS_LIMIT {
            return Err(self.too_many("local variables", LOCALS_LIMIT));
        }
        Ok(())
    }

    /// Declares a variable and makes it visible.
    fn add_local(&mut self, name: &str) -> Result<(), Raise> {
        self.check_locals(1)?;
        let name = self.heap.string(name.as_bytes())?;
        self.declare(name);
        self.function().activate(1);
        Ok(())
    }

    // Blocks

    fn open_block(&mut self, is_loop: bool) {
        let active = self.function().active.len();
        self.function().blocks.push(Block { breaks: NO_JUMP, active, is_captured: false, is_loop });
    }

    fn close_block(&mut self) {
        let function = self.function();
        let Some(block) = function.blocks.pop() else { return };
        function.deactivate(block.active);
        if block.is_captured && !function.blocks.is_empty() {
            function.emit(Op::Close { a: block.active as u8 });
        }
        function.free = function.active.len();
        function.patch_to_here(block.breaks);
    }

    fn chunk(&mut self) -> Result<(), Raise> {
        self.enter(BLOCK_DEPTH)?;
        let mut is_last = false;
        while !is_last && !ends_block(self.lexer.token) {
            is_last = self.statement()?;
            self.accept(";")?;
            self.check_code()?;
            let function = self.function();
            function.free = function.active.len();
        }
        self.leave(BLOCK_DEPTH);
        Ok(())
    }

    fn block(&mut self) -> Result<(), Raise> {
        self.open_block(false);
        self.chunk()?;
        self.close_block();
        Ok(())
    }

    /// Reads a statement and tells whether it has to be the last one of its block.
    fn statement(&mut self) -> Result<bool, Raise> {
        let line = self.lexer.line;
        match self.lexer.token {
            Token::Word("if") => self.if_statement(line)?,
            Token::Word("while") => self.while_statement(line)?,
            Token::Word("do") => {
                self.advance()?;
                self.block()?;
                self.expect_closing("end", "do", line)?;
            }
            Token::Word("for") => self.for_statement(line)?,
            Token::Word("repeat") => self.repeat_statement(line)?,
            Token::Word("function") => self.function_statement(line)?,
            Token::Word("local") => {
                self.advance()?;
                if self.accept("function")? { self.local_function()? } else { self.local_statement()? }
            }
            Token::Word("return") => {
                self.return_statement()?;
                return Ok(true);
            }
            Token::Word("break") => {
                self.advance()?;
                self.break_statement()?;
                return Ok(true);
            }
            _ => self.expression_statement()?,
        }
        Ok(false)
    }

    /// A condition; returns the jumps that are taken when it is false.
    fn condition(&mut self) -> Result<i32, Raise> {
        let mut expr = self.expression()?;
        if expr.kind == Kind::Nil {
            expr.kind = Kind::False;
        }
        self.function().go_if_true(&mut expr);
        Ok(expr.if_false)
    }

    fn if_statement(&mut self, line: u32) -> Result<(), Raise> {
        let mut end = NO_JUMP;
        let mut otherwise = self.if_branch()?;
        loop {
            if self.is("elseif") {
                let jump = self.function().jump();
                self.function().join(&mut end, jump);
                self.function().patch_to_here(otherwise);
                otherwise = self.if_branch()?;
            } else if self.is("else") {
                let jump = self.function().jump();
                self.function().join(&mut end, jump);
                self.function().patch_to_here(otherwise);
                self.advance()?;
                self.block()?;
                break;
            } else {
                self.function().join(&mut end, otherwise);
                break;
            }
        }
        self.function().patch_to_here(end);
        self.expect_closing("end", "if", line)
    }

    fn if_branch(&mut self) -> Result<i32, Raise> {
        self.advance()?;
        let otherwise = self.condition()?;
        self.expect("then")?;
        self.block()?;
        Ok(otherwise)
    }

    fn while_statement(&mut self, line: u32) -> Result<(), Raise> {
        self.advance()?;
        let start = self.function().label();
        let exit = self.condition()?;
        self.open_block(true);
        self.expect("do")?;
        self.block()?;
        let back = self.function().jump();
        self.function().patch(back, start);
        self.expect_closing("end", "while", line)?;
        self.close_block();
        self.function().patch_to_here(exit);
        Ok(())
    }

    fn repeat_statement(&mut self, line: u32) -> Result<(), Raise> {
        let start = self.function().label();
        self.open_block(true);
        self.open_block(false);
        self.advance()?;
        self.chunk()?;
        self.expect_closing("until", "repeat", line)?;
        let exit = self.condition()?;
        let is_captured = self.function().blocks.last().is_some_and(|block| block.is_captured);
        if is_captured {
            // Variables of the body end before the next turn and before what follows.
            self.break_statement()?;
            self.function().patch_to_here(exit);
            self.close_block();
            let back = self.function().jump();
            self.function().patch(back, start);
        } else {
            // Only jumps without a condition lead back: those are where turns are counted.
            self.close_block();
            let end = self.function().jump();
            self.function().patch_to_here(exit);
            let back = self.function().jump();
            self.function().patch(back, start);
            self.function().patch_to_here(end);
        }
        self.close_block();
        Ok(())
    }

    fn break_statement(&mut self) -> Result<(), Raise> {
        let blocks = &self.function().blocks;
        let Some(at) = blocks.iter().rposition(|block| block.is_loop) else {
            return Err(self.error("no loop to break"));
        };
        let is_captured = blocks[at + 1..].iter().any(|block| block.is_captured);
        let a = blocks[at].active as u8;
        if is_captured {
            self.function().emit(Op::Close { a });
        }
        let jump = self.function().jump();
        let mut breaks = self.function().blocks[at].breaks;
        self.function().join(&mut breaks, jump);
        self.function().blocks[at].breaks = breaks;
        Ok(())
    }

    fn for_statement(&mut self, line: u32) -> Result<(), Raise> {
        self.open_block(true);
        self.advance()?;
        let first = self.name()?;
        match self.lexer.token {
            Token::Word("=") => self.numeric_for(first, line)?,
            Token::Word("," | "in") => self.generic_for(first)?,
            _ => return Err(self.error("'=' or 'in' expected")),
        }
        self.expect_closing("end", "for", line)?;
        self.close_block();
        Ok(())
    }

    fn numeric_for(&mut self, name: StringRef, line: u32) -> Result<(), Raise> {
        let base = self.function().free as u8;
        self.advance()?;
        self.expression_to_next_register()?;
        self.expect(",")?;
        self.expression_to_next_register()?;
        if self.accept(",")? {
            self.expression_to_next_register()?;
        } else {
            let mut one = Expr::new(Kind::Number(1.0));
            self.function().put_into_next(&mut one);
        }
        for hidden in ["(for index)", "(for limit)", "(for step)"] {
            self.add_local(hidden)?;
        }
        self.expect("do")?;
        let prepare = self.function().emit(Op::ForPrepare { a: base, to: NO_JUMP });
        self.loop_body(&[name])?;
        self.function().patch_to_here(prepare);
        let back = self.function().emit(Op::ForLoop { a: base, to: NO_JUMP });
        self.function().fix_line(line);
        self.function().patch(back, prepare + 1);
        Ok(())
    }

    fn generic_for(&mut self, first: StringRef) -> Result<(), Raise> {
        let mut names = vec![first];
        let base = self.function().free as u8;
        while self.accept(",")? {
            names.push(self.name()?);
            self.check_locals(names.len() + 3)?;
        }
        self.expect("in")?;
        let line = self.lexer.line;
        let (count, mut last) = self.expression_list()?;
        self.adjust(3, count, &mut last);
        // The iterator is called with two arguments.
        self.function().check_registers(3);
        for hidden in ["(for generator)", "(for state)", "(for control)"] {
            self.add_local(hidden)?;
        }
        self.expect("do")?;
        let prepare = self.function().jump();
        self.loop_body(&names)?;
        self.function().patch_to_here(prepare);
        self.function().emit(Op::ForCall { a: base, results: names.len() as u8 });
        self.function().fix_line(line);
        let back = self.function().emit(Op::ForTest { a: base, to: NO_JUMP });
        self.function().fix_line(line);
        self.function().patch(back, prepare + 1);
        Ok(())
    }

    fn loop_body(&mut self, names: &[StringRef]) -> Result<(), Raise> {
        self.open_block(false);
        self.check_locals(names.len())?;
        for name in names {
            self.declare(*name);
        }
        self.function().activate(names.len());
        self.function().reserve(names.len());
        self.block()?;
        self.close_block();
        Ok(())
    }

    fn function_statement(&mut self, line: u32) -> Result<(), Raise> {
        self.advance()?;
        let name = self.name()?;
        let mut variable = self.variable(name);
        let mut is_method = false;
        while !is_method && (self.is(".") || self.is(":")) {
            is_method = self.is(":");
            self.field(&mut variable)?;
        }
        let mut body = self.function_body(is_method, line)?;
        self.function().store(&variable, &mut body);
        self.function().fix_line(line);
        Ok(())
    }

    fn local_function(&mut self) -> Result<(), Raise> {
        let name = self.name()?;
        self.check_locals(1)?;
        self.declare(name);
        self.function().reserve(1);
        self.function().activate(1);
        let register = (self.function().active.len() - 1) as u8;
        let line = self.lexer.line;
        let mut body = self.function_body(false, line)?;
        self.function().store(&Expr::new(Kind::Local(register)), &mut body);
        // The variable is not to be named as such before it has a value.
        let from = self.function().pc() as u32;
        if let Some(at) = self.function().active.last().copied() {
            self.function().proto.locals[at].from = from;
        }
        Ok(())
    }

    fn local_statement(&mut self) -> Result<(), Raise> {
        let mut names = vec![self.name()?];
        while self.accept(",")? {
            names.push(self.name()?);
            self.check_locals(names.len())?;
        }
        self.check_locals(names.len())?;
        let (count, mut last) = if self.accept("=")? { self.expression_list()? } else { (0, Expr::new(Kind::Void)) };
        self.adjust(names.len(), count, &mut last);
        for name in &names {
            self.declare(*name);
        }
        self.function().activate(names.len());
        Ok(())
    }

    fn return_statement(&mut self) -> Result<(), Raise> {
        self.advance()?;
        if ends_block(self.lexer.token) || self.is(";") {
            self.function().emit(Op::Return { a: 0, results: 0 });
            return Ok(());
        }
        let (count, mut last) = self.expression_list()?;
        let function = self.function();
        let active = function.active.len() as u8;
        if last.is_open() {
            function.set_open(&last);
            if let Kind::Call(pc) = last.kind
                && count == 1
                && function.error.is_none()
                && let Op::Call { a, arguments, .. } = *function.at(pc)
            {
                *function.at(pc) = Op::TailCall { a, arguments };
            }
            function.emit(Op::Return { a: active, results: OPEN });
        } else if count == 1 {
            let a = function.put_anywhere(&mut last);
            function.emit(Op::Return { a, results: 1 });
        } else {
            function.put_into_next(&mut last);
            function.emit(Op::Return { a: active, results: count.min(OPEN.into()) as u8 });
        }
        Ok(())
    }

    fn expression_statement(&mut self) -> Result<(), Raise> {
        let first = self.suffixed_expression()?;
        if matches!(first.kind, Kind::Call(_)) && !self.is("=") && !self.is(",") {
            self.function().set_results(&first, 0);
            return Ok(());
        }
        self.assignment(first)
    }

    fn assignment(&mut self, first: Expr) -> Result<(), Raise> {
        let mut variables = vec![first];
        loop {
            let last = variables[variables.len() - 1];
            if !matches!(last.kind, Kind::Local(_) | Kind::Upvalue(_) | Kind::Global(_) | Kind::Indexed { .. }) {
                return Err(self.error("syntax error"));
            }
            if !self.accept(",")? {
                break;
            }
            let next = self.suffixed_expression()?;
            if let Kind::Local(register) = next.kind {
                self.keep_old_value(&mut variables, register);
            }
            variables.push(next);
            if variables.len() > DEPTH_LIMIT {
                return Err(self.too_many("variables in assignment", DEPTH_LIMIT));
            }
        }
        self.expect("=")?;
        let (count, mut last) = self.expression_list()?;
        if count == variables.len() {
            self.function().set_one_result(&mut last);
            let target = variables.pop().unwrap_or(first);
            self.function().store(&target, &mut last);
        } else {
            self.adjust(variables.len(), count, &mut last);
            let function = self.function();
            function.free = function.free.saturating_sub(count.saturating_sub(variables.len()));
        }
        while let Some(variable) = variables.pop() {
            let register = self.function().free.saturating_sub(1) as u8;
            self.function().store(&variable, &mut Expr::new(Kind::Register(register)));
        }
        Ok(())
    }

    /// Copies a local variable that is about to be assigned, where an earlier target of the same assignment uses it.
    fn keep_old_value(&mut self, variables: &mut [Expr], register: u8) {
        let function = self.function();
        let copy = function.free as u8;
        let mut is_used = false;
        for variable in variables {
            let Kind::Indexed { table, key } = &mut variable.kind else { continue };
            if *table == register {
                (*table, is_used) = (copy, true);
            }
            if *key == crate::op::Rk::register(register) {
                (*key, is_used) = (crate::op::Rk::register(copy), true);
            }
        }
        if is_used {
            function.emit(Op::Move { a: copy, b: register });
            function.reserve(1);
        }
    }

    /// Makes so many values of an expression list as there are variables.
    fn adjust(&mut self, wanted: usize, count: usize, last: &mut Expr) {
        let function = self.function();
        if last.is_open() {
            let missing = (wanted + 1).saturating_sub(count);
            function.set_results(last, missing.min(crate::code::REGISTERS_LIMIT) as u8);
            if missing > 1 {
                function.reserve(missing - 1);
            }
            return;
        }
        if last.kind != Kind::Void {
            function.put_into_next(last);
        }
        if wanted > count {
            let from = function.free as u8;
            function.reserve(wanted - count);
            function.nil(from, wanted - count);
        }
    }

    fn variable(&mut self, name: StringRef) -> Expr {
        let innermost = self.functions.len() - 1;
        let kind = self.resolve(innermost, name).unwrap_or_else(|| {
            let k = self.function().string_constant(name);
            Kind::Global(k)
        });
        Expr::new(kind)
    }

    /// Finds a variable as the function at a level sees it.
    fn resolve(&mut self, innermost: usize, name: StringRef) -> Option<Kind> {
        let (level, register) = (0..=innermost)
            .rev()
            .find_map(|level| self.functions[level].find_local(name).map(|register| (level, register)))?;
        if level == innermost {
            return Some(Kind::Local(register));
        }
        let blocks = &mut self.functions[level].blocks;
        if let Some(block) = blocks.iter_mut().rev().find(|block| block.active <= register.into()) {
            block.is_captured = true;
        }
        let mut index = self.functions[level + 1].capture(name, Capture::Register(register));
        for between in level + 2..=innermost {
            index = self.functions[between].capture(name, Capture::Upvalue(index));
        }
        Some(Kind::Upvalue(index))
    }
}
