//! Options as text: redis.conf's lines, and the arguments of a process, which mean the same.

use super::{OptionError, OptionSpec, Options, Property, value};
use crate::table::ByName;
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt::Write;
use kayvee_resp::{quoted, split_words};

/// Files that may include each other.
const INCLUDE_DEPTH_LIMIT: usize = 16;

/// Names that older versions had and that are passed over in silence, as Redis does.
const DEPRECATED: [&str; 3] = ["list-max-ziplist-entries", "list-max-ziplist-value", "lua-replicate-commands"];

/// Why options of TLS are refused, which therefore `CONFIG GET` does not find, as in a redis-server built without it.
pub const NO_TLS: &str = "Kayvee does not speak TLS: let a proxy such as stunnel do it";

/// Whether an option is about TLS.
pub fn is_of_tls(name: &[u8]) -> bool {
    name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"tls-"))
}

/// A line of a configuration that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The line's number in its file, from 1 on.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

impl From<LoadError> for OptionError {
    fn from(error: LoadError) -> OptionError {
        OptionError { name: error.text, reason: error.reason }
    }
}

/// Reads a file that a line includes.
pub type Include<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>, String>;

/// Turns arguments into the lines of a configuration: `--name value …`, in Redis' reading of them.
pub fn arguments_text<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut text = String::new();
    let mut out = Vec::new();
    // A name takes at least one value, whatever that looks like.
    let mut has_value = true;
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix(b"--").filter(|_| has_value) else {
            // Writing to a string does not fail.
            let _ = write!(text, "{} ", quoted(word));
            has_value = true;
            out.extend_from_slice(text.as_bytes());
            text.clear();
            continue;
        };
        if !out.is_empty() {
            out.push(b'\n');
        }
        out.extend_from_slice(name);
        out.push(b' ');
        has_value = split_words(word).is_ok_and(|parts| parts.len() > 1);
        let ends_here = words.peek().is_none_or(|next| next.starts_with(b"--"));
        if !has_value && ends_here && word.eq_ignore_ascii_case(b"--save") {
            // What scripts make of an empty list of save points.
            out.extend_from_slice(b"\"\"");
            has_value = true;
        }
    }
    out
}

impl Options {
    /// Reads `--name value …` words, the form that redis-server takes.
    pub fn from_args<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Result<Options, OptionError> {
        let mut options = Options::default();
        let no_files = |_: &str| Err("files cannot be included here".to_string());
        options.load(&arguments_text(words), &no_files)?;
        Ok(options)
    }

    /// Reads the lines of a configuration file.
    pub fn load(&mut self, text: &[u8], include: Include<'_>) -> Result<(), LoadError> {
        Loader { options: self, include, has_save: false }.load(text, 0)
    }
}

struct Loader<'a> {
    options: &'a mut Options,
    include: Include<'a>,
    /// Whether there was a `save` line: the first one replaces the default, the others add to it.
    has_save: bool,
}

impl Loader<'_> {
    fn load(&mut self, text: &[u8], depth: usize) -> Result<(), LoadError> {
        for (index, line) in text.split(|&b| b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let shown = || String::from_utf8_lossy(line).into_owned();
            let refused = |reason: String| LoadError { line: index + 1, text: shown(), reason };
            let words = split_words(line).map_err(|_| refused("Unbalanced quotes in configuration line".into()))?;
            let Some((name, values)) = words.split_first() else { continue };
            if name.eq_ignore_ascii_case(b"include") && values.len() == 1 {
                let path = String::from_utf8_lossy(&values[0]).into_owned();
                if depth == INCLUDE_DEPTH_LIMIT {
                    return Err(refused(format!("more than {INCLUDE_DEPTH_LIMIT} files include each other")));
                }
                let text = (self.include)(&path).map_err(refused)?;
                self.load(&text, depth + 1)?;
            } else {
                self.directive(name, values).map_err(refused)?;
            }
        }
        Ok(())
    }

    fn directive(&mut self, name: &[u8], values: &[Vec<u8>]) -> Result<(), String> {
        if let Some(spec) = OptionSpec::find(name) {
            let joined = values.join(&b" "[..]);
            if spec.has(Property::Lists) {
                match spec.name {
                    "save" => return self.save(spec, &joined),
                    // A store that runs is told so by `no one`.
                    "replicaof" if joined.is_empty() => return Err("wrong number of arguments".into()),
                    _ => {}
                }
            } else if values.len() != 1 {
                return Err("wrong number of arguments".into());
            }
            return spec.set(self.options, &joined);
        }
        if name.eq_ignore_ascii_case(b"user") && !values.is_empty() {
            // A second definition of a user is a mistake, as in a file of users.
            if self.options.users.iter().any(|user| user[0] == values[0]) {
                let user = String::from_utf8_lossy(&values[0]);
                return Err(format!("Error in user declaration '{user}': Duplicate user found"));
            }
            crate::acl::check_definition(values).map_err(|why| {
                let user = String::from_utf8_lossy(&values[0]);
                format!("Error in user declaration '{user}': {why}")
            })?;
            self.options.users.push(values.to_vec());
            return Ok(());
        }
        if name.eq_ignore_ascii_case(b"rename-command") && values.len() == 2 {
            let (old, new) = (value::text(&values[0])?, value::text(&values[1])?);
            let mut commands = ByName::default();
            for (old, new) in &self.options.renamed_commands {
                commands.rename(old, new)?;
            }
            commands.rename(&old.to_ascii_lowercase(), &new.to_ascii_lowercase())?;
            self.options.renamed_commands.push((old.to_ascii_lowercase(), new.to_ascii_lowercase()));
            return Ok(());
        }
        if DEPRECATED.iter().any(|old| name.eq_ignore_ascii_case(old.as_bytes())) {
            return Ok(());
        }
        if name.eq_ignore_ascii_case(b"loadmodule") {
            return Err("Kayvee has no modules".into());
        }
        // What a redis.conf may say of a server without TLS.
        if name.eq_ignore_ascii_case(b"tls-port") && values == [b"0"] {
            return Ok(());
        }
        if is_of_tls(name) {
            return Err(NO_TLS.into());
        }
        Err("Bad directive or wrong number of arguments".into())
    }

    fn save(&mut self, spec: &OptionSpec, points: &[u8]) -> Result<(), String> {
        let before = spec.get(self.options);
        let adds = self.has_save && !points.is_empty() && !before.is_empty();
        self.has_save = true;
        if adds { spec.set(self.options, &[&before, points].join(&b" "[..])) } else { spec.set(self.options, points) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_lines() {
        for (words, lines) in [
            (&["--port", "1", "--bind", "a", "b"][..], "port \"1\" \nbind \"a\" \"b\" "),
            (&["--save", "--port", "1"], "save \"\"\nport \"1\" "),
            (&["--port", "--loglevel", "verbose"], "port \"--loglevel\" \"verbose\" "),
            (&["--port 1", "--hz 2"], "port 1 \nhz 2 "),
            (&["--port", "1", "--save"], "port \"1\" \nsave \"\""),
        ] {
            let text = arguments_text(words.iter().map(|word| word.as_bytes()));
            assert_eq!(String::from_utf8(text).unwrap(), lines, "{words:?}");
        }
    }

    #[test]
    fn files_have_comments_quotes_and_includes() {
        let mut options = Options::default();
        let include = |path: &str| match path {
            "other.conf" => Ok(b"port 7\nsave 5 6".to_vec()),
            _ => Err("there is no such file".to_string()),
        };
        let text = b"# note\n\n  requirepass \"a b\"\r\nsave 1 2\nsave 3 4\ninclude other.conf\nHZ 20\n";
        options.load(text, &include).unwrap();
        assert_eq!((options.requirepass.as_slice(), options.port, options.hz), (&b"a b"[..], 7, 20));
        assert_eq!(OptionSpec::find(b"save").unwrap().get(&options), b"1 2 3 4 5 6");
        let error = options.load(b"port 1\n\nhz x\n", &include).unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (3, "hz x"));
        assert!(options.load(b"include none.conf", &include).is_err());
        let endless = |_: &str| Ok(b"include again".to_vec());
        assert!(options.load(b"include again", &endless).is_err());
    }
}
