//! The rules of a site: lines of words in `.kayvee-site`, as in a redis.conf.
//!
//! ```text
//! cache PATTERN "VALUE"     Cache-Control of paths like /assets/*
//! type PATTERN "VALUE"      Content-Type of paths like *.gem
//! index NAME...             names of indexes, in their order; index.html unless said otherwise
//! host FOLDER NAME...       hosts whose root is a folder at the top of the site
//! ```
//!
//! Of several patterns that match, the last counts. In a pattern `*` stands for anything, slashes included.

use anyhow::{Result, bail};
use kayvee_resp::split_words;

/// The rules in force.
#[derive(Debug)]
pub struct Rules {
    cache: Vec<(String, String)>,
    types: Vec<(String, String)>,
    indexes: Vec<String>,
    /// Folders that are roots, in the order of their numbers from 1 on, and their hosts.
    hosts: Vec<(String, Vec<String>)>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { cache: Vec::new(), types: Vec::new(), indexes: vec!["index.html".into()], hosts: Vec::new() }
    }
}

impl Rules {
    pub fn parse(text: &[u8]) -> Result<Rules> {
        let mut rules = Rules::default();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let number = number + 1;
            let words = split_words(line).ok().and_then(|words| {
                words.into_iter().map(|word| String::from_utf8(word).ok()).collect::<Option<Vec<_>>>()
            });
            let Some(words) = words else { bail!("line {number}: quotes that do not close, or no UTF-8") };
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["cache" | "type", _, value] if !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                    bail!("line {number}: the value may have visible characters of ASCII and blanks alone")
                }
                ["cache", pattern, value] => rules.cache.push((pattern.to_string(), value.to_string())),
                ["type", pattern, value] => rules.types.push((pattern.to_string(), value.to_string())),
                ["index", names @ ..] if !names.is_empty() => {
                    rules.indexes = names.iter().map(|name| name.to_string()).collect();
                }
                ["host", folder, names @ ..] if !names.is_empty() && !folder.contains('/') => {
                    if let Some(name) = names.iter().find(|name| name.contains([':', '/'])) {
                        bail!("line {number}: '{name}' is no name of a host; it stands without port and slashes")
                    }
                    // As requests' hosts are looked up: a dot at the end says that the name is whole.
                    let names: Vec<_> =
                        names.iter().map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()).collect();
                    if names.iter().any(String::is_empty) {
                        bail!("line {number}: a host has no name")
                    }
                    let known = rules
                        .hosts
                        .iter()
                        .find(|(other, others)| other == folder || names.iter().any(|name| others.contains(name)));
                    if let Some((other, _)) = known {
                        bail!(
                            "line {number}: folder '{other}' has this host or folder already; one rule has all its hosts"
                        )
                    }
                    rules.hosts.push((folder.to_string(), names));
                }
                _ => bail!(
                    "line {number}: a rule is one of: cache PATTERN VALUE, type PATTERN VALUE, index NAME..., host FOLDER \
                     NAME... (a value with blanks stands in quotes)"
                ),
            }
        }
        Ok(rules)
    }

    pub fn cache_control(&self, path: &[u8]) -> Option<&str> {
        last_match(&self.cache, path)
    }

    pub fn content_type(&self, path: &[u8]) -> Option<&str> {
        last_match(&self.types, path)
    }

    pub fn indexes(&self) -> &[String] {
        &self.indexes
    }

    /// The hosts that have a root of their own.
    pub fn hosts(&self) -> impl Iterator<Item = (u16, &str)> {
        let roots = self.hosts.iter().enumerate();
        roots.flat_map(|(index, (_, names))| names.iter().map(move |name| (index as u16 + 1, name.as_str())))
    }

    /// Says which rule names a folder that is not at the top of the directory, if one does.
    pub fn check_folders(&self, folders: &[Vec<u8>]) -> Result<()> {
        let is_missing = |folder: &str| !folders.iter().any(|path| &path[1..] == folder.as_bytes());
        match self.hosts.iter().find(|(folder, _)| is_missing(folder)) {
            Some((folder, _)) => bail!("there is no folder '{folder}' for the hosts that have it as their root"),
            None => Ok(()),
        }
    }

    /// Which root a path of the directory belongs to, and its path there.
    pub fn place<'a>(&self, path: &'a [u8]) -> (u16, &'a [u8]) {
        let top = path[1..].split(|byte| *byte == b'/').next().unwrap_or_default();
        match self.hosts.iter().position(|(folder, _)| folder.as_bytes() == top) {
            Some(index) => (index as u16 + 1, &path[1 + top.len()..]),
            None => (0, path),
        }
    }

    /// The folder, with its slash, whose index a path is.
    pub fn index_folder<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let at = path.iter().rposition(|byte| *byte == b'/')? + 1;
        self.indexes.iter().any(|index| index.as_bytes() == &path[at..]).then_some(&path[..at])
    }
}

fn last_match<'a>(rules: &'a [(String, String)], path: &[u8]) -> Option<&'a str> {
    let matching = |rule: &&(String, String)| kayvee_commands::glob_matches(rule.0.as_bytes(), path);
    rules.iter().rev().find(matching).map(|(_, value)| value.as_str())
}
