//! JSON to values.

use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, NativeResult},
    number::parse_prefix,
    value::{StringRef, TableRef, Value},
};
use alloc::{format, vec::Vec};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(StringRef),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl Token {
    fn name(self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::String(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Error(text) => text,
        }
    }
}

/// A table that is being filled.
enum Open {
    Array(TableRef, usize),
    Object(TableRef, Value),
}

struct Decoder {
    text: StringRef,
    at: usize,
    /// Where the current token begins, or the error in it is.
    token_at: usize,
    open: Vec<Open>,
}

pub(super) fn decode(machine: &mut Machine, args: Args) -> NativeResult {
    if args.len != 1 {
        return Err(Raise::argument(0, "expected 1 argument"));
    }
    let text = machine.check_string(args, 0)?;
    if let [first, second, ..] = machine.heap.bytes(text)
        && (*first == 0 || *second == 0)
    {
        return Err(Raise::positioned("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut decoder = Decoder { text, at: 0, token_at: 0, open: Vec::new() };
    let value = decoder.value(machine)?;
    match decoder.next(machine)? {
        Token::End => Ok(Flow::One(value)),
        token => Err(decoder.expected("the end", token)),
    }
}

impl Decoder {
    fn expected(&self, what: &str, found: Token) -> Raise {
        format!("Expected {what} but found {} at character {}", found.name(), self.token_at + 1).into()
    }

    /// Reads a value with all that is in it.
    fn value(&mut self, machine: &mut Machine) -> Result<Value, Raise> {
        let mut token = self.next(machine)?;
        loop {
            let mut value = match token {
                Token::String(string) => Value::String(string),
                Token::Number(number) => Value::Number(number),
                Token::Boolean(boolean) => Value::Boolean(boolean),
                Token::Null => Value::Light(0),
                Token::ObjectBegin => {
                    self.descend(machine, |table| Open::Object(table, Value::Nil))?;
                    match self.next(machine)? {
                        Token::ObjectEnd => self.close(),
                        first => {
                            token = self.key(machine, first)?;
                            continue;
                        }
                    }
                }
                Token::ArrayBegin => {
                    self.descend(machine, |table| Open::Array(table, 0))?;
                    match self.next(machine)? {
                        Token::ArrayEnd => self.close(),
                        first => {
                            token = first;
                            continue;
                        }
                    }
                }
                other => return Err(self.expected("value", other)),
            };
            // A complete value: it may complete what it is in.
            loop {
                match self.open.last_mut() {
                    None => return Ok(value),
                    Some(Open::Array(table, len)) => {
                        *len += 1;
                        machine.heap.set_index(*table, *len, value)?;
                        match self.next(machine)? {
                            Token::ArrayEnd => value = self.close(),
                            Token::Comma => {
                                token = self.next(machine)?;
                                break;
                            }
                            other => return Err(self.expected("comma or array end", other)),
                        }
                    }
                    Some(Open::Object(table, key)) => {
                        machine.heap.set(*table, *key, value)?;
                        match self.next(machine)? {
                            Token::ObjectEnd => value = self.close(),
                            Token::Comma => {
                                let first = self.next(machine)?;
                                token = self.key(machine, first)?;
                                break;
                            }
                            other => return Err(self.expected("comma or object end", other)),
                        }
                    }
                }
            }
        }
    }

    fn descend(&mut self, machine: &mut Machine, open: fn(TableRef) -> Open) -> Result<(), Raise> {
        let depth = self.open.len() + 1;
        if depth > machine.library.cjson.decode_max_depth as usize {
            return Err(format!("Found too many nested data structures ({depth}) at character {}", self.at).into());
        }
        let table = machine.heap.table(0, 0)?;
        self.open.try_reserve(1).map_err(|_| Raise::OutOfMemory)?;
        self.open.push(open(table));
        Ok(())
    }

    fn close(&mut self) -> Value {
        match self.open.pop() {
            Some(Open::Array(table, _) | Open::Object(table, _)) => Value::Table(table),
            None => Value::Nil,
        }
    }

    /// Takes the key of an object's field and returns the first token of its value.
    fn key(&mut self, machine: &mut Machine, token: Token) -> Result<Token, Raise> {
        let Token::String(string) = token else { return Err(self.expected("object key string", token)) };
        match self.next(machine)? {
            Token::Colon => {}
            other => return Err(self.expected("colon", other)),
        }
        if let Some(Open::Object(_, key)) = self.open.last_mut() {
            *key = Value::String(string);
        }
        self.next(machine)
    }

    fn next(&mut self, machine: &mut Machine) -> Result<Token, Raise> {
        let text = machine.heap.bytes(self.text);
        while matches!(text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.token_at = self.at;
        let rest = &text[self.at..];
        let simple = match rest.first() {
            None => return Ok(Token::End),
            Some(b'{') => Token::ObjectBegin,
            Some(b'}') => Token::ObjectEnd,
            Some(b'[') => Token::ArrayBegin,
            Some(b']') => Token::ArrayEnd,
            Some(b',') => Token::Comma,
            Some(b':') => Token::Colon,
            Some(b'"') => return self.string(machine),
            Some(b'-' | b'0'..=b'9') => {
                let is_refused = !machine.library.cjson.decode_invalid && is_invalid_number(rest);
                return Ok(if is_refused { Token::Error("invalid number") } else { self.number(rest) });
            }
            _ => {
                for (word, token) in
                    [(&b"true"[..], Token::Boolean(true)), (b"false", Token::Boolean(false)), (b"null", Token::Null)]
                {
                    if rest.starts_with(word) {
                        self.at += word.len();
                        return Ok(token);
                    }
                }
                if machine.library.cjson.decode_invalid && is_invalid_number(rest) {
                    return Ok(self.number(rest));
                }
                return Ok(Token::Error("invalid token"));
            }
        };
        self.at += 1;
        Ok(simple)
    }

    fn number(&mut self, rest: &[u8]) -> Token {
        match parse_prefix(rest) {
            Some((number, len)) => {
                self.at += len;
                Token::Number(number)
            }
            None => Token::Error("invalid number"),
        }
    }

    fn string(&mut self, machine: &mut Machine) -> Result<Token, Raise> {
        let text = machine.heap.bytes(self.text);
        let mut at = self.at + 1;
        let mut content = Vec::new();
        loop {
            let rest = &text[at..];
            let plain = rest.iter().position(|b| matches!(b, b'"' | b'\\')).unwrap_or(rest.len());
            content.try_reserve(plain + 4).map_err(|_| Raise::OutOfMemory)?;
            content.extend_from_slice(&rest[..plain]);
            at += plain;
            let error = match text[at..] {
                [] => "unexpected end of string",
                [b'"', ..] => {
                    self.at = at + 1;
                    return Ok(Token::String(machine.heap.string_from(content)?));
                }
                [_, b'u', ..] => match unicode(&text[at..]) {
                    Some((code, len)) => {
                        let mut bytes = [0; 4];
                        content.extend_from_slice(code.encode_utf8(&mut bytes).as_bytes());
                        at += len;
                        continue;
                    }
                    None => "invalid unicode escape code",
                },
                [_, letter, ..] => match unescape(letter) {
                    Some(byte) => {
                        content.push(byte);
                        at += 2;
                        continue;
                    }
                    None => "invalid escape code",
                },
                [_] => "invalid escape code",
            };
            self.token_at = at;
            self.at = at;
            return Ok(Token::Error(error));
        }
    }
}

fn unescape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' | b'/' => letter,
        b'b' => 8,
        b't' => 9,
        b'n' => 10,
        b'f' => 12,
        b'r' => 13,
        _ => return None,
    })
}

fn unit(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |sum, b| Some(sum * 16 + (*b as char).to_digit(16)?))
}

/// A character written as `\uXXXX`, or as two such surrogates, and the length of that.
fn unicode(text: &[u8]) -> Option<(char, usize)> {
    let first = unit(text)?;
    if !(0xd800..0xe000).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    let second = unit(text.get(6..)?)?;
    if first >= 0xdc00 || !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Some((char::from_u32(code)?, 12))
}

/// Whether a number is none in JSON, but for C's `strtod`.
fn is_invalid_number(text: &[u8]) -> bool {
    let magnitude = match text {
        [b'+', ..] => return true,
        [b'-', rest @ ..] => rest,
        rest => rest,
    };
    match magnitude {
        [b'0', b'x' | b'X' | b'0'..=b'9', ..] => true,
        [first, ..] if *first <= b'9' => false,
        _ => magnitude
            .get(..3)
            .is_some_and(|word| word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")),
    }
}
