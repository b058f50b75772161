//! Expressions.

use super::Parser;
use crate::{
    code::{Binary, Expr, Kind, Unary},
    error::Raise,
    lexer::Token,
    op::{Arith, OPEN, Op},
};
use alloc::vec::Vec;

/// Values of a table constructor that are stored at once.
const STORED_AT_ONCE: usize = 50;
const UNARY_PRIORITY: u8 = 8;

fn unary_of(token: Token) -> Option<Unary> {
    match token {
        Token::Word("not") => Some(Unary::Not),
        Token::Word("-") => Some(Unary::Negate),
        Token::Word("#") => Some(Unary::Len),
        _ => None,
    }
}

/// A binary operator, and how strongly it binds to the left and to the right.
fn binary_of(token: Token) -> Option<(Binary, u8, u8)> {
    let Token::Word(word) = token else { return None };
    Some(match word {
        "+" => (Binary::Arith(Arith::Add), 6, 6),
        "-" => (Binary::Arith(Arith::Sub), 6, 6),
        "*" => (Binary::Arith(Arith::Mul), 7, 7),
        "/" => (Binary::Arith(Arith::Div), 7, 7),
        "%" => (Binary::Arith(Arith::Mod), 7, 7),
        "^" => (Binary::Arith(Arith::Pow), 10, 9),
        ".." => (Binary::Concat, 5, 4),
        "==" => (Binary::Equal, 3, 3),
        "~=" => (Binary::NotEqual, 3, 3),
        "<" => (Binary::Less, 3, 3),
        "<=" => (Binary::LessEqual, 3, 3),
        ">" => (Binary::Greater, 3, 3),
        ">=" => (Binary::GreaterEqual, 3, 3),
        "and" => (Binary::And, 2, 2),
        "or" => (Binary::Or, 1, 1),
        _ => return None,
    })
}

/// A table constructor in progress.
struct Constructor {
    register: u8,
    pc: i32,
    fields: usize,
    elements: usize,
    /// Elements that are in registers, and not stored yet.
    waiting: usize,
    /// The element that was read last.
    last: Expr,
}

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Result<Expr, Raise> {
        self.sub_expression(0)
    }

    pub(super) fn expression_to_next_register(&mut self) -> Result<(), Raise> {
        let mut expr = self.expression()?;
        self.function().put_into_next(&mut expr);
        Ok(())
    }

    /// Expressions between commas: all but the last one are in registers. Returns how many there are, and the last.
    pub(super) fn expression_list(&mut self) -> Result<(usize, Expr), Raise> {
        let mut count = 1;
        let mut expr = self.expression()?;
        while self.accept(",")? {
            self.function().put_into_next(&mut expr);
            self.check_code()?;
            expr = self.expression()?;
            count += 1;
        }
        Ok((count, expr))
    }

    /// An expression of operators that bind more strongly than `limit`.
    fn sub_expression(&mut self, limit: u8) -> Result<Expr, Raise> {
        self.enter(1)?;
        let mut left = match unary_of(self.lexer.token) {
            Some(op) => {
                self.advance()?;
                let mut operand = self.sub_expression(UNARY_PRIORITY)?;
                self.function().unary(op, &mut operand);
                operand
            }
            None => self.simple_expression()?,
        };
        while let Some((op, left_priority, right_priority)) = binary_of(self.lexer.token)
            && left_priority > limit
        {
            let line = self.lexer.line;
            self.advance()?;
            self.function().prepare_left(op, &mut left);
            let mut right = self.sub_expression(right_priority)?;
            self.function().binary(op, &mut left, &mut right, line);
        }
        self.leave(1);
        Ok(left)
    }

    fn simple_expression(&mut self) -> Result<Expr, Raise> {
        let kind = match self.lexer.token {
            Token::Number(number) => Kind::Number(number),
            Token::String(string) => Kind::Constant(self.function().string_constant(string)),
            Token::Word("nil") => Kind::Nil,
            Token::Word("true") => Kind::True,
            Token::Word("false") => Kind::False,
            Token::Word("...") => {
                if !self.function().proto.is_vararg {
                    return Err(self.error("cannot use '...' outside a vararg function"));
                }
                self.function().proto.needs_arg = false;
                Kind::Varargs(self.function().emit(Op::Varargs { a: 0, count: 1 }))
            }
            Token::Word("{") => return self.constructor(),
            Token::Word("function") => {
                let line = self.lexer.line;
                self.advance()?;
                return self.function_body(false, line);
            }
            _ => return self.suffixed_expression(),
        };
        self.advance()?;
        Ok(Expr::new(kind))
    }

    fn prefix_expression(&mut self) -> Result<Expr, Raise> {
        match self.lexer.token {
            Token::Word("(") => {
                let line = self.lexer.line;
                self.enter(1)?;
                self.advance()?;
                let mut expr = self.expression()?;
                self.expect_closing(")", "(", line)?;
                self.leave(1);
                self.function().discharge(&mut expr);
                Ok(expr)
            }
            Token::Name(name) => {
                self.advance()?;
                Ok(self.variable(name))
            }
            _ => Err(self.error("unexpected symbol")),
        }
    }

    pub(super) fn suffixed_expression(&mut self) -> Result<Expr, Raise> {
        let mut expr = self.prefix_expression()?;
        loop {
            match self.lexer.token {
                Token::Word(".") => self.field(&mut expr)?,
                Token::Word("[") => {
                    self.function().put_anywhere(&mut expr);
                    let mut key = self.bracketed_key()?;
                    self.function().index(&mut expr, &mut key);
                }
                Token::Word(":") => {
                    self.advance()?;
                    let name = self.name()?;
                    let mut name = Expr::new(Kind::Constant(self.function().string_constant(name)));
                    self.function().method(&mut expr, &mut name);
                    expr = self.call(expr)?;
                }
                Token::Word("(" | "{") | Token::String(_) => {
                    self.function().put_into_next(&mut expr);
                    expr = self.call(expr)?;
                }
                _ => return Ok(expr),
            }
            self.check_code()?;
        }
    }

    /// `.name` or `:name` behind a table.
    pub(super) fn field(&mut self, table: &mut Expr) -> Result<(), Raise> {
        self.function().put_anywhere(table);
        self.advance()?;
        let name = self.name()?;
        let mut key = Expr::new(Kind::Constant(self.function().string_constant(name)));
        self.function().index(table, &mut key);
        Ok(())
    }

    fn bracketed_key(&mut self) -> Result<Expr, Raise> {
        self.advance()?;
        let mut key = self.expression()?;
        self.function().settle(&mut key);
        self.expect("]")?;
        Ok(key)
    }

    /// The arguments of a call, whose function is in a register.
    fn call(&mut self, function: Expr) -> Result<Expr, Raise> {
        let line = self.lexer.line;
        self.enter(1)?;
        let mut last = match self.lexer.token {
            Token::Word("(") => {
                if line != self.lexer.last_line {
                    return Err(self.error("ambiguous syntax (function call x new statement)"));
                }
                self.advance()?;
                let arguments = if self.is(")") { Expr::new(Kind::Void) } else { self.expression_list()?.1 };
                self.expect_closing(")", "(", line)?;
                arguments
            }
            Token::Word("{") => self.constructor()?,
            Token::String(string) => {
                let k = self.function().string_constant(string);
                self.advance()?;
                Expr::new(Kind::Constant(k))
            }
            _ => return Err(self.error("function arguments expected")),
        };
        self.leave(1);
        let code = self.function();
        let Kind::Register(a) = function.kind else { return Ok(function) };
        let arguments = if last.is_open() {
            code.set_open(&last);
            OPEN
        } else {
            if last.kind != Kind::Void {
                code.put_into_next(&mut last);
            }
            (code.free - usize::from(a) - 1) as u8
        };
        let pc = code.emit(Op::Call { a, arguments, results: 1 });
        code.fix_line(line);
        // The function and its arguments give way to one result.
        code.free = usize::from(a) + 1;
        Ok(Expr::new(Kind::Call(pc)))
    }

    fn constructor(&mut self) -> Result<Expr, Raise> {
        let line = self.lexer.line;
        let pc = self.function().emit(Op::NewTable { a: 0, elements: 0, fields: 0 });
        let mut table = Expr::new(Kind::Relocatable(pc));
        self.function().put_into_next(&mut table);
        let Kind::Register(register) = table.kind else { return Ok(table) };
        self.enter(1)?;
        let last = Expr::new(Kind::Void);
        let mut state = Constructor { register, pc, fields: 0, elements: 0, waiting: 0, last };
        self.expect("{")?;
        while !self.is("}") {
            self.store_waiting(&mut state);
            self.check_code()?;
            let is_field = match self.lexer.token {
                Token::Name(_) => self.lexer.peek(self.heap)? == Token::Word("="),
                token => token == Token::Word("["),
            };
            if is_field {
                self.record_field(&mut state)?;
            } else {
                state.last = self.expression()?;
                state.elements += 1;
                state.waiting += 1;
            }
            if !self.accept(",")? && !self.accept(";")? {
                break;
            }
        }
        self.expect_closing("}", "{", line)?;
        self.leave(1);
        self.store_last(&mut state);
        Ok(table)
    }

    fn record_field(&mut self, state: &mut Constructor) -> Result<(), Raise> {
        let free = self.function().free;
        let mut key = if let Token::Name(name) = self.lexer.token {
            self.advance()?;
            Expr::new(Kind::Constant(self.function().string_constant(name)))
        } else {
            self.bracketed_key()?
        };
        state.fields += 1;
        self.expect("=")?;
        let key = self.function().operand_of(&mut key);
        let mut value = self.expression()?;
        let field = Expr::new(Kind::Indexed { table: state.register, key });
        self.function().store(&field, &mut value);
        self.function().free = free;
        Ok(())
    }

    /// Puts the element that was read last into a register, and stores the elements if enough of them wait.
    fn store_waiting(&mut self, state: &mut Constructor) {
        if state.last.kind == Kind::Void {
            return;
        }
        let code = self.function();
        code.put_into_next(&mut state.last);
        state.last.kind = Kind::Void;
        if state.waiting == STORED_AT_ONCE {
            let first = (state.elements - state.waiting + 1) as u32;
            code.emit(Op::SetList { a: state.register, count: state.waiting as u8, first });
            code.free = usize::from(state.register) + 1;
            state.waiting = 0;
        }
    }

    fn store_last(&mut self, state: &mut Constructor) {
        let code = self.function();
        if state.waiting > 0 {
            let first = (state.elements - state.waiting + 1) as u32;
            let a = state.register;
            if state.last.is_open() {
                code.set_open(&state.last);
                code.emit(Op::SetList { a, count: OPEN, first });
                // How many there will be is not known.
                state.elements -= 1;
            } else {
                if state.last.kind != Kind::Void {
                    code.put_into_next(&mut state.last);
                }
                code.emit(Op::SetList { a, count: state.waiting as u8, first });
            }
            code.free = usize::from(a) + 1;
        }
        if code.error.is_none()
            && let Op::NewTable { elements, fields, .. } = code.at(state.pc)
        {
            *elements = state.elements.min(u16::MAX.into()) as u16;
            *fields = state.fields.min(u16::MAX.into()) as u16;
        }
    }

    #[inline(never)]
    pub(super) fn function_body(&mut self, is_method: bool, line: u32) -> Result<Expr, Raise> {
        self.open_function(line);
        self.expect("(")?;
        if is_method {
            self.add_local("self")?;
        }
        self.parameters()?;
        self.expect(")")?;
        self.chunk()?;
        self.expect_closing("end", "function", line)?;
        let proto = self.close_function()?;
        let code = self.function();
        if code.proto.protos.len() > u16::MAX.into() {
            return Err(self.error("constant table overflow"));
        }
        code.proto.protos.push(proto);
        let index = (code.proto.protos.len() - 1) as u16;
        Ok(Expr::new(Kind::Relocatable(code.emit(Op::Closure { a: 0, index }))))
    }

    fn parameters(&mut self) -> Result<(), Raise> {
        let mut names = Vec::new();
        while !self.is(")") {
            match self.lexer.token {
                Token::Name(name) => {
                    self.check_locals(names.len() + 1)?;
                    names.push(name);
                }
                Token::Word("...") => {
                    self.function().proto.is_vararg = true;
                    self.function().proto.needs_arg = true;
                }
                _ => return Err(self.error("<name> or '...' expected")),
            }
            self.advance()?;
            if self.function().proto.is_vararg || !self.accept(",")? {
                break;
            }
            if self.is(")") {
                return Err(self.error("<name> or '...' expected"));
            }
        }
        for name in &names {
            self.declare(*name);
        }
        self.function().activate(names.len());
        self.function().proto.parameters = self.function().active.len() as u8;
        if self.function().proto.is_vararg {
            self.add_local("arg")?;
        }
        let count = self.function().active.len();
        self.function().reserve(count);
        Ok(())
    }
}
