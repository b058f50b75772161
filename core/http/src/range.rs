//! Ranges of bytes (RFC 9110 §14).

use alloc::vec::Vec;
use core::ops::Range;

/// Ranges that one request can ask for. A client that wants more gets the whole page.
pub const MAX_RANGES: usize = 16;

/// What a Range field asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The whole page: the field means nothing here, or more than what there is.
    Whole,
    /// These parts; at least one, none of them empty.
    Parts(Vec<Range<u64>>),
    /// Nothing that there is.
    Unsatisfiable,
}

/// Reads the field's value for a page of so many bytes.
pub fn parse(value: &[u8], len: u64) -> Wanted {
    let Some((unit, set)) = value.split_at_checked(6) else { return Wanted::Whole };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return Wanted::Whole;
    }
    let mut parts = Vec::new();
    let mut count = 0;
    for spec in set.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|spec| !spec.is_empty()) {
        count += 1;
        let Some(part) = part(spec, len) else { return Wanted::Whole };
        if count > MAX_RANGES {
            return Wanted::Whole;
        }
        parts.extend(part);
    }
    // Parts that overlap make a little request a large reply (§14.2).
    let total: u64 = parts.iter().map(|part: &Range<u64>| part.end - part.start).sum();
    match count {
        0 => Wanted::Whole,
        _ if parts.is_empty() => Wanted::Unsatisfiable,
        _ if parts.len() > 1 && total > len => Wanted::Whole,
        _ => Wanted::Parts(parts),
    }
}

/// One range of the set: none if it is malformed, none inside if there is nothing there.
fn part(spec: &[u8], len: u64) -> Option<Option<Range<u64>>> {
    let dash = spec.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    let part = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => len.saturating_sub(number(last)?)..len,
        (false, true) => number(first)?..len,
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..len.min(last.saturating_add(1))
        }
    };
    Some((part.start < part.end).then_some(part))
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // What has no room lies behind every page's end.
    Some(digits.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec};

    #[test]
    fn ranges_of_ten_bytes() {
        let parts = |parts: &[(u64, u64)]| Wanted::Parts(parts.iter().map(|&(from, to)| from..to).collect());
        for (value, wanted) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=0-9", parts(&[(0, 10)])),
            ("Bytes=2-4", parts(&[(2, 5)])),
            ("bytes=5-", parts(&[(5, 10)])),
            ("bytes=5-99", parts(&[(5, 10)])),
            ("bytes=5-99999999999999999999999", parts(&[(5, 10)])),
            ("bytes=-3", parts(&[(7, 10)])),
            ("bytes=-99", parts(&[(0, 10)])),
            ("bytes=0-1, 4-5 ,-1,", parts(&[(0, 2), (4, 6), (9, 10)])),
            ("bytes=8-9,0-1", parts(&[(8, 10), (0, 2)])),
            // What is not there is left out of several.
            ("bytes=0-1,10-", parts(&[(0, 2)])),
            ("bytes=10-", Wanted::Unsatisfiable),
            ("bytes=99999999999999999999999-", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=-0,10-11", Wanted::Unsatisfiable),
            // Malformed, another unit, or more than the page.
            ("", Wanted::Whole),
            ("bytes", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=,", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=4-2", Wanted::Whole),
            ("bytes=0-1,4-2", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("bytes=0 - 1", Wanted::Whole),
            ("bytes=1", Wanted::Whole),
            ("bytes=1-2-3", Wanted::Whole),
            ("items=0-1", Wanted::Whole),
            ("bytes=0-,0-,0-", Wanted::Whole),
        ] {
            assert_eq!(parse(value.as_bytes(), 10), wanted, "{value:?}");
        }
        assert_eq!(parse(b"bytes=0-", 0), Wanted::Unsatisfiable);
        assert_eq!(parse(b"bytes=-1", 0), Wanted::Unsatisfiable);
        let many = format!("bytes={}", vec!["0-0"; MAX_RANGES + 1].join(","));
        assert_eq!(parse(many.as_bytes(), 100), Wanted::Whole);
    }
}
