//! C's `long double` as it is on x86: 64 bits of significand, 15 of exponent.
//!
//! What parsing allocates is a few times the length of its text, which is limited.

use alloc::{string::String, vec::Vec};
use kayvee_keyspace::OutOfMemory;
use rustc_apfloat::{Float, Round, ieee::X87DoubleExtended};

/// Length from which on Redis does not take a text for a number.
const TEXT_LIMIT: usize = 5 << 10;
/// Digits behind the point that Redis prints.
const FRACTION_DIGITS: usize = 17;
const EXPONENT_BIAS: i32 = 16383;
/// Bits of the significand behind its binary point.
const FRACTION_BITS: i32 = 63;

/// A number.
#[derive(Clone, Copy, Debug)]
pub struct LongDouble(X87DoubleExtended);

impl LongDouble {
    pub const ZERO: LongDouble = LongDouble(X87DoubleExtended::ZERO);

    /// Reads what C's `strtold` takes as a whole, but for spaces and what is not a number.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() >= TEXT_LIMIT {
            return None;
        }
        let (is_negative, magnitude) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let magnitude = match magnitude.to_ascii_lowercase().as_slice() {
            b"inf" | b"infinity" => X87DoubleExtended::INFINITY,
            lower => parse_finite(lower)?,
        };
        Some(LongDouble(if is_negative { -magnitude } else { magnitude }))
    }

    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// The sum, unless it is infinite or not a number.
    pub fn plus(self, other: LongDouble) -> Option<LongDouble> {
        let sum = self.0.add_r(other.0, Round::NearestTiesToEven).value;
        sum.is_finite().then_some(LongDouble(sum))
    }

    /// The number as C's `%.17Lf` prints it, without the zeros at the end. It must be finite.
    pub fn to_text(self) -> Result<Vec<u8>, OutOfMemory> {
        assert!(self.0.is_finite());
        let bits = self.0.to_bits();
        let significand = bits as u64;
        // Denormal numbers have the exponent of the smallest normal one.
        let exponent = ((bits >> 64) as i32 & 0x7fff).max(1) - EXPONENT_BIAS - FRACTION_BITS;
        let mut text = Vec::new();
        text.try_reserve_exact(TEXT_LIMIT)?;
        if exponent >= 0 {
            Natural::shifted(significand, exponent as usize).write_to(&mut text);
        } else {
            write_fraction(significand, exponent.unsigned_abs(), &mut text);
        }
        if self.0.is_negative() && text != b"0" {
            text.insert(0, b'-');
        }
        text.shrink_to_fit();
        Ok(text)
    }
}

/// Reads a decimal or hexadecimal number without a sign, in lower case. One that is too large, or too small but not
/// zero, is not taken.
fn parse_finite(text: &[u8]) -> Option<X87DoubleExtended> {
    let (digits, is_digit, exponent_mark): (_, fn(&u8) -> bool, _) = match text.strip_prefix(b"0x") {
        Some(digits) => (digits, u8::is_ascii_hexdigit, b'p'),
        None => (text, u8::is_ascii_digit, b'e'),
    };
    let mantissa_len = digits.iter().take_while(|b| is_digit(b) || **b == b'.').count();
    let (mantissa, exponent) = digits.split_at(mantissa_len);
    let points = mantissa.iter().filter(|b| **b == b'.').count();
    if points > 1 || mantissa_len == points {
        return None;
    }
    let exponent_digits = match exponent {
        [] => &b"0"[..],
        [mark, b'+' | b'-', digits @ ..] | [mark, digits @ ..] if *mark == exponent_mark => digits,
        _ => return None,
    };
    if exponent_digits.is_empty() || !exponent_digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut number = String::from(core::str::from_utf8(text).ok()?);
    if exponent.is_empty() && exponent_mark == b'p' {
        number.push_str("p0");
    }
    let parsed = X87DoubleExtended::from_str_r(&number, Round::NearestTiesToEven).ok()?;
    let is_exactly_zero = mantissa.iter().all(|b| matches!(b, b'0' | b'.'));
    (parsed.value.is_finite() && parsed.value.is_zero() == is_exactly_zero).then_some(parsed.value)
}

/// Writes `significand / 2^shift` rounded to [`FRACTION_DIGITS`], half to even.
fn write_fraction(significand: u64, shift: u32, text: &mut Vec<u8>) {
    const SCALE: u128 = 10u128.pow(FRACTION_DIGITS as u32);
    let scaled = u128::from(significand) * SCALE;
    let rounded = if shift < u128::BITS {
        let (quotient, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1));
        quotient + u128::from(rest > half || (rest == half && quotient & 1 == 1))
    } else {
        0
    };
    let mut digits = [0; 48];
    let mut start = digits.len();
    let mut left = rounded;
    while left > 0 || digits.len() - start <= FRACTION_DIGITS {
        start -= 1;
        digits[start] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let (whole, fraction) = digits[start..].split_at(digits.len() - start - FRACTION_DIGITS);
    text.extend_from_slice(whole);
    let used = fraction.iter().rposition(|b| *b != b'0').map_or(0, |last| last + 1);
    if used > 0 {
        text.push(b'.');
        text.extend_from_slice(&fraction[..used]);
    }
}

/// A natural number as long as the longest whole `long double`.
struct Natural {
    /// Least significant first.
    limbs: [u32; Natural::LIMBS],
    len: usize,
}

impl Natural {
    /// The largest exponent shifts the significand by 2^14 - 64 bits; one limb more takes what a shift splits.
    const LIMBS: usize = (1 << 14) / 32 + 1;
    const GROUP: u32 = 1_000_000_000;
    const GROUP_DIGITS: usize = 9;

    fn shifted(number: u64, shift: usize) -> Natural {
        let mut natural = Natural { limbs: [0; Natural::LIMBS], len: Natural::LIMBS };
        let shifted = u128::from(number) << (shift % 32);
        for (at, limb) in natural.limbs[shift / 32..].iter_mut().take(3).enumerate() {
            *limb = (shifted >> (32 * at)) as u32;
        }
        natural
    }

    /// Divides by 10⁹ and returns the rest.
    fn take_group(&mut self) -> u32 {
        let mut rest = 0;
        for limb in self.limbs[..self.len].iter_mut().rev() {
            let dividend = u64::from(rest) << 32 | u64::from(*limb);
            *limb = (dividend / u64::from(Natural::GROUP)) as u32;
            rest = (dividend % u64::from(Natural::GROUP)) as u32;
        }
        self.len = self.limbs[..self.len].iter().rposition(|limb| *limb != 0).map_or(0, |last| last + 1);
        rest
    }

    fn write_to(mut self, text: &mut Vec<u8>) {
        let start = text.len();
        loop {
            let mut group = self.take_group();
            for _ in 0..Natural::GROUP_DIGITS {
                text.push(b'0' + (group % 10) as u8);
                group /= 10;
            }
            if self.len == 0 {
                break;
            }
        }
        while text.len() > start + 1 && text.last() == Some(&b'0') {
            text.pop();
        }
        text[start..].reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn shown(text: &str) -> Option<String> {
        LongDouble::parse(text.as_bytes()).map(|number| String::from_utf8(number.to_text().unwrap()).unwrap())
    }

    /// What gcc's `long double` gives for each.
    #[test]
    fn parses_and_prints_like_c() {
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("0e999999999999999999999", "0"),
            ("3.0e3", "3000"),
            (".5", "0.5"),
            ("5.", "5"),
            ("+5", "5"),
            ("0x1p3", "8"),
            ("0X.8P1", "1"),
            ("0xff", "255"),
            ("1e-17", "0.00000000000000001"),
            ("5.1e-18", "0.00000000000000001"),
            ("4.9e-18", "0"),
            ("-1e-30", "0"),
            ("0.1", "0.1"),
            ("3.14159265358979323846", "3.14159265358979324"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551617", "18446744073709551616"),
            ("123456789012345.678", "123456789012345.67800140380859375"),
            ("-1e21", "-1000000000000000000000"),
            ("1e-4940", "0"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        let largest = shown("1.18973149535723176502e4932").unwrap();
        assert!(largest.starts_with("118973149535723176502126385303") && largest.len() == 4933);
    }

    #[test]
    fn refuses_what_c_or_redis_refuses() {
        for text in [
            "",
            "-",
            "+",
            ".",
            "e5",
            "1e",
            "1e+",
            "1p3",
            "0x",
            "0x.",
            "0x1p",
            "0x1e5p",
            " 1",
            "1 ",
            "1\0",
            "1.2.3",
            "--1",
            "nan",
            "NaN(1)",
            "1e5000",
            "-1e5000",
            "1e-5000",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "1_0",
        ] {
            assert!(LongDouble::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(LongDouble::parse(&[b'1'; TEXT_LIMIT]).is_none());
        assert!(LongDouble::parse("0".repeat(TEXT_LIMIT - 1).as_bytes()).is_some());
    }

    #[test]
    fn sums_that_are_no_numbers_are_none() {
        let [one, infinite] = ["1", "-Infinity"].map(|text| LongDouble::parse(text.as_bytes()).unwrap());
        let largest = LongDouble::parse(b"1.18973149535723176502e4932").unwrap();
        assert!(one.plus(infinite).is_none() && largest.plus(largest).is_none());
        assert_eq!(one.plus(one).unwrap().to_text().unwrap(), b"2");
    }

    #[test]
    fn integers_print_as_themselves() {
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..1000 {
            let number = rng.i64(..) >> rng.u32(..63);
            assert_eq!(shown(&number.to_string()), Some(number.to_string()));
        }
    }
}
