//! The store's own pages on the web server: `/healthz`, `/metrics`, and keys under a prefix.

use crate::engine::turns_away;
use alloc::{sync::Arc, vec::Vec};
use core::fmt::Write;
use kayvee_commands::{Metrics, Published, Store, Text};
use kayvee_http::{Bytes, Delivery, Page, PageRequest, Pages, Stable, Stats};

/// The status page, in one piece, packed, and where it gets its figures from.
static STATUS_PAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/status.packed"));
const EVENTS_PATH: &[u8] = b"/_/status/events";
/// What tells the same as the pages for operators.
const METRICS_REQUEST: &[u8] = b"*1\r\n$4\r\nINFO\r\n";
const STATUS_REQUESTS: &[u8] = b"*1\r\n$4\r\nINFO\r\n*2\r\n$7\r\nSLOWLOG\r\n$3\r\nGET\r\n";
const TEXT: &str = "text/plain; charset=utf-8";
/// The type that Prometheus asks for.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const NO_STORE: &str = "no-store";
/// An event that has the page ask for a password.
const DENIED: &[u8] = b"event: denied\ndata:\n\n";
const CHALLENGE: &str = "Basic realm=\"Kayvee\", charset=\"UTF-8\"";
/// Bytes of credentials that are looked at: longer than any password.
const MAX_CREDENTIALS_BYTES: usize = 8 << 10;

/// The types of keys that are served as pages, by their names' endings.
const TYPES: &[(&str, &str)] = &[
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("txt", TEXT),
    ("xml", "text/xml; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("ico", "image/x-icon"),
    ("wasm", "application/wasm"),
    ("pdf", "application/pdf"),
];
/// That of names without a known ending: most of what is published with `SET` is a page.
const DEFAULT_TYPE: &str = "text/html; charset=utf-8";

/// The store as the web server asks it.
pub struct Web<'a> {
    pub(crate) store: &'a mut Store,
}

impl Pages for Web<'_> {
    fn reserved(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        match request.path {
            b"/healthz" => Some(words(200, b"ok\n")),
            b"/_/status" | b"/_/status/" | EVENTS_PATH if !self.store.options.status => None,
            b"/metrics" | b"/_/status" | b"/_/status/" | EVENTS_PATH if turns_away(self.store, request.is_local) => {
                Some(forbidden())
            }
            b"/_/status" | b"/_/status/" | EVENTS_PATH if !self.may_observe(request.authorization, STATUS_REQUESTS) => {
                Some(self.challenge(request))
            }
            EVENTS_PATH => Some(Page {
                delivery: Delivery::Stream,
                ..page(200, "text/event-stream", Arc::new(self.status_event(request.stats)))
            }),
            b"/_/status" | b"/_/status/" => Some(match kayvee_pairs::unpack_text(STATUS_PAGE) {
                Ok(text) => page(200, DEFAULT_TYPE, Arc::new(text)),
                Err(_) => not_now(),
            }),
            b"/metrics" if !self.may_observe(request.authorization, METRICS_REQUEST) => Some(self.challenge(request)),
            b"/metrics" => Some(match self.metrics(request.stats) {
                Some(text) => page(200, METRICS, Arc::new(text)),
                None => not_now(),
            }),
            _ => None,
        }
    }

    fn missing(&mut self, request: &PageRequest<'_>) -> Option<Page> {
        let prefix = self.store.options.http_keys.as_bytes();
        if prefix.is_empty() {
            return None;
        }
        if turns_away(self.store, request.is_local) {
            return Some(forbidden());
        }
        let name = &request.path[1..];
        let index: &[u8] = if name.is_empty() || name.ends_with(b"/") { b"index.html" } else { b"" };
        let key = [prefix, name, index].concat();
        match self.store.published(&key) {
            Published::Value(value) => {
                Some(Page { cache_control: "no-cache", ..page(200, content_type(&key), Arc::new(value)) })
            }
            Published::Missing => None,
            Published::NotNow => Some(not_now()),
        }
    }

    /// What holds the store's own clients back from reading holds for pages made of keys.
    fn are_paused(&self) -> bool {
        !self.store.options.http_keys.is_empty() && self.store.pause_in_force().is_some_and(|pause| !pause.writes_only)
    }

    /// Passwords and rules may have changed since.
    fn farewell(&self, authorization: &[u8], is_local: bool) -> Option<&'static [u8]> {
        let is_denied = turns_away(self.store, is_local) || !self.may_observe(Some(authorization), STATUS_REQUESTS);
        is_denied.then_some(DENIED)
    }

    /// What a page shows, or that there is none, must not vanish, as with replies.
    fn seen(&mut self) -> Option<u64> {
        let asks_keys = !self.store.options.http_keys.is_empty();
        let appended = self.store.appended();
        (asks_keys && self.store.replies_wait() && appended > self.store.stable()).then_some(appended)
    }

    fn stable(&self) -> Stable {
        match self.store.replies_wait() {
            true => Stable::Through(self.store.stable()),
            false if self.store.log_fails() => Stable::Lost,
            false => Stable::All,
        }
    }
}

impl Web<'_> {
    /// What the status page is told: a server-sent event (HTML §9.2), empty without memory for it.
    pub fn status_event(&self, http: &Stats) -> Vec<u8> {
        let mut text = Text::default();
        let responses: u64 = http.responses.iter().sum();
        let (connections, output) = (http.connections, http.output_bytes);
        let written = text.write_str("data: {").and_then(|()| self.store.status_fields(&mut text)).and_then(|()| {
            writeln!(
                text,
                ",\"http_connections\":{connections},\"http_responses\":{responses},\"http_out\":{output}}}\n"
            )
        });
        written.ok().and_then(|()| text.into_bytes()).unwrap_or_default()
    }

    #[inline(never)]
    fn may_observe(&self, authorization: Option<&[u8]>, same: &[u8]) -> bool {
        let credentials = authorization.and_then(credentials);
        self.store.may_observe(credentials.as_deref().and_then(name_and_password), same)
    }

    /// Asks for a name and a password. Those that were wrong are noted, as those of `AUTH` are.
    #[inline(never)]
    fn challenge(&mut self, request: &PageRequest<'_>) -> Page {
        let credentials = request.authorization.and_then(credentials);
        if let Some(given) = credentials.as_deref().and_then(name_and_password) {
            self.store.log_failed_web_login(given, request.remote);
        }
        Page { challenge: CHALLENGE, ..words(401, b"a user's name and password of the store, please\n") }
    }

    fn metrics(&self, http: &Stats) -> Option<Vec<u8>> {
        let mut text = Text::default();
        let mut metrics = Metrics(&mut text);
        self.store.metrics(&mut metrics).ok()?;
        put_http(&mut metrics, http).ok()?;
        text.into_bytes()
    }
}

fn put_http(metrics: &mut Metrics<'_>, http: &Stats) -> core::fmt::Result {
    for (name, kind, help, value) in [
        ("http_connections", "gauge", "Connections to the web server.", http.connections),
        ("http_connections_received_total", "counter", "Connections accepted.", http.connections_received),
        ("http_connections_rejected_total", "counter", "Connections refused.", http.connections_rejected),
        ("http_timeouts_total", "counter", "Connections that took too long.", http.timeouts),
        (
            "http_buffers_refused_total",
            "counter",
            "Connections that were ended because all together held too much.",
            http.buffers_refused,
        ),
        ("http_disk_failures_total", "counter", "Reads of the site's disk that failed.", http.disk_failures),
        ("http_input_bytes_total", "counter", "Bytes from the web server's clients.", http.input_bytes),
        ("http_output_bytes_total", "counter", "Bytes to the web server's clients.", http.output_bytes),
    ] {
        metrics.number(name, kind, help, value)?;
    }
    metrics.describe("http_responses_total", "counter", "Responses by the class of their status.")?;
    for (class, labels) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().enumerate() {
        metrics.value("http_responses_total", &alloc::format!("{{class=\"{labels}\"}}"), http.responses[class])?;
    }
    Ok(())
}

fn page(status: u16, content_type: &'static str, body: Bytes) -> Page {
    Page { status, content_type, cache_control: NO_STORE, challenge: "", body, delivery: Delivery::Whole }
}

/// A page of a few words. One function has all of them, which keeps the image small.
#[inline(never)]
fn words(status: u16, text: &'static [u8]) -> Page {
    page(status, TEXT, Arc::new(text))
}

fn forbidden() -> Page {
    words(403, b"protected mode: set a password, or come from the machine itself, to its address or localhost\n")
}

fn not_now() -> Page {
    words(503, b"not now: out of memory, busy or loading\n")
}

fn content_type(key: &[u8]) -> &'static str {
    let ending = key.rsplit(|byte| matches!(byte, b'.' | b'/')).next().unwrap_or_default();
    let known = TYPES.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(ending));
    known.map_or(DEFAULT_TYPE, |(_, content_type)| content_type)
}

/// `NAME:PASSWORD` of basic authentication (RFC 7617).
fn credentials(authorization: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = authorization.split_at_checked(6)?;
    let encoded = rest.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"basic ") || encoded.len() > MAX_CREDENTIALS_BYTES {
        return None;
    }
    decode_base64(encoded)
}

/// The default user's name may be left out.
fn name_and_password(credentials: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = credentials.iter().position(|byte| *byte == b':')?;
    let name = if colon == 0 { b"default" } else { &credentials[..colon] };
    Some((name, &credentials[colon + 1..]))
}

/// RFC 4648 §4.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut pending) = (0u32, 0);
    for &digit in text {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        pending += 6;
        if pending >= 8 {
            pending -= 8;
            bytes.push((bits >> pending) as u8);
            bits &= (1 << pending) - 1;
        }
    }
    // A last digit that carries no whole byte is cut off.
    (pending < 6).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_decoded() {
        // The example of RFC 7617 §2.
        let decoded = credentials(b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(decoded.as_deref(), Some(&b"Aladdin:open sesame"[..]));
        let long = [&b"Basic "[..], &b"QUFB".repeat(1000)].concat();
        assert_eq!(credentials(&long).map(|decoded| decoded.len()), Some(3000));
        for (text, wanted) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg", "foob")] {
            assert_eq!(decode_base64(text.as_bytes()).as_deref(), Some(wanted.as_bytes()), "{text}");
        }
        for text in ["Z", "Zm9vZ", "Zm 9", "Zg===", "=", "Zm-v"] {
            assert_eq!(decode_base64(text.as_bytes()).filter(|bytes| !bytes.is_empty()), None, "{text}");
        }
        for other in ["Basic", "Bearer Zm9v", "basic", ""] {
            assert_eq!(credentials(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn keys_have_types_by_their_endings() {
        assert_eq!(content_type(b"site:a/b.CSS"), "text/css; charset=utf-8");
        assert_eq!(content_type(b"site:page"), DEFAULT_TYPE);
        assert_eq!(content_type(b"site:a.png/page"), DEFAULT_TYPE);
    }
}
