//! What arguments commands take, for `COMMAND DOCS`: `documentation.txt` has them in a notation of their own.
//!
//! | notation | argument |
//! | --- | --- |
//! | `name` | a string of this name; with `:i` an integer, `:d` a double, `:t` a time, `:p` a pattern, `:k` a key |
//! | `name:k2`, `name:p1` | one in the third or second of the key specifications of the command; `name:k-` in none |
//! | `WITHSCORES`, `name!TOKEN` | the word itself |
//! | `LIMIT=…` | an argument behind this word |
//! | `name(a b)`, `name(a\|b)` | all of these in this order, one of these |
//! | `[…]`, `…+`, `…++` | it may be left out; there may be several; and each of them has the word before it |

use alloc::{string::String, vec::Vec};
use kayvee_resp::Writer;

/// One argument.
struct Argument<'a> {
    name: &'a str,
    kind: &'static str,
    key_specification: Option<i64>,
    token: Option<&'a str>,
    /// The notation of what it consists of.
    parts: &'a str,
    flags: [(&'static str, bool); 3],
}

impl<'a> Argument<'a> {
    fn parse(text: &'a str) -> Argument<'a> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let (text, is_optional) = (inner.unwrap_or(text), inner.is_some());
        let pluses = text.len() - text.trim_end_matches('+').len();
        let text = &text[..text.len() - pluses];
        let flags = [("optional", is_optional), ("multiple", pluses > 0), ("multiple_token", pluses > 1)];
        let open = text.find('(').unwrap_or(text.len());
        let mut argument =
            Argument { name: text, kind: "string", key_specification: None, token: None, parts: "", flags };
        if let Some((name, token)) = text[..open].split_once('!') {
            return Argument { name, kind: "pure-token", token: Some(token), ..argument };
        }
        if let Some(at) = text[..open].find('=') {
            (argument.token, argument.name) = (Some(&text[..at]), &text[at + 1..]);
        }
        if let Some((name, parts)) = argument.name.split_once('(') {
            (argument.name, argument.parts) = (name, parts.strip_suffix(')').unwrap_or(parts));
            argument.kind = if split(argument.parts, '|').count() > 1 { "oneof" } else { "block" };
            return argument;
        }
        if argument.token.is_none() && !text.contains(|letter: char| letter.is_ascii_lowercase()) {
            return Argument { kind: "pure-token", token: Some(text), ..argument };
        }
        let (name, suffix) = argument.name.rsplit_once(':').unwrap_or((argument.name, ""));
        (argument.kind, argument.key_specification) = match suffix {
            "i" => ("integer", None),
            "d" => ("double", None),
            "t" => ("unix-time", None),
            "p" => ("pattern", None),
            "p1" => ("pattern", Some(1)),
            "k" => ("key", Some(0)),
            "k-" => ("key", None),
            "k1" => ("key", Some(1)),
            "k2" => ("key", Some(2)),
            _ => return argument,
        };
        argument.name = name;
        argument
    }

    fn write(&self, reply: &mut Writer<'_>) {
        let set_flags: Vec<&str> = self.flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        let is_shown = self.parts.is_empty();
        let optional = [self.key_specification.is_some(), self.token.is_some(), !set_flags.is_empty()];
        reply.map(3 + optional.iter().filter(|is_there| **is_there).count());
        // A word is named by its letters.
        let name = if self.kind == "pure-token" { self.name.to_ascii_lowercase() } else { String::from(self.name) };
        let mut field = |field: &str, text: &str| {
            reply.bulk(field.as_bytes());
            reply.bulk(text.as_bytes());
        };
        field("name", &name);
        field("type", self.kind);
        if is_shown {
            field("display_text", &name);
        }
        if let Some(specification) = self.key_specification {
            reply.bulk(b"key_spec_index");
            reply.integer(specification);
        }
        if let Some(token) = self.token {
            reply.bulk(b"token");
            reply.bulk(token.as_bytes());
        }
        if !set_flags.is_empty() {
            reply.bulk(b"flags");
            reply.set(set_flags.len());
            set_flags.iter().for_each(|flag| reply.simple(flag));
        }
        if !is_shown {
            reply.bulk(b"arguments");
            let separator = if self.kind == "oneof" { '|' } else { ' ' };
            write_split(reply, self.parts, separator);
        }
    }
}

/// Writes the arguments of a command's notation.
pub fn write(reply: &mut Writer<'_>, notation: &str) {
    write_split(reply, notation, ' ');
}

fn write_split(reply: &mut Writer<'_>, notation: &str, separator: char) {
    reply.array(split(notation, separator).count());
    split(notation, separator).for_each(|text| Argument::parse(text).write(reply));
}

/// The texts between separators that stand in no brackets.
fn split(notation: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    notation.split(move |letter| {
        depth += i32::from(matches!(letter, '(' | '[')) - i32::from(matches!(letter, ')' | ']'));
        letter == separator && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn shown(notation: &str) -> String {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, kayvee_resp::Protocol::Resp3), notation);
        let text = String::from_utf8(out).unwrap();
        let words = text.split("\r\n").filter(|word| !word.starts_with('$') && !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn arguments_are_shown_as_they_nest() {
        let key = "%4 name key type key display_text key key_spec_index :1";
        assert_eq!(shown("key:k1"), format!("*1 {key}"));
        let flags = "flags ~2 +optional +multiple";
        assert_eq!(
            shown("[PATH=ip:port+]"),
            format!("*1 %5 name ip:port type string display_text ip:port token PATH {flags}")
        );
        let word =
            |name: &str, token: &str| format!("%4 name {name} type pure-token display_text {name} token {token}");
        let (nx, equal) = (word("nx", "NX"), word("equal", "="));
        assert_eq!(shown("how(NX|equal!=)"), format!("*1 %3 name how type oneof arguments *2 {nx} {equal}"));
        let count = "%3 name count type integer display_text count";
        let block = format!("%5 name of type block token OF flags ~1 +optional arguments *2 {count} {nx}");
        assert_eq!(shown("[OF=of(count:i NX)] key:k1"), format!("*2 {block} {key}"));
    }
}
