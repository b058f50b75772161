//! Reads `vectors/*.txt`; the format is explained in `docs/testing.md`.

use super::pattern::{Bindings, Pattern};
use crate::client::{encode, quoted};
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// One case: a script on connections of its own, on an empty data set.
#[derive(Clone, Debug)]
pub struct Case {
    /// File and line of its heading.
    pub place: String,
    /// What the heading says.
    pub name: String,
    /// Words in brackets behind the name.
    pub tags: Vec<String>,
    /// What it does.
    pub steps: Vec<Step>,
}

impl Case {
    /// The bytes of all its requests in a row, as examples for a fuzzer.
    pub fn requests(&self) -> Vec<u8> {
        let expand = |words: &[Template]| words.iter().map(|w| w.expand(&Bindings::new())).collect::<Vec<_>>();
        let bytes = self.steps.iter().flat_map(|step| match &step.request {
            Request::Command(words) => encode(&expand(words)),
            Request::Raw(words) => expand(words).concat(),
        });
        bytes.collect()
    }
}

/// Whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A connection of the case, by name.
    Connection(String),
    /// `finally`: the runner's own connection, when the case is over, however it went.
    Cleanup,
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Request {
    /// An array of bulk strings.
    Command(Vec<Template>),
    /// Bytes as they are.
    Raw(Vec<Template>),
}

/// What should come back.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// These replies, in this order.
    Replies(Vec<Pattern>),
    /// These replies, and then the end of the connection.
    Closes(Vec<Pattern>),
    /// Nothing: the next reply on this connection belongs to a later request.
    Silence,
}

/// One request and what should come back.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line number of the request, from 1.
    pub line: usize,
    /// Line numbers of what is expected, the last one excluded.
    pub expected_lines: std::ops::Range<usize>,
    /// Who sends.
    pub actor: Actor,
    /// What is sent.
    pub request: Request,
    /// Ask again for at most so long until the replies match.
    pub until: Option<Duration>,
    /// What should come back.
    pub outcome: Outcome,
}

/// Text with names to fill in.
#[derive(Clone, Debug)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug)]
enum Piece {
    Literal(Vec<u8>),
    Name(String),
    /// The wall clock in units of so many milliseconds, plus an offset in that unit.
    Now {
        unit_ms: i64,
        offset: i64,
    },
}

impl Template {
    fn parse(text: &[u8]) -> Result<Template, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.iter().position(|b| *b == b'<') {
            let Some(len) = rest[open..].iter().position(|b| *b == b'>') else { break };
            pieces.push(Piece::Literal(rest[..open].to_vec()));
            let name = String::from_utf8_lossy(&rest[open + 1..open + len]).into_owned();
            pieces.push(Piece::parse(&name)?);
            rest = &rest[open + len + 1..];
        }
        pieces.push(Piece::Literal(rest.to_vec()));
        Ok(Template(pieces))
    }

    /// Whether it needs a name that a reply binds.
    pub fn uses_names(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Name(_)))
    }

    /// The text with what is bound filled in; an unbound name stays as it is.
    pub fn expand(&self, bindings: &Bindings) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text),
                Piece::Name(name) => match bindings.get(name) {
                    Some(value) => out.extend_from_slice(value),
                    None => out.extend_from_slice(format!("<{name}>").as_bytes()),
                },
                Piece::Now { unit_ms, offset } => {
                    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
                    out.extend_from_slice((now_ms / unit_ms + offset).to_string().as_bytes());
                }
            }
        }
        out
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", quoted(&self.expand(&Bindings::new())))
    }
}

impl Piece {
    fn parse(name: &str) -> Result<Piece, String> {
        if let Some((text, count)) = name.rsplit_once('*') {
            let count = count.parse().map_err(|_| format!("<{name}>: not a count"))?;
            return Ok(Piece::Literal(text.as_bytes().repeat(count)));
        }
        for (unit, unit_ms) in [("now_ms", 1), ("now_s", 1000)] {
            if let Some(offset) = name.strip_prefix(unit) {
                let offset = if offset.is_empty() { Ok(0) } else { offset.parse() };
                return Ok(Piece::Now { unit_ms, offset: offset.map_err(|_| format!("<{name}>: not an offset"))? });
            }
        }
        Ok(Piece::Name(name.into()))
    }
}

/// A place in a text that is being read.
pub struct Cursor<'a> {
    text: &'a str,
}

impl<'a> Cursor<'a> {
    /// Starts at the beginning of `text`.
    pub fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a str {
        self.text
    }

    /// Whether only white space is left.
    pub fn at_end(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Skips white space.
    pub fn skip_space(&mut self) {
        self.text = self.text.trim_start();
    }

    /// Takes `word` if it comes next.
    pub fn eat(&mut self, word: &str) -> bool {
        let rest = self.text.strip_prefix(word);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    /// Takes what is left of the line.
    pub fn line(&mut self) -> &'a str {
        let (line, rest) = self.text.split_at(self.text.find('\n').unwrap_or(self.text.len()));
        self.text = rest;
        line.trim_end()
    }

    /// Takes everything up to white space or a bracket.
    pub fn word(&mut self) -> &'a str {
        let end = self.text.find(|c: char| c.is_whitespace() || "[]{}".contains(c)).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        word
    }

    /// Takes a word in double quotes, with `\n \r \t \\ \" \xHH`.
    pub fn quoted(&mut self) -> Result<Vec<u8>, String> {
        self.skip_space();
        if !self.eat("\"") {
            return Err(format!("expected a quoted text at '{}'", self.text));
        }
        let mut out = Vec::new();
        let mut chars = self.text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.text = &self.text[at + 1..];
                    return Ok(out);
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => out.push(b'\n'),
                    Some('r') => out.push(b'\r'),
                    Some('t') => out.push(b'\t'),
                    Some('x') => {
                        let digits: String = chars.by_ref().take(2).map(|(_, c)| c).collect();
                        out.push(u8::from_str_radix(&digits, 16).map_err(|_| format!("\\x{digits}"))?);
                    }
                    Some(c @ ('"' | '\\' | '*' | '?')) => {
                        // A glob keeps the backslash that makes a star an ordinary byte.
                        if matches!(c, '*' | '?') {
                            out.push(b'\\');
                        }
                        out.push(c as u8);
                    }
                    _ => return Err("a backslash before nothing that it escapes".into()),
                },
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Err("a quote that does not close".into())
    }

    /// Takes a quoted text in which `<name>` is filled in.
    pub fn quoted_template(&mut self) -> Result<Template, String> {
        Template::parse(&self.quoted()?)
    }

    /// Takes the words of a request. Only words without quotes have names to fill in.
    fn request_words(&mut self) -> Result<Vec<Template>, String> {
        let mut words = Vec::new();
        loop {
            self.skip_space();
            if self.text.is_empty() {
                return Ok(words);
            }
            if self.text.starts_with('"') {
                words.push(Template(vec![Piece::Literal(self.quoted()?)]));
            } else {
                let end = self.text.find(char::is_whitespace).unwrap_or(self.text.len());
                let (word, rest) = self.text.split_at(end);
                self.text = rest;
                words.push(Template::parse(word.as_bytes())?);
            }
        }
    }
}

/// How a request line begins: `> `, `2> `, `raw> `, `2 raw> `, `until 500> `, `inline> `, `finally> `.
struct Prompt<'a> {
    actor: Actor,
    form: &'a str,
    until: Option<Duration>,
    rest: &'a str,
}

impl<'a> Prompt<'a> {
    fn parse(line: &'a str) -> Option<Prompt<'a>> {
        let (head, rest) = line.split_once('>')?;
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        let mut prompt = Prompt { actor: Actor::Connection("1".into()), form: "", until: None, rest: rest.trim() };
        let mut words = head.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "raw" | "inline" => prompt.form = word,
                "finally" => prompt.actor = Actor::Cleanup,
                "until" => prompt.until = Some(Duration::from_millis(words.next()?.parse().ok()?)),
                _ if word.bytes().all(|b| b.is_ascii_digit()) => prompt.actor = Actor::Connection(word.into()),
                _ => return None,
            }
        }
        Some(prompt)
    }

    fn request(&self) -> Result<Request, String> {
        match self.form {
            "inline" => Ok(Request::Raw(vec![Template(vec![Piece::Literal(format!("{}\r\n", self.rest).into())])])),
            "raw" => Cursor::new(self.rest).request_words().map(Request::Raw),
            _ => Cursor::new(self.rest).request_words().map(Request::Command),
        }
    }
}

/// Reads a whole file.
pub fn parse(file: &str, text: &str) -> Result<Vec<Case>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut cases: Vec<Case> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].trim_end();
        let fail = |what: String| format!("{file}:{}: {what}", at + 1);
        if line.is_empty() || line == "#" || line.starts_with("# ") {
            at += 1;
        } else if let Some(heading) = line.strip_prefix("== ") {
            let (name, tags) = heading.split_once(" [").unwrap_or((heading, "]"));
            let tags = tags.strip_suffix(']').ok_or_else(|| fail("tags without a closing bracket".into()))?;
            cases.push(Case {
                place: format!("{file}:{}", at + 1),
                name: name.trim().into(),
                tags: tags.split_whitespace().map(String::from).collect(),
                steps: Vec::new(),
            });
            at += 1;
        } else {
            let prompt = Prompt::parse(line).ok_or_else(|| fail(format!("neither a request nor a heading: {line}")))?;
            let case = cases.last_mut().ok_or_else(|| fail("a request before the first heading".into()))?;
            let request = prompt.request().map_err(fail)?;
            let first = at + 1;
            let (outcome, end) =
                parse_outcome(&lines, first).map_err(|(line, e)| format!("{file}:{}: {e}", line + 1))?;
            case.steps.push(Step {
                line: at + 1,
                expected_lines: first..end,
                actor: prompt.actor,
                request,
                until: prompt.until,
                outcome,
            });
            at = end;
        }
    }
    Ok(cases)
}

/// Reads the lines behind a request. A pattern with an open bracket goes on in the next line.
fn parse_outcome(lines: &[&str], first: usize) -> Result<(Outcome, usize), (usize, String)> {
    let mut patterns = Vec::new();
    let mut at = first;
    while at < lines.len() {
        let line = lines[at].trim_end();
        if line.is_empty() || line == "#" || line.starts_with("# ") || line.starts_with("== ") {
            break;
        }
        if Prompt::parse(line).is_some() {
            break;
        }
        if line == "closed" {
            return Ok((Outcome::Closes(patterns), at + 1));
        }
        if line == "silence" {
            return Ok((Outcome::Silence, at + 1));
        }
        let mut text = line.to_string();
        let start = at;
        at += 1;
        while open_brackets(&text) > 0 && at < lines.len() {
            text.push('\n');
            text.push_str(lines[at]);
            at += 1;
        }
        let mut cursor = Cursor::new(&text);
        let pattern = Pattern::parse(&mut cursor, true).map_err(|e| (start, e))?;
        if !cursor.at_end() {
            return Err((start, format!("'{}' behind a whole pattern", cursor.rest())));
        }
        patterns.push(pattern);
    }
    if patterns.is_empty() {
        patterns.push(Pattern::Unrecorded);
    }
    Ok((Outcome::Replies(patterns), at))
}

/// How many brackets of a pattern are still open; a line of plain status or error text has none.
fn open_brackets(text: &str) -> usize {
    if text.starts_with(['+', '-']) {
        return 0;
    }
    let mut depth: usize = 0;
    let mut in_quotes = false;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_quotes => {
                chars.next();
            }
            '"' => in_quotes = !in_quotes,
            '[' | '{' if !in_quotes => depth += 1,
            ']' | '}' if !in_quotes => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read() {
        let text = "# comment\n== name of it [resp2 7.2]\n> SET k \"a b\" <x*3>\n+OK\n\n2 raw> \"*1\\r\\n\" PING\n[\n  :1\n]\n-ERR [x\nclosed\nuntil 500> GET k\nnil\nfinally> DEL k\n*\n";
        let cases = parse("f", text).unwrap();
        assert_eq!((cases[0].name.as_str(), cases[0].tags.len(), cases[0].steps.len()), ("name of it", 2, 4));
        let steps = &cases[0].steps;
        let Request::Command(words) = &steps[0].request else { panic!() };
        assert_eq!(words[3].expand(&Bindings::new()), b"xxx");
        assert!(matches!(&steps[1].outcome, Outcome::Closes(patterns) if patterns.len() == 2));
        assert_eq!(steps[1].expected_lines, 6..11);
        assert_eq!(steps[2].until, Some(Duration::from_millis(500)));
        assert_eq!(steps[3].actor, Actor::Cleanup);
    }

    #[test]
    fn mistakes_are_named() {
        for text in ["> PING\n+PONG", "== a [b\n", "== a\n> GET \"k\n", "== a\n> GET k\nfoo\n", "== a\n> G\n[:1] :2\n"]
        {
            assert!(parse("f", text).unwrap_err().starts_with("f:"), "{text}");
        }
    }
}
