use alloc::{collections::TryReserveError, vec::Vec};
use kayvee_platform::{DECIMAL_BYTES, put_decimal};

/// The protocol version that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The default.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Writes replies in a client's protocol. What RESP2 lacks is written as its nearest relative.
///
/// A writer never panics for want of memory: from the first byte that finds no room it drops everything, and
/// [`failed`](Self::failed) tells.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    failed: bool,
}

impl<'a> Writer<'a> {
    /// Writes behind what `out` holds.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Writer<'a> {
        Writer { out, protocol, failed: false }
    }

    /// The protocol that replies are written in.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Goes on in another protocol, as `HELLO` asks.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Writes bytes that are a reply, or part of one, already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Bytes written and not yet taken away.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// What was written since [`len`](Self::len) was `len`.
    pub fn since(&self, len: usize) -> &[u8] {
        &self.out[len..]
    }

    /// Takes back all that was written since [`len`](Self::len) was `len`, and a failure with it.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
        self.failed = false;
    }

    /// Whether memory ran out: what was written is then incomplete.
    pub fn failed(&self) -> bool {
        self.failed
    }

    #[inline]
    fn reserve(&mut self, bytes: usize) {
        if self.out.capacity() - self.out.len() < bytes {
            self.grow(bytes);
        }
    }

    #[inline(never)]
    fn grow(&mut self, bytes: usize) {
        self.failed = self.failed || self.out.try_reserve(bytes).is_err();
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        if !self.failed {
            self.out.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.put(&[kind]);
        self.put(text);
        self.put(b"\r\n");
    }

    fn header(&mut self, kind: u8, number: i64) {
        const LINE_END: usize = 1 + DECIMAL_BYTES;
        let mut line = [0; LINE_END + 2];
        line[LINE_END..].copy_from_slice(b"\r\n");
        let at = put_decimal(number, &mut line[..LINE_END]) - 1;
        line[at] = kind;
        self.put(&line[at..]);
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// `+text`, one line.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.line(b'+', text.as_bytes());
    }

    /// `-text`; the text starts with the error's code. Line breaks in it become spaces, since they would end it.
    pub fn error(&mut self, text: &[u8]) {
        self.put(b"-");
        for (at, line) in text.split(|b| matches!(b, b'\r' | b'\n')).enumerate() {
            self.put(if at > 0 { b" " } else { b"" });
            self.put(line);
        }
        self.put(b"\r\n");
    }

    /// `:number`
    pub fn integer(&mut self, number: i64) {
        self.header(b':', number);
    }

    /// `$len`, the bytes
    pub fn bulk(&mut self, bytes: &[u8]) {
        /// The longest string whose length has two digits, and what stands around it.
        const SHORT: usize = 99;
        const AROUND: usize = b"$99\r\n\r\n".len();
        let (len, has_room) = (bytes.len(), self.out.capacity() - self.out.len() >= bytes.len() + AROUND);
        if len <= SHORT && has_room && !self.failed {
            // Most strings are short, and collections have many: parts of fixed length need no call to be copied.
            let (tens, ones) = (b'0' + (len / 10) as u8, b'0' + (len % 10) as u8);
            match len {
                0..10 => self.out.extend_from_slice(&[b'$', ones, b'\r', b'\n']),
                _ => self.out.extend_from_slice(&[b'$', tens, ones, b'\r', b'\n']),
            }
            self.out.extend_from_slice(bytes);
            self.out.extend_from_slice(b"\r\n");
            return;
        }
        // All at once: were the end of the line to make the memory grow, a long string would be copied once more.
        self.reserve(1 + DECIMAL_BYTES + 2 + len + 2);
        self.header(b'$', len as i64);
        self.put(bytes);
        self.put(b"\r\n");
    }

    /// Text for people, with its format in RESP3.
    pub fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as i64 + 4);
                self.put(format);
                self.put(b":");
                self.put(text);
                self.put(b"\r\n");
            }
        }
    }

    /// Nothing, where a string or other single value would stand.
    pub fn null(&mut self) {
        self.put(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Nothing, where an array would stand.
    pub fn null_array(&mut self) {
        self.put(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// A truth value; 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Resp2 => self.integer(value.into()),
            Protocol::Resp3 => self.put(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// A floating-point number in its decimal form.
    pub fn double(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// An integer of any size in its decimal form.
    pub fn big_number(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b'(', text.as_bytes()),
        }
    }

    /// The head of an attribute of `pairs` keys and values, which follow; the reply that it is about comes then. RESP2
    /// has none: nothing is written, and `false` returned.
    #[must_use]
    pub fn attribute(&mut self, pairs: usize) -> bool {
        if self.protocol == Protocol::Resp3 {
            self.header(b'|', pairs as i64);
        }
        self.protocol == Protocol::Resp3
    }

    /// The head of a message of `len` elements that answers no request. RESP2 has none: nothing is written, and `false`
    /// returned.
    #[must_use]
    pub fn push(&mut self, len: usize) -> bool {
        if self.protocol == Protocol::Resp3 {
            self.header(b'>', len as i64);
        }
        self.protocol == Protocol::Resp3
    }

    /// The head of an array of `len` elements, which follow.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    /// Moves what was written from `from` on to `to`, before what was written there: a head whose numbers are known
    /// only when the rest is written.
    pub fn move_before(&mut self, to: usize, from: usize) {
        let head_len = self.out.len() - from;
        self.out[to..].rotate_right(head_len);
    }

    /// The head of a map of `pairs` keys and values, which follow in turn.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', pairs as i64 * 2),
            Protocol::Resp3 => self.header(b'%', pairs as i64),
        }
    }

    /// The head of a set of `len` elements, which follow.
    pub fn set(&mut self, len: usize) {
        self.header(if self.protocol == Protocol::Resp3 { b'~' } else { b'*' }, len as i64);
    }
}

/// The bulk strings in a reply of ours, in order, whatever they are part of.
pub fn bulk_strings(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = reply;
    core::iter::from_fn(move || {
        loop {
            let end = rest.iter().position(|&byte| byte == b'\n')? + 1;
            let line = &rest[..end];
            rest = &rest[end..];
            let len = line.strip_prefix(b"$").and_then(|line| line.strip_suffix(b"\r\n"));
            let len = len.and_then(|digits| core::str::from_utf8(digits).ok()?.parse::<usize>().ok());
            if let Some(len) = len {
                let text = rest.get(..len)?;
                rest = rest.get(len + 2..)?;
                return Some(text);
            }
        }
    })
}

/// Writes a request of these words, as clients send them, behind what `out` holds. Nothing is written where there is no
/// memory for it.
pub fn encode<'w>(words: impl ExactSizeIterator<Item = &'w [u8]>, out: &mut Vec<u8>) -> Result<(), TryReserveError> {
    let start = out.len();
    let mut writer = Writer::new(out, Protocol::Resp2);
    writer.array(words.len());
    words.for_each(|word| writer.bulk(word));
    if writer.failed() {
        writer.truncate(start);
        // The error that there was, or one for what it takes in all.
        out.try_reserve(usize::MAX)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, protocol));
        out
    }

    #[test]
    fn a_head_may_be_written_last() {
        let bytes = written(Protocol::Resp2, |w| {
            w.ok();
            let start = w.len();
            w.bulk(b"a");
            w.bulk(b"bc");
            let end = w.len();
            w.array(2);
            w.move_before(start, end);
        });
        assert_eq!(bytes, b"+OK\r\n*2\r\n$1\r\na\r\n$2\r\nbc\r\n");
    }

    #[test]
    fn strings_of_all_lengths() {
        for len in [0, 1, 9, 10, 99, 100, 101, 1000] {
            for room in [0, len + 1, len + 100] {
                let mut out = Vec::with_capacity(room);
                let text = alloc::vec![b'x'; len];
                Writer::new(&mut out, Protocol::Resp2).bulk(&text);
                let expected = [alloc::format!("${len}\r\n").as_bytes(), &text, b"\r\n"].concat();
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn both_protocols() {
        let all = |w: &mut Writer| {
            w.ok();
            w.error(b"ERR a\r\nb");
            w.integer(i64::MIN);
            w.integer(0);
            w.bulk(b"ab");
            w.verbatim(b"txt", b"hi");
            w.null();
            w.null_array();
            w.boolean(true);
            w.array(2);
            w.map(1);
            w.set(3);
        };
        assert_eq!(
            written(Protocol::Resp2, all),
            b"+OK\r\n-ERR a  b\r\n:-9223372036854775808\r\n:0\r\n$2\r\nab\r\n$2\r\nhi\r\n$-1\r\n*-1\r\n:1\r\n*2\r\n*2\r\n*3\r\n"
        );
        assert_eq!(
            written(Protocol::Resp3, all),
            b"+OK\r\n-ERR a  b\r\n:-9223372036854775808\r\n:0\r\n$2\r\nab\r\n=6\r\ntxt:hi\r\n_\r\n_\r\n#t\r\n*2\r\n%1\r\n~3\r\n"
        );
    }
}
