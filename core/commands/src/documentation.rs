//! What commands are for, as `COMMAND DOCS` and `HELP` tell.
//!
//! `documentation.txt` has a paragraph for each command, in the order of their full names:
//!
//! ```text
//! rpoplpush 1.2.0 6.2.0 `LMOVE` with …       its name, since when it is there, and if it is deprecated, since when and for what
//! Moves an element from …                    what it does
//! O(1)                                       how its time grows
//! source:k destination:k1                    its arguments, if it has any, in the notation of `arguments.rs`
//! ```

use crate::Error;
use alloc::{string::String, vec::Vec};

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/documentation.packed"));

/// What is told of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<'a> {
    /// First version of Redis that has it.
    pub since: &'a str,
    /// Since which version another command should be used, and which.
    pub deprecated: Option<(&'a str, &'a str)>,
    /// What it does, in a sentence.
    pub summary: &'a str,
    /// How its time grows.
    pub complexity: &'a str,
    /// The notation of its arguments.
    pub arguments: Option<&'a str>,
}

/// What is told of all commands.
pub struct Documentation<'a> {
    paragraphs: Vec<&'a str>,
}

/// The text that [`Documentation::new`] takes: too much to be kept.
pub fn text() -> Result<String, Error> {
    let text = kayvee_pairs::unpack_text(PACKED).map_err(|_| Error::OUT_OF_MEMORY)?;
    Ok(String::from_utf8(text).unwrap_or_default())
}

impl<'a> Documentation<'a> {
    /// Finds the paragraphs of a text.
    pub fn new(text: &'a str) -> Result<Documentation<'a>, Error> {
        let each = || text.trim_end().split("\n\n");
        let mut paragraphs = Vec::new();
        paragraphs.try_reserve_exact(each().count()).map_err(|_| Error::OUT_OF_MEMORY)?;
        paragraphs.extend(each());
        Ok(Documentation { paragraphs })
    }

    /// What is told of a command, by its full name.
    pub fn of(&self, command: &str) -> Entry<'a> {
        let name_of = |paragraph: &&'a str| paragraph.split(' ').next().unwrap_or_default();
        let at = self.paragraphs.binary_search_by_key(&command, name_of);
        at.map(|at| Entry::parse(self.paragraphs[at])).unwrap_or_default()
    }
}

impl<'a> Entry<'a> {
    fn parse(paragraph: &'a str) -> Entry<'a> {
        let mut lines = paragraph.lines();
        let mut line = || lines.next();
        let mut words = line().unwrap_or_default().splitn(4, ' ').skip(1);
        Entry {
            since: words.next().unwrap_or_default(),
            deprecated: words.next().zip(words.next()),
            summary: line().unwrap_or_default(),
            complexity: line().unwrap_or_default(),
            arguments: line(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Command, all};
    use alloc::format;

    #[test]
    fn every_command_is_documented_and_nothing_else() {
        let text = text().unwrap();
        assert_eq!(text, include_str!("documentation.txt"));
        let documentation = Documentation::new(&text).unwrap();
        let mut names: Vec<String> = Vec::new();
        for command in all() {
            let full_name = |sub: &Command| format!("{}|{}", command.name, sub.name);
            names.push(command.name.into());
            names.extend(command.subcommands.iter().map(full_name));
        }
        names.sort();
        assert_eq!(documentation.paragraphs.len(), names.len());
        for (name, paragraph) in names.iter().zip(&documentation.paragraphs) {
            let entry = documentation.of(name);
            assert!(paragraph.starts_with(&format!("{name} ")), "{name}: {paragraph}");
            assert!(entry.since.split('.').count() == 3 && entry.summary.ends_with('.'), "{name}");
            assert!(!entry.complexity.is_empty() && paragraph.lines().count() <= 4, "{name}");
            let notation = entry.arguments.unwrap_or_default();
            assert_eq!(notation.matches('(').count(), notation.matches(')').count(), "{name}");
        }
        assert_eq!(documentation.of("nonsense"), Entry::default());
    }

    #[test]
    fn paragraphs_are_taken_apart() {
        let text = "old 1.0.0 6.2.0 `NEW` with AN option\nDoes it.\nO(1)\nkey:k\n\nplain 2.0.0\nIs there.\nO(N)\n";
        let documentation = Documentation::new(text).unwrap();
        let deprecated = Some(("6.2.0", "`NEW` with AN option"));
        let old =
            Entry { since: "1.0.0", deprecated, summary: "Does it.", complexity: "O(1)", arguments: Some("key:k") };
        assert_eq!(documentation.of("old"), old);
        let plain = Entry { since: "2.0.0", summary: "Is there.", complexity: "O(N)", ..Entry::default() };
        assert_eq!(documentation.of("plain"), plain);
    }
}
