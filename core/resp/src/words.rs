use alloc::vec::Vec;

/// A quoted word that does not end, or a closing quote that is not followed by a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnbalancedQuotes;

/// Splits one line into words as Redis does for inline commands and configuration lines.
///
/// Words are separated by white space; but a vertical tab or form feed separates only where no word has begun. `"…"` understands `\n \r \t \b \a \\ \" \xHH`; `'…'` only `\'`.
pub fn split_words(line: &[u8]) -> Result<Vec<Vec<u8>>, UnbalancedQuotes> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some(start) = next_word(rest) {
        let mut word = Vec::new();
        rest = split_word(&rest[start..], &mut word)?;
        words.push(word);
    }
    Ok(words)
}

/// Where the first word of a line starts, if there is one.
pub fn next_word(line: &[u8]) -> Option<usize> {
    line.iter().position(|&b| !is_space(b)).filter(|&start| line[start] != 0)
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Appends the word that a line starts with, unquoted, to `word`, and returns the rest of the line. No word is longer
/// than the bytes that it was written in.
pub fn split_word<'a>(line: &'a [u8], word: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | 0 => break,
            b'"' | b'\'' => {
                at = if byte == b'"' { double_quoted(line, at + 1, word)? } else { single_quoted(line, at + 1, word)? };
                // A closing quote ends the word: only white space or the end may follow.
                match line.get(at) {
                    None | Some(0) => {}
                    Some(&b) if is_space(b) => {}
                    Some(_) => return Err(UnbalancedQuotes),
                }
                break;
            }
            _ => {
                word.push(byte);
                at += 1;
            }
        }
    }
    Ok(&line[at..])
}

/// Reads up to the closing quote and returns the offset behind it.
fn double_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Result<usize, UnbalancedQuotes> {
    loop {
        match (line.get(at), line.get(at + 1)) {
            (None, _) => return Err(UnbalancedQuotes),
            (Some(b'"'), _) => return Ok(at + 1),
            (Some(b'\\'), Some(b'x')) if hex_byte(line, at + 2).is_some() => {
                word.extend(hex_byte(line, at + 2));
                at += 4;
            }
            (Some(b'\\'), Some(&escaped)) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                at += 2;
            }
            (Some(&byte), _) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn single_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Result<usize, UnbalancedQuotes> {
    loop {
        match (line.get(at), line.get(at + 1)) {
            (None, _) => return Err(UnbalancedQuotes),
            (Some(b'\''), _) => return Ok(at + 1),
            (Some(b'\\'), Some(b'\'')) => {
                word.push(b'\'');
                at += 2;
            }
            (Some(&byte), _) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn hex_byte(line: &[u8], at: usize) -> Option<u8> {
    let digit = |i: usize| (*line.get(i)? as char).to_digit(16);
    Some((digit(at)? * 16 + digit(at + 1)?) as u8)
}

/// Writes bytes in double quotes as Redis shows them in `MONITOR` and in configuration files: [`split_words`] reads them
/// back.
pub fn quoted(bytes: &[u8]) -> impl core::fmt::Display + '_ {
    struct Quoted<'a>(&'a [u8]);
    impl core::fmt::Display for Quoted<'_> {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("\"")?;
            for &byte in self.0 {
                match byte {
                    b'\\' | b'"' => write!(f, "\\{}", byte as char)?,
                    b'\n' => f.write_str("\\n")?,
                    b'\r' => f.write_str("\\r")?,
                    b'\t' => f.write_str("\\t")?,
                    7 => f.write_str("\\a")?,
                    8 => f.write_str("\\b")?,
                    b' '..=b'~' => write!(f, "{}", byte as char)?,
                    _ => write!(f, "\\x{byte:02x}")?,
                }
            }
            f.write_str("\"")
        }
    }
    Quoted(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<Vec<u8>>, UnbalancedQuotes> {
        split_words(line.as_bytes())
    }

    #[test]
    fn splits_at_white_space_and_honours_quotes() {
        assert_eq!(words("  set  a\tb \r\n").unwrap(), [b"set".to_vec(), b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(words(r#"set k "a b\x41\n\"" 'it\'s'"#).unwrap()[2..], [b"a bA\n\"".to_vec(), b"it's".to_vec()]);
        assert_eq!(words("\x0b\x0cping\x0bx \x0c").unwrap(), [b"ping\x0bx".to_vec()]);
        assert_eq!(words("''").unwrap(), [b"".to_vec()]);
        assert_eq!(words("").unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn what_is_quoted_reads_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"a b", b"\"\\"] {
            assert_eq!(words(&alloc::format!("{}", quoted(bytes))).unwrap(), [bytes.to_vec()]);
        }
    }

    #[test]
    fn refuses_unbalanced_quotes() {
        for line in ["\"a", "'a", "\"a\"b", "'a'b", "\"\\"] {
            assert_eq!(words(line), Err(UnbalancedQuotes), "{line}");
        }
    }
}
