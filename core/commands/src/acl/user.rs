//! A user: a name, passwords, and what it may do.

use super::selector::{Denial, RuleError, Selector};
use crate::table::Command;
use alloc::{borrow::Cow, vec::Vec};
use kayvee_resp::Request;
use sha2::{Digest, Sha256};

/// A password's SHA-256 in hexadecimal digits.
pub type PasswordHash = [u8; 64];

pub fn hexadecimal(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| b"0123456789abcdef"[usize::from(digit)])
}

fn hash(password: &[u8]) -> PasswordHash {
    let mut hash = [0; 64];
    hash.iter_mut().zip(hexadecimal(&Sha256::digest(password))).for_each(|(place, digit)| *place = digit);
    hash
}

fn parse_hash(text: &[u8]) -> Result<PasswordHash, RuleError> {
    let is_digit = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    text.try_into().ok().filter(|hash: &PasswordHash| hash.iter().all(is_digit)).ok_or(RuleError::NotAHash)
}

/// Whether payloads of `RESTORE` are checked thoroughly. Here they always are; it is kept to be shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sanitize {
    Unsaid,
    Yes,
    No,
}

/// A user.
#[derive(Clone)]
pub struct User {
    pub name: Cow<'static, [u8]>,
    pub is_on: bool,
    /// Whether any password will do.
    pub any_password: bool,
    sanitize: Sanitize,
    passwords: Vec<PasswordHash>,
    /// What holds for it, and what holds besides.
    pub root: Selector,
    pub selectors: Vec<Selector>,
}

/// Joins words in parentheses, which belong together.
pub fn join_selectors(words: &[Vec<u8>]) -> Result<Vec<Cow<'_, [u8]>>, &[u8]> {
    let mut joined: Vec<Cow<'_, [u8]>> = Vec::new();
    let mut open: Option<(&[u8], Vec<u8>)> = None;
    for word in words {
        match open.as_mut() {
            Some((_, text)) => {
                text.push(b' ');
                text.extend_from_slice(word);
            }
            None if word.starts_with(b"(") && !word.ends_with(b")") => open = Some((word, word.clone())),
            None => joined.push(Cow::Borrowed(word)),
        }
        if word.ends_with(b")")
            && let Some((_, text)) = open.take()
        {
            joined.push(Cow::Owned(text));
        }
    }
    match open {
        Some((start, _)) => Err(start),
        None => Ok(joined),
    }
}

impl User {
    /// One that may not log in and may do nothing.
    pub fn new(name: &[u8], all_channels: bool) -> User {
        User {
            name: Cow::Owned(name.into()),
            is_on: false,
            any_password: false,
            sanitize: Sanitize::Unsaid,
            passwords: Vec::new(),
            root: Selector::new(all_channels),
            selectors: Vec::new(),
        }
    }

    /// The one that clients are who have not said otherwise.
    pub fn default_user() -> User {
        let mut user = User { name: Cow::Borrowed(b"default"), ..User::new(b"", true) };
        for rule in ["on", "nopass", "+@all", "~*"] {
            // These rules are right.
            let _ = user.apply(rule.as_bytes(), true);
        }
        user
    }

    /// Takes one rule.
    pub fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        match rule {
            b"" => {}
            _ if is("on") => self.is_on = true,
            _ if is("off") => self.is_on = false,
            _ if is("nopass") => (self.any_password, self.passwords) = (true, Vec::new()),
            _ if is("resetpass") => (self.any_password, self.passwords) = (false, Vec::new()),
            _ if is("sanitize-payload") => self.sanitize = Sanitize::Yes,
            _ if is("skip-sanitize-payload") => self.sanitize = Sanitize::No,
            _ if is("clearselectors") => self.selectors = Vec::new(),
            _ if is("reset") => {
                let name = core::mem::take(&mut self.name);
                *self = User { name, sanitize: Sanitize::Yes, ..User::new(b"", all_channels) };
            }
            [b'>', password @ ..] => self.add_password(hash(password)),
            [b'#', hash @ ..] => self.add_password(parse_hash(hash)?),
            [b'<', password @ ..] => self.remove_password(hash(password))?,
            [b'!', hash @ ..] => self.remove_password(parse_hash(hash)?)?,
            [b'(', rules @ .., b')'] => {
                let mut selector = Selector::new(all_channels);
                for rule in rules.split(|&b| b == b' ').filter(|rule| !rule.is_empty()) {
                    selector.apply(rule)?;
                }
                self.selectors.push(selector);
            }
            _ => self.root.apply(rule)?,
        }
        Ok(())
    }

    fn add_password(&mut self, hash: PasswordHash) {
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.any_password = false;
    }

    fn remove_password(&mut self, hash: PasswordHash) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|known| *known == hash).ok_or(RuleError::NoSuchPassword)?;
        self.passwords.remove(at);
        Ok(())
    }

    /// Whether this is the user's password. It takes the same time for any wrong one.
    pub fn accepts(&self, password: &[u8]) -> bool {
        let given = hash(password);
        let is_equal = |known: &PasswordHash| {
            core::hint::black_box(known.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b))) == 0
        };
        // No short cut: all passwords are compared.
        let is_known = self.passwords.iter().filter(|known| is_equal(known)).count() > 0;
        self.is_on && (self.any_password || is_known)
    }

    /// Whether it may do everything.
    #[inline(always)]
    pub fn is_unbounded(&self) -> bool {
        self.root.allows_all()
    }

    /// All its selectors.
    pub fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        core::iter::once(&self.root).chain(&self.selectors)
    }

    /// Whether a request may run.
    pub fn check(
        &self,
        container: &'static Command,
        command: &'static Command,
        request: Request<'_>,
    ) -> Result<(), Denial> {
        let mut closest = Denial::Command;
        for selector in self.all_selectors() {
            match selector.check(container, command, request) {
                Ok(()) => return Ok(()),
                Err(denial) if denial.progress() > closest.progress() => closest = denial,
                Err(_) => {}
            }
        }
        Err(closest)
    }

    /// What it is, as `ACL GETUSER` shows it.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        let sanitize = match self.sanitize {
            Sanitize::Unsaid => None,
            Sanitize::Yes => Some("sanitize-payload"),
            Sanitize::No => Some("skip-sanitize-payload"),
        };
        let on = if self.is_on { "on" } else { "off" };
        [Some(on), self.any_password.then_some("nopass"), sanitize].into_iter().flatten()
    }

    /// The hashes of its passwords.
    pub fn passwords(&self) -> &[PasswordHash] {
        &self.passwords
    }

    /// All of it as rules that make it anew.
    pub fn text(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = self.flags().map(|flag| flag.as_bytes().to_vec()).collect();
        words.extend(self.passwords.iter().map(|hash| [b"#", hash.as_slice()].concat()));
        words.push(self.root.text());
        words.extend(self.selectors.iter().map(|selector| [b"(", selector.text().as_slice(), b")"].concat()));
        words.join(&b' ')
    }
}
