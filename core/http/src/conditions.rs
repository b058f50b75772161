//! Conditional requests (RFC 9110 §13).

use crate::{date, request::Request, status::Status};

/// What conditions are about: the page as this client would get it.
pub struct Validators<'a> {
    /// The entity tag, with its quotes.
    pub etag: &'a [u8],
    /// When it was last modified, in seconds since 1970, if that is known.
    pub modified_s: Option<u64>,
}

/// A date of modification is exact enough to join parts by only if it lay so far back when it was sent (§8.8.2.2).
const STRONG_AFTER_S: u64 = 60;

/// Evaluates a request's conditions in their order (§13.2.2): the status that answers it instead of the page.
pub fn evaluate(request: &Request<'_>, validators: &Validators<'_>, now_s: u64) -> Option<Status> {
    let date_of = |name| request.value(name).and_then(|value| date::parse(value, now_s));
    if request.values("if-match").next().is_some() {
        if !any_matches(request.values("if-match"), validators.etag, Comparison::Strong) {
            return Some(Status::PRECONDITION_FAILED);
        }
    } else if let (Some(date), Some(modified_s)) = (date_of("if-unmodified-since"), validators.modified_s)
        && modified_s > date
    {
        return Some(Status::PRECONDITION_FAILED);
    }
    if request.values("if-none-match").next().is_some() {
        let matches = any_matches(request.values("if-none-match"), validators.etag, Comparison::Weak);
        return matches.then_some(Status::NOT_MODIFIED);
    }
    let (date, modified_s) = (date_of("if-modified-since")?, validators.modified_s?);
    (modified_s <= date).then_some(Status::NOT_MODIFIED)
}

/// Whether a Range field counts: If-Range (§13.1.5) asks for the whole page if it has changed.
pub fn range_counts(request: &Request<'_>, validators: &Validators<'_>, now_s: u64) -> bool {
    let mut values = request.values("if-range");
    let Some(value) = values.next() else { return true };
    if values.next().is_some() {
        return false;
    }
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        return value == validators.etag;
    }
    let strong_s = validators.modified_s.filter(|modified_s| modified_s.saturating_add(STRONG_AFTER_S) <= now_s);
    strong_s.is_some() && date::parse(value, now_s) == strong_s
}

/// How entity tags are compared (§8.8.3.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

fn any_matches<'a>(values: impl Iterator<Item = &'a [u8]>, etag: &[u8], comparison: Comparison) -> bool {
    values.into_iter().any(|value| value.trim_ascii() == b"*" || list_matches(value, etag, comparison))
}

/// A tag may contain commas: the list is read tag by tag. What is malformed ends it.
fn list_matches(mut list: &[u8], etag: &[u8], comparison: Comparison) -> bool {
    loop {
        while let Some((b' ' | b'\t' | b',', rest)) = list.split_first() {
            list = rest;
        }
        let (is_weak, rest) = match list.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, list),
        };
        if rest.first() != Some(&b'"') {
            return false;
        }
        let Some(len) = rest[1..].iter().position(|byte| *byte == b'"') else { return false };
        let (tag, rest) = rest.split_at(len + 2);
        if tag == etag && (comparison == Comparison::Weak || !is_weak) {
            return true;
        }
        list = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request;

    const NOW_S: u64 = 1_700_000_000;
    const OLD: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const OLD_S: u64 = 784_111_777;
    const OLDER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const NEWER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn with<R>(fields: &[&str], check: impl FnOnce(&Request<'_>, &Validators<'_>) -> R) -> R {
        let head = ["GET / HTTP/1.1\r\nHost: h\r\n", &fields.concat(), "\r\n"].concat();
        let validators = Validators { etag: b"\"a,b\"", modified_s: Some(OLD_S) };
        request::parse(head.as_bytes(), |request| check(request, &validators)).expect("a good request")
    }

    fn status(fields: &[&str]) -> Option<u16> {
        with(fields, |request, validators| evaluate(request, validators, NOW_S)).map(|status| status.0)
    }

    #[test]
    fn tags_come_before_dates() {
        for (fields, wanted) in [
            (&[][..], None),
            (&["If-None-Match: \"a,b\"\r\n"], Some(304)),
            (&["If-None-Match: W/\"a,b\"\r\n"], Some(304)),
            (&["If-None-Match: *\r\n"], Some(304)),
            (&["If-None-Match: \"x\", \"a,b\"\r\n"], Some(304)),
            (&["If-None-Match: \"x\"\r\n", "If-None-Match: \"a,b\"\r\n"], Some(304)),
            (&["If-None-Match: \"a\", \"b\"\r\n"], None),
            (&["If-None-Match: a,b\r\n"], None),
            (&["If-None-Match: \"a,b\r\n"], None),
            (&["If-None-Match:\r\n"], None),
            (&["If-None-Match: \"x\"\r\n", "If-Modified-Since: ", NEWER, "\r\n"], None),
            (&["If-Modified-Since: ", OLD, "\r\n"], Some(304)),
            (&["If-Modified-Since: ", NEWER, "\r\n"], Some(304)),
            (&["If-Modified-Since: ", OLDER, "\r\n"], None),
            (&["If-Modified-Since: nonsense\r\n"], None),
            (&["If-Match: \"a,b\"\r\n"], None),
            (&["If-Match: *\r\n"], None),
            (&["If-Match: W/\"a,b\"\r\n"], Some(412)),
            (&["If-Match: \"x\"\r\n"], Some(412)),
            (&["If-Match: \"a,b\"\r\n", "If-Unmodified-Since: ", OLDER, "\r\n"], None),
            (&["If-Match: \"a,b\"\r\n", "If-None-Match: \"a,b\"\r\n"], Some(304)),
            (&["If-Unmodified-Since: ", OLDER, "\r\n"], Some(412)),
            (&["If-Unmodified-Since: ", OLD, "\r\n"], None),
            (&["If-Unmodified-Since: nonsense\r\n"], None),
        ] {
            assert_eq!(status(fields), wanted, "{fields:?}");
        }
    }

    #[test]
    fn a_range_counts_for_the_same_page_only() {
        for (fields, wanted) in [
            (&[][..], true),
            (&["If-Range: \"a,b\"\r\n"], true),
            (&["If-Range: W/\"a,b\"\r\n"], false),
            (&["If-Range: \"x\"\r\n"], false),
            (&["If-Range: ", OLD, "\r\n"], true),
            (&["If-Range: ", NEWER, "\r\n"], false),
            (&["If-Range: nonsense\r\n"], false),
            (&["If-Range: \"a,b\"\r\nIf-Range: \"a,b\"\r\n"], false),
        ] {
            assert_eq!(
                with(fields, |request, validators| range_counts(request, validators, NOW_S)),
                wanted,
                "{fields:?}"
            );
        }
        let fresh =
            with(&["If-Range: ", OLD, "\r\n"], |request, validators| range_counts(request, validators, OLD_S + 1));
        assert!(!fresh, "it may have changed again within the second");
    }
}
