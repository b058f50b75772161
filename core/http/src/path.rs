//! Request targets (RFC 9112 §3.2, RFC 3986).

use alloc::vec::Vec;

/// A request target's parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The host of an absolute target, with its port.
    pub authority: Option<&'a [u8]>,
    /// As it was sent; it begins with `/`, or is `*`.
    pub path: &'a [u8],
    /// With its question mark, or empty.
    pub query: &'a [u8],
    /// Nothing in its path has to be decoded or taken away before it is looked up.
    pub is_plain: bool,
}

/// What is not about a path.
pub const ASTERISK: Target<'_> = Target { authority: None, path: b"*", query: b"", is_plain: true };

/// What bytes may stand for.
static CLASSES: [u8; 256] = classes();
/// In a target: a fragment is never sent, and what is not visible has to be encoded (RFC 3986 §2).
const IN_TARGET: u8 = 1;
/// In the name of a host, `reg-name` of RFC 3986 §3.2.2.
const IN_NAME: u8 = 2;
const IS_CAPITAL: u8 = 4;
const IS_QUESTION_MARK: u8 = 8;
const IS_PERCENT: u8 = 16;
const IS_SLASH: u8 = 32;
const IS_DOT: u8 = IS_SLASH << 1;

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        if b.is_ascii_graphic() && b != b'#' {
            classes[byte] |= IN_TARGET;
        }
        if b.is_ascii_alphanumeric() {
            classes[byte] |= IN_NAME;
        }
        classes[byte] |= match b {
            b'A'..=b'Z' => IS_CAPITAL,
            b'?' => IS_QUESTION_MARK,
            b'%' => IS_PERCENT,
            b'/' => IS_SLASH,
            b'.' => IS_DOT,
            _ => 0,
        };
        byte += 1;
    }
    let marks = b"-._~!$&'()*+,;=%";
    let mut mark = 0;
    while mark < marks.len() {
        classes[marks[mark] as usize] |= IN_NAME;
        mark += 1;
    }
    classes
}

/// Splits a target in origin, absolute or asterisk form.
pub fn split(target: &[u8]) -> Option<Target<'_>> {
    if target == b"*" {
        return Some(ASTERISK);
    }
    let (mut all, mut any, mut dots, mut previous) = (IN_TARGET, 0, 0, 0);
    for &byte in target {
        let class = CLASSES[usize::from(byte)];
        all &= class;
        any |= class;
        dots |= (previous << 1) & class;
        previous = class;
    }
    if all == 0 {
        return None;
    }
    let (authority, rest) = match target.first()? {
        b'/' => (None, target),
        _ => {
            let (scheme, rest) = target.split_at_checked(7)?;
            if !scheme.eq_ignore_ascii_case(b"http://") {
                return None;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
            // Without a host it says nothing (RFC 9110 §4.2.1).
            if matches!(rest[..end].first(), None | Some(b':')) {
                return None;
            }
            (Some(&rest[..end]), &rest[end..])
        }
    };
    let (mut path, mut query) = (rest, &[][..]);
    if any & IS_QUESTION_MARK != 0 {
        let at = rest.iter().position(|byte| *byte == b'?').unwrap_or(rest.len());
        (path, query) = rest.split_at(at);
    }
    let path = if path.is_empty() { b"/" } else { path };
    // What only the query has makes no plain path of another one: it is looked at once more, in vain.
    Some(Target { authority, path, query, is_plain: any & IS_PERCENT == 0 && dots & IS_DOT == 0 })
}

/// Decodes a path and takes its dot segments away (RFC 3986 §5.2.4, §6.2.2). What is decoded once is not decoded again.
/// Nothing that is refused or left could name a file outside of the site: paths are looked up, never opened.
#[inline]
pub fn normalize<'a>(target: &Target<'a>, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if target.is_plain { Some(target.path) } else { decode(target.path, buffer) }
}

#[inline(never)]
fn decode<'a>(path: &[u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    buffer.clear();
    let mut rest = path.iter();
    while let Some(&byte) = rest.next() {
        let byte = if byte == b'%' { hex(*rest.next()?)? << 4 | hex(*rest.next()?)? } else { byte };
        if byte == 0 {
            return None;
        }
        buffer.push(byte);
    }
    remove_dot_segments(buffer);
    Some(buffer)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

fn remove_dot_segments(path: &mut Vec<u8>) {
    // Kept bytes are moved to the front; `at` begins with the slash before the next segment.
    let (mut kept, mut at) = (0, 0);
    while at < path.len() {
        let end = path[at + 1..].iter().position(|byte| *byte == b'/').map_or(path.len(), |len| at + 1 + len);
        let is_last = end == path.len();
        match &path[at + 1..end] {
            b"." => {}
            b".." => kept = path[..kept].iter().rposition(|byte| *byte == b'/').unwrap_or(0),
            _ => {
                path.copy_within(at..end, kept);
                kept += end - at;
                at = end;
                continue;
            }
        }
        if is_last {
            path[kept] = b'/';
            kept += 1;
        }
        at = end;
    }
    path.truncate(kept);
}

/// A host's name without its port, as it was sent, and whether it may have capital letters: checked, and none if it is not a name
/// or an address (RFC 3986 §3.2.2).
pub fn checked_host(host: &[u8]) -> Option<(&[u8], bool)> {
    let mut any = 0;
    let end = if host.first() == Some(&b'[') {
        any = IS_CAPITAL;
        let end = host.iter().position(|byte| *byte == b']')?;
        let is_address = host[1..end].iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
        if end == 1 || !is_address {
            return None;
        }
        end + 1
    } else {
        let is_end = |byte: &u8| {
            let class = CLASSES[usize::from(*byte)];
            any |= class;
            class & IN_NAME == 0
        };
        host.iter().position(is_end).unwrap_or(host.len())
    };
    let (name, port) = host.split_at(end);
    let is_port = match port {
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => port.is_empty(),
    };
    is_port.then_some((name, any & IS_CAPITAL != 0))
}

/// Whether a host, as it is looked up, is an address, `localhost` or none: any other name may be a stranger's, who has it lead here
/// so that a browser takes this server's pages for his (DNS rebinding). No name of the DNS ends in a number.
pub fn is_fixed_host(host: &[u8]) -> bool {
    let last = host.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    let is_number = !last.is_empty() && last.iter().all(u8::is_ascii_digit);
    host.is_empty() || host[0] == b'[' || is_number || last == b"localhost"
}

/// A host's name without its port, as it is looked up.
pub fn host_name<'a>(host: &'a [u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let (name, has_capitals) = checked_host(host)?;
    let name = name.strip_suffix(b".").unwrap_or(name);
    if !has_capitals {
        return Some(name);
    }
    buffer.clear();
    buffer.extend(name.iter().map(u8::to_ascii_lowercase));
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn normal(path: &str) -> Option<String> {
        let mut buffer = Vec::new();
        let target = split(path.as_bytes()).expect("a target");
        normalize(&target, &mut buffer).map(|path| String::from_utf8_lossy(path).into_owned())
    }

    #[test]
    fn dot_segments_go_and_escapes_are_decoded_once() {
        for (path, wanted) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/..", "/"),
            ("/../../etc/passwd", "/etc/passwd"),
            ("/a/%2e%2e/b", "/b"),
            ("/a/b/%2E%2e/%2e/c/", "/a/c/"),
            ("/a/..b", "/a/..b"),
            ("/a/.../b", "/a/.../b"),
            ("/%41%2f%2e%2e", "/"),
            ("/%252e%252e/", "/%2e%2e/"),
            ("/%C3%a9", "/\u{e9}"),
            ("//a/../b", "//b"),
        ] {
            assert_eq!(normal(path).as_deref(), Some(wanted), "{path}");
        }
        for path in ["/%", "/%4", "/%4g", "/%00", "/a%+1"] {
            assert_eq!(normal(path), None, "{path}");
        }
    }

    #[test]
    fn targets_have_three_forms() {
        let target = |authority, path, query| Some(Target { authority, path, query, is_plain: true });
        assert_eq!(split(b"*"), target(None, b"*", b""));
        assert_eq!(split(b"/a?b?c"), target(None, b"/a", b"?b?c"));
        assert_eq!(split(b"http://h:80/a?b"), target(Some(b"h:80"), b"/a", b"?b"));
        assert_eq!(split(b"HTTP://h"), target(Some(b"h"), b"/", b""));
        assert_eq!(split(b"http://h?x"), target(Some(b"h"), b"/", b"?x"));
        for (plain, is_plain) in
            [("/a.b//c..d", true), ("/.a", false), ("/a/..", false), ("/%41", false), ("/a?b=c/d.e", true)]
        {
            assert_eq!(split(plain.as_bytes()).expect("a target").is_plain, is_plain, "{plain}");
        }
        for refused in ["http:///x", "http://:80/x", "", "a", "h:80", "https://h/", "ftp://h/", "/a#b", "/\u{e9}", "**"]
        {
            assert_eq!(split(refused.as_bytes()), None, "{refused}");
        }
    }

    #[test]
    fn strangers_name_no_addresses() {
        for (host, wanted) in [
            ("127.0.0.1", true),
            ("[::1]", true),
            ("localhost", true),
            ("a.localhost", true),
            ("", true),
            ("notlocalhost", false),
            ("localhost.example", false),
            ("127.0.0.1.example", false),
            ("store", false),
            ("example.", false),
            (".", false),
        ] {
            assert_eq!(is_fixed_host(host.as_bytes()), wanted, "{host}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        let name = |host: &str| {
            let mut buffer = Vec::new();
            host_name(host.as_bytes(), &mut buffer).map(|name| String::from_utf8_lossy(name).into_owned())
        };
        for (host, wanted) in [
            ("example.org", "example.org"),
            ("Example.ORG:8080", "example.org"),
            ("example.org.", "example.org"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]:80", "[::1]"),
            ("[FE80::A]", "[fe80::a]"),
            ("", ""),
            ("h:", "h"),
        ] {
            assert_eq!(name(host).as_deref(), Some(wanted), "{host}");
        }
        for host in ["a b", "a/b", "h:x", "h:80:80", "[::1", "[]", "[x]", "a@b", "[::1]x", "h?", "\u{e9}"] {
            assert_eq!(name(host), None, "{host}");
        }
    }
}
