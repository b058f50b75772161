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
}

/// What bytes may stand for.
static CLASSES: [u8; 256] = classes();
/// In a target: a fragment is never sent, and what is not visible has to be encoded (RFC 3986 §2).
const IN_TARGET: u8 = 1;
/// In the name of a host, `reg-name` of RFC 3986 §3.2.2.
const IN_NAME: u8 = 2;

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

fn all_are(bytes: &[u8], class: u8) -> bool {
    bytes.iter().fold(class, |classes, byte| classes & CLASSES[usize::from(*byte)]) != 0
}

/// Splits a target in origin, absolute or asterisk form.
pub fn split(target: &[u8]) -> Option<Target<'_>> {
    if target == b"*" {
        return Some(Target { authority: None, path: target, query: b"" });
    }
    if !all_are(target, IN_TARGET) {
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
    let at = rest.iter().position(|byte| *byte == b'?').unwrap_or(rest.len());
    let (path, query) = rest.split_at(at);
    let path = if path.is_empty() { b"/" } else { path };
    Some(Target { authority, path, query })
}

/// Decodes a path and takes its dot segments away (RFC 3986 §5.2.4, §6.2.2). What is decoded once is not decoded again.
/// Nothing that is refused or left could name a file outside of the site: paths are looked up, never opened.
pub fn normalize<'a>(path: &'a [u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let (mut previous, mut is_plain) = (0, true);
    for &byte in path {
        is_plain &= (byte != b'%') & !((byte == b'.') & (previous == b'/'));
        previous = byte;
    }
    if is_plain {
        return Some(path);
    }
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

/// A host's name without its port, as it was sent: checked, and none if it is not a name or an address (RFC 3986 §3.2.2).
pub fn checked_host(host: &[u8]) -> Option<&[u8]> {
    let (name, port) = if host.first() == Some(&b'[') {
        let end = host.iter().position(|byte| *byte == b']')? + 1;
        (&host[..end], &host[end..])
    } else {
        host.split_at(host.iter().position(|byte| *byte == b':').unwrap_or(host.len()))
    };
    let is_port = port.is_empty() || (port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit));
    let inside = name.strip_prefix(b"[").and_then(|inside| inside.strip_suffix(b"]"));
    let is_name = match inside {
        Some(address) => {
            !address.is_empty() && address.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
        }
        None => all_are(name, IN_NAME),
    };
    (is_port && is_name).then_some(name)
}

/// A host's name without its port, as it is looked up.
pub fn host_name<'a>(host: &'a [u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let name = checked_host(host)?;
    let name = name.strip_suffix(b".").unwrap_or(name);
    if !name.iter().any(u8::is_ascii_uppercase) {
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
        normalize(path.as_bytes(), &mut buffer).map(|path| String::from_utf8_lossy(path).into_owned())
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
        let target = |authority, path, query| Some(Target { authority, path, query });
        assert_eq!(split(b"*"), target(None, b"*", b""));
        assert_eq!(split(b"/a?b?c"), target(None, b"/a", b"?b?c"));
        assert_eq!(split(b"http://h:80/a?b"), target(Some(b"h:80"), b"/a", b"?b"));
        assert_eq!(split(b"HTTP://h"), target(Some(b"h"), b"/", b""));
        assert_eq!(split(b"http://h?x"), target(Some(b"h"), b"/", b"?x"));
        for refused in ["http:///x", "http://:80/x", "", "a", "h:80", "https://h/", "ftp://h/", "/a#b", "/\u{e9}", "**"]
        {
            assert_eq!(split(refused.as_bytes()), None, "{refused}");
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
