//! Source text to tokens.

use crate::{error::Raise, heap::Heap, number::parse_prefix, value::StringRef};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token {
    /// A keyword, operator or separator: its text.
    Word(&'static str),
    Name(StringRef),
    String(StringRef),
    Number(f64),
    /// A byte that no token begins with.
    Other(u8),
    End,
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "until", "while",
];
/// The longer ones first.
const OPERATORS: [&str; 27] = [
    "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(", ")", "{", "}", "[",
    "]", ";", ":", ",", ".", "~",
];

pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// Where the token that was read last begins.
    start: usize,
    pub line: u32,
    /// The line of the token before the current one.
    pub last_line: u32,
    /// The current token.
    pub token: Token,
    ahead: Option<(Token, u32)>,
    /// The names so far that are too long to be interned.
    long_names: BTreeMap<&'a [u8], StringRef>,
    pub source: &'a [u8],
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a [u8], source: &'a [u8]) -> Lexer<'a> {
        let (token, ahead, long_names) = (Token::End, None, BTreeMap::new());
        Lexer { text, at: 0, start: 0, line: 1, last_line: 1, token, ahead, long_names, source }
    }

    /// Goes on to the next token.
    pub fn advance(&mut self, heap: &mut Heap) -> Result<(), Raise> {
        self.last_line = self.line;
        match self.ahead.take() {
            Some((token, line)) => (self.token, self.line) = (token, line),
            None => self.token = self.scan(heap)?,
        }
        Ok(())
    }

    /// The token after the current one.
    pub fn peek(&mut self, heap: &mut Heap) -> Result<Token, Raise> {
        if self.ahead.is_none() {
            let line = self.line;
            let token = self.scan(heap)?;
            self.ahead = Some((token, core::mem::replace(&mut self.line, line)));
        }
        Ok(self.ahead.map_or(Token::End, |(token, _)| token))
    }

    pub fn is(&self, word: &str) -> bool {
        matches!(self.token, Token::Word(found) if found == word)
    }

    fn current(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// An error with its place in the source and, if there is one, the token that it is near.
    fn error_near(&self, message: &str, near: Option<&[u8]>) -> Raise {
        let mut text = shown_source(self.source);
        text.extend_from_slice(format!(":{}: {message}", self.line).as_bytes());
        if let Some(near) = near {
            text.extend_from_slice(b" near '");
            text.extend_from_slice(near);
            text.push(b'\'');
        }
        Raise::Message(text)
    }

    /// A syntax error at the current token.
    pub fn error(&self, heap: &Heap, message: &str) -> Raise {
        let near: &[u8] = match &self.token {
            Token::End => b"<eof>",
            Token::Other(_) if self.ahead.is_none() && self.text[self.start].is_ascii_control() => {
                let shown = format!("char({})", self.text[self.start]);
                return self.error_near(message, Some(shown.as_bytes()));
            }
            Token::Other(byte) => core::slice::from_ref(byte),
            Token::Word(word) => word.as_bytes(),
            Token::Name(name) => heap.bytes(*name),
            // As it is written, with its quotes.
            Token::String(_) | Token::Number(_) if self.ahead.is_none() => &self.text[self.start..self.at],
            Token::String(string) => heap.bytes(*string),
            Token::Number(_) => b"?",
        };
        self.error_near(message, Some(near))
    }

    /// An error that names no token.
    pub fn error_without_token(&self, message: &str) -> Raise {
        self.error_near(message, None)
    }

    fn scan(&mut self, heap: &mut Heap) -> Result<Token, Raise> {
        loop {
            self.start = self.at;
            let Some(byte) = self.current() else { return Ok(Token::End) };
            match byte {
                b'\n' | b'\r' => self.skip_line_break(),
                b' ' | b'\t' | 0x0b | 0x0c => self.at += 1,
                b'-' if self.text.get(self.at + 1) == Some(&b'-') => self.skip_comment(heap)?,
                b'[' if self.long_bracket_level().is_some() => return self.long_string(heap, "string"),
                b'[' if self.text.get(self.at + 1) == Some(&b'=') => {
                    let end = self.text[self.at + 1..].iter().take_while(|b| **b == b'=').count();
                    let near = &self.text[self.at..self.at + 1 + end];
                    return Err(self.error_near("invalid long string delimiter", Some(near)));
                }
                b'"' | b'\'' => return self.quoted(heap, byte),
                b'0'..=b'9' => return self.number(),
                b'.' if self.text.get(self.at + 1).is_some_and(u8::is_ascii_digit) => return self.number(),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => return self.name(heap),
                _ => return self.operator(byte),
            }
        }
    }

    fn skip_line_break(&mut self) {
        let first = self.text[self.at];
        self.at += 1;
        if matches!(self.current(), Some(second @ (b'\n' | b'\r')) if second != first) {
            self.at += 1;
        }
        self.line = self.line.saturating_add(1);
    }

    fn skip_comment(&mut self, heap: &mut Heap) -> Result<(), Raise> {
        self.at += 2;
        if self.long_bracket_level().is_some() {
            self.start = self.at;
            return self.long_string(heap, "comment").map(|_| ());
        }
        while !matches!(self.current(), None | Some(b'\n' | b'\r')) {
            self.at += 1;
        }
        Ok(())
    }

    /// The number of `=` in the opening long bracket here, if there is one.
    fn long_bracket_level(&self) -> Option<usize> {
        let rest = self.text.get(self.at..)?.strip_prefix(b"[")?;
        let level = rest.iter().take_while(|b| **b == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn long_string(&mut self, heap: &mut Heap, what: &str) -> Result<Token, Raise> {
        let level = self.long_bracket_level().unwrap_or(0);
        self.at += level + 2;
        if matches!(self.current(), Some(b'\n' | b'\r')) {
            self.skip_line_break();
        }
        let mut content = Vec::new();
        let is_comment = what == "comment";
        loop {
            match self.current() {
                None => return Err(self.error_near(&format!("unfinished long {what}"), Some(b"<eof>"))),
                Some(b']') => {
                    let rest = &self.text[self.at + 1..];
                    let equals = rest.iter().take_while(|b| **b == b'=').count();
                    if equals == level && rest.get(equals) == Some(&b']') {
                        self.at += level + 2;
                        break;
                    }
                    content.push(b']');
                    self.at += 1;
                }
                Some(b'[') if level == 0 && self.text.get(self.at + 1) == Some(&b'[') => {
                    return Err(self.error_near("nesting of [[...]] is deprecated", Some(b"[")));
                }
                Some(b'\n' | b'\r') => {
                    self.skip_line_break();
                    content.push(b'\n');
                }
                Some(byte) => {
                    content.push(byte);
                    self.at += 1;
                }
            }
            if is_comment {
                content.clear();
            }
        }
        if is_comment {
            return Ok(Token::End);
        }
        Ok(Token::String(heap.string_from(content)?))
    }

    fn quoted(&mut self, heap: &mut Heap, quote: u8) -> Result<Token, Raise> {
        self.at += 1;
        let mut content = Vec::new();
        loop {
            match self.current() {
                None => return Err(self.error_near("unfinished string", Some(b"<eof>"))),
                Some(b'\n' | b'\r') => {
                    return Err(self.error_near("unfinished string", Some(&self.text[self.start..self.at])));
                }
                Some(b'\\') => self.escape(&mut content)?,
                Some(byte) => {
                    self.at += 1;
                    if byte == quote {
                        return Ok(Token::String(heap.string_from(content)?));
                    }
                    content.push(byte);
                }
            }
        }
    }

    fn escape(&mut self, content: &mut Vec<u8>) -> Result<(), Raise> {
        self.at += 1;
        let Some(byte) = self.current() else { return Ok(()) };
        match byte {
            b'\n' | b'\r' => {
                self.skip_line_break();
                content.push(b'\n');
                return Ok(());
            }
            b'0'..=b'9' => {
                let mut code = 0_u32;
                let mut digits = 0;
                while let Some(digit @ b'0'..=b'9') = self.current()
                    && digits < 3
                {
                    code = code * 10 + u32::from(digit - b'0');
                    digits += 1;
                    self.at += 1;
                }
                let Ok(code) = u8::try_from(code) else {
                    return Err(self.error_near("escape sequence too large", Some(&self.text[self.start..self.at])));
                };
                content.push(code);
                return Ok(());
            }
            b'a' => content.push(7),
            b'b' => content.push(8),
            b'f' => content.push(12),
            b'n' => content.push(b'\n'),
            b'r' => content.push(b'\r'),
            b't' => content.push(b'\t'),
            b'v' => content.push(11),
            other => content.push(other),
        }
        self.at += 1;
        Ok(())
    }

    fn number(&mut self) -> Result<Token, Raise> {
        // All that could belong to a number, right or wrong.
        let mut end = self.at;
        while let Some(byte) = self.text.get(end) {
            let is_sign = matches!(byte, b'+' | b'-') && end > self.at && matches!(self.text[end - 1], b'e' | b'E');
            if !(byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_') || is_sign) {
                break;
            }
            end += 1;
        }
        let text = &self.text[self.at..end];
        self.at = end;
        match parse_prefix(text) {
            Some((number, len)) if len == text.len() => Ok(Token::Number(number)),
            _ => Err(self.error_near("malformed number", Some(text))),
        }
    }

    fn name(&mut self, heap: &mut Heap) -> Result<Token, Raise> {
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let name = &rest[..len];
        self.at += len;
        if let Some(keyword) = KEYWORDS.iter().find(|keyword| keyword.as_bytes() == name) {
            return Ok(Token::Word(keyword));
        }
        // The compiler tells names apart by reference, and long strings are not interned.
        if let Some(known) = self.long_names.get(name) {
            return Ok(Token::Name(*known));
        }
        let string = heap.string(name)?;
        if heap.interned(name).is_none() {
            self.long_names.insert(name, string);
        }
        Ok(Token::Name(string))
    }

    fn operator(&mut self, byte: u8) -> Result<Token, Raise> {
        let rest = &self.text[self.at..];
        match OPERATORS.iter().find(|operator| rest.starts_with(operator.as_bytes())) {
            Some(operator) => {
                self.at += operator.len();
                Ok(Token::Word(operator))
            }
            None => {
                self.at += 1;
                Ok(Token::Other(byte))
            }
        }
    }
}

/// Most bytes that errors show of a source.
const SHOWN_SOURCE_LIMIT: usize = 60;

/// What errors call a source: the rest after `=` or `@`, else the text itself, shortened.
pub fn shown_source(source: &[u8]) -> Vec<u8> {
    match source.split_first() {
        Some((b'=', name)) => name[..name.len().min(SHOWN_SOURCE_LIMIT - 1)].to_vec(),
        Some((b'@', name)) => {
            let room = SHOWN_SOURCE_LIMIT - "...".len() - 1 - "'...'".len() + 1;
            if name.len() > room {
                return [b"...", &name[name.len() - room..]].concat();
            }
            name.to_vec()
        }
        _ => {
            let line = source.split(|b| matches!(b, b'\n' | b'\r')).next().unwrap_or_default();
            let room = SHOWN_SOURCE_LIMIT - " [string \"...\"] ".len() - 1;
            let mut name = String::from("[string \"").into_bytes();
            if line.len() < source.len() || line.len() > room {
                name.extend_from_slice(&line[..line.len().min(room)]);
                name.extend_from_slice(b"...");
            } else {
                name.extend_from_slice(line);
            }
            name.extend_from_slice(b"\"]");
            name
        }
    }
}
