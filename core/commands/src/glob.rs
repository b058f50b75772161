//! Redis' patterns for keys: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` before a character that stands for itself.

/// Most steps that one match takes beyond the lengths of pattern and text. A star makes the worst case quadratic, so a
/// long pattern against a long key could take hours.
const STEPS_LIMIT: u64 = 1 << 20;

/// A match was given up after too many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooComplex;

/// Whether a pattern matches the whole of a short text, such as a name of ours.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Glob::of(pattern).is_none_or(|glob| glob.matches(text, &mut 0) == Ok(true))
}

/// A pattern that does not match everything.
#[derive(Clone, Copy, Debug)]
pub struct Glob<'a> {
    pattern: &'a [u8],
}

impl<'a> Glob<'a> {
    /// A pattern, or `None` for `*`, which matches everything.
    pub fn of(pattern: &'a [u8]) -> Option<Glob<'a>> {
        (pattern != b"*").then_some(Glob { pattern })
    }

    /// Whether the pattern matches the whole text. The steps that it took are added to `steps`.
    pub fn matches(&self, text: &[u8], steps: &mut u64) -> Result<bool, TooComplex> {
        let pattern = self.pattern;
        if text.is_empty() {
            // As in Redis, where not even `**` matches nothing.
            return Ok(pattern.is_empty());
        }
        let limit = *steps + STEPS_LIMIT + pattern.len() as u64 + text.len() as u64;
        let (mut at, mut text_at) = (0, 0);
        // Behind the last star, and the first byte of text that it does not cover. A shorter reach of an earlier star
        // need not be tried again: whatever it would give, the last star can give as well.
        let mut last_star: Option<(usize, usize)> = None;
        while text_at < text.len() {
            if pattern.get(at) == Some(&b'*') {
                let stars = stars_at(pattern, at);
                at += stars;
                *steps += stars as u64;
                if at == pattern.len() {
                    return Ok(true);
                }
                last_star = Some((at, text_at));
            }
            let (matches, width) = match_one(&pattern[at..], text[text_at]);
            *steps += 1 + width as u64;
            if *steps > limit {
                return Err(TooComplex);
            }
            if matches {
                at += width;
                text_at += 1;
            } else if let Some((behind_star, covered)) = last_star {
                last_star = Some((behind_star, covered + 1));
                (at, text_at) = (behind_star, covered + 1);
            } else {
                return Ok(false);
            }
        }
        Ok(at + stars_at(pattern, at) == pattern.len())
    }
}

fn stars_at(pattern: &[u8], at: usize) -> usize {
    pattern[at..].iter().take_while(|&&b| b == b'*').count()
}

/// Matches one byte against the element that a pattern starts with; returns the element's width too.
fn match_one(pattern: &[u8], byte: u8) -> (bool, usize) {
    match *pattern {
        [] => (false, 0),
        [b'?', ..] => (true, 1),
        [b'[', ..] => match_class(pattern, byte),
        [b'\\', escaped, ..] => (escaped == byte, 2),
        [literal, ..] => (literal == byte, 1),
    }
}

/// Matches one byte against a class of characters. One that is not closed goes to the end of the pattern.
fn match_class(pattern: &[u8], byte: u8) -> (bool, usize) {
    let is_negated = pattern.get(1) == Some(&b'^');
    let mut at = if is_negated { 2 } else { 1 };
    let mut is_in = false;
    loop {
        match pattern[at..] {
            [] => break,
            [b'\\', escaped, ..] => {
                is_in |= escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [a, b'-', b, ..] => {
                // Redis compares the bytes as signed characters.
                let [a, b, byte] = [a, b, byte].map(|b| b as i8);
                is_in |= (a.min(b)..=a.max(b)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_in |= literal == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn ranges_are_of_signed_characters() {
        assert!(matches(b"[a-\xff]", b"\xff") && matches(b"[a-\xff]", b"A") && !matches(b"[a-\xff]", b"b"));
    }

    #[test]
    fn matches_what_redis_matches() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "", false),
            ("**", "a", true),
            ("a*", "a", true),
            ("a**", "a", true),
            ("a*?", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("*a*b*c", "xxaxxbxxcxc", true),
            ("*a*b*c", "xxaxxbxxcxcx", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("[a-]", "]", true),
            ("[a-]", "-", false),
            ("[]", "]", false),
            ("[^]", "x", true),
            ("[abc", "c", true),
            ("a[", "ab", false),
            ("[^", "b", true),
            ("[\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("[\\", "\\", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} on {text}");
        }
    }

    /// All ways to match, tried one after the other.
    fn matches_slowly(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|at| matches_slowly(rest, &text[at..])),
            ([], _) | (_, []) => false,
            _ => {
                let (is_match, width) = match_one(pattern, text[0]);
                is_match && matches_slowly(&pattern[width..], &text[1..])
            }
        }
    }

    #[test]
    fn agrees_with_trying_everything() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..50_000 {
            let mut word = |letters: &[u8], len| -> Vec<u8> {
                (0..rng.usize(1..len)).map(|_| letters[rng.usize(..letters.len())]).collect()
            };
            let (pattern, text) = (word(b"ab**?[]^-\\", 10), word(b"ab-]", 9));
            let glob = Glob { pattern: &pattern };
            assert_eq!(glob.matches(&text, &mut 0), Ok(matches_slowly(&pattern, &text)), "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn hostile_patterns_are_given_up() {
        let text = alloc::vec![b'a'; 100_000];
        let pattern = [b"*".to_vec(), b"a".repeat(50_000), b"b".to_vec()].concat();
        assert_eq!(Glob { pattern: &pattern }.matches(&text, &mut 0), Err(TooComplex));
        let mut steps = 0;
        let stars = [b"*a".repeat(30), b"b".to_vec()].concat();
        assert_eq!(Glob { pattern: &stars }.matches(&text[..1000], &mut steps), Ok(false));
        assert!(steps < 100_000, "{steps}");
        // Stars in a row are one, but they have to be passed.
        let mut steps = 0;
        let stars = [b"*".repeat(5000), b"b".to_vec()].concat();
        assert_eq!(Glob { pattern: &stars }.matches(b"a", &mut steps), Ok(false));
        assert!(steps > 5000, "{steps}");
    }
}
