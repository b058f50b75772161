//! What a store writes on its console: shown as it comes, searched for the words that a program waits for.

use crate::{log::Log, supervise::Event};
use std::{
    io::{BufRead, BufReader, PipeReader, Read},
    sync::{Arc, mpsc::Sender},
    thread::{self, JoinHandle},
};

/// A longer line is shown in pieces.
const LINE_MAX_BYTES: u64 = 4096;

/// Shows a console until its end, from a thread of its own.
pub fn follow(console: PipeReader, log: Arc<Log>, events: Sender<Event>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut console = BufReader::new(console);
        while let Some(line) = next_line(&mut console) {
            log.line(&line);
            if announces_readiness(&line) {
                // Nobody listens any more when the run is over.
                let _ = events.send(Event::Listening);
            } else if announces_progress(&line) {
                let _ = events.send(Event::Progress);
            }
        }
    })
}

/// Reads one line, without what a terminal would take for a command; `None` at the end.
pub fn next_line(console: &mut impl BufRead) -> Option<String> {
    let mut bytes = Vec::new();
    // A console that cannot be read has ended.
    match console.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', &mut bytes) {
        Ok(0) | Err(_) => None,
        Ok(_) => {
            let text = String::from_utf8_lossy(&bytes);
            Some(text.trim_end_matches(['\r', '\n']).replace(|c: char| c.is_control() && c != '\t', "\u{fffd}"))
        }
    }
}

/// The line `SECONDS LEVEL ready: ADDRESS` of a guest, or `PID:M DAY MONTH YEAR TIME MARK ready: ADDRESS` of a process, which
/// means that connections are accepted.
fn announces_readiness(line: &str) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().take(7).collect();
    matches!(words[..], [_, "info", "ready:", ..] | [_, _, _, _, _, "*", "ready:"])
}

/// The line `… reading …`, which a store writes once a second while it takes its data from the disk or a file: as a warning,
/// where it writes nothing else.
fn announces_progress(line: &str) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().take(7).collect();
    matches!(words[..], [_, "info" | "warn", "reading", ..] | [_, _, _, _, _, "*" | "#", "reading"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_loads_says_so() {
        assert!(announces_progress("12.003 info reading the log: 152 MB, 36247 records"));
        assert!(announces_progress("10202:M 21 Nov 2026 08:57:37.789 * reading the log: 152 MB, 36247 records"));
        assert!(announces_progress("12.003 warn reading the log: 152 MB, 36247 records"));
        assert!(announces_progress("10202:M 21 Nov 2026 08:57:37.789 # reading the log: 152 MB, 36247 records"));
        assert!(announces_progress("10202:M 21 Nov 2026 08:57:37.789 * reading dump.rdb: 152 of 300 MB"));
        assert!(!announces_progress("0.009 info net: 172.30.0.2/30"));
        assert!(!announces_progress("10202:M 21 Nov 2026 08:57:37.789 # a client is reading x"));
    }

    #[test]
    fn lines_are_bounded_and_harmless() {
        let mut console: &[u8] = b"one\r\n\x1b[2Jtwo\xff\n\nlast";
        let lines: Vec<_> = std::iter::from_fn(|| next_line(&mut console)).collect();
        assert_eq!(lines, ["one", "\u{fffd}[2Jtwo\u{fffd}", "", "last"]);
        let mut endless = std::io::repeat(b'x');
        let mut endless = BufReader::new(&mut endless);
        assert_eq!(next_line(&mut endless).unwrap().len() as u64, LINE_MAX_BYTES);
    }

    #[test]
    fn only_the_fixed_line_announces() {
        assert!(announces_readiness("0.012 info ready: 172.30.0.2:6379"));
        assert!(announces_readiness("7:M 20 Nov 2026 20:57:24.744 * ready: 172.30.0.2:6390"));
        for line in [
            "",
            "ready: x",
            "7:M 20 Nov 2026 20:57:24.744 # not ready: x",
            "0.012 info already ready: x",
            "0.012 info net: 172.30.0.2/30",
        ] {
            assert!(!announces_readiness(line), "{line:?}");
        }
    }
}
