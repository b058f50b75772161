//! Patterns as `KEYS` and `CONFIG GET` take them: `*`, `?`, `[a-z]`, `[^a-z]` and `\` before a literal.

/// Whether the whole text matches. Time is at most the product of both lengths, whatever the pattern.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on if the present attempt fails: behind the last star, which then takes one byte more. An earlier
    // star never needs to be tried again, because every other element takes exactly one byte.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        match (text.get(t), match_one(&pattern[p..], text.get(t))) {
            (None, _) if p == pattern.len() => return true,
            (Some(_), Some(len)) => (p, t) = (p + len, t + 1),
            _ => match &mut retry {
                Some((after_star, taken)) if *taken < text.len() => {
                    *taken += 1;
                    (p, t) = (*after_star, *taken);
                }
                _ => return false,
            },
        }
    }
}

/// Matches the first element of a pattern, which is no star, with one byte. Returns the element's length.
fn match_one(pattern: &[u8], byte: Option<&u8>) -> Option<usize> {
    let byte = *byte?;
    match *pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => {
            let (is_in, len) = match_class(pattern, byte);
            is_in.then_some(len)
        }
        [b'\\', literal, ..] => (literal == byte).then_some(2),
        [literal, ..] => (literal == byte).then_some(1),
    }
}

/// Whether a byte is in the class that the pattern begins with, and the class's length. One that is not closed ends with
/// the pattern, as in Redis.
fn match_class(pattern: &[u8], byte: u8) -> (bool, usize) {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut is_in = false;
    loop {
        match pattern[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                is_in |= literal == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                is_in |= (from.min(to)..=from.max(to)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_in |= literal == byte;
                at += 1;
            }
        }
    }
    (is_in != negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "aXXbYYbZc", true),
            ("a*b*c", "aXXbYYbZ", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[a", "a", true),
            ("a\\", "a\\", true),
            ("***a", "bba", true),
            ("*[0-9]*", "ab3c", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn hostile_patterns_take_bounded_time() {
        let pattern = b"a*".repeat(2000);
        let text = [b"a".repeat(4000), b"b".to_vec()].concat();
        assert!(matches(&pattern, &text));
        assert!(!matches(&[pattern, b"c".to_vec()].concat(), &text));
    }
}
