//! Numbers as text: C's `%.14g`, the other conversions of `printf`, and `strtod`.

use alloc::{string::String, vec::Vec};
use core::fmt::Write as _;
use kayvee_platform::Decimal;

/// A number as `tostring` shows it: C's `%.14g`.
pub fn format_number(number: f64, out: &mut Vec<u8>) {
    const EXACT: f64 = 100_000_000_000_000.0;
    let integer = number as i64;
    if integer as f64 == number && libm::fabs(number) < EXACT && !(number == 0.0 && number.is_sign_negative()) {
        return out.extend_from_slice(Decimal::new(integer).as_bytes());
    }
    format_general(number, 14, Style::default(), out);
}

/// A number with so many digits: C's `%.*g`.
pub fn format_digits(number: f64, digits: usize, out: &mut Vec<u8>) {
    format_general(number, digits, Style::default(), out);
}

/// How a floating-point conversion of `printf` writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Style {
    /// `#`: keeps the point and trailing zeros.
    pub is_alternate: bool,
    pub is_upper: bool,
}

fn special(number: f64, style: Style, out: &mut Vec<u8>) -> bool {
    let text: &[u8] = match (number.is_nan(), number.is_infinite(), style.is_upper) {
        (true, _, false) => b"nan",
        (true, _, true) => b"NAN",
        (_, true, false) => b"inf",
        (_, true, true) => b"INF",
        _ => return false,
    };
    if number.is_sign_negative() {
        out.push(b'-');
    }
    out.extend_from_slice(text);
    true
}

/// C's `%.*f`.
pub(crate) fn format_fixed(number: f64, precision: usize, style: Style, out: &mut Vec<u8>) {
    if special(number, style, out) {
        return;
    }
    let mut text = String::new();
    let _ = write!(text, "{number:.precision$}");
    out.extend_from_slice(text.as_bytes());
    if precision == 0 && style.is_alternate {
        out.push(b'.');
    }
}

/// C's `%.*e`.
pub(crate) fn format_exponent(number: f64, precision: usize, style: Style, out: &mut Vec<u8>) {
    if special(number, style, out) {
        return;
    }
    let (mantissa, exponent) = scientific(number, precision);
    out.extend_from_slice(mantissa.as_bytes());
    if precision == 0 && style.is_alternate {
        out.push(b'.');
    }
    put_exponent(exponent, style, out);
}

fn scientific(number: f64, precision: usize) -> (String, i32) {
    let mut text = String::new();
    let _ = write!(text, "{number:.precision$e}");
    let at = text.find('e').unwrap_or(text.len());
    let exponent = text.get(at + 1..).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    text.truncate(at);
    (text, exponent)
}

fn put_exponent(exponent: i32, style: Style, out: &mut Vec<u8>) {
    out.push(if style.is_upper { b'E' } else { b'e' });
    out.push(if exponent < 0 { b'-' } else { b'+' });
    if exponent.abs() < 10 {
        out.push(b'0');
    }
    out.extend_from_slice(Decimal::new(exponent.abs().into()).as_bytes());
}

/// C's `%.*g`.
pub(crate) fn format_general(number: f64, precision: usize, style: Style, out: &mut Vec<u8>) {
    if special(number, style, out) {
        return;
    }
    let precision = precision.max(1);
    let (mut text, exponent) = scientific(number, precision - 1);
    let is_fixed = exponent >= -4 && (exponent as i64) < precision as i64;
    if is_fixed {
        text.clear();
        let decimals = (precision as i32 - 1 - exponent) as usize;
        let _ = write!(text, "{number:.decimals$}");
    }
    if style.is_alternate {
        if !text.contains('.') {
            text.push('.');
        }
    } else if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    out.extend_from_slice(text.as_bytes());
    if !is_fixed {
        put_exponent(exponent, style, out);
    }
}

/// A text as a number, by the rules of C's `strtod` with space around it, or `None`.
pub fn parse_number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start_c();
    let (number, len) = parse_prefix(text)?;
    text[len..].iter().all(|b| is_space(*b)).then_some(number)
}

/// `isspace` of C's locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

trait TrimC {
    fn trim_ascii_start_c(&self) -> &[u8];
}

impl TrimC for [u8] {
    fn trim_ascii_start_c(&self) -> &[u8] {
        let start = self.iter().position(|b| !is_space(*b)).unwrap_or(self.len());
        &self[start..]
    }
}

/// What `strtod` makes of the start of a text, and the length of what it has used.
pub(crate) fn parse_prefix(text: &[u8]) -> Option<(f64, usize)> {
    let (is_negative, sign_len) = match text.first() {
        Some(b'-') => (true, 1),
        Some(b'+') => (false, 1),
        _ => (false, 0),
    };
    let rest = &text[sign_len..];
    let (magnitude, len) = match rest {
        [b'0', b'x' | b'X', ..] => parse_hexadecimal(rest),
        [b'0'..=b'9' | b'.', ..] => parse_decimal(rest)?,
        _ => parse_word(rest)?,
    };
    Some((if is_negative { -magnitude } else { magnitude }, sign_len + len))
}

fn parse_word(text: &[u8]) -> Option<(f64, usize)> {
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if starts(b"infinity") {
        Some((f64::INFINITY, 8))
    } else if starts(b"inf") {
        Some((f64::INFINITY, 3))
    } else if starts(b"nan") {
        Some((f64::NAN, 3))
    } else {
        None
    }
}

fn digits_len(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

fn parse_decimal(text: &[u8]) -> Option<(f64, usize)> {
    let mut len = digits_len(text);
    let mut digits = len;
    if text.get(len) == Some(&b'.') {
        let decimals = digits_len(&text[len + 1..]);
        digits += decimals;
        len += 1 + decimals;
    }
    if digits == 0 {
        return None;
    }
    if let Some(b'e' | b'E') = text.get(len) {
        let sign = usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        let exponent = digits_len(&text[len + 1 + sign..]);
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    let number = core::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    Some((number, len))
}

/// A hexadecimal number with its `0x`, a point and a binary exponent, as C99 has them. Without digits it is the 0 before
/// the x.
fn parse_hexadecimal(text: &[u8]) -> (f64, usize) {
    // Digits beyond what fits only tell whether anything is lost, which decides a tie in rounding.
    let (mut mantissa, mut scale, mut digits, mut at, mut past_point) = (0_u64, 0_i32, 0, 2, false);
    while let Some(byte) = text.get(at) {
        match (byte, (*byte as char).to_digit(16)) {
            (b'.', _) if !past_point => past_point = true,
            (_, Some(digit)) => {
                digits += 1;
                if mantissa >> 60 == 0 {
                    mantissa = mantissa << 4 | u64::from(digit);
                    scale -= if past_point { 4 } else { 0 };
                } else {
                    mantissa |= u64::from(digit != 0);
                    scale = scale.saturating_add(if past_point { 0 } else { 4 });
                }
            }
            _ => break,
        }
        at += 1;
    }
    if digits == 0 {
        return (0.0, 1);
    }
    if let Some(b'p' | b'P') = text.get(at) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits_len(&text[at + 1 + sign..]);
        if exponent > 0 {
            let digits = &text[at + 1 + sign..at + 1 + sign + exponent];
            let power = digits.iter().fold(0_i32, |sum, b| sum.saturating_mul(10).saturating_add((b - b'0').into()));
            scale = scale.saturating_add(if text[at + 1] == b'-' { -power } else { power });
            at += 1 + sign + exponent;
        }
    }
    (libm::ldexp(mantissa as f64, scale), at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn shown(number: f64) -> String {
        let mut out = Vec::new();
        format_number(number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_shown_with_fourteen_digits() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-17.0, "-17"),
            (0.1, "0.1"),
            (1e14, "1e+14"),
            (99_999_999_999_999.0, "99999999999999"),
            (123_456_789_012_345.0, "1.2345678901234e+14"),
            (1.0 / 3.0, "0.33333333333333"),
            (1e100, "1e+100"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (3.25, "3.25"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(shown(number), text);
        }
    }

    #[test]
    fn texts_become_numbers() {
        for (text, number) in [
            ("10", 10.0),
            ("  0x10  ", 16.0),
            ("1e2", 100.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("-0x1p4", -16.0),
            ("0x.8", 0.5),
            ("1e400", f64::INFINITY),
            ("inf", f64::INFINITY),
            ("\t\n12\r", 12.0),
        ] {
            assert_eq!(parse_number(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", " ", "1e", "0x", "1 2", ".", "e5", "1..2", "abc", "--1", "0x1g"] {
            assert_eq!(parse_number(text.as_bytes()), None, "{text}");
        }
        assert!(parse_number(b"nan").unwrap().is_nan());
        assert_eq!(parse_prefix(b"12abc"), Some((12.0, 2)));
    }

    #[test]
    fn conversions_of_printf() {
        let style = Style::default();
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(&|out| format_fixed(2.5, 0, style, out)), "2");
        assert_eq!(text(&|out| format_fixed(1e15, 2, style, out)), "1000000000000000.00");
        assert_eq!(text(&|out| format_exponent(12345.678, 3, style, out)), "1.235e+04");
        assert_eq!(text(&|out| format_general(100_000.0, 6, style, out)), "100000");
        assert_eq!(text(&|out| format_general(1_000_000.0, 6, style, out)), "1e+06");
        assert_eq!(text(&|out| format_general(0.5, 3, Style { is_alternate: true, ..style }, out)), "0.500");
        assert_eq!(5.to_string(), "5");
    }
}
