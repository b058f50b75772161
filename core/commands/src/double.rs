//! Floating-point numbers as Redis reads and writes them: by C's `strtod`, in the shortest form that reads back as the
//! same number, and by C's `%.17g`.

use core::fmt::{self, Write};
use kayvee_keyspace::{Decimal, parse_integer};

/// Longest text: a sign, 17 digits, a point, up to 22 zeros, an exponent.
const TEXT_BYTES: usize = 48;

/// A number's text, without the heap.
pub struct DoubleText {
    bytes: [u8; TEXT_BYTES],
    len: usize,
}

/// The significant digits of a finite number that is not zero: `d₀.d₁d₂… × 10^exponent`.
struct Digits {
    text: [u8; 20],
    len: usize,
    exponent: i32,
}

impl Write for DoubleText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.push(part.as_bytes());
        Ok(())
    }
}

impl Digits {
    /// Reads what Rust's `{:e}` has written of a number without sign.
    fn read(text: &[u8]) -> Digits {
        let mut digits = Digits { text: [0; 20], len: 0, exponent: 0 };
        let mark = text.iter().position(|&b| b == b'e').expect("there is an exponent");
        for &digit in text[..mark].iter().filter(|b| b.is_ascii_digit()) {
            digits.text[digits.len] = digit;
            digits.len += 1;
        }
        while digits.len > 1 && digits.text[digits.len - 1] == b'0' {
            digits.len -= 1;
        }
        digits.exponent = parse_integer(&text[mark + 1..]).expect("it is a number") as i32;
        digits
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl DoubleText {
    const EMPTY: DoubleText = DoubleText { bytes: [0; TEXT_BYTES], len: 0 };

    /// The shortest text that reads back as this number, as Redis 7.2 replies with it.
    pub fn shortest(number: f64) -> DoubleText {
        // Where integers are exact, with a margin, as Redis has it.
        const INTEGER_LIMIT: f64 = (i64::MAX / 2) as f64;
        let mut text = DoubleText::EMPTY;
        let integer = number as i64;
        if number.abs() <= INTEGER_LIMIT && integer as f64 == number && (integer != 0 || number.is_sign_positive()) {
            text.push(Decimal::new(integer).as_bytes());
            return text;
        }
        if text.push_special(number) {
            return text;
        }
        let mut scientific = DoubleText::EMPTY;
        _ = write!(scientific, "{:e}", number.abs());
        let digits = Digits::read(scientific.as_str().as_bytes());
        // The power of ten of the last digit.
        let last = digits.exponent - (digits.len as i32 - 1);
        let magnitude = digits.exponent.unsigned_abs() as usize;
        if (last >= 0 && magnitude < digits.len + 7) || (last < 0 && (last > -7 || magnitude < 4)) {
            text.push_plain(&digits);
        } else {
            text.push_scientific(&digits, 1);
        }
        text
    }

    /// The number as C's `%.17g` prints it.
    pub fn precise(number: f64) -> DoubleText {
        const PRECISION: i32 = 17;
        let mut text = DoubleText::EMPTY;
        if text.push_special(number) {
            return text;
        }
        let mut scientific = DoubleText::EMPTY;
        _ = write!(scientific, "{:.16e}", number.abs());
        let digits = Digits::read(scientific.as_str().as_bytes());
        if (-4..PRECISION).contains(&digits.exponent) {
            text.push_plain(&digits);
        } else {
            text.push_scientific(&digits, 2);
        }
        text
    }

    /// The number as C's `%.17Lf` prints it, without zeros at the end. Meant for small ones: what is too long is cut off.
    pub fn plain(number: f64) -> DoubleText {
        let mut text = DoubleText::EMPTY;
        _ = write!(text, "{number:.17}");
        let shown = text.as_str().trim_end_matches('0').trim_end_matches('.');
        text.len = if shown == "-0" { 0 } else { shown.len() };
        if text.len == 0 {
            text.push(b"0");
        }
        text
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).expect("all of it is ASCII")
    }

    fn push(&mut self, part: &[u8]) {
        // What does not fit is cut off: no caller writes more, but a panic would be worse.
        let part = &part[..part.len().min(TEXT_BYTES - self.len)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    fn push_zeros(&mut self, count: usize) {
        (0..count).for_each(|_| self.push(b"0"));
    }

    /// Writes what has no digits, or else the sign. Returns whether that is all.
    fn push_special(&mut self, number: f64) -> bool {
        if number.is_nan() {
            self.push(b"nan");
            return true;
        }
        if number.is_sign_negative() {
            self.push(b"-");
        }
        match number {
            _ if number.is_infinite() => self.push(b"inf"),
            0.0 => self.push(b"0"),
            _ => return false,
        }
        true
    }

    fn push_plain(&mut self, digits: &Digits) {
        let text = digits.as_bytes();
        match usize::try_from(digits.exponent) {
            Err(_) => {
                self.push(b"0.");
                self.push_zeros(digits.exponent.unsigned_abs() as usize - 1);
                self.push(text);
            }
            Ok(exponent) if exponent + 1 >= text.len() => {
                self.push(text);
                self.push_zeros(exponent + 1 - text.len());
            }
            Ok(exponent) => {
                self.push(&text[..exponent + 1]);
                self.push(b".");
                self.push(&text[exponent + 1..]);
            }
        }
    }

    fn push_scientific(&mut self, digits: &Digits, exponent_digits: usize) {
        let text = digits.as_bytes();
        self.push(&text[..1]);
        if text.len() > 1 {
            self.push(b".");
            self.push(&text[1..]);
        }
        self.push(if digits.exponent < 0 { b"e-" } else { b"e+" });
        let exponent = Decimal::unsigned(digits.exponent.unsigned_abs().into());
        self.push_zeros(exponent_digits.saturating_sub(exponent.as_bytes().len()));
        self.push(exponent.as_bytes());
    }
}

/// What C's `strtod` makes of a text.
struct Parsed {
    value: f64,
    /// Bytes that belong to the number; none, if it is none.
    len: usize,
    /// Whether it is too small for a number other than zero.
    is_underflow: bool,
}

/// Reads a number that is all of the text, as Redis reads a score: nothing that is too large or too small, no space.
pub fn parse(text: &[u8]) -> Option<f64> {
    /// Integers of up to 15 digits are exact.
    const EXACT_DIGITS: usize = 15;
    if text.len() <= EXACT_DIGITS
        && let Some(integer) = parse_integer(text)
    {
        return Some(integer as f64);
    }
    if text.first().is_none_or(|&b| is_space(b)) {
        return None;
    }
    let Parsed { value, len, is_underflow } = strtod(text);
    let names_infinity = text.iter().any(|b| matches!(b, b'n' | b'N'));
    let is_overflow = value.is_infinite() && !names_infinity;
    (len == text.len() && !value.is_nan() && !is_overflow && !is_underflow).then_some(value)
}

/// Reads a number as Redis reads the end of a range: the whole of a C string, where too much is infinite, and nothing zero.
pub fn parse_bound(text: &[u8]) -> Option<f64> {
    let text = text.split(|&b| b == 0).next().unwrap_or_default();
    let Parsed { value, len, .. } = strtod(text);
    (len == text.len() && !value.is_nan()).then_some(value)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn strtod(text: &[u8]) -> Parsed {
    const NOTHING: Parsed = Parsed { value: 0.0, len: 0, is_underflow: false };
    let spaces = text.iter().take_while(|&&b| is_space(b)).count();
    let sign = usize::from(matches!(text.get(spaces), Some(b'-' | b'+')));
    let is_negative = text.get(spaces) == Some(&b'-');
    let start = spaces + sign;
    let rest = &text[start..];
    let begins = |word: &[u8]| rest.get(..word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word));
    let (value, len, is_underflow) = if begins(b"infinity") {
        (f64::INFINITY, 8, false)
    } else if begins(b"inf") {
        (f64::INFINITY, 3, false)
    } else if begins(b"nan") {
        (f64::NAN, 3, false)
    } else {
        let hexadecimal = if begins(b"0x") { hexadecimal(rest) } else { None };
        match hexadecimal.or_else(|| decimal(rest)) {
            Some(number) => number,
            None => return NOTHING,
        }
    };
    Parsed { value: if is_negative { -value } else { value }, len: start + len, is_underflow }
}

/// The lengths of a mantissa and of an exponent behind it that begins with this mark.
fn measure(text: &[u8], is_digit: fn(&u8) -> bool, mark: u8) -> Option<(usize, usize)> {
    let mut has_point = false;
    let mut digits = 0;
    let mantissa = text.iter().take_while(|&b| {
        let is_point = *b == b'.' && !has_point;
        has_point |= is_point;
        digits += usize::from(is_digit(b));
        is_digit(b) || is_point
    });
    let mantissa = mantissa.count();
    if digits == 0 {
        return None;
    }
    let rest = &text[mantissa..];
    let sign = usize::from(matches!(rest.get(1), Some(b'-' | b'+')));
    let exponent = match rest.first() {
        Some(first) if first.eq_ignore_ascii_case(&mark) => {
            rest[1..].iter().skip(sign).take_while(|b| b.is_ascii_digit()).count()
        }
        _ => 0,
    };
    Some((mantissa, if exponent > 0 { 1 + sign + exponent } else { 0 }))
}

fn decimal(text: &[u8]) -> Option<(f64, usize, bool)> {
    let (mantissa, exponent) = measure(text, u8::is_ascii_digit, b'e')?;
    let len = mantissa + exponent;
    let value: f64 = core::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    let has_digits = text[..mantissa].iter().any(|b| matches!(b, b'1'..=b'9'));
    Some((value, len, value == 0.0 && has_digits))
}

/// A hexadecimal number, which Lua has as well.
fn hexadecimal(text: &[u8]) -> Option<(f64, usize, bool)> {
    const PREFIX: usize = 2;
    let (mantissa, exponent) = measure(&text[PREFIX..], u8::is_ascii_hexdigit, b'p')?;
    let len = PREFIX + mantissa + exponent;
    let value = kayvee_lua::parse_number(&text[..len])?;
    let has_digits = text[PREFIX..PREFIX + mantissa].iter().any(|b| !matches!(b, b'0' | b'.'));
    Some((value, len, value == 0.0 && has_digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_texts_are_those_of_redis() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-3.0, "-3"),
            (0.1, "0.1"),
            (3.3, "3.3"),
            (1.5, "1.5"),
            (100.25, "100.25"),
            (1e-5, "0.00001"),
            (1.5e-7, "1.5e-7"),
            (1e-10, "1e-10"),
            (0.00123456789, "0.00123456789"),
            (0.000123456789, "1.23456789e-4"),
            (4e18, "4000000000000000000"),
            (5e18, "5e+18"),
            (1e20, "1e+20"),
            (1.2345e25, "1.2345e+25"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(DoubleText::shortest(number).as_str(), text);
        }
    }

    #[test]
    fn precise_texts_are_those_of_c() {
        for (number, text) in [
            (0.1, "0.10000000000000001"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.25e-4, "0.000125"),
            (1e-5, "1.0000000000000001e-05"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(DoubleText::precise(number).as_str(), text);
        }
    }

    #[test]
    fn texts_read_back() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let number = f64::from_bits(rng.u64(..));
            if number.is_nan() {
                continue;
            }
            for text in [DoubleText::shortest(number), DoubleText::precise(number)] {
                assert_eq!(parse(text.as_str().as_bytes()), Some(number), "{}", text.as_str());
            }
        }
    }

    #[test]
    fn reads_what_c_reads() {
        for (text, number) in [
            ("1", 1.0),
            ("+1", 1.0),
            ("-1.5e3", -1500.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("0x10", 16.0),
            ("0x1.8p1", 3.0),
            ("-inf", f64::NEG_INFINITY),
            ("+Infinity", f64::INFINITY),
            ("5e-324", 5e-324),
            ("0e999", 0.0),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(number), "{text}");
            assert_eq!(parse_bound(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", " 1", "1 ", "nan", "1e", "e5", ".", "-", "0x", "1e400", "1e-400", "inff", "1\0", "--1", "0x1p"]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        for (text, number) in [
            ("", Some(0.0)),
            (" 1", Some(1.0)),
            ("1e400", Some(f64::INFINITY)),
            ("1\0x", Some(1.0)),
            ("nan", None),
            ("1x", None),
        ] {
            assert_eq!(parse_bound(text.as_bytes()), number, "{text}");
        }
    }
}
