//! Dates (RFC 9110 §5.6.7).

use kayvee_platform::{Civil, DAY_SECONDS, LAST_SECOND, civil};

/// Length of a date in the form that is sent: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub const DATE_BYTES: usize = 29;

pub const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
/// The first of January 1970 was a Thursday.
const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";

/// Writes a number's last two digits.
pub fn put_two(number: u32, text: &mut [u8]) {
    text[0] = b'0' + (number / 10 % 10) as u8;
    text[1] = b'0' + (number % 10) as u8;
}

/// The form that is sent.
pub fn format(unix_s: u64) -> [u8; DATE_BYTES] {
    let date = civil(unix_s);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let weekday = (unix_s.min(LAST_SECOND) / DAY_SECONDS % 7) as usize * 3;
    text[..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    put_two(date.day, &mut text[5..]);
    let month = (date.month as usize - 1) * 3;
    text[8..11].copy_from_slice(&MONTHS[month..month + 3]);
    put_two(date.year / 100, &mut text[12..]);
    put_two(date.year, &mut text[14..]);
    put_two(date.hour, &mut text[17..]);
    put_two(date.minute, &mut text[20..]);
    put_two(date.second, &mut text[23..]);
    text
}

/// Reads any of the three forms that a recipient has to understand. The name of the weekday is of no account. The year's
/// last two digits, in the second form, mean the past if the date were more than 50 years ahead of `now_s`.
pub fn parse(text: &[u8], now_s: u64) -> Option<u64> {
    let text = text.trim_ascii();
    let mut words = [&[][..]; 6];
    let split = text.split(|byte| matches!(byte, b' ' | b'-' | b',')).filter(|word| !word.is_empty());
    for (index, word) in split.enumerate() {
        *words.get_mut(index)? = word;
    }
    let (year, month, day, time) = match words {
        // Sun Nov  6 08:49:37 1994
        [_, month, day, time, year, b""] => (number(year, 4)?, month, number(day, 0)?, time),
        // Sunday, 06-Nov-94 08:49:37 GMT
        [_, day, month, year, time, b"GMT"] if year.len() == 2 => {
            let this_year = civil(now_s).year;
            let year = this_year / 100 * 100 + number(year, 2)?;
            let year = if year > this_year + 50 { year - 100 } else { year };
            (year, month, number(day, 2)?, time)
        }
        // Sun, 06 Nov 1994 08:49:37 GMT
        [_, day, month, year, time, b"GMT"] => (number(year, 4)?, month, number(day, 2)?, time),
        _ => return None,
    };
    let month = MONTHS.chunks_exact(3).position(|name| name == month)? as u32 + 1;
    let [hour, minute, second] = [0, 3, 6].map(|at| time.get(at..at + 2).and_then(|digits| number(digits, 2)));
    if time.len() != 8 || time[2] != b':' || time[5] != b':' {
        return None;
    }
    Civil { year, month, day, hour: hour?, minute: minute?, second: second? }.unix_s()
}

/// A decimal number of so many digits; of one or two with `len` 0.
fn number(text: &[u8], len: usize) -> Option<u32> {
    let fits = if len == 0 { (1..=2).contains(&text.len()) } else { text.len() == len };
    if !fits || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE_S: u64 = 784_111_777;
    const NOW_S: u64 = 1_700_000_000;

    #[test]
    fn the_three_forms_of_one_date() {
        assert_eq!(&format(EXAMPLE_S), b"Sun, 06 Nov 1994 08:49:37 GMT");
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse(text.as_bytes(), NOW_S), Some(EXAMPLE_S), "{text}");
        }
    }

    #[test]
    fn what_is_formatted_is_read_back() {
        // Every 11 hours and some over all years with four digits: each day of several leap cycles is among them.
        for unix_s in (0..=LAST_SECOND).step_by(40_009 * 997) {
            assert_eq!(parse(&format(unix_s), NOW_S), Some(unix_s));
        }
        for unix_s in [0, 951_782_399, 951_782_400, 951_868_800, 4_107_542_400, LAST_SECOND] {
            assert_eq!(parse(&format(unix_s), NOW_S), Some(unix_s));
        }
        assert_eq!(&format(u64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn two_digits_mean_the_nearest_past() {
        assert_eq!(parse(b"Monday, 01-Jan-73 00:00:00 GMT", NOW_S), Some(3_250_454_400));
        assert_eq!(parse(b"Monday, 01-Jan-74 00:00:00 GMT", NOW_S), Some(126_230_400));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "yesterday",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT more words",
            "Sun, +6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse(text.as_bytes(), NOW_S), None, "{text}");
        }
    }
}
