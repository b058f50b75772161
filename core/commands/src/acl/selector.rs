//! What a user may do: one set of rules on commands, keys and channels.

use crate::{
    glob,
    table::{self, Categories, Command, KeyFlags},
};
use alloc::{format, string::String, vec::Vec};
use kayvee_resp::Request;

/// Why a rule is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    Syntax,
    UnknownCommand,
    KeysAfterAll,
    ChannelsAfterAll,
    ArgumentOfSubcommand,
    NoSuchPassword,
    NotAHash,
}

impl RuleError {
    /// In Redis' words.
    pub fn text(self) -> &'static str {
        match self {
            RuleError::Syntax => "Syntax error",
            RuleError::UnknownCommand => "Unknown command or category name in ACL",
            RuleError::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::ArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::NotAHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The user may not run the command.
    Command,
    /// Nor use the key that is this argument.
    Key(usize),
    /// Nor the channel that is this argument.
    Channel(usize),
}

impl Denial {
    /// How far a request got before it was refused: of several selectors, the best one tells why.
    pub fn progress(&self) -> (u8, usize) {
        match self {
            Denial::Command => (0, 0),
            Denial::Key(at) => (1, *at),
            Denial::Channel(at) => (2, *at),
        }
    }
}

/// What one rule on commands is about.
#[derive(Clone)]
enum Subject {
    Category(Categories),
    Command(&'static Command),
    Subcommand(&'static Command),
    FirstArgument(&'static Command, Vec<u8>),
}

/// A rule on commands, and how it is written.
#[derive(Clone)]
struct Rule {
    allows: bool,
    subject: Subject,
    text: String,
}

#[derive(Clone)]
struct KeyPattern {
    reads: bool,
    writes: bool,
    pattern: Vec<u8>,
}

/// One set of rules.
#[derive(Clone)]
pub struct Selector {
    /// Whether the rules take away from all commands, rather than add to none.
    starts_with_all: bool,
    rules: Vec<Rule>,
    all_keys: bool,
    keys: Vec<KeyPattern>,
    all_channels: bool,
    channels: Vec<Vec<u8>>,
}

/// A command and its container, by the name that it was declared with.
fn find_command(name: &[u8]) -> Option<(&'static Command, Option<&'static Command>)> {
    let (container, sub) = match name.iter().position(|&b| b == b'|') {
        Some(bar) => (&name[..bar], Some(&name[bar + 1..])),
        None => (name, None),
    };
    let container = table::all().find(|command| command.name.as_bytes().eq_ignore_ascii_case(container))?;
    match sub {
        None => Some((container, None)),
        Some(sub) => {
            let sub = container.subcommands.iter().find(|other| other.name.as_bytes().eq_ignore_ascii_case(sub))?;
            Some((container, Some(sub)))
        }
    }
}

/// A category by its name, with the @.
pub fn find_category(name: &[u8]) -> Option<Categories> {
    Categories::named(name)
}

fn has_blank(text: &[u8]) -> bool {
    text.iter().any(|b| b.is_ascii_whitespace() || *b == 0)
}

impl Selector {
    /// One that allows nothing, except for all channels where that is the default.
    pub fn new(all_channels: bool) -> Selector {
        Selector {
            starts_with_all: false,
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
        }
    }

    /// Whether nothing is refused by it.
    #[inline(always)]
    pub fn allows_all(&self) -> bool {
        for rule in &self.rules {
            if !rule.allows {
                return false;
            }
        }
        self.starts_with_all && self.all_keys && self.all_channels
    }

    /// Takes one rule.
    pub fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        match rule {
            _ if is("allkeys") || rule == b"~*" => (self.all_keys, self.keys) = (true, Vec::new()),
            _ if is("resetkeys") => (self.all_keys, self.keys) = (false, Vec::new()),
            _ if is("allchannels") || rule == b"&*" => (self.all_channels, self.channels) = (true, Vec::new()),
            _ if is("resetchannels") => (self.all_channels, self.channels) = (false, Vec::new()),
            _ if is("allcommands") || is("+@all") => (self.starts_with_all, self.rules) = (true, Vec::new()),
            _ if is("nocommands") || is("-@all") => (self.starts_with_all, self.rules) = (false, Vec::new()),
            [b'~', pattern @ ..] => self.add_keys(true, true, pattern)?,
            [b'%', rest @ ..] => {
                let end = rest.iter().position(|&b| b == b'~').ok_or(RuleError::Syntax)?;
                let (letters, pattern) = (rest[..end].to_ascii_uppercase(), &rest[end + 1..]);
                if !matches!(&letters[..], b"R" | b"W" | b"RW" | b"WR") {
                    return Err(RuleError::Syntax);
                }
                self.add_keys(letters.contains(&b'R'), letters.contains(&b'W'), pattern)?;
            }
            [b'&', pattern @ ..] => {
                if self.all_channels {
                    return Err(RuleError::ChannelsAfterAll);
                }
                if has_blank(pattern) {
                    return Err(RuleError::Syntax);
                }
                if !self.channels.iter().any(|channel| channel == pattern) {
                    self.channels.push(pattern.into());
                }
            }
            [sign @ (b'+' | b'-'), subject @ ..] => self.add_rule(*sign == b'+', subject)?,
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    fn add_keys(&mut self, reads: bool, writes: bool, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeysAfterAll);
        }
        if has_blank(pattern) {
            return Err(RuleError::Syntax);
        }
        match self.keys.iter_mut().find(|known| known.pattern == pattern) {
            Some(known) => (known.reads, known.writes) = (known.reads || reads, known.writes || writes),
            None if pattern == b"*" && reads && writes => (self.all_keys, self.keys) = (true, Vec::new()),
            None => self.keys.push(KeyPattern { reads, writes, pattern: pattern.into() }),
        }
        Ok(())
    }

    fn add_rule(&mut self, allows: bool, name: &[u8]) -> Result<(), RuleError> {
        let bar = name.iter().rposition(|&b| b == b'|');
        let subject = match (name, bar) {
            ([b'@', ..], _) => Subject::Category(find_category(name).ok_or(RuleError::UnknownCommand)?),
            (_, Some(bar)) if allows => {
                let (first, rest) = (&name[..bar], &name[bar + 1..]);
                match find_command(first).ok_or(RuleError::UnknownCommand)? {
                    (_, Some(_)) => return Err(RuleError::ArgumentOfSubcommand),
                    _ if rest.is_empty() => return Err(RuleError::Syntax),
                    (command, None) if command.subcommands.is_empty() => {
                        Subject::FirstArgument(command, rest.to_ascii_lowercase())
                    }
                    (_, None) => match find_command(name).ok_or(RuleError::UnknownCommand)? {
                        (_, Some(sub)) => Subject::Subcommand(sub),
                        (_, None) => return Err(RuleError::UnknownCommand),
                    },
                }
            }
            _ => match find_command(name).ok_or(RuleError::UnknownCommand)? {
                (_, Some(sub)) => Subject::Subcommand(sub),
                (command, None) => Subject::Command(command),
            },
        };
        let text = String::from_utf8_lossy(name).to_ascii_lowercase();
        // A rule replaces those that it makes void: of the same subject, or of what is part of it.
        self.rules.retain(|old| {
            let is_part = old.text.strip_prefix(&text).is_some_and(|rest| rest.is_empty() || rest.starts_with('|'));
            !is_part
        });
        self.rules.push(Rule { allows, subject, text });
        Ok(())
    }

    /// Whether a command may run, its keys and channels aside.
    fn allows_command(&self, container: &'static Command, command: &'static Command, request: Request<'_>) -> bool {
        let mut allowed = self.starts_with_all;
        let mut first_arguments = false;
        for rule in &self.rules {
            let is_it = match &rule.subject {
                Subject::Category(category) => command.all_categories().contains(*category),
                Subject::Command(other) => core::ptr::eq(*other, container),
                Subject::Subcommand(other) => core::ptr::eq(*other, command),
                Subject::FirstArgument(other, argument) => {
                    let is_given = request.get(1).is_some_and(|given| given.eq_ignore_ascii_case(argument));
                    first_arguments |= core::ptr::eq(*other, command) && is_given;
                    false
                }
            };
            if is_it {
                (allowed, first_arguments) = (rule.allows, false);
            }
        }
        allowed || first_arguments
    }

    fn allows_key(&self, key: &[u8], flags: KeyFlags) -> bool {
        let reads = flags.contains(KeyFlags::ACCESS);
        let changes = [KeyFlags::INSERT, KeyFlags::DELETE, KeyFlags::UPDATE];
        let writes = changes.into_iter().any(|change| flags.contains(change));
        let suits = |pattern: &&KeyPattern| (pattern.reads || !reads) && (pattern.writes || !writes);
        self.all_keys || self.keys.iter().filter(suits).any(|pattern| glob::matches(&pattern.pattern, key))
    }

    /// Whether a channel may be used, or a pattern of channels listened to, which has to be allowed literally.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let allows = |allowed: &Vec<u8>| if is_pattern { allowed == channel } else { glob::matches(allowed, channel) };
        self.all_channels || self.channels.iter().any(allows)
    }

    /// Whether all keys may be read, whatever their names are.
    pub fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|pattern| pattern.reads && pattern.pattern == b"*")
    }

    /// Whether a request may run.
    pub fn check(
        &self,
        container: &'static Command,
        command: &'static Command,
        request: Request<'_>,
    ) -> Result<(), Denial> {
        let needs_no_leave = command.flags.contains(table::Flags::NO_AUTH);
        if !needs_no_leave && !self.allows_command(container, command, request) {
            return Err(Denial::Command);
        }
        if !self.all_keys {
            let mut denied = None;
            let is_denied = |at: usize, flags: KeyFlags| {
                !flags.contains(KeyFlags::NOT_KEY) && !self.allows_key(&request[at], flags)
            };
            let read = command.for_each_key(request, |at, flags| {
                if denied.is_none() && is_denied(at, flags) {
                    denied = Some(at);
                }
            });
            // One that is malformed will say so itself.
            if let (Some(()), Some(at)) = (read, denied) {
                return Err(Denial::Key(at));
            }
        }
        if !self.all_channels {
            let (range, is_pattern) = match command.name {
                "publish" | "spublish" => (1..2, false),
                "subscribe" | "ssubscribe" => (1..request.len(), false),
                "psubscribe" => (1..request.len(), true),
                _ => (0..0, false),
            };
            for at in range {
                if !self.allows_channel(&request[at], is_pattern) {
                    return Err(Denial::Channel(at));
                }
            }
        }
        Ok(())
    }

    /// The rules on commands, as `ACL GETUSER` shows them.
    pub fn commands_text(&self) -> String {
        let mut text = String::from(if self.starts_with_all { "+@all" } else { "-@all" });
        for rule in &self.rules {
            text += &format!(" {}{}", if rule.allows { '+' } else { '-' }, rule.text);
        }
        text
    }

    /// The patterns of keys, as `ACL GETUSER` shows them.
    pub fn keys_text(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let words = self.keys.iter().map(|pattern| {
            let prefix: &[u8] = match (pattern.reads, pattern.writes) {
                (true, true) => b"~",
                (true, false) => b"%R~",
                _ => b"%W~",
            };
            [prefix, &pattern.pattern].concat()
        });
        words.collect::<Vec<_>>().join(&b' ')
    }

    /// The patterns of channels, as `ACL GETUSER` shows them.
    pub fn channels_text(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|channel| [b"&", channel.as_slice()].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// All of it, as `ACL LIST` and files show it.
    pub fn text(&self) -> Vec<u8> {
        let mut text = self.keys_text();
        if !text.is_empty() {
            text.push(b' ');
        }
        if self.all_channels {
            text.extend_from_slice(b"&* ");
        } else {
            text.extend_from_slice(b"resetchannels ");
            text.extend(self.channels_text());
            if !self.channels.is_empty() {
                text.push(b' ');
            }
        }
        text.extend_from_slice(self.commands_text().as_bytes());
        text
    }
}
