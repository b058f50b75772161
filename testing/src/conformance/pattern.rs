//! What a reply should look like: the notation of the vectors, and the comparison.

use super::vectors::{Cursor, Template};
use crate::client::{Reply, quoted};
use std::collections::HashMap;

/// What earlier replies of a case were bound to.
pub type Bindings = HashMap<String, Vec<u8>>;

/// An expected reply.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// `*`: anything.
    Any,
    /// `?`: not recorded yet.
    Unrecorded,
    /// A reply with exactly this text on the wire.
    Exactly(Reply),
    /// `:lo..hi`, `:*`
    IntegerIn(i64, i64),
    /// `like "glob"`: a text of any kind.
    Like(Template),
    /// `-like "glob"`
    ErrorLike(Template),
    /// `lines ["glob" …]`: a text in which some line matches each of these.
    Lines(Vec<Template>),
    /// `[… ...]`
    List(Vec<Pattern>, Rest),
    /// `any-order […]`
    AnyOrder(Vec<Pattern>, Rest),
    /// `~[…]`: in any order; an array in RESP2.
    Set(Vec<Pattern>, Rest),
    /// `>[…]`: a push; an array in RESP2.
    Push(Vec<Pattern>, Rest),
    /// `{k v …}`: an array in RESP2.
    Map(Vec<(Pattern, Pattern)>, Rest),
    /// `pairs [a 1 b 2]`: an array of pairs; a flat one in RESP2, or a map in RESP3.
    Pairs(Vec<Pattern>),
    /// `one-of […]`
    OneOf(Vec<Pattern>),
    /// `<name>`: binds the reply's text, or compares it with what is bound.
    Bind(String),
}

/// Whether more elements than those listed may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// These and no others.
    Nothing,
    /// `...` stood at the end.
    Anything,
}

impl Pattern {
    /// Reads one pattern.
    pub fn parse(cursor: &mut Cursor<'_>, top_level: bool) -> Result<Pattern, String> {
        cursor.skip_space();
        let rest = cursor.rest();
        if let Some(kind @ ('+' | '-')) = rest.chars().next() {
            return Pattern::parse_status(cursor, kind, top_level);
        }
        for (open, close) in [("[", ']'), ("~[", ']'), (">[", ']'), ("{", '}')] {
            if cursor.eat(open) {
                let (items, more) = Pattern::parse_items(cursor, close)?;
                return Ok(match open {
                    "[" => Pattern::List(items, more),
                    "~[" => Pattern::Set(items, more),
                    ">[" => Pattern::Push(items, more),
                    _ => {
                        if items.len() % 2 != 0 {
                            return Err("a map with a key that has no value".into());
                        }
                        let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
                        Pattern::Map(pairs.collect(), more)
                    }
                });
            }
        }
        match rest.as_bytes().first() {
            None => return Err("a pattern is missing".into()),
            Some(b'"') => return Ok(Pattern::Exactly(Reply::Bulk(cursor.quoted()?))),
            Some(b'=') => {
                cursor.eat("=");
                let text = cursor.quoted()?;
                return match text.split_at_checked(4) {
                    Some(([a, b, c, b':'], text)) => Ok(Pattern::Exactly(Reply::Verbatim([*a, *b, *c], text.into()))),
                    _ => Err("a verbatim string needs its format, as in =\"txt:…\"".into()),
                };
            }
            Some(_) => {}
        }
        Pattern::parse_word(cursor)
    }

    fn parse_status(cursor: &mut Cursor<'_>, kind: char, top_level: bool) -> Result<Pattern, String> {
        cursor.eat(&kind.to_string());
        if kind == '-' && cursor.eat("like ") {
            return Ok(Pattern::ErrorLike(cursor.quoted_template()?));
        }
        let text = if cursor.rest().starts_with('"') {
            cursor.quoted()?
        } else if top_level {
            cursor.line().into()
        } else {
            cursor.word().into()
        };
        Ok(Pattern::Exactly(if kind == '+' { Reply::Simple(text) } else { Reply::Error(text) }))
    }

    fn parse_items(cursor: &mut Cursor<'_>, close: char) -> Result<(Vec<Pattern>, Rest), String> {
        let mut items = Vec::new();
        let mut more = Rest::Nothing;
        loop {
            cursor.skip_space();
            if cursor.eat(&close.to_string()) {
                return Ok((items, more));
            }
            if more == Rest::Anything {
                return Err("'...' stands at the end only".into());
            }
            if cursor.eat("...") {
                more = Rest::Anything;
            } else {
                items.push(Pattern::parse(cursor, false)?);
            }
        }
    }

    fn parse_word(cursor: &mut Cursor<'_>) -> Result<Pattern, String> {
        let word = cursor.word();
        let in_brackets = |cursor: &mut Cursor<'_>| {
            cursor.skip_space();
            if cursor.eat("[") { Pattern::parse_items(cursor, ']') } else { Err(format!("'{word}' needs […]")) }
        };
        match word {
            "*" => return Ok(Pattern::Any),
            "?" => return Ok(Pattern::Unrecorded),
            "nil" => return Ok(Pattern::Exactly(Reply::Null)),
            "nil-array" => return Ok(Pattern::Exactly(Reply::NullArray)),
            "#t" | "#f" => return Ok(Pattern::Exactly(Reply::Boolean(word == "#t"))),
            "like" => return Ok(Pattern::Like(cursor.quoted_template()?)),
            "any-order" => return in_brackets(cursor).map(|(items, more)| Pattern::AnyOrder(items, more)),
            "pairs" => return in_brackets(cursor).map(|(items, _)| Pattern::Pairs(items)),
            "one-of" => return in_brackets(cursor).map(|(items, _)| Pattern::OneOf(items)),
            "lines" => {
                cursor.skip_space();
                if !cursor.eat("[") {
                    return Err("'lines' needs […]".into());
                }
                let mut globs = Vec::new();
                while !cursor.eat("]") {
                    globs.push(cursor.quoted_template()?);
                    cursor.skip_space();
                }
                return Ok(Pattern::Lines(globs));
            }
            _ => {}
        }
        let integer = |text: &str| text.parse::<i64>().map_err(|_| format!("'{word}' is not a number"));
        if let Some(name) = word.strip_prefix('<').and_then(|w| w.strip_suffix('>')) {
            return Ok(Pattern::Bind(name.into()));
        }
        match (word.split_at_checked(1), word.split_once("..")) {
            (Some((":", "*")), _) => Ok(Pattern::IntegerIn(i64::MIN, i64::MAX)),
            (Some((":", _)), Some((low, high))) => Ok(Pattern::IntegerIn(integer(&low[1..])?, integer(high)?)),
            (Some((":", number)), None) => Ok(Pattern::Exactly(Reply::Integer(integer(number)?))),
            (Some((",", number)), _) => Ok(Pattern::Exactly(Reply::Double(number.into()))),
            (Some(("(", number)), _) => Ok(Pattern::Exactly(Reply::BigNumber(number.into()))),
            _ => Err(format!("'{word}' is not a pattern")),
        }
    }

    /// Whether matching this may bind a name that later steps use.
    pub fn binds(&self) -> bool {
        match self {
            Pattern::Bind(_) => true,
            Pattern::List(items, _)
            | Pattern::AnyOrder(items, _)
            | Pattern::Set(items, _)
            | Pattern::Push(items, _)
            | Pattern::Pairs(items)
            | Pattern::OneOf(items) => items.iter().any(Pattern::binds),
            Pattern::Map(pairs, _) => pairs.iter().any(|(k, v)| k.binds() || v.binds()),
            _ => false,
        }
    }

    /// Whether it depends on what an earlier reply was bound to.
    pub fn uses_names(&self) -> bool {
        match self {
            Pattern::Like(template) | Pattern::ErrorLike(template) => template.uses_names(),
            Pattern::Lines(globs) => globs.iter().any(Template::uses_names),
            _ => self.binds(),
        }
    }

    /// Whether `reply` is what this pattern describes, in the protocol version that the connection speaks.
    pub fn matches(&self, reply: &Reply, bindings: &mut Bindings) -> bool {
        match self {
            Pattern::Any => true,
            Pattern::Unrecorded => false,
            Pattern::Exactly(expected) => same(expected, reply),
            Pattern::IntegerIn(low, high) => reply.integer().is_some_and(|n| (*low..=*high).contains(&n)),
            Pattern::Like(template) => {
                !matches!(reply, Reply::Error(_))
                    && reply.text().is_some_and(|text| glob(&template.expand(bindings), text))
            }
            Pattern::ErrorLike(template) => {
                matches!(reply, Reply::Error(text) if glob(&template.expand(bindings), text))
            }
            Pattern::Lines(globs) => reply.text().is_some_and(|text| {
                let lines: Vec<&[u8]> =
                    text.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).collect();
                globs.iter().all(|g| lines.iter().any(|line| glob(&g.expand(bindings), line)))
            }),
            Pattern::List(items, more) => {
                matches!(reply, Reply::Array(_)) && in_order(items, *more, reply.items().unwrap_or(&[]), bindings)
            }
            Pattern::Push(items, more) => {
                reply.items().is_some_and(|replies| in_order(items, *more, replies, bindings))
                    && !matches!(reply, Reply::Set(_))
            }
            Pattern::AnyOrder(items, more) => {
                matches!(reply, Reply::Array(_)) && any_order(items, *more, reply.items().unwrap_or(&[]), bindings)
            }
            Pattern::Set(items, more) => {
                reply.items().is_some_and(|replies| any_order(items, *more, replies, bindings))
                    && !matches!(reply, Reply::Push(_))
            }
            Pattern::Map(pairs, more) => matches_map(pairs, *more, reply, bindings),
            Pattern::Pairs(items) => {
                let flat: Vec<Reply> = match reply {
                    Reply::Map(pairs) => pairs.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect(),
                    Reply::Array(pairs)
                        if pairs.iter().all(|pair| pair.items().is_some_and(|pair| pair.len() == 2)) =>
                    {
                        pairs.iter().flat_map(|pair| pair.items().unwrap_or(&[]).to_vec()).collect()
                    }
                    Reply::Array(flat) => flat.clone(),
                    _ => return false,
                };
                in_order(items, Rest::Nothing, &flat, bindings)
            }
            Pattern::OneOf(items) => items.iter().any(|item| item.matches(reply, bindings)),
            Pattern::Bind(name) => {
                let text = match reply {
                    Reply::Integer(n) => n.to_string().into_bytes(),
                    other => match other.text() {
                        Some(text) if !matches!(other, Reply::Error(_)) => text.to_vec(),
                        _ => return false,
                    },
                };
                bindings.entry(name.clone()).or_insert_with(|| text.clone()) == &text
            }
        }
    }
}

/// Whether two replies are the same, one of them perhaps as RESP2 has to put it.
fn same(expected: &Reply, reply: &Reply) -> bool {
    match (expected, reply) {
        (Reply::Double(a) | Reply::BigNumber(a) | Reply::Verbatim(_, a), Reply::Bulk(b)) => a == b,
        (Reply::Boolean(a), Reply::Integer(b)) => i64::from(*a) == *b,
        // RESP3 has but one null.
        (Reply::NullArray, Reply::Null) => true,
        _ => expected == reply,
    }
}

fn in_order(items: &[Pattern], more: Rest, replies: &[Reply], bindings: &mut Bindings) -> bool {
    (items.len() == replies.len() || (more == Rest::Anything && items.len() < replies.len()))
        && items.iter().zip(replies).all(|(item, reply)| item.matches(reply, bindings))
}

/// Each pattern takes the first reply that it matches: enough for vectors, whose patterns do not overlap.
fn any_order(items: &[Pattern], more: Rest, replies: &[Reply], bindings: &mut Bindings) -> bool {
    let mut left: Vec<&Reply> = replies.iter().collect();
    items.iter().all(|item| {
        let at = left.iter().position(|reply| item.matches(reply, bindings));
        at.map(|at| left.swap_remove(at)).is_some()
    }) && (left.is_empty() || more == Rest::Anything)
}

fn matches_map(pairs: &[(Pattern, Pattern)], more: Rest, reply: &Reply, bindings: &mut Bindings) -> bool {
    let found: Vec<(&Reply, &Reply)> = match reply {
        Reply::Map(found) => found.iter().map(|(k, v)| (k, v)).collect(),
        Reply::Array(flat) if flat.len() % 2 == 0 => flat.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        _ => return false,
    };
    match more {
        Rest::Nothing => {
            pairs.len() == found.len()
                && pairs.iter().zip(&found).all(|((k, v), (rk, rv))| k.matches(rk, bindings) && v.matches(rv, bindings))
        }
        Rest::Anything => {
            pairs.iter().all(|(k, v)| found.iter().any(|(rk, rv)| k.matches(rk, bindings) && v.matches(rv, bindings)))
        }
    }
}

/// Matches `*` (any bytes), `?` (one byte) and `\` (the next byte itself).
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry = None;
    loop {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some(b'?') if t < text.len() => {
                p += 1;
                t += 1;
                continue;
            }
            Some(b'\\') if text.get(t).is_some_and(|b| pattern.get(p + 1) == Some(b)) => {
                p += 2;
                t += 1;
                continue;
            }
            Some(b) if text.get(t) == Some(b) && !matches!(b, b'?' | b'\\') => {
                p += 1;
                t += 1;
                continue;
            }
            None if t == text.len() => return true,
            _ => {}
        }
        // A mismatch: the last star takes one byte more.
        match retry {
            Some((after_star, from)) if from < text.len() => {
                p = after_star;
                t = from + 1;
                retry = Some((after_star, t));
            }
            _ => return false,
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |items: &[Pattern], more: &Rest| {
            let mut words: Vec<String> = items.iter().map(Pattern::to_string).collect();
            words.extend((*more == Rest::Anything).then(|| "...".to_string()));
            words.join(" ")
        };
        let globs = |globs: &[Template]| globs.iter().map(Template::to_string).collect::<Vec<_>>().join(" ");
        match self {
            Pattern::Any => write!(f, "*"),
            Pattern::Unrecorded => write!(f, "?"),
            Pattern::Exactly(reply) => write!(f, "{reply}"),
            Pattern::IntegerIn(i64::MIN, i64::MAX) => write!(f, ":*"),
            Pattern::IntegerIn(low, high) => write!(f, ":{low}..{high}"),
            Pattern::Like(template) => write!(f, "like {template}"),
            Pattern::ErrorLike(template) => write!(f, "-like {template}"),
            Pattern::Lines(lines) => write!(f, "lines [{}]", globs(lines)),
            Pattern::List(items, more) => write!(f, "[{}]", list(items, more)),
            Pattern::AnyOrder(items, more) => write!(f, "any-order [{}]", list(items, more)),
            Pattern::Set(items, more) => write!(f, "~[{}]", list(items, more)),
            Pattern::Push(items, more) => write!(f, ">[{}]", list(items, more)),
            Pattern::Map(pairs, more) => {
                let items: Vec<Pattern> = pairs.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect();
                write!(f, "{{{}}}", list(&items, more))
            }
            Pattern::Pairs(items) => write!(f, "pairs [{}]", list(items, &Rest::Nothing)),
            Pattern::OneOf(items) => write!(f, "one-of [{}]", list(items, &Rest::Nothing)),
            Pattern::Bind(name) => write!(f, "<{name}>"),
        }
    }
}

/// Shows a text that a test compares, cut where it is long.
pub fn shown(reply: &Reply) -> String {
    const LONGEST_CHARS: usize = 2000;
    let text = reply.to_string();
    match text.char_indices().nth(LONGEST_CHARS) {
        Some((at, _)) => format!("{}… ({} characters; {})", &text[..at], text.len(), quoted(b"cut")),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        let mut cursor = Cursor::new(text);
        let pattern = Pattern::parse(&mut cursor, true).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(cursor.at_end(), "{text}");
        pattern
    }

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    #[test]
    fn globs() {
        for (pattern, text) in
            [("", ""), ("*", "abc"), ("a*c", "abbbc"), ("a*b*c", "aXbYbZc"), ("?b", "ab"), ("a\\*", "a*"), ("**", "")]
        {
            assert!(glob(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a", ""), ("a*c", "abd"), ("?", ""), ("a\\*", "ab"), ("*a", "ab")] {
            assert!(!glob(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn types_are_told_apart() {
        let mut b = Bindings::new();
        assert!(pattern("+OK").matches(&Reply::Simple("OK".into()), &mut b));
        assert!(!pattern("+OK").matches(&bulk("OK"), &mut b));
        assert!(!pattern("nil").matches(&Reply::NullArray, &mut b));
        assert!(!pattern("\"1\"").matches(&Reply::Integer(1), &mut b));
        assert!(pattern(":1..3").matches(&Reply::Integer(3), &mut b));
        assert!(!pattern(":1..3").matches(&Reply::Integer(4), &mut b));
        assert!(!pattern("like \"*\"").matches(&Reply::Error("ERR".into()), &mut b));
        assert!(!pattern("?").matches(&bulk(""), &mut b));
    }

    #[test]
    fn collections() {
        let mut b = Bindings::new();
        let reply = Reply::Array(vec![bulk("a"), Reply::Integer(1), bulk("b")]);
        assert!(pattern("[\"a\" :1 \"b\"]").matches(&reply, &mut b));
        assert!(pattern("[\"a\" ...]").matches(&reply, &mut b));
        assert!(!pattern("[\"a\" :1]").matches(&reply, &mut b));
        assert!(pattern("any-order [\"b\" \"a\" :1]").matches(&reply, &mut b));
        assert!(!pattern("any-order [\"b\" \"b\" :1]").matches(&reply, &mut b));
        let flat = Reply::Array(vec![bulk("k"), Reply::Integer(1)]);
        let map = Reply::Map(vec![(bulk("k"), Reply::Integer(1))]);
        for reply in [&flat, &map] {
            assert!(pattern("{\"k\" :1}").matches(reply, &mut b));
            assert!(!pattern("{\"k\" :2}").matches(reply, &mut b));
            assert!(!pattern("{\"k\" :1 \"l\" :2 ...}").matches(reply, &mut b));
        }
        assert!(pattern("lines [\"x:*\" \"y:1\"]").matches(&bulk("x:5\r\ny:1\r\n"), &mut b));
        assert!(!pattern("lines [\"x:*\" \"y:2\"]").matches(&bulk("x:5\r\ny:1\r\n"), &mut b));
    }

    #[test]
    fn names_are_bound_once() {
        let mut b = Bindings::new();
        assert!(pattern("<id>").matches(&Reply::Integer(7), &mut b));
        assert!(!pattern("<id>").matches(&Reply::Integer(8), &mut b));
        assert!(pattern("like \"id=<id> *\"").matches(&bulk("id=7 x"), &mut b));
    }

    #[test]
    fn a_pattern_reads_back_what_a_reply_shows() {
        let reply = Reply::Array(vec![
            Reply::Simple("a b".into()),
            Reply::Map(vec![(bulk("\"\r\n\u{e9}"), Reply::Null)]),
            Reply::Set(vec![Reply::Double("1.5".into()), Reply::Boolean(true)]),
            Reply::Verbatim(*b"txt", b"x".to_vec()),
        ]);
        assert!(pattern(&reply.to_string()).matches(&reply, &mut Bindings::new()));
    }
}
