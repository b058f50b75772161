//! The written list of tests that may fail, with a reason each.
//!
//! ```text
//! [unit/type/list]
//! A test's name => why it cannot pass here
//! Another test ~> why it fails now and then
//! A third test !> why it is not run: its failure would stop the unit or fail the tests behind it
//!
//! [unit/introspection tcg kvm]
//! A test => only these targets fail it
//! ```
//!
//! Words behind a unit are conditions: a target, a mode, `external` or `own-servers`. Of several, one has to hold.

use std::{fs, io, path::Path};

struct Entry {
    unit: String,
    conditions: Vec<String>,
    test: String,
    reason: String,
    how: How,
}

/// How a test is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Fails,
    FailsNowAndThen,
    IsNotRun,
}

/// The list.
pub struct Expected {
    entries: Vec<Entry>,
}

/// What the list says about a test.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Nothing: it has to pass.
    MustPass,
    /// It may fail, for this reason.
    MayFail(&'a str),
}

impl Expected {
    /// Reads the list from a file.
    pub fn read(path: &Path) -> io::Result<Expected> {
        let text = fs::read_to_string(path)?;
        Expected::parse(&text).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    }

    /// Reads the list from its text.
    pub fn parse(text: &str) -> Result<Expected, String> {
        let mut entries = Vec::new();
        let mut unit = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let mut words = heading.split_whitespace().map(String::from);
                unit = words.next().map(|unit| (unit, words.collect::<Vec<_>>()));
                continue;
            }
            let split = |arrow| line.rsplit_once(arrow).filter(|(_, reason): &(&str, &str)| !reason.trim().is_empty());
            let arrows = [(" => ", How::Fails), (" ~> ", How::FailsNowAndThen), (" !> ", How::IsNotRun)];
            let parts = arrows.into_iter().find_map(|(arrow, how)| split(arrow).map(|parts| (how, parts)));
            let Some((how, (test, reason))) = parts else {
                return Err(format!("line {}: expected TEST => REASON", number + 1));
            };
            let Some((unit, conditions)) = unit.clone() else {
                return Err(format!("line {}: there is no [UNIT] above it", number + 1));
            };
            let (test, reason) = (test.trim().into(), reason.trim().into());
            entries.push(Entry { unit, conditions, test, reason, how });
        }
        Ok(Expected { entries })
    }

    fn of<'a>(&'a self, unit: &'a str, test: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.unit == unit && entry.test == test)
    }

    /// What the list says about a test under these conditions.
    pub fn verdict(&self, unit: &str, test: &str, conditions: &[&str]) -> Verdict<'_> {
        let mut entries = self.entries.iter().filter(|entry| entry.unit == unit && entry.test == test);
        let entry = entries.find(|entry| entry.holds(conditions));
        entry.map_or(Verdict::MustPass, |entry| Verdict::MayFail(&entry.reason))
    }

    /// Whether a test is said to fail now and then.
    pub fn is_unsure(&self, unit: &str, test: &str) -> bool {
        self.of(unit, test).any(|entry| entry.how == How::FailsNowAndThen)
    }

    /// The tests of a unit that are not run under these conditions.
    pub fn not_run<'a>(&'a self, unit: &str, conditions: &[&str]) -> Vec<&'a str> {
        let of_unit = self.entries.iter().filter(|entry| entry.unit == unit && entry.how == How::IsNotRun);
        of_unit.filter(|entry| entry.holds(conditions)).map(|entry| entry.test.as_str()).collect()
    }
}

impl Entry {
    fn holds(&self, conditions: &[&str]) -> bool {
        self.conditions.is_empty() || self.conditions.iter().any(|word| conditions.contains(&word.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_units_conditions_and_reasons() {
        let text = "# note\n[unit/a]\nx => y => why\n[unit/b kvm tcg]\nz ~> at times\nw !> stops\n";
        let expected = Expected::parse(text).unwrap();
        assert_eq!(expected.verdict("unit/a", "x => y", &["linux"]), Verdict::MayFail("why"));
        assert_eq!(expected.verdict("unit/a", "z", &["kvm"]), Verdict::MustPass);
        assert_eq!(expected.verdict("unit/b", "z", &["kvm"]), Verdict::MayFail("at times"));
        assert_eq!(expected.verdict("unit/b", "z", &["linux"]), Verdict::MustPass);
        assert_eq!(expected.not_run("unit/b", &["kvm"]), ["w"]);
        assert!(expected.not_run("unit/b", &["linux"]).is_empty());
        assert!(expected.is_unsure("unit/b", "z") && !expected.is_unsure("unit/a", "x => y"));
        for wrong in ["x => y", "[unit/a]\nx", "[unit/a]\nx => "] {
            assert!(Expected::parse(wrong).is_err(), "{wrong}");
        }
    }
}
