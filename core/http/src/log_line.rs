//! Lines of an access log, in the common log format.

use crate::{
    date::{self, MONTHS},
    status::Status,
};
use alloc::vec::Vec;
use core::{
    fmt::{self, Write},
    net::IpAddr,
};
use kayvee_platform::{Decimal, civil};

/// Bytes of a request line that are logged.
const MAX_LINE_BYTES: usize = 1 << 10;

/// The end of a log, as text is written to it.
struct Tail<'a>(&'a mut Vec<u8>);

impl Write for Tail<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Appends `host - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 5`.
pub fn put(log: &mut Vec<u8>, remote: IpAddr, unix_s: u64, line: &[u8], status: Status, body_bytes: u64) {
    // A log takes all that is written to it.
    let _ = write!(Tail(log), "{remote}");
    log.extend_from_slice(b" - - [");
    let now = civil(unix_s);
    let mut text = *b"01/Jan/1970:00:00:00 +0000";
    date::put_two(now.day, &mut text[..]);
    text[3..6].copy_from_slice(&MONTHS[(now.month as usize - 1) * 3..][..3]);
    date::put_two(now.year / 100, &mut text[7..]);
    date::put_two(now.year, &mut text[9..]);
    date::put_two(now.hour, &mut text[12..]);
    date::put_two(now.minute, &mut text[15..]);
    date::put_two(now.second, &mut text[18..]);
    log.extend_from_slice(&text);
    log.extend_from_slice(b"] \"");
    for &byte in line.iter().take(MAX_LINE_BYTES) {
        match byte {
            b'"' | b'\\' => log.extend([b'\\', byte]),
            b' '..=b'~' => log.push(byte),
            // A client must not write lines or colours of its own.
            _ => log.extend([b'\\', b'x', hex(byte >> 4), hex(byte & 15)]),
        }
    }
    log.extend_from_slice(b"\" ");
    log.extend_from_slice(Decimal::unsigned(status.0.into()).as_bytes());
    log.push(b' ');
    match body_bytes {
        0 => log.push(b'-'),
        bytes => log.extend_from_slice(Decimal::unsigned(bytes).as_bytes()),
    }
    log.push(b'\n');
}

/// A hexadecimal digit.
pub fn hex(value: u8) -> u8 {
    b"0123456789abcdef"[usize::from(value & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;

    #[test]
    fn a_line_has_the_common_form() {
        let mut log = Vec::new();
        put(&mut log, [192, 0, 2, 1].into(), 784_111_777, b"GET /a\"\\\x1b\n HTTP/1.1", Status::OK, 5);
        put(&mut log, Ipv6Addr::LOCALHOST.into(), 784_111_777, b"", Status::BAD_REQUEST, 0);
        let wanted = b"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a\\\"\\\\\\x1b\\x0a HTTP/1.1\" 200 5\n\
                       ::1 - - [06/Nov/1994:08:49:37 +0000] \"\" 400 -\n";
        assert_eq!(log, wanted);
    }
}
