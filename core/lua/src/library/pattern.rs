//! Lua's patterns: a matcher that backtracks on a stack of its own.

use alloc::vec::Vec;

const CAPTURES_LIMIT: usize = 32;
/// Steps that a search may take, besides those for each byte of the subject: about half a second.
const STEPS_LIMIT: usize = 50_000_000;
const STEPS_PER_BYTE: usize = 64;

/// The part of a subject that a capture stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// It has begun here.
    Open(usize),
    Text(usize, usize),
    /// `()`
    Position(usize),
}

/// What a pattern has found.
#[derive(Debug)]
pub(super) struct Found {
    pub start: usize,
    pub end: usize,
    captures: [Capture; CAPTURES_LIMIT],
    len: usize,
}

impl Found {
    pub fn captures(&self) -> &[Capture] {
        &self.captures[..self.len]
    }

    /// A capture, or the whole match where the pattern has none. Counted from 0.
    pub fn capture(&self, index: usize) -> Result<Capture, &'static str> {
        match self.captures().get(index) {
            Some(Capture::Open(_)) => Err("unfinished capture"),
            Some(capture) => Ok(*capture),
            None if index == 0 => Ok(Capture::Text(self.start, self.end)),
            None => Err("invalid capture index"),
        }
    }
}

/// What is left to try, or to undo, when the rest of a pattern does not match.
#[derive(Debug)]
enum Choice {
    /// Less repetitions of an item.
    Greedy {
        from: usize,
        count: usize,
        min: usize,
        next: usize,
    },
    /// One more repetition of the item.
    Lazy {
        at: usize,
        item: usize,
        end: usize,
    },
    /// No repetition.
    Skip {
        at: usize,
        next: usize,
    },
    UndoOpen,
    UndoClose(usize, usize),
}

pub(super) struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: [Capture; CAPTURES_LIMIT],
    len: usize,
    choices: Vec<Choice>,
    steps_left: usize,
}

/// Steps that searching a text of this length may take.
pub(super) fn steps_for(len: usize) -> usize {
    STEPS_LIMIT.saturating_add(len.saturating_mul(STEPS_PER_BYTE))
}

type Step = Result<bool, &'static str>;

impl<'a> Matcher<'a> {
    pub fn new(text: &'a [u8], pattern: &'a [u8]) -> Matcher<'a> {
        Matcher::with_steps(text, pattern, steps_for(text.len()))
    }

    /// With what earlier searches have left of their steps.
    pub fn with_steps(text: &'a [u8], pattern: &'a [u8], steps_left: usize) -> Matcher<'a> {
        Matcher { text, pattern, captures: [Capture::Open(0); CAPTURES_LIMIT], len: 0, choices: Vec::new(), steps_left }
    }

    pub fn steps_left(&self) -> usize {
        self.steps_left
    }

    /// Finds the first match at or after a place. A pattern that begins with `^` matches there only.
    pub fn find(&mut self, from: usize) -> Result<Option<Found>, &'static str> {
        let is_anchored = self.pattern.first() == Some(&b'^');
        let mut start = from;
        loop {
            if let Some(end) = self.match_at(start, usize::from(is_anchored))? {
                return Ok(Some(Found { start, end, captures: self.captures, len: self.len }));
            }
            start += 1;
            if is_anchored || start > self.text.len() {
                return Ok(None);
            }
        }
    }

    /// Matches here only, with a pattern whose `^` has no meaning.
    pub fn find_here(&mut self, start: usize, pattern_from: usize) -> Result<Option<Found>, &'static str> {
        let end = self.match_at(start, pattern_from)?;
        Ok(end.map(|end| Found { start, end, captures: self.captures, len: self.len }))
    }

    fn spend(&mut self, steps: usize) -> Result<(), &'static str> {
        self.steps_left = self.steps_left.checked_sub(steps).ok_or("pattern too complex")?;
        Ok(())
    }

    fn match_at(&mut self, start: usize, pattern_from: usize) -> Result<Option<usize>, &'static str> {
        self.len = 0;
        self.choices.clear();
        let (mut at, mut item) = (start, pattern_from);
        loop {
            self.spend(1)?;
            if item >= self.pattern.len() {
                return Ok(Some(at));
            }
            if !self.advance(&mut at, &mut item)? && !self.retreat(&mut at, &mut item)? {
                return Ok(None);
            }
        }
    }

    /// Matches one item of the pattern; tells whether it could.
    fn advance(&mut self, at: &mut usize, item: &mut usize) -> Step {
        let rest = &self.pattern[*item..];
        match rest {
            [b'(', b')', ..] => {
                self.open(Capture::Position(*at))?;
                *item += 2;
            }
            [b'(', ..] => {
                self.open(Capture::Open(*at))?;
                *item += 1;
            }
            [b')', ..] => {
                self.close(*at)?;
                *item += 1;
            }
            [b'%', b'b', ..] => return self.balance(at, item),
            [b'%', b'f', ..] => return self.frontier(*at, item),
            [b'%', digit @ b'0'..=b'9', ..] => return self.back_reference(*digit, at, item),
            [b'$'] => {
                *item += 1;
                return Ok(*at == self.text.len());
            }
            _ => return self.single(at, item),
        }
        Ok(true)
    }

    /// Takes up what is left to try.
    fn retreat(&mut self, at: &mut usize, item: &mut usize) -> Step {
        while let Some(choice) = self.choices.pop() {
            self.spend(1)?;
            match choice {
                Choice::UndoOpen => self.len -= 1,
                Choice::UndoClose(index, start) => self.captures[index] = Capture::Open(start),
                Choice::Skip { at: back, next } => {
                    (*at, *item) = (back, next);
                    return Ok(true);
                }
                Choice::Greedy { from, count, min, next } => {
                    let count = count - 1;
                    if count > min {
                        self.choices.push(Choice::Greedy { from, count, min, next });
                    }
                    (*at, *item) = (from + count, next);
                    return Ok(true);
                }
                Choice::Lazy { at: back, item: repeated, end } => {
                    if self.matches_one(back, repeated, end) {
                        self.choices.push(Choice::Lazy { at: back + 1, item: repeated, end });
                        (*at, *item) = (back + 1, end + 1);
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn open(&mut self, capture: Capture) -> Result<(), &'static str> {
        let place = self.captures.get_mut(self.len).ok_or("too many captures")?;
        *place = capture;
        self.len += 1;
        self.choices.push(Choice::UndoOpen);
        Ok(())
    }

    fn close(&mut self, at: usize) -> Result<(), &'static str> {
        let open = self.captures[..self.len].iter().rposition(|capture| matches!(capture, Capture::Open(_)));
        let index = open.ok_or("invalid pattern capture")?;
        if let Capture::Open(start) = self.captures[index] {
            self.captures[index] = Capture::Text(start, at);
            self.choices.push(Choice::UndoClose(index, start));
        }
        Ok(())
    }

    /// `%bxy`
    fn balance(&mut self, at: &mut usize, item: &mut usize) -> Step {
        let [_, _, open, close, ..] = self.pattern[*item..] else { return Err("unbalanced pattern") };
        if self.text.get(*at) != Some(&open) {
            return Ok(false);
        }
        self.spend((self.text.len() - *at) / 8)?;
        let mut depth = 1_usize;
        for (offset, byte) in self.text[*at + 1..].iter().enumerate() {
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    *at += offset + 2;
                    *item += 4;
                    return Ok(true);
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        Ok(false)
    }

    /// `%f[set]`
    fn frontier(&mut self, at: usize, item: &mut usize) -> Step {
        let set = *item + 2;
        if self.pattern.get(set) != Some(&b'[') {
            return Err("missing '[' after '%f' in pattern");
        }
        let end = self.item_end(set)?;
        let before = if at == 0 { 0 } else { self.text[at - 1] };
        let after = self.text.get(at).copied().unwrap_or(0);
        if self.in_set(before, set, end - 1) || !self.in_set(after, set, end - 1) {
            return Ok(false);
        }
        *item = end;
        Ok(true)
    }

    fn back_reference(&mut self, digit: u8, at: &mut usize, item: &mut usize) -> Step {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let captured = match self.captures[..self.len].get(index) {
            None | Some(Capture::Open(_)) => return Err("invalid capture index"),
            Some(Capture::Position(_)) => &[][..],
            Some(Capture::Text(start, end)) => &self.text[*start..*end],
        };
        let len = captured.len();
        if !self.text[*at..].starts_with(captured) {
            return Ok(false);
        }
        self.spend(len / 8)?;
        *at += len;
        *item += 2;
        Ok(true)
    }

    /// A single byte's item, with what repeats it.
    fn single(&mut self, at: &mut usize, item: &mut usize) -> Step {
        let end = self.item_end(*item)?;
        let matches = self.matches_one(*at, *item, end);
        match self.pattern.get(end) {
            Some(b'?') => {
                if matches {
                    self.choices.push(Choice::Skip { at: *at, next: end + 1 });
                    *at += 1;
                }
                *item = end + 1;
            }
            Some(repeat @ (b'*' | b'+')) => {
                let min = usize::from(*repeat == b'+');
                let mut count = 0;
                while self.matches_one(*at + count, *item, end) {
                    count += 1;
                }
                self.spend(count / 8)?;
                if count < min {
                    return Ok(false);
                }
                if count > min {
                    self.choices.push(Choice::Greedy { from: *at, count, min, next: end + 1 });
                }
                *at += count;
                *item = end + 1;
            }
            Some(b'-') => {
                self.choices.push(Choice::Lazy { at: *at, item: *item, end });
                *item = end + 1;
            }
            _ if matches => {
                *at += 1;
                *item = end;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The end of the item that begins here, without what repeats it.
    fn item_end(&self, item: usize) -> Result<usize, &'static str> {
        match self.pattern[item] {
            b'%' if item + 1 >= self.pattern.len() => Err("malformed pattern (ends with '%')"),
            b'%' => Ok(item + 2),
            b'[' => {
                let mut at = item + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A ] that comes first belongs to the set.
                loop {
                    let byte = *self.pattern.get(at).ok_or("malformed pattern (missing ']')")?;
                    at += 1;
                    if byte == b'%' && at < self.pattern.len() {
                        at += 1;
                    }
                    if self.pattern.get(at) == Some(&b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(item + 1),
        }
    }

    #[inline]
    fn matches_one(&self, at: usize, item: usize, end: usize) -> bool {
        let Some(byte) = self.text.get(at).copied() else { return false };
        match self.pattern[item] {
            b'.' => true,
            b'%' => in_class(byte, self.pattern[item + 1]),
            b'[' => self.in_set(byte, item, end - 1),
            literal => literal == byte,
        }
    }

    /// Whether a byte is in the set that begins with `[` at `item` and ends with `]` at `last`.
    fn in_set(&self, byte: u8, item: usize, last: usize) -> bool {
        let mut at = item + 1;
        let is_negated = self.pattern.get(at) == Some(&b'^');
        at += usize::from(is_negated);
        while at < last {
            if self.pattern[at] == b'%' {
                if in_class(byte, self.pattern[at + 1]) {
                    return !is_negated;
                }
                at += 2;
            } else if self.pattern.get(at + 1) == Some(&b'-') && at + 2 < last {
                if (self.pattern[at]..=self.pattern[at + 2]).contains(&byte) {
                    return !is_negated;
                }
                at += 3;
            } else {
                if self.pattern[at] == byte {
                    return !is_negated;
                }
                at += 1;
            }
        }
        is_negated
    }
}

/// Whether a byte is in a class such as `%a`.
fn in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => crate::number::is_space(byte),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}

/// Whether a pattern is plain text.
pub(super) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|b| b"^$*+?.([%-".contains(b))
}

/// Where a plain text is found first.
pub(super) fn find_plain(text: &[u8], part: &[u8], from: usize) -> Result<Option<usize>, &'static str> {
    /// What is compared before the whole is.
    const HEAD: usize = 16;
    let Some((first, rest)) = part.split_first() else { return Ok(Some(from)) };
    let head = &rest[..rest.len().min(HEAD)];
    let mut steps_left = steps_for(text.len());
    let mut at = from;
    while let Some(offset) = text.get(at..).and_then(|left| left.iter().position(|b| b == first)) {
        at += offset + 1;
        if text[at..].starts_with(head) {
            if text[at..].starts_with(rest) {
                return Ok(Some(at - 1));
            }
            // Two texts of repetitions could be compared for ever.
            steps_left = steps_left.checked_sub(rest.len() / 8).ok_or("pattern too complex")?;
        }
    }
    Ok(None)
}
